"""Where a source of changes finds its splits: the chunks of the tables, then the log."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import psycopg

from headrace.connectors.postgresql import catalog
from headrace.connectors.postgresql.columns import Names, NamesSum, check_all, check_names, check_sum, read_names, read_sum
from headrace.connectors.postgresql.connection import connect, translated
from headrace.connectors.postgresql.errors import NEW_SNAPSHOT
from headrace.connectors.postgresql.partitions import other_identity, unlogged
from headrace.connectors.postgresql.snapshot import Followed, chunk_key, lower_bounds
from headrace.connectors.postgresql.splits import (
    ChangesSplit,
    ChunkSplit,
    Key,
    LogSplit,
    Origin,
    read_options,
    read_origin,
    read_published,
    read_seam,
    read_tables,
    seam_of,
    stored_options,
    stored_origin,
    stored_published,
    stored_seam,
)
from headrace.connectors.postgresql.waiting import warned
from headrace.enumerator.envelope import stored_object
from headrace.enumerator.errors import AuthenticationError, DataLossError, RetriableError, StateError, UsageError
from headrace.enumerator.source import DiscoveryResult, JsonObject, SplitDiscovery, Stage, StagedDiscovery

log = logging.getLogger(__name__)

SNAPSHOT, LOG = "snapshot", "log"
"""The names of the stages."""


class Described(Protocol):
    """What a `ChangesSource` says of itself."""

    url: str
    publication: str
    slot: str
    chunk_rows: int

    @property
    def tables(self) -> Sequence[catalog.TablePattern]: ...

    @property
    def name(self) -> str: ...

    @property
    def snapshot(self) -> str: ...

    @property
    def followed(self) -> Sequence[Followed]: ...

    def check_added(self, oids: Collection[int]) -> None: ...


class ChangesDiscovery(StagedDiscovery[ChangesSplit]):
    """The chunks of the snapshot, then the log. Of the coordinator's process."""

    def __init__(self, source: Described) -> None:
        self._source = source
        self._log: LogDiscovery | None = None

    def at(self, stage: Stage | None) -> SplitDiscovery[ChangesSplit]:
        """Raises StateError for a stage that there is not, or that is of another kind of snapshot."""
        if stage is not None:
            self._check_kind(stage)
        if (stage is None and self._source.snapshot == "never") or (stage is not None and stage.source == LOG):
            return self._log_at(0 if stage is None else stage.number, None if stage is None else stage.end)
        if stage is None or stage.source == SNAPSHOT:
            is_first = self._source.snapshot != "only"
            snapshot = Stage(0, SNAPSHOT, None, in_pieces=True, is_found=is_first, needs_ends=is_first)
            return ChunkDiscovery(self._source, snapshot)
        raise StateError(f"the state is in the stage {stage.source!r} of {self._source.name}, which there is not")

    def following(self, stage: Stage, cursor: JsonObject | None, splits: Sequence[ChangesSplit]) -> Stage:
        """The log, from where the slot was, without what these chunks have."""
        self._check_kind(stage)
        return Stage(stage.number + 1, LOG, start_of_log(splits), in_pieces=False, is_found=False)

    def later(self, known: Mapping[str, ChangesSplit]) -> DiscoveryResult[ChangesSplit]:
        """Of the only stage, where this is a stage of a `Hybrid`. Raises ProtocolViolationError where there are two."""
        return super().later(known) if self._source.snapshot == "initial" else self.at(None).later(known)

    def _check_kind(self, stage: Stage) -> None:
        """Raise StateError if the checkpoint's job had another one: which rows are read was decided at its start."""
        of_rows, of_log = "initial" if stage.needs_ends else "only", "initial" if stage.number else "never"
        had = of_log if stage.source == LOG else of_rows
        if had != self._source.snapshot:
            raise other_snapshot(had, self._source.snapshot)

    def _log_at(self, number: int, end: JsonObject | None) -> LogDiscovery:
        """One object for all looks of a process: it has said what it has said. Its stage has no `end`: that is with the split
        from here on."""
        stage = Stage(number, LOG, None, in_pieces=False, is_found=False)
        if self._log is None or end is not None:
            self._log = LogDiscovery(self._source, number, end, stage)
        return self._log


def other_snapshot(had: str, snapshot: str) -> StateError:
    """The error for a checkpoint of another kind of snapshot."""
    return StateError(
        f"the checkpoint is of a job with snapshot={had!r}, and its source has snapshot={snapshot!r} now, which would be "
        "ignored: set it back, or start without this checkpoint, into an empty table"
    )


