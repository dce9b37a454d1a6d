"""What is missing for a source of changes, each with the SQL that repairs it. `read_facts` asks, `find_problems` judges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg import sql

from headrace.connectors.postgresql.catalog import (
    DEFAULT_PUBLICATION,
    OPERATIONS,
    PLUGIN,
    PgPublication,
    PgRelation,
    Server,
    Slot,
    TablePattern,
    check_slot_name,
    find_relations,
    followed,
    publication_statement,
    read_oldest_transactions,
    read_publication,
    read_server,
    read_settings,
    read_slots,
    read_tables,
    unlogged_partitions,
)
from headrace.connectors.postgresql.connection import connect, parameters, translated
from headrace.connectors.postgresql.rows import METADATA
from headrace.connectors.postgresql.types import PgTable, arrow_type
from headrace.enumerator.errors import UsageError

OLDEST = 13
_FAILOVER_SLOTS = 17
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
_PERSISTENCES = {"u": "unlogged", "t": "temporary"}
_SETTINGS = (
    "idle_replication_slot_timeout",
    "max_replication_slots",
    "max_slot_wal_keep_size",
    "max_wal_senders",
    "server_encoding",
    "synchronized_standby_slots",
    "wal_level",
)
_LONG_S = 60.0
_RESTART = "-- then restart the server"
_RELOAD = "SELECT pg_reload_conf();"


@dataclass(frozen=True, slots=True)
class Lack:
    """Something to repair. An `error` keeps a source from starting or from being exact; a `warning` may cost it something.

    `fix` is SQL, one statement or comment on each line; empty where no SQL repairs it.
    """

    level: Literal["error", "warning"]
    subject: str
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class WantedSource:
    """The source that is checked for. Without patterns it reads all tables of the publication."""

    patterns: tuple[TablePattern, ...] = ()
    publication: str = DEFAULT_PUBLICATION
    slot: str | None = None


@dataclass(frozen=True, slots=True)
class PgRole:
    """Ours. `refusal`: why the server refuses it a replication connection, if it does."""

    name: str
    may_replicate: bool
    refusal: str | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says. `relations` are all of the database; `tables` those to read and their partitions, by oid.

    `transactions`: the oldest of those that have been open for long.
    """

    wanted: WantedSource
    server: Server
    settings: Mapping[str, str]
    role: PgRole
    wal_senders: int
    slots: Sequence[Slot]
    publication: PgPublication | None
    relations: Sequence[PgRelation]
    tables: Mapping[int, PgTable]
    transactions: Sequence[str] = ()

    def followed(self) -> list[PgRelation]:
        """The tables of the source."""
        return _followed(self.wanted, self.publication, self.relations)

    def slot(self) -> Slot | None:
        return next((slot for slot in self.slots if slot.name == self.wanted.slot), None)

    def partitions(self, root: PgRelation) -> list[PgRelation]:
        """Those that have rows."""
        return [each for each in self.relations if each.root == root.oid and each.kind == "r"]


def _followed(wanted: WantedSource, publication: PgPublication | None, relations: Sequence[PgRelation]) -> list[PgRelation]:
    if wanted.patterns:
        return followed([each for each in relations if any(one.matches(each.schema, each.name) for one in wanted.patterns)])
    published = {table.oid for table in publication.tables} if publication else set()
    return followed([each for each in relations if each.oid in published])


# --- asking -----------------------------------------------------------------------------------------------------------


