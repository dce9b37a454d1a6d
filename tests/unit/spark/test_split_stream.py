"""Streams of sources whose splits Spark cannot cut: batches that are run again, by several attempts, and by another driver."""

from __future__ import annotations

import itertools
import json
import resource
import shutil
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.connectors.base.commit import StaleEpochError, refuse_other_content
from headrace.connectors.base.sink import content_number, numbered_content
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.errors import DataLossError, DeadlineExceededError, OutageError, RetriableError, StateError, UsageError
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.source import Boundedness, DiscoveryResult, SplitBatch
from headrace.files import FileSource
from headrace.runners.local.savepoints import Savepoint
from headrace.runners.spark.offset_log import OffsetLog
from headrace.runners.spark.planning import OPENING_BYTES, TASK_BYTES, packed
from headrace.runners.spark.split_ends import KEPT_READINGS, EndsLog
from headrace.runners.spark.split_state import FOLDER, ROWS_FOLDER, STAGE, ReadingFormat
from headrace.runners.spark.split_stream import PlannedTask, SplitPlanner, SplitRead
from headrace.runners.spark.split_tasks import TaskLimits
from headrace.runners.spark.tasks import check_memory, read_splits
from tests.helpers.split_sources import Feed, FeedDiscovery, Piece, Pile, Shelf, ShelfReader, Sight


class Query:
    """A query as Spark runs it: offsets are stored before a batch runs, and outlive the planner."""

    def __init__(self, read: SplitRead[Piece]) -> None:
        self.read = read
        if read.checkpoint is not None:
            Path(read.checkpoint).mkdir(exist_ok=True)
            Path(read.checkpoint, "metadata").touch()
        self.planner = SplitPlanner(read)
        self.offsets = [self.planner.initial_offsets()]

    def restart(self) -> None:
        self.planner = SplitPlanner(self.read)

    def plan(self) -> bool:
        """Plan the next batch. False where there is nothing to read."""
        end = self.planner.next_offsets(self.offsets[-1])
        is_new = end != self.offsets[-1]
        self.offsets += [end] if is_new else []
        return is_new

    def tasks(self) -> list[PlannedTask[Piece]]:
        return self.planner.tasks(self.offsets[-1])

    def run_task(self, task: PlannedTask[Piece]) -> list[str]:
        return list(self.rows(task))

    def rows(self, task: PlannedTask[Piece]) -> Iterator[str]:
        is_open = task.name is not None
        whole = read_splits(self.read.source, task.splits, ["value"], 1.0)
        batches = self.read.open_task(task).read() if is_open else whole
        return (value for batch in batches for value in batch.column(0).to_pylist())

    def run(self) -> list[str]:
        return sorted(value for task in self.tasks() for value in self.run_task(task))

    def batch(self) -> list[str] | None:
        return self.run() if self.plan() else None


def quick_planner(read: SplitRead[Piece], now: list[float]) -> SplitPlanner[Piece]:
    """By the clock `now[0]`, on which it sleeps."""

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return SplitPlanner(read, lambda: now[0], sleep)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def feed(shelf: Shelf, tmp_path: Path) -> Query:
    return Query(SplitRead(source=Feed(shelf), checkpoint=str(tmp_path / "checkpoint"), stall_s=0.0))


@pytest.fixture
def pile(shelf: Shelf) -> Query:
    return Query(SplitRead(source=Pile(shelf)))


def test_a_query_reads_what_there_is_and_then_what_comes(shelf: Shelf, feed: Query) -> None:
    shelf.add("a", "a0", "a1", "a2")
    assert feed.batch() == ["a0", "a1", "a2"]
    assert feed.batch() is None
    shelf.add("a", "a3")
    shelf.add("b", "b0")
    assert feed.batch() == ["a3", "b0"]


def test_the_first_batch_of_an_empty_source_stores_where_the_query_started(shelf: Shelf, feed: Query) -> None:
    assert feed.batch() == []
    feed.restart()
    shelf.add("a", "a0")
    assert feed.batch() == ["a0"]


def test_a_batch_that_is_run_again_reads_exactly_as_far(shelf: Shelf, feed: Query) -> None:
    shelf.add("a", "a0", "a1", "a2")
    shelf.add("b", "b0")
    first = feed.batch()
    shelf.add("a", "a3")
    shelf.add("b", "b1")
    feed.restart()
    assert feed.run() == first == ["a0", "a1", "a2", "b0"]
    assert feed.batch() == ["a3", "b1"]


def test_the_rows_of_a_task_come_in_the_same_order_each_time(shelf: Shelf, tmp_path: Path) -> None:
    """Split by split, though the reader takes turns, and at a replay gives the splits in other turns."""
    feed = Query(SplitRead(source=Feed(shelf, batch_rows=1), checkpoint=str(tmp_path / "checkpoint"), stall_s=0.0))
    shelf.add("a", "a0", "a1", "a2")
    shelf.add("b", "b0", "b1")
    assert feed.plan()
    (first, *others) = feed.tasks()
    both = replace(first, splits=tuple(split for task in (first, *others) for split in task.splits))
    assert feed.run_task(both) == ["a0", "a1", "a2", "b0", "b1"]
    assert feed.run_task(both) == ["a0", "a1", "a2", "b0", "b1"]


