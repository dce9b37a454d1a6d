"""The options of the file sink in Spark, and what they mean as a `FileSink`.

Names are those of Spark's own where it has the same; case is ignored. An option no one knows is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from headrace.connectors.files.formats import FileFormat
from headrace.connectors.files.sink import FileSink
from headrace.connectors.files.store import as_given
from headrace.spark.options import REPEATED_WRITE, Option, OptionTable, SinkWrite, choice, json_object, sink_write, text


class SparkFormat(StrEnum):
    """File formats, as Spark calls them."""

    PARQUET = "parquet"
    JSON = "json"


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
