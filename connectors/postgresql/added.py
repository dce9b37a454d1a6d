"""Tables whose rows no snapshot before the log has read: their chunks are read between two transactions of the log.

PostgreSQL decides for each change, by its catalogs at that time, whether the table is published, and a sender of the log may go
on by what it has known of a table. So changes are missing in transactions that were open when the table was published. All of
those have to end first, and the log is read past that, without the table. What it had until then has to be visible, too, before
chunks are read, which have it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import psycopg
import pyarrow as pa

from headrace.connectors.postgresql.catalog import flush_log, read_log_end
from headrace.connectors.postgresql.connection import connect, translated
from headrace.connectors.postgresql.snapshot import Followed, check_size, chunk_key, next_bound, read_chunk
from headrace.connectors.postgresql.splits import LogSplit, Seam, Seen, TableSeam

log = logging.getLogger(__name__)


class ReadChunk(NamedTuple):
    """The split behind a chunk, and the texts of the chunk's columns, of the table with this oid."""

    split: LogSplit
    oid: int
    texts: Sequence[pa.LargeStringArray]


class AddedTables:
    """Of one reader of a log, and its thread. `chunk_rows`: rows that are read at a time."""

    def __init__(self, url: str, followed: Sequence[Followed], chunk_rows: int) -> None:
        self._url, self._followed, self._chunk_rows = url, followed, chunk_rows
        self._connection: psycopg.Connection | None = None
        self._old: int | None = None
        self._end: int | None = None
        self._passed: int | None = None

    def missing(self, split: LogSplit) -> list[Followed]:
        """The tables whose rows are not read, or not all of them; first the one of which some are."""
        found = [each for each in self._followed if not split.has_rows_of(each.table.oid)]
        return sorted(found, key=lambda each: not _is_begun(split, each))

    def taken_over(self, split: LogSplit) -> LogSplit:
        """Without tables that are no longer read: if one is again, its rows are missing, as its changes are."""
        if split.tables is None:
            return split
        tables = tuple((each.table.full_name, each.table.oid) for each in self._followed if split.has_rows_of(each.table.oid))
        names = {each.table.full_name for each in self._followed}
        seam = split.seam and replace(split.seam, tables=tuple(each for each in split.seam.tables if each[0] in names))
        return replace(split, tables=tables, seam=seam)

    def may_read(self, split: LogSplit) -> bool:
        """Whether the next chunk may be read where the log was read up to now. Asks the server."""
        if split.skip or not (missing := self.missing(split)):
            return False
        return _is_begun(split, missing[0]) or self._is_settled(missing, split.position.lsn)

    def read_next(self, split: LogSplit) -> ReadChunk:
        """Raises DataLossError for a table that was created again, UsageError for one that cannot be cut."""
        followed = self.missing(split)[0]
        name, key = followed.table.full_name, chunk_key(followed.table)
        seam = Seam((), 0) if split.seam is None else split.seam
        own = dict(seam.tables).get(name) or TableSeam(key, (), ())
        lower = own.bounds[-1] if own.bounds else None
        with self._asking(f"reading {name}") as connection:
            if not key:
                check_size(connection, followed, self._chunk_rows)
            upper = next_bound(connection, followed, key, self._chunk_rows, lower) if key else None
            texts, seen = read_chunk(connection, followed, key, lower, upper)
        bounds = own.bounds if upper is None else (*own.bounds, upper)
        read = TableSeam(key, bounds, (*own.snapshots, seen.snapshot))
        tables = split.tables or ()
        if upper is None:
            tables = (*tables, (name, followed.table.oid))
            log.info("the rows of %s are read, and its changes follow", name)
        return ReadChunk(replace(split, tables=tables, seam=_with(seam, name, read, seen)), followed.table.oid, texts)

    def close(self) -> None:
        """May be called more than once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _is_settled(self, missing: Sequence[Followed], lsn: int) -> bool:
        with self._asking("waiting for transactions") as connection:
            oldest, next_one = _running(connection)
            if self._end is None:
                if self._old is None:
                    names = ", ".join(each.table.full_name for each in missing)
                    log.info("the rows of %s are read when all transactions that run now have ended", names)
                    self._old = next_one
                if oldest >= self._old:
                    self._end = read_log_end(connection)
                    flush_log(connection)  # or a quiet server would never say that it is past the end
                return False
            if lsn < self._end:
                return False
            if self._passed is None:
                self._passed = next_one
            return oldest >= self._passed

    @contextmanager
    def _asking(self, doing: str) -> Iterator[psycopg.Connection]:
        with translated(self._url, doing):
            if self._connection is None:
                self._connection = connect(self._url)
            yield self._connection


def _is_begun(split: LogSplit, followed: Followed) -> bool:
    """Whether some of its chunks are read, and not the last one."""
    seam = None if split.seam is None else dict(split.seam.tables).get(followed.table.full_name)
    return seam is not None and len(seam.bounds) == len(seam.snapshots)


def _with(seam: Seam, name: str, table: TableSeam, seen: Seen) -> Seam:
    return Seam(tuple(sorted({**dict(seam.tables), name: table}.items())), max(seam.until, seen.lsn))


def _running(connection: psycopg.Connection) -> tuple[int, int]:
    """The id of the oldest transaction that has not ended, and the one that the next will have. Those are all in between."""
    query = "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() AS s"
    oldest, next_one = connection.execute(query).fetchone() or (0, 0)
    return int(oldest), int(next_one)
