"""What goes into a Produce request, and for how long it is sent again. No broker: requests are looked at and answered here."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from headrace.connectors.kafka.client import retries
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.retries import Outage
from headrace.connectors.kafka.client.topology import Broker, Leader, PartitionMetadata, TopicMetadata
from headrace.connectors.kafka.write import produce
from headrace.connectors.kafka.write.encoding import TopicRows, record_encoder
from headrace.connectors.kafka.write.produce import OutBatch, idempotent_sender
from headrace.connectors.kafka.write.transactions import Producer
from headrace.enumerator.errors import DeadlineExceededError, UsageError

TOPIC_ID = UUID(int=7)


class AnsweringConnection:
    """Takes Produce requests, and answers every partition with one code."""

    address = "broker:9092"

    def __init__(self, code: ErrorCode) -> None:
        self.code, self.usable = code, True
        self.message: str | None = None
        self.sizes: list[list[int]] = []  # of the batches, for each request
        self._waiting: deque[Any] = deque()

    def send(self, message: Any) -> None:
        partitions = [item for topic in message.topic_data for item in topic.partition_data]
        self.sizes.append([len(item.records) for item in partitions])
        self._waiting.append([item.index for item in partitions])

    def receive(self) -> Any:
        answers = [
            SimpleNamespace(index=index, error_code=self.code, error_message=self.message, base_offset=0)
            for index in self._waiting.popleft()
        ]
        return SimpleNamespace(responses=[SimpleNamespace(name="", topic_id=TOPIC_ID, partition_responses=answers)])


class OneBroker:
    """As much of a cluster as a sender needs."""

    def __init__(self, code: ErrorCode = ErrorCode.NONE, **config: Any) -> None:
        self.config = ClientConfig(bootstrap="unused:1", **config)
        self.connection = AnsweringConnection(code)
        self.outage = Outage()
        self.given_back: list[AnsweringConnection] = []

    def give_back(self, connection: AnsweringConnection) -> None:
        self.given_back.append(connection)

    def leader(self, _topic: str, _partition: int) -> Leader:
        return Leader(Broker(1, "broker", 9092), 0)

    def topic_id(self, _topic: str) -> UUID:
        return TOPIC_ID

    def topics(self, names: list[str]) -> dict[str, TopicMetadata]:
        return {name: TopicMetadata(name, TOPIC_ID, {0: PartitionMetadata(1, 0)}) for name in names}

    def lease(self, _broker: Broker) -> AnsweringConnection:
        return self.connection

    def invalidate(self, topic: str) -> None: ...

    def back_off(self, attempt: int, error: Exception | None = None) -> None: ...

    def sender(self) -> Any:
        return idempotent_sender(self)  # type: ignore[arg-type]


def batches(*sizes: int) -> list[OutBatch]:
    return [OutBatch(partition, bytes(size), 1) for partition, size in enumerate(sizes)]


def acknowledged(cluster: OneBroker, *sizes: int) -> Any:
    """The sender, when batches of these sizes are acknowledged."""
    sender = cluster.sender()
    sender.send("t", batches(*sizes))
    sender.flush()
    return sender


@pytest.mark.parametrize(("config", "sizes", "requests"), [
    ({"max_request_size": 1000}, [400, 400, 400, 900, 100], [[400, 400], [400], [900, 100]]),
    ({}, [900_000] * 5, [[900_000] * 4, [900_000]]), ({"max_request_size": 1000}, [10, 5000, 10], [[10], [5000], [10]]),
], ids=["max.request.size", "4 MiB by default", "a larger batch goes alone"])  # fmt: skip
def test_a_request_has_no_more_bytes_than(config, sizes, requests):
    acknowledged(cluster := OneBroker(**config), *sizes)
    assert cluster.connection.sizes == requests


def test_what_is_not_acknowledged_is_sent_again_until_the_delivery_timeout():
    cluster = OneBroker(ErrorCode.NOT_LEADER_OR_FOLLOWER, delivery_timeout_ms=50, request_timeout_ms=50)
    with pytest.raises(DeadlineExceededError, match="NOT_LEADER_OR_FOLLOWER"):
        acknowledged(cluster, 10)
    assert len(cluster.connection.sizes) > 1


def test_what_a_broker_says_of_too_few_replicas_is_kept(monkeypatch, caplog):
    """It may be none: a leader that cannot ask the transaction's coordinator answers so, and says it in words alone."""
    monkeypatch.setattr(retries, "_SILENCE_S", 0.0)
    cluster = OneBroker(ErrorCode.NOT_ENOUGH_REPLICAS, delivery_timeout_ms=50, request_timeout_ms=50)
    cluster.connection.message = "Unable to verify the partition has been added to the transaction."
    with pytest.raises(DeadlineExceededError, match="Unable to verify the partition"):
        acknowledged(cluster, 10)
    assert caplog.text.count("Unable to verify the partition") == 1


