"""`format("headrace")` as a sink: Spark's options and columns, exactly once over SIGKILLs of the driver."""

import os

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException, StreamingQueryException

from headrace.runners.spark.supervision.core import Ending
from headrace.runners.spark.supervision.exit_causes import end_by
from headrace.spark.checkpoints.copies import fork, write_copy
from headrace.spark.checkpoints.logs import read_checkpoint
from tests.helpers.sink_rig import eventually, read_all, set_transaction_version
from tests.helpers.spark_jobs import finish_driver, kill_driver

KILLED = "headrace.connectors.kafka.write.sink"


@pytest.fixture(params=["v1", "v2"])
def protocol(topics, request):
    """Moves the cluster to that version of the transaction protocol. Tests that do not ask for it find version 2."""
    if os.environ.get("HEADRACE_BOOTSTRAP"):
        pytest.skip("it sets the cluster's transaction.version")
    set_transaction_version(topics.bootstrap, int(request.param[1]))
    yield request.param
    set_transaction_version(topics.bootstrap, 2)


@pytest.fixture
def written(topics):
    topic = topics.create(2)
    return {"kafka.bootstrap.servers": topics.bootstrap, "topic": topic, "commitTopic": f"{topic}-commits"}


@pytest.fixture
def filled(topics):
    return topics.numbered(2, 50)


def first_record(bootstrap, topic):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "first", "isolation.level": "read_committed"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
        message = consumer.poll(30)
        assert message is not None
        return message
    finally:
        consumer.close()


class TestBatch:
    def test_the_columns_of_sparks_sink(self, spark, written):
        frame = spark.sql(
            "SELECT 'k' AS key, 'v' AS value, 1 AS partition, 'left out' AS other, "
            "array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers"
        )
        frame.write.format("headrace").options(**written).mode("append").save()
        message = first_record(written["kafka.bootstrap.servers"], written["topic"])
        assert (message.key(), message.value(), message.partition(), message.headers()) == (b"k", b"v", 1, [("h", b"x")])

    def test_the_topic_column(self, spark, topics, written):
        other = topics.create()
        options = {name: value for name, value in written.items() if name != "topic"}
        rows = [(written["topic"], "a"), (other, "b")]
        frame = spark.createDataFrame(rows, "topic string, value string")
        frame.write.format("headrace").options(**options).mode("append").save()
        assert read_all(topics.bootstrap, written["topic"]) == ["a"]
        assert read_all(topics.bootstrap, other) == ["b"]

    def test_an_empty_frame(self, spark, topics, written):
        spark.createDataFrame([], "value string").write.format("headrace").options(**written).mode("append").save()
        assert read_all(topics.bootstrap, written["topic"]) == []

    def test_nothing_is_seen_when_a_task_fails(self, spark, topics, written):
        frame = spark.range(0, 100, 1, 4).selectExpr("IF(id = 99, raise_error('injected'), CAST(id AS STRING)) AS value")
        with pytest.raises(PySparkException, match="injected"):
            frame.write.format("headrace").options(**written).mode("append").save()
        assert read_all(topics.bootstrap, written["topic"]) == []

    @pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
    def test_compression(self, spark, topics, written, codec):
        frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
        options = {**written, "kafka.compression.type": codec}
        frame.write.format("headrace").options(**options).mode("append").save()
        assert read_all(topics.bootstrap, written["topic"]) == sorted(map(str, range(100)))

    def test_at_least_once(self, spark, topics, written):
        frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
        frame.write.format("headrace").options(**written, delivery="at-least-once").mode("append").save()
        assert read_all(topics.bootstrap, written["topic"]) == sorted(map(str, range(10)))

    @pytest.mark.parametrize(("query", "options", "complaint"), [
        ("SELECT 1 AS value", {}, "value attribute type must be string or binary, not int"),
        ("SELECT 'k' AS key", {}, "Required attribute 'value' not found"),
        ("SELECT 'v' AS value", {"delivery": "twice"}, "exactly-once or at-least-once"),
        ("SELECT 'v' AS value", {"comitTopic": "x"}, "did you mean 'commitTopic'"),
        ("SELECT 'v' AS value, 9 AS partition", {}, "partition 9"),
    ])  # fmt: skip
    def test_bad_input_is_refused_by_name(self, spark, written, query, options, complaint):
        with pytest.raises(PySparkException, match=complaint):
            spark.sql(query).write.format("headrace").options(**{**written, **options}).mode("append").save()

    def test_overwriting_is_refused_as_spark_does(self, spark, written):
        with pytest.raises(PySparkException, match="Overwrite not allowed for Kafka"):
            spark.sql("SELECT 'v' AS value").write.format("headrace").options(**written).mode("overwrite").save()


