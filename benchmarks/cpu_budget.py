"""Where the processor's time goes in a batch read on Spark: headrace alongside Spark's ceiling for Python sources.

    python -m benchmarks.cpu_budget

For each system, CPU seconds of the JVM, of the Python workers and of the broker, in one read of a whole topic; and how many
cores that keeps busy. A read that uses all of both cores is bounded by them, and can be no faster than its work is small: what
headrace adds to the ceiling's is the broker's sending, the receiving, the decompression and the decoding. Medians over
RUNS reads after WARM_UPS, written to benchmarks/results/cpu-budget.json.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.environment import environment
from benchmarks.harness import Cell, Fleet, fleet
from benchmarks.read_throughput import BROKER_HEAP
from benchmarks.spark_systems import Read, batch_read
from benchmarks.topics import Shape, fill
from headrace.testing.servers.kafka import start_broker

RESULT = Path(__file__).parent / "results" / "cpu-budget.json"
SHAPES = (Shape(6_000_000, 100), Shape(1_000_000, 1024), Shape(1_000_000, 1024, "zstd"))
SYSTEMS = ("headrace", "ceiling")
WARM_UPS = 3
RUNS = 7


def cpu_seconds() -> Counter[str]:
    """So far, of this process's children: of the broker, of Spark's JVM, of the Python processes."""
    total: Counter[str] = Counter()
    for process in psutil.Process().children(recursive=True):
        try:
            times, command = process.cpu_times(), process.cmdline()
        except psutil.Error:  # it has ended; so short a lifetime does not count
            continue
        kind = "broker" if "kafka.Kafka" in command else "JVM" if "java" in process.name() else "Python"
        total[kind] += times.user + times.system
        total[f"{kind}, in the kernel"] += times.system
    return total


def measure(ships: Fleet, shape: Shape, system: str) -> dict[str, Any]:
    """Medians of one system's reads of one topic."""
    cell = Cell("batch", str(shape), str(shape), "records/s", SYSTEMS, batch_read, Read(shape), (), lambda _: _nothing())
    reads: list[dict[str, float]] = []
    for _ in range(WARM_UPS + RUNS):
        before = cpu_seconds()
        measured, _ = ships.run(cell, system)
        if measured.records != measured.expected:
            raise RuntimeError(f"{system} read {measured.records} records of {measured.expected}")
        after = cpu_seconds()
        reads.append({"seconds": measured.detail["seconds"], **{kind: after[kind] - before[kind] for kind in after}})
    reads = reads[WARM_UPS:]
    kinds = sorted({kind for read in reads for kind in read})
    medians = {kind: round(statistics.median(read.get(kind, 0.0) for read in reads), 3) for kind in kinds}
    busy = statistics.median((read["JVM"] + read["Python"] + read["broker"]) / read["seconds"] for read in reads)
    return {
        "shape": str(shape),
        "records": shape.records,
        "system": system,
        **medians,
        "busy_cores": round(busy, 2),
        "reads": reads,
    }


def _nothing() -> Any:  # noqa: ANN401 - a context that is never entered: the topic is filled beforehand
    raise NotImplementedError


def main() -> None:
    """Measure, print, write."""
    load = os.getloadavg()
    results = []
    with start_broker(jvm_options=BROKER_HEAP) as cluster:
        for shape in SHAPES:
            fill(cluster.bootstrap, shape)
            for system in SYSTEMS:
                with fleet(Path(tempfile.mkdtemp(prefix="headrace-bench-")), cluster.bootstrap) as ships:
                    results.append(measure(ships, shape, system))
    table = Table("topic", "system", "s", "JVM", "Python", "of it kernel", "broker", "busy cores")
    for row in results:
        figures = (row["seconds"], row["JVM"], row["Python"], row["Python, in the kernel"], row["broker"], row["busy_cores"])
        table.add_row(row["shape"], row["system"], *(f"{figure:.2f}" for figure in figures))
    Console().print(table)
    document = {"runs": RUNS, "load": load, "environment": environment("local"), "results": results}
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
