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
from benchmarks.delay.load import NS, Load
from benchmarks.delay.probe import Probe
from benchmarks.delay.report import STEPS, commit_section
from benchmarks.delay.run import PARTITIONS, PER_TRIGGER, RATES, START_S, VALUE_BYTES, Rig
from benchmarks.delay.systems import BY_NAME
from benchmarks.environment import environment
from benchmarks.report import report
from benchmarks.restore.systems import Job
from benchmarks.stored import Document, write_whole
from headrace.testing.servers.kafka import create_topic, start_broker

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
    subject, name = BY_NAME[SUBJECT], "delay-commit"
    steps = directory / "steps"
    more = {**subject.system.more(), "pipeline": "timed_pipeline.py", "steps": str(steps)}
    timed = replace(subject, system=replace(subject.system, more=lambda: more))
    for topic in (source := f"{name}-in", target := f"{name}-out"):
        create_topic(bootstrap, topic, PARTITIONS)
    (directory / "state").mkdir()
    job = Job(bootstrap, source, target, name, str(directory / "state"), str(directory / "marks.jsonl"),
              subject.system.parallelism, PER_TRIGGER)  # fmt: skip
    with (
        Probe(bootstrap, target, directory / "probe.rows") as watching,
        Load(bootstrap, source, VALUE_BYTES, PARTITIONS, directory / "load.stamps", float(RATES[-1])) as running,
    ):
        rig = Rig(bootstrap, timed, directory, running, watching, job)
        try:
            if not rig.wait_for(lambda: watching.visible.value > 0, START_S):
                raise RuntimeError(f"no record came out within {START_S:g} s:\n{rig.tree.log_tail()}")
            rig.wait(WARM_UP_S)
            since_ns = time.monotonic_ns()
            rig.wait(seconds)
            until_ns = time.monotonic_ns() - NS  # what was due in the last second may not be out
        finally:
            rig.tree.end()
        running.stop()
        seen = watching.seen()
    found = read_steps(steps.read_text().splitlines(), since_ns)
    return {
        "system": SUBJECT,
        "interval_ms": subject.interval_ms,
        "rate": RATES[-1],
        "seconds": seconds,
        "checkpoints_per_s": round(len(found["checkpoint"]) / seconds, 1),
        "delay_ms": delays_ms(seen, since_ns, until_ns),
        "steps": {step: _figures(found[step]) for step in STEPS},
    }


def _figures(milliseconds: list[float]) -> dict[str, Any]:
    return {"count": len(milliseconds), **percentiles(np.array(milliseconds))}


def main(seconds: Annotated[float, typer.Option(min=5)] = 30.0) -> None:
    """Measure, and write the report."""
    with start_broker(jvm_options=("-Xms1g", "-Xmx1g")) as cluster, tempfile.TemporaryDirectory() as directory:
        document = measure(cluster.bootstrap, seconds, Path(directory))
    file = HERE / "results" / "delay-commit.json"
    write_whole(file, json.dumps({**document, "environment": environment("local")}, indent=1) + "\n")
    report(HERE / "results", HERE)
    Console().print("\n".join(commit_section(HERE / "results")), markup=False)


if __name__ == "__main__":
    typer.run(main)
