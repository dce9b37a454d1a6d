"""The file sink and Spark: exactly once as `format("headrace")`; what Spark gives it reads back, and published files only."""

import pytest
from pyspark.errors import PySparkException

from headrace.connectors.files import FileFormat, FileSink
from tests.helpers.file_rig import job_committer, left_over, prepared, published
from tests.helpers.spark_jobs import finish_driver, kill_driver
from tests.helpers.waiting import eventually

COLUMNS = {
    "flag": "true", "byte": "-128Y", "short": "32767S", "integer": "-2147483648", "long": "9223372036854775807L",
    "float": "CAST(0.1 AS FLOAT)", "double": "1e300D", "nan": "CAST('NaN' AS DOUBLE)",
    "decimal": "CAST('12345678901234567890.000000000000000001' AS DECIMAL(38, 18))", "string": "'é\"\\n\\u2028'",
    "binary": "X'00FF'", "date": "DATE'9999-12-31'", "timestamp": "TIMESTAMP'2024-02-29 23:59:59.123456 America/New_York'",
    "timestamp_ntz": "TIMESTAMP_NTZ'2024-02-29 23:59:59.123456'", "interval": "INTERVAL '-1 02:03:04.000005' DAY TO SECOND",
    "array": "array(1, null, 3)", "struct": "named_struct('a', 1, 'b', array('x'))", "map": "map('k', 1, 'l', null)",
}  # fmt: skip
NESTED = {"array", "struct", "map"}


def write(frame, path, mode="append", **options):
    frame.write.format("headrace").options(connector="files", **options).mode(mode).save(str(path))


def ids_in(spark, path):
    return sorted(row.id for row in spark.read.schema("id BIGINT").parquet(str(path)).collect())


@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_what_spark_gives_it_reads_back(spark, tmp_path, file_format):
    values = [f"{sql} AS `{name}`" for name, sql in COLUMNS.items()]
    nulls = [f"nullif({sql}, {sql}) AS `no {name}`" for name, sql in COLUMNS.items() if name not in NESTED]
    frame = spark.sql(f"SELECT {', '.join(values + nulls)}")
    write(frame, tmp_path / "out", fileFormat=file_format)
    found = spark.read.schema(frame.schema).format(file_format).load(str(tmp_path / "out"))
    assert [str(row) for row in found.collect()] == [str(row) for row in frame.collect()]  # as text: NaN is not equal to itself


def test_spark_reads_the_types_that_it_gave_as_from_its_own_files(spark, tmp_path):
    """Regression: Parquet has no intervals and no collations, and the files did not state what they were."""
    frame = spark.sql(
        "SELECT interval '1 02:03:04.5' day to second AS took, array(interval '-1' hour, null) AS some, "
        "'Ab' COLLATE UTF8_LCASE AS name, null AS nothing"
    )
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    write(frame, ours)
    frame.write.parquet(theirs)
    write(frame, theirs)
    for path in (ours, theirs):
        found = spark.read.parquet(path)
        assert found.schema == frame.schema.toNullable()
        assert found.distinct().collect() == frame.collect()


def test_filters_find_rows_with_nan_which_spark_sorts_last(spark, tmp_path):
    """They are pushed down, and compared with the bounds of row groups."""
    real = "IF(id = 1, double('NaN'), double(id))"
    frame = spark.sql(f"SELECT id, {real} AS x, named_struct('f', float({real})) AS s FROM range(0, 4, 1, 1)")
    write(frame, tmp_path / "out")
    found = spark.read.schema(frame.schema).parquet(str(tmp_path / "out"))
    for condition in ("> 8", ">= 3", "= 'NaN'", "< 1", "> 'Infinity'"):
        for column in ("x", "s.f"):
            wanted = [row.id for row in frame.where(f"{column} {condition}").collect()]
            assert [row.id for row in found.where(f"{column} {condition}").collect()] == wanted, condition


