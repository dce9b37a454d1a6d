"""What a server says of itself, of its tables and their types, of publications and slots. PostgreSQL 13 to 18.

Each function asks by a session in autocommit, as `connection.connect` gives it, and raises psycopg's errors: see `translated`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from psycopg import Connection, sql

from headrace.connectors.postgresql.columns import Names
from headrace.connectors.postgresql.replication import lsn_text
from headrace.connectors.postgresql.types import PgColumn, PgTable, PgType
from headrace.connectors.postgresql.visible import Moment, Visible
from headrace.enumerator.errors import UsageError

DEFAULT_PUBLICATION = "headrace"
SLOT_PREFIX = "headrace_"
"""Of the names of our slots: no other slot is ever dropped or moved."""
PLUGIN = "pgoutput"

_PG14, _PG15, _PG16, _PG17, _PG18 = 140000, 150000, 160000, 170000, 180000
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")


# --- the server -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """A server, or a standby of one. `version`: 150018 is 15.18. `timeline` is the one that it is on."""

    version: int
    system_identifier: int
    timeline: int
    is_standby: bool
    database: str


def read_server(connection: Connection) -> Server:
    row = connection.execute(
        """
        SELECT current_setting('server_version_num')::int, system_identifier, CASE
            WHEN pg_is_in_recovery() THEN greatest(timeline_id, min_recovery_end_timeline)
            -- the last checkpoint may be older than the promotion
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int
        END, pg_is_in_recovery(), current_database()
        FROM pg_control_system(), pg_control_checkpoint(), pg_control_recovery()
        """
    ).fetchone()
    assert row is not None
    return Server(*row)


def read_log_end(connection: Connection) -> int:
    """The LSN behind all that was written to the log so far."""
    (lsn,) = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone() or (0,)
    return int(lsn)


def read_moment(connection: Connection) -> Moment:
    """Now. What has happened by then is on the server's own disk when this returns."""
    moment = Moment(read_log_end(connection), read_visible(connection))
    _flush(connection, sql.SQL("local"))  # a start waits for no standby, which may be away
    return moment


def read_visible(connection: Connection) -> Visible:
    """Whose effects are seen now."""
    return Visible.parsed(read_snapshot(connection))


def read_snapshot(connection: Connection) -> str:
    """pg_current_snapshot(), which is that of the transaction if the connection is in one that keeps its own."""
    (snapshot,) = connection.execute("SELECT pg_current_snapshot()::text").fetchone() or ("",)
    return str(snapshot)


def flush_log(connection: Connection) -> None:
    """Return when all that is visible now is on the server's disk, and the ids of all transactions that have ended.

    Also on that of a standby for which commits wait. A crash undoes commits that did not wait for the disk, which are visible
    before, and gives the ids of transactions that are not on it to other ones, also of transactions that were rolled back.
    """
    _flush(connection, sql.SQL("on"))


def _flush(connection: Connection, how: sql.SQL) -> None:
    with connection.transaction():
        connection.execute(sql.SQL("SET LOCAL synchronous_commit = {}").format(how))
        connection.execute("SELECT pg_logical_emit_message(true, 'headrace', '')")  # any role may, also a read-only one


def read_oldest_transactions(connection: Connection, least_age_s: float = 0.0) -> list[str]:
    """The oldest three that have an id, of any database, and since when they are open, as far as our role may see that."""
    rows = connection.execute(
        """
        SELECT who || coalesce(' since ' || date_trunc('second', since), '') FROM (
            SELECT 'process ' || pid, xact_start, backend_xid FROM pg_stat_activity WHERE pid <> pg_backend_pid()
            UNION ALL SELECT 'prepared transaction ' || quote_literal(gid), prepared, transaction FROM pg_prepared_xacts
        ) AS open(who, since, xid)
        WHERE xid IS NOT NULL AND coalesce(since, now()) <= clock_timestamp() - make_interval(secs => %s)
        ORDER BY age(xid) DESC LIMIT 3
        """,
        [least_age_s],
    )
    return [who for (who,) in rows]


