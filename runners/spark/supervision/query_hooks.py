"""What a job does to start its queries, seen and changed on its way to Spark: in this process, for as long as a block of code.

A job is a function of the user's that calls Spark. A driver has to step in between: at the start of a query, which must not
start before the checkpoint is locked and what the last driver left is recovered; and in a dry run, where nothing may be
written. So PySpark's readers and writers are watched by the names that users call. Of the classic PySpark, not of Connect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2, SparkSession
from pyspark.sql.catalog import Catalog
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.merge import MergeIntoWriter
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from headrace.runners.spark.private import frame_of

OURS = "headrace"
DEFAULT_MODE = "append"
_TABLE, _FOREACH, _FOREACH_BATCH = "table", "foreach", "foreachBatch"


@dataclass
class StartedQuery:
    """A query that a job starts. `options` by their names in lower case, with the `path` of `start`. `sink`: its format;
    `table`, `foreach` or `foreachBatch` where it is one of these. `mark` sets one more option of it.
    """

    frame: DataFrame
    sink: str = "parquet"
    output_mode: str = DEFAULT_MODE
    options: dict[str, str] = field(default_factory=dict)
    name: str | None = None
    mark: Callable[[str, str], object] = field(default=lambda name, value: None, compare=False, repr=False)


class Starter:
    """What is done in place of what a job calls: here, just that. Called in the thread of the job."""

    def load(self, source: str, mark: Callable[[str, str], object], load: Callable[[], DataFrame]) -> DataFrame:
        """A streaming read of this format; `mark` sets one more option of it, `load` is what the job has called."""
        return load()

    def start(self, started: StartedQuery, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """A query that is to start; `start` is what the job has called."""
        return start()

    def write(self, what: str) -> None:
        """The job is about to write something itself, named in words."""

    def wait(self, what: str) -> None:
        """The job is about to wait for its queries itself, by what is named in words."""

    def listen(self, add: Callable[[], None]) -> None:
        """The job adds a listener of queries; `add` is what it has called."""
        add()


@contextmanager
def intercepted(starter: Starter) -> Iterator[None]:
    """Meanwhile the starter is asked, in all threads of this process."""
    with ExitStack() as patches:
        for owner, name, method in _replacements(starter):
            patches.enter_context(patch.object(owner, name, method))
        yield


def _replacements(starter: Starter) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    yield from _of_reader(starter)
    for name, note in _NOTES.items():
        yield DataStreamWriter, name, _noting(getattr(DataStreamWriter, name), note)
    yield DataStreamWriter, "start", _starting(DataStreamWriter.start, starter, "path")
    yield DataStreamWriter, "toTable", _starting(DataStreamWriter.toTable, starter, "tableName")
    for calls, tell in ((_WRITES, starter.write), (_WAITS, starter.wait)):
        for owner, names in calls.items():
            for name in names:
                if (method := getattr(owner, name, None)) is not None:
                    yield owner, name, _telling(method, tell, f"{owner.__name__}.{name}()")
    yield SparkSession, "sql", _sql(SparkSession.sql, starter)
    add_listener = StreamingQueryManager.addListener
    listening = lambda manager, listener: starter.listen(lambda: add_listener(manager, listener))  # noqa: E731
    yield StreamingQueryManager, "addListener", listening


# --- reading ----------------------------------------------------------------------------------------------------------

_FORMATS_OF_READER = ("json", "orc", "parquet", "text", "csv", "xml", "table", "changes")


def _of_reader(starter: Starter) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    set_format, load = DataStreamReader.format, DataStreamReader.load

    def noted_format(self: Any, source: str) -> Any:  # noqa: ANN401 - PySpark's
        self._headrace_source = source
        return set_format(self, source)

    def noted_load(self: Any, path: Any = None, format: Any = None, schema: Any = None, **options: Any) -> Any:  # noqa: ANN401 - PySpark's
        if format is not None:
            self.format(format)
        source = getattr(self, "_headrace_source", "parquet")
        return starter.load(source, self.option, lambda: load(self, path, None, schema, **options))

    yield DataStreamReader, "format", noted_format
    yield DataStreamReader, "load", noted_load
    for name in _FORMATS_OF_READER:
        if (method := getattr(DataStreamReader, name, None)) is not None:
            yield DataStreamReader, name, _reading(method, starter, name)


def _reading(method: Callable[..., Any], starter: Starter, name: str) -> Callable[..., Any]:
    def read(self: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - PySpark's
        return starter.load(name, self.option, lambda: method(self, *arguments, **options))

    return read


# --- writing ----------------------------------------------------------------------------------------------------------


def _noted(writer: Any) -> StartedQuery:  # noqa: ANN401 - PySpark's
    found: StartedQuery | None = getattr(writer, "_headrace_started", None)
    if found is None:
        found = writer._headrace_started = StartedQuery(frame_of(writer), mark=writer.option)
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _note_options(started: StartedQuery, **options: object) -> None:
    started.options |= {name.lower(): _text(value) for name, value in options.items() if value is not None}


_NOTES: dict[str, Callable[..., None]] = {
    "format": lambda started, source: setattr(started, "sink", source),
    "outputMode": lambda started, outputMode: setattr(started, "output_mode", outputMode.lower()),  # noqa: N803 - PySpark's
    "queryName": lambda started, queryName: setattr(started, "name", queryName),  # noqa: N803 - PySpark's
    "option": lambda started, key, value: _note_options(started, **{key: value}),
    "options": _note_options,
    "foreach": lambda started, f: setattr(started, "sink", _FOREACH),
    "foreachBatch": lambda started, func: setattr(started, "sink", _FOREACH_BATCH),
}


def _noting(method: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    def noted(self: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - PySpark's
        returned = method(self, *arguments, **named)
        note(_noted(self), *arguments, **named)
        return returned

    return noted


def _starting(method: Callable[..., StreamingQuery], starter: Starter, target: str) -> Callable[..., StreamingQuery]:
    """Of `start` and `toTable`. Arguments that are settings go through the methods that users would call."""
    settings = ("format", "outputMode", "partitionBy", "queryName")

    def started(self: Any, *arguments: Any, **named: Any) -> StreamingQuery:  # noqa: ANN401 - PySpark's
        given = {**dict(zip((target, *settings), arguments, strict=False)), **named}
        place = given.pop(target, None)
        for name in settings:
            if (value := given.pop(name, None)) is not None:
                getattr(self, name)(value)
        self.options(**given)
        noted = _noted(self)
        if target == "tableName":
            noted.sink = _TABLE
        elif place is not None:  # as Spark hands it to the sink; the next start of this writer may have another
            noted = replace(noted, options=noted.options | {"path": _text(place)})
        return starter.start(noted, lambda: method(self, place))

    return started


# --- writes that are none of a query's, and waits -----------------------------------------------------------------------

_WRITES: dict[type, tuple[str, ...]] = {
    DataFrameWriter: ("save", "insertInto", "saveAsTable", "json", "parquet", "text", "csv", "xml", "orc", "jdbc"),
    DataFrameWriterV2: ("create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions"),
    MergeIntoWriter: ("merge",),
    ClassicDataFrame: ("createGlobalTempView", "createOrReplaceGlobalTempView"),
    Catalog: (
        *("createDatabase", "createTable", "createExternalTable", "dropDatabase", "dropTable", "dropView"),
        *("truncateTable", "recoverPartitions", "analyzeTable"),
    ),
    SparkSession: ("stop",),  # which ends with it whatever else is running in it
}
"""Some of them are not in every PySpark."""

_WAITS: dict[type, tuple[str, ...]] = {
    StreamingQuery: ("awaitTermination", "processAllAvailable"),
    StreamingQueryManager: ("awaitAnyTermination",),
}

_READS = re.compile(
    r"\s*(?:(?:select|with|from|values|table|show|describe|desc|explain|use|set|declare)\b|\(|create\s+(?:or\s+replace\s+)?"
    r"temp(?:orary)?\s)",
    re.IGNORECASE,
)
"""Statements that change nothing outside of their session. `with` and `from` can also start a write: `_INSERTS` shows."""

_INSERTS = re.compile(
    r"\b(?:(?:insert|merge)\s+(?:with\s+schema\s+evolution\s+)?(?:into|overwrite)|delete\s+from|update\b.*?\bset)\b",
    re.IGNORECASE | re.DOTALL,
)


def _telling(method: Callable[..., Any], tell: Callable[[str], None], what: str) -> Callable[..., Any]:
    def reported(self: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - PySpark's
        tell(what)
        return method(self, *arguments, **named)

    return reported


def _sql(sql: Callable[..., DataFrame], starter: Starter) -> Callable[..., DataFrame]:
    def reported(self: SparkSession, sqlQuery: str, *arguments: Any, **named: Any) -> DataFrame:  # noqa: ANN401, N803 - PySpark's
        if not _READS.match(sqlQuery) or _INSERTS.search(sqlQuery):
            starter.write(f"the SQL statement {sqlQuery.split(maxsplit=1)[0].upper()}")
        return sql(self, sqlQuery, *arguments, **named)

    return reported
