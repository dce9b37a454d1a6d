"""A Spark query's planner and its stored offsets, over a Kafka of this process and real sockets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

pytest.importorskip("pyspark")

from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import LogTruncatedError
from headrace.enumerator.errors import DataLossError, UsageError
from headrace.runners.spark.stream import StreamPlanner
from headrace.spark.kafka_read import Mode, kafka_read
from headrace.testing.fake_kafka import FakeKafka
from headrace.testing.fake_kafka.faults import Refuse

TEN = [b"%d" % number for number in range(10)]


@pytest.fixture
def kafka():
    with FakeKafka(brokers=3) as kafka:
        yield kafka


def fill(kafka, *topics):
    for topic in topics:
        kafka.create_topic(topic, partitions=1)
        kafka.append(topic, *TEN)


@dataclass
class Query:
    """A checkpoint and what Spark does with it; `run` starts the query again, with other options if need be."""

    bootstrap: str
    options: dict[str, str]
    offset_log: list[str] = field(default_factory=list)

    def run(self, **options: str) -> None:
        self.options |= options
        read = kafka_read({"kafka.bootstrap.servers": self.bootstrap, **self.options}, Mode.STREAM)
        self.planner = StreamPlanner(read, lambda: 0.0)

    def trigger(self) -> bool:
        """Whether there was a batch."""
        start = self.offset_log[-1] if self.offset_log else self.planner.initial_offsets()
        end = self.planner.next_offsets(start, None, None)
        if end == start:
            return False
        self.offset_log.append(end)
        return True

    def ranges(self) -> list[tuple[str, int, int]]:
        """What the last batch reads, as a restart would plan it."""
        starts = [self.planner.initial_offsets(), *self.offset_log]
        start, end = list(pairwise(starts))[-1]
        splits = [split for task in self.planner.tasks(start, end) for split in task]
        return sorted((str(split), split.next_offset, split.stop_offset) for split in splits)

    def topics(self) -> dict[str, dict[str, int]]:
        return {topic: ends for topic, ends in json.loads(self.offset_log[-1]).items() if ends}


@pytest.fixture
def query(kafka):
    def make(offset_log=(), **options: str) -> Query:
        query = Query(kafka.bootstrap, {"startingOffsets": "earliest", **options}, list(offset_log))
        query.run()
        return query

    return make


@pytest.mark.parametrize("restarts", [False, True], ids=["between batches", "while it was down"])
def test_source_24_the_log_is_truncated_below_the_position_and_grows_beyond_it(kafka, query, restarts):
    fill(kafka, "t")
    read = query(subscribe="t")
    assert read.trigger()
    kafka.lose_records("t", from_offset=7)
    kafka.append("t", *[b"of the next leader"] * 9)
    if restarts:
        read.run()
    with pytest.raises(LogTruncatedError, match="t-0: the log was truncated; offsets 7 to 9 were read already"):
        read.trigger()
    read.run(failOnDataLoss="false")
    assert read.trigger()
    assert (read.ranges(), read.topics()) == ([], {"t": {"0": 7}})
    read.run(failOnDataLoss="true")
    assert read.trigger()
    assert read.ranges() == [("t-0", 7, 16)]


def test_source_24_a_leader_that_moves_and_loses_nothing_is_no_loss(kafka, query):
    fill(kafka, "t")
    read = query(subscribe="t")
    assert read.trigger()
    for broker in (1, 2, 3, 2):
        kafka.move_leader("t", to=broker)
    kafka.append("t", b"x")
    read.run()
    assert read.trigger()
    assert read.ranges() == [("t-0", 10, 11)]


def test_source_6_a_topic_is_deleted_and_its_loss_tolerated(kafka, query):
    fill(kafka, "a", "b")
    read = query(subscribe="a,b")
    assert read.trigger()
    kafka.delete_topic("b")
    read.run()
    with pytest.raises(DataLossError, match="partitions are gone: b-0"):
        read.trigger()
    read.run(failOnDataLoss="false")
    assert read.trigger()
    assert read.topics() == {"a": {"0": 10}}
    read.run(failOnDataLoss="true")
    assert not read.trigger()


def test_source_6_a_topic_is_subscribed_to_no_more(kafka, query):
    fill(kafka, "a", "b")
    read = query(subscribe="a,b")
    assert read.trigger()
    read.run(subscribe="a", failOnDataLoss="false")
    assert read.trigger()
    read.run(failOnDataLoss="true")
    assert not read.trigger()
    assert read.topics() == {"a": {"0": 10}}


def test_source_6_one_broker_that_still_knows_the_topic_keeps_it_in_the_offsets(kafka, query):
    """All looks of the discovery fail; the proof asks every broker for itself, and one of them knows the topic."""
    kafka.create_topic("a", partitions=1)
    fill(kafka, "b")
    read = query(subscribe="a,b", failOnDataLoss="false")
    assert read.trigger()
    flaps = kafka.flap_metadata("b", [None] * 5)
    read.run()
    assert not read.trigger()
    assert any(flap.fired for flap in flaps)
    for flap in flaps:
        flap.optional().stop()
    kafka.append("b", b"x")
    assert read.trigger()
    assert read.ranges() == [("b-0", 10, 11)]


def test_spark_3_a_partition_appears_that_the_start_does_not_name_while_batch_0_is_to_be_replayed(kafka, query):
    fill(kafka, "t")
    read = query(subscribe="t", startingOffsets='{"t":{"0":4}}')
    assert read.trigger()
    kafka.add_partitions("t", 2)
    read.run()
    assert read.ranges() == [("t-0", 4, 10)]
    kafka.append("t", b"x", partition=1)
    assert read.trigger()
    assert read.ranges() == [("t-1", 0, 1)]


def test_spark_3_a_new_query_still_has_to_name_every_partition(kafka, query):
    kafka.create_topic("t", partitions=2)
    read = query(subscribe="t", startingOffsets='{"t":{"0":4}}')
    with pytest.raises(UsageError, match=r"missing \[t-1\]"):
        read.trigger()


@pytest.mark.parametrize("looks", [1, 2, 3])
def test_spark_4_a_jvm_checkpoint_is_taken_over_while_brokers_do_not_know_a_topic(kafka, query, looks):
    fill(kafka, "t", "u")
    flaps = kafka.flap_metadata("u", [None] * looks)
    read = query(['{"t":{"0":9},"u":{"0":9}}'], subscribe="t,u", failOnDataLoss="false")
    assert read.trigger()
    assert all(flap.fired for flap in flaps)
    assert read.ranges() == [("t-0", 9, 10), ("u-0", 9, 10)]


@pytest.mark.parametrize("of_new", ["latest", "earliest"])
def test_a_batch_of_the_jvm_connector_is_replayed_with_all_of_a_partition_that_it_had_found(kafka, query, of_new):
    """That connector reads every new partition from its first record; what we are to do with ours is another matter."""
    kafka.create_topic("t", partitions=2)
    for partition in (0, 1):
        kafka.append("t", *TEN, partition=partition)
    read = query(['{"t":{"0":10}}', '{"t":{"0":10,"1":8}}'], subscribe="t", startingOffsetsOfNewPartitions=of_new)
    assert read.ranges() == [("t-1", 0, 8)]
    assert read.trigger()
    assert read.ranges() == [("t-1", 8, 10)]


def test_spark_9_the_right_to_commit_is_taken_away(kafka, query, caplog):
    fill(kafka, "t")
    read = query(subscribe="t", commitOffsetsToGroup="g")
    refusal = kafka.fault("OffsetCommit", Refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED), times=None)
    for _ in range(3):
        kafka.append("t", b"x")
        assert read.trigger()
        read.planner.committed(read.offset_log[-1])
    assert refusal.fired >= 3
    assert caplog.text.count("could not be published now, later ones will be tried") == 1
    refusal.stop()
    read.planner.committed(read.offset_log[-1])
    assert kafka.committed("g") == {("t", 0): 13}
