"""The brokers of the cluster: where they listen, whether they run, and what one that is isolated believes."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.testing.fake_kafka.state.sessions import FetchSessions
from headrace.testing.fake_kafka.state.topics import TopicTable

HOST = "127.0.0.1"
_SMALLEST = -(1 << 31)
COORDINATOR_PARTITIONS = 50  # of __consumer_offsets and of __transaction_state


@dataclass(slots=True)
class IsolatedView:
    """What a broker that is isolated from the others continues believing: topics, leaders, and its own copies of the logs."""

    topics: TopicTable
    brokers: tuple[BrokerState, ...]


@dataclass(slots=True)
class BrokerState:
    """One broker; `port`, which clients get, and `listens_at` are 0 until it listens, and stay over restarts."""

    id: int
    port: int = 0
    listens_at: int = 0
    is_running: bool = True
    isolation: IsolatedView | None = None
    sessions: FetchSessions = field(default_factory=FetchSessions)

    @property
    def is_member(self) -> bool:
        return self.is_running and self.isolation is None


def coordinator_partition(key: str, partitions: int = COORDINATOR_PARTITIONS) -> int:
    """The partition of the internal topic that a group or transactional id belongs to, as Kafka computes it (Utils.abs)."""
    number = java_hash(key)
    return 0 if number == _SMALLEST else abs(number) % partitions


def java_hash(text: str) -> int:
    """Java's String.hashCode, of UTF-16 units."""
    number = 0
    data = text.encode("utf-16-be")
    for at in range(0, len(data), 2):
        number = (31 * number + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number
