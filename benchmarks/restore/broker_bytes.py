"""How many bytes of a topic the broker has taken in and handed out, by its own counters (JMX)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError, Py4JNetworkError

HOST = "127.0.0.1"
_METRIC = "kafka.server:type=BrokerTopicMetrics,name={name},topic={topic}"


def free_port() -> int:
    """A port that no process listens at now."""
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def jmx_options(port: int) -> list[str]:
    """What makes a broker's JVM answer at the port."""
    prefix = "-Dcom.sun.management.jmxremote"
    return [
        f"{prefix}.port={port}",
        f"{prefix}.rmi.port={port}",
        f"{prefix}.host={HOST}",
        f"{prefix}.authenticate=false",
        f"{prefix}.ssl=false",
        f"-Djava.rmi.server.hostname={HOST}",
    ]


@dataclass(frozen=True)
class BrokerBytes:
    """Asks one broker. `gateway` is a small JVM alongside us that speaks JMX."""

    gateway: JavaGateway
    port: int

    def amplification(self, topic: str) -> float | None:
        """Bytes handed out for each byte taken in, replication and all readers included; None when the broker does not tell."""
        try:
            taken, given = (self._count(name, topic) for name in ("BytesInPerSec", "BytesOutPerSec"))
        except Py4JError:
            return None
        return given / taken if taken else None

    def _count(self, name: str, topic: str) -> int:
        jvm: Any = self.gateway.jvm
        url = jvm.javax.management.remote.JMXServiceURL(f"service:jmx:rmi:///jndi/rmi://{HOST}:{self.port}/jmxrmi")
        connector = jvm.javax.management.remote.JMXConnectorFactory.connect(url)
        try:
            found = connector.getMBeanServerConnection().getAttribute(
                jvm.javax.management.ObjectName(_METRIC.format(name=name, topic=topic)), "Count"
            )
            return int(found)
        finally:
            connector.close()


@contextmanager
def broker_bytes(port: int) -> Iterator[BrokerBytes]:
    """For the broker that was started with `jmx_options(port)`; one that was not gives None for everything."""
    (jar,) = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
    gateway_port, process = launch_gateway(classpath=str(jar), die_on_exit=True, return_proc=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=gateway_port))
    try:
        yield BrokerBytes(gateway, port)
    finally:
        with suppress(Py4JNetworkError):
            gateway.shutdown()
        process.kill()  # it would end with this process only
