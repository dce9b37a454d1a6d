"""What a streaming query's driver decides, over a log in memory: no Spark, no broker, no clock but the test's."""

import json
from dataclasses import dataclass, field, replace
from unittest.mock import Mock

import pyarrow as pa
import pytest

from headrace.enumerator import errors
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.ledger import SplitState
from headrace.runners.local.savepoints import Savepoint
from headrace.runners.spark import tasks as task_reading
from headrace.runners.spark.log_read import Limits, LogOffsets, LogRead
from headrace.runners.spark.source_planner import LOOK_S, Pace
from headrace.runners.spark.stream import StreamPlanner
from headrace.runners.spark.tasks import LARGE_BATCH_BYTES, SMALL_BATCH_BYTES, read_splits, well_sized
from headrace.testing.memory import MemoryLog, MemorySource, MemorySplit
from tests.helpers.memory_offsets import MemoryOffsets


class WatchedSource(MemorySource):
    """Keeps what the runner shows it, and fails when instructed to."""

    def __init__(self, log, **arguments):
        super().__init__(log, **arguments)
        self.published = []
        self.missing = []
        self.publish_error = None
        self.discoveries = []
        self.initial_answer = None
        self.gone_for_good = frozenset()
        self.asked_whether_gone = []
        self.outage = None
        self.inconclusive = None
        self.ends_seen = {}

    def at_end(self, splits):
        if self.outage is not None:
            raise self.outage
        let_pass = {split.split_id: self.ends_seen.get(split.split_id) for split in splits}
        seen = super().at_end([split for split in splits if let_pass[split.split_id] is None])
        lost = [split for split in splits if split.split_id not in seen]
        return {**seen, **{split.split_id: replace(split, next_offset=let_pass[split.split_id]) for split in lost}}

    def retired(self, splits):
        self.asked_whether_gone.append([split.split_id for split in splits])
        return frozenset(split.split_id for split in splits if split.split_id in self.gone_for_good)

    def create_discovery(self):
        discovery = super().create_discovery()
        discovery.initial = self.initial_answer or discovery.initial
        later = discovery.later
        discovery.later = lambda known: replace(later(known), inconclusive=self.inconclusive)
        for name in ("initial", "later"):
            setattr(discovery, name, self._counted(name, getattr(discovery, name)))
        return discovery

    def _counted(self, name, method):
        def call(*arguments):
            self.discoveries.append(name)
            return method(*arguments)

        return call

    def checkpoint_completed(self, splits):
        if self.publish_error is not None:
            raise self.publish_error
        self.published.append({split.split_id: split.next_offset for split in splits})

    def on_splits_missing(self, splits):
        self.missing.append([split.split_id for split in splits])


class TakenOverOffsets(MemoryOffsets):
    """Reads those of another connector, too."""

    def from_json(self, text):
        body = json.loads(text)
        if "splits" in body:
            return super().from_json(text)
        return LogOffsets({split_id: MemorySplit(split_id, at) for split_id, at in body.items()}, started_at={})


@dataclass
class Query:
    """A query with a checkpoint: what Spark logs, and calls in the order that it does. `run` starts it again."""

    source: WatchedSource
    limits: Limits = field(default_factory=Limits)
    predecessor: object = None
    savepoint: str | None = None
    min_tasks: int | None = None
    max_task_offsets: int | None = None
    now: float = 1000.0
    offset_log: list = field(default_factory=list)
    committed: int = 0
    rows: list = field(default_factory=list)

    def __post_init__(self):
        self.run()

    def run(self):
        job = LogRead(
            source=self.source,
            offsets=TakenOverOffsets(),
            columns=("value",),
            limits=self.limits,
            predecessor=self.predecessor,
            savepoint=self.savepoint,
            min_tasks=self.min_tasks,
            max_task_offsets=self.max_task_offsets,
        )
        self.planner = StreamPlanner(job, lambda: self.now)
        if self.offset_log and self.committed < len(self.offset_log):
            self._process(len(self.offset_log) - 1)

    def drain(self):
        while self.trigger():
            pass

    def trigger(self, **source):
        """One trigger to its end, of a source with these attributes: True when a batch ran."""
        vars(self.source).update(source)
        if not self.log_offsets():
            return False
        self._process(len(self.offset_log) - 1)
        return True

    def log_offsets(self):
        """One trigger up to the offset log: Spark may be killed after this."""
        start = self._start(len(self.offset_log))
        end = self.planner.next_offsets(start, self.limits.max_offsets, self.limits.min_offsets)
        if end == start:
            return False
        self.offset_log.append(end)
        if len(self.offset_log) > 1:
            self.planner.committed(self.offset_log[-2])
        return True

    def _start(self, batch):
        return self.offset_log[batch - 1] if batch else self.planner.initial_offsets()

    def _process(self, batch):
        for task in self.planner.tasks(self._start(batch), self.offset_log[batch]):
            for records in read_splits(self.source, task, ["split", "offset", "value"], 1.0):
                self.rows += records["value"].to_pylist()
        self.committed = batch + 1


def add(log, name, *values):
    log.create(name)
    log.append(name, list(values))


def refuse_missing(splits):
    raise errors.DataLossError(f"gone: {splits[0].split_id}")


@pytest.fixture
def log():
    log = MemoryLog()
    for name in "ab":
        add(log, name, *(f"{name}{number}" for number in range(10)))
    return log


