"""PostgreSQL's types as Arrow types, and the texts of their values as Arrow arrays: a value is the same, or is refused.

The texts are those of a session of `connection`, where the log's and COPY's are the same. What has no type of Arrow stays the
text that PostgreSQL has for it: uuid, json, jsonb, xml, intervals (ISO 8601), times with a zone, ranges, bit strings,
addresses, geometric types, types of extensions, and numeric without a precision or with one over 76 digits. A caller who wants
the text of any other column gives it the type `TEXT`.

An array is a list for each of its declared dimensions; its lower bounds are left out, as drivers leave them out. An hstore is a
map, a composite type a struct, an enum's label a string, a domain what it is over, an oid a 64-bit integer.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.postgresql.columns import Names
from headrace.connectors.postgresql.errors import NEW_SNAPSHOT
from headrace.enumerator.errors import CorruptDataError, UsageError

OutOfRange = Literal["error", "null"]
"""What becomes of a value that its Arrow type cannot hold: an error that names it, or a null."""


@dataclass(frozen=True, slots=True)
class PgType:
    """A type, with those that it is made of.

    `name` is what format_type gives without a modifier: `integer`, `character varying`, `myschema.mood`. `element` is that of
    an array, range or multirange, and what a domain is based on, with the domain's `modifier` (typtypmod) and `dimensions`
    (typndims); `fields` are those of a composite, `labels` of an enum. `delimiter` is between values in an array (typdelim).
    """

    oid: int
    name: str
    kind: Literal["base", "array", "enum", "domain", "composite", "range", "multirange"]
    element: PgType | None = None
    fields: tuple[PgColumn, ...] = ()
    labels: tuple[str, ...] = ()
    modifier: int = -1
    dimensions: int = 0
    delimiter: str = ","


@dataclass(frozen=True, slots=True)
class PgColumn:
    """A column of a table, or a field of a composite type. `in_key`: it is in the table's replica identity.

    `dimensions` are those declared for an array (attndims); with 0, of a table made by a query, it is taken to have one.
    """

    name: str
    type: PgType
    modifier: int = -1
    nullable: bool = True
    in_key: bool = False
    dimensions: int = 0


@dataclass(frozen=True, slots=True)
class PgTable:
    """A table with the columns that are published. `key` has those of its primary key, in the key's order; none if one is not
    published.

    `is_deferrable`: the key may be changed so that rows have the same one until the transaction's end. `identity_is_published`:
    whether all columns of the replica identity are. `names`: of the columns, by their numbers (`columns.Names`).
    """

    oid: int
    schema: str
    name: str
    columns: tuple[PgColumn, ...]
    identity: Literal["default", "full", "index", "nothing"]
    key: tuple[str, ...]
    is_partitioned: bool = False
    is_deferrable: bool = False
    identity_is_published: bool = True
    names: Names = ()

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def change_key(self) -> tuple[str, ...]:
        """The columns by which a change finds its row: an update that changes them is a delete and an insert."""
        in_log = self.columns_of_old_rows
        return self.key if self.identity == "full" else tuple(each.name for each in self.columns if each.name in in_log)

    @property
    def columns_of_old_rows(self) -> frozenset[str]:
        """Those that the log has of a row before a change: of its replica identity."""
        return frozenset(column.name for column in self.columns if column.in_key)


TEXT = PgType(25, "text", "base")
"""The type to give to a column whose values are wanted as PostgreSQL's text."""


def arrow_type(column: PgColumn) -> pa.DataType:
    """The type of the column's values. Raises UsageError, naming the column, for what no Arrow type holds."""
    return _conversion(column.type, column.modifier, column.dimensions, column.name).arrow


def arrow_array(column: PgColumn, texts: pa.StringArray | pa.LargeStringArray, out_of_range: OutOfRange = "error") -> pa.Array:
    """The values of these texts, in `arrow_type(column)`.

    Infinite dates and timestamps, timestamps from the year 294247 on, the time 24:00:00, NaN among numerics with a precision,
    and arrays of other dimensions than declared are out of range: UsageError, naming column and value, or nulls. Dates and
    timestamps before Christ and after the year 9999 are held. Raises CorruptDataError for a text that is not of the type.
    """
    place = _Place(column.name, column.type.name, out_of_range)
    try:
        return _conversion(column.type, column.modifier, column.dimensions, column.name).convert(texts.cast(_LARGE), place)
    except pa.ArrowInvalid as error:
        raise CorruptDataError(f"column {column.name!r}: {error}; expected texts of the type {column.type.name}") from error


