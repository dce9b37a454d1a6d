"""The log of real servers: values of each type, transactions of each kind, and what ends a connection."""

import fcntl
import json
import random
import sys
import termios
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.connectors.postgresql import replication
from headrace.connectors.postgresql.catalog import (
    TablePattern,
    create_slot,
    drop_slot,
    find_relations,
    publication_statement,
    read_slot,
    read_tables,
)
from headrace.connectors.postgresql.connection import connect
from headrace.connectors.postgresql.pgoutput import Decoded, Decoder
from headrace.connectors.postgresql.replication import LogConnection, lsn_number
from headrace.connectors.postgresql.rows import TableRows
from headrace.connectors.postgresql.types import PgColumn, PgTable, PgType, arrow_array, numeric_modifier
from headrace.enumerator.errors import AuthenticationError, DataLossError, RetriableError, UsageError
from headrace.runners.waiting import wait_until
from tests.helpers.databases import psql
from tests.helpers.waiting import eventually

TIMEOUT_S = 60.0
SEED = 20
MUCH = 100_000
"""Bytes: less than a socket's buffer, and more than libpq reads at once."""


class Followed:
    """Tables of a schema with a publication and a slot, all of one name."""

    def __init__(self, url: str, connection: psycopg.Connection, name: str) -> None:
        self.url = url
        self.connection = connection
        self.name = name

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.replace("{s}", self.name))

    def publish(self, *tables: str) -> None:
        self.connection.execute(publication_statement(self.name, [(self.name, table) for table in tables]))
        create_slot(self.connection, self.name)

    def table(self, name: str = "t") -> PgTable:
        (relation,) = find_relations(self.connection, [TablePattern.parse(f"{self.name}.{name}")])
        return read_tables(self.connection, [relation.oid], {})[relation.oid]

    def log(self, **options: Any) -> LogConnection:
        return LogConnection(self.url, self.name, [self.name], **options)

    def end(self) -> int:
        row = self.connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        assert row is not None
        return lsn_number(row[0])

    def confirmed(self) -> int:
        slot = read_slot(self.connection, self.name)
        assert slot is not None
        assert slot.confirmed_flush_lsn is not None
        return slot.confirmed_flush_lsn


@pytest.fixture
def followed(server) -> Iterator[Followed]:
    with connect(server.url) as connection:
        found = Followed(server.url, connection, f"headrace_{uuid.uuid4().hex[:8]}")
        found.run("CREATE SCHEMA {s}")
        yield found
        found.connection.close()
    with connect(server.url) as connection:
        if read_slot(connection, found.name) is not None:
            eventually(lambda: not read_slot(connection, found.name).is_active, "the slot is still in use")
            drop_slot(connection, found.name)
        Followed(server.url, connection, found.name).run("DROP PUBLICATION IF EXISTS {s}", "DROP SCHEMA {s} CASCADE")


def decoded(log: LogConnection, decoder: Decoder, end: int) -> Iterator[Decoded]:
    """All up to a position of the log."""
    position, deadline = 0, time.monotonic() + TIMEOUT_S
    while position < end:
        assert time.monotonic() < deadline
        for batch in decoder.decode(log.receive(0.1)):
            position = batch.position
            yield batch
        if decoder.is_between_transactions:
            position = max(position, log.passed)


def changes_of(followed: Followed, table: PgTable, start: int = 0, **options: Any) -> list[pa.RecordBatch]:
    rows = TableRows(table)
    with closing(followed.log(**options)) as log:
        log.start(start)
        batches = list(decoded(log, Decoder(), followed.end()))
    found = [rows.changes(part) for batch in batches for part in batch.changes if part.relation.oid == table.oid]
    for batch in found:
        batch.validate(full=True)
    return found


# --- values -----------------------------------------------------------------------------------------------------------