@pytest.fixture
def query(log):
    return Query(WatchedSource(log))


@pytest.fixture
def started(log):
    """A query whose first batch has run."""
    query = Query(WatchedSource(log))
    query.trigger()
    return query


@pytest.fixture
def latest(log):
    return Query(WatchedSource(log, start="latest"))


def all_values(log):
    return sorted(value for split_id in log._values for value in log.read(split_id, 0, 10**9))


def test_a_query_reads_everything_once_and_then_what_comes(query, log):
    assert query.trigger()
    assert not query.trigger()
    log.append("a", ["a10"])
    assert query.trigger()
    assert sorted(query.rows) == all_values(log)


def savepoint_of(source, *splits, folder):
    """The file that a run of `headrace run` has left which was at these splits."""
    positions = Checkpoint(7, tuple(SplitState(split, finished=False) for split in splits), exhausted=False)
    text = CheckpointSerializer(source.name, source.split_serializer).serialize(positions).decode()
    return str(Savepoint("run", 7, text).write(folder))


class TestSavepoints:
    """`startFromSavepoint`."""

    def test_a_query_without_a_checkpoint_starts_where_the_savepoint_is_and_says_so_once(self, log, tmp_path, caplog):
        source = WatchedSource(log)
        query = Query(source, savepoint=savepoint_of(source, MemorySplit("a", 7), MemorySplit("b", 9), folder=tmp_path))
        assert query.trigger()
        log.append("a", ["later"])
        assert query.trigger()
        assert sorted(query.rows) == ["a7", "a8", "a9", "b9", "later"]
        assert [record.getMessage() for record in caplog.records] == [f"the query starts where savepoint {query.savepoint} is"]

    def test_a_query_with_a_checkpoint_continues_from_that_and_each_run_says_so_once(self, started, log, caplog):
        started.savepoint = "/a/savepoint-that-is-gone.json"
        for value in ("one", "two"):
            started.run()
            for number in range(2):
                log.append("a", [f"{value}{number}"])
                assert started.trigger()
        assert sorted(started.rows) == all_values(log)
        assert [record.getMessage() for record in caplog.records] == [
            "the query continues from its checkpoint; savepoint /a/savepoint-that-is-gone.json is not looked at"
        ] * 2


def test_positions_are_looked_up_once_and_the_mark_of_a_new_query_differs_from_every_end(latest, log):
    initial = latest.planner.initial_offsets()
    assert latest.source.discoveries == []
    end = latest.planner.next_offsets(initial, None, None)
    log.append("a", ["a10"])
    assert latest.planner.initial_offsets() == initial != end
    latest.planner.next_offsets(initial, None, None)
    assert latest.source.discoveries.count("initial") == 1


def test_batch_0_runs_without_data_so_that_the_start_is_durable(latest, log):
    assert latest.trigger()
    assert latest.rows == []
    log.append("a", ["late"])
    latest.run()  # a restart before any other batch: the position must not be looked up again
    assert latest.trigger()
    assert latest.rows == ["late"]
    assert latest.source.discoveries.count("initial") == 1


def test_a_killed_batch_0_is_replayed_from_where_it_started_not_from_a_new_latest(latest, log):
    assert latest.log_offsets()  # "latest" is here
    log.append("a", ["one", "two"])
    latest.limits = Limits(max_offsets=1)
    latest.run()  # killed: Spark asks for initial offsets again, and "latest" would be another place now
    latest.drain()
    assert latest.rows == ["one", "two"]
    assert latest.source.discoveries.count("initial") == 1


def test_a_killed_batch_0_is_replayed_though_a_split_appeared_that_the_start_does_not_name(query, log):
    """Regression: startingOffsets names partitions, one is added while the query is down, and no start fits all of them."""
    query.log_offsets()
    add(log, "c", "c0")
    query.source.initial_answer = Mock(
        side_effect=errors.UsageError("start positions by partition must name every partition and no other: missing [c]")
    )
    query.run()
    query.trigger()
    assert sorted(query.rows) == all_values(log)
    assert query.planner.initial_offsets() == Query(WatchedSource(log)).planner.initial_offsets()


def test_a_new_query_says_what_is_wrong_with_its_start(query):
    query.source.initial_answer = Mock(side_effect=errors.UsageError("no such topic"))
    query.run()
    with pytest.raises(errors.UsageError, match="no such topic"):
        query.trigger()


def test_a_killed_later_batch_is_replayed_with_the_same_ranges(started, log):
    log.append("a", ["x"])
    started.log_offsets()
    log.append("a", ["y"])
    started.run()
    assert started.rows[-1] == "x"
    started.trigger()
    assert sorted(started.rows) == all_values(log)


def test_no_restart_initialises_again(started):
    started.source.discoveries.clear()
    started.run()
    started.trigger()
    assert started.source.discoveries == ["later"]


def test_where_each_split_started_stays_in_the_offsets(started, log):
    log.append("a", ["x"])
    started.trigger()
    assert MemoryOffsets().from_json(started.offset_log[-1]).started_at == {"a": 0, "b": 0}


def test_a_new_split_is_read_from_its_first_value(latest, log):
    latest.trigger()
    add(log, "c", "c0")
    latest.trigger()
    assert latest.rows == ["c0"]


def test_an_empty_new_split_is_made_durable_at_once(started, log):
    log.create("c")
    assert started.trigger()
    assert "c" in MemoryOffsets().from_json(started.offset_log[-1]).splits
    assert not started.trigger()


