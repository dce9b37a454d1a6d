"""An upsert replaces or deletes rows of its key, and no others: what does not identify rows by exactly its key is refused."""

import random
from contextlib import nullcontext
from decimal import Decimal
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base.sink import Attempt
from headrace.connectors.sql import rows as sending
from headrace.connectors.sql import table
from headrace.connectors.sql.sink import SqlSink
from headrace.connectors.sql.upsert import UpsertSink
from headrace.connectors.sql.url import driver_engine
from headrace.enumerator.errors import RetriableError, UsageError
from tests.helpers.databases import SERVERS
from tests.helpers.sql_rig import SqlRig
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.timeout(300)


def written(rig: SqlRig, key: tuple[str, ...], columns: dict[str, Any]) -> None:
    with UpsertSink(rig.url, rig.table, key).begin(Attempt("q", 0, 0, 0)) as transaction:
        transaction.write(pa.record_batch(columns))
        transaction.prepare()


@pytest.fixture
def mariadb_rig(server) -> SqlRig:
    return SqlRig(server("mariadb").url)


def test_a_key_keeps_its_spelling_where_it_is_all_that_rows_have(mariadb_rig):
    """Regression: a row of `A` that had nothing but its key made `A` of `a`."""
    rig = mariadb_rig
    rig.create("name VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, price INT")
    rig.execute(f"INSERT INTO {rig.table} VALUES ('a', 1)")
    written(rig, ("name",), {"name": ["A"]})
    assert rig.rows() == [("a", 1)]


# --- other unique keys, which MariaDB and MySQL match by ---------------------------------------------------------------
@pytest.mark.parametrize(
    "columns",
    [
        "id BIGINT PRIMARY KEY, name VARCHAR(20), version INT NOT NULL DEFAULT 1, price INT, UNIQUE other (name, version)",
        "id BIGINT PRIMARY KEY, name VARCHAR(20), price INT, UNIQUE other (name(2))",
        "id BIGINT PRIMARY KEY, name VARCHAR(20), price INT, UNIQUE other (name)",
        # of which rows give nothing, and which is the same for all of them
        "id BIGINT PRIMARY KEY, name VARCHAR(20), price INT, kind INT NOT NULL DEFAULT 1, UNIQUE other (kind)",
        "id BIGINT PRIMARY KEY, name VARCHAR(20), price INT, initial CHAR(1) AS (LEFT(name, 1)), UNIQUE other (initial)",
        "id BIGINT PRIMARY KEY, name VARCHAR(20), price INT, initial CHAR(1) DEFAULT (LEFT(`name`, 1)), UNIQUE other (initial)",
    ],
)
def test_another_unique_key_of_which_rows_give_a_part_is_refused(mariadb_rig, columns):
    mariadb_rig.create(columns)
    rows = {"id": [1, 2], "name": ["pen", "pencil"], "price": [10, 20]}
    with pytest.raises(UsageError, match="other unique keys") as caught:
        written(mariadb_rig, ("id",), rows)
    assert all(text in str(caught.value) for text in (mariadb_rig.table, "'other'", "['id']"))
    with pytest.raises(UsageError, match="other unique keys"):
        UpsertSink(mariadb_rig.url, mariadb_rig.table, ("id",)).check_rows(pa.record_batch(rows).schema)
    assert mariadb_rig.rows() == []


@pytest.mark.parametrize(("body", "is_refused"), [
    ("SET NEW.initial = LEFT(NEW.name, 1)", True), ("SET new . `initial` = 'x'", True), ("SET NEW.initials = 'x'", False),
    ("SET NEW/* the first */.Initial = 'x'", True), ("SET NEW.initials = '#', NEW. -- one\n `initial` = 'x'", True),
    ("SET NEW.initials = (SELECT 'x' AS initial) /* initial */", False),
])  # fmt: skip
def test_another_unique_key_that_a_trigger_sets_is_refused(mariadb_rig, body, is_refused):
    mariadb_rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20), initial CHAR(1) NULL, initials TEXT, UNIQUE other (initial)")
    mariadb_rig.execute(f"CREATE TRIGGER {mariadb_rig.table}_t BEFORE INSERT ON {mariadb_rig.table} FOR EACH ROW {body}")
    rows = {"id": [1, 2], "name": ["pen", "pencil"]}
    with pytest.raises(UsageError, match="other unique keys") if is_refused else nullcontext():
        written(mariadb_rig, ("id",), rows)
    assert len(mariadb_rig.rows()) == (0 if is_refused else 2)


def test_a_trigger_that_the_user_may_not_see_may_set_any_column(mariadb_rig, monkeypatch):
    """To one without the right TRIGGER, MariaDB shows a null in place of what it does."""
    mariadb_rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20) NULL, UNIQUE other (name)")
    mariadb_rig.execute(f"CREATE TRIGGER {mariadb_rig.table}_t BEFORE INSERT ON {mariadb_rig.table} FOR EACH ROW SET @a = 1")
    rows = pa.schema({"id": pa.int64()})
    UpsertSink(mariadb_rig.url, mariadb_rig.table, ("id",)).check_rows(rows)
    monkeypatch.setattr(table, "_TRIGGERS", table._TRIGGERS.replace("SELECT action_statement", "SELECT NULL"))
    SqlSink(mariadb_rig.url, mariadb_rig.table).check_rows(rows)
    with pytest.raises(UsageError, match="a BEFORE INSERT trigger may set"):
        UpsertSink(mariadb_rig.url, mariadb_rig.table, ("id",)).check_rows(rows)
    mariadb_rig.execute(f"ALTER TABLE {mariadb_rig.table} DROP KEY other, ADD no INT AUTO_INCREMENT UNIQUE")
    UpsertSink(mariadb_rig.url, mariadb_rig.table, ("id",)).check_rows(rows)


