"""Topics, partitions and leaders: Metadata requests, and the cache of what they answered."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from uuid import UUID

from headrace.connectors.kafka.client.calls import Calls
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import RefusedByBrokerError, UnknownPartitionError, UnknownTopicError, broker_error
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.retries import Retries
from headrace.connectors.kafka.client.topology import Broker, Leader, PartitionMetadata, TopicMetadata, TopicViews
from headrace.connectors.kafka.client.wire.protocol import Message, MetadataRequest, or_none
from headrace.enumerator.errors import PeerError, RetriableError

_ASKED_AT_ONCE = 32

_Answer = dict[str, TopicMetadata | None]
_Failures = dict[str, PeerError]


@dataclass(frozen=True, slots=True)
class _Cached:
    """A topic as it was last answered. Both times are on `time.monotonic`'s clock.

    It is not asked for again before `settled_at`, whatever is said of it: else each partition without a leader would ask.
    """

    topic: TopicMetadata
    fresh_until: float
    settled_at: float

    def is_fresh(self, now: float) -> bool:
        return now < max(self.fresh_until, self.settled_at)


class Metadata:
    """Topics as brokers know them, asked now or cached for `metadata.max.age.ms`. Thread-safe."""

    def __init__(self, config: ClientConfig, calls: Calls, retries: Retries) -> None:
        """Contacts nothing."""
        self._max_age_s = config.metadata_max_age_ms / 1000
        self._settling_s = config.retry_backoff_ms / 1000 / 2  # less than any backoff between two tries
        self._excludes_internal = config.exclude_internal_topics
        self._calls, self._retries = calls, retries
        self._topics: dict[str, _Cached] = {}
        self._lock = threading.Lock()

    def start_afresh(self) -> None:
        """In a forked child: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def topics(self, wanted: Collection[str] | re.Pattern[str]) -> dict[str, TopicMetadata]:
        """See `KafkaCluster.topics`."""
        if isinstance(wanted, re.Pattern):
            known = self._retries.run("listing topics", lambda: self._refresh(None))
            there = ((name, topic) for name, topic in known.items() if topic is not None and wanted.fullmatch(name))
            return {name: topic for name, topic in there if not (topic.internal and self._excludes_internal)}
        return self._retries.run("looking up topics", lambda: _all_known(self._refresh(wanted)))

    def find_topics(self, names: Collection[str]) -> dict[str, TopicMetadata | None]:
        """See `KafkaCluster.find_topics`."""
        return self._retries.run("looking up topics", lambda: self._refresh(names))

    def topic_views(self, names: Collection[str]) -> TopicViews:
        """See `KafkaCluster.topic_views`."""
        try:
            self._refresh(())
        except RetriableError as error:
            return TopicViews([], dict.fromkeys(names, error))
        brokers = self._calls.brokers
        if not brokers:
            nobody = f"no broker names any live one, so none could be asked for {', '.join(sorted(names))}"
            return TopicViews([], dict.fromkeys(names, RetriableError(nobody)))
        reported: list[tuple[_Answer, _Failures]] = []
        for first in range(0, len(brokers), _ASKED_AT_ONCE):
            asked = [self._asked(broker, names) for broker in brokers[first : first + _ASKED_AT_ONCE]]
            reported += [answer.result() for answer in asked]
        answers = [(broker, answer) for broker, (answer, _) in zip(brokers, reported, strict=True) if answer]
        failures = [item for _, found in reported for item in found.items()]
        failures.sort(key=lambda item: isinstance(item[1], RetriableError))  # of those of a topic one that is transient counts
        return TopicViews(answers, dict(failures))

    def _asked(self, broker: Broker, names: Collection[str]) -> Future[tuple[_Answer, _Failures]]:
        """One that is silent holds up no other. A thread that ends with the process: no one need wait for it to be gone."""
        answer: Future[tuple[_Answer, _Failures]] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._view(broker, names))
            except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
                answer.set_exception(error)

        threading.Thread(target=ask, name=f"headrace-view-{broker.node_id}", daemon=True).start()
        return answer

    def _view(self, broker: Broker, names: Collection[str]) -> tuple[_Answer, _Failures]:
        try:
            return _told(names, self._calls.call(broker, _request(names)))
        except (RetriableError, RefusedByBrokerError) as error:
            return {}, dict.fromkeys(names, error)

    def find_topics_at(self, broker: Broker, names: Collection[str]) -> dict[str, TopicMetadata | None]:
        """The named topics as this broker knows them now; None for one that it does not know. One try; nothing is cached."""
        return _answer(names, self._calls.call(broker, _request(names)))

    def brokers(self) -> tuple[Broker, ...]:
        """See `KafkaCluster.brokers`."""
        self._retries.run("listing brokers", lambda: self._refresh(()))
        return self._calls.brokers

    def leader(self, topic: str, partition: int) -> Leader:
        """See `KafkaCluster.leader`."""
        found = self._cached(topic).partitions.get(partition)
        if found is None:
            self.invalidate([topic])
            raise UnknownPartitionError(topic, partition)
        broker = None if found.leader is None else self._calls.broker(found.leader)
        if broker is None:
            self.invalidate([topic])
            raise RetriableError(f"{topic}-{partition} has no leader at the moment")
        return Leader(broker, found.leader_epoch)

    def topic_id(self, topic: str) -> UUID | None:
        """See `KafkaCluster.topic_id`."""
        return self._cached(topic).topic_id

    def warm(self, topics: set[str]) -> set[str]:
        """See `KafkaCluster.warm`."""
        now = time.monotonic()
        with self._lock:
            fresh = {name for name in topics if name in self._topics and self._topics[name].is_fresh(now)}
        answer = self._refresh(sorted(topics - fresh)) if topics - fresh else {}
        return {name for name, topic in answer.items() if topic is None}

    def invalidate(self, topics: Iterable[str]) -> None:
        """See `KafkaCluster.invalidate`. Leader epochs are remembered: see `_newest`."""
        with self._lock:
            for name in topics:
                if name in self._topics:
                    self._topics[name] = replace(self._topics[name], fresh_until=0.0)

    def _cached(self, topic: str) -> TopicMetadata:
        with self._lock:
            entry = self._topics.get(topic)
        if entry is not None and entry.is_fresh(time.monotonic()):
            return entry.topic
        return _all_known(self._refresh([topic]))[topic]

    def _refresh(self, names: Collection[str] | None) -> dict[str, TopicMetadata | None]:
        """One Metadata request for these topics, or all; the answer is also cached."""
        response = self._calls.call_any(_request(names))
        if getattr(response, "error_code", None):
            self._calls.learn(())  # so that the bootstrap addresses are asked (KIP-1102)
        answer = _answer(names, response)
        if response.brokers:
            self._calls.learn(Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers)
        return self._keep(answer)

    def _keep(self, answer: Mapping[str, TopicMetadata | None]) -> dict[str, TopicMetadata | None]:
        """Cache an answer; returns it with the newer leaders that are known already."""
        kept: dict[str, TopicMetadata | None] = {}
        with self._lock:
            for name, topic in answer.items():
                old = self._topics.pop(name, None)
                kept[name] = None
                if topic is not None:
                    newest = kept[name] = _newest(old.topic if old else None, topic)
                    now = time.monotonic()
                    self._topics[name] = _Cached(newest, now + self._max_age_s, now + self._settling_s)
        return kept