# --- the types --------------------------------------------------------------------------------------------------------

_LARGE = pa.large_string()
_TEXT = pa.string()


@dataclass(frozen=True, slots=True)
class _Place:
    """Of which column the values are, and what becomes of those out of range."""

    column: str
    type: str
    out_of_range: OutOfRange

    def refuse(self, text: str, why: str) -> None:
        """Raise UsageError unless a null is wanted in the place of the value."""
        if self.out_of_range == "error":
            raise UsageError(
                f"column {self.column!r}: the value {_shown(text)} of the type {self.type} is out of range: {why}. Let such "
                "values be null, or read the column as text"
            )

    def corrupt(self, text: str) -> NoReturn:
        raise CorruptDataError(f"column {self.column!r}: {_shown(text)} is not a value of the type {self.type}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


_Convert = Callable[[pa.LargeStringArray, _Place], pa.Array]


@dataclass(frozen=True, slots=True)
class _Conversion:
    arrow: pa.DataType
    convert: _Convert


def _conversion(kind: PgType, modifier: int, dimensions: int, column: str) -> _Conversion:
    match kind.kind:
        case "domain":
            return _conversion(_element(kind, column), kind.modifier, kind.dimensions, column)
        case "array":
            element = _element(kind, column)
            return _array_conversion(_conversion(element, modifier, 1, column), max(dimensions, 1), element.delimiter)
        case "composite":
            if not kind.fields:
                raise UsageError(
                    f"column {column!r}: the composite type {kind.name} has no fields, and no table format holds that"
                )
            return _struct_conversion(
                {field.name: _conversion(field.type, field.modifier, field.dimensions, column) for field in kind.fields}
            )
        case "base" if kind.oid == _NUMERIC:
            return _numeric_conversion(modifier)
        case "base" if kind.oid in _BASE:
            return _BASE[kind.oid]
        case "base" if kind.name.rsplit(".", 1)[-1] == "hstore":
            return _Conversion(pa.map_(_TEXT, _TEXT), _maps)
        case _:
            return _STRINGS


def _element(kind: PgType, column: str) -> PgType:
    if kind.element is None:
        raise UsageError(f"column {column!r}: it is not known what the {kind.kind} {kind.name} is made of")
    return kind.element


def _strings(texts: pa.LargeStringArray, place: _Place) -> pa.Array:
    return texts.cast(_TEXT)


_STRINGS = _Conversion(_TEXT, _strings)


def _plain(arrow: pa.DataType) -> _Conversion:
    return _Conversion(arrow, lambda texts, place: texts.cast(arrow))


def _booleans(texts: pa.LargeStringArray, place: _Place) -> pa.Array:
    values = pc.equal(texts, "t")
    unknown = pc.invert(pc.or_(values, pc.equal(texts, "f")))
    _check_none(texts, unknown, place)
    return values


def _check_none(texts: pa.LargeStringArray, bad: pa.BooleanArray, place: _Place) -> None:
    if pc.any(bad).as_py():
        place.corrupt(texts.filter(bad)[0].as_py())


def _money(texts: pa.LargeStringArray, place: _Place) -> pa.Array:
    return pc.replace_substring(pc.replace_substring(texts, "$", ""), ",", "").cast(_MONEY)


_MONEY = pa.decimal128(19, 2)


def _bytes(texts: pa.LargeStringArray, place: _Place) -> pa.Array:
    """Two digits a byte, of the whole buffer at once."""
    well_formed = pc.and_(pc.starts_with(texts, "\\x"), pc.equal(pc.bit_wise_and(pc.binary_length(texts), 1), 0))
    _check_none(texts, pc.invert(well_formed), place)
    digits = pc.replace_substring(texts, "\\x", "", max_replacements=1)
    offsets = pa.Array.from_buffers(pa.int64(), len(digits) + 1, [None, digits.buffers()[1]], offset=digits.offset)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    try:
        data = binascii.unhexlify(memoryview(digits.buffers()[2])[first:last]) if last > first else b""
    except binascii.Error as error:
        raise pa.ArrowInvalid(str(error)) from error
    halves = pc.divide(pc.subtract(offsets, first), 2).cast(pa.int32())
    # A kernel's result: its validity has no offset.
    return pa.Array.from_buffers(
        pa.binary(), len(digits), [texts.is_valid().buffers()[1], halves.buffers()[1], pa.py_buffer(data)]
    )


# --- numbers with decimals ---------------------------------------------------------------------------------------------

_NUMERIC = 1700
_MOST_128, _MOST_256 = 38, 76


def numeric_modifier(precision: int, scale: int) -> int:
    """The modifier of numeric(precision, scale): for a column without one whose values are wanted as decimals."""
    return ((precision << 16) | (scale & 0x7FF)) + 4


def _numeric_conversion(modifier: int) -> _Conversion:
    if modifier < 4:
        return _STRINGS
    precision, scale = (modifier - 4) >> 16, (((modifier - 4) & 0x7FF) ^ 0x400) - 0x400
    # numeric(3, 5) has five decimals, the first two of them zeros; numeric(3, -2) has five digits, the last two zeros.
    digits = max(precision, scale) if scale >= 0 else precision - scale
    if digits > _MOST_256:
        return _STRINGS
    decimal = pa.decimal128 if digits <= _MOST_128 else pa.decimal256
    arrow = decimal(digits, max(scale, 0))
    return _Conversion(arrow, lambda texts, place: _decimals(texts, arrow, place))


def _decimals(texts: pa.LargeStringArray, arrow: pa.DataType, place: _Place) -> pa.Array:
    try:
        return texts.cast(arrow)
    except pa.ArrowInvalid:
        special = pc.is_in(texts, pa.array(["NaN", "Infinity", "-Infinity"], _LARGE))
        if pc.any(special).as_py():
            place.refuse(texts.filter(special)[0].as_py(), "a decimal number is finite")
            return _decimals(_nulls_where(special, texts), arrow, place)
        too_long = [not _fits(text, arrow, place) for text in texts]
        if not any(too_long):
            raise
        return _decimals(_nulls_where(pa.array(too_long), texts), arrow, place)


def _fits(text: pa.LargeStringScalar, arrow: pa.DataType, place: _Place) -> bool:
    try:
        text.cast(arrow)
    except pa.ArrowInvalid:
        if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text.as_py()):
            place.corrupt(text.as_py())
        place.refuse(text.as_py(), f"it does not fit {arrow}")
        return False
    return True


