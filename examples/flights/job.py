"""The Spark job: flights from a topic, parsed, to Parquet; and, as they are, to another topic, exactly once.

    python job.py BOOTSTRAP TOPIC OUTPUT COPY CHECKPOINT RECORDS_PER_BATCH

COPY is the other topic. Ends when told `finish` on standard input, or when that closes.

It knows nothing of the demo around it: run again with the same checkpoint, it goes on where it was.
"""

from __future__ import annotations

import os
import sys
import threading

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.streaming import StreamingQuery

from headrace.spark import warm_session_builder

SCHEMA = """
    id INT, year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,
    sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
    air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP
"""

CONF: dict[str, bool | float | int | str | None] = {
    # A driver that lives for a minute gains nothing from the optimising compiler: without it, it starts with a third less work.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}


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


def main(bootstrap: str, topic: str, output: str, copy: str, checkpoint: str, records_per_batch: str) -> None:
    """Run the queries until told to finish; what is in the topic by then is processed first."""
    finish = threading.Event()
    threading.Thread(target=_listen, args=[finish], daemon=True).start()
    spark = warm_session_builder().master("local[2]").appName("flights").config(map=CONF).getOrCreate()
    files = to_parquet(parsed(read_records(spark, bootstrap, topic, records_per_batch)), output, f"{checkpoint}/parquet")
    # Two queries that start at once from one DataFrame can fail in Spark, which changes what both share while it serializes it:
    # so each has a session and a DataFrame of its own, and the second starts when the first has done a batch.
    while files.isActive and files.lastProgress is None:
        finish.wait(0.1)
    copy_of = read_records(spark.newSession(), bootstrap, topic, records_per_batch)
    queries = [files, to_kafka(copy_of, bootstrap, copy, f"{checkpoint}/kafka")]
    while not finish.wait(1):
        if not all(query.isActive for query in queries):
            raise SystemExit("a query ended by itself")
    for query in queries:
        query.processAllAvailable()
        query.stop()
    spark.stop()


def _listen(finish: threading.Event) -> None:
    if sys.stdin.readline().strip() != "finish":
        os._exit(1)  # whoever started us is gone; Spark's JVM goes with us
    finish.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
