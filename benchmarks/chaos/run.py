"""Chaos on real servers: a job copies a topic while three brokers, the network, their settings and it itself are disturbed.

    python -m benchmarks.chaos.run [--system embedded] [--faults 2000] [--minutes 60] [--only TEXT] [--servers fake] [--seed 1]

Faults come in rounds: each round has every kind that fits the system once, in an order that the seed makes. Every fault is a
line of JSON in `benchmarks/results/chaos/<system>.jsonl`, written when its verdict is known, and a run that is started again
goes on after the last one. After each session of faults the whole output is read again, and that verdict is a line as well.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.chaos.fake import fake_world
from benchmarks.chaos.faults import KINDS
from benchmarks.chaos.faults.fault import Kind
from benchmarks.chaos.load import Load
from benchmarks.chaos.oracle import VALUE_BYTES, Census, TopicOutput
from benchmarks.chaos.subject import SYSTEMS, Subject
from benchmarks.chaos.trial import Trial, is_good
from benchmarks.chaos.world import Names, World, world
from benchmarks.environment import environment

RESULTS = Path(__file__).parents[1] / "results" / "chaos"
PARTITIONS = 4
RATE = 96.0
START_S = 240.0
console = Console()


class Servers(Enum):
    """What the brokers are."""

    REAL = "real"
    FAKE = "fake"
    FAKE_1 = "fake-v1"
    """With version 1 of the transaction protocol, under which the broker tells late requests less well from new ones."""


WORLDS: Mapping[Servers, Callable[[], AbstractContextManager[World]]] = {
    Servers.REAL: world,
    Servers.FAKE: fake_world,
    Servers.FAKE_1: lambda: fake_world(transaction_version=1),
}


def kinds_of(system: str, servers: Servers, only: str = "") -> Sequence[Kind]:
    """Those that fit the system and the servers, and have the text in their name or family."""
    fitting = [kind for kind in KINDS.values() if kind.fits(system) and not (kind.real and servers is not Servers.REAL)]
    return [kind for kind in fitting if only in kind.name or only in kind.family]


def file_name(system: str, servers: Servers) -> str:
    """Of the lines of a system's run."""
    return system if servers is Servers.REAL else f"{system}-{servers.value}"


def schedule(kinds: Sequence[Kind], seed: int, done: int) -> Iterator[tuple[Kind, random.Random]]:
    """Without end, beginning after the faults that are done: the kinds in rounds, each round shuffled; a generator for each."""
    number = 0
    while True:
        round_of = random.Random(f"{seed}-{number // len(kinds)}")  # noqa: S311 - no secret
        for kind in round_of.sample(list(kinds), len(kinds)):
            if number >= done:
                yield kind, random.Random(f"{seed}-{number}")  # noqa: S311 - no secret
            number += 1


class Journal:
    """The lines of one system's run. Each is written as a whole when it is known."""

    def __init__(self, file: Path) -> None:
        """Goes on behind what is there."""
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


class Session:
    """One cluster and one job, from nothing, and the faults that come over them."""

    def __init__(self, system: str, servers: Servers, journal: Journal, stack: ExitStack) -> None:
        """Starts all of it. Raises RuntimeError when the job shows nothing."""
        self._journal = journal
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-chaos-")))
        here = stack.enter_context(WORLDS[servers]())
        name = f"chaos-{uuid.uuid4().hex[:8]}"
        names = Names(f"{name}-in", f"{name}-out", name)
        for topic in names.topics:
            here.make_topic(topic, PARTITIONS)
        output = TopicOutput(here.bootstrap, names.target, PARTITIONS)
        self.subject = Subject(SYSTEMS[system], here, names, directory, output, Census(PARTITIONS))
        stack.callback(self.subject.end)
        self.load = Load(here.bootstrap, names.source, PARTITIONS, RATE, VALUE_BYTES)
        self.trial = Trial(here, self.subject, self.load)
        self.subject.start()
        if not self.trial.watch(START_S, lambda: self.subject.census.records > 0):
            raise RuntimeError(f"no record came out within {START_S:g} s: {self.subject.family.log_tail()}")

    def suffer(self, kind: Kind, generator: random.Random) -> dict[str, Any]:
        """One fault; its line is written."""
        line = self.trial.run(kind, generator)
        self._journal.add(line)
        return line

    def judge(self) -> dict[str, Any]:
        """No more load; all of the output is read again. The line is written."""
        produced = self.load.stop()
        census = self.subject.census
        self.trial.watch(START_S, lambda: census.missing(produced) == 0)
        found = {"verdict": dict(self.subject.output.verdict(produced, census)), "gave_up": len(self.subject.ended)}
        self._journal.add({**found, **environment("local"), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
        return found


def main(
    system: Annotated[str, typer.Option(help=f"One of {', '.join(SYSTEMS)}.")] = "embedded",
    faults: Annotated[int, typer.Option(help="Until so many are in the result.")] = 2000,
    minutes: Annotated[float, typer.Option(help="Begin no session after so many.")] = 1e9,
    session: Annotated[int, typer.Option(help="Faults of one session: of one cluster.")] = 46,
    servers: Annotated[
        Servers, typer.Option(help="Real brokers, or FakeKafka with the faults that it can have.")
    ] = Servers.REAL,
    only: Annotated[str, typer.Option(help="Kinds whose name or family contains this.")] = "",
    seed: Annotated[int, typer.Option(help="Of the schedule.")] = 1,
    results: Annotated[Path, typer.Option(help="The folder of the results.")] = RESULTS,
) -> None:
    """Chaos."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("told to end"))  # leaving no process behind
    journal = Journal(results / f"{file_name(system, servers)}.jsonl")
    done = len(journal.faults())
    coming = schedule(kinds_of(system, servers, only), seed, done)
    deadline = time.monotonic() + minutes * 60
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bad = 0
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(system, total=faults, completed=done)
        while done < faults and time.monotonic() < deadline:
            with ExitStack() as stack:
                progress.update(bar, description=f"{system}: start")
                current = Session(system, servers, journal, stack)
                for _ in range(min(session, faults - done)):
                    kind, generator = next(coming)
                    progress.update(bar, description=f"{system}: {kind.name}")
                    line = current.suffer(kind, generator)
                    done, bad = done + 1, bad + (not is_good(line))
                    progress.advance(bar)
                    told = {key: line.get(key) for key in ("stall_s", "load_stall_s", "catch_up_s", "missing", "duplicates")}
                    progress.console.print(kind.name, line.get("hit"), told, line.get("not_happened", ""), len(line["ended"]))
                    if time.monotonic() > deadline:
                        break
                progress.console.print(current.judge())
    sys.exit(bool(bad))


if __name__ == "__main__":
    typer.run(main)
