"""The options of the file sink in Spark, and what they mean as a `FileSink`.

Names are those of Spark's own where it has the same; case is ignored. An option nobody knows is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from headrace.connectors.files.formats import FileFormat
from headrace.connectors.files.sink import FileSink
from headrace.enumerator.errors import UsageError
from pyspark_headrace.options import REPEATED_WRITE, SinkWrite, chosen, given_options, sink_write

__all__ = ["SINK_OPTIONS", "SparkFormat", "file_write"]

SINK_OPTIONS: Mapping[str, str] = {
    "path": "the folder, as in `save(path)` and `start(path)`: a local one, or the URL of an fsspec filesystem",
    "fileFormat": "`parquet` (default) or `json`, one object in each line",
    "compression": "compression of Parquet: snappy (default), zstd, gzip, none, ...",
    "storageOptions": "a JSON object of fsspec's options for a filesystem that is not local",
    **REPEATED_WRITE,
}


class SparkFormat(StrEnum):
    """File formats, as Spark calls them."""

    PARQUET = "parquet"
    JSON = "json"


_FORMATS = {SparkFormat.PARQUET: FileFormat.PARQUET, SparkFormat.JSON: FileFormat.JSON_LINES}


def file_write(options: Mapping[str, str]) -> SinkWrite[FileSink]:
    """Raises UsageError naming the option that is missing, unknown or wrong. Touches nothing; no message shows a secret."""
    given = given_options(options, SINK_OPTIONS)
    if "path" not in given:
        raise UsageError(f"option 'path' is missing: {SINK_OPTIONS['path']}")
    file_format = _FORMATS[chosen(given, "fileFormat", SparkFormat.PARQUET)]
    storage_options = _storage_options(given.get("storageOptions", "{}"))
    sink = FileSink(given["path"], file_format, given.get("compression"), storage_options=storage_options)
    return sink_write(sink, given)


def _storage_options(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        # without the text, or the cause, which has it
        raise UsageError('option \'storageOptions\' must be JSON like {"key": "...", "secret": "..."}')
    return value
