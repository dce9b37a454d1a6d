"""Values that a database would store as others are refused: nothing changes silently."""

import re
from contextlib import closing
from decimal import Decimal
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy.exc import DBAPIError

from headrace.connectors.base.sink import Attempt
from headrace.connectors.sql.sink import SqlSink
from headrace.connectors.sql.upsert import UpsertSink
from headrace.enumerator.errors import UsageError
from tests.helpers.sql_rig import SqlRig, prepare
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.timeout(300)


def refused(rig: SqlRig, values: pa.Array) -> str:
    said = set()
    for sink in (SqlSink(rig.url, rig.table), UpsertSink(rig.url, rig.table, ("id",))):
        with sink.begin(Attempt("q", 0, 0, 0)) as transaction, pytest.raises(UsageError) as caught:
            transaction.write(pa.record_batch({"id": range(len(values)), "v": values}))
        said.add(str(caught.value))
    assert rig.rows() == []
    (message,) = said
    return message


def kept(rig: SqlRig, values: pa.Array) -> list[Any]:
    with UpsertSink(rig.url, rig.table, ("id",)).begin(Attempt("q", 0, 0, 0)) as transaction:
        transaction.write(pa.record_batch({"id": range(len(values)), "v": values}))
        transaction.prepare()
    return [value for (value,) in rig.rows("v", "id")]


MARIADB = [
    ("BINARY(4)", [b"ab"], [b"abcd", None, b"\x00\x00\x00\x00"]), ("BINARY(4)", [b"abcd", b"abcde"], [b"1234"]),
    ("BINARY", [b""], [b"x"]), ("ENUM('low', 'mid', 'high')", ["2"], ["mid", None, "high"]),
    ("ENUM('low', 'mid', 'high')", ["low", "LOW"], ["low"]), ("ENUM('a', '2')", ["a "], ["2", "a"]),
    ("SET('a', 'b', 'c')", ["3"], ["a,c", "", "b", None]), ("SET('a', 'b', 'c')", ["b,a"], ["a,b,c"]),
    ("SET('a', 'b', 'c')", ["a,a"], ["a"]), ("YEAR", ["5"], ["2024", "1901"]), ("YEAR", ["99"], ["1999"]),
    ("BIT(8)", ["1"], None), ("VARCHAR(4)", ["ab     "], ["ab  ", "ä🎈ab", None]), ("CHAR(4)", ["ab "], ["ab", "a"]),
    ("TINYTEXT", ["x" * 250 + " " * 10], ["x" * 250 + " " * 5]),
    # Regression: a value with a backslash was refused.
    (r"ENUM('C:\\x', 'a\n''b\r\0')", ["C:\\\\x"], ["C:\\x", "a\n'b\r\0"]), (r"SET('a', '\\', '\\n')", ["\n"], ["a,\\", "\\n"]),
]  # fmt: skip


@pytest.mark.parametrize(("column", "others", "same"), MARIADB)
def test_what_mariadb_would_change_is_refused(server, column, others, same):
    rig = SqlRig(server("mariadb").url)
    rig.create(f"id INT PRIMARY KEY, v {column}")
    assert "column 'v'" in refused(rig, pa.array(others))
    if same is not None:
        wanted = [{"2024": 2024, "1901": 1901, "1999": 1999}.get(value, value) for value in same]
        found = kept(rig, pa.array(same))
        assert [",".join(sorted(value)) if isinstance(value, set) else value for value in found] == wanted


