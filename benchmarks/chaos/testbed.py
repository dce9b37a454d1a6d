"""Three real brokers behind the network's proxies, and who does what among them at the moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from kafka import KafkaAdminClient

from benchmarks.chaos.network import HARNESS_CLIENTS, Network, network
from headrace.testing.fake_kafka.state.brokers import coordinator_partition
from headrace.testing.servers.kafka import create_topic, start_broker
from headrace.testing.servers.kafka.metadata import ask

BROKERS, REPLICAS = 3, 3
GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
INTERNAL_PARTITIONS = 4
ADMIN_MS = 15_000
CLIENT_ID = HARNESS_CLIENTS[0]
JVM = ("-Xmx384m", "-XX:TieredStopAtLevel=1")  # they are started again and again
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.min.session.timeout.ms": "1000",
    # A busy machine must not look like a fault: only what is frozen or isolated for longer is taken for dead.
    "broker.session.timeout.ms": "8000",
    "controller.quorum.fetch.timeout.ms": "8000",
    "controller.quorum.request.timeout.ms": "5000",
    "leader.imbalance.check.interval.seconds": "20",
    "delete.topic.enable": "true",
    "file.delete.delay.ms": "1000",
}


@dataclass(frozen=True)
class Safety:
    """How much it takes to lose a record of a topic."""

    replicas: int
    configs: Mapping[str, str]


SAFE = Safety(REPLICAS, {"min.insync.replicas": str(REPLICAS - 1)})
"""Two of three replicas have to have a record before it is acknowledged."""

UNSAFE = Safety(2, {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})
"""One replica of two is enough, and the other one may lead without it."""


@dataclass(frozen=True)
class Names:
    """Of one job: what it reads and writes, what its group and transactional ids are called, and which of it are topics."""

    source: str
    target: str
    job: str
    topics: Sequence[str]


class Cluster(Protocol):
    """What `BrokerCluster` does, and, as far as it can, FakeKafka (`fake.py`)."""

    @property
    def bootstrap(self) -> str:
        """All addresses."""

    @property
    def nodes(self) -> Sequence[int]:
        """Numbers of the brokers."""

    def address(self, node: int) -> str:
        """Of one."""

    def is_running(self, node: int) -> bool:
        """Also when it is paused."""

    def pid(self, node: int) -> int | None:
        """Of its process."""

    def kill(self, node: int) -> None:
        """SIGKILL."""

    def restart(self, node: int) -> None:
        """Stop it if it runs, start it, and wait until it serves."""

    def pause(self, node: int) -> None:
        """SIGSTOP."""

    def resume(self, node: int) -> None:
        """SIGCONT."""

    def wait_ready(self) -> None:
        """Wait until all that run and are not paused serve."""


class Testbed:
    """The cluster. All questions are asked again: answers change with every fault."""

    def __init__(self, cluster: Cluster, net: Network, internal: Sequence[str] = (GROUPS, TRANSACTIONS)) -> None:
        """Made by `testbed`. `internal`: topics of the cluster's own, once there are groups and transactions."""
        self.cluster, self.network, self.internal = cluster, net, internal
        self.bootstrap = cluster.bootstrap
        self.nodes: Sequence[int] = cluster.nodes
        self._replicas: dict[str, int] = {}

    def make_topic(self, name: str, partitions: int, safety: Safety = SAFE) -> None:
        """As safe as that."""
        create_topic(self.bootstrap, name, partitions, safety.replicas, safety.configs)
        self._replicas[name] = safety.replicas

    @contextmanager
    def admin(self) -> Iterator[Any]:
        """kafka-python's client."""
        client = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","), request_timeout_ms=ADMIN_MS, client_id=CLIENT_ID)
        try:
            yield client
        finally:
            client.close()

    def partitions(self, topic: str) -> Mapping[int, Any]:
        """What the metadata reports about each: `leader_id`, `replica_nodes`, `isr_nodes`. By any broker that answers."""
        return {each.partition_index: each for each in self._described(topic).partitions}

    def _described(self, topic: str) -> Any:  # noqa: ANN401 - kafka-python generates the class at run time
        for node in self.nodes:
            if self.cluster.is_running(node):
                (found,) = ask(self.cluster.address(node), [topic]).topics
                if not found.error_code:
                    return found
        raise RuntimeError(f"no broker reports topic {topic}")

    def topic_id(self, topic: str) -> UUID:
        """By any broker that answers. A topic that is recreated has another one."""
        found: UUID = self._described(topic).topic_id
        return found

    def leader(self, topic: str, partition: int) -> int:
        """Of one partition; -1 when there is none."""
        return int(self.partitions(topic)[partition].leader_id)

    def controller(self) -> int:
        """The active one: the leader of the metadata quorum."""
        with self.admin() as admin:
            (topic,) = admin.describe_metadata_quorum()["topics"]
            return int(topic["partitions"][0]["leader_id"])

    def group_coordinator(self, group: str) -> int:
        """The leader of the partition that has the group's offsets; of partition 0 before there is any group."""
        return self.leader(GROUPS, coordinator_partition(group, INTERNAL_PARTITIONS))

    def transaction_coordinator(self, prefix: str) -> int:
        """Of the job's transaction that was listed last. Raises RuntimeError when it has none."""
        with self.admin() as admin:
            for node, listed in admin.list_transactions().items():
                if any(each.transactional_id.startswith(prefix) for each in listed):
                    return int(node)
        raise RuntimeError(f"no broker knows a transaction of {prefix}")

    def in_sync(self, topics: Sequence[str]) -> bool:
        """Whether every replica of every partition is in sync."""
        return all(
            len(each.isr_nodes) == self._replicas.get(topic, REPLICAS)
            for topic in topics
            for each in self.partitions(topic).values()
        )


@contextmanager
def testbed() -> Iterator[Testbed]:
    """Start it; nothing of it is left when the context ends."""
    with network() as net, start_broker(BROKERS, config=SETTINGS, jvm_options=JVM, advertise=net.proxy) as cluster:
        yield Testbed(cluster, net)