@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_what_was_written_is_read_as_a_frame_and_as_a_stream(spark, tmp_path, file_format):
    left_out = {"interval", *({"binary", "date", *NESTED} if file_format == "json" else ())}
    values = ", ".join(f"{sql} AS `{name}`" for name, sql in COLUMNS.items() if name not in left_out)
    frame = spark.sql(f"SELECT id, {values} FROM range(0, 10, 1, 3)")
    write(frame, tmp_path / "in", fileFormat=file_format)
    options = {"connector": "files", "fileFormat": file_format, "path": str(tmp_path / "in"), "discoveryInterval": "200ms"}
    rows = sorted(map(str, frame.collect()))
    assert (
        sorted(str(row) for row in spark.read.format("headrace").options(**options).schema(frame.schema).load().collect())
        == rows
    )
    if file_format == "parquet":
        found = spark.read.format("headrace").options(**options).load().schema
        assert [field.simpleString() for field in found] == [field.simpleString() for field in frame.schema]
    stream = spark.readStream.format("headrace").options(**options).schema(frame.schema).load()
    seen = []
    query = stream.writeStream.foreachBatch(lambda batch, _: seen.extend(map(str, batch.collect())))
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        assert sorted(seen) == rows
        write(frame, tmp_path / "in", fileFormat=file_format)
        eventually(lambda: sorted(seen) == sorted(rows + rows))
    finally:
        query.stop()


def test_what_spark_writes_is_read_with_its_times_and_with_columns_of_the_source(spark, tmp_path):
    """Spark writes timestamps as INT96; those of JSON without a zone are in the session's, as its own reader has them."""
    files = spark.read.format("headrace").option("connector", "files")
    frame = spark.sql("SELECT TIMESTAMP'9999-12-31 23:59:59.123456' AS t, array(TIMESTAMP'0001-01-01 00:00:00') AS l")
    frame.write.parquet(str(tmp_path / "parquet"))
    for reader in (files, files.schema(frame.schema)):
        found = reader.load(str(tmp_path / "parquet"))
        assert found.schema == frame.schema
        assert found.selectExpr("string(t)", "string(l)").collect() == frame.selectExpr("string(t)", "string(l)").collect()
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "f").write_text('{"t":"2024-07-01T12:00:00"}\nbad\n')
    own = "t TIMESTAMP, _metadata STRUCT<path: STRING, size: BIGINT, modified: TIMESTAMP>, badValue BINARY"
    read = files.options(fileFormat="json", onBadRecord="keep")
    for zone, options in (("Europe/Berlin", {}), ("UTC", {"timeZone": "Europe/Berlin"})):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            rows = read.options(**options).schema(own).load(str(tmp_path / "json"))
            rows = rows.selectExpr("unix_seconds(t) AS t", "_metadata.path", "badValue").collect()
        finally:
            spark.conf.unset("spark.sql.session.timeZone")
        assert sorted(map(tuple, rows), key=str) == [(1719828000, "f", None), (None, "f", b"bad")]
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        named = spark.sql("SELECT 1 AS id, TIMESTAMP'2024-07-01 10:00:00' AS t, TIMESTAMP_NTZ'2024-07-01 10:00:00' AS n")
        named.write.partitionBy("t", "n").parquet(str(tmp_path / "named"))
        read = spark.read.format("headrace").option("connector", "files").schema(named.schema)
        assert read.load(str(tmp_path / "named")).collect() == named.collect()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_a_stream_keeps_the_schema_that_it_has_inferred(spark, tmp_path):
    """Whatever file is the oldest when it starts again."""
    folder, seen = tmp_path / "in", []

    def add(name, text):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    def run(**options):
        frame = spark.readStream.format("headrace").options(connector="files", fileFormat="json", **options).load(str(folder))
        query = frame.writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start().awaitTermination()

    add("1", '{"a":1,"b":"x"}\n')
    run(cleanSource="delete")
    assert not list(folder.iterdir())
    add("2", '{"a":2}\n')
    with pytest.raises(PySparkException, match="the files have another schema than when the checkpoint was made: without b"):
        run()
    add("2", '{"a":2,"b":"y"}\n')
    run()
    assert [tuple(row) for row in seen] == [(1, "x"), (2, "y")]


