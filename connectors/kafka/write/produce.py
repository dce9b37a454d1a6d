"""Sending record batches: to the leaders, several requests in flight, every batch acknowledged once or an error raised.

The brokers put each partition's batches in order and drop repeated ones by (producer id, epoch, sequence) (KIP-98), so whatever
is not acknowledged is simply sent again, in order. A batch that is too large for its topic is sent as two (KIP-126).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.connectors.kafka.client.api_versions import PRODUCE_BY_NAME, PRODUCE_V1
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import (
    BrokerError,
    InvalidForBrokerError,
    RetriableBrokerError,
    UnknownTopicError,
    broker_error,
)
from headrace.connectors.kafka.client.retries import Refusals, giving_up_when
from headrace.connectors.kafka.client.topology import Broker, TopicPartition
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.protocol import Message, ProduceRequest
from headrace.connectors.kafka.write.rebatch import halved
from headrace.connectors.kafka.write.topic_config import replicas_in_sync
from headrace.connectors.kafka.write.topics import refuse_deleted
from headrace.connectors.kafka.write.transactions import Producer, TransactionProtocol, Transactions
from headrace.enumerator.errors import DeadlineExceededError, RetriableError

_MAX_IN_FLIGHT = 5  # the brokers remember as many batches of a producer, to know a repeated one
_REQUEST_BYTES = 4 * 1024 * 1024
_ALL_REPLICAS = -1
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_REFUSES_ROWS = (ErrorCode.INVALID_RECORD, ErrorCode.POLICY_VIOLATION, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
"""To other requests they are what a broker has on its disk, or what it is."""
_UNKNOWN_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)
_SHORT_OF_REPLICAS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
_SHORT_GRACE_S = 3.0  # a broker that restarts is not news


@dataclass(frozen=True, slots=True, eq=False)
class OutBatch:
    """A complete record batch, in the format of the log, on its way to a partition."""

    partition: int
    data: bytes | bytearray | memoryview
    records: int


@dataclass(slots=True)
class Written:
    """What of one partition is acknowledged: offsets `first` to `last`, both inclusive, with others' records between them."""

    first: int
    last: int
    records: int


@dataclass(slots=True)
class _Lane:
    """One partition: what waits and what is under way, in sequence order."""

    key: TopicPartition
    waiting: deque[OutBatch] = field(default_factory=deque)
    sent: deque[OutBatch] = field(default_factory=deque)

    def back_to_start(self) -> None:
        self.waiting.extendleft(reversed(self.sent))
        self.sent.clear()

    def replace_sent(self, batch: OutBatch, parts: Iterable[OutBatch]) -> None:
        at = self.sent.index(batch)
        self.sent.remove(batch)
        for number, part in enumerate(parts):
            self.sent.insert(at + number, part)


@dataclass(slots=True)
class _Channel:
    """A broker's connection, and what is in each request under way on it."""

    connection: Connection
    requests: deque[list[tuple[_Lane, OutBatch]]] = field(default_factory=deque)


