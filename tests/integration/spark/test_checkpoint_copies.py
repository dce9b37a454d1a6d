"""Queries of a real Spark that continue from copies of a checkpoint: what their sinks hold then. In front of the fake Kafka."""

import shutil
from collections import Counter

import pandas as pd
import pytest
from pyspark.sql.streaming import StatefulProcessor

from headrace.spark.checkpoints.copies import export_to_jvm, forget_topic, fork, rewind, set_offsets, write_copy
from headrace.spark.checkpoints.findings import findings_of
from headrace.spark.checkpoints.logs import NAMED, read_checkpoint
from headrace.testing import FakeKafka

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
def test_a_rewound_query_loses_nothing_in_a_sink_that_knows_batches_by_their_numbers(spark, kafka, tmp_path, sink):
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


@pytest.fixture
def named_sources(spark):
    """Spark's setting under which each source has a name, and the offset log its version 2."""
    name = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)


def read_named(spark, kafka, topics, source="headrace"):
    """Each topic by a source of its name, one after the other in one frame."""
    read = {"kafka.bootstrap.servers": kafka.bootstrap, "startingOffsets": "earliest"}
    frames = [
        spark.readStream.format(source).options(**read, subscribe=topic).name(f"of_{topic}").load().selectExpr("topic", "value")
        for topic in topics
    ]
    return frames[0].unionAll(frames[1])


@pytest.mark.usefixtures("named_sources")
def test_copies_of_a_query_whose_sources_have_names_continue_where_they_are_to(spark, kafka, tmp_path):
    def run(checkpoint, topics=("in", "out"), source="headrace"):
        found = Counter()

        def keep(frame, number):
            found.update((row["topic"], row["value"].decode()) for row in frame.collect())

        writer = read_named(spark, kafka, topics, source).writeStream.foreachBatch(keep)
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
        return found

    kafka.append("in", b"a", b"b", b"c")
    kafka.append("out", b"x", b"y", b"z")
    assert sum(run(tmp_path / "old").values()) == 6
    kafka.append("in", b"d")
    assert run(tmp_path / "old") == {("in", "d"): 1}
    checkpoint = read_checkpoint(str(tmp_path / "old"))
    assert {batch.version for batch in checkpoint.planned.values()} == {NAMED}
    assert {source.name for source in checkpoint.batch(None).sources} == {"of_in", "of_out"}
    kafka.append("out", b"new")
    first, last = min(checkpoint.planned), checkpoint.last_committed
    new = {("out", "new"): 1}
    for name, plan, wanted in (
        ("fork", fork(checkpoint), new),
        ("rewind", rewind(checkpoint, first), {("in", "d"): 1, **new}),
        ("set-offsets", set_offsets(checkpoint, {("in", 0): 2}), {("in", "c"): 1, ("in", "d"): 1, **new}),
        ("forget-topic", forget_topic(checkpoint, "in"), {**{("in", value): 1 for value in "abcd"}, **new}),
    ):
        write_copy(checkpoint, str(tmp_path / name), plan, quiet_s=0.0)
        assert findings_of(read_checkpoint(str(tmp_path / name))) == []
        assert run(tmp_path / name, ("out", "in")) == wanted, name
    write_copy(checkpoint, str(tmp_path / "jvm"), export_to_jvm(checkpoint), quiet_s=0.0)
    assert run(tmp_path / "jvm", source="kafka") == new
    assert read_checkpoint(str(tmp_path / "jvm")).last_committed > last


class Counting(StatefulProcessor):
    """How many rows each key has had so far."""

    def init(self, handle):
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - Spark's
        count = sum(map(len, rows)) + (self._count.get()[0] if self._count.exists() else 0)
        self._count.update((count,))
        yield pd.DataFrame({"key": [key[0]], "count": [count]})

    def close(self):
        pass


@pytest.fixture
def rocksdb(spark):
    """The state store that Spark has for `transformWithState`."""
    name, package = "spark.sql.streaming.stateStore.providerClass", "org.apache.spark.sql.execution.streaming.state"
    spark.conf.set(name, f"{package}.RocksDBStateStoreProvider")
    yield
    spark.conf.unset(name)


@pytest.mark.long  # tests/unit/spark/test_checkpoints.py looks at what is written
@pytest.mark.usefixtures("rocksdb")
def test_a_fork_continues_with_its_state_when_the_checkpoint_that_it_was_made_of_is_gone(spark, kafka, tmp_path):
    """Spark names the files with the schemas of that state by whole paths."""

    def run(checkpoint):
        found = []
        read = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "in", "startingOffsets": "earliest"}
        rows = spark.readStream.format("headrace").options(**read).load().selectExpr("CAST(value AS STRING) AS key")
        counts = rows.groupBy("key").transformWithStateInPandas(
            Counting(), outputStructType="key string, count long", outputMode="Update", timeMode="None"
        )
        writer = counts.writeStream.foreachBatch(lambda frame, _: found.extend(map(tuple, frame.collect())))
        writer = writer.outputMode("update").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()
        return found

    kafka.append("in", b"a", b"a", b"b")
    assert sorted(run(tmp_path / "old")) == [("a", 2), ("b", 1)]
    checkpoint = read_checkpoint(str(tmp_path / "old"))
    write_copy(checkpoint, str(tmp_path / "new"), fork(checkpoint), quiet_s=0.0)
    shutil.rmtree(tmp_path / "old")
    kafka.append("in", b"a")
    assert run(tmp_path / "new") == [("a", 3)]