POSTGRESQL = [
    ("numeric(5, -2)", pa.array([12345]), None), ("numeric(5, -2)", pa.array([Decimal("12345")]), None),
    ("varchar(4)", pa.array(["ab     "]), ["ab  ", "abcd", None]), ("char(4)", pa.array(["ab "]), ["abcd", None]),
    ("char(4)", pa.array(["ab  ", "ab"]), ["ab  ", "    ", "ä🎈  ", "abcd", None]),
    ("name", pa.array(["x" * 64]), None), ('"char"', pa.array(["xy"]), None), ("money", pa.array(["1.005"]), None),
    ("interval(0)", pa.array(["1.5 s"]), None), ("numeric(5, 1)", pa.array([Decimal("1.25")]), None),
    ("numeric(5, 1)", pa.array(["1.25"]), None), ("time(0)", pa.array([500_000], pa.time64("us")), None),
    ("timestamp(3)", pa.array([1], pa.timestamp("us")), None),
    ("timestamptz(0)", pa.array([1], pa.timestamp("us", "UTC")), None),
    ("interval day to hour", pa.array(["1 day 02:03"]), None), ("timetz(0)", pa.array(["12:00:00.6+00"]), None),
    ("varchar(3)[]", pa.array(['{"abc "}']), None), ("character(3)[]", pa.array(["{a}"]), None),
    ("numeric(5, 2)[]", pa.array(["{1.005}"]), None),
    ("timestamp(0)[]", pa.array(["{2024-01-01 00:00:00.9}"]), None), ("real[]", pa.array(["{0.123456789}"]), None),
    ("money[]", pa.array(["{1.005}"]), None), ("name[]", pa.array(["{x}"]), None),
    ("varchar(4)[]", pa.array([["ab", "abcd "]]), [["abcd", None, 'a"\\'], [], ["NULL", ""], None]),
    ("integer[][]", pa.array([[[1], []]]), [[[1, 2], [3, None]], [], None]),
    ("integer[][]", pa.array([[None, [1]]], pa.list_(pa.list_(pa.int32()))), None),
    ("numeric(5, 2)[]", pa.array([[Decimal("1.005")]]), None), ("real[]", pa.array([[0.1]]), None),
    ("timestamp(0)[]", pa.array([[1]], pa.list_(pa.timestamp("us"))), None), ("text", pa.array([["a"]]), None),
    ("timestamptz[]", pa.array([[1]], pa.list_(pa.timestamp("us"))), None),
]  # fmt: skip


def test_a_table_that_is_being_altered_is_looked_at_at_a_start(server):
    """Regression: the alteration waits for what a dead job has prepared, and the job's start waited for the alteration."""
    rig = SqlRig(server("postgresql").url)
    rig.create("id BIGINT, name TEXT")
    sink = SqlSink(rig.url, rig.table, lock_timeout_s=1.0)
    handle = prepare(sink, Attempt("q", 0, 0, 0), [1])
    alters = Thread(target=rig.execute, args=(f"ALTER TABLE {rig.table} ADD more INT",))
    alters.start()
    eventually(
        lambda: rig.execute("SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'") == [(1,)]
    )
    with closing(sink.committer("q")) as committer:
        sink.check_rows(pa.schema({"id": pa.int64()}))
        committer.fence()
        committer.end(handle)
    alters.join()
    assert rig.ids() == [1]


def test_a_default_that_no_row_needs_is_not_evaluated(server):
    """Regression: that of each column was, to lock the table."""
    rig = SqlRig(server("postgresql").url)
    rig.create("id BIGINT PRIMARY KEY DEFAULT (1 / (2 - 2)), v TEXT")
    for sink in (SqlSink(rig.url, rig.table), UpsertSink(rig.url, rig.table, ("id",))):
        with sink.begin(Attempt("q", 0, 0, 0)) as transaction:
            transaction.write(pa.record_batch({"id": [1], "v": ["a"]}))
    rig.drop()


@pytest.mark.parametrize("is_upsert", [False, True], ids=["once", "by key"])
@pytest.mark.parametrize(
    ("system", "alteration"),
    [
        ("postgresql", "ALTER TABLE {} ALTER v TYPE numeric(9, 1)"),
        ("mariadb", "ALTER TABLE {} MODIFY v DECIMAL(9, 1)"),
        ("mariadb", "ALTER TABLE {} DROP PRIMARY KEY"),
    ],
)
def test_a_table_is_not_altered_between_the_begin_of_a_transaction_and_its_first_row(server, system, alteration, is_upsert):
    """Regression: values were rounded, and without the key MariaDB had rows twice."""
    rig = SqlRig(server(system).url)
    rig.create("id BIGINT PRIMARY KEY, v NUMERIC(12, 3)")
    sink = UpsertSink(rig.url, rig.table, ("id",)) if is_upsert else SqlSink(rig.url, rig.table)
    soon = "SET lock_timeout = 50; " if rig.is_postgresql else "SET STATEMENT lock_wait_timeout = 0 FOR "
    with sink.begin(Attempt("q", 0, 0, 0)) as transaction, closing(sink.committer("q")) as committer:
        with pytest.raises(DBAPIError, match=r"lock timeout|Lock wait timeout"):
            rig.execute(soon + alteration.format(rig.table))
        transaction.write(pa.record_batch({"id": [1], "v": pa.array([Decimal("1.25")])}))
        handle = transaction.prepare()
        if handle is not None:
            committer.fence()
            committer.end(handle)
    assert rig.rows() == [(1, Decimal("1.25"))]
    rig.execute(soon + alteration.format(rig.table))


