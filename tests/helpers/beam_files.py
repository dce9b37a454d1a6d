"""Files as Beam's sources read them, small enough to know every record, with more than one bundle in each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from fastavro import parse_schema, writer

ROWS: list[dict[str, Any]] = [{"id": number, "name": None if number % 7 == 0 else f"é{number}"} for number in range(300)]
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
LINES = [f"line {number} é" for number in range(300)]
_FIELDS = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}]


def text(folder: Path) -> beam.PTransform:
    """Two files of lines, and an empty one."""
    folder.mkdir()
    for number, lines in enumerate((LINES[:200], [], LINES[200:])):
        (folder / f"{number}.txt").write_text("".join(f"{line}\n" for line in lines))
    return beam.io.ReadFromText(f"{folder}/*.txt")


def parquet(folder: Path) -> beam.PTransform:
    """A file of six row groups."""
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS, SCHEMA), folder / "rows.parquet", row_group_size=50)
    return beam.io.ReadFromParquetBatched(f"{folder}/*.parquet")


def avro(folder: Path) -> beam.PTransform:
    """A file of many blocks."""
    folder.mkdir()
    with (folder / "rows.avro").open("wb") as file:
        writer(file, parse_schema({"type": "record", "name": "row", "fields": _FIELDS}), ROWS, sync_interval=200)
    return beam.io.ReadFromAvro(f"{folder}/*.avro", as_rows=False)
