"""How Spark is to read a log source: the source, its limits, what may be skipped, and how its offsets are stored.

A `LogRead` is made from the options that users write, for each connector; this runner carries it out and knows no connector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

from headrace.enumerator.errors import StateError
from headrace.enumerator.source import LogSource, Source
from headrace.enumerator.split import OffsetSplitT
from headrace.runners.spark.planning import OffsetRange, plan_tasks


@dataclass(frozen=True, slots=True)
class LogOffsets(Generic[OffsetSplitT]):
    """Where an engine is in a whole log source: what it stores as its offset of a batch's start or end.

    `started_at`: where each split's first batch started. An engine that asks for initial offsets again when it replays its
    first batch (Spark does) plans the replay from there, and never from a new answer (I2). `initial`: the start of a query
    without a checkpoint, and no splits. `SplitDiscovery.initial` is asked when the end of the first batch is planned.
    """

    splits: Mapping[str, OffsetSplitT]
    started_at: Mapping[str, int]
    initial: bool = False


WHERE = "the query's checkpoint"


def check_source(stored: object, source: Source[Any]) -> None:
    """Raise StateError for the offset of another source."""
    if stored != source.name:
        raise StateError(
            f"{WHERE} is of a {stored!r} source and cannot restore a {source.name!r} source. Start the query with the source "
            "that it had, or with a new checkpoint"
        )


class OffsetsFormat(Protocol[OffsetSplitT]):
    """How the offsets of one connector are written into a query's checkpoint. Picklable. Called in the driver's process."""

    def to_json(self, offsets: LogOffsets[OffsetSplitT]) -> str:
        """The offsets as one line of JSON, the same text for the same offsets."""

    def from_json(self, text: str) -> LogOffsets[OffsetSplitT]:
        """What `to_json` of any version wrote, or another connector; may ask the source for its splits. Raises StateError."""

    def first_offsets(self, found: Sequence[OffsetSplitT], known: Mapping[str, OffsetSplitT]) -> Mapping[str, int]:
        """Where another connector's batch started splits that it found while it planned: it stores the ends only, these.

        `known` are the others. By that connector's rule, whatever the user wants of later splits. May contact the source.
        """

    def ends_to_json(self, ends: Mapping[str, int], splits: Mapping[str, OffsetSplitT]) -> str:
        """End offsets in the form that people and dashboards know from the field (Kafka: {"topic": {"0": 123}})."""


class Predecessor(Protocol):
    """Another connector whose stored state is taken over. Picklable. Called in the driver's process."""

    def initial_offsets(self) -> str:
        """Where its first batch started, in a form that `OffsetsFormat.from_json` reads. Raises StateError."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a streaming batch, in offsets, not records. `min_offsets` delays one, up to `max_delay_s` seconds since the last."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_s: float = 900.0


@dataclass(frozen=True, kw_only=True)
class LogRead(Generic[OffsetSplitT]):
    """A log source and how to read it. Picklable.

    `source` can build every column there is; `columns` are those a user gets who asks for none. `offsets` is how offsets are
    stored. `max_task_offsets` bounds a task, `min_tasks` asks for about this many; `parallelism` is how many run at once, if
    known. A task that gets nothing for `poll_timeout_s` seconds fails. `savepoint`: path or URI of a savepoint of a run with
    which a query without a checkpoint starts.
    """

    source: LogSource[OffsetSplitT]
    offsets: OffsetsFormat[OffsetSplitT]
    columns: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    min_tasks: int | None = None
    max_task_offsets: int | None = None
    parallelism: int | None = None
    poll_timeout_s: float = 120.0
    predecessor: Predecessor | None = None
    savepoint: str | None = None

    def tasks_of(self, ranges: Sequence[OffsetRange]) -> list[list[OffsetRange]]:
        most, least = self.max_task_offsets, self.min_tasks
        return plan_tasks(ranges, min_tasks=least, max_task_records=most, parallelism=self.parallelism)
