"""What databases' errors mean: by their code, or by their class."""

import sqlite3
import ssl
from contextlib import closing

import pytest

pytest.importorskip("sqlalchemy", reason="needs headrace[sql]")

import psycopg
import pymysql
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from headrace.connectors.base.sink import Attempt
from headrace.connectors.sql.errors import translated
from headrace.connectors.sql.sink import SqlSink
from headrace.connectors.sql.upsert import UpsertSink
from headrace.enumerator.errors import AuthenticationError, HeadraceError, RetriableError, UnclassifiedError, UsageError
from tests.helpers.sql_rig import SqlRig, batch

URLS = {
    "postgresql": "postgresql+psycopg://u:s3cret@h/d",
    "mariadb": "mysql+pymysql://u:s3cret@h/d",
    "sqlite": "sqlite:////nowhere",
}


def kind_of(database: str, error: Exception) -> type[Exception]:
    """What it becomes, as it is and as SQLAlchemy wraps it."""
    kinds = set()
    for raised in (error, DBAPIError("SELECT 1", None, error)):
        with (
            pytest.raises(HeadraceError, match="doing it: ") as caught,
            translated(sa.create_engine(URLS[database]), "doing it"),
        ):
            raise raised
        assert "s3cret" not in str(caught.value)
        kinds.add(type(caught.value))
    (kind,) = kinds
    return kind


@pytest.mark.parametrize(
    ("states", "kind"),
    [
        # a constraint, no partition, a value, RAISE, an assertion, a function's error, a row too large, a view's check
        (("23505", "23514", "22P02", "P0001", "P0004", "38000", "39P01", "2F002", "21000", "54000", "44000"), UsageError),
        (("428C9", "42P01", "42703", "3D000", "3F000", "0A000", "55000", "57P04"), UsageError),
        (("08006", "40001", "40P01", "53300", "53100", "55P03", "55006", "57P01", "57014", "25006"), RetriableError),
        (("28P01", "28000", "42501", "0LP01"), AuthenticationError),
        (("XX000", "XX001", "58030", "F0000", "Z9999", "HV000", "25P02"), UnclassifiedError),
    ],
)
def test_sqlstates_of_postgresql(states, kind):
    for state in states:
        error = type("Error", (psycopg.Error,), {"sqlstate": state})("no")
        assert kind_of("postgresql", error) is kind, state


def test_where_a_wait_for_a_lock_ends_another_output_is_named_as_the_cause_that_there_may_be():
    waited = pymysql.err.OperationalError(1205, "Lock wait timeout exceeded")
    with (
        pytest.raises(
            RetriableError, match=r"exceeded \(error 1205\)\. If another output of the pipeline holds the lock, .*drop"
        ),
        translated(sa.create_engine(URLS["mariadb"]), "doing it"),
    ):
        raise waited


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        # SIGNAL, no partition, generated columns, a packet or row that is too large, values, keys, checks
        ((1644, 1526, 1748, 1906, 3105, 1153, 1118, 1267, 1406, 1366, 1062, 1452, 3819, 4025, 1369, 1442), UsageError),
        ((1049, 1054, 1064, 1146, 1305, 1449, 1356, 1288, 1665), UsageError),
        ((0, 1040, 1053, 1205, 1213, 1290, 1114, 1317, 1969, 2002, 2003, 2006, 2013, 3024, 3572, 4031), RetriableError),
        ((1044, 1045, 1142, 1227, 1401, 1698, 1820, 3118, 4151), AuthenticationError),
        ((1030, 1105, 1180, 1194, 1815, 30999, 65535), UnclassifiedError),
    ],
)
def test_numbers_of_mariadb_and_mysql(numbers, kind):
    for number in numbers:
        assert kind_of("mariadb", pymysql.err.OperationalError(number, "no")) is kind, number


def outage_by(cause: Exception) -> pymysql.err.OperationalError:
    """As PyMySQL raises it while it connects."""
    error = pymysql.err.OperationalError(2003, "no")
    error.original_exception = cause
    return error


