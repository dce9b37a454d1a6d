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

PER_TRIGGER = 10_000


PATIENT = {"transaction.timeout.ms": "60000"}
"""An outage that outlasts this is not among the faults, which last seconds."""

IMPATIENT = {
    "transaction.timeout.ms": "4000",
    "request.timeout.ms": "1500",
    "delivery.timeout.ms": "3000",
    "default.api.timeout.ms": "3000",
}
"""Most faults outlast these: transactions are aborted behind the job's back, and it gives up and is started again."""


def _embedded(name: str, title: str, properties: Mapping[str, str], planted: str | None = None) -> System:
    told = {"properties": properties, "url": None, "planted": planted}
    return System(name, title, "exactly once", "embedded_copy.py", more=lambda: told, ablation=planted is not None)


EMBEDDED = (
    _embedded("embedded", "headrace in a script", PATIENT),
    _embedded("embedded-impatient", "headrace in a script, with timeouts of seconds", IMPATIENT),
    _embedded("planted-doubles", "planted: doubles", PATIENT, "doubles"),
    _embedded("planted-loses", "planted: loses", PATIENT, "loses"),
)
SPARK, BEAM, JVM = BY_NAME["headrace"], BY_NAME["headrace-beam"], BY_NAME["jvm"]
EXECUTORS = replace(
    SPARK,
    name="headrace-executors",
    title="headrace on two executors of a Spark cluster",
    more=lambda: {"connector": "headrace", "survives": False, "warm": False, "jars": [], "master": "local-cluster[2,1,1024]"},
)
SYSTEMS: Mapping[str, System] = {
    **{system.name: system for system in EMBEDDED},
    "spark": SPARK,
    "executors": EXECUTORS,
    "beam": BEAM,
    "jvm": JVM,
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
