"""Text whose records are lines: JSON lines, CSV and plain text, cut at line ends, decoded by pyarrow.

Bad lines are found by halving. A CSV file whose values hold newlines is read as a stream instead, and never cut.
"""

from __future__ import annotations

import csv
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise, takewhile
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from headrace.connectors.base.arguments import names, truth
from headrace.connectors.files.read.columns import BadRow, FileRows, check_names, fits
from headrace.connectors.files.read.split import FileSplit
from headrace.connectors.formats.json_times import as_texts, with_times
from headrace.connectors.formats.json_values import JsonFormat, check_decimals, is_infinite, wide_decimals
from headrace.connectors.formats.plain import BytesFormat, StringFormat
from headrace.connectors.formats.value_format import BadValue, DecodedValues, is_text, unquoted
from headrace.enumerator.errors import CorruptDataError, UsageError

T = TypeVar("T")
BLOCK_BYTES = 8 << 20
SAMPLE_BYTES = 1 << 20
_WINDOW = 256  # lines that are searched together
_LINE_BYTES = 64 << 10
_AT_ONCE = max(2, min(pa.cpu_count(), 8))
"""Blocks that are parsed at once, each by one thread: by several, as pyarrow would, that takes a third more of CPU time."""
_SERIAL = arrow_json.ReadOptions(use_threads=False, block_size=4 << 20)
_BOM = b"\xef\xbb\xbf"
_VALUE = "value"
_LARGE = re.compile(rb"(?<![.\d])\d{19}")
_WHOLE = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_NO_ROW = "is not a row of these columns"
_TOO_LARGE = "a number is too large for the column's type"
_NO_END = "a quoted value does not end in its line"
_ROW_BYTES = 64 << 20
_ROW = re.compile(r"Row #(\d+): ")
_IN_COLUMN = re.compile(r"In CSV column #(\d+): ")
_QUOTED = re.compile(r"(columns, got \d+|invalid value)[: ].*", re.DOTALL)


