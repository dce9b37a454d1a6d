"""The job of `changes_soak`: each table into a Delta table by its key, and all changes, as they come, into another one.

    headrace run changes_job.py:pipeline --checkpoints FOLDER

`HEADRACE_CHANGES_SOAK` is JSON: the fields of `Settings`.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace import Pipeline
from headrace.delta import DeltaSink
from headrace.postgresql import ChangesSource, table_rows
from headrace.sinks import Changes
from tests.soak.changes_tables import KEYS, SHAPES, Shape

VARIABLE = "HEADRACE_CHANGES_SOAK"
SLOT, PUBLICATION = "headrace_soak", "soak"
CHANGES = "changes"
"""The output of all changes."""


@dataclass(frozen=True)
class Settings:
    """Of one round. `pause_s`: how long a batch takes, so that kills come in the middle of each phase."""

    url: str
    folder: str
    chunk_rows: int
    transaction_bytes: int
    pause_s: float

    def pipeline(self) -> Pipeline:
        source = ChangesSource(
            self.url, tables=[shape.name for shape in SHAPES], publication=PUBLICATION, slot=SLOT,
            chunk_rows=self.chunk_rows, max_transaction_bytes=self.transaction_bytes,
        )  # fmt: skip
        sinks = {shape.name: by_key(f"{self.folder}/{shape.name}", shape) for shape in SHAPES}
        return Pipeline(source, sinks | {CHANGES: DeltaSink(f"{self.folder}/{CHANGES}")}, ByTable(self.pause_s))

    def create_tables(self) -> None:
        pipeline = self.pipeline()
        empty = pa.RecordBatch.from_pylist([], pipeline.source.schema)
        for shape in SHAPES:
            rows = table_rows(empty, f"public.{shape.name}")
            pipeline.outputs.sinks[shape.name].create_table(rows.schema)
            pipeline.outputs.sinks[CHANGES].create_table(as_changes(shape, rows).schema)


def by_key(uri: str, shape: Shape) -> DeltaSink:
    return DeltaSink(uri, changes=Changes(tuple(KEYS[shape.key]), sequence=("_lsn",), change_type="_op"))


@dataclass(frozen=True)
class ByTable:
    """Each table's rows to its output, and something of each row to that of all changes."""

    pause_s: float

    def __call__(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        time.sleep(self.pause_s)
        there = set(batch.column("_table").unique().to_pylist())
        for shape in SHAPES:
            if f"public.{shape.name}" in there:
                rows = table_rows(batch, f"public.{shape.name}")
                yield shape.name, rows
                yield CHANGES, as_changes(shape, rows)


def as_changes(shape: Shape, rows: pa.RecordBatch) -> pa.RecordBatch:
    """What `replayed` needs. Of a delete there may be no version."""
    key = pc.binary_join_element_wise(*(rows.column(name).cast(pa.string()) for name in KEYS[shape.key]), "|")
    table = pa.repeat(shape.name, rows.num_rows)
    columns = {"name": table, "op": rows.column("_op"), "lsn": rows.column("_lsn"), "key": key, "v": rows.column("v")}
    return pa.RecordBatch.from_pydict(columns)


if VARIABLE in os.environ:
    pipeline = Settings(**json.loads(os.environ[VARIABLE])).pipeline()
