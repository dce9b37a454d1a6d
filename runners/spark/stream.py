"""What a streaming query's driver decides: where it starts, how far it reads now, in which tasks. No PySpark in here.

Spark's own protocol has two gaps, and this is where they are closed:

- Spark asks for initial offsets twice in batch 0, and again when batch 0 is replayed; it stores none of them. So the end
  of every batch carries where each split began, and a replay is planned from that, never from a new answer (I2).
- Initial offsets are marked, so they differ from every end. Spark therefore runs batch 0 at once, data or not, and where
  the query started is durable before anything else happens (azure-event-hubs-spark #532).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from headrace.enumerator.errors import DeadlineExceededError, StateError, is_retriable
from headrace.enumerator.split import OffsetSplitT
from headrace.runners.spark.log_read import LogOffsets, LogRead
from headrace.runners.spark.planning import OffsetRange, admit

log = logging.getLogger(__name__)

_PARSED_KEPT = 8


@dataclass(frozen=True, slots=True)
class Backlog(Generic[OffsetSplitT]):
    """What one look at the source found: every split that is there, at its position, and where each ends now."""

    splits: Mapping[str, OffsetSplitT]
    ends: Mapping[str, int]

    @property
    def size(self) -> int:
        """Offsets not read yet."""
        return sum(max(0, self.ends[split_id] - split.next_offset) for split_id, split in self.splits.items())


class StreamPlanner(Generic[OffsetSplitT]):
    """Plans the batches of one run of a query. Lives in the driver's Python process; called by one thread, as Spark does.

    Offsets go in and out as JSON text. Only `initial_offsets` ever initialises.
    """

    def __init__(self, read: LogRead[OffsetSplitT], clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds. Contacts nobody."""
        self._read = read
        self._source = read.source
        self._format = read.offsets
        self._clock = clock
        self._discovery = read.source.create_discovery()
        self._initial: str | None = None
        self._parsed: OrderedDict[str, LogOffsets[OffsetSplitT]] = OrderedDict()
        self._missing: frozenset[str] = frozenset()
        self._published: dict[str, int] = {}
        self._last_batch_at: float | None = None
        self._pins_end = False
        self._pinned: Mapping[str, int] | None = None
        self._seen: Backlog[OffsetSplitT] | None = None

    def initial_offsets(self) -> str:
        """Where a query without a checkpoint starts; the same answer however often Spark asks.

        Raises what discovery raises, and StateError when a predecessor's offsets cannot be read.
        """
        if self._initial is None:
            splits = self._initial_splits()
            began = {split_id: split.next_offset for split_id, split in splits.items()}
            self._initial = self._format.to_json(LogOffsets(splits, began, initial=True))
        return self._initial

    def next_offsets(self, start: str, max_offsets: int | None, min_offsets: int | None) -> str:
        """Where the batch that starts at `start` ends: `start` itself when nothing is to be read now.

        Also publishes `start`, whose batch Spark has committed by now. Raises DataLossError as the source sees fit.
        """
        offsets = self._parse(start)
        self._seen = backlog = self._look(offsets)
        self._publish(offsets)
        if self._waits_for_more(backlog, offsets, min_offsets):
            return start
        starts = {split_id: split.next_offset for split_id, split in backlog.splits.items()}
        ends = admit(starts, backlog.ends, max_offsets)
        found = backlog.splits.keys() - offsets.splits.keys()
        if ends == starts and not found and not offsets.initial:
            return start
        known = {**offsets.splits, **backlog.splits}
        began = {**{split_id: split.next_offset for split_id, split in known.items()}, **offsets.began}
        moved = {split_id: split.between(ends.get(split_id, split.next_offset), None) for split_id, split in known.items()}
        return self._format.to_json(LogOffsets(moved, began))

    def tasks(self, start: str, end: str) -> list[tuple[OffsetSplitT, ...]]:
        """The tasks of the batch between two offsets, each a list of bounded splits; a replay gives the same ranges.

        Raises StateError when another connector's first batch is replayed and nobody says where that one started.
        """
        first, last = self._parse(start), self._parse(end)
        gone = [split for split_id, split in first.splits.items() if split_id not in last.splits]
        if gone and not first.initial:
            self._source.splits_missing(gone)
        begins = self._begins(first, last)
        ranges = [OffsetRange(split_id, begins[split_id], split.next_offset) for split_id, split in last.splits.items()]
        return [
            tuple(last.splits[item.split_id].between(item.start, item.stop) for item in task)
            for task in self._read.tasks_of(ranges)
        ]

    def committed(self, end: str) -> None:
        """Spark has committed the batch that ends here."""
        self._publish(self._parse(end))

    def pin_end(self) -> None:
        """AvailableNow: what the next look finds is all that this run reads; what comes later waits for the next run."""
        self._pins_end = True

    def latest_seen(self) -> str | None:
        """The ends that the last look found, for progress reports; None before the first look."""
        return None if self._seen is None else self._format.ends_to_json(self._seen.ends, self._seen.splits)

    def close(self) -> None:
        """Release connections. Nothing depends on its being called."""
        self._discovery.close()

    def _initial_splits(self) -> Mapping[str, OffsetSplitT]:
        if self._read.predecessor is not None:
            return self._format.from_json(self._read.predecessor.initial_offsets()).splits
        return {split.split_id: split for split in self._discovery.initial().added}

    def _parse(self, text: str) -> LogOffsets[OffsetSplitT]:
        if text not in self._parsed:
            self._parsed[text] = self._format.from_json(text)
            if len(self._parsed) > _PARSED_KEPT:
                self._parsed.popitem(last=False)
        return self._parsed[text]

    def _look(self, offsets: LogOffsets[OffsetSplitT]) -> Backlog[OffsetSplitT]:
        if self._pinned is not None:
            splits = {split_id: split for split_id, split in offsets.splits.items() if split_id in self._pinned}
            ends = {split_id: max(self._pinned[split_id], split.next_offset) for split_id, split in splits.items()}
            return Backlog(splits, ends)
        splits = self._present(offsets)
        ends = dict(self._source.end_offsets(list(splits.values())))
        if self._pins_end:
            self._pinned = ends
        return Backlog(splits, ends)

    def _present(self, offsets: LogOffsets[OffsetSplitT]) -> dict[str, OffsetSplitT]:
        """Known and new splits without those that are gone. These stay in the offsets, where they were (FLINK-39837)."""
        watched = {split_id: split for split_id, split in offsets.splits.items() if split_id not in self._missing}
        findings = self._discovery.later(watched)
        added = {split.split_id: split for split in findings.added}
        lost = [split for split_id, split in watched.items() if split_id in findings.missing]
        if lost:
            self._source.splits_missing(lost)
        self._missing = (self._missing | findings.missing) - added.keys()
        present = {split_id: split for split_id, split in offsets.splits.items() if split_id not in self._missing}
        return {**added, **present}

    def _waits_for_more(
        self, backlog: Backlog[OffsetSplitT], offsets: LogOffsets[OffsetSplitT], min_offsets: int | None
    ) -> bool:
        now = self._clock()
        overdue = self._last_batch_at is None or now - self._last_batch_at >= self._read.limits.max_delay_s
        found = backlog.splits.keys() - offsets.splits.keys()  # where these begin must become durable: no waiting
        if min_offsets is None or self._pins_end or overdue or found or backlog.size >= min_offsets:
            self._last_batch_at = now
            return False
        return True

    def _begins(self, first: LogOffsets[OffsetSplitT], last: LogOffsets[OffsetSplitT]) -> Mapping[str, int]:
        if first.initial and last.began.keys() >= last.splits.keys():
            return last.began
        if first.initial and self._read.predecessor is None:
            raise StateError(
                "this checkpoint's batch 0 was planned by another connector and never committed; where it started is not among "
                "what Spark hands over. Name the checkpoint directory with the option jvmCheckpoint, so that it is read there"
            )
        known = {split_id: split.next_offset for split_id, split in first.splits.items()}
        begins = {**last.began, **known}
        unknown = [split for split_id, split in last.splits.items() if split_id not in begins]
        return {**self._found_later(unknown, first), **begins}

    def _found_later(self, splits: Sequence[OffsetSplitT], first: LogOffsets[OffsetSplitT]) -> dict[str, int]:
        """Begins of splits that another connector found in the batch that is replayed, and whose begin it did not store."""
        if not splits:
            return {}
        added = {split.split_id: split.next_offset for split in self._discovery.later(first.splits).added}
        return {split.split_id: min(added.get(split.split_id, split.next_offset), split.next_offset) for split in splits}

    def _publish(self, offsets: LogOffsets[OffsetSplitT]) -> None:
        """Positions are durable now. Never goes back; a failure that can pass is made good with the next batch.

        Splits that are gone are left out: another may bear the same name by now.
        """
        if offsets.initial:
            return
        present = {split_id: split for split_id, split in offsets.splits.items() if split_id not in self._missing}
        ahead = [s for split_id, s in present.items() if s.next_offset > self._published.get(split_id, -1)]
        if not ahead:
            return
        try:
            self._source.checkpoint_completed(ahead)
        except Exception as error:
            if not (is_retriable(error) or isinstance(error, DeadlineExceededError)):
                raise
            log.warning("positions could not be published now and will be with the next batch: %s", error)
            return
        self._published |= {split.split_id: split.next_offset for split in ahead}