class BatchSender:
    """Sends for one producer. Used by one thread; buffers at most one request's worth for each broker, and those in flight."""

    def __init__(
        self,
        cluster: KafkaCluster,
        *,
        transactional_id: str | None,
        max_version: int | None,
        before_first: Callable[[list[TopicPartition]], None],
        lifetime: _Lifetime | None = None,
    ) -> None:
        """`before_first` is called with partitions that are about to be written first (KIP-98's AddPartitionsToTxn).

        `max_version` bounds the version of the Produce request. A request has up to `max.request.size` bytes of batches (by
        default 4 MiB), or one batch that is larger; `delivery.timeout.ms` is how long to wait for any acknowledgement (not set:
        `default.api.timeout.ms`, and else as long as it takes), and only waiting counts: not the time in which there is nothing
        to send, or the caller makes rows. `lifetime` is that of the transaction, where it ends a wait, too.
        """
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._max_version = max_version
        self._longest_ms = cluster.config.longest_delivery_ms
        self._request_bytes = cluster.config.max_request_size or _REQUEST_BYTES
        self._before_first = before_first
        self._lifetime = lifetime
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._channels: dict[Broker, _Channel] = {}
        self._waiting_bytes = 0
        self._written: dict[TopicPartition, Written] = {}
        self._refused_bytes: dict[str, int] = {}
        self._waited_s = 0.0  # in calls of `_pump` that are over, without an acknowledgement
        self._waiting_since = 0.0
        self._failing_since: float | None = None
        self._refusals = Refusals()
        self._shortages: dict[TopicPartition, str] = {}
        self._tries = 0

    @property
    def written(self) -> Mapping[TopicPartition, Written]:
        return self._written

    def send(self, topic: str, batches: Iterable[OutBatch]) -> None:
        """Queue batches, in sequence order for each partition, and send when there is enough for a request.

        Raises what `flush` raises.
        """
        for batch in batches:
            key = (topic, batch.partition)
            if key not in self._lanes:
                self._lanes[key] = _Lane(key)
            self._lanes[key].waiting.extend(self._fitting(topic, batch))
            self._waiting_bytes += len(batch.data)
        if self._waiting_bytes >= self._request_bytes:
            self._pump(_MAX_IN_FLIGHT - 1)

    def _fitting(self, topic: str, batch: OutBatch) -> list[OutBatch]:
        """The batch, in parts if the topic has refused one of its size."""
        if batch.records == 1 or len(batch.data) < self._refused_bytes.get(topic, len(batch.data) + 1):
            return [batch]
        return [fitting for part in self._halves(batch) for fitting in self._fitting(topic, part)]

    def _halves(self, batch: OutBatch) -> list[OutBatch]:
        parts = halved(batch.data, self._cluster.config)
        return [OutBatch(batch.partition, part.data, part.records) for part in parts]

    def push(self) -> None:
        """Send what is queued. It waits for no acknowledgement but a partition's first one. Raises what `flush` raises."""
        self._pump(_MAX_IN_FLIGHT - 1)

    def flush(self) -> None:
        """Return when everything is acknowledged by all in-sync replicas.

        Raises `BrokerError` for a batch that was refused for good, `UnknownTopicError` for a topic that was deleted meanwhile,
        DeadlineExceededError when nothing was acknowledged for `delivery.timeout.ms`, where that is set; when the transaction
        has timed out; and after 60 s of answers that are not outage. Then nothing more may be sent: the transaction is to be
        aborted.
        """
        while any(lane.waiting or lane.sent for lane in self._lanes.values()):
            self._pump(0)

    def close(self) -> None:
        for channel in self._channels.values():
            self._cluster.give_back(channel.connection)
        self._channels.clear()
        self._cluster.outage.given_up(self)

    # --- sending -------------------------------------------------------------------------------------------------------

    def _pump(self, most_in_flight: int) -> None:
        """Send all that waits, then receive until no broker has more than `most_in_flight` requests of headrace."""
        self._waiting_since = time.monotonic()
        try:
            with giving_up_when(self._is_to_be_judged):
                self._announce()
            while self._dispatch():
                pass
            for channel in list(self._channels.values()):
                while len(channel.requests) > most_in_flight:
                    self._receive(channel)
        except RetriableError as error:
            self._start_over(error)
        self._waited_s += time.monotonic() - self._waiting_since
        self._waiting_bytes = sum(len(batch.data) for lane in self._lanes.values() for batch in lane.waiting)

    def _waited(self) -> float:
        return self._waited_s + time.monotonic() - self._waiting_since

    def _is_overdue(self) -> bool:
        return self._longest_ms is not None and self._waited() > self._longest_ms / 1000

    def _is_to_be_judged(self) -> bool:
        return self._is_overdue() or (self._lifetime is not None and self._lifetime.may_be_over())

    def _announce(self) -> None:
        fresh = [key for key in self._lanes if key not in self._written and not self._lanes[key].sent]
        if fresh:
            self._before_first(fresh)

    def _dispatch(self) -> bool:
        """One request to every broker that leads a partition with a batch waiting: a batch of each such partition.

        Of a partition that has acknowledged nothing yet, one is under way at a time: a broker that does not know the producer
        takes any sequence for its first, so behind a batch that it refuses it would take the next one.
        """
        waiting = [(key, lane) for key, lane in self._lanes.items() if lane.waiting]
        by_broker: dict[Broker, list[_Lane]] = {}
        for key, lane in waiting:
            if key in self._written or not lane.sent:
                by_broker.setdefault(self._cluster.leader(*key).broker, []).append(lane)
        for broker, lanes in by_broker.items():
            channel = self._channel(broker)
            while len(channel.requests) >= _MAX_IN_FLIGHT:
                self._receive(channel)
            self._send_one(channel, _within(lanes, self._request_bytes))
        if waiting and not by_broker:
            self._receive(next(channel for channel in self._channels.values() if channel.requests))
        return bool(waiting)

    def _send_one(self, channel: _Channel, lanes: list[_Lane]) -> None:
        request = self._request(lanes)
        content = [(lane, lane.waiting.popleft()) for lane in lanes]
        for lane, batch in content:
            lane.sent.append(batch)
        channel.connection.send(request)
        channel.requests.append(content)

    def _channel(self, broker: Broker) -> _Channel:
        channel = self._channels.get(broker)
        if channel is not None and not channel.connection.usable:  # its session nears its end, so nothing more is sent on it
            while channel.requests:
                self._receive(channel)
            self._cluster.give_back(channel.connection)
            channel = None
        if channel is None:
            channel = self._channels[broker] = _Channel(self._cluster.lease(broker))
        return channel

    def _request(self, lanes: list[_Lane]) -> Message:
        topic_class = ProduceRequest.TopicProduceData
        by_topic: dict[str, list[_Lane]] = {}
        for lane in lanes:
            by_topic.setdefault(lane.key[0], []).append(lane)
        ids = {topic: self._cluster.topic_id(topic) for topic in by_topic}
        topics = [
            topic_class(
                name=topic,
                topic_id=ids[topic],
                partition_data=[
                    topic_class.PartitionProduceData(index=lane.key[1], records=lane.waiting[0].data) for lane in members
                ],
            )
            for topic, members in by_topic.items()
        ]
        limits = [limit for limit in (self._max_version, None if all(ids.values()) else PRODUCE_BY_NAME.highest) if limit]
        return ProduceRequest(
            transactional_id=self._transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=self._cluster.config.request_timeout_ms,
            topic_data=topics,
            max_version=min(limits) if limits else None,
        )

    # --- receiving -----------------------------------------------------------------------------------------------------

    def _receive(self, channel: _Channel) -> None:
        """Take the oldest answer. Raises the RetriableError of its first partition that has to be sent again."""
        content = channel.requests.popleft()
        response = channel.connection.receive()
        answers = {
            (topic.name or topic.topic_id, item.index): item  # ids, and no names, from version 13 on
            for topic in response.responses
            for item in topic.partition_responses
        }
        failure: BrokerError | None = None
        for lane, batch in content:
            topic, partition = lane.key
            item = answers.get(lane.key) or answers.get((self._cluster.topic_id(topic), partition))
            if item is None:
                raise RetriableError(f"{channel.connection.address} left {topic}-{partition} out of its answer")
            failure = self._judge(lane, batch, item) or failure
        if failure is not None:
            raise failure

    def _judge(self, lane: _Lane, batch: OutBatch, item: Message) -> BrokerError | None:
        """Note one batch's acknowledgement; or return why it has to be sent again, or raise why it cannot be written at all."""
        if item.error_code == ErrorCode.NONE:
            self._acknowledged(lane, batch, item.base_offset)
            return None
        topic, partition = lane.key
        where = f"writing to {topic}-{partition}"
        if item.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and lane.sent[0] is not batch:
            return _BehindError(item.error_code, where)
        if item.error_code in _TOO_LARGE and batch.records > 1:
            self._refused_bytes[topic] = min(len(batch.data), self._refused_bytes.get(topic, len(batch.data)))
            lane.replace_sent(batch, self._fitting(topic, batch))
            return _TooLargeError(item.error_code, where)
        reported = f"{where}: {item.error_message}" if item.error_message else where
        make_error = InvalidForBrokerError if item.error_code in _REFUSES_ROWS else broker_error
        error = make_error(item.error_code, reported)
        if not isinstance(error, RetriableError):
            raise error
        self._cluster.invalidate(topic)
        if item.error_code in _SHORT_OF_REPLICAS:
            short = _ShortOfReplicasError(item.error_code, reported, self._shortages.get(lane.key, ""))
            short.key = lane.key
            return short
        return error

    def _acknowledged(self, lane: _Lane, batch: OutBatch, base_offset: int) -> None:
        lane.sent.remove(batch)
        self._waited_s, self._waiting_since, self._tries = 0.0, time.monotonic(), 0
        if self._failing_since is not None:
            self._failing_since, self._refusals, self._shortages = None, Refusals(), {}
            self._cluster.outage.over(self)
        last = base_offset + batch.records - 1
        written = self._written.setdefault(lane.key, Written(base_offset, last, 0))
        written.last = max(written.last, last)
        written.records += batch.records

    def _start_over(self, error: RetriableError) -> None:
        """Receive the responses in flight, back off, and queue everything unacknowledged again, in order."""
        for broker, channel in list(self._channels.items()):
            while channel.requests and channel.connection.usable:
                with suppress(RetriableError):
                    self._receive(channel)
            if not channel.connection.usable:
                self._cluster.give_back(channel.connection)  # which closes it
                del self._channels[broker]
        for lane in self._lanes.values():
            lane.back_to_start()
            self._cluster.invalidate(lane.key[0])
        if self._is_overdue() or (self._longest_ms is None and self._refusals.ends_with(error)):
            raise DeadlineExceededError(
                f"no record was acknowledged for {self._waited():.1f} s; the last error was: {error}"
            ) from error
        if isinstance(error, _TooLargeError):
            return
        if isinstance(error, _ShortOfReplicasError):
            self._look_at_replicas(error.key)
        if self._lifetime is not None:
            with giving_up_when(self._is_overdue):
                self._lifetime.refuse_ended(error)
        if isinstance(error, UnknownTopicError) or getattr(error, "code", None) in _UNKNOWN_TOPIC:
            with giving_up_when(self._is_overdue):
                refuse_deleted(self._cluster, [lane.key for lane in self._lanes.values() if lane.waiting])
        self._failing_since = time.monotonic() if self._failing_since is None else self._failing_since
        self._cluster.outage.goes_on(self, "writing", self._failing_since, error)
        self._tries += 1
        self._cluster.back_off(self._tries, error)

    def _look_at_replicas(self, key: TopicPartition) -> None:
        """Once, for the log and for errors, when there seem to be too few in sync for longer. It ends no wait."""
        is_new = self._failing_since is None or time.monotonic() - self._failing_since < _SHORT_GRACE_S
        if is_new or key in self._shortages:
            return
        try:
            with giving_up_when(lambda: True):
                self._shortages[key] = replicas_in_sync(self._cluster, key)
        except RetriableError:  # it is asked again after the next try
            return
        except BrokerError:
            self._shortages[key] = ""