@pytest.mark.parametrize("as_domain", [False, True], ids=["itself", "a domain"])
@pytest.mark.parametrize(("column", "others", "same"), POSTGRESQL)
def test_what_postgresql_would_change_is_refused(server, column, others, same, as_domain):
    rig = SqlRig(server("postgresql").url)
    if as_domain:
        rig.execute(f"CREATE DOMAIN {rig.table}_d AS {column}")
    rig.create(f"id INT PRIMARY KEY, v {f'{rig.table}_d' if as_domain else column}")
    assert "column 'v'" in refused(rig, others)
    if same is not None:
        assert kept(rig, pa.array(same)) == same


@pytest.mark.filterwarnings("ignore:Did not recognize type")
@pytest.mark.parametrize("limited", ["numeric(5, 1)", "varchar(3)", "time(0)", "money", "real"])
@pytest.mark.parametrize("around", ["{0}_d[]", "{0}_c", "{0}_c[]", "{0}_w"])
def test_what_postgresql_would_change_within_a_value_is_refused(server, limited, around):
    """Items of an array of a domain, and fields of records, also in arrays and domains."""
    rig = SqlRig(server("postgresql").url)
    rig.execute(f"CREATE DOMAIN {rig.table}_d AS {limited}")
    rig.execute(f"CREATE TYPE {rig.table}_c AS (a int, b {rig.table}_d)")
    rig.execute(f"CREATE DOMAIN {rig.table}_w AS {rig.table}_c")
    rig.create(f"id INT PRIMARY KEY, v {around.format(rig.table)}")
    assert "column 'v'" in refused(rig, pa.array(["any text"]))


@pytest.mark.filterwarnings("ignore:Did not recognize type")
def test_a_record_without_limits_and_an_array_of_a_domain_take_what_they_keep(server):
    rig = SqlRig(server("postgresql").url)
    rig.execute(f"CREATE DOMAIN {rig.table}_d AS numeric(5, 1)")
    rig.execute(f"CREATE TYPE {rig.table}_c AS (a int, b text, c bit(2), d timestamp(6))")
    rig.create(f"id INT PRIMARY KEY, v {rig.table}_c")
    record = '(1,"x  ",10,"2024-01-01 00:00:00.000001")'
    assert [str(each) for each in kept(rig, pa.array([record]))] == [record]
    rig.execute(f"DROP TABLE {rig.table}")
    rig.execute(f"CREATE TYPE {rig.table}_m AS ENUM ('low', 'mid2')")
    rig.execute(f"CREATE DOMAIN {rig.table}_e AS {rig.table}_m")
    rig.create(f"id INT PRIMARY KEY, v {rig.table}_e[]")
    assert kept(rig, pa.array(["{low,mid2}"])) == ["{low,mid2}"]
    rig.execute(f"DROP TABLE {rig.table}")
    rig.create(f"id INT PRIMARY KEY, v {rig.table}_d[]")
    assert kept(rig, pa.array([[Decimal("1.5"), None]])) == ["{1.5,NULL}"]


def test_types_are_known_whatever_the_role_quotes(server):
    """By quote_all_identifiers a `date` was no date, and texts into `money` were rounded."""
    rig = SqlRig(server("postgresql").url)
    rig.create("id INT PRIMARY KEY, v MONEY")
    rig.url = f"{rig.url}?options=-c%20quote_all_identifiers%3Don"
    assert "rounds" in refused(rig, pa.array(["1.005"]))


def test_a_copy_of_a_padded_key_has_the_same_rows(server):
    """PostgreSQL's CHAR(n) could not be copied into the same CHAR(n)."""
    rig = SqlRig(server("postgresql").url)
    rig.create("id CHAR(4) PRIMARY KEY, v CHAR(2)")
    sink = UpsertSink(rig.url, rig.table, ("id",), change_type="op")
    for rows in ([("a   ", "x ", "c"), ("b   ", "y ", "c")], [("a   ", "z ", "u"), ("b   ", None, "d"), ("c   ", "c ", "c")]):
        with sink.begin(Attempt("q", 0, 0, 0)) as transaction:
            transaction.write(pa.RecordBatch.from_pylist([dict(zip(("id", "v", "op"), row, strict=True)) for row in rows]))
            transaction.prepare()
    assert rig.rows() == [("a   ", "z "), ("c   ", "c ")]