@pytest.mark.parametrize(
    "columns",
    [
        "no BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(20) UNIQUE, price INT",
        "no CHAR(36) DEFAULT (UUID()) PRIMARY KEY, name VARCHAR(20) UNIQUE, price INT",
        "code INT NULL UNIQUE, name VARCHAR(20) PRIMARY KEY, price INT",
        "code INT, name VARCHAR(20) PRIMARY KEY, price INT, UNIQUE again (name), KEY some (price)",
        "code INT, name LONGTEXT UNIQUE, price INT",  # by a hidden column
    ],
)
def test_another_unique_key_in_which_no_two_rows_meet_is_none_of_the_upserts_business(mariadb_rig, columns):
    mariadb_rig.create(columns)
    for price in (1, 2):
        written(mariadb_rig, ("name",), {"name": ["pen", "ink"], "price": [price, price]})
    assert mariadb_rig.rows("name, price") == [("ink", 2), ("pen", 2)]


@pytest.mark.filterwarnings("ignore:Unknown schema content")  # SQLAlchemy's, of the period
def test_the_end_of_a_version_is_no_part_of_the_key(mariadb_rig):
    mariadb_rig.execute(
        f"CREATE TABLE {mariadb_rig.table} (id INT PRIMARY KEY, v TEXT, a TIMESTAMP(6) GENERATED ALWAYS AS ROW START, "
        "e TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (a, e)) WITH SYSTEM VERSIONING"
    )
    for value in ("a", "b"):
        written(mariadb_rig, ("id",), {"id": [1], "v": [value]})
    assert mariadb_rig.rows("id, v") == [(1, "b")]


# --- the key itself ----------------------------------------------------------------------------------------------------
def test_a_unique_key_of_a_prefix_is_refused(mariadb_rig):
    mariadb_rig.create("url VARCHAR(300) NOT NULL, hits BIGINT, UNIQUE first_part (url(20))")
    rows = {"url": ["https://example.com/one", "https://example.com/two"], "hits": [1, 2]}
    with pytest.raises(UsageError, match="index 'first_part' compares only the first 20 characters"):
        written(mariadb_rig, ("url",), rows)
    assert mariadb_rig.rows() == []


@pytest.mark.parametrize(("index", "flaw"), [
    ("(name) WHERE live", "index '{}' is partial"), ("(lower(name))", "no unique key of the columns"),
    ("(name, lower(name))", "index '{}' has an expression"),
])  # fmt: skip
@pytest.mark.parametrize("any_rig", ["postgresql", "sqlite"], indirect=True)  # MariaDB has no such indexes
def test_a_partial_index_and_one_of_an_expression_are_refused(any_rig, index, flaw):
    rig = any_rig
    rig.create("name VARCHAR(20), live BOOLEAN DEFAULT TRUE")
    rig.execute(f"CREATE UNIQUE INDEX {rig.table}_u ON {rig.table} {index}")
    with pytest.raises(UsageError, match=flaw.format(f"{rig.table}_u")):
        written(rig, ("name",), {"name": ["pen"]})


@pytest.mark.parametrize("rule", ["NOT NULL ON CONFLICT IGNORE", "UNIQUE ON CONFLICT REPLACE", "UNIQUE ON CONFLICT IGNORE"])
@pytest.mark.parametrize("any_rig", ["sqlite"], indirect=True)
def test_a_row_that_a_table_would_drop_by_its_own_rule_is_refused(any_rig, rule):
    """SQLite's constraints may state that no error is raised."""
    any_rig.create(f"id INTEGER PRIMARY KEY, name VARCHAR(20) {rule}")
    with pytest.raises(UsageError, match="constraint failed"):
        written(any_rig, ("id",), {"id": [1, 2, 3], "name": ["pen", "pen", None]})
    assert any_rig.rows() == []


def test_an_index_that_includes_other_columns_and_a_deferrable_one(server):
    rig = SqlRig(server("postgresql").url)
    rig.create("name VARCHAR(20), price INT")
    rig.execute(f"ALTER TABLE {rig.table} ADD CONSTRAINT {rig.table}_late UNIQUE (name) DEFERRABLE")
    with pytest.raises(UsageError, match=f"index '{rig.table}_late' is deferrable"):
        written(rig, ("name",), {"name": ["pen"], "price": [1]})
    rig.execute(f"ALTER TABLE {rig.table} DROP CONSTRAINT {rig.table}_late")
    rig.execute(f"CREATE UNIQUE INDEX ON {rig.table} (name) INCLUDE (price)")
    for price in (1, 2):
        written(rig, ("name",), {"name": ["pen"], "price": [price]})
    assert rig.rows() == [("pen", 2)]


def test_an_index_of_another_collation_than_its_column_is_refused(server):
    """Inserts found rows by the index, and deletes by the column."""
    rig = SqlRig(server("postgresql").url)
    rig.create('name VARCHAR(20) COLLATE "POSIX", price INT')
    rig.execute(f'CREATE UNIQUE INDEX {rig.table}_c ON {rig.table} (name COLLATE "C")')
    with pytest.raises(UsageError, match=f"index '{rig.table}_c' compares by another collation than the column"):
        written(rig, ("name",), {"name": ["pen"], "price": [1]})


@pytest.mark.parametrize(("column", "index", "left"), [
    ("BINARY", "NOCASE", ["ink"]), ("NOCASE", "BINARY", ["PEN", "ink"]), ("BINARY", "BINARY", ["PEN", "ink"]),
])  # fmt: skip
@pytest.mark.parametrize("any_rig", ["sqlite"], indirect=True)
def test_rows_are_deleted_by_the_collation_of_the_index(any_rig, column, index, left):
    """SQLite does not tell a column's own."""
    any_rig.create(f"name VARCHAR(20) COLLATE {column}, price INT")
    any_rig.execute(f"CREATE UNIQUE INDEX {any_rig.table}_u ON {any_rig.table} (name COLLATE {index})")
    any_rig.execute(f"INSERT INTO {any_rig.table} VALUES ('PEN', 1), ('ink', 2)")
    sink = UpsertSink(any_rig.url, any_rig.table, key=("name",), change_type="op")
    with sink.begin(Attempt("deletes", 0, 0, 0)) as transaction:
        transaction.write(pa.record_batch({"name": ["pen"], "op": ["delete"]}))
        transaction.prepare()
    assert sorted(name for (name,) in any_rig.rows("name")) == left


