"""FakeKafka in the place of real brokers: faults that need no process of a server, many more of them in a minute.

Connections, proxies, job, load and oracle are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.chaos.network import network
from benchmarks.chaos.testbed import BROKERS, Testbed
from headrace.enumerator.errors import UsageError
from headrace.testing import FakeKafka


class FakeCluster:
    """As `BrokerCluster`, as far as FakeKafka has it."""

    def __init__(self, kafka: FakeKafka) -> None:
        """All brokers run."""
        self._kafka = kafka
        self._down: set[int] = set()
        self.bootstrap = kafka.bootstrap
        self.nodes: Sequence[int] = kafka.brokers

    def address(self, node: int) -> str:
        """`host:port`: of its proxy."""
        return self._kafka.address(node)

    def is_running(self, node: int) -> bool:
        """Whether it listens."""
        return node not in self._down

    def kill(self, node: int) -> None:
        """Its connections are cut."""
        self._kafka.stop_broker(node)
        self._down.add(node)

    def restart(self, node: int) -> None:
        """Stop it if it runs, and start it."""
        if self.is_running(node):
            self.kill(node)
        self._kafka.start_broker(node)
        self._down.discard(node)

    def pid(self, node: int) -> int | None:
        """It is not a process. Raises UsageError, as `pause` and `resume` do."""
        raise UsageError(f"broker {node} of FakeKafka is not a process")

    def pause(self, node: int) -> None:
        """Not possible."""
        self.pid(node)

    def resume(self, node: int) -> None:
        """Not possible."""
        self.pid(node)

    def wait_ready(self) -> None:
        """It always is."""


@contextmanager
def fake_testbed(transaction_version: int = 2) -> Iterator[Testbed]:
    """Three brokers of FakeKafka behind proxies."""
    with network() as net, FakeKafka(BROKERS, advertise=net.proxy) as kafka:
        kafka.set_transaction_version(transaction_version)
        yield Testbed(FakeCluster(kafka), net, internal=())
