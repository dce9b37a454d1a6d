"""Files that know their columns: Parquet and Arrow IPC by pyarrow, Avro's containers by fastavro."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors.files.read.columns import FileColumns, FileRows, check_fits, is_list, plain_schema
from headrace.connectors.files.read.split import FileSplit
from headrace.connectors.formats.avro.program import arrow_type
from headrace.connectors.formats.avro.schema import parse
from headrace.enumerator.errors import CorruptDataError, HeadraceError, UsageError

_IPC_MAGIC = b"ARROW1"


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
        for batch in opened.iter_batches(batch_rows, groups, names):
            rest = batch.slice(min(behind, batch.num_rows))
            behind -= batch.num_rows - rest.num_rows
            if rest.num_rows:
                yield FileRows.of(rest)


class ArrowIpc(ColumnarFormat):
    """The record batches of a range; of a stream, which is not cut, all of them."""

    is_cut = True

    def schema(self, file: pa.NativeFile) -> pa.Schema:
        return pa.ipc.open_file(file).schema if _is_ipc_file(file) else pa.ipc.open_stream(file).schema

    def read(self, file: pa.NativeFile, split: FileSplit, columns: FileColumns, batch_rows: int) -> Iterator[FileRows]:
        is_file = _is_ipc_file(file)
        if not is_file and split.start:
            return
        found = self.schema(file)
        check_fits(found, columns)
        file.seek(0)
        fields = [found.get_field_index(name) for name in columns.wanted.names if name in found.names]
        # none means all to pyarrow
        options = pa.ipc.IpcReadOptions(included_fields=sorted(fields) or [0] if found.names else [])
        if is_file:
            reader = pa.ipc.open_file(file, options=options)
            batches = (reader.get_batch(number) for number in split.share(reader.num_record_batches))
        else:
            batches = iter(pa.ipc.open_stream(file, options=options))
        behind = split.delivered
        for batch in batches:
            rest = batch.slice(min(behind, batch.num_rows))
            behind -= batch.num_rows - rest.num_rows
            for first in range(0, rest.num_rows, batch_rows):
                yield FileRows.of(rest.slice(first, batch_rows))


class Avro(ColumnarFormat):
    """The records of a container, which is not cut: a block is found by reading all the previous ones."""

    is_cut = False

    def schema(self, file: pa.NativeFile) -> pa.Schema:
        written = json.dumps(_avro().reader(file).writer_schema)
        kind = arrow_type(parse(written, None))
        if not pa.types.is_struct(kind):
            raise CorruptDataError(f"its values are {kind}, and not records")
        return plain_schema(pa.schema(list(kind)))

    def read(self, file: pa.NativeFile, split: FileSplit, columns: FileColumns, batch_rows: int) -> Iterator[FileRows]:
        found = self.schema(file)
        check_fits(found, columns)
        file.seek(0)
        kept = [each for each in found if each.name in columns.wanted.names]
        for each in kept:
            if "union<" in str(each.type):
                raise CorruptDataError(f"its column {each.name!r} is of several types, {each.type}, and no type holds them all")
        records = islice(_avro().reader(file), split.delivered, None)
        while rows := _taken(records, batch_rows):
            arrays = {each.name: pa.array([_plain(row[each.name]) for row in rows], each.type) for each in kept}
            yield FileRows(arrays, len(rows), len(rows))


def _parquet(file: pa.NativeFile) -> pq.ParquetFile:
    """Times of INT96 in microseconds: as nanoseconds, the end of time would be another year."""
    return pq.ParquetFile(file, pre_buffer=True, coerce_int96_timestamp_unit="us")


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
    fastavro.read.LOGICAL_READERS.setdefault("fixed-uuid", lambda value, *_: UUID(bytes=value))  # which it leaves as bytes
    return fastavro


def _taken(records: Iterator[Any], count: int) -> list[Any]:
    try:
        return list(islice(records, count))
    except (HeadraceError, MemoryError):
        raise
    except Exception as error:  # fastavro raises whatever the bytes lead to
        raise CorruptDataError(f"it is not Avro: {type(error).__name__}: {error}") from error


def _plain(value: Any) -> Any:  # noqa: ANN401 - what fastavro gives
    """A value as pyarrow takes it."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
