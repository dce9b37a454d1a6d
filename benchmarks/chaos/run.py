"""Chaos on real servers: a job copies a topic while three brokers, the network, their settings, the database that it writes to,
if any, and it itself are disturbed.

    python -m benchmarks.chaos.run [--system embedded] [--faults 2000] [--testbeds 1] [--minutes 60] [--only TEXT]

The next fault is of a kind that has happened least often to the system so far. Every fault is a line of JSON in
`benchmarks/results/chaos/<system>.jsonl`, written when its result is known, and a run that is started again continues after the
last one. After each session of faults the whole output is read again, and that result is a line as well. Testbeds, each with
its own brokers and job, share the file.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.chaos.databases import PRODUCTS, table
from benchmarks.chaos.fake import fake_testbed
from benchmarks.chaos.faults import KINDS
from benchmarks.chaos.faults.fault import Kind
from benchmarks.chaos.load import Load
from benchmarks.chaos.oracle import VALUE_BYTES, Output, OutputCheck, TopicOutput, is_clean
from benchmarks.chaos.subject import LOSSY, SYSTEMS, Subject
from benchmarks.chaos.testbed import SAFE, UNSAFE, Names, Testbed, testbed
from benchmarks.chaos.trial import Trial, is_good
from benchmarks.environment import environment

RESULTS = Path(__file__).parents[1] / "results" / "chaos"
PARTITIONS = 4
RATE = 96.0
START_S = 240.0
TOLD = ("stall_s", "load_stall_s", "catch_up_s", "missing", "duplicates", "due", "reported")
console = Console()


class Servers(Enum):
    """What the brokers are."""

    REAL = "real"
    FAKE = "fake"
    FAKE_1 = "fake-v1"
    """With version 1 of the transaction protocol, under which the broker distinguishes late requests less well from new
    ones.
    """


TESTBEDS: Mapping[Servers, Callable[[], AbstractContextManager[Testbed]]] = {
    Servers.REAL: testbed,
    Servers.FAKE: fake_testbed,
    Servers.FAKE_1: lambda: fake_testbed(transaction_version=1),
}


def kinds_of(system: str, servers: Servers, only: str = "") -> Sequence[Kind]:
    """Those that fit the system and the servers, and have the text in their name or family."""
    there = [kind for kind in KINDS.values() if kind.loses == (system in LOSSY)]
    fitting = [kind for kind in there if kind.fits(system) and not (kind.real and servers is not Servers.REAL)]
    return [kind for kind in fitting if only in kind.name or only in kind.tree]


def file_name(system: str, servers: Servers) -> str:
    """Of the lines of a system's run."""
    return system if servers is Servers.REAL else f"{system}-{servers.value}"


TRIES = 3
"""A kind that has left no trace in this many tries waits for the others as if it had."""