@pytest.mark.filterwarnings("ignore:Did not recognize type")  # SQLAlchemy does not know it
@pytest.mark.parametrize(("extension", "is_domain", "index", "deleted"), [
    ("citext", False, "", "pen"), ("citext", True, "", "pen"), ("citext", False, "text_ops", "PEN"),
    ("ltree", False, "", "PEN"),
])  # fmt: skip
def test_rows_are_deleted_by_the_operator_of_the_index(server, extension, is_domain, index, deleted):
    """Regression: where an extension's schema was not on the search path, its type was compared as text, or not at all."""
    rig = SqlRig(server("postgresql").url)
    if rig.execute(f"SELECT count(*) FROM pg_available_extensions WHERE name = '{extension}'") == [(0,)]:
        pytest.skip(f"this PostgreSQL is built without {extension}")
    rig.execute("CREATE SCHEMA IF NOT EXISTS extensions")
    rig.execute(f"CREATE EXTENSION IF NOT EXISTS {extension} SCHEMA extensions")
    rig.execute(f"CREATE DOMAIN {rig.table}_d AS extensions.{extension}")
    rig.create(f"name {f'{rig.table}_d' if is_domain else f'extensions.{extension}'}, price INT")
    rig.execute(f"CREATE UNIQUE INDEX ON {rig.table} (name {index})")
    rig.execute(f"INSERT INTO {rig.table} VALUES ('PEN', 1), ('ink', 2)")
    sink = UpsertSink(rig.url, rig.table, key=("name",), change_type="op")
    for name, left in (("INK" if index else "pencil", ["PEN", "ink"]), (deleted, ["ink"])):
        with sink.begin(Attempt(f"deletes-{name}", 0, 0, 0)) as transaction:
            transaction.write(pa.record_batch({"name": [name], "op": ["delete"]}))
            transaction.prepare()
        assert [name for (name,) in rig.execute(f"SELECT name::text FROM {rig.table} ORDER BY price")] == left


@pytest.mark.filterwarnings("ignore:Did not recognize type")  # SQLAlchemy does not know composite types
@pytest.mark.parametrize(("declared", "key"), [
    ("{0}_pair", '(1,"a b")'), ("{0}_domain", "(1,a)"), ("regclass", "pg_class"), ("regtype", "integer"),
    ("VARCHAR(3)", "abc"), ("CHAR(3)", "abc"), ("BIT(3)", "101"), ("{0}_pair[]", '{{"(1,a)"}}'), ("{0}_short", "abc"),
])  # fmt: skip
def test_rows_are_deleted_by_a_key_of_a_type_that_the_index_compares_as_another(server, declared, key):
    """Regression: a key of a composite type, or regclass, ended the job at the first delete."""
    rig = SqlRig(server("postgresql").url)
    rig.execute(f"CREATE TYPE {rig.table}_pair AS (a int, b text)")
    rig.execute(f"CREATE DOMAIN {rig.table}_domain AS {rig.table}_pair; CREATE DOMAIN {rig.table}_short AS VARCHAR(3)")
    rig.create(f"k {declared.format(rig.table)} NOT NULL UNIQUE, name TEXT")
    for name, op, deleted in (("a", "c", key), ("b", "u", key), ("b", "d", f"{key}d" if key == "abc" else key)):
        with UpsertSink(rig.url, rig.table, ("k",), "op").begin(Attempt(f"q{name}{op}", 0, 0, 0)) as transaction:
            transaction.write(pa.record_batch({"k": [deleted], "name": [name], "op": [op]}))
            transaction.prepare()
    assert rig.rows("name") == ([("b",)] if key == "abc" else [])  # which is not cut for the comparison


def test_a_row_is_not_replaced_by_one_that_another_index_holds_for_equal(server):
    """ON CONFLICT of the columns alone takes all of their unique indexes."""
    rig = SqlRig(server("postgresql").url)
    if rig.execute("SELECT count(*) FROM pg_collation WHERE collprovider = 'i'") == [(0,)]:
        pytest.skip("this PostgreSQL is built without ICU, whose collations ignore case")
    rig.create('name VARCHAR(20) COLLATE "C" PRIMARY KEY, price INT')
    rig.execute(f"CREATE COLLATION {rig.table}_ci (provider=icu, locale='und-u-ks-level2', deterministic=false)")
    rig.execute(f"CREATE UNIQUE INDEX {rig.table}_ci ON {rig.table} (name COLLATE {rig.table}_ci)")
    for price in (1, 2):
        written(rig, ("name",), {"name": ["pen"], "price": [price]})
    with pytest.raises(UsageError, match=f'unique constraint "{rig.table}_ci"'):
        written(rig, ("name",), {"name": ["PEN"], "price": [3]})
    assert rig.rows() == [("pen", 2)]


@pytest.mark.parametrize("any_rig", ["sqlite"], indirect=True)
def test_two_indexes_of_a_key_by_several_collations_are_refused(any_rig):
    any_rig.create("name VARCHAR(20), price INT, UNIQUE (name)")
    any_rig.execute(f"CREATE UNIQUE INDEX {any_rig.table}_u ON {any_rig.table} (name COLLATE NOCASE)")
    sink = UpsertSink(any_rig.url, any_rig.table, key=("name",), change_type="op")
    transaction = sink.begin(Attempt("q", 0, 0, 0))
    with pytest.raises(UsageError, match="compare the upsert's key by several collations"):
        transaction.write(pa.record_batch({"name": ["pen", "ink"], "op": ["delete", "insert"]}))
    with pytest.raises(UsageError, match="compare the upsert's key by several collations"):
        written(any_rig, ("name",), {"name": ["pen"]})


