"""An Iceberg table's files, and the rows of one as they are, for a merge to write again: nulls stay nulls at any depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    ArrowAccessor,
    ArrowProjectionVisitor,
    _combine_positional_deletes,
    _get_column_projection_values,
    _read_all_delete_files,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent
from pyiceberg.schema import visit_with_partner
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import ListType, MapType
from pyiceberg.utils.concurrent import ExecutorFactory

from headrace.enumerator.errors import UsageError


def files_of(table: Table, content: ManifestContent) -> Iterator[DataFile]:
    """All of the current snapshot: of data, or of deletes. A scan leaves out some deletes, and raises for others."""
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else [each for each in snapshot.manifests(table.io) if each.content == content]
    for entries in ExecutorFactory.get_or_create().map(lambda each: each.fetch_manifest_entry(table.io), manifests):
        yield from (entry.data_file for entry in entries)


def read_as_it_is(table: Table, task: FileScanTask) -> pa.Table:
    """The rows that no position delete has removed, with the table's columns.

    The library's own scan turns null lists and maps of structs into empty ones, in every file. Raises UsageError for a file of
    a format that it does not read.
    """
    schema, metadata = table.schema(), table.metadata
    for file in (task.file, *task.delete_files):
        if file.file_format not in (FileFormat.PARQUET, FileFormat.ORC):
            raise UsageError(
                f"headrace cannot replace rows of the file {task.file.file_path!r}: PyIceberg does not read "
                f"{file.file_format.value} files as {file.file_path!r}. Let the engine that has written it write Parquet "
                "(write.format.default), and the table's files again"
            )
    with table.io.new_input(task.file.file_path).open() as stored:
        if task.file.file_format == FileFormat.ORC:
            from pyarrow import orc  # which some builds of Arrow lack

            rows = orc.ORCFile(stored).read()
        else:  # INT96, which others write, Arrow takes for nanoseconds by itself: the year 9999 becomes another one
            rows = pq.ParquetFile(stored, coerce_int96_timestamp_unit="us").read()
    removed = _read_all_delete_files(table.io, [task]).get(task.file.file_path)
    if removed:
        rows = rows.take(_combine_positional_deletes(removed, 0, rows.num_rows))
    found = pyarrow_to_schema(rows.schema, table.name_mapping(), downcast_ns_timestamp_to_us=True)
    spec = metadata.specs()[task.file.spec_id]
    missing = _get_column_projection_values(task.file, schema, schema, spec, found.field_ids)
    visitor = _KeepsNulls(
        found, downcast_ns_timestamp_to_us=True, projected_missing_fields=missing, allow_timestamp_tz_mismatch=True
    )
    batches = [
        pa.RecordBatch.from_struct_array(visit_with_partner(schema, batch, visitor, ArrowAccessor(found)))
        for batch in rows.combine_chunks().to_batches()
    ]
    return pa.Table.from_batches(batches, None if batches else schema.as_arrow())


class _KeepsNulls(ArrowProjectionVisitor):
    def list(self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None) -> pa.Array | None:
        return _with_nulls_of(list_array, super().list(list_type, list_array, value_array))

    def map(
        self, map_type: MapType, map_array: pa.Array | None, key_result: pa.Array | None, value_result: pa.Array | None
    ) -> pa.Array | None:
        return _with_nulls_of(map_array, super().map(map_type, map_array, key_result, value_result))


def _with_nulls_of(before: pa.Array | None, after: Any) -> pa.Array | None:  # noqa: ANN401 - an array or None
    if before is None or after is None or before.null_count == after.null_count:
        return after
    return pc.if_else(before.is_valid(), after, pa.scalar(None, after.type))