def read_facts(url: str, wanted: WantedSource) -> Facts:
    """Ask, by a session and a replication connection, and change nothing. Raises as `connect` does, UsageError for names."""
    if wanted.slot is not None:
        check_slot_name(wanted.slot)
    with connect(url) as connection, translated(url, "reading the catalog"):
        publication = read_publication(connection, wanted.publication)
        relations = find_relations(connection, [TablePattern.parse("*.*")])
        roots = {each.oid for each in _followed(wanted, publication, relations)}
        oids = [each.oid for each in relations if each.oid in roots or each.root in roots]
        row = connection.execute(
            "SELECT rolname, rolsuper OR rolreplication, (SELECT count(*) FROM pg_stat_get_wal_senders())"
            " FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        assert row is not None
        return Facts(
            wanted,
            read_server(connection),
            read_settings(connection, _SETTINGS),
            PgRole(row[0], row[1], _refusal(url)),
            row[2],
            read_slots(connection),
            publication,
            relations,
            read_tables(connection, oids, {}),
            read_oldest_transactions(connection, _LONG_S),
        )


def _refusal(url: str) -> str | None:
    """Why there can be no replication connection: rights, pg_hba.conf, no free sender, or a pooler that knows none."""
    try:
        psycopg.connect(**parameters(url), replication="database", autocommit=True).close()  # type: ignore[arg-type]
    except psycopg.Error as error:
        return str(error).strip()
    return None


# --- judging ----------------------------------------------------------------------------------------------------------


def find_problems(facts: Facts) -> list[Lack]:
    """Errors first. Their SQL can be run from top to bottom: no table is published before its updates can be."""
    found = [*_of_server(facts), *_of_role(facts), *_of_names(facts)]
    for relation in facts.followed():
        found += [*_of_rights(facts, relation), *_of_table(facts, relation), *_of_publishing(facts, relation)]
    found += [*_of_publication(facts), *_of_slot(facts), *_of_retention(facts), *_of_standbys(facts)]
    return sorted(found, key=lambda finding: finding.level)


def _of_server(facts: Facts) -> Iterator[Lack]:
    settings = facts.settings
    if facts.server.version < OLDEST * 10000:
        yield Lack("error", "server", f"PostgreSQL {facts.server.version // 10000} is not supported: use {OLDEST} or newer")
    if facts.server.is_standby:
        yield Lack(
            "error",
            "server",
            "it is a standby, and changes are read from the primary: name that in the address, or name all of its hosts with "
            "target_session_attrs=read-write",
        )
    if settings["wal_level"] != "logical":
        what = f"wal_level is {settings['wal_level']}, so the log has no changes of rows"
        yield Lack("error", "server", what, f"ALTER SYSTEM SET wal_level = 'logical';\n{_RESTART}")
    if settings["server_encoding"] == "SQL_ASCII":
        what = "the database's encoding is SQL_ASCII, so texts may be no UTF-8, and reading one that is not fails"
        yield Lack("warning", "server", what)
    senders, slots = int(settings["max_wal_senders"]), int(settings["max_replication_slots"])
    slot = facts.slot()
    if facts.wal_senders >= senders and not (slot and slot.is_active):
        what = f"all {senders} senders of the log (max_wal_senders) are in use, so no source can connect"
        yield Lack("error", "server", what, f"ALTER SYSTEM SET max_wal_senders = {senders + 4};\n{_RESTART}")
    if slot is None and len(facts.slots) >= slots:
        idle = ", ".join(slot.name for slot in facts.slots if not slot.is_active) or "none"
        what = f"all {slots} replication slots (max_replication_slots) are taken, so none can be made; not active: {idle}"
        yield Lack("error", "server", what, f"ALTER SYSTEM SET max_replication_slots = {slots + 4};\n{_RESTART}")


def _of_role(facts: Facts) -> Iterator[Lack]:
    role = facts.role
    if role.refusal is None:
        return
    if not role.may_replicate:
        what = "it has no right to read the log (REPLICATION)"
        yield Lack("error", f"role {role.name}", what, f"ALTER ROLE {_quoted(role.name)} REPLICATION;")
    elif facts.wal_senders < int(facts.settings["max_wal_senders"]):
        yield Lack("error", f"role {role.name}", f"a replication connection is refused: {role.refusal}")


def _of_publication(facts: Facts) -> Iterator[Lack]:
    name, publication = facts.wanted.publication, facts.publication
    if publication is None:
        what = f"database {facts.server.database} has no publication {name}, so the server sends no changes"
        yield Lack("error", f"publication {name}", what, _publication(facts))
        return
    if missing := sorted(publication.unpublished, key=OPERATIONS.index):
        what = f"it does not publish {', '.join(missing)}, so those changes never arrive"
        fix = f"ALTER PUBLICATION {_quoted(name)} SET (publish = '{', '.join(OPERATIONS)}');"
        yield Lack("warning", f"publication {name}", what, fix)


def _publication(facts: Facts) -> str:
    """What makes it; empty where tables are named of which none can be published now."""
    tables = [(each.schema, each.name) for each in facts.followed()]
    if facts.wanted.patterns and not tables:
        return ""
    comment = "-- as the owner of the tables, who needs CREATE on the database\n" if tables else "-- as a superuser\n"
    return f"{comment}{_text(publication_statement(facts.wanted.publication, tables))};"


def _of_names(facts: Facts) -> Iterator[Lack]:
    """Of each pattern: names that are no table's whose changes are in the log."""
    taken = {each.oid for each in facts.followed()}
    for pattern in facts.wanted.patterns:
        matching = [each for each in facts.relations if pattern.matches(each.schema, each.name)]
        if not matching:
            yield Lack("error", f"table {pattern.text}", f"there is none of this name in database {facts.server.database}")
        for each in matching:
            if each.oid in taken or each.is_table:
                continue
            if pattern.is_literal:
                kind = _KINDS.get(each.kind) or _PERSISTENCES[each.persistence]
                yield Lack("error", _table(each), f"it is {kind}, so its changes are not in the log", _logged(each))
            elif each.kind in "rp" and each.persistence == "u":
                what = f"it is unlogged, so its changes are not in the log: {pattern.text} leaves it out"
                yield Lack("warning", _table(each), what, _logged(each))


def _logged(relation: PgRelation) -> str:
    return f"ALTER TABLE {_name(relation)} SET LOGGED;" if relation.persistence == "u" and relation.kind in "rp" else ""


def _of_rights(facts: Facts, relation: PgRelation) -> Iterator[Lack]:
    role = _quoted(facts.role.name)
    if not relation.may_use_schema:
        what = f"role {facts.role.name} has no right to use its schema, so its rows cannot be read"
        yield Lack("error", _table(relation), what, f"GRANT USAGE ON SCHEMA {_quoted(relation.schema)} TO {role};")
    listed, columns = _listed(facts, relation), [column.name for column in facts.tables[relation.oid].columns]
    read = columns if listed is None else [name for name in columns if name in listed]
    if unreadable := [name for name in read if name in relation.unreadable]:
        what = f"role {facts.role.name} may not select {', '.join(unreadable)}, so its rows cannot be read"
        of_columns = "" if read == columns else f" ({', '.join(map(_quoted, read))})"
        yield Lack("error", _table(relation), what, f"GRANT SELECT{of_columns} ON {_name(relation)} TO {role};")
    if relation.has_policies:
        what = f"policies hide rows of it from role {facts.role.name}, and not their changes, so reading it is refused"
        yield Lack("error", _table(relation), what, f"ALTER ROLE {role} BYPASSRLS;")


def _listed(facts: Facts, relation: PgRelation) -> Sequence[str] | None:
    """The columns of it that are published; None for all of them."""
    return facts.publication.columns().get(relation.oid) if facts.publication else None


def _of_publishing(facts: Facts, relation: PgRelation) -> Iterator[Lack]:
    publication = facts.publication
    if publication is None:
        return
    name, published = _quoted(publication.name), {table.oid for table in publication.tables}
    roots = f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true);"
    if relation.oid in published:
        return
    if relation.root in published:
        root = next(each for each in facts.relations if each.oid == relation.root)
        what = f"its changes come under the name of {root.full_name}, as the publication has it: name that"
        yield Lack("error", _table(relation), what)
    elif published.intersection(each.oid for each in facts.partitions(relation)):
        what = f"publication {publication.name} sends changes under the names of its partitions"
        yield Lack("error", _table(relation), what, roots)
    else:
        needs_roots = relation.kind == "p" and not publication.via_root
        fix = f"ALTER PUBLICATION {name} ADD TABLE {_name(relation)};" + (f"\n{roots}" if needs_roots else "")
        what = f"publication {publication.name} does not have it, so its changes never arrive"
        yield Lack("error", _table(relation), what, fix)