def test_a_batch_whose_tasks_never_ran_reads_what_is_there_when_they_do(shelf: Shelf, feed: Query) -> None:
    shelf.add("a", "a0")
    feed.plan()
    shelf.add("a", "a1")
    feed.restart()
    assert feed.run() == ["a0", "a1"]


def test_two_attempts_of_a_task_give_the_same_rows_whichever_records_first(shelf: Shelf, feed: Query) -> None:
    shelf.add("a", "a0")
    feed.plan()
    (task,) = feed.tasks()
    twin = feed.read.open_task(task)
    record = twin.log.record

    def late(*args: object) -> bool:
        monkeypatch.undo()
        shelf.add("a", "a1", "a2")
        assert feed.run_task(task) == ["a0", "a1", "a2"]
        return record(*args)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(type(twin.log), "record", lambda _log, *args: late(*args))
        assert [value for batch in twin.read() for value in batch.column(0).to_pylist()] == ["a0", "a1", "a2"]


def test_a_task_that_gave_no_row_is_closed_before_its_splits_are_read_on(shelf: Shelf, feed: Query) -> None:
    shelf.add("a", "a0")
    feed.plan()
    (abandoned,) = feed.tasks()
    shelf.add("a", "a1")
    assert feed.batch() == ["a0", "a1"]
    assert feed.run_task(abandoned) == []


def test_tasks_share_the_limits_of_a_batch(shelf: Shelf, tmp_path: Path) -> None:
    shelf.add("a", *(f"a{number}" for number in range(6)))
    shelf.add("b", *(f"b{number}" for number in range(6)))
    limits = TaskLimits(records=4)
    query = Query(SplitRead(source=Feed(shelf, batch_rows=1), checkpoint=str(tmp_path), limits=limits, parallelism=2))
    assert query.batch() == ["a0", "a1", "b0", "b1"]
    assert query.batch() == ["a2", "a3", "b2", "b3"]
    assert query.batch() == ["a4", "a5", "b4", "b5"]
    assert query.batch() == []  # it stopped at a limit, so nothing was known to be left
    assert query.batch() is None


