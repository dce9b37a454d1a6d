"""Offsets asked of leaders, one request each: earliest, latest and timestamps (KIP-79, KIP-98), ends of epochs (KIP-320)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

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
from headrace.enumerator.errors import HeadraceError, RetriableError

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


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One partition in a request: its position, and the leader epoch as we know it."""

    position: Symbol
    leader_epoch: int | None


@dataclass(slots=True)
class _Lookup:
    """One call of `list_offsets`: what was answered over all tries, and what failed in the present one."""

    isolation: Isolation
    answers: dict[TopicPartition, OffsetAnswer] = field(default_factory=dict)
    failures: list[RetriableError] = field(default_factory=list)


class Offsets:
    """Asks the leaders of partitions. Thread-safe; has no state of its own."""

    def __init__(self, config: ClientConfig, calls: Calls, retries: Retries, metadata: Metadata) -> None:
        """Contacts nothing."""
        self._config, self._calls, self._retries, self._metadata = config, calls, retries, metadata

    def list_offsets(
        self, positions: Mapping[TopicPartition, Symbol], isolation: Isolation | None
    ) -> dict[TopicPartition, OffsetAnswer]:
        """See `KafkaCluster.list_offsets`. A try asks only for what the tries before it have not answered."""
        lookup = _Lookup(self._config.isolation if isolation is None else isolation)

        def ask() -> dict[TopicPartition, OffsetAnswer]:
            lookup.failures.clear()
            self._ask_leaders({tp: position for tp, position in positions.items() if tp not in lookup.answers}, lookup)
            if lookup.failures:
                raise lookup.failures[0]
            return lookup.answers

        return self._retries.run("listing offsets", ask)

    def bounds(self, tp: TopicPartition) -> tuple[int | None, int | None]:
        """See `KafkaCluster.offset_range`."""
        found = []
        for position in (Earliest(), Latest()):
            lookup = _Lookup(Isolation.READ_UNCOMMITTED)
            self._ask_leaders({tp: position}, lookup)
            if lookup.failures:
                raise lookup.failures[0]
            found.append(lookup.answers[tp].offset)
        return found[0], found[1]

    def _ask_leaders(self, positions: Mapping[TopicPartition, Symbol], lookup: _Lookup) -> None:
        """One try. A leader that cannot be reached, or refuses for now, does not keep the others from being asked."""
        for leader, wanted in self._by_leader(positions, lookup).items():
            try:
                self._ask(leader, wanted, lookup)
            except RetriableError as error:
                self._metadata.invalidate({topic for topic, _ in wanted})
                lookup.failures.append(error)

    def _by_leader(
        self, positions: Mapping[TopicPartition, Symbol], lookup: _Lookup
    ) -> dict[Broker, dict[TopicPartition, _Wanted]]:
        self._metadata.warm({topic for topic, _ in positions})
        grouped: dict[Broker, dict[TopicPartition, _Wanted]] = defaultdict(dict)
        for tp, position in positions.items():
            try:
                leader = self._metadata.leader(*tp)
            except RetriableError as error:
                lookup.failures.append(error)
            else:
                grouped[leader.broker][tp] = _Wanted(position, leader.epoch)
        return grouped

    def _ask(self, broker: Broker, wanted: Mapping[TopicPartition, _Wanted], lookup: _Lookup) -> None:
        response = self._calls.call(broker, self._request(wanted, lookup.isolation))
        left_out = set(wanted)
        for topic in response.topics:
            for item in topic.partitions:
                tp = (topic.name, item.partition_index)
                left_out.discard(tp)
                if item.error_code == ErrorCode.NONE:
                    lookup.answers[tp] = OffsetAnswer(or_none(item.offset), or_none(item.timestamp), or_none(item.leader_epoch))
                else:
                    self._metadata.invalidate([topic.name])
                    error = broker_error(item.error_code, f"listing offsets of {tp[0]}-{tp[1]} at {broker}")
                    lookup.failures.append(_only_retriable(error))
        if left_out:
            lookup.failures.append(RetriableError(f"listing offsets at {broker}: it left {len(left_out)} partitions out"))

    def _request(self, wanted: Mapping[TopicPartition, _Wanted], isolation: Isolation) -> Message:
        topic_class = ListOffsetsRequest.ListOffsetsTopic
        by_topic: dict[str, list[Message]] = defaultdict(list)
        for (topic, partition), item in wanted.items():
            epoch = _NO_LEADER_EPOCH if item.leader_epoch is None else item.leader_epoch
            by_topic[topic].append(
                topic_class.ListOffsetsPartition(
                    partition_index=partition, current_leader_epoch=epoch, timestamp=_wire_timestamp(item.position)
                )
            )
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation.wire_value,
            topics=[topic_class(name=topic, partitions=partitions) for topic, partitions in by_topic.items()],
            timeout_ms=self._config.request_timeout_ms,
            **(LIST_OFFSETS_COMMITTED.limits if isolation is Isolation.READ_COMMITTED else {}),
        )


