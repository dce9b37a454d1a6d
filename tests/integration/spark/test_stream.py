"""Streaming queries against a real broker (KafkaMicroBatchSourceSuite)."""

import json
import os
import signal
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.runners.spark.supervision.core import Ending
from headrace.runners.spark.supervision.exit_causes import end_by
from tests.helpers.kafka_rig import committed
from tests.helpers.spark_tools import numbers

LONG_AGO = 1_600_000_000_000


def test_latest_is_where_the_query_started(query, topics):
    topic = topics.create(2)
    topics.send(topic, ["old"])
    query.start(topics.options(topic))
    query.caught_up()
    topics.send(topic, [1], 0)
    topics.send(topic, [2], 1)
    query.caught_up()
    assert query.values == ["1", "2"]


def test_what_comes_while_stopped_is_read_after_the_restart(query, topics):
    topic = topics.create()
    query.start(topics.options(topic))
    query.caught_up()
    query.stop()
    topics.send(topic, range(5))
    query.start(topics.options(topic))
    query.caught_up()
    assert query.values == numbers(range(5))


@pytest.mark.parametrize("how", ["subscribe", "subscribePattern", "assign"])
def test_partitions_and_topics_that_appear_are_read_from_their_first_record(query, topics, how):
    topic = topics.create()
    chosen = {"subscribe": topic, "subscribePattern": topic.rpartition("-")[0] + "-", "assign": json.dumps({topic: [0]})}
    query.start(topics.options(**{how: chosen[how]}))
    query.caught_up()
    topics.send(topic, ["first"])
    query.caught_up()
    topics.grow(topic, 2)
    topics.send(topic, ["second partition"], 1)
    topics.holding(["another topic"])
    query.caught_up()
    of_topic = {"first", "second partition"}
    wanted = {"subscribe": of_topic, "subscribePattern": {*of_topic, "another topic"}, "assign": {"first"}}
    assert set(query.values) == wanted[how]


def test_a_partition_that_appears_while_stopped_is_read_from_its_first_record(query, topics):
    topic = topics.create()
    query.run_available(topics.options(topic))
    topics.grow(topic, 3)
    for partition in range(3):
        topics.send(topic, [partition], partition)
    query.run_available(topics.options(topic))
    assert query.values == ["0", "1", "2"]


@pytest.mark.parametrize(("options", "expected"), [
    ({"startingOffsets": "earliest"}, numbers(range(5))), ({"startingOffsets": '{"TOPIC":{"0":3}}'}, ["3", "4"]),
    ({"startingOffsets": '{"TOPIC":{"0":-2}}'}, numbers(range(5))), ({"startingOffsets": '{"TOPIC":{"0":-1}}'}, []),
    ({"startingTimestamp": str(LONG_AGO + 2000)}, ["2", "3", "4"]),
    ({"startingOffsetsByTimestamp": json.dumps({"TOPIC": {"0": LONG_AGO + 4000}})}, ["4"]),
    ({"startingTimestamp": str(LONG_AGO + 10**7), "startingOffsetsByTimestampStrategy": "latest"}, []),
])  # fmt: skip
def test_where_a_new_query_starts(query, topics, options, expected):
    topic = topics.create()
    for number in range(5):
        topics.send(topic, [number], timestamp=LONG_AGO + number * 1000)
    named = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    query.run_available(topics.options(topic, **named))
    assert query.values == expected


def test_a_timestamp_without_match_fails_the_query(query, topics):
    topic = topics.holding([1], timestamp=LONG_AGO)
    with pytest.raises(StreamingQueryException, match="no offset matches"):
        query.run_available(topics.options(topic, startingTimestamp=LONG_AGO + 10**7))


def test_ending_offsets_are_refused(query, topics):
    with pytest.raises(StreamingQueryException, match="ending offset not valid in streaming queries") as failed:
        query.run_available(topics.options(topics.create(), endingOffsets="latest"))
    assert end_by(failed.value).ending is Ending.WRONG_USE  # as a supervisor takes it


def test_max_offsets_per_trigger_are_shared_out(query, topics):
    topic = topics.create(3)
    for partition, count in enumerate((100, 10, 1)):
        topics.send(topic, range(count), partition)
    query.run_available(topics.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=20))
    first = [row["partition"] for row in query.batches[0]]
    assert {partition: first.count(partition) for partition in range(3)} == {0: 18, 1: 1, 2: 1}
    assert len(query.rows) == 111


