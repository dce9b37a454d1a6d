"""`headrace run` under many SIGKILLs, in every phase of a checkpoint and its commit; a consumer of another make counts.

    python -m tests.soak.run_soak [--kills 300] [--seconds S] [--broker fake|local] [--workers 4] [--seed 1] [--result FILE]

A topic is copied while records come in, of which some cannot be decoded and become dead letters. A plan names a phase (before
or after a call of the sink or of the store) and who is killed there: a worker, the coordinator, or everything, which is then
started again with another number of workers. Kills are counted per phase; a result file that is there is added to. Exit status
0: of records and dead letters no duplicate, none lost, none foreign, none out of order, and no transaction still open.
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
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from rich.progress import Progress

from headrace.connectors.kafka.write.transactions import Transactions
from headrace.kafka import KafkaSink
from headrace.testing import FakeKafka
from headrace.testing.servers.kafka import create_topic, start_broker
from headrace.testing.servers.kafka.jars import KAFKA_VERSION
from tests.helpers.python_path import python_path
from tests.helpers.sink_rig import read_pairs

Pairs = list[tuple[bytes | None, str]]
"""Keys and values of a topic."""

PARTITIONS = 6
MOST_WORKERS = 4
RECORDS = 5
"""This many more in each partition with every look."""
BAD_EVERY = 4
"""One in this many records is not a JSON."""

TIMEOUT_MS = 300_000
TIMEOUT_S = 120.0
LOOK_S = 0.02
TAIL = 300
AFTER_A_DEATH = {"fence": "coordinator", "clean_up": "worker"}
"""What is called only when another process has died: who is killed to bring it on."""

AGAIN_S = 5.0
"""So long after, again: where a plan's victim is a worker, the clean-up may have come before another one was started."""

VICTIMS = {"worker": 3, "coordinator": 2, "everything": 1}
"""Who is killed, and how often in proportion: to start everything again takes seconds, the others tenths of one."""

CALLS = (
    *(("KafkaTransaction", method) for method in ("write", "push", "prepare")), ("RunMessages", "reported"),
    ("CheckpointStore", "write"),
    *(("KafkaCommitter", method) for method in ("fence", "stage", "check", "record", "end", "clean_up")),
)  # fmt: skip
PHASES = [(*call, when) for call in CALLS for when in ("before", "after")]
BAD = ("duplicates", "lost", "foreign", "out_of_order", "open")
SETTINGS = {
    "execution.checkpointing.interval": "50 ms", "execution.checkpointing.tolerable-failed-checkpoints": "1000",
    "restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "1000000",
    "restart-strategy.fixed-delay.delay": "0 ms",
}  # fmt: skip


