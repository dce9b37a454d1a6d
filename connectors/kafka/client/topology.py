"""What a cluster consists of: brokers, topics, partitions and their leaders, as plain values; and whether it was ever there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from uuid import UUID

from headrace.enumerator.errors import PeerError

TopicPartition = tuple[str, int]
"""(topic, partition number)."""

TopicIdPartition = tuple[UUID | None, str, int]
"""(topic id, topic, partition number): of one lifetime of the topic. The id is None where brokers have none (before Kafka
2.8).
"""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker as it advertises itself."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"broker {self.node_id} ({self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition, and since which epoch (None where the broker is too old to tell)."""

    broker: Broker
    epoch: int | None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """A partition: `leader` is a node id, None while there is none."""

    leader: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic: its id (None before Kafka 2.8) distinguishes it from an earlier one of the same name; partitions by number."""

    name: str
    topic_id: UUID | None
    partitions: dict[int, PartitionMetadata]
    internal: bool = False


@dataclass(frozen=True, slots=True)
class TopicViews:
    """What the live brokers know of some topics, each asked for itself. Any of them may lag behind, or be isolated.

    One that knows a topic proves that it is there. That none knows it, or that none knows it by another id, is proven by all.
    """

    answers: Sequence[tuple[Broker, Mapping[str, TopicMetadata | None]]]
    """Each broker that has answered, and topic name -> how it knows the topic; None if it does not. Without what it refuses."""
    failures: Mapping[str, PeerError] = field(default_factory=dict)
    """Topic name -> why a broker has not reported it: it could not be asked, or has refused."""

    def complete(self) -> Sequence[Mapping[str, TopicMetadata | None]]:
        """The answers, if every broker has reported every topic; raises the first of the failures else."""
        self.require(self.failures)
        return [answer for _, answer in self.answers]

    def require(self, names: Iterable[str]) -> None:
        """Raise what has kept a broker from telling of one of these topics, if anything has."""
        for name in sorted(names):
            if name in self.failures:
                raise self.failures[name]

    def known(self, name: str) -> list[TopicMetadata]:
        return [topic for _, answer in self.answers if (topic := answer.get(name)) is not None]

    def denials(self, name: str) -> int:
        return sum(name in answer and answer[name] is None for _, answer in self.answers)

    def ids(self, name: str) -> set[UUID]:
        """Every id by which a broker knows the topic; empty if none does, or where brokers have no ids."""
        return {topic.topic_id for topic in self.known(name) if topic.topic_id is not None}

    def reported(self, name: str) -> str:
        """By which id each broker knows the topic, for an error message: `<id> (broker 1 (a:9092)), <id> (broker 2 (b:1))`."""
        views = ((broker, answer.get(name)) for broker, answer in self.answers)
        return ", ".join(f"{topic.topic_id} ({broker})" for broker, topic in views if topic is not None)

    def has(self, name: str, topic_id: UUID | None, partition: int) -> bool:
        """Whether a broker knows this partition, of the topic with this id (None, as of old brokers: of any of that name)."""
        return any(topic_id in (None, topic.topic_id) and partition in topic.partitions for topic in self.known(name))


class Contact(Enum):
    """What this process knows of the cluster's being there."""

    NONE = auto()
    """Nothing: what is taken for an outage may be a wrong address."""
    VOUCHED = auto()
    """Another process of the run has reached it; from here it may be out of reach for ever."""
    ANSWERED = auto()
    """A broker has answered this process, at an address that the cluster itself has named.

    A bootstrap address alone proves little: what it names may be addresses that cannot be reached from here.
    """
