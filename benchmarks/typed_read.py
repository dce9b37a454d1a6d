"""Values of a topic as typed columns: headrace alongside from_avro and from_json behind Spark's JVM connector, and in one
process.

    python -m benchmarks.typed_read [--quick] [--again]

Results go where `read_throughput.py` has its own, and into the same RESULTS.md.
"""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.cells import FULL_TYPED, QUICK_TYPED, typed_cells
from benchmarks.jars import spark_avro_jar
from benchmarks.read_throughput import HERE, run


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="A few minutes: little data.")] = False,  # noqa: FBT002
    only: Annotated[str, typer.Option(help="Only cells whose key has this in it.")] = "",
    again: Annotated[bool, typer.Option(help="Measure finished cells again.")] = False,  # noqa: FBT002
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of a cell; 0: 5, quick 3.")] = 0,
) -> None:
    """Measure what is not measured yet, then write the tables and plots."""
    size = QUICK_TYPED if quick else FULL_TYPED
    wanted = [cell for cell in typed_cells(size) if only in cell.key]
    spark_avro_jar()
    run(wanted, rounds or size.rounds, HERE / "results" / "quick" if quick else HERE / "results", again=again)


if __name__ == "__main__":
    typer.run(main)
