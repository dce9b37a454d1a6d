"""A running Kafka cluster, and what tests do to it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headrace.enumerator.errors import PeerError, RetriableError, UsageError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.kafka.metadata import ask
from headrace.testing.servers.kafka.nodes import Node
from headrace.testing.servers.kafka.security import Certificates
from headrace.testing.servers.kafka.settings import PLAINTEXT

LOG_LINES = 40


class BrokerCluster:
    """Brokers by node id, from 1, and the addresses of their listeners. Not thread-safe.

    `kill`, `stop`, `pause` and `resume` return when the process has ended, stopped or continued; `restart` returns when
    the broker serves again. On an external cluster (HEADRACE_BOOTSTRAP) all of them raise UsageError.
    """

    def __init__(
        self,
        nodes: Mapping[int, Node],
        addresses: Mapping[int, Mapping[str, str]],
        users: Mapping[str, str],
        certificates: Certificates | None,
    ) -> None:
        """Made by `start_broker`; addresses are by node, then by listener."""
        self._nodes = dict(nodes)
        self._addresses = addresses
        self._paused: set[int] = set()
        names = {name: None for listeners in addresses.values() for name in listeners}
        self.listeners: Mapping[str, str] = MappingProxyType(
            {name: ",".join(listeners[name] for listeners in addresses.values()) for name in names}
        )
        """Bootstrap addresses, comma-separated, by security protocol: PLAINTEXT always, and those asked for."""
        self.users = users
        """Passwords by user name, valid on every SASL listener with PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512."""
        self.certificates = certificates
        """PEM files for the SSL listeners, or None without one."""

    @property
    def bootstrap(self) -> str:
        """The PLAINTEXT addresses, comma-separated `host:port`."""
        return self.listeners[PLAINTEXT]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node ids, which are the broker ids in Kafka's metadata, whether the brokers run or not."""
        return tuple(self._nodes)

    def address(self, node: int) -> str:
        """The PLAINTEXT `host:port` of one node."""
        self._node(node)
        return self._addresses[node][PLAINTEXT]

    def kill(self, node: int) -> None:
        """End the broker by SIGKILL. Its data stays; its port stays reserved for `restart`."""
        self._node(node).kill()
        self._paused.discard(node)

    def stop(self, node: int) -> None:
        """Let the broker shut down cleanly (SIGTERM); it is killed if that takes more than 30 s."""
        self._node(node).stop()
        self._paused.discard(node)

    def restart(self, node: int) -> None:
        """Start the broker again on its address and data, stopping it first if it runs; wait until it serves.

        After `kill`, or while brokers are missing, that can take the session timeout of 3 s (9 s for a broker that is alone):
        the controller admits it only then. Raises PeerError with the end of its log if it fails, DeadlineExceededError after
        120 s.
        """
        self.stop(node)
        self._node(node).start()
        self.wait_ready()

    def pause(self, node: int) -> None:
        """Freeze the broker (SIGSTOP): its connections stay open, nothing answers."""
        self._node(node).pause()
        self._paused.add(node)

    def resume(self, node: int) -> None:
        """Let a paused broker continue (SIGCONT)."""
        self._node(node).resume()
        self._paused.discard(node)

    def is_running(self, node: int) -> bool:
        """Whether the broker's process has been started and not ended; also True while it is paused."""
        return self._node(node).is_running()

    def pid(self, node: int) -> int | None:
        """The process id of the broker that was started last, on this machine; None before the first."""
        return self._node(node).pid

    def log_tail(self, node: int) -> str:
        return self._node(node).log_tail(LOG_LINES)

    def start(self) -> None:
        """Start every broker and wait until all of them serve. `start_broker` has done so already."""
        for node in self._nodes.values():
            node.start()
        self.wait_ready()

    def kill_all(self) -> None:
        """End every broker by SIGKILL."""
        for node in self._nodes:
            self.kill(node)

    def wait_ready(self) -> None:
        """Wait until every broker that runs and is not paused answers, and names all of these as alive.

        Raises PeerError with the end of its log when one ends meanwhile, DeadlineExceededError after 120 s.
        """
        expected = {node for node in self._nodes if node not in self._paused and self.is_running(node)}
        wait_until(lambda: self._check(expected), f"Kafka brokers {sorted(expected)} did not become ready")

    def _check(self, expected: set[int]) -> None:
        for node in expected:
            if not self.is_running(node):
                raise PeerError(f"Kafka broker {node} ended while starting. The end of its log:\n{self.log_tail(node)}")
            alive = {broker.node_id for broker in ask(self.address(node), ()).brokers}
            if missing := expected - alive:
                raise RetriableError(f"broker {node} does not know brokers {sorted(missing)} yet")

    def _node(self, node: int) -> Node:
        if node not in self._nodes:
            raise UsageError(f"no node {node} in this cluster: its nodes are {list(self._nodes)}")
        return self._nodes[node]
