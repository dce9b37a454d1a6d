"""A topic written to a table: by headrace on Spark and without an engine, and by Spark with Delta's own jars."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from benchmarks.harness import Context, Measurement, new_folder
from benchmarks.spark_systems import STREAM_TIMEOUT_S, phases_of, session, stream_frame
from benchmarks.topics import Shape
from headrace import Pipeline
from headrace.delta import DeltaSink
from headrace.iceberg import IcebergSink
from headrace.kafka import Earliest, KafkaSource, Latest

COLUMNS = ("key", "value", "partition", "offset", "timestamp")
TABLE = "bench.records"
WORKERS, INTERVAL_S = 2, 1.0
Seconds = tuple[float, dict[str, Any]]


@dataclass(frozen=True)
class TableWrite:
    """A topic to be written to a table, at most this many records a trigger; without an engine, in checkpoints of a second."""

    shape: Shape
    table_format: str
    per_trigger: int


def write_table(context: Context, work: TableWrite) -> Measurement:
    """Key, value, partition, offset and time of the whole topic into a new table. Records per second, from start to end.

    What came out is counted by reading it back: a record that is there twice, or is missing, makes the run invalid.
    """
    with new_folder(context) as folder:
        write = _without_engine if context.system == "headrace-run" else _on_spark
        seconds, detail = write(context, work, folder)
        records = _distinct(_read(work.table_format, folder))
    return Measurement(work.shape.records / seconds, records, work.shape.records, {"seconds": seconds, **detail})


def parts(context: Context, work: TableWrite) -> Measurement:
    """What bounds it: the same records read in one process, and then written, and committed. Records per second of all three.

    One thread of Python has all partitions; Arrow compresses and encodes in it.
    """
    with new_folder(context) as folder:
        sink = _sink(work.table_format, folder)
        source = _source(context, work)
        sink.create_table(source.schema)
        started_at = time.perf_counter()
        batches = list(source.batches())
        read = time.perf_counter()
        handle = _prepared(sink, batches)
        written = time.perf_counter()
        _commit(sink, handle)
        committed = time.perf_counter()
        records = _distinct(_read(work.table_format, folder))
    detail = {"read_s": read - started_at, "write_s": written - read, "commit_s": committed - written}
    return Measurement(work.shape.records / (committed - started_at), records, work.shape.records, detail)


def _prepared(sink: Any, batches: list[pa.RecordBatch]) -> Any:  # noqa: ANN401 - one of two sinks, and its handle
    from headrace.sinks import Attempt

    with sink.begin(Attempt("bench", 0, 0, 0)) as transaction:
        for batch in batches:
            transaction.write(batch)
        return transaction.prepare()


def _commit(sink: Any, handle: Any) -> None:  # noqa: ANN401 - the same
    from headrace.sinks import JobCommitter

    JobCommitter("bench", sink.committer("bench")).commit(0, (handle,))


def _without_engine(context: Context, work: TableWrite, folder: Path) -> Seconds:
    """In a process that may have others, as the harness's may not."""
    settings = pickle.dumps((context, work, folder))
    command = [sys.executable, "-m", "benchmarks.table_systems"]
    done = subprocess.run(command, input=settings, stdout=subprocess.PIPE, check=True)  # noqa: S603 - our own command
    return json.loads(done.stdout), {}


def run_pipeline(context: Context, work: TableWrite, folder: Path) -> float:
    """Its seconds, from before the first of its processes to after the last."""
    source, sink = _source(context, work), _sink(work.table_format, folder)
    sink.create_table(source.schema)
    started = time.perf_counter()
    Pipeline(source, sink).run(checkpoints=str(folder / "checkpoints"), workers=WORKERS, interval_s=INTERVAL_S)
    return time.perf_counter() - started


def _on_spark(context: Context, work: TableWrite, folder: Path) -> Seconds:
    spark = session(context.system)
    frame = stream_frame(spark, context, work.shape, work.per_trigger, "earliest").select(*COLUMNS)
    options = _options(context.system, work.table_format, folder)
    started = time.perf_counter()
    writer = frame.writeStream.format("delta" if context.system == "delta-spark" else "headrace").options(**options)
    writer = writer.option("checkpointLocation", str(folder / "checkpoints")).trigger(availableNow=True)
    query = writer.start(str(folder / "table")) if work.table_format == "delta" else writer.start()
    if not query.awaitTermination(STREAM_TIMEOUT_S):
        query.stop()
    seconds = time.perf_counter() - started
    progress = [item for item in query.recentProgress if item["numInputRows"] > 0]
    return seconds, {"triggers": len(progress), "phases_ms": phases_of(progress)}


def _options(system: str, table_format: str, folder: Path) -> dict[str, str]:
    if system == "delta-spark":
        return {}
    if table_format == "delta":
        return {"connector": "delta"}
    return {"connector": "iceberg", "table": TABLE, "catalog": json.dumps(_catalog(folder))}


def _source(context: Context, work: TableWrite) -> KafkaSource:
    return KafkaSource(context.bootstrap, topics=[work.shape.topic], start=Earliest(), stop=Latest(), columns=COLUMNS)


def _sink(table_format: str, folder: Path) -> DeltaSink | IcebergSink:
    return DeltaSink(str(folder / "table")) if table_format == "delta" else IcebergSink(TABLE, _catalog(folder))


def _catalog(folder: Path) -> dict[str, str]:
    return {"name": "bench", "type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


def _read(table_format: str, folder: Path) -> pa.Table:
    columns = ["partition", "offset"]
    if table_format == "delta":
        return DeltaTable(str(folder / "table")).to_pyarrow_table(columns=columns)
    found: pa.Table = load_catalog(**_catalog(folder)).load_table(TABLE).scan(selected_fields=tuple(columns)).to_arrow()
    return found


def _distinct(rows: pa.Table) -> int:
    """How many records are there; -1 if one of them is there twice."""
    records = rows.group_by(rows.column_names).aggregate([]).num_rows
    return records if records == rows.num_rows else -1


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_pipeline(*pickle.loads(sys.stdin.buffer.read()))))  # noqa: S301 - of our own parent
