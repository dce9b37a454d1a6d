"""One source after another, in one process: `tests/conformance` has the other runners, `tests/simulation` the failures."""

from __future__ import annotations

import os
import pickle
import re
import time
from contextlib import closing
from functools import partial

import pyarrow as pa
import pytest

from headrace.connectors.base.hybrid import HybridReader, HybridSplit
from headrace.enumerator import Boundedness, DiscoveryResult, EmbeddedRun, SharingEnumerator
from headrace.enumerator import events as e
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.errors import RetriableError, StateError, UsageError
from headrace.enumerator.resumed import resumed_discovery, selected
from headrace.enumerator.source import Stage, StagedDiscovery
from headrace.enumerator.source_driver import SourceDriver
from headrace.files import FileSource
from headrace.formats import StringFormat
from headrace.kafka import KafkaSource, Latest, Timestamp
from headrace.sources import Hybrid, SourceEnd
from headrace.testing.fake_kafka import NewRecord
from headrace.testing.memory import MemoryDiscovery, MemoryLog, MemoryPieces, MemoryReader, MemorySource, MemorySplit
from tests.helpers.driving import Driver, assigned, log_of, split


def bounded(log: MemoryLog, **options) -> MemorySource:
    return MemorySource(log, bounded=True, **options)


def pieces(log: MemoryLog) -> MemoryPieces:
    return MemoryPieces(log, bounded=True)


def run_of(source: Hybrid, checkpoint: bytes | None = None, **options) -> EmbeddedRun:
    return EmbeddedRun(source, clock=lambda: 0.0, checkpoint=checkpoint, **options)


def read(run: EmbeddedRun, polls: int = 100) -> str:
    batches = [run.poll(0.0) for _ in range(polls)]
    return "".join(value for batch in batches if batch is not None for value in batch.records.column("value").to_pylist())


def checkpointed(run: EmbeddedRun) -> bytes:
    data = run.checkpoint()
    run.checkpoint_completed()
    return data


def test_each_source_starts_when_the_previous_one_is_read_and_is_given_its_end():
    ends = []

    def last(end: SourceEnd) -> MemorySource:
        ends.append(end.splits)
        return MemorySource(new)

    new = log_of(c="56")
    source = Hybrid(pieces(log_of(a="12", b="")), then=[bounded(log_of(a="34")), last])
    with run_of(source, parallelism=2) as run:
        assert read(run) == "123456"
        new.append("c", "78")
        assert read(run) == "78"
        assert not run.finished
    assert [[(split["id"], split["stop"]) for split in end] for end in ends] == [[("a", 2)]]


@pytest.mark.parametrize("first", [pieces, bounded])
@pytest.mark.parametrize("polls", range(12))
def test_killed_and_restored_twice_anywhere_each_record_comes_once_and_the_end_is_the_same(first, polls):
    """FLINK-39645: the second failure may come before the restored job has switched."""
    ends: list[SourceEnd] = []
    new = log_of(d="ab", e="cd")

    def then(end: SourceEnd) -> MemorySource:
        ends.append(end)
        return bounded(new, batch_size=1)

    source = Hybrid(first(log_of(a="1234", b="56", c="")), then=then, boundedness=Boundedness.BOUNDED)
    delivered, data = "", None
    for _ in range(2):
        with run_of(source, data, parallelism=2) as run:
            delivered += read(run, polls)
            data = checkpointed(run)
            read(run, 2)  # lost with the process
        source = Hybrid(source.stages[0], then=then, boundedness=Boundedness.BOUNDED)
    with run_of(source, data) as run:
        delivered += read(run)
        assert run.finished
    assert sorted(delivered) == sorted("123456abcd")
    assert set(delivered[:6]) == set("123456")
    assert {repr(end) for end in ends} == {repr(ends[0])}


