"""The process that Spark's Python daemons are forked from: it hands on what it was given, and ends with its driver."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyspark")

from headrace.runners.spark_processes.daemon import ZYGOTE_VARIABLE
from tests.helpers.python_path import python_path

PORT_BYTES = 4
TIMEOUT_S = 60.0
DAEMON = [sys.executable, "-m", "headrace.runners.spark_processes.daemon", "pyspark.daemon", "pyspark.worker"]


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

    def zygote(self, address: Path, *modules: str, **environment: str) -> subprocess.Popen[bytes]:
        address.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "headrace.runners.spark_processes.zygote", str(address), *modules]
        return self.start(command, **environment)

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
        process.wait(TIMEOUT_S)


@pytest.fixture
def address(tmp_path) -> Path:
    return tmp_path / "zygote" / "socket"


def wait_for(condition: Callable[[], bool]) -> None:
    reached = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < reached
        time.sleep(0.01)


def port_of(daemon: subprocess.Popen[bytes]) -> int:
    """What Spark reads first: where the daemon listens."""
    return int.from_bytes(daemon.stdout.read(PORT_BYTES))


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children()


@pytest.fixture
def zygote(processes, address) -> subprocess.Popen[bytes]:
    started = processes.zygote(address, "pyspark.daemon")
    wait_for(address.exists)
    return started


def test_a_daemon_is_forked_from_the_zygote_and_talks_to_the_process_that_started_it(processes, address, zygote):
    daemon = processes.daemon(address)
    with socket.create_connection(("127.0.0.1", port_of(daemon)), TIMEOUT_S):
        assert len(children(zygote)) == 1
        assert not children(daemon)


def test_a_daemon_ends_when_its_standard_input_closes_and_so_does_the_process_that_asked_for_it(processes, address, zygote):
    daemon = processes.daemon(address)
    port_of(daemon)
    sparks_own = processes.daemon(address.with_name("none"))
    port_of(sparks_own)
    sparks_own.stdin.close()
    daemon.stdin.close()
    assert daemon.wait(TIMEOUT_S) == sparks_own.wait(TIMEOUT_S)
    wait_for(lambda: not children(zygote))
    assert zygote.poll() is None


def test_the_zygote_ends_with_its_driver_and_leaves_nothing_behind(address, zygote):
    zygote.stdin.close()
    assert zygote.wait(TIMEOUT_S) == 0
    assert not address.parent.exists()


def test_without_a_zygote_the_daemon_is_sparks_own(processes, address):
    with socket.create_connection(("127.0.0.1", port_of(processes.daemon(address))), TIMEOUT_S):
        pass


def test_another_hash_seed_gets_a_daemon_of_its_own(processes, address, zygote):
    assert port_of(processes.daemon(address, PYTHONHASHSEED="7")) > 0
    assert not children(zygote)


def test_a_zygote_that_has_started_a_thread_does_not_fork(processes, address, tmp_path):
    Path(tmp_path, "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    zygote = processes.zygote(address, "threaded", PYTHONPATH=str(tmp_path))
    assert zygote.wait(TIMEOUT_S) != 0
    assert b"not forking" in zygote.stderr.read()
    assert port_of(processes.daemon(address)) > 0


def test_what_the_zygote_could_not_load_does_not_keep_a_daemon_from_starting(processes, address):
    assert processes.zygote(address, "no_such_module").wait(TIMEOUT_S) != 0
    assert port_of(processes.daemon(address)) > 0


# --- a zygote in trouble takes no process with it ---------------------------------------------------------------------


@pytest.fixture
def serving(processes, address) -> subprocess.Popen[bytes]:
    """A zygote that has shown that it serves."""
    zygote = processes.zygote(address, "pyspark.daemon")
    port_of(processes.daemon(address))
    return zygote


def connect(address: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(TIMEOUT_S)
    client.connect(str(address))
    return client


def is_forked(daemon: subprocess.Popen[bytes]) -> bool:
    """Whether another process listens at the port that it shows."""
    return bool(port_of(daemon)) and not psutil.Process(daemon.pid).net_connections("inet")


@pytest.fixture
def written(tmp_path):
    """Modules for a daemon to run, by their text."""

    def write(name: str, text: str) -> list[str]:
        Path(tmp_path, f"{name}.py").write_text(text)
        return [sys.executable, "-m", "headrace.runners.spark_processes.daemon", name]

    return write


@pytest.fixture
def run(processes, address, serving, tmp_path):
    """Start a module by the zygote."""

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        return processes.start(command, PYTHONPATH=python_path(tmp_path), **{ZYGOTE_VARIABLE: str(address)})

    return start


def test_a_client_connects_and_closes_and_the_zygote_continues_serving(processes, address, serving):
    connect(address).close()
    assert is_forked(processes.daemon(address))
    assert serving.poll() is None


def test_a_client_sends_no_json_and_the_zygote_continues_serving(processes, address, serving):
    with connect(address) as client:
        socket.send_fds(client, [(4).to_bytes(8)], [0, 1, 2])
        client.sendall(b"none")
        while client.recv(16):
            pass
    assert is_forked(processes.daemon(address))
    assert serving.poll() is None


def test_a_client_stops_in_the_middle_of_its_request_and_others_are_served(processes, address, serving):
    with connect(address):  # and says nothing
        assert is_forked(processes.daemon(address))


def test_a_zygote_that_gives_up_deletes_nothing_but_its_own_socket(processes, address, tmp_path):
    beside = tmp_path / "zygote" / "python"
    address.parent.mkdir()
    beside.write_text("what Spark runs as its Python")
    zygote = processes.zygote(address, "no_such_module")
    assert zygote.wait(TIMEOUT_S) != 0
    assert beside.exists()
    assert not address.exists()


def test_a_zygote_serves_though_its_address_is_longer_than_a_socket_may_have(processes, tmp_path):
    address = tmp_path / ("d" * 120) / "zygote" / "socket"
    zygote = processes.zygote(address, "pyspark.daemon")
    wait_for(lambda: address.exists() or zygote.poll() is not None)
    assert is_forked(processes.daemon(address))


def test_libraries_that_start_threads_when_reported_leave_spark_its_own_daemons(processes, address):
    zygote = processes.zygote(address, "numpy", OPENBLAS_NUM_THREADS="2")
    assert zygote.wait(TIMEOUT_S) != 0
    assert b"not forking" in zygote.stderr.read()
    assert port_of(processes.daemon(address, OPENBLAS_NUM_THREADS="2")) > 0


def test_a_fork_fails_and_the_process_that_asked_sees_the_traceback_and_the_status(run, written):
    failed = run(written("failing", "raise KeyError('injected')"))
    assert failed.wait(TIMEOUT_S) == 1
    assert b"KeyError: 'injected'" in failed.stderr.read()


@pytest.mark.parametrize(
    ("text", "status"),
    [("", 0), ("import sys; sys.exit()", 0), ("import sys; sys.exit(7)", 7), ("import sys; sys.exit('reported')", 1)],
    ids=["ends", "exits", "with a number", "with a text"],
)
def test_a_forks_status_is_that_of_the_process_that_asked(run, written, text, status):
    ended = run(written("ending", f"print('reached')\n{text}"))
    assert ended.wait(TIMEOUT_S) == status
    assert ended.stdout.read() == b"reached\n"
    assert (b"reported" in ended.stderr.read()) == (status == 1)


def test_a_fork_killed_by_a_signal_is_no_success_for_the_process_that_asked(run, written):
    killed = run(written("dying", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert killed.wait(TIMEOUT_S) == -9


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_the_process_that_asked_is_ended_and_its_fork_does_not_outlive_it(run, written, how):
    asked = run(written("hanging", "import os, time\nprint(os.getpid(), flush=True)\nwhile True: time.sleep(1)"))
    fork = psutil.Process(int(asked.stdout.readline()))
    getattr(asked, how)()
    asked.wait(TIMEOUT_S)
    assert fork.wait(TIMEOUT_S) is None or not fork.is_running()


WITH_A_CHILD = """
import os, time
if os.fork() == 0:
    for stream in range(3):
        os.close(stream)
    with open({path!r}, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(3600)
"""


def test_what_a_fork_has_forked_in_its_turn_is_not_waited_for_by_the_process_that_asked(run, written, tmp_path):
    path = tmp_path / "child"
    assert run(written("parent", WITH_A_CHILD.format(path=str(path)))).wait(TIMEOUT_S) == 0
    wait_for(lambda: path.exists() and path.read_text() != "")
    psutil.Process(int(path.read_text())).kill()


def test_without_a_zygote_a_module_is_run_from_an_archive_as_sparks_are(processes, address, tmp_path):
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("archived.py", "print('reached', __name__)")
    command = [sys.executable, "-m", "headrace.runners.spark_processes.daemon", "archived"]
    ended = processes.start(command, PYTHONPATH=python_path(tmp_path / "modules.zip"), **{ZYGOTE_VARIABLE: str(address)})
    assert ended.wait(TIMEOUT_S) == 0
    assert ended.stdout.read() == b"reached __main__\n"