def test_a_row_with_a_null_in_the_key_is_refused(any_rig):
    """It would be added again with each retry, as no unique index finds it."""
    any_rig.create("region VARCHAR(9), item VARCHAR(9) NOT NULL, total BIGINT, UNIQUE (region, item)")
    message = f"table '{any_rig.table}': column 'region' of the upsert's key must not be null"
    for null in (["eu", None], pa.array([None, None], pa.null()), pa.array(["eu", None]).dictionary_encode()):
        with pytest.raises(UsageError, match=message):
            written(any_rig, ("region", "item"), {"region": null, "item": ["pen", "pen"], "total": [1, 2]})
    assert any_rig.rows() == []
    written(any_rig, ("region", "item"), {"region": ["eu"], "item": ["pen"], "total": pa.array([None], pa.int64())})
    assert any_rig.rows() == [("eu", "pen", None)]


# --- changes with deletes ----------------------------------------------------------------------------------------------
Change = tuple[int | None, str | None, str | None]
CHANGES = pa.schema([("id", pa.int64()), ("name", pa.string()), ("op", pa.string())])


def changed(rig: SqlRig, *batches: list[Change], attempt: int = 0) -> None:
    """All in one task."""
    with UpsertSink(rig.url, rig.table, ("id",), "op").begin(Attempt("q", 0, 0, attempt)) as transaction:
        for rows in batches:
            columns = dict(zip(CHANGES.names, map(list, zip(*rows, strict=True)), strict=True))
            transaction.write(pa.RecordBatch.from_pydict(columns, CHANGES))
        transaction.prepare()


def test_the_last_change_of_a_key_counts_within_a_batch_and_across_batches(any_rig):
    any_rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20) NOT NULL, other INT DEFAULT 7")
    any_rig.execute(f"INSERT INTO {any_rig.table} VALUES (1, 'old', 1), (2, 'old', 1), (9, 'old', 1)")
    changed(
        any_rig,
        [(1, None, "d"), (1, "a", "c"), (1, "b", "u"), (2, "a", "u"), (3, "a", "insert"), (3, None, "delete"), (3, "b", "r")],
        [(4, "a", "snapshot"), (4, None, "delete"), (5, None, "delete"), (6, "a", "-U"), (6, "b", "+U"), (7, "a", "c")],
        [(7, None, "-D"), (8, None, "-D"), (8, "a", "+I")],
        [(8, None, "-D")],
    )
    assert any_rig.rows() == [(1, "b", 7), (2, "a", 1), (3, "b", 7), (6, "b", 7), (9, "old", 1)]


def test_changes_in_any_cut_make_the_table_that_they_make_one_by_one(any_rig, monkeypatch):
    """A replay, too: after it the table is the same."""
    monkeypatch.setattr(sending, "_CHUNK_ROWS", 7)
    any_rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20) NOT NULL")
    moves, wanted, batches = random.Random(11), dict[int, str](), list[list[Change]]()
    for number in range(300):
        key, is_deleted = moves.randrange(12), moves.random() < 0.4
        if number % 20 == 0:
            batches.append([])
        batches[-1].append((key, None, "delete") if is_deleted else (key, f"n{number}", "update"))
        wanted.pop(key, None) if is_deleted else wanted.update({key: f"n{number}"})
    for attempt in range(2):
        changed(any_rig, *batches, attempt=attempt)
        assert dict(any_rig.rows()) == wanted


@pytest.mark.parametrize("attempts", [1, 2])
def test_changes_of_a_batch_that_is_written_again_meet_later_rows(any_rig, attempts):
    """Regression: in their order, earlier changes were refused for good by the rows that later ones had made."""
    is_matched_by_key = any_rig.is_postgresql or any_rig.is_sqlite
    extra = f"name VARCHAR(20) {'UNIQUE' if is_matched_by_key else ''}, parent BIGINT"
    any_rig.create(f"id BIGINT PRIMARY KEY, {extra}, FOREIGN KEY (parent) REFERENCES {any_rig.table} (id)")
    any_rig.execute(f"INSERT INTO {any_rig.table} VALUES (1, 'root', NULL)")
    schema = pa.schema({"id": pa.int64(), "name": pa.string(), "parent": pa.int64(), "op": pa.string()})
    changes = [
        (2, "x", 1, "c"),
        (3, "y", 2, "c"),
        (3, "y", None, "u"),
        (2, None, None, "d"),
        (4, "x", None, "c"),
        (1, None, None, "d"),
    ]
    for attempt in range(attempts):
        with UpsertSink(any_rig.url, any_rig.table, ("id",), "op").begin(Attempt("q", 0, 0, attempt)) as transaction:
            transaction.write(
                pa.RecordBatch.from_pylist([dict(zip(schema.names, each, strict=True)) for each in changes], schema)
            )
            seen = any_rig.rows()
            transaction.prepare()
    assert any_rig.rows() == [(3, "y", None), (4, "x", None)]
    assert seen == ([(1, "root", None)] if attempts == 1 else any_rig.rows())


ONCE = pa.schema({"id": pa.int32(), "name": pa.string(), "op": pa.string()})


def once_named(server: Any, *batches: list[Change], attempts: int) -> list[Any]:
    """The rows that these changes make of a table in which names are unique, too."""
    rig = SqlRig(server("postgresql").url)
    rig.create("id INT PRIMARY KEY, name VARCHAR(20) UNIQUE")
    for attempt in range(attempts):
        with UpsertSink(rig.url, rig.table, ("id",), "op").begin(Attempt("q", 0, 0, attempt)) as transaction:
            for rows in batches:
                columns = dict(zip(ONCE.names, map(list, zip(*rows, strict=True)), strict=True))
                transaction.write(pa.RecordBatch.from_pydict(columns, ONCE))
            transaction.prepare()
    found = rig.rows()
    rig.drop()
    return found


@pytest.mark.parametrize("attempts", [1, 2])
def test_batches_that_are_written_again_meet_rows_of_later_batches(server, attempts):
    """Regression: the first batch was refused for good, as each was tried alone."""
    batches = [[(1, "x", "c"), (5, "y", "c")], [(1, None, "d"), (2, "x", "c")], [(5, None, "d"), (6, "y", "c")]]
    assert once_named(server, *batches, attempts=attempts) == [(2, "x"), (6, "y")]


