"""The options of the Delta sink in Spark, and what they mean as a `DeltaSink`.

Names are those of Spark's own where it has the same; case is ignored. An option nobody knows is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.connectors.tables.delta import DeltaSink
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

__all__ = ["OPTIONS", "delta_write"]


OPTIONS = OptionTable(
    "the sink",
    "the sink",
    (
        Option(
            "path",
            text,
            "the table, as in `save(path)` and `start(path)`: a local path, or an address like `s3://bucket/table`",
        ),
        PARTITION_BY,
        Option("targetFileSize", integer(1), "bytes after which a file ends (default 134217728, 128 MiB)"),
        Option("compression", text, "compression of Parquet: snappy (default), zstd, gzip, none, ..."),
        Option(
            "storageOptions",
            json_texts('{"AWS_REGION": "..."}'),
            "a JSON object of what `deltalake` is told about the store, such as keys",
        ),
        *REPEATED_WRITE,
    ),
)
"""Every option of the sink."""


def delta_write(options: Mapping[str, str]) -> tuple[SinkWrite[DeltaSink], tuple[str, ...]]:
    """How to write, and what to partition a new table by.

    Raises UsageError naming the option that is missing, unknown or wrong. Contacts nobody; no message shows a secret.
    """
    given, _ = OPTIONS.parse(options)
    OPTIONS.required(given, "path")
    names = {"targetFileSize": "target_file_bytes", "compression": "compression", "storageOptions": "storage_options"}
    sink = DeltaSink(given["path"], **{names[name]: value for name, value in given.items() if name in names})
    return sink_write(sink, given), given.get("partitionBy", ())
