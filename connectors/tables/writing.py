"""A task's side: a mark, then rows into Parquet files in the table's folder, and the handle that names them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors.base.guard import AllOrNothing, check_values
from headrace.connectors.base.nested import without_hidden_nulls
from headrace.connectors.base.sink import Attempt, Transaction
from headrace.connectors.tables.changes import Changes
from headrace.connectors.tables.handles import DataFile, TableHandle, kind_of, place_of
from headrace.connectors.tables.log import FileLayout, LoadedTable, TableLog
from headrace.connectors.tables.metadata_folder import WorkFolder
from headrace.connectors.tables.rows import completed, fitted, fitting_schema, partitions_of
from headrace.connectors.tables.statistics import Measures
from headrace.enumerator.errors import PeerError, UsageError

TARGET_FILE_BYTES = 128 << 20

ROW_GROUP_BYTES = 64 << 20
MOST_OPEN_FILES = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """How files are written. A file ends after `target_file_bytes`, `compression` is Parquet's."""

    target_file_bytes: int = TARGET_FILE_BYTES
    compression: str = "snappy"


class TableTransaction(Transaction[TableHandle]):
    """One attempt's files. Raises PeerError for what the store refuses, UsageError for rows that do not fit the table."""

    def __init__(self, log: TableLog, layout: Layout, attempt: Attempt, where: str, changes: Changes | None = None) -> None:
        """`changes`: rows are changes, which are staged for the commit to merge them."""
        self._log, self._layout, self._attempt, self._where, self._changes = log, layout, attempt, where, changes
        self._token = uuid4().hex[:16]
        self._place = place_of(attempt, self._token)
        self._begun: _Begun | None = None
        self._whole = AllOrNothing(where, f"transaction {self._place}", self.abort)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises UsageError for a batch whose columns are not those of the first one, in whatever order."""
        self._whole.check_rows(batch)
        with self._whole.steps():
            check_values(batch, self._where)
            if self._changes is None:
                self._write(batch, partial(fitted, batch, where=self._where))
            else:
                deleted = self._changes.deleted(batch, self._where)
                self._write(batch, partial(self._changes.staged, batch, deleted, where=self._where))

    def prepare(self) -> TableHandle | None:
        """Close the files. None when no row was written. Raises PeerError if a driver has given this transaction up."""
        self._whole.check()
        if self._begun is None:
            return None
        with self._whole.steps():
            started = self._begun
            written = started.files.close()
            if not started.work.is_open(self._place):
                raise PeerError(f"{self._where}: transaction {self._place} was given up by a driver: write the epoch again")
        self._begun = None
        self._whole.end()
        columns = tuple((field.name, kind_of(field)) for field in started.schema)
        partitioning = started.table.partitioning if self._changes is None else ()
        return TableHandle(self._attempt, self._token, started.table.id, columns, partitioning, written, self._changes)

    def abort(self) -> None:
        """Remove the files, unless they are prepared; what fails is left to the next clean up."""
        if not self._whole.end() or self._begun is None:
            return
        started, self._begun = self._begun, None
        started.files.discard()
        with suppress(OSError, pa.ArrowException):
            started.work.remove_data(self._place)
            started.work.close(self._place)

    def _begin(self, rows: pa.Schema) -> _Begun:
        loaded = self._log.load()
        loaded.check_writable()
        schema = written_columns(self._changes, rows, loaded, self._where)
        work = WorkFolder(self._log.store(), self._attempt.job)
        formats = (
            loaded.files if self._changes is None else FileLayout()
        )  # no table has staged files: the driver reads them whole
        stored = self._stored(rows, schema)
        files = PartitionedFiles(work, self._place, self._layout, formats, stored)
        work.open(self._place)
        return _Begun(loaded, schema, stored, work, files, rows)

    def _stored(self, rows: pa.Schema, schema: pa.Schema) -> pa.Schema:
        """The columns of this transaction's files. `schema`: the columns of the table that are written of such rows."""
        return schema if self._changes is None else self._changes.staged_schema(rows, schema)

    def _write(self, rows: pa.RecordBatch, stored: Callable[[pa.Schema], pa.RecordBatch]) -> None:
        """`stored`: the rows as they are in files, of these columns of the table."""
        if not rows.num_rows:
            return
        if self._begun is None:
            self._begun = self._begin(rows.schema)
        if rows.schema != self._begun.rows:
            self._check_alike(rows.schema, self._begun)
        self._begun.files.write(stored(self._begun.schema))

    def _check_alike(self, rows: pa.Schema, started: _Begun) -> None:
        """A batch is cast to the columns of the first one: so its own have to fit them as well."""
        columns, before = sorted(rows.names), sorted(started.rows.names)
        if columns != before:
            raise UsageError(
                f"{self._where}: a batch has the columns {', '.join(columns)}, and one before it in this transaction "
                f"{', '.join(before)}: give all batches the same, with nulls where a row has no value"
            )
        schema = written_columns(self._changes, rows, started.table, self._where)
        if self._stored(rows, schema) != started.stored:
            raise UsageError(f"{self._where}: a batch has a sequence of another type than one before it in this transaction")