class Soak:
    """One run, killed again and again."""

    def __init__(self, bootstrap: str, folder: Path, generator: random.Random, bug: str | None) -> None:
        """`bug`: the name of one that is injected in the job, or None."""
        self.bootstrap, self.folder, self.generator = bootstrap, folder, generator
        self.killed: Counter[str] = Counter()
        self.processes = 0
        self.starts = 0
        self.produced = 0
        self._plan = ""
        self._producer = Producer({"bootstrap.servers": bootstrap})
        settings = {"bootstrap": bootstrap, "folder": str(folder), "timeout_ms": TIMEOUT_MS, "bug": bug}
        self._environment = os.environ | {"HEADRACE_RUN_SOAK": json.dumps(settings), "PYTHONPATH": python_path()}
        self._run = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        job = Path(__file__).with_name("run_soak_job.py")
        command = [sys.executable, "-c", "from headrace.cli import main; main()", "run", f"{job}:pipeline"]
        workers = str(self.generator.randint(1, MOST_WORKERS))
        command += ["--workers", workers, "--checkpoints", str(self.folder / "checkpoints")]
        command += [part for name, value in SETTINGS.items() for part in ("--config", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self._environment, start_new_session=True)

    def kill(self, phase: tuple[str, str, str], victims: str) -> None:
        """Have these killed in this phase; returns when they are."""
        owner, method, when = phase
        plan = {"owner": owner, "method": method, "when": when, "victims": victims, "supervisor": self._run.pid}
        self._plan = json.dumps(plan)
        self._publish_plan()
        done = self.folder / "done"
        deadline_s, bring_on_s = time.monotonic() + TIMEOUT_S, 0.0
        while not done.exists():
            if method in AFTER_A_DEATH and time.monotonic() > bring_on_s:
                self._kill_one(AFTER_A_DEATH[method])
                bring_on_s = time.monotonic() + AGAIN_S
            self._look(f"{phase}", deadline_s)
        self.processes += len(json.loads(done.read_text()))
        done.unlink()
        self.killed[_name(phase, victims)] += 1
        if victims == "everything":
            self._run.wait(TIMEOUT_S)
            self._run = self._started()

    def _kill_one(self, kind: str) -> None:
        with suppress(psutil.NoSuchProcess):
            coordinators = psutil.Process(self._run.pid).children()
            worker_processes_of = [child for each in coordinators for child in each.children()]
            workers = [child for each in worker_processes_of for child in each.children()]
            for victim in {"coordinator": coordinators, "worker": workers}[kind][:1]:
                victim.kill()
                self.processes += 1

    def _publish_plan(self) -> None:
        (self.folder / "planned").write_text(self._plan)
        (self.folder / "planned").rename(self.folder / "plan")

    def _look(self, waiting_for: str, deadline_s: float) -> None:
        self.produce()
        for taken in self.folder.glob("taken-*"):
            # Its process was a victim of the plan before, or has ended with its coordinator.
            if not _is_alive(int(taken.name.partition("-")[2])) and not (self.folder / "done").exists():
                taken.unlink(missing_ok=True)
                self._publish_plan()
        has_ended = self._run.poll() is not None
        if (has_ended and not (self.folder / "done").exists()) or time.monotonic() > deadline_s:
            self._dump_stacks()
            raise RuntimeError(f"waiting for {waiting_for}, status {self._run.poll()}: {self.tail()}")
        time.sleep(LOOK_S)

    def _dump_stacks(self) -> None:
        """Into the log: where each process of the run is."""
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._run.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGUSR1)
        time.sleep(1.0)

    def produce(self) -> None:
        """Some more records: the partition as the key, a number as the value, or what is none."""
        for partition in range(PARTITIONS):
            for number in range(self.produced, self.produced + RECORDS):
                self._producer.produce("in", key=str(partition), value=value_of(number), partition=partition)
        self._producer.flush()
        self.produced += RECORDS

    def stop(self) -> dict[str, int]:
        """Read to the end, stop by SIGTERM, and count what is wrong."""
        deadline_s = time.monotonic() + TIMEOUT_S
        wanted = self.produced * PARTITIONS
        while sum(len(set(pairs)) for pairs in self._outputs()) < wanted and time.monotonic() < deadline_s:
            if self._run.poll() is not None:
                raise RuntimeError(f"the run has ended with status {self._run.poll()}: {self.tail()}")
            time.sleep(LOOK_S * 10)
        self._run.send_signal(signal.SIGTERM)
        if self._run.wait(TIMEOUT_S) != 0:
            raise RuntimeError(f"it did not stop well: {self.tail()}")
        cluster = KafkaSink(self.bootstrap, topic="out").cluster()
        return {**judged(*self._outputs(), self.produced), "open": len(Transactions(cluster).ongoing(""))}

    def _outputs(self) -> tuple[Pairs, Pairs]:
        return read_pairs(self.bootstrap, "out"), read_pairs(self.bootstrap, "letters")

    def tail(self) -> str:
        return "\n".join((self.folder / "log").read_text().splitlines()[-TAIL:])

    def end(self) -> None:
        if self._run.poll() is None:
            groups = {os.getpgid(child.pid) for child in psutil.Process(self._run.pid).children()} - {os.getpgid(self._run.pid)}
            self._run.kill()
            self._run.wait()
            for group in groups:
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)


def value_of(number: int) -> str:
    return f"bad {number}" if number % BAD_EVERY == 0 else str(number)


