"""What Spark calls: its batch and stream readers, over any log source."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructField, StructType

from headrace.enumerator.errors import UsageError
from headrace.enumerator.split import OffsetSplitT, SplitT
from headrace.runners.spark.log_read import LogRead
from headrace.runners.spark.planning import OffsetRange, told_parallelism
from headrace.runners.spark.reports import QUERY_ID, report
from headrace.runners.spark.source_planner import Pace
from headrace.runners.spark.stream import StreamPlanner
from headrace.runners.spark.tasks import read_splits

log = logging.getLogger(__name__)


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of Arrow batches with this schema: a time without a zone is not an instant."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def default_schema(read: LogRead[OffsetSplitT]) -> StructType:
    return spark_schema(pa.schema([read.source.schema.field(name) for name in read.columns]))


def _wanted_columns(read: LogRead[OffsetSplitT], wanted: StructType) -> list[str]:
    """The names in `wanted`, in its order. Raises UsageError for an unknown column, a wrong type or NOT NULL."""
    there = {field.name: field for field in spark_schema(read.source.schema).fields}
    wrong = [
        f"{field.name} {field.dataType.simpleString()}{' not null' if _is_never_null(field) else ''}"
        for field in wanted.fields
        if field.name not in there or not field.nullable or field.dataType != there[field.name].dataType
    ]
    if wrong or not wanted.fields or len(set(wanted.names)) < len(wanted.names):
        columns = ", ".join(f"{name} {field.dataType.simpleString()}" for name, field in there.items())
        problem = f"cannot read {', '.join(wrong)}" if wrong else "needs at least one column, each once"
        raise UsageError(f"the schema {problem}; it may hold these columns, in any order: {columns}")
    return list(wanted.names)


def _is_never_null(field: StructField) -> bool:
    """Whether the column, or a part of it, is said to be never null."""
    alone = StructType([field])
    return bool(alone != alone.toNullable())


class SplitsPartition(InputPartition, Generic[SplitT]):
    """One task: bounded splits, read one after the other."""

    def __init__(self, splits: Sequence[SplitT]) -> None:
        self.splits = tuple(splits)


def _planned_here(read: LogRead[OffsetSplitT], schema: StructType) -> LogRead[OffsetSplitT]:
    """The read with the columns that are wanted, and what this process knows of the session."""
    columns = _wanted_columns(read, schema)
    parallelism = told_parallelism() or read.parallelism
    return replace(read, source=read.source.with_columns(columns), columns=tuple(columns), parallelism=parallelism)


def _read(read: LogRead[Any], partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, SplitsPartition):
        return  # Spark's stand-in for an empty list of partitions
    try:
        yield from read_splits(read.source, partition.splits, list(read.columns), read.poll_timeout_s)
    finally:
        context = TaskContext.get()
        report(None if context is None else context.getLocalProperty(QUERY_ID))


class BatchReader(DataSourceReader, Generic[OffsetSplitT]):
    """A bounded read. Spark makes and plans it in a planning process; `read` runs on an unpickled copy in each worker.

    Made without I/O. Raises UsageError for a schema that cannot be read. It takes no pushed filters: Spark 4.3 keeps what a
    push left out in an object that all scans of a frame share, so a frame that is used twice would lose rows. Ranges are asked
    for by options (`startingOffsets`, `startingTimestamp`, `assign`).
    """

    def __init__(self, read: LogRead[OffsetSplitT], schema: StructType) -> None:
        self._job = _planned_here(read, schema)

    def partitions(self) -> list[InputPartition]:
        with closing(self._job.source.create_discovery()) as discovery:
            by_id = {split.split_id: split for split in discovery.initial().added}
        ranges = [OffsetRange(split_id, split.next_offset, _stop(split)) for split_id, split in by_id.items()]
        return [
            SplitsPartition([by_id[item.split_id].between(item.start, item.stop) for item in task])
            for task in self._job.tasks_of(ranges)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._job, partition)


def _stop(split: OffsetSplitT) -> int:
    if split.stop_offset is None:
        raise UsageError(f"a batch read needs an end, and {split.split_id} has none")
    return split.stop_offset


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[OffsetSplitT]):
    """One instance plans a run of a query in the driver's Python process; copies `read` in the workers. Made without I/O."""

    def __init__(self, read: LogRead[OffsetSplitT], schema: StructType, clock: Callable[[], float] = time.monotonic) -> None:
        self._job, self._clock = _planned_here(read, schema), clock

    @cached_property
    def _planner(self) -> StreamPlanner[OffsetSplitT]:
        """Of the driver's process: a worker's copy has none."""
        return StreamPlanner(self._job, self._clock)

    @cached_property
    def _pace(self) -> Pace:
        return Pace(self._clock)

    def __getstate__(self) -> dict[str, Any]:
        return {"_job": self._job}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The mark of a query without a checkpoint, and no position. Driver; Spark calls it for every run of batch 0."""
        return offset_of(self._planner.initial_offsets())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limits = self._job.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        return ReadAllAvailable() if limits.min_offsets is None else ReadMinRows(limits.min_offsets)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        most, least = _bounds(limit, self._job.limits.min_offsets)
        text = text_of(start)
        end = self._pace.look(text, lambda: self._planner.next_offsets(text, most, least))
        report(None)  # of which query, is not known here
        return offset_of(end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read only what is there now, then end. Driver, once per run, before the first batch."""
        self._planner.pin_end()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        latest = self._planner.latest_seen()
        return None if latest is None else offset_of(latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [SplitsPartition(splits) for splits in self._planner.tasks(text_of(start), text_of(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._job, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """The batch that ends here is committed. Driver, while the next batch is made."""
        self._planner.committed(text_of(end))

    def stop(self) -> None:
        """Release connections. Spark does not always call it."""
        self._planner.close()


def _bounds(limit: ReadLimit, min_offsets: int | None) -> tuple[int | None, int | None]:
    match limit:
        case ReadMaxRows(most):
            return most, min_offsets
        case ReadMinRows(least):
            return None, least
        case _:
            return None, None


def offset_of(text: str) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(text))


def text_of(offset: dict[str, Any]) -> str:
    return json.dumps(offset, separators=(",", ":"))
