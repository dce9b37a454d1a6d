"""The two stages of the Beam transform, driven as a portable runner drives them, over a log in memory."""

from __future__ import annotations

import pickle
import time
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock, patch

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from headrace.beam import ColumnTime, Limit, ProcessingTime, ReadFromSource
from headrace.enumerator import DiscoveryResult, pauses
from headrace.enumerator.errors import CorruptDataError, DataLossError, RetriableError, UsageError
from headrace.enumerator.source_driver import SourceDriver
from headrace.files import FileSource
from headrace.runners.beam.coders import Element, ReaderFormat
from headrace.runners.beam.enumerate import look
from headrace.runners.beam.event_time import IDLE_LAG
from headrace.runners.beam.flink_placement import Subtasks
from headrace.runners.beam.publisher import Publisher
from headrace.runners.beam.read import as_dicts
from headrace.runners.beam.read_limit import ReadLimited
from headrace.runners.beam.reader_restriction import Published, ReaderRestriction
from headrace.runners.beam.split_restriction import Enumerated, Fresh
from headrace.runners.beam.worker import Worker
from headrace.sources import Hybrid
from headrace.testing.memory import MemoryDiscovery, MemoryLog, MemoryPieces, MemoryReader, MemorySource, MemorySplit
from tests.helpers.beam_rig import BeamRun, Stage, on_direct

BEGIN = Element(b"")


def log_of(**splits):
    log = MemoryLog()
    for split_id, values in splits.items():
        log.create(split_id)
        log.append(split_id, values)
    return log


def values_of(batches):
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def stages(source, **options):
    enumerate_fn, read_fn = ReadFromSource(source, **options).stages({})
    return Stage(enumerate_fn), Stage(read_fn)


@contextmanager
def closing_all():
    """Gives the stage or run that it is given, which is closed at the end."""
    with ExitStack() as items:
        yield lambda item: items.enter_context(closing(item))


@pytest.fixture
def opened():
    with closing_all() as opened:
        yield opened


# --- the enumerating stage -----------------------------------------------------------------------------------------


class Counting(MemoryDiscovery):
    calls = ()
    failure = None

    def initial(self):
        self.calls += ("initial",)
        return super().initial()

    def later(self, known):
        self.calls += ("later",)
        if self.failure is not None:
            raise self.failure
        return super().later(known)


def test_only_a_fresh_enumeration_initialises():
    discovery = Counting(source := MemorySource(log_of(a="1")))
    first = look(Fresh(), driver := SourceDriver(source, discovery))
    look(Enumerated(first.checkpoint), driver)
    look(Enumerated(first.checkpoint), driver)
    assert discovery.calls == ("initial", "later", "later")


def test_a_look_emits_what_is_new_and_keeps_what_is_known():
    log = log_of(a="1", b="2")
    source = MemorySource(log)
    driver = SourceDriver(source, MemoryDiscovery(source))
    first = look(Fresh(), driver)
    log.create("c")
    second = look(Enumerated(first.checkpoint), driver)
    assert [split.split_id for split in first.added] == ["a", "b"]
    assert [split.split_id for split in second.added] == ["c"]
    assert [state.split.split_id for state in second.checkpoint.splits] == ["a", "b", "c"]


def pieces_of(count: int) -> MemoryLog:
    return log_of(**{f"p{number}": "x" for number in range(count)})


def test_a_look_by_a_cursor_emits_what_is_behind_it_and_keeps_the_cursor_alone():
    source = MemoryPieces(pieces_of(4), found_at_once=3)
    driver = SourceDriver(source, source.create_discovery())
    looks = [look(Fresh(), driver)]
    for _ in range(2):
        looks.append(look(Enumerated(looks[-1].checkpoint), driver))
    assert [[split.split_id for split in each.added] for each in looks] == [["p0", "p1", "p2"], ["p3"], []]
    assert [each.more for each in looks] == [True, False, False]
    assert [(each.checkpoint.splits, each.checkpoint.cursor["found"]) for each in looks] == [((), 3), ((), 4), ((), 4)]


def test_while_there_is_more_the_next_call_looks_at_once_whatever_the_interval(opened):
    run = opened(BeamRun(MemoryPieces(pieces_of(4), found_at_once=3), None, discovery_interval_s=300.0))
    assert len(run.job.reading) == 3
    run.look_for_splits()
    run.step(0)
    run.look_for_splits()
    run.step(0)
    assert len(run.job.reading) == 4
    assert len(run.job.enumerating[0].restriction) < 250


@pytest.mark.parametrize("first", [MemorySource, MemoryPieces])
def test_the_next_stage_starts_at_the_look_that_follows_the_one_that_has_found_all_of_a_stage(first):
    """A failure leaves the enumeration in front of the switch. Behind it nothing is left of the previous stage."""
    ends = []

    def then(end):
        ends.append(end.facts)
        return MemorySource(new)

    new = log_of(c="3")
    source = Hybrid(first(log_of(a="1", b="2"), bounded=True), then=then)
    driver = SourceDriver(source, source.create_discovery())
    looks = [look(Fresh(), driver)]
    with patch.object(MemoryDiscovery, "initial", side_effect=RetriableError("away")):
        looks.append(look(Enumerated(looks[-1].checkpoint), driver))
    for _ in range(2):
        looks.append(look(Enumerated(looks[-1].checkpoint), driver))
        new.create(f"d{len(looks)}")
    assert [[each.split_id for each in found.added] for found in looks] == [["0:a", "0:b"], [], ["1:c"], ["1:d3"]]
    assert [found.checkpoint.stage.number for found in looks] == [0, 0, 1, 1]
    assert [(found.more, found.failure is None) for found in looks] == [
        (True, True),
        (False, False),
        (False, True),
        (False, True),
    ]
    assert [state.split.split_id for state in looks[2].checkpoint.splits] == ["1:c"]
    assert ends == [ends[0]]


