"""Reading only this many records, or for so long: for tests and demos. One call reads all splits, and is not restored."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from headrace.connectors.base.arguments import at_least_one, seconds
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import UsageError
from headrace.enumerator.pauses import POLL_TIMEOUT_S
from headrace.enumerator.source import LogSource, Source, SplitBatch
from headrace.enumerator.source_driver import SourceDriver
from headrace.runners.beam.coders import ReaderFormat
from headrace.runners.beam.enumerate import beginning, look
from headrace.runners.beam.event_time import EventTime, bounds
from headrace.runners.beam.reader_restriction import ReaderRestriction
from headrace.runners.beam.split_restriction import Enumerated, Fresh

POSITIONS = "positions"
"""The output with where every split was left: the bytes of a `ReaderRestriction` without anything to read."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Where a limited read ends: after this many records or seconds, whichever is first. At least one is given."""

    records: int | None
    seconds: float | None

    def __post_init__(self) -> None:
        if self.records is None and self.seconds is None:
            raise UsageError("a limited read needs a number of records, or of seconds")
        if self.records is not None:
            at_least_one("the limit of records", self.records)
        if self.seconds is not None:
            seconds("the limit of time", self.seconds)


class ReadLimited(beam.DoFn):
    """Reads until the limit, or the source's end. Says in the end where it is, for the reading stage to publish."""

    def __init__(
        self, source: Source[Any], limit: Limit, event_time: EventTime, start_at: Checkpoint[Any] | None = None
    ) -> None:
        """Travels to a worker by pickle. `start_at`: where it starts, in place of what the source says."""
        self._start_at = start_at
        self._source = source
        self._limit = limit
        self._event_time = event_time

    def process(self, element: bytes) -> Iterator[TimestampedValue | TaggedOutput]:
        positions: dict[str, Any] = {}
        read_whole = set()
        for batch in self._batches(positions):
            positions[batch.split.split_id] = batch.split
            if batch.finished:
                read_whole.add(batch.split.split_id)
            if batch.records.num_rows:
                times = self._event_time.micros(batch.records)
                yield TimestampedValue(batch.records, Timestamp.now() if times is None else bounds(times)[0])
        if self._source.needs_finished:  # then what is handed on is reported as read to its end
            positions = {split_id: split for split_id, split in positions.items() if split_id in read_whole}
        left: ReaderRestriction[Any] = ReaderRestriction((), tuple(positions.values()))
        encoding: ReaderFormat[Any] = ReaderFormat(self._source)
        yield TaggedOutput(POSITIONS, encoding.encode(left))

    def _batches(self, positions: dict[str, Any]) -> Iterator[SplitBatch[Any]]:
        """Adds to `positions` where each split starts, as it is found."""
        left = self._limit.records
        deadline_s = float("inf") if self._limit.seconds is None else time.monotonic() + self._limit.seconds
        with self._source.create_reader() as reader, closing(self._found()) as found:
            unfinished = 0
            while left != 0 and (wait_s := min(POLL_TIMEOUT_S, deadline_s - time.monotonic())) > 0:
                if not unfinished:  # the next stage starts when the previous one is read
                    if (splits := next(found, None)) is None:
                        return
                    positions |= {split.split_id: split for split in splits}
                    reader.add_splits(splits)
                    unfinished = len(splits)
                    continue
                batch = reader.poll(wait_s)
                if batch is None:
                    continue
                if left is not None and batch.records.num_rows > left:
                    yield from self._first(positions[batch.split.split_id], batch, left, deadline_s)
                    return
                unfinished -= batch.finished
                left = None if left is None else left - batch.records.num_rows
                yield batch

    def _found(self) -> Generator[Sequence[Any]]:
        """All splits that there are, in the order of the source's stages."""
        with closing(SourceDriver(self._source, beginning(self._source, self._start_at))) as driver:
            found = look(Fresh(), driver)
            yield found.added
            while found.more:
                found = look(Enumerated(found.checkpoint), driver)
                if found.failure is not None:
                    raise found.failure
                yield found.added

    def _first(self, at: Any, batch: SplitBatch[Any], left: int, deadline_s: float) -> Iterator[SplitBatch[Any]]:
        """The first records of a batch of a split that was there. Of a log they are read again: it alone knows the position."""
        if not isinstance(self._source, LogSource):
            yield SplitBatch(at, batch.records.slice(0, left))
            return
        stop = at.stop_offset
        while left:  # this many offsets can be fewer records
            with self._source.create_reader() as reader:
                reader.add_splits([at.between(at.next_offset, at.next_offset + left)])
                finished = False
                while not finished:
                    if time.monotonic() >= deadline_s:
                        return
                    part = reader.poll(POLL_TIMEOUT_S)
                    if part is not None:
                        finished, at = part.finished, part.split.between(part.split.next_offset, stop)
                        left -= part.records.num_rows
                        yield SplitBatch(at, part.records)
