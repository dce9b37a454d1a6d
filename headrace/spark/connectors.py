"""The connectors of `format("headrace")`, by the option `connector`, which is named as in Flink SQL.

Spark finds one data source in a package, so they share one. Only the connector that is asked for is imported.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from headrace.enumerator.errors import UsageError
from headrace.runners.spark.offset_log import OffsetLog
from headrace.runners.spark.supervision.dry_run_source import DRY_RUN, ROWS, is_dry_run
from headrace.spark.arrow_types import arrow_schema
from headrace.spark.options import SinkWrite, checkpoint_location

if TYPE_CHECKING:
    from headrace.connectors.sql.table_sink import TableSink
    from headrace.connectors.tables.delta import DeltaSink
    from headrace.connectors.tables.iceberg import IcebergSink

OPTION = "connector"
KAFKA, FILES, CHANGES = "kafka", "files", "postgresql-changes"

Planned = tuple[SinkWrite[Any], list[str]]  # how to write, and which of a frame's columns, in its order

_IN_PARTS = ("variant", "geometry", "geography")
"""Types whose values Spark gives as structs of what it keeps them in, which no reader takes for such a value."""

_NOT_IN_PYTHON = ("yearmonthinterval",)
"""Types that Spark sends to no task."""


def _arrow(schema: StructType) -> pa.Schema:
    """The frame's columns, as its rows have them. Raises UsageError naming one of a type that these do not have."""
    for field in schema:
        if (kind := _within(field.dataType, _IN_PARTS)) is not None:
            raise UsageError(
                f"column {field.name!r}: {kind} would be written as Spark keeps it: make text or bytes of it first"
            )
    return arrow_schema(schema)


def _within(kind: DataType, names: tuple[str, ...]) -> str | None:
    """The name of one of these types that is in this one, or is this one."""
    match kind:
        case StructType():
            inner = [field.dataType for field in kind]
        case ArrayType():
            inner = [kind.elementType]
        case MapType():
            inner = [kind.keyType, kind.valueType]
        case _:
            return kind.typeName() if kind.typeName() in names else None
    return next((found for each in inner if (found := _within(each, names)) is not None), None)


@contextmanager
def _brought_by(extra: str) -> Iterator[None]:
    """Around the import of a connector: where a library is missing, the error states which extra of headrace brings it."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{error.name or error} is not installed; run: pip install 'headrace[{extra}]'") from error


def _kafka(options: Mapping[str, str], schema: StructType) -> Planned:
    from headrace.spark.kafka_write import kafka_columns, kafka_write

    arrow_schema(StructType([each for each in schema if _within(each.dataType, _NOT_IN_PYTHON)]))  # as a task gets all columns
    write = kafka_write(options, schema)
    return write, kafka_columns(schema, write.sink)


def _sql(options: Mapping[str, str], schema: StructType) -> Planned:
    with _brought_by("sql"):
        from headrace.spark.sql_write import sql_write
    write = sql_write(options)
    _check_rows(write.sink, _arrow(schema))
    return write, schema.names


@functools.lru_cache(maxsize=64)
def _check_rows(sink: TableSink, schema: pa.Schema) -> None:
    """Asked once in this process, and not for every batch of a query: tasks find out for themselves, too."""
    sink.check_rows(schema)


def _files(options: Mapping[str, str], schema: StructType) -> Planned:
    from headrace.spark.files_write import file_write, with_columns

    _arrow(schema)
    return with_columns(file_write(options), schema), schema.names


def _table(format_name: str, options: Mapping[str, str], schema: StructType) -> Planned:
    from headrace.spark import table_write

    write: SinkWrite[Any]
    rows = _arrow(schema)
    with _brought_by(format_name):
        plan = table_write.delta_write if format_name == "delta" else table_write.iceberg_write
        write, partition_by = plan(options, schema)
    if not write.sink.log().exists():
        _make_table.cache_clear()  # what was asked before was of a table that is gone
    _make_table(write.sink, rows, partition_by)
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


class Reads(NamedTuple):
    """How a connector is read. `schema`: the columns of a user who gave none, and what the readers need to know of them."""

    schema: Callable[[Mapping[str, str]], tuple[StructType, str | None]]
    reader: Callable[[Mapping[str, str], StructType, str | None], DataSourceReader]
    stream_reader: Callable[[Mapping[str, str], StructType, str | None], DataSourceStreamReader]


def _kafka_reads() -> Reads:
    from headrace.runners.spark.readers import BatchReader, StreamReader, default_schema
    from headrace.spark.kafka_read import Mode, any_read, kafka_read

    return Reads(
        lambda options: (default_schema(any_read(options)), None),
        lambda options, schema, _: BatchReader(kafka_read(options, Mode.BATCH, schema), schema),
        lambda options, schema, _: StreamReader(kafka_read(options, Mode.STREAM, schema), schema),
    )


def _files_reads() -> Reads:
    from headrace.spark.files_read import file_reader, file_schema, file_stream_reader

    return Reads(file_schema, file_reader, file_stream_reader)


def _changes_reads() -> Reads:
    with _brought_by("sql"):
        from headrace.spark.changes_read import changes_reader, changes_schema, changes_stream_reader
    return Reads(changes_schema, changes_reader, changes_stream_reader)


_READS: Mapping[str, Callable[[], Reads]] = {KAFKA: _kafka_reads, FILES: _files_reads, CHANGES: _changes_reads}


def reading(options: Mapping[str, str]) -> tuple[Reads, dict[str, str]]:
    """How the connector is read, and its options. Raises UsageError for one that can only be written."""
    name, others = _chosen(options)
    if name not in _READS:
        readable = ", ".join(f"'{each}'" for each in _READS)
        raise UsageError(f"connector '{name}' cannot be read, only written; these can be read: {readable}")
    return _READS[name](), _DRY_RUNS[name](_without_dry_run(others)) if is_dry_run(others) else others


_LEFT_OUT_OF_DRY_RUNS = re.compile(
    r"starting.*|startfromsavepoint|(max|min)offsetspertrigger|maxtriggerdelay|commitoffsetstogroup|jvmcheckpoint"
)


def _dry_run(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a read that takes a few of the first records, and shows no group of it."""
    left = {name: value for name, value in options.items() if not _LEFT_OUT_OF_DRY_RUNS.fullmatch(name.lower())}
    return left | {"startingoffsets": "earliest", "maxoffsetspertrigger": str(ROWS)}


