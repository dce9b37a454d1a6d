"""Folders of the file sink, read by Spark: what Spark gives as Arrow it reads back, and it sees published files only."""

from __future__ import annotations

import pytest
from file_rig import job_committer, left_over, prepared

from headrace.connectors.files import FileFormat, FileSink
from headrace.connectors.sink import Attempt

COLUMNS = {
    "flag": "true",
    "byte": "-128Y",
    "short": "32767S",
    "integer": "-2147483648",
    "long": "9223372036854775807L",
    "float": "CAST(0.1 AS FLOAT)",
    "double": "1e300D",
    "nan": "CAST('NaN' AS DOUBLE)",
    "decimal": "CAST('12345678901234567890.000000000000000001' AS DECIMAL(38, 18))",
    "string": "'é\"\\n\\u2028'",
    "binary": "X'00FF'",
    "date": "DATE'9999-12-31'",
    "timestamp": "TIMESTAMP'2024-02-29 23:59:59.123456 America/New_York'",
    "timestamp_ntz": "TIMESTAMP_NTZ'2024-02-29 23:59:59.123456'",
    "interval": "INTERVAL '-1 02:03:04.000005' DAY TO SECOND",
    "array": "array(1, null, 3)",
    "struct": "named_struct('a', 1, 'b', array('x'))",
    "map": "map('k', 1, 'l', null)",
}
NESTED = {"array", "struct", "map"}


@pytest.mark.parametrize("file_format", FileFormat)
def test_what_spark_gives_it_reads_back(spark, tmp_path, file_format):
    values = [f"{sql} AS `{name}`" for name, sql in COLUMNS.items()]
    nulls = [f"nullif({sql}, {sql}) AS `no {name}`" for name, sql in COLUMNS.items() if name not in NESTED]
    frame = spark.sql(f"SELECT {', '.join(values + nulls)}")
    sink = FileSink(str(tmp_path / "out"), file_format)
    with sink.begin(Attempt("job", 0, 0, 0)) as transaction:
        for batch in frame.toArrow().to_batches():
            transaction.write(batch)
        handle = transaction.prepare()
    assert handle is not None
    job_committer(sink).commit(0, (handle,))
    reader = spark.read.schema(frame.schema)
    found = reader.parquet(sink.path) if file_format is FileFormat.PARQUET else reader.json(sink.path)
    assert [str(row) for row in found.collect()] == [str(row) for row in frame.collect()]  # as text: NaN is not equal to itself


@pytest.mark.parametrize("file_format", FileFormat)
def test_spark_does_not_see_what_is_not_published(spark, tmp_path, file_format):
    sink = FileSink(str(tmp_path / "out"), file_format)
    job_committer(sink).commit(0, (prepared(sink, 0, 0, ["seen"]),))
    prepared(sink, 1, 0, ["not seen"])
    assert left_over(sink)
    reader = spark.read.schema("value STRING")
    found = reader.parquet(sink.path) if file_format is FileFormat.PARQUET else reader.json(sink.path)
    assert [row.value for row in found.collect()] == ["seen"]
