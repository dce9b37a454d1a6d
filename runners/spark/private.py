"""All that headrace uses of PySpark's private parts. Checked with PySpark 4.2 and 4.3, which setup.cfg allows.

Each function says why nothing public would do. For another version of PySpark, look at these first, and then at two modules
with other ties: `supervision.starts` replaces public methods for a while, and `headrace.spark.preload` imports the programs
of PySpark's worker processes. `tests/unit/tools/test_tidy.py` keeps underscore names out of all other modules.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from pyspark import SparkConf, SparkContext, TaskContext
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_COLLECTION = threading.RLock()  # one thread at a time switches Python's collector off and on

# --- the session and its JVM ------------------------------------------------------------------------------------------


def active_context() -> SparkContext | None:
    """The context of this process; None without one, or over Connect. `SparkContext.getOrCreate()` would start one."""
    return SparkContext._active_spark_context


def builder_options(builder: SparkSession.Builder) -> dict[str, Any]:
    """The settings that a builder was given. It has no public way to read them."""
    return builder._options


def call_jvm(context: SparkContext) -> None:
    """One call of the session's JVM, if it has one, to be answered: each public call does work. Raises py4j's errors."""
    if context._jvm is not None:
        context._jvm.java.lang.System.nanoTime()


@contextmanager
def active(session: object) -> Iterator[None]:
    """The thread's active session is this one meanwhile: there Spark looks for formats that were registered with a session.

    PySpark makes a session active as it makes a frame of rows, and in no other way. Nothing to do over Connect.
    """
    if not isinstance(session, SparkSession):
        yield
        return
    sessions: Any = SparkSession._get_j_spark_session_class(session._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        sessions.setActiveSession(before.get()) if before.isDefined() else sessions.clearActiveSession()


def jvm_variable(context: SparkContext, name: str) -> str | None:
    """A variable of the JVM's environment, which it hands to the Python processes that it starts. PySpark does not show it."""
    value: str | None = None if context._jvm is None else context._jvm.java.lang.System.getenv(name)
    return value


def jvm_process() -> subprocess.Popen[bytes] | None:
    """The JVM that this process has started. `SparkSession.stop()` leaves it running."""
    return getattr(SparkContext._gateway, "proc", None)


def shut_down_jvm(timeout_s: float) -> None:
    """End the JVM in order, and wait for its end, at which it writes a class archive. PySpark ends it with its own process."""
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout_s)


def submitted_settings() -> dict[str, str]:
    """The settings of the JVM that spark-submit has started. A public `SparkConf` would read them by making a context."""
    from pyspark.java_gateway import launch_gateway

    with closing(launch_gateway()) as gateway:  # type: ignore[no-untyped-call]  # connects to the JVM that is there
        return dict(SparkConf(_jvm=gateway.jvm).getAll())


# --- tasks ------------------------------------------------------------------------------------------------------------


def task_time_zone() -> str | None:
    """The zone of the session whose task this process runs; None in another process, and in a task of an RDD: Spark gives the
    session's settings to tasks of a query alone.

    `TaskContext` has it where it was set, and not Spark's default, which is the zone of the task's JVM. Spark hands that to the
    program of the task, which keeps it in a variable. That is of the main thread.
    """
    context = TaskContext.get()
    if context is None or context.getLocalProperty("spark.sql.execution.id") is None:
        return None
    frame = _frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        kind = frame.f_globals.get("RunnerConf")
        if kind is not None and isinstance(settings := frame.f_locals.get("runner_conf"), kind):
            return cast("str | None", settings.timezone)
        frame = frame.f_back
    return None


def _frames() -> dict[int, FrameType]:
    """That of each thread.

    Python 3.11 lists them with a lock that a finalizer may wait for, for ever (gh-106883): none is to run meanwhile.
    """
    with _COLLECTION:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if was_enabled:
                gc.enable()


# --- Hadoop's file systems --------------------------------------------------------------------------------------------


def hadoop_path(spark: SparkSession, location: str) -> tuple[Any, Any]:
    """The JVM's `Path`, and the configuration that says which file system it is of: one that PySpark may have no API for."""
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(location), spark._jsparkSession.sessionState().newHadoopConf()


def read_text(spark: SparkSession, stream: Any) -> str:  # noqa: ANN401 - the JVM's
    """All that an input stream of the JVM has, in UTF-8. Byte for byte over py4j it would take a call each."""
    jvm: Any = spark._jvm
    return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))


# --- streaming queries ------------------------------------------------------------------------------------------------


def frame_of(writer: DataStreamWriter) -> DataFrame:
    return writer._df


def start_unwatched(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query though `DataStreamWriter.start` is replaced at present (`supervision.starts`)."""
    from pyspark.sql.streaming.query import StreamingQuery

    return StreamingQuery(writer._jwrite.start())


def cause_of(error: BaseException) -> BaseException | None:
    """What the JVM gives as the cause of an error that came from it. PySpark shows its text alone."""
    return getattr(error, "_cause", None)


def finish_after_batch(query: Any) -> None:  # noqa: ANN401 - StreamingQuery, or what tests have in its place
    """Have a query start no further batch. `stop()`, the only public way, interrupts the batch under way.

    Sets the state that Spark's loop looks at before each batch. Of the classic query: Connect's has none. Raises py4j's errors,
    and AttributeError.
    """
    state = query._jsq.streamingQuery().state()
    current = state.get().getClass()
    terminated = current.getClassLoader().loadClass(f"{current.getPackageName()}.TERMINATED$")
    state.set(terminated.getField("MODULE$").get(None))
