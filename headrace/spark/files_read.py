"""The options of the file source in Spark, and what they mean as a `FileSource`.

Names are those of Spark's own file source where it has the same; case is ignored. An option no one knows is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.connectors.files.read.columns import check_own, data_columns
from headrace.connectors.files.read.globs import name_glob
from headrace.connectors.files.read.source import FileSource, FormatName
from headrace.connectors.files.store import as_given
from headrace.enumerator.errors import UsageError
from headrace.runners.restarts import duration_s
from headrace.runners.spark.bounded import BoundedReader, pickled
from headrace.runners.spark.column_types import held_schema, spark_types
from headrace.runners.spark.split_readers import SplitStreamReader
from headrace.runners.spark.split_stream import SplitRead
from headrace.spark.arrow_types import arrow_schema
from headrace.spark.options import Option, OptionTable, boolean, check_for_batch, choice, integer, json_object, one_of, text
from headrace.spark.time_zone import session_time_zone, zone

_STREAM_ONLY = ("discoveryInterval", "maxFilesPerTrigger", "maxBytesPerTrigger", "cleanSource", "sourceArchiveDir")


class SparkReadFormat(StrEnum):
    """File formats, as Spark calls them, and Arrow's."""

    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"
    TEXT = "text"
    AVRO = "avro"
    ARROW = "arrow"


def _duration(option: Option, value: str) -> float:
    return duration_s(f"option '{option.name}'", value)


def _name_glob(option: Option, value: str) -> str:
    glob = text(option, value)
    name_glob(f"option '{option.name}'", glob)
    return glob


OPTIONS = OptionTable(
    (
        Option("path", text, "the folder or file, as in `load(path)`: a local one, or the URL of an fsspec filesystem"),
        Option("fileFormat", choice(SparkReadFormat), "`parquet` (default), `json` (lines), `csv`, `text`, `avro` or `arrow`"),
        Option("pathGlobFilter", _name_glob, "only files with such names, as `*.csv`", "pattern"),
        Option("order", one_of("time", "name"), "how new files are found: by their times (default), or their names", "order"),
        Option(
            "maxFileAge",
            _duration,
            "how far behind the newest file an older one may appear; files that are older are forgotten, and read again where "
            "they change. Default 7d",
            "max_file_age_s",
        ),
        Option(
            "onChangedFile",
            one_of("fail", "ignore", "reread"),
            "a file that changes after it was found: `fail` (default), `ignore`, or `reread`",
            "on_changed_file",
        ),
        Option(
            "onBadRecord",
            one_of("fail", "keep", "skip"),
            "a line or file that cannot be read: `fail` (default), `keep` it with nulls, or `skip` it",
            "on_bad_record",
        ),
        Option(
            "failOnDataLoss",
            boolean,
            "whether a file that is gone before it was read fails the query (default `true`)",
            "fail_on_data_loss",
        ),
        Option(
            "timeZone",
            zone,
            "of times without a zone in JSON and in names of folders. Default: the session's, `spark.sql.session.timeZone`, "
            "which `df.rdd`, `foreachPartition` and `toJSON` do not have; where none is set, that of the executor's JVM",
            "time_zone",
        ),
        Option(
            "splitBytes", integer(1), "larger files are read in pieces of at most this size. Default 128 MiB", "split_bytes"
        ),
        Option(
            "storageOptions",
            json_object('{"key": "...", "secret": "..."}'),
            "a JSON object of fsspec's options for a filesystem that is not local",
            "storage_options",
        ),
        Option(
            "discoveryInterval",
            _duration,
            "streaming: time between two listings. Default 10s: `processAllAvailable()` does not wait for the next one",
            "discovery_interval_s",
        ),
        Option("maxFilesPerTrigger", integer(1), "streaming: most files, or pieces of large files, in a batch. Default 1000"),
        Option("maxBytesPerTrigger", integer(1), "streaming: about this many bytes in a batch"),
        Option("cleanSource", one_of("off", "archive", "delete"), "streaming: what becomes of files that were read"),
        Option("sourceArchiveDir", text, "streaming: the folder for cleanSource=archive"),
        Option("startFromSavepoint", text, "streaming: a savepoint of a run that a query without a checkpoint starts with"),
    ),
    "the source of files",
    "the source of files",
    required=("path",),
)


def file_schema(options: Mapping[str, str]) -> tuple[StructType, str | None]:
    """The columns of a user who gave no schema: those of the oldest file, which is read. Also as checkpoints have them."""
    source = _source(OPTIONS.parse(options)[0], pa.schema([]), None, watch=False)
    return spark_types(source), source.plan.pinned_schema


def file_reader(options: Mapping[str, str], schema: StructType, inferred: str | None) -> BoundedReader:
    """A frame of the files that there are. `inferred`: from `file_schema`, None of a schema that the user gave.

    Raises UsageError naming the option that is missing, unknown or wrong.
    """
    arrow, given = arrow_schema(schema), OPTIONS.parse(options)[0]
    check_for_batch(given, _STREAM_ONLY)
    return BoundedReader(pickled(_source(given, arrow, inferred, watch=False)), held_schema(schema))


def file_stream_reader(options: Mapping[str, str], schema: StructType, inferred: str | None) -> SplitStreamReader[Any]:
    """A stream of the files that there are, and those that come. Raises as `file_reader`."""
    given, _ = OPTIONS.parse(options)
    arrow = arrow_schema(schema)
    read: SplitRead[Any] = SplitRead(
        source=_source(given, arrow, inferred, watch=True),
        most_splits=given.get("maxFilesPerTrigger", SplitRead.most_splits),
        most_bytes=given.get("maxBytesPerTrigger"),
        savepoint=given.get("startFromSavepoint"),
    )
    return SplitStreamReader(read, held_schema(schema))


def _source(given: Mapping[str, Any], schema: pa.Schema, inferred: str | None, *, watch: bool) -> FileSource:
    """`schema`: of the user, empty if there is none; with `inferred`, of that."""
    path, form = as_given(given["path"]), given.get("fileFormat", SparkReadFormat.PARQUET)
    name: FormatName = "jsonl" if form is SparkReadFormat.JSON else form.value
    arguments: dict[str, Any] = {"time_zone": session_time_zone, "format": name, "watch": watch} | OPTIONS.arguments(given)
    if not watch:
        arguments.pop("discovery_interval_s", None)
    if len(schema) and inferred is None:
        on_bad = given.get("onBadRecord", "fail")
        data = data_columns(schema, on_bad)
        check_own(data, on_bad, partial(_columns_of_files, path, arguments))
        arguments |= {"schema": data, "columns": schema.names}
    if watch:
        arguments["after_read"] = _after_read(given)
    source = FileSource(path, **arguments)
    source.plan.pin_schema(inferred)
    return source


def _columns_of_files(path: str, arguments: Mapping[str, Any]) -> list[str]:
    """Of the oldest one; none where there are no files yet, or where they do not name their columns."""
    with suppress(UsageError):
        return list(FileSource(path, **arguments).schema.names)
    return []


def _after_read(given: Mapping[str, Any]) -> str | None:
    chosen, folder = given.get("cleanSource", "off"), given.get("sourceArchiveDir")
    if (chosen == "archive") != (folder is not None):
        raise UsageError("options 'cleanSource=archive' and 'sourceArchiveDir' go together")
    return f"archive:{as_given(str(folder))}" if chosen == "archive" else chosen if chosen == "delete" else None
