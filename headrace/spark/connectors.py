"""The connectors of `format("headrace")`, by the option `connector`, which is named as in Flink SQL.

Spark finds one data source in a package, so they share one. Only the connector that is asked for is imported.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.enumerator.errors import UsageError
from headrace.runners.spark.offset_log import OffsetLog
from headrace.runners.spark.supervision.dry_run_source import DRY_RUN, ROWS, is_dry_run
from headrace.spark.options import SinkWrite

if TYPE_CHECKING:
    from headrace.connectors.sql.table_sink import TableSink
    from headrace.connectors.tables.delta import DeltaSink
    from headrace.connectors.tables.iceberg import IcebergSink

OPTION = "connector"
KAFKA, FILES = "kafka", "files"

Planned = tuple[SinkWrite[Any], list[str]]  # how to write, and which of a frame's columns, in its order


@contextmanager
def _brought_by(extra: str) -> Iterator[None]:
    """Around the import of a connector: where a library is missing, the error states which extra of headrace brings it."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{error.name or error} is not installed; run: pip install 'headrace[{extra}]'") from error


def _kafka(options: Mapping[str, str], schema: StructType) -> Planned:
    from headrace.spark.kafka_write import kafka_columns, kafka_write

    write = kafka_write(options, schema)
    return write, kafka_columns(schema, write.sink)


def _sql(options: Mapping[str, str], schema: StructType) -> Planned:
    with _brought_by("sql"):
        from headrace.spark.sql_write import sql_write
    write = sql_write(options)
    _check_rows(write.sink, to_arrow_schema(schema, timezone="UTC"))
    return write, schema.names


@functools.lru_cache(maxsize=64)
def _check_rows(sink: TableSink, schema: pa.Schema) -> None:
    """Asked once in this process, and not for every batch of a query: tasks find out for themselves, too."""
    sink.check_rows(schema)


def _files(options: Mapping[str, str], schema: StructType) -> Planned:
    from headrace.spark.files_write import file_write

    return file_write(options), schema.names


def _table(format_name: str, options: Mapping[str, str], schema: StructType) -> Planned:
    from headrace.spark import table_write

    write: SinkWrite[Any]
    with _brought_by(format_name):
        plan = table_write.delta_write if format_name == "delta" else table_write.iceberg_write
        write, partition_by = plan(options, schema)
    if not write.sink.log().exists():
        _make_table.cache_clear()  # what was asked before was of a table that is gone
    _make_table(write.sink, to_arrow_schema(schema, timezone="UTC"), partition_by)
    return write, schema.names


@functools.lru_cache(maxsize=64)
def _make_table(sink: DeltaSink | IcebergSink, schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
    """Asked once in this process, like `_check_rows`. A new table takes nulls everywhere, whatever this frame has."""
    sink.create_table(pa.schema([field.with_nullable(nullable=True) for field in schema]), partition_by)
    sink.check_rows(schema)


_WRITES: Mapping[str, Callable[[Mapping[str, str], StructType], Planned]] = {
    KAFKA: _kafka,
    "sql": _sql,
    FILES: _files,
    "delta": functools.partial(_table, "delta"),
    "iceberg": functools.partial(_table, "iceberg"),
}


def reading(options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The connector of a read, and its options. Raises UsageError for one that can only be written."""
    name, others = _chosen(options)
    if name not in (KAFKA, FILES):
        raise UsageError(f"connector '{name}' cannot be read, only written; '{KAFKA}' and '{FILES}' can be read")
    if not is_dry_run(others):
        return name, others
    return name, _DRY_RUNS[name](_without_dry_run(others))


_LEFT_OUT_OF_DRY_RUNS = re.compile(
    r"starting.*|startfromsavepoint|(max|min)offsetspertrigger|maxtriggerdelay|commitoffsetstogroup|jvmcheckpoint"
)


def _dry_run(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a read that takes a few of the first records, and shows no group of it."""
    left = {name: value for name, value in options.items() if not _LEFT_OUT_OF_DRY_RUNS.fullmatch(name.lower())}
    return left | {"startingoffsets": "earliest", "maxoffsetspertrigger": str(ROWS)}


def _dry_run_of_files(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a read of one file at a time, which stays where it is."""
    changed = ("cleansource", "sourcearchivedir", "startfromsavepoint", "maxfilespertrigger")
    return {name: value for name, value in options.items() if name.lower() not in changed} | {"maxfilespertrigger": "1"}


_DRY_RUNS: Mapping[str, Callable[[Mapping[str, str]], dict[str, str]]] = {KAFKA: _dry_run, FILES: _dry_run_of_files}


def _without_dry_run(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name.lower() != DRY_RUN.lower()}


def planned_batch_write(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Planned:
    """Raises UsageError for options and columns that cannot be honoured, and for `.mode("overwrite")`. May contact the peer."""
    name, others = _chosen(options)
    if overwrite:
        shown = "Kafka" if name == KAFKA else f"connector '{name}'"
        raise UsageError(f'Save mode Overwrite not allowed for {shown}. Allowed save mode is .mode("append")')
    return _WRITES[name](others, schema)


def planned_stream_write(options: Mapping[str, str], schema: StructType, *, complete: bool) -> Planned:
    """Raises UsageError for options and columns that cannot be honoured, and for `.outputMode("complete")` but to Kafka.

    Kafka, as with Spark's own sink, is given every batch's whole result. May contact the peer.
    """
    name, others = _chosen(options)
    if complete and name != KAFKA:
        raise UsageError(f"output mode complete not allowed for connector '{name}': nothing that was written is ever removed")
    return _WRITES[name](_without_dry_run(others), schema)


def offset_log(options: Mapping[str, str]) -> OffsetLog | None:
    """The offset log of the query that writes, where an option of the write names its checkpoint."""
    location = next((value for name, value in options.items() if name.lower() == "checkpointlocation"), None)
    return OffsetLog(location) if location else None


def _chosen(options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    if any(f"option.{name}" in options for name in options):
        raise UsageError(
            "this would be a table of Spark's catalog, which gives a Python data source its options where the table is made, "
            "and not where it is read. Make a view: CREATE TEMPORARY VIEW name USING headrace OPTIONS (...)"
        )
    others = {name: value for name, value in options.items() if name.lower() != OPTION}
    name = next((value.strip().lower() for written, value in options.items() if written.lower() == OPTION), KAFKA)
    if name not in _WRITES:
        raise UsageError(f"option '{OPTION}' must be one of {', '.join(_WRITES)}, not {name!r}")
    return name, others
