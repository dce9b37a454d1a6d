"""The Delta sink as `format("headrace")`: a query and its restart, and batch writes, into a table that the first one makes."""

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from tests.helpers.table_rig import delta_paths


def ids_in(path):
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist())


def write(frame, path, **options):
    frame.write.format("headrace").options(connector="delta", **options).mode("append").save(str(path))


def test_a_query_continues_and_batch_writes_are_repeated(spark, tmp_path):
    source, table = tmp_path / "source", tmp_path / "table"

    def copy():
        frame = spark.readStream.schema("id BIGINT, part STRING").parquet(str(source))
        writer = frame.writeStream.format("headrace").option("connector", "delta").option("partitionBy", "part")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(table)).awaitTermination()

    for begin in (0, 10):
        rows = spark.range(begin, begin + 10, 1, 2).selectExpr("id", "CAST(id % 2 AS STRING) AS part")
        rows.write.mode("append").parquet(str(source))
        copy()
        assert ids_in(table) == list(range(begin + 10))
    assert DeltaTable(str(table)).metadata().partition_columns == ["part"]
    for number in (0, 0, 1):
        write(
            spark.range(100 + number, 101 + number).selectExpr("id", "'0' AS part"), table, txnAppId="app",
            txnVersion=str(number),
        )  # fmt: skip
    assert ids_in(table) == [*range(20), 100, 101]
    files = delta_paths(str(table))

    with pytest.raises(PySparkException, match="column 'id' is int64 in the table, and string in the rows"):
        write(spark.sql("SELECT 'x' AS id, '0' AS part"), table)
    with pytest.raises(PySparkException, match="injected"):
        write(spark.range(0, 100, 1, 2).selectExpr("IF(id = 99, raise_error('injected'), id) AS id", "'0' AS part"), table)
    assert delta_paths(str(table)) == files
    assert not list((table / "_headrace").glob("**/*.open"))
