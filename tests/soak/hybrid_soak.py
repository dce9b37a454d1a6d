"""A year of daily files, then the topic they were written from, by Spark, `headrace run` and Beam on Flink, under SIGKILLs.

    python -m tests.soak.hybrid_soak [--engine spark|spark-cluster|run|flink] [--kills 10] [--seed 1] [--result FILE]

Each round has its own files and topics, and records are produced while it runs. Kills are aimed: before the switch, once some
files are read; in it, once a process has made the source of the topic and before a record of it is committed; and after it. In
each phase there are as many as asked for. A consumer of another make counts. A result file that is there is added to. Exit
status 0: each record is in the output, once.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Producer, TopicPartition
from rich.progress import Progress

from headrace.testing.servers.flink import FlinkCluster
from headrace.testing.servers.flink.rest import ENDED
from headrace.testing.servers.kafka import create_topic, start_broker
from tests.helpers.flink_rig import flink_cluster, job
from tests.helpers.kafka_tools import IDEMPOTENT
from tests.helpers.waiting import eventually
from tests.soak.hybrid_job import BUGS_MS, DAY_MS, VARIABLE, Settings
from tests.soak.results import kept
from tests.soak.split_soak import ON_SPARK, SPARK, Job

DAYS, MORE_DAYS, ROWS = 365, 5, 8
"""Of files; of the topic behind them, written before the job starts; records of a day."""
PARTITIONS = 3
PHASES = ("before", "in", "after")
MOST_KILLS = 6
"""In one phase of a round."""
CONFIGS = {"retention.ms": "-1", "segment.ms": str(1000 * DAY_MS)}
"""Of the topics: their first records are a year old."""
BAD = ("lost", "doubled", "foreign")
LOOK_S = 0.05
TIMEOUT_S = 480.0
LATE_S = 60.0
"""This long after the last records others may come that were written earlier."""
SETTLE_S = 5.0
"""What comes twice comes by then."""
RUN = f"{Path(__file__).with_name('hybrid_job.py')}:pipeline"
CLUSTER = "local-cluster[1,2,1024]"
CONFIG = {
    "execution.checkpointing.interval": "200 ms", "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000000", "restart-strategy.fixed-delay.delay": "0 ms",
}  # fmt: skip


class Records:
    """What is in the files and the topic. The first ones are in both."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.count = 0
        self.in_files = DAYS * ROWS
        self._producer = Producer({"bootstrap.servers": settings.bootstrap, **IDEMPOTENT})
        folder = Path(settings.folder) / "days"
        folder.mkdir()
        first_ms = time.time_ns() // 1_000_000 - (DAYS + MORE_DAYS + 1) * DAY_MS
        for day in range(DAYS + MORE_DAYS):
            at_ms = first_ms + day * DAY_MS
            values = self._produce(at_ms)
            if day < DAYS:
                file = folder / f"{day}.parquet"
                pq.write_table(pa.table({"value": values}), file)
                os.utime(file, ns=(at_ms * 1_000_000,) * 2)
        self._producer.flush()

    def more(self) -> None:
        self._produce(time.time_ns() // 1_000_000)
        self._producer.flush()

    def _produce(self, at_ms: int) -> list[bytes]:
        values = [b"%d" % number for number in range(self.count, self.count + ROWS)]
        for number, value in enumerate(values):
            self._producer.produce(self._settings.source, value, partition=number % PARTITIONS, timestamp=at_ms)
        self.count += ROWS
        return values


class Output:
    """What is committed to the target topic: each number, and how often."""

    def __init__(self, settings: Settings) -> None:
        given = {"bootstrap.servers": settings.bootstrap, "group.id": "soak", "enable.auto.commit": False}
        self._consumer = Consumer({**given, "isolation.level": "read_committed"})
        self._consumer.assign([TopicPartition(settings.target, partition, 0) for partition in range(PARTITIONS)])
        self.found: Counter[int] = Counter()

    def look(self) -> None:
        while messages := self._consumer.consume(1000, LOOK_S):
            for message in messages:
                assert message.error() is None, message.error()
                self.found[int(message.value())] += 1

    def close(self) -> None:
        self._consumer.close()


class Running(Protocol):
    """A job that runs. `starts`: how many times a user's process or submission was started."""

    starts: int

    def keep(self) -> None:
        """Start what has ended; what ends for good is an error."""

    def kill(self, victim: str, moves: random.Random) -> bool:
        """Whether there was one. It is dead afterwards."""


class Processes(Job):
    """A job of Spark or `headrace run`."""

    def kill(self, victim: str, moves: random.Random) -> bool:
        alive = self._alive()
        if not super().kill(victim, moves):
            return False
        eventually(lambda: not alive <= self._alive(), f"no {victim} was killed")
        return True

    def _alive(self) -> set[tuple[int, float]]:
        own = [psutil.Process(self._process.pid)] if self._process.poll() is None else []
        return {(each.pid, each.create_time()) for each in own + self._processes() if is_alive(each)}


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class OnFlink:
    """A job on Flink, whose cluster starts it again itself."""

    def __init__(self, flink: FlinkCluster, settings: Settings, stack: ExitStack) -> None:
        def build(pipeline: Any) -> None:
            settings.pipeline().expand_on_beam(pipeline, num_readers=2, num_shards=2)

        self.starts = 1
        self._flink = flink
        self._job = stack.enter_context(job(flink, build, checkpoint_ms=1000))

    def keep(self) -> None:
        view = self._flink.job(self._job)
        assert view.state not in ENDED, view.failure

    def kill(self, victim: str, _moves: random.Random) -> bool:
        self._flink.kill_task_manager()
        assert victim in self._flink.ended()
        self._flink.start_task_manager()
        return True


def on_spark(settings: Settings, stack: ExitStack, master: str = Settings.master) -> Processes:
    environment = {**SPARK, VARIABLE: json.dumps(asdict(replace(settings, master=master)))}
    log, victims = Path(settings.folder) / "log", ON_SPARK if master == CLUSTER else {"worker": is_forked_worker}
    return stack.enter_context(closing(Processes(log, ["-m", "tests.soak.hybrid_job"], environment, victims)))


def is_forked_worker(process: psutil.Process) -> bool:
    """Of a session on this machine, whose daemons are forked from one process."""
    return sum("headrace.runners.spark_processes.zygote" in each.cmdline() for each in (process, *process.parents())) == 3


def on_run(settings: Settings, stack: ExitStack) -> Processes:
    folder = Path(settings.folder)
    arguments = ["-c", "from headrace.cli import main; main()", "run", RUN, "--workers", "2"]
    arguments += ["--checkpoints", str(folder / "checkpoints")]
    arguments += [part for name, value in CONFIG.items() for part in ("--config", f"{name}={value}")]
    environment = {VARIABLE: json.dumps(asdict(settings))}
    victims = {"coordinator": is_at(1), "worker": is_at(3)}
    return stack.enter_context(closing(Processes(folder / "log", arguments, environment, victims)))


def is_at(depth: int) -> Callable[[psutil.Process], bool]:
    """A process so deep below the supervisor of a run."""
    return lambda process: sum(RUN in each.cmdline() for each in process.parents()) == depth


@dataclass(frozen=True)
class Engine:
    """`victims`: who is killed, and how often in proportion. `delay_s`: at most so long after what is waited for.

    `pause_s`: how long a batch of records takes. `is_held_up`: the switch would come while files are still read, so it is held
    up until there were kills before it. `whole`: the victim that is the user's process, which the soak starts again.
    """

    start: Callable[[Settings, ExitStack], Running]
    victims: Mapping[str, int]
    delay_s: float
    pause_s: float
    whole: str = ""
    is_held_up: bool = False


def engine_of(name: str, stack: ExitStack) -> Engine:
    match name:
        case "spark":
            return Engine(on_spark, {"driver": 1, "worker": 2}, 2.0, 0.02, "driver")
        case "spark-cluster":
            return Engine(partial(on_spark, master=CLUSTER), {"executor": 2, "worker": 1}, 2.0, 0.02, "driver")
        case "run":
            return Engine(on_run, {"everything": 1, "coordinator": 2, "worker": 2}, 0.2, 0.02, "everything")
        case _:
            flink = stack.enter_context(flink_cluster())
            return Engine(
                lambda settings, stack: OnFlink(flink, settings, stack), {"task manager": 1}, 3.0, 0.05, is_held_up=True
            )


class Round:
    """One job, from the first file to the last record."""

    def __init__(self, engine: Engine, settings: Settings, moves: random.Random, stack: ExitStack) -> None:
        self._engine, self._settings, self._moves = engine, settings, moves
        for topic in (settings.source, settings.target):
            create_topic(settings.bootstrap, topic, PARTITIONS, configs=CONFIGS)
        self._records = Records(settings)
        self._output = stack.enter_context(closing(Output(settings)))
        self._has_switched = False
        if not engine.is_held_up:
            settings.gate.touch()
        self.job = engine.start(settings, stack)
        self.kills: Counter[str] = Counter()

    def kill(self, phase: str, times: int) -> None:
        """At most this many times, while the phase lasts."""
        for _ in range(times):
            seen = self._output.found.total()
            self._settings.mark.unlink(missing_ok=True)
            self._until(lambda seen=seen: self._is_reached(phase, seen), phase)
            time.sleep(self._moves.uniform(0.0, self._engine.delay_s))
            victim = self._moves.choices(list(self._engine.victims), list(self._engine.victims.values()))[0]
            now = self._phase()
            if self.job.kill(victim, self._moves):
                self.kills[f"{now}: {victim}"] += 1
            if now != phase:
                return

    def finish(self) -> dict[str, int]:
        """What is wrong with the output, once it has all records: the last ones are written when nothing is killed any more."""
        self.open()
        self._records.more()
        wanted = range(self._records.count)
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(self._output.found) < len(wanted) and time.monotonic() < deadline_s:
            self.job.keep()
            self._output.look()
            if self._output.found.keys() >= set(wanted[-ROWS:]):
                deadline_s = min(deadline_s, time.monotonic() + LATE_S)
        time.sleep(SETTLE_S)
        self._output.look()
        killed = sum(count for name, count in self.kills.items() if name.endswith(f": {self._engine.whole}"))
        ended = self.job.starts - 1 - killed
        return {"records": len(wanted), "ended": ended, **judged(self._output.found, wanted)}

    def open(self) -> None:
        """The switch is not held up any more."""
        self._settings.gate.touch()

    def _phase(self) -> str:
        self._output.look()
        if any(number >= self._records.in_files for number in self._output.found):
            return "after"
        self._has_switched |= self._settings.mark.exists()
        return "in" if self._has_switched else "before"

    def _is_reached(self, phase: str, seen: int) -> bool:
        """There is something to be killed in the phase, as something was done since it was looked at; or it is over."""
        now = self._phase()
        if now != phase:
            return PHASES.index(now) > PHASES.index(phase)
        if phase == "in":
            return self._settings.mark.exists()
        found = self._output.found.total()
        return found > seen or found == self._records.in_files

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not is_so():
            self._look()
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"nothing to kill {what!r} the switch in {TIMEOUT_S:g} s: see {self._settings.folder}")

    def _look(self) -> None:
        self.job.keep()
        if self._has_switched:
            self._records.more()
        self._output.look()


