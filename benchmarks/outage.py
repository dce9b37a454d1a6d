"""Brokers go away under running jobs, and come back: who continues, after how long, and does the output have every record once?

    python -m benchmarks.outage [--only TEXT] [--away 600] [--rate 200]

Two outages, each under all systems at once, so that they share it: the only broker is killed and stays away for ten minutes;
three brokers are killed and started again, one after the other. Load continues as far as the brokers take it. Each system
copies to its own topic; a script appends to a file. The result is `benchmarks/results/outage.json`.
"""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
import typer
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from benchmarks.environment import environment
from benchmarks.restore.load import Controls, Load
from benchmarks.restore.oracle import Log, Seen, judge, read_log
from benchmarks.restore.process import ProcessTree
from benchmarks.restore.records import identify
from benchmarks.restore.systems import BY_NAME, Job, System
from headrace.testing.servers.kafka import BrokerCluster, create_topic, start_broker

HERE = Path(__file__).parent
RESULT = HERE / "results" / "outage.json"
PARTITIONS, VALUE_BYTES = 8, 100
LOOK_S = 0.02
START_S, QUIET_S, DRAIN_S = 240.0, 20.0, 300.0
BEFORE_S, AFTER_S = 20.0, 20.0
ONE_AWAY_S, BETWEEN_S = 15.0, 15.0
"""A broker of three is away for so long, and the next is killed so long after it is back."""

SCRIPT = System("headrace-script", "headrace in a script", "no checkpoints", "script_read.py")
SYSTEMS = (SCRIPT, *(BY_NAME[name] for name in ("headrace", "headrace-beam", "jvm")))
console = Console()


class Output(Protocol):
    """What a system writes to, as the harness watches it."""

    def look(self) -> int:
        """How many records have become visible since the last look; does not wait."""

    def logs(self) -> tuple[Mapping[int, Log], Mapping[int, Log]]:
        """All of it, at the end: what is committed, and what is written."""


class TopicOutput:
    """A topic under read_committed, by librdkafka."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        """From its first record."""
        self._bootstrap, self._topic = bootstrap, topic
        settings = {"group.id": "outage-probe", "enable.auto.commit": False, "isolation.level": "read_committed"}
        quick = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200, "fetch.queue.backoff.ms": 1}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 0, **settings, **quick})
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])

    def look(self) -> int:
        """Errors of its connections are librdkafka's to ride out."""
        return sum(message.error() is None for message in self._consumer.consume(10_000, 0))

    def logs(self) -> tuple[Mapping[int, Log], Mapping[int, Log]]:
        """Read again, from the start."""
        self._consumer.close()
        committed, written = (
            read_log(self._bootstrap, self._topic, isolation, VALUE_BYTES)
            for isolation in ("read_committed", "read_uncommitted")
        )
        return committed, written


class FileOutput:
    """The file of a script."""

    def __init__(self, file: Path) -> None:
        """It need not be there yet."""
        self._file, self._records = file, 0

    def look(self) -> int:
        """By its size."""
        size = self._file.stat().st_size if self._file.exists() else 0
        new, self._records = size // VALUE_BYTES - self._records, size // VALUE_BYTES
        return new

    def logs(self) -> tuple[Mapping[int, Log], Mapping[int, Log]]:
        """As if it were one partition."""
        raw = self._file.read_bytes()
        ids = identify([raw[at : at + VALUE_BYTES] for at in range(0, len(raw), VALUE_BYTES)], VALUE_BYTES).ids
        logs = {0: Log(np.arange(len(ids)), ids)}
        return logs, logs


