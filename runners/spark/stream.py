"""What a streaming query's driver decides: where it starts, how far it reads now, in which tasks. No PySpark in here.

Spark's own protocol has two gaps, and this is where they are closed:

- Spark asks for initial offsets twice in batch 0, and again when batch 0 is replayed; it stores none of them. So the answer is
  a mark without a position. Positions are looked up when the end of batch 0 is, which happens once and is stored, and the end
  of every batch carries where each split started: a replay is planned from that, and asks for nothing again (I2).
- The mark differs from every end. Spark therefore runs batch 0 at once, data or not, and where the query started is durable
  before anything else happens (azure-event-hubs-spark #532).

A split that has vanished keeps its place in the offsets, since metadata flaps (FLINK-39837). It leaves them once the source has
let the loss pass and proves that it cannot come back.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Generic

from headrace.enumerator.errors import OutageError, StateError
from headrace.enumerator.source import LogSource
from headrace.enumerator.split import OffsetSplitT
from headrace.runners.spark.log_read import LogOffsets, LogRead
from headrace.runners.spark.planning import OffsetRange, admit
from headrace.runners.spark.source_planner import SourcePlanner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backlog(Generic[OffsetSplitT]):
    """What one look at the source found: every split that is there, at its position, and as it is at its end now."""

    splits: Mapping[str, OffsetSplitT]
    at_end: Mapping[str, OffsetSplitT]

    @property
    def ends(self) -> Mapping[str, int]:
        return {split_id: split.next_offset for split_id, split in self.at_end.items()}

    @property
    def gone_back(self) -> Collection[str]:
        """Of these the end lies before the position: records are lost, that was tolerated, and reading continues at the end."""
        return [split_id for split_id, split in self.splits.items() if self.at_end[split_id].next_offset < split.next_offset]

    @property
    def size(self) -> int:
        return sum(max(0, self.at_end[split_id].next_offset - split.next_offset) for split_id, split in self.splits.items())


class StreamPlanner(SourcePlanner[OffsetSplitT]):
    """Plans the batches of one run of a query over a log.

    Offsets go in and out as JSON text. Only the end of batch 0, planned for the first time, ever initialises.
    """

    _source: LogSource[OffsetSplitT]

    def __init__(self, read: LogRead[OffsetSplitT], clock: Callable[[], float]) -> None:
        super().__init__(read.source, read.savepoint)
        self._read, self._format, self._clock = read, read.offsets, clock
        self._initial: Mapping[str, OffsetSplitT] | None = None
        self._parsed: OrderedDict[str, LogOffsets[OffsetSplitT]] = OrderedDict()
        self._missing: frozenset[str] = frozenset()
        self._retired: dict[str, OffsetSplitT] = {}
        self._published: dict[str, int] = {}
        self._going_back: dict[str, int] = {}
        self._last_batch_at: float | None = None
        self._pinned: Mapping[str, OffsetSplitT] | None = None
        self._seen: Backlog[OffsetSplitT] | None = None

    def initial_offsets(self) -> str:
        """The mark of a query without a checkpoint; the same text however often Spark asks. Does no I/O."""
        return self._format.to_json(LogOffsets({}, {}, initial=True))

    def next_offsets(self, start: str, max_offsets: int | None, min_offsets: int | None) -> str:
        """Where the batch that starts at `start` ends: `start` itself when nothing is to be read now.

        Also publishes `start`, whose batch Spark has committed by now. Raises DataLossError as the source sees fit, what the
        initial discovery raises, and StateError when a predecessor's offsets cannot be read.
        """
        offsets = self._started(self._parse(start))
        try:
            self._seen = backlog = self._look(offsets)
        except OutageError as error:
            self._ride_out(error, self._outages)
            return start
        if self._outages.worked():
            log.warning("the source answers again")
        self._publish(offsets)
        if self._waits_for_more(backlog, offsets, min_offsets):
            return start
        starts = {split_id: split.next_offset for split_id, split in backlog.splits.items()}
        ends = {**admit(starts, backlog.ends, max_offsets), **{i: backlog.ends[i] for i in backlog.gone_back}}
        self._going_back |= {split_id: ends[split_id] for split_id in backlog.gone_back}
        found = backlog.splits.keys() - offsets.splits.keys()
        gone = self._retired.keys() & offsets.splits.keys()
        if ends == starts and not found and not gone and not offsets.initial:
            return start
        kept = {split_id: split for split_id, split in offsets.splits.items() if split_id not in gone}
        known = {**kept, **backlog.splits}
        started_at = {split_id: offsets.started_at.get(split_id, split.next_offset) for split_id, split in known.items()}
        moved = {split_id: self._source.moved(split, ends[split_id]) for split_id, split in backlog.at_end.items()}
        return self._format.to_json(LogOffsets({**known, **moved}, started_at))

    def tasks(self, start: str, end: str) -> list[tuple[OffsetSplitT, ...]]:
        """The tasks of the batch between two offsets, each a list of bounded splits; a replay gives the same ranges.

        Raises StateError when another connector's first batch is replayed and it is not known where that one started.
        """
        first, last = self._parse(start), self._parse(end)
        gone = [split for split_id, split in first.splits.items() if split_id not in last.splits]
        if gone and not _is_complete(last):  # what leaves our own offsets was tolerated before they were stored
            self._source.on_splits_missing(gone)
        starts = self._starts(first, last)
        ranges = [OffsetRange(split_id, starts[split_id], split.next_offset) for split_id, split in last.splits.items()]
        return [
            tuple(last.splits[item.split_id].between(item.start, item.stop) for item in task)
            for task in self._read.tasks_of(ranges)
        ]

    def committed(self, end: str) -> None:
        self._publish(self._parse(end))

    def latest_seen(self) -> str | None:
        """The ends that the last look found, for progress reports; None before the first look."""
        return None if self._seen is None else self._format.ends_to_json(self._seen.ends, self._seen.splits)

    def _started(self, offsets: LogOffsets[OffsetSplitT]) -> LogOffsets[OffsetSplitT]:
        """The offsets, and for the mark of a query without a checkpoint the positions that it starts from."""
        if not offsets.initial:
            self._pass_savepoint_over()
            return offsets
        if self._initial is None:
            before = self._predecessors()
            self._initial = {s.split_id: s for s in self._starting().initial().added} if before is None else before
        return replace(offsets, splits=self._initial)

    def _predecessors(self) -> Mapping[str, OffsetSplitT] | None:
        if self._read.predecessor is None:
            return None
        return self._format.from_json(self._read.predecessor.initial_offsets()).splits

    def _parse(self, text: str) -> LogOffsets[OffsetSplitT]:
        if text not in self._parsed:
            self._parsed[text] = self._format.from_json(text)
            if len(self._parsed) > 8:
                self._parsed.popitem(last=False)
        return self._parsed[text]

    def _look(self, offsets: LogOffsets[OffsetSplitT]) -> Backlog[OffsetSplitT]:
        if self._pinned is not None:
            splits = {split_id: split for split_id, split in offsets.splits.items() if split_id in self._pinned}
            pinned = {split_id: self._pinned[split_id] for split_id in splits}
            return Backlog(splits, {i: max(pinned[i], splits[i], key=lambda split: split.next_offset) for i in splits})
        splits = self._present(offsets)
        at_end = self._source.at_end(list(splits.values()))
        backlog = Backlog(splits, at_end)
        if self._pins_end and not backlog.gone_back:  # behind what has gone back there may be more: the next look shows
            self._pinned = at_end
        return backlog

    def _present(self, offsets: LogOffsets[OffsetSplitT]) -> dict[str, OffsetSplitT]:
        """Known and new splits without those that are gone. These stay in the offsets, where they were (FLINK-39837)."""
        watched = {split_id: split for split_id, split in offsets.splits.items() if split_id not in self._missing}
        findings = self._find_later(watched)
        # one that was retired in this run and is back all the same was never gone
        added = {split.split_id: self._retired.pop(split.split_id, split) for split in findings.added}
        lost = [split for split_id, split in watched.items() if split_id in findings.missing]
        if lost:
            self._source.on_splits_missing(lost)
        self._missing = (self._missing | findings.missing) - added.keys()
        self._retire(offsets)
        present = {split_id: split for split_id, split in offsets.splits.items() if split_id not in self._missing}
        return {**added, **present}

    def _retire(self, offsets: LogOffsets[OffsetSplitT]) -> None:
        """Of the missing splits those that cannot come back are to leave the offsets."""
        missing = [split for split_id, split in offsets.splits.items() if split_id in self._missing]
        unproven = [split for split in missing if split.split_id not in self._retired]
        if unproven:
            proven = self._source.retired(unproven)
            self._retired |= {split.split_id: split for split in unproven if split.split_id in proven}

    def _waits_for_more(self, backlog: Backlog[OffsetSplitT], offsets: LogOffsets[OffsetSplitT], least: int | None) -> bool:
        now = self._clock()
        overdue = self._last_batch_at is None or now - self._last_batch_at >= self._read.limits.max_delay_s
        # what comes, what leaves and what goes back must become durable: no waiting
        leaves = self._retired.keys() & offsets.splits.keys()
        changed = backlog.splits.keys() - offsets.splits.keys() or leaves or backlog.gone_back
        if least is None or self._pins_end or overdue or changed or backlog.size >= least:
            self._last_batch_at = now
            return False
        return True

    def _starts(self, first: LogOffsets[OffsetSplitT], last: LogOffsets[OffsetSplitT]) -> Mapping[str, int]:
        if first.initial and _is_complete(last):
            return last.started_at
        if first.initial:
            started = self._predecessors()
            if started is None:
                raise StateError(
                    "this checkpoint's batch 0 was planned by another connector and never committed; where it started is not "
                    "among what Spark hands over. Name the checkpoint directory with the option jvmCheckpoint, so that it is "
                    "read there"
                )
            first = replace(first, splits=started)
        known = {split_id: split.next_offset for split_id, split in first.splits.items()}
        starts = {**last.started_at, **known}
        unknown = [split for split_id, split in last.splits.items() if split_id not in starts]
        return {**self._format.first_offsets(unknown, first.splits), **starts} if unknown else starts

    def _publish(self, offsets: LogOffsets[OffsetSplitT]) -> None:
        """Positions are durable now. No failure stops the query: the next batch is another try.

        Never goes back but to where a batch did. Splits that are gone are left out: another may bear the same name by now.
        """
        if offsets.initial:
            return
        present = {split_id: split for split_id, split in offsets.splits.items() if split_id not in self._missing}
        news = [split for split in present.values() if self._is_news(split)]
        if not news or not self._publisher.publish(news):
            return
        published = self._published
        went_back = {new.split_id for new in news if new.next_offset < published.get(new.split_id, new.next_offset)}
        self._published |= {split.split_id: split.next_offset for split in news}
        self._going_back = {split_id: at for split_id, at in self._going_back.items() if split_id not in went_back}

    def _is_news(self, split: OffsetSplitT) -> bool:
        """Spark commits the batch before again after it has planned one that goes back: that must not count as ahead.

        The batch that goes back may be another driver's to run: then what is seen of it here is a later position.
        """
        before = self._published.get(split.split_id, -1)
        back = self._going_back.get(split.split_id, before)
        return split.next_offset > before or back <= split.next_offset < before


def _is_complete(offsets: LogOffsets[OffsetSplitT]) -> bool:
    """False for another connector's offsets, which do not hold where each split started."""
    return offsets.started_at.keys() >= offsets.splits.keys()