def test_nothing_more_is_sent_on_a_connection_whose_session_nears_its_end_and_nothing_is_lost():
    """It was written to until the broker closed it: with tokens of some seconds, in the middle of requests."""
    cluster = OneBroker(max_request_size=1000)
    sender = cluster.sender()
    sender.send("t", [OutBatch(0, bytes(900), 1), OutBatch(0, bytes(900), 1)])
    first = cluster.connection
    first.usable = False
    cluster.connection = AnsweringConnection(ErrorCode.NONE)
    sender.send("t", [OutBatch(0, bytes(901), 1)])
    sender.flush()
    assert (first.sizes, cluster.connection.sizes) == ([[900], [900]], [[901]])
    assert not first._waiting  # what was on its way was waited for
    assert (cluster.given_back, sender.written["t", 0].records) == ([first], 3)


def test_nor_does_one_that_ends_in_a_failure_stay_on_loan(monkeypatch):
    """The pool kept it and its buffers for as long as there was one."""
    cluster = OneBroker(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    ended: list[AnsweringConnection] = []

    def next_session(_tries: int, _error: Exception) -> None:
        ended.append(cluster.connection)
        cluster.connection = AnsweringConnection(ErrorCode.NONE if len(ended) == 5 else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    monkeypatch.setattr(cluster, "back_off", next_session)
    monkeypatch.setattr(cluster, "invalidate", lambda _: setattr(cluster.connection, "usable", False))  # while it is judged
    acknowledged(cluster, 10)
    assert (len(ended), cluster.given_back) == (5, ended)


def stopped_time() -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    return clock


def test_rows_that_trickle_do_not_use_up_the_delivery_timeout(monkeypatch):
    """findings: Sinks 8. The time counted from the last acknowledgement: the first passing error after a pause was the end."""
    clock, cluster = stopped_time(), OneBroker(delivery_timeout_ms=120_000)
    monkeypatch.setattr(produce, "time", clock)
    sender = cluster.sender()
    sender.send("t", batches(10))
    clock.now += 1000  # with nothing to send yet that would make a request
    failures = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    monkeypatch.setattr(cluster, "back_off", lambda *_: setattr(cluster.connection, "code", failures.pop()))
    cluster.connection.code, failures[0] = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE
    sender.flush()
    clock.now += 1000  # with nothing to send
    sender.send("t", batches(10))
    cluster.connection.code, failures[:] = ErrorCode.NOT_LEADER_OR_FOLLOWER, [ErrorCode.NONE]
    sender.flush()
    assert (failures, sender.written["t", 0].records) == ([], 2)


def test_nor_does_the_time_in_which_the_rows_are_made(monkeypatch):
    clock, cluster = stopped_time(), OneBroker(max_request_size=1000, delivery_timeout_ms=120_000)
    monkeypatch.setattr(produce, "time", clock)
    sender = cluster.sender()
    sender.send("t", batches(1000))
    assert len(cluster.connection.sizes) == 1
    clock.now += 1000  # with a request under way
    cluster.connection.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    monkeypatch.setattr(cluster, "back_off", lambda *_: setattr(cluster.connection, "code", ErrorCode.NONE))
    sender.flush()
    assert sender.written["t", 0].records == 1


def test_the_delivery_timeout_counts_all_waiting_since_the_last_acknowledgement(monkeypatch):
    clock, cluster = stopped_time(), OneBroker(ErrorCode.NOT_LEADER_OR_FOLLOWER, delivery_timeout_ms=120_000)
    monkeypatch.setattr(produce, "time", clock)
    monkeypatch.setattr(cluster, "back_off", lambda *_: setattr(clock, "now", clock.now + 50))
    sender = cluster.sender()
    sender.send("t", batches(10))
    with pytest.raises(DeadlineExceededError, match=r"no record was acknowledged for 150\.0 s"):
        sender.flush()


def rows(count: int, size: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([bytes(size)] * count, pa.binary())})


def sent(config: dict[str, Any], *written: pa.RecordBatch) -> list[OutBatch]:
    """What the sink's rows become for a topic of one partition."""
    cluster = OneBroker(**config)
    collected: list[OutBatch] = []
    sender = SimpleNamespace(send=lambda _topic, batches: collected.extend(batches), flush=lambda: None)
    producer = Producer(None, 7, 0)
    made = TopicRows(cluster, "t", lambda partitions: record_encoder(cluster.config, partitions, producer))  # type: ignore[arg-type]
    for batch in written:
        made.write(batch, sender)  # type: ignore[arg-type]
    made.flush(sender)  # type: ignore[arg-type]
    return collected


def test_a_batch_has_no_more_bytes_than_batch_size_or_a_request():
    assert [batch.records for batch in sent({}, rows(10, 1000))] == [10]
    assert {batch.records for batch in sent({"batch_size": 3000}, rows(10, 1000))} <= {1, 2}
    assert {batch.records for batch in sent({"max_request_size": 3000}, rows(10, 1000))} <= {1, 2}
    assert [batch.records for batch in sent({"batch_size": 0}, rows(3, 10))] == [1, 1, 1]


def test_a_record_larger_than_max_request_size_is_refused_and_may_be_larger_than_batch_size():
    assert [batch.records for batch in sent({"batch_size": 100}, rows(1, 1000))] == [1]
    with pytest.raises(UsageError, match=r"a record for t-0 takes 10\d\d bytes, and max\.request\.size is 1000"):
        sent({"max_request_size": 1000}, rows(1, 1000))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_bytes_that_cannot_be_compressed_outgrow_neither_a_batch_nor_a_request(codec):
    """findings: Sinks 19. The bound was on the batch before its compression, which added to it."""
    noise = random.Random(7)
    table = pa.RecordBatch.from_pydict({"value": pa.array([noise.randbytes(100) for _ in range(2000)], pa.binary())})
    made = sent({"max_request_size": 20_000, "compression_type": codec}, table)
    assert sum(batch.records for batch in made) == 2000
    assert max(len(batch.data) for batch in made) <= 20_000
    (fitting,) = sent({"max_request_size": 20_000, "compression_type": codec}, rows(100, 100))
    assert len(fitting.data) < 10_000


def test_a_record_that_compression_makes_larger_than_a_request_is_sent_as_it_is():
    noise = pa.RecordBatch.from_pydict({"value": pa.array([random.Random(7).randbytes(900)], pa.binary())})
    (batch,) = sent({"max_request_size": 975, "compression_type": "snappy"}, noise)
    assert len(batch.data) <= 975


def test_the_level_of_compression_reaches_the_batches():
    text = pa.RecordBatch.from_pydict({"value": pa.array([b"%d" % (n * n) for n in range(20_000)], pa.binary())})
    sizes = [len(sent({"compression_type": "gzip", "compression_level": level}, text)[0].data) for level in (1, 9)]
    assert sizes[0] > sizes[1]
