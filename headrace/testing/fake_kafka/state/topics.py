"""Topics and their partitions as the controller knows them: ids, leaders, replicas, epochs; and the logs behind them."""

from __future__ import annotations

import copy
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.state.logs.log import Log

NO_LEADER = -1
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(slots=True)
class Partition:
    """One partition; broker ids in `replicas`, the preferred leader first."""

    topic: str
    index: int
    replicas: list[int]
    isr: list[int]
    leader: int
    epoch: int = 0
    log: Log = field(default_factory=Log)

    def lead(self, broker: int) -> None:
        self.leader = broker
        self.epoch += 1
        if broker != NO_LEADER:
            self.log.epochs.begin(self.epoch, self.log.end_offset)

    def elect(self, members: set[int]) -> None:
        """What the controller does when brokers come or go: ISR, and a leader out of it (clean election)."""
        present = [broker for broker in self.isr if broker in members]
        self.isr = present or self.isr
        if self.leader not in members:
            leader = next((broker for broker in self.replicas if broker in present), NO_LEADER)
            if leader != self.leader:
                self.lead(leader)
        if self.leader != NO_LEADER:
            self.isr += [each for each in self.replicas if each in members and each not in self.isr]

    def check_epoch(self, known: int) -> None:
        """KIP-320: a client that knows an older leader epoch, or a newer one, gets an error. -1: it knows none."""
        if 0 <= known < self.epoch:
            raise RefusedError(ErrorCode.FENCED_LEADER_EPOCH)
        if known > self.epoch:
            raise RefusedError(ErrorCode.UNKNOWN_LEADER_EPOCH)


@dataclass(slots=True)
class Topic:
    """A topic; its id is new whenever it is created again (KIP-516)."""

    name: str
    partitions: list[Partition]
    configs: dict[str, str]
    id: uuid.UUID = field(default_factory=uuid.uuid4)

    @property
    def is_internal(self) -> bool:
        return self.name in {"__consumer_offsets", "__transaction_state"}


class TopicTable:
    """All topics, by name and by id."""

    def __init__(self) -> None:
        self.by_name: dict[str, Topic] = {}

    def __iter__(self) -> Iterator[Topic]:
        return iter([self.by_name[name] for name in sorted(self.by_name)])

    def partitions(self) -> Iterator[Partition]:
        return (partition for topic in self for partition in topic.partitions)

    def add(self, topic: Topic) -> None:
        """Raises TOPIC_ALREADY_EXISTS or INVALID_TOPIC_EXCEPTION."""
        check_name(topic.name)
        if topic.name in self.by_name:
            raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        self.by_name[topic.name] = topic

    def named(self, name: str) -> Topic:
        """Raises UNKNOWN_TOPIC_OR_PARTITION."""
        try:
            return self.by_name[name]
        except KeyError:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, about=f"there is no topic {name!r}") from None

    def identified(self, topic_id: uuid.UUID) -> Topic:
        """Raises UNKNOWN_TOPIC_ID."""
        for topic in self.by_name.values():
            if topic.id == topic_id:
                return topic
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, about=f"there is no topic with the id {topic_id}")

    def partition(self, name: str, index: int) -> Partition:
        """Raises UNKNOWN_TOPIC_OR_PARTITION."""
        partitions = self.named(name).partitions
        if not 0 <= index < len(partitions):
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, about=f"topic {name!r} has no partition {index}")
        return partitions[index]

    def copy(self) -> TopicTable:
        """As a broker that is isolated continues seeing them: its logs have their own future."""
        twin = TopicTable()
        for topic in self:
            partitions = [copy.copy(partition) for partition in topic.partitions]
            for partition in partitions:
                partition.log = partition.log.copy()
            twin.by_name[topic.name] = Topic(topic.name, partitions, dict(topic.configs), topic.id)
        return twin


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for what is not a topic's name."""
    if name in {".", ".."} or not _LEGAL_NAME.fullmatch(name):
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {name!r}")


def placed(topic: str, index: int, replicas: Sequence[int]) -> Partition:
    """A new partition at these brokers, the preferred leader first."""
    return Partition(topic, index, list(replicas), list(replicas), replicas[0])
