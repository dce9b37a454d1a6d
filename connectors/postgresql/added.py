"""Tables whose rows no snapshot before the log has read: their chunks are read between two transactions of the log.

PostgreSQL decides for each change, by its catalogs at that time, whether the table is published, and a sender of the log may go
on by what it has known of a table. So changes are missing in transactions that were open when the table was published. All of
those have to end first, and the log is read past that, without the table. What it had of it until then has to be visible, too,
before chunks are read, which have it. That the log has a commit does not say so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import psycopg
import pyarrow as pa

from headrace.connectors.postgresql.catalog import flush_log, read_log_end, read_visible
from headrace.connectors.postgresql.connection import connect, translated
from headrace.connectors.postgresql.snapshot import Followed, check_size, check_unaltered, chunk_key, next_bound, read_chunk
from headrace.connectors.postgresql.splits import Key, LogSplit, Seam, Seen, TableSeam
from headrace.connectors.postgresql.visible import Visible, full_xid
from headrace.connectors.postgresql.waiting import SlowWait

log = logging.getLogger(__name__)


class AskedServer(Protocol):
    """Asked by `Settling`."""

    def start(self) -> int:
        """The id of a transaction that starts now, and ends at once."""

    def end_of_log(self) -> int: ...


@dataclass(slots=True)
class Settling:
    """Where rows may be read. No I/O; each reader has a new one."""

    _since: int | None = None
    _end: int | None = None
    _passed: set[int] = field(default_factory=set)

    @property
    def waits_for_transactions(self) -> bool:
        """For those that were open at the start; else for the log."""
        return self._end is None

    def passed_over(self, xids: Iterable[int]) -> None:
        """The log has changes of the tables by these transactions, and they were left out."""
        self._passed.update(xids)

    def step(self, seen: Visible, lsn: int, server: AskedServer) -> bool:
        """Whether rows may be read where the log was read up to `lsn`, by a snapshot that was taken after that."""
        if self._end is None:
            if self._since is None:
                self._since = server.start()
                return False
            if seen.xmin >= self._since:
                self._end = server.end_of_log()
            return False
        self._passed = {xid for xid in self._passed if not seen.sees(full_xid(xid, seen.xmax))}
        return lsn >= self._end and not self._passed


def with_chunk(split: LogSplit, table: str, oid: int, own: TableSeam, upper: Key | None, seen: Seen) -> LogSplit:
    """The split behind one more chunk of a table, which is the last one if it has no `upper` bound."""
    seam = Seam((), 0) if split.seam is None else split.seam
    bounds = own.bounds if upper is None else (*own.bounds, upper)
    read = TableSeam(own.key, bounds, (*own.snapshots, seen.snapshot))
    tables = split.tables or ()
    return replace(
        split,
        tables=(*tables, (table, oid)) if upper is None else tables,
        seam=Seam(tuple(sorted({**dict(seam.tables), table: read}.items())), max(seam.until, seen.lsn)),
    )


def _both(known: tuple[int, ...], now: tuple[int, ...]) -> tuple[int, ...]:
    """The entries by which a table has been published all the time; those of now, or the known ones, where there are none."""
    return tuple(entry for entry in known if entry in now) or known or now


def partly_read(split: LogSplit, table: str) -> TableSeam | None:
    """What is read of the table, if that is some of its chunks, and not the last one."""
    seam = None if split.seam is None else dict(split.seam.tables).get(table)
    return seam if seam is not None and len(seam.bounds) == len(seam.snapshots) else None


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
        self._settling: Settling | None = None
        self._wait = SlowWait("")

    def missing(self, split: LogSplit) -> list[Followed]:
        """The tables whose rows are not read, or not all of them; first the one of which some are."""
        found = [each for each in self._followed if not split.has_rows_of(each.table.oid)]
        return sorted(found, key=lambda each: partly_read(split, each.table.full_name) is None)

    def taken_over(self, split: LogSplit) -> LogSplit:
        """Without tables that are no longer read: if one is again, its rows are missing, as its changes are.

        No entry publishes such a table in `published_by`, so it is known then that its copy has rows.
        """
        entries_of = dict(split.published_by)
        partly = {each.table.oid for each in self._followed if partly_read(split, each.table.full_name) is not None}
        of_read = {oid: entries for oid, entries in entries_of.items() if oid in partly or split.has_rows_of(oid)}
        published = {each.table.oid: _both(of_read.get(each.table.oid, ()), each.published_by) for each in self._followed}
        if split.tables is not None:
            if again := [each.table.full_name for each in self._followed if entries_of.get(each.table.oid) == ()]:
                log.warning("%s: the rows are read again; those that were deleted meanwhile stay in the copy", ", ".join(again))
            left = [oid for oid, entries in entries_of.items() if oid in of_read or not entries]
            published = {**dict.fromkeys(left, ()), **published}
        known, first = split.options, self._followed[0]
        options = first.options.since(known) if first.options and known and of_read else first.options
        if known and split.position.lsn > first.known.lsn:  # a reader that was started later has read on
            options = known
        split = replace(split, published_by=tuple(published.items()), options=options)
        if split.tables is None:
            return split
        tables = tuple((each.table.full_name, each.table.oid) for each in self._followed if split.has_rows_of(each.table.oid))
        names = {each.table.full_name for each in self._followed}
        seam = split.seam and replace(split.seam, tables=tuple(each for each in split.seam.tables if each[0] in names))
        return replace(split, tables=tables, seam=seam)

    def may_read(self, split: LogSplit) -> bool:
        """Whether the next chunk may be read where the log was read up to now. Some are missing. Asks the server."""
        if split.skip:
            return False
        missing = self.missing(split)
        if partly_read(split, missing[0].table.full_name) is not None:
            return True
        if self._settling is None:
            names = ", ".join(each.table.full_name for each in missing)
            self._settling, self._wait = Settling(), SlowWait(f"the rows of {names} are read")
        with self._asking("waiting for transactions") as connection:
            may_read = self._settling.step(read_visible(connection), split.position.lsn, _Asked(connection))
            if self._settling.waits_for_transactions:
                self._wait.check(connection)
            return may_read

    def passed_over(self, xids: Iterable[int]) -> None:
        """The log has changes of missing tables by these transactions, and they were left out."""
        if self._settling is not None:  # it waits for all that came before it
            self._settling.passed_over(xids)

    def read_next(self, split: LogSplit) -> ReadChunk:
        """Raises DataLossError for a table that was created again, UsageError for one that cannot be cut."""
        followed = self.missing(split)[0]
        name, oid, key = followed.table.full_name, followed.table.oid, chunk_key(followed.table)
        own = partly_read(split, name) or TableSeam(key, (), ())
        lower = own.bounds[-1] if own.bounds else None
        with self._asking(f"reading {name}") as connection:
            if not key:
                check_size(connection, followed, self._chunk_rows)
            upper = next_bound(connection, followed, key, self._chunk_rows, lower) if key else None
            chunk = read_chunk(connection, followed, key, lower, upper)
        check_unaltered(followed.table, chunk.columns)
        if upper is None:
            log.info("the rows of %s are read, and its changes follow", name)
        return ReadChunk(with_chunk(split, name, oid, own, upper, chunk.seen), oid, chunk.texts)

    def close(self) -> None:
        """May be called more than once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _asking(self, doing: str) -> Iterator[psycopg.Connection]:
        with translated(self._url, doing):
            if self._connection is None:
                self._connection = connect(self._url)
            yield self._connection


@dataclass(frozen=True, slots=True)
class _Asked:
    connection: psycopg.Connection

    def start(self) -> int:
        (xid,) = self.connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
        return int(xid)

    def end_of_log(self) -> int:
        """More comes behind it: a quiet server would never say that it has sent all up to there."""
        end = read_log_end(self.connection)
        flush_log(self.connection)
        return end
