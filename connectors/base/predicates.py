"""What rows are wanted of a source: predicates on its columns, in which engines and connectors speak of filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from headrace.enumerator.split import OffsetSplit

__all__ = ["Operator", "Predicate", "Pruner"]

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
        """True when `prune` leaves out every row that the predicate does not want, so that no one need look again."""

    def prune(self, splits: Sequence[SplitT_inv], predicates: Sequence[Predicate]) -> Sequence[SplitT_inv]:
        """The splits without ranges that hold no wanted row. May leave unwanted rows unless `decides`; loses no wanted one.

        The splits have a stop. May contact the source.
        """
