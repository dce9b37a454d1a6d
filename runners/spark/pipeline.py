"""A `PipelineSpec` as a streaming query: source and sink as their own formats, the transform in the sink's tasks.

The transform is called where rows are written, with batches of the source's own schema. So it may give whatever the sink takes,
in batches of several schemas, too, as in `headrace run`; a step of Spark's own (mapInArrow) would have to know one schema
beforehand, and takes every row through the JVM again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from headrace.connectors.base.sink import TwoPhaseSink
from headrace.enumerator.errors import UsageError
from headrace.runners.spark.bounded import PickledFormat, advised, loaded, pickled, register_once
from headrace.runners.spark.column_types import converted, held_schema, spark_rows, spark_types
from headrace.runners.spark.driver_id import driver_id_of
from headrace.runners.spark.log_read import LogRead
from headrace.runners.spark.offset_log import OffsetLog
from headrace.runners.spark.private import active
from headrace.runners.spark.readers import StreamReader
from headrace.runners.spark.session import PIPELINES, told_parallelism_of
from headrace.runners.spark.split_readers import SplitStreamReader
from headrace.runners.spark.split_stream import SplitRead
from headrace.runners.spark.staged import StagedRead, StagedStreamReader
from headrace.runners.spark.writers import StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Transformed = Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]  # what is to be written of a batch of the source's


StreamRead = LogRead[Any] | SplitRead[Any] | StagedRead


@dataclass(frozen=True)
class PipelineWrite:
    """How the query writes. `schema`: of the batches that the transform is given. `offsets`: the log of the query's batches."""

    sink: TwoPhaseSink[Any]
    transformed: Transformed
    schema: pa.Schema
    offsets: OffsetLog


@dataclass(frozen=True)
class PipelineQuery:
    """A pipeline for Spark. `name` and `trigger` are Spark's `queryName` and the arguments of `DataStreamWriter.trigger`."""

    read: StreamRead
    sink: TwoPhaseSink[Any]
    transformed: Transformed
    checkpoint: str
    name: str | None = None
    trigger: Mapping[str, Any] | None = None

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start it. Raises UsageError for a type of the source that Spark has not, and for what cannot travel to its tasks."""
        write = PipelineWrite(self.sink, self.transformed, self.read.source.schema, OffsetLog(self.checkpoint))
        sink = _format_of(PipelineSinkFormat, write)
        frame = read_frame(spark, self.read)
        _sinks[sink.name()] = sink
        writer = frame.writeStream.format(sink.name()).outputMode("append")
        writer = writer.option("checkpointLocation", self.checkpoint)
        if self.name is not None:
            writer = writer.queryName(self.name)
        if self.trigger is not None:
            writer = writer.trigger(**self.trigger)
        with active(spark):
            register_once(spark, sink)
            return writer.start()


FormatT = TypeVar("FormatT", bound=PickledFormat)


def read_frame(spark: SparkSession, read: StreamRead) -> DataFrame:
    """A streaming frame of the source. Raises UsageError for a type that Spark has not, and for what cannot travel to tasks."""
    _check_times(spark, spark_types(read.source))
    source = _format_of(PipelineSourceFormat, replace(read, parallelism=told_parallelism_of(spark)))
    with active(spark), advised():
        return spark.readStream.format(register_once(spark, source)).load()


def _check_times(spark: SparkSession, schema: StructType) -> None:
    """Spark starts no stream with one, and names neither the column nor the setting. Frames may have them."""
    for field in schema:
        # with a default for the setting, Spark's own would not be looked up
        if "TimeType(" in repr(field.dataType) and spark.conf.get("spark.sql.timeType.enabled") != "true":
            raise UsageError(
                f"column {field.name!r} is {field.dataType.simpleString()}, which streams of Spark have only where "
                "spark.sql.timeType.enabled is true"
            )


def _format_of(kind: type[FormatT], held: object) -> type[FormatT]:
    try:
        return kind.of(held)
    except Exception as error:
        raise UsageError(
            f"the source or the pipeline cannot be sent to Spark's tasks: {type(error).__name__}: {error}"
        ) from error


class PipelineSourceFormat(PickledFormat):
    """The base of the formats that pipelines are read by. Each holds a `StreamRead`."""

    PREFIX = f"{PIPELINES}source_"

    def schema(self) -> StructType:
        return spark_types(self._read().source)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return stream_reader(self._read(), schema)

    def _read(self) -> StreamRead:
        return cast("StreamRead", loaded(self.PICKLED))


def stream_reader(read: StreamRead, schema: StructType) -> DataSourceStreamReader:
    """What Spark calls, for this kind of read. Does no I/O."""
    match read:
        case LogRead():
            return PipelineReader(read, schema)
        case SplitRead():
            return SplitStreamReader(read, held_schema(schema))
        case StagedRead():
            return StagedStreamReader(read, schema, stream_reader)


class PipelineReader(StreamReader[Any]):
    """A streaming read whose batches have the types that Spark has for those of the source."""

    def __getstate__(self) -> dict[str, Any]:
        return {"job": pickled(self._job)}  # Spark need not know how a source is pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._job = loaded(state["job"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task. Worker process. Raises UsageError for a value that Spark would cut."""
        yield from spark_rows(super().read(partition), held_schema(spark_types(self._job.source)))


class PipelineSinkFormat(PickledFormat):
    """The base of the formats that pipelines are written by. Each holds a `PipelineWrite`."""

    PREFIX = f"{PIPELINES}sink_"

    def streamWriter(self, schema: StructType, overwrite: bool) -> PipelineWriter:  # noqa: FBT001, N802 - Spark's
        del schema, overwrite  # as `PipelineQuery.start` has it
        return PipelineWriter(cast("PipelineWrite", loaded(self.PICKLED)), driver_id_of(self.options))


class PipelineWriter(StreamWriter[Any]):
    """A streaming query's sink, with the pipeline's transform before it."""

    def __init__(self, write: PipelineWrite, driver_id: str | None = None) -> None:
        super().__init__(write.sink, write.schema.names, write.offsets, driver_id)
        self._pickled = pickled((write.transformed, write.schema))  # Spark pickles the writer, and by another way

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        transformed, schema = loaded(self._pickled)
        for batch in super()._rows(batches):
            if batch.num_rows:
                yield from (rows for rows in transformed(converted(batch, schema)) if rows.num_rows)


_sinks: dict[str, type[PipelineSinkFormat]] = {}


def started_sink(name: str) -> type[PipelineSinkFormat]:
    """The sink's format of a pipeline that this process starts, by the format's name. Raises KeyError for another."""
    return _sinks[name]
