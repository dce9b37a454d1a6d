"""Arrow columns as what databases take: lines of PostgreSQL's COPY, and rows of Python values. No value changes on the way.

Instants (timestamps with a time zone) are sent in UTC, in sessions whose time zone is UTC.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headrace.connectors.base.nested import plain
from headrace.enumerator.errors import UsageError

_TEXT = pa.large_string()
_MICROSECOND_DIGITS = 6
_DAY_US = 86_400_000_000
_YEAR_1, _YEAR_10000, _JULIAN_1970 = -719_162, 2_932_897, 2_440_588
"""Days since 1970, and the Julian day of that."""


class Kind(Enum):
    """What an Arrow type means to a database."""

    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "floating point"
    DECIMAL = "decimal"
    TEXT = "text"
    BINARY = "binary"
    DATE = "date"
    TIME = "time of day"
    INSTANT = "timestamp with time zone"
    LOCAL = "timestamp without time zone"
    LIST = "array"


@dataclass(frozen=True, slots=True)
class Field:
    """A column that is written. `digits`: how many of a second's decimals the table keeps. `rule`: what else it does not keep.

    A rule returns what is wrong with one of the normalised values; None if all are kept. `fills`: the database puts another
    value in the place of a null. `items`: of a list, what its innermost values are.
    """

    name: str
    kind: Kind
    digits: int = _MICROSECOND_DIGITS
    rule: Callable[[pa.Array], str | None] | None = None
    fills: bool = False
    items: Field | None = None


_CANONICAL: dict[Kind, pa.DataType] = {
    Kind.FLOAT: pa.float64(),
    Kind.TEXT: _TEXT,
    Kind.BINARY: pa.large_binary(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("us"),
    Kind.INSTANT: pa.timestamp("us"),
    Kind.LOCAL: pa.timestamp("us"),
}


_KINDS: dict[Kind, tuple[Callable[[pa.DataType], bool], ...]] = {
    Kind.NULL: (types.is_null,),
    Kind.BOOLEAN: (types.is_boolean,),
    Kind.INTEGER: (types.is_integer,),
    Kind.FLOAT: (types.is_floating,),
    Kind.DECIMAL: (types.is_decimal,),
    Kind.TEXT: (types.is_string, types.is_large_string),
    Kind.BINARY: (types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
    Kind.DATE: (types.is_date,),
    Kind.TIME: (types.is_time,),
    Kind.LIST: (types.is_list, types.is_large_list, types.is_fixed_size_list),
}


def kind_of(arrow: pa.DataType) -> Kind | None:
    """What a plain type means; None for types that no column of a table can hold, such as structs."""
    if types.is_timestamp(arrow):
        return Kind.LOCAL if arrow.tz is None else Kind.INSTANT
    return next((kind for kind, tests in _KINDS.items() if any(is_kind(arrow) for is_kind in tests)), None)


def innermost(arrow: pa.DataType) -> pa.DataType:
    """The type of the values of a list, or of those of its lists."""
    return innermost(arrow.value_type) if kind_of(arrow) is Kind.LIST else arrow


def normalised(array: pa.Array, field: Field) -> pa.Array:
    """The values in the one Arrow type of their kind; of lists, PostgreSQL's texts.

    Raises UsageError, naming the column, if the table would change one.
    """
    array = plain(array)
    if field.items is not None:
        return _array_texts(array, field.items)
    if field.kind is Kind.INSTANT:
        array = array.cast(pa.timestamp(array.type.unit, "UTC")).cast(pa.timestamp(array.type.unit))
    canonical = _CANONICAL.get(field.kind)
    try:
        array = array if canonical is None else array.cast(canonical)
    except pa.ArrowInvalid as error:
        raise UsageError(f"column {field.name!r}: {error}") from error
    if field.kind in (Kind.TIME, Kind.INSTANT, Kind.LOCAL) and field.digits < _MICROSECOND_DIGITS:
        _check_digits(array, field)
    if field.fills and array.null_count:
        raise UsageError(
            f"column {field.name!r}: the database would put the time or a number in the place of its null: leave out the "
            "column, or such rows"
        )
    problem = None if field.rule is None else field.rule(array)
    if problem is not None:
        raise UsageError(f"column {field.name!r}: {problem}")
    return array


def normalised_columns(rows: pa.RecordBatch, fields: Sequence[Field]) -> list[pa.Array]:
    """The columns of these fields, each `normalised`."""
    return [normalised(rows.column(field.name), field) for field in fields]


def _check_digits(array: pa.Array, field: Field) -> None:
    unit = 10 ** (_MICROSECOND_DIGITS - field.digits)
    microseconds = array.cast(pa.int64())
    whole = pc.multiply(pc.divide(microseconds, unit), unit)
    if pc.any(pc.not_equal(whole, microseconds)).as_py():
        raise UsageError(
            f"column {field.name!r} of the table keeps {field.digits} decimals of a second, and there are values with more: "
            "round them, or give the column more decimals"
        )


# --- COPY -------------------------------------------------------------------------------------------------------------


def copy_lines(columns: Sequence[pa.Array], fields: Sequence[Field]) -> memoryview:
    """The rows of these normalised columns (at least one) in PostgreSQL's text format of COPY."""
    texts = [_copy_text(column, field.kind) for column, field in zip(columns, fields, strict=True)]
    joined = pc.binary_join_element_wise(*texts, _scalar("\t"), null_handling="replace", null_replacement="\\N")
    lines = pc.binary_join_element_wise(joined, _scalar("\n"), _scalar(""))
    size = pc.sum(pc.binary_length(lines)).as_py() or 0
    data = lines.buffers()[2]
    assert lines.offset == 0  # the result of a kernel: the lines stand in its buffer one after the other
    return memoryview(data)[:size] if size else memoryview(b"")


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text, _TEXT)


