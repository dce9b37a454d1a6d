"""The handle of a Kafka transaction: all that another process needs to end it, to find it in the log, and to copy it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID

from headrace.connectors.base.sink import HandleSerializer
from headrace.connectors.kafka.write.transactions import Producer, TransactionProtocol
from headrace.enumerator.envelope import readable_version, stored_number, stored_text


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """What the transaction wrote to one partition: `records` records between the offsets `first` and `last`, inclusive."""

    topic: str
    topic_id: UUID | None
    partition: int
    first: int
    last: int
    records: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.first} to {self.last} ({self.records} records)"


@dataclass(frozen=True, slots=True)
class KafkaHandle:
    """A prepared transaction: every record acknowledged. It is never empty, since nothing is started without a record.

    `started_ms` is epoch milliseconds by the writer's clock, by which nothing is decided; the broker aborts it
    `timeout_ms` after its first record.
    """

    producer: Producer
    protocol: TransactionProtocol
    started_ms: int
    timeout_ms: int
    ranges: tuple[WrittenRange, ...]

    @property
    def transactional_id(self) -> str:
        assert self.producer.transactional_id is not None
        return self.producer.transactional_id

    @property
    def records(self) -> int:
        return sum(item.records for item in self.ranges)


class KafkaHandleSerializer(HandleSerializer[KafkaHandle]):
    """Version 1: a JSON object with short names, and each topic named once."""

    version = 1

    def serialize(self, handle: KafkaHandle) -> Any:  # noqa: ANN401 - JSON
        """As JSON."""
        return {
            "id": handle.transactional_id,
            "pid": handle.producer.producer_id,
            "epoch": handle.producer.epoch,
            "protocol": int(handle.protocol),
            "started": handle.started_ms,
            "timeout": handle.timeout_ms,
            "topics": [
                [topic, str(topic_id) if topic_id else None, [[r.partition, r.first, r.last, r.records] for r in ranges]]
                for (topic, topic_id), ranges in groupby(handle.ranges, lambda item: (item.topic, item.topic_id))
            ],
        }

    def deserialize(self, version: int, value: Any) -> KafkaHandle:  # noqa: ANN401 - JSON
        """What `serialize` wrote."""
        readable_version(version, self.version)
        pid, epoch, protocol, started, timeout = (
            stored_number(value[name]) for name in ("pid", "epoch", "protocol", "started", "timeout")
        )
        producer = Producer(stored_text(value["id"]), pid, epoch)
        return KafkaHandle(producer, TransactionProtocol(protocol), started, timeout, _ranges(value["topics"]))


def _ranges(topics: Iterable[Any]) -> tuple[WrittenRange, ...]:
    return tuple(_range(topic, topic_id, *numbers) for topic, topic_id, ranges in topics for numbers in ranges)


def _range(topic: object, topic_id: object, *numbers: object) -> WrittenRange:
    partition, first, last, records = map(stored_number, numbers)
    return WrittenRange(stored_text(topic), UUID(stored_text(topic_id)) if topic_id else None, partition, first, last, records)
