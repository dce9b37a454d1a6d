"""What a Spark session needs for headrace: the right PySpark, and workers that run the right Python."""

from __future__ import annotations

import os
import sys

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.enumerator.errors import UsageError

MINIMUM = (4, 2)

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
    which may lack headrace: it then cannot find the data source. This sets the variable, unless it is set already. Call it
    before the first session of the process. Raises UsageError when one is active that runs another Python.

    A driver killed while it writes the first offsets of a query leaves a temporary file in the checkpoint. Spark 4.3 then takes
    the checkpoint for another query's and never starts again (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY): that check is off.
    """
    require_pyspark()
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    active = SparkContext._active_spark_context
    if active is not None and active.pythonExec != python:
        raise UsageError(
            f"the active Spark session runs {active.pythonExec} in its workers, and this is {python}: "
            "stop it and set PYSPARK_PYTHON before it starts"
        )
    builder: SparkSession.Builder = SparkSession.builder
    return builder.config(map=SETTINGS)