@pytest.mark.parametrize("limit", [None, Limit(100, None)])
def test_one_source_after_another_is_read_on_the_direct_runner(limit):
    with on_direct() as pipeline:
        source = Hybrid(MemoryPieces(log_of(a="12", b="34"), bounded=True), then=MemorySource(log_of(c="56"), bounded=True))
        values = pipeline | ReadFromSource(source, limit=limit) | beam.Map(lambda row: row["value"])
        assert_that(values, equal_to([*"123456"]))


def test_a_thousand_pieces_are_read_on_the_direct_runner():
    log = pieces_of(1200)
    with on_direct() as pipeline:
        pieces = pipeline | ReadFromSource(MemoryPieces(log, bounded=True)) | beam.Map(lambda row: row["split"])
        assert_that(pieces, equal_to(log.split_ids()))


def test_a_later_look_that_fails_for_a_while_finds_nothing():
    discovery = Counting(source := MemorySource(log_of(a="1")))
    first = look(Fresh(), driver := SourceDriver(source, discovery))
    discovery.failure = RetriableError("no leader")
    found = look(Enumerated(first.checkpoint), driver)
    assert (found.added, found.failure) == ([], discovery.failure)
    discovery.failure = CorruptDataError("rubbish")
    with pytest.raises(CorruptDataError):
        look(Enumerated(first.checkpoint), driver)


def test_without_an_interval_it_looks_at_the_start_and_after_a_restore_only(opened):
    log = log_of(a="1")
    source = MemorySource(log)
    run = opened(BeamRun(source, None, discovery_interval_s=None))
    log.create("b")
    run.look_for_splits()
    run.step(0)
    run.step(0)
    assert len(run.job.reading) == 1
    restored = opened(BeamRun(source, run.checkpoint(), discovery_interval_s=None))
    assert len(restored.job.reading) == 2


@pytest.mark.parametrize("fails", [True, False])
def test_a_look_after_a_restore_that_fails_or_is_inconclusive_is_had_again_without_an_interval(
    opened, monkeypatch, caplog, fails
):
    log, later, disputes = log_of(a="1"), MemoryDiscovery.later, [RetriableError("whether there is a c is not known")]

    def halting(self, known):
        if fails and disputes:
            raise disputes.pop()
        found = later(self, known)
        return replace(found, inconclusive=disputes.pop(), added=[]) if disputes else found

    run = opened(BeamRun(MemorySource(log), None, discovery_interval_s=None))
    log.create("b")
    monkeypatch.setattr(MemoryDiscovery, "later", halting)
    monkeypatch.setattr(pauses, "DISCOVERY_RETRY_S", 1e-9)
    restored = opened(BeamRun(MemorySource(log), run.checkpoint(), discovery_interval_s=None))
    assert len(restored.job.reading) == 1
    restored.look_for_splits()
    restored.step(0)
    assert len(restored.job.reading) == 2
    said = [record.message for record in caplog.records if "discovery of memory" in record.message]
    fails = "discovery of memory failed and will be tried again: whether there is a c is not known"
    assert said == [fails, "discovery of memory works again"]


@pytest.mark.parametrize(("interval_s", "longest_s"), [(None, 64e-9), (3e-9, 3e-9)])
def test_the_pause_before_a_look_that_is_had_again_grows(opened, monkeypatch, interval_s, longest_s):
    def inconclusive(self, known):
        return DiscoveryResult([], inconclusive=RetriableError("whether there is a c is not known"))

    enumerate_stage = opened(stages(MemorySource(log_of(a="1")), discovery_interval_s=interval_s)[0])
    (work,) = enumerate_stage.process(enumerate_stage.begin(BEGIN)).residuals
    monkeypatch.setattr(MemoryDiscovery, "later", inconclusive)
    monkeypatch.setattr(pauses, "DISCOVERY_RETRY_S", 1e-9)
    monkeypatch.setattr(pauses, "DISCOVERY_RETRY_MAX_S", 64e-9)
    worker, waits = enumerate_stage.fn._worker, []
    worker.last_look = None  # as after a restore
    for _ in range(9):
        (work,) = enumerate_stage.process(work).residuals
        waits.append(enumerate_stage.fn._wait_s)
    assert waits[:2] == pytest.approx([1e-9, 2e-9])
    assert waits[-1] == pytest.approx(longest_s)


