"""Duplicate-free restore throughput: systems under load are killed, and an oracle counts what their outputs lack or have twice.

    python -m benchmarks.restore_throughput [--quick] [--only TEXT] [--kills 10] [--load common|own] [--rate 20000] [--size 100]

Every run is one kill and one line of JSON in `benchmarks/results/restore/<system>.jsonl`; a valid run that is there is not made
again, so an interrupted benchmark continues where it was. An invalid one keeps its line, and is made again. Runs go round:
every system's first kill, then every system's second. RESULTS.md is made from the files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.environment import environment
from benchmarks.report import report
from benchmarks.restore.broker_bytes import BrokerBytes, broker_bytes, free_port, jmx_options
from benchmarks.restore.capacity import capacity
from benchmarks.restore.report import summary
from benchmarks.restore.run import FULL, QUICK, Timing, Work, run
from benchmarks.restore.runs import capacities_in, runs_in
from benchmarks.restore.systems import ABLATIONS, BY_NAME, SYSTEMS, System
from headrace.testing.servers.kafka import start_broker
from headrace.testing.servers.kafka.containers import docker_answers

HERE = Path(__file__).parent
BROKER_HEAP = ("-Xms1g", "-Xmx1g")
SHARE = 0.7
ABLATION_RATE, ABLATION_RESTORE_S, ABLATION_KILLS = 10_000.0, 60.0, 3
"""What is lost or had twice is in the lag for ever: there is no use in waiting for its end."""

QUICK_RATE = 10_000.0
QUICK_SYSTEMS = ("headrace", "jvm", "headrace-worker", "confluent-txn", "reinitialise", "no-discovery")
ENGINES = ("headrace", "jvm", "flink")
console = Console()


class Share(Enum):
    """Of what a load is 70 %: of what the weakest of the three engines and the system itself bear, or of the system's own."""

    COMMON = "common"
    OWN = "own"


@dataclass(frozen=True)
class Plan:
    """What is to be run. `rate`: records per second; None: 70 % of the measured sustained throughput, by `share`."""

    systems: Sequence[System]
    sizes: Sequence[int]
    kills: int
    rate: float | None
    share: Share
    timing: Timing
    results: Path

    def load_name(self, system: System) -> str:
        """Names the load in the documents: a run is distinguished from others by it, the size, the system and the number."""
        if system.ablation:
            return f"{ABLATION_RATE:.0f}-a-s"
        if self.rate is not None:
            return f"{self.rate:.0f}-a-s"
        return f"{self.share.value}-load"

    def pending(self) -> list[tuple[System, int, int]]:
        """The runs that are not there yet, or not valid, one after another."""
        made = runs_in(self.results)
        return [
            (system, size, number)
            for number in range(self.kills)
            for size in self.sizes
            for system in self.systems
            if not (system.ablation and number >= ABLATION_KILLS)
            and not made.has_valid(system.name, size, self.load_name(system), number)
        ]


