"""What a database refuses for good ends a run at once, with the database's text; what may pass is retried."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base.sink import Attempt
from headrace.connectors.sql.errors import translated
from headrace.connectors.sql.postgresql import PostgreSql
from headrace.connectors.sql.sink import SqlSink
from headrace.connectors.sql.table import _warn_once
from headrace.connectors.sql.upsert import UpsertSink
from headrace.connectors.sql.url import driver_engine, task_engine
from headrace.connectors.tables import iceberg
from headrace.enumerator.errors import AuthenticationError, HeadraceError, RunFailedError, UnclassifiedError, UsageError
from headrace.iceberg import IcebergSink
from headrace.kafka import KafkaSource, Latest
from headrace.run import ExponentialDelay, Pipeline
from headrace.testing import FakeKafka
from tests.helpers import run_into_sql
from tests.helpers.databases import mariadb
from tests.helpers.sql_rig import SqlRig, batch

pytestmark = pytest.mark.timeout(300)


def refusal(sink: Any, rows: pa.RecordBatch) -> HeadraceError:
    with sink.begin(Attempt("q", 0, 0, 0)) as transaction, pytest.raises(HeadraceError) as caught:
        _write(transaction, rows)
    return caught.value


def _write(transaction: Any, rows: pa.RecordBatch) -> None:
    transaction.write(rows)
    transaction.prepare()


def with_trigger(rig: SqlRig, postgresql: str, mariadb: str, sqlite: str = "") -> None:
    """A trigger that refuses each row, by these statements."""
    name = f"{rig.table}_t"
    if rig.is_postgresql:
        rig.execute(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {postgresql}; RETURN NEW; END $$")
        rig.execute(f"CREATE TRIGGER {name} BEFORE INSERT ON {rig.table} FOR EACH ROW EXECUTE FUNCTION {name}()")
    elif rig.is_sqlite:
        rig.execute(f"CREATE TRIGGER {name} BEFORE INSERT ON {rig.table} BEGIN SELECT {sqlite}; END")
    else:
        rig.execute(f"CREATE TRIGGER {name} BEFORE INSERT ON {rig.table} FOR EACH ROW {mariadb}")


def sinks(rig: SqlRig) -> list[Any]:
    upsert = UpsertSink(rig.url, rig.table, ("id",))
    return [upsert] if rig.is_sqlite else [upsert, SqlSink(rig.url, rig.table)]


def test_a_triggers_own_error_is_final(any_rig):
    any_rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    with_trigger(
        any_rig, "RAISE EXCEPTION 'no orders today'", "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no orders today'",
        "RAISE(ABORT, 'no orders today')",
    )  # fmt: skip
    for sink in sinks(any_rig):
        error = refusal(sink, batch([1]))
        assert isinstance(error, UsageError), repr(error)
        assert "no orders today" in str(error)


@pytest.mark.parametrize("any_rig", ["sqlite"], indirect=True)
def test_a_trigger_may_ignore_rows(any_rig):
    """An INSERT OR ABORT made its OR IGNORE an error."""
    any_rig.create("id INTEGER PRIMARY KEY, name VARCHAR(100)")
    any_rig.execute("CREATE TABLE seen (name VARCHAR(100) PRIMARY KEY)")
    with_trigger(any_rig, "", "", "1; INSERT OR IGNORE INTO seen VALUES (new.name)")
    (sink,) = sinks(any_rig)
    with sink.begin(Attempt("q", 0, 0, 0)) as transaction:
        _write(transaction, pa.record_batch({"id": [1, 2], "name": ["pen", "pen"]}))
    assert any_rig.execute("SELECT name FROM seen") == [("pen",)]


def test_a_table_that_loses_committed_rows_in_a_crash_is_refused(rig):
    """After a crash of the server the job continued, and the table had the next rows alone."""
    columns = "id BIGINT PRIMARY KEY, name VARCHAR(100)"
    lossy = ["", "PARTITION BY RANGE (id)"] if rig.is_postgresql else ["ENGINE=MEMORY", "ENGINE=MyISAM"]
    for suffix in lossy:
        rig.create(columns, suffix)
        if rig.is_postgresql and suffix:
            rig.execute(f"CREATE UNLOGGED TABLE {rig.table}_u PARTITION OF {rig.table} FOR VALUES FROM (0) TO (10)")
        elif rig.is_postgresql:
            rig.execute(f"ALTER TABLE {rig.table} SET UNLOGGED")
        for sink in sinks(rig):
            said = "unlogged is public" if rig.is_postgresql else suffix.removeprefix("ENGINE=")
            with pytest.raises(UsageError, match=said):
                sink.begin(Attempt("q", 0, 0, 0))
            with pytest.raises(UsageError, match=said):
                sink.check_rows(batch([1]).schema)
        rig.execute(f"DROP TABLE {rig.table}")
    rig.create(columns)


@pytest.mark.parametrize("setting", ["off", "local", "remote_apply"])
def test_a_commit_waits_for_the_servers_disk_whatever_the_role_has_set(server, setting):
    """A crash of the server took an upsert's epoch that was recorded. Other waits are not made weaker."""
    url = f"{server('postgresql').url}?options=-c%20synchronous_commit%3D{setting}"
    for engine in (driver_engine(url, 5), task_engine(url, 5)):
        with closing(engine.connect()) as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == {"off": "on"}.get(setting, setting)
        engine.dispose()


