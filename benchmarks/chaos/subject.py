"""The job under chaos: its processes, restarted when they end, as a supervisor would, and the census of its output."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos.oracle import Census, Output, now
from benchmarks.chaos.world import Names, World
from benchmarks.restore.process import Family
from benchmarks.restore.systems import BY_NAME, Job, System

TIMEOUT_MS = 60_000
"""Of the embedded job's transactions: an outage that outlasts it is not among the faults, which last seconds."""

PER_TRIGGER = 10_000


def _embedded(name: str, planted: str | None) -> System:
    told = {"timeout_ms": TIMEOUT_MS, "url": None, "planted": planted}
    title = "headrace in a script" + (f", planted: {planted}" if planted else "")
    return System(name, title, "exactly once", "embedded_copy.py", more=lambda: told, ablation=planted is not None)


EMBEDDED = _embedded("embedded", None)
PLANTED = (_embedded("planted-doubles", "doubles"), _embedded("planted-loses", "loses"))
SPARK, BEAM, JVM = BY_NAME["headrace"], BY_NAME["headrace-beam"], BY_NAME["jvm"]
EXECUTORS = replace(
    SPARK,
    name="headrace-executors",
    title="headrace on two executors of a Spark cluster",
    more=lambda: {"connector": "headrace", "survives": False, "warm": False, "jars": [], "master": "local-cluster[2,1,1024]"},
)
SYSTEMS: Mapping[str, System] = {
    "embedded": EMBEDDED,
    "spark": SPARK,
    "executors": EXECUTORS,
    "beam": BEAM,
    "jvm": JVM,
    **{system.name: system for system in PLANTED},
}


@dataclass
class Subject:
    """`starts`: how often it was started. `ended`: what it said each time it ended by itself."""

    system: System
    world: World
    names: Names
    directory: Path
    output: Output
    census: Census
    more: Mapping[str, Any] = field(default_factory=dict)
    starts: int = 0
    ended: list[str] = field(default_factory=list)
    _family: Family | None = None
    _restarting: threading.RLock = field(default_factory=threading.RLock)

    def start(self) -> None:
        """A process of it, beside whatever still runs."""
        state = self.directory / "state"
        state.mkdir(parents=True, exist_ok=True)
        job = Job(
            self.world.bootstrap,
            self.names.source,
            self.names.target,
            self.names.job,
            str(state),
            str(self.directory / "marks.jsonl"),
            self.system.parallelism,
            PER_TRIGGER,
        )
        command = self.system.command(job)
        told = {**json.loads(command[-1]), **self.more}
        environment = self.system.environment(None, self.directory, traced=False)
        self._family = Family([*command[:-1], json.dumps(told)], environment, self.directory)
        self.starts += 1

    @property
    def family(self) -> Family:
        """The processes that were started last."""
        assert self._family is not None
        return self._family

    def look(self) -> None:
        """At the output; and start the job again if it has ended."""
        self.census.add(self.output.look(), now())
        with self._restarting:
            try:
                self.family.check()
            except RuntimeError as error:
                self.ended.append(str(error))
                self.family.end()
                self.start()

    def kill(self) -> None:
        """SIGKILL to all of it; then it is started again. By any thread."""
        with self._restarting:
            self.family.kill()
            self.start()

    def freeze(self) -> list[psutil.Process]:
        """SIGSTOP to all of it; its processes."""
        return signalled(self.family.members(), signal.SIGSTOP)

    def end(self) -> None:
        """For good."""
        if self._family is not None:
            self._family.end()
        self.output.close()


def signalled(processes: set[psutil.Process] | list[psutil.Process], number: signal.Signals) -> list[psutil.Process]:
    """Those that there were."""
    found = []
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
            found.append(process)
    return found
