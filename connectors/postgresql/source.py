"""Changes of tables as a source: a snapshot of each table in chunks, then the log of a slot.

The snapshot's chunks are pieces of work for all readers. When all of them are durably read, the log starts where the slot was
made, without what the chunks have (`seam`).
"""

from __future__ import annotations

import copy
import shlex
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from headrace.connectors.base.arguments import names, text
from headrace.connectors.postgresql import catalog
from headrace.connectors.postgresql.added import AddedTables
from headrace.connectors.postgresql.columns import Names, check_all, check_sum
from headrace.connectors.postgresql.connection import connect, shown, translated
from headrace.connectors.postgresql.discovery import ChangesDiscovery, other_snapshot
from headrace.connectors.postgresql.errors import NEW_SNAPSHOT
from headrace.connectors.postgresql.log_reader import LogReader, SlotPlace
from headrace.connectors.postgresql.partitions import other_identity, unlogged
from headrace.connectors.postgresql.pgoutput import TRANSACTION_BYTES
from headrace.connectors.postgresql.rows import METADATA, OneTableRows, SeveralTablesRows, TableRows
from headrace.connectors.postgresql.snapshot import (
    Followed,
    check_unaltered,
    chunk_key,
    created_again,
    lower_bounds,
    read_chunk,
)
from headrace.connectors.postgresql.splits import ChangesSplit, ChangesSplitSerializer, ChunkSplit, LogSplit
from headrace.connectors.postgresql.stages import LogStage, SnapshotStage, WholeLog
from headrace.connectors.postgresql.types import OutOfRange
from headrace.enumerator.errors import StateError, UsageError
from headrace.enumerator.source import Boundedness, JsonObject, Source, SourceReader, SplitBatch, StagedSource

Snapshot = Literal["initial", "never", "only"]
Seam = Literal["exact", "overlapping"]


