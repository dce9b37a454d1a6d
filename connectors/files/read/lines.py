"""Text whose records are lines: JSON lines, CSV and plain text, cut at line ends, decoded by pyarrow.

Bad lines are found by halving. A CSV file whose values hold newlines is read as a stream instead, and never cut.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from headrace.connectors.files.read.columns import BadRow, FileRows, check_names
from headrace.connectors.files.read.split import FileSplit
from headrace.connectors.formats.json_times import as_texts, with_times
from headrace.connectors.formats.json_values import JsonFormat, is_infinite
from headrace.connectors.formats.plain import StringFormat
from headrace.connectors.formats.value_format import BadValue, DecodedValues, is_text
from headrace.enumerator.errors import CorruptDataError, UsageError

BLOCK_BYTES = 8 << 20
SAMPLE_BYTES = 1 << 20
_LINE_BYTES = 64 << 10
_AT_ONCE = 2
_BOM = b"\xef\xbb\xbf"
_LARGE = re.compile(rb"(?<![.\d])\d{19}")
_WHOLE = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_NO_ROW = "is not a row of these columns"
_NO_END = "a quoted value does not end in its line"
_QUOTED = re.compile(r"(columns, got \d+|invalid value)[: ].*", re.DOTALL)


@dataclass(frozen=True)
class Csv:
    """CSV that is not as the default has it.

    - `delimiter` (default a comma) and `quote` (default `"`, doubled in a quoted value).
    - `header`: whether the first line has the names of the columns (default True). Without it the schema has them, in order.
    - `newlines_in_values`: whether quoted values may hold newlines (default False). Such a file is read by one reader, and
      from its first bad value on it is bad.
    - `null_values`: texts that mean null, also of text columns; by default pyarrow's, and a text is never null.

    Raises UsageError.
    """

    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    newlines_in_values: bool = False
    null_values: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Refuse what is not CSV."""
        for name in ("delimiter", "quote"):
            letter = getattr(self, name)
            if not isinstance(letter, str) or len(letter) != 1 or not letter.isascii() or letter in "\r\n":
                raise UsageError(f"{name} must be one character of ASCII, not {letter!r}")
        if isinstance(self.null_values, str):
            raise UsageError(f"null_values must be a list of texts, not {self.null_values!r}")


def _parsing(csv: Csv) -> arrow_csv.ParseOptions:
    return arrow_csv.ParseOptions(delimiter=csv.delimiter, quote_char=csv.quote, newlines_in_values=csv.newlines_in_values)


def _converting(csv: Csv, wanted: pa.Schema, names: Sequence[str]) -> arrow_csv.ConvertOptions:
    """For these of a file's columns."""
    kinds = {each.name: each.type for each in wanted if each.name in names} or dict.fromkeys(names[:1], pa.binary())  # not all
    options = arrow_csv.ConvertOptions(column_types=kinds, include_columns=list(kinds))
    if csv.null_values is not None:
        options.null_values, options.strings_can_be_null = list(csv.null_values), True
    return options


class LineDecoder(Protocol):
    """Lines to the struct of the columns that are wanted."""

    def decode(self, values: pa.Array) -> DecodedValues:
        """As a value format does."""

    def whole(self, block: bytes, lines: int) -> pa.StructArray | None:
        """The same of a block of as many lines, read at once, if a row for each line is all there is in it. In any thread."""


class TextDecoder:
    """A line is the column `value`."""

    def whole(self, block: bytes, lines: int) -> None:
        """Not so."""

    def decode(self, values: pa.Array) -> DecodedValues:
        decoded, bad = StringFormat().decode(values)
        return DecodedValues(pa.StructArray.from_arrays([decoded], ["value"]), bad)


class JsonDecoder:
    """A line is an object."""

    def __init__(self, kind: pa.DataType, time_zone: str | Callable[[], str]) -> None:
        self._format = JsonFormat(kind, time_zone=time_zone)
        self._parsing = arrow_json.ParseOptions(explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="ignore")
        self._is_plain = as_texts(kind) == kind

    def decode(self, values: pa.Array) -> DecodedValues:
        return self._format.decode(values)

    def whole(self, block: bytes, lines: int) -> pa.StructArray | None:
        """Where each line starts and ends as an object does, none is of several lines, and as many rows are one each."""
        is_clean = block.startswith(b"{") and block.endswith((b"}\n", b"}")) and block.count(b"}\n{") == lines - 1
        if not self._is_plain or not is_clean or _has_no_number(block) or not (block.isascii() or is_text(block)):
            return None
        table = arrow_json.read_json(pa.BufferReader(block), parse_options=self._parsing)
        table.validate(full=True)  # the reader takes decimals of more digits than the type's
        rows = _structs(table, lines)
        return None if rows is None or is_infinite(rows) else rows  # as no infinity is spelled here, a number is too large