def test_a_restored_run_behind_the_switch_discovers_nothing_initially(monkeypatch):
    new = log_of(c="34")
    source = Hybrid(pieces(log_of(a="12")), then=partial(made, new))
    with run_of(source) as run:
        assert read(run) == "1234"
        data = checkpointed(run)
    monkeypatch.delattr(MemoryDiscovery, "initial")
    new.create("d", "5")
    with run_of(pickle.loads(pickle.dumps(source)), data) as run:
        assert read(run) == "5"


def test_a_last_source_that_had_no_end_and_has_one_now_is_refused():
    """It would not come to it: its splits have no stop."""
    files, log = pieces(log_of(a="12")), log_of(c="34")
    with run_of(Hybrid(files, then=MemorySource(log))) as run:
        assert read(run) == "1234"
        data = checkpointed(run)
    with pytest.raises(StateError, match="had no end, and now it has one"):
        run_of(Hybrid(files, then=bounded(log)), data)


def made(log: MemoryLog, end: SourceEnd) -> MemorySource:
    return MemorySource(log)


def test_while_the_next_source_is_away_checkpoints_are_of_the_previous_and_it_is_tried_again(monkeypatch):
    failures = [RetriableError("no leader")] * 2

    def initial(self):
        if failures:
            raise failures.pop()
        return DiscoveryResult([MemorySplit("c", 0)])

    monkeypatch.setattr(MemoryDiscovery, "initial", initial)
    now_s = [0.0]
    with EmbeddedRun(Hybrid(pieces(log_of(a="12")), then=MemorySource(log_of(c="34"))), clock=lambda: now_s[0]) as run:
        assert read(run) == "12"
        data = checkpointed(run)
        for expected in ("", "34"):
            now_s[0] += 2.0
            assert read(run) == expected
    with run_of(Hybrid(pieces(log_of(a="12")), then=MemorySource(log_of(c="34"))), data) as run:
        assert read(run) == "34"


def test_what_a_lost_reader_had_read_of_the_previous_stage_is_read_again():
    source = Hybrid(pieces(log_of(a="12", b="34")), then=MemorySource(log_of(c="56", d="78")))
    with run_of(source, parallelism=2) as run:
        delivered = read(run)
        assert sorted(delivered) == [*"12345678"]
        run.lose_reader(0)
        run.start_reader(0)
        again = read(run)
    assert len(again) < 8
    assert set(again) & set("1234")
    assert set(again) & set("5678")


def test_what_is_finished_leaves_the_checkpoints_once_its_stage_is_over():
    source = Hybrid(bounded(log_of(a="12", b="34")), then=MemorySource(log_of(c="5")))
    with run_of(source) as run:
        assert read(run, 2) == "1234"
        assert checkpointed(run).count(b'"finished":true') == 2, "or they would be found again"
        assert read(run) == "5"
        checkpointed(run)
        data = checkpointed(run)
        assert data.count(b'"finished":true') == 0
    with run_of(source, data) as run:
        assert read(run) == ""


def test_pieces_are_shared_out_a_few_at_a_time_and_then_all_splits_of_a_log_at_once():
    driver = Driver(assignment=SharingEnumerator)
    in_pieces = Stage(0, "files", None, in_pieces=True, is_found=True)
    driver.send(e.SplitsDiscovered(DiscoveryResult([split(f"p{n}", 0, 1) for n in range(9)], cursor={}, stage=in_pieces)))
    given = assigned(driver.register(0, 1))
    assert {reader: len(splits) for reader, splits in given.items()} == {0: 4, 1: 4}
    for reader, splits in given.items():
        for each in splits:
            for follows in assigned(driver.send(e.SplitFinished(reader, each.split_id))).values():
                driver.send(e.SplitFinished(reader, follows[0].split_id))
    assert driver.commands[-1] == e.SwitchStage(in_pieces, {}, (), e.SPLITS_AT_ONCE)
    log = Stage(1, "kafka", {"at": 3}, in_pieces=False, is_found=False)
    commands = driver.send(e.SplitsDiscovered(DiscoveryResult([split(f"s{n}") for n in range(20)], stage=log)))
    assert {reader: len(splits) for reader, splits in assigned(commands).items()} == {0: 10, 1: 10}