def start_of_log(splits: Sequence[ChangesSplit]) -> JsonObject:
    """What a log needs to know of the chunks before it, all of which are read: where it starts, and what it leaves out."""
    chunks = [split for split in splits if isinstance(split, ChunkSplit)]
    tables = {chunk.table: chunk.oid for chunk in chunks}
    published = {chunk.oid: chunk.published_by for chunk in chunks}
    names: dict[str, list[Names]] = {}
    for chunk in chunks:
        of_table = names.setdefault(str(chunk.oid), [])
        of_table += [each for each in chunk.names if each not in of_table]
    return {
        "position": stored_origin(chunks[0].slot),
        "tables": tables,
        "seam": stored_seam(seam_of(chunks)),
        "published_by": stored_published([*published.items()]),
        "columns": {oid: [*map(list, each)] for oid, each in names.items()},
        "sums": {str(chunk.oid): list(chunk.columns) for chunk in chunks if chunk.columns and not names[str(chunk.oid)]},
        "options": chunks[0].options and stored_options(chunks[0].options),
    }


class ChunkDiscovery(SplitDiscovery[ChangesSplit]):
    """Of the chunks, which are all that there is to find. `stage`: of a `ChangesDiscovery`, where another may follow."""

    def __init__(self, source: Described, stage: Stage | None = None) -> None:
        self._source, self._stage = source, stage
        self._is_all = stage is None or not stage.is_found

    def initial(self) -> DiscoveryResult[ChangesSplit]:
        """The slot comes first: so the log has all that a chunk may lack. The rows alone need none."""
        source = self._source
        followed = source.followed  # before there is a slot, in case they are refused
        with translated(source.url, "starting a snapshot"), connect(source.url) as connection:
            is_alone = source.snapshot == "only"
            place, floor = log_end(connection) if is_alone else slot_place(connection, source.url, source.slot)
            added = [
                chunk
                for each in followed
                for chunk in _cut(connection, each, source.chunk_rows, place, floor, has_log=not is_alone)
            ]
        return DiscoveryResult(added, complete=self._is_all, stage=self._stage)

    def later(self, known: Mapping[str, ChangesSplit]) -> DiscoveryResult[ChangesSplit]:
        """All chunks were found at once."""
        return DiscoveryResult((), complete=self._is_all, stage=self._stage)


def _cut(
    connection: psycopg.Connection, followed: Followed, rows: int, place: Origin, floor: int, *, has_log: bool
) -> Iterator[ChunkSplit]:
    """`has_log`: it compares names behind the chunks, of which each has them else."""
    table, key = followed.table, chunk_key(followed.table)
    columns = NamesSum.of(table.names)
    bounds: list[Key | None] = [None, *lower_bounds(connection, followed, key, rows), None]
    for number, (lower, upper) in enumerate(pairwise(bounds)):
        yield ChunkSplit(
            stage=0,
            table=table.full_name,
            oid=table.oid,
            number=number,
            key=key,
            lower=lower,
            upper=upper,
            slot=place,
            floor=floor,
            published_by=followed.published_by,
            columns=columns,
            options=followed.options,
            names=() if number and has_log else (table.names,),
        )


