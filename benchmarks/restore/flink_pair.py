"""A Flink job's two JobManagers and two TaskManagers: which are running, whether a standby waits, what is to be started. Pure.

Every process has its own name, also one that takes the place of a dead one: what is still said of the dead is true of no
living one. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

SETTLE_S = 5.0
"""A standby is started so long after the job runs, as it has to catch up: so headrace's supervisor does, too."""

DRY_RUN_S = 3.0
"""So long the job runs on the first processes, which are then replaced. It is less, so they have no standby."""

PAIR = 2


class Kind(Enum):
    """Of process."""

    JOB_MANAGER = "job manager"
    TASK_MANAGER = "task manager"


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment, of processes dead or alive.

    `leader`: the JobManager that leads by ZooKeeper's account. `serving`: those whose REST interface is there. `free`: slots
    that no job has, by TaskManager that is registered with the leader. `running_on`: the TaskManagers that run the job; none
    while one of its tasks does not run.
    """

    leader: str | None = None
    serving: frozenset[str] = frozenset()
    free: Mapping[str, int] = field(default_factory=dict)
    running_on: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Pair:
    """The processes that live, by name, and what was seen last. `slots`: how many the job needs."""

    living: Mapping[str, Kind]
    look: Look
    slots: int

    def active(self) -> Set[str]:
        """The JobManager that leads and the TaskManager that runs the job; after a kill, those that are left for it.

        Empty when it cannot be informed which these are.
        """
        leaders = self._chosen(Kind.JOB_MANAGER, frozenset() if self.look.leader is None else frozenset({self.look.leader}))
        workers = self._chosen(Kind.TASK_MANAGER, self.look.running_on)
        return leaders | workers if len(leaders) == len(workers) == 1 else frozenset()

    def runs(self) -> bool:
        """Whether the job runs: led by a process that is alive, on one that does."""
        return self.look.leader in self.living and bool(self.look.running_on) and self.look.running_on <= self.living.keys()

    def has_standby(self) -> bool:
        """Whether the job runs, and another JobManager and enough slots of another TaskManager wait."""
        if not self.runs() or not (active := self.active()):
            return False
        waiting = self.living.keys() - active
        return bool(waiting & self.look.serving) and any(self.look.free.get(name, 0) >= self.slots for name in waiting)

    def missing(self, running_for_s: float) -> list[Kind]:
        """What is to be started now: of each kind one where none is alive, and the second one once the job has resolved.

        `running_for_s`: how long the job has been running; 0 while it does not.
        """
        wanted = PAIR if running_for_s >= SETTLE_S else 1
        return [kind for kind in Kind for _ in range(wanted - len(self._of(kind)))]

    def status(self, pids: Mapping[str, int]) -> dict[str, Any]:
        """For the file that the harness reads, in the form of a supervisor's."""
        active = self.active()
        waiting = [name for name in self.living if name not in active]
        state = "ARMED" if self.has_standby() else "WARMING"
        return {
            "active": [{"name": name, "pid": pids[name]} for name in sorted(active)],
            "standbys": [{"name": name, "pid": pids[name], "state": state} for name in waiting],
        }

    def _of(self, kind: Kind) -> frozenset[str]:
        return frozenset(name for name, its in self.living.items() if its is kind)

    def _chosen(self, kind: Kind, at_work: frozenset[str]) -> frozenset[str]:
        """Those running that live; else the only one there is."""
        living = self._of(kind)
        return (living & at_work) or (living if len(living) == 1 else frozenset())


def rest_port(connection: bytes) -> int | None:
    """The port in what a leading JobManager has written into ZooKeeper, a Java string and an id; None where none is in it."""
    found = re.search(rb"http://[^/:]+:(\d+)", connection)
    return None if found is None else int(found[1])
