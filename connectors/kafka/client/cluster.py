"""The control plane: topics, offsets and group commits, with one retry policy and one metadata cache.

Every public method is synchronous, contacts nothing before it is called, and may be called from any thread. Retriable errors
are retried as the Java client does: metadata refreshed, exponential backoff with jitter from `retry.backoff.ms` to
`retry.backoff.max.ms`, until `default.api.timeout.ms` have passed. Then `DeadlineExceededError` says what the last error was.
"""

from __future__ import annotations

import functools
import os
import random
import re
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

import tenacity

from headrace.connectors.kafka.client.errors import UnknownTopicError, broker_error
from headrace.connectors.kafka.client.positions import Earliest, Latest, Timestamp
from headrace.connectors.kafka.client.properties import ClientConfig, Isolation
from headrace.connectors.kafka.client.topology import Broker, Leader, PartitionMetadata, TopicMetadata, TopicPartition
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.pool import ConnectionPool
from headrace.connectors.kafka.client.wire.protocol import (
    FindCoordinatorRequest,
    ListOffsetsRequest,
    Message,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from headrace.enumerator.errors import DeadlineExceededError, HeadraceError, RetriableError, is_retriable

__all__ = [
    "Broker",
    "CommittedOffset",
    "CoordinatorKind",
    "KafkaCluster",
    "Leader",
    "OffsetAnswer",
    "PartitionMetadata",
    "TopicMetadata",
    "TopicPartition",
    "shared_cluster",
]

T = TypeVar("T")

_UNKNOWN_TOPIC_GRACE_S = 3.0  # a topic just created is not known to every broker at once
_NO_LEADER_EPOCH = -1
_LATEST, _EARLIEST = -1, -2
_NONE_CODE = 0
_UNKNOWN_TOPIC_CODE = 3
_LEADER_NOT_AVAILABLE_CODE = 5


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """What an earliest, latest or timestamp became. `offset` None: no record is at or after the timestamp.

    `timestamp` (ms) is that of the record found, only for a Timestamp; `leader_epoch` that of the record before or at it.
    """

    offset: int | None
    timestamp: int | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next offset that a group will read of a partition, as it committed it."""

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


class CoordinatorKind(Enum):
    """What a coordinator coordinates; the value is the protocol's."""

    GROUP = 0
    TRANSACTION = 1


class KafkaCluster:
    """A Kafka cluster. Cheap to make and to pickle (as its configuration); contacts nothing until used; thread-safe.

    Use it as a context manager or call `close`. After a fork the child connects anew.
    """

    def __init__(self, config: ClientConfig) -> None:
        """Contacts nothing."""
        self.config = config
        self._pool = ConnectionPool(config)
        self._closed = threading.Event()
        self._brokers: dict[int, Broker] = {}
        self._topics: dict[str, tuple[TopicMetadata, float]] = {}
        self._coordinators: dict[tuple[CoordinatorKind, str], Broker] = {}
        self.densities: dict[TopicPartition, float] = {}
        """Bytes per offset as last fetched: a reader of a bounded range, which lives for a task, asks for no more than that."""
        self._lock = threading.Lock()
        _clusters.add(self)
        weakref.finalize(self, self._pool.close)  # nobody need close a cluster that the whole process shares

    def __reduce__(self) -> tuple[type[KafkaCluster], tuple[ClientConfig]]:
        """Only the configuration travels."""
        return KafkaCluster, (self.config,)

    def __enter__(self) -> KafkaCluster:
        """Leaving closes."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close idle connections and wake whoever waits between two tries."""
        self._closed.set()
        self._pool.close()

    # --- topics --------------------------------------------------------------------------------------------------------

    def topics(self, wanted: Collection[str] | re.Pattern[str]) -> dict[str, TopicMetadata]:
        """The named topics, or all whose whole name the pattern matches, asked now (never from the cache).

        As Spark's `subscribePattern` and Java's `subscribe(Pattern)`, a pattern never matches internal topics; a name may be
        one. Raises `UnknownTopicError` naming the topics that no broker knows, after a grace of 3 s for new ones.
        """
        if isinstance(wanted, re.Pattern):
            known = self.retrying("listing topics", lambda: self._refresh(None))
            return {name: topic for name, topic in known.items() if topic and not topic.internal and wanted.fullmatch(name)}

        def ask() -> dict[str, TopicMetadata]:
            answer = self._refresh(wanted)
            return _all_known(answer)

        return self.retrying("looking up topics", ask)

    def find_topics(self, names: Collection[str]) -> dict[str, TopicMetadata | None]:
        """The named topics as one broker knows them now; None for one that it does not know. No grace for new topics."""
        return self.retrying("looking up topics", lambda: self._refresh(names))

    def leader(self, topic: str, partition: int) -> Leader:
        """The partition's leader, from the cache unless it is older than `metadata.max.age.ms` or invalidated.

        One try only. Raises `RetriableError` while there is no leader, `UnknownTopicError` when no such partition is known.
        """
        found = self._cached(topic).partitions.get(partition)
        if found is None:
            self.invalidate(topic)
            raise UnknownTopicError(frozenset({f"{topic}-{partition}"}))
        with self._lock:
            broker = None if found.leader is None else self._brokers.get(found.leader)
        if broker is None:
            self.invalidate(topic)
            raise RetriableError(f"{topic}-{partition} has no leader at the moment")
        return Leader(broker, found.leader_epoch)

    def topic_id(self, topic: str) -> UUID | None:
        """The topic's id, from the cache; None where brokers have no ids. One try only; raises like `leader`."""
        return self._cached(topic).topic_id

    def broker(self, node_id: int) -> Broker | None:
        """A broker by its id, as last heard of."""
        with self._lock:
            return self._brokers.get(node_id)

    def brokers(self) -> tuple[Broker, ...]:
        """All live brokers, asked now."""
        self.retrying("listing brokers", lambda: self._refresh(()))
        with self._lock:
            return tuple(self._brokers.values())

    def invalidate(self, topic: str | None = None) -> None:
        """Forget what is cached about a topic (default: all topics), so that the next question goes to a broker."""
        with self._lock:
            for name in [topic] if topic is not None else list(self._topics):
                if name in self._topics:
                    self._topics[name] = (self._topics[name][0], 0.0)

    def _cached(self, topic: str) -> TopicMetadata:
        with self._lock:
            entry = self._topics.get(topic)
        if entry is not None and time.monotonic() - entry[1] < self.config.metadata_max_age_ms / 1000 and entry[1] > 0:
            return entry[0]
        return _all_known(self._refresh([topic]))[topic]

    def _refresh(self, names: Collection[str] | None) -> dict[str, TopicMetadata | None]:
        """One Metadata request for these topics, or all; the answer is also cached."""
        topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        response = self.call_any(MetadataRequest(topics=topics, allow_auto_topic_creation=False, min_version=4))
        answer: dict[str, TopicMetadata | None] = dict.fromkeys(names or ())
        for item in response.topics:
            if item.error_code in (_NONE_CODE, _LEADER_NOT_AVAILABLE_CODE):
                answer[item.name] = _topic_metadata(item)
            elif item.error_code != _UNKNOWN_TOPIC_CODE:
                raise broker_error(item.error_code, f"looking up topic {item.name!r}")
        with self._lock:
            if response.brokers:
                self._brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
            for name, topic in answer.items():
                if topic is None:
                    self._topics.pop(name, None)
                else:
                    old = self._topics.get(name)
                    answer[name] = kept = _newest(old[0] if old else None, topic)
                    self._topics[name] = (kept, time.monotonic())
        return answer

    # --- offsets -------------------------------------------------------------------------------------------------------

    def list_offsets(
        self,
        positions: Mapping[TopicPartition, Earliest | Latest | Timestamp],
        isolation: Isolation | None = None,
    ) -> dict[TopicPartition, OffsetAnswer]:
        """Turn symbolic positions into offsets, one request per leader (KIP-79, KIP-98).

        `isolation` (default: the configuration's) decides what Latest is: the high watermark, or under read_committed the
        last stable offset. Each request names the leader epoch we know, so a deposed leader refuses to answer (KIP-320), and
        one that does not know its high watermark yet says so (78) instead of answering too low (KAFKA-7703).
        """
        level = self.config.isolation if isolation is None else isolation
        answers: dict[TopicPartition, OffsetAnswer] = {}

        def ask() -> dict[TopicPartition, OffsetAnswer]:
            pending = {tp: position for tp, position in positions.items() if tp not in answers}
            postponed: list[HeadraceError] = []
            for leader, wanted in self._by_leader(pending, postponed).items():
                try:
                    self._list_offsets_of(leader, wanted, level, answers, postponed)
                except RetriableError as error:
                    self._invalidate_all(wanted)
                    postponed.append(error)
            if postponed:
                raise postponed[0]
            return answers

        return self.retrying("listing offsets", ask)

    def _by_leader(
        self, pending: Mapping[TopicPartition, T], postponed: list[HeadraceError]
    ) -> dict[Broker, dict[TopicPartition, tuple[T, int | None]]]:
        self.warm({topic for topic, _ in pending})
        grouped: dict[Broker, dict[TopicPartition, tuple[T, int | None]]] = defaultdict(dict)
        for tp, wanted in pending.items():
            try:
                leader = self.leader(*tp)
            except RetriableError as error:
                postponed.append(error)
            else:
                grouped[leader.broker][tp] = (wanted, leader.epoch)
        return grouped

    def warm(self, topics: set[str]) -> None:
        """One Metadata request for those of the topics whose cache entry is stale. One try; raises as `call_any`."""
        now, age = time.monotonic(), self.config.metadata_max_age_ms / 1000
        with self._lock:
            fresh = {name for name in topics if name in self._topics and now - self._topics[name][1] < age}
        if topics - fresh:
            self._refresh(sorted(topics - fresh))

    def _list_offsets_of(
        self,
        broker: Broker,
        wanted: Mapping[TopicPartition, tuple[Earliest | Latest | Timestamp, int | None]],
        isolation: Isolation,
        answers: dict[TopicPartition, OffsetAnswer],
        postponed: list[HeadraceError],
    ) -> None:
        topics = _grouped(
            ListOffsetsRequest.ListOffsetsTopic,
            (
                (
                    topic,
                    ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                        partition_index=partition,
                        current_leader_epoch=_NO_LEADER_EPOCH if epoch is None else epoch,
                        timestamp=_wire_timestamp(position),
                    ),
                )
                for (topic, partition), (position, epoch) in wanted.items()
            ),
        )
        response = self.call(
            broker,
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=_isolation_level(isolation),
                topics=topics,
                timeout_ms=self.config.request_timeout_ms,
                min_version=2 if isolation is Isolation.READ_COMMITTED else 1,
            ),
        )
        for topic in response.topics:
            for item in topic.partitions:
                tp = (topic.name, item.partition_index)
                if item.error_code == _NONE_CODE:
                    answers[tp] = OffsetAnswer(_or_none(item.offset), _or_none(item.timestamp), _or_none(item.leader_epoch))
                else:
                    self.invalidate(topic.name)
                    where = f"listing offsets of {tp[0]}-{tp[1]} at {broker}"
                    postponed.append(_only_retriable(broker_error(item.error_code, where)))

    # --- groups --------------------------------------------------------------------------------------------------------

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group has committed, in these partitions or (None) anywhere; None where it has committed nothing.

        Under read_committed, offsets of a transaction still open are waited for (KIP-447).
        """

        def ask() -> dict[TopicPartition, CommittedOffset | None]:
            broker = self.coordinator(CoordinatorKind.GROUP, group)
            response = self._call_coordinator(broker, _offset_fetch(group, partitions, self.config.isolation))
            answer: dict[TopicPartition, CommittedOffset | None] = dict.fromkeys(partitions or ())
            body = response.groups[0] if response.API_VERSION >= 8 else response
            self._check_coordinator(body.error_code, f"reading the offsets of group {group!r} from {broker}", group)
            for topic in body.topics:
                for item in topic.partitions:
                    where = f"reading the offset of group {group!r} in {topic.name}-{item.partition_index}"
                    self._check_coordinator(item.error_code, where, group)
                    if item.committed_offset >= 0:
                        epoch = _or_none(item.committed_leader_epoch)
                        committed = CommittedOffset(item.committed_offset, epoch, item.metadata or "")
                        answer[topic.name, item.partition_index] = committed
            return answer

        return self.retrying(f"reading the offsets of group {group!r}", ask)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit next offsets for a group that has no live members of its own; committing the same again is harmless.

        Raises `GroupInUseError` when the group has live members, `RefusedByBrokerError` without Read on the group.
        """
        if not offsets:
            return

        def ask() -> None:
            broker = self.coordinator(CoordinatorKind.GROUP, group)
            response = self._call_coordinator(broker, _offset_commit(group, offsets))
            for topic in response.topics:
                for item in topic.partitions:
                    where = f"committing the offset of group {group!r} in {topic.name}-{item.partition_index}"
                    self._check_coordinator(item.error_code, where, group)

        self.retrying(f"committing offsets of group {group!r}", ask)

    def coordinator(self, kind: CoordinatorKind, key: str) -> Broker:
        """The coordinator of a group or a transactional id, cached until `forget_coordinator`. One try."""
        with self._lock:
            cached = self._coordinators.get((kind, key))
        if cached is not None:
            return cached
        request = FindCoordinatorRequest(key=key, key_type=kind.value, coordinator_keys=[key])
        response = self.call_any(request)
        found = response.coordinators[0] if response.API_VERSION >= 4 else response
        if found.error_code != _NONE_CODE:
            raise broker_error(found.error_code, f"looking for the coordinator of {kind.name.lower()} {key!r}")
        broker = Broker(found.node_id, found.host, found.port)
        with self._lock:
            self._coordinators[kind, key] = broker
        return broker

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        """Look the coordinator up again next time: after codes 15 and 16, or a lost connection."""
        with self._lock:
            self._coordinators.pop((kind, key), None)

    def _call_coordinator(self, broker: Broker, message: Message) -> Message:
        try:
            return self.call(broker, message)
        except RetriableError:
            with self._lock:
                self._coordinators = {key: known for key, known in self._coordinators.items() if known != broker}
            raise

    def _check_coordinator(self, code: int, where: str, group: str) -> None:
        if code != _NONE_CODE:
            self.forget_coordinator(CoordinatorKind.GROUP, group)
            raise broker_error(code, where)

    # --- calls ---------------------------------------------------------------------------------------------------------

    def call(self, broker: Broker, message: Message, timeout_s: float | None = None) -> Message:
        """One request to one broker, tried once, on a connection of its own for the time being. Raises as `Connection` does."""
        connection = self.lease(broker)
        try:
            return connection.request(message, timeout_s)
        finally:
            self.give_back(connection)

    def finalized_features(self) -> dict[str, int]:
        """The cluster's finalised feature levels, asked of any broker, once (KIP-584)."""
        return self._any(Connection.finalized_features)

    def call_any(self, message: Message) -> Message:
        """One request to whichever broker answers first: known ones in random order, then the bootstrap addresses.

        Raises the last `RetriableError` when none can be reached, and any other error at once.
        """
        return self._any(lambda connection: connection.request(message))

    def _any(self, ask: Callable[[Connection], T]) -> T:
        with self._lock:
            known = [(broker.host, broker.port) for broker in self._brokers.values()]
        random.shuffle(known)
        bootstrap = list(self.config.bootstrap_servers)
        random.shuffle(bootstrap)
        last: RetriableError | None = None
        for address in dict.fromkeys(known + bootstrap):
            try:
                connection = self._pool.lease(address)
                try:
                    return ask(connection)
                finally:
                    self._pool.give_back(connection)
            except RetriableError as error:
                last = error
        assert last is not None
        raise last

    def lease(self, broker: Broker) -> Connection:
        """A connection to this broker for the calling thread alone, until `give_back`. Raises as `Connection` does."""
        return self._pool.lease((broker.host, broker.port))

    def give_back(self, connection: Connection) -> None:
        """Return a leased connection, so that the next caller need not connect."""
        self._pool.give_back(connection)

    def retrying(self, what: str, operation: Callable[[], T]) -> T:
        """Run `operation` until it raises no retriable error, at most for `default.api.timeout.ms` (plus one request).

        Raises `DeadlineExceededError`, or `UnknownTopicError` once a missing topic has had 3 s to turn up.
        """
        started = time.monotonic()

        def worth_another_try(error: BaseException) -> bool:
            if isinstance(error, UnknownTopicError) and time.monotonic() - started > _UNKNOWN_TOPIC_GRACE_S:
                return False
            return is_retriable(error) and not self._closed.is_set()

        def give_up(state: tenacity.RetryCallState) -> T:
            assert state.outcome is not None
            error = state.outcome.exception()
            waited = time.monotonic() - started
            raise DeadlineExceededError(
                f"{what}: gave up after {state.attempt_number} tries in {waited:.1f} s; the last error was: {error}"
            ) from error

        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception(worth_another_try),
            stop=tenacity.stop_before_delay(self.config.default_api_timeout_ms / 1000),
            wait=lambda state: self._backoff_s(state.attempt_number),
            sleep=self._pause,
            retry_error_callback=give_up,
        )
        return tries(operation)

    def back_off(self, attempt: int) -> None:
        """Wait as long as is due after so many failed attempts; `close` wakes the caller."""
        self._pause(self._backoff_s(attempt))

    def _backoff_s(self, attempt: int) -> float:
        longest = max(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)
        milliseconds = min(self.config.retry_backoff_ms * 2 ** min(attempt - 1, 30), longest)
        jitter = random.uniform(0.8, 1.2)  # noqa: S311 - as Java's (KIP-580); it is no secret
        return float(milliseconds / 1000 * jitter)

    def _pause(self, seconds: float) -> None:
        self._closed.wait(seconds)

    def _invalidate_all(self, partitions: Iterable[TopicPartition]) -> None:
        for topic in {topic for topic, _ in partitions}:
            self.invalidate(topic)