def test_a_ledger_taken_back_is_looked_at_again_at_once(opened):
    log = log_of(a="1")
    run = opened(BeamRun(MemorySource(log), None, discovery_interval_s=1e-9))
    run.checkpoint()
    log.create("b")
    run.look_for_splits()
    run.step(0)
    assert len(run.job.reading) == 2
    run.enumerate.fn._interval_s = 3600.0
    run.lose_reader()
    assert len(run.job.reading) == 2


def test_a_bounded_source_leaves_nothing_to_enumerate(opened):
    enumerate_stage = opened(stages(MemorySource(log_of(a="12"), bounded=True))[0])
    assert enumerate_stage.process(enumerate_stage.begin(BEGIN)).residuals == []


@pytest.mark.parametrize("last", [MemorySource, MemoryPieces])
def test_a_restored_job_ends_with_its_last_stage_where_one_behind_it_was_taken_away(last):
    """Regression: it failed at each start, looking for the stage that is gone."""
    first, third = (MemorySource(log_of(a="1"), bounded=True) for _ in range(2))
    second = last(log_of(b="2"), bounded=True)
    with closing_all() as opened:
        enumerate_stage = opened(stages(Hybrid(first, then=[second, third]))[0])
        (work,) = enumerate_stage.process(enumerate_stage.begin(Element(b""))).residuals
        (work,) = enumerate_stage.process(work).residuals
    with closing_all() as opened:
        ended = opened(stages(Hybrid(first, then=second))[0]).process(work)
    assert (ended.outputs, ended.residuals) == ([], [])


def test_an_unbounded_source_is_asked_again_after_the_interval(opened):
    enumerate_stage = opened(stages(MemorySource(log_of(a="12")), discovery_interval_s=2.0)[0])
    assert enumerate_stage.process(enumerate_stage.begin(BEGIN)).delay_s == pytest.approx(2.0, abs=0.5)


@pytest.mark.parametrize("interval_s", [0.25, 1.0, 3.0])
def test_flink_drops_the_fraction_of_a_pause_and_the_enumeration_still_pauses(opened, interval_s):
    """Its runner takes whole seconds of what is left of the pause when the call has ended."""
    enumerate_stage = opened(stages(MemorySource(log_of(a="12")), discovery_interval_s=interval_s)[0])
    assert interval_s <= int(enumerate_stage.process(enumerate_stage.begin(BEGIN)).delay_s) <= interval_s + 1


def test_a_vanished_split_fails_every_attempt_of_the_job_and_not_only_the_first(opened, monkeypatch):
    """Flink starts the job again in the same worker process, which must not take the failure for said."""
    log, reports = log_of(a="1", b="1"), []

    def on_splits_missing(self, splits):
        reports.append([split.split_id for split in splits])
        raise DataLossError("b is gone")

    monkeypatch.setattr(MemorySource, "on_splits_missing", on_splits_missing)
    run = opened(BeamRun(MemorySource(log), None))
    run.checkpoint()
    log.hide("b")
    for _ in range(20):
        try:
            run._step_enumerate()
        except DataLossError:
            with suppress(DataLossError):
                run.lose_reader()  # and looks at once
    assert reports[:2] == [["b"], ["b"]]


def test_a_vanished_split_that_may_be_gone_is_reported_once(opened, monkeypatch):
    log, reports = log_of(a="1", b="1"), []
    monkeypatch.setattr(MemorySource, "on_splits_missing", lambda self, splits: reports.append([s.split_id for s in splits]))
    run = opened(BeamRun(MemorySource(log), None))
    log.hide("b")
    for _ in range(10):
        run._step_enumerate()
    assert reports == [["b"]]


def test_a_split_that_can_never_come_back_leaves_the_enumeration(opened, monkeypatch):
    """findings: Source 6. One that may come back stays, or it would be read twice."""
    log, gone = log_of(a="1", b="1"), set()
    monkeypatch.setattr(MemorySource, "confirm_deleted", lambda self, splits: frozenset(s.split_id for s in splits) & gone)
    enumerate_stage = opened(stages(MemorySource(log), discovery_interval_s=1e-9)[0])
    (work,) = enumerate_stage.process(enumerate_stage.begin(BEGIN)).residuals
    log.hide("b")
    known = []
    for _ in range(2):
        (work,) = enumerate_stage.process(work).residuals
        known.append({state.split.split_id for state in enumerate_stage.decode(work).checkpoint.splits})
        gone.add("b")
    assert known == [{"a", "b"}, {"a"}]


def test_splits_found_at_first_hold_the_watermark_back_and_the_enumeration_does_not(opened):
    log = log_of(a="1")
    enumerate_stage = opened(stages(MemorySource(log), discovery_interval_s=1e-9)[0])
    first = enumerate_stage.process(enumerate_stage.begin(BEGIN))
    assert [output.timestamp for output in first.outputs] == [MIN_TIMESTAMP]
    assert first.watermark > Timestamp.now() - 10
    log.create("b")
    (work,) = first.residuals
    second = enumerate_stage.process(work)
    assert [output.timestamp for output in second.outputs] == [first.watermark]
    assert second.watermark >= first.watermark


# --- the reading stage ---------------------------------------------------------------------------------------------


def begin(opened, source, **options):
    enumerate_stage, read_stage = map(opened, stages(source, **options))
    found = enumerate_stage.process(enumerate_stage.begin(BEGIN)).outputs
    return read_stage, [read_stage.begin(output.value, output.timestamp) for output in found]


