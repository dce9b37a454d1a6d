"""The processes of a system under test: started in their own session, and killed, all of them or only the workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

END_S = 20.0
DEAD_POLL_S = 0.002
LOG = "job.log"
LOG_LINES, LINE_LENGTH = 30, 400
_ANCESTORS = (("pyspark.daemon",), ("spark_processes.zygote", "spark_processes.zygote"))
"""By their command lines, the parent of a worker, and the parent's: a daemon, which may itself be forked from our zygote."""

_COMMAND_LINE = "from headrace.cli import main; main()"
_TASK_MANAGER = "TaskManagerRunner"


class ProcessTree:
    """A process with all that it starts. Spark's Python daemons leave the process group, so a group is not enough."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        """Start it; what it writes is appended to `LOG` in `directory`."""
        self._log = directory / LOG
        self._status = directory / "status.json"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def check(self) -> None:
        """Raise RuntimeError, with the end of its log, if it has ended by itself."""
        if (status := self._process.poll()) is not None:
            raise RuntimeError(f"the system under test ended by itself with status {status}:\n{self.log_tail()}")

    def kill(self) -> tuple[float, float]:
        """SIGKILL to all; when it was sent, and when none was left (monotonic seconds). Raises RuntimeError if one stays."""
        killed: set[psutil.Process] = set()
        at = time.monotonic()
        while new := self.members() - killed:
            _kill(new)
            killed |= new
        self._process.wait(END_S)
        _wait_until_dead(killed)
        if self._process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"it was to die by SIGKILL, and ended with status {self._process.returncode}")
        return at, time.monotonic()

    def kill_workers(self, stopped: int | None, most: int | None = None) -> tuple[float, float]:
        """SIGKILL to the workers (given `stopped`, only to that one; at most this many), while the driver or JobManager
        continues.

        As `kill`. Raises RuntimeError when there is none, or none is left by then: then nothing was killed.
        """
        workers = self._workers()[:most] if stopped is None else _those_of([stopped])
        at = time.monotonic()
        if not _kill(workers):
            raise RuntimeError("there is no worker to kill")
        _wait_until_dead(workers)
        return at, time.monotonic()

    def kill_active(self) -> tuple[float, float]:
        """SIGKILL to what the job's supervisor calls active, and all its processes. As `kill`.

        Raises RuntimeError where nothing is, or one of them has ended by itself: then nothing was killed.
        """
        active = self._active()
        if not active:
            raise RuntimeError("there is no active driver to kill")
        at = time.monotonic()
        killed = [process for each in active for process in _tree(each["pid"])]
        _kill(killed)
        _wait_until_dead(killed)
        return at, time.monotonic()

    def has_standby(self) -> bool:
        """Whether there are standbys, all of them wait, and another driver is active."""
        states = {standby["state"] for standby in self._supervised().get("standbys", [])}
        return bool(self._active()) and states == {"ARMED"}

    def _active(self) -> list[dict[str, Any]]:
        """One driver, or each process of a Flink cluster that is; none where nothing is active."""
        found = self._supervised().get("active") or []
        return found if isinstance(found, list) else [found]

    def _supervised(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._status.read_text()) if self._status.exists() else {}
        return found

    def end(self) -> None:
        """Whatever is left of it."""
        _kill(self.members())
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what is left of one whose first process has ended by itself
        self._process.wait(END_S)

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time that its processes have taken so far: those of Java, and those of Python."""
        budget = {"Java": 0.0, "Python": 0.0}
        for process in self.members():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                budget["Java" if process.name() == "java" else "Python"] += times.user + times.system
        return budget

    def log_tail(self) -> str:
        """The last lines it wrote, less Java's stack traces."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line[:LINE_LENGTH] for line in lines if not line.startswith("\t")][-LOG_LINES:])

    def members(self) -> set[psutil.Process]:
        """Those that are there now; none once the first has ended."""
        try:
            root = psutil.Process(self._process.pid)
            return {root, *root.children(recursive=True)}
        except psutil.NoSuchProcess:
            return set()

    def _workers(self) -> list[psutil.Process]:
        """What Spark's Python daemons, or a run's worker processes, have forked; Flink's TaskManagers."""
        found = []
        for process in self.members():
            with suppress(psutil.NoSuchProcess):
                ancestors = [" ".join(ancestor.cmdline()) for ancestor in process.parents()[:2]]
                forked = any(all(name in line for name, line in zip(up, ancestors, strict=False)) for up in _ANCESTORS)
                if forked or self._is_of_a_run(process) or any(word.endswith(_TASK_MANAGER) for word in process.cmdline()):
                    found.append(process)
        return found

    def _is_of_a_run(self, process: psutil.Process) -> bool:
        """Its parents are the worker processes, the coordinator, and the supervisor, which is `headrace run`."""
        above = process.parents()[:3]
        return len(above) == 3 and above[2].pid == self._process.pid and _COMMAND_LINE in above[2].cmdline()


def _those_of(pids: Iterable[int]) -> list[psutil.Process]:
    """Those that are there."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def _kill(processes: Iterable[psutil.Process]) -> int:
    """SIGKILL to each that is still there; how many those were."""
    killed = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
            killed += 1
    return killed


def _tree(pid: int) -> list[psutil.Process]:
    """A process and all that it has started. Raises RuntimeError for one that has ended: its end is not the one to measure."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        started = root.children(recursive=True)
        if _runs(root):
            return [root, *started]
    raise RuntimeError(f"process {pid}, which is to be killed as active, had ended by itself")


def _wait_until_dead(processes: Iterable[psutil.Process]) -> None:
    """Until none of them runs. One that no process has waited for yet is dead, too: its orphans may be that for seconds.

    Raises RuntimeError if one stays.
    """
    deadline = time.monotonic() + END_S
    while alive := [process for process in processes if _runs(process)]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes that were killed did not end: {alive}")
        time.sleep(DEAD_POLL_S)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
