"""Spark jobs in their own processes, with a fault injected in them; and a cluster of several hosts on this one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pyspark

from headrace.runners.spark_processes.spark_archive import archive_of_spark
from headrace.testing.servers.ports import reserved_ports
from tests.helpers.python_path import ROOT, python_path
from tests.helpers.waiting import eventually

TIMEOUT_S = 240.0


class SparkJob:
    """A script in its own process group; killed with its JVM when the context ends."""

    script = "spark_sink_driver.py"

    def __init__(self, folder: Path, name: str, given: Mapping[str, Any], fault: Mapping[str, Any] | None = None) -> None:
        """`given`: its arguments. `fault`: one of `tests/faults/kill`; `mark` is there once it has happened."""
        self.folder, self.name = folder, name
        run = f"{name}-{time.monotonic_ns()}"
        self.mark, self._done = folder / f"{run}-mark", folder / f"{run}-done"
        self._arguments = {"checkpoint": str(folder / "checkpoint"), "done": str(self._done), **given}
        self._environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        if fault is not None:
            path = python_path(ROOT / "tests" / "faults" / "kill")
            injected = {"HEADRACE_KILL": json.dumps({**fault, "mark": str(self.mark)}), "PYTHONPATH": path}
            executors = {f"spark.executorEnv.{name}": value for name, value in injected.items()}
            self._environment |= injected
            self._arguments["settings"] = {**self._arguments.get("settings", {}), **executors}

    def __enter__(self) -> Self:
        command = [sys.executable, str(ROOT / "tests" / "helpers" / self.script), json.dumps(self._arguments)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=log, start_new_session=True, cwd=ROOT
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(TIMEOUT_S)

    @property
    def _log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], object]) -> None:
        def check() -> None:
            assert self._process.poll() is None, self.log()[-3000:]

        eventually(condition, lambda: self.log()[-3000:], seconds=TIMEOUT_S, check=check)

    def wait(self) -> int:
        return self._process.wait(TIMEOUT_S)

    def finish(self) -> None:
        """Tell it to end in good order, and wait until it has."""
        self._done.touch()
        assert self.wait() == 0, self.log()[-3000:]

    def marked(self) -> psutil.Process:
        """The process to which the fault has happened."""
        return psutil.Process(int(self.mark.read_text()))

    def wait_until_stopped(self) -> None:
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), self.log()[-3000:]

    def thaw(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)
        self.marked().resume()


def kill_driver(folder: Path, arguments: Mapping[str, Any], module: str, owner: str, method: str, when: str, nth: int) -> None:
    """Run a driver until it is killed, as `tests/faults/kill` says."""
    kill = {"module": module, "owner": owner, "method": method, "when": when, "nth": nth}
    with _warm_job(folder, {**arguments, "tasks": 2}, kill) as job:
        status = job.wait()
        assert job.mark.exists(), job.log()[-3000:]
        assert status == -signal.SIGKILL


def finish_driver(folder: Path, arguments: Mapping[str, Any], is_done: Callable[[], bool]) -> None:
    """Run a driver over the same checkpoint, with another number of tasks, until all is written; then end it in good order."""
    with _warm_job(folder, {**arguments, "tasks": 3}) as job:
        job.wait_for(is_done)
        job.finish()


def _warm_job(folder: Path, arguments: Mapping[str, Any], fault: Mapping[str, Any] | None = None) -> SparkJob:
    """To be killed with all that belongs to a warm session is harder, and it starts in half the time."""
    archive_of_spark().at_hand()
    return SparkJob(folder, "driver", {**arguments, "session": "warm_session_builder"}, fault)


def frozen(worker: psutil.Process) -> list[psutil.Process]:
    """SIGSTOP to the whole executor of a Python worker: its JVM, and all that runs below it."""
    executor = next(process for process in worker.parents() if process.name() == "java")
    stopped = [executor, *executor.children(recursive=True)]
    for process in stopped:
        process.suspend()
    return stopped


def thawed(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()


@contextmanager
def standalone_cluster(folder: Path, hosts: Sequence[str]) -> Iterator[str]:
    """Spark's own cluster: a master, and on each host a worker with one core. Gives the master's address."""
    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m"}
    processes = []

    def start(name: str, *arguments: str) -> None:
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments, "--webui-port", "0"]
        with (folder / "cluster.log").open("ab") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))

    with reserved_ports() as ports:
        port = ports.reserve()
        address = f"spark://{hosts[0]}:{port}"
        try:
            start("master.Master", "--host", hosts[0], "--port", str(port))
            for host in hosts:
                work = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work")]
                start("worker.Worker", "--host", host, *work, address)
            _wait_for_workers(folder / "cluster.log", len(hosts))
            yield address
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(TIMEOUT_S)


def _wait_for_workers(log: Path, count: int) -> None:
    said = partial(log.read_text, errors="replace")
    eventually(lambda: said().count("Registering worker") >= count, lambda: said()[-3000:], seconds=TIMEOUT_S)
