"""Kafka to Kafka: headrace on Spark and Flink exactly once, Spark's JVM connector at least once.

    python -m benchmarks.write_throughput [--quick] [--again]

Results go where `read_throughput.py` has its own, and into the same RESULTS.md.
"""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.cells import FULL, QUICK, write_cells
from benchmarks.read_throughput import HERE, run


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="A few minutes: little data.")] = False,  # noqa: FBT002
    again: Annotated[bool, typer.Option(help="Measure finished cells again.")] = False,  # noqa: FBT002
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of a cell; 0: 5, quick 3.")] = 0,
) -> None:
    """Measure what is not measured yet, then write the tables and plots."""
    size = QUICK if quick else FULL
    run(write_cells(size), rounds or size.rounds, HERE / "results" / "quick" if quick else HERE / "results", again=again)


if __name__ == "__main__":
    typer.run(main)