def test_a_split_found_in_a_killed_batch_is_replayed_from_where_it_started(started, log):
    add(log, "c", "c0", "c1")
    started.log_offsets()
    started.run()
    assert sorted(started.rows) == all_values(log)


def test_a_source_without_splits_waits_for_them():
    log = MemoryLog()
    query = Query(WatchedSource(log))
    assert query.trigger()
    query.run()
    add(log, "a", "first")
    query.trigger()
    assert query.rows == ["first"]


def test_a_killed_batch_0_without_splits_is_replayed():
    query = Query(WatchedSource(MemoryLog()))
    query.log_offsets()
    query.run()
    assert query.rows == []
    assert query.committed == 1


class TestMissingSplits:
    def test_are_reported_once_and_keep_their_place(self, started, log):
        log.hide("a")
        log.append("a", ["hidden"])
        started.trigger()
        started.trigger()
        assert started.source.missing == [["a"]]
        log.show("a")
        started.trigger()
        assert sorted(started.rows) == all_values(log)

    def test_stop_the_query_when_the_source_says_so(self, started, log):
        log.hide("a")
        started.source.on_splits_missing = refuse_missing
        with pytest.raises(errors.DataLossError, match="gone: a"):
            started.trigger()

    def test_one_that_flaps_is_read_on_from_where_it_was_though_a_batch_is_limited(self, log):
        query = Query(WatchedSource(log), limits=Limits(max_offsets=4))
        query.trigger()
        log.hide("a")
        query.trigger()
        log.show("a")
        query.drain()
        assert sorted(query.rows) == all_values(log)

    def test_are_asked_about_once_at_every_look_until_they_are_gone_and_never_again(self, started, log):
        log.hide("a")
        started.trigger()
        started.trigger()
        assert started.source.asked_whether_gone == [["a"], ["a"]]
        started.source.gone_for_good = {"a"}
        before = started.offset_log[-1]
        left = [started.planner.next_offsets(before, None, None) for _ in range(2)]
        assert started.source.asked_whether_gone == [["a"]] * 3
        assert left[0] == left[1] != before

    def test_leave_though_another_left_before_the_offsets_were_stored(self, started, log):
        before = started.offset_log[-1]
        for name in "ab":
            log.hide(name)
            started.source.gone_for_good |= {name}
            end = started.planner.next_offsets(before, None, None)
        assert MemoryOffsets().from_json(end).splits == {}


class TestOutages:
    def test_are_ridden_out_and_said_once_each_way(self, started, log, caplog):
        started.trigger()
        assert caplog.text == ""
        for _ in range(2):
            started.source.outage = errors.OutageError("no broker answers")
            said = len(caplog.records)
            assert [started.trigger(), len(caplog.records), started.trigger()] == [False, said + 1, False]
            started.source.outage = None
            log.append("a", ["x"])
            assert started.trigger()
        said = ["the query continues, but finds nothing new until this is over: no broker answers", "the source answers again"]
        assert [record.message for record in caplog.records] == said * 2

    def test_hold_up_nothing_but_what_they_leave_inconclusive(self, started, log, caplog):
        for _ in range(2):
            started.source.inconclusive = errors.RetriableError("whether there is a c is not known")
            said = len(caplog.records)
            for value in "xy":
                log.append("a", [value])
                assert started.trigger()
                assert len(caplog.records) == said + 1
            started.trigger(inconclusive=None)
        said = "the query continues without what may be new until this is over: whether there is a c is not known"
        assert [record.message for record in caplog.records] == [said, "the query finds what is new again"] * 2

    def test_leave_something_inconclusive_at_the_first_look_too(self, started, caplog):
        started.run()
        started.trigger(inconclusive=errors.RetriableError("whether there is a c is not known"))
        assert len(caplog.records) == 1

    def test_are_not_left_inconclusive_for_the_next_run(self, query, log):
        query.planner.pin_end()
        query.trigger()
        query.run()
        query.source.inconclusive = errors.RetriableError("whether there is a c is not known")
        query.planner.pin_end()
        with pytest.raises(errors.RetriableError, match="whether there is a c"):
            query.trigger()
        query.source.inconclusive = None
        log.append("a", ["x"])
        assert query.trigger()

    def test_end_a_query_that_would_take_nothing_for_the_end(self, query):
        query.planner.pin_end()
        query.source.outage = errors.OutageError("no broker answers")
        with pytest.raises(errors.OutageError, match="no broker answers"):
            query.trigger()


