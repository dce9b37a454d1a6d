"""JSON values to typed columns by Arrow's JSON reader, and back.

Values are joined and read at once, which takes a fraction of what a parse of each takes. Where that fails, two regular
expressions find the values that may be bad, Python parses these alone, and the others are read again. What both do not find,
Python is to find among all values; what Arrow's reader refuses in fields that are skipped is then left out, and what remains is
found by halving.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from struct import pack
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from headrace.connectors.base.arguments import zone
from headrace.connectors.formats.json_lines import json_lines, unwritable
from headrace.connectors.formats.json_times import UnfitTimes, as_texts, as_times
from headrace.connectors.formats.value_format import (
    BadValue,
    DecodedValues,
    ValueFormat,
    as_binary,
    check_values,
    exactly,
    is_text,
    nullable,
    unquoted,
    without,
)
from headrace.enumerator.errors import UsageError

_MOST_JOINED_BYTES = 16 << 20  # read at once; a larger value is read alone
_ROW = re.compile(r" in row (\d+)$")
_COLUMN = re.compile(r"Column\(/v(?:/\[\])?(/[^)]*)?\)")
_WINDOW = 256  # values that are halved together
_MOST_NAMES = 64  # looking for more of them costs as much as a parse by Python
_NOT_UTF8 = "text is not UTF-8"
_CONSTANTS = r"(?:^|[:,\[])[ \t\r\n]*-?(?:NaN|Inf(?:inity)?)[ \t\r\n]*(?:[,\]}]|$)"
"""Where NaN or Infinity may be a number: Arrow's reader takes them for such, and JSON has none. Strings may have it too."""
_NOT_FINITE = dict.fromkeys(("+INF", "+Infinity"), "Infinity") | {"-INF": "-Infinity"}
_NOT_FINITE |= {name: name for name in ("NaN", "Infinity", "-Infinity")}
"""Strings that are numbers which JSON has not, and how Arrow's reader has them. The last three are written."""
_SPELLED = r'(?:^|[:,\[])[ \t\r\n]*"(?:NaN|[+-]?Infinity|[+-]INF)"[ \t\r\n]*(?:[,\]}]|$)'
_ENDS = (b'NaN"', b'Infinity"', b'INF"')  # found faster
_Check: TypeAlias = Callable[[Any], str | None]
"""Why a value that Python has parsed does not fit a type; None where it does, or where only Arrow knows."""
_REOPENS = r'\][ \t\r\n]*,[ \t\r\n]*"(?:[^"\\]|\\.)*"[ \t\r\n]*:[ \t\r\n]*\['
"""What a text holds that ends the array that it was put into, and starts another one: `1],"x":[2`. Values may hold it, too."""
_BLANK = r"[ \t\r\n]*"
_SCALAR = r'(?:[^"\[\]{},]*|[ \t\r\n]*"(?:[^"\\]|\\.)*"[ \t\r\n]*)'
_WIDTHS = {32: "<f", 64: "<d"}
_NO_FLOATS: Mapping[str, str] = {}
_MOST_DIGITS = 38  # of a decimal of 128 bits
_MOST_INTEGER_DIGITS = 400  # a double of more is infinite
_BRIEF = 120  # characters of the reader's own message