@functools.lru_cache(maxsize=32)
def shared_cluster(config: ClientConfig) -> KafkaCluster:
    """The process's one cluster for a configuration: its connections outlive readers, so a new reader starts warm.

    A Spark worker process is used for many tasks; this is what makes them cheap. Thread-safe, and safe after a fork.
    """
    return KafkaCluster(config)


_clusters: weakref.WeakSet[KafkaCluster] = weakref.WeakSet()


def _renew_locks() -> None:
    for cluster in _clusters:  # in a forked child: a thread of the parent may have held them
        cluster._lock = threading.Lock()
        cluster._closed = threading.Event()


os.register_at_fork(after_in_child=_renew_locks)


# --- between our types and the wire ------------------------------------------------------------------------------------


def _or_none(value: int) -> int | None:
    return None if value < 0 else value


def _wire_timestamp(position: Earliest | Latest | Timestamp) -> int:
    if isinstance(position, Timestamp):
        return position.ms
    return _EARLIEST if isinstance(position, Earliest) else _LATEST


def _isolation_level(isolation: Isolation) -> int:
    return 1 if isolation is Isolation.READ_COMMITTED else 0


def _only_retriable(error: HeadraceError) -> HeadraceError:
    if not isinstance(error, RetriableError):
        raise error
    return error


