"""What a driver asks of a query's checkpoint before Spark reads it: whose it is, and how far it has come.

A local one is read as files. Any other is read by the driver's JVM, with the session's settings, as Spark reads it: the process
that starts has to know the query to claim it, and a file system that Python lacks is not a reason not to.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

from pyspark.sql import DataFrame

from headrace.runners.spark.offset_log import OffsetLog
from headrace.runners.spark.private import hadoop_path, read_text


def checkpoint_at(location: str, frame: DataFrame) -> OffsetLog | _HadoopCheckpoint:
    """The one at this place, as `checkpoint_of` resolves it: a local path, or a URI. `frame`: of the query's session."""
    return OffsetLog(location) if location.startswith("/") else _HadoopCheckpoint(location, frame)


class _HadoopCheckpoint:
    """As `OffsetLog`, in a file system of Hadoop's. Raises what that raises, or ValueError for a damaged one."""

    def __init__(self, location: str, frame: DataFrame) -> None:
        self._location, self._spark = location, frame.sparkSession

    def query_id(self) -> str | None:
        filesystem, path = self._found("metadata")
        if not filesystem.exists(path):
            return None
        with closing(filesystem.open(path)) as stream:
            text = read_text(self._spark, stream)
        return str(json.loads(text)["id"]) if text.strip() else None

    def last_batch(self) -> int | None:
        filesystem, path = self._found("offsets")
        if not filesystem.exists(path):
            return None
        names = [str(status.getPath().getName()) for status in filesystem.listStatus(path)]
        return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)

    def complete(self, batch: int) -> None:
        """Nothing: Spark runs it again, and the sink skips it."""

    def _found(self, name: str) -> tuple[Any, Any]:
        path, configuration = hadoop_path(self._spark, f"{self._location}/{name}")
        return path.getFileSystem(configuration), path
