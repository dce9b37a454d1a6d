"""What a driver does before it starts a query of its job, in a first start, a restart and a takeover alike.

It takes the lock of the checkpoint, so that no other driver of this host is running with it. It then claims the job at the
sink, and ends what the driver before has left there, before Spark reads the checkpoint: a clean-up that came later, alongside
the first tasks, would abort them.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.query import StreamingQuery

from headrace.connectors.base.immediate import ImmediateSink
from headrace.connectors.base.sink import TwoPhaseSink
from headrace.enumerator.errors import UsageError
from headrace.runners.spark.driver_id import DRIVER_ID
from headrace.runners.spark.offset_log import OffsetLog, newest_batch
from headrace.runners.spark.pipeline import started_sink
from headrace.runners.spark.private import hadoop_path, read_text
from headrace.runners.spark.session import PIPELINES
from headrace.runners.spark.supervision.lock import CheckpointLock
from headrace.runners.spark.supervision.queries import RunningQuery
from headrace.runners.spark.supervision.query_hooks import OURS, StartedQuery, Starter

if TYPE_CHECKING:
    from headrace.runners.spark.writers import StreamWriter

log = logging.getLogger(__name__)

LOCATION = "checkpointlocation"
_DEFAULT_LOCATION = "spark.sql.streaming.checkpointLocation"
_ATOMIC_STORES = frozenset({"file", "hdfs", "viewfs"})
"""Stores in which nothing of a dead driver can still arrive (a local file), or replace what a living one has written (HDFS)."""

_EXACTLY_ONCE = frozenset({OURS, "delta", "iceberg", "parquet", "orc", "json", "csv", "text"})
"""Sinks that write a batch once, however often Spark runs it: by a log or marker of their own."""

_ONCE_BETWEEN_HOSTS = _EXACTLY_ONCE - {"iceberg"}
"""Those that write it once also where two drivers run it at the same time. Iceberg's own sink looks whether it is written, and
commits: two that have looked both commit."""


class Takeover(Starter):
    """A `Starter` for a driver that runs the job, in its thread. `standbys` wait; `has_peers`: others do on other hosts."""

    def __init__(self, tree: str, data_source: type[DataSource], standbys: int, *, has_peers: bool = False) -> None:
        self._tree, self._data_source = tree, data_source
        self._standbys, self._has_peers = standbys, has_peers
        self._locks: dict[str, CheckpointLock] = {}
        self._begun: dict[tuple[str, TwoPhaseSink[Any]], StartedQuery] = {}
        self._running: list[StreamingQuery] = []
        self._has_waited = False

    def wait(self, what: str) -> None:
        """The job waits for a query by itself. The first time, a warning says what that costs."""
        if not self._has_waited:
            log.warning(
                "the job calls %s: until its function returns, SIGTERM ends it only after --stop-timeout, --progress-timeout "
                "sees none of its batches, and no standby is started. Have it return its queries, and not wait for them",
                what,
            )
        self._has_waited = True

    def start(self, started: StartedQuery, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Lock, claim, start. Raises UsageError where a standby could not take over, FencedError as `CheckpointLock.take`."""
        location = checkpoint_of(started)
        if self._standbys or self._has_peers:
            check_standby(started.sink, location)
            self._say_what_is_repeated(started)
        if self._has_peers:
            check_peers(location)
        if location is not None:
            self._lock(location)
            if _is_ours(started.sink):
                self._claim(started, location)
        query = start()
        self._running.append(query)
        return query

    def refuse_unreturned(self, returned: Sequence[RunningQuery]) -> None:
        """Raise UsageError for a running query that the job has not returned: no process would see it fail, and the driver
        would end, and the query with it, after the others."""
        known = {query.id for query in returned}
        for query in self._running:
            if query.id not in known and query.isActive:
                raise UsageError(
                    f"the job has started a query ({query.name or query.id}) that runs, and has not returned it: return all of "
                    "its queries, since a query that no process watches may fail unseen, and ends with the others"
                )
        self._running.clear()

    def release(self) -> None:
        """After the end of all queries, of which none has failed: release their jobs, for any driver to claim. Never raises."""
        for (location, _), started in self._begun.items():
            try:
                job = _checkpoint_at(location, started.frame).query_id()
                if job is not None:
                    writer_of(started, self._data_source).release(job)
            except Exception as error:  # noqa: BLE001 - whatever it is, the job has ended well
                log.warning("a job could not be given back at its sink, which is for supervised drivers until it is: %s", error)

    def keep_locks(self) -> None:
        """From time to time, in its own thread. Raises as `CheckpointLock.keep`."""
        for lock in tuple(self._locks.values()):
            lock.keep()

    def _say_what_is_repeated(self, started: StartedQuery) -> None:
        """A sink of headrace may be one whose rows are visible at once. Raises UsageError for options that it does not take."""
        sink, exactly_once = started.sink, _ONCE_BETWEEN_HOSTS if self._has_peers else _EXACTLY_ONCE
        if _is_ours(sink):
            ours = writer_of(started, self._data_source).sink
            sink, is_repeated = type(ours).__name__, isinstance(ours, ImmediateSink)
        else:
            is_repeated = sink.lower() not in exactly_once
        if is_repeated:
            log.warning("the sink %r is written at least once: a takeover repeats the batch that was under way", sink)

    def _claim(self, started: StartedQuery, location: str) -> None:
        """Claim the job, and end what was left at its sink. Raises as `StreamWriter.claim`, and for an unreadable checkpoint.

        Once at each sink: when it starts a query again, another process may have claimed the job.
        """
        started.mark(DRIVER_ID, self._tree)
        claiming = replace(started, options={**started.options, DRIVER_ID.lower(): self._tree})
        writer, checkpoint = writer_of(claiming, self._data_source), _checkpoint_at(location, started.frame)
        opened = (location, writer.sink)
        job = checkpoint.query_id()
        if job is not None:  # else it is the first start
            begin = writer.recover if opened in self._begun else writer.claim
            ended = begin(job, checkpoint.last_batch)
            if ended is not None:
                checkpoint.complete(ended)
        self._begun[opened] = claiming

    def _lock(self, location: str) -> None:
        if location not in self._locks:
            lock = CheckpointLock(location)
            lock.take(self._tree)
            self._locks[location] = lock  # not before: a job may try a start again that has failed here


