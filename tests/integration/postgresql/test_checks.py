"""`headrace postgresql` on real servers: what it finds, that its SQL repairs it, and the rights that suffice."""

import json
import shlex
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.pq import PGconn

from headrace.connectors.postgresql.catalog import create_slot, drop_slot, read_server, read_slot
from headrace.connectors.postgresql.connection import connect
from headrace.enumerator import EmbeddedRun
from headrace.errors import UsageError
from headrace.postgresql import ChangesSource
from headrace.testing.servers.databases import Database
from tests.helpers.command_line import run_command
from tests.helpers.databases import RELEASES, initdb_of, postgresql, psql

PASSWORD = "s3cret"
READER = [f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'"]


@pytest.fixture
def run(monkeypatch, capsys):
    """What it prints never has the password."""

    def run_with(*arguments, typed=""):
        ran = run_command(monkeypatch, capsys, "postgresql", *arguments, typed=typed)
        assert PASSWORD not in ran.out + ran.err
        assert "not-a-secret" not in ran.out + ran.err
        return ran

    return run_with


def as_reader(server: Database) -> str:
    return server.url.replace("writer:not-a-secret", f"reader:{PASSWORD}")


@pytest.fixture(scope="module", params=RELEASES)
def bare(request) -> Iterator[Database]:
    """A server as it is installed, with tables of all kinds, and a role without rights."""
    with postgresql(initdb=initdb_of(request.param)) as server:
        psql(
            server.url,
            *READER,
            "CREATE SCHEMA own",
            "CREATE TABLE own.fine (id int PRIMARY KEY, gone int, g int GENERATED ALWAYS AS (id) STORED)",
            "ALTER TABLE own.fine DROP gone",
            "CREATE TABLE own.keyless (id int)",
            "CREATE TABLE own.nothing (id int PRIMARY KEY)",
            "ALTER TABLE own.nothing REPLICA IDENTITY NOTHING",
            "CREATE TABLE own.index_gone (id int PRIMARY KEY, u int NOT NULL)",
            "CREATE UNIQUE INDEX only_one ON own.index_gone (u)",
            "ALTER TABLE own.index_gone REPLICA IDENTITY USING INDEX only_one",
            "DROP INDEX own.only_one",
            'CREATE TABLE own."De""ferred" (id int PRIMARY KEY DEFERRABLE)',
            "CREATE TABLE own.hiding (id int PRIMARY KEY)",
            "ALTER TABLE own.hiding ENABLE ROW LEVEL SECURITY",
            "CREATE TABLE own.parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE own.part PARTITION OF own.parts FOR VALUES FROM (0) TO (9)",
            "ALTER TABLE own.part REPLICA IDENTITY NOTHING",
            "CREATE UNLOGGED TABLE own.unlogged (id int PRIMARY KEY)",
            "CREATE VIEW own.view AS SELECT 1 AS id",
            "INSERT INTO own.fine VALUES (1)",
        )
        yield server


EXPECTED = {
    "server": "wal_level is replica",
    "role reader": "REPLICATION",
    "publication headrace": "has no publication headrace",
    "table own.keyless": "no primary key",
    "table own.nothing": "replica identity is NOTHING",
    "table own.index_gone": "index of its replica identity is gone",
    'table own.De"ferred': "primary key is deferrable",
    "table own.hiding": "policies hide",
    "table own.part": "replica identity is NOTHING",
}
TABLES = ['own.De"ferred', "own.fine", "own.hiding", "own.index_gone", "own.keyless", "own.nothing", "own.parts"]


def test_the_sql_of_the_findings_repairs_them_all(run, bare):
    command = ("check", as_reader(bare), "--tables", "own.*", "--json")
    ran = run(*command)
    found = json.loads(ran.out)
    assert ran.status == 1
    assert [row["table"] for row in found["table"]] == TABLES
    for subject, what in EXPECTED.items():
        assert any(each["subject"] == subject and what in each["what"] for each in found["finding"]), subject
    for table in TABLES:
        fixes = {" ".join(each["fix"].split()[:2]) for each in found["finding"] if each["subject"] == f"table {table}"}
        assert {"GRANT USAGE", "GRANT SELECT"} <= fixes
    assert [each["level"] for each in found["finding"] if each["subject"] == "table own.unlogged"] == ["warning"]
    assert not any("own.view" in each["subject"] for each in found["finding"])
    for _ in range(2):  # what was unlogged is a table of the source only then
        lines = [line for each in json.loads(run(*command).out)["finding"] for line in each["fix"].splitlines()]
        psql(bare.url, *(line for line in lines if not line.startswith("--")))
    bare.restart()
    ran = run(*command)
    assert ran.status == 0
    assert {each["what"] for each in json.loads(ran.out)["finding"]} == {
        "it has no primary key, so it cannot be read in chunks of one, nor its changes be applied by one",
        "its primary key is deferrable, so an update that changes it ends the job",
    }
    psql(bare.url, "UPDATE own.keyless SET id = 2", "DELETE FROM own.fine", "UPDATE own.parts SET id = 3")


@pytest.mark.parametrize("publication", ["My Pub", "none yet"])
def test_what_a_source_advises_is_a_command_that_prints_what_is_missing(run, server, publication):
    psql(
        server.url,
        "CREATE SCHEMA advised",
        "CREATE TABLE advised.parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE advised.part PARTITION OF advised.parts DEFAULT",
        'CREATE TABLE advised."Odd Name" (id int PRIMARY KEY)',
        'CREATE PUBLICATION "My Pub" FOR TABLE advised.parts',
    )
    source = ChangesSource(server.url, tables=["advised.parts", "advised.Odd Name"], publication=publication, slot="headrace_a")
    with pytest.raises(UsageError, match=r"is printed by: headrace postgresql check URL") as caught:
        _ = source.followed
    command = shlex.split(str(caught.value).partition("headrace postgresql ")[2].replace("URL", server.url))
    for finding in json.loads(run(*command, "--json").out)["finding"]:
        if finding["level"] == "error":
            psql(server.url, *(line for line in finding["fix"].splitlines() if not line.startswith("--")))
    names = [each.table.full_name for each in source.followed]
    psql(
        server.url, "DROP SCHEMA advised CASCADE", *(f'DROP PUBLICATION IF EXISTS "{name}"' for name in ("My Pub", "none yet"))
    )
    assert names == ["advised.Odd Name", "advised.parts"]


def test_the_role_that_the_help_names_can_do_all_that_a_source_does(run, server):
    ((version,),) = psql(server.url, "SELECT current_setting('server_version_num')::int")
    listed = "(id, n)" if version >= 150000 else ""
    psql(
        server.url,
        *READER,
        "ALTER ROLE reader REPLICATION",
        "CREATE SCHEMA least",
        "CREATE TABLE least.t (id int PRIMARY KEY, secret text, n int)",
        f"CREATE PUBLICATION headrace FOR TABLE least.t {listed}",
        "GRANT USAGE ON SCHEMA least TO reader",
        f"GRANT SELECT {listed} ON least.t TO reader",
        "INSERT INTO least.t VALUES (1, 'x', 2)",
        "ALTER ROLE reader SET statement_timeout = '1ms'",
        "ALTER ROLE reader SET datestyle = 'German'",
    )
    ran = run("check", as_reader(server), "--slot", "headrace_least")
    assert (ran.status, [line for line in ran.of("finding") if line[0] == "error"]) == (0, [])
    assert [line[0] for line in ran.of("table")] == ["least.t"]
    source = ChangesSource(as_reader(server), tables=["least.t"], publication="headrace", slot="headrace_run", snapshot="only")
    with EmbeddedRun(source, clock=time.monotonic) as running:
        batch = running.poll(1.0)
        assert batch is not None
        assert batch.records.column("n").to_pylist() == [2]
    with connect(as_reader(server)) as connection:
        lsn = create_slot(connection, "headrace_least")
        query = "SELECT n, DATE '2026-01-31'::text, pg_sleep(0.01)::text FROM ONLY least.t"
        assert connection.execute(query).fetchall() == [(2, "2026-01-31", "")]
        assert connection.execute("SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()").fetchone()
        connection.execute("SELECT pg_logical_emit_message(false, 'headrace', '')")
        changes = "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, VARIADIC %s)"
        connection.execute(changes, ["headrace_least", ["proto_version", "1", "publication_names", "headrace"]])
        slot = read_slot(connection, "headrace_least")
        assert slot is not None
        assert slot.confirmed_flush_lsn == lsn
        drop_slot(connection, "headrace_least")


def test_what_cannot_be_read_is_an_error_where_it_is_named(run, server):
    psql(
        server.url,
        "CREATE TYPE empty AS ()",
        "CREATE TABLE odd (id int PRIMARY KEY, e empty)",
        "CREATE VIEW a_view AS SELECT 1",
        "CREATE UNLOGGED TABLE an_unlogged (id int PRIMARY KEY)",
        "CREATE TABLE a_root (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE a_part PARTITION OF a_root FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE half (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE UNLOGGED TABLE half_part PARTITION OF half FOR VALUES FROM (0) TO (9)",
        "CREATE PUBLICATION roots FOR TABLE a_root, odd, half WITH (publish_via_partition_root = true)",
        "CREATE PUBLICATION parts FOR TABLE a_root",
    )
    names = [part for name in ("a_view", "an_unlogged", "nowhere", "a_part", "odd", "half") for part in ("--tables", name)]
    ran = run("check", server.url, *names, "--publication", "roots")
    errors = {line[1]: line[2] for line in ran.of("finding") if line[0] == "error"}
    assert ran.status == 1
    assert "column 'e'" in errors.pop("table public.odd")
    assert errors == {
        "table public.a_view": "it is a view, so its changes are not in the log",
        "table public.an_unlogged": "it is unlogged, so its changes are not in the log",
        "table nowhere": "there is none of this name in database warehouse",
        "table public.a_part": "its changes come under the name of public.a_root, as the publication has it: name that",
        "table public.half_part": "it is unlogged, so the log lacks changes of public.half, of which it is a partition",
    }
    source = ChangesSource(server.url, tables=["half"], publication="roots", slot="headrace_half")
    with pytest.raises(UsageError, match=r"changes of partitions are in no log, .*: public.half_part; the SQL for what is"):
        _ = source.followed
    assert run("check", server.url, "--publication", "parts", "--tables", "a_part").status == 0
    ran = run("check", server.url, "--publication", "parts", "--tables", "a_root")
    (error,) = (line for line in ran.of("finding") if line[0] == "error")
    psql(server.url, error[3])
    assert run("check", server.url, "--publication", "parts", "--tables", "a_root").status == 0


def test_a_slot_whose_log_the_server_has_removed_is_lost_and_can_be_dropped(run, server):
    name = f"headrace_{uuid.uuid4().hex[:8]}"
    psql(server.url, "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()", "CREATE PUBLICATION lost")
    with connect(server.url) as connection:
        create_slot(connection, name)
        for _ in range(10):
            if (slot := read_slot(connection, name)) is None or slot.wal_status == "lost":
                break
            connection.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 20000000)), pg_switch_wal()")
            connection.execute("CHECKPOINT")
    (line,) = (line for line in run("slots", server.url).of("slot") if line[0] == name)
    assert line[3] in ("lost", "wal_removed")
    ran = run("check", server.url, "--publication", "lost", "--slot", name)
    (error,) = (line for line in ran.of("finding") if line[0] == "error")
    assert error[1] == f"slot {name}"
    assert "invalidated it" in error[2]
    assert run("slots", server.url, "--drop", name, typed="n\n").status == 1
    assert run("slots", server.url, "--drop", name, typed="y\n").status == 0
    assert name not in run("slots", server.url).out
    psql(server.url, "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()", "DROP PUBLICATION lost")


