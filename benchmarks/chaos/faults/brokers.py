"""Brokers killed, frozen, restarted one after the other, and with a disk that takes no more."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable

from benchmarks.chaos.faults.fault import Fault, Kind, NotHappenedError, has_transactions, is_embedded
from benchmarks.chaos.subject import Subject
from benchmarks.chaos.testbed import Testbed
from headrace.enumerator.errors import RetriableError
from headrace.runners.waiting import wait_until

Choice = Callable[[Fault], int]
END_S = 60.0


def leader(fault: Fault) -> int:
    """Of a partition that is read or written."""
    return fault.leader_of_a_partition()


def transaction_coordinator(fault: Fault) -> int:
    """Of the job's transactions."""
    return fault.testbed.transaction_coordinator(fault.subject.names.job)


def group_coordinator(fault: Fault) -> int:
    """Of the job's group."""
    return fault.testbed.group_coordinator(fault.subject.names.job)


def controller(fault: Fault) -> int:
    """The active one."""
    return fault.testbed.controller()


class Broker(Fault):
    """Something that is done to one broker. `hit` is its node, from `apply` on."""

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random, choose: Choice) -> None:
        """`choose` picks the broker, at the last moment."""
        super().__init__(testbed, subject, generator)
        self._choose = choose
        self.hit = 0

    def choose(self) -> int:
        """The broker, found out now. Raises NotHappenedError when the role is vacant."""
        self.hit = self._choose(self)
        if self.hit not in self.testbed.nodes:
            raise NotHappenedError(f"no process has the role now: {self.hit}")
        return self.hit


class Killed(Broker):
    """SIGKILL, and a restart."""

    def apply(self) -> str:
        """Kill it."""
        self.testbed.cluster.kill(self.choose())
        return f"broker {self.hit}"

    def prove(self) -> str:
        """Its process is gone."""
        if self.testbed.cluster.is_running(self.hit):
            raise NotHappenedError(f"broker {self.hit} runs")
        return "the process ended"

    def heal(self) -> None:
        """Start it, and wait until it serves."""
        if self.hit and not self.testbed.cluster.is_running(self.hit):
            self.testbed.cluster.restart(self.hit)


class Frozen(Broker):
    """SIGSTOP and SIGCONT: after more than eight seconds others have taken over from it, and it does not know yet."""

    def apply(self) -> str:
        """Freeze it."""
        self.testbed.cluster.pause(self.choose())
        return f"broker {self.hit}"

    def prove(self) -> str:
        """Its process is stopped."""
        pid = self.testbed.cluster.pid(self.hit)
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
        if state != "T":
            raise NotHappenedError(f"broker {self.hit} is in state {state}")
        return "the process was stopped"

    def heal(self) -> None:
        """Let it continue."""
        if self.hit:
            self.testbed.cluster.resume(self.hit)
            self.testbed.cluster.wait_ready()


class Rolled(Fault):
    """Every broker is stopped cleanly and started again, each when the previous one serves."""

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random) -> None:
        """Nothing yet."""
        super().__init__(testbed, subject, generator)
        self._pids: dict[int, int | None] = {}

    def apply(self) -> str:
        """It takes as long as it takes, all of it here."""
        self._pids = {node: self.testbed.cluster.pid(node) for node in self.testbed.nodes}
        for node in self.testbed.nodes:
            self.testbed.cluster.restart(node)
        return "all brokers one after another"

    def prove(self) -> str:
        """Each is another process."""
        same = [node for node in self.testbed.nodes if self.testbed.cluster.pid(node) == self._pids[node]]
        if same:
            raise NotHappenedError(f"brokers {same} were not restarted")
        return "each is another process"

    def heal(self) -> None:
        """The process that does not run is started."""
        for node in self.testbed.nodes:
            if not self.testbed.cluster.is_running(node):
                self.testbed.cluster.restart(node)


class DiskFull(Broker):
    """No file of the broker may grow any more: each write fails, as on a full disk, and the broker gives up its log directory.

    By RLIMIT_FSIZE of the running process; the error is EFBIG in place of ENOSPC, and Kafka takes both the same way.
    """

    def apply(self) -> str:
        """From now on; it ends itself at its next write."""
        pid = self.testbed.cluster.pid(self.choose())
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return f"broker {self.hit}"

    def prove(self) -> str:
        """It has ended by itself."""

        def check() -> None:
            if self.testbed.cluster.is_running(self.hit):
                raise RetriableError("it still runs")

        wait_until(check, f"broker {self.hit} cannot write, and continues", END_S)
        return "the broker gave up its log directory and ended"

    def heal(self) -> None:
        """There is space again: a new process has no limit."""
        if self.hit:
            self.testbed.cluster.restart(self.hit)


def _on(what: type[Broker], choose: Choice) -> Callable[[Testbed, Subject, random.Random], Fault]:
    return lambda testbed, subject, generator: what(testbed, subject, generator, choose)


ROLES = {
    "leader": leader,
    "transaction coordinator": transaction_coordinator,
    "group coordinator": group_coordinator,
    "controller": controller,
}


def _has_role(role: str) -> Callable[[str], bool]:
    """Queries of Spark keep their offsets themselves, and have no group."""
    if role == "transaction coordinator":
        return has_transactions
    return is_embedded if role == "group coordinator" else (lambda _system: True)


KINDS = (
    *(
        Kind(f"{role} killed", "brokers", _on(Killed, choose), 2, 8, _has_role(role), real=role != "leader")
        for role, choose in ROLES.items()
    ),
    *(Kind(f"{role} frozen", "brokers", _on(Frozen, choose), 3, 14, _has_role(role)) for role, choose in ROLES.items()),
    Kind("rolling restart", "brokers", Rolled, 0, 0),
    Kind("disk full", "brokers", _on(DiskFull, leader), 4, 8),
)
