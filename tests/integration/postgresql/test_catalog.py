"""What real servers say of their tables, types, publications and slots."""

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from headrace.connectors.postgresql.catalog import (
    TablePattern,
    advance_slot,
    check_slot_name,
    create_slot,
    drop_slot,
    find_relations,
    followed,
    publication_statement,
    read_partitions,
    read_publication,
    read_server,
    read_settings,
    read_slot,
    read_tables,
)
from headrace.connectors.postgresql.connection import connect
from headrace.connectors.postgresql.types import PgColumn, PgTable, PgType
from headrace.enumerator.errors import UsageError
from tests.helpers.databases import psql


@pytest.fixture
def schema(server) -> Iterator[str]:
    name = f"s{uuid.uuid4().hex[:8]}"
    psql(server.url, f"CREATE SCHEMA {name}")
    yield name
    psql(server.url, f"DROP SCHEMA {name} CASCADE")


@pytest.fixture
def connection(server) -> Iterator[psycopg.Connection]:
    with connect(server.url) as connection:
        yield connection


def table_of(connection: psycopg.Connection, pattern: str, publication: str | None = None) -> PgTable:
    (relation,) = followed(find_relations(connection, [TablePattern.parse(pattern)]))
    published = read_publication(connection, publication) if publication else None
    return read_tables(connection, [relation.oid], published.columns() if published else {})[relation.oid]


def shape(kind: PgType) -> object:
    """A type without its oid."""
    inner = [shape(kind.element)] if kind.element else []
    fields = [(field.name, shape(field.type), field.modifier) for field in kind.fields]
    return (kind.kind, kind.name, *inner, *([fields] if fields else []), *([kind.labels] if kind.labels else []))


INTEGER = ("base", "integer")


def test_types_are_resolved_down_to_what_they_are_made_of(server, schema, connection):
    psql(
        server.url,
        f"CREATE TYPE {schema}.\"Mood\" AS ENUM ('so', 'a''la')",
        f"ALTER TYPE {schema}.\"Mood\" ADD VALUE 'first' BEFORE 'so'",
        f"CREATE DOMAIN {schema}.cents AS numeric(10, 2)",
        f"CREATE DOMAIN {schema}.price AS {schema}.cents CHECK (value > 0)",
        f'CREATE TYPE {schema}.inner_ AS (a varchar(7)[], gone int, mood {schema}."Mood")',
        f"ALTER TYPE {schema}.inner_ DROP ATTRIBUTE gone",
        f"CREATE TYPE {schema}.outer_ AS (i {schema}.inner_[], prices {schema}.price[])",
        f'CREATE TABLE {schema}.t (o {schema}.outer_, r int4range, tr tstzrange[], c "char", v int2vector, k char(3), j jsonb)',
    )
    mood = ("enum", f'{schema}."Mood"', ("first", "so", "a'la"))
    price = ("domain", f"{schema}.price", ("domain", f"{schema}.cents", ("base", "numeric")))
    texts = ("array", "character varying[]", ("base", "character varying"))
    inner = ("composite", f"{schema}.inner_", [("a", texts, 11), ("mood", mood, -1)])
    arrays = [("i", ("array", f"{schema}.inner_[]", inner), -1), ("prices", ("array", f"{schema}.price[]", price), -1)]
    zoned = ("range", "tstzrange", ("base", "timestamp with time zone"))
    assert {column.name: shape(column.type) for column in table_of(connection, f"{schema}.t").columns} == {
        "o": ("composite", f"{schema}.outer_", arrays),
        "r": ("range", "int4range", INTEGER),
        "tr": ("array", "tstzrange[]", zoned),
        "c": ("base", '"char"'),
        "v": ("base", "int2vector"),
        "k": ("base", "character"),
        "j": ("base", "jsonb"),
    }
    with connect(f"{server.url}?options=-c%20quote_all_identifiers%3Don") as other:  # by it, no hstore was found by its name
        assert table_of(other, f"{schema}.t") == table_of(connection, f"{schema}.t")


def test_ranges_of_users_and_multiranges_are_resolved(server, schema, connection):
    psql(server.url, f"CREATE TYPE {schema}.span AS RANGE (subtype = integer)", f"CREATE TABLE {schema}.t (s {schema}.span)")
    assert shape(table_of(connection, f"{schema}.t").columns[0].type) == ("range", f"{schema}.span", INTEGER)
    if connection.info.server_version >= 140000:
        psql(server.url, f"ALTER TABLE {schema}.t ADD COLUMN m int4multirange")
        added = table_of(connection, f"{schema}.t").columns[1].type
        assert shape(added) == ("multirange", "int4multirange", ("range", "int4range", INTEGER))


