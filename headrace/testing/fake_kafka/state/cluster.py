"""The whole cluster's state and what the controller does: sans-I/O, one thread at a time."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.enumerator.errors import UsageError
from headrace.testing.fake_kafka.clock import Clock
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.state import configs
from headrace.testing.fake_kafka.state.brokers import COORDINATOR_PARTITIONS, BrokerState, IsolatedView, coordinator_partition
from headrace.testing.fake_kafka.state.groups import GroupCoordinator
from headrace.testing.fake_kafka.state.logs.batches import read_batch, record_batch
from headrace.testing.fake_kafka.state.logs.cleaning import apply_retention
from headrace.testing.fake_kafka.state.offsets import OffsetAndMetadata, offset_record
from headrace.testing.fake_kafka.state.quotas import Quotas
from headrace.testing.fake_kafka.state.topics import Partition, Topic, TopicTable, placed
from headrace.testing.fake_kafka.state.transactions import ProducerIdentity, TransactionCoordinator, TransactionMetadata
from headrace.testing.fake_kafka.state.users import Users

OFFSETS_TOPIC = "__consumer_offsets"
_INTERNAL = {CoordinatorKind.GROUP: OFFSETS_TOPIC, CoordinatorKind.TRANSACTION: "__transaction_state"}
TRANSACTION_VERSION = "transaction.version"
# Each with its lowest and highest level.
FEATURES = {TRANSACTION_VERSION: (0, 2), "group.version": (0, 1), "metadata.version": (7, 27)}


class ClusterState:
    """Brokers, topics, transactions, groups; every method that refuses raises RefusedError."""

    def __init__(self, brokers: int, clock: Clock, config: Mapping[str, str], users: Users) -> None:
        """`brokers` of them, ids from 1. Raises UsageError for an unknown setting."""
        unknown = sorted(set(config) - set(configs.BROKER_DEFAULTS))
        if unknown:
            raise UsageError(
                f"the fake broker has no setting {', '.join(unknown)}; it has {', '.join(configs.BROKER_DEFAULTS)}"
            )
        self.id: str = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.clock: Clock = clock
        self.config: dict[str, str] = {**configs.BROKER_DEFAULTS, **config}
        self.users: Users = users
        self.brokers: dict[int, BrokerState] = {number: BrokerState(number) for number in range(1, brokers + 1)}
        self.topics: TopicTable = TopicTable()
        self.groups: GroupCoordinator = GroupCoordinator()
        self.quotas: Quotas = Quotas()
        self.features: dict[str, int] = {TRANSACTION_VERSION: 2, "group.version": 1, "metadata.version": 27}
        self.transactions: TransactionCoordinator = TransactionCoordinator(self)
        self.transactions.max_timeout_ms = int(self.config["transaction.max.timeout.ms"])
        self.transactions.id_expiration_ms = int(self.config["transactional.id.expiration.ms"])
        self._retention_checked_ms = clock.now_ms()

    # --- brokers --------------------------------------------------------------------------------------------------------

    def broker(self, number: int) -> BrokerState:
        """Raises UsageError for one that there is not."""
        if number not in self.brokers:
            raise UsageError(f"there is no broker {number}; there are {', '.join(map(str, self.brokers))}")
        return self.brokers[number]

    def members(self) -> list[BrokerState]:
        return [broker for broker in self.brokers.values() if broker.is_member]

    @property
    def controller(self) -> int:
        """The broker that clients take for the controller; any may be asked."""
        return next((broker.id for broker in self.members()), -1)

    def topics_at(self, broker: BrokerState) -> TopicTable:
        return self.topics if broker.isolation is None else broker.isolation.topics

    def brokers_at(self, broker: BrokerState) -> Sequence[BrokerState]:
        return self.members() if broker.isolation is None else broker.isolation.brokers

    def isolate(self, broker: BrokerState) -> None:
        """Cut a broker off from the others, not from its clients: it continues with what it knew."""
        broker.isolation = IsolatedView(self.topics.copy(), tuple(self.members()))
        for partition in broker.isolation.topics.partitions():
            partition.log.hold_high_watermark()
        self.elect()

    def rejoin(self, broker: BrokerState) -> None:
        """Undo `isolate`: what it took meanwhile is lost, as in a truncation to the leader's log."""
        broker.isolation = None
        self.elect()

    def elect(self) -> None:
        members = {broker.id for broker in self.members()}
        for partition in self.topics.partitions():
            partition.elect(members)

    def check_coordinator(self, broker: BrokerState, kind: CoordinatorKind, key: str) -> None:
        """Raise NOT_COORDINATOR, or for a broker that is isolated COORDINATOR_NOT_AVAILABLE."""
        if not broker.is_member:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self.coordinator(kind, key).id != broker.id:
            raise RefusedError(ErrorCode.NOT_COORDINATOR)

    def coordinator(self, kind: CoordinatorKind, key: str) -> BrokerState:
        """The leader of the partition that the group or transactional id belongs to. Raises COORDINATOR_NOT_AVAILABLE."""
        leader = self._internal_partition(_INTERNAL[kind], key).leader
        if leader not in self.brokers:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self.brokers[leader]

    def _internal_partition(self, topic: str, key: str) -> Partition:
        """Of an internal topic, which is made when it is first asked for."""
        if topic not in self.topics.by_name:
            partitions = self.place(topic, 0, COORDINATOR_PARTITIONS, min(len(self.members()), 3))
            self.topics.add(Topic(topic, partitions, {"cleanup.policy": "compact"}))
        return self.topics.partition(topic, coordinator_partition(key))

    def commit_offsets(self, group_id: str, offsets: Mapping[tuple[str, int], OffsetAndMetadata]) -> None:
        """At once, and kept in __consumer_offsets for clients that read that."""
        self.groups.get_or_create(group_id).offsets.committed.update(offsets)
        if offsets:
            now = self.clock.now_ms()
            records = [offset_record(group_id, partition, committed, now) for partition, committed in offsets.items()]
            self._internal_partition(OFFSETS_TOPIC, group_id).log.append(read_batch(record_batch(records, now)))

    # --- topics ---------------------------------------------------------------------------------------------------------

    def create_topic(self, topic: Topic) -> Topic:
        """Raises for a name that is taken or illegal, and for settings that no topic has."""
        for name, value in topic.configs.items():
            configs.check_topic_config(name, value)
        self.topics.add(topic)
        return topic

    def place(self, topic: str, first: int, count: int, replicas: int) -> list[Partition]:
        """New partitions, numbers from `first`. Raises INVALID_PARTITIONS or INVALID_REPLICATION_FACTOR."""
        brokers = [broker.id for broker in self.members()]
        if count < 1:
            raise RefusedError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
        if not 1 <= replicas <= len(brokers):
            said = f"Unable to replicate the partition {replicas} time(s): only {len(brokers)} broker(s) are registered."
            raise RefusedError(ErrorCode.INVALID_REPLICATION_FACTOR, said)
        chosen = {
            index: [brokers[(index + step) % len(brokers)] for step in range(replicas)] for index in range(first, first + count)
        }
        return [placed(topic, index, at) for index, at in chosen.items()]

    def delete_topic(self, topic: Topic) -> None:
        del self.topics.by_name[topic.name]
        for group in self.groups.by_id.values():
            for index in range(len(topic.partitions)):
                group.offsets.committed.pop((topic.name, index), None)

    def setting(self, name: str, topic: str) -> str:
        """The setting in force for a topic. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        return configs.topic_setting(name, self.topics.named(topic).configs, self.config)

    # --- features -------------------------------------------------------------------------------------------------------

    def update_feature(self, name: str, level: int) -> None:
        """UpdateFeatures (57). Raises INVALID_UPDATE_VERSION for what this broker cannot."""
        low, high = FEATURES.get(name, (0, -1))
        if not low <= level <= high:
            said = f"Could not apply finalized feature update: the feature {name} does not support level {level}."
            raise RefusedError(ErrorCode.INVALID_UPDATE_VERSION, said)
        self.features[name] = level
        if name == TRANSACTION_VERSION:
            self.transactions.server_version = level

    # --- the end of transactions ----------------------------------------------------------------------------------------

    def write(self, transaction: TransactionMetadata, producer: ProducerIdentity, *, commit: bool) -> None:
        for name, index in sorted(transaction.partitions):
            if name == OFFSETS_TOPIC:
                self._end_offsets(index, producer.id, commit=commit)
                continue
            topic = self.topics.by_name.get(name)
            if topic is not None and index < len(topic.partitions):  # else it was deleted, and its marker is of no use
                log = topic.partitions[index].log
                log.append_marker(producer.id, producer.epoch, commit=commit, now_ms=self.clock.now_ms())

    def _end_offsets(self, partition: int, producer_id: int, *, commit: bool) -> None:
        for group in self.groups.by_id.values():
            if coordinator_partition(group.id) == partition:
                pending = group.offsets.take_pending(producer_id)
                self.commit_offsets(group.id, pending if commit else {})

    # --- time -----------------------------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Do what is due by the clock; whether anything was done."""
        now = self.clock.now_ms()
        expired = self.transactions.expire(now)
        moved = self.groups.expire(now)
        if now - self._retention_checked_ms >= int(self.config["log.retention.check.interval.ms"]):
            self.apply_retention()
            return True
        return expired or moved

    def due_ms(self) -> int | None:
        """When `tick` will have something to do, but for retention."""
        transactions = self.transactions.look_from_ms
        groups = (due for group in self.groups.by_id.values() for due in group.due_ms())
        return min((*groups, *(() if transactions is None else (transactions,))), default=None)

    def apply_retention(self) -> None:
        """By each topic's retention.ms and retention.bytes, as brokers do every five minutes."""
        self._retention_checked_ms = self.clock.now_ms()
        for topic in self.topics:
            if "delete" not in self.setting("cleanup.policy", topic.name):
                continue
            age, size = (int(self.setting(name, topic.name)) for name in ("retention.ms", "retention.bytes"))
            for partition in topic.partitions:
                apply_retention(partition.log, age, size, self._retention_checked_ms)
