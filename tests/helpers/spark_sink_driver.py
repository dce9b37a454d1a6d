"""A Spark driver to be killed: copies a topic to where `write` says, exactly once.

    python spark_sink_driver.py <json>: {"read", "select", "write", "checkpoint", "tasks", "done"}

Optional: "master", Spark's "settings", and "session", which of our builders makes it (default session_builder). Null `tasks`
are those of the source. "each_batch" in place of "write": in `foreachBatch`, one write after the other under one `txnAppId`,
each with its own "select" and "write". Runs until the file `done` is there, then stops after what is under way.
"""

import json
import os
import sys
import threading
from pathlib import Path

SHORT_LIVED = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "spark.driver.host": "127.0.0.1"}
"""A driver that exists for seconds gains nothing from the optimising compiler, and starts sooner without."""


def show_info(spark) -> None:
    """Have Spark log at INFO. Where that is its level already it shows warnings alone, as a shell does: hence first another."""
    for level in ("WARN", "INFO"):
        spark.sparkContext.setLogLevel(level)


def written_by_batch(writes: list[dict]):
    def write_batch(frame, number: int) -> None:
        named = {"txnAppId": "each-batch", "txnVersion": str(number)}
        for one in writes:
            rows = frame.selectExpr(*one["select"])
            rows.write.format("headrace").mode("append").options(**one["write"], **named).save()

    return write_batch


def main(arguments: dict) -> None:
    os.environ["HEADRACE_KILL_GROUP"] = str(os.getpgid(0))  # seen by what the JVM starts
    from headrace import spark as runner
    from headrace.runners.spark_processes.spark_archive import archive_of_spark, use_archive

    archive_of_spark().at_hand()
    use_archive()  # its JVM starts in half the time, whatever builds the session
    builder = getattr(runner, arguments.get("session", "session_builder"))()
    settings = {"spark.ui.enabled": "false", **SHORT_LIVED, **arguments.get("settings", {})}
    spark = builder.master(arguments.get("master", "local[2]")).config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.readStream.format("headrace").options(**arguments["read"]).load().selectExpr(*arguments["select"])
    if arguments["tasks"] is not None:
        frame = frame.repartition(arguments["tasks"])
    writer = frame.writeStream
    if "each_batch" in arguments:
        writer = writer.foreachBatch(written_by_batch(arguments["each_batch"]))
    else:
        writer = writer.format("headrace").options(**arguments["write"])
    query = writer.option("checkpointLocation", arguments["checkpoint"]).trigger(processingTime="100 milliseconds").start()
    while query.isActive and not Path(arguments["done"]).exists():
        threading.Event().wait(0.1)
    if query.exception() is not None:
        raise query.exception()
    query.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