def test_a_call_reads_for_so_long_and_hands_the_rest_on(opened):
    stage, (work,) = begin(opened, MemorySource(log_of(a="123456")), read_s=1e-9)
    bundle = stage.process(work)
    assert values_of(output.value for output in bundle.outputs) == ["1", "2"]
    assert bundle.delay_s == pytest.approx(0.0, abs=0.1)
    (rest,) = bundle.residuals
    assert stage.decode(rest) == ReaderRestriction((MemorySplit("a", 2),))


def test_flink_drops_a_pause_of_a_quarter_second_so_a_call_without_records_waits_itself(opened):
    """And asks for none: it is called again at once, whatever the runner makes of pauses."""
    stage, (work,) = begin(opened, MemorySource(log_of(a="")), read_s=0.2)
    started_s = time.monotonic()
    bundle = stage.process(work)
    assert (bundle.outputs, bundle.delay_s) == ([], pytest.approx(0.0, abs=0.1))
    assert time.monotonic() - started_s >= 0.2


def test_a_reader_that_has_nothing_just_now_is_asked_again(opened, monkeypatch):
    """Between two batches, without having waited: that is not an idleness."""
    pauses = iter([False, True] * 3)
    poll = MemoryReader.poll
    monkeypatch.setattr(MemoryReader, "poll", lambda self, timeout: None if next(pauses, False) else poll(self, timeout))
    stage, (work,) = begin(opened, MemorySource(log_of(a="123456")))
    assert values_of(output.value for output in stage.process(work).outputs) == list("123456")


def test_the_reader_is_kept_from_call_to_call_and_the_last_call_closes_it(opened, monkeypatch):
    made, closed = [], []
    monkeypatch.setattr(MemorySource, "create_reader", lambda self: made.append(1) or MemoryReader(self))
    monkeypatch.setattr(MemoryReader, "close", lambda self: closed.append(1))
    stage, (work,) = begin(opened, MemorySource(log_of(a="123456"), bounded=True), read_s=1e-9)
    for _ in range(3):
        assert closed == []
        work = next(iter(stage.process(work).residuals), None)
    assert (work, made, closed) == (None, [1], [1])


def test_sixteen_busy_splits_have_one_reader_for_all_calls(opened, monkeypatch):
    """A reader for each was thrown away, with what it had fetched, before its split's next turn came."""
    made = []
    monkeypatch.setattr(MemorySource, "create_reader", lambda self: made.append(1) or MemoryReader(self))
    source = MemorySource(log_of(**{f"s{number}": "12345678" for number in range(16)}), bounded=True)
    stage, todo = begin(opened, source, read_s=1e-9, num_readers=1)
    read, calls = [], 0
    while todo:
        bundle = stage.process(todo.pop())
        todo += bundle.residuals
        read += values_of(output.value for output in bundle.outputs)
        calls += 1
    assert (len(read), len(made)) == (16 * 8, 1)
    assert calls > 16


def test_a_call_that_fails_closes_its_reader(opened, monkeypatch):
    closed = []
    monkeypatch.setattr(MemoryReader, "poll", Mock(side_effect=CorruptDataError("rubbish")))
    monkeypatch.setattr(MemoryReader, "close", lambda self: closed.append(1))
    stage, (work,) = begin(opened, MemorySource(log_of(a="12")))
    with pytest.raises(CorruptDataError):
        stage.process(work)
    assert closed == [1]


def dividing(stage, work, after, fraction, rest):
    """Divides the call after this many batches; what is then another's goes to `rest`."""
    seen = []

    def divide(output):
        seen.append(output)
        if len(seen) == after:
            rest.extend(stage.divide(work, fraction))

    return divide


def read_divided(source, splits, **options):
    """The values of all that is read, when the runner asks for these divisions, one each call."""
    read, asked = [], iter(splits)
    with closing_all() as opened:
        stage, todo = begin(opened, source, **options)
        while todo:
            work, rest = todo.pop(0), []
            stage.on_output = dividing(stage, work, *next(asked, (1000, 0.0)), rest)
            bundle = stage.process(work)
            todo += rest + bundle.residuals
            read += values_of(output.value for output in bundle.outputs)
    return read


@given(splits=st.lists(st.tuples(st.integers(0, 12), st.floats(0, 0.99)), max_size=8), batch_size=st.integers(1, 5))
def test_however_the_runner_divides_a_bounded_split_while_it_is_read_every_record_comes_once(splits, batch_size):
    """The runner asks after this many batches of a call, for such a fraction."""
    values = [str(number) for number in range(40)]
    read = read_divided(MemorySource(log_of(a=values), bounded=True, batch_size=batch_size), splits)
    assert sorted(read, key=int) == values


@given(splits=st.lists(st.tuples(st.integers(0, 12), st.floats(0, 0.99)), max_size=8), batch_size=st.integers(1, 5))
def test_however_the_runner_divides_the_splits_of_a_reader_every_record_comes_once_and_in_its_splits_order(splits, batch_size):
    """It moves whole splits, also one whose batch is under way."""
    log = log_of(**{split_id: [f"{split_id}{number:02}" for number in range(9)] for split_id in "abcde"})
    read = read_divided(MemorySource(log, bounded=True, batch_size=batch_size), splits, num_readers=2)
    assert sorted(read) == [f"{split_id}{number:02}" for split_id in "abcde" for number in range(9)]