class JsonFormat(ValueFormat):
    """JSON values of one Arrow type: usually a struct, of whose fields an object may have more, which are skipped, or fewer.

    A field that an object lacks is null; so all fields are nullable, whatever the type says. An object that has a field twice
    is bad. A timestamp is text as ISO 8601 has it, whose digits beyond the type's unit are cut. `time_zone` (default "UTC") is
    the zone of one without a zone, where the type has zones: an IANA name or an offset such as `+02:00`, or what returns it.
    `decode` raises UsageError where it needs the zone, and there is none of that name. One with a zone is bad where the type
    has none. NaN and the infinities are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.

    Raises UsageError for a type that Arrow's JSON reader does not give, or that has no form in JSON: maps, unions, bytes,
    dates, times of day, durations.
    """

    def __init__(self, arrow_type: pa.DataType, *, time_zone: str | Callable[[], str] = "UTC") -> None:
        if not isinstance(arrow_type, pa.DataType):
            raise UsageError(
                f"arrow_type must be a pyarrow.DataType, such as pa.struct(...) of a schema's fields, not {arrow_type!r}"
            )
        zone("time_zone", time_zone)
        self._type = nullable(arrow_type)
        self._time_zone = time_zone
        self._read_type = as_texts(self._type)
        self._schema = pa.schema([("v", pa.list_(self._read_type))])
        self._wide = wide_decimals(self._schema)
        refused = unwritable(arrow_type) or _unreadable(arrow_type)
        if refused is not None:
            raise UsageError(f"JSON values cannot be {refused}; take a string, and convert it")
        try:
            found = self._read(pa.array([b"null"], pa.binary()), b'{"v":[null]}').type
        except pa.ArrowNotImplementedError as error:
            raise UsageError(f"JSON values cannot be {arrow_type}: {error}") from error
        if found != self._read_type:
            raise UsageError(f"JSON values cannot be {arrow_type}: objects have each field once")
        parse_float = Decimal if "decimal" in str(self._type) else None  # it costs as much as a small value
        self._decoder = _decoder(parse_float)
        self._misfit = _check(self._type, "")
        self._misfits = "|".join(_misfits(self._type))
        self._has_floats = any(name in str(self._type) for name in ("float", "double"))
        self._names = sorted({_quoted(each.name) for each in _fields(self._type)})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its arguments."""
        return functools.partial(type(self), self._type, time_zone=self._time_zone), ()

    @property
    def arrow_type(self) -> pa.DataType:
        """The type that was asked for, its fields nullable."""
        return self._type

    def decode(self, values: pa.Array) -> DecodedValues:
        """As `ValueFormat` says. Bad: what is not one JSON value in UTF-8, and what does not fit the type."""
        binary = as_binary(values)
        bad: list[BadValue] = []
        # A null is read as JSON's null, so that rows stay where they are.
        texts = pc.fill_null(binary, b"null") if binary.null_count else binary
        chunks = [self._decode(texts.slice(start, count), start, bad) for start, count in _chunks(texts)]
        return DecodedValues(pa.concat_arrays(chunks) if chunks else pa.nulls(0, self._type), bad)

    def encode(self, values: pa.Array) -> pa.Array:
        """As `ValueFormat` says: every field is written, also a null one."""
        check_values(values)
        cast = values if values.type == self._type else _cast(values, self._type)
        lines = json_lines(pa.record_batch([cast], names=["v"])).splitlines()
        encoded = pa.array([line[len(b'{"v":') : -1] for line in lines], pa.binary())
        return without(encoded, pc.indices_nonzero(cast.is_null()).to_pylist()) if cast.null_count else encoded

    def _decode(self, texts: pa.Array, start: int, bad: list[BadValue]) -> pa.Array:
        """One chunk. `start` is the row of its first value, for what is added to `bad`."""
        lines = self._lines(texts)
        wrong = dict.fromkeys(_not_utf8(texts), _NOT_UTF8)
        if b"NaN" in lines or b"Inf" in lines:
            wrong |= self._faults(texts, _constant_rows(texts))
        try:
            column = self._read_good(texts, wrong) if wrong else self._read(texts, lines)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            column = self._read_around(texts, wrong, error)
        if column.type != self._type:
            column = self._with_times(column, wrong)
        bad += [BadValue(start + row, wrong[row]) for row in sorted(wrong)]
        return column

    def _with_times(self, column: pa.Array, wrong: dict[int, str]) -> pa.Array:
        unfit: list[UnfitTimes] = []
        timed = as_times(column, self._type, self._time_zone, unfit)
        for rows, path, kind in unfit:
            wrong |= dict.fromkeys(rows.to_pylist(), _unfit("", path, str(kind) if kind.tz else f"{kind} without a zone"))
        return without(timed, wrong) if unfit else timed

    def _read_around(self, texts: pa.Array, wrong: dict[int, str], error: Exception) -> pa.Array:
        """A chunk with values that cannot be read, which are added to `wrong`. `error`: of the first of them."""
        finders = [self._suspects, self._repeats]
        if "specified twice" in str(error):
            finders.reverse()
        for find in (*finders, _all_rows):
            wrong |= self._faults(texts, find(texts))
            try:
                return self._read_good(texts, wrong)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                pass
        good = pa.array([self._known(text, _OF_DIGITS) for text in _without(texts, wrong).to_pylist()], texts.type)
        try:
            return self._read(good, self._lines(good))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
        windows = range(0, len(texts), _WINDOW)
        return pa.concat_arrays([self._halved(good.slice(first, _WINDOW), first, wrong) for first in windows])

    def _read_good(self, texts: pa.Array, wrong: dict[int, str]) -> pa.Array:
        good = _without(texts, wrong)
        return self._read(good, self._lines(good))

    def _lines(self, texts: pa.Array) -> bytes:
        """The texts as they are read at once."""
        lines = _joined(texts, _BEFORE, _AFTER)
        if not self._has_floats or not any(end in lines for end in _ENDS):
            return lines
        spelled = pc.match_substring_regex(texts, _SPELLED)
        numbers = pa.array([self._with_numbers(text) for text in texts.filter(spelled).to_pylist()], texts.type)
        return _joined(pc.replace_with_mask(texts, spelled, numbers), _BEFORE, _AFTER)

    def _with_numbers(self, text: bytes) -> bytes:
        """With what Arrow's reader takes for a number in place of its string; as it is if Python finds a fault."""
        return text if self._fault(text) else self._known(text, _OF_DIGITS, _NOT_FINITE)

    def _known(self, text: bytes, decoder: json.JSONDecoder, floats: Mapping[str, str] = _NO_FLOATS) -> bytes:
        """Only the fields of the type, as `_respelled` has them; all of it if Python cannot parse it."""
        try:
            return _respelled(_loaded(text.decode(), decoder), self._type, floats).encode()
        except (ValueError, RecursionError):
            return text

    def _suspects(self, texts: pa.Array) -> Iterable[int]:
        """Rows that do not look like JSON, or whose fields may not fit: most of the bad ones, and few others."""
        looks_well = pc.match_substring_regex(texts, _JSON)
        try:
            if self._misfits:
                looks_well = pc.and_not(looks_well, pc.match_substring_regex(texts, self._misfits))
        except pa.ArrowInvalid:  # too many fields for one expression
            return range(len(texts))
        rows: list[int] = pc.indices_nonzero(pc.invert(looks_well)).to_pylist()
        return rows

    def _repeats(self, texts: pa.Array) -> Iterable[int]:
        """Rows in which the name of a field is found more than once."""
        if len(self._names) > _MOST_NAMES:
            return ()
        counts = [pc.count_substring(texts, name) for name in self._names]
        rows: list[int] = pc.indices_nonzero(pc.greater(pc.max_element_wise(*counts), 1)).to_pylist() if counts else []
        return rows

    def _faults(self, texts: pa.Array, rows: Iterable[int]) -> dict[int, str]:
        """What Python finds among these rows."""
        found = zip(rows, map(self._fault, texts.take(pa.array(rows, pa.int64())).to_pylist()), strict=True)
        return {row: reason for row, reason in found if reason is not None}

    def _fault(self, text: bytes, decoder: json.JSONDecoder | None = None) -> str | None:
        """Why this is not a JSON value, or does not fit the type, as far as Python finds; without quoting it."""
        try:
            parsed = _loaded(text.decode(), decoder or self._decoder)
        except UnicodeDecodeError:
            return _NOT_UTF8
        except json.JSONDecodeError as error:
            return f"is not JSON: {error.msg} at character {error.pos}"
        except ValueError as error:
            return f"is not JSON: {type(error).__name__}"
        except RecursionError:  # Arrow's reader knows no depth, and takes NaN in what it skips
            return "is not JSON: RecursionError" if re.search(_CONSTANTS.encode(), text) else None
        except ArithmeticError:  # an exponent that decimals do not have
            return None
        return self._misfit(parsed)

    def _halved(self, texts: pa.Array, start: int, wrong: dict[int, str]) -> pa.Array:
        try:
            return self._read(texts, self._lines(texts))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if len(texts) == 1:
                wrong[start] = f"does not fit the type: {_reason(error)}"
                return pa.nulls(1, self._read_type)
        half = len(texts) // 2
        halves = [self._halved(texts.slice(0, half), start, wrong), self._halved(texts.slice(half), start + half, wrong)]
        return pa.concat_arrays(halves)

    def _read(self, texts: pa.Array, lines: bytes) -> pa.Array:
        """Raises ArrowInvalid unless each text is one value of the type. `lines`: them as they were joined.

        Each is put into its own array, in its own object: one that is two values, or none, gives another length;
        one that closes the object gives a row too many; and a string does not go past a line's end.
        """
        column = _parsed(lines, self._schema, len(texts)).column(0).combine_chunks()
        if not pc.all(pc.equal(pc.list_value_length(column), 1), min_count=0).as_py():
            raise pa.ArrowInvalid("not one JSON value in each row")
        reopening = texts.filter(pc.match_substring_regex(texts, _REOPENS))
        if len(reopening):
            # What closes the array and opens another one is wrong where there is no array, and what is right there was refused.
            _parsed(_joined(reopening, b'{"v":', b"}"), _NOTHING, len(reopening))
        column.validate(full=True)  # the reader takes decimals of more digits than the type's
        if self._wide is not None:
            check_decimals(column, _parsed(lines, self._wide, len(texts)).column(0).combine_chunks())
        # Python has looked at those in which an infinity is spelled.
        if is_infinite(column) and is_infinite(column.filter(pc.invert(pc.match_substring_regex(texts, _SPELLED)))):
            raise pa.ArrowInvalid("a number is too large")
        return column.flatten()


