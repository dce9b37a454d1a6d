"""Reading a task, in a Python worker of Spark: bounded splits in, Arrow record batches out. No PySpark in here.

A reader is alive as long as its task. Spark keeps worker processes between tasks, and a source that is expensive to reach
keeps its connections with the process, not with the reader.
"""

from __future__ import annotations

import functools
import gc
import itertools
import resource
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Generic, Protocol

import pyarrow as pa

from headrace.enumerator.errors import DeadlineExceededError, UsageError
from headrace.enumerator.source import Source, SplitBatch
from headrace.enumerator.split import SplitT

SMALL_BATCH_BYTES = 1 << 18
"""Batches smaller than this are put together, as each costs Spark a round trip through Arrow and the JVM."""

LARGE_BATCH_BYTES = 4 << 20
"""Batches larger than this are cut: the JVM reads row by row, and finds all of a batch's columns in the processor's cache."""

HELD_BYTES = 64 << 20
"""Of splits that come ahead of their turn. Beyond it the splits of a task are read one after the other."""

_POLL_S = 1.0
_FREE_BYTES = 256 << 20  # of addresses: each thread takes some 70 MiB of them


class Pollable(Protocol[SplitT]):
    """What is polled for batches, as a `SourceReader` is."""

    def poll(self, timeout: float) -> SplitBatch[SplitT] | None:
        """The next batch; None where none comes within `timeout` seconds."""


class Silence(Generic[SplitT]):
    """Polls a reader, and measures for how long it has given nothing: the time in polls, each for as long as it was to wait.

    So it is no silence of the source if who takes the rows is slow, or this process was paused.
    """

    def __init__(self, reader: Pollable[SplitT], clock: Callable[[], float]) -> None:
        self._reader, self._clock = reader, clock
        self.seconds = 0.0

    def poll(self) -> SplitBatch[SplitT] | None:
        """The next batch, if it comes in a second."""
        started = self._clock()
        batch = self._reader.poll(_POLL_S)
        self.seconds = 0.0 if batch is not None else self.seconds + min(self._clock() - started, _POLL_S)
        return batch


def read_splits(
    source: Source[SplitT],
    splits: Sequence[SplitT],
    columns: Sequence[str],
    stall_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[pa.RecordBatch]:
    """Every record of these bounded splits in their order, in batches of a good size for Spark.

    Raises DeadlineExceededError when nothing at all comes for `stall_s` seconds, and what the source's reader raises.
    Closing the iterator early (LIMIT, a killed task) stops the fetching.
    """
    check_memory()
    try:
        with closing(_batches(source, splits, stall_s, clock)) as batches:
            for batch in well_sized(batches):
                yield batch if batch.schema.names == columns else batch.select(columns)
    finally:
        _spare_the_collector()


@functools.cache
def check_memory() -> None:
    """Raise UsageError where Spark leaves this process no memory for threads: Python waits for ever for one without it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(FileNotFoundError):  # of Linux
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        if limit != resource.RLIM_INFINITY and limit - used < _FREE_BYTES:
            raise UsageError(
                f"spark.executor.pyspark.memory leaves a task {limit >> 20} MiB, and what it has loaded takes {used >> 20} MiB "
                "of addresses: set it to 2g at least for each task that runs at once, or leave it out"
            )


@functools.cache
def _spare_the_collector() -> None:
    """Keep what the first task has loaded, modules above all, out of all garbage collections to come. Spark's worker collects
    after every task; going through the 65,000 objects of the modules takes it longer than a small task."""
    gc.freeze()


class InOrder:
    """Batches of some splits in the order of the splits, whichever come first.

    Spark takes the rows of a task to be the same ones in the same order each time it is computed: by that `limit`, `sample`,
    `rand(seed)` and `monotonically_increasing_id` give the same rows at each use of a frame.
    """

    def __init__(self, split_ids: Iterable[str]) -> None:
        self._held: dict[str, list[pa.RecordBatch]] = {split_id: [] for split_id in split_ids}
        self._left = deque(self._held)
        self._finished: set[str] = set()
        self.held_bytes = 0

    def add(self, split_id: str, records: pa.RecordBatch, *, finished: bool) -> list[pa.RecordBatch]:
        """What has its turn once this batch has come. `finished`: it is the split's last."""
        self._held[split_id].append(records)
        self.held_bytes += records.nbytes
        if finished:
            self._finished.add(split_id)
        given: list[pa.RecordBatch] = []
        while self._left:
            first = self._left[0]
            given += self._held[first]
            self._held[first] = []
            if first not in self._finished:
                break
            self._left.popleft()
        self.held_bytes -= sum(batch.nbytes for batch in given)
        return given


def _batches(
    source: Source[SplitT], splits: Sequence[SplitT], stall_s: float, clock: Callable[[], float]
) -> Generator[pa.RecordBatch]:
    for wave in _waves(splits):
        left = {split.split_id: split for split in wave}
        in_order, at_once = InOrder(left), len(left)
        while left:
            asked = [*left.values()][:at_once]
            with closing(_read(source, asked, stall_s, clock)) as batches:
                for batch in batches:
                    left[batch.split.split_id] = batch.split
                    if batch.finished:
                        del left[batch.split.split_id]
                    yield from in_order.add(batch.split.split_id, batch.records, finished=batch.finished)
                    if len(asked) > 1 and in_order.held_bytes > HELD_BYTES:
                        at_once = 1
                        break


def _read(
    source: Source[SplitT], splits: Sequence[SplitT], stall_s: float, clock: Callable[[], float]
) -> Generator[SplitBatch[SplitT]]:
    """All batches of these splits, as they come."""
    with source.create_reader() as reader:
        reader.add_splits(splits)
        unfinished = {split.split_id for split in splits}
        silence = Silence(reader, clock)
        while unfinished:
            batch = silence.poll()
            if batch is not None:
                if batch.finished:
                    unfinished.discard(batch.split.split_id)
                yield batch
            elif silence.seconds > stall_s:
                waiting = ", ".join(sorted(unfinished))
                raise DeadlineExceededError(f"nothing came for {stall_s:g} s while these were read: {waiting}")


def _waves(splits: Sequence[SplitT]) -> list[list[SplitT]]:
    """Pieces of one split are read one after the other; a reader knows each split once."""
    waves: list[dict[str, SplitT]] = []
    for split in splits:
        for wave in waves:
            if split.split_id not in wave:
                wave[split.split_id] = split
                break
        else:
            waves.append({split.split_id: split})
    return [list(wave.values()) for wave in waves]


def well_sized(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order: small batches put together, large ones cut, empty ones dropped."""
    small: list[pa.RecordBatch] = []
    small_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        size = batch.nbytes
        if size < SMALL_BATCH_BYTES:
            small.append(batch)
            small_bytes += size
        if size >= SMALL_BATCH_BYTES or small_bytes >= SMALL_BATCH_BYTES:
            yield from _joined(small)
            small, small_bytes = [], 0
        if size >= SMALL_BATCH_BYTES:
            yield from _cut(batch)
    yield from _joined(small)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2 or not batches[0].num_columns:  # a table of no columns has no rows either
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    pieces = min(batch.num_rows, -(-batch.nbytes // LARGE_BATCH_BYTES))
    edges = [batch.num_rows * piece // pieces for piece in range(pieces + 1)]
    for start, stop in itertools.pairwise(edges):
        yield batch.slice(start, stop - start)
