"""The Spark side of the benchmarks: one session in this process, one system driven by it. Runs in a child of the harness.

Systems: `headrace`, in a session of its `session_builder()`; `jvm`, Spark's own Kafka connector; `ceiling`, a Python source
that yields a ready-made Arrow batch; these two in sessions of Spark's own builder. All three have the same settings.
`delta-spark` is `jvm` with Delta's own jars, as it is set up by its documentation; `spark` has no jars at all.
`headrace-unix-sockets` and `headrace-no-checksums` are `headrace` with one setting of Spark's that is not the default.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Context, Measurement, new_folder
from benchmarks.jars import delta_jars, jvm_connector_jars
from benchmarks.topics import KEY_BYTES, Shape

SPARK_SYSTEMS = ("headrace", "jvm", "ceiling")
OTHERWISE_SET: dict[str, dict[str, str]] = {
    "headrace-unix-sockets": {"spark.python.unix.domain.socket.enabled": "true"},
    "headrace-no-checksums": {"spark.sql.streaming.checkpoint.fileChecksum.enabled": "false"},
}
FORMATS = {
    "headrace": "headrace",
    **dict.fromkeys(OTHERWISE_SET, "headrace"),
    "jvm": "kafka",
    "ceiling": "ceiling",
    "delta-spark": "kafka",
}
# Everything else at its default. More records a poll made it 15 % faster; larger fetches and its V2 batch source did not. With
# the default of 64 cached consumers, it would make new ones for every batch over 100 partitions.
JVM_TUNING = {"kafka.max.poll.records": "10000"}
JVM_SETTINGS = {"spark.kafka.consumer.cache.capacity": "256"}
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
CORES = 2
HEAP = "2g"
POLL_S = 0.01
STREAM_TIMEOUT_S = 600.0


@functools.cache
def session(system: str, jars: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 - Spark is imported here and not before
    """The process's Spark session. `jars`: what the JVM connector is to have alongside its own."""
    here = Path(__file__).parent
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if system == "ceiling":
        os.environ["PYTHONPATH"] = str(here / "sources")  # where Spark finds it
    settings: dict[str, bool | float | int | str | None] = {
        "spark.master": f"local[{CORES}]",
        "spark.driver.memory": HEAP,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.log.level": "ERROR",
        **OTHERWISE_SET.get(system, {}),
    }
    if system == "jvm":
        settings |= {**JVM_SETTINGS, "spark.jars": ",".join([*jvm_connector_jars(), *jars])}
    if system == "delta-spark":
        settings |= {**JVM_SETTINGS, **DELTA_SETTINGS, "spark.jars": ",".join([*jvm_connector_jars(), *delta_jars()])}
    return _builder(system).config(map=settings).getOrCreate()


def _builder(system: str) -> Any:  # noqa: ANN401 - Spark's
    if FORMATS.get(system) == "headrace":
        from headrace.spark import session_builder

        return session_builder()
    from pyspark.sql import SparkSession

    return SparkSession.builder


@dataclass(frozen=True)
class Read:
    """A topic to read: all seven columns, or only some; into the noop sink, or an aggregate."""

    shape: Shape
    columns: tuple[str, ...] = ()
    aggregate: bool = False


def batch_read(context: Context, work: Read) -> Measurement:
    """One batch read of the whole topic, from `spark.read` to its end. Records per second."""
    spark = session(context.system)
    before = queries(spark)
    started = time.perf_counter()
    frame = _frame(spark.read, context, work.shape, work.columns)
    totals = _aggregate(frame) if work.aggregate else frame.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started
    records = records_read(spark, before)
    if totals is not None:
        wanted = (work.shape.records, work.shape.records * KEY_BYTES, work.shape.records * work.shape.value_bytes)
        records = records if tuple(totals) == wanted else -1
    return Measurement(work.shape.records / seconds, records, work.shape.records, {"seconds": seconds})


@dataclass(frozen=True)
class Stream:
    """A backlog to stream, AvailableNow; at most this many records a trigger."""

    shape: Shape
    per_trigger: int | None


def available_now(context: Context, work: Stream) -> Measurement:
    """One query over the whole topic, from `start` to its end. Records per second."""
    frame = stream_frame(session(context.system), context, work.shape, work.per_trigger, "earliest")
    return run_to_noop(context, frame, work.shape.records)