def _request(names: Collection[str] | None) -> Message:
    topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def _answer(names: Collection[str] | None, response: Message) -> _Answer:
    answer, failures = _told(names, response)
    for error in failures.values():
        raise error
    return answer


def _told(names: Collection[str] | None, response: Message) -> tuple[_Answer, _Failures]:
    """What the broker knows of each topic, and why it does not tell of others. Raises what it reports about the whole
    answer.
    """
    if getattr(response, "error_code", None):  # from version 13 on
        raise broker_error(response.error_code, "looking up the cluster")
    answer: _Answer = dict.fromkeys(names or ())
    failures: _Failures = {}
    for item in response.topics:
        if item.partitions and item.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            answer[item.name] = _topic_metadata(item)
        elif item.error_code == ErrorCode.LEADER_NOT_AVAILABLE and names is None:
            continue  # just being created: of a list of all it is a part when it has partitions
        elif item.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            answer.pop(item.name, None)
            failures[item.name] = broker_error(item.error_code, f"looking up topic {item.name!r}")
    return answer, failures


def _all_known(answer: Mapping[str, TopicMetadata | None]) -> dict[str, TopicMetadata]:
    missing = frozenset(name for name, topic in answer.items() if topic is None)
    if missing:
        raise UnknownTopicError(missing)
    return {name: topic for name, topic in answer.items() if topic is not None}


def _topic_metadata(item: Message) -> TopicMetadata:
    partitions = {
        p.partition_index: PartitionMetadata(
            leader=or_none(p.leader_id),
            leader_epoch=or_none(p.leader_epoch),
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