def next_kind(kinds: Sequence[Kind], faults: Sequence[Mapping[str, Any]], generator: random.Random) -> Kind:
    """One of those that have happened least often, that is, have left a trace."""
    tried = Counter(line["kind"] for line in faults)
    happened = Counter(line["kind"] for line in faults if "proof" in line)
    rounds = {kind.name: max(happened[kind.name], tried[kind.name] // TRIES) for kind in kinds}
    least = min(rounds.values())
    return generator.choice([kind for kind in kinds if rounds[kind.name] == least])


class Journal:
    """The lines of one system's runs. Each is written as a whole, at the end of what is there, when it is known."""

    def __init__(self, file: Path) -> None:
        """Continues behind what is there."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file

    def add(self, line: dict[str, Any]) -> None:
        """One more."""
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def faults(self) -> list[dict[str, Any]]:
        """Those there are."""
        if not self._file.exists():
            return []
        return [line for line in map(json.loads, self._file.read_text().splitlines()) if "kind" in line]


Outlet = tuple[Names, Output, Mapping[str, Any]]
"""What a job's input and output are called, its output, and what it is notified of that besides."""


def _topic(_system: str, here: Testbed, job: str, _stack: ExitStack) -> Outlet:
    names = Names(f"{job}-in", f"{job}-out", job, (f"{job}-in", f"{job}-out"))
    here.make_topic(names.target, PARTITIONS)
    return names, TopicOutput(here.bootstrap, names.target, PARTITIONS), {}


def _table(system: str, _here: Testbed, job: str, stack: ExitStack) -> Outlet:
    output = stack.enter_context(table(system, f"{job}_out".replace("-", "_")))
    return Names(f"{job}-in", output.name, job, (f"{job}-in",)), output, {"url": output.database.url}


class Session:
    """One cluster and one job, from nothing, and the faults that come over them."""

    def __init__(self, system: str, servers: Servers, journal: Journal, stack: ExitStack) -> None:
        """Starts all of it. Raises RuntimeError when the job shows nothing."""
        self._journal = journal
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-chaos-")))
        here = stack.enter_context(TESTBEDS[servers]())
        name = f"chaos-{uuid.uuid4().hex[:8]}"
        outlet = _table if system in PRODUCTS else _topic
        names, output, more = outlet(system, here, name, stack)
        here.make_topic(names.source, PARTITIONS, UNSAFE if system in LOSSY else SAFE)
        self.load = Load(here.bootstrap, names.source, PARTITIONS, RATE, VALUE_BYTES)
        self.subject = Subject(SYSTEMS[system], here, names, directory, output, OutputCheck(PARTITIONS), self.load, more)
        stack.callback(self.subject.end)
        self.trial = Trial(here, self.subject, self.load)
        self.subject.start()
        if not self.trial.watch(START_S, lambda: self.subject.output_check.records > 0):
            raise RuntimeError(f"no record came out within {START_S:g} s: {self.subject.tree.log_tail()}")

    def suffer(self, kind: Kind, generator: random.Random) -> dict[str, Any]:
        """One fault; its line is written."""
        line = self.trial.run(kind, generator)
        self._journal.add(line)
        return line

    def judge(self) -> dict[str, Any]:
        """No more load; all of the output is read again. The line is written."""
        produced = self.load.stop()
        output_check = self.subject.output_check
        self.trial.watch(START_S, lambda: output_check.missing(produced) == 0)
        self.trial.accuse()
        found = {"verdict": dict(self.subject.output.outcome(produced, output_check)), "gave_up": len(self.subject.ended)}
        self._journal.add({**found, **environment("local"), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
        return found


@dataclass(frozen=True)
class Campaign:
    """What one process does. `session`: faults of one cluster; `until`: starts no session after it, by `time.monotonic`."""

    system: str
    servers: Servers
    only: str
    faults: int
    session: int
    until: float
    file: Path

    def run(self, seed: int) -> int:
        """Sessions until there are this many faults; how many of its own were not was, and results not clean."""
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("instructed to end"))  # leaving no process behind
        journal = Journal(self.file)
        generator = random.Random(f"{seed}-{len(journal.faults())}")  # noqa: S311 - no secret
        bad = 0
        while len(journal.faults()) < self.faults and time.monotonic() < self.until:
            with ExitStack() as stack:
                bad += self._session(Session(self.system, self.servers, journal, stack), journal, generator)
        return bad

    def _session(self, current: Session, journal: Journal, generator: random.Random) -> int:
        kinds = kinds_of(self.system, self.servers, self.only)
        bad = 0
        for _ in range(self.session):
            before = journal.faults()
            if len(before) >= self.faults or time.monotonic() > self.until:
                break
            kind = next_kind(kinds, before, generator)
            line = current.suffer(kind, generator)
            bad += not is_good(line)
            settings = {key: line.get(key) for key in TOLD}
            console.print(
                len(before) + 1, kind.name, line.get("hit"), settings, line.get("not_happened", ""), len(line["ended"])
            )
        judged = current.judge()
        console.print(judged)
        return bad + (not is_clean(judged["verdict"]))


def main(
    system: Annotated[str, typer.Option(help=f"One of {', '.join(SYSTEMS)}.")] = "embedded",
    faults: Annotated[int, typer.Option(help="Until this many are in the result.")] = 2000,
    testbeds: Annotated[int, typer.Option(min=1, help="This many clusters at once, each with a job.")] = 1,
    minutes: Annotated[float, typer.Option(help="End after the fault under way then.")] = 1e9,
    session: Annotated[int, typer.Option(help="Faults of one session: of one cluster.")] = 46,
    servers: Annotated[
        Servers, typer.Option(help="Real brokers, or FakeKafka with the faults that it can have.")
    ] = Servers.REAL,
    only: Annotated[str, typer.Option(help="Kinds whose name or family contains this.")] = "",
    seed: Annotated[int, typer.Option(help="Of the choices.")] = 1,
    results: Annotated[Path, typer.Option(help="The folder of the results.")] = RESULTS,
) -> None:
    """Chaos."""
    until = time.monotonic() + minutes * 60
    file = results / f"{file_name(system, servers)}.jsonl"
    campaign = Campaign(system, servers, only, faults, session, until, file)
    if testbeds == 1:
        sys.exit(bool(campaign.run(seed)))

    def end_all(_number: int, _frame: object) -> None:
        for child in multiprocessing.active_children():
            child.terminate()

    signal.signal(signal.SIGTERM, end_all)
    context = multiprocessing.get_context("spawn")  # each has its threads and processes
    with ProcessPoolExecutor(testbeds, context) as pool:
        sys.exit(bool(sum(pool.map(campaign.run, range(seed, seed + testbeds)))))


if __name__ == "__main__":
    typer.run(main)