@dataclass(frozen=True)
class Csv:
    """CSV that is not as the default has it.

    - `delimiter` (default a comma) and `quote` (default `"`, doubled in a quoted value).
    - `header`: whether the first line has the names of the columns (default True). Without it the schema has them, in order.
    - `newlines_in_values`: whether quoted values may hold newlines (default False). Such a file is read by one reader.
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
        for name in ("header", "newlines_in_values"):
            truth(name, getattr(self, name))
        if self.null_values is not None:
            names("null_values", self.null_values)


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
    """Lines to the struct of the columns that are wanted. In any threads."""

    def decode(self, values: pa.Array) -> DecodedValues:
        """As a value format does."""

    def whole(self, block: bytearray, lines: int) -> pa.Table | None:
        """The same of a block of as many lines, read at once, if a row for each line is all there is in it."""


class TextDecoder:
    """A line is the column `value`, of this format."""

    def __init__(self, kind: BytesFormat | StringFormat) -> None:
        self._format = kind

    def whole(self, block: bytearray, lines: int) -> None:
        """Not so."""

    def decode(self, values: pa.Array) -> DecodedValues:
        decoded, bad = self._format.decode(values)
        return DecodedValues(pa.StructArray.from_arrays([decoded], [_VALUE]), bad)


def _parsing_json(schema: pa.Schema) -> arrow_json.ParseOptions:
    return arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")


class JsonDecoder:
    """A line is an object."""

    def __init__(self, kind: pa.DataType, time_zone: str | Callable[[], str]) -> None:
        self._format, self._lock = JsonFormat(kind, time_zone=time_zone), Lock()
        self._parsing = _parsing_json(pa.schema(list(kind)))
        wide = wide_decimals(pa.schema(list(kind)))
        self._wide = None if wide is None else _parsing_json(wide)
        self._is_plain = as_texts(kind) == kind

    def decode(self, values: pa.Array) -> DecodedValues:
        with self._lock:  # a format is for one thread at a time
            return self._format.decode(values)

    def whole(self, block: bytearray, lines: int) -> pa.Table | None:
        """Where each line starts and ends as an object does, none is of several lines, and as many rows are one each."""
        is_clean = block.startswith(b"{") and block.endswith((b"}\n", b"}")) and block.count(b"}\n{") == lines - 1
        if not self._is_plain or not is_clean or _has_no_number(block) or not (block.isascii() or is_text(bytes(block))):
            return None
        table = arrow_json.read_json(pa.BufferReader(block), _SERIAL, self._parsing)
        table.validate(full=True)  # the reader takes decimals of more digits than the type's
        if self._wide is not None:
            wide = arrow_json.read_json(pa.BufferReader(block), _SERIAL, self._wide)
            check_decimals(*(each.to_struct_array().combine_chunks() for each in (table, wide)))
        # as no infinity is spelled here, a number is too large
        is_infinite_in = any(is_infinite(part) for column in table.columns for part in column.chunks)
        return None if table.num_rows != lines or is_infinite_in else table


def _has_no_number(block: bytearray) -> bool:
    """Whether the reader might take NaN or Inf for a number. One byte is searched for much faster than three."""
    return (b"N" in block and b"NaN" in block) or (b"I" in block and b"Inf" in block)


class CsvDecoder:
    """Lines of a file with these columns. Raises UsageError for a type that CSV does not have."""

    def __init__(self, csv: Csv, names: Sequence[str], wanted: pa.Schema) -> None:
        self._names = list(names)
        self._parsing, self._converting = _parsing(csv), _converting(csv, wanted, names)
        self._kind = pa.struct([each for each in wanted if each.name in names])
        for each in self._kind:
            if not _is_in_csv(each.type):
                raise UsageError(f"CSV cannot have the column {each.name!r} as {each.type}: take a string, and convert it")
        self._decimals = [each.name for each in self._kind if pa.types.is_decimal(each.type)]

    def whole(self, block: bytearray, lines: int) -> pa.Table | None:
        """Rows are never more than the lines, if no return is alone: if as many, none is of several lines, and none blank."""
        if not self._kind.num_fields or (b"\r" in block and block.count(b"\r") != block.count(b"\r\n")):
            return None
        self._check_quotes(as_lines(block[block.rfind(b"\n", 0, -1) + 1 :]))
        table = self._parsed(pa.py_buffer(block), 1 << 20)
        return table if table.num_rows == lines else None

    def rows(self, text: bytes, count: int) -> pa.Table | None:
        """This number of rows that end with their last newline, if all of them are good, and none is blank."""
        try:
            table = self._parsed(pa.py_buffer(text), len(text) + 1) if self._kind.num_fields else None
        except pa.ArrowInvalid:
            return None
        return table if table is not None and table.num_rows == count else None

    def decode(self, values: pa.Array) -> DecodedValues:
        """Lines with too many or few columns, or a value that its type never has, are found at once; others one by one."""
        counts = pc.add(pc.count_substring(values, self._parsing.delimiter), 1)
        taken = pc.or_(pc.equal(counts, len(self._names)), pc.match_substring(values, self._parsing.quote_char))
        others = pc.indices_nonzero(pc.invert(taken)).to_pylist()
        bad = {row: f"Expected {len(self._names)} columns, got {counts[row]}" for row in others}
        finders = iter((self._misfits_in_one, self._misfits, self._searched))
        decoded = None
        while decoded is None:
            lines = values.filter(taken)
            try:
                decoded = self._read(lines) if len(lines) else pa.nulls(0, self._kind)
            except pa.ArrowInvalid as error:
                rows = pc.indices_nonzero(taken)
                bad |= {rows[at].as_py(): reason for at, reason in next(finders)(lines, str(error)).items()}
                taken = _all_but(bad, len(values))
        if bad:
            decoded = decoded.take(pc.if_else(taken, pc.subtract(pc.cumulative_sum(taken.cast(pa.int64())), 1), None))
        return DecodedValues(decoded, [BadValue(row, f"{_NO_ROW}: {bad[row]}") for row in sorted(bad)])

    def _misfits_in_one(self, lines: pa.Array, error: str) -> dict[int, str]:
        """Those of the column that the error is of: most often the others are good."""
        found = _IN_COLUMN.search(error)
        return {} if found is None else self._misfits_of([self._names[int(found[1])]], lines)

    def _misfits(self, lines: pa.Array, _error: str) -> dict[int, str]:
        return self._misfits_of(self._kind.names, lines)

    def _misfits_of(self, columns: Sequence[str], lines: pa.Array) -> dict[int, str]:
        """Lines with a value in these columns that is not like those of the column's type, and why."""
        patterns = {name: _pattern(self._kind.field(name).type) for name in columns}
        names = [name for name in columns if patterns[name] is not None]
        converting = self._converting_to(pa.binary(), names)
        converting.strings_can_be_null = True
        data = _joined(lines)
        try:
            texts = self._table(data, max(data.size + 1, 1 << 20), converting) if names else pa.table({})
        except pa.ArrowInvalid:
            return {}
        bad: dict[int, str] = {}
        for name in names if texts.num_rows == len(lines) else ():
            kind = self._kind.field(name).type
            fit = pc.match_substring_regex(texts[name], patterns[name])
            if pa.types.is_integer(kind) and kind.bit_width < 64 and pc.all(fit).as_py():
                with suppress(pa.ArrowInvalid):
                    numbers = self._table(data, max(data.size + 1, 1 << 20), self._converting_to(pa.int64(), [name]))[name]
                    is_hex = pc.match_substring(texts[name], "x", ignore_case=True)  # 0xFF is -1 of 8 bits
                    fit = pc.or_(is_hex, pc.equal(numbers, numbers.cast(kind, safe=False).cast(pa.int64())))
            reason = f"In CSV column #{self._names.index(name)}: CSV conversion error to {kind}: invalid value"
            bad = dict.fromkeys(pc.indices_nonzero(pc.invert(fit)).to_pylist(), reason) | bad  # a null is good
        return bad

    def _searched(self, lines: pa.Array, _error: str) -> dict[int, str]:
        """All lines that cannot be read, and why."""
        bad: dict[int, str] = {}
        for first in range(0, len(lines), _WINDOW):
            self._search(lines.slice(first, _WINDOW), first, bad)
        return bad

    def _search(self, lines: pa.Array, first: int, bad: dict[int, str]) -> None:
        """Where the reader names the line that it cannot read, what is before and behind it is read again; else both halves."""
        try:
            if len(lines):
                self._read(lines)
            return
        except pa.ArrowInvalid as error:
            if len(lines) == 1:
                bad[first] = _reason(error)
                return
            row = _ROW.search(str(error))
        at = len(lines) // 2 if row is None else min(int(row[1]), len(lines)) - 1
        ends = (0, at, at + 1, len(lines)) if row is not None else (0, at, len(lines))
        for start, stop in pairwise(ends):
            self._search(lines.slice(start, stop - start), first + start, bad)

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
        table = self._table(data, block_size, self._converting)
        large = [each.name for each in table.schema if pa.types.is_floating(each.type) and is_infinite(table[each.name])]
        if large:
            texts = self._table(data, block_size, self._converting_to(pa.string(), large))
            found = (texts[name].filter(pc.is_inf(table[name])) for name in large)
            if not all(pc.all(pc.match_substring(each, "inf", ignore_case=True)).as_py() for each in found):
                raise pa.ArrowInvalid(_TOO_LARGE)
        self._check_decimals(table, data, block_size)
        return table

    def _check_decimals(self, table: pa.Table, data: pa.Buffer, block_size: int) -> None:
        """Raise ArrowInvalid for numbers of more digits than the type's, or that the reader has let run over 128 bits."""
        if not self._decimals:
            return
        table.select(self._decimals).validate(full=True)
        kinds = {each.name: each.type for each in self._kind if each.name in self._decimals}
        names = [name for name, kind in kinds.items() if kind.precision + kind.scale > 38]
        numbers = self._table(data, block_size, self._converting_to(pa.float64(), names)) if names else table
        for name in names:
            most = 1.5 * 10.0 ** (kinds[name].precision - kinds[name].scale)
            if pc.any(pc.greater(pc.abs(numbers[name]), most)).as_py():
                raise pa.ArrowInvalid(_TOO_LARGE)

    def _converting_to(self, kind: pa.DataType, names: Sequence[str]) -> arrow_csv.ConvertOptions:
        """The texts of these columns as of another type, with the same nulls."""
        nulls = self._converting.null_values
        return arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, kind), include_columns=names, null_values=nulls)

    def _table(self, data: pa.Buffer, block_size: int, converting: arrow_csv.ConvertOptions) -> pa.Table:
        reading = arrow_csv.ReadOptions(column_names=self._names, block_size=block_size, use_threads=False)
        options = {"read_options": reading, "parse_options": self._parsing, "convert_options": converting}
        return arrow_csv.read_csv(pa.BufferReader(data), **options)


