"""Follows topics as readers under read_committed see them, by librdkafka: how far the demo is, and what came of the delays."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

FETCH = 5000
POLL_S = 0.2
ANSWER_S = 30.0


class Follower:
    """Leave the context to close it."""

    def __init__(self, bootstrap: str, copy: str, delays: str) -> None:
        """From the first record of both topics, which may be one: then nothing is totalled."""
        self._copy = copy
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "follower",  # must be given, is not used
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 2,
            }
        )
        self._consumer.assign(self._partitions(list(dict.fromkeys((copy, delays)))))
        self.copied = 0
        """Records of the copy."""
        self.flights: Counter[str] = Counter()
        """Flights in the totals, by carrier."""
        self.minutes: Counter[str] = Counter()
        """Minutes of delay in the totals, by carrier."""

    def __enter__(self) -> Self:
        """Nothing more to do."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the consumer."""
        self._consumer.close()

    def look(self) -> None:
        """Take what has come; waits a moment where nothing has."""
        for message in self._consumer.consume(FETCH, POLL_S):
            if (error := message.error()) is not None:
                raise KafkaException(error)
            if message.topic() == self._copy:
                self.copied += 1
                continue
            total = json.loads(message.value() or b"{}")
            carrier = (message.key() or b"").decode()
            self.flights[carrier] += total["flights"]
            self.minutes[carrier] += total["minutes"]

    def _partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        return [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in topics
            for partition in self._consumer.list_topics(topic, ANSWER_S).topics[topic].partitions
        ]
