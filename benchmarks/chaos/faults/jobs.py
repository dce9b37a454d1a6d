"""The job itself: killed, killed in part, and frozen while another takes over."""

from __future__ import annotations

import random
import signal
import time

import psutil

from benchmarks.chaos.faults.fault import Fault, Kind, NotHappenedError, is_embedded
from benchmarks.chaos.network import JOB
from benchmarks.chaos.subject import Subject, signalled
from benchmarks.chaos.testbed import Testbed
from headrace.enumerator.errors import RetriableError
from headrace.runners.waiting import wait_until

END_S = 120.0
LONGEST_S = 1.0


class JobKilled(Fault):
    """SIGKILL to driver and all; it is started again at once."""

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random) -> None:
        """Nothing yet."""
        super().__init__(testbed, subject, generator)
        self._starts = subject.starts

    def apply(self) -> str:
        """Now."""
        self.subject.kill()
        return "the job and all its processes"

    def prove(self) -> str:
        """`kill` raises unless it died by the signal."""
        if self.subject.starts <= self._starts:
            raise NotHappenedError("the job was not started again")
        return "ended by SIGKILL"

    def heal(self) -> None:
        """It runs again."""


class WorkerKilled(Fault):
    """SIGKILL to some of the job's processes; its driver is alive."""

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random, which: str) -> None:
        """`which`: what their command lines have in them."""
        super().__init__(testbed, subject, generator)
        self._which = which
        self._killed: list[psutil.Process] = []

    def apply(self) -> str:
        """One of them."""
        found = [process for process in self.subject.tree.members() if self._which in _command(process)]
        if not found:
            raise NotHappenedError(f"the job has no process {self._which}")
        self._killed = signalled([self.random.choice(found)], signal.SIGKILL)
        return f"one of {len(found)} processes {self._which}"

    def prove(self) -> str:
        """It is gone."""
        _, alive = psutil.wait_procs(self._killed, END_S)
        if alive or not self._killed:
            raise NotHappenedError(f"{alive} live")
        return "ended by SIGKILL"

    def heal(self) -> None:
        """The engine starts another."""


class JobReplaced(Fault):
    """The job is frozen, another is started in its place, and then the first continues: it has to give up and do no harm."""

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random) -> None:
        """Nothing yet."""
        super().__init__(testbed, subject, generator)
        self._frozen: list[psutil.Process] = []

    def apply(self) -> str:
        """Freeze it, and start another."""
        self._frozen = self.subject.freeze()
        self.subject.start()
        return f"{len(self._frozen)} processes"

    def prove(self) -> str:
        """They are stopped, all of them, and the other runs."""
        states = {process.status() for process in self._frozen}
        if not self._frozen or states != {psutil.STATUS_STOPPED}:
            raise NotHappenedError(f"the frozen processes are {states}")
        return "stopped, and replaced"

    def heal(self) -> None:
        """It continues, and has to end. Raises TimeoutError if it does not."""
        signalled(self._frozen, signal.SIGCONT)
        _, alive = psutil.wait_procs(self._frozen, END_S)
        if alive:
            signalled(alive, signal.SIGKILL)
            raise TimeoutError(f"a job that was replaced has continued: {[_command(process) for process in alive]}")


class LateRequests(JobKilled):
    """The job is killed with requests on their way, which arrive when its successor has long been running."""

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random) -> None:
        """Nothing yet."""
        super().__init__(testbed, subject, generator)
        self._held = 0

    def apply(self) -> str:
        """Strand its connections, give it time to ask for something, and kill it."""
        counts = self.testbed.network.counts
        before = counts.held
        count = self.testbed.network.strand(lambda source, _target: source == JOB)

        def look() -> None:
            self._held = counts.held - before
            if not self._held:
                raise RetriableError("nothing was sent")

        wait_until(look, "the job asks for nothing", END_S)
        time.sleep(self.random.uniform(0, LONGEST_S))  # the moment of the kill
        self._held = counts.held - before
        super().apply()
        return f"{count} connections"

    def prove(self) -> str:
        """It is another process, and bytes of the previous one were held."""
        return f"{super().prove()} with {self._held} bytes on their way"

    def heal(self) -> None:
        """They arrive."""
        self.testbed.network.calm()


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


KINDS = (
    Kind("job killed", "jobs", JobKilled, 0.5, 3, real=False),
    Kind("job frozen and replaced", "jobs", JobReplaced, 4, 8, is_embedded, real=False),
    Kind("job killed, its requests late", "jobs", LateRequests, 6, 15, real=False),
    Kind(
        "executor killed",
        "jobs",
        lambda testbed, subject, generator: WorkerKilled(testbed, subject, generator, "CoarseGrainedExecutorBackend"),
        0.5,
        2,
        lambda system: system == "executors",
    ),
    Kind(
        "task manager killed",
        "jobs",
        lambda testbed, subject, generator: WorkerKilled(testbed, subject, generator, "TaskManagerRunner"),
        0.5,
        2,
        lambda system: system == "beam",
    ),
)
