"""PostgreSQL's changes as `format("headrace")`: each row and each change once, whatever is run again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQueryException

pytest.importorskip("psycopg", reason="needs headrace[sql]")

from headrace.runners.spark.split_state import ROWS_FOLDER
from headrace.testing.servers.databases import Database
from tests.helpers.databases import drop_slots, logical_postgresql, psql
from tests.helpers.spark_tools import Query
from tests.helpers.table_copy import Copy


class Repeated(Query):
    """One of its batches fails when its rows are read, and is run again by the next query."""

    fails_after: int | None = None
    rows_before: list[Any]

    def _keep(self, frame: DataFrame, batch_id: int) -> None:
        super()._keep(frame, batch_id)
        if batch_id == self.fails_after:
            self.rows_before, self.fails_after = self.batches.pop(batch_id), None
            raise RuntimeError("injected failure")


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Iterator[Repeated]:
    started = Repeated(spark, tmp_path / "checkpoint")
    yield started
    started.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[Database]:
    with logical_postgresql("newest") as database:
        yield database


@pytest.fixture
def options(server: Database, query: Repeated) -> Iterator[dict[str, str]]:
    psql(
        server.url,
        "CREATE TABLE public.orders (id int, part text, value numeric(9, 2), PRIMARY KEY (id, part))",
        "INSERT INTO public.orders SELECT n, 'a', n / 100.0 FROM generate_series(1, 500) AS n",
        "CREATE PUBLICATION shop FOR TABLE public.orders",
    )
    yield {
        "connector": "postgresql-changes",
        "url": server.url,
        "tables": "orders",
        "publication": "shop",
        "slot": "headrace_spark",
        "chunkRows": "100",
        "maxSplitsPerTrigger": "1",
        "maxTriggerDuration": "2s",
        "checkpointLocation": str(query.checkpoint),
    }
    query.stop()
    drop_slots(server.url)
    psql(server.url, "DROP PUBLICATION shop", "DROP TABLE public.orders")


def table(server: Database, name: str = "orders") -> dict[tuple[int, str], object]:
    return {(number, part): value for number, part, value in psql(server.url, f"SELECT * FROM public.{name}")}


def copied(query: Query) -> dict[tuple[int, str], object]:
    copy = Copy()
    for batch in sorted(query.batches):
        copy.apply([row.asDict() for row in query.batches[batch]])
    return copy.rows


def test_a_batch_that_fails_in_the_snapshot_has_the_same_rows_again(
    server: Database, options: dict[str, str], query: Repeated
) -> None:
    query.fails_after = 2
    with pytest.raises(StreamingQueryException, match="injected failure"):
        query.start(options).awaitTermination()
    psql(
        server.url,
        "UPDATE public.orders SET value = -value WHERE id % 3 = 0",
        "DELETE FROM public.orders WHERE id % 5 = 0",
        "UPDATE public.orders SET part = 'b' WHERE id % 7 = 0",
        "INSERT INTO public.orders VALUES (1000, 'a', 1)",
    )
    query.run_available(options)
    assert sorted(query.batches[2]) == sorted(query.rows_before)
    assert copied(query) == table(server)
    assert not [path for path in Path(query.checkpoint, ROWS_FOLDER).rglob("*") if path.is_file()]


def test_a_batch_that_fails_in_the_log_is_read_again_and_the_slot_moves(
    server: Database, options: dict[str, str], query: Repeated
) -> None:
    query.run_available(options)
    psql(server.url, "UPDATE public.orders SET value = value + 1", "DELETE FROM public.orders WHERE id < 100")
    query.fails_after = max(query.batches) + 1
    with pytest.raises(StreamingQueryException, match="injected failure"):
        query.start(options).awaitTermination()
    psql(server.url, "INSERT INTO public.orders SELECT n, 'new', n FROM generate_series(1, 50) AS n")
    ((written,),) = psql(server.url, "SELECT pg_current_wal_lsn()::text")
    query.run_available(options)
    assert copied(query) == table(server)
    ((lag,),) = psql(server.url, f"SELECT '{written}'::pg_lsn - confirmed_flush_lsn FROM pg_replication_slots")
    assert lag <= 0


def test_a_table_that_is_added_is_read_by_the_next_query_and_its_batches_have_the_same_rows_again(
    server: Database, options: dict[str, str], query: Repeated
) -> None:
    """The first batch of that query is one that has failed before the table was there."""
    options = {**options, "tables": "orders*"}
    query.run_available(options)
    psql(server.url, "UPDATE public.orders SET value = value + 1 WHERE id < 5")
    query.fails_after = max(query.batches) + 1
    with pytest.raises(StreamingQueryException, match="injected failure"):
        query.start(options).awaitTermination()
    failed, before = max(query.batches) + 1, query.rows_before
    psql(
        server.url,
        "CREATE TABLE public.orders_old (id int, part text, value numeric(9, 2), PRIMARY KEY (id, part))",
        "INSERT INTO public.orders_old SELECT n, 'old', n FROM generate_series(1, 350) AS n",
        "ALTER PUBLICATION shop ADD TABLE public.orders_old",
    )
    query.fails_after = failed + 1
    with pytest.raises(StreamingQueryException, match="injected failure"):
        query.start(options).awaitTermination()
    old = [row["public.orders"] for row in query.batches[failed]]
    assert old == [row["public.orders"] for row in before]
    assert {row["_table"] for row in query.rows_before} == {"public.orders_old"}
    psql(server.url, "DELETE FROM public.orders_old WHERE id % 5 = 0", "UPDATE public.orders_old SET value = -id")
    query.run_available(options)
    assert query.batches[failed + 1] == query.rows_before
    copy = Copy()
    for batch in sorted(query.batches):
        copy.apply({**row.asDict(), **row[row["_table"]].asDict()} for row in query.batches[batch])
    assert copy.rows == {**table(server), **table(server, "orders_old")}
    assert not [path for path in Path(query.checkpoint, ROWS_FOLDER).rglob("*") if path.is_file()]
    psql(server.url, "DROP TABLE public.orders_old")


def test_a_frame_has_the_rows_and_needs_no_slot(spark: SparkSession, server: Database, options: dict[str, str]) -> None:
    frame = spark.read.format("headrace").options(**{**options, "snapshot": "only"}).load()
    assert frame.schema.simpleString() == "struct<_op:string,_lsn:bigint,id:int,part:string,value:decimal(9,2)>"
    assert {(row.id, row.part): row.value for row in frame.collect()} == table(server)
    assert psql(server.url, "SELECT * FROM pg_replication_slots") == []


def test_what_cannot_be_read_is_refused_by_name(spark: SparkSession, options: dict[str, str]) -> None:
    def refused(said: str, kind: str = "readStream", **changed: str) -> None:
        with pytest.raises(PySparkException, match=said):
            getattr(spark, kind).format("headrace").options(**{**options, **changed}).load().schema  # noqa: B018

    refused("option 'slots' is not known to the source of changes; did you mean 'slot'", slots="a")
    refused("'orders' cannot be our slot", slot="orders")
    refused("there is no publication 'other'; the SQL .* --publication other --tables orders", publication="other")
    with pytest.raises(PySparkException, match="needs the option snapshot=only"):
        spark.read.format("headrace").options(**options).load().count()
    with pytest.raises(PySparkException, match="cannot be written, only read"):
        spark.range(1).write.format("headrace").option("connector", "postgresql-changes").mode("append").save()
    options.pop("checkpointLocation")
    with pytest.raises(PySparkException, match="option 'checkpointLocation' is missing"):
        spark.readStream.format("headrace").options(**options).load().writeStream.format("noop").start().awaitTermination()
