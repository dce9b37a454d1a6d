"""The systems under test: how each is started, and what of it is killed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from benchmarks.flink_systems import CONNECTOR, flink_home, flink_python
from benchmarks.jars import jvm_connector_jars
from benchmarks.restore.scenarios import GROW, Phase, Scenario, before_the_list, scenario
from headrace.runners.spark_processes.spark_archive import archive_of_spark
from headrace.testing.servers.flink.programs import FLINK
from headrace.testing.servers.jars import installed

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FAULTS = ROOT / "tests" / "faults"
PARALLELISM = 2


class Victim(Enum):
    """What SIGKILL hits."""

    ALL = "the driver and all its processes"
    WORKERS = "the Python workers, or the TaskManager; the driver, or the JobManager, survives"
    WORKER = "one worker; the others and the coordinator survive"
    ACTIVE = "all that is active: the driver and its processes, or the JobManager and the TaskManager; the standby survives"


@dataclass(frozen=True)
class Job:
    """What a job is reported, as JSON. `name` is unique to the run, and the same after a restart; `state` survives it."""

    bootstrap: str
    source: str
    target: str
    name: str
    state: str
    marks: str
    parallelism: int
    per_trigger: int


@dataclass(frozen=True)
class System:
    """`command` is what is run for a job, `more` what its JSON says besides. `injected`: a folder for PYTHONPATH, first.

    `has_phases`: it is killed in the phases of our sink. `ablation`: a bug is put back, so anomalies are what is expected.
    """

    name: str
    title: str
    guarantee: str
    script: str
    python: Callable[[], Path] = lambda: Path(sys.executable)
    more: Callable[[], Mapping[str, Any]] = dict
    parallelism: int = PARALLELISM
    victim: Victim = Victim.ALL
    has_phases: bool = False
    injected: Path | None = None
    ablation: bool = False
    capacity_of: str = ""
    scenarios: Callable[[int], Scenario] = field(default=scenario)

    def command(self, job: Job) -> list[str]:
        """The process to start."""
        settings = json.dumps({**asdict(job), **self.more()})
        return [str(self.python()), str(HERE / "jobs" / self.script), settings]

    def environment(self, phase: Phase | None, directory: Path, *, traced: bool) -> dict[str, str]:
        """Its environment; with a phase, it stops there once the file `armed` is in `directory`."""
        # Without compiled bytecode every process that Spark starts would compile our modules, and an installed package has it.
        left_out = ("HEADRACE_", "PYTHONDONTWRITEBYTECODE")
        found = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        paths = [str(ROOT)]
        if phase is not None or traced:
            paths.insert(0, str(FAULTS / "phases"))
        if self.injected is not None:
            paths.insert(0, str(self.injected))
        if phase is not None:
            files = {"armed": str(directory / "armed"), "reached": str(directory / "reached")}
            found["HEADRACE_PHASE"] = json.dumps({**asdict(phase), **files})
        if traced:
            found["HEADRACE_TRACE"] = str(directory / "marks.jsonl")
        python = str(self.python())
        found["TMPDIR"] = str(directory)  # what a killed process leaves behind goes with the run
        return {**found, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "PYTHONPATH": os.pathsep.join(paths)}

    @property
    def most(self) -> int | None:
        """This many workers are killed at once; None for all."""
        return 1 if self.victim is Victim.WORKER else None

    def scenario(self, number: int) -> Scenario:
        """What the n-th run does to it, from 0: what it cannot have is left out."""
        chosen = self.scenarios(number)
        keeps_driver = self.victim is not Victim.ALL
        phase = chosen.phase if self.has_phases else None
        return Scenario(chosen.name, phase, chosen.again, chosen.added, 0 if keeps_driver else chosen.more)


def _spark(connector: str, *, survives: bool = False, warm: bool = False) -> Callable[[], Mapping[str, Any]]:
    def more() -> Mapping[str, Any]:
        if warm:
            archive_of_spark().at_hand()
        jars = jvm_connector_jars() if connector == "kafka" else []
        return {"connector": connector, "survives": survives, "warm": warm, "jars": jars}

    return more


def _standbys(number: int) -> Callable[[], Mapping[str, Any]]:
    return lambda: {**_spark("headrace", warm=True)(), "standbys": number}


def _loop(*, transactions: bool) -> Callable[[], Mapping[str, Any]]:
    return lambda: {"transactions": transactions}


def _flink() -> Mapping[str, Any]:
    return {"jar": str(installed(CONNECTOR) / CONNECTOR.main_jar)}


def _flink_standby() -> Mapping[str, Any]:
    return {**_flink(), "python": str(flink_python()), "home": str(flink_home())}


def _beam() -> Mapping[str, Any]:
    installed(FLINK)  # not in the job, whose start is waited for
    return {}


def _headrace(name: str, title: str, **changes: Any) -> System:  # noqa: ANN401 - a System's fields
    given = {"guarantee": "exactly once", "script": "spark_copy.py", "more": _spark("headrace", warm=True)}
    return System(name, title, **{**given, **changes})


EXACTLY, AT_LEAST = "exactly once", "at least once"

SYSTEMS = (
    _headrace("headrace", "headrace on Spark", has_phases=True),
    _headrace(
        "headrace-standby", "headrace on Spark, with a standby: twice the memory", script="spark_standby.py", more=_standbys(1),
        victim=Victim.ACTIVE, has_phases=True, capacity_of="headrace",
    ),
    _headrace(
        "headrace-standbys", "headrace on Spark, with two standbys: three times the memory", script="spark_standby.py",
        more=_standbys(2), victim=Victim.ACTIVE, has_phases=True, capacity_of="headrace",
    ),
    System("jvm", "Spark's JVM connector", AT_LEAST, "spark_copy.py", more=_spark("kafka")),
    System("flink", "Flink SQL", EXACTLY, "flink_copy.py", flink_python, _flink),
    System(
        "flink-standby", "Flink SQL, with a standby JobManager and a spare TaskManager", EXACTLY, "flink_standby.py",
        more=_flink_standby, victim=Victim.ACTIVE, capacity_of="flink",
    ),
    _headrace(
        "headrace-worker", "headrace on Spark, worker killed", more=_spark("headrace", survives=True, warm=True),
        victim=Victim.WORKERS, has_phases=True, capacity_of="headrace",
    ),
    System("headrace-run", "headrace run", EXACTLY, "run_copy.py"),
    System(
        "headrace-run-worker", "headrace run, one worker killed", EXACTLY, "run_copy.py",
        victim=Victim.WORKER, capacity_of="headrace-run",
    ),
    System("headrace-beam", "headrace on Beam and Flink", EXACTLY, "beam_copy.py", more=_beam),
    System(
        "headrace-beam-worker", "headrace on Beam and Flink, task manager killed", EXACTLY, "beam_copy.py", more=_beam,
        victim=Victim.WORKERS, capacity_of="headrace-beam",
    ),
    System(
        "confluent-txn", "confluent-kafka loop, transactions", EXACTLY, "confluent_copy.py",
        more=_loop(transactions=True), parallelism=1,
    ),
    System("confluent", "confluent-kafka loop", AT_LEAST, "confluent_copy.py", more=_loop(transactions=False), parallelism=1),
    System(
        "kafka-python-txn", "kafka-python loop, transactions", EXACTLY, "kafka_python_copy.py",
        more=_loop(transactions=True), parallelism=1,
    ),
    System(
        "kafka-python", "kafka-python loop", AT_LEAST, "kafka_python_copy.py", more=_loop(transactions=False), parallelism=1
    ),
)  # fmt: skip

ABLATIONS = (
    _headrace(
        "reinitialise", "ablation: initialises again on restore", injected=FAULTS / "reinitialise",
        ablation=True, has_phases=True, scenarios=before_the_list,
    ),
    _headrace(
        "no-discovery", "ablation: no discovery across the restore", injected=FAULTS / "no_discovery",
        ablation=True, scenarios=lambda _number: GROW,
    ),
)  # fmt: skip

COLD = _headrace(
    "headrace-cold", "headrace on Spark, with Spark's own way to start Python", more=_spark("headrace"), has_phases=True
)
"""What the start from loaded processes is compared with, in `restore_breakdown.py`."""

JVM_WARM = System(
    "jvm-warm", "Spark's JVM connector, with our session", AT_LEAST, "spark_copy.py", more=_spark("kafka", warm=True)
)
"""What of our restore is not ours alone: its session starts as ours does."""

BY_NAME = {system.name: system for system in (*SYSTEMS, *ABLATIONS, COLD, JVM_WARM)}
