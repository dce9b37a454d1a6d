"""A standby's dry run: the job's own queries, run for some batches on a few records, with nothing written anywhere.

The job's function is called, and what it starts is started in another form: its sources read a few of the first records and
commit no offsets to a group, the sink takes the rows and drops them, the checkpoint is a folder of the dry run's own. So
Spark's classes are loaded, its code is generated and compiled, and the Python workers are there when the job is taken over. One
more batch each half minute keeps them: Spark ends workers that were idle for a minute.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.query import StreamingQuery

from headrace.connectors.base.capabilities import warm_driver
from headrace.runners.spark.private import hadoop_path, start_unwatched
from headrace.runners.spark.supervision.dry_run_source import DRY_RUN, looked, under_way
from headrace.runners.spark.supervision.exit_causes import one_line
from headrace.runners.spark.supervision.query_hooks import OURS, StartedQuery, Starter, intercepted
from headrace.runners.spark.supervision.takeover import LOCATION, writer_of

log = logging.getLogger(__name__)

KEEP_WARM_S = 30.0  # less than the minute after which Spark ends an idle Python worker
LONGEST_S = 60.0
POLL_S = 0.05
_HARMLESS = frozenset({OURS, "rate", "rate-micro-batch"})
"""Sources that a second query may read: it takes nothing away from the first, and reads no more than a little."""


def dry_run_folder(tree: str) -> Path:
    """Where the dry runs of a driver's process tree keep their checkpoints; removed with the driver."""
    return Path(tempfile.gettempdir(), f"headrace-dry-run-{tree}")


class _NotDryRun(BaseException):
    """No dry run of this job is possible. Not an Exception: the job's own `except` must not take it for one of its errors."""


class DryRun(Starter):
    """Of one job in one driver, whose sinks are of the format `data_source`. Called by the driver's main thread.

    `called`: the driver is to run the job, so hurry.
    """

    def __init__(self, folder: Path, data_source: type[DataSource], called: threading.Event) -> None:
        self._folder, self._data_source, self._called = folder, data_source, called
        self._queries: list[StartedQuery] = []
        self._running: list[StreamingQuery] = []
        self._runs = 0
        self._elsewhere: SparkSession | None = None

    def first(self, job: Callable[[], object]) -> str | None:
        """Call the job and run its queries for some batches; why that was not possible, or None. Raises none of its errors."""
        try:
            with intercepted(self), under_way(), _no_threads():
                job()
            self._run(5)
        except _NotDryRun as reason:
            self._queries.clear()
            self._end()
            return str(reason)
        except Exception as error:  # noqa: BLE001 - whatever the job raises: it is for the driver that runs it to fail
            self._end()
            return one_line(f"{type(error).__name__}: {error}")
        return None

    def again(self) -> None:
        try:
            self._run(1)
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("a standby's dry run has failed: %s", one_line(str(error)))

    def end(self) -> None:
        """Stop what still runs, and remove what there is on disk. In its own thread: a stop takes its time."""
        threading.Thread(target=self._end, daemon=True).start()

    def load(self, source: str, mark: Callable[[str, str], object], load: Callable[[], DataFrame]) -> DataFrame:
        if source.lower() not in _HARMLESS:
            raise _NotDryRun(f"it reads a stream of format {source!r}, of which no one knows what a second reader does to it")
        if source.lower() == OURS:
            mark(DRY_RUN, "true")
        return load()

    def start(self, started: StartedQuery, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """The query in its other form, and never the one that the job has asked for."""
        self._queries.append(started)
        return self._started(started)

    def write(self, what: str) -> None:
        raise _NotDryRun(f"besides its queries it calls {what}, which a standby must not")

    def wait(self, what: str) -> None:
        raise _NotDryRun(f"it calls {what}: it is to return its queries, and not to wait for them")

    def listen(self, add: Callable[[], None]) -> None:
        """A dry run is not reported."""

    def _run(self, batches: int) -> None:
        """Each query from the start of its input, until it has ended this many batches or has no more to read."""
        try:
            if not self._running:
                self._running = [self._started(started) for started in self._queries]
            deadline = time.monotonic() + LONGEST_S
            while not all(_has_run(query, batches) for query in self._running):
                if self._called.wait(POLL_S) or time.monotonic() > deadline:
                    return
        finally:
            if not self._called.is_set():
                self._end()

    def _started(self, started: StartedQuery) -> StreamingQuery:
        self._runs += 1
        writer = started.frame.writeStream
        if started.sink.lower() == OURS:  # with its options, as its processes look at where they would write
            options = {name: value for name, value in started.options.items() if name.lower() != LOCATION}
            writer = writer.format(OURS).options(**options).option(DRY_RUN, "true")
            threading.Thread(target=_look, args=[started, self._data_source], daemon=True).start()
        else:
            writer = writer.format("noop")
        checkpoint = self._checkpoint(started.frame.sparkSession)
        query = start_unwatched(writer.outputMode(started.output_mode).option("checkpointLocation", checkpoint))
        self._running.append(query)
        return query

    def _checkpoint(self, session: SparkSession) -> str:
        """On this host, whatever the default file system is, where all tasks are; else in that, which they are to share."""
        place = self._folder / str(self._runs)
        if str(session.conf.get("spark.master", "local")).startswith("local"):
            return place.as_uri()
        self._elsewhere = session
        return str(place)

    def _end(self) -> None:
        for query in self._running:
            with suppress(Exception):  # it has failed, or the session ends
                query.stop()
        self._running = []
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._elsewhere is not None:
            with suppress(Exception):  # as above
                path, configuration = hadoop_path(self._elsewhere, str(self._folder))
                path.getFileSystem(configuration).delete(path, True)  # noqa: FBT003 - Hadoop's: all below it, too


def _look(started: StartedQuery, data_source: type[DataSource]) -> None:
    """In its own thread: a call must not wait for brokers that are away."""
    with suppress(Exception):  # options that the job fails with, too
        looked(warm_driver, writer_of(started, data_source).sink)


@contextmanager
def _no_threads() -> Iterator[None]:
    """Meanwhile the job's own code can start no thread, which could act after the dry run. Spark's and headrace's may."""
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if _is_of_the_job(sys._getframe(1)):
            raise _NotDryRun(f"it starts a thread ({thread.name}), whose doings a standby could not hold back")
        start(thread)

    with patch.object(threading.Thread, "start", started):
        yield


def _is_of_the_job(frame: FrameType | None) -> bool:
    """Whether a job that is dry-run has come here by itself, and not through a call of Spark's or headrace's."""
    while frame is not None:
        if frame.f_code is DryRun.first.__code__:
            return True
        if str(frame.f_globals.get("__name__")).partition(".")[0] in ("headrace", "pyspark", "py4j"):
            return False
        frame = frame.f_back
    return False


def _has_run(query: StreamingQuery, batches: int) -> bool:
    """Whether it has ended this many batches, or one, and waits for data. Raises what it has failed with."""
    error = query.exception()
    if error is not None:
        raise error
    progress, status = query.lastProgress, query.status
    is_idle = not status["isTriggerActive"] and not status["isDataAvailable"]
    return progress is not None and (int(progress["batchId"]) >= batches - 1 or is_idle)