def _has_no_number(block: bytes) -> bool:
    """Whether the reader might take NaN or Inf for a number. One byte is searched for much faster than three."""
    return (b"N" in block and b"NaN" in block) or (b"I" in block and b"Inf" in block)


class CsvDecoder:
    """Lines of a file with these columns."""

    def __init__(self, csv: Csv, names: Sequence[str], wanted: pa.Schema) -> None:
        self._names = list(names)
        self._parsing, self._converting = _parsing(csv), _converting(csv, wanted, names)
        self._kind = pa.struct([each for each in wanted if each.name in names])

    def whole(self, block: bytes, lines: int) -> pa.StructArray | None:
        """Rows are never more than the lines: if they are as many, none is of several lines, and none blank."""
        if not self._kind.num_fields:
            return None
        self._check_quotes(as_lines(block[block.rfind(b"\n", 0, -1) + 1 :]))
        return _structs(self._parsed(pa.py_buffer(block), 1 << 20), lines)

    def decode(self, values: pa.Array) -> DecodedValues:
        """Lines with other numbers of columns cost nothing, others that are bad are found by halving."""
        bad: list[BadValue] = []
        counts = pc.add(pc.count_substring(values, self._parsing.delimiter), 1)
        counted = pc.or_(pc.equal(counts, len(self._names)), pc.match_substring(values, self._parsing.quote_char))
        places = pc.indices_nonzero(counted)
        parts = self._halved(values.take(places), 0, bad)
        found = pa.concat_arrays(parts) if parts else pa.nulls(0, self._kind)
        if len(places) == len(values):
            return DecodedValues(found, bad)
        bad = [each._replace(row=places[each.row].as_py()) for each in bad]
        for row in pc.indices_nonzero(pc.invert(counted)).to_pylist():
            bad.append(BadValue(row, f"{_NO_ROW}: Expected {len(self._names)} columns, got {counts[row]}"))
        rows = pc.subtract(pc.cumulative_sum(counted.cast(pa.int64())), 1)
        return DecodedValues(found.take(pc.if_else(counted, rows, None)), sorted(bad))

    def _halved(self, lines: pa.Array, first: int, bad: list[BadValue]) -> list[pa.Array]:
        try:
            return [self._read(lines)] if len(lines) else []
        except pa.ArrowInvalid as error:
            if len(lines) == 1:
                bad.append(BadValue(first, f"{_NO_ROW}: {_reason(error)}"))
                return [pa.nulls(1, self._kind)]
        half = len(lines) // 2
        return [*self._halved(lines.slice(0, half), first, bad), *self._halved(lines.slice(half), first + half, bad)]

    def _read(self, lines: pa.Array) -> pa.Array:
        if not self._kind.num_fields:
            return pa.array([{}] * len(lines), self._kind)
        data = _joined(lines)
        values = _structs(self._parsed(data, max(data.size + 1, 1 << 20)), len(lines))
        if values is None:
            raise pa.ArrowInvalid(_NO_END)
        self._check_quotes(lines)
        return values

    def _check_quotes(self, lines: pa.Array) -> None:
        """Raise ArrowInvalid for a quoted value without an end: the reader takes it, and it would have a further one in it."""
        quoted = lines.filter(pc.match_substring(lines, self._parsing.quote_char))
        if not len(quoted):
            return
        data = _joined(pc.binary_join_element_wise(quoted, self._parsing.delimiter.encode(), b""))
        reading = arrow_csv.ReadOptions(column_names=[*self._names, ""], block_size=max(data.size + 1, 1 << 20))
        try:
            table = arrow_csv.read_csv(pa.BufferReader(data), read_options=reading, parse_options=self._parsing)
        except pa.ArrowInvalid:
            raise pa.ArrowInvalid(_NO_END) from None
        if table.num_rows != len(quoted):
            raise pa.ArrowInvalid(_NO_END)

    def _parsed(self, data: pa.Buffer, block_size: int) -> pa.Table:
        reading = arrow_csv.ReadOptions(column_names=self._names, block_size=block_size)
        options = {"read_options": reading, "parse_options": self._parsing, "convert_options": self._converting}
        table = arrow_csv.read_csv(pa.BufferReader(data), **options)
        large = [each.name for each in table.schema if pa.types.is_floating(each.type) and is_infinite(table[each.name])]
        if large:
            options["convert_options"] = arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(large, pa.string()), include_columns=large
            )
            texts = arrow_csv.read_csv(pa.BufferReader(data), **options)
            found = (texts[name].filter(pc.is_inf(table[name])) for name in large)
            if not all(pc.all(pc.match_substring(each, "inf", ignore_case=True)).as_py() for each in found):
                raise pa.ArrowInvalid("a number is too large for the column's type")
        return table


