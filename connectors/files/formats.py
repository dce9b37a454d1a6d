"""Arrow batches into a file: Parquet through pyarrow, JSON lines as Spark's `to_json` writes values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors.base.nested import cast_nested, is_view, plain, with_types, without_hidden_nulls
from headrace.connectors.formats.json_lines import json_lines, unwritable
from headrace.enumerator.errors import UsageError

_FLOATS = ("FLOAT", "DOUBLE")
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


class FileFormat(StrEnum):
    """The value is the ending of the files' names."""

    PARQUET = "parquet"
    JSON_LINES = "jsonl"


def has_codec(name: str) -> bool:
    """Whether this pyarrow has this compression for Parquet, which has no bz2."""
    try:
        return bool(pa.Codec.is_available(name)) and name.lower() != "bz2"
    except (pa.ArrowException, ValueError):  # a name that it has never heard of
        return False


@lru_cache(maxsize=64)
def columns_with_bounds(schema: pa.Schema) -> list[str]:
    """Of Parquet's columns those whose least and greatest values in a row group are those of all rows: not of floats.

    They leave NaN out, as Parquet has it, and engines that sort it last skip its rows by them.
    """
    file = pa.BufferOutputStream()
    pq.ParquetWriter(file, schema).close()
    leaves = pq.read_metadata(pa.BufferReader(file.getvalue())).schema
    found = [leaves.column(at) for at in range(len(leaves))]
    return [leaf.path for leaf in found if leaf.physical_type not in _FLOATS and leaf.logical_type.type != "FLOAT16"]


class RowWriter(ABC):
    """Writes batches of one schema to an open binary file, which stays open."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises UsageError for a batch of another schema."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left."""

    @abstractmethod
    def discard(self) -> None:
        """Give up: what is left is not written. The file is of no use then."""


def create_writer(
    file_format: FileFormat, file: IO[bytes], schema: pa.Schema, *, row_group_bytes: int, compression: str
) -> RowWriter:
    """A writer of this format. Raises UsageError naming the column, for a type that the format cannot hold."""
    if (name := _named_twice([*schema])) is not None:
        raise UsageError(f"a file has each column, and each field of a struct, once; {name!r} comes twice: rename one of them")
    match file_format:
        case FileFormat.PARQUET:
            return _ParquetWriter(file, schema, row_group_bytes, compression)
        case FileFormat.JSON_LINES:
            return _JsonLinesWriter(file, schema)


def _named_twice(fields: Sequence[pa.Field]) -> str | None:
    """A name that no reader could tell from another one, at any depth; None if there is none."""
    names: list[str] = [field.name for field in fields]
    if len(set(names)) < len(names):
        return next(name for name in names if names.count(name) > 1)
    nested = (field.type for field in fields if pa.types.is_nested(field.type))
    found = (_named_twice([kind.field(index) for index in range(kind.num_fields)]) for kind in nested)
    return next((name for name in found if name is not None), None)


def _check_schema(expected: pa.Schema, found: pa.Schema) -> None:
    if not found.equals(expected):
        raise UsageError(f"a file has one schema: it started with {_brief(expected)}, and now come rows of {_brief(found)}")


def _brief(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


class _ParquetWriter(RowWriter):
    def __init__(self, file: IO[bytes], schema: pa.Schema, row_group_bytes: int, compression: str) -> None:
        self._schema = schema
        self._row_group_bytes = row_group_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        if not schema.names:
            raise UsageError("rows without columns cannot be written: Parquet keeps no rows but those of a column")
        self._stored = pa.schema([field.with_type(_stored_type(field.type)) for field in schema], schema.metadata)
        for field in self._stored:
            self._check_field(field)
        bounds = columns_with_bounds(self._stored)
        self._writer = pq.ParquetWriter(file, self._stored, compression=compression, write_statistics=bounds)

    @staticmethod
    def _check_field(field: pa.Field) -> None:
        """Whether pyarrow has a Parquet type for it, found out without touching the file."""
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
            raise UsageError(f"column {field.name!r}: Parquet has no type for {field.type}: {error}") from error

    def write(self, batch: pa.RecordBatch) -> None:
        """Row groups are made of many batches: small ones cost their readers much."""
        _check_schema(self._schema, batch.schema)
        columns = [_cast(column, field.type) for column, field in zip(batch.columns, self._stored, strict=True)]
        self._waiting.append(without_hidden_nulls(pa.RecordBatch.from_arrays(columns, schema=self._stored)))
        self._bytes += batch.nbytes
        if self._bytes >= self._row_group_bytes:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def discard(self) -> None:
        """Closed all the same: pyarrow would do it later, when the file is closed."""
        self._waiting = []
        self._writer.close()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._stored)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._waiting, self._bytes = [], 0


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """The type without what Parquet does not have: lists of a fixed size, of which pyarrow reads no null, views, and runs.

    pyarrow keeps the names of such types in the file, and can then not filter its rows. Of a dictionary it writes no null.
    """
    if is_view(kind):
        return _VIEWS[kind]
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _stored_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        stored = _stored_type(kind.storage_type)
        return kind if stored == kind.storage_type else stored
    return with_types(kind, _stored_type)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    return cast_nested(plain(column.storage if isinstance(column.type, pa.BaseExtensionType) else column), kind)


class _JsonLinesWriter(RowWriter):
    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file: Any = file
        self._schema = schema
        for field in schema:
            if found := unwritable(field.type):
                raise UsageError(f"column {field.name!r}: JSON lines have no form for {found}")

    def write(self, batch: pa.RecordBatch) -> None:
        _check_schema(self._schema, batch.schema)
        self._file.write(json_lines(batch))

    def close(self) -> None:
        """Nothing is left."""

    def discard(self) -> None:
        """Nothing is left."""
