"""What a commit of `headrace run` consists of, step by step, at 20,000 records/s with a checkpoint every 50 ms.

    python -m benchmarks.delay.commit [--seconds 30]

The steps are timed inside the run (`restore/jobs/timed_pipeline.py`); the result is `results/delay-commit.json`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from benchmarks.delay.judge import delays_ms, percentiles
from benchmarks.delay.load import NS
from benchmarks.delay.report import STEPS, commit_section
from benchmarks.delay.run import BROKER_HEAP, RATES, rig_of
from benchmarks.delay.systems import BY_NAME
from benchmarks.environment import environment
from benchmarks.report import report
from benchmarks.stored import Document, write_whole
from headrace.testing.servers.kafka import start_broker

HERE = Path(__file__).parents[1]
SUBJECT = "headrace-run-50"
WARM_UP_S = 5.0


def read_steps(lines: Iterable[str], since_ns: int) -> dict[str, list[float]]:
    """How long each step has taken, in ms, of those that started at this time or later."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        step, start, end = line.split()
        if int(start) >= since_ns:
            found[step].append((int(end) - int(start)) / 1e6)
    return found


def measure(bootstrap: str, seconds: float, directory: Path) -> Document:
    """The document of one run."""
    subject, steps = BY_NAME[SUBJECT], directory / "steps"
    more = {**subject.system.more(), "pipeline": "timed_pipeline.py", "steps": str(steps)}
    timed = replace(subject, system=replace(subject.system, more=lambda: more))
    with rig_of(bootstrap, timed, directory, RATES[-1]) as rig:
        rig.wait_for_first()
        rig.wait(WARM_UP_S)
        since_ns = time.monotonic_ns()
        rig.wait(seconds)
        until_ns = time.monotonic_ns() - NS  # what was due in the last second may not be out
    found = read_steps(steps.read_text().splitlines(), since_ns)
    return {
        "system": SUBJECT,
        "interval_ms": subject.interval_ms,
        "rate": RATES[-1],
        "seconds": seconds,
        "checkpoints_per_s": round(len(found["checkpoint"]) / seconds, 1),
        "delay_ms": delays_ms(rig.probe.seen(), since_ns, until_ns),
        "steps": {step: _figures(found[step]) for step in STEPS},
    }


def _figures(milliseconds: list[float]) -> dict[str, Any]:
    return {"count": len(milliseconds), **percentiles(np.array(milliseconds))}


def main(seconds: Annotated[float, typer.Option(min=5)] = 30.0) -> None:
    """Measure, and write the report."""
    with start_broker(jvm_options=BROKER_HEAP) as cluster, tempfile.TemporaryDirectory() as directory:
        document = measure(cluster.bootstrap, seconds, Path(directory))
    file = HERE / "results" / "delay-commit.json"
    write_whole(file, json.dumps({**document, "environment": environment("local")}, indent=1) + "\n")
    report(HERE / "results", HERE)
    Console().print("\n".join(commit_section(HERE / "results")), markup=False)


if __name__ == "__main__":
    typer.run(main)
