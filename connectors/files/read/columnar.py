"""Files that know their columns: Parquet and Arrow IPC by pyarrow, Avro's containers by fastavro."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.connectors.files.read.columns import FileColumns, FileRows, check_fits, is_list, plain_schema
from headrace.connectors.files.read.split import FileSplit
from headrace.connectors.formats.avro.avro_format import AvroFormat
from headrace.connectors.formats.avro.program import arrow_type, varint
from headrace.connectors.formats.avro.schema import AvroRecord, parse
from headrace.connectors.formats.value_format import quoted_part
from headrace.enumerator.errors import CorruptDataError, HeadraceError, UsageError

_IPC_MAGIC = b"ARROW1"
_GATHERED_BYTES = 8 << 20
_DECODED_BYTES = 4 << 20
_PIECE_BYTES = 8 << 20
_NOT_INSTALLED = "you need to install"
"""In what fastavro raises for a codec without its library."""


class ColumnarFormat(ABC):
    """How such a file is read. What pyarrow and fastavro raise of its bytes is raised as they do."""

    is_cut: bool
    """Whether a large file is read in ranges."""

    @abstractmethod
    def schema(self, file: pa.NativeFile) -> pa.Schema:
        """Of the file."""

    @abstractmethod
    def read(self, file: pa.NativeFile, split: FileSplit, columns: FileColumns, batch_rows: int) -> Iterator[FileRows]:
        """The rows of a range behind those that were delivered; only columns that are wanted, of the file's types."""


class Parquet(ColumnarFormat):
    """The row groups of a range."""

    is_cut = True

    def schema(self, file: pa.NativeFile) -> pa.Schema:
        return _with_instants(_parquet(file))

    def read(self, file: pa.NativeFile, split: FileSplit, columns: FileColumns, batch_rows: int) -> Iterator[FileRows]:
        """Column by column, in pyarrow's threads. Its dataset reserves names, such as `__filename`."""
        opened = _parquet(file)
        found, rows = opened.schema_arrow, opened.metadata
        check_fits(_with_instants(opened), columns)
        groups, behind = list(split.share(rows.num_row_groups)), split.delivered
        while groups and rows.row_group(groups[0]).num_rows <= behind:
            behind -= rows.row_group(groups.pop(0)).num_rows
        if not groups:
            return
        names = [name for name in columns.wanted.names if name in found.names]
        left = sum(rows.row_group(group).num_rows for group in groups)
        kinds = [found.field(name).type for name in names]
        wide = _decoded_rows(kinds, left, batch_rows)
        # of a dictionary within a nested type pyarrow makes no batch over the end of a row group
        pieces = [[group] for group in groups] if any(map(_has_dictionary_within, kinds)) else [groups]
        try:
            # a short piece is decoded at once, next to others: its columns are not worth a thread each
            batches = chain.from_iterable(opened.iter_batches(wide, each, names, use_threads=wide < left) for each in pieces)
            for each in _behind(batches, behind, batch_rows):
                behind += each.num_rows
                yield FileRows.of(each)
        except (pa.ArrowException, OSError):
            if wide == batch_rows:
                raise
            # there may be some ahead of the damage
            yield from map(FileRows.of, _behind(opened.iter_batches(batch_rows, groups, names), behind, batch_rows))


class ArrowIpc(ColumnarFormat):
    """The record batches of a range; of streams, which are not cut, all of them."""

    is_cut = True

    def schema(self, file: pa.NativeFile) -> pa.Schema:
        return pa.ipc.open_file(file).schema if _is_ipc_file(file) else pa.ipc.open_stream(file).schema

    def read(self, file: pa.NativeFile, split: FileSplit, columns: FileColumns, batch_rows: int) -> Iterator[FileRows]:
        if _is_ipc_file(file):
            reader = pa.ipc.open_file(file, options=_ipc_options(self.schema(file), columns))
            batches: Iterator[pa.RecordBatch] = (reader.get_batch(number) for number in split.share(reader.num_record_batches))
        elif split.start:
            return
        else:
            batches = _streamed(file, columns)
        yield from map(FileRows.of, _behind(batches, split.delivered, batch_rows))


