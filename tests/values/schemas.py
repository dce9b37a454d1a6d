"""Strategies of Arrow schemas, nested to depth three, and of values that break things, in every form that Arrow has for them.

Times are drawn as the integers that Arrow stores: Python's calendar ends with the year 9999.
"""

from __future__ import annotations

import random
from datetime import datetime
from decimal import Context, Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st
from pyarrow import types

Values = st.SearchStrategy[Any]

DEPTH = 3
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1)
FIRST_S, LAST_S = (int((end - _EPOCH).total_seconds()) for end in (datetime.min, datetime(9999, 12, 31, 23, 59, 59)))
"""Python's calendar."""
_MOST_S = 2**63 // 10**6 - 1  # that microseconds can hold
_MANY_DIGITS = Context(prec=80)

PLAIN_NAMES = ("a", "b", "c", "value", "Name", "_x", "self", "select", "order", "key_1", "schema", "from", "null", "class")
ODD_NAMES = (
    *(
        "a b",
        'a"b',
        "it's",
        "a`b",
        "a.b",
        ".a",
        "[0]",
        "$",
        "a/b",
        "a=b",
        "%20",
        "a\\b",
        "a-b",
        "1a",
        "ß",
        "名",
        "e\u0301",
        "name",
    ),
    *("NAME", " a", "a ", "\u202eb", "a:b", "None", "true", "__class__", "x" * 200),
)
TEXTS = (
    *("", " ", "a", "\0", "a\0b", "\n", '"', "'", "\\", "NaN", "Infinity", "null", "true", "1e5", "2024-01-01", "%s", "${x}"),
    *("é", "e\u0301", "\u200f", "\u202eabc", "שלום", "名前", "😀", "\ud7ff", "\ue000", "\uffff", "\U0010ffff", "\ufeff"),
    *(letter * length for letter in "aé\U0010ffff" for length in (63, 64, 65)),
    *("b" * 63 + letter + "c" for letter in ("\ud7ff", "\U0010ffff", "\x7f")),
    *("z" * length for length in (4095, 4096, 4097)),
    *("\ud7ff" * 1366, "\U0010ffff" * 1025),
)
HUGE = "h" * (1 << 20)

_REALS = (0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), float("-inf"), 0.5)
_LIMITS = {16: (65504.0, 2.0**-24), 32: (3.4028234663852886e38, 1.401298464324817e-45), 64: (1.7976931348623157e308, 5e-324)}

FLAT: tuple[pa.DataType, ...] = (
    pa.bool_(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.float64(), pa.float64()),
    *(pa.decimal128(1, 0), pa.decimal128(5, 5), pa.decimal128(10, 2), pa.decimal128(18, 9), pa.decimal128(38, 0)),
    *(pa.decimal128(38, 38), pa.decimal256(20, 3)),
    *(pa.string(), pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
    *(pa.date32(), pa.date64()),
    *(pa.timestamp(unit, zone) for unit in _PER_SECOND for zone in (None, "UTC", "Europe/Berlin")),
)
"""Types of which a table of any format can be made."""
OTHERS: tuple[pa.DataType, ...] = (
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.binary(0x10), pa.binary(1)),
    *(pa.duration("us"), pa.decimal256(76, 10), pa.struct([]), pa.list_(pa.int8(), 2)),
)
"""Types that some formats have not."""


@cache
def texts() -> st.SearchStrategy[str]:
    """A MiB in one of a thousand."""
    # by their numbers: long ones are slow where Hypothesis notes what it draws
    return st.integers(0, 999).map(lambda at: TEXTS[at % len(TEXTS)] if at else HUGE) | st.text(max_size=8)


def names() -> st.SearchStrategy[str]:
    return st.sampled_from(PLAIN_NAMES + PLAIN_NAMES + ODD_NAMES)


@cache
def _with_edges(least: int, greatest: int, *edges: int) -> st.SearchStrategy[int]:
    known = sorted({edge for edge in (least, greatest, -1, 0, 1, *edges) if least <= edge <= greatest})
    return st.sampled_from(known) | st.integers(least, greatest)


def _reals(width: int) -> st.SearchStrategy[float]:
    greatest, least = _LIMITS[width]
    edges = (*_REALS, greatest, -greatest, least, -least)
    return st.sampled_from(edges) | st.sampled_from(_REALS) | st.floats(width=width)  # type: ignore[arg-type]


