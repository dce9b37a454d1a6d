"""What the tests of the Kafka sink need: rows, readers that know nothing of headrace, and a committer that dies."""

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.protocol import UpdateFeaturesRequest
from headrace.connectors.kafka.write.handles import KafkaHandle
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.connectors.kafka.write.transactions import Transactions
from headrace.testing import DyingCommitter, FakeKafka, Killed
from tests.helpers import waiting
from tests.helpers.kafka_tools import AT_THE_END

TIMEOUT_S = 30.0
SAFE_DOWNGRADE = 2
UPGRADE = 1


def rows(values: Iterable[str], **columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([value.encode() for value in values]), **columns})


def kafka_sink(bootstrap: str, topic: str | None, commit_topic: str, **given: Any) -> KafkaSink:
    properties = {"default.api.timeout.ms": "20000"}
    return KafkaSink(bootstrap, topic=topic, properties=properties, commit_topic=commit_topic, **given)


def prepared(sink: KafkaSink, job: str, epoch: int, *tasks: Sequence[str], number: int = 0) -> tuple[KafkaHandle, ...]:
    handles = []
    for task, values in enumerate(tasks):
        transaction = sink.begin(Attempt(job, epoch, task, number))
        transaction.write(rows(values))
        handles.append(transaction.prepare())
    return tuple(handle for handle in handles if handle is not None)


def values(kafka: FakeKafka, topic: str = "out") -> list[str]:
    """What readers of committed records see there, sorted."""
    return sorted(record.value.decode() for record in kafka.records(topic))


def ongoing(sink: KafkaSink, job: str) -> list[str]:
    """The transactional ids of the job with a transaction open."""
    return Transactions(sink.cluster()).ongoing(sink.names(job).beginning)


def take_over(sink: KafkaSink, handle: KafkaHandle) -> None:
    """Abort it behind the committer's back, as its timeout would: its coordinator then answers that it is fenced."""
    Transactions(sink.cluster()).init(handle.transactional_id, 10_000)


def read_all(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[str]:
    """Every value of the topic up to its end, sorted, by a consumer of another make."""
    return sorted(value for _, value in read_pairs(bootstrap, topic, isolation))


def read_pairs(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[tuple[bytes | None, str]]:
    """Every key and value of the topic up to its end, those of one partition in their order."""
    settings = {
        "bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": isolation, "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "enable.partition.eof": True, **AT_THE_END, "log_level": 0,
    }  # fmt: skip
    with closing(Consumer(settings)) as consumer:
        partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        left, pairs = set(partitions), []
        deadline = time.monotonic() + TIMEOUT_S
        while left:
            assert time.monotonic() < deadline, f"{topic} was not read to its end"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                pairs.append((message.key(), (message.value() or b"").decode()))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                left.discard(message.partition())
        return pairs


def eventually(read: Any, wanted: Any) -> None:
    """Wait for it: a commit is visible some milliseconds after it is answered."""
    waiting.eventually(lambda: read() == wanted, lambda: f"{read()} instead of {wanted}", seconds=TIMEOUT_S)


def set_transaction_version(bootstrap: str, level: int) -> None:
    host, _, port = bootstrap.partition(":")
    connection = Connection(host, int(port), ClientConfig(bootstrap=bootstrap))
    try:
        current = connection.finalized_features().get("transaction.version", 0)
        if current == level:
            return
        key = UpdateFeaturesRequest.FeatureUpdateKey(
            feature="transaction.version", max_version_level=level, allow_downgrade=level < current,
            upgrade_type=SAFE_DOWNGRADE if level < current else UPGRADE,
        )  # fmt: skip
        response = connection.request(UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[key], validate_only=False))
        assert response.error_code == ErrorCode.NONE, response
        waiting.eventually(lambda: connection.finalized_features().get("transaction.version") == level, seconds=TIMEOUT_S)
    finally:
        connection.close()


def die_in_commit(
    sink: KafkaSink, job: str, handles: Any, step: str = "record", when: str = "after", nth: int = 1, epoch: int = 0
) -> None:
    """By default the list is durable and nothing is committed; dying after an `end`, one transaction is."""
    dying = DyingCommitter(sink.committer(job), step, when, nth)
    with pytest.raises(Killed):
        JobCommitter(job, dying).commit(epoch, handles)
    assert dying.died


def committer(sink: KafkaSink, job: str) -> JobCommitter[KafkaHandle]:
    return JobCommitter(job, sink.committer(job))
