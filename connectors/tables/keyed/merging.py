"""Brings an epoch's changes into a table: files that have rows of changed keys are written anew without them (copy-on-write).

The driver does it, in one commit with the epoch's marker. What it writes is a transaction like those of tasks: marked as open,
named on the list, and removed by a sweep if it was never committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors.tables.handles import TableHandle, place_of
from headrace.connectors.tables.keyed.changes import last_of_each_key, without_keys
from headrace.connectors.tables.log import LoadedTable, TableFile
from headrace.connectors.tables.rows import completed
from headrace.connectors.tables.work import WorkFolder
from headrace.connectors.tables.writing import Layout, PartitionedFiles

__all__ = ["Merge", "merged"]


@dataclass(frozen=True)
class Merge:
    """What takes the place of what in this version of a table. `handle` names the files that are added."""

    version: object
    handle: TableHandle
    removed: tuple[TableFile, ...]


def merged(loaded: LoadedTable, work: WorkFolder, layout: Layout, handles: Sequence[TableHandle], where: str) -> Merge:
    """Write what the table has to have for these changes. Raises UsageError for changes that cannot be told apart.

    All changes of the epoch are in memory at once, and the rows of one file of the table after the other.
    """
    first = handles[0]
    changes = first.changes
    assert changes is not None
    token = uuid4().hex[:16]
    place = place_of(first.attempt, token)
    files = PartitionedFiles(work, place, layout, loaded.files, loaded.schema)
    work.open(place)
    keys, rows = last_of_each_key(changes, _staged(work, handles), where)
    removed = []
    for old in loaded.files_with(keys):
        before = old.read()
        kept = without_keys(before, keys)
        if kept.num_rows < before.num_rows:
            removed.append(old)
            _write(files, kept)
    _write(files, completed(rows, loaded.schema))
    columns = tuple((field.name, str(field.type)) for field in loaded.schema)
    handle = TableHandle(first.attempt, token, loaded.id, columns, loaded.partitioning, files.close())
    return Merge(loaded.version, handle, tuple(removed))


def _staged(work: WorkFolder, handles: Sequence[TableHandle]) -> pa.Table:
    """What the tasks have stored, one after the other."""
    tables = []
    for handle in handles:
        for file in handle.files:
            with work.open_data(file.path) as stored:
                tables.append(pq.read_table(stored))
    return pa.concat_tables(tables)


def _write(files: PartitionedFiles, rows: pa.Table) -> None:
    for batch in rows.to_batches():
        if batch.num_rows:
            files.write(batch)
