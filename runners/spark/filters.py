"""Spark's pushed filters as the connectors' predicates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from headrace.connectors.base.predicates import Operator, Predicate

_OPERATORS: dict[type[Filter], Operator] = {
    EqualTo: Operator.EQUAL,
    LessThan: Operator.LESS,
    LessThanOrEqual: Operator.LESS_OR_EQUAL,
    GreaterThan: Operator.GREATER,
    GreaterThanOrEqual: Operator.GREATER_OR_EQUAL,
    In: Operator.IN,
    StringStartsWith: Operator.STARTS_WITH,
    IsNotNull: Operator.NOT_NULL,
}


def predicate(item: Filter) -> Predicate | None:
    """The filter as a predicate, or None for one that no connector could use: nested columns, nulls, other operators."""
    negated = isinstance(item, Not)
    inner = item.child if isinstance(item, Not) else item
    operator = _OPERATORS.get(type(inner))
    if operator is None or (negated and operator is Operator.NOT_NULL):
        return None
    path: tuple[str, ...] = inner.attribute  # type: ignore[attr-defined] # all of these have one
    value: Any = getattr(inner, "value", None)
    values: Iterable[object] = value if operator is Operator.IN else [value]
    if len(path) != 1 or (operator is not Operator.NOT_NULL and any(item is None for item in values)):
        return None
    return Predicate(path[0], operator, value, negated)