def read_settings(connection: Connection, names: Collection[str]) -> dict[str, str]:
    """As SHOW has them: with units. Those that this server does not have are left out."""
    query = "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name WHERE current_setting(name, true) IS NOT NULL"
    return dict(connection.execute(query, [list(names)]).fetchall())


# --- relations --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TablePattern:
    """Names of tables: `schema.table`, or `table` in the schema `public`. `*` is any text, `?` any character.

    A part in double quotes is taken as it is. Case matters, as names are compared with those of the catalog.
    """

    text: str
    schema: re.Pattern[str]
    table: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> TablePattern:
        """Raises UsageError for what is not one or two names."""
        parts = _PARTS.fullmatch(text)
        if parts is None:
            raise UsageError(f'{text!r} does not name a table: write schema.table, quote a part with dots: "My.table"')
        schema, table = parts.groups()
        return cls(text, _pattern("public" if schema is None else schema), _pattern(table))

    def matches(self, schema: str, table: str) -> bool:
        return bool(self.schema.fullmatch(schema) and self.table.fullmatch(table))

    @property
    def is_literal(self) -> bool:
        """Whether it names one table."""
        return not any(_WILD.search(part) for part in _PART.findall(self.text) if not part.startswith('"'))


_QUOTED, _PLAIN = r'"(?:[^"]|"")+"', r'[^".]+'
_PART = re.compile(f"{_QUOTED}|{_PLAIN}")
_PARTS = re.compile(rf"(?:({_QUOTED}|{_PLAIN})\.)?({_QUOTED}|{_PLAIN})")
_WILD = re.compile(r"[*?]")


def _pattern(part: str) -> re.Pattern[str]:
    if part.startswith('"'):
        return re.compile(re.escape(part[1:-1].replace('""', '"')))
    return re.compile("".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in part), re.DOTALL)


@dataclass(frozen=True, slots=True)
class PgRelation:
    """A table, or what could be taken for one. `kind` is relkind: r table, p partitioned, v view, m materialized, f foreign.

    `root` is the partitioned table at the top, where this is a partition. `rows` is the server's estimate (-1: unknown).
    `unreadable` are the columns that our role may not select. `has_policies`: row-level security hides rows from it.
    """

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    root: int | None
    rows: float
    may_use_schema: bool
    unreadable: Sequence[str]
    has_policies: bool

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def is_table(self) -> bool:
        """Whether its changes are in the log."""
        return self.kind in "rp" and self.persistence == "p"


def find_relations(connection: Connection, patterns: Sequence[TablePattern]) -> list[PgRelation]:
    """All that a pattern names but the system's, in the order of their names; also what cannot be a source."""
    rows = connection.execute(
        """
        SELECT c.oid::bigint, nspname, relname, relkind::text, relpersistence::text,
            CASE WHEN relispartition THEN pg_partition_root(c.oid)::oid::bigint END, reltuples::float8,
            has_schema_privilege(n.oid, 'USAGE'), ARRAY(
                SELECT attname FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
                    AND NOT has_column_privilege(c.oid, attnum, 'SELECT') ORDER BY attnum
            )::text[], row_security_active(c.oid)
        FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
        WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
        ORDER BY nspname COLLATE "C", relname COLLATE "C"
        """
    ).fetchall()
    found = (PgRelation(*row) for row in rows)
    return [each for each in found if any(pattern.matches(each.schema, each.name) for pattern in patterns)]


def followed(relations: Sequence[PgRelation]) -> list[PgRelation]:
    """The tables among them whose changes can be read, without partitions of others of them, whose changes are the root's."""
    oids = {each.oid for each in relations}
    return [each for each in relations if each.is_table and each.root not in oids]


class PgPartition(NamedTuple):
    """A table that has rows of a partitioned one. `root` is that one; `key`: the columns that the log has of an old row."""

    root: int
    full_name: str
    is_logged: bool
    key: frozenset[str]


def read_partitions(connection: Connection, roots: Collection[int]) -> list[PgPartition]:
    """Those of these tables, also where they are partitions of partitions. Waits for no lock."""
    rows = connection.execute(_PARTITIONS, [list(roots)])
    return [PgPartition(root, name, is_logged, frozenset(key)) for root, name, is_logged, key in rows]