class ChangesSource(StagedSource[ChangesSplit]):
    """The rows of PostgreSQL's tables, then each change of them, in the order of commits. PostgreSQL 13 or newer.

    - `url`: `postgresql://user@host/database`, with libpq's parameters (`sslmode`, `sslrootcert`, ...).
    - `tables`: `schema.table` each, or names in the schema `public`; `*` is any text. Those that the publication has are read.
    - `publication`: it must have them (`CREATE PUBLICATION ... FOR TABLE ...`).
    - `slot`: the name of the logical slot, which starts with `headrace_`. It is made at the first start, and is this job's own:
      it keeps the log until a checkpoint has read it. Drop it when the job is gone (`headrace postgresql slots`).
    - `snapshot`: `initial` reads the tables' rows first, `only` nothing else, `never` changes alone, from the first start.
      A checkpoint is not continued with another one.
    - `seam`: `exact` (default) leaves out the changes that the snapshot's rows have. `overlapping` gives them, too, for a sink
      that writes at least once, by key: a failed attempt may have written a row that is gone when its chunk is read again.
    - `chunk_rows`: rows of the snapshot that are read, and held in memory, at a time (default 50,000).

    - `metadata`: columns about the change, ahead of the table's. `_op`: snapshot, insert, update, delete or truncate. `_lsn`
      orders the changes of a key; equal ones are in the order in which they are read. `_xid`: of the transaction.
      `_committed_at`, `_table`. `_before`: the row before, with REPLICA IDENTITY FULL. `_unchanged`: names of columns whose
      large values the log leaves out; they are null. Without it such a change is an error, as null would be written. REPLICA
      IDENTITY FULL has the values. Default: `_op`, `_lsn`, and of several tables `_table`.
    - `out_of_range`: what becomes of a value that Arrow has no place for, such as an infinite timestamp or NaN among decimals:
      `error` (default) ends the job and names it, `null`.

    The columns of one table are the others. Of several tables, or names with `*`, each has a column, named as the table, with a
    struct of its columns, which is null in other tables' rows: `table_rows` gives those of one.

    A position is the LSN of a commit: a transaction is delivered as a whole, unless its messages have more than
    `max_transaction_bytes` (default 64 MiB).

    Raises UsageError for wrong arguments, at the first use also for what the server lacks.
    """

    name = "postgresql-changes"
    discovery_interval_s: float | None = 60.0

    def __init__(
        self,
        url: str,
        *,
        tables: Sequence[str],
        publication: str,
        slot: str,
        snapshot: Snapshot = "initial",
        seam: Seam = "exact",
        chunk_rows: int = 50_000,
        metadata: Sequence[str] | None = None,
        out_of_range: OutOfRange = "error",
        max_transaction_bytes: int = TRANSACTION_BYTES,
    ) -> None:
        """Raises UsageError as the class says."""
        shown(text("url", url))
        if snapshot not in ("initial", "never", "only"):
            raise UsageError(f"snapshot is 'initial', 'never' or 'only', not {snapshot!r}")
        if seam not in ("exact", "overlapping"):
            raise UsageError(f"seam is 'exact' or 'overlapping', not {seam!r}")
        if out_of_range not in ("error", "null"):
            raise UsageError(f"out_of_range is 'error' or 'null', not {out_of_range!r}")
        for what, number in (("chunk_rows", chunk_rows), ("max_transaction_bytes", max_transaction_bytes)):
            if type(number) is not int or number < 1:
                raise UsageError(f"{what} must be a whole number from 1, not {number!r}")
        self.url: str = url
        self.publication: str = text("publication", publication)
        self.slot: str = catalog.check_slot_name(text("slot", slot))
        self.tables: tuple[catalog.TablePattern, ...] = tuple(map(catalog.TablePattern.parse, names("tables", tables)))
        if not self.tables:
            raise UsageError("tables must name one table at least")
        self.snapshot: Snapshot = snapshot
        self.seam: Seam = seam
        self.out_of_range: OutOfRange = out_of_range
        self.chunk_rows: int = chunk_rows
        self.max_transaction_bytes: int = max_transaction_bytes
        self._metadata = None if metadata is None else names("metadata", metadata)
        if unknown := [name for name in self._metadata or () if name not in METADATA]:
            raise UsageError(f"metadata is some of {', '.join(METADATA)}, and not {unknown[0]!r}")
        self._followed: tuple[Followed, ...] | None = None
        self._row_key: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """Of the batches. Asks the server at the first use; a copy by pickle then has it, too. Raises as `followed` does."""
        whole = self.rows().schema
        return pa.schema([*map(whole.field, self.metadata), *(field for field in whole if field.name not in METADATA)])

    @property
    def metadata(self) -> tuple[str, ...]:
        """The columns about the change. Raises as `followed` does."""
        several = ("_table",) if self._metadata is None and self._has_several else ()
        return (*(("_op", "_lsn") if self._metadata is None else self._metadata), *several)

    @property
    def followed(self) -> tuple[Followed, ...]:
        """The tables as the publication has them. Raises UsageError where it lacks one that is named."""
        if self._followed is None:
            with translated(self.url, "reading the catalog"), connect(self.url) as connection:
                self._followed = find_followed(connection, self.publication, self.tables)
        if self._row_key and len(self._followed) == 1 and self.snapshot != "only":
            check_row_key(self._followed[0], self._row_key)
        return self._followed

    def keyed_by(self, columns: Sequence[str]) -> ChangesSource:
        """One that is refused where an update could change these columns of a row, and leave the old row in the sink."""
        keyed = copy.copy(self)
        keyed._row_key = tuple(columns)
        return keyed

    def check_added(self, oids: Collection[int]) -> None:
        """Raise what the next start of the job would raise, as these tables have joined the publication. Asks the server."""
        with translated(self.url, "reading the tables that have joined"), connect(self.url) as connection:
            found = find_followed(connection, self.publication, self.tables)
            names = {each.table.full_name for each in self.followed}
            for each in found:
                TableRows(each.table)
                if each.table.oid in oids and each.table.full_name in names:
                    raise created_again(each.table.full_name)
                if each.table.oid in oids and self.snapshot != "never":
                    next(lower_bounds(connection, each, chunk_key(each.table), self.chunk_rows), None)

    def rows(self) -> OneTableRows:
        """What makes rows of the tables, with all columns about changes."""
        rows = [TableRows(followed.table, self.out_of_range, followed.known) for followed in self.followed]
        return SeveralTablesRows(rows) if self._has_several else OneTableRows(rows[0])

    @property
    def _has_several(self) -> bool:
        """Also of one table, where names may find a second one later: the batches are of the same shape before it."""
        return len(self.followed) > 1 or not all(pattern.is_literal for pattern in self.tables)

    @property
    def boundedness(self) -> Boundedness:
        """BOUNDED for the snapshot alone."""
        return Boundedness.BOUNDED if self.snapshot == "only" else Boundedness.UNBOUNDED

    @property
    def in_pieces(self) -> bool:
        """True: chunks are shared out a few at a time."""
        return True

    @property
    def needs_ends(self) -> bool:
        """Whether a log follows the snapshot: a chunk says what it has seen, and another reading of it would see more."""
        return self.snapshot == "initial"

    @property
    def repeatable(self) -> bool:
        """Whether it is the log alone: a chunk has the rows as they are when it is read."""
        return self.snapshot == "never"

    def check_at_least_once(self) -> None:
        """A row may be deleted after a failed attempt has written it, and before its chunk is read again."""
        if self.snapshot == "initial" and self.seam == "exact":
            raise UsageError(
                "a sink that writes at least once would keep rows that were deleted before a chunk of the snapshot was read "
                f"again: give {type(self).__name__} seam='overlapping', or write with a sink that commits in two phases"
            )

    @property
    def split_serializer(self) -> ChangesSplitSerializer:
        """JSON objects."""
        return ChangesSplitSerializer()

    @property
    def last_stage(self) -> int:
        """1 where the log follows a snapshot, 0 otherwise."""
        return 1 if self.snapshot == "initial" else 0

    def source_of(self, stage: int, end: JsonObject | None) -> SnapshotStage | LogStage:
        """The snapshot, or the log. Raises StateError for a stage that there is not."""
        if not 0 <= stage <= self.last_stage:
            raise StateError(f"the state is in stage {stage} of {self.name}, and the last one is {self.last_stage}")
        is_snapshot = stage == 0 and self.snapshot != "never"
        return SnapshotStage(self) if is_snapshot else LogStage(self, stage, end)

    def known_stages(self) -> dict[int, Source[ChangesSplit]]:
        """All."""
        return {stage: self.source_of(stage, None) for stage in range(self.last_stage + 1)}

    def kept_end(self, stage: int, end: JsonObject | None) -> None:
        """None: what the snapshot has ended with is with the log's split from its start on."""

    def measures(self) -> dict[str, float]:
        """What the server keeps for the slot, in bytes of log, and for how many transactions. None without a slot."""
        with translated(self.url, "reading the slot"), connect(self.url) as connection:
            slot = catalog.read_slot(connection, self.slot)
        if slot is None or slot.retained is None or slot.restart_lsn is None or slot.confirmed_flush_lsn is None:
            return {}
        known = {
            "slot_lag_bytes": slot.retained + slot.restart_lsn - slot.confirmed_flush_lsn,
            "slot_retained_bytes": slot.retained,
            "slot_safe_bytes": slot.safe_wal_size,
            "slot_xid_age": slot.xid_age,
        }
        return {name: float(value) for name, value in known.items() if value is not None}

    def create_discovery(self) -> ChangesDiscovery:
        """Makes the slot, cuts the table into chunks, then gives the log."""
        return ChangesDiscovery(self)

    def create_reader(self) -> ChangesReader:
        """A reader of chunks and of the log, and of the rows of tables that were added since the job has started."""
        return ChangesReader(self, AddedTables(self.url, self.followed, self.chunk_rows))

    def create_replay_reader(self) -> ChangesReader:
        """One that gives the same records of the log again, without those of tables that have been added since."""
        return ChangesReader(self, None)

    def in_one_stage(self) -> Source[Any]:
        """The log, whose reader reads the tables' rows first, one chunk after another. Itself if there is no log."""
        return self if self.snapshot == "only" else WholeLog(self)


