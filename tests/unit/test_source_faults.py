"""Exhibits of the Kafka source, on a fake broker: faults that once ended a job, lost records or read them twice."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.protocol import MetadataRequest
from headrace.connectors.kafka.client.wire.throttles import Throttles
from headrace.connectors.kafka.read.split import KafkaSplit, KafkaSplitSerializer
from headrace.kafka import Earliest, KafkaSource, Latest
from headrace.testing.fake_kafka import FakeKafka, Rewrite, Throttle

DEADLINE_S = 30.0


@pytest.fixture
def kafka():
    with FakeKafka(brokers=3) as cluster:
        cluster.create_topic("t")
        yield cluster


def source_of(kafka: FakeKafka, **fields) -> KafkaSource:
    return KafkaSource(kafka.bootstrap, **({"topics": ["t"], "start": Earliest(), "stop": Latest()} | fields))


def read_all(source: KafkaSource, checkpoint: bytes | None = None) -> list[bytes]:
    values: list[bytes] = []
    with source.batches(checkpoint) as batches:
        for batch in batches:
            values += batch.column("value").to_pylist()
    return values


# --- quotas -----------------------------------------------------------------------------------------------------------------


def _without_partitions(response) -> None:
    response.responses = []


def test_a_fetch_quota_empties_the_answer_and_the_reader_waits_as_told_and_goes_on(kafka):
    for number in range(10):
        kafka.append("t", b"%d" % number)
    kafka.fault("Fetch", Rewrite(_without_partitions), times=2)
    throttle = kafka.fault("Fetch", Throttle(300), times=2)
    started = time.monotonic()
    assert read_all(source_of(kafka)) == [b"%d" % number for number in range(10)]
    assert throttle.fired == 2
    assert time.monotonic() - started >= 0.6


def test_a_partition_left_out_of_an_answer_is_asked_for_again(kafka):
    kafka.append("t", b"x")
    kafka.fault("Fetch", Rewrite(_without_partitions))
    assert read_all(source_of(kafka)) == [b"x"]


def test_a_throttle_longer_than_the_request_timeout_costs_no_connection_and_is_counted(kafka):
    host, _, port = kafka.address(1).rpartition(":")
    throttles = Throttles()
    connection = Connection(host, int(port), ClientConfig(bootstrap=kafka.bootstrap, request_timeout_ms=150), throttles)
    kafka.fault("Metadata", Throttle(400))
    for _ in range(2):
        assert connection.request(MetadataRequest(topics=[], allow_auto_topic_creation=False)).brokers
    assert throttles.milliseconds == {kafka.address(1): 400}
    connection.close()


def test_closing_wakes_whoever_waits_out_a_throttle(kafka):
    kafka.append("t", b"x")
    kafka.fault("Fetch", Rewrite(_without_partitions))
    throttle = kafka.fault("Fetch", Throttle(60_000))
    batches = source_of(kafka).batches()
    while not throttle.fired:
        batches._run.poll(0.01)
    started = time.monotonic()
    batches.close()
    assert time.monotonic() - started < DEADLINE_S


# --- leader epochs ----------------------------------------------------------------------------------------------------------


def test_a_leader_changes_inside_one_answer_and_a_checkpoint_between_two_of_its_batches_has_the_epoch_of_its_position(kafka):
    kafka.append("t", b"first")
    source = source_of(kafka, stop=None)
    batches = source.batches()
    seen = next(batches).column("value").to_pylist()
    kafka.hold_high_watermark("t")
    for number in range(3):
        kafka.append("t", *(bytes([number]) * 1_000_000 for _ in range(2)))  # so much that an answer makes several batches
        kafka.move_leader("t", to=kafka.leader("t")[0] % 3 + 1)
    kafka.release_high_watermark("t")
    expected = [b"first", *(bytes([number]) * 1_000_000 for number in range(3) for _ in range(2))]
    middles = 0
    while len(seen) < len(expected):
        seen += next(batches).column("value").to_pylist()
        middles += len(seen) < len(expected)
        with source.batches(batches.checkpoint()) as restored:
            again = list(seen)
            while len(again) < len(expected):
                again += next(restored).column("value").to_pylist()
        assert again == expected
        batches._run.checkpoint_aborted()
    assert middles > 1
    batches.close()


def test_epochs_in_checkpoints_of_before_are_not_believed():
    written = KafkaSplit("t", None, 0, 170, None, 3)
    assert KafkaSplitSerializer().deserialize(1, KafkaSplitSerializer().serialize(written)) == replace(written, last_epoch=None)
