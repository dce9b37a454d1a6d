"""The zone of times that state none: the option `timeZone`, else the session's."""

from __future__ import annotations

import os

from pyspark import TaskContext

from headrace.connectors.formats.json_times import check_zone
from headrace.enumerator.errors import UsageError
from headrace.spark.options import Option, text


def zone(option: Option, value: str) -> str:
    """The text of an option that names a zone. Raises UsageError for one that there is not."""
    try:
        check_zone(word := text(option, value))
    except UsageError as error:
        raise UsageError(f"option '{option.name}': {error}") from error
    return word


def session_time_zone() -> str:
    """The zone of the session whose task this is. If it has no setting, Spark's is that of the driver's machine.

    Raises UsageError in tasks of a frame's RDD, which Spark gives no settings of the session.
    """
    context = TaskContext.get()
    said = None if context is None else context.getLocalProperty("spark.sql.session.timeZone")
    if said is None and context is not None and context.getLocalProperty("spark.sql.execution.id") is None:
        raise UsageError(
            "there is a time without a zone, and frame.rdd, frame.foreach and frame.foreachPartition do not hand on that of "
            "the session: give the option timeZone"
        )
    return said or os.environ.get("TZ") or os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2] or "UTC"
