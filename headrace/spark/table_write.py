"""The options of the Delta and Iceberg sinks in Spark, and what they mean as a `DeltaSink` or an `IcebergSink`.

Names are those of Spark's own where it has the same; case is ignored. An option no one knows is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from headrace.connectors.files.store import as_given
from headrace.connectors.tables.changes import Changes
from headrace.enumerator.errors import UsageError
from headrace.spark.options import (
    CHANGE_TYPE,
    REPEATED_WRITE,
    Option,
    OptionTable,
    SinkWrite,
    boolean,
    integer,
    json_texts,
    sink_write,
    text,
)

if TYPE_CHECKING:
    from headrace.connectors.tables.delta import DeltaSink
    from headrace.connectors.tables.iceberg import IcebergSink

_DEFAULT_SEQUENCE = "offset"


def _parts(option: Option, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in re.split(r",(?![^(]*\))", text(option, value)))


def _options(place: Option, store: Option, partitions: str, compression: str) -> tuple[Option, ...]:
    """All of a sink: where the table is, how its store or catalog is reached, and what every format has."""
    return (
        place,
        store,
        Option(
            "partitionBy",
            _parts,
            f"{partitions} to partition a new table by, separated by commas; a table that exists stays as it is. "
            "`writeStream.partitionBy(...)` has no effect: Spark does not hand it on",
        ),
        Option(
            "mergeSchema",
            boolean,
            "true: columns of the frame that the table does not have are added to it, before the first rows are written; "
            "false (default): such a frame is refused",
            "merge_schema",
        ),
        Option("upsertKeys", _parts, "columns by which rows take the place of others; without it rows are appended"),
        Option(
            "sequenceBy",
            _parts,
            "columns that say which change of a key is the later one within a batch (default `offset`, if the frame has it); "
            "needs upsertKeys",
        ),
        CHANGE_TYPE,
        Option(
            "targetFileSize",
            integer(1),
            "bytes after which a file ends (default 134217728, 128 MiB)",
            argument="target_file_bytes",
        ),
        Option("compression", text, compression, "compression"),
        *REPEATED_WRITE,
    )


DELTA_OPTIONS = OptionTable(
    _options(
        Option(
            "path",
            text,
            "the table, as in `save(path)` and `start(path)`: a local path, or an address like `s3://bucket/table`",
        ),
        Option(
            "storageOptions",
            json_texts('{"AWS_REGION": "..."}'),
            "a JSON object that is passed to `deltalake` for the store, such as keys",
        ),
        "columns",
        "compression of Parquet: snappy (default), zstd, gzip, none, ...",
    ),
    required=("path",),
)
ICEBERG_OPTIONS = OptionTable(
    _options(
        Option("table", text, "`namespace.table`"),
        Option(
            "catalog",
            json_texts('{"type": "rest", "uri": "..."}'),
            "a JSON object of PyIceberg's properties of the catalog, such as `name`, `type`, `uri`",
        ),
        "columns, or `bucket(n, column)`, `truncate(n, column)`, `year(column)`, `month(column)`, `day(column)`, "
        "`hour(column)`, `void(column)`,",
        "compression of Parquet: zstd (default), snappy, gzip, lz4, brotli or none",
    ),
    required=("table", "catalog"),
)


def delta_write(options: Mapping[str, str], schema: StructType) -> tuple[SinkWrite[DeltaSink], tuple[str, ...]]:
    """The write of such a frame, and what to partition a new table by. Raises UsageError naming the option at fault. No I/O."""
    from headrace.connectors.tables.delta import DeltaSink

    given, _ = DELTA_OPTIONS.parse(options)
    arguments = _arguments(DELTA_OPTIONS, given, schema)
    sink = DeltaSink(as_given(given["path"]), storage_options=given.get("storageOptions", {}), **arguments)
    return sink_write(sink, given), given.get("partitionBy", ())


def iceberg_write(options: Mapping[str, str], schema: StructType) -> tuple[SinkWrite[IcebergSink], tuple[str, ...]]:
    """As `delta_write`."""
    from headrace.connectors.tables.iceberg import IcebergSink

    given, _ = ICEBERG_OPTIONS.parse(options)
    sink = IcebergSink(given["table"], given["catalog"], **_arguments(ICEBERG_OPTIONS, given, schema))
    return sink_write(sink, given), given.get("partitionBy", ())


def _arguments(table: OptionTable, given: Mapping[str, Any], schema: StructType) -> dict[str, Any]:
    """The arguments of both formats' sinks, for a frame of this schema. Raises UsageError for options that need others."""
    found = table.arguments(given)
    if "upsertKeys" in given:
        default = (_DEFAULT_SEQUENCE,) if _DEFAULT_SEQUENCE in schema.names else ()
        sequence = given.get("sequenceBy", default)
        return {**found, "changes": Changes(given["upsertKeys"], sequence, given.get("changeTypeColumn"))}
    for name in ("sequenceBy", "changeTypeColumn"):
        if name in given:
            raise UsageError(f"option '{name}' is about changes by key: it needs upsertKeys")
    return found
