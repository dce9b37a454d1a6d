"""The database that a job writes to: killed, frozen, restarted, and its sessions ended."""

from __future__ import annotations

import random
import signal
from abc import abstractmethod
from contextlib import suppress

import psutil

from benchmarks.chaos.databases import TableOutput
from benchmarks.chaos.faults.fault import Fault, Kind, NotHappenedError, writes_table
from benchmarks.chaos.subject import Subject
from benchmarks.chaos.testbed import Testbed
from headrace.enumerator.errors import UsageError


class OnDatabase(Fault):
    """Something that is done to the database's processes, `pids`, which there are from `apply` on."""

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random) -> None:
        """Nothing yet."""
        super().__init__(testbed, subject, generator)
        assert isinstance(subject.output, TableOutput)
        self.database = subject.output.database
        self.pids: tuple[int, ...] = ()

    def apply(self) -> str:
        """All of them. Raises NotHappenedError when it does not run."""
        if not self.database.is_running():
            raise NotHappenedError(f"the database had ended before, with {self.database.status}")
        self.pids = self.database.pids()
        self.strike()
        return f"{len(self.pids)} processes"

    @abstractmethod
    def strike(self) -> None:
        """Do it."""

    def heal(self) -> None:
        """Start it on its data if it has ended, by this or before, and wait until it serves."""
        with suppress(UsageError):  # in a container, where nothing was done to it
            if not self.database.is_running():
                self.database.restart()

    def states(self) -> set[str]:
        """Of those of the processes that have not ended."""
        return {psutil.Process(pid).status() for pid in self.pids if psutil.pid_exists(pid)} - {psutil.STATUS_ZOMBIE}

    def prove_end(self, status: int) -> None:
        """Raise NotHappenedError unless all have ended, the first one with this status."""
        if self.database.status != status or self.states():
            raise NotHappenedError(f"the database has ended with {self.database.status}, and {self.states()} are there")


class Killed(OnDatabase):
    """SIGKILL to all its processes, and a restart on the same data and port."""

    def strike(self) -> None:
        """Kill them."""
        self.database.kill()

    def prove(self) -> str:
        """None is there."""
        self.prove_end(-signal.SIGKILL)
        return "ended by SIGKILL, all of them"


class Restarted(OnDatabase):
    """A clean stop, which ends the sessions, and a start some seconds later."""

    def strike(self) -> None:
        """Stop it."""
        self.database.stop()

    def prove(self) -> str:
        """It has ended well."""
        self.prove_end(0)
        return "ended by a clean stop"


class Frozen(OnDatabase):
    """SIGSTOP to all its processes, and SIGCONT: connections stay open, and nothing answers."""

    def strike(self) -> None:
        """Freeze them, and whatever was forked meanwhile."""
        self.database.pause()
        self.pids = self.database.pids()

    def prove(self) -> str:
        """All are stopped."""
        if self.states() != {psutil.STATUS_STOPPED}:
            raise NotHappenedError(f"the database's processes are {self.states()}")
        return "stopped, all of them"

    def heal(self) -> None:
        """Let them continue."""
        if self.pids:
            self.database.resume()
        super().heal()


class Cut(Fault):
    """The server ends every session of the job, twice."""

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random) -> None:
        """Nothing yet."""
        super().__init__(testbed, subject, generator)
        assert isinstance(subject.output, TableOutput)
        self._table = subject.output
        self._cut = 0

    def apply(self) -> str:
        """Now, and again when it is healed."""
        self._cut = self._table.cut()
        return "all sessions of the job"

    def prove(self) -> str:
        """There were some, and none of them is there."""
        if not self._cut:
            raise NotHappenedError("the job had no session")
        return f"{self._cut} sessions ended by the server"

    def heal(self) -> None:
        """It has connected again meanwhile."""
        self._table.cut()


KINDS = (
    Kind("database killed", "databases", Killed, 1, 8, writes_table, real=False),
    Kind("database frozen", "databases", Frozen, 3, 12, writes_table, real=False),
    Kind("database restarted", "databases", Restarted, 0.5, 4, writes_table, real=False),
    Kind("sessions ended", "databases", Cut, 0.2, 1.5, writes_table, real=False),
)