class LogDiscovery(SplitDiscovery[ChangesSplit]):
    """Of the log, which is one split. `end`: what the snapshot has ended with; None without one."""

    def __init__(
        self,
        source: Described,
        number: int,
        end: JsonObject | None,
        stage: Stage | None = None,
        *,
        tables: tuple[tuple[str, int], ...] | None = None,
    ) -> None:
        """`number`: of the stage, for the split. `stage`: of a `ChangesDiscovery`. `tables`: of the split, without an end."""
        self._source = source
        self._number, self._end, self._stage, self._tables = number, end, stage, tables
        self._said: dict[str, str] = {}
        self._left: set[int] = set()
        self._options: catalog.PublicationOptions | None = None

    def initial(self) -> DiscoveryResult[ChangesSplit]:
        """Raises UsageError for a table with a column that was renamed or created again behind its chunks."""
        split = self._first() if self._end is None else self._behind_snapshot(self._end)
        return DiscoveryResult([split], stage=self._stage)

    def _first(self) -> LogSplit:
        tables = [each.table for each in self._source.followed]
        published = tuple((each.table.oid, each.published_by) for each in self._source.followed)
        columns = tuple((table.oid, table.names) for table in tables)
        with translated(self._source.url, "making a slot"), connect(self._source.url) as connection:
            place, _ = slot_place(connection, self._source.url, self._source.slot)
        options = self._source.followed[0].options
        return LogSplit(self._number, place, self._tables, published_by=published, columns=columns, options=options)

    def _behind_snapshot(self, end: JsonObject) -> LogSplit:
        tables = [each.table for each in self._source.followed]
        read = {oid: [*map(read_names, names)] for oid, names in stored_object(end["columns"]).items()}
        sums = stored_object(end["sums"])  # of chunks that an older headrace cut
        for each in tables:
            check_sum(each.full_name, read_sum(sums.get(str(each.oid))), each.names)
        columns = tuple((each.oid, check_all(each.full_name, read.get(str(each.oid), []), each.names)) for each in tables)
        place, self._options = read_origin(end["position"]), read_options(end.get("options"))
        return LogSplit(
            self._number,
            place,
            read_tables(stored_object(end["tables"])),
            seam=read_seam(stored_object(end["seam"])),
            published_by=read_published(stored_object(end["published_by"])),
            columns=columns,
            options=self._options,
        )

    def later(self, known: Mapping[str, ChangesSplit]) -> DiscoveryResult[ChangesSplit]:
        """Raises DataLossError for a table that was out of the publication: nothing later lets the job have its changes.

        And for an operation that was, or a partition that is in no log. UsageError if the changes until now were those of
        another publication, or for a column that was renamed or created again: of the last one the log does not say so.
        """
        source = self._source
        _ = source.followed  # what a new split has is from before what is read here
        with translated(source.url, "reading the publication"), connect(source.url) as connection:
            publication = catalog.read_publication(connection, source.publication)
            published = {} if publication is None else {table.oid: table for table in publication.tables}
            for split in known.values():
                if isinstance(split, LogSplit):
                    self._check_published(connection, split, published)
                    if publication is not None:
                        self._check_options(split, published, publication.options)
            if publication is not None:
                self._check_partitions(connection, published, publication.operations)
        self._say_what_has_changed(published, frozenset() if publication is None else publication.unpublished)
        return DiscoveryResult((), stage=self._stage, replan=self._replan(published))

    def _check_published(
        self, connection: psycopg.Connection, split: LogSplit, published: Mapping[int, catalog.PublishedTable]
    ) -> None:
        known, publication = dict(split.published_by), self._source.publication
        followed = [each for each in self._source.followed if split.has_rows_of(each.table.oid)]
        names = catalog.read_names(connection, [each.table.oid for each in followed])
        for each in followed:
            oid, table = each.table.oid, each.table.full_name
            check_names(table, each.table.names, names[oid])
            if oid not in published:
                self._left.add(oid)
                continue
            entries = known.get(oid)
            if entries and set(entries).isdisjoint(published[oid].published_by):
                if others := ", ".join(sorted(catalog.publications_of(connection, entries) - {publication})):
                    raise UsageError(
                        f"this job has read table {table} by publication {others}, and by {publication} it may lack changes: "
                        f"set publication back, or {NEW_SNAPSHOT}"
                    )
                raise DataLossError(
                    f"table {table} was taken out of publication {publication} and added again, or has another row filter or "
                    f"list of columns there, so rows or changes are missing: {NEW_SNAPSHOT}"
                )
            if oid in self._left:
                raise DataLossError(
                    f"table {table} was out of publication {publication} for a while, so the log lacks what was changed "
                    f"between: {NEW_SNAPSHOT}"
                )

    def _check_options(self, split: LogSplit, published: Collection[int], now: catalog.PublicationOptions) -> None:
        """Warn where only the version has changed: a tool may have set the same again."""
        tables = [each.table for each in self._source.followed if each.table.oid in published]
        read = ", ".join(table.full_name for table in tables if split.has_rows_of(table.oid))
        known = self._options or split.options
        self._options = now.since(known) if known and read else now
        if back := ", ".join(sorted({*self._options.missing}.intersection(now.operations))):
            raise DataLossError(
                f"publication {now.name} did not publish {back} for a while, so the log lacks such changes of {read}: "
                f"{NEW_SNAPSHOT}"
            )
        if known and read and now.may_have_hidden(known):
            log.warning(
                "publication %s was altered since the last look, and has the same options now: if it had others between, the "
                "log lacks changes of %s. To find out, ask who altered it, or compare rows with the copy. If they differ, %s",
                *(now.name, read, NEW_SNAPSHOT),
            )

    def _check_partitions(
        self, connection: psycopg.Connection, published: Collection[int], operations: Collection[str]
    ) -> None:
        """Of those, too, that were made or attached since the start. An identity may come a moment later.

        Without it an update or a delete ends the job as it is read (`rows.py`).
        """
        followed = [each.table for each in self._source.followed]
        roots = {table.oid: table for table in followed if table.is_partitioned and table.oid in published}
        partitions = catalog.read_partitions(connection, roots) if roots else []
        if names := unlogged(partitions):
            raise DataLossError(
                f"partitions are unlogged or foreign now, so no log has their rows and changes: {names}. Detach them or SET "
                f"LOGGED, and if they have or had rows, {NEW_SNAPSHOT}"
            )
        has_old_rows = not {"update", "delete"}.isdisjoint(operations)
        self._say("identity", other_identity(partitions, roots) if has_old_rows else "")

    def _say_what_has_changed(self, published: Mapping[int, catalog.PublishedTable], unpublished: Collection[str]) -> None:
        """The server sends no changes of a table that left the publication, and no word of that."""
        publication = self._source.publication
        followed = {each.table.oid: each.table.full_name for each in self._source.followed}
        left = ", ".join(name for oid, name in followed.items() if oid not in published)
        names = {oid: each.full_name for oid, each in published.items() if oid in followed}
        renamed = ", ".join(f"{followed[oid]} is named {name}" for oid, name in names.items() if name != followed[oid])
        silent = ", ".join(sorted(unpublished))
        self._say("left", left and f"publication {publication} no longer has {left}: no changes come")
        self._say("unpublished", silent and f"publication {publication} does not publish {silent}: the copy lacks them")
        its = "its changes are still read, and those of a table that takes its name are not"
        self._say("renamed", renamed and f"{renamed} now: {its}")

    def _replan(self, published: Mapping[int, catalog.PublishedTable]) -> str | None:
        """What a start of the job is for: tables that have joined, unless it would fail by one."""
        followed = {each.table.oid for each in self._source.followed}
        joined = {oid: each.full_name for oid, each in published.items() if oid not in followed and self._is_named(each)}
        if not joined:
            self._say("joined", "")
            return None
        change = f"publication {self._source.publication} has {', '.join(sorted(joined.values()))} now"
        try:
            self._source.check_added(joined)
        except (UsageError, DataLossError, AuthenticationError) as error:
            self._say("joined", f"{change}, and the job's next start would fail: {error}")
            return None
        self._say("joined", f"{change}: the job reads it from its next start on")
        return change

    def _say(self, what: str, said: str) -> None:
        """Once of the same. Nothing, if there is nothing to say of this now."""
        if said and said != self._said.get(what):
            log.warning("%s", said)
        self._said[what] = said

    def _is_named(self, table: catalog.PublishedTable) -> bool:
        return any(pattern.matches(table.schema, table.name) for pattern in self._source.tables)