def unlogged_partitions(relations: Iterable[PgRelation], roots: Collection[int]) -> list[PgRelation]:
    """The partitions of these tables whose rows are read with them, and whose changes are in no log."""
    return [each for each in relations if each.root in roots and (each.kind == "f" or each.persistence == "u")]


# --- columns and types ------------------------------------------------------------------------------------------------

_IDENTITIES: Mapping[str, Literal["default", "full", "index", "nothing"]] = {
    "d": "default",
    "f": "full",
    "i": "index",
    "n": "nothing",
}

# Without the columns that an index includes: its key lacks them.
_KEY_COLUMNS = "(indkey::int2[])[:indnkeyatts - 1]"
# A deferrable primary key does not identify rows in the log.
_IDENTITY = "indisvalid AND CASE relreplident WHEN 'd' THEN indisprimary AND indimmediate WHEN 'i' THEN indisreplident END"
_TABLES = f"""
    SELECT c.oid::bigint, nspname, relname, relreplident::text, relkind = 'p',
        (SELECT NOT indimmediate FROM pg_index WHERE indrelid = c.oid AND indisprimary AND indisvalid),
        (SELECT {_KEY_COLUMNS} FROM pg_index WHERE indrelid = c.oid AND indisprimary AND indisvalid),
        (SELECT {_KEY_COLUMNS} FROM pg_index WHERE indrelid = c.oid AND {_IDENTITY})
    FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = ANY(%s::oid[])
"""  # noqa: S608 - the texts are ours
_PARTITIONS = f"""
    WITH RECURSIVE tree(root, relation) AS (
        SELECT root, root FROM unnest(%s::oid[]) AS root
        UNION ALL SELECT root, inhrelid FROM tree JOIN pg_inherits ON inhparent = relation JOIN pg_class c ON c.oid = inhrelid
            WHERE relispartition
    )
    SELECT root::bigint, nspname || '.' || relname, relkind = 'r' AND relpersistence = 'p', ARRAY(
        SELECT attname FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND (
            relreplident = 'f' OR attnum = ANY(
                SELECT unnest({_KEY_COLUMNS}) FROM pg_index WHERE indrelid = c.oid AND {_IDENTITY}
            )
        )
    )::text[]
    FROM tree JOIN pg_class c ON c.oid = relation JOIN pg_namespace n ON n.oid = relnamespace
    WHERE relation <> root AND relkind <> 'p' ORDER BY nspname COLLATE "C", relname COLLATE "C"
"""  # noqa: S608 - the texts are ours
_COLUMNS = """
    SELECT attrelid::bigint, attnum, attname, atttypid::bigint, atttypmod, NOT attnotnull, attndims, attgenerated <> ''
    FROM pg_attribute WHERE attrelid = ANY(%s::oid[]) AND attnum > 0 AND NOT attisdropped ORDER BY attrelid, attnum
"""
# In 13, pg_range has no multiranges.
_TYPES = """
    WITH RECURSIVE needed(oid) AS (
        SELECT unnest(%s::oid[])
        UNION
        SELECT part.oid FROM needed JOIN pg_type t ON t.oid = needed.oid CROSS JOIN LATERAL (
            SELECT e.oid FROM pg_type e WHERE e.oid = t.typelem AND e.typarray = t.oid
            UNION ALL SELECT t.typbasetype WHERE t.typtype = 'd'
            UNION ALL SELECT rngsubtype FROM pg_range WHERE rngtypid = t.oid
            UNION ALL {multiranges}
            UNION ALL SELECT atttypid FROM pg_attribute
                WHERE t.typtype = 'c' AND attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped
        ) AS part(oid)
    )
    SELECT t.oid::bigint, format_type(t.oid, NULL), t.typtype::text, t.typrelid::bigint, coalesce(
        (SELECT e.oid FROM pg_type e WHERE e.oid = t.typelem AND e.typarray = t.oid),
        nullif(t.typbasetype, 0),
        (SELECT rngsubtype FROM pg_range WHERE rngtypid = t.oid),
        ({multiranges})
    )::bigint, ARRAY(SELECT enumlabel FROM pg_enum WHERE enumtypid = t.oid ORDER BY enumsortorder)::text[],
    typtypmod, typndims, typdelim::text
    FROM needed JOIN pg_type t ON t.oid = needed.oid
"""
_MULTIRANGES = "SELECT rngtypid FROM pg_range WHERE rngmultitypid = t.oid"
_KINDS: Mapping[str, Literal["enum", "domain", "composite", "range", "multirange"]] = {
    "e": "enum",
    "d": "domain",
    "c": "composite",
    "r": "range",
    "m": "multirange",
}


