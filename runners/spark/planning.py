"""Which offsets an engine that plans tasks by itself reads next, and in which tasks. Pure arithmetic over offset ranges.

The rules and names are those of Spark's Kafka source (KafkaMicroBatchStream.rateLimit, KafkaOffsetRangeCalculator), with
one addition: ranges too small to be worth a task share one, as long as that leaves no core without work. What is done with a
record may take far longer than to read it, and how large it is no one knows before it is fetched; so where the number of cores
is not known either, only what is nearly nothing shares a task.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from headrace.enumerator.split import SizedSplit, SplitT

TASK_RECORDS = 65_536  # ranges are packed into one task up to this many records at most
TASK_BYTES = 128 << 20
"""Finite splits are packed into one task up to this size (spark.sql.files.maxPartitionBytes)."""
OPENING_BYTES = 4 << 20
"""What to open a split costs, as if it were larger by that (spark.sql.files.openCostInBytes)."""
LEAST_TASK_RECORDS = 256
"""Ranges may always be packed into one task up to this many records: a task costs more than what it saves on them."""

PARALLELISM_VARIABLE = "HEADRACE_PARALLELISM"
"""Environment variable: the tasks that the session runs at once. Set by `session_builder` where it can be known."""


def told_parallelism() -> int | None:
    """The tasks that the session runs at once, as set for this process; None if it was not set. Reads the environment."""
    text = os.environ.get(PARALLELISM_VARIABLE, "")
    return int(text) if text.isascii() and text.isdigit() and int(text) else None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `start` up to, not including, `stop` of one split."""

    split_id: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of offsets; of records at most (compaction and transactions leave gaps)."""
        return self.stop - self.start


def admit(starts: Mapping[str, int], ends: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """The ends to read to now: all that is there, or about `limit` offsets, shared out in proportion to each split's backlog.

    A split with little backlog gets at least one offset, so none starves. `starts` and `ends` have the same keys.
    An end behind its start counts as no backlog; whether that is data loss is the connector's to say.
    """
    backlog = {split_id: max(0, ends[split_id] - start) for split_id, start in starts.items()}
    total = sum(backlog.values())
    if limit is None or total <= limit:
        return {split_id: start + backlog[split_id] for split_id, start in starts.items()}
    return {split_id: start + _share(backlog[split_id], total, limit) for split_id, start in starts.items()}


def _share(size: int, total: int, limit: int) -> int:
    share = limit * size / total
    return min(size, math.ceil(share) if share < 1 else math.floor(share))


def plan_tasks(
    ranges: Sequence[OffsetRange],
    *,
    min_tasks: int | None = None,
    max_task_records: int | None = None,
    parallelism: int | None = None,
) -> list[list[OffsetRange]]:
    """Tasks for these ranges: empty ranges dropped, large ones split, small ones packed together.

    `max_task_records` (Spark's maxRecordsPerPartition) bounds a task. `min_tasks` (Spark's minPartitions) splits the largest
    ranges until there are about that many tasks, and then nothing is packed. `parallelism`: tasks that run at once, if known;
    ranges are packed evenly over this many. Order within a split is kept inside a task.
    """
    filled = [item for item in ranges if item.size > 0]
    pieces = [piece for item in filled for piece in _cut(item, math.ceil(item.size / (max_task_records or item.size)))]
    if min_tasks is not None:
        return [[piece] for piece in _split_to_count(pieces, min_tasks)]
    total = sum(piece.size for piece in pieces)
    most = min(LEAST_TASK_RECORDS if parallelism is None else TASK_RECORDS, max_task_records or TASK_RECORDS)
    share = max(LEAST_TASK_RECORDS, 0 if parallelism is None else math.ceil(total / parallelism))
    count = min(len(pieces), math.ceil(total / min(share, most)))  # of records there may be any number, in one range
    return _pack(pieces, count, most)


def _split_to_count(pieces: list[OffsetRange], count: int) -> list[OffsetRange]:
    if len(pieces) >= count:
        return pieces
    total = sum(piece.size for piece in pieces)
    return [part for piece in pieces for part in _cut(piece, min(piece.size, max(1, round(piece.size / total * count))))]


def _cut(item: OffsetRange, parts: int) -> list[OffsetRange]:
    edges = [item.start + item.size * part // parts for part in range(parts + 1)]
    return [replace(item, start=start, stop=stop) for start, stop in pairwise(edges)]


def _pack(pieces: list[OffsetRange], count: int, most: int) -> list[list[OffsetRange]]:
    """About this many tasks, as even as may be: the largest first, each into the task that has least (LPT scheduling).

    One task more than there are cores would keep most of them waiting for it. A piece of a large range takes half of a task
    or more, so in the order of their largest pieces the tasks have every range in its order.
    """
    tasks: list[list[OffsetRange]] = [[] for _ in range(count)]
    loads = [(0, place) for place in range(count)]
    for piece in sorted(pieces, key=lambda piece: (-piece.size, piece.split_id, piece.start)):
        load, place = loads[0]
        if load and load + piece.size > most:
            heapq.heappush(loads, (piece.size, len(tasks)))
            tasks.append([piece])
        else:
            heapq.heapreplace(loads, (load + piece.size, place))
            tasks[place].append(piece)
    return sorted((sorted(task, key=_place) for task in tasks if task), key=lambda task: _place(max(task, key=_size)))


def _place(piece: OffsetRange) -> tuple[str, int]:
    return piece.split_id, piece.start


def _size(piece: OffsetRange) -> int:
    return piece.size


def packed(splits: Sequence[SplitT], parallelism: int | None) -> list[list[SplitT]]:
    """Whole splits as tasks, in their order: each up to `TASK_BYTES`, and at least one for each core."""
    if not splits:
        return []
    share = TASK_BYTES if parallelism is None else sum(map(_cost, splits)) // parallelism
    headroom = min(TASK_BYTES, max(OPENING_BYTES, share))
    tasks: list[list[SplitT]] = [[]]
    size = 0
    for split in splits:
        if tasks[-1] and size + _cost(split) > headroom:
            tasks.append([])
            size = 0
        tasks[-1].append(split)
        size += _cost(split)
    return tasks


def _cost(split: SplitT) -> int:
    """One whose size is not known is not put together with others."""
    return OPENING_BYTES + split.size_bytes if isinstance(split, SizedSplit) else TASK_BYTES