def test_a_call_whose_work_the_runner_takes_away_ends_without_a_reader_for_each_split(opened, monkeypatch):
    made = []
    monkeypatch.setattr(MemorySource, "create_reader", lambda self: made.append(1) or MemoryReader(self))
    stage, (work,) = begin(opened, MemorySource(log_of(**{f"s{number}": "1234" for number in range(20)})), num_readers=1)
    rest = []
    stage.on_output = dividing(stage, work, 1, 0.0, rest)
    bundle = stage.process(work)
    assert (len(bundle.outputs), bundle.residuals, len(made)) == (1, [], 1)
    assert len(stage.decode(rest[0]).reading) == 20


def test_a_split_that_was_divided_while_it_is_read_ends_at_its_new_stop(opened):
    """Not by chance in the test above: here the batch under way reaches beyond the stop, and is read again."""
    source = MemorySource(log_of(a=[str(number) for number in range(10)]), bounded=True, batch_size=4)
    stage, (work,) = begin(opened, source)
    rest = []
    stage.on_output = dividing(stage, work, 1, 0.3, rest)
    bundle = stage.process(work)
    assert stage.decode(rest[0]) == ReaderRestriction((MemorySplit("a", 5, 10),))
    assert [output.value.num_rows for output in bundle.outputs] == [4, 1]
    assert bundle.residuals == []


def test_the_backlog_is_the_size_of_what_is_left(opened):
    stage, (work,) = begin(opened, MemorySource(log_of(a="123456")), read_s=1e-9)
    (rest,) = stage.process(work).residuals
    assert stage.fn.restriction_size(rest.element, rest.restriction) == 4


# --- event time ----------------------------------------------------------------------------------------------------

START = datetime(2024, 1, 1, tzinfo=UTC)
TIMED = pa.schema([("split", pa.string()), ("offset", pa.int64()), ("value", pa.string()), ("time", pa.timestamp("ms", "UTC"))])


class TimedReader(MemoryReader):
    """The value is the minute."""

    def _read(self, split):
        inner = self._source
        self._source, schema = MemorySource(inner.log, bounded=inner.is_bounded, batch_size=inner.batch_size), inner.schema
        batch = super()._read(split)
        self._source = inner
        if batch is None:
            return None
        times = [START + timedelta(minutes=int(value)) for value in batch.records.column("value").to_pylist()]
        columns = [*batch.records.columns, pa.array(times, TIMED.field("time").type)]
        return type(batch)(batch.split, pa.RecordBatch.from_arrays(columns, schema=schema), batch.finished)


class TimedSource(MemorySource):
    schema = TIMED

    def create_reader(self):
        return TimedReader(self)


def minute(number):
    return Timestamp.from_utc_datetime(START + timedelta(minutes=number))


def test_a_batch_has_the_time_of_its_earliest_record_and_the_watermark_that_of_the_latest(opened):
    stage, (work,) = begin(opened, TimedSource(log_of(a=["3", "2", "7", "5"])), event_time=ColumnTime("time"), read_s=1e-9)
    bundle = stage.process(work)
    assert [output.timestamp for output in bundle.outputs] == [minute(2)]
    assert bundle.watermark == minute(3)


def test_the_watermark_never_goes_back(opened):
    stage, (work,) = begin(opened, TimedSource(log_of(a=["7", "7", "1", "1", "9"])), event_time=ColumnTime("time"), read_s=1e-9)
    marks = []
    for _ in range(2):
        bundle = stage.process(work)
        (work,) = bundle.residuals
        marks.append(bundle.watermark)
    assert marks == [minute(7), minute(7)]


def again(stage, work):
    """A call when it is known where the splits end."""
    assert stage.fn._worker.ends.wait(30)
    return stage.process(work)


def test_a_split_that_is_caught_up_by_position_holds_nothing_back(opened):
    stage, (work,) = begin(opened, TimedSource(log_of(a=["3"])), event_time=ColumnTime("time"), read_s=1e-9)
    bundle = stage.process(work)
    assert values_of(output.value for output in bundle.outputs) == ["3"]
    assert bundle.watermark == minute(3)  # it is not idle
    bundle = again(stage, *bundle.residuals)
    assert Timestamp.now() - 20 < bundle.watermark <= Timestamp.now() - IDLE_LAG


def test_the_watermark_of_a_reader_is_that_of_its_slowest_split_that_is_not_idle(opened):
    log = log_of(a=["7", "7"], b=["3", "3", "5", "5"], c=[])
    stage, (work,) = begin(opened, TimedSource(log), event_time=ColumnTime("time"), num_readers=1, read_s=1e-9)
    bundle = stage.process(work)
    assert bundle.watermark is None  # of b nothing is known
    (work,) = bundle.residuals
    bundle = again(stage, work)
    assert bundle.watermark == minute(3)
    bundle = again(stage, *bundle.residuals)
    assert bundle.watermark == minute(5)
    bundle = again(stage, *bundle.residuals)
    assert bundle.watermark > minute(10)  # all are idle