FILLED = r"column 'v': .*in the place of its null"


def test_a_null_that_mariadb_would_fill_is_refused(server):
    """With the time; or, in a number that counts itself, with the next one."""
    rig = SqlRig(server("mariadb").url)
    rig.create("id INT PRIMARY KEY, v TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP")
    assert re.search(FILLED, refused(rig, pa.array([None], pa.timestamp("us", "UTC"))))
    rig.execute(f"DROP TABLE {rig.table}")
    for word in ("", "INVISIBLE "):  # SQLAlchemy reads a column's line as far as this word
        rig.create(f"id INT, v INT {word}AUTO_INCREMENT UNIQUE, PRIMARY KEY (id)")
        with SqlSink(rig.url, rig.table).begin(Attempt("q", 0, 0, 0)) as transaction, pytest.raises(UsageError, match=FILLED):
            transaction.write(pa.record_batch({"id": [1, 2], "v": [5, None]}))
        rig.execute(f"DROP TABLE {rig.table}")


def test_the_default_of_an_invisible_column_is_seen(server):
    rig = SqlRig(server("mariadb").url)
    rig.create("id INT PRIMARY KEY, v INT NOT NULL INVISIBLE DEFAULT 5")
    with SqlSink(rig.url, rig.table).begin(Attempt("q", 0, 0, 0)) as transaction:
        transaction.write(pa.record_batch({"id": [1]}))
        transaction.abort()


@pytest.mark.parametrize(("column", "other", "same"), [
    ("JSON", pa.array(["00123"]), pa.array(['{"a": 1.50}', "5", "[1]", '"1.50"', None])),
    ("JSON", pa.array(["12345678901234567890.5"]), pa.array(["-123456789012345678", "0", "true"])),
    ("DATE", pa.array([2**31 - 1], pa.date32()), pa.array(["9999-12-31", None])),
    ("DATETIME", pa.array([2**62], pa.timestamp("us")), pa.array(["0001-01-01 00:00:00.000001"])),
], ids=str)  # fmt: skip
def test_what_sqlite_would_change_is_refused(tmp_path, column, other, same):
    """A time after the year 32767 would be Arrow's text `<value out of range: ...>`."""
    rig = SqlRig(f"sqlite:///{tmp_path / 'some.db'}")
    rig.create(f"id INT PRIMARY KEY, v {column}")
    sink = UpsertSink(rig.url, rig.table, ("id",))
    with sink.begin(Attempt("q", 0, 0, 0)) as transaction, pytest.raises(UsageError, match="column 'v'"):
        transaction.write(pa.record_batch({"id": range(len(other)), "v": other}))
    assert list(map(str, kept(rig, same.cast(other.type)))) == list(map(str, same.to_pylist()))


def test_a_null_for_the_number_of_a_row_is_refused(tmp_path):
    rig = SqlRig(f"sqlite:///{tmp_path / 'some.db'}")
    rig.create("id INT UNIQUE, v INTEGER PRIMARY KEY")
    sink = UpsertSink(rig.url, rig.table, ("id",))
    with sink.begin(Attempt("q", 0, 0, 0)) as transaction, pytest.raises(UsageError, match=FILLED):
        transaction.write(pa.record_batch({"id": [1], "v": pa.array([None], pa.int64())}))


def test_a_domain_is_what_it_is_made_of(server):
    rig = SqlRig(server("postgresql").url)
    rig.execute(f"CREATE DOMAIN {rig.table}_d AS numeric(5, 1) CHECK (value > 0)")
    rig.execute(f"CREATE DOMAIN {rig.table}_e AS {rig.table}_d")
    rig.create(f"id INT PRIMARY KEY, v {rig.table}_e")
    assert "column 'v'" in refused(rig, pa.array(["1.25"]))
    assert kept(rig, pa.array([Decimal("1.2")])) == [Decimal("1.2")]


def test_a_generated_column_is_refused_at_the_start(any_rig):
    stored = "GENERATED ALWAYS AS (id + 1) STORED"
    any_rig.create(f"id INT PRIMARY KEY, v INT {stored}")
    rows = pa.record_batch({"id": [1], "v": pa.array([2])})
    with pytest.raises(UsageError, match="'v' is generated by the database"):
        UpsertSink(any_rig.url, any_rig.table, ("id",)).check_rows(rows.schema)
