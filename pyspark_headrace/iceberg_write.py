"""The options of the Iceberg sink in Spark, and what they mean as an `IcebergSink`; unknown ones are refused."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.connectors.tables.iceberg import IcebergSink
from pyspark_headrace.options import (
    PARTITION_BY,
    REPEATED_WRITE,
    Option,
    OptionTable,
    SinkWrite,
    integer,
    json_texts,
    sink_write,
    text,
)

__all__ = ["OPTIONS", "iceberg_write"]


OPTIONS = OptionTable(
    "the sink",
    "the sink",
    (
        Option("table", text, "`namespace.table`"),
        Option(
            "catalog",
            json_texts('{"type": "rest", "uri": "..."}'),
            "a JSON object of PyIceberg's properties of the catalog, such as `name`, `type`, `uri`",
        ),
        PARTITION_BY,
        Option("targetFileSize", integer(1), "bytes after which a file ends (default 134217728, 128 MiB)"),
        Option("compression", text, "compression of Parquet: zstd (default), snappy, gzip, lz4, brotli or none"),
        *REPEATED_WRITE,
    ),
)
"""Every option of the sink."""


def iceberg_write(options: Mapping[str, str]) -> tuple[SinkWrite[IcebergSink], tuple[str, ...]]:
    """How to write, and what to partition a new table by.

    Raises UsageError naming the option that is missing, unknown or wrong. Contacts nobody; no message shows a secret.
    """
    given, _ = OPTIONS.parse(options)
    OPTIONS.required(given, "table", "catalog")
    names = {"targetFileSize": "target_file_bytes", "compression": "compression"}
    more = {names[name]: value for name, value in given.items() if name in names}
    return sink_write(IcebergSink(given["table"], given["catalog"], **more), given), given.get("partitionBy", ())