def test_min_offsets_per_trigger_hold_a_batch_back(query, topics):
    topic = topics.holding(range(3))
    query.start(topics.options(topic, startingOffsets="earliest", minOffsetsPerTrigger=4, maxTriggerDelay="1h"))
    query.caught_up()
    topics.send(topic, range(3, 6))
    query.caught_up()
    assert query.values == numbers(range(3))
    topics.send(topic, [6])
    query.caught_up()
    assert query.values == numbers(range(7))


class TestAvailableNow:
    def test_reads_everything_in_bounded_batches(self, query, topics):
        topic = topics.numbered(2, 10)
        query.run_available(topics.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=6))
        assert query.values == numbers(range(20))
        assert len(query.batches) > 2

    def test_min_offsets_leave_nothing_behind(self, query, topics):
        topic = topics.holding(range(10))
        options = topics.options(topic, startingOffsets="earliest", minOffsetsPerTrigger=4, maxOffsetsPerTrigger=4)
        query.run_available(options)
        assert query.values == numbers(range(10))

    def test_partitions_changed_while_a_batch_was_not_committed(self, query, topics):  # SPARK-53560
        topic = topics.holding(range(10))
        options = topics.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=4)
        query.fails_in = 1
        with pytest.raises(StreamingQueryException, match="injected failure"):
            query.run_available(options)
        query.fails_in = None
        topics.grow(topic, 3)
        topics.send(topic, range(10, 20), 2)
        query.run_available(options)
        assert query.values == numbers(range(20))


class TestGroups:
    def test_offsets_are_committed_as_batches_complete_the_last_one_included(self, query, topics):
        topic = topics.create(2)
        topics.send(topic, range(10), 0)
        topics.send(topic, range(10, 14), 1)
        options = topics.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=5, commitOffsetsToGroup=f"g-{topic}")
        query.run_available(options)
        assert committed(topics.bootstrap, f"g-{topic}", (topic, 0), (topic, 1)) == [10, 4]

    def test_a_failed_batch_is_not_committed(self, query, topics):
        topic = topics.holding(range(10))
        query.fails_in = 1
        options = topics.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=6, commitOffsetsToGroup=f"g-{topic}")
        with pytest.raises(StreamingQueryException, match="injected failure"):
            query.run_available(options)
        assert committed(topics.bootstrap, f"g-{topic}", (topic, 0)) == [6]

    def test_a_query_can_start_where_a_group_is(self, query, topics):
        topic = topics.create(2)
        topics.send(topic, range(10), 0)
        topics.send(topic, range(10, 20), 1)
        with KafkaCluster(ClientConfig(bootstrap=topics.bootstrap)) as kafka:
            kafka.commit_offsets(f"g-{topic}", {(topic, 0): CommittedOffset(7)})
        query.run_available(topics.options(topic, startingOffsets="group", kafka__group__id=f"g-{topic}"))
        assert query.values == numbers(range(7, 20))


def test_read_committed_moves_past_aborted_records_and_markers(query, topics):
    topic = topics.create()
    for first, commit in ((0, True), (5, False)):
        with topics.transaction() as producer:
            for number in range(first, first + 5):
                producer.produce(topic, str(number), partition=0)
            producer.flush()
            (producer.commit_transaction if commit else producer.abort_transaction)()
    options = topics.options(topic, startingOffsets="earliest", kafka__isolation__level="read_committed")
    query.run_available(options)
    assert query.values == numbers(range(5))
    topics.send(topic, ["10"])
    query.run_available(options)
    assert query.values == ["0", "1", "2", "3", "4", "10"]


def test_a_compacted_topic_with_gaps(query, topics):
    """Only the newest record of each key is left: offsets without records fail nothing (SPARK-23685)."""
    topic = topics.create(1, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01")
    for number in range(20):
        topics.send(topic, [number], key=f"k{number % 3}")
    query.run_available(topics.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=7))
    assert query.values[-3:] == ["17", "18", "19"]


