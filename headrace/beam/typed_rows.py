"""Rows with a Beam schema: Arrow batches with typed columns as rows that SQL and other languages read."""

from __future__ import annotations

import datetime
import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from types import GenericAlias
from typing import Any, Optional, cast

import numpy as np
import pyarrow as pa
from apache_beam.pvalue import Row
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.timestamp import Timestamp

from headrace.enumerator.errors import UsageError

_TYPES: Mapping[pa.DataType, Any] = {
    pa.bool_(): bool,
    pa.int8(): np.int16,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.uint8(): np.int16,
    pa.uint16(): np.int32,
    pa.uint32(): np.int64,
    pa.uint64(): Decimal,
    pa.float32(): np.float32,
    pa.float64(): float,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): datetime.date,
}
"""Beam's types, by Arrow's. A number without a sign is wider: Beam has none. So is one of 8 bits: its coder takes no sign."""


def row_type(schema: pa.Schema) -> RowTypeConstraint:
    """The type of the rows that `AsRows` makes: a field for each column, all nullable.

    A struct is a row, an enum a string, a timestamp one of Beam's, with microseconds. Raises UsageError, which names the field,
    for a type or a name that Beam's rows cannot have.
    """
    return _row_type(list(schema), "")


def _row_type(fields: Iterable[pa.Field], path: str) -> RowTypeConstraint:
    return RowTypeConstraint.from_fields([(_name(each.name, path), _optional(each.type, path + each.name)) for each in fields])


def _name(name: str, path: str) -> str:
    """Beam makes named tuples of rows, and Python says what their fields may be called; `Row` takes them by keyword."""
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or name == "self":
        raise UsageError(f"a row in Beam cannot have a field {path + name!r}: ask only for others, or take output='arrow'")
    return name


def _optional(kind: pa.DataType, path: str) -> Any:
    return Optional[_hint(kind, path)]  # noqa: UP045 - what is within is known only here


def _hint(kind: pa.DataType, path: str) -> Any:
    if kind in _TYPES:
        return _TYPES[kind]
    if pa.types.is_struct(kind):
        return _row_type([kind.field(i) for i in range(kind.num_fields)], f"{path}.")
    if pa.types.is_list(kind):
        return GenericAlias(Sequence, _optional(kind.value_type, f"{path}[]"))
    if pa.types.is_map(kind) and kind.key_type in _TYPES:
        return GenericAlias(Mapping, (_TYPES[kind.key_type], _optional(kind.item_type, f"{path}{{}}")))
    if pa.types.is_dictionary(kind):
        return _hint(kind.value_type, path)
    if pa.types.is_fixed_size_binary(kind):
        return bytes
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return Timestamp
    raise UsageError(f"Beam has no type for {kind}, which field {path!r} has: ask only for others, or take output='arrow'")


@dataclass(frozen=True)
class AsRows:
    """Makes rows of batches of one schema, which has a `row_type`. Picklable."""

    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> Iterable[Row]:
        """A row for each record, in order. Raises UsageError for a decimal that Beam would round."""
        return _rows(self.schema.names, [_named(*column) for column in zip(self.schema.names, batch.columns, strict=True)])


def _rows(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> Iterable[Row]:
    return (Row(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))


_DIGITS = Context(prec=28)
"""As Beam's coder of decimals makes them, by Python's default context."""


def _named(name: str, array: pa.Array) -> Sequence[Any]:
    try:
        return _values(array)
    except UsageError as error:
        raise UsageError(f"field {name!r}: {error}") from error


def _decimals(array: pa.Array) -> Sequence[Decimal | None]:
    values: list[Decimal | None] = array.to_pylist()
    if array.type.precision > _DIGITS.prec and any(each is not None and _DIGITS.plus(each) != each for each in values):
        raise UsageError(f"Beam rounds decimals of more than {_DIGITS.prec} digits: take output='arrow', or another type")
    return values


def _values(array: pa.Array) -> Sequence[Any]:
    kind = array.type
    if pa.types.is_decimal(kind):
        return _decimals(array)
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        made = _rows(names, [_values(array.field(i)) for i in range(kind.num_fields)]) if names else [Row()] * len(array)
        return [row if is_there else None for row, is_there in zip(made, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_list(kind):
        return _each(array, _values(array.values), list)
    if pa.types.is_map(kind):
        return _each(array, list(zip(_values(array.keys), _values(array.items), strict=True)), dict)
    if pa.types.is_timestamp(kind):
        micros = array.cast(pa.timestamp("us", kind.tz), safe=False).view(pa.int64()).to_pylist()
        return [None if each is None else Timestamp(micros=each) for each in micros]
    if pa.types.is_uint64(kind):
        return [None if each is None else Decimal(each) for each in array.to_pylist()]
    return cast("Sequence[Any]", array.to_pylist())


def _each(array: pa.Array, items: Sequence[Any], made: Callable[[Sequence[Any]], Any]) -> Sequence[Any]:
    """For each row of a column of lists or maps what is made of its items."""
    ends, there = array.offsets.to_pylist(), array.is_valid().to_pylist()
    return [made(items[ends[row] : ends[row + 1]]) if is_there else None for row, is_there in enumerate(there)]