def _wire_timestamp(position: Symbol) -> int:
    if isinstance(position, Timestamp):
        return position.ms
    return _EARLIEST if isinstance(position, Earliest) else _LATEST


def _only_retriable(error: HeadraceError) -> RetriableError:
    if not isinstance(error, RetriableError):
        raise error
    return error


class EpochEnds:
    """Asks the leaders of partitions. Thread-safe; has no state of its own."""

    def __init__(self, calls: Calls, retries: Retries, metadata: Metadata) -> None:
        """Contacts nothing."""
        self._calls, self._retries, self._metadata = calls, retries, metadata

    def ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """See `KafkaCluster.epoch_ends`. A try asks only for what the tries before it have not answered."""
        answers: dict[TopicPartition, int | None] = {}

        def ask() -> dict[TopicPartition, int | None]:
            failures: list[RetriableError] = []
            pending = {tp: epoch for tp, epoch in epochs.items() if tp not in answers}
            for leader, partitions in self._by_leader(pending, failures).items():
                try:
                    self._ask(leader, partitions, answers, failures)
                except RetriableError as error:
                    self._metadata.invalidate({topic for topic, _ in partitions})
                    failures.append(error)
            if failures:
                raise failures[0]
            return answers

        return self._retries.run("looking up leader epochs", ask)

    def _by_leader(
        self, epochs: Mapping[TopicPartition, int], failures: list[RetriableError]
    ) -> dict[Broker, dict[TopicPartition, tuple[int, int]]]:
        """For each leader its partitions, with the epoch that is asked for and the one that we know it to lead in."""
        self._metadata.warm({topic for topic, _ in epochs})
        grouped: dict[Broker, dict[TopicPartition, tuple[int, int]]] = defaultdict(dict)
        for tp, epoch in epochs.items():
            try:
                leader = self._metadata.leader(*tp)
            except RetriableError as error:
                failures.append(error)
            else:
                grouped[leader.broker][tp] = (epoch, _NO_LEADER_EPOCH if leader.epoch is None else leader.epoch)
        return grouped

    def _ask(
        self,
        broker: Broker,
        partitions: Mapping[TopicPartition, tuple[int, int]],
        answers: dict[TopicPartition, int | None],
        failures: list[RetriableError],
    ) -> None:
        left_out = set(partitions)
        for topic in self._calls.call(broker, _request(partitions)).topics:
            for item in topic.partitions:
                tp = (topic.topic, item.partition)
                left_out.discard(tp)
                if item.error_code == ErrorCode.NONE:
                    answers[tp] = item.end_offset if item.end_offset >= 0 and item.leader_epoch >= 0 else None
                    continue
                self._metadata.invalidate([topic.topic])
                error = broker_error(item.error_code, f"looking up a leader epoch of {tp[0]}-{tp[1]} at {broker}")
                failures.append(_only_retriable(error))
        if left_out:
            failures.append(RetriableError(f"looking up leader epochs at {broker}: it left {len(left_out)} partitions out"))


def _request(partitions: Mapping[TopicPartition, tuple[int, int]]) -> Message:
    topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    by_topic: dict[str, list[Message]] = defaultdict(list)
    for (topic, partition), (epoch, current) in partitions.items():
        by_topic[topic].append(
            topic_class.OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
        )
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER, topics=[topic_class(topic=topic, partitions=items) for topic, items in by_topic.items()]
    )
