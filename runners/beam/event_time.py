"""Event time: when records happened, and how far a split's watermark has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.io.iobase import WatermarkEstimator
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Duration, Timestamp

from headrace.connectors.base.arguments import text
from headrace.enumerator.errors import UsageError

IDLE_LAG = Duration(seconds=2)
"""The watermark of a split that is caught up stays this far behind the clock, for records under way to it: KafkaIO's figure."""


class EventTime(Protocol):
    """Says when the records of a batch happened. Picklable. Called in worker processes, for batches that have rows."""

    def micros(self, batch: pa.RecordBatch) -> pa.Int64Array | None:
        """Microseconds since 1970-01-01 UTC for every record; None for processing time, which the reading stage then uses."""


@dataclass(frozen=True, slots=True)
class ProcessingTime:
    """Records happen when they are read."""

    def micros(self, batch: pa.RecordBatch) -> None:
        """Not in the batch."""


@dataclass(frozen=True, slots=True)
class ColumnTime:
    """Records happen when their timestamp column says. A null means: at the beginning of time."""

    column: str

    def __post_init__(self) -> None:
        text("column", self.column)

    def micros(self, batch: pa.RecordBatch) -> pa.Int64Array:
        """From a timestamp column of any unit; nanoseconds are cut. Raises UsageError for a column that is none."""
        place = batch.schema.get_field_index(self.column)
        if place < 0 or not pa.types.is_timestamp(batch.schema.types[place]):
            found = f"it is {batch.schema.types[place]}" if place >= 0 else f"there are {', '.join(batch.schema.names)}"
            raise UsageError(f"event times are those of a timestamp column, and {self.column!r} is none: {found}")
        column = batch.column(place)
        times = column.cast(pa.timestamp("us", tz="UTC"), safe=column.type.unit != "ns").cast(pa.int64())
        return times.fill_null(MIN_TIMESTAMP.micros)


def bounds(times: pa.Int64Array) -> tuple[Timestamp, Timestamp]:
    found = pc.min_max(times).as_py()
    return Timestamp(micros=found["min"]), Timestamp(micros=found["max"])


class SplitWatermark(WatermarkEstimator):
    """A watermark that only moves on, when reported. None before the first move: it then holds everything back."""

    def __init__(self, state: Timestamp | None) -> None:
        self._state = state

    def advance(self, timestamp: Timestamp) -> None:
        """Nothing earlier than this is expected any more. Going back is ignored."""
        if self._state is None or timestamp > self._state:
            self._state = timestamp

    def observe_timestamp(self, timestamp: Timestamp) -> None:
        """Outputs are batches, with their earliest record's time, which is not a watermark: see `advance`."""

    def current_watermark(self) -> Timestamp | None:  # type: ignore[override] # Beam does know watermarks that are unknown
        return self._state

    def get_estimator_state(self) -> Any:
        return self._state