def _copy_text(array: pa.Array, kind: Kind) -> pa.Array:
    texts = _text(array, kind)
    if kind in (Kind.TEXT, Kind.LIST):
        for raw, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
            texts = pc.replace_substring(texts, raw, escaped)
    return pc.binary_join_element_wise(_scalar("\\"), texts, _scalar("")) if kind is Kind.BINARY else texts


def _text(array: pa.Array, kind: Kind) -> pa.Array:
    """Normalised values in PostgreSQL's words."""
    match kind:
        case Kind.BINARY:
            return pc.binary_join_element_wise(_scalar("\\x"), _hex(array), _scalar(""))
        case Kind.INSTANT:
            return pc.binary_join_element_wise(_dated(array), _scalar("+00"), _scalar(""))
        case Kind.DATE | Kind.LOCAL:
            return _dated(array)
        case _:
            return array.cast(_TEXT)


def _array_texts(array: pa.Array, items: Field) -> pa.LargeStringArray:
    """Lists in PostgreSQL's words: `{"1",NULL}`. Those in a list have one length, as the database itself checks."""
    lists = array.cast(pa.large_list(array.type.value_type))
    values = lists.flatten()
    if kind_of(values.type) is not Kind.LIST:
        texts = _text(normalised(values, items), items.kind)
        for raw, escaped in (("\\", "\\\\"), ('"', '\\"')):
            texts = pc.replace_substring(texts, raw, escaped)
        texts = pc.binary_join_element_wise(_scalar('"'), texts, _scalar('"'), _scalar("")).fill_null("NULL")
    elif pc.all(pc.greater(pc.fill_null(pc.list_value_length(values), 0), 0)).as_py() is False:
        raise UsageError(f"column {items.name!r}: PostgreSQL's arrays of arrays have no null or empty ones in them")
    else:
        texts = _array_texts(values, items)
    sizes = pc.cumulative_sum(pc.fill_null(pc.list_value_length(lists), 0))
    ends = pa.concat_arrays([pa.array([0], pa.int32()), sizes.cast(pa.int32())])
    joined = pc.binary_join(pa.ListArray.from_arrays(ends, texts), _scalar(","))
    whole = pc.binary_join_element_wise(_scalar("{"), joined, _scalar("}"), _scalar(""))
    return pc.if_else(lists.is_valid(), whole, pa.scalar(None, _TEXT))