def test_headers_and_every_column(query, topics):
    topic = topics.holding(["v"], key="k", headers=[("h", b"x")], timestamp=LONG_AGO)
    query.run_available(topics.options(topic, startingOffsets="earliest", includeHeaders="true"))
    (row,) = query.rows
    assert (row["key"], row["value"], row["topic"], row["partition"], row["offset"]) == (b"k", b"v", topic, 0, 0)
    assert row["timestamp"].timestamp() * 1000 == LONG_AGO
    assert (row["timestampType"], row["headers"][0]["key"], row["headers"][0]["value"]) == (0, "h", b"x")


def test_only_the_columns_of_the_users_schema(query, topics, spark):
    options = topics.options(topics.holding(range(3)), startingOffsets="earliest")
    frame = spark.readStream.format("headrace").schema("value binary").options(**options).load()
    query.start_frame(frame, availableNow=True).awaitTermination()
    assert [row.asDict() for row in query.rows] == [{"value": str(number).encode()} for number in range(3)]


def test_progress_reports_offsets_and_the_end_of_the_topic(query, topics):
    topic = topics.holding(range(10))
    query.run_available(topics.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=6))
    first = query.running.recentProgress[0]
    assert first["numInputRows"] == 6
    (source,) = first["sources"]
    texts = (source["endOffset"], source["latestOffset"])
    offset, latest = (json.loads(text) if isinstance(text, str) else text for text in texts)
    assert offset[topic] == {"0": 6}
    assert latest == {topic: {"0": 10}}
    lag = sum(int(latest[name][partition]) - end for name, ends in offset.items() for partition, end in ends.items())
    assert lag == 4, "as listeners that were written for Spark's own connector compute it, topic by topic"


def test_two_queries_over_one_topic_and_a_self_union(query, topics, spark):
    options = topics.options(topics.holding(range(3)), startingOffsets="earliest")
    frames = [spark.readStream.format("headrace").options(**options).load() for _ in range(2)]
    query.start_frame(frames[0].union(frames[1]), availableNow=True).awaitTermination()
    assert query.values == sorted(numbers(range(3)) * 2)


def test_a_join_with_a_batch_read(query, topics, spark):
    streamed, static = topics.create(), topics.create()
    topics.send(streamed, range(5))
    topics.send(static, range(3, 8))
    known = spark.read.format("headrace").options(**topics.options(static)).load().select("value")
    options = topics.options(streamed, startingOffsets="earliest")
    frame = spark.readStream.format("headrace").options(**options).load().join(known, "value")
    query.start_frame(frame, availableNow=True).awaitTermination()
    assert query.values == ["3", "4"]


def children_of(pid: int) -> list[int]:
    found = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return found + [deeper for child in found for deeper in children_of(child)]


def task_workers(spark) -> list[int]:
    """The Python processes of this session that run tasks: children of the daemon of one that says who it is."""

    def settings(batches):
        import os

        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"daemon": [os.getppid()]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(settings, "daemon long").collect()
    return children_of(row.daemon)


def test_a_query_continues_after_its_workers_are_gone(query, topics, spark):
    topic = topics.holding(range(3))
    query.start(topics.options(topic, startingOffsets="earliest"))
    query.caught_up()
    killed = task_workers(spark)
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    topics.send(topic, range(3, 6))
    query.caught_up()
    assert query.values == numbers(range(6))
    assert not set(killed) & set(task_workers(spark))


@pytest.fixture
def killed_at_first_offsets(topics, query):
    """Options of a query that was killed while Spark wrote its first offsets: Spark's temporary file is left."""
    topic = topics.holding(range(3))
    (query.checkpoint / "offsets").mkdir(parents=True)
    (query.checkpoint / "offsets" / ".0.cc2ee4a6-5a19-4b44-b6d3-8d0b9d1b3c3e.tmp").touch()
    return topics.options(topic, startingOffsets="earliest")


def test_killed_while_spark_wrote_the_first_offsets(query, killed_at_first_offsets):
    query.run_available(killed_at_first_offsets)
    assert query.values == ["0", "1", "2"]


def test_by_sparks_own_setting_it_would_never_start_again(spark, query, killed_at_first_offsets):
    setting = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"
    ours = spark.conf.get(setting)
    spark.conf.set(setting, "true")
    try:
        with pytest.raises(StreamingQueryException, match="should be empty on batch 0"):
            query.run_available(killed_at_first_offsets)
    finally:
        spark.conf.set(setting, ours)
