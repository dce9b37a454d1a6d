"""Brings an epoch's changes into a table: files that have rows of changed keys are written again without them (copy-on-write).

The driver does it, in one commit with the epoch's marker. What it writes is a transaction like those of tasks: marked as open,
named on the list, and removed by a clean-up if it was never committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors.tables.changes import last_of_each_key, without_keys
from headrace.connectors.tables.handles import TableHandle, kind_of, place_of, table_changed
from headrace.connectors.tables.log import LoadedTable, TableFile
from headrace.connectors.tables.metadata_folder import WorkFolder
from headrace.connectors.tables.rows import completed
from headrace.connectors.tables.writing import Layout, PartitionedFiles


@dataclass(frozen=True)
class Merge:
    """What takes the place of what in this version of a table, by these changes. `handle` names the files that are added."""

    version: object
    changes: tuple[TableHandle, ...]
    handle: TableHandle
    removed: tuple[TableFile, ...]


class Merger:
    """Makes the merges of one driver. The last one is kept until it is committed, or another one is made in its place."""

    def __init__(self, layout: Layout, where: str) -> None:
        """`layout` is of the files that are written, `where` names the table in messages."""
        self._layout, self._where = layout, where
        self._last: Merge | None = None
        self._unused: set[str] = set()  # merges that are not committed, and have files, or may have
        self._asked_for: set[str] = set()  # merges that a commit was to bring into the table

    def last_of(self, changes: tuple[TableHandle, ...]) -> Merge | None:
        return self._last if self._last is not None and self._last.changes == changes else None

    def merge(self, loaded: LoadedTable, work: WorkFolder, changes: tuple[TableHandle, ...]) -> Merge:
        """What these changes make of this version: the last merge if it is of both, else a new one in its place.

        Raises UsageError for a table whose rows cannot be replaced, for changes that cannot be distinguished, and for values
        that the table cannot hold. A merge that fails leaves no files. All changes of the epoch are in memory at once, and the
        rows of one file of the table after the other.
        """
        last = self.last_of(changes)
        if last is not None and last.version == loaded.version:
            return last
        self.give_up(work)
        loaded.check_rewritable()
        token = uuid4().hex[:16]
        place = place_of(changes[0].attempt, token)
        self._unused.add(place)
        try:
            self._last = self._merged(loaded, work, changes, token)
        except Exception:
            self.give_up(work)
            raise
        self._unused.discard(place)
        return self._last

    def asked_for(self, merge: Merge) -> None:
        """A commit of it starts: whatever the answer is, its files are removed after a check into the table only."""
        self._asked_for.add(merge.handle.place)

    def replaced(self, recorded: Merge | None) -> frozenset[str]:
        """Merges whose commits have failed, given once: `recorded` is in the table, and none of these ever will be."""
        places = frozenset(self._asked_for) - ({recorded.handle.place} if recorded else set())
        self._asked_for.clear()
        return places

    def forget(self) -> None:
        """The last merge may be part of the table: what becomes of its files is no matter of this object any more."""
        self._last = None

    def give_up(self, work: WorkFolder) -> None:
        """Remove what no commit has asked for. What the store refuses is tried the next time, and left to the next driver."""
        if self._last is not None and self._last.handle.place not in self._asked_for:
            self._unused.add(self._last.handle.place)
        self._last = None
        for place in sorted(self._unused):
            with suppress(OSError, pa.ArrowException):
                work.remove_data(place)
                work.close(place)
                self._unused.discard(place)

    def _merged(self, loaded: LoadedTable, work: WorkFolder, changes: tuple[TableHandle, ...], token: str) -> Merge:
        attempt, reported = changes[0].attempt, changes[0].changes
        assert reported is not None
        place = place_of(attempt, token)
        keys, last = last_of_each_key(reported, _staged(work, changes), self._where)
        rows = completed(last, loaded.schema)
        if lacking := [field.name for field in rows.schema if not field.nullable and rows[field.name].null_count]:
            raise table_changed(self._where, lacking)
        files = PartitionedFiles(work, place, self._layout, loaded.files, loaded.schema)
        work.open(place)
        removed = []
        try:
            for old in loaded.files_with(keys):
                before = old.read()
                kept = without_keys(before, keys)
                if kept.num_rows < before.num_rows:
                    old.check_removable()
                    removed.append(old)
                    _write(files, kept)
            _write(files, rows)
            written = files.close()
        except Exception:
            files.discard()
            raise
        columns = tuple((field.name, kind_of(field)) for field in loaded.schema)
        handle = TableHandle(attempt, token, loaded.id, columns, loaded.partitioning, written)
        return Merge(loaded.version, changes, handle, tuple(removed))


def _staged(work: WorkFolder, handles: Sequence[TableHandle]) -> pa.Table:
    """What the tasks have stored, one after the other. A column that one of them has not is null there."""
    tables = []
    for handle in handles:
        for file in handle.files:
            with work.open_data(file.path) as stored:
                tables.append(pq.read_table(stored))
    return pa.concat_tables(tables, promote_options="permissive")


def _write(files: PartitionedFiles, rows: pa.Table) -> None:
    for batch in rows.to_batches():
        if batch.num_rows:
            files.write(batch)
