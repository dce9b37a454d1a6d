"""Streams on Spark of sources whose splits Spark cannot cut: all of headrace that plans and reads, and a model of the rest.

Ours: `SplitPlanner`, `OpenTask`, `EndsLog`, the stored readings, and `read_splits` for whole splits. Modelled: the source, the
store of the records, the sink, and Spark. Of Spark: offset log and commit log; the batch without a commit, which is run again;
attempts that fail, twins, stages that are tried again, executors that continue after their batch, with another driver or with
an older copy of the checkpoint; batches that are computed twice, or of which some tasks run only (LIMIT). A slow attempt is a
thread that stops before each of its steps (find, poll, record, yield) until it is its turn.

The oracle: what counts is what the sink has of each batch. Per split it is the records in their order, each once. What a task
gives was recorded before its first row, and is the same in each attempt, also long after its batch. In a batch of which some
tasks run only, the others' splits are not read, unless an attempt has recorded before the batch was closed: then LIMIT has
dropped these rows.
"""

import json
import logging
import threading
from _thread import start_new_thread
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from headrace.connectors.base.commit import StaleEpochError, refuse_other_content, refuse_stale
from headrace.enumerator.errors import DataLossError, DeadlineExceededError, HeadraceError, OutageError, RetriableError
from headrace.enumerator.source import DiscoveryResult, SplitBatch, SplitDiscovery
from headrace.runners.spark import offset_log, split_ends
from headrace.runners.spark.offset_log import OffsetLog
from headrace.runners.spark.split_ends import MARK
from headrace.runners.spark.split_state import FOLDER, ReadingFormat, SplitReading
from headrace.runners.spark.split_stream import PlannedTask, SplitPlanner, SplitRead
from headrace.runners.spark.split_tasks import TaskLimits
from headrace.runners.spark.tasks import read_splits
from tests.helpers.split_sources import Feed, FeedDiscovery, Piece, Pile, PileDiscovery, Shelf, ShelfReader
from tests.simulation.search import Adversary

CHECKPOINT = "/simulated"
CALM_BATCHES = 200
MOST_SPLITS = 3
KEPT_READINGS, SWEEP_EVERY = 3, 2  # so that records are removed in a short time, too
SLOW_AT_MOST = 3
COPIES_AT_MOST = 3
Rows = Mapping[str, Sequence[str]]
"""Split id -> records, in their order."""


class KilledError(BaseException):
    """The process of a slow attempt is killed. Not an Exception, as nothing may handle it."""


class StoreError(OSError):
    """The store of the checkpoint fails."""


# --- what is durable ------------------------------------------------------------------------------------------------------
@dataclass
class Disk:
    """A query's checkpoint: ends of batches, commits, and the records of tasks. `recorded`: by split, of the first creator.

    `sequence`: of the last reading.
    """

    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    sequence: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    recorded: dict[str, dict[str, int]] = field(default_factory=dict)

    def copy(self) -> "Disk":
        return Disk(list(self.offsets), self.committed, self.sequence, dict(self.files), dict(self.recorded))


@dataclass
class Sink:
    """What counts: `counted` records of each split. Of the last epoch also whether tasks gave nothing; and which, until that
    batch is closed."""

    digests: list[str] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)
    left_out: tuple[PlannedTask[Piece], ...] = ()
    is_partial: bool = False

    def copy(self) -> "Sink":
        return Sink(list(self.digests), dict(self.counted), self.left_out, self.is_partial)


class Folder:
    """The store of the records. Only what `EndsLog` uses."""

    def __init__(self, simulation: "SplitsSimulation") -> None:
        self._simulation = simulation

    def make_folder(self, _: str) -> None:
        self._simulation.operation()

    check_exclusive = make_folder

    def size(self, name: str) -> int | None:
        """Spark's own checkpoint is there."""
        self._simulation.operation()
        return 1 if name == "metadata" else len(data) if (data := self._simulation.disk.files.get(name)) is not None else None

    def read(self, name: str) -> bytes:
        simulation = self._simulation
        simulation.pause()
        simulation.operation()
        try:
            return simulation.disk.files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def create(self, name: str, data: bytes, _: str) -> None:
        simulation = self._simulation
        simulation.pause()
        fails_late = simulation.operation()
        if name in simulation.disk.files:
            raise FileExistsError(name)
        simulation.write(name, data)
        if fails_late:
            raise StoreError("no answer, though it is done")

    def names(self, chain: str) -> list[str]:
        self._simulation.operation()
        return [name.removeprefix(f"{chain}/") for name in self._simulation.disk.files]

    def remove(self, name: str) -> None:
        self._simulation.operation()
        self._simulation.disk.files.pop(name, None)
        self._simulation.disk.recorded.pop(name, None)


