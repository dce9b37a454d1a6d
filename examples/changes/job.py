"""The job of the demo: three tables of a PostgreSQL, and every change of them, into three Delta tables.

    python job.py                          makes the Delta tables
    headrace run job.py:pipeline ...       runs it

`CHANGES_JOB` is JSON: the database's address, and the folder of the Delta tables.
"""

from __future__ import annotations

import json
import os

import pyarrow as pa

from headrace import Pipeline
from headrace.delta import DeltaSink
from headrace.postgresql import ChangesSource, table_rows
from headrace.sinks import Changes

KEYS = {"accounts": ("branch", "account"), "tellers": ("name",), "transfers": ("id",)}

settings = json.loads(os.environ["CHANGES_JOB"])
source = ChangesSource(
    settings["url"],
    tables=list(KEYS),
    publication="bank",
    slot="headrace_bank",
    chunk_rows=250,  # of a small table, so that there are many
)
sinks = {
    table: DeltaSink(f"{settings['folder']}/{table}", changes=Changes(keys, sequence=("_lsn",), change_type="_op"))
    for table, keys in KEYS.items()
}


def by_table(batch: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    """Each table's rows to its sink."""
    return {table: table_rows(batch, f"public.{table}") for table in KEYS}


pipeline = Pipeline(source, sinks, by_table)

if __name__ == "__main__":
    empty = pa.RecordBatch.from_pylist([], source.schema)
    for table, rows in by_table(empty).items():
        sinks[table].create_table(rows.schema)
