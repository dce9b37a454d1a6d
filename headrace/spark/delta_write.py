"""The options of the Delta sink in Spark, and what they mean as a `DeltaSink`.

Names are those of Spark's own where it has the same; case is ignored. An option no one knows is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from headrace.connectors.tables.delta import DeltaSink
from headrace.spark.options import Option, OptionTable, SinkWrite, json_texts, sink_write, text
from headrace.spark.table_options import table_arguments, table_options

OPTIONS = OptionTable(
    table_options(
        Option(
            "path",
            text,
            "the table, as in `save(path)` and `start(path)`: a local path, or an address like `s3://bucket/table`",
        ),
        (
            "storageOptions",
            json_texts('{"AWS_REGION": "..."}'),
            "a JSON object that is passed to `deltalake` for the store, such as keys",
        ),
        "columns",
        "compression of Parquet: snappy (default), zstd, gzip, none, ...",
    ),
    required=("path",),
)
"""Every option of the sink."""


def delta_write(options: Mapping[str, str], schema: StructType) -> tuple[SinkWrite[DeltaSink], tuple[str, ...]]:
    """The write of such a frame, and what to partition a new table by. Raises UsageError naming the option at fault. No I/O."""
    given, _ = OPTIONS.parse(options)
    store = given.get("storageOptions", {})
    sink = DeltaSink(given["path"], storage_options=store, **table_arguments(given, schema))
    return sink_write(sink, given), given.get("partitionBy", ())
