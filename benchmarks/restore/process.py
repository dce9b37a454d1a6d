"""The processes of a system under test: started in a session of their own, and killed, all of them or only the workers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

END_S = 20.0
LOG_LINES, LINE_LENGTH = 30, 400
_ANCESTORS = (("pyspark.daemon",), ("spark_zygote", "spark_zygote"))
"""By their command lines, the parent of a worker, and the parent's: a daemon, which may itself be forked from our zygote."""

_COMMAND_LINE = "from headrace.cli import main; main()"
_TASK_MANAGER = "TaskManagerRunner"


class Family:
    """A process with all that it starts. Spark's Python daemons leave the process group, so a group is not enough."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        """Start it; what it writes is appended to `job.log` in `directory`."""
        self._log = directory / "job.log"
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
            for process in new:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            killed |= new
        self._process.wait(END_S)
        _, alive = psutil.wait_procs(killed, END_S)
        if alive:
            raise RuntimeError(f"processes that were killed did not end: {alive}")
        if self._process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"it was to die by SIGKILL, and ended with status {self._process.returncode}")
        return at, time.monotonic()

    def kill_workers(self, stopped: int | None, most: int | None = None) -> tuple[float, float]:
        """SIGKILL to the workers (given `stopped`, only to that one; at most so many), while the driver or JobManager goes on.

        As `kill`. Raises RuntimeError when there is none: then nothing was killed.
        """
        workers = self._workers()[:most] if stopped is None else [psutil.Process(stopped)]
        if not workers:
            raise RuntimeError("there is no worker to kill")
        at = time.monotonic()
        for worker in workers:
            worker.kill()
        _, alive = psutil.wait_procs(workers, END_S)
        if alive:
            raise RuntimeError(f"workers that were killed did not end: {alive}")
        return at, time.monotonic()

    def end(self) -> None:
        """Whatever is left of it."""
        for process in self.members():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what is left of one whose first process has ended by itself
        self._process.wait(END_S)

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time that its processes have taken so far: those of Java, and those of Python."""
        spent = {"Java": 0.0, "Python": 0.0}
        for process in self.members():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                spent["Java" if process.name() == "java" else "Python"] += times.user + times.system
        return spent

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
        """What Spark's Python daemons, or a run's nursery, have forked; Flink's TaskManagers."""
        found = []
        for process in self.members():
            with suppress(psutil.NoSuchProcess):
                ancestors = [" ".join(ancestor.cmdline()) for ancestor in process.parents()[:2]]
                forked = any(all(name in line for name, line in zip(up, ancestors, strict=False)) for up in _ANCESTORS)
                if forked or self._is_of_a_run(process) or any(word.endswith(_TASK_MANAGER) for word in process.cmdline()):
                    found.append(process)
        return found

    def _is_of_a_run(self, process: psutil.Process) -> bool:
        """Its parents are the nursery, the coordinator, and the supervisor, which is `headrace run`."""
        above = process.parents()[:3]
        return len(above) == 3 and above[2].pid == self._process.pid and _COMMAND_LINE in above[2].cmdline()