def find_followed(connection: psycopg.Connection, name: str, patterns: Sequence[catalog.TablePattern]) -> tuple[Followed, ...]:
    """The tables of a publication that a pattern names, in the order of their names. Raises UsageError for what it lacks."""
    # First: what alters a table later is not among it, also where the next question waits for that.
    known = catalog.read_moment(connection)
    publication = catalog.read_publication(connection, name)
    wanted = " ".join(f"--tables {shlex.quote(pattern.text)}" for pattern in patterns)
    how = f"the SQL for what is missing is printed by: headrace postgresql check URL --publication {shlex.quote(name)} {wanted}"
    if publication is None:
        raise UsageError(f"there is no publication {name!r}; {how}")
    for pattern in patterns:
        if not any(pattern.matches(table.schema, table.name) for table in publication.tables):
            raise UsageError(f"publication {name!r} has no table {pattern.text}; {how}")
    published = {
        table.oid: table
        for table in publication.tables
        if any(pattern.matches(table.schema, table.name) for pattern in patterns)
    }
    tables = catalog.read_tables(connection, published, publication.columns())
    again = catalog.read_publication(connection, name)
    if again is None or not {*again.tables}.issuperset(published.values()):  # altered between: with other columns than `tables`
        return find_followed(connection, name, patterns)
    partitions = catalog.read_partitions(connection, published)
    if names := unlogged(partitions):
        raise UsageError(f"the changes of partitions are in no log, as these are unlogged or foreign: {names}; {how}")
    has_old_rows = bool(publication.operations & {"update", "delete"})
    if has_old_rows and (refusal := other_identity(partitions, tables)):
        raise UsageError(refusal)
    found = (
        Followed(
            *(tables[oid], each.row_filter, tables[oid].is_partitioned, known, each.published_by),
            *(has_old_rows, publication.options),
        )
        for oid, each in published.items()
    )
    return tuple(sorted(found, key=lambda each: each.table.full_name))


