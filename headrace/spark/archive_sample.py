"""The job whose classes are kept (class_archive.py): a streaming query from Python to Python, and a read of what it wrote.

    python -m headrace.spark.archive_sample DIRECTORY

It ends once its JVM has ended, which then has written its file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from headrace.runners.spark.private import shut_down_jvm
from headrace.spark.program import session_builder

SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
ROWS = 1000
JVM_EXIT_S = 120.0


class Numbers(DataSource):
    """Some numbers, once."""

    def schema(self) -> str:
        return "id bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return NumbersReader()


class NumbersReader(DataSourceStreamReader):
    """Reads them in two tasks."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"at": ROWS}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(task) for task in range(2)] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"id": pa.array(range(ROWS), pa.int64())})


def main(directory: Path) -> None:
    spark: SparkSession = session_builder().config(map=SETTINGS).getOrCreate()
    spark.dataSource.register(Numbers)
    rows, target = spark.readStream.format("Numbers").load(), str(directory / "rows")
    writer = rows.writeStream.format("headrace").option("connector", "files")
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).start(target)
    query.processAllAvailable()
    query.stop()
    read = spark.read.parquet(target).groupBy("id").count().count()
    if read != ROWS:
        raise SystemExit(f"{read} of {ROWS} numbers came out")
    spark.stop()
    shut_down_jvm(JVM_EXIT_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
