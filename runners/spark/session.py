"""What a Spark session needs for headrace: the right PySpark, and workers that run the right Python."""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.enumerator.errors import UsageError
from headrace.runners.spark.class_archive import use_archive
from headrace.runners.spark_daemon import ZYGOTE_VARIABLE
from headrace.runners.spark_zygote import HASH_SEED, SEED

MINIMUM = (4, 2)
DAEMON = "headrace.runners.spark_daemon"
ZYGOTE = "headrace.runners.spark_zygote"
PRELOADED = "pyspark_headrace.preload"

SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}


def require_pyspark(version: str = pyspark.__version__) -> None:
    """Raise UsageError for a PySpark whose data source API would lose records."""
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM:
        wanted = ".".join(map(str, MINIMUM))
        raise UsageError(
            f"headrace needs PySpark {wanted} or newer, and this is {version}: before {wanted}, AvailableNow with a row limit "
            f"ends after one batch and leaves the rest unread. Install it with: pip install 'pyspark>={wanted}'"
        )


def session_builder() -> SparkSession.Builder:
    """`SparkSession.builder`, with which workers run this Python, filters reach the source, and any kill is survived.

    Spark takes its workers' Python from the environment variable PYSPARK_PYTHON, and else runs the first `python3` on the path,
    which may lack headrace: it then cannot find the data source. This sets the variable, unless it is set already. For data
    sources PYSPARK_DRIVER_PYTHON comes first, which in a notebook may be `jupyter`: where it is set, it becomes the same. Call
    it before the first session of the process. Raises UsageError when one is active that runs another Python.

    A driver killed while it writes the first offsets of a query leaves a temporary file in the checkpoint. Spark 4.3 then takes
    the checkpoint for another query's and never starts again (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY): that check is off.
    """
    require_pyspark()
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _run_in_workers(python)
    active = SparkContext._active_spark_context
    if active is not None and active.pythonExec != python:
        raise UsageError(
            f"the active Spark session runs {active.pythonExec} in its workers, and this is {python}: "
            "stop it and set PYSPARK_PYTHON before it starts"
        )
    builder: SparkSession.Builder = SparkSession.builder
    return builder.config(map=SETTINGS)


def warm_session_builder() -> SparkSession.Builder:
    """`session_builder()` for a session whose queries start sooner: on one machine (`local[...]`), under Linux.

    Spark starts several Python daemons for a query, one after the other, and each imports the same modules. Here one process
    imports them while the JVM starts, and the daemons are forked from it; where that cannot be done they start as ever. That
    process ends with this one. After `headrace warm-up` the JVM starts sooner as well (class_archive.py). Call it before the
    first session of the process. Raises UsageError as `session_builder`, and without Java.
    """
    builder = session_builder()
    _run_in_workers(_warm_python())
    use_archive()
    return builder


def _run_in_workers(python: str) -> None:
    """Whichever variable Spark asks: this process is not started by them any more."""
    os.environ["PYSPARK_PYTHON"] = python
    if "PYSPARK_DRIVER_PYTHON" in os.environ:
        os.environ["PYSPARK_DRIVER_PYTHON"] = python


@functools.cache
def _warm_python() -> str:
    """Start the process that daemons are forked from, which ends when the pipe to it closes; what Spark shall run as Python.

    `spark.python.daemon.module` would not do: Spark heeds it for tasks, and not where it plans, writes and commits.
    """
    python = os.environ["PYSPARK_PYTHON"]
    directory = Path(tempfile.mkdtemp(prefix="headrace-zygote-"))
    address, launcher = directory / "socket", directory / "python"
    launcher.write_text(_LAUNCHER.format(python=shlex.quote(python), daemon=DAEMON))
    launcher.chmod(0o700)
    command = [python, "-m", ZYGOTE, str(address), PRELOADED]
    environment = {**os.environ, HASH_SEED: SEED, "OMP_NUM_THREADS": "1"}  # as Spark sets them for its workers
    _alive.append(
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our own
    )
    os.environ[ZYGOTE_VARIABLE] = str(address)
    return str(launcher)


_LAUNCHER = """\
#!/bin/sh
case "$1 $2" in
  "-m pyspark.daemon" | "-m pyspark.sql.streaming.python_streaming_source_runner")
    shift
    set -- -m {daemon} "$@" ;;
esac
exec {python} "$@"
"""

_alive: list[subprocess.Popen[bytes]] = []
"""Keeps the pipes open for as long as this process lives."""
