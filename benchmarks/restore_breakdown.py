"""Where the time goes between the kill of a Spark driver and the first new record: ours, and Spark's own connector.

    python -m benchmarks.restore_breakdown [--runs 5] [--rate 20000]

The result is `benchmarks/results/restore-breakdown.json`. Killed by the clock, as in `restore_throughput.py`, with the same
harness; what the processes note of themselves until the first new record is kept, and summed up by stage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.environment import environment
from benchmarks.restore.broker_bytes import broker_bytes, free_port
from benchmarks.restore.run import QUICK, Work, run
from benchmarks.restore.stages import STAGES, processes, stages
from benchmarks.restore.systems import BY_NAME
from benchmarks.restore_throughput import BROKER_HEAP, scratch
from benchmarks.stored import write_whole
from headrace.testing.servers.kafka import start_broker

FILE = Path(__file__).parent / "results" / "restore-breakdown.json"
SYSTEMS = ("headrace", "headrace-cold", "jvm", "jvm-warm")
BY_THE_CLOCK = 0
VALUE_BYTES = 100
console = Console()


def main(
    runs: Annotated[int, typer.Option(min=1, help="Kills of each system.")] = 5,
    rate: Annotated[float, typer.Option(min=1, help="Records per second.")] = 20_000,
    file: Annotated[Path, typer.Option(help="Where the result goes.")] = FILE,
) -> None:
    """Kill, restore, and say where the time went."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SYSTEMS}
    with start_broker(jvm_options=BROKER_HEAP) as cluster, broker_bytes(free_port()) as counters:
        for number in range(runs):
            for name in SYSTEMS:
                work = Work(BY_NAME[name], VALUE_BYTES, rate, BY_THE_CLOCK, QUICK, traced=True)
                with scratch() as directory, console.status(f"run {number + 1} of {runs}: {name}") as status:
                    document = run(cluster.bootstrap, counters, work, directory, status.update)
                found[name].append(_kept(document))
    document = {"rate": rate, "value_bytes": VALUE_BYTES, "systems": found, "environment": environment("local")}
    write_whole(file, json.dumps(document) + "\n")
    console.print(_table(found))


def _kept(document: Mapping[str, Any]) -> dict[str, Any]:
    marks = [mark for mark in document["marks"] if mark["at"] >= 0]
    outage = document["restore"]["outage_s"]
    return {
        "load_average": document["load_average"],
        "outage_s": outage,
        "stages_s": stages(marks, outage),
        "python_processes": processes(marks, outage),
        "marks": [mark for mark in marks if mark["at"] <= outage and "took" not in mark],
    }


def _table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    table = Table("stage, median seconds", *found)
    for stage in STAGES:
        table.add_row(stage, *(f"{median(run['stages_s'][stage] for run in runs):.2f}" for runs in found.values()))
    table.add_row("outage", *(f"{median(run['outage_s'] for run in runs):.2f}" for runs in found.values()))
    return table


if __name__ == "__main__":
    typer.run(main)