class TestEndsThatGoBack:
    """The source has let a loss pass: the log ends before what was read."""

    @pytest.fixture
    def query(self, log):
        query = Query(WatchedSource(log), limits=Limits(min_offsets=100, max_delay_s=60))
        query.trigger()
        query.trigger()
        return query

    def test_are_durable_at_once_and_read_on_from(self, query, log):
        assert query.trigger(ends_seen={"a": 4})
        assert MemoryOffsets().from_json(query.offset_log[-1]).splits["a"].next_offset == 4
        query.source.ends_seen = {}
        query.now += 60
        query.trigger()
        assert query.rows[20:] == [f"a{number}" for number in range(4, 10)]

    def test_are_published_though_they_lie_before_what_was(self, query):
        assert query.source.published == [{"a": 10, "b": 10}]
        query.source.ends_seen = {"a": 4}
        for _ in range(4):
            query.trigger()
        assert query.source.published[1:] == [{"a": 4}]

    def test_are_not_published_again_once_they_are_passed(self, query):
        query.trigger(ends_seen={"a": 4})
        went_back = query.offset_log[-1]
        query.source.ends_seen = {}
        query.now += 60
        query.trigger()
        query.trigger()
        query.planner.committed(went_back)
        assert query.source.published[1:] == [{"a": 4}, {"a": 10}]

    def test_are_published_though_what_lay_before_was_not_until_then(self, log):
        query = Query(WatchedSource(log), limits=Limits(min_offsets=100, max_delay_s=60))
        query.trigger(publish_error=errors.RetriableError("busy"))
        before = query.offset_log[-1]
        query.trigger(ends_seen={"a": 4})
        query.source.publish_error = None
        query.planner.committed(before)
        query.trigger()
        assert query.source.published == [{"a": 10, "b": 10}, {"a": 4}]

    def test_are_published_later_where_that_fails_for_now(self, query):
        query.trigger(ends_seen={"a": 4})
        query.trigger(publish_error=errors.RetriableError("busy"))
        query.trigger(ends_seen={"a": 4, "b": 6})
        query.trigger(publish_error=None)
        assert query.source.published[1:] == [{"a": 4, "b": 6}]

    def test_do_not_pin_the_end_of_a_run_since_there_may_be_more_behind(self, query, log):
        query.planner.pin_end()
        query.trigger(ends_seen={"a": 4})
        query.source.ends_seen = {}
        query.drain()
        assert query.rows[20:] == [f"a{number}" for number in range(4, 10)]


class TestRetiredSplits:
    """Missing, tolerated by the source, and gone by proof."""

    @pytest.fixture
    def query(self, log):
        query = Query(WatchedSource(log))
        query.trigger()
        log.hide("a")
        return query

    def known(self, query):
        return set(MemoryOffsets().from_json(query.offset_log[-1]).splits)

    def test_leave_the_offsets_at_once_and_with_them_the_reason_to_fail(self, query, log):
        assert query.trigger(gone_for_good={"a"})
        assert self.known(query) == {"b"}
        query.source.on_splits_missing = refuse_missing
        query.run()
        log.append("b", ["b10"])
        query.trigger()
        assert query.rows[-1] == "b10"

    def test_are_asked_for_until_there_is_a_proof(self, query):
        assert not query.trigger()
        assert self.known(query) == {"a", "b"}
        assert query.trigger(gone_for_good={"a"})
        assert self.known(query) == {"b"}
        assert query.source.missing == [["a"]], "reported once"

    def test_a_batch_that_was_killed_while_one_left_is_replayed_without_asking_again(self, query):
        query.source.gone_for_good = {"a"}
        query.log_offsets()
        query.source.on_splits_missing = refuse_missing
        query.run()
        assert query.committed == 2

    def test_one_that_is_back_after_all_continues_where_it_was(self, query, log):
        query.trigger(gone_for_good={"a"})
        log.show("a")
        log.append("a", ["a10"])
        query.trigger()
        query.trigger()
        assert sorted(query.rows) == all_values(log)

    def test_topics_that_live_for_a_batch_do_not_make_the_offsets_grow(self, query, log):
        sizes = []
        for number in range(20):
            name = f"short-lived-{number}"
            add(log, name, "x")
            query.trigger()
            log.hide(name)
            query.source.gone_for_good |= {name}
            query.trigger()
            sizes.append(len(self.known(query)))
        assert max(sizes) == 2

    def test_the_minimum_of_a_batch_does_not_hold_it_back(self, log):
        query = Query(WatchedSource(log), limits=Limits(min_offsets=5, max_delay_s=60))
        query.trigger()
        log.hide("a")
        assert query.trigger(gone_for_good={"a"})
        assert self.known(query) == {"b"}


class TestLimits:
    @pytest.fixture
    def delayed(self, log):
        """A query whose first batch has run: the first never waits."""
        query = Query(WatchedSource(log), limits=Limits(min_offsets=5, max_delay_s=60))
        query.trigger()
        return query

    def test_max_offsets_are_shared_out_over_all_splits(self, log):
        query = Query(WatchedSource(log), limits=Limits(max_offsets=4))
        query.trigger()
        assert sorted(query.rows) == ["a0", "a1", "b0", "b1"]
        query.drain()
        assert sorted(query.rows) == all_values(log)

    def test_min_offsets_hold_a_batch_back_until_enough_are_there(self, delayed, log):
        log.append("a", ["1", "2"])
        delayed.now += 59
        assert not delayed.trigger()
        log.append("b", ["3", "4", "5"])
        assert delayed.trigger()
        assert sorted(delayed.rows) == all_values(log)

    def test_min_offsets_hold_a_batch_back_no_longer_than_the_delay(self, delayed, log):
        log.append("a", ["1"])
        delayed.now += 59.9
        assert not delayed.trigger()
        delayed.now += 0.1
        assert delayed.trigger()

    def test_the_delay_counts_from_the_last_batch(self, delayed, log):
        delayed.now += 50
        log.append("a", ["1"] * 5)
        assert delayed.trigger()
        log.append("a", ["1"])
        delayed.now += 50
        assert not delayed.trigger()
        delayed.now += 10
        assert delayed.trigger()

    def test_min_and_max_together(self, log):
        query = Query(WatchedSource(log), limits=Limits(min_offsets=3, max_offsets=6, max_delay_s=60))
        sizes = []
        while query.trigger():
            sizes.append(len(query.rows) - sum(sizes))
        assert sizes == [6, 6, 6]  # two are left, fewer than the minimum
        query.now += 60
        query.trigger()
        assert sorted(query.rows) == all_values(log)

    def test_min_offsets_are_counted_over_what_is_there(self, delayed, log):
        log.append("a", ["1"] * 4)
        assert not delayed.trigger()

    def test_the_delay_starts_with_a_restart_whose_first_look_never_waits(self, delayed, log):
        delayed.run()
        log.append("a", ["1"])
        assert delayed.trigger()
        log.append("a", ["2"])
        delayed.now += 59
        assert not delayed.trigger()
        delayed.now += 1
        assert delayed.trigger()

    def test_a_new_split_does_not_wait(self, delayed, log):
        log.create("c")
        assert delayed.trigger()


