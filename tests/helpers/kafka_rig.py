"""What the tests of KafkaSource need: writing by independent clients, faults, and a run whose rows are collected."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.connectors.kafka.client.wire import handshake
from headrace.enumerator import EagerEnumerator, EmbeddedRun, SplitBatch, SplitEnumerator
from headrace.kafka import KafkaSource, KafkaSplit
from headrace.testing.servers.kafka import create_topic, delete_topic
from tests.helpers.kafka_tools import AT_THE_END, proxy_to
from tests.helpers.waiting import POLL_S, eventually

DEADLINE_S = 40.0
ONE_BATCH_PER_FETCH = {"max.partition.fetch.bytes": "1"}
"""A broker always gives one whole batch; so every batch written comes out of `poll` by itself."""

TEN = [b"%d" % number for number in range(10)]
Row = tuple[str, int, int, bytes | None]
"""Topic, partition, offset, value."""


def flip_a_bit(response: Any) -> None:
    for part in (part for topic in response.responses for part in topic.partitions if part.records):
        data = bytearray(part.records)
        data[100] ^= 1
        part.records = bytes(data)


def _quiet(**settings: Any) -> dict[str, Any]:
    return {"log_level": 0, "log.connection.close": False, **settings}


def write(bootstrap: str, topic: str, values: Sequence[bytes | None], partition: int = 0, **settings: Any) -> list[int]:
    return write_records(bootstrap, topic, [{"value": value} for value in values], partition, **settings)


def write_records(bootstrap: str, topic: str, records: Sequence[dict], partition: int = 0, **settings: Any) -> list[int]:
    """As `write`, for records with key, value, headers, timestamp."""
    writer = Writer(Producer(_quiet(**{"bootstrap.servers": bootstrap, "linger.ms": 20, **settings})))
    return writer.write(topic, records, partition)


def write_batches(bootstrap: str, topic: str, batches: Sequence[Sequence[bytes]], partition: int = 0, **settings: Any) -> None:
    """Every sequence of values becomes its own record batch."""
    writer = Writer(Producer(_quiet(**{"bootstrap.servers": bootstrap, "linger.ms": 20, **settings})))
    for values in batches:
        writer.write(topic, [{"value": value} for value in values], partition)


class Writer:
    """A producer that waits for its acknowledgements; transactional if its producer is."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer

    def write(self, topic: str, records: Sequence[dict[str, Any]], partition: int = 0) -> list[int]:
        offsets: list[int] = []

        def acknowledged(error: Any, message: Any) -> None:
            assert error is None, error
            offsets.append(message.offset())

        for record in records:
            self.producer.produce(topic, partition=partition, on_delivery=acknowledged, **record)
        assert self.producer.flush(DEADLINE_S) == 0
        assert len(offsets) == len(records)
        return offsets

    def transaction(self, topic: str, values: Sequence[bytes], partition: int = 0, *, commit: bool = True) -> list[int]:
        self.producer.begin_transaction()
        offsets = self.write(topic, [{"value": value} for value in values], partition)
        self.end(commit=commit)
        return offsets

    def end(self, *, commit: bool) -> None:
        if commit:
            self.producer.commit_transaction(DEADLINE_S)
        else:
            self.producer.abort_transaction(DEADLINE_S)


def transactional(bootstrap: str, transactional_id: str, **settings: Any) -> Writer:
    """A transactional producer. Once a transaction has ended, every reader sees so: markers are waited for by `end_of`."""
    producer = Producer(_quiet(**{"bootstrap.servers": bootstrap, "transactional.id": transactional_id, **settings}))
    producer.init_transactions(DEADLINE_S)
    return Writer(producer)


def end_of(bootstrap: str, topic: str, partition: int = 0, isolation: str = "read_committed") -> int:
    """The last stable offset (or high watermark), as librdkafka has it."""
    with _consumer(bootstrap, "end-of", isolation) as consumer:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=DEADLINE_S)[1])


def wait_for_end(bootstrap: str, topic: str, end: int, partition: int = 0) -> None:
    """Wait until the last stable offset is `end`: EndTxn is answered before its markers are written."""
    eventually(lambda: end_of(bootstrap, topic, partition) == end, f"the last stable offset never became {end}")


