"""Delay: from when a record was due at its producer to a `read_committed` reader of the copy, by system.

    python -m benchmarks.latency [--quick] [--only headrace-run-50,flink-50] [--seconds 600] [--again]

A run is one system at 1,000 and at 20,000 records/s of 100 B, and then a SIGKILL; a JSON in `results/delay`. One that is
there, valid and measured for as long, is not made again. RESULTS.md is made from the files.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.delay.report import summary
from benchmarks.delay.run import BROKER_HEAP, Timing, run
from benchmarks.delay.systems import BY_NAME, SUBJECTS, Subject
from benchmarks.environment import environment
from benchmarks.report import report
from benchmarks.stored import write_whole
from headrace.testing.servers.kafka import start_broker

HERE = Path(__file__).parent
SECONDS, QUICK_SECONDS = 600.0, 8.0
WARM_UP_S, SHORT_WARM_UP_S = 20.0, 5.0
LONG_S = 60.0
console = Console()


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Seconds for each system, into results/quick.")] = False,  # noqa: FBT002
    only: Annotated[str, typer.Option(help="Only these systems, comma-separated.")] = "",
    seconds: Annotated[float | None, typer.Option(envvar="SECONDS", min=2, help="At each rate; default 600, quick 8.")] = None,
    again: Annotated[bool, typer.Option(help="Measure again what is there.")] = False,  # noqa: FBT002
    report_only: Annotated[bool, typer.Option(help="Run nothing; make tables and plots again.")] = False,  # noqa: FBT002
) -> None:
    """Measure what has not been measured yet, then write tables and plots."""
    results = HERE / "results" / "quick" if quick else HERE / "results"
    names = only.split(",") if only else [subject.name for subject in SUBJECTS]
    if unknown := [name for name in names if name not in BY_NAME]:
        raise typer.BadParameter(f"no such system: {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    steady_s = seconds or (QUICK_SECONDS if quick else SECONDS)
    timing = Timing(WARM_UP_S if steady_s >= LONG_S else SHORT_WARM_UP_S, steady_s)
    wanted = [BY_NAME[name] for name in names if again or not _has_valid(_file(results, name), steady_s)]
    failed = 0 if report_only or not wanted else _run(wanted, timing, results)
    written = report(results, results if quick else HERE)
    console.print(f"Written: {written.relative_to(HERE.parent)}")
    raise typer.Exit(int(failed > 0))


def _file(results: Path, name: str) -> Path:
    return results / "delay" / f"{name}.json"


def _has_valid(file: Path, steady_s: float) -> bool:
    document = json.loads(file.read_text()) if file.is_file() else None
    return document is not None and document["valid"] and document["steady_s"] >= steady_s


def _run(subjects: Sequence[Subject], timing: Timing, results: Path) -> int:
    """How many runs failed. A failed run leaves no file: the next call tries again."""
    failed = 0
    with start_broker(jvm_options=BROKER_HEAP) as cluster:
        facts = environment("external" if "HEADRACE_BOOTSTRAP" in os.environ else "local")
        for subject in subjects:
            started_s = time.monotonic()

            def tell(step: str, name: str = subject.name, since_s: float = started_s) -> None:
                console.print(f"{time.monotonic() - since_s:5.0f} s  {name}: {step}")

            directory = Path(tempfile.mkdtemp(prefix="headrace-delay-"))
            try:
                document = run(cluster.bootstrap, subject, timing, directory, tell)
            except (RuntimeError, TimeoutError) as error:
                failed += 1
                console.print(f"{subject.name}: {error}", style="red", markup=False)
            else:
                write_whole(_file(results, subject.name), json.dumps({**document, "environment": facts}, indent=1) + "\n")
                console.print(summary([document]))
                console.print("".join(f"not valid: {each}\n" for each in document["wrong"]), markup=False)
            finally:
                shutil.rmtree(directory, ignore_errors=True)
    return failed


if __name__ == "__main__":
    typer.run(main)