class Bench:
    """Carries a plan out against one broker."""

    def __init__(self, plan: Plan, bootstrap: str, counters: BrokerBytes, facts: dict[str, Any], progress: Progress) -> None:
        """Nothing is run yet."""
        self._plan, self._bootstrap, self._counters, self._facts = plan, bootstrap, counters, facts
        self._progress = progress
        self._bar = progress.add_task("", total=len(plan.pending()))

    def run(self) -> int:
        """All that is pending; how many runs failed. A failed run leaves no line: the next call tries again."""
        failed = 0
        for system, size, number in self._plan.pending():
            try:
                document = self._run(system, size, number)
            except (RuntimeError, TimeoutError) as error:
                failed += 1
                self._progress.console.print(f"[red]{system.name}, {size} B, kill {number}: {error}", markup=True)
            else:
                runs_in(self._plan.results).add(document)
                self._progress.console.print(summary([document]))
            self._progress.advance(self._bar)
        return failed

    def _run(self, system: System, size: int, number: int) -> dict[str, Any]:
        rate = self._rate(system, size)
        timing = self._plan.timing
        if system.ablation:
            timing = replace(timing, restore_s=ABLATION_RESTORE_S)
        work = Work(system, size, rate, number, timing)

        def tell(step: str) -> None:
            self._progress.update(self._bar, description=f"{system.name}, {size} B, kill {number}: {step}")

        with scratch() as directory:
            document = run(self._bootstrap, self._counters, work, directory, tell)
        bears = capacities_in(self._plan.results).of(system.capacity_of or system.name, size)
        return {**document, "load": self._plan.load_name(system), "capacity": bears, "environment": self._facts}

    def _rate(self, system: System, size: int) -> float:
        if system.ablation:
            return ABLATION_RATE
        if self._plan.rate is not None:
            return self._plan.rate
        own = system.capacity_of or system.name
        names = {own, *ENGINES} if self._plan.share is Share.COMMON else {own}
        return SHARE * min(self._capacity(BY_NAME[name], size) for name in sorted(names))

    def _capacity(self, system: System, size: int) -> float:
        kept = capacities_in(self._plan.results)
        known = kept.of(system.name, size)
        if known is not None:
            return known

        def tell(step: str) -> None:
            self._progress.update(self._bar, description=f"{system.name}, {size} B: {step}")

        load = os.getloadavg()
        with scratch() as directory:
            found = capacity(self._bootstrap, Work(system, size, 0.0, 0, self._plan.timing), directory, tell)
        kept.add({**found.document(system, size), "load_average": load, "environment": self._facts})
        return found.records_per_s


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory of a run's own; gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-restore-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Ten minutes: low rate, few systems.")] = False,  # noqa: FBT002
    only: Annotated[str, typer.Option(help="Only these systems, comma-separated.")] = "",
    kills: Annotated[int | None, typer.Option(min=1, help="Kills of each system; default 10, quick 1.")] = None,
    size: Annotated[list[int] | None, typer.Option(help="Record sizes in bytes; default 100 and 1024, quick 100.")] = None,
    load: Annotated[
        Share, typer.Option(help="70 % of the lowest sustained throughput of all engines, or of each system's own.")
    ] = Share.COMMON,
    rate: Annotated[float | None, typer.Option(min=1, help="Records/s, whatever the sustained throughput.")] = None,
    report_only: Annotated[bool, typer.Option(help="Run nothing; make tables and plots again.")] = False,  # noqa: FBT002
) -> None:
    """Run what has not been run yet, then write tables and plots."""
    results = HERE / "results" / "quick" if quick else HERE / "results"
    names = only.split(",") if only else QUICK_SYSTEMS if quick else [system.name for system in (*SYSTEMS, *ABLATIONS)]
    if unknown := [name for name in names if name not in BY_NAME]:
        raise typer.BadParameter(f"no such system: {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    plan = Plan(
        [BY_NAME[name] for name in names],
        size or ([100] if quick else [100, 1024]),
        kills or (1 if quick else 10),
        rate or (QUICK_RATE if quick else None),
        load,
        QUICK if quick else FULL,
        results,
    )
    failed = 0 if report_only else _run(plan)
    written = report(results, results if quick else HERE)
    console.print(f"Written: {written.relative_to(HERE.parent)}")
    raise typer.Exit(int(failed > 0))


def _run(plan: Plan) -> int:
    pending = len(plan.pending())
    console.print(f"{pending} runs to make")
    if not pending:
        return 0
    external = "HEADRACE_BOOTSTRAP" in os.environ
    port = free_port()
    options = [*BROKER_HEAP, *([] if docker_answers() else jmx_options(port))]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        start_broker(jvm_options=options) as cluster,
        broker_bytes(port) as counters,
        Progress(*columns, console=console) as progress,
    ):
        facts = environment("external" if external else "local")
        return Bench(plan, cluster.bootstrap, counters, facts, progress).run()


if __name__ == "__main__":
    typer.run(main)
