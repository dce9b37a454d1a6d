"""What Spark calls of a source whose splits it cannot cut: the stream reader over a `SplitPlanner`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from headrace.enumerator.split import SplitT
from headrace.runners.spark.bounded import loaded, pickled
from headrace.runners.spark.column_types import spark_rows
from headrace.runners.spark.planning import told_parallelism
from headrace.runners.spark.readers import offset_of, text_of
from headrace.runners.spark.reports import QUERY_ID, report
from headrace.runners.spark.source_planner import Pace
from headrace.runners.spark.split_state import Unread
from headrace.runners.spark.split_stream import PlannedTask, SplitPlanner, SplitRead
from headrace.runners.spark.tasks import read_splits, well_sized

_MOST_FILES = (1 << 31) - 1  # the JVM's


class TaskPartition(InputPartition, Generic[SplitT]):
    """One task of a batch."""

    def __init__(self, task: PlannedTask[SplitT]) -> None:
        self.task = task


class SplitStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[SplitT]):
    """One instance plans a run of a query in the driver's Python process; copies `read` in the workers. Made without I/O."""

    def __init__(self, read: SplitRead[SplitT], schema: pa.Schema) -> None:
        """`schema`: of the batches as Spark takes them."""
        self._job = replace(read, parallelism=told_parallelism() or read.parallelism)
        self._schema = schema

    @cached_property
    def _planner(self) -> SplitPlanner[SplitT]:
        """Of the driver's process: a worker's copy has none."""
        return SplitPlanner(self._job)

    @cached_property
    def _pace(self) -> Pace:
        return Pace()

    def __getstate__(self) -> dict[str, Any]:
        return {"job": pickled(self._job), "schema": self._schema}  # Spark need not know how a source is pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._job, self._schema = loaded(state["job"]), state["schema"]

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The mark of a query without a checkpoint, and no position. Driver; Spark calls it for every run of batch 0."""
        return offset_of(self._planner.initial_offsets())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxFiles(min(self._job.most_splits, _MOST_FILES))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        if isinstance(limit, ReadAllAvailable):  # of a query that is triggered once
            self._planner.take_all()
        text = text_of(start)
        end = self._pace.look(text, lambda: self._planner.next_offsets(text))
        report(None)  # of which query, is not known here
        return offset_of(end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End when nothing is left to read. Driver, once per run, before the first batch."""
        self._planner.pin_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [] if start == end else [TaskPartition(task) for task in self._planner.tasks(text_of(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task. Worker process. Raises UsageError for a value that Spark would cut."""
        if not isinstance(partition, TaskPartition):
            return  # Spark's stand-in for an empty list of partitions
        context = TaskContext.get()
        try:
            yield from spark_rows(self._batches(partition.task), self._schema)
        finally:
            report(None if context is None else context.getLocalProperty(QUERY_ID))

    def _batches(self, task: PlannedTask[SplitT]) -> Iterator[pa.RecordBatch]:
        if task.name is None:
            source = self._job.source
            return read_splits(source, task.splits, source.schema.names, self._job.stall_s)
        return well_sized(self._job.open_task(task).read())

    def ended(self, start: dict[str, Any]) -> Unread[SplitT] | None:
        """As the planner's. Driver."""
        return self._planner.ended(text_of(start))

    def commit(self, end: dict[str, Any]) -> None:
        """The batch that ends here is committed. Driver, while the next batch is made."""
        self._planner.committed(text_of(end))

    def stop(self) -> None:
        """Release connections. Spark does not always call it."""
        self._planner.close()
