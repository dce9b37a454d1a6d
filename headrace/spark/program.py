"""What a program for Spark calls; `headrace.spark` has these names, and imports this module when one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.connectors.base.lease import LeaseStore
from headrace.enumerator.errors import UsageError
from headrace.runners.restarts import ExponentialDelay, RestartStrategy
from headrace.runners.spark import session as sessions
from headrace.runners.spark.bounded import read_source
from headrace.runners.spark.dead_letters import with_dead_letters
from headrace.runners.spark.metrics.exporter import MetricsServer, metrics
from headrace.runners.spark.supervision.core import EXIT_STATUSES, Ending, SupervisionLimits
from headrace.runners.spark.supervision.driver import DriverOrder
from headrace.runners.spark.supervision.jobs import FunctionName
from headrace.runners.spark.supervision.standby import StandbyCore, StandbyLimits
from headrace.runners.spark.supervision.status import StatusFile
from headrace.runners.spark.supervision.supervisor import supervise
from headrace.spark.any_stream import read_stream
from headrace.spark.format import headrace_format

__all__ = [
    "MetricsServer",
    "metrics",
    "read_source",
    "read_stream",
    "run",
    "session_builder",
    "warm_session_builder",
    "with_dead_letters",
]

_DEFAULT_RESTART = ExponentialDelay()


def session_builder() -> SparkSession.Builder:
    """`SparkSession.builder`, with which Spark runs a Python that has headrace, and any kill is survived.

    Plans of its sessions do not show what may be a secret in headrace's options (`spark.sql.redaction.options.regex`).

    Spark looks for data sources with PYSPARK_DRIVER_PYTHON, where that is not set with PYSPARK_PYTHON, and else with the first
    `python3` on the path. What is set and can import headrace is left alone (a deployment with `--archives` has them for other
    machines). Otherwise (in a notebook PYSPARK_DRIVER_PYTHON may be `jupyter`) the driver's processes get this Python; where
    nothing is set, the workers do, too. Under spark-submit, whose JVM runs already, the data source is registered with the
    session. Call it before the first session of the process. Raises UsageError when one is active whose Python has no headrace.

    On a cluster one path has to name that Python on the driver and on the executors alike: Spark plans and reads a Python data
    source with one path, and tasks fail where it is not. With `--archives`, unpack the archive in the driver's folder, too.

    With a master `local[...]` that the builder was given, under Linux, Spark's Python processes are forked from one that has
    imported what each of them would import, while the JVM starts: the first query starts seconds sooner. They start in Spark's
    own way where that cannot be done, where PYSPARK_DRIVER_PYTHON and PYSPARK_PYTHON are two Pythons, and with the setting
    `spark.headrace.python.fork=false`. After `headrace warm-up` the JVM of such a session starts sooner (class_archive.py).

    A driver killed while it writes the first offsets of a query leaves a temporary file in the checkpoint. Spark 4.3 then takes
    the checkpoint for another query's and never starts again (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY): that check is off.
    """
    return sessions.session_builder(headrace_format())


def warm_session_builder() -> SparkSession.Builder:
    """`session_builder()` for a session whose Python processes are to be forked, wherever its master is set.

    Spark starts several Python daemons for a query, one after the other, and each imports the same modules. Here one process
    imports them from now on, and the daemons are forked from it; where that cannot be done they start as ever. That process
    ends with this one. Use it where the master `local[...]` is a matter of the configuration, which `session_builder()` cannot
    know, or where there is work between builder and session. Call it before the first session of the process. Under
    spark-submit, whose JVM runs already, it is `session_builder()`. Raises UsageError as `session_builder`, without Java, and
    from `getOrCreate()` for another master than `local`.
    """
    return sessions.warm_session_builder(headrace_format())


def run(
    job: Callable[[SparkSession], object],
    *,
    standby: int = 0,
    lease: LeaseStore | None = None,
    restart: RestartStrategy = _DEFAULT_RESTART,
    session: Callable[[], SparkSession] | None = None,
    conf: Mapping[str, str] | None = None,
    status: str | Path | None = None,
    progress_timeout_s: float | None = None,
    silence_timeout_s: float | None = 30.0,
    stop_timeout_s: float = 60.0,
) -> None:
    """Run a job of streaming queries in its own process, and start it again when it fails. Linux, in the main thread.

    `job`: a function at the top of a file, which is given a session and returns its streaming query, or several. Call `run`
    under `if __name__ == "__main__"`: the process imports the file. `session` makes the session (default: headrace's builders,
    with the settings of `conf`). `standby`: this many more drivers (at most 2) make their session, dry-run the job and wait;
    when the one that runs it fails, one of them takes over at once, and not after the delay of a restart. What that asks of a
    job, and what it costs, is in docs/how-to/restart-jobs.md. `lease`: a `headrace.kafka.KafkaLease`, for the same call on
    several hosts: one of them leads, the others wait with a warm driver until it is dead. `restart`:
    `headrace.run.ExponentialDelay` (default) and its like. `status`: a file of JSON that says what continues.
    `progress_timeout_s`: the job is killed and started again when for this many seconds no batch has ended while one was under
    way; None (default) for any time. `silence_timeout_s`: also when its process, or its JVM, has not got round to saying that
    it exists for this many seconds (at least 4); None for never. SIGTERM and SIGINT end the job after the batch under way,
    which may take `stop_timeout_s` seconds; a second one ends it at once.

    Returns when all queries have ended by themselves. Raises SystemExit with one of `EXIT_STATUSES` otherwise: 143 after a
    stop, 1 where the restart strategy has given up, and at once 2 for wrong options, 65 for lost records, 66 for a checkpoint
    that cannot be used, 67 where another driver has claimed the job. Raises UsageError for arguments that cannot be.
    """
    if session is not None and conf:
        raise UsageError("settings of a session are given to run(conf=...) or to the function that makes it, not to both")
    maker = None if session is None else FunctionName.of(session)
    named, spark_format, settings = FunctionName.of(job), FunctionName.of(headrace_format), dict(conf or {})
    order = DriverOrder(named, spark_format, maker, settings, standby, lease is not None)
    limits = SupervisionLimits(progress_timeout_s, stop_timeout_s), StandbyLimits(standby, silence_timeout_s)
    end = supervise(order, lambda: StandbyCore(restart, *limits), None if status is None else StatusFile(Path(status)), lease)
    if end.ending is not Ending.COMPLETED:
        raise SystemExit(EXIT_STATUSES[end.ending])
