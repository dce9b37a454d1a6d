"""What a streaming query's driver decides of a source whose splits Spark cannot cut. No PySpark in here.

The planner of logs, whose splits are ranges of offsets, is `stream.py`. Here a batch reads whole splits, where these have an
end (files), as many as a trigger may have; or some of every split, up to where its tasks stop (`split_tasks.py`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Generic

from headrace.enumerator.errors import StateError, UsageError, is_retriable
from headrace.enumerator.source import ALL_SPLITS, Boundedness, DiscoveryResult, IncrementalDiscovery, Source, SourceReader
from headrace.enumerator.source_driver import FailureLog
from headrace.enumerator.split import SizedSplit, SplitT
from headrace.runners.spark.planning import packed
from headrace.runners.spark.source_planner import SourcePlanner
from headrace.runners.spark.split_ends import EndsLog, TaskName
from headrace.runners.spark.split_state import ReadingFormat, SplitReading, TaskEnds, Unread, next_reading
from headrace.runners.spark.split_tasks import FIRST_WAIT_S, OpenTask, TaskLimits

log = logging.getLogger(__name__)

_PROBE_S = 1.0
_AGAIN_S = 0.2
_CANCELLED_S = 5.0
"""Longer than Spark lets the Python worker of a cancelled task live (`spark.python.task.killTimeout`)."""
_MOST_UNUSED = 20
_MOVES_S = 60.0
"""How often a batch is made of splits that come further without records."""


@dataclass(frozen=True, kw_only=True)
class SplitRead(Generic[SplitT]):
    """A source that is not a log, and how a streaming query reads it. Picklable.

    `checkpoint`: the query's, where tasks record how far they have read, if they do (`records_ends`). `most_splits` and
    `most_bytes` bound a batch of finite splits, `limits` one of others. `parallelism`: how many tasks run at once, if known.
    A task that gets nothing for `stall_s` seconds fails. `savepoint`: path or URI of a savepoint of a run with which a query
    without a checkpoint starts. `keeps_finished`: a source that follows may ask what this one has ended with.
    """

    source: Source[SplitT]
    checkpoint: str | None = None
    most_splits: int = 1000
    most_bytes: int | None = None
    limits: TaskLimits = field(default_factory=TaskLimits)
    parallelism: int | None = None
    stall_s: float = 600.0
    savepoint: str | None = None
    keeps_finished: bool = False

    @property
    def records_ends(self) -> bool:
        """Whether tasks record how far they have read: splits have no end, or are not the same when they are read again."""
        return not (self.source.finite_splits and self.source.repeatable)

    def open_task(self, task: PlannedTask[SplitT]) -> OpenTask[SplitT]:
        """A task that records how far it reads. Worker process."""
        assert task.name is not None
        ends = EndsLog(ReadingFormat(self.source), checkpoint_of(self))
        return OpenTask(self.source, task.splits, task.name, ends, self.limits.shared(task.tasks), task.wait_s, self.stall_s)


@dataclass(frozen=True, slots=True)
class PlannedTask(Generic[SplitT]):
    """A task of a batch, its splits, and how many the batch has. Picklable. `name`: of one that records where it stops.

    `wait_s`: how long such a task waits for its first records.
    """

    splits: tuple[SplitT, ...]
    tasks: int
    name: TaskName | None
    wait_s: float


class SplitPlanner(SourcePlanner[SplitT]):
    """Plans the batches of one run of a query over any source but a log.

    Readings go in and out as JSON text. Only the first reading of a query, planned for the first time, ever initialises.
    """

    def __init__(
        self, read: SplitRead[SplitT], clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(read.source, read.savepoint)
        self._clock, self._sleep, self._looked_at, self._moved_at = clock, sleep, -math.inf, -math.inf
        self._unused_batches = 0
        self._read, self._format = read, ReadingFormat(read.source)
        self._ends = EndsLog(self._format, checkpoint_of(read)) if read.records_ends else None
        self._missing: frozenset[str] = frozenset()
        self._read_outages, self._report_outages = FailureLog(), FailureLog()
        self._wait_s = min(FIRST_WAIT_S, read.limits.seconds)
        self._probed: str | None = None
        self._has_selected = False
        self._prepared: str | None = None
        self._published: str | None = None
        self._last_closed: tuple[str, Sequence[TaskEnds[SplitT]]] | None = None
        self._probe: tuple[tuple[SplitT, ...], SourceReader[SplitT]] | None = None
        self._is_pinned = False

    def take_all(self) -> None:
        """A batch of finite splits has all that there are: the query is triggered once."""
        self._read = replace(self._read, most_splits=ALL_SPLITS, most_bytes=None)

    def initial_offsets(self) -> str:
        """The mark of a query without a checkpoint; the same text however often Spark asks. Does no I/O."""
        return self._format.initial_mark()

    def next_offsets(self, start: str) -> str:
        """What the batch that starts at `start` reads: `start` itself when there is nothing to be read now.

        Raises what the source raises of missing splits, what the initial discovery raises, and StateError for an offset or a
        record that cannot be read.
        """
        before = self._format.from_json(start)
        over = Unread() if before is None else self._selected(self._over(before))
        if before is not None:
            self._pass_savepoint_over()
            if not self._publish(before, over):
                return start
        try:
            backlog = self._first_look() if before is None else self._look(over)
        except Exception as error:
            if before is None or not is_retriable(error):
                raise
            self._ride_out(error, self._outages)
            backlog = over
        else:
            if self._outages.worked():
                log.warning("the source answers again")
        tasks = self._tasks(backlog)
        has_found = not self._source.finite_splits and backlog.known().keys() != over.known().keys()
        has_ended = self._read.keeps_finished and backlog.exhausted and not over.exhausted
        must_store = before is None or has_found or has_ended
        needs_probe = not (must_store or self._source.finite_splits or backlog.is_limited)
        if not needs_probe:
            self._end_probe()
        if not (self._finds_records(tasks) if needs_probe else must_store or tasks):
            return start
        self._learn_to_wait(before, over)
        self._count_unused(over)
        reading = next_reading(before, backlog, tasks)
        self._probed = reading.reading if needs_probe else None
        return self._format.to_json(reading if self._ends is None else self._opened(self._ends, reading))

    def tasks(self, end: str) -> list[PlannedTask[SplitT]]:
        """The tasks of the batch that ends there, also when it is run again."""
        reading = self._format.from_json(end)
        if reading is None:
            return []
        is_recorded = self._ends_of(reading) is not None
        names = [TaskName.of(reading, number) if is_recorded else None for number in range(len(reading.tasks))]
        return [PlannedTask(splits, len(names), name, self._wait_s) for splits, name in zip(reading.tasks, names, strict=True)]

    def ended(self, start: str) -> Unread[SplitT] | None:
        """What the source has ended with, where nothing is left to read behind `start`, nor to report; None otherwise."""
        before = self._format.from_json(start)
        if before is None or before.reading != self._published:
            return None
        over = self._over(before)
        return over if over.exhausted and not over.unread and not over.more else None

    def committed(self, end: str) -> None:
        """The batch is in Spark's commit log: its positions may be published, and what it has finished is done with."""
        reading = self._format.from_json(end)
        if reading is None:
            return
        self._publish(reading, self._over(reading))

    def close(self) -> None:
        self._end_probe()
        super().close()

    def _publish(self, reading: SplitReading[SplitT], over: Unread[SplitT]) -> bool:
        """The reading is durable. Once in a process, so again after a restart.

        False while the source cannot be notified of what is finished: nothing more is planned until then, or a restart would
        know of the last reading only.
        """
        if self._published == reading.reading:
            return True
        ends = self._ends_of(reading)
        if ends is None:
            finished: Sequence[SplitT] = reading.splits
        else:
            recorded = self._closed(ends, reading)
            finished = [end.split for task in recorded for end in task.ends.values() if end.finished]
            if over.unread:
                self._publisher.publish(over.unread)
        try:
            if finished:
                self._source.splits_finished(finished)
        except Exception as error:
            if not is_retriable(error):
                raise
            self._ride_out(error, self._report_outages)
            return False
        if self._report_outages.worked():
            log.warning("finished splits are reported to the source again")
        if ends is not None and not self._source.repeats(reading.splits):
            ends.remove_rows(reading)
        self._published = reading.reading
        return True

    def _over(self, reading: SplitReading[SplitT]) -> Unread[SplitT]:
        """What is left when the reading is over, as it is: Spark asks for the next one only then."""
        exhausted = reading.exhausted and self._source.boundedness is Boundedness.BOUNDED
        has_cursor = isinstance(self._discovery, IncrementalDiscovery)
        if reading.exhausted and not exhausted and not has_cursor:
            raise StateError(
                f"the checkpoint is of a bounded source, of which all splits are found, and {self._source.name!r} is unbounded "
                "now: it cannot continue behind their end. Start with a new checkpoint"
            )
        backlog = Unread(reading.unread, reading.finished, reading.cursor, reading.more, exhausted)
        records = self._ends_of(reading)
        if records is None:
            return replace(backlog, finished=self._remembered(reading, reading.splits))
        recorded = self._closed(records, reading)
        ends = [end for task in recorded for end in task.ends.values()]
        starts = {split.split_id: split for split in reading.splits}
        return replace(
            backlog,
            unread=(*(end.split for end in ends if not end.finished), *reading.unread),
            finished=self._remembered(reading, [end.split for end in ends if end.finished]),
            is_limited=any(task.is_limited for task in recorded),
            read_nothing=not any(end.rows or end.split != starts.get(end.split.split_id) for end in ends),
            is_unused=bool(recorded) and not any(task.is_read for task in recorded),
        )

    def _selected(self, over: Unread[SplitT]) -> Unread[SplitT]:
        """Without the splits that the source selects no more, as its subscription was changed. They are reported once."""
        left_out = [split for split in over.unread if not self._source.selects(split)]
        if left_out and not self._has_selected:
            self._source.on_splits_missing(left_out)
        self._has_selected = True
        return replace(over, unread=tuple(split for split in over.unread if split not in left_out)) if left_out else over

    def _learn_to_wait(self, before: SplitReading[SplitT] | None, over: Unread[SplitT]) -> None:
        """A batch that read nothing although a probe had found records has waited too short: a reader may take long to
        connect, or a server to come to its first record. The batch's limit does not bound that: it would never be read.
        """
        if before is not None and before.reading == self._probed and over.read_nothing:
            self._wait_s = min(max(self._wait_s * 2, FIRST_WAIT_S), max(self._read.limits.seconds, self._read.stall_s))

    def _count_unused(self, over: Unread[SplitT]) -> None:
        """A batch whose tasks are not computed is planned again, with the same rows. Raises UsageError under AvailableNow."""
        self._unused_batches = self._unused_batches + 1 if over.is_unused else 0
        if self._unused_batches == _MOST_UNUSED:
            said = (
                f"no task of the last {_MOST_UNUSED} batches was computed: rows that foreachBatch does not use, or "
                "whose plan Spark has found to be empty, are not skipped, and come again. Use the frame, or stop the query"
            )
            if self._pins_end:
                raise UsageError(f"{said}. AvailableNow would never end")
            log.warning("%s", said)

    def _closed(self, ends: EndsLog[SplitT], reading: SplitReading[SplitT]) -> Sequence[TaskEnds[SplitT]]:
        if self._last_closed is None or self._last_closed[0] != reading.reading:
            self._last_closed = reading.reading, ends.closed(reading)
        return self._last_closed[1]

    def _ends_of(self, reading: SplitReading[SplitT]) -> EndsLog[SplitT] | None:
        """Where its tasks record their ends, also if the splits have become finite and repeatable since it was planned."""
        is_changed = reading.marked and self._ends is None
        return EndsLog(self._format, checkpoint_of(self._read)) if is_changed else self._ends

    def _remembered(self, reading: SplitReading[SplitT], finished: Sequence[SplitT]) -> tuple[SplitT, ...]:
        """Finished splits are remembered only for a discovery that would find them again, and where a source may follow."""
        is_over = reading.exhausted and not self._read.keeps_finished
        return () if is_over or isinstance(self._discovery, IncrementalDiscovery) else (*reading.finished, *finished)

    def _first_look(self) -> Unread[SplitT]:
        discovery = self._starting()
        if isinstance(discovery, IncrementalDiscovery):
            found = discovery.after(None, self._read.most_splits)
        else:
            found = discovery.initial()
        self._looked_at = self._clock()
        self._is_pinned = self._pins_end and not found.more
        return self._with(Unread(), found)

    def _look(self, backlog: Unread[SplitT]) -> Unread[SplitT]:
        """The backlog with what is new. Where there is enough for a batch already, there is no need to look."""
        if backlog.exhausted and backlog.cursor is not None and self._looked_at == -math.inf:  # once, by a query that continues
            self._source.on_positions_final(backlog.cursor, ())
            self._looked_at = self._clock()
        if backlog.exhausted or self._is_pinned or not (backlog.more or self._is_due()):
            return backlog
        if isinstance(self._discovery, IncrementalDiscovery):
            if self._source.finite_splits and len(backlog.unread) >= self._read.most_splits:
                return backlog
            found = self._noted(self._discovery.after(backlog.cursor, self._read.most_splits))
        else:
            backlog, found = self._later(backlog)
        self._looked_at = self._clock()
        self._is_pinned = self._pins_end and not found.more
        return self._with(backlog, found)

    def _with(self, backlog: Unread[SplitT], found: DiscoveryResult[SplitT]) -> Unread[SplitT]:
        known = backlog.known()
        added = {split.split_id: split for split in found.added if split.split_id not in known}
        cursor = backlog.cursor if found.cursor is None else found.cursor
        exhausted = found.complete and self._source.boundedness is Boundedness.BOUNDED
        return replace(backlog, unread=(*backlog.unread, *added.values()), cursor=cursor, more=found.more, exhausted=exhausted)

    def _is_due(self) -> bool:
        """As often as the source says; without an interval once in a run."""
        interval_s = math.inf if self._source.discovery_interval_s is None else self._source.discovery_interval_s
        return self._looked_at == -math.inf or self._clock() - self._looked_at >= interval_s

    def _later(self, backlog: Unread[SplitT]) -> tuple[Unread[SplitT], DiscoveryResult[SplitT]]:
        """What is found, and the backlog without what has vanished and, by proof, cannot come back."""
        known = backlog.known()
        found = self._find_later(known)
        unread = {split.split_id for split in backlog.unread}
        lost = [known[split_id] for split_id in sorted((found.missing & unread) - self._missing)]
        if lost:
            self._source.on_splits_missing(lost)
        self._missing = found.missing & unread
        vanished = [split for split_id, split in known.items() if split_id in found.missing]
        gone = self._source.confirm_deleted(vanished) if vanished else frozenset()
        if gone:
            backlog = replace(backlog, unread=_without(gone, backlog.unread), finished=_without(gone, backlog.finished))
        return backlog, found

    def _tasks(self, backlog: Unread[SplitT]) -> list[list[SplitT]]:
        present = [split for split in backlog.unread if split.split_id not in self._missing]
        if self._source.finite_splits:
            return packed(list(self._admitted(present)), self._read.parallelism)
        count = min(len(present), self._read.parallelism or len(present))
        return [present[number::count] for number in range(count)]

    def _admitted(self, waiting: Sequence[SplitT]) -> list[SplitT]:
        """The first of them that a batch may have, and one at least."""
        admitted: list[SplitT] = []
        size = 0
        for split in islice(waiting, self._read.most_splits):
            size += _size(split)
            if admitted and self._read.most_bytes is not None and size > self._read.most_bytes:
                break
            admitted.append(split)
        return admitted

    def _finds_records(self, tasks: Sequence[Sequence[SplitT]]) -> bool:
        """Whether a reader gets something of these splits: of those without an end nothing else states that there is more.

        AvailableNow has no later look, so it tries for some time: a cancelled task may still hold what it has read from.
        """
        splits = tuple(split for task in tasks for split in task)
        is_kept = self._probe is not None and self._probe[0] == splits
        until = self._clock() + (_CANCELLED_S if self._pins_end else 0.0)
        while True:
            try:
                if not (splits and self._gives_something(splits, self._prober(splits))):
                    return False
                break
            except Exception as error:
                self._end_probe()
                if not is_retriable(error):
                    raise
                if is_kept:  # a server may end a connection that is idle from one trigger to the next
                    is_kept = False
                    continue
                if self._clock() >= until:
                    self._ride_out(error, self._read_outages)
                    return False
                if self._read_outages.failed():
                    log.warning("the source cannot be read, and is tried again for %g s: %s", _CANCELLED_S, error)
                self._sleep(_AGAIN_S)
        if self._read_outages.worked():
            log.warning("the source is read again")
        self._end_probe()
        return True

    def _prober(self, splits: tuple[SplitT, ...]) -> SourceReader[SplitT]:
        """The reader that is kept while there is nothing, of these splits."""
        if self._probe is None or self._probe[0] != splits:
            self._end_probe()
            reader = self._source.create_reader()
            self._probe = splits, reader
            reader.add_splits(splits)
        return self._probe[1]

    def _gives_something(self, splits: Sequence[SplitT], reader: SourceReader[SplitT]) -> bool:
        """Whether records come in time; AvailableNow waits longer for a reader that is behind. That a split has come further
        without records is from time to time worth a batch of its own.
        """
        limit_s = self._read.limits.seconds if self._pins_end else _PROBE_S
        started = self._clock()
        until = started + limit_s
        while (batch := reader.poll(max(0.0, until - self._clock()))) is not None:
            now = self._clock()
            if batch.records.num_rows or batch.finished:
                return True
            if batch.split not in splits and now - self._moved_at >= _MOVES_S:
                self._moved_at = now
                return True
            if batch.is_behind and self._pins_end and now - started < self._read.stall_s:
                until = now + limit_s
            elif now >= until:
                break
        return False

    def _end_probe(self) -> None:
        if self._probe is not None:
            with closing(self._probe[1]):
                self._probe = None

    def _opened(self, ends: EndsLog[SplitT], reading: SplitReading[SplitT]) -> SplitReading[SplitT]:
        if self._prepared != reading.chain:
            ends.prepare(reading.chain)
            self._prepared = reading.chain
        ends.remove_old(reading)
        return ends.open(reading)


def _size(split: SplitT) -> int:
    return split.size_bytes if isinstance(split, SizedSplit) else 0


def _without(gone: frozenset[str], splits: Sequence[SplitT]) -> tuple[SplitT, ...]:
    return tuple(split for split in splits if split.split_id not in gone)


def checkpoint_of(read: SplitRead[SplitT]) -> str:
    if read.checkpoint is None:
        raise UsageError(
            f"tasks that read source {read.source.name!r} record in the query's checkpoint how far they have read: give "
            "checkpointLocation to read_stream, the same as to writeStream"
        )
    return read.checkpoint
