"""The job under chaos: its processes, restarted when they end, as a supervisor would, and the output check of its output."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos.load import Load
from benchmarks.chaos.oracle import Output, OutputCheck, now
from benchmarks.chaos.testbed import Names, Testbed
from benchmarks.restore.process import LOG, ProcessTree
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


def _embedded(name: str, title: str, properties: Mapping[str, str], **more: object) -> System:
    settings = {"properties": properties, "url": None, **more}
    return System(name, title, "exactly once", "embedded_copy.py", more=lambda: settings, ablation="injected" in more)


EMBEDDED = (
    _embedded("embedded", "headrace in a script", PATIENT),
    _embedded("embedded-impatient", "headrace in a script, with timeouts of seconds", IMPATIENT),
    _embedded("embedded-losses", "headrace in a script that lets losses pass", PATIENT, fail_on_data_loss=False),
    _embedded("embedded-postgresql", "headrace in a script, into PostgreSQL", PATIENT),
    _embedded("embedded-mariadb", "headrace in a script, into MariaDB", PATIENT),
    _embedded("planted-doubles", "injected: doubles", PATIENT, injected="doubles"),
    _embedded("planted-loses", "injected: loses", PATIENT, injected="loses"),
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

LOSSY = frozenset({"embedded-losses"})
"""Systems whose input loses acknowledged records, which they have to report; what comes over the others loses none."""


@dataclass
class Subject:
    """`starts`: how often it was started. `ended`: what it said each time it ended by itself. `load`: who writes its input."""

    system: System
    testbed: Testbed
    names: Names
    directory: Path
    output: Output
    output_check: OutputCheck
    load: Load
    more: Mapping[str, Any] = field(default_factory=dict)
    starts: int = 0
    ended: list[str] = field(default_factory=list)
    _tree: ProcessTree | None = None
    _begins: list[int] = field(default_factory=list)
    _heard: int = 0
    _restarting: threading.RLock = field(default_factory=threading.RLock)

    def start(self) -> None:
        """A process of it, alongside whatever still runs."""
        state = self.directory / "state"
        state.mkdir(parents=True, exist_ok=True)
        job = Job(
            self.testbed.bootstrap,
            self.names.source,
            self.names.target,
            self.names.job,
            str(state),
            str(self.directory / "marks.jsonl"),
            self.system.parallelism,
            PER_TRIGGER,
        )
        command = self.system.command(job)
        settings = {**json.loads(command[-1]), **self.more}
        environment = self.system.environment(None, self.directory, traced=False)
        self._begins.append(self._log().stat().st_size if self._log().exists() else 0)
        self._tree = ProcessTree([*command[:-1], json.dumps(settings)], environment, self.directory)
        self.starts += 1

    @property
    def tree(self) -> ProcessTree:
        """The processes that were started last."""
        assert self._tree is not None
        return self._tree

    def _log(self) -> Path:
        return self.directory / LOG

    def said(self) -> list[str]:
        """What has been written to its log since `hear` was called, by each process: up to where the next one was started."""
        return [text.decode(errors="replace") for text in self._said()]

    def hear(self) -> list[str]:
        """The same, for the last time."""
        said = self._said()
        self._heard += sum(map(len, said))
        return [text.decode(errors="replace") for text in said]

    def _said(self) -> list[bytes]:
        with self._log().open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            places = [self._heard, *(place for place in self._begins if place > self._heard), end]
            file.seek(self._heard)
            return [file.read(behind - first) for first, behind in pairwise(places)]

    def look(self) -> None:
        """At the output; and start the job again if it has ended."""
        self.output_check.add(self.output.look(), now())
        with self._restarting:
            try:
                self.tree.check()
            except RuntimeError as error:
                self.ended.append(str(error))
                self.tree.end()
                self.start()

    def kill(self) -> None:
        """SIGKILL to all of it; then it is started again. By any thread."""
        with self._restarting:
            self.tree.kill()
            self.start()

    def freeze(self) -> list[psutil.Process]:
        """SIGSTOP to all of it; its processes."""
        return signalled(self.tree.members(), signal.SIGSTOP)

    def end(self) -> None:
        """For good."""
        if self._tree is not None:
            self._tree.end()
        self.output.close()


def signalled(processes: set[psutil.Process] | list[psutil.Process], number: signal.Signals) -> list[psutil.Process]:
    """Those that there were."""
    found = []
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
            found.append(process)
    return found
