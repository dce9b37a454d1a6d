"""An upsert replaces rows of its key, and no others: what does not identify rows by exactly its key is refused."""

from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base.sink import Attempt
from headrace.connectors.sql.upsert import UpsertSink
from headrace.enumerator.errors import UsageError
from tests.helpers.sql_rig import SqlRig

pytestmark = pytest.mark.timeout(300)


def written(rig: SqlRig, key: tuple[str, ...], columns: dict[str, Any]) -> None:
    with UpsertSink(rig.url, rig.table, key).begin(Attempt("q", 0, 0, 0)) as transaction:
        transaction.write(pa.record_batch(columns))
        transaction.prepare()


@pytest.fixture
def mariadb_rig(server) -> SqlRig:
    return SqlRig(server("mariadb").url)


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