@pytest.mark.parametrize(
    ("identity", "named", "in_key"),
    [
        ("DEFAULT", "default", {"b", "a"}),
        ("FULL", "full", {"a", "b", "u", "c"}),
        ("NOTHING", "nothing", set()),
        ("USING INDEX one", "index", {"u"}),
    ],
)
def test_a_table_has_its_columns_its_key_and_its_replica_identity(server, schema, connection, identity, named, in_key):
    psql(
        server.url,
        f"CREATE TABLE {schema}.t (a int, gone int, b text, u int NOT NULL, c numeric(5, 1),"
        " g int GENERATED ALWAYS AS (a) STORED, PRIMARY KEY (b, a) INCLUDE (c))",
        f"CREATE UNIQUE INDEX one ON {schema}.t (u) INCLUDE (c)",
        f"ALTER TABLE {schema}.t DROP gone",
        f"ALTER TABLE {schema}.t REPLICA IDENTITY {identity}",
    )
    found = table_of(connection, f"{schema}.t")
    assert (found.schema, found.name, found.identity, found.key) == (schema, "t", named, ("b", "a"))
    assert [column.name for column in found.columns] == ["a", "b", "u", "c"]
    assert {column.name for column in found.columns if column.in_key} == in_key
    assert [column.nullable for column in found.columns] == [False, False, False, True]
    assert found.columns[-1] == PgColumn(
        "c", PgType(1700, "numeric", "base"), (5 << 16 | 1) + 4, nullable=True, in_key=named == "full"
    )


def test_what_the_texts_of_arrays_and_domains_depend_on_is_read(server, schema, connection):
    psql(
        server.url,
        f"CREATE DOMAIN {schema}.cents AS numeric(10, 2)",
        f"CREATE DOMAIN {schema}.grid AS int[][]",
        f"CREATE TYPE {schema}.pair AS (a int[][])",
        f"CREATE TABLE {schema}.t (c {schema}.cents, g {schema}.grid, p {schema}.pair, b box[], n int[][][])",
    )
    cents, grid, pair, boxes, numbers = table_of(connection, f"{schema}.t").columns
    assert (cents.type.modifier, cents.type.dimensions, grid.type.dimensions) == ((10 << 16 | 2) + 4, 0, 2)
    assert (pair.type.fields[0].dimensions, boxes.dimensions, numbers.dimensions) == (2, 1, 3)
    assert (boxes.type.delimiter, numbers.type.delimiter) == (";", ",")


def test_a_deferrable_primary_key_is_a_key_but_no_identity(server, schema, connection):
    psql(server.url, f"CREATE TABLE {schema}.t (a int PRIMARY KEY DEFERRABLE)")
    found = table_of(connection, f"{schema}.t")
    assert found.key == ("a",)
    assert not found.columns[0].in_key


def test_of_a_partitioned_table_the_root_is_followed(server, schema, connection):
    psql(
        server.url,
        f"CREATE TABLE {schema}.p (k int PRIMARY KEY) PARTITION BY RANGE (k)",
        f"CREATE TABLE {schema}.p1 PARTITION OF {schema}.p FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (k)",
        f"CREATE TABLE {schema}.p11 PARTITION OF {schema}.p1 FOR VALUES FROM (0) TO (9)",
        f"CREATE UNLOGGED TABLE {schema}.u (k int)",
        f"CREATE VIEW {schema}.v AS SELECT 1",
    )
    found = find_relations(connection, [TablePattern.parse(f"{schema}.*")])
    assert [(each.name, each.kind, each.persistence) for each in found] == [
        ("p", "p", "p"), ("p1", "p", "p"), ("p11", "r", "p"), ("u", "r", "u"), ("v", "v", "p"),
    ]  # fmt: skip
    assert {each.root for each in found[1:3]} == {found[0].oid}
    assert [each.name for each in followed(found)] == ["p"]
    assert [each.name for each in followed(found[1:3])] == ["p1", "p11"]
    connection.execute(publication_statement(schema, [(schema, "p")]))
    published = read_publication(connection, schema)
    assert published is not None
    assert published.via_root
    assert [table.name for table in published.tables] == ["p"]
    psql(server.url, f"ALTER PUBLICATION {schema} SET (publish_via_partition_root = false, publish = 'insert, update')")
    published = read_publication(connection, schema)
    assert published is not None
    assert [table.name for table in published.tables] == ["p11"]
    assert published.operations == {"insert", "update"}
    psql(server.url, f"DROP PUBLICATION {schema}")