@pytest.mark.parametrize(("database", "error", "kind"), [
    ("postgresql", psycopg.OperationalError("server closed the connection"), RetriableError),
    ("postgresql", psycopg.InterfaceError("the connection is closed"), RetriableError),
    ("postgresql", psycopg.OperationalError('FATAL: database "x" does not exist'), UsageError),
    ("postgresql", psycopg.OperationalError("FATAL: password authentication failed"), AuthenticationError),
    ("postgresql", psycopg.OperationalError("server does not support SSL, but SSL was required"), UsageError),
    ("postgresql", psycopg.OperationalError('root certificate file "/a.pem" does not exist'), UsageError),
    ("postgresql", psycopg.OperationalError("SSL error: certificate verify failed: expired"), UsageError),
    ("postgresql", psycopg.OperationalError('server certificate for "a" does not match host name "b"'), UsageError),
    ("postgresql", psycopg.OperationalError('FATAL: unrecognized configuration parameter "a"'), UsageError),
    ("postgresql", psycopg.OperationalError("received invalid response to SSL negotiation: E"), RetriableError),
    ("postgresql", psycopg.OperationalError("SSL SYSCALL error: EOF detected"), RetriableError),
    ("postgresql", psycopg.OperationalError("server is not in hot standby mode"), RetriableError),
    ("mariadb", outage_by(ssl.SSLCertVerificationError("self-signed")), UsageError),
    ("mariadb", outage_by(ConnectionResetError("gone")), RetriableError),
    ("postgresql", psycopg.DataError("NUL"), UsageError), ("postgresql", psycopg.InternalError("?"), UnclassifiedError),
    ("mariadb", pymysql.err.InterfaceError(0, ""), RetriableError), ("sqlite", OverflowError("too large"), UsageError),
])  # fmt: skip
def test_errors_without_a_code(database, error, kind):
    assert kind_of(database, error) is kind


@pytest.mark.parametrize("url", [
    "postgresql://127.0.0.1:1/d?sslmode=requre", "postgresql://h/d?port=abc", "postgresql://h/d?connect_timeout=abc",
    "mysql://127.0.0.1:1/d?connect_timeout=abc", "mysql://127.0.0.1:1/d?foo=bar", "mysql://127.0.0.1:1/d?compress=1", "mysql://127.0.0.1:1/d?ssl_ca=/no/such",
    "mysql://127.0.0.1:1/d?local_infile=2", "mysql://127.0.0.1:1/d?port=1",
])  # fmt: skip
def test_a_parameter_of_the_address_that_cannot_be_used_is_no_outage(url):
    with pytest.raises(UsageError):
        SqlSink(url, "t").left_over()


def _sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(("codes", "kind"), [
    ((sqlite3.SQLITE_CONSTRAINT_TRIGGER, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT), UsageError),
    ((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_SNAPSHOT, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL), RetriableError),
    ((sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM), AuthenticationError),
    ((sqlite3.SQLITE_INTERNAL, sqlite3.SQLITE_MISUSE), UnclassifiedError),
])  # fmt: skip
def test_codes_of_sqlite(codes, kind):
    for code in codes:
        assert kind_of("sqlite", _sqlite_error(code)) is kind, code


def test_a_column_that_went_is_no_outage_in_sqlite(tmp_path):
    """Every error of SQLite that is not about values was retried for ever."""
    rig = SqlRig(f"sqlite:///{tmp_path / 'some.db'}")
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    with UpsertSink(rig.url, rig.table, ("id",)).begin(Attempt("q", 0, 0, 0)) as transaction:
        rig.execute(f"ALTER TABLE {rig.table} DROP COLUMN name")
        with pytest.raises(UsageError, match="no column named name"):
            transaction.write(batch([1]))


def test_a_file_that_is_locked_is_one(tmp_path):
    rig = SqlRig(f"sqlite:///{tmp_path / 'some.db'}")
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    with closing(sqlite3.connect(tmp_path / "some.db")) as other:
        sink = UpsertSink(rig.url, rig.table, ("id",), lock_timeout_s=0.1)
        with sink.begin(Attempt("q", 0, 0, 0)) as transaction:
            other.execute(f"INSERT INTO {rig.table} VALUES (9, NULL)")
            with pytest.raises(RetriableError, match="locked"):
                transaction.write(batch([1]))