VALUES: dict[str, Sequence[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["1e-45", "3.4028235e38", "NaN", "-Infinity", "0.1"],
    "double precision": ["5e-324", "1.7976931348623157e308", "NaN", "Infinity", "0.1", "-0"],
    "numeric": ["1.10", "NaN", "1e-100", "-99999999999999999999999999999999999999999999.5"],
    "numeric(10,2)": ["-99999999.99", "0.01"],
    "numeric(60,10)": ["12345678901234567890123456789012345678901234567890.0123456789"],
    "numeric(80,0)": ["9" * 80],
    "money": ["-92233720368547758.08", "1234.56"],
    "text": ["", "a\tb\nc\\d\"e'f", "é😀", "NULL", "\\N"],
    "varchar(5)": ["abc"],
    "char(5)": ["abc"],
    '"char"': ["x"],
    "name": ["a name"],
    "bytea": ["", "\\x00ff5c0a"],
    "date": ["0044-03-15 BC", "2024-02-29", "9999-12-31", "5874897-12-31", "4714-11-24 BC"],
    "timestamp": ["2024-02-29 01:02:03.5", "0001-01-01", "4714-11-24 00:00:00 BC", "200000-01-01 00:00:00.000001"],
    "timestamptz": ["2024-02-29 01:02:03.123456+05:30", "0044-03-15 01:02:03.5+00 BC", "1969-12-31 23:59:59.999999+00"],
    "time": ["00:00:00", "23:59:59.999999"],
    "timetz": ["01:02:03.5+05:30"],
    "interval": ["1 year 2 months 3 days 04:05:06.789", "-1 day", "0"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "json": ['{"a":  [1, "b"]}'],
    "jsonb": ['{"a":  [1, "b"]}'],
    "xml": ["<a>b</a>"],
    "inet": ["192.168.0.1/24", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "bit(3)": ["101"],
    "varbit": ["", "10101"],
    "oid": ["4294967295"],
    "pg_lsn": ["16/B374D848"],
    "regclass": ["pg_class"],
    "point": ["(1.5,2)"],
    "box": ["((1,1),(0,0))"],
    "polygon": ["((0,0),(1,1),(1,0))"],
    "circle": ["<(1,2),3>"],
    "tsvector": ["a:1 b:2"],
    "tsquery": ["a & b"],
    "int4range": ["[1,5)", "empty", "(,)"],
    "tstzrange": ["[2024-01-01 00:00:00+00,infinity)"],
    "integer[]": ["{}", "{1,NULL,-3}", "[0:1]={5,6}"],
    "text[]": ['{a,NULL,"NULL","","q\\"x\\\\","b c","{}"}'],
    "integer[][]": ["{{1,2},{3,NULL}}", "{}"],
    "numeric(4,1)[]": ["{1.5,NULL}"],
    "timestamptz[]": ['{"2024-02-29 01:02:03.5+00",NULL}'],
    "bytea[]": ['{"\\\\x00ff"}'],
    "box[]": ["{(1,1),(0,0);(2,2),(0,0)}"],
    "uuid[]": ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"],
    "{s}.mood": ["sad", "o'k"],
    "{s}.mood[]": ["{sad,o'k}"],
    "{s}.short": ["1.5"],
    "{s}.grid": ["{{1},{2}}"],
    "{s}.pair": ['(1,"a ""b"" \\\\,()")', "(,)", '(2,"")'],
    "{s}.pair[]": ['{"(1,\\"a,b\\")",NULL}'],
    "{s}.nested": ['("(1,x)","{1,2}","2024-01-01")'],
}  # fmt: skip
TYPES = [
    "CREATE TYPE {s}.mood AS ENUM ('sad', 'o''k')",
    "CREATE DOMAIN {s}.short AS numeric(3,1)",
    "CREATE DOMAIN {s}.grid AS integer[][]",
    "CREATE TYPE {s}.pair AS (n integer, t text)",
    "CREATE TYPE {s}.nested AS (p {s}.pair, l integer[], d date)",
]


def has_xml(connection: psycopg.Connection) -> bool:
    """Whether the server was built with it."""
    try:
        connection.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def test_values_of_each_type_are_in_the_log_as_in_a_query_and_as_psycopg_reads_them(followed):
    """What psycopg has no Python value for, such as dates before Christ, is compared as text with the query only."""
    values = {kind: texts for kind, texts in VALUES.items() if kind != "xml" or has_xml(followed.connection)}
    columns = [f'"{number}" {kind}' for number, kind in enumerate(values)]
    followed.run(*TYPES, f"CREATE TABLE {{s}}.t ({', '.join(columns)}, id serial PRIMARY KEY, kind integer)")
    followed.publish("t")
    for number, texts in enumerate(values.values()):
        for text in texts:
            followed.connection.execute(f'INSERT INTO {followed.name}.t ("{number}", kind) VALUES (%s, {number})', [text])
    table = followed.table()
    found = pa.Table.from_batches(changes_of(followed, table)).sort_by("id")
    for number, kind in enumerate(values):
        column = table.columns[number]
        # format uses a type's output function, as the log and COPY do; a cast to text does not always
        query = f"SELECT {{}} FROM {followed.name}.t WHERE kind = {number} ORDER BY id"
        texts = [row[0] for row in followed.connection.execute(query.format(f"""format('%s', "{number}")"""))]
        assert len(texts) == len(values[kind])
        logged = found.filter(pc.equal(found["kind"], number)).column(column.name).combine_chunks()
        expected = arrow_array(column, pa.array(texts, pa.string()))
        assert logged.equals(expected) or ("NaN" in texts and str(logged) == str(expected)), kind
        if kind in COMPARED:
            loaded = [row[0] for row in followed.connection.execute(query.format(f'"{number}"'))]
            assert str(logged.to_pylist()) == str(loaded), kind
        elif pa.types.is_string(logged.type):
            assert logged.to_pylist() == texts, kind


COMPARED = {
    "boolean", "smallint", "integer", "bigint", "double precision", "numeric(10,2)", "numeric(60,10)", "text", "varchar(5)",
    "char(5)", "bytea", "time", "oid", "integer[]", "text[]", "integer[][]", "numeric(4,1)[]", "bytea[]", "{s}.mood",
    "{s}.short", "{s}.grid",
}  # fmt: skip


_DECIMALS = st.integers(1 - 10**60, 10**60 - 1).map(lambda number: Decimal(f"{number}E-25"))
_NUMBERS = st.floats(allow_nan=False), st.floats(width=32, allow_nan=False), _DECIMALS
_MOMENTS = st.tuples(st.integers(-2_440_000, 106_750_000), st.integers(0, 86_400_000_000 - 1))  # days, microseconds
_BITS = st.binary(max_size=9), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(*_NUMBERS, _MOMENTS, *_BITS)
def test_any_values_are_what_the_server_was_given(followed, double, single, decimal, moment, content, text):
    """The server writes their texts, as it does in the log."""
    day, part = moment
    given = {
        "double precision": (double, double),
        "real": (single, single),
        "numeric(60,25)": (decimal, decimal),
        "bytea": (content, content),
        "text[]": ([text, None, text], [text, None, text]),
        "bytea[]": ([content], [content]),
        "timestamptz": (moment, day * 86_400_000_000 + part),
        "date": (day, day),
    }
    instant = "timestamptz 'epoch' + make_interval(days => %s) + %s * interval '1 microsecond'"
    made = {"timestamptz": instant, "date": "date '1970-01-01' + %s"}
    values = [value for value, _ in given.values()]
    parameters = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    query = ", ".join(f"format('%%s', {made.get(kind, f'%s::{kind}')})" for kind in given)
    row = followed.connection.execute(f"SELECT {query}", parameters).fetchone()
    for (kind, (_, expected)), found in zip(given.items(), row, strict=True):
        column = COLUMNS_BY_KIND[kind]
        array = arrow_array(column, pa.array([found]))
        if pa.types.is_temporal(array.type):
            array = array.cast(pa.int64() if pa.types.is_timestamp(array.type) else pa.int32())
        assert array.to_pylist() == [expected], kind


BYTES, STRINGS = PgType(17, "bytea", "base"), PgType(25, "text", "base")
COLUMNS_BY_KIND = {
    "double precision": PgColumn("c", PgType(701, "double precision", "base")),
    "real": PgColumn("c", PgType(700, "real", "base")),
    "numeric(60,25)": PgColumn("c", PgType(1700, "numeric", "base"), numeric_modifier(60, 25)),
    "bytea": PgColumn("c", BYTES),
    "text[]": PgColumn("c", PgType(1009, "text[]", "array", STRINGS)),
    "bytea[]": PgColumn("c", PgType(1001, "bytea[]", "array", BYTES)),
    "timestamptz": PgColumn("c", PgType(1184, "timestamp with time zone", "base")),
    "date": PgColumn("c", PgType(1082, "date", "base")),
}


def test_an_hstore_is_a_map(followed):
    available = followed.connection.execute("SELECT count(*) FROM pg_available_extensions WHERE name = 'hstore'").fetchone()
    if available == (0,):
        pytest.skip("this server has no hstore")
    followed.run("CREATE EXTENSION hstore SCHEMA {s}", "CREATE TABLE {s}.t (id int PRIMARY KEY, h {s}.hstore)")
    followed.publish("t")
    value = {"a": "1", 'b"\\': None, "": "é, =>"}
    keys, values = list(value), list(value.values())
    followed.connection.execute(
        f"INSERT INTO {followed.name}.t VALUES (1, {followed.name}.hstore(%s::text[], %s))", [keys, values]
    )
    (batch,) = changes_of(followed, followed.table())
    assert dict(batch.column("h")[0].as_py()) == value


# --- transactions -----------------------------------------------------------------------------------------------------


def applied(batches: Sequence[pa.RecordBatch]) -> dict[int, tuple[Any, ...]]:
    """The table that a reader has who keeps what is left out, by key, as `(name, data)`."""
    rows: dict[int, tuple[Any, ...]] = {}
    gone: dict[tuple[int, int], tuple[Any, ...]] = {}  # of the same record, by its position
    for row in (row for batch in batches for row in batch.to_pylist()):
        if row["_op"] == "truncate":
            rows.clear()
        elif row["_op"] == "delete":
            gone[row["_lsn"], row["_xid"]] = rows.pop(row["id"])
        else:
            known = rows.get(row["id"]) or gone.get((row["_lsn"], row["_xid"]))
            assert (row["_op"] == "insert") != (row["id"] in rows)
            assert known is not None or not row["_unchanged"]
            rows[row["id"]] = (row["name"], known[1] if row["_unchanged"] and known else row["data"])
    return rows


def work(followed: Followed, chance: random.Random) -> None:
    """Transactions with savepoints, some of which are rolled back, on one table with a large value."""

    def step() -> None:
        key = chance.randrange(40)
        statement = chance.choices(
            [
                f"INSERT INTO {{s}}.t SELECT {key}, 'n', repeat(md5(random()::text), 200) ON CONFLICT DO NOTHING",
                f"UPDATE {{s}}.t SET name = 'u' || random() WHERE id = {key}",
                f"UPDATE {{s}}.t SET data = repeat(md5(random()::text), 200) WHERE id = {key}",
                f"UPDATE {{s}}.t SET id = {key} WHERE id = (SELECT max(id) FROM {{s}}.t)"
                f" AND NOT EXISTS (SELECT FROM {{s}}.t WHERE id = {key})",
                f"DELETE FROM {{s}}.t WHERE id = {key}",
                "TRUNCATE {s}.t",
            ],
            [30, 20, 10, 10, 10, 1],
        )[0]
        followed.run(statement)

    class RollBackError(Exception):
        pass

    def part(depth: int) -> None:
        try:
            with followed.connection.transaction():
                for _ in range(chance.randrange(1, 6)):
                    if depth < 2 and chance.random() < 0.3:
                        part(depth + 1)
                    else:
                        step()
                if chance.random() < 0.2:
                    raise RollBackError
        except RollBackError:
            pass

    for _ in range(60):
        part(0)


@pytest.mark.parametrize("streaming", ["off", "on"])
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_the_log_of_any_transactions_makes_the_table(followed, identity, streaming):
    """Streamed transactions are those of more than 64 kB, here a dozen rows."""
    if streaming == "on" and followed.connection.info.server_version < 140000:
        pytest.skip("before 14, a server streams no transactions")
    followed.run(
        "CREATE TABLE {s}.t (id integer PRIMARY KEY, name text, data text)", f"ALTER TABLE {{s}}.t REPLICA IDENTITY {identity}"
    )
    followed.run("ALTER TABLE {s}.t ALTER data SET STORAGE EXTERNAL")
    followed.publish("t")
    chance = random.Random(f"{SEED} {identity} {streaming}")
    work(followed, chance)
    with followed.connection.transaction():  # one that is large enough, with a part that is rolled back
        followed.run(
            "DELETE FROM {s}.t", "INSERT INTO {s}.t SELECT i, 'large', repeat('x', 3000) FROM generate_series(100, 200) i"
        )
        with followed.connection.transaction(force_rollback=True):
            followed.run("UPDATE {s}.t SET name = 'never seen', data = repeat('y', 3000)", "DELETE FROM {s}.t WHERE id > 150")
        followed.run("UPDATE {s}.t SET name = 'seen' WHERE id % 2 = 0")
    work(followed, chance)
    followed.url += "?options=-c%20logical_decoding_work_mem%3D64kB"
    table = followed.table()
    batches = changes_of(followed, table, streaming=streaming)
    expected = followed.connection.execute(f"SELECT id, name, data FROM {followed.name}.t").fetchall()
    assert applied(batches) == {key: (name, data) for key, name, data in expected}
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert not any(row["name"] == "never seen" for row in rows)
    assert any(row["_unchanged"] for row in rows) == (identity == "DEFAULT")
    assert any(row["_before"] for row in rows) == (identity == "FULL")
    if streaming == "on":
        sent = followed.connection.execute(
            "SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = %s", [followed.name]
        )
        assert sent.fetchone() != (0,)


def test_rows_before_and_after_an_alter_table_are_apart(followed):
    followed.run("CREATE TABLE {s}.t (id integer PRIMARY KEY, name text)")
    followed.publish("t")
    followed.run("INSERT INTO {s}.t VALUES (1, 'a')", "ALTER TABLE {s}.t ADD more integer DEFAULT 7, ALTER id TYPE bigint")
    followed.run("INSERT INTO {s}.t VALUES (2, 'b', 8)", "ALTER TABLE {s}.t DROP name", "INSERT INTO {s}.t VALUES (3, 9)")
    with closing(followed.log()) as log:
        log.start(0)
        batches = list(decoded(log, Decoder(), followed.end()))
    parts = [part for batch in batches for part in batch.changes]
    names = [[(column.name, column.type_oid) for column in part.relation.columns] for part in parts]
    assert names == [[("id", 23), ("name", 25)], [("id", 20), ("name", 25), ("more", 23)], [("id", 20), ("more", 23)]]
    rows = TableRows(followed.table())
    assert rows.changes(parts[2]).column("more").to_pylist() == [9]
    with pytest.raises(UsageError, match="columns added: name"):
        rows.changes(parts[1])


def test_messages_of_the_log_are_seen(followed):
    if followed.connection.info.server_version < 140000:
        pytest.skip("before 14, a server sends no messages")
    followed.run("CREATE TABLE {s}.t (id integer PRIMARY KEY)")
    followed.publish("t")
    followed.connection.execute("SELECT pg_logical_emit_message(false, 'pulse', %s)", [json.dumps({"n": 1})])
    with closing(followed.log()) as log:
        log.start(0)
        found = [message for batch in decoded(log, Decoder(), followed.end()) for message in batch.messages]
    assert [(message.prefix, json.loads(message.content), message.xid) for message in found] == [("pulse", {"n": 1}, None)]


# --- the connection ---------------------------------------------------------------------------------------------------


@pytest.fixture
def items(followed) -> Followed:
    followed.run("CREATE TABLE {s}.t (id integer PRIMARY KEY)", "CREATE TABLE {s}.other (id integer)")
    followed.publish("t")
    return followed


def receive_for_s(log: LogConnection, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        log.receive(0.1)


def ids(log: LogConnection, end: int) -> tuple[list[str], int]:
    """What is read up to a position, and where it ends."""
    batches = list(decoded(log, Decoder(), end))
    values = [value for batch in batches for part in batch.changes for value in part.new.columns[0].to_pylist()]
    return values, batches[-1].position if batches else 0


def test_the_slot_moves_by_what_is_confirmed_only(items):
    before = items.confirmed()
    items.run("INSERT INTO {s}.t VALUES (1)", "INSERT INTO {s}.t VALUES (2)")
    with closing(items.log()) as log:
        log.start(0)
        assert ids(log, items.end())[0] == ["1", "2"]
        log.keep_alive()
    assert items.confirmed() == before
    with closing(items.log()) as log:
        log.start(0)
        values, position = ids(log, items.end())
        assert values == ["1", "2"]
        log.confirm(position)
    assert items.confirmed() == position
    items.run("INSERT INTO {s}.t VALUES (3)")
    with closing(items.log()) as log:
        log.start(position)
        assert ids(log, items.end())[0] == ["3"]


def test_a_slot_moves_over_what_is_not_ours(items):
    with closing(items.log()) as log:
        log.start(0)
        items.run("INSERT INTO {s}.other SELECT generate_series(1, 1000)")
        end = items.end()
        assert ids(log, end)[0] == []
        assert log.passed >= end
        log.confirm(log.passed)
    assert items.confirmed() >= end


def test_what_has_piled_up_comes_in_one_part(items):
    items.run("INSERT INTO {s}.t SELECT generate_series(1, 20000)")
    with closing(items.log()) as log:
        log.start(0)

        def check() -> None:
            size = int.from_bytes(fcntl.ioctl(log._open().socket, termios.FIONREAD, bytes(4)), sys.byteorder)
            if size < MUCH:
                raise RetriableError(f"{size} bytes have come")

        wait_until(check, "receiving the log")
        assert sum(map(len, log.receive(TIMEOUT_S))) > 0.7 * MUCH  # the rest are headers


def test_closing_frees_the_slot_and_a_second_connection_must_wait_for_it(items):
    with closing(items.log()) as log:
        log.start(0)
        with pytest.raises(RetriableError, match=f'slot "{items.name}" is active'):
            items.log().start(0)
    with closing(items.log()) as log:
        log.start(0)
    with pytest.raises(UsageError, match="not started, or closed"):
        log.receive(0)
    log.close()


def test_what_was_lost_is_named(items):
    system = replication.System("", 0, 0)
    items.run("INSERT INTO {s}.t VALUES (1)")
    with closing(items.log()) as log:
        system = log.start(0)
        _, position = ids(log, items.end())
        log.confirm(position)
    with pytest.raises(DataLossError, match="another reader has moved it, as where a query reads a frame twice"):
        items.log().start(position - 1)
    with pytest.raises(DataLossError, match="the server has lost the end of its log"):
        items.log().start(system.position + (1 << 30))
    drop_slot(items.connection, items.name)
    with pytest.raises(DataLossError, match="does not exist: changes since"):
        items.log().start(position)


def test_an_invalidated_slot_is_data_loss(server, items):
    psql(server.url, "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while (slot := read_slot(items.connection, items.name)) is None or slot.wal_status != "lost":
            assert time.monotonic() < deadline
            items.run("INSERT INTO {s}.other SELECT generate_series(1, 1000)")
            items.connection.execute("SELECT pg_switch_wal()")
            items.connection.execute("CHECKPOINT")
        with pytest.raises(DataLossError, match="was invalidated by the server"):
            items.log().start(0)
    finally:
        psql(server.url, "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_refusals_have_their_kind_and_no_password(items):
    password = psycopg.conninfo.conninfo_to_dict(items.url)["password"]
    wrong = items.url.replace(f":{password}@", ":s3cret@")
    with pytest.raises(AuthenticationError) as refused:
        LogConnection(wrong, items.name, [items.name]).start(0)
    assert "s3cret" not in f"{refused.value} {refused.value.__cause__}"
    role = f"r{items.name}"
    items.run(f"CREATE ROLE {role} LOGIN PASSWORD 's3cret'")
    try:
        with pytest.raises(AuthenticationError, match=r"permission denied|must be superuser"):
            LogConnection(items.url.replace("writer:" + str(password), f"{role}:s3cret"), items.name, [items.name]).start(0)
    finally:
        items.run(f"DROP ROLE {role}")
    with pytest.raises(UsageError, match="has no publication no, such"):
        LogConnection(items.url, items.name, ["such", items.name, "no"]).start(0)


def test_changes_that_a_publication_missed_are_data_loss(items):
    items.run("DROP PUBLICATION {s}", "INSERT INTO {s}.t VALUES (1)", "CREATE PUBLICATION {s} FOR TABLE {s}.t")
    items.run("INSERT INTO {s}.t VALUES (2)")
    with closing(items.log()) as log:
        log.start(0)
        with pytest.raises(DataLossError, match="a publication did not exist, and changes are missing from there on"):
            ids(log, items.end())


@pytest.mark.full
def test_a_server_that_ends_is_retriable_and_its_log_continues(server, items):
    for end in (type(server).kill, type(server).stop):
        items.run("INSERT INTO {s}.t SELECT coalesce(max(id), 0) + 1 FROM {s}.t")
        with closing(items.log()) as log:
            log.start(0)
            values, _ = ids(log, items.end())
            with ThreadPoolExecutor() as thread:  # a server that is stopped waits for its readers to answer
                ended = thread.submit(end, server)
                with pytest.raises(RetriableError):
                    receive_for_s(log, 10)
                ended.result()
            with pytest.raises(RetriableError):
                log.start(0)
            server.restart()
            items.connection.close()
            items.connection = connect(server.url)
            log.start(0)
            assert ids(log, items.end())[0] == values


@pytest.mark.full
def test_a_server_that_is_silent_is_given_up_in_time(server, items, monkeypatch):
    monkeypatch.setattr(replication, "SILENCE_S", 1.0)
    monkeypatch.setattr(replication, "COMMAND_S", 1.0)
    with closing(items.log()) as log:
        log.start(0)
        receive_for_s(log, 3)  # it answers when it is asked
        server.pause()
        try:
            started = time.monotonic()
            with pytest.raises(RetriableError, match="has sent nothing for 1 s"):
                receive_for_s(log, 10)
            assert time.monotonic() - started < 10
            with pytest.raises(RetriableError):
                LogConnection(f"{items.url}?connect_timeout=2", items.name, [items.name]).start(0)
            log.close()
        finally:
            server.resume()


@pytest.mark.full
def test_a_connection_stays_while_it_is_read_or_kept_alive(items):
    items.url += "?options=-c%20wal_sender_timeout%3D1s"
    with closing(items.log()) as log:
        log.start(0)
        receive_for_s(log, 2)
        for _ in range(20):
            time.sleep(0.1)
            log.keep_alive()
        time.sleep(2.5)
        with pytest.raises(RetriableError):
            receive_for_s(log, 10)