@contextmanager
def _consumer(bootstrap: str, group: str, isolation: str = "read_committed") -> Iterator[Consumer]:
    settings = _quiet(**{"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, **AT_THE_END})
    consumer = Consumer({**settings, "isolation.level": isolation, "auto.offset.reset": "earliest"})
    try:
        yield consumer
    finally:
        consumer.close()


def commit(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    wanted = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
    with _consumer(bootstrap, group) as consumer:
        consumer.commit(offsets=wanted, asynchronous=False)
    assert committed(bootstrap, group, *offsets) == list(offsets.values())


def committed(bootstrap: str, group: str, *partitions: tuple[str, int]) -> list[int | None]:
    with _consumer(bootstrap, group) as consumer:
        found = consumer.committed([TopicPartition(*partition) for partition in partitions], timeout=DEADLINE_S)
    return [item.offset if item.offset >= 0 else None for item in found]


@contextmanager
def member_of(bootstrap: str, group: str, topic: str) -> Iterator[Consumer]:
    """A live member of the group, with its assignment."""
    with _consumer(bootstrap, group) as consumer:
        consumer.subscribe([topic])

        def has_assignment() -> bool:
            consumer.poll(POLL_S)
            return bool(consumer.assignment())

        eventually(has_assignment, "the group never gave its member an assignment")
        yield consumer


def recreate(bootstrap: str, topic: str, values: Sequence[bytes | None]) -> None:
    delete_topic(bootstrap, topic)
    create_topic(bootstrap, topic)
    write(bootstrap, topic, values)


def delete_records(bootstrap: str, topic: str, before: int, partition: int = 0) -> None:
    """What retention does: forget everything before an offset. Returns once the broker shows it."""
    admin = AdminClient(_quiet(**{"bootstrap.servers": bootstrap}))
    for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        assert future.result(DEADLINE_S).low_watermark == before


def consume(bootstrap: str, topic: str, isolation: str = "read_committed", partition: int = 0) -> list[tuple]:
    """(offset, value) of every record up to the end, as librdkafka reads them."""
    rows: list[tuple[int, bytes | None]] = []
    with _consumer(bootstrap, "consume", isolation) as consumer:
        end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=DEADLINE_S)[1]
        consumer.assign([TopicPartition(topic, partition, 0)])

        def has_read_all() -> bool:
            while (message := consumer.poll(POLL_S)) is not None:
                if message.error():
                    raise KafkaException(message.error())
                rows.append((message.offset(), message.value()))
            return bool(consumer.position([TopicPartition(topic, partition)])[0].offset >= end)

        eventually(has_read_all, "librdkafka did not reach the end")
    return rows


class Reading:
    """A run whose rows are collected, under a clock that is still unless reported."""

    def __init__(
        self, source: KafkaSource, checkpoint: bytes | None = None, *, parallelism: int = 1,
        assignment: type[SplitEnumerator[KafkaSplit]] = EagerEnumerator,
    ) -> None:  # fmt: skip
        self.source = source
        self.now_s = 0.0
        self.rows: list[Row] = []
        self.run = EmbeddedRun(
            source, clock=lambda: self.now_s, checkpoint=checkpoint, parallelism=parallelism, assignment=assignment,
            discovery_interval_s=source.discovery_interval_s,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run.close()

    @property
    def values(self) -> list[bytes | None]:
        return [row[3] for row in self.rows]

    def poll(self, timeout_s: float = 0.2) -> SplitBatch[KafkaSplit] | None:
        batch = self.run.poll(timeout_s)
        if batch is not None:
            self.rows += rows_of(batch.records)
        return batch

    def until(self, condition: Callable[[], Any]) -> list[Row]:
        """Poll until the condition holds; fail after 40 s."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {DEADLINE_S} s; read so far: {self.rows[-20:]}"
            self.poll()
        return self.rows

    def until_rows(self, count: int) -> list[Row]:
        """Poll until this many rows are there; more is a failure."""
        self.until(lambda: len(self.rows) >= count)
        assert len(self.rows) == count, self.rows[count - 1 :]
        return self.rows

    def until_finished(self) -> list[Row]:
        return self.until(lambda: self.run.finished)

    def look(self) -> None:
        assert self.source.discovery_interval_s is not None
        self.now_s += self.source.discovery_interval_s
        self.poll(0.0)

    def store(self) -> bytes:
        data = self.run.checkpoint()
        self.run.checkpoint_completed()
        return data

    def positions(self) -> dict[tuple[str, int], int]:
        durable = [entry.durable for entry in self.run.coordinator.enumerator.ledger]
        return {(split.topic, split.partition): split.next_offset for split in durable}


def rows_of(records: Any) -> list[Row]:
    columns = [records.column(name).to_pylist() for name in ("topic", "partition", "offset", "value")]
    return list(zip(*columns, strict=True))


def read_all(source: KafkaSource, checkpoint: bytes | None = None, *, parallelism: int = 1) -> list[Row]:
    with Reading(source, checkpoint, parallelism=parallelism) as reading:
        return reading.until_finished()


def by_partition(rows: Sequence[Row]) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for name, partition, offset, _ in rows:
        found.setdefault((name, partition), []).append(offset)
    return found


@contextmanager
def through_proxy(monkeypatch: Any, address: str) -> Iterator[Any]:
    """Lead each connection to `address` through a proxy. Errors in its `refusals` are raised first, one each."""
    connect = handshake._open_socket
    with proxy_to(address) as proxy, monkeypatch.context() as patch:

        def detour(host: str, port: int, config: Any) -> Any:
            if f"{host}:{port}" != address:
                return connect(host, port, config)
            if proxy.refusals:
                raise proxy.refusals.pop()
            return connect("127.0.0.1", proxy.port, config)

        proxy.refusals = []
        patch.setattr(handshake, "_open_socket", detour)
        yield proxy