def _names(_: str) -> list[str]:
    return [name.rpartition("/")[2] for name in SplitsSimulation.latest.disk.files]


def _content(name: str) -> bytes:
    """Of a file of the checkpoint, as Spark, PySpark and headrace write it."""
    folder, _, file = name.removeprefix(f"{CHECKPOINT}/").partition("/")
    disk = SplitsSimulation.latest.disk
    if folder == FOLDER:
        return disk.files[file]
    return f'v1\n{{"batchTimestampMs":1}}\n{json.dumps(json.loads(disk.offsets[int(file)]))}'.encode()


# --- the source -----------------------------------------------------------------------------------------------------------
class SlowReader(ShelfReader):
    _waited_s = 0.0

    def poll(self, timeout: float) -> SplitBatch[Piece] | None:
        simulation = SplitsSimulation.latest
        simulation.pause()
        self._waited_s += timeout
        if self._waited_s < simulation.connect_s:
            return None
        if simulation.polls_fail:
            simulation.polls_fail -= 1
            if simulation.polls_fail % 2:
                raise OutageError("the source does not answer")
            return None
        return super().poll(timeout)


class Opened(Feed):
    """Open splits, known by their names."""

    def create_discovery(self) -> SplitDiscovery[Piece]:
        return Looks(self.shelf)

    def create_reader(self) -> SlowReader:
        return SlowReader(self)

    def confirm_deleted(self, splits: Sequence[Piece]) -> frozenset[str]:
        return frozenset(split.split_id for split in splits) & SplitsSimulation.latest.deleted

    def splits_finished(self, splits: Sequence[Piece]) -> None:
        for split in splits:
            SplitsSimulation.latest.note_finished(split)

    def checkpoint_completed(self, splits: Sequence[Piece]) -> None:
        for split in splits:
            at = SplitsSimulation.latest.position(split.split_id)
            assert split.start <= at, f"{split} is published, and the query is at {at}"


class Whole(Opened):
    """Finite splits, known by their names."""

    name = "whole"
    finite_splits = True


class Queue(Pile):
    """Finite splits, found by a cursor."""

    create_reader, splits_finished = Opened.create_reader, Opened.splits_finished  # type: ignore[assignment]

    def create_discovery(self) -> SplitDiscovery[Piece]:
        return Pages(self.shelf)


class OpenedQueue(Queue):
    """Open splits, found by a cursor."""

    name = "opened"
    finite_splits = False
    checkpoint_completed = Opened.checkpoint_completed  # type: ignore[assignment]


class Looks(FeedDiscovery):
    def initial(self) -> DiscoveryResult[Piece]:
        found, simulation = super().initial(), SplitsSimulation.latest
        assert not simulation.disk.offsets, "batch 0 is initialised twice"
        return replace(found, added=[simulation.started(split) for split in found.added], complete=simulation.is_sealed)

    def later(self, known: Mapping[str, Piece]) -> DiscoveryResult[Piece]:
        return replace(super().later(known), complete=SplitsSimulation.latest.is_sealed)


class Pages(PileDiscovery):
    def after(self, cursor: Any, limit: int) -> DiscoveryResult[Piece]:
        found, simulation = super().after(cursor, limit), SplitsSimulation.latest
        if cursor is None:
            assert not simulation.disk.offsets, "batch 0 is initialised twice"
            found = replace(found, added=[simulation.started(split) for split in found.added])
        return replace(found, complete=simulation.is_sealed and not found.more)


SOURCES: tuple[type[Feed], ...] = (Opened, Opened, Opened, Queue, Queue, Whole, OpenedQueue)


