"""What a copy of a topic costs: processor seconds, memory, requests to the broker, checkpoints; and how that grows.

    python -m benchmarks.cost [--only load,idle,growth] [--systems headrace-run,flink] [--rounds 3] [--seconds 30]

`load`: a steady load of records of 100 B. `idle`: 1, 100 and 1,000 partitions and no data. `growth`: 10 to 10,000 partitions,
from the start to a restore. The systems are those of the restores, with a checkpoint a second. Each measurement is a line in
`benchmarks/results/cost/<system>.jsonl`, and one that was made is not repeated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.costs.brokers import Broker, real
from benchmarks.costs.measure import Seconds, bench, growth, idle, under_load
from benchmarks.costs.report import kept, summary
from benchmarks.environment import environment
from benchmarks.report import report
from benchmarks.stored import append_line

HERE = Path(__file__).parent
SYSTEMS = ("headrace-run", "flink", "headrace", "jvm", "confluent-txn")
GROWING = ("headrace-run", "headrace", "flink", "jvm")
KINDS = ("load", "idle", "growth")
PARTITIONS = {"load": (8,), "idle": (1, 100, 1000), "growth": (10, 100, 1000, 10_000)}
QUICK_PARTITIONS = {"load": (8,), "idle": (1000,), "growth": (10, 100, 1000)}
console = Console()


@dataclass(frozen=True)
class Work:
    """One measurement."""

    kind: str
    system: str
    partitions: int
    round: int

    @property
    def key(self) -> dict[str, Any]:
        """What distinguishes it from others."""
        return {"kind": self.kind, "system": self.system, "partitions": self.partitions, "round": self.round}


def plan(kinds: Collection[str], systems: Collection[str], rounds: int, counts: Mapping[str, Sequence[int]]) -> Iterator[Work]:
    """Systems take turns, so that what changes on the machine hits all of them. `counts`: of partitions, by the kind."""
    for kind in kinds:
        for number in range(1, 2 if kind == "growth" else rounds + 1):
            for partitions in counts[kind]:
                for system in systems:
                    if kind != "growth" or system in GROWING:
                        yield Work(kind, system, partitions, number)


def measure(work: Work, broker: Broker, rate: float, seconds: Seconds) -> dict[str, Any]:
    """The document of one measurement; with `error` and not valid for one that has failed."""
    before = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "load_average": os.getloadavg()}
    try:
        with bench(broker, work.system, work.partitions) as made:
            match work.kind:
                case "load":
                    found = under_load(made, rate, seconds)
                case "idle":
                    found = idle(made, seconds)
                case _:
                    found = growth(made, seconds)
    except Exception as error:  # noqa: BLE001 - the others are measured all the same
        console.print(f"[red]{work}: {error}", markup=True, highlight=False)
        found = {"valid": False, "error": type(error).__name__}  # the message may hold paths, which stay out of results
    return {**work.key, **before, **found}


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Ten minutes, into results/quick.")] = False,  # noqa: FBT002
    only: Annotated[str, typer.Option(help="Of load, idle and growth, comma-separated.")] = "",
    systems: Annotated[str, typer.Option(help="Only these systems, comma-separated.")] = "",
    rounds: Annotated[int | None, typer.Option(min=1, help="Of load and idle; default 3, quick 1.")] = None,
    rate: Annotated[float, typer.Option(min=1, help="Records/s of the load.")] = 20_000.0,
    seconds: Annotated[float | None, typer.Option(min=1, help="Of a window; default 60, quick 15.")] = None,
    report_only: Annotated[bool, typer.Option(help="Run nothing; make the tables again.")] = False,  # noqa: FBT002
) -> None:
    """Measure what is not measured yet, then write the tables."""
    results = HERE / "results" / "quick" if quick else HERE / "results"
    kinds = only.split(",") if only else [*KINDS] if not quick else ["load", "idle"]
    names = systems.split(",") if systems else [*SYSTEMS]
    if unknown := [*({*kinds} - {*KINDS}), *({*names} - {*SYSTEMS})]:
        raise typer.BadParameter(f"not known: {', '.join(unknown)}; there are {', '.join((*KINDS, *SYSTEMS))}")
    keys = ("kind", "system", "partitions", "round")
    made = [{name: line[name] for name in keys} for line in kept(results) if line["valid"]]
    counts = QUICK_PARTITIONS if quick else PARTITIONS
    wanted = [work for work in plan(kinds, names, rounds or (1 if quick else 3), counts) if work.key not in made]
    if not report_only:
        window = Seconds(8.0, seconds or 15.0) if quick else Seconds(20.0, seconds or 60.0)
        _measure_all(wanted, rate, window, results)
    console.print(summary(kept(results)))
    console.print(f"Written: {report(results, results if quick else HERE).relative_to(HERE.parent)}")


def _measure_all(wanted: Sequence[Work], rate: float, window: Seconds, results: Path) -> None:
    """Each on a new broker: one that has had many partitions takes longer for everything."""
    facts = environment("external" if "HEADRACE_BOOTSTRAP" in os.environ else "local")
    for number, work in enumerate(wanted, 1):
        console.print(f"{number}/{len(wanted)} {work.kind}, {work.partitions} partitions, {work.system}, round {work.round}")
        with real() as broker:
            document = measure(work, broker, rate, window)
        append_line(results / "cost" / f"{work.system}.jsonl", {**document, "environment": facts})


if __name__ == "__main__":
    typer.run(main)