def test_commits_of_an_iceberg_catalog_in_postgresql_wait_for_the_disk(server, tmp_path):
    """They are the table's: a crash of the server took an epoch that the checkpoint had."""
    uri = server("postgresql").url.replace("postgresql://", "postgresql+psycopg://")
    uri = f"{uri}?options=-c%20synchronous_commit%3Doff"
    catalog = {"name": "durable", "type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}"}
    IcebergSink("durable.orders", catalog).create_table(pa.schema([("id", pa.int64())]))
    engine = iceberg._catalog(catalog).engine
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    engine.dispose()


def test_nulls_in_arrays_are_nulls_whatever_the_role_has_set(server):
    rig = SqlRig(f"{server('postgresql').url}?options=-c%20array_nulls%3Doff")
    rig.create("id BIGINT PRIMARY KEY, name TEXT[]")
    with UpsertSink(rig.url, rig.table, ("id",)).begin(Attempt("q", 0, 0, 0)) as transaction:
        _write(transaction, pa.record_batch({"id": [1], "name": [["a", None]]}))
    assert rig.rows("name") == [(["a", None],)]


_READ_ONLY = "SET SESSION TRANSACTION READ ONLY"


def test_rows_are_written_whatever_the_role_has_for_a_default(rig):
    """It was taken for a standby, whose errors pass."""
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    option = "options=-c default_transaction_read_only%3Don" if rig.is_postgresql else f"init_command={_READ_ONLY}"
    url = f"{rig.url}?{option}".replace(" ", "%20")
    for number, sink in enumerate((UpsertSink(url, rig.table, ("id",)), SqlSink(url, rig.table))):
        with sink.begin(Attempt("q", 0, number, 0)) as transaction:
            _write(transaction, batch([number]))
    assert rig.ids() == [0]


def test_texts_are_sent_as_they_are_whatever_the_address_says_of_them(server):
    rig = SqlRig(server("mariadb").url)
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100) CHARACTER SET utf8mb4")
    for number, parameters in enumerate(
        ("charset=latin1&collation=latin1_swedish_ci", "charset=binary", "use_unicode=0", "cursorclass=x", "defer_connect=1")
    ):
        with UpsertSink(f"{rig.url}?{parameters}", rig.table, ("id",)).begin(Attempt("q", 0, 0, 0)) as transaction:
            _write(transaction, pa.record_batch({"id": [number], "name": ["\N{GRINNING FACE}"]}))
    assert rig.rows("name") == [("\N{GRINNING FACE}",)] * 5


@contextmanager
def policed(rig: SqlRig) -> Iterator[str]:
    """The address of a role that a policy hides the row 50 from."""
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    rig.execute(f"INSERT INTO {rig.table} VALUES (5, 'five'), (50, 'fifty')")
    role = f"{rig.table}_role"
    rig.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'not-a-secret'")
    UpsertSink(rig.url, rig.table, ("id",)).recorded()  # makes our tables
    rig.execute(f"GRANT ALL ON {rig.table}, headrace_commits, headrace_transactions TO {role}")
    rig.execute(f"CREATE POLICY some_rows ON {rig.table} USING (id < 10)")
    yield rig.url.replace("writer:", f"{role}:")
    rig.execute(f"DROP OWNED BY {role}")
    rig.execute(f"DROP ROLE {role}")


def test_a_table_with_rows_that_a_policy_hides_is_refused(server):
    """A delete of such a row did nothing, without an error."""
    rig = SqlRig(server("postgresql").url)
    with policed(rig) as url:
        upsert = UpsertSink(url, rig.table, ("id",), "op")
        rig.execute(f"ALTER TABLE {rig.table} ENABLE ROW LEVEL SECURITY")
        for sink in (upsert, SqlSink(url, rig.table)):
            for refused in (partial(sink.begin, Attempt("q", 0, 0, 0)), partial(sink.check_rows, batch([1]).schema)):
                with pytest.raises(UsageError, match="its row-level security policies apply to this user"):
                    refused()
        rig.execute(f"CREATE POLICY all_rows ON {rig.table} USING (true)")
        upsert.check_rows(pa.record_batch({"id": [1], "name": ["a"], "op": ["d"]}).schema)
        rig.execute(f"ALTER TABLE {rig.table} DISABLE ROW LEVEL SECURITY")
    assert rig.ids() == [5, 50]