def test_the_later_part_of_a_divided_split_is_not_caught_up_where_the_earlier_part_ends(opened, monkeypatch):
    """Its watermark was the clock's then, before it had read one record, and all of its records were late."""
    source = TimedSource(log_of(a=[str(number) for number in range(10)]), bounded=True, batch_size=2)
    stage, (work,) = begin(opened, source, event_time=ColumnTime("time"), read_s=1e-9)
    todo, later = [work], []
    stage.on_output = dividing(stage, work, 1, 0.7, later)
    while todo:
        todo = again(stage, todo.pop()).residuals
    (work,) = later
    assert stage.decode(work) == ReaderRestriction((MemorySplit("a", 7, 10),))
    with monkeypatch.context() as silent:
        silent.setattr(TimedReader, "poll", lambda self, timeout: None)
        bundle = again(stage, work)
    assert (bundle.outputs, bundle.watermark) == ([], None)
    bundle = again(stage, *bundle.residuals)
    (output,) = bundle.outputs
    assert (output.timestamp, bundle.watermark) == (minute(7), minute(8))


def test_a_split_that_is_silent_but_not_caught_up_does_hold_back(opened, monkeypatch):
    """It is slow, not idle."""
    stage, (work,) = begin(opened, TimedSource(log_of(a=["3", "4", "5", "6"])), event_time=ColumnTime("time"), read_s=1e-9)
    (work,) = stage.process(work).residuals
    monkeypatch.setattr(TimedReader, "poll", lambda self, timeout: None)
    assert stage.process(work).watermark == minute(4)


def test_an_empty_split_holds_nothing_back_and_one_not_read_yet_everything(opened):
    stage, works = begin(opened, TimedSource(log_of(a=[], b=["1", "2", "3"])), event_time=ColumnTime("time"), read_s=1e-9)
    assert stage._state_coder.decode(works[1].estimator_state) is None
    bundle = stage.process(works[0])
    assert bundle.watermark is None
    assert again(stage, *bundle.residuals).watermark > minute(10)


def test_event_times_in_the_future_do_not_take_the_watermark_there(opened):
    stage, (work,) = begin(opened, TimedSource(log_of(a=[str(10**8)] * 4)), event_time=ColumnTime("time"), read_s=1e-9)
    assert stage.process(work).watermark <= Timestamp.now()


def test_in_processing_time_batches_have_the_time_of_reading(opened):
    stage, (work,) = begin(opened, MemorySource(log_of(a="1234")), event_time=ProcessingTime(), read_s=1e-9)
    before = Timestamp.now()
    bundle = stage.process(work)
    assert before <= bundle.outputs[0].timestamp <= bundle.watermark <= Timestamp.now()


def test_records_have_their_own_times():
    source = TimedSource(log_of(a=["3", "1"]), bounded=True)
    with on_direct() as pipeline:
        rows = pipeline | ReadFromSource(source, event_time=ColumnTime("time"))
        times = rows | beam.Map(lambda row, timestamp=beam.DoFn.TimestampParam: (row["value"], timestamp))
        assert_that(times, equal_to([("3", minute(3)), ("1", minute(1))]))


# --- publication ---------------------------------------------------------------------------------------------------


def published(monkeypatch):
    found = []
    monkeypatch.setattr(MemorySource, "checkpoint_completed", lambda self, splits: found.extend(s.next_offset for s in splits))
    return found


def test_nothing_is_published_unless_asked_for(opened, monkeypatch):
    found = published(monkeypatch)
    run = opened(BeamRun(MemorySource(log_of(a="1234")), None, publish=False))
    run.step(0)
    run.checkpoint()
    assert found == []


def test_on_flink_a_position_is_published_once_a_later_checkpoint_proves_it(opened, monkeypatch):
    found = published(monkeypatch)
    run = opened(BeamRun(MemorySource(log_of(a="123456")), None))
    run.step(0)
    run.snapshot()
    run.step(0)  # after the barrier, but finalised with the rest
    run.notify()
    assert found == []
    run.step(0)
    run.checkpoint()
    assert found == [4]


def test_of_a_split_whose_end_is_published_nothing_is_kept():
    """Regression: a worker of a stream of files kept an entry for each file that it had archived."""
    worker, last, finalisations, claimed = Worker(), MemorySplit("a", 4), [], []

    class Bundle:
        def register(self, finalised):
            finalisations.append(finalised)

        def try_claim(self, position):
            claimed.append(position)
            return True

    publisher, bundle = Publisher(MemorySource(log_of(a="1234")), worker, 60.0), Bundle()
    for _ in range(4):
        if not claimed:
            publisher.note(ReaderRestriction((), (last,)), {}, bundle, bundle)
            while finalisations:
                finalisations.pop()()
    assert claimed == [Published("a")]
    assert (worker._publications, worker.ended_s) == ({}, {})


def test_a_position_that_cannot_be_published_now_is_published_later(opened, monkeypatch, caplog):
    answers = [RetriableError("coordinator moved"), None]
    found = []

    def completed(self, splits):
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        found.extend(splits)

    monkeypatch.setattr(MemorySource, "checkpoint_completed", completed)
    run = opened(BeamRun(MemorySource(log_of(a="1234")), None))
    for _ in range(4):
        run.step(0)
        run.checkpoint()
    assert "coordinator moved" in caplog.text
    assert [split.next_offset for split in found] == [4]