class WholeNumbers(JsonFormat):
    """JSON values as a `JsonFormat` has them, with integers that may be written as `1.0` or `1e3`."""

    def decode(self, values: pa.Array) -> DecodedValues:
        """As `JsonFormat` has it; what is bad there is read again with digits in place of such integers."""
        decoded = super().decode(values)
        if not decoded.bad:
            return decoded
        found = {each.row: self._with_digits(as_binary(values)[each.row].as_py()) for each in decoded.bad}
        respelled = {row: text for row, text in found.items() if text is not None}
        again = super().decode(pa.array(respelled.values(), pa.binary()))
        places = np.arange(len(values))
        places[[*respelled]] = len(values) + np.arange(len(respelled))
        refused = {[*respelled][each.row] for each in again.bad} | (found.keys() - respelled.keys())
        column = pa.concat_arrays([decoded.values, again.values]).take(pa.array(places))
        return DecodedValues(column, [each for each in decoded.bad if each.row in refused])

    def _with_digits(self, text: bytes) -> bytes | None:
        """None if it does not fit the type then, either."""
        return None if self._fault(text, _OF_WHOLE) else self._known(text, _OF_WHOLE_DIGITS)


def wide_decimals(schema: pa.Schema) -> pa.Schema | None:
    """Its decimals of 128 bits in 256, where the reader might let a number run over as it scales it; None without such."""
    kind = _wide(pa.struct(list(schema)))
    return None if kind is None else pa.schema(list(kind))


