"""Starting a cluster: where its brokers come from, their directories, ports and settings."""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from headrace.enumerator.errors import PeerError, UsageError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.kafka.brokers import BrokerCluster
from headrace.testing.servers.kafka.containers import container_launcher, docker_answers
from headrace.testing.servers.kafka.java import java_launcher
from headrace.testing.servers.kafka.metadata import addresses, ask
from headrace.testing.servers.kafka.nodes import ExternalNode, Launcher
from headrace.testing.servers.kafka.security import make_security
from headrace.testing.servers.kafka.settings import CONTROLLER, PLAINTEXT, server_properties, write_properties
from headrace.testing.servers.ports import HOST, reserved_ports

BOOTSTRAP_VARIABLE = "HEADRACE_BOOTSTRAP"
START_ATTEMPTS = 3
PORT_TAKEN = "Address already in use"


Advertise = Callable[[int, str, str], str]
"""(node, listener, `host:port` where it listens) to the `host:port` that clients, brokers and controllers get."""


@dataclass(frozen=True)
class BrokerSpec:
    """What the caller of `start_broker` asked for."""

    brokers: int
    config: Mapping[str, str]
    security: Collection[str]
    users: Mapping[str, str]
    port: int | None
    jvm_options: Sequence[str]
    advertise: Advertise | None


class PortTakenError(PeerError):
    """A port was lost between choosing it and the broker's bind; other ports may do."""


@contextmanager
def start_broker(
    brokers: int = 1,
    *,
    config: Mapping[str, str] | None = None,
    security: Collection[str] = (),
    users: Mapping[str, str] | None = None,
    port: int | None = None,
    jvm_options: Sequence[str] = ("-Xmx512m",),
    advertise: Advertise | None = None,
) -> Iterator[BrokerCluster]:
    """Give a Kafka cluster that is ready; end it and remove all it left when the context, or this process, ends.

    brokers: how many, each broker and controller in one.
    config: broker settings, as in `server.properties`. They win over ours: no automatic creation of topics, internal
    topics of few partitions with min(3, brokers) replicas.
    security: listeners alongside PLAINTEXT, among SSL, SASL_PLAINTEXT, SASL_SSL.
    users: passwords by name, for the SASL listeners.
    port: the PLAINTEXT port of the first broker, the next ones following; by default any free ones.
    jvm_options: of each broker; by default a heap of 512 MiB.
    advertise: called once for each node and listener (also CONTROLLER) before anything starts; clients,
    brokers and controllers get what it returns, instead of the address where the node listens: that of a proxy.

    HEADRACE_BOOTSTRAP, a PLAINTEXT address, is used instead when set: then `config`, `security`, `port` and `advertise`
    cannot be given, and it must have at least `brokers` brokers.

    Raises UsageError for wishes that cannot be met (also: neither Docker nor PySpark and Java), PeerError with the end
    of the log when a broker fails to start, DeadlineExceededError when it does not serve within 120 s.
    """
    if brokers < 1:
        raise UsageError(f"a cluster of {brokers} brokers: at least 1 is needed")
    spec = BrokerSpec(brokers, dict(config or {}), tuple(security), dict(users or {}), port, tuple(jvm_options), advertise)
    external = os.environ.get(BOOTSTRAP_VARIABLE)
    if external:
        yield _external_cluster(external, spec)
        return
    with ExitStack() as stack:
        attempts = START_ATTEMPTS if port is None else 1
        again = Retrying(retry=retry_if_exception_type(PortTakenError), stop=stop_after_attempt(attempts), reraise=True)
        yield again(_start, spec, stack)


def _external_cluster(bootstrap: str, spec: BrokerSpec) -> BrokerCluster:
    if spec.config or spec.security or spec.port is not None or spec.advertise is not None:
        raise UsageError(
            f"config, security, port and advertise cannot be given to the external cluster of {BOOTSTRAP_VARIABLE}"
        )
    first = addresses(bootstrap)[0]
    found: dict[int, dict[str, str]] = {}

    def look() -> None:
        found.update({broker.node_id: {PLAINTEXT: f"{broker.host}:{broker.port}"} for broker in ask(first, ()).brokers})

    wait_until(look, f"the Kafka cluster of {BOOTSTRAP_VARIABLE}={bootstrap} did not answer")
    if len(found) < spec.brokers:
        raise UsageError(f"{spec.brokers} brokers asked for, but the cluster at {bootstrap} has {len(found)}")
    return BrokerCluster({node: ExternalNode(bootstrap) for node in sorted(found)}, dict(sorted(found.items())), {}, None)


def _start(spec: BrokerSpec, keep: ExitStack) -> BrokerCluster:
    """Start a cluster whose end is put on `keep`, or leave nothing behind."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="headrace-broker-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        launcher = stack.enter_context(_launcher(directory, spec.jvm_options))
        ports = stack.enter_context(_reserve(spec))
        advertised = _advertised(spec, ports)
        security = make_security(spec.security, spec.users, directory / "certificates")
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")

        def prepare(node: int) -> None:
            home = directory / f"node-{node}"
            home.mkdir()
            settings = home / "server.properties"
            write_properties(settings, server_properties(node, ports[node], advertised, home / "data", security, spec.config))
            arguments = ["format", f"--cluster-id={cluster_id}", "--config", str(settings), *security.format_arguments()]
            launcher.format(home, arguments)

        with ThreadPoolExecutor() as pool:
            list(pool.map(prepare, ports))
        nodes = {node: launcher.node(directory / f"node-{node}") for node in ports}
        listeners = {
            node: {name: address for name, address in reported.items() if name != CONTROLLER}
            for node, reported in advertised.items()
        }
        cluster = BrokerCluster(nodes, listeners, security.users, security.certificates)
        # Their data goes with them, so a clean shutdown would only take time.
        stack.callback(cluster.kill_all)
        _start_nodes(cluster)
        keep.push(stack.pop_all())
        return cluster


def _advertised(spec: BrokerSpec, ports: Mapping[int, Mapping[str, int]]) -> dict[int, dict[str, str]]:
    advertise = spec.advertise or (lambda _node, _listener, address: address)
    return {
        node: {name: advertise(node, name, f"{HOST}:{number}") for name, number in mine.items()} for node, mine in ports.items()
    }


def _start_nodes(cluster: BrokerCluster) -> None:
    try:
        cluster.start()
    except PeerError as error:
        if any(PORT_TAKEN in cluster.log_tail(node) for node in cluster.nodes):
            raise PortTakenError(str(error)) from error
        raise


def _launcher(directory: Path, options: Sequence[str]) -> AbstractContextManager[Launcher]:
    return container_launcher(directory, options) if docker_answers() else java_launcher(directory, options)


@contextmanager
def _reserve(spec: BrokerSpec) -> Iterator[dict[int, dict[str, int]]]:
    """The ports of every node by listener name, node ids counting from 1."""
    with reserved_ports() as ports:
        found = {}
        for node in range(1, spec.brokers + 1):
            first = None if spec.port is None else spec.port + node - 1
            others = [CONTROLLER, *spec.security]
            found[node] = {PLAINTEXT: ports.reserve(first), **{name: ports.reserve() for name in others}}
        yield found