def _of_table(facts: Facts, relation: PgRelation) -> Iterator[Lack]:
    table, listed = facts.tables[relation.oid], _listed(facts, relation)
    for column in table.columns:
        if listed is None or column.name in listed:
            try:
                arrow_type(column)
            except UsageError as error:
                yield Lack("error", _table(relation), str(error))
    for name in [column.name for column in table.columns if column.name in METADATA]:
        if listed is None or name in listed:
            what = f"its column {name!r} is named as one that the rows have: rename it, or leave it out of the publication"
            yield Lack("error", _table(relation), what)
    for each in unlogged_partitions(facts.relations, {relation.oid}):
        kind = _KINDS.get(each.kind) or _PERSISTENCES[each.persistence]
        what = f"it is {kind}, so the log lacks changes of {relation.full_name}, of which it is a partition"
        yield Lack("error", _table(each), what, _logged(each))
    changes = {"update", "delete"} if facts.publication is None else {"update", "delete"} & facts.publication.operations
    for each in facts.partitions(relation) if relation.kind == "p" else [relation]:
        if changes and not any(column.in_key for column in facts.tables[each.oid].columns):
            yield _without_identity(each, facts.tables[each.oid])
    if changes:
        yield from _of_identities(facts, relation)
    if table.identity == "full" and table.is_deferrable:
        yield Lack("warning", _table(relation), "its primary key is deferrable, so an update that changes it ends the job")
    hidden = [each.name for each in table.columns if each.in_key and listed is not None and each.name not in listed]
    if changes and hidden and table.identity != "full":
        what = f"the publication leaves out {', '.join(hidden)} of its replica identity, so the server refuses updates of it"
        yield Lack("error", _table(relation), what)
    if not table.key:
        what = "it has no primary key, so it cannot be read in chunks of one, nor its changes be applied by one"
        yield Lack("warning", _table(relation), what)