@dataclass
class Subject:
    """A system that runs, and when how many of its records became visible. `ended`: the end of its log, if it gave up."""

    system: System
    tree: ProcessTree
    output: Output
    log: Path
    seen: list[tuple[float, int]] = field(default_factory=list)
    visible: int = 0
    ended: str | None = None

    def look(self) -> None:
        """At the output, and whether it still runs."""
        if new := self.output.look():
            self.visible += new
            self.seen.append((time.monotonic(), self.visible))
        if self.ended is None:
            try:
                self.tree.check()
            except RuntimeError as error:
                self.ended = str(error)

    def first_after(self, moment: float) -> float | None:
        """When its first record after this moment became visible."""
        return next((at for at, _ in self.seen if at > moment), None)

    def longest_gap(self, begin: float, end: float) -> float:
        """The longest time without a new record in between, up to the first one after `end`."""
        after = self.first_after(end)
        moments = [begin, *(at for at, _ in self.seen if begin < at <= end), *([] if after is None else [after])]
        return max(np.diff(moments), default=0.0)


@dataclass(frozen=True)
class Away:
    """When brokers went and were back: monotonic seconds of the first kill, and of the last return."""

    went: float
    back: float


class Trial:
    """All systems between topics of one cluster, under one load. Used by one thread."""

    def __init__(self, cluster: BrokerCluster, systems: Sequence[System], directory: Path, stack: ExitStack) -> None:
        """Starts the load at nothing, and the systems."""
        self.cluster, bootstrap = cluster, cluster.bootstrap
        self._replicas = min(3, len(cluster.nodes))
        name = f"outage-{uuid.uuid4().hex[:8]}"
        self._source = self._topic(f"{name}-in")
        self.controls = Controls()
        self.controls.partitions.value = PARTITIONS
        self._load: Load = stack.enter_context(
            Load(bootstrap, self._source, VALUE_BYTES, directory / "load.stamps", self.controls)
        )
        self.subjects = [self._start(system, f"{name}-{system.name}", directory / system.name) for system in systems]
        for subject in self.subjects:
            stack.callback(subject.tree.end)

    def _topic(self, name: str) -> str:
        safe = {"min.insync.replicas": str(max(1, self._replicas - 1))}
        create_topic(self.cluster.bootstrap, name, PARTITIONS, self._replicas, safe)
        return name

    def _start(self, system: System, name: str, directory: Path) -> Subject:
        state = directory / "state"
        state.mkdir(parents=True)
        bootstrap, target = self.cluster.bootstrap, self._topic(f"{name}-out")
        job = Job(bootstrap, self._source, target, name, str(state), str(directory / "marks.jsonl"), system.parallelism, 10_000)
        tree = ProcessTree(system.command(job), system.environment(None, directory, traced=False), directory)
        output = FileOutput(state / "values") if system is SCRIPT else TopicOutput(bootstrap, target)
        return Subject(system, tree, output, directory / "job.log")

    def watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let all run, and look; ends early when it is so. Whether it was."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for subject in self.subjects:
                subject.look()
            if until():
                return True
            time.sleep(LOOK_S)
        return False

    def warm_up(self, rate: float) -> None:
        """Until each has shown its first record. Raises RuntimeError when one does not."""
        self.controls.rate.value = rate
        if not self.watch(START_S, lambda: all(subject.visible for subject in self.subjects)):
            silent = [f"{subject.system.name}: {subject.tree.log_tail()}" for subject in self.subjects if not subject.visible]
            raise RuntimeError(f"no record came out within {START_S:g} s of " + "\n".join(silent))
        self.watch(BEFORE_S)

    def bring_back(self, node: int) -> float:
        """Start a broker again, and look meanwhile; when it served."""
        with ThreadPoolExecutor(1) as pool:
            serving = pool.submit(self.cluster.restart, node)
            self.watch(START_S, serving.done)
            serving.result()
        return time.monotonic()

    def drain(self) -> list[int]:
        """End the load; wait until nothing more comes out. How many records each input partition got."""
        produced = self._load.stop()

        def finished() -> bool:
            last = max((at for subject in self.subjects for at, _ in subject.seen), default=0.0)
            all_out = all(subject.visible >= sum(produced) or subject.ended for subject in self.subjects)
            return time.monotonic() - last > (BEFORE_S / 4 if all_out else QUIET_S)

        self.watch(DRAIN_S, finished)
        return produced

    def acknowledged_after(self, moment: float) -> float:
        """When the first write of the load after this moment was acknowledged."""
        curve = self._load.curve()
        return float(curve.at[curve.at > moment][0])


