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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol

import pyarrow as pa

from headrace.enumerator.errors import DeadlineExceededError, UsageError
from headrace.enumerator.source import Source, SourceReader, SplitBatch
from headrace.enumerator.split import SplitT

SMALL_BATCH_BYTES = 1 << 18
"""Batches smaller than this are put together, as each costs Spark a round trip through Arrow and the JVM."""

LARGE_BATCH_BYTES = 4 << 20
"""Batches larger than this are cut: the JVM reads row by row, and finds all of a batch's columns in the processor's cache."""

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
    """Every record of these bounded splits, in batches of a good size for Spark. Order is kept within a split.

    Raises DeadlineExceededError when nothing at all comes for `stall_s` seconds, and what the source's reader raises.
    Closing the iterator early (LIMIT, a killed task) stops the fetching.
    """
    check_memory()
    try:
        with source.create_reader() as reader:
            for batch in well_sized(_batches(reader, splits, stall_s, clock)):
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


def _batches(
    reader: SourceReader[SplitT], splits: Sequence[SplitT], stall_s: float, clock: Callable[[], float]
) -> Iterator[pa.RecordBatch]:
    for wave in _waves(splits):
        reader.add_splits(wave)
        unfinished = {split.split_id for split in wave}
        silence = Silence(reader, clock)
        while unfinished:
            batch = silence.poll()
            if batch is not None:
                if batch.finished:
                    unfinished.discard(batch.split.split_id)
                yield batch.records
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
