"""A Kafka cluster: topics, offsets and groups, over pooled connections, with one retry policy and one metadata cache.

Every public method is synchronous, contacts nothing before it is called, and may be called from any thread. Retriable errors
are retried as the Java client does: metadata refreshed, exponential backoff with jitter from `retry.backoff.ms` to
`retry.backoff.max.ms`, for 60 s: then `OutageError`, which is retriable, says what the last error was. Where
`default.api.timeout.ms` is set, it is the limit, and the error is `DeadlineExceededError`, which is not.
"""

from __future__ import annotations

import functools
import os
import re
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import TypeVar
from uuid import UUID

from headrace.connectors.kafka.client.calls import Calls
from headrace.connectors.kafka.client.coordinators import CoordinatorKind, Coordinators
from headrace.connectors.kafka.client.groups import CommittedOffset, Groups
from headrace.connectors.kafka.client.metadata import Metadata
from headrace.connectors.kafka.client.offsets import OffsetAnswer, Offsets
from headrace.connectors.kafka.client.positions import Symbol
from headrace.connectors.kafka.client.properties import ClientConfig, Isolation
from headrace.connectors.kafka.client.retries import Outage, Retries
from headrace.connectors.kafka.client.topology import (
    Broker,
    Leader,
    TopicIdPartition,
    TopicMetadata,
    TopicPartition,
    TopicViews,
)
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.pool import ConnectionPool
from headrace.connectors.kafka.client.wire.protocol import Message

T = TypeVar("T")


class KafkaCluster:
    """A Kafka cluster. Cheap to make and to pickle (as its configuration); contacts nothing until used; thread-safe.

    Use it as a context manager or call `close`. After a fork the child connects again.
    """

    _endures = False

    def __init__(self, config: ClientConfig) -> None:
        """Contacts nothing."""
        self.config = config
        self._pool = ConnectionPool(config)
        self._calls = Calls(config, self._pool)
        self._retries = Retries(config, self._calls.contact if self._endures else None)
        self._metadata = Metadata(config, self._calls, self._retries)
        self._offsets = Offsets(config, self._calls, self._retries, self._metadata)
        self._coordinators = Coordinators(self._calls)
        self._groups = Groups(config.isolation, self._calls, self._retries, self._coordinators, self._metadata)
        _clusters.add(self)
        weakref.finalize(self, self._pool.close)  # no one need close a cluster that the whole process shares

    def __reduce__(self) -> tuple[type[KafkaCluster], tuple[ClientConfig]]:
        return type(self), (self.config,)

    def __enter__(self) -> KafkaCluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, and wake every thread that waits for an answer, a quota or between two tries."""
        self._retries.close()
        self._pool.close()

    @property
    def outage(self) -> Outage:
        """What waits for brokers now, for the log. A caller that retries by itself, with `back_off`, reports to it."""
        return self._retries.outage

    # --- topics --------------------------------------------------------------------------------------------------------

    def topics(self, wanted: Collection[str] | re.Pattern[str]) -> dict[str, TopicMetadata]:
        """The named topics, or all whose whole name the pattern matches, asked now (never from the cache).

        As with Java's `subscribe(Pattern)`, a pattern matches no internal topics unless `exclude.internal.topics` is false; a
        name may be one. Raises `UnknownTopicError` naming the topics that no broker knows, after a grace of 3 s for new ones.
        """
        return self._metadata.topics(wanted)

    def find_topics(self, names: Collection[str]) -> dict[str, TopicMetadata | None]:
        """The named topics as one broker knows them now; None for one that it does not know. No grace for new topics."""
        return self._metadata.find_topics(names)

    def find_topics_everywhere(self, names: Collection[str]) -> Sequence[Mapping[str, TopicMetadata | None]]:
        """`find_topics`, by every live broker for itself: what none of them knows is gone, and not just unknown to one.

        One try; raises as `call` when one of them cannot be asked, or refuses.
        """
        return self.topic_views(names).complete()

    def topic_views(self, names: Collection[str]) -> TopicViews:
        """What every live broker knows of the topics now, and why one has not reported some. One try, of all of them at
        once.
        """
        return self._metadata.topic_views(names)

    def leader(self, topic: str, partition: int) -> Leader:
        """The partition's leader, from the cache unless it is older than `metadata.max.age.ms` or invalidated.

        One try only. Raises `RetriableError` while there is no leader, `UnknownTopicError` when no such partition is known.
        """
        return self._metadata.leader(topic, partition)

    def topic_id(self, topic: str) -> UUID | None:
        """The topic's id, from the cache; None where brokers have no ids. One try only; raises like `leader`."""
        return self._metadata.topic_id(topic)

    def broker(self, node_id: int) -> Broker | None:
        return self._calls.broker(node_id)

    def brokers(self) -> tuple[Broker, ...]:
        return self._metadata.brokers()

    def warm(self, topics: set[str]) -> set[str]:
        """One Metadata request for those of the topics whose cache entry is stale; returns those that the broker does not know.

        One try; raises as `call_any`.
        """
        return self._metadata.warm(topics)

    def invalidate(self, topic: str) -> None:
        """Forget what is cached about a topic, so that the next question goes to a broker."""
        self._metadata.invalidate([topic])

    # --- offsets and groups --------------------------------------------------------------------------------------------

    def list_offsets(
        self, positions: Mapping[TopicPartition, Symbol], isolation: Isolation | None = None
    ) -> dict[TopicPartition, OffsetAnswer]:
        """Turn symbolic positions into offsets, one request per leader (KIP-79, KIP-98).

        `isolation` (default: the configuration's) decides what Latest is: the high watermark, or under read_committed the
        last stable offset. Each request names the leader epoch we know, so a deposed leader refuses to answer (KIP-320), and
        one that does not know its high watermark yet says OFFSET_NOT_AVAILABLE instead of answering too low (KAFKA-7703).
        """
        return self._offsets.list_offsets(positions, isolation)

    def offset_range(self, topic: str, partition: int) -> tuple[int | None, int | None]:
        """The first offset that the partition's leader has, and the first one not yet written. One try, so that a leader
        that is away holds up no other process; raises as `leader` and `call`.
        """
        return self._offsets.bounds((topic, partition))

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Where the records of these leader epochs, and of all before them, end in the log as its leader has it now (KIP-320).

        None where the leader cannot tell. An end before what was read under that epoch means that the log was truncated.
        """
        return self._offsets.epoch_ends(epochs)

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group has committed, in these partitions or (None) anywhere; None where it has committed nothing.

        Under read_committed, offsets of a transaction still open are waited for (KIP-447).
        """
        return self._groups.committed(group, partitions)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit next offsets for a group that has no live members of its own; committing the same again is harmless.

        Raises `GroupInUseError` when the group has live members, `RefusedByBrokerError` without Read on the group.
        """
        self._groups.commit(group, offsets)

    def commit_offsets_by_id(self, group: str, offsets: Mapping[TopicIdPartition, CommittedOffset]) -> None:
        """`commit_offsets`, leaving out those whose topic the group's coordinator does not know under this id now (I5).

        Offsets are committed by name. The broker that keeps them drops those of a topic when it hears that it was deleted; so
        where the same broker still knew the topic, none stays behind for a topic that is recreated under the name. What any
        other broker knows proves nothing. One without an id, as of brokers before 2.8, is of any topic of its name.

        Tried for 10 s, and once where the previous call for the group has failed: later offsets will be committed in its place.
        """
        self._groups.commit_by_id(group, offsets)

    def coordinator(self, kind: CoordinatorKind, key: str) -> Broker:
        """The coordinator of a group or a transactional id, cached until `forget_coordinator`. One try."""
        return self._coordinators.find(kind, key)

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        """Ask for the coordinator again next time: after COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR or a lost connection."""
        self._coordinators.forget(kind, key)

    # --- calls ---------------------------------------------------------------------------------------------------------

    def call(self, broker: Broker, message: Message, timeout_s: float | None = None) -> Message:
        """One request to one broker, tried once on a connection that is its own meanwhile. Raises as `Connection` does."""
        return self._calls.call(broker, message, timeout_s)

    def call_any(self, message: Message) -> Message:
        """One request to whichever broker answers first: known ones in random order, then the bootstrap addresses.

        Raises the last `RetriableError` when none can be reached, and any other error at once.
        """
        return self._calls.call_any(message)

    def finalized_features(self) -> dict[str, int]:
        """The cluster's finalised feature levels, asked of any broker, once (KIP-584)."""
        return self._calls.finalized_features()

    def lease(self, broker: Broker) -> Connection:
        """A connection to this broker for the calling thread alone, until `give_back`. Raises as `Connection` does."""
        return self._calls.lease(broker)

    def give_back(self, connection: Connection) -> None:
        """Return a leased connection, so that the next caller need not connect."""
        self._calls.give_back(connection)

    def retrying(self, what: str, operation: Callable[[], T]) -> T:
        """Run `operation` until it raises no retriable error, at most for `default.api.timeout.ms` (plus one request).

        Raises `DeadlineExceededError`, or where that is not set `OutageError` after 60 s, which is retriable; and
        `UnknownTopicError` once a missing topic has had 3 s to turn up.
        """
        return self._retries.run(what, operation)

    def back_off(self, attempt: int, error: BaseException | None = None) -> None:
        """Wait as long as is due after this many failed attempts, the last with this error; `close` wakes the caller."""
        self._retries.back_off(attempt, error)

    def _start_afresh(self) -> None:
        for part in (self._retries, self._metadata, self._coordinators):
            part.start_afresh()