def read_tables(connection: Connection, oids: Collection[int], published: Mapping[int, Collection[str]]) -> dict[int, PgTable]:
    """The tables that there are of these. `published`: the names of a table's columns, where a publication lists them.

    Without such a list the log has all but generated columns; those it has from 18 on, where they are listed.
    """
    keys = {row[0]: row[1:] for row in connection.execute(_TABLES, [list(oids)])}
    columns = _columns(connection, keys)
    types = _Types(connection, {column.type for own in columns.values() for column in own})
    may_list_generated = connection.info.server_version >= _PG18
    tables = {}
    for oid, (schema, name, replident, is_partitioned, is_deferrable, primary, identity) in keys.items():
        own = columns.get(oid, [])
        names = {column.number: column.name for column in own}
        in_key = set(names.values()) if replident == "f" else {names[number] for number in _numbers(identity)}
        listed = published.get(oid)
        kept = tuple(
            PgColumn(each.name, types.of(each.type), each.modifier, each.nullable, each.name in in_key, each.dimensions)
            for each in own
            if (listed is None or each.name in listed)
            and (not each.is_generated or (listed is not None and may_list_generated))
        )
        key = tuple(names[number] for number in _numbers(primary))
        in_log = {column.name for column in kept}
        key = key if in_log.issuperset(key) else ()
        read = {number: column for number, column in names.items() if column in in_log}
        tables[oid] = PgTable(
            *(oid, schema, name, kept, _IDENTITIES[replident], key, is_partitioned, bool(is_deferrable)),
            identity_is_published=in_log.issuperset(in_key),
            names=_by_number(read, last=max(names, default=0)),
        )
    return tables


def read_names(connection: Connection, oids: Collection[int]) -> dict[int, Names]:
    """Of all columns of these tables, as they are now; none of a table that is gone."""
    columns = _columns(connection, oids)
    return {oid: names_of(columns.get(oid, ())) for oid in oids}


def read_columns(connection: Connection, oid: int) -> Sequence[Attribute]:
    """Those of a table that are there now, by their numbers."""
    return _columns(connection, [oid]).get(oid, ())


def names_of(columns: Sequence[Attribute]) -> Names:
    """By their numbers, as `Names` has them."""
    names = {column.number: column.name for column in columns}
    return _by_number(names, last=max(names, default=0))


def _by_number(names: Mapping[int, str], last: int) -> Names:
    return tuple(names.get(number) for number in range(1, last + 1))


class Attribute(NamedTuple):
    """A column as the catalog has it. `type`: its oid."""

    number: int
    name: str
    type: int
    modifier: int
    nullable: bool
    dimensions: int
    is_generated: bool


def _columns(connection: Connection, oids: Iterable[int]) -> dict[int, list[Attribute]]:
    """By relation, in their order."""
    found: dict[int, list[Attribute]] = defaultdict(list)
    for oid, *attribute in connection.execute(_COLUMNS, [list(oids)]):
        found[oid].append(Attribute(*attribute))
    return found


def _numbers(indexed: Sequence[int] | None) -> Iterable[int]:
    """The columns of an index of a key, which has no expressions."""
    return () if indexed is None else indexed


class _TypeRow(NamedTuple):
    oid: int
    name: str
    typtype: str
    relation: int
    element: int | None
    labels: Sequence[str]
    modifier: int
    dimensions: int
    delimiter: str


