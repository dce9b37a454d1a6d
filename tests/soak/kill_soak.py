"""The exactly-once sink under many SIGKILLs, spread over the phases of a commit; then an oracle of another make counts.

    python tests/soak/kill_soak.py [--engine none|spark] [--kills 300] [--seed 1] [--result FILE]

Every run of the job is killed before or after some call, in its first epochs or in its recovery. Every OUTAGE-th kill is
followed by an outage longer than the transaction timeout. Every REPAIR-th round starts such an outage when a list is durable,
and kills the next run in its repair. In every ZOMBIE-th a run is frozen, and continues when another has taken over. Tasks vary
in number from run to run. Half of the kills happen under version 1 of the transaction protocol, half under version 2. The job
is `sink_job.py`, which has no engine, or `spark_sink_driver.py`. Exit status 0: no duplicate, none lost, none foreign, none
partially committed, and no transaction still open.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from rich.progress import Progress

from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.kafka.write.transactions import Transactions
from headrace.testing.servers.kafka import create_topic, start_broker
from headrace.testing.servers.kafka.jars import KAFKA_VERSION
from tests.helpers.kafka_tools import IDEMPOTENT
from tests.helpers.python_path import ROOT, python_path
from tests.helpers.sink_rig import eventually, kafka_sink, read_all, set_transaction_version

HELPERS = Path(__file__).parents[1] / "helpers"
_STEPS = {"KafkaTransaction": ("write", "prepare"), "KafkaCommitter": ("fence", "check", "record", "end", "clean_up")}
PHASES = [(owner, step, when) for owner, steps in _STEPS.items() for step in steps for when in ("before", "after")]
REPAIR_PHASES = [(step, when, 1) for step in ("copy", "record", "clean_up") for when in ("before", "after")]
MOST_TASKS = 4
ROWS = 60
EPOCHS = 4
OUTAGE, REPAIR, ZOMBIE = 12, 5, 7
TIMEOUT_MS, SPARK_TIMEOUT_MS = 4000, 20_000  # a first batch of Spark takes seconds to write
BAD = ("duplicates", "lost", "foreign", "torn", "open")
SINK = "headrace.connectors.kafka.write.sink"
Kill = dict[str, Any]


def kill_at(owner: str, method: str, when: str, nth: int = 1, what: str = "kill") -> Kill:
    """`what`: kill, or stop, as SIGSTOP does."""
    return {"module": SINK, "owner": owner, "method": method, "when": when, "nth": nth, "what": what}


LISTED = kill_at("KafkaCommitter", "record", "after")
FROZEN = kill_at("KafkaCommitter", "record", "before", what="stop")


class Soak(ABC):
    """One job, killed again and again under one version of the protocol."""

    most_calls: int
    job_seconds: float

    def __init__(
        self, bootstrap: str, directory: Path, generator: random.Random, timeout_ms: int = TIMEOUT_MS, bug: str | None = None
    ) -> None:
        """`bug` is one that is injected in the job."""
        self.bootstrap, self.generator = bootstrap, generator
        name = f"soak-{uuid.uuid4().hex[:8]}"
        create_topic(bootstrap, name, 4)
        self.settings: dict[str, Any] = {
            "bootstrap": bootstrap, "topic": name, "commits": f"{name}-commits", "prefix": name, "timeout_ms": timeout_ms,
            "state": str(directory / name), "rows": ROWS, "bug": bug,
        }  # fmt: skip
        self.state = directory / name
        self.state.mkdir()
        self.kills: Counter[str] = Counter()
        self.outages = self.zombies = self.runs = self.rounds = 0
        sink = kafka_sink(bootstrap, name, self.settings["commits"], transactional_id_prefix=name)
        self._transactions, self._log, self._handles = Transactions(sink.cluster()), sink.commit_log(), sink.handles

    @abstractmethod
    def start(self, kill: Kill | None, epochs: int, tasks: int) -> subprocess.Popen[str]:
        """A run of the job for this many epochs more."""

    @abstractmethod
    def epochs(self) -> int:
        """How many the job has committed, by its own log."""

    @abstractmethod
    def follow(self, process: subprocess.Popen[str]) -> None:
        """Until this run, the last one started, has ended."""

    @abstractmethod
    def thaw(self, process: subprocess.Popen[str]) -> None:
        """Let one that was frozen continue."""

    def run(self, kill: Kill | None, epochs: int, tasks: int) -> int:
        """One run of the job; gives its exit status. Raises RuntimeError for one that failed by itself."""
        process = self.start(kill, epochs, tasks)
        self.follow(process)
        self.runs += 1
        status = process.wait(self.job_seconds)
        if status not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the job failed by itself (kill: {kill}):\n{self.tail()}")
        return int(status)

    def tail(self) -> str:
        return (self.state / "job.log").read_text(errors="replace")[-3000:]

    def round(self) -> int:
        """Something that kills the job; how often it has."""
        before = self.kills.total()
        self.rounds += 1
        if self.rounds % ZOMBIE == 0:
            self.wake_a_zombie()
        elif self.rounds % REPAIR == 0:
            self.break_a_repair()
        else:
            self.kill_once()
        return self.kills.total() - before

    def kill_once(self) -> None:
        """A run with a kill injected, which it may not come to."""
        owner, method, when = self.generator.choice(PHASES)
        kill = kill_at(owner, method, when, self.generator.randint(1, self.most_calls))
        if self.run(kill, EPOCHS, self._tasks()) == 0:
            return
        self.kills[f"{when} {method}"] += 1
        if self.kills.total() % OUTAGE == 0:
            self.wait_out()

    def break_a_repair(self) -> None:
        """An outage starts when a list is durable and nothing on it is committed; the run after it is killed in its repair."""
        if not self.listed() and self.run(LISTED, EPOCHS, self._tasks()) != 0:
            self.kills["after record"] += 1
        if not self.listed():
            return
        self.wait_out()
        step, when, nth = self.generator.choice(REPAIR_PHASES)
        if self.run(kill_at("KafkaCommitter", step, when, nth), EPOCHS, self._tasks()) != 0:
            self.kills[f"{when} {step}, in a repair" if step != "copy" else f"{when} {step}"] += 1

    def wake_a_zombie(self) -> None:
        """A run is frozen before its list is durable, another takes over, then the first continues: it has to fail."""
        zombie = self.start(FROZEN, EPOCHS, self._tasks())
        self.wait_until_frozen(zombie)
        self.run(None, 1, self._tasks())
        self.thaw(zombie)
        if zombie.wait(self.job_seconds) == 0:
            raise RuntimeError("a job that was frozen and replaced has continued")
        self.runs, self.zombies = self.runs + 1, self.zombies + 1

    def wait_until_frozen(self, process: subprocess.Popen[str]) -> None:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise RuntimeError(f"the job ended before it was frozen: {status}\n{self.tail()}")

    def listed(self) -> bool:
        """Whether the durable list names transactions that are to be committed."""
        lists = CommitListSerializer(self._handles)
        return any(not lists.deserialize(data, "the list").completed for data in self._log.read().values())

    def wait_out(self) -> None:
        """An outage: until every transaction that the job has left has timed out."""
        eventually(self.ongoing, [])
        self.outages += 1

    def ongoing(self) -> list[str]:
        return self._transactions.ongoing(self.settings["prefix"])

    def judge(self) -> dict[str, int]:
        """Let the job finish, then count its output, read_committed."""
        self.run(None, 2, 2)
        epochs = self.epochs()
        wanted = {str(number) for number in range(epochs * ROWS)}
        still_open = len(self.ongoing())
        found = Counter(read_all(self.bootstrap, self.settings["topic"]))
        seen = [sum(str(epoch * ROWS + row) in found for row in range(ROWS)) for epoch in range(epochs)]
        uncommitted = read_all(self.bootstrap, self.settings["topic"], "read_uncommitted")
        return {
            "epochs": epochs, "records": len(wanted), "duplicates": sum(count - 1 for count in found.values()),
            "lost": len(wanted - found.keys()), "foreign": len(found.keys() - wanted),
            "torn": sum(0 < count < ROWS for count in seen), "open": still_open,
            "uncommitted_records_in_the_log": len(uncommitted) - found.total(),
        }  # fmt: skip

    def _tasks(self) -> int:
        return self.generator.randint(1, MOST_TASKS)


class BareSoak(Soak):
    most_calls = 4
    job_seconds = 90.0

    def start(self, kill: Kill | None, epochs: int, tasks: int) -> subprocess.Popen[str]:
        settings = {**self.settings, "tasks": tasks, "epochs": epochs, "kill": kill}
        with (self.state / "job.log").open("a") as log:
            return subprocess.Popen([sys.executable, str(HELPERS / "sink_job.py"), json.dumps(settings)], stderr=log, text=True)

    def follow(self, process: subprocess.Popen[str]) -> None:
        process.wait(self.job_seconds)

    def thaw(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGCONT)

    def epochs(self) -> int:
        return len(list((self.state / "commits").glob("[0-9]*")))


class SparkSoak(Soak):
    """A Spark query as the job. It is fed as many records as make up its epochs, so that each has ROWS of them."""

    most_calls = 2
    job_seconds = 240.0

    def __init__(self, bootstrap: str, directory: Path, generator: random.Random) -> None:
        super().__init__(bootstrap, directory, generator, SPARK_TIMEOUT_MS)
        self._input = f"{self.settings['topic']}-input"
        create_topic(bootstrap, self._input, 1)
        self._sent = 0
        self._marks: dict[int, Path] = {}

    def start(self, kill: Kill | None, epochs: int, tasks: int) -> subprocess.Popen[str]:
        """A driver in its own process group, which `what` kills with its JVM."""
        self._feed(max(0, self.epochs() + epochs - self._sent))
        self._done, mark = (self.state / f"{name}-{self.runs}-{len(self._marks)}" for name in ("done", "mark"))
        connection = {"kafka.bootstrap.servers": self.bootstrap}
        arguments = {
            "read": {**connection, "subscribe": self._input, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS)},
            "write": {
                **connection, "topic": self.settings["topic"], "commitTopic": self.settings["commits"],
                "transactionalIdPrefix": self.settings["prefix"],
                "kafka.transaction.timeout.ms": str(self.settings["timeout_ms"]),
            },
            "select": ["value"], "checkpoint": str(self.state / "checkpoint"), "tasks": tasks, "done": str(self._done),
        }  # fmt: skip
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        if kill is not None:
            environment["HEADRACE_KILL"] = json.dumps({**kill, "mark": str(mark)})
            environment["PYTHONPATH"] = python_path(ROOT / "tests" / "faults" / "kill")
        command = [sys.executable, str(HELPERS / "spark_sink_driver.py"), json.dumps(arguments)]
        with (self.state / "job.log").open("a") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, text=True, start_new_session=True, cwd=ROOT
            )
        self._marks[process.pid] = mark
        return process

    def thaw(self, process: subprocess.Popen[str]) -> None:
        """Driver and JVM, and the process alongside them that was frozen, whose number is in the mark."""
        os.killpg(process.pid, signal.SIGCONT)
        os.kill(int(self._marks[process.pid].read_text()), signal.SIGCONT)

    def follow(self, process: subprocess.Popen[str]) -> None:
        """It is instructed to stop when all that it was fed is committed."""
        deadline = time.monotonic() + self.job_seconds
        try:
            while process.poll() is None:
                if self.epochs() >= self._sent:
                    self._done.touch()
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the job does not end:\n{self.tail()}")
                time.sleep(0.05)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a JVM may outlive its driver

    def epochs(self) -> int:
        return len(list((self.state / "checkpoint" / "commits").glob("[0-9]*")))

    def _feed(self, epochs: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, **IDEMPOTENT, "log_level": 0})
        for number in range(self._sent * ROWS, (self._sent + epochs) * ROWS):
            producer.produce(self._input, str(number).encode())
        assert producer.flush(60) == 0
        self._sent += epochs


ENGINES = {"none": BareSoak, "spark": SparkSoak}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, default="none")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path)
    options = parser.parse_args()
    document: dict[str, Any] = {"kafka": KAFKA_VERSION, "engine": options.engine, "seed": options.seed, "protocols": {}}
    config = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with tempfile.TemporaryDirectory() as scratch, start_broker(config=config) as cluster, Progress() as progress:
        for level in (1, 2):
            set_transaction_version(cluster.bootstrap, level)
            soak = ENGINES[options.engine](cluster.bootstrap, Path(scratch), random.Random(options.seed + level))
            started_at = time.monotonic()
            bar = progress.add_task(f"protocol version {level}", total=options.kills // 2)
            while soak.kills.total() < options.kills // 2:
                progress.advance(bar, soak.round())
            document["protocols"][f"v{level}"] = {
                "timeout_ms": soak.settings["timeout_ms"], "kills": soak.kills.total(),
                "by_phase": dict(sorted(soak.kills.items())), "outages": soak.outages, "zombies": soak.zombies,
                "runs": soak.runs, **soak.judge(), "seconds": round(time.monotonic() - started_at),
            }  # fmt: skip
    print(json.dumps(document, indent=1))  # noqa: T201 - the command's output
    if options.result is not None:
        options.result.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(outcome[bad] for outcome in document["protocols"].values() for bad in BAD))


if __name__ == "__main__":
    sys.exit(main())
