"""`headrace.spark.read_source`: Beam's text, Parquet and Avro sources as frames, exactly, also when a worker is killed."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("apache_beam", reason="needs headrace[beam]")

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.iobase import BoundedSource, SourceBundle
from apache_beam.io.range_trackers import OffsetRangeTracker
from pyspark.errors import PySparkException

from headrace.beam import BeamSource
from headrace.enumerator.errors import UsageError
from headrace.spark import read_source, read_stream
from headrace.testing.memory import MemoryLog, MemorySource
from tests.helpers import beam_files

BUNDLE_BYTES = 1000


def numbers_source(count: int, kill: Path | None = None, kill_at: int = 0, fail_at: int | None = None) -> BoundedSource:
    """0, 1, ... in bundles of 10; the process that first reads `kill_at` is killed. A local class travels by value."""

    class Numbers(BoundedSource):
        def estimate_size(self):
            return count

        def get_range_tracker(self, start, stop):
            return OffsetRangeTracker(start or 0, count if stop is None else stop)

        def split(self, desired_bundle_size, start_position=None, stop_position=None):
            for start in range(0, count, 10):
                yield SourceBundle(10, self, start, min(start + 10, count))

        def read(self, range_tracker):
            position = range_tracker.start_position()
            while range_tracker.try_claim(position):
                if position == fail_at:
                    raise RuntimeError("injected")
                if kill is not None and position == kill_at and not kill.exists():
                    kill.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield position
                position += 1

    return Numbers()


NUMBER = pa.schema([("number", pa.int64())])


@pytest.mark.parametrize(("make", "schema", "rows"), [
    (beam_files.text, None, [{"value": line} for line in beam_files.LINES]),
    (beam_files.parquet, beam_files.SCHEMA, beam_files.ROWS), (beam_files.avro, beam_files.SCHEMA, beam_files.ROWS),
], ids=["text", "parquet", "avro"])  # fmt: skip
def test_what_beam_reads_is_a_frame(spark, tmp_path, make, schema, rows):
    frame = read_source(spark, BeamSource(make(tmp_path / "data"), schema, bundle_bytes=BUNDLE_BYTES))
    assert frame.rdd.getNumPartitions() > 2
    assert sorted([row.asDict() for row in frame.collect()], key=rows.index) == rows


def test_a_killed_worker_neither_loses_nor_repeats(spark, tmp_path):
    killed = tmp_path / "killed"
    frame = read_source(spark, BeamSource(numbers_source(100, killed, kill_at=47), NUMBER))
    found = [row.number for row in frame.collect()]
    assert killed.exists()
    assert sorted(found) == list(range(100))


def test_frames_do_not_meet_and_can_be_computed_again(spark):
    frames = [read_source(spark, BeamSource(numbers_source(count), NUMBER)) for count in (15, 25)]
    for _ in range(2):
        assert [frame.count() for frame in frames] == [15, 25]
    assert frames[0].join(frames[1], "number").count() == 15


def test_types_that_spark_has_in_another_form_are_converted(spark, tmp_path):
    schema = pa.schema([("value", pa.dictionary(pa.int32(), pa.large_string()))])
    frame = read_source(spark, BeamSource(beam_files.text(tmp_path / "data"), schema))
    assert frame.dtypes == [("value", "string")]
    assert {row.value for row in frame.collect()} == set(beam_files.LINES)


@pytest.mark.parametrize("arrow", [pa.uint8(), pa.float16(), pa.decimal256(50, 2)])
def test_types_that_spark_does_not_have_are_refused_by_name(spark, arrow):
    with pytest.raises(UsageError, match="column 'number' of source 'beam': Spark has no type for"):
        read_source(spark, BeamSource(numbers_source(1), pa.schema([("number", arrow)])))


def test_a_time_of_day_in_a_stream_is_refused_by_name(spark):
    """Spark takes one in a frame, and its streams name neither column nor setting."""
    source = BeamSource(numbers_source(1), pa.schema([("at", pa.time64("us"))]))
    assert read_source(spark, source).dtypes == [("at", "time(6)")]
    was = spark.conf.get("spark.sql.timeType.enabled")
    spark.conf.unset("spark.sql.timeType.enabled")
    try:
        with pytest.raises(UsageError, match=r"column 'at' is time\(6\), .* only where spark.sql.timeType.enabled is true"):
            read_stream(spark, source)
    finally:
        spark.conf.set("spark.sql.timeType.enabled", was)


def test_times_with_and_without_a_zone(spark, tmp_path):
    moment = datetime(2024, 2, 29, 23, 59, 59, 123456)
    rows = [{"instant": moment.replace(tzinfo=UTC), "local": moment}]
    schema = pa.schema([("instant", pa.timestamp("us", "America/New_York")), ("local", pa.timestamp("us"))])
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "times.parquet")
    frame = read_source(spark, BeamSource(beam.io.ReadFromParquetBatched(f"{tmp_path}/*.parquet"), schema))
    assert frame.dtypes == [("instant", "timestamp"), ("local", "timestamp_ntz")]
    (row,) = frame.selectExpr("CAST(instant AS DOUBLE) AS seconds", "CAST(local AS STRING) AS local").collect()
    assert (row.seconds, row.local) == (rows[0]["instant"].timestamp(), "2024-02-29 23:59:59.123456")


def test_a_value_that_spark_would_cut_is_refused(spark):
    frame = read_source(spark, BeamSource(numbers_source(2), pa.schema([("number", pa.timestamp("ns", "UTC"))])))
    with pytest.raises(PySparkException, match="Spark cannot hold what the source gives: Casting"):
        frame.collect()


def test_nothing_to_read(spark):
    frame = read_source(spark, BeamSource(numbers_source(0), NUMBER))
    assert frame.collect() == []
    assert frame.columns == ["number"]


def test_a_source_without_end_is_refused(spark):
    with pytest.raises(UsageError, match="'memory' has no end"):
        read_source(spark, MemorySource(MemoryLog()))


def test_an_error_of_the_source_fails_the_query_and_is_shown(spark):
    frame = read_source(spark, BeamSource(numbers_source(30, fail_at=21), NUMBER))
    with pytest.raises(PySparkException, match="injected"):
        frame.collect()
