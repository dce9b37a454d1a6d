"""The broker that is copied from and to, and how many requests of clients it has answered."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError

from benchmarks.restore.broker_bytes import HOST, BrokerBytes, broker_bytes, free_port, jmx_options
from headrace.testing.servers.kafka import start_broker
from headrace.testing.servers.kafka.containers import docker_answers

_REQUESTS = "kafka.network:type=RequestMetrics,name=RequestsPerSec,*"
_OF_BROKERS = {"Fetch", "FetchFollower", "BrokerHeartbeat", "ControllerRegistration", "BrokerRegistration", "Vote"}
"""Of the controllers, and `Fetch` is the sum of two kinds."""

_MANY_PARTITIONS = {"log.index.size.max.bytes": "4096", "log.segment.delete.delay.ms": "1000"}
"""By default a partition's indexes are 20 MiB of address space, and what is deleted has its files for a minute."""


@dataclass(frozen=True)
class Broker:
    """`answered`: how many requests of clients so far, by name; None where that cannot be known."""

    bootstrap: str
    answered: Callable[[], Counter[str] | None]


@contextmanager
def real() -> Iterator[Broker]:
    """With as many files as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    port = free_port()
    options = ["-Xmx1g", *([] if docker_answers() else jmx_options(port))]
    with start_broker(jvm_options=options, config=_MANY_PARTITIONS) as cluster, broker_bytes(port) as counters:
        yield Broker(cluster.bootstrap, lambda: _answered(counters))


def _answered(counters: BrokerBytes) -> Counter[str] | None:
    jvm: Any = counters.gateway.jvm
    url = f"service:jmx:rmi:///jndi/rmi://{HOST}:{counters.port}/jmxrmi"
    found: Counter[str] = Counter()
    try:
        connector = jvm.javax.management.remote.JMXConnectorFactory.connect(jvm.javax.management.remote.JMXServiceURL(url))
        try:
            server = connector.getMBeanServerConnection()
            for name in server.queryNames(jvm.javax.management.ObjectName(_REQUESTS), None):
                if (request := name.getKeyProperty("request")) not in _OF_BROKERS:
                    found[request] += int(server.getAttribute(name, "Count"))
        finally:
            connector.close()
    except Py4JError:
        return None
    return found