def _of_identities(facts: Facts, relation: PgRelation) -> Iterator[Lack]:
    """Of the table and its partitions, where updates are published."""
    table, key = facts.tables[relation.oid], ", ".join(facts.tables[relation.oid].change_key)
    if table.identity == "index" and key and not {*table.change_key}.issuperset(table.key):
        what = (
            f"its replica identity is an index of {key}: only a sink with that key has no old rows, one by the primary key has"
        )
        fix = f"ALTER TABLE {_name(relation)} REPLICA IDENTITY {'FULL' if table.is_deferrable else 'DEFAULT'};"
        yield Lack("warning", _table(relation), what, fix)
    partitions = [(each, facts.tables[each.oid]) for each in facts.partitions(relation)] if relation.kind == "p" else []
    for each, own in partitions:
        if own.columns_of_old_rows and not own.columns_of_old_rows.issuperset(table.change_key):
            what = f"its replica identity, which partitions do not inherit, lacks {key}, by which {relation.full_name} is read"
            yield Lack("error", _table(each), what, f"ALTER TABLE {_name(each)} REPLICA IDENTITY FULL;")
    differing = [each for each, own in partitions if own.identity != "full"]
    if table.identity == "full" and differing:
        names = ", ".join(each.full_name for each in differing)
        what = f"partitions have another replica identity than its FULL, which they do not inherit: {names}"
        fix = "\n".join(f"ALTER TABLE {_name(each)} REPLICA IDENTITY FULL;" for each in differing)
        yield Lack("warning", _table(relation), what, fix)


def _without_identity(relation: PgRelation, table: PgTable) -> Lack:
    reasons = {
        "nothing": "its replica identity is NOTHING",
        "index": "the index of its replica identity is gone",
        "default": "its primary key is deferrable" if table.key else "it has no primary key",
    }
    identity = "DEFAULT" if table.key and table.identity != "default" else "FULL"
    what = f"{reasons[table.identity]}, so the server refuses updates and deletes of it once it is published"
    return Lack("error", _table(relation), what, f"ALTER TABLE {_name(relation)} REPLICA IDENTITY {identity};")