def test_only_an_idle_slot_of_ours_is_dropped(run, server):
    name = f"headrace_{uuid.uuid4().hex[:8]}"
    other = f"other_{uuid.uuid4().hex[:8]}"
    psql(server.url, f"SELECT pg_create_logical_replication_slot('{other}', 'pgoutput')", "CREATE PUBLICATION active")
    with connect(server.url) as connection:
        create_slot(connection, name)
        reader = PGconn.connect(f"{server.url}?replication=database".encode())
        options = "(proto_version '1', publication_names 'active')"
        reader.exec_(f"START_REPLICATION SLOT {name} LOGICAL 0/0 {options}".encode())
        ran = run("slots", server.url, "--json")
        (line,) = json.loads(ran.out)["slot"]
        assert (line["slot"], line["database"], line["active"]) == (name, "warehouse", "active")
        assert line["retained_bytes"] >= 0
        ran = run("slots", server.url, "--drop", name, "--yes")
        assert (ran.status, "stop its source first" in ran.err) == (1, True)
        ran = run("check", server.url, "--publication", "active", "--slot", name)
        assert ["warning", f"slot {name}"] in [line[:2] for line in ran.of("finding")]
        reader.finish()
        for refused, status in ((other, 2), ("headrace_none", 1)):
            assert run("slots", server.url, "--drop", refused, "--yes").status == status
        assert read_slot(connection, other) is not None
    psql(server.url, f"SELECT pg_drop_replication_slot('{other}')", "DROP PUBLICATION active")


