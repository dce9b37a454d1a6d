"""JSON values to typed columns by Arrow's JSON reader, and back.

Values are joined and read at once, which takes a fraction of what a parse of each takes. Where that fails, the values that
are not JSON are found one by one, and those that do not fit the type by halving.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from headrace.connectors.files.json_lines import json_lines, unwritable
from headrace.connectors.formats.value_format import BadValue, DecodedValues, ValueFormat, as_binary, without
from headrace.enumerator.errors import UsageError

__all__ = ["JsonFormat"]

_MOST_JOINED_BYTES = 16 << 20  # read at once; a larger value is read alone
_ROW = re.compile(r" in row \d+$")  # of those that were read together, which no one knows
_REOPENS = r'\][ \t\r\n]*,[ \t\r\n]*"(?:[^"\\]|\\.)*"[ \t\r\n]*:[ \t\r\n]*\['
"""What a text holds that ends the array that it was put into, and starts another one: `1],"x":[2`. Values may hold it, too."""
_BRIEF = 120  # characters of the reader's own message


class JsonFormat(ValueFormat):
    """JSON values of one Arrow type: usually a struct, of whose fields an object may have more, which are skipped, or fewer.

    A field that an object lacks is null. Raises UsageError for a type that Arrow's JSON reader does not give, or that has no
    form in JSON: maps, unions, bytes, dates, times of day, durations.
    """

    def __init__(self, arrow_type: pa.DataType) -> None:
        self._type = arrow_type
        self._schema = pa.schema([("v", pa.list_(arrow_type))])
        refused = unwritable(arrow_type) or _unreadable(arrow_type)
        if refused is not None:
            raise UsageError(f"JSON values cannot be read as {refused}; take a string, and convert it")
        try:
            self._read(pa.array([b"null"], pa.binary()))
        except pa.ArrowNotImplementedError as error:
            raise UsageError(f"JSON values cannot be read as {arrow_type}: {error}") from error

    @property
    def arrow_type(self) -> pa.DataType:
        """The type that was asked for."""
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
        if not _may_have_constants(texts):
            try:
                return self._read(texts)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                pass
        syntax = [(row, reason) for row, text in enumerate(texts.to_pylist()) if (reason := _fault(text)) is not None]
        good = pc.fill_null(without(texts, [row for row, _ in syntax]), b"null") if syntax else texts
        wrong = dict(syntax)
        column = self._halved(good, 0, wrong)
        bad += [BadValue(start + row, wrong[row]) for row in sorted(wrong)]
        return column

    def _halved(self, texts: pa.Array, start: int, wrong: dict[int, str]) -> pa.Array:
        try:
            return self._read(texts)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if len(texts) == 1:
                wrong[start] = f"does not fit the type: {_reason(error)}"
                return pa.nulls(1, self._type)
        half = len(texts) // 2
        halves = [self._halved(texts.slice(0, half), start, wrong), self._halved(texts.slice(half), start + half, wrong)]
        return pa.concat_arrays(halves)

    def _read(self, texts: pa.Array) -> pa.Array:
        """Raises ArrowInvalid unless each text is one value of the type.

        Each is put into its own array, in its own object: one that is two values, or none, gives another length;
        one that closes the object gives a row too many; and a string does not go past a line's end.
        """
        column = _parsed(_joined(texts, b'{"v":[', b"]}"), self._schema, len(texts)).column(0).combine_chunks()
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
    return _ROW.sub("", str(error)).replace("(/v/[]", "(/v", 1)[:_BRIEF]


_NOTHING = pa.schema([("nothing", pa.bool_())])


def _parsed(lines: pa.Buffer, schema: pa.Schema, rows: int) -> pa.Table:
    """Raises ArrowInvalid for what is not JSON, does not fit, or is not this many rows. What the schema lacks is skipped."""
    options = arrow_json.ParseOptions(explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore")
    reading = arrow_json.ReadOptions(use_threads=False, block_size=lines.size + 1)
    table = arrow_json.read_json(pa.BufferReader(lines), read_options=reading, parse_options=options)
    if table.num_rows != rows:
        raise pa.ArrowInvalid("not one JSON value in each row")
    return table


def _joined(texts: pa.Array, before: bytes, after: bytes) -> pa.Buffer:
    wrapped = pc.binary_join_element_wise(before, texts, after, b"")
    whole = pa.ListArray.from_arrays(pa.array([0, len(wrapped)], pa.int32()), wrapped)
    return pa.py_buffer(pc.binary_join(whole, b"\n")[0].as_buffer())


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


def _fault(text: bytes) -> str | None:
    """Why this is not JSON value, without quoting it."""
    try:
        json.loads(text.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        return "text is not UTF-8"
    except json.JSONDecodeError as error:
        return f"is not JSON: {error.msg} at character {error.pos}"
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {type(error).__name__}"
    return None


def _may_have_constants(texts: pa.Array) -> bool:
    """Whether NaN or Infinity is anywhere: Arrow's reader takes them for numbers, and they are not JSON."""
    return any(pc.any(pc.match_substring(texts, name)).as_py() for name in ("NaN", "Inf"))


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


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
