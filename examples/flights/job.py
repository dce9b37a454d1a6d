"""The Spark job: flights from a topic, parsed, to Parquet; and, as they are, to another topic, exactly once.

    FLIGHTS_JOB='{"bootstrap": ..., "topic": ..., "output": ..., "copy": ..., "checkpoint": ..., "records_per_batch": ...}' \\
    headrace supervise job.py:job --standby 1

"copy" is the other topic. The job knows nothing of the demo around it: run again with the same checkpoint, it continues where
it was. Nor does it know whether it is the driver running or the standby: `job` is called in both.
"""

from __future__ import annotations

import json
import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.streaming import StreamingQuery

SCHEMA = """
    id INT, year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,
    sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
    air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP
"""


def read_records(spark: SparkSession, bootstrap: str, topic: str, records_per_batch: str) -> DataFrame:
    """The topic's records."""
    return (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", records_per_batch)
        .load()
    )


def parsed(records: DataFrame) -> DataFrame:
    """The flights, and where in the topic each was."""
    flight = from_json(col("value").cast("string"), SCHEMA).alias("flight")
    return records.select(flight, "partition", "offset").select("flight.*", "partition", "offset")


def to_parquet(flights: DataFrame, output: str, checkpoint: str) -> StreamingQuery:
    """Start writing the flights to files."""
    writer = flights.writeStream.format("parquet").option("path", output).option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime="500 milliseconds").start()


def to_kafka(records: DataFrame, bootstrap: str, copy: str, checkpoint: str) -> StreamingQuery:
    """Start copying the records, exactly once: in transactions, which a restarted job completes or aborts."""
    writer = records.select("key", "value").writeStream.format("headrace").option("kafka.bootstrap.servers", bootstrap)
    writer = writer.option("topic", copy).option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime="500 milliseconds").start()


def job(spark: SparkSession) -> list[StreamingQuery]:
    """Start both queries."""
    settings = json.loads(os.environ["FLIGHTS_JOB"])
    source = settings["bootstrap"], settings["topic"], settings["records_per_batch"]
    files = to_parquet(parsed(read_records(spark, *source)), settings["output"], f"{settings['checkpoint']}/parquet")
    # Two queries that start at once from one DataFrame can fail in Spark, which changes what both share while it serializes it:
    # so each has a session and its own DataFrame.
    copy_of = read_records(spark.newSession(), *source)
    return [files, to_kafka(copy_of, settings["bootstrap"], settings["copy"], f"{settings['checkpoint']}/kafka")]
