"""The brokers that are copied from and to, and how many requests of clients they have answered.

A real one; and for more partitions than a process may have files the fake one, in a separate process. Its figures are set next
to the real one's, for as many partitions as both can have.
"""

from __future__ import annotations

import multiprocessing
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from py4j.protocol import Py4JError

from benchmarks.restore.broker_bytes import HOST, BrokerBytes, broker_bytes, free_port, jmx_options
from headrace.testing import FakeKafka
from headrace.testing.fake_kafka import Rewrite
from headrace.testing.servers.kafka import start_broker
from headrace.testing.servers.kafka.containers import docker_answers

_REQUESTS = "kafka.network:type=RequestMetrics,name=RequestsPerSec,*"
_OF_BROKERS = {"Fetch", "FetchFollower", "BrokerHeartbeat", "ControllerRegistration", "BrokerRegistration", "Vote"}
"""Of the controllers, and `Fetch` is the sum of two kinds."""

_SMALL_INDEXES = {"log.index.size.max.bytes": "4096"}
"""By default a partition's indexes are 20 MiB of address space."""


@dataclass(frozen=True)
class Broker:
    """`answered`: how many requests of clients so far, by name; None where that cannot be known."""

    kind: str
    bootstrap: str
    answered: Callable[[], Counter[str] | None]


@contextmanager
def real() -> Iterator[Broker]:
    """With as many files as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    port = free_port()
    options = ["-Xmx1g", *([] if docker_answers() else jmx_options(port))]
    with start_broker(jvm_options=options, config=_SMALL_INDEXES) as cluster, broker_bytes(port) as counters:
        yield Broker("real", cluster.bootstrap, lambda: _answered(counters))


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


@contextmanager
def fake() -> Iterator[Broker]:
    """FakeKafka, in another process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()

    def answered() -> Counter[str]:
        ours.send(True)  # noqa: FBT003 - continue
        return Counter(ours.recv())

    try:
        yield Broker("fake", ours.recv(), answered)
    finally:
        ours.send(False)  # noqa: FBT003
        process.join()


def _serve(pipe: Connection) -> None:
    answered: Counter[str] = Counter()

    def count(response: object) -> None:
        answered[type(response).__name__.removesuffix("Response")] += 1

    with FakeKafka() as kafka:
        kafka.fault(None, Rewrite(count), times=None).optional()
        pipe.send(kafka.bootstrap)
        while pipe.recv():
            pipe.send(dict(answered))