def _dry_run_of_files(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a read of one file at a time, which stays where it is."""
    left = _without(options, "cleansource", "sourcearchivedir", "startfromsavepoint", "maxfilespertrigger")
    return left | {"maxfilespertrigger": "1"}


def _dry_run_of_changes(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a read of the first rows, which makes no slot."""
    left = _without(options, "snapshot", "chunkrows", "maxsplitspertrigger")
    return left | {"snapshot": "only", "chunkrows": str(ROWS), "maxsplitspertrigger": "1"}


_DRY_RUNS: Mapping[str, Callable[[Mapping[str, str]], dict[str, str]]] = {
    KAFKA: _dry_run,
    FILES: _dry_run_of_files,
    CHANGES: _dry_run_of_changes,
}


def _without_dry_run(options: Mapping[str, str]) -> dict[str, str]:
    return _without(options, DRY_RUN.lower())


def _without(options: Mapping[str, str], *names: str) -> dict[str, str]:
    """`names` in lower case."""
    return {name: value for name, value in options.items() if name.lower() not in names}


def planned_batch_write(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Planned:
    """Raises UsageError for options and columns that cannot be honoured, and for `.mode("overwrite")`. May contact the peer."""
    name, others = _chosen(options)
    if overwrite:
        shown = "Kafka" if name == KAFKA else f"connector '{name}'"
        raise UsageError(f'Save mode Overwrite not allowed for {shown}. Allowed save mode is .mode("append")')
    return _writing(name)(others, schema)


def planned_stream_write(options: Mapping[str, str], schema: StructType, *, complete: bool) -> Planned:
    """Raises UsageError for options and columns that cannot be honoured, and for `.outputMode("complete")` but to Kafka.

    Kafka, as with Spark's own sink, is given every batch's whole result. May contact the peer.
    """
    name, others = _chosen(options)
    if complete and name != KAFKA:
        raise UsageError(f"output mode complete not allowed for connector '{name}': nothing that was written is ever removed")
    return _writing(name)(_without_dry_run(others), schema)


def _writing(name: str) -> Callable[[Mapping[str, str], StructType], Planned]:
    if name not in _WRITES:
        raise UsageError(f"connector '{name}' cannot be written, only read; these can be written: {', '.join(_WRITES)}")
    return _WRITES[name]


def offset_log(options: Mapping[str, str]) -> OffsetLog | None:
    """The offset log of the query that writes, where an option of the write names its checkpoint."""
    location = checkpoint_location(options)
    return OffsetLog(location) if location else None


def _chosen(options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    if any(f"option.{name}" in options for name in options):
        raise UsageError(
            "this would be a table of Spark's catalog, which gives a Python data source its options where the table is made, "
            "and not where it is read. Make a view: CREATE TEMPORARY VIEW name USING headrace OPTIONS (...)"
        )
    if not options.keys() - {"path"}:
        raise UsageError(
            f"no options have reached headrace: it needs '{OPTION}' (default {KAFKA!r}), and those of that connector. Tables "
            "of Spark's catalog (CREATE TABLE ... AS SELECT, saveAsTable, writeTo) give none: use a temporary view, and save()"
        )
    others = _without(options, OPTION)
    name = next((value.strip().lower() for written, value in options.items() if written.lower() == OPTION), KAFKA)
    known = {**_WRITES, **_READS}
    if name not in known:
        raise UsageError(f"option '{OPTION}' must be one of {', '.join(known)}, not {name!r}")
    return name, others