def test_a_task_stops_at_its_size_and_its_time(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.add("a", "a0", "a1", "a2")
    source = Feed(shelf, batch_rows=1)
    query = Query(SplitRead(source=source, checkpoint=str(tmp_path / "size"), limits=TaskLimits(size_bytes=1)))
    assert query.batch() == ["a0"]
    query = Query(SplitRead(source=source, checkpoint=str(tmp_path / "time")))
    query.plan()
    now = [0.0]
    poll = ShelfReader.poll

    def slow(reader: ShelfReader, timeout: float) -> SplitBatch[Piece] | None:
        now[0] += 6.0
        return poll(reader, timeout)

    monkeypatch.setattr(ShelfReader, "poll", slow)
    task = query.read.open_task(query.tasks()[0])
    assert sum(batch.num_rows for batch in task.read(lambda: now[0])) == 2


@pytest.fixture
def sight(shelf: Shelf, tmp_path: Path) -> Query:
    """Of a source that would give other records if it were read again."""
    return Query(SplitRead(source=Sight(shelf), checkpoint=str(tmp_path / "checkpoint"), stall_s=0.0))


def kept(query: Query) -> list[Path]:
    return [path for path in Path(str(query.read.checkpoint), ROWS_FOLDER).rglob("*") if path.is_file()]


def test_a_batch_that_is_run_again_has_what_its_first_run_has_seen(shelf: Shelf, sight: Query) -> None:
    shelf.add("a", "a0", "a1", "a2")
    shelf.add("b", "b0")
    first = sight.batch()
    shelf.lists["a"] = ["x0", "x1", "x2", "x3"]
    sight.restart()
    assert sight.run() == first == ["a0", "a1", "a2", "b0"]


def test_kept_rows_are_removed_when_their_batch_is_committed(shelf: Shelf, sight: Query) -> None:
    shelf.add("a", "a0")
    assert sight.batch() == ["a0"]
    (task,) = sight.tasks()
    assert len(kept(sight)) == 1
    sight.planner.committed(sight.offsets[-1])
    assert not kept(sight)
    with pytest.raises(StateError, match="removed when its batch is committed"):
        sight.run_task(task)


def test_of_a_source_that_repeats_some_splits_the_rows_of_others_are_kept(shelf: Shelf, tmp_path: Path) -> None:
    """A batch that was read of splits that it repeats is read again by a reader for that, whatever it repeats now."""

    class Mixed(Feed):
        repeatable = False
        unknown: str | None = None

        def repeats(self, splits: Sequence[Piece]) -> bool:
            return self.unknown is None

        def create_reader(self) -> ShelfReader:
            if self.unknown is not None:
                shelf.lists["a"][0] = self.unknown
            return super().create_reader()

        def create_replay_reader(self) -> ShelfReader:
            return super().create_reader()

    source = Mixed(shelf)
    query = Query(SplitRead(source=source, checkpoint=str(tmp_path), stall_s=0.0))
    shelf.add("a", "a0")
    assert query.batch() == ["a0"]
    assert not kept(query)
    source.unknown = "x0"
    assert query.run() == ["a0"]
    shelf.add("a", "a1")
    assert query.batch() == ["a1"]
    assert len(kept(query)) == 1
    shelf.lists["a"][1] = "x1"
    assert query.run() == ["a1"]
    query.planner.committed(query.offsets[-1])
    assert not kept(query)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"value": pa.string(), "more": pa.int32()}, [{"value": "1", "more": None}]),
        ({"value": pa.int64()}, [{"value": 1}]),
        ({}, [{}]),
        ({"renamed": pa.string()}, None),
        ({"value": pa.list_(pa.int32())}, None),
    ],
)
def test_rows_that_are_kept_have_the_columns_of_now(
    columns: dict[str, pa.DataType],
    expected: list[dict[str, object]] | None,
    shelf: Shelf,
    sight: Query,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelf.add("a", "1")
    sight.batch()
    (task,) = sight.tasks()
    monkeypatch.setattr(Sight, "schema", pa.schema(columns))
    if expected is None:
        with pytest.raises(StateError, match="rows with other columns than the source has now"):
            list(sight.read.open_task(task).read())
    else:
        assert [row for batch in sight.read.open_task(task).read() for row in batch.to_pylist()] == expected


def test_an_attempt_that_comes_too_late_has_the_rows_of_the_first(shelf: Shelf, sight: Query) -> None:
    shelf.add("a", "a0")
    sight.plan()
    (task,) = sight.tasks()
    twin = sight.read.open_task(task)
    keep = type(twin.log).keep

    def late(log: EndsLog[Piece], *args: object) -> str:
        monkeypatch.undo()
        shelf.lists["a"] = ["x0"]
        assert sight.run_task(task) == ["x0"]
        return keep(log, *args)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(type(twin.log), "keep", late)
        assert [value for batch in twin.read() for value in batch.column(0).to_pylist()] == ["x0"]
    assert len(kept(sight)) == 1


def test_a_task_of_a_source_that_does_not_answer_ends_with_what_it_has_read(shelf: Shelf, tmp_path: Path) -> None:
    shelf.add("a", "a0", "a1")
    query = Query(SplitRead(source=Feed(shelf, batch_rows=1), checkpoint=str(tmp_path)))
    assert query.plan()
    shelf.outages = 1
    assert query.run() == []
    assert shelf.outages == 0
    assert query.batch() == ["a0", "a1"]


def test_pieces_are_waited_for_when_the_source_does_not_answer(shelf: Shelf, sight: Query) -> None:
    shelf.add("a", "a0")
    sight.plan()
    shelf.outages = 1
    assert sight.run() == ["a0"]


def test_a_replay_reads_on_when_the_source_answers_again(shelf: Shelf, tmp_path: Path) -> None:
    shelf.add("a", "a0", "a1")
    query = Query(SplitRead(source=Feed(shelf, batch_rows=1), checkpoint=str(tmp_path), stall_s=60.0))
    assert query.batch() == ["a0", "a1"]
    rows = query.rows(query.tasks()[0])
    assert next(rows) == "a0"
    shelf.outages = 1
    assert list(rows) == ["a1"]
    assert shelf.outages == 0


@pytest.mark.parametrize(("away_s", "is_read"), [(4.0, True), (20.0, False)])
def test_available_now_tries_a_source_for_some_time(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away_s: float, is_read: bool
) -> None:
    """Regression: the Python worker of a task that Spark had cancelled held the slot for two seconds more."""
    now = [0.0]
    query = Query(SplitRead(source=Feed(shelf), checkpoint=str(tmp_path), limits=TaskLimits(seconds=1.0)))
    query.planner = quick_planner(query.read, now)
    shelf.add("a", "a0")
    assert query.batch() == ["a0"]
    query.planner.pin_end()
    shelf.add("a", "a1")
    poll, refused = ShelfReader.poll, []

    def held(reader: ShelfReader, timeout: float) -> SplitBatch[Piece] | None:
        if now[0] < away_s:
            refused.append(now[0])
            raise RetriableError("the slot is active")
        return poll(reader, timeout)

    monkeypatch.setattr(ShelfReader, "poll", held)
    with nullcontext() if is_read else pytest.raises(RetriableError, match="the slot is active"):
        assert query.plan()
    assert len(refused) > 10


@pytest.mark.parametrize("kind", [Feed, Sight])
@pytest.mark.parametrize("is_pinned", [False, True])
def test_batches_whose_rows_nothing_uses_are_said_and_end_available_now(
    kind: type[Feed | Sight], shelf: Shelf, tmp_path: Path, is_pinned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(SplitRead(source=kind(shelf), checkpoint=str(tmp_path)))
    shelf.add("a", "a0")
    assert query.batch() == ["a0"]
    if is_pinned:
        query.planner.pin_end()
    shelf.add("b", "b0")
    said = "no task of the last 20 batches was computed"
    with pytest.raises(UsageError, match=said) if is_pinned else nullcontext():
        for _ in range(30):
            assert query.plan()
    assert caplog.text.count(said) == (0 if is_pinned else 1)
    if not is_pinned:
        assert query.batch() == ["b0"]


@pytest.mark.parametrize(("behind_s", "is_found"), [(500.0, True), (700.0, False)])
def test_available_now_waits_for_a_reader_that_is_behind(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind_s: float, is_found: bool
) -> None:
    now = [0.0]
    query = Query(SplitRead(source=Feed(shelf), checkpoint=str(tmp_path)))
    query.planner = SplitPlanner(query.read, lambda: now[0])
    shelf.add("a", "a0")
    assert query.batch() == ["a0"]
    query.planner.pin_end()
    shelf.add("a", "a1")
    poll = ShelfReader.poll

    def late(reader: ShelfReader, timeout: float) -> SplitBatch[Piece] | None:
        now[0] += timeout
        if now[0] >= behind_s:
            return poll(reader, timeout)
        return SplitBatch(
            Piece("a", 1), pa.RecordBatch.from_pydict({"value": []}, schema=query.read.source.schema), is_behind=True
        )

    monkeypatch.setattr(ShelfReader, "poll", late)
    assert query.plan() is is_found


@pytest.mark.parametrize(
    ("behind_from_s", "behind_to_s", "found"),
    [(0.0, 500.0, ["a0"]), (0.0, 700.0, []), (1.0, 9.0, ["a0", "a1"]), (1.0, 11.0, ["a0"])],
)
def test_a_task_waits_for_a_reader_that_is_behind(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind_from_s: float, behind_to_s: float, found: list[str]
) -> None:
    """Before it has a row up to where it stalls, and then as long as a task may take."""
    now = [0.0]
    query = Query(SplitRead(source=Feed(shelf, batch_rows=1), checkpoint=str(tmp_path)))
    shelf.add("a", "a0", "a1")
    assert query.plan()
    poll = ShelfReader.poll

    def late(reader: ShelfReader, timeout: float) -> SplitBatch[Piece] | None:
        now[0] += timeout
        if not behind_from_s < now[0] < behind_to_s:
            return poll(reader, timeout)
        nothing = pa.RecordBatch.from_pydict({"value": []}, schema=query.read.source.schema)
        return SplitBatch(Piece("a", int(behind_from_s)), nothing, is_behind=True)

    monkeypatch.setattr(ShelfReader, "poll", late)
    (task,) = query.tasks()
    rows = [value for batch in query.read.open_task(task).read(lambda: now[0]) for value in batch.column(0).to_pylist()]
    assert rows == found


def test_splits_that_come_further_without_records_get_a_batch_now_and_then(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.add("a", "a0")
    now = [0.0]
    query = Query(SplitRead(source=Feed(shelf), checkpoint=str(tmp_path)))
    query.planner = SplitPlanner(query.read, lambda: now[0])
    assert query.batch() == ["a0"]

    def moved(reader: ShelfReader, timeout: float) -> SplitBatch[Piece]:
        now[0] += 1.0
        return SplitBatch(Piece("a", 2), pa.RecordBatch.from_pydict({"value": []}, schema=query.read.source.schema))

    monkeypatch.setattr(ShelfReader, "poll", moved)
    assert query.plan()
    assert not any(query.plan() for _ in range(10))
    now[0] += 60.0
    assert query.plan()


def test_a_finished_split_is_not_found_again(shelf: Shelf, feed: Query) -> None:
    shelf.add("a", "a0")
    shelf.ended.add("a")
    assert feed.batch() == ["a0"]
    shelf.add("b", "b0")
    feed.restart()
    assert feed.batch() == ["b0"]
    assert shelf.finished == ["a"]
    assert feed.batch() is None
    assert shelf.published[-1] == {"b": 1}


def test_splits_that_stay_open_do_not_keep_new_ones_from_being_found(shelf: Shelf, tmp_path: Path) -> None:
    class OpenPile(Pile):
        finite_splits = False

    for number in range(5):
        shelf.add(str(number), f"{number}")
    query = Query(SplitRead(source=OpenPile(shelf), checkpoint=str(tmp_path), most_splits=2))
    assert [query.batch(), query.batch(), query.batch()] == [["0", "1"], ["2", "3"], ["4"]]


def test_a_vanished_split_is_reported_and_waits_where_it_was(
    shelf: Shelf, feed: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    monkeypatch.setattr(Feed, "on_splits_missing", lambda _self, splits: reported.extend(s.split_id for s in splits))
    shelf.add("a", "a0")
    feed.batch()
    shelf.hidden.add("a")
    shelf.add("a", "a1")
    shelf.add("b", "b0")
    assert feed.batch() == ["b0"]
    assert feed.batch() is None
    assert reported == ["a"]
    shelf.hidden.clear()
    assert feed.batch() == ["a1"]


def test_a_look_that_fails_holds_up_what_is_new_only(shelf: Shelf, feed: Query, caplog: pytest.LogCaptureFixture) -> None:
    shelf.add("a", "a0")
    feed.batch()
    shelf.add("a", "a1")
    shelf.trouble = RetriableError("no answer")
    assert feed.batch() == ["a1"]
    assert "finds nothing new until this is over: no answer" in caplog.text
    feed.planner.pin_end()
    with pytest.raises(RetriableError, match="no answer"):
        feed.plan()


def test_a_source_that_cannot_be_read_now_is_waited_for(
    shelf: Shelf, feed: Query, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OutageError("no broker answers")

    feed.planner = quick_planner(feed.read, [0.0])
    shelf.add("a", "a0")
    feed.batch()
    shelf.add("a", "a1")
    with monkeypatch.context() as away:
        away.setattr(ShelfReader, "poll", fail)
        assert [feed.batch(), feed.batch()] == [None, None]
        feed.planner.pin_end()
        with pytest.raises(OutageError, match="no broker answers"):
            feed.plan()
    assert feed.batch() == ["a1"]
    assert [record.message.split(": ")[0] for record in caplog.records] == [
        "the query continues, but finds nothing new until this is over",
        "the source is read again",
    ]


def test_a_probe_that_was_ended_between_two_triggers_is_made_again(
    shelf: Shelf, feed: Query, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.add("a", "a0")
    assert [feed.batch(), feed.batch()] == [["a0"], None]
    shelf.add("a", "a1")
    shelf.outages = 1
    assert feed.batch() == ["a1"]
    assert not caplog.records


def test_a_replay_that_does_not_get_its_records_fails(shelf: Shelf, feed: Query) -> None:
    shelf.add("a", "a0", "a1")
    feed.batch()
    del shelf.lists["a"][1:]
    with pytest.raises(DeadlineExceededError, match=r"a \(1 records missing\)"):
        feed.run()
    shelf.ended.add("a")
    with pytest.raises(DataLossError, match="split a ends 1 records before where an earlier attempt of this task has read"):
        feed.run()


def test_records_of_many_tasks_are_found(shelf: Shelf, feed: Query) -> None:
    for number in range(40):
        shelf.add(f"{number:02}", str(number))
    assert len(feed.batch() or ()) == 40
    assert len(feed.tasks()) == 40
    shelf.add("00", "more")
    assert feed.batch() == ["more"]


def test_a_damaged_record_is_named(shelf: Shelf, feed: Query, tmp_path: Path) -> None:
    shelf.add("a", "a0")
    feed.batch()
    (record,) = (path for path in (tmp_path / "checkpoint" / "headrace-ends").rglob("*-0"))
    record.write_bytes(record.read_bytes()[:-9])
    with pytest.raises(StateError, match=rf"{record.name}: the record of where a task stopped cannot be read"):
        feed.run()


def test_a_bounded_source_is_asked_once_what_it_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a query that continues at the end, where another pattern selects files that were not read."""
    folder, asked = tmp_path / "in", list[object]()
    folder.mkdir()
    for name in ("a1", "b1"):
        (folder / name).write_text("x\n")

    def query(pattern: str) -> Query:
        source = FileSource(str(folder), format="text", pattern=pattern, schema=pa.schema([("value", pa.string())]))
        return Query(SplitRead(source=source))  # type: ignore[arg-type]  # of files

    first, again, wider = query("a*"), query("a*"), query("*")
    assert first.plan()
    wider.offsets = again.offsets = first.offsets
    with pytest.raises(StateError, match="has left out b1: keep that pattern"):
        wider.plan()
    monkeypatch.setattr(FileSource, "on_positions_final", lambda _, cursor, __: asked.append(cursor))
    assert not again.plan()
    assert not again.plan()
    assert len(asked) == 1


def records(query: Query) -> list[Path]:
    return sorted(path for path in Path(str(query.read.checkpoint), FOLDER).rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("is_closed", "lost"),
    [(True, slice(None)), (True, slice(1)), (True, slice(1, None)), (False, slice(None))],
    ids=["all of a closed one", "its first", "its last", "all of an open one"],
)
def test_records_of_the_last_batch_that_are_gone_are_not_taken_for_tasks_that_read_nothing(
    shelf: Shelf, feed: Query, lost: slice, is_closed: bool
) -> None:
    """Regression: a checkpoint that was copied or cleaned in part had its last batch read again, and written twice."""
    shelf.add("a", "a0")
    shelf.add("b", "b0")
    assert feed.batch() == ["a0", "b0"]
    if is_closed:
        assert feed.batch() is None
    for path in records(feed)[lost]:
        path.unlink()
    feed.restart()
    for _ in range(2):
        with pytest.raises(StateError, match="is gone, which says how far a batch has read"):
            feed.plan()


@pytest.mark.parametrize("computed", [0, 1])
def test_tasks_that_are_not_computed_are_read_later_also_by_another_driver(shelf: Shelf, feed: Query, computed: int) -> None:
    shelf.add("a", "a0")
    shelf.add("b", "b0")
    feed.plan()
    for task in feed.tasks()[:computed]:
        assert feed.run_task(task) == ["a0"]
    feed.restart()
    assert feed.batch() == ["a0", "b0"][computed:]
    assert feed.batch() is None
    feed.restart()
    assert feed.batch() is None


def test_a_batch_that_an_earlier_version_has_planned_is_closed_as_it_was(shelf: Shelf, feed: Query) -> None:
    """It made no mark."""
    shelf.add("a", "a0")
    feed.plan()
    form = ReadingFormat(feed.read.source)
    reading = form.from_json(feed.offsets[-1])
    assert reading is not None
    assert reading.marked
    feed.offsets[-1] = form.to_json(replace(reading, marked=False))
    (mark,) = records(feed)
    mark.unlink()
    feed.restart()
    assert feed.batch() == ["a0"]


def test_records_are_kept_as_long_as_spark_keeps_batches(shelf: Shelf, feed: Query) -> None:
    for number in range(KEPT_READINGS + 50):
        shelf.add("a", str(number))
        assert feed.batch() == [str(number)]
    found = [path for path in records(feed) if path.name.endswith("-0")]
    assert KEPT_READINGS < len(found) <= KEPT_READINGS + 21
    assert len(records(feed)) == len(found) + 1  # the last batch is not closed


def test_the_checkpoint_is_needed_and_has_to_be_the_same_for_all(shelf: Shelf, feed: Query, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give checkpointLocation to read_stream, the same as to writeStream"):
        Query(SplitRead(source=Feed(shelf)))
    shelf.add("a", "a0")
    feed.plan()
    (tmp_path / "checkpoint" / "headrace-ends").rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="put it where driver and executors see the same folder"):
        feed.run()


def test_a_place_where_spark_has_no_checkpoint_is_refused_as_one_of_another_file_system(
    shelf: Shelf, feed: Query, tmp_path: Path
) -> None:
    shelf.add("a", "a0")
    (tmp_path / "checkpoint" / "metadata").unlink()
    with pytest.raises(UsageError, match="Give read_stream the same checkpointLocation as writeStream"):
        feed.plan()
    assert list((tmp_path / "checkpoint").iterdir()) == []


def test_a_checkpoint_of_another_source_is_refused(shelf: Shelf, feed: Query, pile: Query) -> None:
    feed.batch()
    with pytest.raises(StateError, match="is of a 'feed' source and cannot restore a 'pile' source"):
        pile.planner.next_offsets(feed.offsets[-1])


def test_whole_splits_are_read_in_their_order_as_many_as_a_batch_may_have(shelf: Shelf) -> None:
    for number in range(5):
        shelf.add(str(number), f"{number}", f"{number}'")
    query = Query(SplitRead(source=Pile(shelf), most_splits=2, parallelism=2))
    assert [query.batch(), query.batch(), query.batch()] == [["0", "0'", "1", "1'"], ["2", "2'", "3", "3'"], ["4", "4'"]]
    assert query.batch() is None
    query = Query(SplitRead(source=Pile(shelf), most_bytes=45))
    assert query.batch() == ["0", "0'", "1", "1'"]
    query = Query(SplitRead(source=Pile(shelf), most_bytes=1))
    assert query.batch() == ["0", "0'"]


def test_a_batch_of_whole_splits_is_run_again_as_it_was(shelf: Shelf, pile: Query) -> None:
    shelf.add("a", "a0")
    first = pile.batch()
    shelf.add("b", "b0")
    pile.restart()
    assert pile.run() == first == ["a0"]
    assert pile.batch() == ["b0"]
    assert shelf.finished == ["a"]
    pile.restart()
    assert pile.batch() is None
    assert shelf.finished == ["a", "b"]


def test_the_state_does_not_grow_with_what_was_read(shelf: Shelf, pile: Query) -> None:
    for number in range(100):
        shelf.add(f"{number:03}", str(number))
        pile.batch()
    assert len(pile.offsets[-1]) < len(pile.offsets[1]) + 20
    assert json.loads(pile.offsets[-1])["body"]["cursor"] == {"found": 100}


def test_a_source_that_was_bounded_and_watches_now_finds_what_comes(tmp_path: Path) -> None:
    """Regression: the query went on, and read nothing more."""
    (tmp_path / "a.txt").write_text("1\n")
    query = Query(SplitRead(source=FileSource(str(tmp_path), format="text")))
    assert query.batch() == ["1"]
    (tmp_path / "b.txt").write_text("2\n")
    query.restart()
    assert query.batch() is None
    query.read = SplitRead(source=FileSource(str(tmp_path), format="text", watch=True))
    query.restart()
    assert query.batch() == ["2"]


class EndedDiscovery(FeedDiscovery):
    def initial(self) -> DiscoveryResult[Piece]:
        return replace(super().initial(), complete=True)


class Ended(Feed):
    """A feed of some splits, which are all found at the start."""

    boundedness = Boundedness.BOUNDED

    def create_discovery(self) -> EndedDiscovery:
        return EndedDiscovery(self.shelf)


class Fixed(Ended):
    """A feed whose splits are all found at the start, and have no end."""

    boundedness = Boundedness.UNBOUNDED


def test_a_source_without_end_may_have_found_all_of_its_splits(shelf: Shelf, feed: Query) -> None:
    shelf.add("a", "a0")
    feed.read = replace(feed.read, source=Fixed(shelf))
    feed.restart()
    assert feed.batch() == ["a0"]
    shelf.add("a", "a1")
    assert feed.batch() == ["a1"]
    feed.restart()
    shelf.add("a", "a2")
    assert feed.batch() == ["a2"]


def test_a_source_without_a_cursor_that_was_bounded_is_refused_when_it_is_so_no_more(shelf: Shelf, feed: Query) -> None:
    shelf.add("a", "a0")
    unbounded, feed.read = feed.read, replace(feed.read, source=Ended(shelf))
    feed.restart()
    assert feed.batch() == ["a0"]
    feed.read = unbounded
    feed.restart()
    with pytest.raises(StateError, match="is of a bounded source, of which all splits are found, and 'feed' is unbounded now"):
        feed.plan()


@pytest.mark.parametrize("is_run", [True, False])
def test_splits_that_have_become_finite_are_read_from_where_the_last_batch_stopped(
    shelf: Shelf, feed: Query, *, is_run: bool
) -> None:
    """Regression: of a source that is bounded now what the last batch had read of a split counted as all of it."""
    shelf.add("a", "a0")
    assert feed.plan()
    read = feed.run() if is_run else []
    shelf.add("a", "a1")
    feed.read = replace(feed.read, source=Ended(shelf))
    feed.restart()
    while not read or feed.plan():
        read += feed.run()
    assert read == ["a0", "a1"]


def test_available_now_ends_though_new_splits_come(shelf: Shelf) -> None:
    for number in range(4):
        shelf.add(str(number), str(number))
    query = Query(SplitRead(source=Pile(shelf), most_splits=2))
    query.planner.pin_end()
    assert [query.batch(), query.batch()] == [["0", "1"], ["2", "3"]]
    shelf.add("4", "4")
    assert query.batch() is None
    query.restart()
    assert query.batch() == ["4"]


@pytest.mark.parametrize(("interval_s", "looks"), [(10.0, 3), (None, 1)])
def test_looks_are_as_rare_as_the_source_says(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, interval_s: float | None, looks: int
) -> None:
    monkeypatch.setattr(Pile, "discovery_interval_s", interval_s)
    first = SplitPlanner(SplitRead(source=Pile(shelf)))
    start = first.next_offsets(first.initial_offsets())
    shelf.looks = 0
    times = [100.0, 105.0, 110.0, 119.0, 121.0]
    planner = SplitPlanner(SplitRead(source=Pile(shelf)), lambda: times[0])
    while times:
        planner.next_offsets(start)
        del times[0]
    assert shelf.looks == looks


@pytest.mark.parametrize(
    ("sizes", "parallelism", "tasks"),
    [
        ([], 4, []),
        ([0] * 4, 4, [1, 1, 1, 1]),
        ([0] * 8, 4, [2, 2, 2, 2]),
        ([TASK_BYTES, 1, 1], None, [1, 2]),
        ([0] * 40, None, [TASK_BYTES // OPENING_BYTES, 40 - TASK_BYTES // OPENING_BYTES]),
    ],
)
def test_whole_splits_are_packed_by_size(sizes: list[int], parallelism: int | None, tasks: list[int]) -> None:
    splits = [Piece(str(number), 0, size) for number, size in enumerate(sizes)]
    found = packed(splits, parallelism)
    assert [len(task) for task in found] == tasks
    assert [split for task in found for split in task] == splits


@pytest.mark.parametrize(("most_s", "needed_s"), [(10.0, 2.5), (1.0, 25.0), (0.0, 2.5)])
def test_a_reader_that_takes_long_to_its_first_record_is_waited_for(
    most_s: float, needed_s: float, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also longer than a task may read."""
    query = Query(SplitRead(source=Feed(shelf), checkpoint=str(tmp_path), limits=TaskLimits(seconds=most_s)))
    poll = ShelfReader.poll

    def slow(reader: ShelfReader, timeout: float) -> SplitBatch[Piece] | None:
        waited_s[reader] = waited_s.get(reader, 0.0) + timeout
        return poll(reader, timeout) if waited_s[reader] >= needed_s - 0.1 else None

    waited_s: dict[ShelfReader, float] = {}
    monkeypatch.setattr(ShelfReader, "poll", slow)
    shelf.add("a", "a0")
    batches = [query.batch() for _ in range(180)]
    assert [batch for batch in batches if batch] == [["a0"]]


def test_batches_for_other_reasons_do_not_teach_to_wait(shelf: Shelf, tmp_path: Path) -> None:
    query = Query(SplitRead(source=Feed(shelf), checkpoint=str(tmp_path), limits=TaskLimits(records=2)))
    for number in range(5):  # an empty batch follows one that stopped at a limit, and one for a new split without records
        shelf.add("a", f"{number}", f"{number}'")
        assert [query.batch(), query.batch(), query.batch()] == [[f"{number}", f"{number}'"], [], None]
        shelf.add(f"empty {number}")
        assert query.batch() == []
    assert {task.wait_s for task in query.tasks()} == {1.0}


def test_a_batch_that_comes_further_without_records_does_not_teach_to_wait(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.add("a")
    now, places = [0.0], itertools.count(1)
    query = Query(SplitRead(source=Feed(shelf), checkpoint=str(tmp_path), limits=TaskLimits(seconds=0.1)))
    query.planner = SplitPlanner(query.read, lambda: now[0])
    query.batch()
    nothing = pa.RecordBatch.from_pydict({"value": []}, schema=query.read.source.schema)
    monkeypatch.setattr(ShelfReader, "poll", lambda _reader, _timeout: SplitBatch(Piece("a", next(places)), nothing))
    for _ in range(3):
        assert query.batch() == []
        now[0] += 60.0
    assert {task.wait_s for task in query.tasks()} == {0.1}


def test_what_is_selected_no_more_is_reported_and_left_out(shelf: Shelf, feed: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr(Feed, "on_splits_missing", lambda _self, splits: reported.extend(s.split_id for s in splits))
    for name in "ab":
        shelf.add(name, f"{name}0")
    feed.batch()
    monkeypatch.setattr(Feed, "selects", lambda _self, split: split.split_id != "a")
    shelf.hidden.add("a")  # as a source does not discover what it does not select
    for name in "ab":
        shelf.add(name, f"{name}1")
    feed.restart()
    assert feed.batch() == ["b1"]
    assert feed.batch() is None
    assert reported == ["a"]


def test_what_is_proven_to_be_gone_leaves_the_state(shelf: Shelf, feed: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Feed, "confirm_deleted", lambda _self, splits: frozenset(split.split_id for split in splits))
    for name in ("gone read", "gone unread"):
        shelf.add(name, name)
    shelf.ended.add("gone read")
    assert feed.batch() == ["gone read", "gone unread"]
    shelf.hidden |= {"gone read", "gone unread"}
    shelf.add("c", "c")
    assert feed.batch() == ["c"]
    assert feed.planner.tasks(feed.offsets[-1])[0].splits == (Piece("c"),)
    assert '"gone' not in feed.offsets[-1]


def test_a_task_without_memory_for_threads_is_an_error_at_once(feed: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python waits for ever for a thread that has no memory to start with."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    check_memory.cache_clear()
    with pytest.raises(UsageError, match=r"spark.executor.pyspark.memory leaves a task 1 MiB"):
        list(read_splits(feed.read.source, [Piece("a")], ["value"], 1.0))


def in_a_stage(offset: str) -> str:
    return STAGE.seal({"stage": 1, "after": {"cursor": None}, "offset": json.loads(offset)}).decode()


@pytest.fixture(params=["v1", "v1 staged", "v2", "v2 staged"])
def logged(request: pytest.FixtureRequest, feed: Query, shelf: Shelf, tmp_path: Path) -> OffsetLog:
    """Of a query that has planned a batch of two tasks; as PySpark writes offsets, of sources with a name in v2."""
    for name in "ab":
        shelf.add(name, f"{name}0")
    feed.plan()
    folder = tmp_path / "checkpoint"
    (folder / "offsets").mkdir(parents=True)
    version, _, stage = request.param.partition(" ")
    offset = json.dumps(json.loads(in_a_stage(feed.offsets[-1]) if stage else feed.offsets[-1]))
    name = "orders:" if version == "v2" else ""
    (folder / "offsets" / "0").write_text(f'{version}\n{{"batchTimestampMs":1}}\n{name}{offset}')
    return OffsetLog(str(folder))


def test_an_older_copy_without_the_records_is_another_plan(feed: Query, logged: OffsetLog, tmp_path: Path) -> None:
    """Its tasks would stop elsewhere than where the sink's rows end."""
    copy = OffsetLog(str(tmp_path / "copy"))
    for ran in range(2):
        shutil.copytree(logged.location, copy.location, dirs_exist_ok=True)
        feed.run_task(feed.tasks()[ran])
    recorded = logged.digest(0)
    assert recorded == logged.digest(0)
    refuse_other_content("job", 0, logged.digest(0), recorded)
    with pytest.raises(StaleEpochError, match="from another plan of it"):
        refuse_other_content("job", 0, copy.digest(0), recorded)


def test_a_batch_recorded_before_all_of_its_tasks_ran_may_be_run_again(feed: Query, logged: OffsetLog) -> None:
    """As in foreachBatch: what `first()` gave is written, and then the whole batch is used."""
    feed.run_task(feed.tasks()[0])
    recorded = logged.digest(0)
    assert recorded is not None
    feed.run()
    for known in (recorded, numbered_content(content_number(recorded))):
        refuse_other_content("job", 0, logged.digest(0), known)


def test_finished_splits_are_reported_before_more_is_planned(
    shelf: Shelf, pile: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart reports those of the last reading only, so one whose report has failed has to stay the last."""
    for name in ("a", "b"):
        shelf.add(name, name)
    pile.read = replace(pile.read, most_splits=1)
    pile.restart()
    assert pile.batch() == ["a"]
    reported, away = Pile.splits_finished, RetriableError("the archive is away")

    def fails(_self: Pile, _splits: Sequence[Piece]) -> None:
        raise away

    monkeypatch.setattr(Pile, "splits_finished", fails)
    assert pile.batch() is None
    pile.planner.pin_end()
    with pytest.raises(RetriableError, match="the archive is away"):
        pile.plan()
    monkeypatch.setattr(Pile, "splits_finished", reported)
    pile.restart()
    assert pile.batch() == ["b"]
    assert shelf.finished == ["a"]


def test_a_query_starts_where_a_savepoint_is(shelf: Shelf, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a", "b", "c"):
        shelf.add(name, name)
    states = (SplitState(Piece("a"), finished=True), SplitState(Piece("b"), finished=False))
    source = Pile(shelf)
    checkpoint = Checkpoint(7, states, exhausted=False, cursor={"found": 2})
    data = CheckpointSerializer(source.name, source.split_serializer).serialize(checkpoint)
    (tmp_path / "savepoint.json").write_bytes(Savepoint("run-a", 7, data.decode()).serialize())
    query = Query(SplitRead(source=source, savepoint=str(tmp_path / "savepoint.json")))
    assert [query.batch(), query.batch()] == [["b"], ["c"]]
    assert "is not looked at" not in caplog.text
    query.restart()
    query.plan()
    assert "savepoint.json is not looked at" in caplog.text
    assert shelf.finished == ["a", "b", "c"]