class Asked(MemorySource):
    """Notes what it is asked."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log, bounded=True)
        self.asked: list[tuple[str, list[str]]] = []

    def note(self, what, splits):
        self.asked.append((what, [split.split_id for split in splits]))

    def on_splits_missing(self, splits):
        self.note("missing", splits)

    def confirm_deleted(self, splits):
        self.note("deleted", splits)
        return frozenset({"a"}) & {split.split_id for split in splits}

    def on_positions_final(self, cursor, splits):
        if cursor is None:
            self.note("final", splits)
        else:
            self.asked.append(("cursor", cursor))

    def check_readable(self, splits):
        self.note("readable", splits)

    def splits_finished(self, splits):
        self.note("finished", splits)

    def checkpoint_completed(self, splits):
        self.note("completed", splits)

    def selects(self, split):
        return split.split_id != "b"


def test_each_source_is_asked_of_its_own_splits():
    first, second = Asked(MemoryLog()), Asked(MemoryLog())
    source = Hybrid(first, then=lambda _: second, boundedness=Boundedness.BOUNDED)
    places = [(1, {}, "a"), (0, None, "b"), (1, {}, "c")]
    splits = [HybridSplit(number, end, split(name, 0, 1)) for number, end, name in places]
    assert source.confirm_deleted(splits) == {"1:a"}
    for ask in (source.on_splits_missing, source.check_readable, source.splits_finished, source.checkpoint_completed):
        ask(splits)
    assert [source.selects(each) for each in splits] == [True, False, True]
    asked = ("deleted", "missing", "readable", "finished", "completed")
    assert first.asked == [(what, ["b"]) for what in asked]
    assert second.asked == [(what, ["a", "c"]) for what in asked]
    source.on_positions_final(None, splits)
    assert (len(first.asked), second.asked[-1]) == (5, ("final", ["a", "c"])), "of an earlier stage all are read"
    stage = Stage(1, "second", {}, in_pieces=False, is_found=False)
    selected(source, Checkpoint(1, (), exhausted=True, cursor={"at": 1}, stage=stage))
    assert (len(first.asked), second.asked[-1]) == (5, ("cursor", {"at": 1}))


def test_the_readers_of_all_stages_may_linger_as_theirs_may(monkeypatch):
    lingering = []
    monkeypatch.setattr(MemoryReader, "linger", lambda self, seconds: lingering.append((self._source.name, seconds)))
    with HybridReader(Hybrid(pieces(log_of(a="12")), then=MemorySource(log_of(c="3")))) as reader:
        reader.linger(0.05)
        reader.add_splits([HybridSplit(0, None, split("a", 0, 2)), HybridSplit(1, {}, split("c"))])
    assert lingering == [("memory-pieces", 0.05), ("memory", 0.05)]


def test_a_reader_closes_that_of_the_previous_stage_when_it_has_splits_of_the_next(monkeypatch):
    closed = []
    monkeypatch.setattr(MemoryReader, "close", lambda self: closed.append(self._source.name))
    source = Hybrid(pieces(log_of(a="12")), then=MemorySource(log_of(c="3")))
    reader = HybridReader(source)
    assert reader.poll(0.0) is None
    reader.add_splits([HybridSplit(0, None, split("a", 0, 2))])
    assert reader.poll(0.0).finished
    assert (reader.poll(0.0), closed) == (None, [])
    reader.add_splits([HybridSplit(1, {}, split("c"))])
    batch = reader.poll(0.0)
    assert (batch.split, closed) == (HybridSplit(1, {}, split("c", 1)), ["memory-pieces"])
    reader.close()
    assert closed == ["memory-pieces", "memory"]


def test_columns_that_may_not_be_null_in_one_source_may_be_in_all_batches():
    strict = bounded(log_of(a="1"))
    strict.schema = pa.schema([field.with_nullable(False) for field in MemorySource.schema])
    source = Hybrid(strict, then=MemorySource(log_of(b="2")))
    with run_of(source) as run:
        batches = [batch for batch in (run.poll(0.0) for _ in range(9)) if batch is not None and batch.records.num_rows]
    assert [batch.records.schema for batch in batches] == [source.schema] * 2


LOG = log_of(a="1")
OTHER = bounded(LOG).with_columns(["split", "value"])
END = {"facts": 1}


def compared(source: Hybrid) -> Hybrid:
    assert len(source.schema) == 3
    return source


@pytest.mark.parametrize(("make", "said"), [
    (lambda: Hybrid(MemorySource(LOG), then=bounded(LOG)), "stage 0, source 'memory', has no end, so that nothing can follow"),
    (lambda: Hybrid(bounded(LOG), then=[MemorySource(LOG), bounded(LOG)]), "stage 1, source 'memory', has no end"),
    (lambda: Hybrid(lambda _: bounded(LOG), then=bounded(LOG)), "starts with a source, not with <function"),
    (lambda: Hybrid(bounded(LOG), then=7), "followed by a source or a function that makes one, not by 7"),
    (lambda: Hybrid(bounded(LOG), then=MemorySource(LOG), boundedness=Boundedness.BOUNDED), "'memory' is unbounded: leave"),
    (lambda: Hybrid(bounded(LOG), then=OTHER).schema,
        "column 1 is 'offset' of int64 in the first source, and 'value' of string in stage 1, source 'memory'"),
    (lambda: Hybrid(OTHER, then=bounded(LOG)).create_discovery().at(None), "column 1 is 'value' of string in the first source"),
    (lambda: Hybrid(OTHER, then=bounded(LOG).with_columns(["split"])).schema, "column 1 is .* and no column in stage 1"),
    (lambda: compared(Hybrid(bounded(LOG), then=lambda _: OTHER)).source_of(1, END), "column 1 is 'offset'"),
    (lambda: Hybrid(bounded(LOG), then=lambda end: end.newest).source_of(1, END),
        r"stage 1 of a hybrid source has failed with SourceEnd\(facts={'facts': 1}\): AttributeError: the end of this"),
    (lambda: Hybrid(bounded(LOG), then=lambda _: 7).source_of(1, END), "1 of a hybrid source has given 7, and not one"),
    (lambda: Hybrid(bounded(LOG), then=lambda _: bounded(LOG)).source_of(1, END), "give Hybrid .*Boundedness.BOUNDED"),
    (lambda: Hybrid(bounded(LOG), then=[lambda _: MemorySource(LOG), bounded(LOG)]).source_of(1, END), "1, .* no end"),
])  # fmt: skip
def test_what_cannot_be_chained_is_refused_by_name(make, said):
    with pytest.raises(UsageError, match=said):
        make()


def test_memory_that_a_function_cannot_have_is_not_its_mistake():
    def factory(_):
        raise MemoryError

    with pytest.raises(MemoryError):
        Hybrid(bounded(LOG), then=factory).source_of(1, END)


@pytest.mark.parametrize("then", [OTHER, lambda _: OTHER], ids=["a source", "a function"])
def test_columns_are_compared_behind_a_restore_in_an_earlier_stage(then):
    first, bound = bounded(log_of(a="12"), batch_size=1), Boundedness.BOUNDED
    with run_of(Hybrid(first, then=lambda _: bounded(LOG), boundedness=bound)) as run:
        assert read(run, 1) == "1"
        data = checkpointed(run)
    source = Hybrid(first, then=then, boundedness=bound)
    with pytest.raises(UsageError, match="column 1 is 'offset' of int64 in the first source, and 'value' of string in stage 1"):
        read(run_of(source, data))


def test_a_chain_of_chains_is_one_chain():
    first, second, third = bounded(LOG), pieces(LOG), MemorySource(LOG)
    assert Hybrid(Hybrid(first, then=second), then=third).stages == Hybrid(first, then=Hybrid(second, then=third)).stages
    assert Hybrid(first, then=[second, third]).stages == (first, second, third)


@pytest.mark.parametrize(("stage", "said"), [
    ({"stage": 2}, "is in stage 2 of a hybrid source, and this one has 2 stages"),
    ({"source": "kafka"}, "stage 1 of the state is of a 'kafka' source, and is a 'memory' source now"),
    ({"end": None}, "has not what the previous one ended with"),
])  # fmt: skip
def test_a_split_of_another_chain_is_refused(stage, said):
    source = Hybrid(bounded(LOG), then=partial(made, LOG))
    stored = source.split_serializer.serialize(HybridSplit(1, END, split("a")))
    with pytest.raises(StateError, match=said):
        source.split_serializer.deserialize(1, {**stored, **stage})


def test_a_stage_of_another_chain_is_refused_and_so_is_a_source_without_stages():
    kafka = Stage(1, "kafka", END, in_pieces=False, is_found=True)
    with pytest.raises(StateError, match="stage 1 of the state is of a 'kafka' source"):
        Hybrid(bounded(LOG), then=partial(made, LOG)).create_discovery().at(kafka)
    driver = SourceDriver(bounded(LOG), bounded(LOG).create_discovery())
    for command in (e.DiscoverLater({}, kafka), e.SwitchStage(kafka, None, (), 1)):
        assert re.search("of several stages, .* and memory has none", str(driver.perform(command).error))


@pytest.mark.parametrize("last", [pieces, bounded])
@pytest.mark.parametrize("polls", [3, 100])
@pytest.mark.parametrize("is_endless", [False, True])
def test_a_stage_that_was_the_last_is_followed_by_one_that_is_added(last, polls, is_endless, caplog):
    """Regression: once all of the last stage was found the added one was never read."""
    first, second = bounded(log_of(a="12")), last(log_of(b="3456"))
    with run_of(Hybrid(first, then=second)) as run:
        delivered = read(run, polls)
        data = checkpointed(run)
    assert "3" in delivered
    third = MemorySource(log_of(c="78")) if is_endless else bounded(log_of(c="78"))
    with run_of(Hybrid(first, then=[second, third]), data) as run:
        delivered += read(run)
        assert run.finished is not is_endless
        data = checkpointed(run)
    assert delivered == "12345678"
    assert "source 1 of a hybrid one, 'memory" in caplog.text
    with run_of(Hybrid(first, then=[second, third]), data) as run:
        assert read(run) == ""


@pytest.mark.parametrize("last", [pieces, bounded])
@pytest.mark.parametrize("polls", [1, 2])
def test_a_stage_that_was_not_reached_may_be_taken_away(last, polls):
    """Regression: the stage ahead of it was read, and then the job failed at each start, looking for the one that is gone."""
    first = bounded(log_of(a="12"))
    second = last(log_of(b="3456"))
    with run_of(Hybrid(first, then=[second, bounded(log_of(c="78"))])) as run:
        delivered = read(run, polls)
        data = checkpointed(run)
    for expected in ("123456", ""):
        with run_of(Hybrid(first, then=second), data) as run:
            assert delivered + read(run) == expected
            assert run.finished
            data = checkpointed(run)
        delivered = ""


def test_files_that_were_ahead_of_a_stage_that_is_taken_away_may_be_watched(tmp_path):
    """Regression: once they were read, the job failed at each start."""
    (tmp_path / "a").write_text("1\n2\n")
    first, third = (FileSource(tmp_path / "a", format="text") for _ in range(2))
    with run_of(Hybrid(first, then=[FileSource(tmp_path, format="text", batch_rows=1), third])) as run:
        delivered = read(run, 3)
        data = checkpointed(run)
    assert delivered == "121"
    (tmp_path / "b").write_text("3\n")
    os.utime(tmp_path / "b", (1 << 31, 1 << 31))
    with run_of(Hybrid(first, then=FileSource(tmp_path, format="text", watch=True)), data) as run:
        assert read(run) == "23"
        assert not run.finished


@pytest.mark.parametrize("last", [pieces, bounded])
def test_a_job_that_starts_at_a_savepoint_reads_the_stage_that_is_added(last):
    """Regression: a stage of logs was refused, as what was read to its end."""
    first, second, third = bounded(log_of(a="12")), last(log_of(b="34")), bounded(log_of(c="56"))
    short, long = Hybrid(first, then=second), Hybrid(first, then=[second, third])
    with run_of(short) as run:
        assert read(run) == "1234"
        saved = CheckpointSerializer(short.name, short.split_serializer).deserialize(checkpointed(run))
    discovery = resumed_discovery(long, saved)
    assert isinstance(discovery, StagedDiscovery)
    answer = discovery.initial()
    assert (answer.complete, answer.stage.is_found) == (False, True)
    at_stop = [] if last is pieces else [MemorySplit("b", 2, 2)]
    assert [each.split for each in answer.added] == at_stop
    following = discovery.following(answer.stage, answer.cursor, answer.added)
    assert [each.split_id for each in discovery.at(following).initial().added] == ["2:c"]


def test_a_job_that_starts_at_a_savepoint_reads_the_rest_of_a_stage_of_logs():
    """Regression: it was refused once one of them was read to its end, as if that could be found again."""
    first = bounded(log_of(a="12", b="3456"))
    ends = []

    def then(end):
        ends.append(end.splits)
        return bounded(log_of(c="78"))

    source = Hybrid(first, then=then, boundedness=Boundedness.BOUNDED)
    with run_of(source) as run:
        assert read(run, 1) == "12"
        saved = CheckpointSerializer(source.name, source.split_serializer).deserialize(checkpointed(run))
    discovery = resumed_discovery(source, saved)
    answer = discovery.initial()
    assert [each.split for each in answer.added] == [MemorySplit("b", 0, 4), MemorySplit("a", 2, 2)]
    assert discovery.following(answer.stage, None, answer.added).number == 1
    assert {(each["id"], each["stop"]) for each in ends[-1]} == {("a", 2), ("b", 4)}


@pytest.mark.parametrize("behind", [0, 1])
def test_a_job_that_starts_at_the_end_of_a_stage_that_has_none_now_is_refused(behind):
    """Regression: only a run refused it; where an engine keeps the positions the job ended at once."""
    first, log = bounded(log_of(a="12")), log_of(b="34")
    source = Hybrid(first, then=[bounded(log), *[bounded(log_of(c="56"))] * behind])
    with run_of(source) as run:
        assert read(run, 2) == "1234"
        saved = CheckpointSerializer(source.name, source.split_serializer).deserialize(checkpointed(run))
    with pytest.raises(StateError, match="'hybrid' had an end, and now it has none"):
        resumed_discovery(Hybrid(first, then=MemorySource(log)), saved)


def test_the_last_source_is_asked_what_a_job_that_starts_at_its_end_leaves_out():
    """Regression: a bounded source was asked where it has a cursor only, so a topic that was added was left out silently."""
    last = Asked(log_of(a="34"))
    source = Hybrid(bounded(log_of(c="12")), then=last)
    with run_of(source) as run:
        assert read(run) == "1234"
        saved = CheckpointSerializer(source.name, source.split_serializer).deserialize(checkpointed(run))
    assert resumed_discovery(source, saved).initial().complete
    assert last.asked[-1] == ("final", ["a"])


def test_files_to_be_removed_are_of_a_function_where_what_is_read_is_reported(tmp_path):
    """Regression: a function's source with `after_read` was refused everywhere, and not only where an engine asks ahead."""
    (tmp_path / "a").write_text("1\n")
    removing = FileSource(tmp_path, format="text", after_read="delete")
    assert Hybrid(removing, then=removing).needs_finished
    source = Hybrid(FileSource(tmp_path, format="text"), then=lambda _: removing, boundedness=Boundedness.BOUNDED)
    with pytest.raises(UsageError, match=r"\(after_read\), which is not safe here: .* Give Hybrid the source"):
        source.in_one_stage().source_of(1, END)
    Hybrid(removing, then=lambda _: removing, boundedness=Boundedness.BOUNDED).in_one_stage().source_of(1, END)
    with closing(EmbeddedRun(source, clock=time.monotonic)) as run:
        while not run.finished:
            run.poll(0.1)
        run.checkpoint()
        run.checkpoint_completed()
    assert not list(tmp_path.iterdir())


