"""What tests of Beam's pipelines on a real Flink share: the cluster, and a pipeline as a job that is cancelled in any case."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.utils.timestamp import Duration
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from headrace.enumerator.errors import StateError
from headrace.testing.servers.flink import FlinkCluster, start_flink
from headrace.testing.servers.flink.rest import ENDED
from tests.helpers.python_path import python_path
from tests.helpers.waiting import eventually

FOR_EVER = 1 << 40


class Numbers(beam.DoFn, RestrictionProvider):
    """0, 1, 2, ... up to `end`, some in each call; it notes in a file each time it is asked where to start."""

    def __init__(self, started: str, *, end: int = FOR_EVER, per_call: int = 10) -> None:
        self.started, self.end, self.per_call = started, end, per_call

    def initial_restriction(self, element: bytes) -> OffsetRange:
        with open(self.started, "a") as file:
            file.write("begun\n")
        return OffsetRange(0, self.end)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: bytes, restriction: OffsetRange) -> int:
        return 1

    @beam.DoFn.unbounded_per_element()
    def process(self, element: bytes, tracker=beam.DoFn.RestrictionParam()):  # noqa: B008 - Beam's way to ask for it
        start = tracker.current_restriction().start
        for number in range(start, start + self.per_call):
            if not tracker.try_claim(number):
                return
            yield number
        tracker.defer_remainder(Duration(micros=50_000))


@contextmanager
def flink_cluster() -> Iterator[FlinkCluster]:
    """One TaskManager with two slots, whose Python workers can import the tests' helpers."""
    with start_flink(environment={"PYTHONPATH": python_path()}) as cluster:
        yield cluster


@contextmanager
def job(
    flink: FlinkCluster,
    build: Callable[[beam.Pipeline], object],
    *,
    savepoint: str | None = None,
    checkpoint_ms: int = 1000,
    parallelism: int | None = None,
) -> Iterator[str]:
    """Run a pipeline until the context ends; its job id, once every task runs. The test's own functions go by value."""
    flags = flink.options(checkpoint_ms=checkpoint_ms, savepoint=savepoint, parallelism=parallelism)
    pipeline = beam.Pipeline(options=PipelineOptions(flags))
    build(pipeline)
    job_id = flink.submit(pipeline)
    try:
        flink.wait_running(job_id)
        yield job_id
    finally:
        if flink.job(job_id).state not in ENDED:
            flink.cancel(job_id)


def kill_and_restart(flink: FlinkCluster, job_id: str) -> None:
    """SIGKILL the task manager and start it again; returns once the job runs again, restored, and not before it failed."""
    failed = flink.job(job_id).failure
    flink.kill_task_manager()
    flink.start_task_manager()
    eventually(lambda: flink.job(job_id).failure != failed)
    flink.wait_running(job_id)


def savepoint_at_last(flink: FlinkCluster, job_id: str, seconds: float = 120.0) -> str:
    """Ask for a savepoint again, as an operator does, where the job has just started to restart. Raises the last StateError."""
    retry, stop = retry_if_exception_type(StateError), stop_after_delay(seconds)
    attempts = Retrying(retry=retry, stop=stop, wait=wait_fixed(0.1), reraise=True)

    def ask() -> str:
        flink.wait_running(job_id)
        return flink.savepoint(job_id)

    return attempts(ask)


def python_workers(flink: FlinkCluster) -> set[int]:
    """The process ids of the Python workers that run."""
    pool = Path(f"/proc/{flink.pid('workers')}/task")
    children = {int(pid) for thread in pool.iterdir() for pid in (thread / "children").read_text().split()}
    return {pid for pid in children if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"}


@contextmanager
def frozen_workers(flink: FlinkCluster) -> Iterator[set[int]]:
    """The workers of now stand still; they continue when the context ends, and do not know what has happened meanwhile."""
    frozen = python_workers(flink)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield frozen
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