def _wide(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(kind):
        fields = [(each.name, _wide(each.type)) for each in kind]
        wide = [(name, inner) for name, inner in fields if inner is not None]
        return pa.struct(wide) if wide else None
    if _is_list(kind):
        inner = _wide(kind.value_type)
        return None if inner is None else pa.list_(inner)
    # the reader refuses a number of more digits than the type's, so that 256 bits hold any that is scaled
    is_narrow = pa.types.is_decimal128(kind) and kind.precision + kind.scale > _MOST_DIGITS
    return pa.decimal256(2 * _MOST_DIGITS, kind.scale) if is_narrow else None


def check_decimals(values: pa.Array, wide: pa.Array) -> None:
    """Raise ArrowInvalid where a number has run over. `wide`: the same values read as `wide_decimals` has them."""
    if pa.types.is_struct(wide.type):
        parts = dict(zip((each.name for each in values.type), values.flatten(), strict=True))
        for each, part in zip(wide.type, wide.flatten(), strict=True):
            check_decimals(parts[each.name], part)
    elif _is_list(wide.type):
        check_decimals(values.flatten(), wide.flatten())
    elif not values.cast(wide.type).equals(wide):
        raise pa.ArrowInvalid("a number is too large")


def is_infinite(values: pa.Array) -> bool:
    """Whether a number anywhere in it is."""
    if pa.types.is_floating(values.type):
        return bool(pc.any(pc.is_inf(values)).as_py())
    return pa.types.is_nested(values.type) and any(map(is_infinite, _parts(values)))


def _parts(values: pa.Array) -> list[pa.Array]:
    return values.flatten() if pa.types.is_struct(values.type) else [values.flatten()]


def _reason(error: Exception) -> str:
    """The reader's own, without the value, and without the row and the array that were made here."""
    text = _ROW.sub("", unquoted(error))
    return _COLUMN.sub(lambda found: _named((found[1] or "").strip("/").replace("/", ".")), text)[:_BRIEF]


def _named(path: str) -> str:
    return f"field '{path}'" if path else "the value"


_BEFORE, _AFTER = b'{"v":[', b"]}"
_NOTHING = pa.schema([("nothing", pa.bool_())])


def _parsed(lines: bytes, schema: pa.Schema, rows: int) -> pa.Table:
    """Raises ArrowInvalid for what is not JSON, does not fit, or is not this many rows. What the schema lacks is skipped."""
    has_newlines = lines.count(b"\n") >= rows
    options = arrow_json.ParseOptions(
        explicit_schema=schema, newlines_in_values=has_newlines, unexpected_field_behavior="ignore"
    )
    reading = arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    table = arrow_json.read_json(pa.BufferReader(lines), read_options=reading, parse_options=options)
    if table.num_rows != rows:
        raise pa.ArrowInvalid("not one JSON value in each row")
    return table


def _joined(texts: pa.Array, before: bytes, after: bytes) -> bytes:
    wrapped = pc.binary_join_element_wise(before, texts, after, b"")
    whole = pa.ListArray.from_arrays(pa.array([0, len(wrapped)], pa.int32()), wrapped)
    joined: bytes = pc.binary_join(whole, b"\n")[0].as_py()
    return joined


def _chunks(texts: pa.Array) -> Iterator[tuple[int, int]]:
    """Runs of rows of at most _MOST_JOINED_BYTES: first row and number."""
    if texts.nbytes <= _MOST_JOINED_BYTES:
        if len(texts):
            yield 0, len(texts)
        return
    start, size = 0, 0
    for row, length in enumerate(pc.binary_length(texts).to_pylist()):
        if row > start and size + length > _MOST_JOINED_BYTES:
            yield start, row - start
            start, size = row, 0
        size += length
    yield start, len(texts) - start


def _all_rows(texts: pa.Array) -> Iterable[int]:
    return range(len(texts))


def _without(texts: pa.Array, wrong: dict[int, str]) -> pa.Array:
    return pc.fill_null(without(texts, wrong), b"null") if wrong else texts


def _not_utf8(texts: pa.Array) -> list[int]:
    """The reader takes text that is not UTF-8, at least in what it skips."""
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        return [row for row, text in enumerate(texts.to_pylist()) if not is_text(text)]
    return []


def _constant_rows(texts: pa.Array) -> list[int]:
    """Values in which NaN or Infinity may be a number."""
    rows: list[int] = pc.indices_nonzero(pc.match_substring_regex(texts, _CONSTANTS)).to_pylist()
    return rows


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


class _WithRepeats(dict[str, Any]):
    """An object that has names more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = {name for name, times in Counter(name for name, _ in pairs).items() if times > 1}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _WithRepeats(pairs)


def _loaded(text: str, decoder: json.JSONDecoder) -> Any:  # noqa: ANN401 - JSON
    """As `json.loads`, whose search for blanks around a value costs as much as a small value. Raises ValueError."""
    try:
        parsed, end = decoder.raw_decode(text)
    except json.JSONDecodeError:
        return decoder.decode(text)
    return parsed if end == len(text) else decoder.decode(text)


class _Digits(str):
    """A number as it was written."""

    __slots__ = ()

    def of(self, _kind: pa.DataType) -> str:
        """Its text for a value of this type."""
        return self


class _WholeDigits(_Digits):
    """A number that may be an integer, however it was written."""

    __slots__ = ()

    def of(self, kind: pa.DataType) -> str:
        """Digits for an integer."""
        return str(_whole(self)) if pa.types.is_integer(kind) else self


def _whole(number: str) -> int | float:
    """An integer if it is one, whose every digit is kept; a float otherwise, also of what no integer of 64 bits is."""
    try:
        exact = Decimal(number)
    except ArithmeticError:
        return float(number)
    if not exact:
        return 0
    return int(exact) if 0 <= exact.adjusted() < _MOST_DIGITS and exact == int(exact) else float(number)


def _integer(digits: str) -> int | float:
    """An infinity for one that no type holds, as Python refuses those of thousands of digits."""
    return int(digits) if len(digits) < _MOST_INTEGER_DIGITS else math.inf


def _decoder(parse_float: Callable[[str], Any] | None) -> json.JSONDecoder:
    """Refuses what is not JSON."""
    return json.JSONDecoder(
        parse_constant=_refuse_constant, parse_int=_integer, parse_float=parse_float, object_pairs_hook=_object
    )


_OF_DIGITS = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_Digits, parse_float=_Digits)
_OF_WHOLE_DIGITS = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_WholeDigits, parse_float=_WholeDigits)
_OF_WHOLE = _decoder(_whole)


def _respelled(value: Any, kind: pa.DataType, floats: Mapping[str, str]) -> str:  # noqa: ANN401 - JSON
    """The fields of the type, as JSON with the digits that were there, and with what `floats` has in the place of texts."""
    if pa.types.is_struct(kind) and isinstance(value, dict):
        fields = (
            f"{_quoted(each.name)}:{_respelled(value[each.name], each.type, floats)}" for each in kind if each.name in value
        )
        return "{" + ",".join(fields) + "}"
    if _is_list(kind) and isinstance(value, list):
        return "[" + ",".join(_respelled(each, kind.value_type, floats) for each in value) + "]"
    if isinstance(value, _Digits):
        return value.of(kind)
    return floats[value] if pa.types.is_floating(kind) and value in floats else json.dumps(value)


def _check(kind: pa.DataType, path: str) -> _Check:
    """What checks a parsed value. Of a type that only Arrow knows it finds nothing."""
    types = pa.types
    if types.is_struct(kind):
        return _check_object(kind, path)
    if _is_list(kind):
        inner = _check(kind.value_type, f"{path}[]")
        return lambda value: _misfit(value, list, kind, path) or next(filter(None, map(inner, value or ())), None)
    if types.is_boolean(kind):
        return lambda value: _misfit(value, bool, kind, path)
    if types.is_integer(kind):
        bits = kind.bit_width - types.is_signed_integer(kind)
        most = 2**bits - 1
        least = -most - 1 if types.is_signed_integer(kind) else 0
        return lambda value: None if type(value) is int and least <= value <= most else _misfit(value, None, kind, path)
    if types.is_floating(kind):
        return lambda value: None if _is_real(value, kind) else _misfit(value, None, kind, path)
    if types.is_decimal(kind):
        return lambda value: None if _is_decimal(value, kind) else _misfit(value, None, kind, path)
    if _is_text(kind):
        return lambda value: None if type(value) is str else _misfit(value, str, kind, path)
    return lambda _: None


def _check_object(kind: pa.StructType, path: str) -> _Check:
    fields = [(each.name, _check(each.type, f"{path}.{each.name}" if path else each.name)) for each in kind]

    def check(value: Any) -> str | None:  # noqa: ANN401 - JSON
        if not isinstance(value, dict):
            return _misfit(value, dict, kind, path)
        for name, inner in fields:
            each = value.get(name)
            if each is not None and (reason := inner(each)) is not None:
                return reason
        if isinstance(value, _WithRepeats) and (twice := value.repeated.intersection(each.name for each in kind)):
            where = _named(f"{path}.{min(twice)}" if path else min(twice))
            return f"does not fit the type: JSON parse error: {where} was specified twice"
        return None

    return check


def _is_real(value: Any, kind: pa.DataType) -> bool:  # noqa: ANN401 - JSON
    """Whether it is a number that is none of the infinities of this width, or is spelled as one of those."""
    if type(value) is str:
        return value in _NOT_FINITE
    try:
        return type(value) in (int, float, Decimal) and bool(
            math.isfinite(float(value)) and pack(_WIDTHS[kind.bit_width], value)
        )
    except OverflowError:
        return False


def _is_decimal(value: Any, kind: pa.DataType) -> bool:  # noqa: ANN401 - JSON
    """Whether Arrow may read it as such; as a number or in a string."""
    if type(value) not in (int, str, Decimal):
        return False
    try:
        _, digits, exponent = (decimal := Decimal(value)).as_tuple()
    except InvalidOperation:
        return False
    if not isinstance(exponent, int) or len(digits) > kind.precision:
        return False
    while len(digits) > 1 and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    return decimal.is_zero() or (-exponent <= kind.scale and decimal.adjusted() < kind.precision - kind.scale)


def _misfit(value: Any, wanted: type | None, kind: pa.DataType, path: str) -> str | None:  # noqa: ANN401 - JSON
    if value is None or type(value) is wanted:
        return None
    return _unfit(value, path, "an object" if wanted is dict else "an array" if wanted is list else str(kind))


def _unfit(value: Any, path: str, kind: str) -> str:  # noqa: ANN401 - JSON
    given = next(name for each, name in _JSON_NAMES.items() if isinstance(value, each))
    return f"does not fit the type: {_named(path)} is {given} that is not {kind}"


_JSON_NAMES: dict[Any, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    (int, float, Decimal): "a number",
}


# --- expressions by which bad values are found ------------------------------------------------------------------------


def _json_pattern(depth: int) -> str:
    """One value whose arrays and objects are this deep. What takes one for the other is taken, too, so that it stays short."""
    text = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"'
    found = rf"{text}|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null"
    if depth:
        member = rf"(?:{_BLANK}{text}{_BLANK}:)?{_json_pattern(depth - 1)}"
        found += rf"|(?:[\[{{,]{member})+[\]}}]|[\[{{]{_BLANK}[\]}}]"
    return rf"{_BLANK}(?:{found}){_BLANK}"


_JSON = rf"\A{_json_pattern(6)}\z"


def _misfits(kind: pa.DataType) -> list[str]:
    """What finds fields, by their names anywhere, whose values may not fit."""
    names: dict[str, list[str]] = {}
    for each in _fields(kind):
        names.setdefault(_misfit_pattern(each.type), []).append(re.escape(_quoted(each.name)[1:-1]))
    return [rf'"(?:{"|".join(sorted(set(each)))})"{_BLANK}:{_BLANK}(?:{pattern})' for pattern, each in names.items() if pattern]


def _fields(kind: pa.DataType) -> Iterator[pa.Field]:
    """All of them, those in arrays and in other fields too."""
    for each in (kind.field(index) for index in range(kind.num_fields)):
        if pa.types.is_struct(kind):
            yield each
        yield from _fields(each.type)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _misfit_pattern(kind: pa.DataType, end: str = "") -> str:
    """How a value starts that may not fit; empty where that is not known. `end`: of an array, which may come in its place."""
    types = pa.types
    if types.is_integer(kind):
        digits = len(str(2 ** (kind.bit_width - types.is_signed_integer(kind))))
        sign = "" if types.is_signed_integer(kind) else "|-"
        return _other_than("0-9-" + end) + rf"|-?[0-9]+[.eE]|-?[0-9]{{{digits}}}{sign}"
    if types.is_floating(kind):
        return _other_than("0-9-" + end) + rf"|-?[0-9.]+[eE]\+?[0-9]{{{3 if kind.bit_width == 64 else 2}}}"
    if types.is_decimal(kind):
        whole, rest = max(0, kind.precision - kind.scale) + 1, max(0, kind.scale) + 1
        number = rf'"?[-+]?(?:[0-9]{{{whole}}}|[0-9]*\.[0-9]{{{rest}}}|[0-9.]+[eE])'
        return _other_than('0-9"-' + end) + rf'|{number}|"[^"]*[^-+0-9."]|""'
    if types.is_boolean(kind):
        return _other_than("tf" + end)
    if types.is_struct(kind):
        return _other_than("{" + end)
    if _is_list(kind):
        item = _misfit_pattern(kind.value_type, r"\]")
        return _other_than(r"\[" + end) + (rf"|\[(?:{_SCALAR},)*{_BLANK}(?:{item})" if item else "")
    return _other_than('"' + end) if _is_text(kind) else ""


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    """Whether JSON has it in a string; times, too."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_timestamp)
    return any(test(kind) for test in tests)


def _other_than(starts: str) -> str:
    return rf"[^{starts}n \t\r\n]"


def _unreadable(kind: pa.DataType) -> pa.DataType | None:
    """The type, or the one in it, that Arrow's JSON reader has in another form than we write, or not at all."""
    types = pa.types
    if types.is_map(kind) or types.is_date(kind) or types.is_time(kind) or types.is_duration(kind) or types.is_dictionary(kind):
        return kind
    if any(check(kind) for check in (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)):
        return kind
    if types.is_struct(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        found = (_unreadable(kind.field(index).type) for index in range(kind.num_fields))
        return next((inner for inner in found if inner is not None), None)
    return None


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return exactly(values, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"a column of {values.type} is not one of {kind}: {error}") from error