class Keyed(MemorySource):
    """Refuses a key at the first use, has a measure, and is another one for Beam."""

    key: tuple[str, ...] = ()
    is_one_stage = False

    def keyed_by(self, columns):
        keyed = Keyed(self.log, bounded=self.is_bounded)
        keyed.key, keyed.is_one_stage = tuple(columns), self.is_one_stage
        return keyed

    def in_one_stage(self):
        made = self.keyed_by(self.key)
        made.is_one_stage = True
        return made

    def measures(self):
        return {"kept": float(len(self.log.split_ids())), self.name: 1.0}

    def check_at_least_once(self):
        raise UsageError("not at least once")


def keyed(log: MemoryLog, end: SourceEnd) -> Keyed:
    return Keyed(log)


@pytest.mark.parametrize("then", [Keyed(LOG), partial(keyed, LOG)], ids=["source", "function"])
def test_the_key_of_a_sink_and_what_beam_reads_are_for_its_sources_to_say(then):
    """Regression: a sink keyed by a column that an update may change was refused for a source, and not for it as a stage."""
    source = pickle.loads(pickle.dumps(Hybrid(Keyed(LOG, bounded=True), then=then).keyed_by(["value"]).in_one_stage()))
    for stage, end in enumerate((None, END)):
        made = source.source_of(stage, end)
        assert (made.key, made.is_one_stage) == (("value",), True)
    assert Hybrid(Keyed(LOG, bounded=True), then=then).source_of(1, END).key == ()