def test_a_row_that_is_refused_in_any_order_is_refused_at_the_end(server):
    with pytest.raises(UsageError, match="duplicate key"):
        once_named(server, [(1, "x", "c"), (2, "x", "c")], [(3, "z", "c")], attempts=1)


def test_a_key_that_moves_away_and_comes_back_gives_its_name_away(server):
    """Regression: the row before was left out, as a later row has its key."""
    changes = [(1, "x", "c"), (1, "x", "-U"), (2, "x", "+U"), (1, "y", "+I")]
    assert once_named(server, changes, attempts=1) == [(1, "y"), (2, "x")]


def test_a_delete_of_a_key_that_the_column_cannot_have_deletes_no_row(server):
    """Regression: the key was cast to the column's type, which it was out of range of."""
    rig = SqlRig(server("postgresql").url)
    rig.create("id SMALLINT PRIMARY KEY, name VARCHAR(20)")
    changed(rig, [(1, "a", "c"), (70_000, None, "d")])
    assert rig.rows() == [(1, "a")]


def test_a_deadlock_while_changes_are_in_order_is_retriable(server):
    """Regression: MariaDB had ended the savepoint with the transaction, and its absence was the error."""
    rig = SqlRig(server("mariadb").url)
    rig.create(f"id BIGINT PRIMARY KEY, name VARCHAR(20), parent BIGINT, FOREIGN KEY (parent) REFERENCES {rig.table} (id)")
    rig.execute(f"INSERT INTO {rig.table} (id, name) VALUES (1, ''), (2, ''), (3, ''), (4, '')")
    engine = driver_engine(rig.url, 30.0)
    with engine.connect() as other, UpsertSink(rig.url, rig.table, ("id",), "op").begin(Attempt("q", 0, 0, 0)) as transaction:
        for name in "ab":  # it has changed more, so that the other one is ended
            other.exec_driver_sql(f"UPDATE {rig.table} SET name = '{name}' WHERE id >= 2")
        transaction.write(pa.record_batch({"id": [1], "name": ["x"], "op": ["u"]}))
        waits = Thread(target=other.exec_driver_sql, args=(f"UPDATE {rig.table} SET name = 'y' WHERE id = 1",))
        waits.start()
        waiting = "SELECT count(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE %% id = 1'"
        eventually(lambda: rig.execute(waiting) == [(1,)])
        with pytest.raises(RetriableError, match="1213"):
            transaction.write(pa.record_batch({"id": [2], "name": ["x"], "op": ["u"]}))
        waits.join()
    engine.dispose()


@pytest.mark.parametrize("body", ["RETURN (NULL)", "NEW := NULL; RETURN NEW", "RETURN /* none */ NULL"])
def test_a_trigger_that_fills_an_inheriting_table_is_found_however_it_returns_no_row(server, body):
    """Regression: by the words `RETURN NULL` alone."""
    rig = SqlRig(server("postgresql").url)
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20)")
    rig.execute(f"CREATE TABLE {rig.table}_heir (PRIMARY KEY (id)) INHERITS ({rig.table})")
    routed = f"INSERT INTO {rig.table}_heir VALUES (NEW.*); {body}"
    guarded = "IF NEW.name IS NULL THEN RETURN NULL; END IF; RETURN NEW"
    sink = UpsertSink(rig.url, rig.table, ("id",))
    for made in (routed, guarded):
        rig.execute(f"CREATE OR REPLACE FUNCTION {rig.table}_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {made}; END'")
        rig.execute(f"DROP TRIGGER IF EXISTS t ON {rig.table}")
        rig.execute(f"CREATE TRIGGER t BEFORE INSERT ON {rig.table} FOR EACH ROW EXECUTE FUNCTION {rig.table}_f()")
        if made is guarded:
            sink.check_rows(pa.schema({"id": pa.int64(), "name": pa.string()}))
            continue
        with pytest.raises(UsageError, match="may put rows into the tables that inherit"):
            sink.check_rows(pa.schema({"id": pa.int64(), "name": pa.string()}))
    rig.execute(f"DROP TABLE {rig.table} CASCADE")


@pytest.mark.parametrize("cut", [1, 2, 3, 20])
def test_the_old_key_of_an_update_goes_and_a_row_that_keeps_its_key_keeps_its_other_columns(any_rig, monkeypatch, cut):
    """Wherever batches end between the row before and the one after."""
    monkeypatch.setattr(sending, "_CHUNK_ROWS", cut)
    any_rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20), other INT DEFAULT 7")
    any_rig.execute(f"INSERT INTO {any_rig.table} VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3), (4, 'd', 4)")
    moved, kept, back = [(1, "a", "-U"), (9, "a", "+U")], [(2, "b", "-U"), (2, "b2", "+U")], [(9, "a", "-U"), (8, "a", "+U")]
    changed(any_rig, [*moved, *kept], [*back, (3, "c", "-U"), (3, "c2", "+U"), (4, "d", "-U")])
    assert any_rig.rows() == [(2, "b2", 2), (3, "c2", 3), (8, "a", 7)]


def test_changes_of_keys_that_the_database_holds_for_equal_are_made_in_their_order(any_rig):
    kind = "UUID" if any_rig.is_postgresql else "VARCHAR(36) COLLATE NOCASE" if any_rig.is_sqlite else "VARCHAR(36)"
    any_rig.create(f"k {kind} PRIMARY KEY, name VARCHAR(20) NOT NULL, other INT DEFAULT 7")
    moves, wanted = random.Random(5), dict[str, tuple[str, int]]()
    for epoch in range(25):
        changes = list[tuple[str, str, str]]()
        for number in range(12):
            key, name, op = f"{moves.randrange(4):08}-0000-0000-0000-00000000000a", f"{epoch}.{number}", moves.choice("duu")
            changes.append((moves.choice([key, key.upper()]), name, op))
            if op == "d":
                wanted.pop(key, None)
            else:
                wanted[key] = (name, wanted[key][1] if key in wanted else 7)
        with UpsertSink(any_rig.url, any_rig.table, ("k",), "op").begin(Attempt("q", epoch, 0, 0)) as transaction:
            transaction.write(
                pa.RecordBatch.from_pylist([dict(zip(("k", "name", "op"), each, strict=True)) for each in changes])
            )
            transaction.prepare()
        assert {str(key).lower(): tuple(row) for key, *row in any_rig.rows()} == wanted
        any_rig.execute(f"UPDATE {any_rig.table} SET other = {epoch}")
        wanted = {key: (name, epoch) for key, (name, _) in wanted.items()}


