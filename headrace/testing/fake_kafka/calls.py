"""One request on its way through the broker: what a handler sees of it, and how it says "not yet"."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import Header, Message
from headrace.testing.fake_kafka.state.brokers import BrokerState
from headrace.testing.fake_kafka.state.cluster import ClusterState
from headrace.testing.fake_kafka.state.topics import Partition, Topic
from headrace.testing.fake_kafka.state.users import SaslExchange


@dataclass(slots=True)
class Peer:
    """A client's connection: who it is, and how far its authentication has come.

    `session_ends_ms`: by the cluster's clock, when it has to have authenticated again (KIP-368); None: it has not to.
    """

    host: str
    user: str = "ANONYMOUS"
    is_authenticated: bool = True
    exchange: SaslExchange | None = None
    session_ends_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that a script wants answered, where the broker would look for it; None: any topic, any partition."""

    code: int
    topic: str | None
    partition: int | None
    fired: Callable[[], None]


@dataclass(slots=True)
class Call:
    """A decoded request at one broker. `admit` is asked at each place where a real broker may refuse."""

    state: ClusterState
    broker: BrokerState
    peer: Peer
    header: Header
    request: Message
    refusals: list[Refusal] = field(default_factory=list)
    _answered: list[Refusal] = field(default_factory=list)

    @property
    def version(self) -> int:
        return self.header.version

    @property
    def client_id(self) -> str:
        return self.header.client_id or ""

    @property
    def now_ms(self) -> int:
        """By the cluster's clock."""
        return self.state.clock.now_ms()

    def admit(self, topic: str | None = None, partition: int | None = None) -> None:
        """Raise RefusedError where a script wants one."""
        for refusal in self.refusals:
            # one of a topic or partition waits for the question about it
            if refusal.topic in (None, topic) and refusal.partition in (None, partition):
                if refusal not in self._answered:
                    self._answered.append(refusal)
                    refusal.fired()
                raise RefusedError(refusal.code)

    def topic(self, name: str, topic_id: uuid.UUID | None = None) -> Topic:
        """By id where there is one, else by name, as this broker sees it. Raises error 100 or 3."""
        topics = self.state.topics_at(self.broker)
        return topics.named(name) if topic_id is None else topics.identified(topic_id)

    def partition(self, topic: str, index: int) -> Partition:
        """As this broker sees it, after asking the script. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        self.admit(topic, index)
        return self.state.topics_at(self.broker).partition(topic, index)

    def led_partition(self, topic: str, index: int, known_epoch: int = -1) -> Partition:
        """One that this broker leads. Raises NOT_LEADER_OR_FOLLOWER; before that, at a replica, for the client's epoch."""
        partition = self.partition(topic, index)
        if self.broker.id in partition.replicas:
            partition.check_epoch(known_epoch)
        if partition.leader != self.broker.id:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition


@dataclass(frozen=True, slots=True)
class Later:
    """No answer yet: `again` is asked whenever anything has changed, and again, as the last time, after `wait_ms`.

    `again` gets whether it is the last time, and returns None to wait on; the last time it has to answer. `wait_ms` is real
    time; None: the cluster's clock decides.
    """

    again: Callable[[bool], Message | None]
    wait_ms: int | None


Handler = Callable[[Call], Message | Later | None]


class Api(NamedTuple):
    """An API key that this broker speaks, by the versions it offers."""

    key: int
    name: str
    oldest: int
    newest: int
    response: Message
    handle: Handler


APIS: dict[int, Api] = {}
"""By API key. The modules of `headrace.testing.fake_kafka.api` fill it."""


def serves(response: Message, oldest: int, newest: int) -> Callable[[Handler], Handler]:
    """Have a function answer the requests of this kind of response, in these versions."""

    def registered(handle: Handler) -> Handler:
        APIS[response.API_KEY] = Api(
            response.API_KEY, response.__name__.removesuffix("Response"), oldest, newest, response, handle
        )
        return handle

    return registered