def check_row_key(followed: Followed, key: Sequence[str]) -> None:
    """Raise UsageError if an update may change these columns, by which a sink finds rows, and be no delete and insert."""
    table, named = followed.table, {column.name for column in followed.table.columns}
    own = [name for name in key if name != "_table"]
    lacking = [name for name in own if name in named and name not in table.change_key]
    if not lacking or not followed.has_old_rows or not named.issuperset(own):
        return
    by = ", ".join(table.change_key)
    identity = "DEFAULT" if {*own} <= {*table.key} else "USING INDEX with a unique one of it, of columns that are NOT NULL"
    instead = f"Key the sink by {by}" if by else "Give the table a primary key"
    raise UsageError(
        f"the sink's key is {', '.join(own)}, and changes of {table.full_name} are by {by or 'no key'}: an update of "
        f"{', '.join(lacking)} would leave the old row in the sink. {instead}, or run "
        f"ALTER TABLE ... REPLICA IDENTITY {identity}"
    )


class ChangesReader(SourceReader[ChangesSplit]):
    """Reads chunks one after another, or the log. Owned by one thread."""

    def __init__(self, source: ChangesSource, added: AddedTables | None) -> None:
        """`added`: reads the rows of tables that a log has not had from its start; None leaves these tables out."""
        self._source, self._added = source, added
        self._schema = source.schema
        self._rows = source.rows()
        self._chunks: deque[ChunkSplit] = deque()
        self._noted: set[tuple[int, Names]] = set()
        """Of tables, by their oids: other names than those of the cut, which an earlier chunk has."""
        self._log: LogReader | None = None

    def add_splits(self, splits: Sequence[ChangesSplit]) -> None:
        for split in splits:
            if isinstance(split, ChunkSplit):
                if self._source.snapshot == "never":
                    raise other_snapshot("initial", "never")
                self._chunks.append(split)
            else:
                source = self._source
                place = SlotPlace(source.url, source.slot, source.publication)
                self._log = LogReader(
                    place, self._rows, split, source.max_transaction_bytes, seam=source.seam, added=self._added
                )

    def poll(self, timeout: float) -> SplitBatch[ChangesSplit] | None:
        """A whole chunk, or transactions of the log."""
        if self._chunks:
            return self._read_chunk()
        if self._log is None:
            time.sleep(timeout)
            return None
        batch = self._log.poll(timeout)
        return None if batch is None else replace(batch, records=self._chosen(batch.records))

    def checkpoint_completed(self, splits: Sequence[ChangesSplit]) -> None:
        """The server may forget the log before these."""
        for split in splits:
            if isinstance(split, LogSplit) and self._log is not None:
                self._log.confirm(split.position.lsn)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _read_chunk(self) -> SplitBatch[ChangesSplit]:
        chunk = self._chunks[0]
        followed = next((each for each in self._source.followed if each.table.oid == chunk.oid), None)
        if followed is None and any(each.table.full_name == chunk.table for each in self._source.followed):
            raise created_again(chunk.table)
        if followed is None:
            raise UsageError(
                f"table {chunk.table} is no longer among the tables that are read, and its snapshot is not over: put it back "
                f"until the log is read, or {NEW_SNAPSHOT}"
            )
        check_sum(chunk.table, chunk.columns, followed.table.names)
        check_all(chunk.table, chunk.names, followed.table.names)
        with translated(self._source.url, f"reading {chunk.table}"), connect(self._source.url) as connection:
            read = read_chunk(connection, followed, chunk.key, chunk.lower, chunk.upper)
        if self._source.snapshot == "initial" and self._source.seam == "exact":  # else the log drops none of its changes
            check_unaltered(followed.table, read.columns)
        rows = self._rows.snapshot(chunk.oid, read.texts, chunk.floor)
        self._chunks.popleft()
        at_end, names = replace(chunk, seen=read.seen), (chunk.oid, followed.table.names)
        if names not in self._noted:
            self._noted.add(names)
            at_end = at_end.read_by(followed.table.names)
        return SplitBatch(at_end, self._chosen(rows), finished=True)

    def _chosen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the source's schema. Raises UsageError for a value that the log leaves out, if null hides that."""
        if "_unchanged" not in self._source.metadata:
            left_out = pc.list_flatten(rows.column("_unchanged"))
            if len(left_out):
                (place, *_) = pc.list_parent_indices(rows.column("_unchanged"))
                name = rows.column("_table")[place.as_py()].as_py()
                table = next(each.table for each in self._source.followed if each.table.full_name == name)
                altered = f"ALTER TABLE {sql.Identifier(table.schema, table.name).as_string()} REPLICA IDENTITY FULL"
                raise UsageError(
                    f"a change of {name} leaves out the value of {left_out[0].as_py()!r}, which is large and as before. To "
                    "read it, take `_unchanged` into metadata, and keep the old value where that names a column; or "
                    f"{NEW_SNAPSHOT}. Later changes have all values by {altered}"
                    f"{', and the same of each partition' if table.is_partitioned else ''}"
                )
        return rows.select(self._schema.names)