def test_tasks_with_neighbouring_keys_do_not_wait_for_each_other(rig):
    """A delete of a row that is not there locks no gap, into which the other task would insert."""
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20)")
    rig.execute(f"INSERT INTO {rig.table} VALUES (0, 'a'), (9, 'a')")
    sink = UpsertSink(rig.url, rig.table, ("id",), "op", lock_timeout_s=1.0)
    with sink.begin(Attempt("q", 0, 0, 0)) as one, sink.begin(Attempt("q", 0, 1, 0)) as other:
        for op in ("d", "c"):
            one.write(pa.record_batch({"id": [1, 3, 5], "name": ["n"] * 3, "op": [op] * 3}))
            other.write(pa.record_batch({"id": [2, 4, 6], "name": ["n"] * 3, "op": [op] * 3}))
        one.prepare()
        other.prepare()
    assert [key for key, _ in rig.rows()] == [0, 1, 2, 3, 4, 5, 6, 9]


@pytest.mark.parametrize("any_rig", ["postgresql", "sqlite"], indirect=True)  # MariaDB and MySQL match rows by other keys
def test_a_row_that_gets_another_key_keeps_what_else_is_unique(any_rig):
    any_rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20) UNIQUE")
    changed(any_rig, [(1, "ann", "c")], [(1, None, "d"), (2, "ann", "c")])
    assert any_rig.rows() == [(2, "ann")]


TREE = "id BIGINT PRIMARY KEY, name VARCHAR(20), parent BIGINT, note INT DEFAULT 7, "
PARENT = "FOREIGN KEY (parent) REFERENCES {} (id) ON DELETE {}"


def moved(rig: SqlRig, *batches: list[tuple[int, str | None, int | None, str]], epoch: int = 0) -> None:
    with UpsertSink(rig.url, rig.table, ("id",), "op").begin(Attempt("q", epoch, 0, 0)) as transaction:
        for rows in batches:
            columns = map(pa.array, zip(*rows, strict=True), (pa.int64(), pa.string(), pa.int64(), pa.string()))
            transaction.write(pa.RecordBatch.from_arrays([*columns], ["id", "name", "parent", "op"]))
        transaction.prepare()


@pytest.mark.parametrize("action", ["CASCADE", "RESTRICT", "SET NULL"])
@pytest.mark.parametrize("any_rig", SERVERS, indirect=True)  # SQLite looks at foreign keys for who asks it to
def test_rows_that_refer_to_each_other_change_in_the_order_of_all_changes(any_rig, action):
    """Regression: deletes came before other changes, and a row where its last change was: rows were lost, or refused."""
    rig = any_rig
    rig.create(TREE + PARENT.format(rig.table, action))
    rig.execute(f"INSERT INTO {rig.table} VALUES (1, 'root', NULL, 1), (3, 'old', 1, 1), (2, 'mover', 3, 1), (4, 'leaf', 2, 1)")
    moved(
        rig,
        [(2, "moved", 1, "u"), (3, None, None, "d"), (5, "new", None, "c"), (6, "child", 5, "c"), (5, "renamed", 1, "u")],
        [(6, "child", 5, "-U"), (6, "lifted", 1, "+U"), (5, "renamed", 1, "-U")],
        [(7, "renamed", 6, "+U"), (8, "short", 7, "c"), (8, None, None, "d")],
    )
    wanted = [(1, "root", None, 1), (2, "moved", 1, 1), (4, "leaf", 2, 1), (6, "lifted", 1, 7), (7, "renamed", 6, 7)]
    assert rig.rows() == wanted


def test_a_tree_in_any_cut_is_the_one_that_its_changes_make_one_by_one(any_rig, monkeypatch):
    monkeypatch.setattr(sending, "_CHUNK_ROWS", 7)
    rig = any_rig
    rig.create(TREE + PARENT.format(rig.table, "CASCADE"))
    moves, parents = random.Random(13), dict[int, int | None]({0: None})
    rig.execute(f"INSERT INTO {rig.table} (id, name) VALUES (0, 'root')")

    def above(key: int | None) -> set[int | None]:
        return set() if key is None else {key} | above(parents[key])

    for epoch in range(6):
        batches = list[list[tuple[int, str | None, int | None, str]]]()
        for number in range(60):
            key, parent = moves.randrange(1, 9), moves.choice([*parents])
            batches.extend([[]] if number % 20 == 0 else [])
            if key in parents and key not in parents.values() and moves.random() < 0.4:
                del parents[key]
                batches[-1].append((key, None, None, "d"))
            elif key not in above(parent):
                parents[key] = parent
                batches[-1].append((key, f"n{number}", parent, "u"))
        moved(rig, *batches, epoch=epoch)
        assert dict(rig.rows("id, parent")) == parents