def test_partitions_have_their_own_identity_also_those_of_partitions(server, schema, connection):
    psql(
        server.url,
        f"CREATE TABLE {schema}.p (k int PRIMARY KEY, u int NOT NULL) PARTITION BY RANGE (k)",
        f"CREATE TABLE {schema}.p1 PARTITION OF {schema}.p FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (k)",
        f"CREATE TABLE {schema}.p11 PARTITION OF {schema}.p1 FOR VALUES FROM (0) TO (3)",
        f"CREATE UNLOGGED TABLE {schema}.p12 PARTITION OF {schema}.p1 FOR VALUES FROM (3) TO (6)",
        f"CREATE TABLE {schema}.p13 PARTITION OF {schema}.p1 FOR VALUES FROM (6) TO (9)",
        f"CREATE TABLE {schema}.p2 PARTITION OF {schema}.p DEFAULT",
        f"CREATE UNIQUE INDEX p2_u ON {schema}.p2 (u) INCLUDE (k)",
        f"ALTER TABLE {schema}.p2 REPLICA IDENTITY USING INDEX p2_u",
        f"ALTER TABLE {schema}.p12 REPLICA IDENTITY FULL",
        f"ALTER TABLE {schema}.p13 REPLICA IDENTITY NOTHING",
        f"CREATE TABLE {schema}.plain (k int PRIMARY KEY)",
        f"CREATE TABLE {schema}.heir () INHERITS ({schema}.plain)",
    )
    oids = {name: table_of(connection, f"{schema}.{name}").oid for name in ("p", "p1", "plain")}
    nested = [("p11", True, {"k"}), ("p12", False, {"k", "u"}), ("p13", True, set())]
    for root, expected in (("p", [*nested, ("p2", True, {"u"})]), ("p1", nested), ("plain", [])):
        found = read_partitions(connection, [oids[root]])
        assert [(each.full_name.split(".")[1], each.is_logged, each.key) for each in found] == expected
        assert all(each.root == oids[root] for each in found)


def test_a_publication_of_all_tables_has_each_that_is_logged(server, schema, connection):
    psql(
        server.url,
        f"CREATE TABLE {schema}.t (a int)",
        f"CREATE UNLOGGED TABLE {schema}.u (a int)",
        f"CREATE PUBLICATION {schema} FOR ALL TABLES",
    )
    found = read_publication(connection, schema)
    assert found is not None
    assert found.all_tables
    assert [table.name for table in found.tables if table.schema == schema] == ["t"]
    psql(server.url, f"DROP PUBLICATION {schema}")
    assert read_publication(connection, schema) is None


def test_lists_of_columns_and_filters_of_rows_are_read(server, schema, connection):
    if connection.info.server_version < 150000:
        pytest.skip("publications have them from 15 on")
    psql(
        server.url,
        f"CREATE TABLE {schema}.t (a int PRIMARY KEY, b int, c int, g int GENERATED ALWAYS AS (a) STORED)",
        f"CREATE TABLE {schema}.all_ (a int, g int GENERATED ALWAYS AS (a) STORED)",
        f"CREATE PUBLICATION {schema} FOR TABLE {schema}.t (a, c) WHERE (a > 5), TABLE {schema}.all_",
    )
    found = read_publication(connection, schema)
    assert found is not None
    assert [(table.name, table.row_filter) for table in found.tables] == [("all_", None), ("t", "(a > 5)")]
    assert [column.name for column in table_of(connection, f"{schema}.t", schema).columns] == ["a", "c"]
    assert [column.name for column in table_of(connection, f"{schema}.all_", schema).columns] == ["a"]
    psql(server.url, f"DROP PUBLICATION {schema}", f"CREATE PUBLICATION {schema} FOR TABLES IN SCHEMA {schema}")
    found = read_publication(connection, schema)
    assert found is not None
    assert [table.name for table in found.tables] == ["all_", "t"]
    if connection.info.server_version >= 180000:
        psql(server.url, f"ALTER PUBLICATION {schema} SET (publish_generated_columns = stored)")
        assert [column.name for column in table_of(connection, f"{schema}.all_", schema).columns] == ["a", "g"]
    psql(server.url, f"DROP PUBLICATION {schema}")