@cache
def _is_in_csv(kind: pa.DataType) -> bool:
    reading, converting = arrow_csv.ReadOptions(column_names=["x"]), arrow_csv.ConvertOptions(column_types={"x": kind})
    with suppress(pa.ArrowInvalid):
        try:
            arrow_csv.read_csv(pa.BufferReader(b"1\n"), read_options=reading, convert_options=converting)
        except pa.ArrowNotImplementedError:
            return False
    return True


_DAY = r"\d{4}-?(0\d|1[0-2])-?([0-2]\d|3[01])"


def _pattern(kind: pa.DataType) -> str | None:
    """What each text is like that the reader takes for a value of this type, and few others are. None: any."""
    types = pa.types
    if types.is_integer(kind):
        return rf"\A\s*[+-]?(0*\d{{1,{len(str(1 << kind.bit_width))}}}|0[xX][0-9a-fA-F]+)\s*\z"
    if types.is_floating(kind):
        return r"\A\s*[-+.0-9eE]+\s*\z|(?i)inf|nan"
    if types.is_decimal(kind):
        return r"\A\s*[-+.0-9eE]+\s*\z"
    if types.is_boolean(kind):
        return r"(?i)\A\s*(0|1|true|false)\s*\z"
    if types.is_date(kind) or types.is_timestamp(kind):
        return rf"\A\s*{_DAY}"
    return r"\A\s*\d\d" if types.is_time(kind) else None