def test_a_table_with_a_rule_for_inserts_is_refused(server):
    """Regression: COPY runs none, so that rows were there, and not where the rule has them."""
    rig = SqlRig(server("postgresql").url)
    rig.create("value TEXT")
    rig.execute(f"CREATE RULE ignored AS ON INSERT TO {rig.table} DO INSTEAD NOTHING")
    with pytest.raises(UsageError, match=r"has the rule 'ignored' for INSERT, and COPY, .* make it a trigger"):
        SqlSink(rig.url, rig.table).check_rows(batch([1]).schema)
    rig.drop()


def test_a_view_of_mariadb_is_refused_with_what_to_do(server):
    """Regression: it was to be altered to another engine."""
    rig = SqlRig(server("mariadb").url)
    rig.create("value VARCHAR(20)")
    rig.execute(f"CREATE VIEW seen AS SELECT * FROM {rig.table}")
    with pytest.raises(UsageError, match=r"'seen' is a view, which takes no part in XA transactions: write into its table"):
        SqlSink(rig.url, "seen").check_rows(batch([1]).schema)
    rig.execute("DROP VIEW seen")
    rig.drop()


def test_a_trigger_may_write_to_a_table_with_policies(server):
    rig = SqlRig(server("postgresql").url)
    with policed(rig) as url:
        audit = f"{rig.table}_audit"
        rig.execute(f"CREATE TABLE {audit} (id BIGINT, who TEXT DEFAULT current_user)")
        rig.execute(f"ALTER TABLE {audit} ENABLE ROW LEVEL SECURITY")
        rig.execute(f"CREATE POLICY own ON {audit} USING (who = current_user)")
        rig.execute(f"GRANT ALL ON {audit} TO {rig.table}_role")
        body = f"begin INSERT INTO {audit} VALUES (NEW.id); RETURN NEW; END"
        rig.execute(f"CREATE FUNCTION {audit}() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
        rig.execute(f"CREATE TRIGGER a AFTER INSERT ON {rig.table} FOR EACH ROW EXECUTE FUNCTION {audit}()")
        with UpsertSink(url, rig.table, ("id",)).begin(Attempt("q", 0, 0, 0)) as transaction:
            _write(transaction, batch([7]))
        assert rig.execute(f"SELECT id FROM {audit}") == [(7,)]


def test_a_list_that_a_policy_hides_is_an_error(server):
    """It was taken for none."""
    rig = SqlRig(server("postgresql").url)
    with policed(rig) as url:
        sink = UpsertSink(url, rig.table, ("id",))
        sink.recorded()
        rig.execute("ALTER TABLE headrace_commits ENABLE ROW LEVEL SECURITY")
        try:
            with pytest.raises(AuthenticationError, match='policy for table "headrace_commits"'):
                sink.recorded()
        finally:
            rig.execute("ALTER TABLE headrace_commits DISABLE ROW LEVEL SECURITY")


def test_a_server_whose_commits_do_not_wait_for_the_disk_is_refused_or_warned_of_once(server, caplog):
    """No session can change that. By 2 a crash of the machine takes rows, by 0 one of the server."""
    rig = SqlRig(server("mariadb").url)
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    _warn_once.cache_clear()  # the servers of the tests have it, and an earlier test was warned
    rig.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    try:
        for sink in sinks(rig) * 2:
            sink.check_rows(batch([1]).schema)
        rig.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        for sink in sinks(rig):
            with pytest.raises(UsageError, match=r"has innodb_flush_log_at_trx_commit=0, .*: set it to 1"):
                sink.begin(Attempt("q", 0, 0, 0))
    finally:
        rig.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    (said,) = [record.message for record in caplog.records if "flush_log" in record.message]
    assert "has innodb_flush_log_at_trx_commit=2, so a crash of its machine takes committed rows with it" in said


def test_a_pooler_that_gives_each_statement_another_session_is_refused(server):
    """The lock stayed with the first one for ever, and kept no driver apart."""
    rig = SqlRig(server("postgresql").url)
    engine = driver_engine(rig.url, 5)
    for others in (0, 1):  # how many statements have the session of the lock, behind it
        with ExitStack() as stack:
            first, second = (stack.enter_context(closing(engine.connect())) for _ in range(2))
            sessions = iter([first] * (1 + others) + [second] * 2)
            pooled = SimpleNamespace(exec_driver_sql=lambda statement, found=sessions: next(found).exec_driver_sql(statement))
            with pytest.raises(UsageError, match="pooler in transaction mode"), PostgreSql().lock(pooled, "headrace.j", 1):
                assert others == 1
    engine.dispose()


def test_a_prepared_statement_of_another_session_is_the_poolers(server):
    engine = driver_engine(server("postgresql").url, 5)
    with closing(engine.connect()) as connection:
        for statement in ("EXECUTE a", "PREPARE a AS SELECT 1"):
            with pytest.raises(UsageError, match="pooler in transaction mode"), translated(engine, "writing"):
                connection.exec_driver_sql(statement)
            connection.rollback()
            connection.exec_driver_sql("DEALLOCATE ALL")
            connection.exec_driver_sql("PREPARE a AS SELECT 1")
    engine.dispose()


def test_a_row_without_a_partition_is_refused_for_good(rig):
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)", "PARTITION BY RANGE (id)" + partitions(rig))
    if rig.is_postgresql:
        rig.execute(f"CREATE TABLE {rig.table}_p PARTITION OF {rig.table} FOR VALUES FROM (0) TO (10)")
    for sink in sinks(rig):
        assert isinstance(refusal(sink, batch([10])), UsageError)


