"""Kafka to Delta and Iceberg tables: headrace on Spark and without an engine, exactly once, alongside Spark with Delta's own
jars.

    PYTHONPATH=build/spark-4.2 python -m benchmarks.table_write [--quick] [--again] [--only TEXT] [--rounds 5]

Delta for Spark 4.4.0 runs on Spark 4.2 and not on 4.3, so all systems do:
`pip install --no-deps --target build/spark-4.2 pyspark==4.2.0` before. Results go where `read_throughput.py` has its own,
and into the same RESULTS.md.
"""

from __future__ import annotations

import sys
from typing import Annotated

import pyspark
import typer

from benchmarks.cells import FULL, QUICK, table_cells
from benchmarks.jars import delta_jars
from benchmarks.read_throughput import HERE, run

SPARK = "4.2."


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="A few minutes: little data.")] = False,  # noqa: FBT002
    again: Annotated[bool, typer.Option(help="Measure finished cells again.")] = False,  # noqa: FBT002
    only: Annotated[str, typer.Option(help="Only cells whose key has this in it.")] = "",
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of a cell; 0: 5, quick 3.")] = 0,
) -> None:
    """Measure what is not measured yet, then write the tables and plots."""
    if not pyspark.__version__.startswith(SPARK):
        sys.exit(f"Delta's jars do not run on Spark {pyspark.__version__}; the head of this module says how to have 4.2")
    delta_jars()
    size = QUICK if quick else FULL
    wanted = [cell for cell in table_cells(size) if only in cell.key]
    run(wanted, rounds or size.rounds, HERE / "results" / "quick" if quick else HERE / "results", again=again)


if __name__ == "__main__":
    typer.run(main)