def _is_alive(pid: int) -> bool:
    """A process that has ended and whose end no process has asked for yet is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def judged(rows: Pairs, dead: Pairs, produced: int) -> dict[str, int]:
    """What is wrong with the two outputs, given how many numbers, from 0, were written to each partition."""
    good, bad = ([number for number in range(produced) if (number % BAD_EVERY == 0) is is_bad] for is_bad in (False, True))
    found = Counter(_judged(rows, good))
    found.update(_judged(dead, bad))
    return {"letters": len(dead), **found}


def _judged(pairs: Pairs, numbers: list[int]) -> dict[str, int]:
    seen = Counter(pairs)
    wanted = {(str(partition).encode(), value_of(number)) for partition in range(PARTITIONS) for number in numbers}
    last: dict[bytes | None, int] = {}
    behind = 0
    for key, value in pairs:
        number = int(value.removeprefix("bad "))
        behind += number < last.get(key, -1)
        last[key] = number
    return {
        "records": len(pairs), "duplicates": sum(count - 1 for count in seen.values()), "lost": len(wanted - seen.keys()),
        "foreign": len(seen.keys() - wanted), "out_of_order": behind,
    }  # fmt: skip


@contextmanager
def kafka(kind: str) -> Iterator[str]:
    """`fake`: in this process. `local`: Apache Kafka's own broker."""
    with ExitStack() as stack:
        if kind == "fake":
            bootstrap = stack.enter_context(FakeKafka()).bootstrap
        else:
            bootstrap = stack.enter_context(start_broker()).bootstrap
        for topic in ("in", "out", "letters"):
            create_topic(bootstrap, topic, PARTITIONS)
        yield bootstrap


def soaked(kind: str, kills: int, seconds: float, seed: int, bug: str | None, only: str, known: Counter[str]) -> dict[str, Any]:
    """Kill this many times, or for so long, in phases whose names hold `only`, of which `known` has the fewest first; judge."""
    generator, started_s = random.Random(seed), time.monotonic()
    with kafka(kind) as bootstrap, tempfile.TemporaryDirectory() as folder, Progress() as progress:
        soak = Soak(bootstrap, Path(folder), generator, bug)
        bar = progress.add_task("kills", total=kills)
        try:
            soak.produce()
            while soak.killed.total() < kills and time.monotonic() - started_s < seconds:
                counted = known + soak.killed
                soak.kill(*min(_all(only), key=lambda pair: (counted[_name(*pair)] / VICTIMS[pair[1]], generator.random())))
                progress.advance(bar)
            found = soak.stop()
        finally:
            soak.end()
    return {
        "killed": soak.killed, "processes": soak.processes, "starts": soak.starts, "seconds": time.monotonic() - started_s,
        **found,
    }  # fmt: skip


def _all(only: str) -> list[tuple[tuple[str, str, str], str]]:
    return [(phase, victims) for phase in PHASES for victims in VICTIMS if only in _name(phase, victims)]


def _name(phase: tuple[str, str, str], victims: str) -> str:
    owner, method, when = phase
    return f"{owner}.{method} {when}: {victims}"


def added(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    killed = Counter(before.get("kills_by_phase", {})) + found["killed"]
    sums = {name: before.get(name, 0) + found[name] for name in ("processes", "starts", "records", "letters", *BAD)}
    return {
        "kills": sum(killed.values()), **sums, "seconds": round(before.get("seconds", 0) + found["seconds"], 1),
        "partitions": PARTITIONS, "workers": f"1 to {MOST_WORKERS}", "kills_by_phase": dict(sorted(killed.items())),
    }  # fmt: skip


def main() -> None:
    """Soak, write the result, and say by the exit status whether all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="kill no more after so long")
    parser.add_argument("--broker", choices=["fake", "local"], default="fake")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bug", help="one of run_soak_job, injected: the soak has to find it")
    parser.add_argument("--only", default="", help="kill in phases alone whose names hold this")
    parser.add_argument("--result", type=Path)
    chosen = parser.parse_args()
    results = json.loads(chosen.result.read_text()) if chosen.result is not None and chosen.result.exists() else {}
    name = "fake" if chosen.broker == "fake" else f"kafka {KAFKA_VERSION}"
    before = results.get(name, {})
    known = Counter(before.get("kills_by_phase", {}))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left of it
    found = soaked(chosen.broker, chosen.kills, chosen.seconds, chosen.seed, chosen.bug, chosen.only, known)
    results[name] = added(before, found)
    text = json.dumps(results, indent=2)
    sys.stdout.write(text + "\n")
    if chosen.result is not None:
        chosen.result.write_text(text + "\n")
    sys.exit(any(found[kind] for kind in BAD))


if __name__ == "__main__":
    main()
