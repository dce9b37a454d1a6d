"""Reading a task of splits that have no known end, in a Python worker of Spark. No PySpark in here.

The first attempt of a task reads until a limit is reached or nothing more comes, keeps what it has read, and records where it
stopped. Its rows are given to Spark only then. Every other attempt reads exactly as many records, so it does not matter which
attempt's rows count, nor how often the batch is computed. A task without a record has given no row to anything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Generic

import pyarrow as pa

from headrace.enumerator.errors import DataLossError, DeadlineExceededError, StateError, is_retriable
from headrace.enumerator.source import Source, SourceReader, SplitBatch
from headrace.enumerator.source_driver import FailureLog
from headrace.enumerator.split import SplitT
from headrace.runners.spark.split_ends import EndsLog, TaskName
from headrace.runners.spark.split_state import SplitEnd, TaskEnds
from headrace.runners.spark.tasks import InOrder, Silence

log = logging.getLogger(__name__)

IDLE_S = 0.2
"""A task ends when nothing has come for so long, once something has."""
FIRST_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Where a task stops: at the first of these, after a whole batch of the reader's. It may go beyond by that batch."""

    records: int = 1_000_000
    size_bytes: int = 256 << 20
    seconds: float = 10.0

    def shared(self, tasks: int) -> TaskLimits:
        """The limits of each task, where these are for all of them together."""
        return TaskLimits(-(-self.records // tasks), -(-self.size_bytes // tasks), self.seconds)


@dataclass(frozen=True)
class OpenTask(Generic[SplitT]):
    """A task of a reading. Picklable."""

    source: Source[SplitT]
    splits: Sequence[SplitT]
    name: TaskName
    log: EndsLog[SplitT]
    limits: TaskLimits
    wait_s: float
    stall_s: float

    def read(self, clock: Callable[[], float] = time.monotonic) -> Iterator[pa.RecordBatch]:
        """The records of this task: the same ones in each attempt.

        Raises DataLossError where a replay finds fewer records than were there, DeadlineExceededError where they do not come,
        and what the reader raises.
        """
        recorded = self.log.find(self.name)
        if recorded is None:
            batches, ends = self._read_on(clock)
            if not self.source.repeats(self.splits):
                ends = replace(ends, kept=self.log.keep(self.name, batches))
            if self.log.record(self.name, ends):
                yield from batches
                return
            del batches
            if ends.kept is not None:
                self.log.remove_kept(ends.kept)
            recorded = self.log.find(self.name)
            if recorded is None:
                raise StateError(f"{self.name.file} is gone: this attempt is of a batch that ended long ago")
        yield from self._replay(recorded, clock) if recorded.kept is None else self.log.kept(recorded.kept)

    def _read_on(self, clock: Callable[[], float]) -> tuple[list[pa.RecordBatch], TaskEnds[SplitT]]:
        batches: dict[str, list[pa.RecordBatch]] = {split.split_id: [] for split in self.splits}
        ends = {split.split_id: SplitEnd(split, 0, finished=False) for split in self.splits}
        records = size = 0
        started, is_limited = clock(), False
        until, quiet_until = started + max(self.limits.seconds, self.wait_s), started + self.wait_s
        with closing(ResumedReader(self.source.create_reader, self.splits, clock)) as reader:
            while not all(end.finished for end in ends.values()):
                is_limited = records >= self.limits.records or size >= self.limits.size_bytes or clock() >= until
                batch = None if is_limited else reader.poll(max(0.0, quiet_until - clock()))
                if batch is None and (is_limited or not self.source.finite_splits):
                    break
                if batch is None:  # the source does not answer, and what it has is certain to come
                    quiet_until = clock() + self.wait_s
                    continue
                before = ends[batch.split.split_id]
                ends[batch.split.split_id] = SplitEnd(batch.split, before.rows + batch.records.num_rows, batch.finished)
                if batch.records.num_rows:
                    batches[batch.split.split_id].append(batch.records)
                    records, size = records + batch.records.num_rows, size + batch.records.nbytes
                    quiet_until = clock() + IDLE_S
                elif batch.is_behind and clock() - started < self.stall_s:
                    quiet_until = clock() + (IDLE_S if records else self.wait_s)
                    if not records:
                        until = max(until, quiet_until)
                elif clock() >= quiet_until and not self.source.finite_splits:
                    break  # others' records only
        return [*chain.from_iterable(batches.values())], TaskEnds(ends, is_limited and records > 0)

    def _replay(self, recorded: TaskEnds[SplitT], clock: Callable[[], float]) -> Iterator[pa.RecordBatch]:
        left = {split_id: end.rows for split_id, end in recorded.ends.items() if end.rows}
        if not left:
            return
        replayed = [split for split in self.splits if split.split_id in left]
        in_order = InOrder(split.split_id for split in replayed)
        with closing(ResumedReader(self.source.create_replay_reader, replayed, clock)) as reader:
            silence = Silence(reader, clock)
            while left:
                batch = silence.poll()
                if batch is not None:
                    for records in _up_to(batch, left):
                        split_id = batch.split.split_id
                        yield from in_order.add(split_id, records, finished=split_id not in left)
                elif silence.seconds > self.stall_s:
                    raise DeadlineExceededError(
                        f"nothing came for {self.stall_s:g} s while these were read: {_named(left)}"
                    ) from reader.failure


class ResumedReader(Generic[SplitT]):
    """A reader that is made again, where it was, when its source does not answer."""

    def __init__(
        self, create: Callable[[], SourceReader[SplitT]], splits: Sequence[SplitT], clock: Callable[[], float]
    ) -> None:
        self._create, self._clock = create, clock
        self._left = {split.split_id: split for split in splits}
        self._reader: SourceReader[SplitT] | None = None
        self._outages = FailureLog()
        self.failure: Exception | None = None
        """Why the source did not answer last, until it does."""

    def poll(self, timeout: float) -> SplitBatch[SplitT] | None:
        """The next batch. None where none comes in time, or the source cannot be read now, after waiting as long.

        Raises what no other try can mend.
        """
        until = self._clock() + timeout
        try:
            if self._reader is None:
                self._reader = self._create()
                self._reader.add_splits([*self._left.values()])
            batch = self._reader.poll(timeout)
        except Exception as error:
            if not is_retriable(error):
                raise
            self._fail(error)
            time.sleep(max(0.0, min(timeout, until - self._clock())))
            return None
        if self._outages.worked():
            log.warning("the source is read again")
        self.failure = None
        if batch is not None:
            self._left[batch.split.split_id] = batch.split
            if batch.finished:
                del self._left[batch.split.split_id]
        return batch

    def close(self) -> None:
        """Close the reader, if there is one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _fail(self, error: Exception) -> None:
        self.failure = error
        if self._outages.failed():
            log.warning("the source cannot be read now, and is tried again: %s", error)
        with suppress(Exception):
            self.close()


def _up_to(batch: SplitBatch[SplitT], left: dict[str, int]) -> Iterator[pa.RecordBatch]:
    """Of a batch what an earlier attempt has read, too. Takes it off `left`."""
    split_id, rows = batch.split.split_id, batch.records.num_rows
    wanted = min(rows, left.get(split_id, 0))
    if wanted:
        left[split_id] -= wanted
        if not left[split_id]:
            del left[split_id]
        yield batch.records.slice(0, wanted)
    if batch.finished and split_id in left:
        raise DataLossError(
            f"split {split_id} ends {left[split_id]} records before where an earlier attempt of this task has read. They are "
            "gone, or the split does not give the same records again"
        )


def _named(left: dict[str, int]) -> str:
    return ", ".join(f"{split_id} ({rows} records missing)" for split_id, rows in sorted(left.items()))
