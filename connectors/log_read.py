"""How an engine that plans its own tasks is to read a log source: the source, its limits, and what may be skipped.

A connector makes a `LogRead` from the options its users write; a runner carries it out. Neither knows the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from headrace.enumerator.source import LogSource
from headrace.enumerator.split import OffsetSplit, OffsetSplitT

__all__ = ["Limits", "LogRead", "Operator", "Predecessor", "Predicate", "Pruner"]

SplitT_inv = TypeVar("SplitT_inv", bound=OffsetSplit)


class Operator(StrEnum):
    """What a predicate asks of a column."""

    EQUAL = "="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    IN = "in"  # the value is a sequence
    STARTS_WITH = "starts with"
    NOT_NULL = "is not null"  # the value is None


@dataclass(frozen=True, slots=True)
class Predicate:
    """Only rows are wanted for which `column` `operator` `value` holds, or with `negated` is false (a null is never wanted).

    Values are ints, strings, sequences of them, and timezone-aware datetimes.
    """

    column: str
    operator: Operator
    value: Any
    negated: bool = False


class Pruner(Protocol[SplitT_inv]):
    """What a connector knows about skipping rows before they are read. Picklable. Called in the planning process."""

    def decides(self, predicate: Predicate) -> bool:
        """True when `prune` leaves out every row that the predicate does not want, so that nobody need look again."""

    def prune(self, splits: Sequence[SplitT_inv], predicates: Sequence[Predicate]) -> Sequence[SplitT_inv]:
        """The splits without ranges that hold no wanted row. May leave unwanted rows unless `decides`; loses no wanted one.

        The splits have a stop. May contact the source.
        """


class Predecessor(Protocol):
    """Another connector whose stored state is taken over. Picklable. Called in the driver's process."""

    def initial_offsets(self) -> str:
        """Where its first batch started, in a form `LogSource.offsets_from_json` reads. Raises StateError."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a streaming batch holds. Offsets, not records: compaction and transactions leave gaps.

    `min_offsets` delays a batch until so many are there, for `max_delay_s` seconds since the last one at most.
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_s: float = 900.0


@dataclass(frozen=True, kw_only=True)
class LogRead(Generic[OffsetSplitT]):
    """A log source and how to read it. Picklable.

    `source` can build every column there is; `columns` are those a user gets who asks for none. `max_task_offsets` bounds a
    task, `min_tasks` asks for about so many. A task that gets nothing for `poll_timeout_s` seconds fails.
    """

    source: LogSource[OffsetSplitT]
    columns: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    min_tasks: int | None = None
    max_task_offsets: int | None = None
    poll_timeout_s: float = 120.0
    pruner: Pruner[OffsetSplitT] | None = None
    predecessor: Predecessor | None = None
