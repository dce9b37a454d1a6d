"""What a node's `server.properties` says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.testing.servers.kafka.security import Security
from headrace.testing.servers.ports import HOST

PLAINTEXT = "PLAINTEXT"
CONTROLLER = "CONTROLLER"

NodePorts = Mapping[str, int]  # by listener name
Advertised = Mapping[int, Mapping[str, str]]  # `host:port` by node, then by listener name


def server_properties(
    node: int, mine: NodePorts, advertised: Advertised, data: Path, security: Security, config: Mapping[str, str]
) -> dict[str, str]:
    """All settings of one node, broker and controller in one, listening at `mine`; `config` wins over what is chosen here."""
    return {
        **_network(node, mine, advertised),
        **_small(len(advertised)),
        "log.dirs": str(data),
        **security.properties([name for name in mine if name != CONTROLLER]),
        **config,
    }


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    lines = (f"{name}={value}".replace("\\", "\\\\").replace("\n", "\\n") for name, value in properties.items())
    path.write_text("\n".join(lines) + "\n")


def _network(node: int, mine: NodePorts, advertised: Advertised) -> dict[str, str]:
    protocols = {name: PLAINTEXT if name == CONTROLLER else name for name in mine}
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{other}@{reported[CONTROLLER]}" for other, reported in advertised.items()),
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in mine.items()),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised[node].items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": PLAINTEXT,
    }


def _small(brokers: int) -> dict[str, str]:
    """Settings for a cluster that starts fast, is small, and notices a dead broker within seconds."""
    replicas, in_sync = str(min(3, brokers)), str(min(2, brokers))
    # No process takes over from a broker that is alone: it would only be fenced wherever the machine stalls for so long.
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