class _Types:
    """Types by oid, with all that they are made of: PostgreSQL allows no circles."""

    def __init__(self, connection: Connection, oids: Collection[int]) -> None:
        is_old = connection.info.server_version < _PG14
        query = _TYPES.format(multiranges="SELECT 0::oid WHERE false" if is_old else _MULTIRANGES)
        self._rows = {row[0]: _TypeRow(*row) for row in connection.execute(query, [list(oids)])}
        self._fields = _columns(connection, {row.relation for row in self._rows.values() if row.typtype == "c"})
        self._made: dict[int, PgType] = {}

    def of(self, oid: int) -> PgType:
        if oid not in self._made:
            self._made[oid] = self._make(self._rows[oid])
        return self._made[oid]

    def _make(self, row: _TypeRow) -> PgType:
        fields = tuple(
            PgColumn(field.name, self.of(field.type), field.modifier, field.nullable, dimensions=field.dimensions)
            for field in self._fields.get(row.relation, ())
        )
        element = None if row.element is None else self.of(row.element)
        kind = _KINDS.get(row.typtype) or ("base" if element is None else "array")
        labels = tuple(row.labels)
        return PgType(row.oid, row.name, kind, element, fields, labels, row.modifier, row.dimensions, row.delimiter)


# --- publications -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as a publication has it. `columns`: before 15 it has no lists, and None is all but generated columns.

    `published_by`: the oids of the catalog's entries that publish it, of which it gets new ones when it is added again. Only
    those that publish these rows and columns: an entry whose row filter or list is not in force, as that of a schema is, or
    all others, where such an entry is in force, are left out.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[str, ...] | None = None
    row_filter: str | None = None
    published_by: tuple[int, ...] = ()

    @property
    def full_name(self) -> str:
        """With its schema."""
        return f"{self.schema}.{self.name}"


class PublicationOptions(NamedTuple):
    """Of a publication. `operations`: in alphabetical order. `version`: another one after each ALTER PUBLICATION of an option,
    of the name or the owner; not after one of tables.

    `missing`: operations that were published since rows were read, and later were seen not to be; also where they are back.
    """

    name: str
    owner: str
    operations: tuple[str, ...]
    version: int
    via_root: bool
    missing: tuple[str, ...] = ()

    def since(self, known: PublicationOptions) -> PublicationOptions:
        """With what is missing since `known`, and was then."""
        return self._replace(missing=tuple(sorted({*known.missing, *{*known.operations}.difference(self.operations)})))

    def may_have_hidden(self, known: PublicationOptions) -> bool:
        """Whether it was altered since it was as `known`, and nothing shows what. It may have been as it is."""
        is_same = self[:3] == known[:3] and known.via_root == self.via_root
        return is_same and self.version != known.version


@dataclass(frozen=True, slots=True)
class PgPublication:
    """`operations`: those of insert, update, delete, truncate. `tables` has roots where it is `via_root`, else partitions.

    `version`: as of `PublicationOptions`.
    """

    name: str
    owner: str
    all_tables: bool
    via_root: bool
    operations: frozenset[str]
    tables: tuple[PublishedTable, ...]
    version: int = 0

    @property
    def options(self) -> PublicationOptions:
        return PublicationOptions(self.name, self.owner, tuple(sorted(self.operations)), self.version, self.via_root)

    @property
    def unpublished(self) -> frozenset[str]:
        """The operations that the log lacks."""
        return frozenset(OPERATIONS) - self.operations

    def columns(self) -> dict[int, tuple[str, ...]]:
        """Of the tables for which they are known: see `read_tables`."""
        return {table.oid: table.columns for table in self.tables if table.columns is not None}


OPERATIONS = ("insert", "update", "delete", "truncate")
_SELF_AND_ROOTS = "(SELECT c.oid UNION ALL SELECT relid FROM pg_partition_ancestors(c.oid))"
# The table's entry that has a row filter or list of columns, and whether that is not in force.
_RESTRICTED = """
    (SELECT e.oid FROM pg_publication_rel e WHERE prpubid = p.oid AND prrelid = c.oid
        AND (prqual IS NOT NULL OR prattrs IS NOT NULL))::bigint,
    puballtables OR EXISTS (SELECT FROM pg_publication_namespace WHERE pnpubid = p.oid AND pnnspid = relnamespace)
"""
_PUBLISHED_SCHEMAS = f"""
            UNION ALL SELECT e.oid FROM pg_publication_namespace e JOIN pg_class r ON pnnspid = r.relnamespace
            WHERE pnpubid = p.oid AND r.oid IN {_SELF_AND_ROOTS}
"""  # noqa: S608 - the texts are ours


