"""The offsets that consumer groups have committed: OffsetFetch and OffsetCommit, to a group's coordinator."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headrace.connectors.kafka.client.calls import Calls
from headrace.connectors.kafka.client.coordinators import CoordinatorKind, Coordinators
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import broker_error
from headrace.connectors.kafka.client.metadata import Metadata
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.client.retries import Retries, giving_up_when
from headrace.connectors.kafka.client.topology import Broker, TopicIdPartition, TopicMetadata, TopicPartition
from headrace.connectors.kafka.client.wire.protocol import Message, OffsetCommitRequest, OffsetFetchRequest, or_none
from headrace.enumerator.errors import PeerError, RetriableError

_NO_LEADER_EPOCH = -1
_COMMIT_S = 10.0
"""How long positions are tried to be committed: reading waits for it, and later ones will be."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next offset that a group will read of a partition, as it committed it.

    `leader_epoch`: that of the record before, or a later one whose leader's log held all before the offset (KIP-320).
    """

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


class Groups:
    """Reads and commits offsets of groups, as a client that is not a member of them. Thread-safe."""

    def __init__(
        self, isolation: Isolation, calls: Calls, retries: Retries, coordinators: Coordinators, metadata: Metadata
    ) -> None:
        """Contacts nothing."""
        self._isolation, self._calls, self._retries, self._coordinators = isolation, calls, retries, coordinators
        self._metadata = metadata
        self._uncommitted: set[str] = set()

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """See `KafkaCluster.committed_offsets`."""

        def ask() -> dict[TopicPartition, CommittedOffset | None]:
            broker = self._find(group)
            response = self._call(broker, _offset_fetch(group, partitions, self._isolation))
            answer: dict[TopicPartition, CommittedOffset | None] = dict.fromkeys(partitions or ())
            body = response.groups[0] if response.API_VERSION >= 8 else response
            self._check(body.error_code, f"reading the offsets of group {group!r} from {broker}", group)
            for topic in body.topics:
                for item in topic.partitions:
                    where = f"reading the offset of group {group!r} in {topic.name}-{item.partition_index}"
                    self._check(item.error_code, where, group)
                    if item.committed_offset >= 0:
                        answer[topic.name, item.partition_index] = _committed_offset(item)
            return answer

        return self._retries.run(f"reading the offsets of group {group!r}", ask)

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """See `KafkaCluster.commit_offsets`."""
        self._retries.run(f"committing offsets of group {group!r}", lambda: self._commit_at(self._find(group), group, offsets))

    def commit_by_id(self, group: str, offsets: Mapping[TopicIdPartition, CommittedOffset]) -> None:
        """See `KafkaCluster.commit_offsets_by_id`."""

        def ask() -> None:
            broker = self._find(group)
            topics = self._topics_at(broker, {topic for _, topic, _ in offsets})
            there = {(topic.topic_id, name) for name, topic in topics.items() if topic is not None}
            there |= {(None, name) for _, name in there}  # a position without an id is of any topic of its name
            own = {(topic, part): at for (topic_id, topic, part), at in offsets.items() if (topic_id, topic) in there}
            self._commit_at(broker, group, own)

        if not offsets:
            return
        limit = time.monotonic() + (0.0 if group in self._uncommitted else _COMMIT_S)
        try:
            with giving_up_when(lambda: time.monotonic() >= limit):
                self._retries.run(f"committing offsets of group {group!r}", ask)
        except PeerError:
            self._uncommitted.add(group)
            raise
        self._uncommitted.discard(group)

    def _topics_at(self, broker: Broker, names: Collection[str]) -> dict[str, TopicMetadata | None]:
        try:
            return self._metadata.find_topics_at(broker, names)
        except RetriableError:
            self._coordinators.forget_broker(broker)
            raise

    def _find(self, group: str) -> Broker:
        return self._coordinators.find(CoordinatorKind.GROUP, group)

    def _commit_at(self, broker: Broker, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        if not offsets:
            return
        response = self._call(broker, _offset_commit(group, offsets))
        for topic in response.topics:
            for item in topic.partitions:
                where = f"committing the offset of group {group!r} in {topic.name}-{item.partition_index}"
                self._check(item.error_code, where, group)

    def _call(self, broker: Broker, message: Message) -> Message:
        try:
            return self._calls.call(broker, message)
        except RetriableError:
            self._coordinators.forget_broker(broker)
            raise

    def _check(self, code: int, where: str, group: str) -> None:
        if code != ErrorCode.NONE:
            self._coordinators.forget(CoordinatorKind.GROUP, group)
            raise broker_error(code, where)


def _committed_offset(item: Message) -> CommittedOffset:
    return CommittedOffset(item.committed_offset, or_none(item.committed_leader_epoch), item.metadata or "")


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
    )


def _offset_commit(group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> Message:
    topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
    by_topic: dict[str, list[Message]] = defaultdict(list)
    for (topic, partition), offset in offsets.items():
        by_topic[topic].append(
            topic_class.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=_NO_LEADER_EPOCH if offset.leader_epoch is None else offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,  # a "simple consumer": no member of the group, only a committer
        member_id="",
        topics=[topic_class(name=topic, partitions=partitions) for topic, partitions in by_topic.items()],
    )
