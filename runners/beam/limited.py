"""Reading only so many records, or for so long: for tests and demos. One call reads all splits, and nobody restores it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from headrace.enumerator.errors import UsageError
from headrace.enumerator.source import Source
from headrace.runners.beam.event_time import EventTime, bounds

_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Limit:
    """Where a limited read ends: after so many records, after so many seconds, whichever is first. At least one is given."""

    records: int | None
    seconds: float | None

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if self.records is None and self.seconds is None:
            raise UsageError("a limited read needs a number of records, or of seconds")
        if (self.records is not None and self.records < 1) or (self.seconds is not None and self.seconds <= 0):
            raise UsageError(f"limits must be positive, not {self.records} records and {self.seconds} seconds")


class ReadLimited(beam.DoFn):
    """Reads until the limit, or the source's end. Nothing is published: what is read is durable only when the whole call is."""

    def __init__(self, source: Source[Any], limit: Limit, event_time: EventTime) -> None:
        """Travels to a worker by pickle."""
        self._source = source
        self._limit = limit
        self._event_time = event_time

    def process(self, element: bytes) -> Iterator[TimestampedValue]:
        """Once."""
        discovery = self._source.create_discovery()
        try:
            splits = discovery.initial().added
        finally:
            discovery.close()
        left = self._limit.records
        deadline_s = None if self._limit.seconds is None else time.monotonic() + self._limit.seconds
        with self._source.create_reader() as reader:
            reader.add_splits(splits)
            unfinished = len(splits)
            while unfinished and left != 0 and (deadline_s is None or time.monotonic() < deadline_s):
                wait_s = _POLL_S if deadline_s is None else min(_POLL_S, max(0.0, deadline_s - time.monotonic()))
                batch = reader.poll(wait_s)
                if batch is None:
                    continue
                unfinished -= batch.finished
                records = batch.records if left is None else batch.records.slice(0, left)
                left = None if left is None else left - records.num_rows
                if records.num_rows:
                    yield self._timestamped(records)

    def _timestamped(self, records: pa.RecordBatch) -> TimestampedValue:
        times = self._event_time.micros(records)
        return TimestampedValue(records, Timestamp.now() if times is None else bounds(times)[0])
