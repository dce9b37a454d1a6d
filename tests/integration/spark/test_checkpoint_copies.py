"""Queries of a real Spark that go on from copies of a checkpoint: what their sinks hold then. In front of the fake Kafka."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.testing import FakeKafka
from pyspark_headrace.checkpoints.copies import rewind, write_copy
from pyspark_headrace.checkpoints.logs import read_checkpoint

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        cluster.create_topic("in")
        cluster.create_topic("out")
        yield cluster


class IntoFiles:
    """Spark's own file sink, which keeps a list of the batches that it has written, by their numbers."""

    def __init__(self, kafka, folder):
        self._folder = str(folder / "rows")

    def write_to(self, writer):
        return writer.format("parquet").option("path", self._folder)

    def rows(self, spark):
        return Counter(row["value"] for row in spark.read.parquet(self._folder).collect())


class InForeachBatch:
    """A write that is named by the user, and by the batch's number."""

    def __init__(self, kafka, folder):
        self._kafka = kafka

    def write_to(self, writer):
        options = {"kafka.bootstrap.servers": self._kafka.bootstrap, "topic": "out", "txnAppId": "app"}

        def write(frame, number):
            frame.write.format("headrace").options(**options, txnVersion=str(number)).mode("append").save()

        return writer.foreachBatch(write)

    def rows(self, spark):
        return Counter(record.value.decode() for record in self._kafka.records("out"))


@pytest.mark.parametrize("sink", [IntoFiles, InForeachBatch])
def test_seen_here_a_rewound_query_loses_nothing_in_a_sink_that_knows_batches_by_their_numbers(spark, kafka, tmp_path, sink):
    output = sink(kafka, tmp_path)

    def run(checkpoint, **options):
        read = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "in", "startingOffsets": "earliest", **options}
        rows = spark.readStream.format("headrace").options(**read).load().selectExpr("CAST(value AS STRING) AS value")
        writer = output.write_to(rows.writeStream).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    kafka.append("in", *[str(number).encode() for number in range(30)])
    run(tmp_path / "old", maxOffsetsPerTrigger="10")
    checkpoint = read_checkpoint(str(tmp_path / "old"))
    last = checkpoint.last_committed
    assert last >= 2
    write_copy(checkpoint, str(tmp_path / "new"), rewind(checkpoint, last - 1), quiet_s=0.0)
    kafka.append("in", *[str(number).encode() for number in range(30, 40)])
    run(tmp_path / "new")
    once, twice = {str(number) for number in (*range(20), *range(30, 40))}, {str(number) for number in range(20, 30)}
    assert output.rows(spark) == {**dict.fromkeys(once, 1), **dict.fromkeys(twice, 2)}