class TestAvailableNow:
    def run_all(self, query):
        query.run()
        query.planner.pin_end()
        return [query.trigger() for _ in range(10)]

    def test_reads_what_is_there_at_the_first_look_and_ends(self, log):
        query = Query(WatchedSource(log), limits=Limits(max_offsets=8))
        query.planner.pin_end()
        assert query.trigger()
        log.append("a", ["later"])
        add(log, "c", "new")
        query.drain()
        assert sorted(query.rows) == sorted(set(all_values(log)) - {"later", "new"})
        self.run_all(query)
        assert sorted(query.rows) == all_values(log)

    def test_min_offsets_do_not_keep_it_from_ending(self, log):
        query = Query(WatchedSource(log), limits=Limits(min_offsets=3, max_offsets=6))
        self.run_all(query)
        assert sorted(query.rows) == all_values(log)

    def test_splits_removed_and_added_between_runs(self, log):  # SPARK-53560
        query = Query(WatchedSource(log), limits=Limits(max_offsets=4))
        query.planner.pin_end()
        query.trigger()
        query.log_offsets()  # killed with a batch not committed
        log.hide("b")
        add(log, "c", "c0")
        assert self.run_all(query)[-1] is False
        assert {"c0", "a9"} <= set(query.rows)
        log.show("b")
        self.run_all(query)
        assert sorted(query.rows) == all_values(log)

    def test_a_pinned_end_never_takes_a_position_back(self, query, log):
        query.planner.pin_end()
        query.trigger()
        log.append("a", ["a10"])
        other = replace(query, offset_log=list(query.offset_log), committed=1)
        other.trigger()
        ahead = other.offset_log[-1]
        assert query.planner.next_offsets(ahead, None, None) == ahead

    def test_a_run_with_nothing_new_ends_at_once(self, query):
        self.run_all(query)
        assert not any(self.run_all(query))


class TestPublishedPositions:
    def test_are_published_once_committed_and_only_then(self, started):
        assert started.source.published == []
        started.trigger()
        assert started.source.published == [{"a": 10, "b": 10}]

    def test_those_of_a_split_without_records_are_included(self, log):
        log.create("empty")
        add(log, "one", "x")
        query = Query(WatchedSource(log))
        query.trigger()
        query.trigger()
        assert query.source.published == [{"a": 10, "b": 10, "empty": 0, "one": 1}]

    def test_the_last_of_a_run_is_included(self, log):
        query = Query(WatchedSource(log), limits=Limits(max_offsets=8))
        query.planner.pin_end()
        query.drain()
        assert query.source.published[-1] == {"a": 10, "b": 10}

    def test_never_go_back_and_are_not_repeated(self, started, log):
        log.append("a", ["x"])
        started.trigger()
        started.trigger()
        started.planner.committed(started.offset_log[0])
        assert started.source.published == [{"a": 10, "b": 10}, {"a": 11}]

    def test_follow_a_loss_though_another_driver_has_run_the_batch_that_went_back(self, log):
        """Found by search, in the simulation of Spark: they were still until the query was where it had been before."""
        query = Query(WatchedSource(log), limits=Limits(max_offsets=2))
        query.drain()
        planned_it = query.planner
        query.source.ends_seen = {"a": 4}
        assert query.log_offsets()
        assert query.source.published[-1]["a"] == 10
        query.source.ends_seen = {}
        query.run()  # the other driver
        assert query.trigger()
        query.source.published.clear()
        planned_it.committed(query.offset_log[-1])
        assert query.source.published == [{"a": 6}]

    def test_those_of_splits_that_are_gone_are_left_out(self, started, log):
        log.hide("a")
        started.trigger()
        assert started.source.published == [{"b": 10}]

    def test_initial_offsets_are_not_published(self, latest):
        latest.planner.next_offsets(latest.planner.initial_offsets(), None, None)
        assert latest.source.published == []

    @pytest.mark.parametrize(
        "error",
        [
            errors.RetriableError("busy"),
            ConnectionError("lost"),
            errors.DeadlineExceededError("late"),
            errors.AuthenticationError("Read was revoked"),
        ],
    )
    def test_a_failure_to_publish_is_said_once_does_not_stop_the_query_and_is_made_good_later(
        self, started, log, error, caplog
    ):
        started.source.publish_error = error
        for _ in range(3):
            log.append("a", ["x"])
            started.trigger()
        assert len(started.rows) == 23
        assert [record.message for record in caplog.records].count(
            f"positions of memory could not be published now, later ones will be tried: {error}"
        ) == 1
        started.trigger(publish_error=None)
        assert caplog.records[-1].message == "positions of memory are published again"
        assert started.source.published == [{"a": 13, "b": 10}]

    def test_a_bug_in_publishing_is_not_hidden(self, started):
        started.source.publish_error = TypeError("a bug")
        with pytest.raises(TypeError, match="a bug"):
            started.trigger()


