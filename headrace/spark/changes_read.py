"""The options of PostgreSQL's changes in Spark, and what they mean as a `ChangesSource`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from headrace.connectors.postgresql.source import ChangesSource
from headrace.enumerator.errors import UsageError
from headrace.runners.spark.bounded import BoundedReader, pickled
from headrace.runners.spark.column_types import held_schema, spark_types
from headrace.runners.spark.pipeline import stream_reader
from headrace.spark.any_stream import SPLIT_LIMITS, stream_read
from headrace.spark.options import Option, OptionTable, checkpoint_location, integer, names, one_of, text, verbatim

OPTIONS = OptionTable(
    (
        Option("url", verbatim, "`postgresql://user@host/database`, with libpq's parameters", "url"),
        Option("tables", names, "as `public.orders, public.lines`; `*` is any text", "tables"),
        Option("publication", text, "the publication that has them", "publication"),
        Option("slot", text, "the name of the query's own slot, which starts with `headrace_`", "slot"),
        Option(
            "snapshot",
            one_of("initial", "never", "only"),
            "`initial` (default) reads the rows first, `never` reads changes alone, `only` nothing else, as a frame does",
            "snapshot",
        ),
        Option("chunkRows", integer(1), "rows of the snapshot that a task holds in memory. Default 50000", "chunk_rows"),
        Option("metadata", names, "columns about the change. Default: `_op, _lsn`, and of several tables `_table`", "metadata"),
        Option("outOfRange", one_of("error", "null"), "of a value without a place in Spark. Default `error`", "out_of_range"),
        Option("maxTransactionBytes", integer(1), "a larger transaction is in parts. Default 64 MiB", "max_transaction_bytes"),
        *SPLIT_LIMITS,
    ),
    "the source of changes",
    "the source of changes",
    required=("url", "tables", "publication", "slot"),
)


def changes_schema(options: Mapping[str, str]) -> tuple[StructType, None]:
    """The columns, as the tables are now. Asks the server."""
    return spark_types(_source(OPTIONS.parse(options)[0])), None


def changes_reader(options: Mapping[str, str], schema: StructType, inferred: str | None) -> BoundedReader:
    """A frame of the tables' rows. Raises UsageError naming the option that is missing, unknown or wrong."""
    given, _ = OPTIONS.parse(options)
    if given.get("snapshot") != "only":
        raise UsageError("changes have no end: a frame, unless it is a stream, needs the option snapshot=only")
    source = _source(given)
    _check_schema(source, schema)
    return BoundedReader(pickled(source), held_schema(schema))


def changes_stream_reader(options: Mapping[str, str], schema: StructType, inferred: str | None) -> DataSourceStreamReader:
    """A stream of the tables' rows, then their changes. Raises as `changes_reader`."""
    given, _ = OPTIONS.parse(options)
    source = _source(given)
    _check_schema(source, schema)
    checkpoint = checkpoint_location(options)
    if checkpoint is None:
        raise UsageError(
            "option 'checkpointLocation' is missing: the same as that of writeStream, where tasks keep what they read"
        )
    known = {option.name.lower() for option in SPLIT_LIMITS}
    limits = {name: value for name, value in options.items() if name.lower() in known}
    return stream_reader(stream_read(source, checkpoint, limits), schema)


def _source(given: Mapping[str, Any]) -> ChangesSource:
    return ChangesSource(**OPTIONS.arguments(given))


def _check_schema(source: ChangesSource, schema: StructType) -> None:
    found = spark_types(source)
    if schema != found:
        raise UsageError(f"no schema can be given, as the tables have {found.simpleString()}, and not {schema.simpleString()}")