def one_away(trial: Trial, seconds: float) -> Away:
    """The only broker is killed, and stays away."""
    (node,) = trial.cluster.nodes
    went = time.monotonic()
    trial.cluster.kill(node)
    trial.watch(seconds)
    return Away(went, trial.bring_back(node))


def each_in_turn(trial: Trial) -> Away:
    """Each broker is killed and started again."""
    went = time.monotonic()
    for node in trial.cluster.nodes:
        trial.cluster.kill(node)
        trial.watch(ONE_AWAY_S)
        back = trial.bring_back(node)
        trial.watch(BETWEEN_S)
    return Away(went, back)


def run(brokers: int, happen: Callable[[Trial], Away], systems: Sequence[System], rate: float) -> dict[str, Any]:
    """One outage: its document."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-outage-")))
        tell = stack.enter_context(_telling(f"{brokers} broker(s)"))
        tell("start")
        cluster = stack.enter_context(start_broker(brokers))
        trial = Trial(cluster, systems, directory, stack)
        tell("systems start")
        trial.warm_up(rate)
        tell("brokers go away")
        away = happen(trial)
        tell("brokers are back")
        trial.watch(AFTER_S)
        tell("drain")
        produced = trial.drain()
        acknowledged = trial.acknowledged_after(away.back)
        tell("judge")
        found = {subject.system.name: _document(subject, away, produced) for subject in trial.subjects}
    seconds = {"away_s": round(away.back - away.went, 1), "load_acknowledged_s": round(acknowledged - away.back, 2)}
    return {"brokers": brokers, "rate": rate, "value_bytes": VALUE_BYTES, **seconds, "systems": found}


def _document(subject: Subject, away: Away, produced: Sequence[int]) -> dict[str, Any]:
    nothing = np.empty(0, np.int64)
    committed, written = subject.output.logs()
    outcome = judge(produced, committed, lambda: written, Seen(np.empty(0), nothing, nothing, nothing, nothing))
    resumed = subject.first_after(away.back)
    counts = {name: count for name, count in outcome.counts().items() if name not in ("aborted_seen", "unseen")}
    return {
        "title": subject.system.title,
        "went_on": subject.ended is None,
        "ended": subject.ended,
        "resumed_s": None if resumed is None else round(resumed - away.back, 2),
        "longest_gap_s": round(subject.longest_gap(away.went, away.back), 2),
        "clean": outcome.clean,
        **counts,
        "warnings": _warnings(subject.log),
    }


def _warnings(log: Path) -> list[str]:
    """The first lines in which ours states that it rides something out."""
    lines = log.read_text(errors="replace").splitlines()
    return [line[:300] for line in lines if "headrace" in line and "WARN" in line.upper()][:5]


@contextmanager
def _telling(title: str) -> Iterator[Callable[[str], None]]:
    with Progress(TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task(title)
        yield lambda step: progress.update(task, description=f"{title}: {step}")


def main(
    only: Annotated[str, typer.Option(help="Systems whose names contain this.")] = "",
    away: Annotated[float, typer.Option(help="Seconds for which the only broker is away.")] = 600.0,
    rate: Annotated[float, typer.Option(help="Records per second.")] = 200.0,
    result: Annotated[Path, typer.Option(help="Where the result goes.")] = RESULT,
) -> None:
    """Brokers go away under running jobs."""
    systems = [system for system in SYSTEMS if only in system.name]
    document: dict[str, Any] = {**environment("local"), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    outages = {
        "the only broker away": (1, lambda trial: one_away(trial, away)),
        "three brokers one after another": (3, each_in_turn),
    }
    for name, (brokers, happen) in outages.items():
        document[name] = run(brokers, happen, systems, rate)
        result.write_text(json.dumps(document, indent=1) + "\n")
        console.print_json(json.dumps({key: value for key, value in document[name].items() if key != "environment"}))


if __name__ == "__main__":
    typer.run(main)