def _reason(error: Exception) -> str:
    """The reader's own, without the row of the block that was made here, and without the value."""
    return _ROW.sub("", _QUOTED.sub(r"\1", unquoted(error)).removeprefix("CSV parse error: "))


def _all_but(rows: Iterable[int], count: int) -> pa.Array:
    taken = [True] * count
    for row in rows:
        taken[row] = False
    return pa.array(taken)


def _count(block: bytearray) -> int:
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
    def inferred(self, sample: bytes | bytearray) -> pa.Schema:
        """From whole lines, the header among them."""


@dataclass(frozen=True)
class LinesOfText:
    """Plain text: each line is a record. `names`: the columns of the schema that files may have."""

    names: Sequence[str]

    has_header = False
    skips_blank = False

    def decoder(self, wanted: pa.Schema, first_line: bytes) -> LineDecoder:
        """Into the column `value`."""
        if self.names and _VALUE not in self.names:
            names = ", ".join(map(repr, self.names))
            raise UsageError(f"a line of text is the column {_VALUE!r}, and the schema has {names}: name it {_VALUE!r}")
        kind = wanted.field(_VALUE).type if _VALUE in wanted.names else pa.binary()
        if fits(pa.binary(), kind):
            return TextDecoder(BytesFormat())
        if not fits(pa.string(), kind):
            raise UsageError(f"a line of text is a string, and the schema has {_VALUE!r} as {kind}")
        return TextDecoder(StringFormat())

    def inferred(self, sample: bytes | bytearray) -> pa.Schema:
        """The column `value`."""
        return pa.schema([(_VALUE, pa.string())])


@dataclass(frozen=True)
class LinesOfJson:
    """An object in each line. `time_zone`: as `JsonFormat` has it."""

    time_zone: str | Callable[[], str] = "UTC"

    has_header = False
    skips_blank = True

    def decoder(self, wanted: pa.Schema, first_line: bytes) -> LineDecoder:
        """As `JsonFormat` has it."""
        return JsonDecoder(pa.struct(list(wanted)), self.time_zone)

    def inferred(self, sample: bytes | bytearray) -> pa.Schema:
        """As pyarrow does it; times as they are read here, with a zone where they have one, and large numbers as decimals."""
        reading = arrow_json.ReadOptions(block_size=max(len(sample), 1))
        found, lines = arrow_json.read_json(pa.BufferReader(sample), reading).schema, _filled(as_lines(sample))[0]
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

    def inferred(self, sample: bytes | bytearray) -> pa.Schema:
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
        return self.names_in(header)

    def names_in(self, header: bytes) -> list[str]:
        """What the columns of this row are called."""
        table = arrow_csv.read_csv(pa.BufferReader(header + b"\n"), parse_options=_parsing(self.csv))
        return list(table.column_names)