@pytest.mark.parametrize("ties", [
    "UNIQUE", "EXCLUDE USING btree (name WITH =)", "a unique index of a part", "a unique index of an expression",
])  # fmt: skip
def test_rows_take_what_is_unique_from_each_other_in_the_order_of_all_changes(server, ties):
    """Regression: two rows that swap a name were refused for good."""
    rig = SqlRig(server("postgresql").url)
    constraint, is_parted = ties if ties.startswith("EXCLUDE") else "UNIQUE (name)", ties == "a unique index of a part"
    if ties.startswith("a unique index"):
        rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20)", "PARTITION BY RANGE (id)" if is_parted else "")
    else:
        rig.create(f"id BIGINT PRIMARY KEY, name VARCHAR(20), {constraint}")
    if is_parted:
        rig.execute(f"CREATE TABLE {rig.table}_part PARTITION OF {rig.table} FOR VALUES FROM (0) TO (10)")
    if ties.startswith("a unique index"):
        rig.execute(f"CREATE UNIQUE INDEX ON {rig.table}{'_part (name)' if is_parted else ' (lower(name))'}")
    rig.execute(f"INSERT INTO {rig.table} VALUES (1, 'x'), (2, 'b')")
    changed(rig, [(1, "tmp", "u"), (2, "x", "u"), (1, "b", "u")])
    changed(rig, [(1, "c", "u"), (3, "b", "c"), (1, "z", "u")], attempt=1)
    assert rig.rows() == [(1, "z"), (2, "x"), (3, "b")]


def test_a_trigger_sees_each_change_in_its_order(server):
    rig = SqlRig(server("postgresql").url)
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20)")
    rig.execute(f"CREATE TABLE {rig.table}_seen (no SERIAL, op TEXT, id BIGINT)")
    see = f"INSERT INTO {rig.table}_seen (op, id) VALUES (TG_OP, coalesce(NEW.id, OLD.id)); RETURN NULL; END"
    rig.execute(ROUTED.format(rig.table, see).replace("BEFORE INSERT", "AFTER INSERT OR UPDATE OR DELETE"))
    changed(rig, [(1, "a", "c"), (1, "b", "u"), (2, "a", "c"), (1, None, "d"), (2, "b", "u")])
    seen = rig.execute(f"SELECT op, id FROM {rig.table}_seen ORDER BY no")
    assert seen == [("INSERT", 1), ("UPDATE", 1), ("INSERT", 2), ("DELETE", 1), ("UPDATE", 2)]


@pytest.mark.parametrize("any_rig", ["postgresql", "sqlite"], indirect=True)
def test_a_table_of_which_rows_give_no_other_key_keeps_the_short_way(any_rig):
    """Deletes first, then the last row of each key: many rows are one statement."""
    number = "BIGINT GENERATED BY DEFAULT AS IDENTITY" if any_rig.is_postgresql else "INTEGER"
    any_rig.execute(f"CREATE TABLE {any_rig.table}_other (id BIGINT PRIMARY KEY)")
    any_rig.create(f"no {number} PRIMARY KEY, id BIGINT UNIQUE, name TEXT, other BIGINT REFERENCES {any_rig.table}_other (id)")
    with UpsertSink(any_rig.url, any_rig.table, ("id",), "op").begin(Attempt("q", 0, 0, 0)) as transaction:
        transaction.write(pa.RecordBatch.from_pydict({"id": [1, 1, 2], "name": ["a", "b", "c"], "op": ["c", "u", "c"]}))
        assert not transaction._in_order
        transaction.prepare()
    assert any_rig.rows("id, name") == [(1, "b"), (2, "c")]


KEYS: dict[str, tuple[pa.Array, str]] = {
    "text": (pa.array(["a%s 'b", "é "]), "VARCHAR(20)"),
    "view": (pa.array(["a", "b"], pa.string_view()), "VARCHAR(20)"),
    "dictionary": (pa.array(["a", "b"]).dictionary_encode(), "VARCHAR(20)"),
    "dictionary of views": (pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", "b"], pa.string_view())), "VARCHAR(20)"),
    "date": (pa.array([0, 1], pa.date32()), "DATE"),
    "time": (pa.array([0, 1], pa.time64("us")), "TIME{6}"),
    "instant": (pa.array([0, 1], pa.timestamp("us", "Europe/Berlin")), "{INSTANT}"),
    "boolean": (pa.array([True, False]), "BOOLEAN"),
    "float": (pa.array([0.1, 5e-324]), "DOUBLE PRECISION"),
    "single": (pa.array([0.1, 1e-30], pa.float32()), "REAL"),
    "decimal": (pa.array([Decimal("0.10"), Decimal(11)], pa.decimal128(20, 2)), "NUMERIC(20, 2)"),
    "bytes": (pa.array([b"\x00\xff%s", b""]), "{BYTES}"),
    "uuid": (pa.array(["00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000B"]), "{UUID}"),
}
OTHERS = {
    "{6}": {"postgresql": "", "mariadb": "(6)", "sqlite": ""},
    "{INSTANT}": {"postgresql": "TIMESTAMPTZ", "mariadb": "DATETIME(6)", "sqlite": "TIMESTAMP"},
    "{BYTES}": {"postgresql": "BYTEA", "mariadb": "VARBINARY(9)", "sqlite": "BLOB"},
    "{UUID}": {"postgresql": "UUID", "mariadb": "UUID", "sqlite": "CHAR(36)"},
}
"""Types by the product."""


@pytest.mark.parametrize("name", KEYS)
def test_a_delete_finds_its_row_by_a_key_of_each_type(any_rig, name):
    values, declared = KEYS[name]
    if any_rig.is_sqlite and name == "decimal":
        pytest.skip("SQLite has no decimals")
    product = "postgresql" if any_rig.is_postgresql else "sqlite" if any_rig.is_sqlite else "mariadb"
    for place, types in OTHERS.items():
        declared = declared.replace(place, types[product])
    any_rig.create(f"k {declared} NOT NULL, part INT NOT NULL, UNIQUE (k, part)")
    rows = pa.record_batch({"part": [1, 1], "gone": [False, False], "k": values})
    deletes = pa.record_batch({"part": [1, 2], "gone": [True, True], "k": values})
    with UpsertSink(any_rig.url, any_rig.table, ("k", "part"), "gone").begin(Attempt("q", 0, 0, 0)) as transaction:
        transaction.write(rows)
        transaction.write(deletes)  # of the second value no row has this part
        transaction.prepare()
    assert len(any_rig.rows()) == 1
    with UpsertSink(any_rig.url, any_rig.table, ("k", "part"), "gone").begin(Attempt("q", 1, 0, 0)) as transaction:
        transaction.write(deletes.set_column(0, "part", pa.array([1, 1])))
        transaction.prepare()
    assert any_rig.rows() == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(1, "a", "c"), (2, "b", None)], "column 'op' says what becomes of a row by c, .*, and not by None"),
        ([(1, "a", "truncate")], "the table that is read was truncated"),
        ([(1, "a", "update_preimage")], "column 'op' has a preimage, and no column states which row takes its place"),
        ([(1, "a", "c"), (None, None, "d")], "column 'id' of the upsert's key must not be null"),
    ],
)
def test_a_change_that_does_not_say_what_it_is_or_of_which_row_is_refused(any_rig, rows, said):
    any_rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20), op VARCHAR(9) DEFAULT 'kept'")
    with pytest.raises(UsageError, match=f"table '{any_rig.table}'.*{said}"):
        changed(any_rig, rows)
    assert any_rig.rows() == []