def _all_known(answer: Mapping[str, TopicMetadata | None]) -> dict[str, TopicMetadata]:
    missing = frozenset(name for name, topic in answer.items() if topic is None)
    if missing:
        raise UnknownTopicError(missing)
    return {name: topic for name, topic in answer.items() if topic is not None}


def _topic_metadata(item: Message) -> TopicMetadata:
    partitions = {
        p.partition_index: PartitionMetadata(
            leader=_or_none(p.leader_id),
            leader_epoch=_or_none(p.leader_epoch),
            replicas=tuple(p.replica_nodes),
            isr=tuple(p.isr_nodes),
        )
        for p in sorted(item.partitions, key=lambda p: p.partition_index)
    }
    topic_id = item.topic_id if item.topic_id is not None and item.topic_id.int != 0 else None
    return TopicMetadata(item.name, topic_id, partitions, bool(item.is_internal))


def _newest(old: TopicMetadata | None, new: TopicMetadata) -> TopicMetadata:
    """`new`, but a partition keeps what is known of it if a broker lagging behind answered with an older leader epoch."""
    if old is None or old.topic_id != new.topic_id:
        return new
    partitions = {}
    for number, partition in new.partitions.items():
        before = old.partitions.get(number)
        stale = (
            before is not None
            and before.leader_epoch is not None
            and partition.leader_epoch is not None
            and partition.leader_epoch < before.leader_epoch
        )
        partitions[number] = before if stale and before is not None else partition
    return replace(new, partitions=partitions)