def partitions(rig: SqlRig) -> str:
    return "" if rig.is_postgresql else " (PARTITION p VALUES LESS THAN (10))"


def test_a_row_over_the_servers_packet_is_refused_and_smaller_ones_are_written():
    """The server closes the connection, which looks like an outage."""
    with mariadb("--max-allowed-packet=65536") as server:
        rig = SqlRig(server.url)
        rig.create("id BIGINT PRIMARY KEY, name LONGTEXT, data LONGBLOB")
        for text, data in (("x" * 70_000, None), ("'" * 40_000, None), ("", b"\0" * 40_000)):
            rows = pa.record_batch({"id": [1, 2], "name": ["small", text], "data": pa.array([b"", data])})
            for sink in sinks(rig):
                error = refusal(sink, rows)
                assert isinstance(error, UsageError), repr(error)
                assert "max_allowed_packet" in str(error)
                assert rig.table in str(error)
        rows = pa.record_batch({"id": range(500), "name": ["'" * 5_000] * 500, "data": [b"\xff\0" * 7_000] * 500})
        with sinks(rig)[0].begin(Attempt("q", 0, 0, 0)) as transaction:
            transaction.write(rows)
            transaction.prepare()
        assert rig.rows("count(*), min(length(name)), min(length(data))") == [(500, 5_000, 14_000)]


def test_an_error_that_no_table_has_is_reported_with_the_databases_text(rig):
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    with_trigger(
        rig,
        "RAISE EXCEPTION 'odd' USING ERRCODE = 'Z9999'",
        "SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 30999, MESSAGE_TEXT = 'odd'",
    )
    for sink in sinks(rig):
        error = refusal(sink, batch([1]))
        assert type(error) is UnclassifiedError
        assert "odd" in str(error)


def run(rig: SqlRig, folder: str, **settings: Any) -> None:
    with FakeKafka() as kafka:
        kafka.create_topic("in")
        kafka.append("in", b"1")
        source = KafkaSource(kafka.bootstrap, topics=["in"], stop=Latest(), columns=["value", "partition"])
        Pipeline(source, sinks(rig)[-1], run_into_sql.rows_of_a_table).run(checkpoints=folder, interval_s=0.3, **settings)


def test_a_run_ends_by_what_a_trigger_refuses(any_rig, tmp_path):
    any_rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    with_trigger(
        any_rig, "RAISE EXCEPTION 'no orders today'", "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no orders today'",
        "RAISE(ABORT, 'no orders today')",
    )  # fmt: skip
    with pytest.raises(HeadraceError, match="no orders today"):
        run(any_rig, str(tmp_path / "run"))  # the default restarts for ever


def test_a_run_ends_after_some_restarts_by_what_is_not_known(rig, tmp_path):
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    with_trigger(
        rig,
        "RAISE EXCEPTION 'odd' USING ERRCODE = 'Z9999'",
        "SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 30999, MESSAGE_TEXT = 'odd'",
    )
    with pytest.raises(RunFailedError, match=r"(?s)odd.*restarted 10 times after errors of unknown kind"):
        run(rig, str(tmp_path / "run"), restart=ExponentialDelay(0.1, 0.1))
