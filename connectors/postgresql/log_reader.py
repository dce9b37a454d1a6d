"""Reads the log of a slot from a split's position on: whole transactions, without what the snapshot has."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.postgresql.added import AddedTables, partly_read
from headrace.connectors.postgresql.columns import Names, check_names, check_read, with_dropped
from headrace.connectors.postgresql.connection import connect, translated
from headrace.connectors.postgresql.errors import NEW_SNAPSHOT
from headrace.connectors.postgresql.pgoutput import Decoded, Decoder, LoggedChanges, LoggedRelation
from headrace.connectors.postgresql.replication import LogConnection
from headrace.connectors.postgresql.rows import OneTableRows, TableRows
from headrace.connectors.postgresql.seam import SeamFilter
from headrace.connectors.postgresql.snapshot import KeyOrder, created_again
from headrace.connectors.postgresql.splits import ChangesSplit, Key, LogSplit, TableSeam
from headrace.enumerator.errors import RetriableError, UsageError
from headrace.enumerator.source import SplitBatch

log = logging.getLogger(__name__)

_PAGE_BYTES = 8192
"""What the server reports as sent may end this far before the end of its log, where a page starts."""


_AWAY_S = 1.0
"""Who has not polled for longer may find that the server has closed the connection (wal_sender_timeout), and connects again."""


class SlotPlace(NamedTuple):
    """A slot, and the publication that is read by it."""

    url: str
    slot: str
    publication: str


_READERS: WeakSet[LogReader] = WeakSet()
"""Those of this process that are open."""


def confirm_later(place: SlotPlace, lsn: int) -> None:
    """The readers of this slot in this process tell the server that what is before this is durable. Called in any thread."""
    for reader in list(_READERS):
        if reader.place == place:
            reader.confirm_later(lsn)


class LogReader:
    """Owned by one thread. Connects when it is first polled.

    `added` reads the rows of tables that the split lacks, until none are; None leaves these tables out. `seam`: of the source.
    """

    def __init__(
        self,
        place: SlotPlace,
        rows: OneTableRows,
        split: LogSplit,
        transaction_bytes: int,
        *,
        seam: str = "exact",
        added: AddedTables | None = None,
    ) -> None:
        """Raises UsageError for a split of other tables."""
        self.place = place
        self._log = LogConnection(place.url, place.slot, [place.publication])
        self._transaction_bytes, self._is_exact = transaction_bytes, seam == "exact"
        self._rows, self._added = rows, added
        split = replace(split, columns=tuple(check_tables(rows, split).items()))
        if added is not None:
            split = added.taken_over(split)
        self._end = self._durable = 0
        self._polled_s = 0.0
        self._connection: psycopg.Connection | None = None
        self._orders: dict[str, KeyOrder] = {}
        self._begin(split)
        _READERS.add(self)

    def _begin(self, split: LogSplit) -> None:
        """As a reader that knows nothing of what was sent before."""
        if self._added is not None and not self._added.missing(split):
            self._added.close()
            self._added = None
        self._is_started = False
        self._split = split
        self._to_skip = split.skip
        self._open = 0
        self._decoder = Decoder(transaction_bytes=self._transaction_bytes, position=split.position.lsn)
        self._decoded: Iterator[Decoded] = iter(())
        self._seam = SeamFilter(split.seam, self._chunks_of) if split.seam is not None and self._is_exact else None

    def poll(self, timeout: float) -> SplitBatch[ChangesSplit] | None:
        """The next transactions, or a chunk of a table that was added. A batch without rows says that the log has come further
        without changes of the tables, or that the server is behind what the log had when this reader connected, or that rows
        are missing.
        """
        away_s = time.monotonic() - self._polled_s if self._is_started else 0.0
        try:
            return self._polled(timeout)
        except RetriableError as error:
            if away_s <= _AWAY_S:
                raise
            batch = self._polled(timeout)
            log.warning(
                "%s. Nothing was read for %.0f s before, as while rows are written: this reader is connected again",
                error,
                away_s,
            )
            return batch
        finally:
            self._polled_s = time.monotonic()

    def _polled(self, timeout: float) -> SplitBatch[ChangesSplit] | None:
        """After a loss the next call starts at the split: what was decoded of it since is lost."""
        try:
            return self._read(timeout)
        except RetriableError:
            self._begin_again(self._split)
            if self._added is not None:
                self._added.close()
            raise

    def _read(self, timeout: float) -> SplitBatch[ChangesSplit] | None:
        if self._added is not None and self._added.may_read(self._split):
            return self._read_chunk(self._added)
        if not self._is_started:
            self._start()
        if self._durable:
            self._durable, durable = 0, self._durable
            self.confirm(durable)
        until = time.monotonic() + timeout
        decoded = self._next(until)
        while decoded is not None and self._was_read(decoded):
            decoded = self._next(until)
        return self._passed_over() if decoded is None else self._delivered(decoded)

    def _read_chunk(self, added: AddedTables) -> SplitBatch[ChangesSplit]:
        """A new connection continues the log: the sender of this one knows the tables as they were."""
        split, oid, texts = added.read_next(self._split)
        self._begin_again(split)
        return SplitBatch(split, self._rows.snapshot(oid, texts, split.position.lsn))

    def _begin_again(self, split: LogSplit) -> None:
        """By other connections."""
        self._hang_up()
        self._decoder.close()
        self._begin(split)

    def _hang_up(self) -> None:
        self._log.close()
        connection, self._connection = self._connection, None
        self._orders.clear()  # they ask by it
        if connection is not None:
            connection.close()

    def _next(self, until: float) -> Decoded | None:
        """A part of a transaction that was received may be none that can be delivered yet."""
        decoded = next(self._decoded, None)
        while decoded is None:
            left = max(0.0, until - time.monotonic())
            self._decoded = self._decoder.decode(self._log.receive(left))
            decoded = next(self._decoded, None)
            if not left or self._log.passed > self._split.position.lsn:
                break
        return decoded

    def _was_read(self, decoded: Decoded) -> bool:
        """Whether it is of the transaction that the split is in, and before its place there."""
        count = count_of(decoded)
        if decoded.is_whole or count > self._to_skip:
            return False
        self._to_skip -= count
        self._open += count
        return True

    def confirm(self, lsn: int) -> None:
        """What is before this is durable: the server may forget it. That the connection is lost, the next poll finds out."""
        if self._is_started:
            try:
                self._log.confirm(lsn)
            except RetriableError:
                self._durable = lsn

    def confirm_later(self, lsn: int) -> None:
        """As `confirm`, by the next `poll`. Called in any thread."""
        self._durable = lsn

    def close(self) -> None:
        _READERS.discard(self)
        self._hang_up()
        if self._added is not None:
            self._added.close()
        self._decoder.close()

    def _start(self) -> None:
        position = self._split.position
        system = self._log.start(position.lsn, position.system, position.timeline)
        self._split = replace(self._split, position=replace(position, timeline=system.timeline))
        self._end = system.position
        self._is_started = True

    def _passed_over(self) -> SplitBatch[ChangesSplit] | None:
        """The log has come further, without changes of published tables; or there is more."""
        has_moved = self._log.passed > self._split.position.lsn and not self._split.skip
        if has_moved:
            self._split = self._split.at(self._log.passed)
        is_behind = self._added is not None or max(self._log.passed, self._split.position.lsn) + _PAGE_BYTES < self._end
        return SplitBatch(self._split, self._rows.merged([]), is_behind=is_behind) if has_moved or is_behind else None

    def _delivered(self, decoded: Decoded) -> SplitBatch[ChangesSplit]:
        ours = [changes for changes in decoded.changes if self._is_ours(changes.relation)]
        if self._added is not None:
            for changes in decoded.changes:
                if changes.relation.oid in self._rows.tables and not self._split.has_rows_of(changes.relation.oid):
                    self._added.passed_over(changes.xids.to_pylist())
        dropped, self._to_skip = self._to_skip, max(0, self._to_skip - count_of(decoded))
        records = self._rows.merged([(changes.relation.oid, *self._new_rows(changes, dropped)) for changes in ours])
        before = self._split.position.lsn
        lsn = max(decoded.position, before)
        seam = self._split.seam if self._seam is None else self._seam.seam
        self._split = replace(self._split, seam=seam).at(lsn, self._read_of_open(decoded, has_moved=lsn > before))
        if self._split.seam is None:
            self._seam = None
        return SplitBatch(self._split, records)

    def _is_ours(self, relation: LoggedRelation) -> bool:
        """Raises DataLossError for another table that is named as one that is read."""
        if relation.oid in self._rows.tables:
            return self._split.has_rows_of(relation.oid)
        name = f"{relation.schema}.{relation.name}"
        if any(rows.table.full_name == name for rows in self._rows.tables.values()):
            raise created_again(name)
        return False

    def _read_of_open(self, decoded: Decoded, *, has_moved: bool) -> int:
        """How many changes of the transaction that is under way were read, by this reader or before it."""
        if decoded.is_whole:
            self._open = 0
            return 0
        self._open = count_of_open(decoded) + (0 if has_moved else self._open)
        return self._open if has_moved else max(self._open, self._split.skip)

    def _new_rows(self, changes: LoggedChanges, dropped: int) -> tuple[pa.RecordBatch, pa.Int64Array]:
        """Those that were not read before, and that no chunk has, with their places."""
        rows = self._rows.tables[changes.relation.oid]
        batch, places = rows.placed(changes)
        if dropped:
            kept = pc.greater_equal(places, dropped)
            batch, places = batch.filter(kept), places.filter(kept)
        if self._seam is None or not batch.num_rows:
            return batch, places
        new: list[npt.NDArray[np.bool_]] = []
        start, name = 0, rows.table.full_name
        truncations = np.flatnonzero(np.asarray(pc.equal(batch.column("_op"), "truncate")))
        for end in [*map(int, truncations), batch.num_rows]:
            new.append(self._is_new(rows, changes, batch.slice(start, end - start), places.slice(start, end - start)))
            if end < batch.num_rows:
                new.append(np.array([self._seam.truncated(name, batch.column("_xid")[end].as_py())]))
            start = end + 1
        kept = pa.array(np.concatenate(new))
        return batch.filter(kept), places.filter(kept)

    def _is_new(
        self, rows: TableRows, changes: LoggedChanges, batch: pa.RecordBatch, places: pa.Int64Array
    ) -> npt.NDArray[np.bool_]:
        assert self._seam is not None
        seam = dict(self._seam.seam.tables).get(rows.table.full_name)

        def keys(numbers: npt.NDArray[np.int64]) -> Sequence[Key]:
            assert seam is not None
            chosen = pa.array(numbers)
            return key_texts(changes, seam.key, places.take(chosen), batch.column("_op").take(chosen))

        return self._seam.is_new(rows.table.full_name, batch.column("_xid").to_numpy(), keys)

    def _chunks_of(self, table: str, seam: TableSeam, keys: Sequence[Key]) -> Sequence[int]:
        with translated(self.place.url, f"asking for the order of the keys of {table}"):
            if self._connection is None:
                self._connection = connect(self.place.url)
            if table not in self._orders:
                (rows,) = (rows for rows in self._rows.tables.values() if rows.table.full_name == table)
                self._orders[table] = KeyOrder(self._connection, rows.table, seam)
            return self._orders[table].chunks(keys)


def check_tables(rows: OneTableRows, split: LogSplit) -> dict[int, Names]:
    """The names of columns to keep, by the tables' oids.

    Raises DataLossError for a table that was created again, UsageError for one that was named otherwise when it was read: the
    seam is by names. UsageError also for a table of which a column was, or was created again, or is read now and was not.
    """
    names = {}
    read, seam = dict(split.tables or ()), dict(split.seam.tables if split.seam else ())
    old_names = {oid: name for name, oid in read.items()}
    columns = dict(split.columns)
    for oid, each in rows.tables.items():
        name = each.table.full_name
        if read.get(name, oid) != oid:  # it may have the name of another one that is read: the copies would be mixed
            raise created_again(name)
        old_name = old_names.get(oid, name)
        if old_name != name and old_name in seam:
            raise UsageError(
                f"the table {name} was not named so when the snapshot read {old_name}, and the log still has changes that were "
                f"read then: undo that until the job has read them, or {NEW_SNAPSHOT}"
            )
        if split.has_rows_of(oid) or partly_read(split, name) is not None:
            known = columns.get(oid, ())
            check_names(name, known, each.table.names)
            check_read(name, known, each.table.names)
            names[oid] = with_dropped(known, each.table.names)
        else:
            names[oid] = each.table.names
    return names


def count_of(decoded: Decoded) -> int:
    """How many changes it has, of all tables."""
    return sum(len(changes.lsns) for changes in decoded.changes)


def count_of_open(decoded: Decoded) -> int:
    """How many changes of the transaction that is under way it has: none, if that has messages only so far."""
    return sum(int(pc.sum(pc.equal(changes.xids, decoded.xid)).as_py() or 0) for changes in decoded.changes)


def key_texts(changes: LoggedChanges, key: Sequence[str], places: pa.Int64Array, operations: pa.StringArray) -> Sequence[Key]:
    """The key of the rows of these changes, which are at these places of their batch."""
    numbers = pc.index_in(places, changes.places).cast(pa.int64())
    new, old = (pc.index_in(numbers, tuples.changes) for tuples in (changes.new, changes.old))
    is_delete = pc.equal(operations, "delete")
    names = [column.name for column in changes.relation.columns]
    if missing := [name for name in key if name not in names]:
        table = f"{changes.relation.schema}.{changes.relation.name}"
        raise UsageError(f"the key of {table} has changed since its snapshot, by {missing[0]!r}: {NEW_SNAPSHOT}")
    columns = []
    for name in key:
        after, before = (tuples.columns[names.index(name)] for tuples in (changes.new, changes.old))
        # What the log leaves out of a new row is as it was before.
        columns.append(pc.if_else(is_delete, before.take(old), pc.coalesce(after.take(new), before.take(old))).to_pylist())
    return list(zip(*columns, strict=True)) if columns else [()] * len(places)
