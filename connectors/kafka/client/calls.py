"""Single requests, each tried once: to one broker, or to whichever answers first."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TypeVar

from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.topology import Broker, Contact
from headrace.connectors.kafka.client.wire.addresses import bootstrap_addresses
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.pool import ConnectionPool
from headrace.connectors.kafka.client.wire.protocol import Message
from headrace.enumerator.errors import RetriableError

T = TypeVar("T")


class Calls:
    """Requests over the pool's connections, and the brokers that they can go to. Thread-safe."""

    def __init__(self, config: ClientConfig, pool: ConnectionPool) -> None:
        """Knows the bootstrap addresses only, until `learn`."""
        self._config = config
        self._pool = pool
        self._brokers: dict[int, Broker] = {}  # replaced as a whole, never changed: no lock is needed to read it
        self._has_answered = self._is_vouched_for = False

    @property
    def brokers(self) -> tuple[Broker, ...]:
        return tuple(self._brokers.values())

    def broker(self, node_id: int) -> Broker | None:
        return self._brokers.get(node_id)

    def contact(self) -> Contact:
        if self._has_answered:
            return Contact.ANSWERED
        return Contact.VOUCHED if self._is_vouched_for else Contact.NONE

    def vouch(self) -> None:
        """See `EnduringCluster.vouch`."""
        self._is_vouched_for = True

    def learn(self, brokers: Iterable[Broker]) -> None:
        self._brokers = {broker.node_id: broker for broker in brokers}

    def call(self, broker: Broker, message: Message, timeout_s: float | None = None) -> Message:
        """See `KafkaCluster.call`."""
        connection = self.lease(broker)
        try:
            answer = connection.request(message, timeout_s)
        finally:
            self.give_back(connection)
        self._has_answered = True
        return answer

    def call_any(self, message: Message) -> Message:
        """See `KafkaCluster.call_any`."""
        return self._any(lambda connection: connection.request(message))

    def finalized_features(self) -> dict[str, int]:
        """See `KafkaCluster.finalized_features`."""
        return self._any(Connection.finalized_features)

    def lease(self, broker: Broker) -> Connection:
        """See `KafkaCluster.lease`."""
        return self._pool.lease((broker.host, broker.port))

    def give_back(self, connection: Connection) -> None:
        """See `KafkaCluster.give_back`."""
        self._pool.give_back(connection)

    def _any(self, ask: Callable[[Connection], T]) -> T:
        known = [(broker.host, broker.port) for broker in self.brokers]
        random.shuffle(known)
        bootstrap = list(bootstrap_addresses(self._config))
        random.shuffle(bootstrap)
        last: RetriableError | None = None
        # Those that could not be reached come last: a host that is off answers nothing for all of the connection timeout.
        for address in sorted(dict.fromkeys(known + bootstrap), key=self._pool.is_failing):
            try:
                connection = self._pool.lease(address)
                try:
                    answer = ask(connection)
                finally:
                    self.give_back(connection)
                if address in known:
                    self._has_answered = True
                return answer
            except RetriableError as error:
                last = error
        assert last is not None
        raise last
