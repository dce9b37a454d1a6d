"""Brokers as containers, through testcontainers, where a Docker engine of this machine answers.

The containers share the host's network and mount the node's directory under its own path, so the very settings that
serve a Java process serve a container.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.enumerator.errors import PeerError
from headrace.testing.servers.kafka.jars import KAFKA_VERSION
from headrace.testing.servers.kafka.nodes import format_error
from headrace.testing.servers.processes import STOP_S

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

IMAGE = f"apache/kafka:{KAFKA_VERSION}"
LOCAL_ENGINE = "unix:///var/run/docker.sock"  # the default of docker's own client
PING_S = 3


def docker_answers() -> bool:
    """Whether testcontainers is installed and a Docker engine that shares this machine's network answers.

    A remote engine, or Docker Desktop with its virtual machine, has its own network and is not used.
    """
    if sys.platform != "linux" or not _engine_listens():
        return False
    try:
        import docker
        import testcontainers.core.container  # noqa: F401 - only whether it is there
    except ImportError:
        return False
    try:
        client = docker.from_env(timeout=PING_S)
        try:
            return bool(client.info().get("OperatingSystem") != "Docker Desktop")
        finally:
            client.close()
    except (docker.errors.DockerException, OSError):
        return False


def _engine_listens() -> bool:
    # Before docker's own client, which leaks its socket when nothing listens.
    scheme, _, path = os.environ.get("DOCKER_HOST", LOCAL_ENGINE).partition("://")
    if scheme != "unix":
        return False
    with socket.socket(socket.AF_UNIX) as engine:
        engine.settimeout(PING_S)
        return engine.connect_ex(path) == 0


class ContainerNode:
    """A broker in a container. Not thread-safe."""

    def __init__(self, container: DockerContainer, stack: ExitStack) -> None:
        """The container is removed when `stack` ends."""
        self._container = container
        self._stack = stack
        self._is_created = False

    @property
    def pid(self) -> int | None:
        """That of the broker, as this machine sees it: the engine shares its kernel."""
        if not self._is_created:
            return None
        self._docker.reload()
        return int(self._docker.attrs["State"]["Pid"])

    def start(self) -> None:
        if self._is_created:
            self._docker.start()
            return
        with _docker_errors("starting a broker"):
            self._stack.enter_context(self._container)
        self._is_created = True

    def kill(self) -> None:
        if self.is_running():
            self._docker.kill()
            self._docker.wait()

    def stop(self) -> None:
        """Docker's stop: SIGTERM, and SIGKILL after 30 s."""
        if self.is_running():
            self.resume()
            self._docker.stop(timeout=int(STOP_S))

    def pause(self) -> None:
        if self._status() == "running":
            self._docker.pause()

    def resume(self) -> None:
        if self._status() == "paused":
            self._docker.unpause()

    def is_running(self) -> bool:
        return self._status() in ("running", "paused")

    def log_tail(self, lines: int) -> str:
        return str(self._docker.logs(tail=lines).decode(errors="replace")) if self._is_created else ""

    @property
    def _docker(self) -> Any:  # noqa: ANN401 - the docker package has no types
        return self._container.get_wrapped_container()

    def _status(self) -> str:
        if not self._is_created:
            return "absent"
        self._docker.reload()
        return str(self._docker.status)


class ContainerLauncher:
    """Runs Kafka's classes in containers of the image apache/kafka."""

    def __init__(self, directory: Path, options: Sequence[str], stack: ExitStack) -> None:
        """Every container sees `directory`; `options` are those of a broker's JVM."""
        self._directory = directory
        self._options = list(options)
        self._stack = stack

    def format(self, directory: Path, arguments: list[str]) -> None:
        with _docker_errors("formatting"), self._container(["kafka.tools.StorageTool", *arguments]) as container:
            if container.wait():
                raise format_error(directory.name, b"".join(container.get_logs()).decode(errors="replace"))

    def node(self, directory: Path) -> ContainerNode:
        command = [*self._options, "kafka.Kafka", str(directory / "server.properties")]
        return ContainerNode(self._container(command), self._stack)

    def _container(self, command: list[str]) -> DockerContainer:
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(IMAGE).with_command(["-cp", "/opt/kafka/libs/*", *command])
        container.with_volume_mapping(str(self._directory), str(self._directory), mode="rw")
        # As ourselves, so that the directory can be removed afterwards.
        user = f"{os.getuid()}:{os.getgid()}"
        return container.with_kwargs(entrypoint=["java"], network_mode="host", user=user)


@contextmanager
def _docker_errors(doing: str) -> Iterator[None]:
    import docker

    try:
        yield
    except docker.errors.DockerException as error:
        raise PeerError(f"Docker failed at {doing} with the image {IMAGE}: {error}") from error


@contextmanager
def container_launcher(directory: Path, options: Sequence[str]) -> Iterator[ContainerLauncher]:
    """Give a launcher whose containers are removed with the context; if we are killed, by testcontainers' reaper."""
    with ExitStack() as stack:
        yield ContainerLauncher(directory, options, stack)