class Avro(ColumnarFormat):
    """The records of a container, which is not cut: a block is found by reading all the previous ones.

    fastavro finds the blocks. Each is an array to our decoder: Python has not all times that Avro has, nor intervals.
    """

    is_cut = False

    def schema(self, file: pa.NativeFile) -> pa.Schema:
        return self._columns(json.dumps(_avro().reader(file).writer_schema), None)

    def read(self, file: pa.NativeFile, split: FileSplit, columns: FileColumns, batch_rows: int) -> Iterator[FileRows]:
        written = json.dumps(_avro().reader(file).writer_schema)
        found = self._columns(written, columns.wanted.names)
        check_fits(found, columns)
        file.seek(0)
        kept = [each for each in found if each.name in columns.wanted.names]
        for each in kept:
            if "union<" in str(each.type):
                raise CorruptDataError(f"its column {each.name!r} is of several types, {each.type}, and no type holds them all")
        names = [each.name for each in kept]
        as_array, fields = f'{{"type": "array", "items": {written}}}', [*map(quoted_part, names)]
        decoder = AvroFormat(as_array, fields=fields) if names else None
        behind = split.delivered
        for counts, blocks in _gathered(_blocks(file), batch_rows):
            skipped = min(behind, sum(counts))
            behind -= skipped
            if skipped < sum(counts):
                yield from _records(counts, blocks, decoder if any(blocks) else None, skipped, batch_rows)

    @staticmethod
    def _columns(written: str, wanted: Sequence[str] | None) -> pa.Schema:
        """Of a column that is not wanted, and of a type that Arrow does not have, without its type. None: all are."""
        record = parse(written, None)
        if not isinstance(record, AvroRecord):
            raise CorruptDataError(f"its values are {arrow_type(record)}, and not records")
        found = []
        for field in record.fields:
            try:
                found.append(pa.field(field.name, arrow_type(field.type, field.name)))
            except UsageError as error:
                if wanted is None or field.name in wanted:
                    why = str(error).partition(";")[0]  # what follows is advice for the values of a topic
                    raise UsageError(f"a file's {why}: give the schema, without this column") from error
                found.append(pa.field(field.name, pa.null()))
        return plain_schema(pa.schema(found))


def _parquet(file: pa.NativeFile) -> pq.ParquetFile:
    """Times of INT96 in microseconds: as nanoseconds, the end of time would be another year.

    Merging what is to be read saves requests to a store; of a local file it is one more copy.
    """
    is_local = isinstance(file, pa.OSFile)
    return pq.ParquetFile(file, pre_buffer=not is_local, coerce_int96_timestamp_unit="us")