def _grouped(topic_class: Message, items: Iterable[tuple[str, Message]]) -> list[Message]:
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for topic, item in items:
        by_topic[topic].append(item)
    return [topic_class(name=topic, partitions=partitions) for topic, partitions in by_topic.items()]


def _offset_fetch(group: str, partitions: Collection[TopicPartition] | None, isolation: Isolation) -> Message:
    groups = OffsetFetchRequest.OffsetFetchRequestGroup
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions or ():
        by_topic[topic].append(partition)

    def topics(topic_class: Message) -> list[Message] | None:
        if partitions is None:
            return None
        return [topic_class(name=topic, partition_indexes=indexes) for topic, indexes in by_topic.items()]

    return OffsetFetchRequest(
        group_id=group,
        topics=topics(OffsetFetchRequest.OffsetFetchRequestTopic),
        groups=[groups(group_id=group, topics=topics(groups.OffsetFetchRequestTopics))],
        require_stable=isolation is Isolation.READ_COMMITTED,
        max_version=9,  # 10 names topics by id (KIP-848's second half) and gains nothing here
    )


def _offset_commit(group: str, offsets: Mapping[TopicPartition, int]) -> Message:
    topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,  # a "simple consumer": no member of the group, only a committer
        member_id="",
        topics=_grouped(
            topic_class,
            (
                (
                    topic,
                    topic_class.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=_NO_LEADER_EPOCH,
                        committed_metadata="",
                    ),
                )
                for (topic, partition), offset in offsets.items()
            ),
        ),
        max_version=9,
    )
