"""A driver: the process that runs the job's function under a supervisor.

    python -m headrace.runners.spark.supervision.driver ORDERS REPORTS

The descriptors of two pipes. From ORDERS it reads one line, what to run, and a second one when it is called to run it: until
then it is a standby, which makes its session, dry-runs the job, and waits. The pipe stays open for as long as the supervisor
is alive, and when it closes, all processes of the driver are killed. To REPORTS it writes a line of JSON for whatever the
supervisor has to know, and `{}` each half second to say that it is alive. SIGTERM ends the queries after the batches under way.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from headrace.enumerator.errors import FencedError, HeadraceError, UsageError
from headrace.runners.spark import session as sessions
from headrace.runners.spark.private import active_context, call_jvm
from headrace.runners.spark.session import DataSourceFormat
from headrace.runners.spark.supervision.core import EXIT_STATUSES, DriverEnd, Ending
from headrace.runners.spark.supervision.dry_run import KEEP_WARM_S, DryRun, dry_run_folder
from headrace.runners.spark.supervision.exit_causes import end_by
from headrace.runners.spark.supervision.jobs import FunctionName, load, load_job
from headrace.runners.spark.supervision.process_tree import TREE_VARIABLE, kill_tree
from headrace.runners.spark.supervision.queries import ProgressOfQueries, RunningQuery, WatchedQuery, queries_of
from headrace.runners.spark.supervision.query_hooks import intercepted
from headrace.runners.spark.supervision.takeover import Takeover

if TYPE_CHECKING:
    from types import FrameType

log = logging.getLogger(__name__)

CALL = b"run\n"
POLL_S = 0.5
HEARTBEAT_S = 0.5


@dataclass(frozen=True, slots=True)
class DriverOrder:
    """What a driver runs. `session`: the function that makes the session; None for headrace's builders with `conf`.

    `spark_format`: the function that gives the format of sessions and sinks. `standbys`: how many drivers wait alongside the
    one that runs the job. `has_peers`: others wait on other hosts.
    """

    job: FunctionName
    spark_format: FunctionName
    session: FunctionName | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    standbys: int = 0
    has_peers: bool = False

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> DriverOrder:
        given: dict[str, Any] = json.loads(line)
        for name in ("job", "spark_format", "session"):
            given[name] = given[name] and FunctionName(**given[name])
        return cls(**given)


_STOPPED = DriverEnd(Ending.STOPPED, "it was stopped")


class _Driver:
    """The main thread's part. `called`: it is to run the job."""

    def __init__(self, order: DriverOrder, spark_format: DataSourceFormat, reports: int, called: threading.Event) -> None:
        self._order, self._format, self._reports, self._called = order, spark_format, reports, called
        self._tree = os.environ[TREE_VARIABLE]
        self._takeover = Takeover(self._tree, spark_format.data_source, order.standbys, has_peers=order.has_peers)
        self._lock_trouble = ""
        self._is_to_stop = False
        self._reporting = threading.Lock()

    def run(self) -> DriverEnd:
        signal.signal(signal.SIGTERM, self._stop)
        threading.Thread(target=self._heartbeat, daemon=True).start()
        try:
            end = self._run()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is reported
            end = end_by(error)
            self._report_end(end)
        return end

    def _run(self) -> DriverEnd:
        job = load_job(self._order.job)
        own = self._order.session
        session = load(own)() if own is not None else _session(self._format, self._order.conf)
        refuse_connect(session)
        if (cold := sessions.why_cold(session)) is not None:
            self._report(cold=cold)
        dry_run = DryRun(dry_run_folder(self._tree), self._format.data_source, self._called)
        on_stage = partial(job, stage_of(session)) if isinstance(session, SparkSession) else None
        self._wait_for_call(dry_run, on_stage)
        if self._is_to_stop:
            self._report_end(_STOPPED)
            return _STOPPED
        with intercepted(self._takeover):
            queries = queries_of(job(session))
        self._takeover.refuse_unreturned(queries)
        self._report(queries=[query.id for query in queries])
        dry_run.end()
        end = _STOPPED if self._watch(queries) else DriverEnd(Ending.COMPLETED, "all its queries have ended")
        self._report_end(end)  # first: so it has ended, whatever becomes of what follows
        self._takeover.release()
        try:
            session.stop()
        except Exception as error:  # noqa: BLE001 - py4j's errors are many
            log.warning("the session could not be stopped: %s", error)
        return end

    def _wait_for_call(self, dry_run: DryRun, job: Callable[[], object] | None) -> None:
        """Get ready, say so, keep ready. Over at once for a driver that is called already, or instructed to end."""
        if self._called.is_set():
            return
        self._format.preload()
        no_dry_run = "its session is none of classic PySpark" if job is None else dry_run.first(job)
        self._report(armed=True, no_dry_run=no_dry_run)
        warm_until = time.monotonic() + KEEP_WARM_S
        while not self._called.wait(POLL_S) and not self._is_to_stop:
            if time.monotonic() >= warm_until:
                dry_run.again()
                warm_until = time.monotonic() + KEEP_WARM_S

    def _watch(self, queries: list[RunningQuery]) -> bool:
        """Wait for the end of all; whether it was a stop. Raises what a query fails with."""
        progress = ProgressOfQueries()
        watched = [WatchedQuery(query) for query in queries]
        active = watched
        while active := [one for one in active if not one.has_ended(POLL_S / len(watched))]:
            if self._is_to_stop:
                for one in active:
                    one.tell_to_end()
            if progress.look([one.query for one in active]):
                self._report(batches=progress.batches)
        return any(one.is_told for one in watched)

    def _heartbeat(self) -> None:
        """In a thread: say that this process is alive, and its JVM. Where that is stopped, or dead, nothing is said."""
        while True:
            context = active_context()
            with suppress(Exception):  # the session ends, or its JVM has ended
                if context is not None:
                    call_jvm(context)
                self._report()
            self._keep_locks()
            time.sleep(HEARTBEAT_S)

    def _keep_locks(self) -> None:
        """Where another driver has one of them, nothing of this one continues: it would write what that one reads."""
        try:
            self._takeover.keep_locks()
        except FencedError as error:
            end = end_by(error)
            self._report_end(end)
            kill_tree(self._tree)
            os._exit(EXIT_STATUSES[end.ending])
        except (HeadraceError, OSError) as error:
            if str(error) != self._lock_trouble:
                self._lock_trouble = str(error)
                log.warning("%s; it is tried again", error)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_to_stop = True

    def _report_end(self, end: DriverEnd) -> None:
        self._report(end=end.ending.name, reason=end.reason)

    def _report(self, **what: object) -> None:
        """Nothing of this driver outlives its supervisor: an error here would leave what the driver has started."""
        with self._reporting:  # the pipe keeps only short lines of two threads apart
            try:
                os.write(self._reports, json.dumps(what).encode() + b"\n")
            except BrokenPipeError:
                _end_with_tree()


