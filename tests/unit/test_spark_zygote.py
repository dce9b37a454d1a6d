"""The process that Spark's Python daemons are forked from: it hands on what it was given, and ends with its driver."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyspark")

from headrace.runners.spark_daemon import ZYGOTE_VARIABLE

PORT_BYTES = 4
PATIENCE_S = 60.0
DAEMON = [sys.executable, "-m", "headrace.runners.spark_daemon", "pyspark.daemon", "pyspark.worker"]


class Started:
    """Processes of a test, all ended with it."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        chosen = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **environment}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, env={**os.environ, **chosen}, **pipes)
        self.all.append(process)
        return process

    def zygote(self, address: Path, *modules: str) -> subprocess.Popen[bytes]:
        address.parent.mkdir()
        return self.start([sys.executable, "-m", "headrace.runners.spark_zygote", str(address), *modules])

    def daemon(self, address: Path, **environment: str) -> subprocess.Popen[bytes]:
        return self.start(DAEMON, **{ZYGOTE_VARIABLE: str(address)}, **environment)


@pytest.fixture
def processes() -> Iterator[Started]:
    started = Started()
    yield started
    for process in started.all:
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
        process.kill()
        process.wait(PATIENCE_S)


@pytest.fixture
def address(tmp_path) -> Path:
    return tmp_path / "zygote" / "socket"


def wait_for(condition: Callable[[], bool]) -> None:
    reached = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < reached
        time.sleep(0.01)


def port_of(daemon: subprocess.Popen[bytes]) -> int:
    """What Spark reads first: where the daemon listens."""
    return int.from_bytes(daemon.stdout.read(PORT_BYTES))


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children()


def test_a_daemon_is_forked_from_the_zygote_and_talks_to_whoever_started_it(processes, address):
    zygote = processes.zygote(address, "pyspark.daemon")
    wait_for(address.exists)
    daemon = processes.daemon(address)
    with socket.create_connection(("127.0.0.1", port_of(daemon)), PATIENCE_S):
        assert len(children(zygote)) == 1
        assert not children(daemon)


def test_a_daemon_ends_when_its_standard_input_closes_and_so_does_the_process_that_asked_for_it(processes, address):
    zygote = processes.zygote(address, "pyspark.daemon")
    wait_for(address.exists)
    daemon = processes.daemon(address)
    port_of(daemon)
    daemon.stdin.close()
    assert daemon.wait(PATIENCE_S) == 0
    wait_for(lambda: not children(zygote))
    assert zygote.poll() is None


def test_the_zygote_ends_with_its_driver_and_leaves_nothing_behind(processes, address):
    zygote = processes.zygote(address, "pyspark.daemon")
    wait_for(address.exists)
    zygote.stdin.close()
    assert zygote.wait(PATIENCE_S) == 0
    assert not address.parent.exists()


def test_without_a_zygote_the_daemon_is_sparks_own(processes, address):
    daemon = processes.daemon(address)
    with socket.create_connection(("127.0.0.1", port_of(daemon)), PATIENCE_S):
        pass


def test_another_hash_seed_gets_a_daemon_of_its_own(processes, address):
    zygote = processes.zygote(address, "pyspark.daemon")
    wait_for(address.exists)
    daemon = processes.daemon(address, PYTHONHASHSEED="7")
    assert port_of(daemon) > 0
    assert not children(zygote)


def test_a_zygote_that_has_started_a_thread_does_not_fork(processes, address, tmp_path):
    Path(tmp_path, "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    address.parent.mkdir()
    command = [sys.executable, "-m", "headrace.runners.spark_zygote", str(address), "threaded"]
    zygote = processes.start(command, PYTHONPATH=str(tmp_path))
    assert zygote.wait(PATIENCE_S) != 0
    assert b"not forking" in zygote.stderr.read()
    assert port_of(processes.daemon(address)) > 0


def test_what_the_zygote_could_not_load_does_not_keep_a_daemon_from_starting(processes, address):
    zygote = processes.zygote(address, "no_such_module")
    assert zygote.wait(PATIENCE_S) != 0
    assert port_of(processes.daemon(address)) > 0