class Before:
    def __init__(self, offsets):
        self.offsets = offsets

    def initial_offsets(self):
        return json.dumps(self.offsets)


class TestTakingOver:
    def test_another_connectors_offsets_are_gone_on_from(self, query):
        query.offset_log, query.committed = [json.dumps({"a": 3, "b": 9})], 1
        query.run()
        query.trigger()
        assert sorted(query.rows) == [f"a{number}" for number in range(3, 10)] + ["b9"]
        query.run()
        assert not query.trigger()

    def test_its_uncommitted_batch_is_replayed(self, query):
        query.offset_log, query.committed = [json.dumps({"a": 3, "b": 9}), json.dumps({"a": 5, "b": 9})], 1
        query.run()
        assert query.rows == ["a3", "a4"]

    def test_a_split_that_its_uncommitted_batch_found_is_read_from_its_first_value(self, query):
        query.offset_log, query.committed = [json.dumps({"a": 10}), json.dumps({"a": 10, "b": 2})], 1
        query.run()
        assert query.rows == ["b0", "b1"]

    def test_where_a_batch_started_is_asked_of_the_source_only_for_what_the_offsets_do_not_tell(self, log, monkeypatch):
        asked = []
        earliest = MemoryOffsets.first_offsets

        def watched(self, found, known):
            asked.append(([split.split_id for split in found], dict(known)))
            return earliest(self, found, known)

        monkeypatch.setattr(MemoryOffsets, "first_offsets", watched)
        query = Query(WatchedSource(log))
        query.trigger()
        log.append("a", ["a10"])
        query.trigger()
        assert asked == []
        query.offset_log, query.committed = [json.dumps({"a": 10}), json.dumps({"a": 10, "b": 2})], 1
        query.run()
        assert asked == [(["b"], {"a": MemorySplit("a", 10)})]

    def test_its_uncommitted_batch_0_is_refused_with_advice(self, latest):
        latest.offset_log = [json.dumps({"a": 5, "b": 5})]
        with pytest.raises(errors.StateError, match="jvmCheckpoint") as raised:
            latest.run()
        assert str(raised.value) == (
            "this checkpoint's batch 0 was planned by another connector and never committed; where it started is not among "
            "what Spark hands over. Name the checkpoint directory with the option jvmCheckpoint, so that it is read there"
        )

    def test_its_uncommitted_batch_0_is_replayed_when_its_checkpoint_is_named(self, log):
        query = Query(WatchedSource(log, start="latest"), predecessor=Before({"a": 3, "b": 5}))
        query.offset_log = [json.dumps({"a": 5, "b": 5})]
        query.run()
        assert query.rows == ["a3", "a4"]
        query.trigger()
        assert sorted(query.rows) == sorted(set(all_values(log)) - {"a0", "a1", "a2", *(f"b{n}" for n in range(5))})

    def test_its_initial_offsets_are_used_when_it_died_before_its_first_batch(self, log):
        query = Query(WatchedSource(log, start="latest"), predecessor=Before({"a": 9, "b": 10}))
        query.trigger()
        assert query.rows == ["a9"]

    def test_splits_that_its_uncommitted_batch_lacks_are_reported(self, query):
        query.offset_log, query.committed = [json.dumps({"a": 3, "b": 9}), json.dumps({"a": 5})], 1
        query.run()
        assert query.source.missing == [["b"]]


class TestTasks:
    def tasks(self, log, **plan):
        query = Query(WatchedSource(log), **plan)
        query.log_offsets()
        return query.planner.tasks(query.planner.initial_offsets(), query.offset_log[0])

    def test_small_ranges_share_one(self, log):
        assert self.tasks(log) == [(MemorySplit("a", 0, 10), MemorySplit("b", 0, 10))]

    def test_min_tasks_splits_ranges(self, log):
        tasks = self.tasks(log, min_tasks=4)
        ranges = [(split.split_id, split.next_offset, split.stop_offset) for task in tasks for split in task]
        assert ranges == [("a", 0, 5), ("a", 5, 10), ("b", 0, 5), ("b", 5, 10)]

    def test_max_task_offsets_bounds_them(self, log):
        tasks = self.tasks(log, max_task_offsets=3)
        assert max(sum(split.stop_offset - split.next_offset for split in task) for task in tasks) <= 3

    def test_no_data_is_no_task(self, latest):
        latest.log_offsets()
        assert latest.planner.tasks(latest.planner.initial_offsets(), latest.offset_log[0]) == []


def test_progress_shows_the_end_as_last_seen(log):
    query = Query(WatchedSource(log), limits=Limits(max_offsets=4))
    assert query.planner.latest_seen() is None
    query.trigger()
    assert json.loads(query.planner.latest_seen()) == {"a": 10, "b": 10}


def test_progress_shows_no_split_that_is_gone(started, log):
    log.hide("a")
    started.trigger()
    assert json.loads(started.planner.latest_seen()) == {"b": 10}