def _nulls_where(mask: pa.BooleanArray, texts: pa.LargeStringArray) -> pa.LargeStringArray:
    return pc.if_else(mask, pa.scalar(None, _LARGE), texts)


# --- dates and times ----------------------------------------------------------------------------------------------------

_MICROSECONDS = 1_000_000
_DAY = 86_400 * _MICROSECONDS
_LEAP_CYCLE_YEARS, _LEAP_CYCLE_DAYS = 400, 146_097
_EPOCH_DAY = 719_468  # of 1970-01-01, counted from the first of March of the year 0
_TIME_OF_DAY = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(\.(?P<part>[0-9]{1,6}))?"


def _days(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01, in the Gregorian calendar before its introduction too, as PostgreSQL and Arrow count them."""
    year -= month <= 2
    cycle, of_cycle = divmod(year, _LEAP_CYCLE_YEARS)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return cycle * _LEAP_CYCLE_DAYS + of_cycle * 365 + of_cycle // 4 - of_cycle // 100 + of_year - _EPOCH_DAY


def _microseconds(parts: dict[str, str | None]) -> int:
    """Since 1970."""
    year, month, day, hour, minute, second = (
        int(parts.get(name) or 0) for name in ("year", "month", "day", "hour", "minute", "second")
    )
    seconds = (hour * 60 + minute) * 60 + second
    part = int((parts.get("part") or "").ljust(6, "0"))
    return _days(1 - year if parts["bc"] else year, month, day) * _DAY + seconds * _MICROSECONDS + part


def _temporal(arrow: pa.DataType, integers: pa.DataType, unit: int, rest: str) -> _Conversion:
    """Dates with the `rest` behind them. Arrow reads those whose year has four digits; `unit`: microseconds of an integer."""
    usual = f"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}{rest}$"
    any_year = re.compile(f"(?P<year>[0-9]{{4,7}})-(?P<month>[0-9]{{2}})-(?P<day>[0-9]{{2}}){rest}(?P<bc> BC)?")
    limit = 1 << (integers.bit_width - 1)

    def rare(text: str, place: _Place) -> int | None:
        if text in ("infinity", "-infinity"):
            place.refuse(text, f"{arrow} has no infinity")
            return None
        found = any_year.fullmatch(text)
        if found is None:
            place.corrupt(text)
        number = _microseconds(found.groupdict()) // unit
        if -limit <= number < limit:
            return number
        place.refuse(text, f"it does not fit {arrow}")
        return None

    def convert(texts: pa.LargeStringArray, place: _Place) -> pa.Array:
        try:
            return texts.cast(arrow)
        except pa.ArrowInvalid:
            is_rare = pc.fill_null(pc.invert(pc.match_substring_regex(texts, usual)), fill_value=False)
            if not pc.any(is_rare).as_py():
                raise
        others = [rare(text, place) for text in texts.filter(is_rare).to_pylist()]
        values = convert(_nulls_where(is_rare, texts), place).cast(integers)
        return pc.replace_with_mask(values, is_rare, pa.array(others, integers)).cast(arrow)

    return _Conversion(arrow, convert)


def _times(texts: pa.LargeStringArray, place: _Place) -> pa.Array:
    is_end = pc.equal(texts, "24:00:00")
    if pc.any(is_end).as_py():
        place.refuse("24:00:00", "the last time of a day is 23:59:59.999999")
        texts = _nulls_where(is_end, texts)
    instants = pc.binary_join_element_wise(pa.scalar("1970-01-01", _LARGE), texts, pa.scalar(" ", _LARGE))
    return instants.cast(pa.timestamp("us")).cast(pa.time64("us"))


_BASE: dict[int, _Conversion] = {
    16: _Conversion(pa.bool_(), _booleans),
    17: _Conversion(pa.binary(), _bytes),
    20: _plain(pa.int64()),
    21: _plain(pa.int16()),
    23: _plain(pa.int32()),
    26: _plain(pa.int64()),  # oid
    700: _plain(pa.float32()),
    701: _plain(pa.float64()),
    790: _Conversion(_MONEY, _money),
    1082: _temporal(pa.date32(), pa.int32(), _DAY, ""),
    1083: _Conversion(pa.time64("us"), _times),
    1114: _temporal(pa.timestamp("us"), pa.int64(), 1, f" {_TIME_OF_DAY}"),
    1184: _temporal(pa.timestamp("us", "UTC"), pa.int64(), 1, rf" {_TIME_OF_DAY}\+00"),
}


# --- values of several values -------------------------------------------------------------------------------------------

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(r"\1", text) if "\\" in text else text


def _array_conversion(items: _Conversion, dimensions: int, delimiter: str) -> _Conversion:
    arrow, texts_type = items.arrow, _LARGE
    for _ in range(dimensions):
        arrow, texts_type = pa.list_(arrow), pa.list_(texts_type)
    token = re.compile(rf'[{{}}]|"(?:[^"\\]|\\.)*"|[^{{}}"{re.escape(delimiter)}]+', re.DOTALL)
    simple = r'^\{[^"\\{}]*\}$'

    def convert(texts: pa.LargeStringArray, place: _Place) -> pa.Array:
        if dimensions == 1 and pc.all(pc.match_substring_regex(texts, simple)).as_py() is not False:
            lists = _simple_lists(texts, delimiter)
        else:
            parsed = [None if text is None else _nested(text, token, dimensions, place) for text in texts.to_pylist()]
            lists = pa.array(parsed, texts_type)
        return _with_items(lists, dimensions, lambda leaves: items.convert(leaves, place))

    return _Conversion(arrow, convert)


def _simple_lists(texts: pa.LargeStringArray, delimiter: str) -> pa.ListArray:
    """Of one dimension, without quotes: split by kernels."""
    inner = pc.utf8_slice_codeunits(_nulls_where(pc.equal(texts, "{}"), texts), 1, -1)
    lists = pc.split_pattern(inner, delimiter)
    items = _nulls_where(pc.equal(lists.values, "NULL"), lists.values)
    return pa.ListArray.from_arrays(lists.offsets, items, mask=texts.is_null())


def _with_items(lists: pa.ListArray, dimensions: int, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """The same lists of other items."""
    items = convert(lists.values) if dimensions == 1 else _with_items(lists.values, dimensions - 1, convert)
    validity, offsets = lists.buffers()[:2]
    return pa.Array.from_buffers(pa.list_(items.type), len(lists), [validity, offsets], lists.null_count, children=[items])


def _nested(text: str, token: re.Pattern[str], dimensions: int, place: _Place) -> list[Any] | None:
    """The lists of an array's text; None, or an error, if it has other dimensions than those declared."""
    # Lower bounds other than 1 come first: [0:1]={5,6}.
    body = text.partition("=")[2] if text.startswith("[") else text
    if body == "{}":
        return []
    outermost: list[Any] = []
    path, depth, at = [outermost], 0, 0
    for found in token.finditer(body):
        part = found[0]
        if part == "{":
            path[-1].append([])
            path.append(path[-1][-1])
            depth = max(depth, len(path) - 1)
        elif part == "}" and len(path) > 1:
            path.pop()
        elif part[0] == '"':
            path[-1].append(_unescaped(part[1:-1]))
        else:
            path[-1].append(None if part == "NULL" else part)
        at = found.end()
    if len(path) > 1 or len(outermost) != 1 or not isinstance(outermost[0], list) or at != len(body):
        place.corrupt(text)
    if depth != dimensions:
        place.refuse(text, f"it has {depth} dimensions, and the column is declared with {dimensions}")
        return None
    return outermost[0]


_FIELD = re.compile(r'(?P<quoted>(?:"(?:[^"\\]|\\.)*")+)|(?P<bare>[^",()\\]*)', re.DOTALL)
_DOUBLED = re.compile(r'\\(.)|"(")', re.DOTALL)


def _struct_conversion(fields: dict[str, _Conversion]) -> _Conversion:
    arrow = pa.struct([pa.field(name, field.arrow) for name, field in fields.items()])

    def convert(texts: pa.LargeStringArray, place: _Place) -> pa.Array:
        rows = [None if text is None else _record(text, len(fields), place) for text in texts.to_pylist()]
        absent: list[str | None] = [None] * len(fields)
        columns = zip(*(absent if row is None else row for row in rows), strict=True) if rows else ([] for _ in fields)
        values = [
            field.convert(pa.array(column, _LARGE), place) for field, column in zip(fields.values(), columns, strict=True)
        ]
        return pa.StructArray.from_arrays(values, fields=list(arrow), mask=texts.is_null())

    return _Conversion(arrow, convert)


def _record(text: str, size: int, place: _Place) -> list[str | None]:
    """The texts of a composite value's fields: nothing is a null, quotes are doubled."""
    values: list[str | None] = []
    at, last = 1, len(text) - 1
    while text[:1] == "(" and at <= last:
        found = _FIELD.match(text, at, last)
        assert found is not None  # it matches nothing too
        quoted, bare = found["quoted"], found["bare"]
        values.append((bare or None) if quoted is None else _DOUBLED.sub(r"\1\2", quoted[1:-1]))
        at = found.end() + 1
        if text[at - 1 : at] != ",":
            break
    if text[:1] + text[-1:] != "()" or at != len(text):
        place.corrupt(text)
    if len(values) != size:
        raise UsageError(
            f"column {place.column!r}: {_shown(text)} has not the {size} fields of the type {place.type}: ALTER TYPE has "
            f"changed it. Start again to read it as it is now; where the log still has earlier values, {NEW_SNAPSHOT}"
        )
    return values


_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:NULL|"((?:[^"\\]|\\.)*)")(?:, |$)', re.DOTALL)


def _maps(texts: pa.LargeStringArray, place: _Place) -> pa.Array:
    return pa.array([None if text is None else _pairs(text, place) for text in texts.to_pylist()], pa.map_(_TEXT, _TEXT))


def _pairs(text: str, place: _Place) -> list[tuple[str, str | None]]:
    pairs, at = [], 0
    while at < len(text):
        found = _PAIR.match(text, at)
        if found is None:
            place.corrupt(text)
        pairs.append((_unescaped(found[1]), None if found[2] is None else _unescaped(found[2])))
        at = found.end()
    return pairs