def read_publication(connection: Connection, name: str) -> PgPublication | None:
    """None where there is none of this name."""
    row = connection.execute(
        "SELECT pg_get_userbyid(pubowner), puballtables, pubviaroot, xmin::text::bigint, pubinsert, pubupdate, pubdelete,"
        " pubtruncate FROM pg_publication WHERE pubname = %s",
        [name],
    ).fetchone()
    if row is None:
        return None
    details, schemas = "NULL, NULL, NULL, NULL", ""
    if connection.info.server_version >= _PG15:
        details, schemas = f"attnames::text[], rowfilter, {_RESTRICTED}", _PUBLISHED_SCHEMAS
    tables = connection.execute(
        f"""
        SELECT c.oid::bigint, schemaname, tablename, {details}, ARRAY(
            SELECT p.oid WHERE puballtables
            UNION ALL SELECT e.oid FROM pg_publication_rel e WHERE prpubid = p.oid AND prrelid IN {_SELF_AND_ROOTS}
            {schemas}
        )::bigint[]
        FROM pg_publication_tables JOIN pg_publication p USING (pubname) JOIN pg_namespace n ON nspname = schemaname
            JOIN pg_class c ON relnamespace = n.oid AND relname = tablename
        WHERE pubname = %s ORDER BY schemaname COLLATE "C", tablename COLLATE "C"
        """,  # noqa: S608 - the texts are ours
        [name],
    )
    published = tuple(
        PublishedTable(
            *(oid, schema, table, None if columns is None else tuple(columns), row_filter),
            published_by=_in_force(entries, restricted, is_hidden=is_hidden),
        )
        for oid, schema, table, columns, row_filter, restricted, is_hidden, entries in tables
    )
    owner, all_tables, via_root, version, *allowed = row
    operations = frozenset(each for each, is_published in zip(OPERATIONS, allowed, strict=True) if is_published)
    return PgPublication(name, owner, all_tables, via_root, operations, published, version)


def _in_force(entries: Sequence[int], restricted: int | None, *, is_hidden: bool | None) -> tuple[int, ...]:
    """The entries that publish the same of a table as all of them together. `restricted`: the one with a filter or a list."""
    if restricted is None:
        return tuple(entries)
    return tuple(each for each in entries if each != restricted) if is_hidden else (restricted,)


def publications_of(connection: Connection, entries: Collection[int]) -> set[str]:
    """The names of the publications that have these entries of the catalog, as in `PublishedTable`."""
    of_schemas = "UNION SELECT pnpubid FROM pg_publication_namespace WHERE oid = ANY(%(entries)s::oid[])"
    found = connection.execute(
        f"""
        SELECT pubname::text FROM pg_publication WHERE oid IN (
            SELECT unnest(%(entries)s::oid[]) UNION SELECT prpubid FROM pg_publication_rel WHERE oid = ANY(%(entries)s::oid[])
            {of_schemas if connection.info.server_version >= _PG15 else ""}
        )
        """,  # noqa: S608 - the texts are ours
        {"entries": list(entries)},
    )
    return {name for (name,) in found}


def publication_statement(name: str, tables: Sequence[tuple[str, str]]) -> sql.Composed:
    """What creates a publication of these (schema, table), or of all; changes of partitions are under their root's name."""
    listed = sql.SQL(", ").join(sql.Identifier(*table) for table in tables)
    what = sql.SQL("TABLE {}").format(listed) if tables else sql.SQL("ALL TABLES")
    statement = sql.SQL("CREATE PUBLICATION {} FOR {} WITH (publish_via_partition_root = true)")
    return statement.format(sql.Identifier(name), what)