def read_lines(
    file: pa.NativeFile, split: FileSplit, lines_of: LineFormat, wanted: pa.Schema, batch_rows: int
) -> Iterator[FileRows]:
    """The records of a range behind those that were delivered. Blank lines that are left out count as records.

    `file`: unpacked, and then the range is all of it.
    """
    stop = split.stop if split.stop < split.size else None
    header: bytes | bytearray = b""
    if lines_of.has_header and split.start:
        header = next(line_blocks(file, 0, 1, _LINE_BYTES), b"")
        file.seek(0)
    blocks = line_blocks(file, split.start, stop)
    if lines_of.has_header and not split.start:
        block = next(blocks, bytearray())
        if not block.removesuffix(b"\n"):
            return
        end = block.find(b"\n") + 1 or len(block)
        header = bytes(block[:end])
        del block[:end]
        blocks = chain((block,), blocks)
    decoder = lines_of.decoder(wanted, _trimmed(header))

    def parse(block: _Block) -> list[FileRows]:
        whole = _whole(block, decoder)
        if whole is not None:
            rest = whole.slice(block.delivered).combine_chunks()  # what is done for each batch costs more than this copy
            return list(map(FileRows.of, rest.to_batches(batch_rows)))
        lines = as_lines(block.text)
        firsts = range(block.delivered, block.lines, batch_rows)
        return [_decoded(lines.slice(first, batch_rows), decoder, lines_of) for first in firsts]

    for rows in _parsed_ahead(_undelivered(blocks, split.delivered), parse):
        yield from rows


class _Block(NamedTuple):
    """Some lines, of which the first were delivered."""

    text: bytearray
    lines: int
    delivered: int


def _undelivered(blocks: Iterator[bytearray], delivered: int) -> Iterator[_Block]:
    """The blocks that have more lines than were delivered."""
    for block in blocks:
        lines = _count(block) if block else 0
        if delivered < lines:
            yield _Block(block, lines, delivered)
        delivered -= min(delivered, lines)


def _parsed_ahead(blocks: Iterator[_Block], parse: Callable[[_Block], T]) -> Iterator[T]:
    """What `parse` gives of each block. While some are parsed, the next one is read and searched as well.

    What fails in reading is raised behind the blocks that were read.
    """
    waiting: deque[Future[T]] = deque()
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
                    waiting.append(threads.submit(parse, block))
            if waiting:
                yield waiting.popleft().result()
        if end is not None and not isinstance(end, StopIteration):
            raise end
    finally:
        threads.shutdown(cancel_futures=True)


def _whole(block: _Block, decoder: LineDecoder) -> pa.Table | None:
    try:
        return decoder.whole(block.text, block.lines)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _fields(values: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip((each.name for each in values.type), values.flatten(), strict=True))