def _dated(array: pa.Array) -> pa.LargeStringArray:
    """By ISO 8601. A date whose year has not four digits is the number of its Julian day, which PostgreSQL reads, too."""
    is_date = types.is_date(array.type)
    numbers = array.cast(pa.int32() if is_date else pa.int64()).fill_null(0).to_numpy().astype(np.int64)
    days = numbers if is_date else numbers // _DAY_US
    is_odd = pa.array((days < _YEAR_1) | (days >= _YEAR_10000))
    if not pc.any(is_odd, min_count=0).as_py():
        return array.cast(_TEXT)
    julian = pc.binary_join_element_wise(_scalar("J"), pa.array(days + _JULIAN_1970).cast(_TEXT), _scalar(""))
    if not is_date:
        julian = pc.binary_join_element_wise(
            julian, pa.array(numbers % _DAY_US).cast(pa.time64("us")).cast(_TEXT), _scalar(" ")
        )
    usual = pc.if_else(is_odd, pa.scalar(None, array.type), array).cast(_TEXT)
    return pc.if_else(pc.and_(is_odd, array.is_valid()), julian, usual)


def _hex(array: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """Two digits a byte, made of the whole buffer at once."""
    _, offsets_buffer, data = array.buffers()
    offsets = pa.Array.from_buffers(pa.int64(), len(array) + 1, [None, offsets_buffer], offset=array.offset)
    start, stop = offsets[0].as_py(), offsets[len(array)].as_py()
    digits = binascii.hexlify(memoryview(data)[start:stop]) if stop > start else b""
    doubled = pc.multiply(pc.subtract(offsets, start), 2)
    texts = pa.LargeStringArray.from_buffers(len(array), doubled.buffers()[1], pa.py_buffer(digits))
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, _TEXT)) if array.null_count else texts


# --- rows -------------------------------------------------------------------------------------------------------------


def python_rows(columns: Sequence[pa.Array], fields: Sequence[Field]) -> list[tuple[Any, ...]]:
    """The rows of these normalised columns as Python values; instants as datetimes in UTC without a time zone.

    Raises UsageError, naming the column, for a year that Python has not.
    """
    values = []
    for column, field in zip(columns, fields, strict=True):
        try:
            values.append(column.to_pylist())
        except (ValueError, OverflowError) as error:
            raise UsageError(f"column {field.name!r} has a {field.kind.value} out of range: {error}") from error
    return list(zip(*values, strict=True))


def text_rows(columns: Sequence[pa.Array], fields: Sequence[Field]) -> list[tuple[Any, ...]]:
    """As `python_rows`, with dates and times as ISO 8601 text, for a database that has no types for them."""
    temporal = (Kind.DATE, Kind.TIME, Kind.INSTANT, Kind.LOCAL)
    texts = []
    for column, field in zip(columns, fields, strict=True):
        if field.kind in temporal:
            python_rows([pa.array(list(pc.min_max(column).values()), column.type)], [field])  # Arrow's texts end in 32767
        texts.append(column.cast(_TEXT) if field.kind in temporal else column)
    return python_rows(texts, fields)


def check_finite(columns: Sequence[pa.Array], fields: Sequence[Field], database: str) -> None:
    """Raise UsageError, naming the column, if one holds NaN or an infinity."""
    for column, field in zip(columns, fields, strict=True):
        if field.kind is Kind.FLOAT and pc.any(pc.invert(pc.is_finite(column))).as_py():
            raise UsageError(f"column {field.name!r} holds NaN or an infinity, which {database} cannot store")