def _reason(error: Exception) -> str:
    """The reader's own, without the row of the block that was made here, and without the value."""
    text = _QUOTED.sub(r"\1", str(error)).removeprefix("CSV parse error: ")
    return text.split(": ", 1)[1] if text.startswith("Row #") else text


def _count(block: bytes) -> int:
    return block.count(b"\n") + (not block.endswith(b"\n"))


def _structs(table: pa.Table, rows: int) -> pa.StructArray | None:
    return table.to_struct_array().combine_chunks() if table.num_rows == rows else None


def _joined(lines: pa.Array) -> pa.Buffer:
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    return pc.binary_join(whole, b"\n")[0].as_buffer()


# --- files ------------------------------------------------------------------------------------------------------------


class LineFormat(Protocol):
    """How lines are read. `first_line`: of the file, where the format `has_header`."""

    @property
    def has_header(self) -> bool: ...
    @property
    def skips_blank(self) -> bool: ...
    def decoder(self, wanted: pa.Schema, first_line: bytes) -> LineDecoder: ...
    def inferred(self, sample: bytes) -> pa.Schema:
        """From whole lines, the header among them."""


class LinesOfText:
    """Plain text: each line is a record."""

    has_header = False
    skips_blank = False

    def decoder(self, wanted: pa.Schema, first_line: bytes) -> LineDecoder:
        """Into the column `value`."""
        return TextDecoder()

    def inferred(self, sample: bytes) -> pa.Schema:
        """The column `value`."""
        return pa.schema([("value", pa.string())])


@dataclass(frozen=True)
class LinesOfJson:
    """An object in each line. `time_zone`: as `JsonFormat` has it."""

    time_zone: str | Callable[[], str] = "UTC"

    has_header = False
    skips_blank = True

    def decoder(self, wanted: pa.Schema, first_line: bytes) -> LineDecoder:
        """As `JsonFormat` has it."""
        return JsonDecoder(pa.struct(list(wanted)), self.time_zone)

    def inferred(self, sample: bytes) -> pa.Schema:
        """As pyarrow does it; times as they are read here, with a zone where they have one, and large numbers as decimals."""
        reading = arrow_json.ReadOptions(block_size=max(len(sample), 1))
        found, lines = arrow_json.read_json(pa.BufferReader(sample), reading).schema, _filled(as_lines(sample))
        kind = pa.struct(list(found))
        if _LARGE.search(sample):
            with suppress(ValueError):  # of objects of several lines
                kind = _with_large(kind, [json.loads(line) for line in lines.to_pylist()])
        return pa.schema([_timed(each, lines) for each in kind])


def _with_large(kind: pa.DataType, values: Sequence[Any]) -> pa.DataType:
    """An inferred type, with decimals where these values are whole numbers of more than 64 bits, and not doubles."""
    given = [value for value in values if value is not None]
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_with_large(each.type, [value.get(each.name) for value in given])) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_with_large(kind.value_type, [item for value in given for item in value]))
    if not pa.types.is_floating(kind) or not all(type(value) is int for value in given):
        return kind
    return pa.decimal128(38, 0) if 1 << 63 <= max(map(abs, given), default=0) < 10**38 else kind


def _timed(field: pa.Field, lines: pa.Array) -> pa.Field:
    """The column of these lines with times that all of them have, else with texts. pyarrow's are of no zone, and seconds."""
    if as_texts(field.type) == field.type:
        return field
    for time in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        timed = field.with_type(with_times(field.type, time))
        if not JsonFormat(pa.struct([timed])).decode(lines).bad:
            return timed
    return field.with_type(as_texts(field.type))