def test_closing_a_planner_closes_its_discovery(query):
    closed = []
    query.planner._discovery.close = lambda: closed.append(True)
    query.planner.close()
    assert closed == [True]


class TestReading:
    def test_pieces_of_one_split_among_others_are_each_read_once_and_in_order(self, log):
        a, b = MemorySplit("a", 0), MemorySplit("b", 0)
        pieces = [a.between(0, 3), b.between(0, 5), a.between(3, 6), a.between(6, 10), b.between(5, 10)]
        rows = [row for batch in read_splits(MemorySource(log), pieces, ["split", "value"], 1.0) for row in batch.to_pylist()]
        for name in "ab":
            assert [row["value"] for row in rows if row["split"] == name] == [f"{name}{number}" for number in range(10)]

    @pytest.mark.parametrize("limit", [0, 1 << 20])
    def test_rows_come_in_the_order_of_the_splits_whichever_come_first(self, log, monkeypatch, limit):
        """Or `limit`, `sample` and ids give other rows at each use of a frame. Also where no more can be held."""
        monkeypatch.setattr(task_reading, "HELD_BYTES", limit)
        created = []

        class LastFirst(MemorySource):
            def create_reader(self):
                reader = super().create_reader()
                created.append(reader)
                poll, held = reader.poll, []

                def last_first(timeout):
                    while (batch := poll(0)) is not None:
                        held.append(batch)
                    held.sort(key=lambda batch: batch.split.split_id, reverse=True)
                    return held.pop(0) if held else None

                reader.poll = last_first
                return reader

        splits = [MemorySplit("a", 0, 10), MemorySplit("b", 0, 10)]
        batches = read_splits(LastFirst(log), splits, ["split", "value"], 1.0)
        rows = [row["value"] for batch in batches for row in batch.to_pylist()]
        assert rows == [f"{name}{number}" for name in "ab" for number in range(10)]
        assert len(created) == (1 if limit else 3), "both, then one after the other"

    def test_silence_is_reported_after_the_time_that_is_allowed_and_every_split_is_named(self, log):
        ticks = iter([100.0, 101.0, 200.0, 201.0, 300.0, 303.0, 400.0, 401.0, 500.0, 501.0, 600.0, 600.5, 999.0])
        waits = []

        class Silent(MemorySource):
            def create_reader(self):
                reader = super().create_reader()
                reader.poll = waits.append
                return reader

        splits = [MemorySplit("b", 0, 1), MemorySplit("a", 0, 1)]
        with pytest.raises(errors.DeadlineExceededError, match=r"^nothing came for 5 s while these were read: a, b$"):
            list(read_splits(Silent(log), splits, ["value"], 5.0, lambda: next(ticks)))
        assert list(ticks) == [999.0]
        assert waits == 6 * [1.0], "a reader is asked with a bounded wait"

    def test_a_reader_that_answers_at_once_may_do_so_for_as_long(self, log):
        """It has not been silent for a second with each answer."""
        now = [0.0]

        class Quick(MemorySource):
            def create_reader(self):
                reader = super().create_reader()
                poll = reader.poll

                def quick(timeout):
                    now[0] += 0.001
                    return poll(timeout) if now[0] > 4.9 else None

                reader.poll = quick
                return reader

        batches = read_splits(Quick(log), [MemorySplit("a", 0, 10)], ["value"], 5.0, lambda: now[0])
        assert sum(batch.num_rows for batch in batches) == 10

    def test_who_takes_the_rows_slowly_is_no_silence_of_the_source(self, log, monkeypatch):
        """The poll after a slow batch may give nothing. The time that the caller took does not count."""
        monkeypatch.setattr(task_reading, "SMALL_BATCH_BYTES", 0)

        class Slow(MemorySource):
            def create_reader(self):
                reader = super().create_reader()
                poll, turns = reader.poll, iter(range(100))
                reader.poll = lambda timeout: None if next(turns) % 2 else poll(timeout)
                return reader

        now, count = [0.0], 0
        splits = [MemorySplit("a", 0, 10), MemorySplit("b", 0, 10)]
        for batch in read_splits(Slow(log), splits, ["value"], 5.0, lambda: now[0]):
            now[0] += 3600.0
            count += batch.num_rows
        assert count == 20

    def test_pieces_of_one_split_are_read_in_order(self, log):
        split = MemorySplit("a", 0)
        batches = read_splits(MemorySource(log), [split.between(0, 4), split.between(4, 10)], ["value"], 1.0)
        assert [value for batch in batches for value in batch["value"].to_pylist()] == [f"a{n}" for n in range(10)]

    def test_columns_come_in_the_order_asked_for(self, log):
        (batch,) = read_splits(MemorySource(log), [MemorySplit("a", 0, 2)], ["value", "offset"], 1.0)
        assert batch.schema.names == ["value", "offset"]

    def test_a_source_that_falls_silent_is_an_error_that_names_the_split(self, log):
        now = iter(range(100))
        with pytest.raises(errors.DeadlineExceededError, match=r"nothing came for 5 s while these were read: a"):
            list(read_splits(MemorySource(log), [MemorySplit("a", 0, 11)], ["value"], 5.0, lambda: next(now)))

    def test_leaving_early_closes_the_reader(self, log):
        closed = []

        class Source(MemorySource):
            def create_reader(self):
                reader = super().create_reader()
                reader.close = lambda: closed.append(True)
                return reader

        batches = read_splits(Source(log), [MemorySplit("a", 0, 10)], ["value"], 1.0)
        next(batches)
        batches.close()
        assert closed == [True]


