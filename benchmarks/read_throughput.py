"""Reading Kafka: headrace alongside Spark's JVM connector, Spark's own ceiling for Python sources, and plain Python clients.

    python -m benchmarks.read_throughput [--quick] [--only TEXT] [--again]

Results are JSON in `benchmarks/results`, one file a cell; RESULTS.md and the plots are made from these files alone. A cell that
is finished is not measured again, so an interrupted run continues where it was.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from benchmarks.cells import FULL, QUICK, cells
from benchmarks.environment import environment
from benchmarks.harness import Cell, Fleet, fleet, is_finished, measure, save
from benchmarks.jars import jvm_connector_jars
from benchmarks.report import report, summary
from headrace.testing.servers.kafka import start_broker

HERE = Path(__file__).parent
BROKER_HEAP = ("-Xms1g", "-Xmx1g")
console = Console()

Data = Callable[[], AbstractContextManager[tuple[str, str]]]


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="A few minutes: little data, fewer cells.")] = False,  # noqa: FBT002
    only: Annotated[str, typer.Option(help="Only cells whose key has this in it.")] = "",
    again: Annotated[bool, typer.Option(help="Measure finished cells again.")] = False,  # noqa: FBT002
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of a cell; 0: 5, quick 3.")] = 0,
    report_only: Annotated[bool, typer.Option(help="Measure nothing; make tables and plots again.")] = False,  # noqa: FBT002
) -> None:
    """Measure what is not measured yet, then write the tables and plots."""
    size = QUICK if quick else FULL
    wanted = [] if report_only else [cell for cell in cells(size) if only in cell.key]
    run(wanted, rounds or size.rounds, HERE / "results" / "quick" if quick else HERE / "results", again=again)


@contextmanager
def broker() -> Iterator[tuple[str, str]]:
    """A broker until the context ends, unless one is given: its address, and where it comes from."""
    jvm_connector_jars()
    with start_broker(jvm_options=BROKER_HEAP) as cluster:
        yield cluster.bootstrap, "external" if "HEADRACE_BOOTSTRAP" in os.environ else "local"


def run(wanted: list[Cell], rounds: int, results: Path, *, again: bool, data: Data = broker) -> None:
    """Measure those of the cells that are not measured yet (`again`: all), then write the tables and plots.

    `data`: where what is read lies, for as long as its context is held, and which broker that is.
    """
    if wanted:
        pending = [cell for cell in wanted if again or not is_finished(results, cell, rounds)]
        console.print(f"{len(wanted)} cells, {len(wanted) - len(pending)} of them finished before")
        if pending:
            _measure_all(pending, rounds, results, data)
    written = report(results, HERE if results.parent == HERE else results)
    console.print(summary(results))
    console.print(f"Written: {written.relative_to(HERE.parent)}")


def _measure_all(pending: list[Cell], rounds: int, results: Path, data: Data) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with data() as (place, origin), fleet(scratch, place) as ships, Progress(*columns, console=console) as progress:
        facts = environment(origin)
        bar = progress.add_task("", total=len(pending))
        for cell in pending:
            progress.update(bar, description=f"{cell.key}: data")
            document = _measure(ships, cell, rounds, facts, place, progress, bar)
            save(results, cell, document)
            progress.console.print(summary(results, [cell.key]))
            progress.advance(bar)


def _measure(
    ships: Fleet, cell: Cell, rounds: int, facts: dict[str, Any], place: str, progress: Progress, bar: TaskID
) -> dict[str, object]:
    def tell(step: str) -> None:
        progress.update(bar, description=f"{cell.key}: {step}")

    with cell.setting(place):
        return measure(ships, cell, rounds, facts, tell, progress.console.print)


if __name__ == "__main__":
    typer.run(main)