# --- several sources in one pipeline ---------------------------------------------------------------------------------


def test_elements_with_one_coder_have_restrictions_with_one_coder():
    """Flink's runner knows the pair by the coder of the element: of two that differ, one would win."""

    class Other(MemorySource):
        name = "other"

    pipeline = beam.Pipeline()
    for number, source in enumerate(
        [MemorySource(log_of(a="1")), MemorySource(log_of(a="1"), bounded=True), Other(MemoryLog())]
    ):
        _ = pipeline | f"read {number}" >> ReadFromSource(source)
    components = pipeline.to_runner_api().components
    pairs = set()
    for transform in components.transforms.values():
        if transform.spec.urn == "beam:transform:pardo:v1":
            payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            if payload.restriction_coder_id:
                (collection,) = transform.inputs.values()
                pairs.add((components.pcollections[collection].coder_id, payload.restriction_coder_id))
    assert len(pairs) == 1
    ((element_coder, _),) = pairs
    assert components.coders[element_coder].spec.urn != "beam:coder:bytes:v1"


# --- limits and arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "positions"), [(3, {"a": 2, "b": 1}), (4, {"a": 2, "b": 2}), (100, {"a": 3, "b": 3})])
def test_a_limited_read_publishes_where_it_has_stopped_to_the_record(monkeypatch, count, positions):
    """It was asked to, and did not."""
    found = {}

    def completed(self, splits):
        found.update((split.split_id, split.next_offset) for split in splits)

    monkeypatch.setattr(MemorySource, "checkpoint_completed", completed)
    source = MemorySource(log_of(a="123", b="456"), bounded=True)
    with on_direct() as pipeline:
        rows = pipeline | ReadFromSource(source, limit=Limit(count, None), publish=True)
        assert_that(rows | beam.combiners.Count.Globally(), equal_to([min(count, 6)]))
    assert found == positions


def test_a_limited_read_deletes_the_files_that_it_has_read_whole(tmp_path):
    for file in range(3):
        pq.write_table(pa.table({"n": range(10)}), tmp_path / f"{file}.parquet", row_group_size=2)
    source = FileSource(str(tmp_path), after_read="delete")
    *batches, positions = ReadLimited(source, Limit(13, None), ProcessingTime()).process(b"")
    assert sum(batch.value.num_rows for batch in batches) == 13
    left = ReaderFormat(source).decode(positions.value)
    assert (left.reading, [split.path for split in left.unpublished]) == ((), ["0.parquet"])


def test_a_limited_read_reports_no_piece_as_finished_that_it_has_not_read():
    source = MemoryPieces(log_of(a="12", b="34"), bounded=True)
    with on_direct() as pipeline:
        rows = pipeline | ReadFromSource(source, limit=Limit(1, None), publish=True)
        assert_that(rows | beam.combiners.Count.Globally(), equal_to([1]))
    assert source.log.finished() == []


@pytest.mark.parametrize("runner", ["DirectRunner", "PrismRunner", "BundleBasedDirectRunner"])
def test_after_read_is_refused_where_a_failure_of_a_later_stage_loses_the_rows(tmp_path, runner):
    pq.write_table(pa.table({"n": range(10)}), tmp_path / "a.parquet")
    for limit in (None, Limit(1, None)):
        read = ReadFromSource(FileSource(str(tmp_path), after_read="delete"), publish=True, limit=limit)
        with pytest.raises(UsageError, match=r"\(after_read\).*Runner may lose the rows of a pipeline that fails"):
            _ = beam.Pipeline(runner) | read


@pytest.mark.parametrize("limit", [None, Limit(5, None)])
@pytest.mark.parametrize(("runner", "refused"), [("FlinkRunner", True), ("PortableRunner", True), ("DirectRunner", False)])
def test_publishing_on_flink_without_a_checkpoint_interval_is_refused(runner, refused, limit):
    """Never a position is published, and every call's bundle is kept until memory ends."""

    def read():
        return ReadFromSource(source, publish=True, limit=limit)

    source = MemorySource(log_of(a="123"))
    for interval in ([], ["--checkpointing_interval=-1"]):
        pipeline = beam.Pipeline(runner, PipelineOptions(["--streaming", *interval]))
        with pytest.raises(UsageError, match="--checkpointing_interval=10000") if refused else nullcontext():
            _ = pipeline | read()
    options = PipelineOptions(["--streaming", "--checkpointing_interval=5000", "--min_pause_between_checkpoints=500"])
    _ = beam.Pipeline(runner, options) | read()


