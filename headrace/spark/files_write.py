"""The options of the file sink in Spark, and what they mean as a `FileSink`.

Names are those of Spark's own where it has the same; case is ignored. An option no one knows is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import pyarrow as pa
import pyspark
from pyspark.sql.types import StructType

from headrace.connectors.base.jobs import check_job
from headrace.connectors.base.nested import cast_nested
from headrace.connectors.base.sink import Attempt
from headrace.connectors.files.formats import FileFormat
from headrace.connectors.files.sink import FileSink, FileTransaction
from headrace.connectors.files.store import as_given
from headrace.enumerator.errors import UsageError
from headrace.runners.spark.column_types import has_nanoseconds, in_microseconds
from headrace.spark.options import REPEATED_WRITE, Option, OptionTable, SinkWrite, choice, json_object, sink_write, text


class SparkFormat(StrEnum):
    """File formats, as Spark calls them."""

    PARQUET = "parquet"
    JSON = "json"


_ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"
_FORMATS = {SparkFormat.PARQUET: FileFormat.PARQUET, SparkFormat.JSON: FileFormat.JSON_LINES}


OPTIONS = OptionTable(
    (
        Option(
            "path", text, "the folder, as in `save(path)` and `start(path)`: a local one, or the URL of an fsspec filesystem"
        ),
        Option("fileFormat", choice(SparkFormat), "`parquet` (default) or `json`, one object in each line"),
        Option("compression", text, "compression of Parquet: snappy (default), zstd, gzip, none, ..."),
        Option(
            "storageOptions",
            json_object('{"key": "...", "secret": "..."}'),
            "a JSON object of fsspec's options for a filesystem that is not local",
        ),
        *REPEATED_WRITE,
    ),
    required=("path",),
)


def file_write(options: Mapping[str, str]) -> SinkWrite[FileSink]:
    """Raises UsageError naming the option that is missing, unknown or wrong. Touches nothing; no message shows a secret."""
    given, _ = OPTIONS.parse(options)
    file_format, store = _FORMATS[given.get("fileFormat", SparkFormat.PARQUET)], given.get("storageOptions", {})
    return sink_write(FileSink(as_given(given["path"]), file_format, given.get("compression"), storage_options=store), given)


def with_columns(write: SinkWrite[FileSink], schema: StructType) -> SinkWrite[FileSink]:
    """The write of a frame with this schema: Spark reads its files in the same types."""
    sink = write.sink
    if sink.format is not FileFormat.PARQUET:
        return write
    store = sink.storage_options
    precise = frozenset(column.name for column in schema if has_nanoseconds(column.dataType))
    typed = _ParquetSink(
        sink.path, sink.format, sink.compression, storage_options=store, columns=schema.json(), precise=precise
    )
    return replace(write, sink=typed)


@dataclass(frozen=True)
class _ParquetSink(FileSink):
    """Of a frame. `columns`: its schema as JSON, which tasks may not be able to read: a user's types are not there, maybe.

    `precise`: the columns whose times have more digits than microseconds.
    """

    columns: str = field(default="", repr=False)
    precise: frozenset[str] = field(default=frozenset(), repr=False)

    def begin(self, attempt: Attempt) -> FileTransaction:
        check_job(attempt.job)
        return _ParquetTransaction(self, attempt)


class _ParquetTransaction(FileTransaction):
    """States the frame's types where Spark's own writer does: Parquet has no intervals, precisions of times and collations."""

    def __init__(self, sink: _ParquetSink, attempt: Attempt) -> None:
        super().__init__(sink, attempt)
        self._metadata = {_ROW_METADATA: sink.columns, "org.apache.spark.version": pyspark.__version__}
        self._precise = sink.precise

    def write(self, batch: pa.RecordBatch) -> None:
        """Times are in microseconds, where the frame has no more: Spark has them in nanoseconds, and would read these."""
        fields = [each if each.name in self._precise else each.with_type(in_microseconds(each.type)) for each in batch.schema]
        schema = pa.schema(fields, self._metadata)
        super().write(pa.RecordBatch.from_arrays(list(map(_cast, batch.columns, fields)), schema=schema))


def _cast(column: pa.Array, to: pa.Field) -> pa.Array:
    if column.type == to.type:
        return column
    try:
        return cast_nested(column, to.type)
    except pa.ArrowInvalid as error:
        raise UsageError(f"column {to.name!r} has a value that its type does not have: {error}") from error