def stage_of(session: SparkSession) -> SparkSession:
    """A session for dry runs: what the job registers by name there, such as a view, is not in the way of the job itself."""
    stage = session.newSession()
    hidden = session.conf.get(sessions.REDACTION)
    if hidden is not None:  # a new session has Spark's first settings, not later ones
        stage.conf.set(sessions.REDACTION, hidden)
    return stage


def refuse_connect(session: object) -> None:
    """Raise UsageError for a session of Spark Connect: what its queries start with cannot be seen, nor refused.

    They hold no lock, and continue in the server when this process is killed.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise UsageError(
            "a supervised job needs a session of classic PySpark, not of Spark Connect, whose queries hold no lock of their "
            "checkpoint, and continue in the server when their driver is killed"
        )


def _session(spark_format: DataSourceFormat, conf: Mapping[str, str]) -> SparkSession:
    is_here = sessions.is_local(sessions.expected_master(conf) or "")
    new_builder = sessions.warm_session_builder if is_here else sessions.session_builder
    return new_builder(spark_format).config(map=dict(conf)).getOrCreate()


def _take_orders(orders: int, read: bytes, called: threading.Event) -> None:
    """In a thread. Whatever the main thread does when the supervisor is gone, nothing of this driver is left."""
    # Kept for the end: a driver that may open no more files still has to look for its processes.
    spare = [os.dup(orders) for _ in range(4)]
    try:
        while True:
            if CALL in read:
                called.set()
            if not (more := os.read(orders, 1 << 16)):
                break
            read += more
        for descriptor in spare:
            os.close(descriptor)
    finally:
        _end_with_tree()


def _end_with_tree() -> None:
    try:
        kill_tree(os.environ[TREE_VARIABLE])
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    orders, reports = int(sys.argv[1]), int(sys.argv[2])
    for descriptor in (orders, reports):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - as it is defined
    read = b""
    while b"\n" not in read:
        if not (more := os.read(orders, 1 << 16)):
            return  # the supervisor is gone
        read += more
    line, _, more = read.partition(b"\n")
    called = threading.Event()
    threading.Thread(target=_take_orders, args=[orders, more, called], daemon=True).start()
    order = DriverOrder.from_line(line)
    end = _Driver(order, load(order.spark_format)(), reports, called).run()
    sessions.end_processes(5.0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_STATUSES[end.ending])  # whatever threads there are; the supervisor kills what is left


if __name__ == "__main__":
    main()