class TestStream:
    def copy(self, spark, topics, source, written, checkpoint, **more):
        options = topics.options(source, startingOffsets="earliest", maxOffsetsPerTrigger=30)
        frame = spark.readStream.format("headrace").options(**options)
        writer = frame.load().select("key", "value").writeStream.format("headrace").options(**written, **more)
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    @pytest.mark.usefixtures("protocol")
    def test_a_topic_is_copied_and_the_query_continues(self, spark, topics, filled, written, tmp_path):
        self.copy(spark, topics, filled, written, tmp_path)
        topics.send(filled, range(100, 120), 1)
        self.copy(spark, topics, filled, written, tmp_path)
        eventually(lambda: read_all(topics.bootstrap, written["topic"]), sorted(map(str, range(120))))

    def test_two_queries_at_once_do_not_fence_each_other(self, spark, topics, filled, written, tmp_path):
        second = {**written, "topic": topics.create(2)}
        queries = []
        for number, options in enumerate((written, second)):
            read = topics.options(filled, startingOffsets="earliest", maxOffsetsPerTrigger=10)
            frame = spark.readStream.format("headrace").options(**read)
            writer = frame.load().select("value").writeStream.format("headrace").options(**options)
            writer = writer.option("checkpointLocation", str(tmp_path / str(number)))
            queries.append(writer.trigger(availableNow=True).start())
            eventually(lambda: queries[0].lastProgress is not None, True)  # two that start at once can fail in Spark itself
        for query in queries:
            query.awaitTermination()
        for options in (written, second):
            eventually(lambda to=options["topic"]: read_all(topics.bootstrap, to), sorted(map(str, range(100))))

    def test_a_stale_checkpoint_is_refused(self, spark, topics, filled, written, tmp_path):
        self.copy(spark, topics, filled, written, tmp_path)
        for log in ("offsets", "commits"):
            last = max((tmp_path / log).glob("[0-9]*"), key=lambda path: int(path.name))
            for path in (last, last.parent / f".{last.name}.crc"):
                path.unlink(missing_ok=True)
        for path in [path for number in range(1, 9) for path in (tmp_path / "commits").glob(f"*{number}*")]:
            path.unlink()
        for path in [path for number in range(2, 9) for path in (tmp_path / "offsets").glob(f"*{number}*")]:
            path.unlink()
        with pytest.raises(StreamingQueryException, match="older copy") as failed:
            self.copy(spark, topics, filled, written, tmp_path)
        assert end_by(failed.value).ending is Ending.BAD_CHECKPOINT  # as a supervisor takes it
        assert read_all(topics.bootstrap, written["topic"]) == sorted(map(str, range(100)))

    def test_a_fork_of_a_running_query_and_the_query_itself_write_all_that_comes(
        self, spark, topics, filled, written, tmp_path
    ):
        running = []

        def start(checkpoint, to):
            frame = spark.readStream.format("headrace").options(**topics.options(filled, startingOffsets="earliest")).load()
            writer = frame.select("value").writeStream.format("headrace").options(**written | {"topic": to})
            running.append(writer.option("checkpointLocation", str(checkpoint)).start())
            running[-1].processAllAvailable()

        forked = topics.create(2)
        try:
            start(tmp_path / "blue", written["topic"])
            checkpoint = read_checkpoint(str(tmp_path / "blue"))
            write_copy(checkpoint, str(tmp_path / "green"), fork(checkpoint), quiet_s=0.0)
            topics.send(filled, range(100, 120), 0)
            start(tmp_path / "green", forked)
            topics.send(filled, range(120, 140), 1)
            for query in running:
                query.processAllAvailable()
        finally:
            for query in running:
                query.stop()
        eventually(lambda: read_all(topics.bootstrap, written["topic"]), sorted(map(str, range(140))))
        eventually(lambda: read_all(topics.bootstrap, forked), sorted(map(str, range(100, 140))))

    def test_the_checkpoint_may_be_the_sessions(self, spark, topics, filled, written, tmp_path):
        spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
        try:
            frame = spark.readStream.format("headrace").options(**topics.options(filled, startingOffsets="earliest")).load()
            writer = frame.select("value").writeStream.format("headrace").options(**written).queryName("named")
            writer.trigger(availableNow=True).start().awaitTermination()
        finally:
            spark.conf.unset("spark.sql.streaming.checkpointLocation")
        eventually(lambda: read_all(topics.bootstrap, written["topic"]), sorted(map(str, range(100))))

    def test_in_foreach_batch_a_repeated_batch_is_written_once(self, spark, topics, filled, written, tmp_path):
        failed = []

        def write(frame, number):
            options = {**written, "txnAppId": "app", "txnVersion": str(number)}
            frame.select("value").write.format("headrace").options(**options).mode("append").save()
            if not failed:
                failed.append(number)
                raise RuntimeError("injected")

        frame = spark.readStream.format("headrace").options(**topics.options(filled, startingOffsets="earliest")).load()
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        with pytest.raises(StreamingQueryException, match="injected"):
            writer.start().awaitTermination()
        writer.start().awaitTermination()
        assert failed == [0]
        eventually(lambda: read_all(topics.bootstrap, written["topic"]), sorted(map(str, range(100))))


PHASES = {
    "after prepare": ("KafkaTransaction", "prepare", "after", 1),
    "between two commits": ("KafkaCommitter", "end", "after", 1),
    "after the commits, before Spark's log": ("KafkaCommitter", "record", "after", 2),
}
"""Where Spark has part: which tasks it repeats, and which batch. Every phase, without Spark: test_injected_commits.py."""


@pytest.mark.long  # test_injected_commits.py kills in each phase, and other tests here a query
@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", ["v1"], indirect=True)
@pytest.mark.usefixtures("protocol")
def test_a_query_killed_in_each_phase_in_turn_while_the_cluster_moves_to_the_newer_protocol(topics, filled, written, tmp_path):
    """Each driver continues from the checkpoint of the previous one; what is on a list is ended in its own version."""
    read = topics.options(filled, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    arguments = {"read": read, "select": ["key", "value"], "write": written}
    wanted = sorted(map(str, range(100)))
    kill_driver(tmp_path, arguments, KILLED, *PHASES["between two commits"])
    set_transaction_version(topics.bootstrap, 2)
    for phase in ("after prepare", "after the commits, before Spark's log"):
        kill_driver(tmp_path, arguments, KILLED, *PHASES[phase])
    finish_driver(tmp_path, arguments, lambda: len(read_all(topics.bootstrap, written["topic"])) >= len(wanted))
    assert read_all(topics.bootstrap, written["topic"]) == wanted
    assert len(read_all(topics.bootstrap, written["topic"], "read_uncommitted")) > len(wanted)