def test_a_slot_that_a_failover_would_lose_is_said(run, server):
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE PUBLICATION failover")
        (lsn,) = connection.execute("SELECT lsn FROM pg_create_physical_replication_slot('standby1', true)").fetchone()
        connection.execute("SELECT pg_create_logical_replication_slot('headrace_failover', 'pgoutput')")
        standby = PGconn.connect(f"{server.url}?replication=true".encode())
        standby.exec_(f"START_REPLICATION SLOT standby1 PHYSICAL {lsn}".encode())

        def found() -> dict[str, str]:
            ran = run("check", server.url, "--publication", "failover", "--slot", "headrace_failover", "--json")
            return {each["what"]: each["fix"] for each in json.loads(ran.out)["finding"] if "standby1" in each["what"]}

        before = found()
        if connection.info.server_version < 170000:
            assert [what for what in before if "before PostgreSQL 17" in what]
        else:
            (kept,) = (fix for what, fix in before.items() if "not kept on standbys" in what)
            (waited,) = (fix for what, fix in before.items() if "failover takes them back" in what)
            with psycopg.connect(f"{server.url}?replication=database", autocommit=True) as replication:
                replication.execute(kept.splitlines()[1])
            psql(server.url, *(line for line in waited.splitlines() if not line.startswith("--")))
            assert not found()
            psql(server.url, "ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")
        connection.execute("SELECT pg_drop_replication_slot('headrace_failover')")
        standby.finish()
        connection.execute("DROP PUBLICATION failover")


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        (("not-a-secret", PASSWORD), 1, "authentication failed"),
        (("/warehouse", "/nowhere"), 2, "does not exist"),
        (("/warehouse", ""), 2, "must name a database"),
        (("postgresql:", "mysql:"), 2, "must look like postgresql://"),
    ],
)
def test_a_database_that_cannot_be_reached_is_said(run, server, change, status, said):
    for command in ("check", "slots"):
        ran = run(command, server.url.replace(*change))
        assert (ran.status, said in ran.err) == (status, True), ran.err


def test_a_standby_is_refused_until_it_is_promoted_to_a_new_timeline(run, server):
    def now() -> tuple[bool, int, int]:
        with connect(server.url) as connection:
            found = read_server(connection)
        return found.is_standby, found.timeline, found.system_identifier

    was_standby, timeline, identifier = now()
    assert not was_standby
    ((data,),) = psql(server.url, "SHOW data_directory")
    server.stop()
    Path(data, "standby.signal").touch()
    server.restart()
    assert now() == (True, timeline, identifier)
    ran = run("check", server.url)
    assert "it is a standby, and changes are read from the primary" in ran.out
    psql(server.url, "SELECT pg_promote()")
    assert now() == (False, timeline + 1, identifier)
    assert "standby" not in run("check", server.url).out