def judged(found: Counter[int], wanted: range) -> dict[str, int]:
    """What is wrong with an output that should have these numbers."""
    doubled = sum(times - 1 for number, times in found.items() if number in wanted)
    foreign = sum(times for number, times in found.items() if number not in wanted)
    return {"lost": sum(number not in found for number in wanted), "doubled": doubled, "foreign": foreign}


def soaked(name: str, bootstrap: str, kills: int, seed: int, bug: str | None) -> Iterator[dict[str, Any]]:
    """Rounds, until each phase had this many kills or something is wrong. Gives after each what all have found."""
    moves, started_s = random.Random(seed), time.monotonic()
    done, sums = Counter[str](), Counter[str]()
    with ExitStack() as stack, Progress() as bar:
        engine = engine_of(name, stack)
        task = bar.add_task(f"kills of {name}", total=kills * len(PHASES))
        while (left := missing(done, kills)) and not any(sums[kind] for kind in BAD):
            folder = tempfile.mkdtemp(prefix="headrace-hybrid-")
            topic = f"{name}-{uuid.uuid4().hex[:8]}"
            settings = Settings(bootstrap, folder, f"{topic}-in", f"{topic}-out", engine.pause_s, bug)
            with ExitStack() as round_stack:
                current = Round(engine, settings, moves, round_stack)
                for phase in PHASES:
                    current.kill(phase, min(MOST_KILLS, left[phase]))
                    current.open()
                found = current.finish()
            if not any(found[kind] for kind in BAD):
                shutil.rmtree(folder, ignore_errors=True)
            done.update(current.kills)
            sums.update(found | {"rounds": 1, "starts": current.job.starts})
            bar.update(task, completed=done.total())
            seconds = round(time.monotonic() - started_s)
            yield {"engine": name, "seed": seed, "bug": bug, "kills": dict(sorted(done.items())), **sums, "seconds": seconds}


def missing(done: Counter[str], kills: int) -> Counter[str]:
    """By phase, how many of this many kills are to come."""
    return Counter(dict.fromkeys(PHASES, kills)) - Counter(name.partition(":")[0] for name in done.elements())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["spark", "spark-cluster", "run", "flink"], default="run")
    parser.add_argument("--kills", type=int, default=10, help="in each phase")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bug", choices=BUGS_MS, help="injected: the soak has to find it")
    parser.add_argument("--result", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left of it
    with start_broker() as broker:
        results = soaked(arguments.engine, broker.bootstrap, arguments.kills, arguments.seed, arguments.bug)
        result = kept(results, arguments.result)
    sys.exit(any(result[kind] for kind in BAD))


if __name__ == "__main__":
    main()