def log_end(connection: psycopg.Connection) -> tuple[Origin, int]:
    """Where the log ends now."""
    server, lsn = catalog.read_server(connection), catalog.read_log_end(connection)
    return Origin(str(server.system_identifier), server.timeline, lsn), lsn


def slot_place(connection: psycopg.Connection, url: str, name: str) -> tuple[Origin, int]:
    """Where the log of the slot starts, and an LSN before every change in it. Makes the slot if there is none.

    Raises RetriableError while another process uses it, and DataLossError for one that was invalidated.
    """
    server = catalog.read_server(connection)
    if catalog.read_slot(connection, name) is None:
        with warned(url, f"slot {name} is made"):
            catalog.create_slot(connection, name)
        log.info("slot %s is made: the server keeps the log for it until it is dropped", name)
    slot = catalog.read_slot(connection, name)
    if slot is None or slot.confirmed_flush_lsn is None or slot.wal_status == "lost":
        raise DataLossError(f"slot {name} has lost its log: drop it, and {NEW_SNAPSHOT}")
    if slot.plugin != catalog.PLUGIN or slot.database != server.database:
        raise UsageError(f"slot {name} is of plugin {slot.plugin} and database {slot.database}: choose another name")
    if slot.is_active:
        raise RetriableError(
            f"slot {name} is in use by process {slot.active_pid} of the server: end the other job, or choose another slot"
        )
    floor = slot.confirmed_flush_lsn if slot.restart_lsn is None else slot.restart_lsn
    return Origin(str(server.system_identifier), server.timeline, slot.confirmed_flush_lsn), floor
