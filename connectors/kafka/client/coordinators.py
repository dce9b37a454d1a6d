"""Who coordinates a group or a transactional id: FindCoordinator, and the cache of its answers."""

from __future__ import annotations

import threading
from enum import Enum

from headrace.connectors.kafka.client.calls import Calls
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import HiddenCoordinatorError, NoCoordinatorError, broker_error
from headrace.connectors.kafka.client.topology import Broker
from headrace.connectors.kafka.client.wire.protocol import FindCoordinatorRequest, MetadataRequest


class CoordinatorKind(Enum):
    """What a coordinator coordinates; the value is the protocol's."""

    GROUP = 0
    TRANSACTION = 1


_TOPICS = {CoordinatorKind.GROUP: "__consumer_offsets", CoordinatorKind.TRANSACTION: "__transaction_state"}
_HINTS = {
    CoordinatorKind.GROUP: "if it stays so: are there as many brokers as offsets.topic.replication.factor says?",
    CoordinatorKind.TRANSACTION: "if it stays so: are there as many brokers as transaction.state.log.replication.factor says?",
}
_THERE = (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)


class Coordinators:
    """Coordinators by what they coordinate, cached until they are forgotten. Thread-safe."""

    def __init__(self, calls: Calls) -> None:
        """Contacts nothing."""
        self._calls = calls
        self._known: dict[tuple[CoordinatorKind, str], Broker] = {}
        self._found: set[CoordinatorKind] = set()
        self._lock = threading.Lock()

    def start_afresh(self) -> None:
        """In a forked child: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def find(self, kind: CoordinatorKind, key: str) -> Broker:
        """See `KafkaCluster.coordinator`."""
        with self._lock:
            cached = self._known.get((kind, key))
        if cached is not None:
            return cached
        response = self._calls.call_any(FindCoordinatorRequest(key=key, key_type=kind.value, coordinator_keys=[key]))
        found = response.coordinators[0] if response.API_VERSION >= 4 else response
        where = f"looking for the coordinator of {kind.name.lower()} {key!r}"
        if found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            self._refuse_absent(kind, found.error_code, where)
        if found.error_code != ErrorCode.NONE:
            raise broker_error(found.error_code, where)
        self._found.add(kind)
        broker = Broker(found.node_id, found.host, found.port)
        with self._lock:
            self._known[kind, key] = broker
        return broker

    def _refuse_absent(self, kind: CoordinatorKind, code: int, where: str) -> None:
        """Raise NoCoordinatorError if there never was one, and HiddenCoordinatorError if that is not known.

        There has been one that is away now if this process has found one, or a broker knows their topic.
        """
        if kind in self._found:
            return
        wanted = [MetadataRequest.MetadataRequestTopic(name=_TOPICS[kind])]
        answer = self._calls.call_any(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        codes = {topic.error_code for topic in answer.topics}
        if codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
            raise NoCoordinatorError(code, where, _HINTS[kind])
        if codes.isdisjoint(_THERE):
            unseen = f"whether there has ever been one is not known, as that needs the right to Describe {_TOPICS[kind]}"
            raise HiddenCoordinatorError(code, where, f"{unseen}; {_HINTS[kind]}")
        self._found.add(kind)

    def forget(self, kind: CoordinatorKind, key: str) -> None:
        """See `KafkaCluster.forget_coordinator`."""
        with self._lock:
            self._known.pop((kind, key), None)

    def forget_broker(self, broker: Broker) -> None:
        with self._lock:
            self._known = {key: known for key, known in self._known.items() if known != broker}
