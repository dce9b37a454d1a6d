"""A Spark driver to be killed: copies key and value of a topic to another, for ever.

    python spark_copy.py <json>, a Job (systems.py) with "connector": "headrace" (exactly once) or "kafka" (Spark's own),
    "jars", "survives": whether a failed query is started again, "warm": whether Spark's Python processes are forked (else it is
    all as Spark does it by itself), and, if it is not to be this process alone, "master"

It notes in `marks` when it got how far.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from marks import mark

JVM_TUNING = {"kafka.max.poll.records": "10000"}
FIRST_RECORDS_POLL_S = 0.02


def start_session(request: dict[str, Any]) -> Any:  # noqa: ANN401 - Spark is imported here and not before
    """Two cores' worth of threads or more; a failed task is tried again, as on a cluster."""
    if request["warm"] or request["connector"] == "headrace":
        from headrace.spark import session_builder as builder
    else:
        from pyspark.sql import SparkSession

        def builder() -> Any:  # noqa: ANN401 - Spark's
            return SparkSession.builder

    mark(request, "imported")
    return builder().config(map=settings(request)).getOrCreate()


def settings(request: dict[str, Any]) -> dict[str, str]:
    """Of the session."""
    found = {
        "spark.master": request.get("master", f"local[{request['parallelism']},4]"),
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.kafka.consumer.cache.capacity": "256",
        "spark.headrace.python.fork": str(request["warm"]).lower(),
    }
    if request["jars"]:
        found["spark.jars"] = ",".join(request["jars"])
    return found


def start_query(spark: Any, request: dict[str, Any]) -> Any:  # noqa: ANN401 - Spark's
    """Source, sink and checkpoint."""
    reading = {
        "kafka.bootstrap.servers": request["bootstrap"],
        "subscribe": request["source"],
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(request["per_trigger"]),
    }
    reader = spark.readStream.format(request["connector"])
    if request["connector"] == "headrace":
        frame = reader.options(**reading).schema("key binary, value binary").load()
    else:
        frame = reader.options(**reading, **JVM_TUNING).load().select("key", "value")
    writing = {"kafka.bootstrap.servers": request["bootstrap"], "topic": request["target"]}
    writer = frame.writeStream.format(request["connector"]).options(**writing)
    return writer.option("checkpointLocation", str(Path(request["state"], "checkpoint"))).start()


def watch(query: Any, request: dict[str, Any]) -> None:  # noqa: ANN401 - Spark's
    """Note the first batch with rows, then wait for the end."""
    progress = None
    while query.isActive and progress is None:
        progress = next((item for item in query.recentProgress if item["numInputRows"]), None)
        time.sleep(FIRST_RECORDS_POLL_S)
    if progress is not None:
        mark(
            request,
            "first batch",
            batch=progress["batchId"],
            rows=progress["numInputRows"],
            phases_ms=dict(progress["durationMs"]),
        )
    query.awaitTermination()


def main(request: dict[str, Any]) -> None:
    """Until killed."""
    mark(request, "python")
    spark = start_session(request)
    mark(request, "session")
    from pyspark.errors import StreamingQueryException

    while True:
        query = start_query(spark, request)
        mark(request, "query")
        try:
            watch(query, request)
        except StreamingQueryException:
            if not request["survives"]:
                raise
            mark(request, "query failed")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
