"""What the options of both table sinks share in Spark: Delta's and Iceberg's. Unknown ones are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructType

from headrace.connectors.tables.changes import Changes
from headrace.enumerator.errors import UsageError
from headrace.spark.options import REPEATED_WRITE, Option, Parse, boolean, integer, text

DEFAULT_SEQUENCE = "offset"


def _parts(option: Option, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in re.split(r",(?![^(]*\))", text(option, value)))


def table_options(place: Option, store: tuple[str, Parse, str], partitions: str, compression: str) -> tuple[Option, ...]:
    """All of a sink: where the table is, how its store or catalog is reached, and what every format has."""
    return (
        place,
        Option(*store),
        Option(
            "partitionBy",
            _parts,
            f"{partitions} to partition a new table by, separated by commas; a table that exists stays as it is",
        ),
        Option(
            "mergeSchema",
            boolean,
            "true: columns of the frame that the table does not have are added to it, before the first rows are written; "
            "false (default): such a frame is refused",
        ),
        Option("upsertKeys", _parts, "columns by which rows take the place of others; without it rows are appended"),
        Option(
            "sequenceBy",
            _parts,
            "columns that say which change of a key is the later one within a batch (default `offset`, if the frame has it); "
            "needs upsertKeys",
        ),
        Option(
            "changeTypeColumn",
            text,
            "a column, which is not written, that says what becomes of the row: `c`, `r`, `u`, `d` as in Debezium, `+I`, `-U`, "
            "`+U`, `-D` as in Flink, `insert`, `update_postimage`, `delete` as in Delta, or a boolean, true for a delete; "
            "needs upsertKeys",
        ),
        Option("targetFileSize", integer(1), "bytes after which a file ends (default 134217728, 128 MiB)"),
        Option("compression", text, compression),
        *REPEATED_WRITE,
    )


_NAMES = {"targetFileSize": "target_file_bytes", "compression": "compression", "mergeSchema": "merge_schema"}


def table_arguments(given: Mapping[str, Any], schema: StructType) -> dict[str, Any]:
    """The arguments of both formats' sinks, for a frame of this schema. Raises UsageError for options that need others."""
    found = {_NAMES[name]: value for name, value in given.items() if name in _NAMES}
    if "upsertKeys" in given:
        default = (DEFAULT_SEQUENCE,) if DEFAULT_SEQUENCE in schema.names else ()
        sequence = given.get("sequenceBy", default)
        return {**found, "changes": Changes(given["upsertKeys"], sequence, given.get("changeTypeColumn"))}
    for name in ("sequenceBy", "changeTypeColumn"):
        if name in given:
            raise UsageError(f"option '{name}' is about changes by key: it needs upsertKeys")
    return found