def _locked() -> threading.Lock:
    """One that another thread releases."""
    lock = threading.Lock()
    lock.acquire()
    return lock


# --- attempts -------------------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Attempt:
    """A slow attempt. `age`: the number of the checkpoint that was there, which an older copy may have replaced since."""

    task: PlannedTask[Piece]
    number: int
    driver: "Driver"
    age: int
    turn: threading.Lock = field(default_factory=_locked)
    rows: dict[str, list[str]] = field(default_factory=dict)
    error: BaseException | None = None
    is_over: bool = False
    is_killed: bool = False


@dataclass(eq=False)
class Driver:
    """One run of a query. `results`: of the tasks of the batch that have succeeded."""

    read: SplitRead[Piece]
    planner: SplitPlanner[Piece]
    tasks: list[PlannedTask[Piece]] | None = None
    results: dict[int, Rows] = field(default_factory=dict)


class SplitsSimulation:
    """One history of one query."""

    latest: "SplitsSimulation"

    def __init__(self, kind: int, start: int, limits: int, rows: int) -> None:
        SplitsSimulation.latest = self
        self.happened: Counter[str] = Counter()
        self.now, self.ticks = 0.0, 0
        self.shelf = Shelf()
        self.source = SOURCES[kind % len(SOURCES)](self.shelf, 1 + rows % 3)
        self.from_latest = start % 4 == 0 and not self.source.finite_splits
        self.is_sealed = False
        self.deleted: set[str] = set()
        self.connect_s = 3.0 if start % 8 == 1 else 0.0
        self.read = SplitRead(
            source=self.source, checkpoint=CHECKPOINT, most_splits=MOST_SPLITS, stall_s=60.0, parallelism=1 + limits // 3 % 3,
            most_bytes=(None, 30)[limits // 9 % 2], limits=TaskLimits((1_000_000, 2, 5)[limits % 3], seconds=5.0 + rows % 7),
        )  # fmt: skip
        self.format = ReadingFormat(self.source)
        self.disk, self.sink = Disk(), Sink()
        self.copies: list[tuple[Disk, Sink]] = []
        self.newest: tuple[Disk, Sink] | None = None
        self.age = 0
        self.finished: set[str] = set()
        self.slow: list[Attempt] = []
        self.acting: Attempt | None = None
        self.turn = _locked()
        self.polls_fail = self.store_fails = 0
        self.meanwhile: Callable[[], None] | None = None
        self.operations = 0
        self.zombie: tuple[SplitPlanner[Piece], str] | None = None
        for _ in range(start % 3):
            self.add(start)
        self.driver = self._started(self.read.parallelism)

    def _started(self, parallelism: int | None) -> Driver:
        read = replace(self.read, parallelism=parallelism)
        return Driver(read, SplitPlanner(read, lambda: self.now, self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    # --- the source ---------------------------------------------------------------------------------------------------
    def add(self, count: int) -> None:
        """A split appears: a finite one is whole, and may be empty."""
        name = f"s{len(self.shelf.lists)}"
        if len(self.shelf.lists) < 12 and not self.is_sealed:
            self.shelf.add(name, *(f"{name}.{number}" for number in range(count % 5)))

    def grow(self, which: int, count: int) -> None:
        name = self._split(which)
        if name is not None and not self.source.finite_splits and name not in self.shelf.ended:
            there = len(self.shelf.lists[name])
            self.shelf.add(name, *(f"{name}.{number}" for number in range(there, there + 1 + count % 4)))

    def end(self, which: int) -> None:
        name = self._split(which)
        if name is not None:
            self.shelf.ended.add(name)

    def seal(self, really: int) -> None:
        """There will be no further split, and none is out of sight."""
        if really % 8 == 0:
            self.is_sealed = True
            self._show()

    def hide(self, which: int, back: int) -> None:
        """A split is out of sight, or those that were are there again."""
        name = self._split(which)
        if back % 2:
            self._show()
        elif name is not None and isinstance(self.source, Opened) and not self.is_sealed:
            self.shelf.hidden.add(name)

    def delete(self, which: int) -> None:
        """A split is gone for good."""
        self.hide(which, 0)
        self.deleted |= self.shelf.hidden & {self._split(which) or ""}

    def _show(self) -> None:
        self.shelf.hidden = set(self.deleted)

    def trouble(self, kind: int, count: int) -> None:
        if kind % 4 == 0:
            self.shelf.trouble = None if self.shelf.trouble else RetriableError("no answer")
        elif kind % 4 == 1:
            self.polls_fail = 1 + count % 3
        else:
            self.store_fails = 1 + count % 16

    def wait(self, seconds: int) -> None:
        self.now += seconds

    def started(self, split: Piece) -> Piece:
        return replace(split, start=len(self.shelf.lists[split.split_id])) if self.from_latest else split

    def note_finished(self, split: Piece) -> None:
        name = split.split_id
        assert self.source.finite_splits or name in self.shelf.ended, f"{name} is reported as finished, and has no end yet"
        at, end = self.position(name), len(self.shelf.lists[name])
        assert at == end, f"{name} is reported as finished at {at} of {end}"
        self.finished.add(name)

    # --- what attempts and the planner do -----------------------------------------------------------------------------
    def operation(self) -> bool:
        """One of the store. True where it fails after its effect; raises where it fails before."""
        if self.acting is None and self.meanwhile is not None:
            self.operations -= 1
            if self.operations < 0:
                act, self.meanwhile = self.meanwhile, None
                act()
        self.store_fails -= self.store_fails > 0
        if self.store_fails == 1:
            self.happened["store failed"] += 1
            self.store_fails = 0
            if self.ticks % 2:
                raise StoreError("no answer")
            return True
        return False

    def write(self, name: str, data: bytes) -> None:
        self.disk.files[name] = data
        if data == MARK:
            return
        ends = self.format.ends_from_json(data, name)
        self.disk.recorded.setdefault(name, {split_id: end.rows for split_id, end in ends.ends.items()})

    def clock(self) -> float:
        """That of the tasks, which do not wait while the driver does."""
        self.ticks += 1
        return self.ticks

    def pause(self) -> None:
        """A slow attempt stops here until it is its turn again."""
        attempt = self.acting
        if attempt is not None:
            self.turn.release()
            attempt.turn.acquire()
            if attempt.is_killed:
                raise KilledError

    def _rows(self, task: PlannedTask[Piece], read: SplitRead[Piece], age: int) -> Iterator[str]:
        if task.name is None:
            batches = read_splits(self.source, task.splits, ["value"], 60.0, self.clock)
        else:
            batches = read.open_task(task).read(self.clock)
        for batch in batches:
            if batch.num_rows and task.name is not None and age == self.age:
                assert task.name.file in self.disk.recorded or self._is_old(task), "rows are given before the end is recorded"
            yield from batch.column(0).to_pylist()

    def _is_old(self, task: PlannedTask[Piece]) -> bool:
        """Whether records of its batch are removed."""
        return task.name is not None and task.name.sequence < self.disk.sequence - KEPT_READINGS + SWEEP_EVERY

    def check_rows(self, task: PlannedTask[Piece], rows: Rows, age: int) -> None:
        """Of an attempt that has come to its end."""
        if age != self.age or self._is_old(task):
            return
        for split in task.splits:
            there = self.shelf.lists[split.split_id]
            count = len(there) if task.name is None else split.start + self.disk.recorded[task.name.file].get(split.split_id, 0)
            given = list(rows.get(split.split_id, ()))
            assert given == there[split.start : count], f"{split} up to {count}: an attempt gave {given}"

    # --- slow attempts ------------------------------------------------------------------------------------------------
    def start_slowly(self, which: int) -> None:
        """An attempt starts, which others may overtake."""
        tasks = self.driver.tasks
        if tasks and len(self.slow) < SLOW_AT_MOST:
            number = which % len(tasks)
            attempt = Attempt(tasks[number], number, self.driver, self.age)
            self.slow.append(attempt)
            start_new_thread(self._run_slowly, (attempt,))  # in a third of the time of a Thread

    def _run_slowly(self, attempt: Attempt) -> None:
        attempt.turn.acquire()
        try:
            if not attempt.is_killed:
                for value in self._rows(attempt.task, attempt.driver.read, attempt.age):
                    attempt.rows.setdefault(value.partition(".")[0], []).append(value)
                    self.pause()
        except BaseException as error:  # noqa: BLE001 - raised where the schedule is played
            attempt.error = error
        attempt.is_over = True
        self.turn.release()

    def advance(self, which: int, steps: int) -> None:
        """A slow attempt takes its next steps. Spark takes its rows if its batch still wants them."""
        if not self.slow or self.acting is not None:
            return
        attempt = self.slow[which % len(self.slow)]
        for _ in range(1 + steps % 6):
            self._turn_of(attempt)
            if attempt.is_over:
                self._end_slow(attempt)
                return

    def _turn_of(self, attempt: Attempt) -> None:
        self.acting = attempt
        attempt.turn.release()
        self.turn.acquire()
        self.acting = None

    def _end_slow(self, attempt: Attempt) -> None:
        self.slow.remove(attempt)
        if attempt.error is not None:
            if attempt.age == self.age and not self._is_old(attempt.task):  # else the record that it has met may be gone
                self._note_failed(attempt.error)
            return
        self.check_rows(attempt.task, attempt.rows, attempt.age)
        is_wanted = attempt.driver is self.driver and self.driver.tasks is not None and attempt.task in self.driver.tasks
        self.happened["slow attempt" if is_wanted else "zombie attempt"] += 1
        if is_wanted:
            self.driver.results.setdefault(attempt.number, attempt.rows)

    def race(self, which: int, steps: int, count: int) -> None:
        """A slow attempt is overtaken, while records come."""
        self.start_slowly(which)
        self.advance(-1, steps)
        for task in (self.driver.tasks or ())[which % 2 :]:
            for split in task.splits:
                self.grow(int(split.split_id[1:]), count)
        self.run(which + steps % 2, count)
        self.advance(-1, 5)

    def limited(self, which: int, steps: int, meanwhile: int) -> None:
        """A slow attempt is not waited for: LIMIT has enough. The next batch is planned meanwhile, or this one run again."""
        self.start_slowly(which)
        self.advance(-1, steps)
        self.commit(0, 1 if meanwhile % 4 == 1 else 3)
        self.plan(2, 2 * meanwhile)

    def lose(self, which: int) -> None:
        """A slow attempt is killed where it is."""
        if self.slow and self.acting is None:
            attempt = self.slow.pop(which % len(self.slow))
            attempt.is_killed = True
            self._turn_of(attempt)
            self.happened["attempt killed"] += 1

    def _note_failed(self, error: BaseException) -> None:
        if isinstance(error, (DataLossError, DeadlineExceededError)):
            raise AssertionError(f"all records are there: {error}") from error
        if not isinstance(error, (OutageError, StoreError)):
            raise error
        self.happened[f"attempt: {type(error).__name__}"] += 1

    # --- a batch ------------------------------------------------------------------------------------------------------
    def plan(self, killed: int, meanwhile: int) -> None:
        """The driver's next batch, or the one that its predecessor has left."""
        driver = self.driver
        if driver.tasks is not None:
            return
        if meanwhile % 2 == 0:
            self.operations = meanwhile // 2 % 6
            self.meanwhile = lambda: self.advance(-1, 5)
        try:
            is_planned = len(self.disk.offsets) > self.disk.committed or self._plan(killed)
        except (HeadraceError, StoreError) as error:
            self._note_failed_plan(error)
            return
        finally:
            self.meanwhile = None
        if killed % 12 == 1:
            self.happened["killed after a plan"] += 1
            self.restart(killed // 12)
        elif is_planned:
            driver.tasks, driver.results = driver.planner.tasks(self.disk.offsets[-1]), {}

    def _plan(self, killed: int) -> bool:
        planner, disk = self.driver.planner, self.disk
        start = disk.offsets[-1] if disk.offsets else planner.initial_offsets()
        end = planner.next_offsets(start)
        if end == start or killed % 12 == 0:
            return False  # and is killed before it is stored, or not
        self._note_planned(end)
        disk.offsets.append(end)
        if disk.committed:
            planner.committed(disk.offsets[-2])
        return True

    def _note_planned(self, end: str) -> None:
        reading = self.format.from_json(end)
        assert reading is not None
        if not self.sink.digests:
            self.sink.counted = {split.split_id: split.start for split in (*reading.splits, *reading.unread)}
        self._take_over_limited()
        self._check_state(reading)
        self.disk.sequence = reading.sequence
        self.happened["batch 0" if not self.disk.offsets else "batch"] += 1

    def _check_state(self, reading: SplitReading[Piece]) -> None:
        """It does not grow with what was read, where a discovery has a cursor."""
        if isinstance(self.source, Pile) and self.newest is None:
            assert not reading.finished, f"{len(reading.finished)} finished splits are remembered"
            known = [*reading.splits, *reading.unread]
            over = [s for s in known if self.source.finite_splits and self.sink.counted.get(s.split_id, -1) > s.start]
            assert not over, f"{over} are read, and remembered"
            assert not self.source.finite_splits or len(known) <= 2 * MOST_SPLITS, f"{len(known)} splits wait"

    def _note_failed_plan(self, error: Exception) -> None:
        """Only the first look, and the store, may end a query. The source may be away at other times."""
        if not isinstance(error, StoreError) and (self.disk.offsets or not isinstance(error, RetriableError)):
            raise error
        self.happened[f"query: {type(error).__name__}"] += 1
        self.shelf.trouble = self.shelf.trouble if self.disk.offsets else None
        self.restart(0)

    def run(self, which: int, how: int) -> None:
        """A task is run: to its end, up to some row, or by a twin, too."""
        driver = self.driver
        if not driver.tasks:
            return
        number = which % len(driver.tasks)
        if how % 4 == 3:
            self._interrupted(driver.tasks[number], how // 4)
        else:
            for _ in range(2 if how % 4 == 2 else 1):
                self._run_task(number)

    def _run_task(self, number: int) -> None:
        driver = self.driver
        assert driver.tasks is not None
        task, rows = driver.tasks[number], dict[str, list[str]]()
        try:
            for value in self._rows(task, driver.read, self.age):
                rows.setdefault(value.partition(".")[0], []).append(value)
        except (HeadraceError, StoreError) as error:
            self._note_failed(error)
            return
        self.check_rows(task, rows, self.age)
        driver.results[number] = rows
        self.happened["attempt"] += 1

    def _interrupted(self, task: PlannedTask[Piece], rows: int) -> None:
        values = self._rows(task, self.driver.read, self.age)
        with suppress(OutageError, StoreError):
            for _ in range(rows % 3):
                next(values, None)
        values.close()  # type: ignore[attr-defined]
        self.happened["attempt interrupted"] += 1

    def again(self, which: int) -> None:
        """The rows of some finished tasks are lost, or the batch is computed again: all of that is read again."""
        self.driver.results = {number: rows for number, rows in self.driver.results.items() if which >> number % 6 & 1}
        self.happened["computed again"] += 1

    def commit(self, some: int, killed: int) -> None:
        """The batch's rows reach the sink, and Spark's commit log. LIMIT: those of some tasks only."""
        driver = self.driver
        if driver.tasks is None or (len(driver.results) < len(driver.tasks) and some % 4):
            return
        if killed % 12 == 0:
            self._die("killed before the sink")
            return
        try:
            self._write(driver.tasks, driver.results)
        except StaleEpochError:
            self._give_back()
            return
        if killed % 12 == 1:
            self._die("killed before the commit log")
            return
        self.disk.committed += 1
        driver.tasks, driver.results = None, {}
        if killed % 12 == 2:
            self._die("killed after a commit")

    def _die(self, where: str) -> None:
        self.happened[where] += 1
        self.restart(self.ticks)

    def _write(self, tasks: Sequence[PlannedTask[Piece]], results: Mapping[int, Rows]) -> None:
        """An epoch that is recorded, of the same plan, is skipped."""
        sink, epoch, digest = self.sink, self.disk.committed, OffsetLog(CHECKPOINT).digest(self.disk.committed)
        assert digest is not None
        if epoch < len(sink.digests):
            refuse_stale("job", epoch, len(sink.digests) - 1)
            refuse_other_content("job", epoch, digest, sink.digests[epoch])
            self.happened["recorded already"] += 1
            return
        sink.digests.append(digest)
        self.newest = None
        for rows in results.values():
            for name, values in rows.items():
                at = sink.counted.get(name, 0)
                there = self.shelf.lists[name][at : at + len(values)]
                assert list(values) == there, f"batch {epoch} has {values} of {name}, which is at {at}"
                sink.counted[name] = at + len(values)
        sink.left_out = tuple(task for number, task in enumerate(tasks) if number not in results)
        sink.is_partial = bool(sink.left_out)
        if sink.left_out:
            self.happened["LIMIT"] += 1

    def _take_over_limited(self) -> None:
        """The batch before is closed: what LIMIT has dropped of it is known."""
        names = {split.split_id for task in self.sink.left_out for split in task.splits}
        for task in self.sink.left_out:
            if task.name is not None:  # whatever records now must give nothing
                self.disk.recorded.setdefault(task.name.file, {split.split_id: 0 for split in task.splits})
        self.sink.counted |= {name: self.position(name) for name in names}
        self.sink.left_out = ()

    def position(self, name: str) -> int:
        """How much of a split is read, durably."""
        at = self.sink.counted.get(name, 0)
        for task in self.sink.left_out:
            if any(split.split_id == name for split in task.splits):
                if task.name is None:
                    return len(self.shelf.lists[name])
                at += self.disk.recorded.get(task.name.file, {}).get(name, 0)
        return at

    def batch(self, killed: int) -> None:
        """A whole one."""
        self.plan(2, 1)
        for number in range(len(self.driver.tasks or ())):
            if number not in self.driver.results:
                self._run_task(number)
        self.commit(1, killed)

    # --- drivers ------------------------------------------------------------------------------------------------------
    def restart(self, parallelism: int) -> None:
        """The driver is killed, or seems to be."""
        committed = self.disk.offsets[: self.disk.committed]
        if parallelism // 4 % 3 == 0 and committed:
            self.zombie = self.driver.planner, committed[-1]
        self.driver = self._started((None, 1, 2, 5)[parallelism % 4])
        self.happened["restart"] += 1

    def zombie_driver(self) -> None:
        """A driver that was replaced plans its next batch, which is stored nowhere."""
        if self.zombie is not None:
            with suppress(HeadraceError, StoreError):
                self.zombie[0].next_offsets(self.zombie[1])
            self.happened["zombie driver"] += 1

    def available_now(self, parallelism: int) -> None:
        """A run that ends by itself, with nothing left of what its last look has found."""
        if self.shelf.trouble is not None or self.polls_fail or self.store_fails:
            return
        self.restart(parallelism)
        self.driver.planner.pin_end()
        driver, there = self.driver, {name: len(records) for name, records in self.shelf.lists.items()}
        for _ in range(CALM_BATCHES):
            before = self.disk.committed
            self.batch(3)
            if self.disk.committed == before:
                break
        else:
            raise AssertionError(f"a run has not ended after {CALM_BATCHES} batches")
        if driver is self.driver:
            self._check_read(there)
            self.happened["available now"] += 1
            self.restart(parallelism)

    def back_up(self) -> None:
        if self.newest is None:
            self.copies = [*self.copies[1 - COPIES_AT_MOST :], (self.disk.copy(), self.sink.copy())]

    def put_back(self, which: int, sink: int) -> None:
        """A copy takes the checkpoint's place. The sink is put back with it, or refuses what does not fit.

        It cannot know that from a batch that was recorded before all of its tasks had run: this is left out.
        """
        if self.copies:
            disk, old_sink = self.copies[which % len(self.copies)]
            newest = self.newest[1] if self.newest else self.sink
            is_partial = newest.is_partial and len(newest.digests) == disk.committed + 1 == len(disk.offsets)
            if sink % 2 or is_partial:
                self.copies, self.newest = [], None
                self._use(disk, old_sink)
            else:
                self.newest = self.newest or (self.disk, self.sink)
                self._use(disk.copy(), self.newest[1].copy())
            self.happened["older copy"] += 1

    def copy_of_a_batch(self, which: int, count: int, killed: int) -> None:
        """A copy is made in the middle of a batch, and takes the checkpoint's place when the sink has the batch."""
        self.plan(2, 1)
        if which % 3:
            self.run(which, 0)
        self.back_up()
        self.batch(killed)
        for number in range(len(self.shelf.lists)):
            self.grow(number, count)
        self.put_back(-1, 0)

    def _give_back(self) -> None:
        """The sink has refused the older copy: the query continues with its newest checkpoint."""
        assert self.newest is not None, "the sink has refused a batch, and its checkpoint is the newest"
        self._use(*self.newest)
        self.newest = None
        self.happened["older copy refused"] += 1

    def _use(self, disk: Disk, sink: Sink) -> None:
        self.disk, self.sink = disk, sink
        self.age += 1
        self.restart(self.age)
        self.zombie = None

    # --- the oracle ---------------------------------------------------------------------------------------------------
    def check(self) -> None:
        for name, at in self.sink.counted.items():
            assert at <= len(self.shelf.lists[name])

    def _check_read(self, ends: Mapping[str, int]) -> None:
        ends = {name: end for name, end in ends.items() if name not in self.shelf.hidden}
        unread = {name: (at, end) for name, end in ends.items() if (at := self.position(name)) < end}
        assert not unread, f"not read, by split, where it is and what there was: {unread}"

    def drain(self) -> None:
        while self.slow:
            self.lose(0)
        self._show()
        self.shelf.trouble, self.polls_fail, self.store_fails = None, 0, 0
        self.restart(1)
        idle = 0
        for _ in range(CALM_BATCHES):
            before = self.disk.committed, self.age
            self.now += 100.0
            self.batch(3)
            idle = idle + 1 if (self.disk.committed, self.age) == before else 0
            if idle > 1 + self.connect_s:
                break
        else:
            raise AssertionError(f"not everything is read after {CALM_BATCHES} batches")
        self._check_read({name: len(records) for name, records in self.shelf.lists.items()})
        over = {name for name in self.shelf.lists if self.source.finite_splits or name in self.shelf.ended} - self.deleted
        assert over <= self.finished, f"never reported as finished: {sorted(over - self.finished)}"
        if not self.source.finite_splits and (last := self.format.from_json(self.disk.offsets[-1])) is not None:
            known = {split.split_id for split in (*last.splits, *last.unread, *last.finished)}
            assert not known & self.deleted, f"{sorted(known & self.deleted)} are gone, and stay in the state"

    def _split(self, which: int) -> str | None:
        return f"s{which % len(self.shelf.lists)}" if self.shelf.lists else None


@contextmanager
def simulated() -> Iterator[None]:
    """The store is the simulation's that was made last; records are removed early; and nothing is logged."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            patch.object(offset_log, "read_file", _content),
            patch.object(offset_log, "_names", _names),
            patch.object(split_ends, "open_store", lambda *_: Folder(SplitsSimulation.latest)),
            patch.object(split_ends, "KEPT_READINGS", KEPT_READINGS),
            patch.object(split_ends, "_SWEEP_EVERY", SWEEP_EVERY),
        ):
            yield
    finally:
        logging.disable(disabled)


_TROUBLE = {
    "trouble": 2, "wait": 3, "end": 3, "hide": 2, "delete": 1, "seal": 1, "lose": 1, "restart": 2, "race": 4, "limited": 3,
    "zombie_driver": 1,
}  # fmt: skip

SPLITS = Adversary(
    "splits",
    SplitsSimulation,
    4,
    (
        {  # whole batches, and trouble between them
            "add": 4, "grow": 14, "batch": 16, "plan": 6, "run": 4, "commit": 4, "again": 1, "available_now": 1,
            "start_slowly": 2, "advance": 3, **_TROUBLE,
        },
        {  # step by step, attempts in parallel
            "add": 3, "grow": 10, "batch": 2, "plan": 16, "run": 12, "commit": 14, "again": 3, "start_slowly": 8, "advance": 16,
            **_TROUBLE,
        },
        {  # older copies of the checkpoint
            "add": 4, "grow": 12, "batch": 12, "plan": 8, "run": 5, "commit": 6, "back_up": 3, "put_back": 2,
            "copy_of_a_batch": 2, "start_slowly": 5,
            "advance": 5, **_TROUBLE,
        },
    ),
    longest=80,
    around=simulated,
)  # fmt: skip