@dataclass(frozen=True)
class LinesOfCsv:
    """Rows of CSV. Raises CorruptDataError for a file whose first line is not a header."""

    csv: Csv
    names: Sequence[str]
    """Of the columns that a file should have, and has in this order where there is no header."""

    @property
    def has_header(self) -> bool:
        return self.csv.header

    skips_blank = True

    def decoder(self, wanted: pa.Schema, first_line: bytes) -> LineDecoder:
        """Of a file with this header, or with the schema's columns."""
        names = self._names(first_line) if self.csv.header else self.names
        check_names(names, wanted.names, self.names)
        for name in wanted.names:
            if names.count(name) > 1:
                raise CorruptDataError(f"it has the column {name!r} {names.count(name)} times")
        return CsvDecoder(self.csv, names, wanted)

    def inferred(self, sample: bytes) -> pa.Schema:
        """As pyarrow does it, but for `_with_large`."""
        reading = arrow_csv.ReadOptions(autogenerate_column_names=not self.csv.header)
        options = {"read_options": reading, "parse_options": _parsing(self.csv)}
        found = arrow_csv.read_csv(pa.BufferReader(sample), **options)
        if not _LARGE.search(sample):
            return found.schema
        as_text = arrow_csv.ConvertOptions(column_types=dict.fromkeys(found.column_names, pa.string()))
        texts = arrow_csv.read_csv(pa.BufferReader(sample), **options, convert_options=as_text)
        kinds = []
        for column, text in zip(found.columns, texts.columns, strict=True):
            given = text.filter(column.is_valid()).to_pylist() if pa.types.is_floating(column.type) else []
            kinds.append(_with_large(column.type, [int(each) if _WHOLE.fullmatch(each) else each for each in given]))
        return pa.schema(list(zip(found.column_names, kinds, strict=True)))

    def _names(self, header: bytes) -> list[str]:
        if b"\r" in header.rstrip(b"\r"):
            raise CorruptDataError("its lines end with a carriage return alone: a line ends with a newline, or with both")
        table = arrow_csv.read_csv(pa.BufferReader(header + b"\n"), parse_options=_parsing(self.csv))
        return list(table.column_names)


def read_lines(
    file: pa.NativeFile, split: FileSplit, lines_of: LineFormat, wanted: pa.Schema, batch_rows: int
) -> Iterator[FileRows]:
    """The records of a range behind those that were delivered. Blank lines that are left out count as records.

    `file`: unpacked, and then the range is all of it.
    """
    stop = split.stop if split.stop < split.size else None
    header = b""
    if lines_of.has_header and split.start:
        header = next(line_blocks(file, 0, 1, _LINE_BYTES), b"")
        file.seek(0)
    blocks = line_blocks(file, split.start, stop)
    if lines_of.has_header and not split.start:
        header, _, rest = next(blocks, b"").partition(b"\n")
        if not header and not rest:
            return
        blocks = chain((rest,), blocks)
    decoder = lines_of.decoder(wanted, _trimmed(header))
    for block, whole in _parsed_ahead(_undelivered(blocks, split.delivered), decoder):
        lines = as_lines(block.text) if whole is None else whole
        for first in range(block.delivered, block.lines, batch_rows):
            part = lines.slice(first, batch_rows)
            yield _decoded(part, decoder, lines_of) if whole is None else FileRows(_fields(part), len(part), len(part))


class _Block(NamedTuple):
    """Some lines, of which the first were delivered."""

    text: bytes
    lines: int
    delivered: int


def _undelivered(blocks: Iterator[bytes], delivered: int) -> Iterator[_Block]:
    """The blocks that have more lines than were delivered."""
    for block in blocks:
        lines = _count(block) if block else 0
        if delivered < lines:
            yield _Block(block, lines, delivered)
        delivered -= min(delivered, lines)


def _parsed_ahead(blocks: Iterator[_Block], decoder: LineDecoder) -> Iterator[tuple[_Block, pa.StructArray | None]]:
    """Each block with what `whole` gives of it. While one is parsed, the next one is read, searched and parsed as well.

    What fails in reading is raised behind the blocks that were read.
    """
    waiting: deque[tuple[_Block, Future[pa.StructArray | None]]] = deque()
    end: Exception | None = None
    threads = ThreadPoolExecutor(_AT_ONCE, "headrace-lines")
    try:
        while waiting or end is None:
            while end is None and len(waiting) < _AT_ONCE:
                try:
                    block = next(blocks)
                except Exception as error:  # noqa: BLE001 - raised below
                    end = error
                else:
                    waiting.append((block, threads.submit(_whole, block, decoder)))
            if waiting:
                block, parsed = waiting.popleft()
                yield block, parsed.result()
        if end is not None and not isinstance(end, StopIteration):
            raise end
    finally:
        threads.shutdown(cancel_futures=True)


def _whole(block: _Block, decoder: LineDecoder) -> pa.StructArray | None:
    try:
        return decoder.whole(block.text, block.lines)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _fields(values: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip((each.name for each in values.type), values.flatten(), strict=True))