def batch_of(size):
    return pa.record_batch({"value": pa.array([b"x" * 1000] * (size // 1000))})


def test_small_batches_are_put_together_and_large_ones_cut():
    small, large = batch_of(SMALL_BATCH_BYTES // 100), batch_of(3 * LARGE_BATCH_BYTES)
    given = [*[small] * 250, small.slice(0, 0), large, small]
    got = list(well_sized(iter(given)))
    assert sum(batch.num_rows for batch in got) == sum(batch.num_rows for batch in given)
    assert all(batch.num_rows > 0 for batch in got)
    assert max(batch.nbytes for batch in got) <= LARGE_BATCH_BYTES * 1.01
    assert len(got) <= 3 + 4 + 1


class TestSizes:
    """Of batches of bytes, where less than 8 are small and more than 32 large."""

    @pytest.fixture(autouse=True)
    def sizes(self, monkeypatch):
        monkeypatch.setattr(task_reading, "SMALL_BATCH_BYTES", 8)
        monkeypatch.setattr(task_reading, "LARGE_BATCH_BYTES", 32)

    def sized(self, *sizes):
        """The sizes of what comes out; the values come in their order."""
        numbers = iter(range(128))
        given = [pa.record_batch({"value": pa.array([next(numbers) for _ in range(size)], pa.int8())}) for size in sizes]
        got = list(well_sized(iter(given)))
        assert [value for batch in got for value in batch["value"].to_pylist()] == list(range(sum(sizes)))
        return [batch.num_rows for batch in got]

    def test_what_is_put_together_is_handed_out_as_soon_as_it_is_not_small(self):
        assert self.sized(4, 4, 4, 4) == [8, 8]
        assert self.sized(4, 3, 4, 3, 5) == [11, 8]
        assert self.sized(4, 4, 4, 3, 4) == [8, 11]
        assert self.sized(1) == [1]
        assert self.sized(4, 3, 5, 4, 3) == [12, 7]

    def test_what_is_not_small_comes_after_what_was_before_it_and_not_with_it(self):
        assert self.sized(2, 8) == [2, 8]
        assert self.sized(2, 3, 8, 1, 9) == [5, 8, 1, 9]

    def test_an_empty_batch_is_left_out_and_what_follows_is_not(self):
        assert self.sized(0, 1, 0, 1, 8, 0) == [2, 8]
        assert self.sized() == []

    def test_what_is_large_is_cut_evenly(self):
        assert self.sized(32, 33) == [32, 16, 17]
        assert self.sized(100) == [25, 25, 25, 25]

    def test_a_large_row_is_not_cut(self):
        row = pa.record_batch({"value": [b"x" * 100]})
        (got,) = well_sized(iter([row]))
        assert got.to_pylist() == row.to_pylist()

    def test_rows_without_columns_are_counted(self):
        rows = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
        assert [batch.num_rows for batch in well_sized(iter([rows, rows]))] == [3, 3]


def test_a_batch_of_a_good_size_is_not_copied():
    batch = batch_of(SMALL_BATCH_BYTES * 2)
    (got,) = well_sized(iter([batch]))
    assert got["value"].buffers()[2].address == batch["value"].buffers()[2].address


def test_a_replayed_batch_is_planned_the_same_by_another_planner(log):
    query = Query(WatchedSource(log), max_task_offsets=3)
    query.log_offsets()
    first = query.planner.tasks(query.planner.initial_offsets(), query.offset_log[0])
    other = replace(query, offset_log=[], committed=0)
    assert other.planner.tasks(other.planner.initial_offsets(), query.offset_log[0]) == first


class TestPace:
    """How often a query without data looks for some."""

    class Clock:
        def __init__(self):
            self.now_s, self.slept_s = 100.0, 0.0

        def __call__(self):
            return self.now_s

        def sleep(self, seconds):
            self.slept_s += seconds
            self.now_s += seconds

        def look(self, end, took_s):
            def find():
                self.now_s += took_s
                return end

            return find

    @pytest.fixture
    def clock(self):
        return self.Clock()

    @pytest.fixture
    def pace(self, clock):
        return Pace(clock, clock.sleep)

    def test_looks_without_news_take_a_tenth_of_the_time(self, clock, pace):
        for _ in range(11):
            assert pace.look("a", clock.look("a", 0.004)) == "a"
        assert clock.slept_s == pytest.approx(10 * 0.036)

    def test_a_slow_look_is_repeated_soon_all_the_same(self, clock, pace):
        for _ in range(2):
            pace.look("a", clock.look("a", 1.5))
        assert clock.slept_s == pytest.approx(LOOK_S)

    def test_a_look_with_news_is_followed_by_the_next_at_once(self, clock, pace):
        for end in ("b", "c", "c"):
            pace.look("a", clock.look(end, 0.004))
        assert clock.slept_s == 0

    def test_a_query_that_had_something_else_to_do_meanwhile_does_not_wait(self, clock, pace):
        for _ in range(5):
            pace.look("a", clock.look("a", 0.004))
            clock.now_s += 0.2  # the batch of another source
        assert clock.slept_s == 0
