"""JSON values to typed columns by Arrow's JSON reader, and back.

Values are joined and read at once, which takes a fraction of what a parse of each takes. Where that fails, Arrow names the row
of most faults, and reading continues after it. Only with many faults, or with one whose row it does not name, each value is
parsed; and what Python does not find is found by halving.
"""

from __future__ import annotations

import datetime
import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from headrace.connectors.files.json_lines import json_lines, unwritable
from headrace.connectors.formats.value_format import BadValue, DecodedValues, ValueFormat, as_binary, is_text, nullable, without
from headrace.enumerator.errors import UsageError

_MOST_JOINED_BYTES = 16 << 20  # read at once; a larger value is read alone
_ROW = re.compile(r" in row (\d+)$")
_COLUMN = re.compile(r"Column\(/v(?:/\[\])?(/[^)]*)?\)")
_WINDOW = 256  # values that are looked through at once for bad ones
_ONE_IN, _SOON = 32, 8  # values: with more bad ones than that, or one so soon, each value is parsed
_NOT_UTF8 = "text is not UTF-8"
_CONSTANTS = r"(?:^|[:,\[])[ \t\r\n]*-?(?:NaN|Inf(?:inity)?)[ \t\r\n]*(?:[,\]}]|$)"
"""Where NaN or Infinity may be a number: Arrow's reader takes them for such, and JSON has none. Strings may have it too."""
_Check: TypeAlias = Callable[[Any], str | None]
"""Why a value that Python has parsed does not fit a type; None where it does, or where only Arrow knows."""
_REOPENS = r'\][ \t\r\n]*,[ \t\r\n]*"(?:[^"\\]|\\.)*"[ \t\r\n]*:[ \t\r\n]*\['
"""What a text holds that ends the array that it was put into, and starts another one: `1],"x":[2`. Values may hold it, too."""
_BRIEF = 120  # characters of the reader's own message