def test_the_change_column_is_needed_and_not_written(any_rig):
    any_rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20), op VARCHAR(9) DEFAULT 'kept'")
    sink = UpsertSink(any_rig.url, any_rig.table, ("id",), "op")
    with pytest.raises(UsageError, match="changes need the column 'op'; the columns are id, name"):
        sink.check_rows(CHANGES.remove(2))
    sink.check_rows(CHANGES)
    with pytest.raises(UsageError, match=r"column '_lsn' \(int64\) is not in the table"):
        sink.check_rows(CHANGES.append(pa.field("_lsn", pa.int64())))
    changed(any_rig, [(1, "a", "c")])
    assert any_rig.rows() == [(1, "a", "kept")]
    with pytest.raises(UsageError, match="'id' cannot be the change type and a part of the key too"):
        UpsertSink(any_rig.url, any_rig.table, ("id",), "id")


def test_a_delete_leaves_rows_of_tables_that_inherit_and_finds_those_of_partitions(server):
    """They are not of the unique index of the key."""
    rig = SqlRig(server("postgresql").url)
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20)")
    rig.execute(f"CREATE TABLE {rig.table}_heir (PRIMARY KEY (id)) INHERITS ({rig.table})")
    rig.execute(f"INSERT INTO {rig.table}_heir VALUES (1, 'heir')")
    changed(rig, [(1, "a", "c"), (2, "b", "c")], [(1, None, "d")])
    assert rig.rows() == [(1, "heir"), (2, "b")]
    rig.execute(f"DROP TABLE {rig.table} CASCADE")
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20)", "PARTITION BY RANGE (id)")
    rig.execute(f"CREATE TABLE {rig.table}_part PARTITION OF {rig.table} FOR VALUES FROM (0) TO (10)")
    changed(rig, [(1, "a", "c"), (2, "b", "c")], [(1, None, "d")])
    assert rig.rows() == [(2, "b")]


ROUTED = """
CREATE FUNCTION {0}_route() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
{1} $$; CREATE TRIGGER routed BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION {0}_route()
"""


def test_a_trigger_that_may_put_rows_into_tables_that_inherit_is_refused(server):
    """Regression: a row was added with each upsert, as no unique key is of the table and its heirs."""
    rig = SqlRig(server("postgresql").url)
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20)")
    rig.execute(ROUTED.format(rig.table, f"INSERT INTO {rig.table}_heir VALUES (NEW.*); RETURN\nnull; END"))
    changed(rig, [(1, None, "d")])  # without heirs
    rig.execute(f"CREATE TABLE {rig.table}_heir (PRIMARY KEY (id)) INHERITS ({rig.table})")
    message = rf"table '{rig.table}': its trigger 'routed' may put rows .* make it a partitioned table \(PARTITION BY\)"
    with pytest.raises(UsageError, match=message):
        UpsertSink(rig.url, rig.table, ("id",), "op").check_rows(CHANGES)
    SqlSink(rig.url, rig.table).check_rows(CHANGES.remove(2))
    rig.execute(f"ALTER TABLE {rig.table} DISABLE TRIGGER routed")
    changed(rig, [(1, "a", "c")], [(1, "b", "u")])
    assert rig.rows() == [(1, "b")]


def test_a_trigger_that_leaves_rows_in_their_table_is_taken_where_others_inherit(server):
    rig = SqlRig(server("postgresql").url)
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20)")
    rig.execute(f"CREATE TABLE {rig.table}_heir (PRIMARY KEY (id)) INHERITS ({rig.table})")
    rig.execute(f"INSERT INTO {rig.table}_heir VALUES (1, 'heir')")
    rig.execute(ROUTED.format(rig.table, "NEW.name = upper(NEW.name); RETURN NEW; END"))
    changed(rig, [(1, "a", "c"), (2, "b", "c")], [(1, None, "d")])
    assert rig.rows() == [(1, "heir"), (2, "B")]


def test_a_delete_finds_rows_in_the_chunks_of_a_hypertable(server):
    """As far as a server without TimescaleDB shows it: each table may be one."""
    rig = SqlRig(server("postgresql").url)
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(20)")
    rig.execute(f"CREATE TABLE {rig.table}_chunk (PRIMARY KEY (id)) INHERITS ({rig.table})")
    rig.execute(f"INSERT INTO {rig.table}_chunk VALUES (1, 'a')")
    rig.execute("CREATE SCHEMA _timescaledb_catalog")
    rig.execute("CREATE TABLE _timescaledb_catalog.hypertable (id INT)")
    try:
        changed(rig, [(1, None, "d")])
    finally:
        rig.execute("DROP SCHEMA _timescaledb_catalog CASCADE")
    assert rig.rows() == []


def test_sqlites_number_of_a_row_is_a_key_that_has_an_index_too(tmp_path):
    rig = SqlRig(f"sqlite:///{tmp_path}/x.db")
    rig.create("id INTEGER NOT NULL, name VARCHAR, PRIMARY KEY (id), UNIQUE (id)")
    changed(rig, [(1, "a", "c"), (2, "b", "c")], [(1, "c", "u")], [(2, None, "d")])
    assert rig.rows() == [(1, "c")]