def test_a_table_is_published_by_the_entries_whose_filter_and_list_are_in_force(server, schema, connection):
    if connection.info.server_version < 150000:
        pytest.skip("publications have them from 15 on")
    psql(
        server.url,
        f"CREATE TABLE {schema}.t (a int PRIMARY KEY, b int) PARTITION BY RANGE (a)",
        f"CREATE TABLE {schema}.part PARTITION OF {schema}.t DEFAULT",
        f"CREATE TABLE {schema}.u (a int PRIMARY KEY, b int)",
    )

    def entries(of: str, table: str, alter: str = "") -> tuple[int, list[str]]:
        """How many entries are in force for the table, and the columns that it has by them."""
        if of:
            psql(server.url, f"DROP PUBLICATION IF EXISTS {schema}", f"CREATE PUBLICATION {schema} FOR {of}")
        else:
            psql(server.url, f"ALTER PUBLICATION {schema} {alter}")
        found = read_publication(connection, schema)
        assert found is not None
        (one,) = (each for each in found.tables if each.name == table)
        return len(one.published_by), list(one.columns or ())

    every = ["a", "b"]
    assert entries("ALL TABLES", "u") == (1, every)
    assert entries(f"TABLES IN SCHEMA {schema}, TABLE {schema}.u", "u") == (2, every)
    assert entries(f"TABLES IN SCHEMA {schema}, TABLE {schema}.u WHERE (a > 5)", "u") == (1, every)
    assert entries("", "u", f"DROP TABLES IN SCHEMA {schema}") == (1, every)
    assert entries(f"TABLE {schema}.t, TABLE {schema}.part", "part") == (2, every)
    assert entries(f"TABLE {schema}.t, TABLE {schema}.part (a)", "part") == (1, ["a"])
    listed = read_publication(connection, schema)
    assert entries("", "part", f"DROP TABLE {schema}.part") == (1, every)
    root = read_publication(connection, schema)
    assert listed is not None
    assert root is not None
    assert {*listed.tables[0].published_by}.isdisjoint(root.tables[0].published_by), "other columns come"
    psql(server.url, f"DROP PUBLICATION {schema}")


def test_what_a_server_is_outlives_a_sigkill(server):
    def asked() -> tuple[object, object]:
        with connect(server.url) as connection:
            return read_server(connection), read_settings(
                connection, ["wal_level", "no_such_setting", "max_slot_wal_keep_size"]
            )

    found, settings = asked()
    assert (found.timeline, found.is_standby, found.database) == (1, False, "warehouse")
    assert settings == {"wal_level": "logical", "max_slot_wal_keep_size": "-1"}
    server.kill()
    server.restart()
    assert asked() == (found, settings)


def test_a_slot_is_made_moved_and_dropped(server, connection):
    name = f"headrace_{uuid.uuid4().hex[:8]}"
    made_at = create_slot(connection, name)
    slot = read_slot(connection, name)
    assert slot is not None
    assert (slot.plugin, slot.database, slot.wal_status, slot.confirmed_flush_lsn) == (
        "pgoutput",
        "warehouse",
        "reserved",
        made_at,
    )
    assert slot.is_ours
    assert not slot.is_active
    assert slot.failover is (True if connection.info.server_version >= 170000 else None)
    psql(server.url, "SELECT pg_logical_emit_message(true, '', repeat('x', 100000))")
    with psycopg.connect(server.url, autocommit=True) as other:
        (end,) = other.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint").fetchone()
    grown = read_slot(connection, name)
    assert grown is not None
    assert grown.retained > slot.retained + 100000
    for lsn in (end, made_at):  # it never goes back
        advance_slot(connection, name, lsn)
    moved = read_slot(connection, name)
    assert moved is not None
    assert moved.confirmed_flush_lsn == end > made_at
    drop_slot(connection, name)
    assert read_slot(connection, name) is None


@pytest.mark.parametrize("name", ["orders", "headrace_A", "headrace_a-b", "headrace_" + "x" * 55, "headrace_a\n"])
def test_a_slot_of_another_name_is_never_touched(connection, name):
    for call in (create_slot, drop_slot, lambda *given: advance_slot(*given, 1)):
        with pytest.raises(UsageError, match="cannot be our slot"):
            call(connection, name)
    assert check_slot_name("headrace_" + "x" * 54)
