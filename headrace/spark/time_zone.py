"""The zone of times that state none: the option `timeZone`, else the session's."""

from __future__ import annotations

import os

from pyspark import TaskContext

from headrace.connectors.formats.json_times import check_zone
from headrace.enumerator.errors import UsageError
from headrace.runners.spark.private import task_time_zone
from headrace.spark.options import Option, text


def zone(option: Option, value: str) -> str:
    """The text of an option that names a zone. Raises UsageError for one that there is not."""
    try:
        check_zone(word := text(option, value))
    except UsageError as error:
        raise UsageError(f"option '{option.name}': {error}") from error
    return word


def session_time_zone() -> str:
    """The zone of the session whose task this is. In any other process, that of its machine.

    Raises UsageError in a task of which that is not known.
    """
    found = task_time_zone()
    if found is None and TaskContext.get() is not None:
        raise UsageError(
            "Spark gives tasks of an RDD (df.rdd, foreachPartition, toJSON) no session's zone, which a time without one needs: "
            "give the option timeZone"
        )
    return found or os.environ.get("TZ") or os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2] or "UTC"