# --- slots ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot. LSNs are numbers; what a server's release does not have, or does not apply, is None.

    `wal_status`: reserved, extended, unreserved or lost. `retained` are the bytes of WAL since `restart_lsn`; `safe_wal_size`
    are those that can be written before it may be lost. `xid_age`: for how many transactions it has kept dead rows of the
    system's catalogs from being vacuumed. `inactive_s`: for how long no process has used it (17 and newer).
    """

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    restart_lsn: int | None
    confirmed_flush_lsn: int | None
    wal_status: str | None
    safe_wal_size: int | None
    retained: int | None
    xid_age: int | None
    two_phase: bool | None
    conflicting: bool | None
    failover: bool | None
    synced: bool | None
    invalidation_reason: str | None
    inactive_s: float | None

    @property
    def is_active(self) -> bool:
        return self.active_pid is not None

    @property
    def is_ours(self) -> bool:
        return self.name.startswith(SLOT_PREFIX)


_SLOT_COLUMNS = (
    ("two_phase", _PG14),
    ("conflicting", _PG16),
    ("failover", _PG17),
    ("synced", _PG17),
    ("invalidation_reason", _PG17),
    ("extract(epoch FROM clock_timestamp() - inactive_since)::float8", _PG17),
)


def read_slots(connection: Connection) -> list[Slot]:
    """All of the server, in the order of their names."""
    version = connection.info.server_version
    newer = ", ".join(column if version >= since else "NULL" for column, since in _SLOT_COLUMNS)
    rows = connection.execute(
        f"""
        SELECT slot_name, plugin, database, active_pid, (restart_lsn - '0/0')::bigint, (confirmed_flush_lsn - '0/0')::bigint,
            wal_status, safe_wal_size, (CASE
                WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn()
            END - restart_lsn)::bigint, age(catalog_xmin), {newer}
        FROM pg_replication_slots ORDER BY slot_name COLLATE "C"
        """  # noqa: S608 - the columns are ours
    )
    return [Slot(*row) for row in rows]


def read_slot(connection: Connection, name: str) -> Slot | None:
    return next((slot for slot in read_slots(connection) if slot.name == name), None)


def check_slot_name(name: str) -> str:
    """Raises UsageError for what cannot be the name of our slot."""
    if not _SLOT_NAME.fullmatch(name) or not name.startswith(SLOT_PREFIX):
        raise UsageError(
            f"{name!r} cannot be our slot: the name must start with {SLOT_PREFIX} and have lower-case letters, digits and "
            "underscores, 63 at most"
        )
    return name


def create_slot(connection: Connection, name: str) -> int:
    """Make a permanent one; return the LSN from which on it has all changes. Waits for transactions that are open now.

    From 17 on it is one that a standby with `sync_replication_slots` keeps, so that it outlives a failover.
    """
    failover = ", failover => NOT pg_is_in_recovery()" if connection.info.server_version >= _PG17 else ""
    return _lsn(connection, f"pg_create_logical_replication_slot(%s, '{PLUGIN}'{failover})", "lsn", [check_slot_name(name)])


def advance_slot(connection: Connection, name: str, lsn: int) -> None:
    """Release the log before this LSN, unless the slot is there already. None may be active on it."""
    connection.execute(
        "SELECT pg_replication_slot_advance(slot_name, %(lsn)s::pg_lsn) FROM pg_replication_slots"
        " WHERE slot_name = %(name)s AND confirmed_flush_lsn < %(lsn)s::pg_lsn",
        {"name": check_slot_name(name), "lsn": lsn_text(lsn)},
    )


def drop_slot(connection: Connection, name: str) -> None:
    """It is final: what the slot retains is lost to its source. Fails where a process is active on it."""
    connection.execute("SELECT pg_drop_replication_slot(%s)", [check_slot_name(name)])


def _lsn(connection: Connection, call: str, column: str, arguments: Sequence[object]) -> int:
    row = connection.execute(f"SELECT ({column} - '0/0')::bigint FROM {call}", arguments).fetchone()  # noqa: S608 - ours
    assert row is not None
    return int(row[0])