class JsonFormat(ValueFormat):
    """JSON values of one Arrow type: usually a struct, of whose fields an object may have more, which are skipped, or fewer.

    A field that an object lacks is null; so all fields are nullable, whatever the type says. An object that has a field twice
    is bad. A timestamp without a zone is one in UTC, where the type has a zone. Raises UsageError for a type that Arrow's JSON
    reader does not give, or that has no form in JSON: maps, unions, bytes, dates, times of day, durations.
    """

    def __init__(self, arrow_type: pa.DataType) -> None:
        self._type = nullable(arrow_type)
        self._schema = pa.schema([("v", pa.list_(self._type))])
        refused = unwritable(arrow_type) or _unreadable(arrow_type)
        if refused is not None:
            raise UsageError(f"JSON values cannot be read as {refused}; take a string, and convert it")
        try:
            self._read(pa.array([b"null"], pa.binary()), b'{"v":[null]}')
        except pa.ArrowNotImplementedError as error:
            raise UsageError(f"JSON values cannot be read as {arrow_type}: {error}") from error
        self._misfit = _check(self._type, "")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its type."""
        return type(self), (self._type,)

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
        cast = values if values.type == self._type else _cast(values, self._type)
        lines = json_lines(pa.record_batch([cast], names=["v"])).splitlines()
        encoded = pa.array([line[len(b'{"v":') : -1] for line in lines], pa.binary())
        return without(encoded, pc.indices_nonzero(cast.is_null()).to_pylist()) if cast.null_count else encoded

    def _decode(self, texts: pa.Array, start: int, bad: list[BadValue]) -> pa.Array:
        """One chunk. `start` is the row of its first value, for what is added to `bad`."""
        lines = _joined(texts, _BEFORE, _AFTER)
        rows = _constant_rows(texts) if b"NaN" in lines or b"Inf" in lines else []
        wrong = {row: reason for row in rows if (reason := self._fault(texts[row].as_py())) is not None}
        if wrong:
            texts = _without(texts, wrong)
            lines = _joined(texts, _BEFORE, _AFTER)
        try:
            column = self._read(texts, lines)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            column = self._read_around(texts, lines, wrong)
        bad += [BadValue(start + row, wrong[row]) for row in sorted(wrong)]
        return column

    def _read_around(self, texts: pa.Array, lines: bytes, wrong: dict[int, str]) -> pa.Array:
        """A chunk with values that cannot be read, which are added to `wrong`."""
        try:
            texts.cast(pa.string())
        except pa.ArrowInvalid:
            wrong |= {row: _NOT_UTF8 for row, text in enumerate(texts.to_pylist()) if not is_text(text)}
        lengths = pc.add(pc.binary_length(texts), len(_BEFORE) + len(_AFTER) + 1).to_pylist()
        starts = list(itertools.accumulate(lengths, initial=0))
        windows = [(first, min(first + _WINDOW, len(texts))) for first in range(0, len(texts), _WINDOW)]

        def read(first: int, end: int) -> pa.Table:
            return _parsed(lines[starts[first] : starts[end] - 1], self._schema, end - first)

        for first, end in windows:
            if not self._find_named(texts, first, end, read, wrong):
                wrong |= self._faults(texts, first, end)
        good = _without(texts, wrong)
        try:
            return self._read(good, _joined(good, _BEFORE, _AFTER))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return pa.concat_arrays([self._halved(good.slice(first, end - first), first, wrong) for first, end in windows])

    def _find_named(
        self, texts: pa.Array, first: int, end: int, read: Callable[[int, int], object], wrong: dict[int, str]
    ) -> bool:
        """Find values by the row that Arrow's parser names, which ends there. False: it names none, or there are many."""
        for _ in range(1 + (end - first) // _ONE_IN):
            try:
                read(first, end)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                named = _ROW.search(str(error))
            else:
                return True
            row = end if named is None else first + int(named[1])
            if row >= end or row - first < _SOON < end - first or (reason := self._alone(texts, row)) is None:
                return False
            wrong[row], first = reason, row + 1
            if first == end:
                return True
        return False

    def _faults(self, texts: pa.Array, first: int, end: int) -> dict[int, str]:
        """What Python finds among these rows."""
        found = enumerate(map(self._fault, texts.slice(first, end - first).to_pylist()), first)
        return {row: reason for row, reason in found if reason is not None}

    def _alone(self, texts: pa.Array, row: int) -> str | None:
        """Why this value cannot be read, if so."""
        reason = self._fault(texts[row].as_py())
        if reason is None:
            found: dict[int, str] = {}
            self._halved(texts.slice(row, 1), 0, found)
            reason = found.get(0)
        return reason

    def _fault(self, text: bytes) -> str | None:
        """Why this is not a JSON value, or does not fit the type, as far as Python finds; without quoting it."""
        try:
            parsed = _loaded(text.decode())
        except UnicodeDecodeError:
            return _NOT_UTF8
        except json.JSONDecodeError as error:
            return f"is not JSON: {error.msg} at character {error.pos}"
        except (ValueError, RecursionError) as error:
            return f"is not JSON: {type(error).__name__}"
        return self._misfit(parsed)

    def _halved(self, texts: pa.Array, start: int, wrong: dict[int, str]) -> pa.Array:
        try:
            return self._read(texts, _joined(texts, _BEFORE, _AFTER))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if len(texts) == 1:
                wrong[start] = f"does not fit the type: {_reason(error)}"
                return pa.nulls(1, self._type)
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
        column.validate(full=True)  # the reader takes text that is not UTF-8
        return column.flatten()


def _reason(error: Exception) -> str:
    """The reader's own, without the row and the array that were made here."""
    return _COLUMN.sub(lambda found: _named((found[1] or "").strip("/").replace("/", ".")), _ROW.sub("", str(error)))[:_BRIEF]


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


def _without(texts: pa.Array, wrong: dict[int, str]) -> pa.Array:
    return pc.fill_null(without(texts, wrong), b"null") if wrong else texts


def _constant_rows(texts: pa.Array) -> list[int]:
    """Values in which NaN or Infinity may be a number."""
    rows: list[int] = pc.indices_nonzero(pc.match_substring_regex(texts, _CONSTANTS)).to_pylist()
    return rows


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _loaded(text: str) -> Any:  # noqa: ANN401 - JSON
    """As `json.loads`, whose search for blanks around a value costs as much as a small value. Raises ValueError."""
    try:
        parsed, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError:
        return _DECODER.decode(text)
    return parsed if end == len(text) else _DECODER.decode(text)


def _check(kind: pa.DataType, path: str) -> _Check:
    """What checks a parsed value. Of a type that only Arrow knows it finds nothing."""
    types = pa.types
    if types.is_struct(kind):
        return _check_object(kind, path)
    if types.is_list(kind) or types.is_large_list(kind):
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
        return lambda value: None if type(value) in (int, float) else _misfit(value, None, kind, path)
    if types.is_timestamp(kind):
        return lambda value: None if type(value) is str and _may_be_date(value) else _misfit(value, None, kind, path)
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return (lambda value: None if type(value) is str else _misfit(value, str, kind, path)) if is_text else lambda _: None


def _check_object(kind: pa.StructType, path: str) -> _Check:
    fields = [(each.name, _check(each.type, f"{path}.{each.name}" if path else each.name)) for each in kind]

    def check(value: Any) -> str | None:  # noqa: ANN401 - JSON
        if type(value) is not dict:
            return _misfit(value, dict, kind, path)
        for name, inner in fields:
            each = value.get(name)
            if each is not None and (reason := inner(each)) is not None:
                return reason
        return None

    return check


def _misfit(value: Any, wanted: type | None, kind: pa.DataType, path: str) -> str | None:  # noqa: ANN401 - JSON
    if value is None or type(value) is wanted:
        return None
    nested = "an object" if wanted is dict else "an array" if wanted is list else str(kind)
    return f"does not fit the type: {_named(path)} is {_JSON_NAMES[type(value)]} that is not {nested}"


_JSON_NAMES = {dict: "an object", list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}


def _may_be_date(text: str) -> bool:
    """Whether it starts with a day of the calendar. Of the year 0 only Arrow knows."""
    try:
        return text.startswith("0000-") or bool(datetime.date.fromisoformat(text[:10]))
    except ValueError:
        return False


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
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"a column of {values.type} is not one of {kind}: {error}") from error
