"""The topics that are read: how many records, of what size, how compressed; and a fast way to fill them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from headrace.testing.servers.kafka import create_topic, delete_topic

KEY_BYTES = 8
CHUNK = 10_000
POOL_BYTES = 16 << 20  # distinct payload; more than any batch holds, so that compression finds no repeats but the text's own
TIMEOUT_S = 30.0
_STATES = ("delivered", "in transit", "delayed", "returned to sender")


@dataclass(frozen=True)
class Shape:
    """A topic's contents. Equal shapes are one topic."""

    records: int
    value_bytes: int
    codec: str = "none"
    partitions: int = 8
    batch_kib: int = 128

    @property
    def topic(self) -> str:
        """The topic's name, which says it all."""
        of_batches = "" if self.batch_kib == Shape.batch_kib else f"-{self.batch_kib}KiB"
        return f"bench-{self.records}x{self.value_bytes}B-{self.codec}-{self.partitions}p{of_batches}"

    def values(self) -> list[bytes]:
        """Distinct values."""
        return payloads(self.value_bytes)

    def __str__(self) -> str:
        """For people."""
        size = f"{self.value_bytes // 1024} KiB" if self.value_bytes >= 1024 else f"{self.value_bytes} B"
        return f"{size}, {'uncompressed' if self.codec == 'none' else self.codec}"


class Contents(Protocol):
    """What a topic holds."""

    @property
    def topic(self) -> str:
        """The topic's name: equal contents are one topic."""

    @property
    def records(self) -> int:
        """How many there are."""

    @property
    def codec(self) -> str:
        """How batches are compressed."""

    @property
    def partitions(self) -> int:
        """How many there are; records take turns."""

    @property
    def batch_kib(self) -> int:
        """How large a batch may become, before it is compressed."""

    def values(self) -> list[bytes]:
        """Distinct values, which take turns."""


def fill(bootstrap: str, shape: Contents) -> None:
    """Make sure that the topic exists and holds exactly its records; a topic that was left half filled is made again."""
    there = _count(bootstrap, shape.topic)
    if there == shape.records:
        return
    if there is not None:
        delete_topic(bootstrap, shape.topic)
    create_topic(bootstrap, shape.topic, shape.partitions)
    _produce(bootstrap, shape)
    if (written := _count(bootstrap, shape.topic)) != shape.records:
        raise RuntimeError(f"{shape.topic} should hold {shape.records} records, and holds {written}")


def payloads(value_bytes: int) -> list[bytes]:
    """Distinct values that compress about as events in JSON do: text that repeats, numbers that do not."""
    generator = random.Random(20_11)  # noqa: S311 - the same data every time
    return [_event(generator, value_bytes) for _ in range(max(1, POOL_BYTES // value_bytes))]


def _event(generator: random.Random, value_bytes: int) -> bytes:
    parts: list[str] = []
    size = 0
    while size < value_bytes:
        parts.append(
            f'{{"id":"{generator.getrandbits(64):016x}","at":{generator.randrange(10**12, 2 * 10**12)},'
            f'"state":"{generator.choice(_STATES)}","weight":{generator.random():.6f}}}'
        )
        size += len(parts[-1])
    return "".join(parts)[:value_bytes].encode()


def _produce(bootstrap: str, shape: Contents) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": shape.codec,
            "linger.ms": 100,
            "batch.size": shape.batch_kib << 10,
            "message.max.bytes": max(1_000_000, shape.batch_kib << 10),
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 256 << 10,
        }
    )
    values = shape.values()
    for first in range(0, shape.records, CHUNK):
        for number in range(first, min(first + CHUNK, shape.records)):
            _send(producer, shape.topic, number % shape.partitions, number, values[number % len(values)])
        producer.poll(0)
    if left := producer.flush(TIMEOUT_S):
        raise RuntimeError(f"{left} records of {shape.topic} were not acknowledged within {TIMEOUT_S:g} s")


def _send(producer: Producer, topic: str, partition: int, number: int, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value, number.to_bytes(KEY_BYTES), partition)
        except BufferError:
            producer.poll(0.05)
        else:
            return


def _count(bootstrap: str, topic: str) -> int | None:
    """How many offsets the topic holds; None when it is not there."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-count"})
    try:
        found = consumer.list_topics(timeout=TIMEOUT_S).topics.get(topic)
        if found is None or not found.partitions:
            return None
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S) for number in found.partitions]
        return sum(high - low for low, high in ends)
    finally:
        consumer.close()


class Trickle:
    """A record to every partition each `interval_s`, from its own thread, until the context is left."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, interval_s: float) -> None:
        """Starts nothing yet."""
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._topic, self._partitions, self._interval_s = topic, partitions, interval_s
        self._stop = threading.Event()
        self._error: KafkaError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop. Raises RuntimeError when a record could not be written."""
        self._stop.set()
        self._thread.join()
        if self._producer.flush(TIMEOUT_S) or self._error is not None:
            raise RuntimeError(f"writing to {self._topic} failed: {self._error}")

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            for partition in range(self._partitions):
                self._producer.produce(self._topic, b"tick", b"", partition, on_delivery=self._delivered)
            self._producer.poll(0)
            due += self._interval_s

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        self._error = self._error or error


@contextmanager
def trickling(bootstrap: str, topic: str, partitions: int, interval_s: float) -> Iterator[None]:
    """A topic that gets a record in every partition each `interval_s` seconds; removed afterwards."""
    if _count(bootstrap, topic) is not None:
        delete_topic(bootstrap, topic)
    create_topic(bootstrap, topic, partitions)
    with Trickle(bootstrap, topic, partitions, interval_s):
        yield
    delete_topic(bootstrap, topic)