def _filled(lines: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Those that are not blank, and which these are, if that is not all."""
    blank = pc.match_substring_regex(lines, r"\A[ \t\r]*\z")
    if not pc.any(blank).as_py():
        return lines, None
    places = pc.indices_nonzero(pc.invert(blank))
    return lines.take(places), places


def _decoded(lines: pa.Array, decoder: LineDecoder, lines_of: LineFormat) -> FileRows:
    rows, places = _filled(lines) if lines_of.skips_blank else (lines, None)
    values, bad = decoder.decode(rows)
    found = [BadRow(each.row, each.reason, rows[each.row].as_py()) for each in bad]
    return FileRows(_fields(values), len(rows), len(lines), found, places)


def read_csv_rows(
    unpacked: Callable[[], pa.NativeFile], split: FileSplit, lines_of: LinesOfCsv, wanted: pa.Schema, batch_rows: int
) -> Iterator[FileRows]:
    """The rows of a file whose values may hold newlines, each as a line. `unpacked` gives it from its start each time."""
    given, names, skipped = lines_of.csv, lines_of.names, 0
    if given.header:
        first = unpacked()  # kept: its end would close the file
        header, skipped = _header_of(first, given)
        names = lines_of.names_in(header)
        check_names(names, wanted.names, lines_of.names)
    decoder, behind = CsvDecoder(given, names, wanted), split.delivered
    for text, ends in _whole_rows(line_blocks(unpacked(), 0, None), given, skipped):
        delivered = min(behind, len(ends))
        behind -= delivered
        if delivered == len(ends):
            continue
        whole = decoder.rows(text, len(ends))
        if whole is not None:
            yield from map(FileRows.of, whole.slice(delivered).combine_chunks().to_batches(batch_rows))
            continue
        rows = _split_rows(text, ends)
        for at in range(delivered, len(rows), batch_rows):
            yield _decoded(rows.slice(at, batch_rows), decoder, lines_of)


def _whole_rows(blocks: Iterable[bytearray], given: Csv, skipped: int) -> Iterator[tuple[bytes, npt.NDArray[np.int64]]]:
    """Rows behind the first `skipped` lines, and where each of them ends. Raises CorruptDataError for a value that does not."""
    rest = b""
    for block in blocks:
        lines = block.splitlines(keepends=True) if skipped else []
        text = rest + block[sum(map(len, lines[:skipped])) :]
        skipped = max(0, skipped - len(lines))
        ends = _row_ends(text, given)
        end = int(ends[-1]) if len(ends) else 0
        rest = text[end:]
        if end:
            yield text[:end], ends
        if len(rest) > _ROW_BYTES:
            break
    if rest:  # of a last row that no newline ends
        text = rest + b"\n"
        ends = _row_ends(text, given)
        if not len(ends) or ends[-1] < len(text):
            what = f"a row takes the rest of the file, or more than {_ROW_BYTES >> 20} MiB"
            raise CorruptDataError(f"a quoted value does not end: {what}")
        yield text, ends


def _row_ends(text: bytes, given: Csv) -> npt.NDArray[np.int64]:
    """Behind the end of each row that ends. A newline ends a row that has an even number of quotes ahead of it, where each of
    these starts or ends a value; where one does neither, as in 5" disks, or lines end otherwise, Python's module decides.
    """
    codes = np.frombuffer(text, np.uint8)
    quote, delimiter, newline, back = given.quote.encode()[0], given.delimiter.encode()[0], 10, 13
    ends = np.flatnonzero(codes == newline) + 1
    quotes = np.flatnonzero(codes == quote)
    starts, stops = quotes[::2], quotes[1::2]
    ahead, behind = codes[starts[starts > 0] - 1], codes[stops[stops + 1 < len(codes)] + 1]
    is_plain = np.isin(ahead, (delimiter, newline, quote)).all() and np.isin(behind, (delimiter, newline, back, quote)).all()
    if not is_plain or text.count(b"\r") != text.count(b"\r\n"):
        return _row_ends_by_csv(text, given)
    whole: npt.NDArray[np.int64] = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return whole


def _row_ends_by_csv(text: bytes, given: Csv) -> npt.NDArray[np.int64]:
    csv.field_size_limit(max(csv.field_size_limit(), 2 * _ROW_BYTES))  # of the process, which has only this one
    lines = text.splitlines(keepends=True)
    read = chain((line.decode("latin-1") for line in lines), ("one more",))
    rows = csv.reader(read, delimiter=given.delimiter, quotechar=given.quote)
    try:
        counts = [rows.line_num for _ in rows]
    except csv.Error as error:
        raise CorruptDataError(f"it is not CSV: {error}") from error
    # the last row has the line that was added, and is more than that where a value is open
    return np.cumsum([len(line) for line in lines], dtype=np.int64)[np.array(counts[:-1], np.int64) - 1]


def _split_rows(text: bytes, ends: npt.NDArray[np.int64]) -> pa.Array:
    """The rows, without their ends."""
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    rows = pa.Array.from_buffers(pa.string(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    return pc.replace_substring_regex(rows.cast(pa.binary()), r"\r?\n?\z", "", max_replacements=1)


def _header_of(file: pa.NativeFile, given: Csv) -> tuple[bytes, int]:
    """The first row that is not blank, whose names may hold newlines, and how many lines end with it.

    Not by pyarrow's stream, which reads ahead in another thread, and so takes bytes from the next one of the same file.
    """
    lines: list[str] = []

    def noted() -> Iterator[str]:
        for block in line_blocks(file, 0, None, _LINE_BYTES):
            for line in block.splitlines(keepends=True):
                lines.append(line.decode("latin-1"))  # each byte a character
                yield lines[-1]

    rows = csv.reader(noted(), delimiter=given.delimiter, quotechar=given.quote)
    try:
        blank = sum(1 for _ in takewhile(lambda row: not row, rows))
    except csv.Error as error:
        raise CorruptDataError(f"its header is not CSV: {error}") from error
    return "".join(lines[blank:]).encode("latin-1"), len(lines)


def sample_lines(file: pa.NativeFile) -> bytes | bytearray:
    """The first lines of a file."""
    return next(line_blocks(file, 0, None, SAMPLE_BYTES), b"")


# --- bytes ------------------------------------------------------------------------------------------------------------


class UpToDamage:
    """A packed file, unpacked. Gives what is ahead of damage, of which pyarrow's stream loses as much as is read at once."""

    def __init__(self, file: pa.CompressedInputStream) -> None:
        self._file = file
        self._error: Exception | None = None

    def readinto(self, free: memoryview) -> int:
        """As of a file. Raises what the reading ended with, behind the bytes ahead of it."""
        count = 0
        while count < len(free) and self._error is None:
            try:
                found: int = self._file.readinto(free[count : count + _LINE_BYTES])
            except Exception as error:  # noqa: BLE001 - raised by the next call
                self._error = error
                break
            if not found:
                break
            count += found
        if self._error is not None and not count:
            raise self._error
        return count


def line_blocks(file: pa.NativeFile, start: int, stop: int | None, block_bytes: int = BLOCK_BYTES) -> Iterator[bytearray]:
    """The lines that start in this range, whole: some at a time, and always at least one. `stop` None: to the end.

    What marks a file as UTF-8 is left out.
    """
    first, rest = _from_first_line(file, start)
    while stop is None or first < stop:
        size = block_bytes if stop is None else min(block_bytes, max(stop - first - len(rest), _LINE_BYTES))
        block = bytearray(len(rest) + max(size, len(rest)))  # of a very long line ever more: it is copied each time
        block[: len(rest)] = rest
        with memoryview(block) as view, view[len(rest) :] as free:
            count = file.readinto(free)
        del block[len(rest) + count :]  # without a copy, as is what follows: most bytes are copied once, from the file
        cut = (block.rfind(b"\n") if stop is None or first + len(block) < stop else block.find(b"\n", stop - 1 - first)) + 1
        is_end = not (count or cut)
        cut = len(block) if is_end else cut
        rest = block[cut:]
        del block[cut:]
        if not first and block.startswith(_BOM):
            del block[: len(_BOM)]
        if block:
            yield block
        if is_end:
            return
        first += cut


def _from_first_line(file: pa.NativeFile, start: int) -> tuple[int, bytes | bytearray]:
    """Where the first line starts that does so in or behind this place, and bytes from there on.

    The byte before the place says whether a line starts with it.
    """
    if not start:
        return 0, b""
    at = start - 1
    file.seek(at)
    while chunk := file.read(_LINE_BYTES):
        newline = chunk.find(b"\n")
        if newline >= 0:
            return at + newline + 1, chunk[newline + 1 :]
        at += len(chunk)
    return at, b""


def as_lines(block: bytes | bytearray) -> pa.Array:
    """Lines without their ends."""
    if not block:
        return pa.array([], pa.binary())
    text = block.replace(b"\r\n", b"\n") if b"\r\n" in block else block
    offsets = pa.array([0, len(text) - text.endswith((b"\n", b"\r"))], pa.int32()).buffers()[1]
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(text)])
    return pc.split_pattern(whole, "\n").flatten()


def _trimmed(header: bytes | bytearray) -> bytes:
    return bytes(header).removesuffix(b"\n").removesuffix(b"\r")