@pytest.mark.parametrize(
    ("given", "options", "readers"), [(None, [], 4), (None, ["--parallelism=7"], 7), (3, ["--parallelism=7"], 3)]
)
def test_how_many_readers_there_are_is_said_or_is_the_pipelines_parallelism(opened, given, options, readers):
    source = MemorySource(log_of(**dict.fromkeys("abcdefghij", "1")))
    parsed = PipelineOptions(options).get_all_options()
    enumerate_stage = opened(Stage(ReadFromSource(source, num_readers=given).stages(parsed)[0]))
    assert len(enumerate_stage.process(enumerate_stage.begin(BEGIN)).outputs) == readers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parallelism": "four"}, "--parallelism must be a whole number, not 'four'"),
        ({"parallelism": 4, "max_parallelism": "x"}, "--max_parallelism must be a whole number"),
        ({"checkpointing_interval": "10s"}, "--checkpointing_interval must be a whole number, not '10s'"),
        ({"parallelism": 4, "maxParallelism": "2"}, "--max_parallelism=2 is less than --parallelism=4, which Flink refuses"),
    ],
)
def test_options_of_the_pipeline_that_cannot_be_are_refused_by_name(options, message):
    """They were bare ValueErrors, and with fewer key groups than subtasks the search for one never ended."""
    with pytest.raises(UsageError, match=message):
        ReadFromSource(MemorySource(log_of(a="1"))).stages(options)


def test_options_that_are_written_as_in_java_are_understood():
    options = {"parallelism": "4", "maxParallelism": "256", "checkpointingInterval": "3600000"}
    enumerate_fn, read_fn = ReadFromSource(MemorySource(log_of(a="1"))).stages(options)
    assert (enumerate_fn._subtasks, read_fn._reading.publish_timeout_s) == (Subtasks(4, 256), 3 * 3600)


@pytest.mark.parametrize(("count", "expected"), [(3, 3), (100, 6)])
def test_a_limit_of_records_is_exact(count, expected):
    source = MemorySource(log_of(a="123", b="456"), bounded=True)
    with on_direct() as pipeline:
        rows = pipeline | ReadFromSource(source, limit=Limit(count, None))
        assert_that(rows | beam.combiners.Count.Globally(), equal_to([expected]))


def test_a_limit_of_time_ends_an_unbounded_source():
    with on_direct() as pipeline:
        rows = pipeline | ReadFromSource(MemorySource(log_of(a="123")), limit=Limit(None, 0.3))
        assert_that(rows | beam.Map(lambda row: row["value"]), equal_to(["1", "2", "3"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output": "pandas"}, 'output must be "records" or "arrow"'),
        ({"discovery_interval_s": 0}, "discovery_interval_s must be positive"),
        ({"read_s": 0}, "read_s must be positive"),
        ({"num_readers": 0}, "num_readers must be a whole number, at least 1"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        ReadFromSource(MemorySource(MemoryLog()), **arguments)


def test_a_source_without_an_end_is_refused_where_stages_run_one_after_the_other():
    with pytest.raises(UsageError, match="FnApiRunner ends one stage before it starts the next"):
        _ = on_direct() | ReadFromSource(MemorySource(MemoryLog()))


def test_a_runner_that_does_not_end_splittable_functions_is_refused_but_with_a_limit():
    """Each read failed there after four attempts: the enumeration was neither completed nor handed on."""
    source = MemorySource(MemoryLog(), bounded=True)
    with pytest.raises(UsageError, match="BundleBasedDirectRunner does not run Beam's splittable DoFns"):
        _ = beam.Pipeline("BundleBasedDirectRunner") | ReadFromSource(source)
    _ = beam.Pipeline("BundleBasedDirectRunner") | ReadFromSource(source, limit=Limit(1, None))
    with pytest.raises(UsageError, match="BundleBasedDirectRunner does not run Beam's splittable DoFns"):
        _ = beam.Pipeline("BundleBasedDirectRunner") | ReadFromSource(source, limit=Limit(1, None), publish=True)


@pytest.mark.parametrize("runner", ["DirectRunner", "apache_beam.runners.portability.fn_api_runner.FnApiRunner"])
@pytest.mark.parametrize("number", [0, 2])
def test_several_workers_of_a_direct_runner_are_refused(runner, number):
    """Regression: it dropped what a reader had handed on to a next bundle, and ended well."""
    source, options = MemorySource(MemoryLog(), bounded=True), PipelineOptions([f"--direct_num_workers={number}"])
    with pytest.raises(UsageError, match=f"direct_num_workers={number} .* drops what a splittable DoFn hands on"):
        _ = beam.Pipeline(runner, options) | ReadFromSource(source)
    _ = beam.Pipeline("PrismRunner", options) | ReadFromSource(source)


def test_direct_runner_may_have_no_prism_and_that_is_said(caplog):
    _ = beam.Pipeline("DirectRunner") | ReadFromSource(MemorySource(MemoryLog()))
    assert "only where Beam can fetch its program Prism" in caplog.text


@pytest.mark.parametrize("limit", [(None, None), (0, None), (None, 0.0)])
def test_a_limit_limits(limit):
    with pytest.raises(UsageError):
        Limit(*limit)


def test_the_stages_are_picklable_with_their_source():
    enumerate_fn, read_fn = ReadFromSource(MemorySource(log := log_of(a="1"))).stages({})
    assert pickle.loads(pickle.dumps(enumerate_fn))._source.log is log
    assert pickle.loads(pickle.dumps(read_fn))._reading.source.log is log


def test_a_record_is_a_dict_unless_asked_otherwise():
    assert list(as_dicts(pa.RecordBatch.from_pydict({"a": [1, 2]}))) == [{"a": 1}, {"a": 2}]