class _Lifetime:
    """Until when a transaction is open for certain; after that, its coordinator knows whether it is."""

    def __init__(self, transactions: Transactions, producer: Producer, timeout_ms: int) -> None:
        """From now on: the coordinator counts from the first partition that is added, which is later."""
        self._transactions, self._producer, self._timeout_s = transactions, producer, timeout_ms / 1000
        self._ends = time.monotonic() + self._timeout_s

    def may_be_over(self) -> bool:
        """By the clock of this process."""
        return time.monotonic() > self._ends

    def refuse_ended(self, error: RetriableError) -> None:
        """Raise DeadlineExceededError if it may be over, and its coordinator does not have it open."""
        if not self.may_be_over():
            return
        name = str(self._producer.transactional_id)
        found = self._transactions.describe([name])[name]
        if found is None or not found.is_ongoing or found.producer != self._producer:
            raise DeadlineExceededError(
                f"the transaction of {name!r} timed out, after {self._timeout_s:g} s (transaction.timeout.ms), before all of "
                f"its records were acknowledged: nothing of it is visible, and they have to be written again. What they "
                f"waited for was: {error}"
            ) from error


class _ShortOfReplicasError(RetriableBrokerError):
    """Too few replicas of the partition `key` are in sync; or its leader could not ask the transaction's coordinator yet."""

    key: TopicPartition