def _filled(lines: pa.Array) -> pa.Array:
    """Those that are not blank."""
    blank = pc.match_substring_regex(lines, r"\A[ \t\r]*\z")
    return lines.filter(pc.invert(blank)) if pc.any(blank).as_py() else lines


def _decoded(lines: pa.Array, decoder: LineDecoder, lines_of: LineFormat) -> FileRows:
    rows = _filled(lines) if lines_of.skips_blank else lines
    values, bad = decoder.decode(rows)
    found = [BadRow(each.row, each.reason, rows[each.row].as_py()) for each in bad]
    return FileRows(_fields(values), len(rows), len(lines), found)


def read_csv_stream(
    file: pa.NativeFile, split: FileSplit, lines_of: LinesOfCsv, wanted: pa.Schema, batch_rows: int
) -> Iterator[FileRows]:
    """The rows of a file whose values may hold newlines."""
    csv, names = lines_of.csv, lines_of.names
    if csv.header:
        head = arrow_csv.open_csv(file, parse_options=_parsing(csv))
        names = head.schema.names
        check_names(names, wanted.names, lines_of.names)
        file.seek(0)
    reading = arrow_csv.ReadOptions(column_names=names, skip_rows=int(csv.header), block_size=BLOCK_BYTES)
    reader = arrow_csv.open_csv(
        file, read_options=reading, parse_options=_parsing(csv), convert_options=_converting(csv, wanted, names)
    )
    behind = split.delivered
    for batch in reader:
        rest = batch.slice(min(behind, batch.num_rows))
        behind -= batch.num_rows - rest.num_rows
        for first in range(0, rest.num_rows, batch_rows):
            part = rest.slice(first, batch_rows)
            yield FileRows(dict(zip(part.schema.names, part.columns, strict=True)), part.num_rows, part.num_rows)


def sample_lines(file: pa.NativeFile) -> bytes:
    """The first lines of a file."""
    return next(line_blocks(file, 0, None, SAMPLE_BYTES), b"")


# --- bytes ------------------------------------------------------------------------------------------------------------


def line_blocks(file: pa.NativeFile, start: int, stop: int | None, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The lines that start in this range, whole: some at a time, and always at least one. `stop` None: to the end.

    What marks a file as UTF-8 is left out.
    """
    first, data = _from_first_line(file, start, block_bytes)
    at = first + len(data)
    while stop is None or first < stop:
        cut = (data.rfind(b"\n") if stop is None or at < stop else data.find(b"\n", stop - 1 - first)) + 1
        if cut:
            yield data[:cut] if first else data[:cut].removeprefix(_BOM)
            first, data = first + cut, data[cut:]
            continue
        size = block_bytes if stop is None else min(block_bytes, max(stop - at, _LINE_BYTES))
        chunk = file.read(max(size, len(data)))  # of a very long line ever more: it is copied each time
        if not chunk:
            if data:
                yield data if first else data.removeprefix(_BOM)
            return
        end = chunk.rfind(b"\n") + 1
        if first and end and (stop is None or at + len(chunk) < stop):  # most blocks, copied once
            yield b"".join((data, memoryview(chunk)[:end]))
            first, data, at = at + end, chunk[end:], at + len(chunk)
        else:
            data, at = data + chunk, at + len(chunk)


def _from_first_line(file: pa.NativeFile, start: int, block_bytes: int) -> tuple[int, bytes]:
    """Where the first line starts that does so in or behind this place, and bytes from there on.

    The byte before the place says whether a line starts with it.
    """
    if not start:
        return 0, file.read(block_bytes)
    at = start - 1
    file.seek(at)
    while chunk := file.read(_LINE_BYTES):
        newline = chunk.find(b"\n")
        if newline >= 0:
            return at + newline + 1, chunk[newline + 1 :]
        at += len(chunk)
    return at, b""


def as_lines(block: bytes) -> pa.Array:
    """Lines without their ends."""
    text = block.replace(b"\r\n", b"\n") if b"\r\n" in block else block
    text = text.removesuffix(b"\n") if text.endswith(b"\n") else text.removesuffix(b"\r")
    if not block:
        return pa.array([], pa.binary())
    offsets = pa.array([0, len(text)], pa.int32()).buffers()[1]
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(text)])
    return pc.split_pattern(whole, "\n").flatten()


def _trimmed(header: bytes) -> bytes:
    return header.removesuffix(b"\n").removesuffix(b"\r")