def test_what_a_sink_may_write_twice_is_for_its_sources_to_say():
    with pytest.raises(UsageError, match="not at least once"):
        Hybrid(bounded(LOG), then=Keyed(LOG)).check_at_least_once()
    Hybrid(bounded(LOG), then=partial(keyed, LOG)).check_at_least_once()


def test_its_lag_is_that_of_its_logs_and_its_measures_are_those_of_all(tmp_path):
    """Regression: a run of it had neither."""
    log = log_of(a="123", b="4")
    source = Hybrid(pieces(LOG), then=[bounded(log), partial(keyed, log)])
    splits = [HybridSplit(0, None, split("c")), HybridSplit(1, {}, split("a", 1)), HybridSplit(2, END, split("b"))]
    assert source.lag(splits[:1]) is None
    assert source.measures() == {}
    assert source.lag(splits) == {"1:a": 2, "2:b": 1}
    assert source.measures() == {"kept": 2.0, "memory": 1.0}


def test_an_end_has_what_its_source_gives_and_says_what_that_is():
    end = pickle.loads(pickle.dumps(SourceEnd({"newest_modified_ms": 3})))
    assert end.newest_modified_ms == 3
    with pytest.raises(AttributeError, match="the end of this source has newest_modified_ms, and not 'newest'"):
        _ = end.newest
    with pytest.raises(AttributeError, match="has no facts"):
        _ = SourceEnd({}).newest


