"""What a node's `server.properties` says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.harness.kafka.security import Security
from headrace.harness.ports import HOST

PLAINTEXT = "PLAINTEXT"
CONTROLLER = "CONTROLLER"

NodePorts = Mapping[str, int]  # by listener name


def server_properties(
    node: int, ports: Mapping[int, NodePorts], data: Path, security: Security, config: Mapping[str, str]
) -> dict[str, str]:
    """All settings of one node, broker and controller in one; `config` wins over what is chosen here."""
    mine = ports[node]
    return {
        **_network(node, ports),
        **_small(len(ports)),
        "log.dirs": str(data),
        **security.properties([name for name in mine if name != CONTROLLER]),
        **config,
    }


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write a Java properties file."""
    lines = (f"{name}={value}".replace("\\", "\\\\").replace("\n", "\\n") for name, value in properties.items())
    path.write_text("\n".join(lines) + "\n")


def _network(node: int, ports: Mapping[int, NodePorts]) -> dict[str, str]:
    mine = ports[node]
    listeners = {name: f"{name}://{HOST}:{port}" for name, port in mine.items()}
    protocols = {name: PLAINTEXT if name == CONTROLLER else name for name in mine}
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{other}@{HOST}:{ports[other][CONTROLLER]}" for other in ports),
        "listeners": ",".join(listeners.values()),
        "advertised.listeners": ",".join(url for name, url in listeners.items() if name != CONTROLLER),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": PLAINTEXT,
    }


def _small(brokers: int) -> dict[str, str]:
    """Settings for a cluster that starts fast, is small, and notices a dead broker within seconds."""
    replicas, in_sync = str(min(3, brokers)), str(min(2, brokers))
    # Nobody takes over from a broker that is alone: it would only be fenced wherever the machine stalls for so long.
    session_ms = "3000" if brokers > 1 else "9000"
    return {
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "broker.session.timeout.ms": session_ms,
        "broker.heartbeat.interval.ms": "500",
        "log.cleaner.dedupe.buffer.size": str(16 << 20),  # by default a quarter of our whole heap
    }