def _of_slot(facts: Facts) -> Iterator[Lack]:
    slot = facts.slot()
    if slot is None:
        if facts.transactions:
            named = "; ".join(facts.transactions)
            yield Lack("warning", "server", f"a slot is made when all open transactions have ended; open for long: {named}")
        return
    subject, drop = f"slot {slot.name}", f"SELECT pg_drop_replication_slot({_literal(slot.name)});"
    lost = slot.invalidation_reason or ("its log was removed" if slot.wal_status == "lost" else None)
    if slot.plugin != PLUGIN:
        yield Lack("error", subject, f"it is one of {slot.plugin or 'a standby'}, not {PLUGIN}: take another name")
    elif slot.database != facts.server.database:
        yield Lack("error", subject, f"it is one of database {slot.database}: take another name")
    elif lost or slot.conflicting:
        what = f"the server has invalidated it ({lost or 'conflict'}), so changes are lost: tables must be read again"
        yield Lack("error", subject, what, f"-- then start the source again, with a snapshot\n{drop}")
    elif slot.wal_status == "unreserved":
        what = "more log is retained than max_slot_wal_keep_size allows, so the server will remove it: run the source now"
        yield Lack("error", subject, what, f"ALTER SYSTEM SET max_slot_wal_keep_size = -1;\n{_RELOAD}")
    if slot.is_active:
        yield Lack("warning", subject, f"process {slot.active_pid} of the server is active on it: another run must wait")


def _of_retention(facts: Facts) -> Iterator[Lack]:
    """Both ways of ending badly: the disk is full, or the slot is gone."""
    settings = facts.settings
    if settings["max_slot_wal_keep_size"] == "-1":
        what = "max_slot_wal_keep_size has no limit, so the log that a stopped source retains may fill the disk"
        fix = f"ALTER SYSTEM SET max_slot_wal_keep_size = '50GB';  -- what the disk has to spare\n{_RELOAD}"
        yield Lack("warning", "server", what, fix)
    idle = settings.get("idle_replication_slot_timeout", "0")
    if idle != "0":
        what = f"a source that is stopped for {idle} (idle_replication_slot_timeout) loses its slot, and so changes"
        yield Lack("warning", "server", what, f"ALTER SYSTEM SET idle_replication_slot_timeout = 0;\n{_RELOAD}")


def _of_standbys(facts: Facts) -> Iterator[Lack]:
    """Whether the slot outlives a failover to one of those that read the log by a slot here."""
    standbys = [slot.name for slot in facts.slots if slot.plugin is None and slot.is_active and slot.name != facts.wanted.slot]
    if not standbys:
        return
    named = ", ".join(standbys)
    if facts.server.version < _FAILOVER_SLOTS * 10000:
        what = f"there are standbys ({named}) and slots are not copied to them before PostgreSQL 17: a failover loses changes"
        yield Lack("warning", "server", what)
        return
    slot = facts.slot()
    if slot is not None and slot.failover is False:
        what = f"it is not kept on standbys ({named}), so a failover loses changes"
        fix = (
            f"-- by a replication connection (psql 'replication=database ...')\nALTER_REPLICATION_SLOT {slot.name} (FAILOVER);"
        )
        yield Lack("warning", f"slot {slot.name}", what, fix)
    if not facts.settings.get("synchronized_standby_slots"):
        what = f"changes may be delivered that no standby ({named}) has yet, and a failover takes them back"
        fix = (
            "-- those of them that may be promoted: the source waits for each one\n"
            f"ALTER SYSTEM SET synchronized_standby_slots = {_literal(', '.join(standbys))};\n{_RELOAD}\n"
            "-- and on each standby\nALTER SYSTEM SET sync_replication_slots = on;\n"
            f"ALTER SYSTEM SET hot_standby_feedback = on;\n{_RELOAD}"
        )
        yield Lack("warning", "server", what, fix)


# --- texts ------------------------------------------------------------------------------------------------------------


def _table(relation: PgRelation) -> str:
    return f"table {relation.full_name}"


def _name(relation: PgRelation) -> str:
    return _quoted(relation.schema, relation.name)


def _quoted(*names: str) -> str:
    return _text(sql.Identifier(*names))


def _literal(text: str) -> str:
    return _text(sql.Literal(text))


def _text(composed: sql.Composable) -> str:
    return composed.as_string(None)
