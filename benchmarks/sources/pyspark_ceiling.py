"""Spark's own ceiling for Python sources: `format("ceiling")` yields one ready-made Arrow batch again and again.

Found by Spark as headrace is, by its package name. The batches have the Kafka source's columns, or those of the schema given:
a column of another name is numbers, flags or short texts, by its type.
Options: `records` and `tasks` in all, `valueBytes`, `batchBytes` of one Arrow batch (the number that decides how fast Spark
takes them), and for streams `step`, the records of a trigger.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
KEY_BYTES = 8
DEFAULT_BATCH_BYTES = 8 << 20  # from 512 KiB to 16 MiB it makes no difference


@dataclass
class Rows(InputPartition):
    """One task: this many records."""

    records: int


@dataclass(frozen=True)
class Job:
    """What to yield, from the options."""

    columns: pa.Schema
    records: int
    tasks: int
    value_bytes: int
    batch_bytes: int
    step: int

    @classmethod
    def of(cls, options: dict[str, str], schema: StructType) -> Job:
        """The options as numbers; absent ones have defaults."""
        records = int(options.get("records", 1))
        return cls(
            to_arrow_schema(schema, timezone="UTC"),
            records,
            int(options.get("tasks", 1)),
            int(options.get("valuebytes", 100)),
            int(options.get("batchbytes", DEFAULT_BATCH_BYTES)),
            int(options.get("step", records)),
        )

    def split(self, records: int) -> list[InputPartition]:
        """The tasks for this many records, of even size."""
        edges = [records * task // self.tasks for task in range(self.tasks + 1)]
        return [Rows(stop - start) for start, stop in itertools.pairwise(edges) if stop > start]

    def read(self, records: int) -> Iterator[pa.RecordBatch]:
        """The one batch until this many records have been given."""
        batch = ready_batch(self.columns, self.value_bytes, self.batch_bytes)
        while records > 0:
            yield batch if records >= batch.num_rows else batch.slice(0, records)
            records -= batch.num_rows


@functools.lru_cache(maxsize=4)
def ready_batch(columns: pa.Schema, value_bytes: int, batch_bytes: int) -> pa.RecordBatch:
    """A batch of these columns, of about this many bytes."""
    rows = max(1, batch_bytes // sum(_row_bytes(column, value_bytes) for column in columns))
    numbers = pa.array(range(rows), pa.int64())
    arrays = {
        "key": lambda: _binary(rows, KEY_BYTES),
        "value": lambda: _binary(rows, value_bytes),
        "topic": lambda: pa.array(["benchmark"] * rows),
        "partition": lambda: pa.array([1] * rows, pa.int32()),
        "offset": lambda: numbers,
        "timestamp": lambda: pa.array(range(rows), pa.timestamp("us", "UTC")),
        "timestampType": lambda: pa.array([0] * rows, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(
        {column.name: arrays[column.name]() if column.name in arrays else _by_type(numbers, column.type) for column in columns}
    )


def _by_type(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    match kind:
        case _ if kind == pa.string():
            return pc.binary_join_element_wise("item", pc.utf8_lpad(numbers.cast(kind), 4, "0"), "-")
        case _ if kind == pa.bool_():
            return pc.equal(pc.bit_wise_and(numbers, 1), 1)
        case _:
            return numbers.cast(kind)


def _row_bytes(column: pa.Field, value_bytes: int) -> int:
    """About as many as a row of the column takes."""
    texts = {"value": value_bytes + 4, "key": KEY_BYTES + 4}
    if column.type == pa.string() or column.name in texts:
        return texts.get(column.name, 13)
    return max(1, column.type.bit_width // 8)


def _binary(rows: int, width: int) -> pa.Array:
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(os.urandom(rows * width))]).cast(
        pa.binary()
    )


class CeilingReader(DataSourceReader):
    """A batch read."""

    def __init__(self, job: Job) -> None:
        """See Job."""
        self._job = job

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return self._job.split(self._job.records)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        assert isinstance(partition, Rows)
        return self._job.read(partition.records)


class CeilingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read of `records`, `step` in a trigger."""

    def __init__(self, job: Job) -> None:
        """See Job."""
        self._job = job

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Nothing read yet."""
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The step is the limit."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """One step further."""
        return {"at": min(start["at"] + self._job.step, self._job.records)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Nothing to do: what is there is known."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of one batch."""
        return self._job.split(end["at"] - start["at"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override] # Spark takes Arrow too
        """The records of one task."""
        assert isinstance(partition, Rows)
        return self._job.read(partition.records)


class DefaultSource(DataSource):
    """`format("ceiling")`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "ceiling"

    def schema(self) -> str:
        """The columns of the Kafka source."""
        return SCHEMA

    def reader(self, schema: StructType) -> CeilingReader:
        """A batch read."""
        return CeilingReader(Job.of(self.options, schema))

    def streamReader(self, schema: StructType) -> CeilingStreamReader:  # noqa: N802 - Spark's name
        """A streaming read."""
        return CeilingStreamReader(Job.of(self.options, schema))