def _decimals(kind: pa.Decimal128Type) -> st.SearchStrategy[Decimal]:
    most = 10**kind.precision - 1
    return _with_edges(-most, most).map(lambda number: _MANY_DIGITS.scaleb(Decimal(number), -kind.scale))


def _moments(unit: str) -> st.SearchStrategy[int]:
    """Microseconds hold each: of nanoseconds whole thousands, and few years."""
    per_second = _PER_SECOND[unit]
    if unit == "ns":
        return _moments("us").filter(lambda us: abs(us) < 2**63 // 1000 - 1).map(lambda us: us * 1000)
    of_years = (FIRST_S * per_second, (LAST_S + 1) * per_second - 1)
    seconds = (*of_years, of_years[1] + 1, 253_402_300_800 * per_second, 1_700_000_000 * per_second + 1, -(10**9) - 1)
    return _with_edges(-_MOST_S * per_second, _MOST_S * per_second, *seconds) | st.integers(*of_years)


@cache
def scalars(kind: pa.DataType) -> Values:
    """Values of a type that is not nested; never null."""
    if types.is_boolean(kind):
        return st.booleans()
    if types.is_integer(kind):
        bits = kind.bit_width - types.is_signed_integer(kind)
        return _with_edges(-(2**bits) if types.is_signed_integer(kind) else 0, 2**bits - 1)
    if types.is_floating(kind):
        return _reals(kind.bit_width)
    if types.is_decimal(kind):
        return _decimals(kind)
    if types.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return texts()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return st.integers(0, 3).map(lambda at: (b"", b"\0", b"\xff" * 65, b"\xff" * 4097)[at]) | st.binary(max_size=8)
    if types.is_date32(kind):
        return _with_edges(-(2**31) // 1000, 2**31 // 1000, FIRST_S // _DAY_S, LAST_S // _DAY_S, LAST_S // _DAY_S + 1)
    if types.is_date64(kind):
        return scalars(pa.date32()).map(lambda day: day * _DAY_S * 1000)
    if types.is_timestamp(kind):
        return _moments(kind.unit)
    if types.is_time(kind):
        per_second = _PER_SECOND[kind.unit]
        step = 1000 if kind.unit == "ns" else 1
        return _with_edges(0, _DAY_S * per_second // step - 1).map(lambda moment: moment * step)
    if types.is_duration(kind):
        return _with_edges(-(2**53), 2**53)
    assert types.is_null(kind), kind
    return st.none()


@cache
def values(kind: pa.DataType, *, nullable: bool = True) -> Values:
    """Of any type, null and empty at every level."""
    found = _nested_values(kind) if types.is_nested(kind) else scalars(kind)
    return st.one_of(found, found, found, st.none()) if nullable else found  # a null in four


@cache
def _nested_values(kind: pa.DataType) -> Values:
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return st.fixed_dictionaries({field.name: values(field.type) for field in fields})
    if types.is_map(kind):
        keys, items = scalars(kind.key_type), values(kind.item_type)
        return st.lists(st.tuples(keys, items), max_size=2, unique_by=lambda pair: repr(pair[0]))
    if types.is_fixed_size_list(kind):
        return st.lists(values(kind.value_type), min_size=kind.list_size, max_size=kind.list_size)
    return st.lists(values(kind.value_type), max_size=3)


@cache
def kinds(flat: tuple[pa.DataType, ...] = FLAT, depth: int = DEPTH) -> st.SearchStrategy[pa.DataType]:
    """Types, nested at most so deep."""

    @st.composite
    def kind(draw: st.DrawFn) -> pa.DataType:
        form = draw(st.integers(0, 7)) if depth else 0
        if form < 4:  # half of them
            return flat[draw(st.integers(0, len(flat) - 1))]
        inner = kinds(flat, depth - 1)
        if form < 6:
            return (pa.list_ if form == 4 else pa.large_list)(draw(inner))
        if form == 6:
            return pa.map_(draw(st.sampled_from([pa.string(), pa.int32(), pa.date32()])), draw(inner))
        named = draw(st.lists(st.sampled_from(PLAIN_NAMES), min_size=1, max_size=3, unique_by=str.casefold))
        return pa.struct([(name, draw(inner)) for name in named])

    return kind()


@st.composite
def fields(
    draw: st.DrawFn,
    flat: tuple[pa.DataType, ...] = FLAT,
    *,
    depth: int = DEPTH,
    least: int = 1,
    most: int = 4,
    named: st.SearchStrategy[str] | None = None,
) -> list[pa.Field]:
    """Columns, whose names may differ in upper and lower case alone."""
    found = draw(st.lists(names() if named is None else named, min_size=least, max_size=most, unique=True))
    return [pa.field(name, draw(kinds(flat, depth))) for name in found]


@st.composite
def batches(draw: st.DrawFn, schema: pa.Schema, *, most: int = 4) -> pa.RecordBatch:
    """Rows of these columns: none, sliced, dictionaries, columns in another order."""
    count, skipped = draw(st.sampled_from(range(most, -1, -1))), draw(st.integers(0, 1))
    columns = {}
    for field in schema:
        drawn = st.lists(values(field.type, nullable=field.nullable), min_size=count + skipped, max_size=count + skipped)
        columns[field.name] = draw(_forms(pa.array(draw(drawn), field.type).slice(skipped)))
    order = draw(st.permutations(list(columns)))
    return pa.RecordBatch.from_pydict({name: columns[name] for name in order})


def _forms(column: pa.Array) -> st.SearchStrategy[pa.Array]:
    """The same values, which may be a dictionary's."""
    if types.is_string(column.type) or types.is_binary(column.type) or types.is_int64(column.type):
        return st.sampled_from([column, column, column.dictionary_encode()])
    return st.just(column)


# --- comparing ---------------------------------------------------------------------------------------------------------


def plain(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Python values that are equal only if the column's are the same bit by bit: times are integers, reals are texts."""
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return [_plain(value) for value in column.cast(_plain_kind(column.type)).to_pylist()]


def _plain_kind(kind: pa.DataType) -> pa.DataType:
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain_kind(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain_kind(kind.key_type), _plain_kind(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_plain_kind(kind.value_type))
    if types.is_timestamp(kind) or types.is_date64(kind) or types.is_time64(kind) or types.is_duration(kind):
        return pa.int64()
    return pa.int32() if types.is_date32(kind) or types.is_time32(kind) else kind


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def ends(column: pa.ChunkedArray) -> list[pa.Scalar]:
    """The least and the greatest value of a column that is ordered and has some; a NaN is none."""
    if types.is_nested(column.type) or types.is_null(column.type):
        return []
    known = column.drop_null()
    if types.is_floating(column.type):
        known = known.filter(pc.invert(pc.is_nan(known)))
    return [known.take(pc.sort_indices(known)[at : at + 1])[0] for at in (0, len(known) - 1)] if len(known) else []


# --- the same values in other forms ------------------------------------------------------------------------------------


def other_form(column: pa.Array, chance: random.Random) -> pa.Array:
    """The same values as others hand them over: views, dictionaries, fields in another order, texts under a null struct."""
    kind = column.type
    if types.is_struct(kind) and kind.num_fields:
        parts = [(field.name, other_form(column.field(at), chance)) for at, field in enumerate(kind)]
        parts = [(name, _with_text_under_nulls(column, part)) for name, part in chance.sample(parts, len(parts))]
        return pa.StructArray.from_arrays([part for _, part in parts], names=[name for name, _ in parts], mask=column.is_null())
    if types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64())
        offsets = pc.cumulative_sum(pa.concat_arrays([pa.array([0]), lengths]))
        made = chance.choice([pa.ListArray, pa.LargeListArray])
        offsets = offsets.cast(pa.int32() if made is pa.ListArray else pa.int64())
        return made.from_arrays(offsets, other_form(column.flatten(), chance), mask=column.is_null())
    if types.is_dictionary(kind):
        return column.cast(pa.string())
    if types.is_string(kind):
        return chance.choice(
            [column, column.cast(pa.large_string()), column.cast(pa.string_view()), column.dictionary_encode()]
        )
    return column.cast(chance.choice([kind, pa.large_binary(), pa.binary_view()])) if types.is_binary(kind) else column


def _with_text_under_nulls(struct: pa.Array, part: pa.Array) -> pa.Array:
    is_text = types.is_string(part.type) and struct.null_count
    return pc.if_else(struct.is_valid(), part, pa.scalar("\0under a null")) if is_text else part


def sliced(column: pa.Array) -> pa.Array:
    """The same rows between two others; a union's rows are not put together."""
    return (
        column
        if "union" in str(column.type)
        else pa.concat_arrays([column[:1], column, column[:1]])[len(column[:1]) :][: len(column)]
    )