def _behind(batches: Iterator[pa.RecordBatch], skipped: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """What is behind the first rows, in batches of at most so many."""
    for batch in batches:
        rest = batch.slice(min(skipped, batch.num_rows))
        skipped -= batch.num_rows - rest.num_rows
        for first in range(0, rest.num_rows, batch_rows):
            yield rest.slice(first, batch_rows)


def _decoded_rows(kinds: Sequence[pa.DataType], rows: int, batch_rows: int) -> int:
    """Of the rows of a piece, those that are decoded in one call: many short ones in small batches take a fifth longer.

    All of them, or a multiple of `batch_rows`. How long texts and lists are is not known before.
    """
    try:
        bits: int = sum(kind.bit_width for kind in kinds)
    except ValueError:  # of a type without a width
        return batch_rows
    if any(map(pa.types.is_dictionary, kinds)):  # that of its indices
        return batch_rows
    if rows * bits <= 8 * _PIECE_BYTES:
        return max(rows, batch_rows)
    return batch_rows * max(1, 8 * _DECODED_BYTES // (batch_rows * max(1, bits)))


def _has_dictionary_within(kind: pa.DataType) -> bool:
    return pa.types.is_nested(kind) and "dictionary<" in str(kind)


def _with_instants(file: pq.ParquetFile) -> pa.Schema:
    """The file's columns, those of INT96 as instants, which they are to those who write them."""
    found, columns = file.schema_arrow, file.metadata.schema
    stored = [columns.column(number).physical_type for number in range(len(columns))]
    if "INT96" not in stored:
        return found
    leaves = iter(stored)
    return pa.schema([each.with_type(_instants(each.type, leaves)) for each in found])


def _instants(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """`leaves`: how the columns are stored that a type consists of, in its order."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_instants(each.type, leaves)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_instants(kind.key_type, leaves), _instants(kind.item_type, leaves))
    if is_list(kind):
        return pa.list_(_instants(kind.value_type, leaves))
    return pa.timestamp("us", "UTC") if next(leaves) == "INT96" else kind


def _ipc_options(found: pa.Schema, columns: FileColumns) -> pa.ipc.IpcReadOptions:
    """To read what is wanted. Raises CorruptDataError for columns of another type."""
    check_fits(found, columns)
    fields = [found.get_field_index(name) for name in columns.wanted.names if name in found.names]
    return pa.ipc.IpcReadOptions(included_fields=sorted(fields) or [0] if found.names else [])  # none means all to pyarrow


def _streamed(file: pa.NativeFile, columns: FileColumns) -> Iterator[pa.RecordBatch]:
    """Of a stream, and of those behind it: a writer that appends to a file starts another one."""
    at, size = 0, file.size()
    while not at or at < size:
        file.seek(at)
        try:
            found = pa.ipc.open_stream(file).schema
        except pa.ArrowInvalid as error:
            raise CorruptDataError(f"what is at its byte {at} of {size} is not an Arrow stream: {error}") from error
        options = _ipc_options(found, columns)
        file.seek(at)
        yield from pa.ipc.open_stream(file, options=options)
        at = file.tell()


def _is_ipc_file(file: pa.NativeFile) -> bool:
    file.seek(0)
    start = file.read(len(_IPC_MAGIC))
    file.seek(0)
    return bool(start == _IPC_MAGIC)


def _avro() -> Any:  # noqa: ANN401 - a module without types
    try:
        import fastavro
    except ImportError as error:
        raise UsageError("Avro files need fastavro: pip install 'headrace[avro]'") from error
    return fastavro


def _blocks(file: pa.NativeFile) -> Iterator[tuple[int, bytes]]:
    """How many records each block has, and these."""
    try:
        for block in _avro().block_reader(file):
            yield block.num_records, block.bytes_.getvalue()
    except (HeadraceError, MemoryError):
        raise
    except Exception as error:  # fastavro raises whatever the bytes lead to
        if _NOT_INSTALLED in str(error):
            raise UsageError(f"an Avro file is compressed in a way that needs another library: {error}") from error
        raise CorruptDataError(f"it is not Avro: {type(error).__name__}: {error}") from error


def _gathered(blocks: Iterator[tuple[int, bytes]], rows: int) -> Iterator[tuple[list[int], list[bytes]]]:
    """Some blocks at a time: about as many as have these rows. What fails in reading is raised behind the previous ones."""
    failed: CorruptDataError | None = None
    while failed is None:
        counts: list[int] = []
        texts: list[bytes] = []
        left_rows, left_bytes = rows, _GATHERED_BYTES
        try:
            while left_rows > 0 and left_bytes > 0:
                count, text = next(blocks)
                counts.append(count)
                texts.append(text)
                left_rows, left_bytes = left_rows - count, left_bytes - len(text)
        except CorruptDataError as error:
            failed = error
        except StopIteration:
            if counts:
                yield counts, texts
            return
        if counts:
            yield counts, texts
    raise failed


def _records(
    counts: Sequence[int], blocks: Sequence[bytes], decoder: AvroFormat | None, skipped: int, batch_rows: int
) -> Iterator[FileRows]:
    """Those of some blocks but the first ones, which are `skipped`. No decoder: all that is wanted of them is null."""
    reason, good = None, len(counts)
    if decoder is None:
        rows = pa.array([{}] * sum(counts), pa.struct([]))
    else:
        arrays = [varint(count) + block + _END for count, block in zip(counts, blocks, strict=True)]
        lists, bad = decoder.decode(pa.array(arrays, pa.binary()))
        lengths = pc.list_value_length(lists).to_pylist()
        good = next((place for place, count in enumerate(counts) if lengths[place] != count), good)
        reason = bad[0].reason if bad and bad[0].row == good else "a block has more records than it states"
        rows = lists.slice(0, good).flatten()
    for first in range(skipped, len(rows), batch_rows):
        some = rows.slice(first, batch_rows)
        yield FileRows(dict(zip(some.type.names, some.flatten(), strict=True)), len(some), len(some))
    if good < len(counts):
        raise CorruptDataError(f"it is not Avro: {reason}")


_END = b"\0"
"""Of an array: no more items."""