def written_columns(changes: Changes | None, rows: pa.Schema, loaded: LoadedTable, where: str) -> pa.Schema:
    """The table's fields that are written of such rows. Raises UsageError naming what does not fit."""
    if not rows.names:
        raise UsageError(f"{where}: rows without columns cannot be written: Parquet keeps no rows but those of a column")
    if changes is None:
        return fitting_schema(rows, loaded.schema, loaded.files.sources, where)
    loaded.check_rewritable()
    return changes.table_columns(rows, loaded.schema, loaded.files.sources, where)


@dataclass(frozen=True)
class _Begun:
    """A transaction with rows: the columns of the table that it writes, those of its files, and those of its first batch."""

    table: LoadedTable
    schema: pa.Schema
    stored: pa.Schema
    work: WorkFolder
    files: PartitionedFiles
    rows: pa.Schema


class PartitionedFiles:
    """The open files of one transaction, one for each partition, and what is known of those that are closed."""

    def __init__(self, work: WorkFolder, place: str, layout: Layout, files: FileLayout, schema: pa.Schema) -> None:
        """`schema`: of the rows, which fit the table already."""
        self._work, self._place, self._layout, self._format = work, place, layout, files
        self._columns = files.columns(schema)
        self._open: OrderedDict[tuple[object, ...], _File] = OrderedDict()
        self._written: list[DataFile] = []
        self._begun = 0

    def write(self, batch: pa.RecordBatch) -> None:
        for values, rows in partitions_of(batch, self._format.keys(batch)):
            file = self._open.get(values) or self._begin(values)
            self._open.move_to_end(values)
            file.write(completed(rows, self._columns))
            if file.size >= self._layout.target_file_bytes:
                self._close(values)

    def close(self) -> tuple[DataFile, ...]:
        for values in list(self._open):
            self._close(values)
        return tuple(self._written)

    def discard(self) -> None:
        for file in self._open.values():
            file.discard()
        self._open.clear()

    def _begin(self, values: tuple[object, ...]) -> _File:
        partition = self._format.partition(values)
        if len(self._open) >= MOST_OPEN_FILES:
            self._close(next(iter(self._open)))  # nothing has come for it for the longest time
        path = self._work.data_path(self._place, f"{self._format.folder(partition)}{self._begun:05d}")
        self._begun += 1
        self._open[values] = _File(self._work.create(path), path, partition, self._columns, self._layout, self._format)
        return self._open[values]

    def _close(self, values: tuple[object, ...]) -> None:
        self._written.append(self._open.pop(values).close())


class _File:
    """One Parquet file that is being written."""

    def __init__(
        self,
        sink: pa.NativeFile,
        path: str,
        partition: tuple[tuple[str, str | None], ...],
        schema: pa.Schema,
        layout: Layout,
        files: FileLayout,
    ) -> None:
        self._sink, self._path, self._partition, self._schema = sink, path, partition, schema
        self._layout, self._format = layout, files
        self._footers: list[pq.FileMetaData] = []
        # without what others have written into the schema: the columns are the table's
        plain, bounds = schema.remove_metadata(), files.row_group_bounds(schema)
        self._writer = pq.ParquetWriter(
            sink, plain, compression=layout.compression, metadata_collector=self._footers, write_statistics=bounds
        )
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._measured: list[Measures] = []

    @property
    def size(self) -> int:
        """Bytes that are written; what waits for its row group is not counted."""
        return int(self._sink.tell())

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(without_hidden_nulls(batch))
        self._bytes += batch.nbytes
        if self._bytes >= min(ROW_GROUP_BYTES, self._layout.target_file_bytes):
            self._flush()

    def close(self) -> DataFile:
        try:
            self._flush()
            self._writer.close()
            size = self.size
        except BaseException:
            self._writer.is_open = False  # else it is closed again when it is collected, which writes to stderr
            with suppress(Exception):  # which would hide why it has failed
                self._sink.close()
            raise
        self._sink.close()
        footer = self._footers[0]
        statistics = self._format.statistics(footer, self._measured)
        return DataFile(self._path, size, footer.num_rows, self._partition, statistics)

    def discard(self) -> None:
        """No reader sees what the writer still writes."""
        with suppress(OSError, ValueError, pa.ArrowException):
            self._writer.close()
        self._writer.is_open = False
        with suppress(OSError, ValueError, pa.ArrowException):
            self._sink.close()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._waiting, self._bytes = [], 0
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._measured.append(self._format.measures(table))