def test_it_is_as_bounded_as_its_last_source_and_looks_as_often_as_the_keenest():
    log = MemorySource(LOG)
    log.discovery_interval_s = 7.0
    source = Hybrid(bounded(LOG), then=log)
    assert (source.boundedness, source.discovery_interval_s) == (Boundedness.UNBOUNDED, 7.0)
    assert (source.finite_splits, source.publishes) == (False, False)
    assert Hybrid(bounded(LOG), then=log, discovery_interval_s=1.0).discovery_interval_s == 1.0
    made_later = Hybrid(bounded(LOG), then=partial(made, LOG))
    assert (made_later.boundedness, made_later.discovery_interval_s, made_later.publishes) == (
        Boundedness.UNBOUNDED,
        300.0,
        True,
    )
    assert Hybrid(bounded(LOG), then=pieces(LOG)).finite_splits


def test_files_then_the_topic_that_they_were_written_from(fake_kafka, tmp_path):
    """The topic is read from the time of the newest file."""
    for name, at_s in (("a.txt", 1_000), ("b.txt", 2_000)):
        (tmp_path / name).write_text(f"{name} 1\n{name} 2\n")
        os.utime(tmp_path / name, (at_s, at_s))
    fake_kafka.create_topic("lines")
    for number, at_ms in enumerate((1_000_000, 2_000_000, 3_000_000)):
        fake_kafka.append("lines", NewRecord(value=b"topic %d" % number, timestamp_ms=at_ms))

    def then(end: SourceEnd) -> KafkaSource:
        start = Timestamp(end.newest_modified_ms + 1)
        options = {"columns": ["value"], "value": StringFormat(), "start": start, "stop": Latest()}
        return KafkaSource(fake_kafka.bootstrap, topics=["lines"], **options)

    source = Hybrid(FileSource(str(tmp_path), format="text"), then=then, boundedness=Boundedness.BOUNDED)
    values: list[str] = []
    data, is_over = None, False
    while not is_over:
        with EmbeddedRun(source, clock=time.monotonic, checkpoint=data) as run:
            batch = run.poll(1.0)
            values += [] if batch is None else batch.records.column("value").to_pylist()
            data, is_over = checkpointed(run), run.finished
    assert values == ["a.txt 1", "a.txt 2", "b.txt 1", "b.txt 2", "topic 2"]
    (tmp_path / "none").mkdir()
    nothing = FileSource(str(tmp_path / "none"), format="text")
    assert nothing.end(nothing.create_discovery().initial().cursor, []) == {"newest_modified_ms": None}


