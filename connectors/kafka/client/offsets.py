"""Offsets asked of leaders, one request each: earliest, latest and timestamps (KIP-79, KIP-98), ends of epochs (KIP-320)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from headrace.connectors.kafka.client.api_versions import LIST_OFFSETS_COMMITTED
from headrace.connectors.kafka.client.calls import Calls
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import broker_error
from headrace.connectors.kafka.client.metadata import Metadata
from headrace.connectors.kafka.client.positions import Earliest, Latest, Symbol, Timestamp
from headrace.connectors.kafka.client.properties import ClientConfig, Isolation
from headrace.connectors.kafka.client.retries import Retries
from headrace.connectors.kafka.client.topology import Broker, TopicPartition
from headrace.connectors.kafka.client.wire.protocol import ListOffsetsRequest, Message, OffsetForLeaderEpochRequest, or_none
from headrace.enumerator.errors import RetriableError

W = TypeVar("W")  # what is wanted of a partition
A = TypeVar("A")  # what is answered

_NO_LEADER_EPOCH = -1
_CONSUMER = -1  # the replica id of clients, which are not brokers
_LATEST, _EARLIEST = -1, -2  # as the protocol writes them, where a timestamp would be


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """What an earliest, latest or timestamp became. `offset` None: no record is at or after the timestamp.

    `timestamp` (ms) is that of the record found, only for a Timestamp; `leader_epoch` that of the record before or at it.
    """

    offset: int | None
    timestamp: int | None = None
    leader_epoch: int | None = None


@dataclass(slots=True)
class _Lookup(Generic[W, A]):
    """One question to the leaders of partitions: what was answered over all tries, and what failed in the present one.

    `request` makes the message to one leader, of what is asked of each partition and the leader epoch as we know it. `read`
    gives topic, partition and answer of one item of its response.
    """

    what: str
    of_one: str
    request: Callable[[Mapping[TopicPartition, tuple[W, int]]], Message]
    read: Callable[[Message, Message], tuple[TopicPartition, A]]
    answers: dict[TopicPartition, A] = field(default_factory=dict)
    failures: list[RetriableError] = field(default_factory=list)


class Offsets:
    """Asks the leaders of partitions. Thread-safe; has no state of its own."""

    def __init__(self, config: ClientConfig, calls: Calls, retries: Retries, metadata: Metadata) -> None:
        """Contacts nothing."""
        self._config, self._calls, self._retries, self._metadata = config, calls, retries, metadata

    def list_offsets(
        self, positions: Mapping[TopicPartition, Symbol], isolation: Isolation | None
    ) -> dict[TopicPartition, OffsetAnswer]:
        """See `KafkaCluster.list_offsets`."""
        return self._retried(positions, self._of_offsets(self._config.isolation if isolation is None else isolation))

    def bounds(self, tp: TopicPartition) -> tuple[int | None, int | None]:
        """See `KafkaCluster.offset_range`."""
        first, end = (self._try({tp: at}, self._of_offsets(Isolation.READ_UNCOMMITTED))[tp] for at in (Earliest(), Latest()))
        return first.offset, end.offset

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """See `KafkaCluster.epoch_ends`."""
        lookup = _Lookup("looking up leader epochs", "looking up a leader epoch", _epochs_request, _epoch_end)
        return self._retried(epochs, lookup)

    def _of_offsets(self, isolation: Isolation) -> _Lookup[Symbol, OffsetAnswer]:
        request = partial(_offsets_request, isolation, self._config.request_timeout_ms)
        return _Lookup("listing offsets", "listing offsets", request, _offset_answer)

    def _retried(self, wanted: Mapping[TopicPartition, W], lookup: _Lookup[W, A]) -> dict[TopicPartition, A]:
        return self._retries.run(lookup.what, lambda: self._try(wanted, lookup))

    def _try(self, wanted: Mapping[TopicPartition, W], lookup: _Lookup[W, A]) -> dict[TopicPartition, A]:
        """Asks only for what the tries before have not answered. A leader that cannot be reached, or refuses for now, does
        not keep the others from being asked.
        """
        lookup.failures.clear()
        pending = {tp: item for tp, item in wanted.items() if tp not in lookup.answers}
        for leader, partitions in self._by_leader(pending, lookup.failures).items():
            try:
                self._ask(leader, partitions, lookup)
            except RetriableError as error:
                self._metadata.invalidate({topic for topic, _ in partitions})
                lookup.failures.append(error)
        if lookup.failures:
            raise lookup.failures[0]
        return lookup.answers

    def _by_leader(
        self, wanted: Mapping[TopicPartition, W], failures: list[RetriableError]
    ) -> dict[Broker, dict[TopicPartition, tuple[W, int]]]:
        self._metadata.warm({topic for topic, _ in wanted})
        grouped: dict[Broker, dict[TopicPartition, tuple[W, int]]] = defaultdict(dict)
        for tp, item in wanted.items():
            try:
                leader = self._metadata.leader(*tp)
            except RetriableError as error:
                failures.append(error)
            else:
                grouped[leader.broker][tp] = (item, _NO_LEADER_EPOCH if leader.epoch is None else leader.epoch)
        return grouped

    def _ask(self, broker: Broker, partitions: Mapping[TopicPartition, tuple[W, int]], lookup: _Lookup[W, A]) -> None:
        left_out = set(partitions)
        for topic in self._calls.call(broker, lookup.request(partitions)).topics:
            for item in topic.partitions:
                tp, answer = lookup.read(topic, item)
                left_out.discard(tp)
                if item.error_code == ErrorCode.NONE:
                    lookup.answers[tp] = answer
                    continue
                self._metadata.invalidate([tp[0]])
                error = broker_error(item.error_code, f"{lookup.of_one} of {tp[0]}-{tp[1]} at {broker}")
                if not isinstance(error, RetriableError):
                    raise error
                lookup.failures.append(error)
        if left_out:
            lookup.failures.append(RetriableError(f"{lookup.what} at {broker}: it left {len(left_out)} partitions out"))


def _offsets_request(isolation: Isolation, timeout_ms: int, wanted: Mapping[TopicPartition, tuple[Symbol, int]]) -> Message:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    by_topic: dict[str, list[Message]] = defaultdict(list)
    for (topic, partition), (position, epoch) in wanted.items():
        at = position.ms if isinstance(position, Timestamp) else _EARLIEST if isinstance(position, Earliest) else _LATEST
        by_topic[topic].append(
            topic_class.ListOffsetsPartition(partition_index=partition, current_leader_epoch=epoch, timestamp=at)
        )
    return ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=isolation.wire_value,
        topics=[topic_class(name=topic, partitions=partitions) for topic, partitions in by_topic.items()],
        timeout_ms=timeout_ms,
        **(LIST_OFFSETS_COMMITTED.limits if isolation is Isolation.READ_COMMITTED else {}),
    )


def _offset_answer(topic: Message, item: Message) -> tuple[TopicPartition, OffsetAnswer]:
    answer = OffsetAnswer(or_none(item.offset), or_none(item.timestamp), or_none(item.leader_epoch))
    return (topic.name, item.partition_index), answer


def _epochs_request(wanted: Mapping[TopicPartition, tuple[int, int]]) -> Message:
    topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    by_topic: dict[str, list[Message]] = defaultdict(list)
    for (topic, partition), (epoch, current) in wanted.items():
        by_topic[topic].append(
            topic_class.OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
        )
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER, topics=[topic_class(topic=topic, partitions=items) for topic, items in by_topic.items()]
    )


def _epoch_end(topic: Message, item: Message) -> tuple[TopicPartition, int | None]:
    return (topic.topic, item.partition), item.end_offset if item.end_offset >= 0 and item.leader_epoch >= 0 else None