@functools.lru_cache(maxsize=32)
def shared_cluster(config: ClientConfig) -> KafkaCluster:
    """The process's one cluster for a configuration: its connections outlive readers, so a new reader starts warm.

    An engine's worker process is used for many tasks; this is what makes them cheap. Thread-safe, and safe after a fork.
    """
    return KafkaCluster(config)


class EnduringCluster(KafkaCluster):
    """As `KafkaCluster`, but its calls ride out an outage of any length, where `default.api.timeout.ms` is not set.

    For work that cannot be put off and taken up again later: an engine would end the job for it. The first contact is bounded,
    so that a wrong address is an error: until a broker has answered in this process, calls raise `DeadlineExceededError`
    after 60 s; after `transaction.timeout.ms`, and 15 minutes at least, if another process vouches for the address (`vouch`).
    """

    _endures = True

    def vouch(self) -> None:
        """The cluster was reached by another process of this run: it is there, and away, or out of reach from here."""
        self._calls.vouch()


@functools.lru_cache(maxsize=32)
def enduring_cluster(config: ClientConfig) -> EnduringCluster:
    """As `shared_cluster`, for calls that ride out an outage of any length."""
    return EnduringCluster(config)


_clusters: weakref.WeakSet[KafkaCluster] = weakref.WeakSet()


def _renew_locks() -> None:
    for cluster in _clusters:  # in a forked child; the connection pools see to themselves
        cluster._start_afresh()


os.register_at_fork(after_in_child=_renew_locks)