@pytest.mark.parametrize("file_format", FileFormat)
def test_spark_does_not_see_what_is_not_published(spark, tmp_path, file_format):
    sink = FileSink(str(tmp_path / "out"), file_format)
    job_committer(sink).commit(0, (prepared(sink, 0, 0, ["seen"]),))
    prepared(sink, 1, 0, ["not seen"])
    assert left_over(sink)
    reader = spark.read.schema("value STRING")
    found = reader.parquet(sink.path) if file_format is FileFormat.PARQUET else reader.json(sink.path)
    assert [row.value for row in found.collect()] == ["seen"]


class TestBatch:
    def test_rows_are_added(self, spark, tmp_path):
        write(spark.range(0, 10, 1, 3), tmp_path / "out")
        write(spark.range(10, 20, 1, 2), tmp_path / "out", compression="zstd")
        write(spark.range(0), tmp_path / "out")
        assert ids_in(spark, tmp_path / "out") == list(range(20))

    def test_nothing_is_seen_when_a_task_fails(self, spark, tmp_path):
        frame = spark.range(0, 100, 1, 4).selectExpr("IF(id = 99, raise_error('injected'), id) AS id")
        with pytest.raises(PySparkException, match="injected"):
            write(frame, tmp_path / "out")
        assert published(FileSink(str(tmp_path / "out"))) == []

    def test_a_repeated_write_is_written_once(self, spark, tmp_path):
        for number in (0, 0, 1):
            write(spark.range(number, number + 1), tmp_path / "out", txnAppId="app", txnVersion=str(number))
        assert ids_in(spark, tmp_path / "out") == [0, 1]

    @pytest.mark.parametrize(("options", "complaint"), [
        ({"fileFormat": "orc"}, "must be parquet or json, not 'orc'"), ({"compresion": "zstd"}, "did you mean 'compression'"),
        ({"connector": "file"}, "must be one of kafka, sql, files, delta, iceberg, postgresql-changes, not 'file'"),
        ({"mode": "overwrite"}, "Overwrite not allowed for connector 'files'"),
    ])  # fmt: skip
    def test_what_is_wrong_is_refused_by_name(self, spark, tmp_path, options, complaint):
        named = {"connector": "files", "mode": "append", **options}
        mode = named.pop("mode")
        with pytest.raises(PySparkException, match=complaint):
            spark.range(1).write.format("headrace").options(**named).mode(mode).save(str(tmp_path / "out"))

    def test_a_folder_without_files_needs_a_schema(self, spark, tmp_path):
        reader = spark.read.format("headrace").option("connector", "files")
        with pytest.raises(PySparkException, match="give the schema"):
            reader.load(str(tmp_path))
        assert reader.schema("id BIGINT").load(str(tmp_path)).collect() == []

    def test_a_table_is_not_read(self, spark, tmp_path):
        with pytest.raises(PySparkException, match="connector 'delta' cannot be read, only written"):
            spark.read.format("headrace").option("connector", "delta").load(str(tmp_path))


ID = "CAST(CAST(value AS STRING) AS BIGINT) AS id"


def test_a_topic_is_copied_and_the_query_continues(spark, topics, numbers, tmp_path):
    def copy():
        options = topics.options(numbers, startingOffsets="earliest", maxOffsetsPerTrigger=60)
        writer = spark.readStream.format("headrace").options(**options).load().selectExpr(ID).writeStream.format("headrace")
        writer = writer.option("connector", "files").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()

    copy()
    assert ids_in(spark, tmp_path / "out") == list(range(100))
    topics.send(numbers, range(100, 120), 1)
    copy()
    assert ids_in(spark, tmp_path / "out") == list(range(120))


@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_driver_killed_after_its_list_was_durable(spark, topics, numbers, tmp_path):
    sink = FileSink(str(tmp_path / "out"))
    read = topics.options(numbers, startingOffsets="earliest", maxOffsetsPerTrigger=50)
    arguments = {"read": read, "select": [ID], "write": {"connector": "files", "path": sink.path}}
    kill_driver(tmp_path, arguments, "headrace.connectors.files.sink", "FileCommitter", "record", "after", 1)
    assert published(sink) == []
    assert sink.recorded_epochs()
    finish_driver(tmp_path, arguments, lambda: len(ids_in(spark, sink.path)) >= 100)
    assert ids_in(spark, sink.path) == list(range(100))