class _BehindError(BrokerError, RetriableError):
    """OUT_OF_ORDER_SEQUENCE_NUMBER because a batch before it in flight was not taken."""


class _TooLargeError(BrokerError, RetriableError):
    """The topic takes smaller batches only, and this one was replaced by such."""


def _within(lanes: list[_Lane], most_bytes: int) -> list[_Lane]:
    """As many lanes as fit a request with their first batches; one at least."""
    chosen: list[_Lane] = []
    size = 0
    for lane in lanes:
        size += len(lane.waiting[0].data)
        if chosen and size > most_bytes:
            break
        chosen.append(lane)
    return chosen


def transactional_sender(
    cluster: KafkaCluster,
    transactions: Transactions,
    producer: Producer,
    protocol: TransactionProtocol,
    timeout_ms: int | None = None,
) -> BatchSender:
    """A sender that writes within the producer's transaction, in this version of the protocol.

    `timeout_ms`: the transaction's, after which waiting ends when its coordinator has it open no more. None: it is waited on,
    by who writes again what such an end has aborted.
    """
    lifetime = None if timeout_ms is None else _Lifetime(transactions, producer, timeout_ms)
    is_v1 = protocol is TransactionProtocol.V1  # in version 2 Produce adds the partitions itself (KIP-890)
    return BatchSender(
        cluster,
        transactional_id=producer.transactional_id,
        max_version=PRODUCE_V1.highest if is_v1 else None,
        before_first=(lambda partitions: transactions.add_partitions(producer, partitions)) if is_v1 else lambda _: None,
        lifetime=lifetime,
    )


def idempotent_sender(cluster: KafkaCluster) -> BatchSender:
    return BatchSender(cluster, transactional_id=None, max_version=None, before_first=lambda _: None)
