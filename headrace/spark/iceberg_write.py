"""The options of the Iceberg sink in Spark, and what they mean as an `IcebergSink`; unknown ones are refused."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from headrace.connectors.tables.iceberg import IcebergSink
from headrace.spark.options import Option, OptionTable, SinkWrite, json_texts, sink_write, text
from headrace.spark.table_options import table_arguments, table_options

OPTIONS = OptionTable(
    table_options(
        Option("table", text, "`namespace.table`"),
        (
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
"""Every option of the sink."""


def iceberg_write(options: Mapping[str, str], schema: StructType) -> tuple[SinkWrite[IcebergSink], tuple[str, ...]]:
    """The write of such a frame, and what to partition a new table by. Raises UsageError naming the option at fault. No I/O."""
    given, _ = OPTIONS.parse(options)
    sink = IcebergSink(given["table"], given["catalog"], **table_arguments(given, schema))
    return sink_write(sink, given), given.get("partitionBy", ())
