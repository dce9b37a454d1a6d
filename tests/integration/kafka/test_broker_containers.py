"""The container launcher's own logic, with a stand-in for Docker that runs the containers' commands on this machine."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import docker
import pytest

from headrace.enumerator.errors import PeerError, UsageError
from headrace.testing.servers.kafka import containers, create_topic, start, start_broker
from headrace.testing.servers.kafka.jars import kafka_jars
from headrace.testing.servers.ports import is_listening

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


class Engine:
    """What a container of the docker package does, done by a process."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.command, self.log, self.status = command, log, "created"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        self.status = "running"

    def reload(self) -> None:
        if self.process.poll() is not None:
            self.status = "exited"

    def wait(self) -> dict[str, int]:
        return {"StatusCode": self.process.wait()}

    def kill(self) -> None:
        self.process.kill()

    def stop(self, timeout: int) -> None:
        self.process.terminate()
        self.process.wait(timeout)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.status = "paused"

    def unpause(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.status = "running"

    def logs(self, tail: int) -> bytes:
        return b"\n".join(self.log.read_bytes().splitlines()[-tail:])


class Container:
    """What testcontainers' DockerContainer does with an `Engine`."""

    made: ClassVar[list[Container]] = []
    log: ClassVar[Path]

    def __init__(self, image: str) -> None:
        self.image, self.volumes, self.engine = image, {}, None
        self.made.append(self)

    def with_command(self, command: list[str]) -> Container:
        self.command = command
        return self

    def with_volume_mapping(self, host: str, container: str, mode: str) -> Container:
        self.volumes[host] = (container, mode)
        return self

    def with_kwargs(self, **kwargs: Any) -> Container:
        self.kwargs = kwargs
        return self

    def __enter__(self) -> Container:
        arguments = [argument.replace("/opt/kafka/libs", str(kafka_jars())) for argument in self.command]
        self.engine = Engine([*self.kwargs["entrypoint"], *arguments], self.log)
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.process.kill()
        self.engine.process.wait()

    def wait(self) -> int:
        return self.engine.process.wait()

    def get_logs(self) -> tuple[bytes, bytes]:
        return self.log.read_bytes(), b""

    def get_wrapped_container(self) -> Engine:
        return self.engine


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)
    monkeypatch.setattr(start, "docker_answers", lambda: True)
    monkeypatch.setattr("testcontainers.core.container.DockerContainer", Container)
    monkeypatch.setattr(Container, "made", [])
    monkeypatch.setattr(Container, "log", tmp_path / "log", raising=False)
    yield
    assert all(container.engine is None or container.engine.process.returncode is not None for container in Container.made)


def test_containers_take_the_same_faults_as_processes() -> None:
    with start_broker() as cluster:
        create_topic(cluster.bootstrap, "topic")
        cluster.stop(1)
        assert not is_listening(cluster.bootstrap)
        cluster.restart(1)
        cluster.pause(1)
        assert cluster.is_running(1)
        cluster.kill(1)
        assert not cluster.is_running(1)
        cluster.restart(1)
        cluster.pause(1)
        cluster.resume(1)
        create_topic(cluster.bootstrap, "another")
    for container in Container.made:
        assert container.image == containers.IMAGE
        assert container.kwargs["network_mode"] == "host"
        assert all(inside == outside for outside, (inside, _) in container.volumes.items())


def test_a_refused_setting_is_named() -> None:
    with pytest.raises(UsageError, match=r"log\.segment\.bytes"), start_broker(config={"log.segment.bytes": "no"}):
        pass


def test_an_image_that_cannot_be_had_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Container) -> None:
        raise docker.errors.ImageNotFound("no such image")

    monkeypatch.setattr(Container, "__enter__", refuse)
    with pytest.raises(PeerError, match=containers.IMAGE), start_broker():
        pass


@pytest.mark.parametrize("address", ["unix:///absent/docker.sock", "tcp://127.0.0.1:1"])
def test_without_an_engine_of_this_machine_docker_does_not_answer(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    assert not containers.docker_answers()