def checkpoint_of(started: StartedQuery) -> str | None:
    """Where the query keeps its checkpoint, resolved; None for one that Spark makes up, which no restart finds."""
    given = started.options.get(LOCATION)
    if given is None:
        default = started.frame.sparkSession.conf.get(_DEFAULT_LOCATION, None)
        if default is None or started.name is None:
            return None
        given = f"{default.rstrip('/')}/{started.name}"
    return resolved(_qualified(given, started.frame))


def _qualified(location: str, frame: DataFrame) -> str:
    """As Spark takes it: a path without a scheme is one of the default file system, which may be another than the local one."""
    if ":" in location.partition("/")[0]:
        return location
    path, configuration = hadoop_path(frame.sparkSession, location)
    if configuration.get("fs.defaultFS").startswith("file:"):
        return location
    return str(path.getFileSystem(configuration).makeQualified(path))


def resolved(location: str) -> str:
    """One name for one place: a local path without its links, another URI without a slash at its end."""
    scheme, colon, rest = location.partition(":")
    if colon and "/" not in scheme and scheme.lower() != "file":
        return location.rstrip("/")
    path = rest if colon and "/" not in scheme else location
    return os.path.realpath(re.sub(r"^//+", "/", path))


def check_standby(sink: str, location: str | None) -> None:
    """Raise UsageError where a takeover would lose or damage something."""
    if location is None:
        raise UsageError("a job with a standby needs the option checkpointLocation: without it a takeover starts at the start")
    scheme = location.partition(":")[0].lower() if not location.startswith("/") else "file"
    if scheme not in _ATOMIC_STORES:
        raise UsageError(
            f"a standby cannot take over a checkpoint at {scheme}: ({location}): what a driver has sent may arrive there after "
            f"its death, and replace what the standby has written. Use {', '.join(sorted(_ATOMIC_STORES))}, or no standby"
        )
    if sink.lower() == "memory":
        raise UsageError("a job with a standby cannot write to the sink 'memory': its table ends with the driver that holds it")


def check_peers(location: str | None) -> None:
    """Raise UsageError for a checkpoint that another host need not have."""
    if location is not None and location.startswith("/"):
        raise UsageError(
            f"a supervisor on another host cannot take over a local checkpoint ({location}): it is not known whether that host "
            "has the same one, and with another one the job would start over there. Use hdfs:, or no lease"
        )


def _is_ours(sink: str) -> bool:
    return sink.lower() == OURS or sink.startswith(PIPELINES)


def writer_of(started: StartedQuery, data_source: type[DataSource]) -> StreamWriter[Any]:
    """Of a sink of headrace: of this format, or of a pipeline. Does no I/O, except at a registry that the options name."""
    kind = started_sink(started.sink) if started.sink.startswith(PIPELINES) else data_source
    sink = kind(dict(started.options))
    return cast("StreamWriter[Any]", sink.streamWriter(started.frame.schema, started.output_mode == "complete"))


# --- what a driver asks of a checkpoint before Spark reads it: whose it is, and how far it has come ---------------------


def _checkpoint_at(location: str, frame: DataFrame) -> OffsetLog | _HadoopCheckpoint:
    """The one at this place, as `checkpoint_of` resolves it: a local path, or a URI. `frame`: of the query's session."""
    return OffsetLog(location) if location.startswith("/") else _HadoopCheckpoint(location, frame)


class _HadoopCheckpoint:
    """As `OffsetLog`, by the driver's JVM, as Python may lack the file system. Raises as that, or ValueError for damage."""

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
        return newest_batch(str(status.getPath().getName()) for status in filesystem.listStatus(path))

    def complete(self, batch: int) -> None:
        """Nothing: Spark runs it again, and the sink skips it."""

    def _found(self, name: str) -> tuple[Any, Any]:
        path, configuration = hadoop_path(self._spark, f"{self._location}/{name}")
        return path.getFileSystem(configuration), path
