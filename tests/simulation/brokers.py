"""A Kafka cluster as a value, while topics come, go and change. Brokers' metadata may lag; one of them always knows."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from headrace.connectors.kafka.client import topology
from headrace.connectors.kafka.client.errors import UnknownTopicError
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.connectors.kafka.client.offsets import OffsetAnswer
from headrace.connectors.kafka.client.positions import Earliest, Latest
from headrace.connectors.kafka.client.topology import Broker, PartitionMetadata, TopicMetadata, TopicPartition, TopicViews
from headrace.enumerator.errors import OutageError, RetriableError

BROKERS = 3
COORDINATOR = 0
"""The broker that keeps the offsets of groups."""
PARTITIONS_AT_MOST = 4


@dataclass
class PartitionLog:
    """Records by offset, from `start` on, and the leader epochs with their first offsets."""

    topic_id: UUID
    number: int
    records: list[int] = field(default_factory=list)
    start: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def split(self) -> tuple[UUID, int]:
        return self.topic_id, self.number

    def epoch_end(self, epoch: int) -> int:
        """Where the records of this epoch and the previous ones end."""
        return next((first for later, first in self.epochs if later > epoch), self.end)


Topic = list[PartitionLog]


class Brokers:
    """What there is, what each broker knows of it, and what goes wrong with the next calls."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(bootstrap="simulated:9092", group_id=None)
        self.topics: dict[str, Topic] = {}
        self.retired: list[PartitionLog] = []
        self.views: list[dict[str, tuple[UUID, int]]] = [{} for _ in range(BROKERS)]
        self.lagging: set[int] = set()
        self.asked = 0
        self.made = 0
        self.values = 0
        self.places: dict[int, tuple[tuple[UUID, int], int]] = {}
        self.is_away = False
        self.low_answers = 0
        self.dead_broker: int | None = None
        """It is listed, and cannot be asked."""
        self.committed: dict[TopicPartition, tuple[UUID, int]] = {}
        """Offsets of a group, with the topic's id as their coordinator knows it: it drops them when it hears of a deletion."""
        self.cuts: dict[tuple[UUID, int], list[tuple[int, Mapping[str, int]]]] = {}
        """Split -> to where it was truncated, and how many batches each query had planned by then."""
        self.damaged: dict[tuple[UUID, int], int] = {}
        """Split -> offsets below this may be lost: the log was truncated or records have expired."""

    # --- what happens to it -------------------------------------------------------------------------------------------
    def create(self, name: str, partitions: int) -> None:
        if name not in self.topics:
            self.made += 1
            topic_id = UUID(int=self.made)
            self.topics[name] = [PartitionLog(topic_id, number) for number in range(1 + partitions % 3)]
            self.spread()

    def delete(self, name: str) -> None:
        self.retired += self.topics.pop(name, [])
        self.spread()

    def add_partition(self, name: str) -> None:
        topic = self.topics.get(name)
        if topic is not None and len(topic) < PARTITIONS_AT_MOST:
            topic.append(PartitionLog(topic[0].topic_id, len(topic)))
            self.spread()

    def append(self, log: PartitionLog, count: int) -> None:
        for _ in range(count):
            self.places[self.values] = (log.split, log.end)
            log.records.append(self.values)
            self.values += 1

    def new_leader(self, log: PartitionLog, cut: int, batches: Mapping[str, int]) -> None:
        """Another leader, with all records, or without the last `cut` of them (an unclean election)."""
        epoch = log.epochs[-1][0] + 1
        if cut and log.end > log.start:
            keep = max(log.start, log.end - cut)
            self.damaged[log.split] = max(self.damaged.get(log.split, 0), log.end)
            self.cuts.setdefault(log.split, []).append((keep, batches))
            del log.records[keep:]
            log.epochs = [(older, first) for older, first in log.epochs if first <= keep]
        log.epochs.append((epoch, log.end))

    def expire(self, log: PartitionLog, count: int) -> None:
        """Retention takes the oldest records."""
        log.start = min(log.end, log.start + count)
        self.damaged[log.split] = max(self.damaged.get(log.split, 0), log.start)

    def spread(self) -> None:
        """The news reaches every broker that does not lag behind."""
        for number in range(BROKERS):
            if number not in self.lagging:
                self.views[number] = {name: (topic[0].topic_id, len(topic)) for name, topic in self.topics.items()}

    def lag(self, number: int) -> None:
        """This broker hears no news from now on; one of the others still does."""
        if len(self.lagging) < BROKERS - 1:
            self.lagging.add(number % BROKERS)
        if len(self.lagging) == BROKERS:
            self.lagging.discard(number % BROKERS)

    def forget(self, number: int, name: str) -> None:
        """This broker does not know the topic for a while; one of the others still does."""
        self.lag(number)
        if number % BROKERS in self.lagging:
            self.views[number % BROKERS].pop(name, None)

    def settle(self) -> None:
        self.lagging.clear()
        self.is_away, self.dead_broker = False, None
        self.low_answers = 0
        self.spread()

    def logs(self) -> list[PartitionLog]:
        return [log for topic in self.topics.values() for log in topic]

    def log_of(self, topic_id: UUID | None, number: int) -> PartitionLog | None:
        """The log of this topic's lifetime, if it is still there."""
        return next((log for log in self.logs() if log.split == (topic_id, number)), None)

    def agree_but_for_the_dead(self, name: str, topic_id: UUID | None) -> bool:
        """Whether one broker cannot be asked, and none of the others knows the topic by another id."""
        views = [view for number, view in enumerate(self.views) if number != self.dead_broker]
        return self.dead_broker is not None and all(view[name][0] == topic_id for view in views if name in view)

    # --- `KafkaCluster` -----------------------------------------------------------------------------------------------
    def find_topics(self, names: Collection[str]) -> dict[str, TopicMetadata | None]:
        self._reach()
        return {name: self._seen(self._any(), name) for name in names}

    def find_topics_everywhere(self, names: Collection[str]) -> Sequence[Mapping[str, TopicMetadata | None]]:
        return self.topic_views(names).complete()

    def topic_views(self, names: Collection[str]) -> TopicViews:
        self._reach()
        live = [number for number in range(BROKERS) if number != self.dead_broker]
        answers = [(Broker(number, "simulated", 9092), {name: self._seen(number, name) for name in names}) for number in live]
        failure = OutageError("a broker cannot be asked")
        return TopicViews(answers, {} if self.dead_broker is None else dict.fromkeys(names, failure))

    def topics_by(self, wanted: Collection[str] | re.Pattern[str]) -> dict[str, TopicMetadata]:
        self._reach()
        if isinstance(wanted, re.Pattern):
            number = self._any()
            seen = {name: self._seen(number, name) for name in self.views[number] if wanted.fullmatch(name)}
        else:
            seen = {name: self._true(name) for name in wanted}  # asked again until another process knows, or no process does
            unknown = frozenset(name for name, topic in seen.items() if topic is None)
            if unknown:
                raise UnknownTopicError(unknown)
        return {name: topic for name, topic in seen.items() if topic is not None}

    def list_offsets(self, positions: Mapping[TopicPartition, Any], isolation=None) -> dict[TopicPartition, OffsetAnswer]:
        self._reach()
        return {tp: self._offset(tp, position) for tp, position in positions.items()}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        self._reach()
        return {tp: self._log(tp).epoch_end(epoch) for tp, epoch in epochs.items()}

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """By name, whatever the topic is by now."""
        self._reach()
        known = self.views[COORDINATOR]
        self.committed |= {tp: (known[tp[0]][0], at.offset) for tp, at in offsets.items() if tp[0] in known}

    def commit_offsets_by_id(self, group: str, offsets: Mapping[topology.TopicIdPartition, CommittedOffset]) -> None:
        known = {(topic_id, name) for name, (topic_id, _) in self.views[COORDINATOR].items()}
        own = {(name, number): at for (topic_id, name, number), at in offsets.items() if (topic_id, name) in known}
        self.commit_offsets(group, own)

    def published(self) -> dict[tuple[UUID, int], int]:
        """What the group has committed of each split that is there, once the coordinator has heard of its topic."""
        return {(topic_id, number): offset for (_, number), (topic_id, offset) in self.committed.items()}

    def back_off(self, attempt: int) -> None:
        """Time passes."""

    def retrying(self, what: str, operation: Any) -> Any:
        try:
            return operation()
        except UnknownTopicError:
            raise
        except RetriableError as error:
            raise OutageError(f"{what}: {error}") from error

    def _any(self) -> int:
        self.asked += 1
        number = self.asked % BROKERS
        return (number + 1) % BROKERS if number == self.dead_broker else number

    def _reach(self) -> None:
        if self.is_away:
            raise OutageError("no broker answers")

    def _log(self, tp: TopicPartition) -> PartitionLog:
        topic = self.topics.get(tp[0], [])
        if tp[1] >= len(topic):
            raise UnknownTopicError(frozenset({f"{tp[0]}-{tp[1]}"}))
        return topic[tp[1]]

    def _offset(self, tp: TopicPartition, position: Any) -> OffsetAnswer:
        log = self._log(tp)
        match position:
            case Earliest():
                return OffsetAnswer(log.start, leader_epoch=log.epochs[-1][0])
            case Latest():
                if self.low_answers:  # a new leader that does not know its high watermark yet (KAFKA-7703)
                    self.low_answers -= 1
                    return OffsetAnswer(log.start, leader_epoch=log.epochs[-1][0])
                return OffsetAnswer(log.end, leader_epoch=log.epochs[-1][0])
        raise AssertionError(position)

    def _true(self, name: str) -> TopicMetadata | None:
        topic = self.topics.get(name)
        return None if topic is None else _metadata(name, topic[0].topic_id, len(topic))

    def _seen(self, number: int, name: str) -> TopicMetadata | None:
        found = self.views[number].get(name)
        return None if found is None else _metadata(name, *found)


def _metadata(name: str, topic_id: UUID, partitions: int) -> TopicMetadata:
    return TopicMetadata(name, topic_id, {number: PartitionMetadata(0, 0) for number in range(partitions)})


class Cluster:
    """The brokers as the one `KafkaCluster` of the process."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.topics = brokers.topics_by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._brokers, name)