def run_to_noop(context: Context, frame: Any, expected: int) -> Measurement:  # noqa: ANN401 - Spark's
    """One query, AvailableNow, over a frame with this many records, from `start` to its end. Records per second."""
    with new_folder(context) as checkpoint:
        started = time.perf_counter()
        query = _to_noop(frame, checkpoint).trigger(availableNow=True).start()
        if not query.awaitTermination(STREAM_TIMEOUT_S):
            query.stop()
        seconds = time.perf_counter() - started
        progress = [item for item in query.recentProgress if item["numInputRows"] > 0]
    records = sum(item["numInputRows"] for item in progress)
    detail = {"seconds": seconds, "triggers": len(progress), "phases_ms": phases_of(progress)}
    return Measurement(expected / seconds, records, expected, detail)


def spark_copy(context: Context, work: Stream, topic: str) -> tuple[float, dict[str, Any]]:
    """One query, AvailableNow, that copies key and value to another topic. Seconds from `start` to its end, and details.

    headrace exactly once, the JVM connector at least once.
    """
    frame = stream_frame(session(context.system), context, work.shape, work.per_trigger, "earliest").select("key", "value")
    options = {"kafka.bootstrap.servers": context.bootstrap, "topic": topic}
    with new_folder(context) as checkpoint:
        started = time.perf_counter()
        writer = frame.writeStream.format(FORMATS[context.system]).options(**options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        if not query.awaitTermination(STREAM_TIMEOUT_S):
            query.stop()
        seconds = time.perf_counter() - started
        progress = [item for item in query.recentProgress if item["numInputRows"] > 0]
    return seconds, {"triggers": len(progress), "phases_ms": phases_of(progress)}


@dataclass(frozen=True)
class Ticks:
    """A topic that gets a record in every partition all the time; this many triggers are measured, after some that are not."""

    topic: str
    partitions: int
    triggers: int
    skipped: int = 5


def trigger_time(context: Context, work: Ticks) -> Measurement:
    """The median time of a trigger with next to no data, in ms, as Spark's own progress reports it."""
    spark = session(context.system)
    shape = Shape(0, 0, partitions=work.partitions)
    frame = stream_frame(spark, context, shape, None, "latest", work.topic)
    wanted = work.skipped + work.triggers
    with new_folder(context) as checkpoint:
        query = _to_noop(frame, checkpoint).start()
        progress = _first_with_rows(query, wanted)[work.skipped : wanted]
        query.stop()
    times = [item["durationMs"]["triggerExecution"] for item in progress]
    detail = {"phases_ms": phases_of(progress), "rows": statistics.median(item["numInputRows"] for item in progress)}
    return Measurement(statistics.median(times), len(times), work.triggers, {**detail, "triggers_ms": times})


@dataclass(frozen=True)
class Start:
    """A small topic, read first thing in a new process."""

    shape: Shape
    per_trigger: int = 1000


def first_batch(context: Context, work: Start) -> Measurement:
    """The first batch read of a new session, in seconds; the session's own start is not counted."""
    started_at = time.perf_counter()
    spark = session(context.system)
    session_s = time.perf_counter() - started_at
    times = []
    for _ in range(2):
        started = time.perf_counter()
        count, *_ = _aggregate(_frame(spark.read, context, work.shape, ()))
        times.append(time.perf_counter() - started)
    return Measurement(times[0], count, work.shape.records, {"session_s": session_s, "second_read_s": times[1]})


def first_trigger(context: Context, work: Start) -> Measurement:
    """The first trigger of a query that another process started, from `start` to its progress report, in seconds.

    The run for warming up starts the query; all runs share its checkpoint.
    """
    spark = session(context.system)
    frame = stream_frame(spark, context, work.shape, work.per_trigger, "earliest")
    checkpoint = Path(context.scratch, "checkpoint")
    started = time.perf_counter()
    query = _to_noop(frame, checkpoint).trigger(processingTime="1 hour").start()
    progress = _first_with_rows(query, 1)[0]
    seconds = time.perf_counter() - started
    query.stop()
    detail = {"batch": progress["batchId"], "phases_ms": dict(progress["durationMs"])}
    return Measurement(seconds, progress["numInputRows"], work.per_trigger, detail)


def _options(context: Context, shape: Shape, topic: str | None) -> dict[str, str]:
    if context.system == "ceiling":
        return {"records": str(shape.records), "tasks": str(shape.partitions), "valueBytes": str(shape.value_bytes)}
    options = {"kafka.bootstrap.servers": context.bootstrap, "subscribe": topic or shape.topic}
    return options | JVM_TUNING if FORMATS[context.system] == "kafka" else options


def _frame(reader: Any, context: Context, shape: Shape, columns: Sequence[str]) -> Any:  # noqa: ANN401 - Spark's
    reader = reader.format(FORMATS[context.system]).options(**_options(context, shape, None))
    if not columns:
        return reader.load()
    if context.system == "jvm":
        return reader.load().select(*columns)
    types = {"key": "binary", "value": "binary", "offset": "bigint"}
    return reader.schema(", ".join(f"{column} {types[column]}" for column in columns)).load()


def stream_frame(
    spark: Any,  # noqa: ANN401 - Spark's
    context: Context,
    shape: Shape,
    per_trigger: int | None,
    start: str,
    topic: str | None = None,
) -> Any:  # noqa: ANN401 - Spark's
    """A topic as a stream, read by the context's system."""
    options = _options(context, shape, topic)
    if context.system == "ceiling":
        endless = start == "latest"
        step = shape.partitions if endless else per_trigger or shape.records
        options |= {"records": str(10**12 if endless else shape.records), "step": str(step)}
        options |= {"tasks": "1"} if endless else {}
    else:
        options["startingOffsets"] = start
        options |= {} if per_trigger is None else {"maxOffsetsPerTrigger": str(per_trigger)}
    return spark.readStream.format(FORMATS[context.system]).options(**options).load()


def _aggregate(frame: Any) -> tuple[int, ...]:  # noqa: ANN401 - Spark's
    columns = [name for name in ("key", "value") if name in frame.columns]
    return tuple(frame.selectExpr("count(*)", *(f"sum(length({name}))" for name in columns)).first())


def records_read(spark: Any, since: int) -> int:  # noqa: ANN401 - Spark's
    """What the scans of all queries after the first `since` gave, by Spark's own count."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    return sum(_scanned(store, executions.apply(index).executionId()) for index in range(since, executions.size()))


def queries(spark: Any) -> int:  # noqa: ANN401 - Spark's
    """How many queries the session has had."""
    return int(spark._jsparkSession.sharedState().statusStore().executionsCount())


def _scanned(store: Any, execution: int) -> int:  # noqa: ANN401 - Spark's
    metrics, nodes = store.executionMetrics(execution), store.planGraph(execution).allNodes()
    total = 0
    for node in (nodes.apply(index) for index in range(nodes.size())):
        mine = (node.metrics().apply(index) for index in range(node.metrics().size()))
        rows = [metrics.get(metric.accumulatorId()) for metric in mine if metric.name() == "number of output rows"]
        if "Scan " in node.name():
            total += sum(int(text.get().replace(",", "")) for text in rows if text.isDefined())
    return total


def _to_noop(frame: Any, checkpoint: Path) -> Any:  # noqa: ANN401 - Spark's
    return frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))


def _first_with_rows(query: Any, count: int) -> list[Any]:  # noqa: ANN401 - Spark's
    """The first this many progress reports that have rows; waits for them."""
    deadline = time.monotonic() + STREAM_TIMEOUT_S
    seen: dict[int, Any] = {}
    while len(seen) < count:
        if time.monotonic() > deadline or not query.isActive:
            raise RuntimeError(f"the query gave {len(seen)} of {count} batches: {query.exception() or 'it is too slow'}")
        time.sleep(POLL_S if count == 1 else 0.5)  # asking for many reports costs the driver some work
        last = query.lastProgress
        if (last is not None and last["batchId"] >= count - 1) or count == 1:
            seen = {item["batchId"]: item for item in query.recentProgress if item["numInputRows"] > 0}
    return [seen[batch] for batch in sorted(seen)][:count]


def phases_of(progress: Sequence[Any]) -> dict[str, float]:
    """The median of every phase of a trigger, in ms."""
    names = {name for item in progress for name in item["durationMs"]}
    return {name: statistics.median(item["durationMs"].get(name, 0) for item in progress) for name in sorted(names)}
