"""`headrace beam`: a Flink cluster on this machine for Beam's pipelines, and reports of failures that Beam does not report."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.output import note
from headrace.cli.serving import POLL_S, named_settings, until_interrupted
from headrace.enumerator.errors import RetriableError

if TYPE_CHECKING:
    from headrace.testing.servers.flink import FlinkCluster
    from headrace.testing.servers.flink.watch import Watch


def beam_command(
    *,
    slots: Annotated[int, typer.Option(min=1, help="Slots: how many instances of a pipeline it can run.")] = 2,
    state: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Keep checkpoints and savepoints here. Default: they are deleted at the end."),
    ] = None,
    savepoint: Annotated[str | None, typer.Option(help="Print options that restore from this savepoint.")] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that a job may wait for its workers or a checkpoint before that is reported.")
    ] = 60.0,
    config: Annotated[list[str] | None, typer.Option(help="A Flink setting, name=value. May be repeated.")] = None,
) -> None:
    """Run a Flink cluster with Beam's job server until Ctrl-C; prints the pipeline options to use, one per line.

    Reports on stderr what Beam and Flink do not report: workers that do not start, checkpoints that do not complete, and jobs
    that fail and restart. Python workers run the same Python as this command and inherit PYTHONPATH.
    """
    from headrace.testing.servers.flink import start_flink
    from headrace.testing.servers.flink.watch import Timeouts

    settings = named_settings(config)
    limits = Timeouts(timeout, timeout)
    with until_interrupted(), start_flink(slots=slots, state=state, config=settings, timeout=limits) as cluster:
        print("\n".join(cluster.options(savepoint=savepoint)), flush=True)  # noqa: T201 - the command's output
        note(f"Flink is ready; its REST interface is at http://{cluster.rest.address}. Ctrl-C stops it.")
        watches: dict[str, Watch] = {}
        while not (ended := cluster.ended()):
            _report(cluster, watches)
            threading.Event().wait(POLL_S)
        sys.exit(f"the {ended[0]} exited unexpectedly. The end of its log:\n{cluster.log_tail(ended[0])}")


def _report(cluster: FlinkCluster, watches: dict[str, Watch]) -> None:
    """Report what is wrong with any job; `watches` maps the job ids seen so far to their state."""
    try:
        for job_id in cluster.rest.job_ids():
            watch = watches.setdefault(job_id, cluster.watch())
            for finding in watch.observe(cluster.job(job_id), time.monotonic()):
                note(f"headrace: {cluster.explain(finding)}")
    except RetriableError:
        return  # a job that is being set up; it is polled again