def test_behind_the_switch_the_files_may_be_gone(fake_kafka, tmp_path):
    """Regression: the columns were those that files have without a schema, also after `after_read` had removed them."""
    fake_kafka.create_topic("lines")
    (tmp_path / "a.jsonl").write_text('{"value": "1"}\n')

    def source(**options) -> Hybrid:
        given = {"topics": ["lines"], "columns": ["value"], "value": StringFormat(), "start": Timestamp(0), **options}
        return Hybrid(FileSource(str(tmp_path), format="jsonl"), then=lambda _: KafkaSource(fake_kafka.bootstrap, **given))

    def read_one(checkpoint: bytes | None) -> tuple[str, bytes]:
        with EmbeddedRun(source(), clock=time.monotonic, checkpoint=checkpoint) as run:
            while (batch := run.poll(1.0)) is None or not batch.records.num_rows:
                pass
            return batch.records.column("value")[0].as_py(), checkpointed(run)

    value, data = read_one(None)
    assert value == "1"
    fake_kafka.append("lines", NewRecord(value=b"2"))
    value, data = read_one(data)
    assert value == "2"
    (tmp_path / "a.jsonl").unlink()
    fake_kafka.append("lines", NewRecord(value=b"3"))
    assert read_one(data)[0] == "3"
    with pytest.raises(StateError, match=r"source of stage 1, .* cannot be made: .*'valeu'") as wrong:
        EmbeddedRun(source(columns=["valeu"]), clock=time.monotonic, checkpoint=data)
    assert "damaged" not in str(wrong.value)
