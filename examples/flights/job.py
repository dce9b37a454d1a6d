"""The Spark job: flights from a topic, parsed, to Parquet. Ends when told `finish` on standard input, or when that closes.

    python job.py BOOTSTRAP TOPIC OUTPUT CHECKPOINT RECORDS_PER_BATCH

It knows nothing of the demo around it: run again with the same checkpoint, it goes on where it was.
"""

from __future__ import annotations

import os
import sys
import threading

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

from headrace.runners.spark.session import session_builder

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


def read_flights(spark: SparkSession, bootstrap: str, topic: str, records_per_batch: str) -> DataFrame:
    """The flights, and where in the topic each was."""
    records = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", records_per_batch)
        .load()
    )
    flight = from_json(col("value").cast("string"), SCHEMA).alias("flight")
    return records.select(flight, "partition", "offset").select("flight.*", "partition", "offset")


def main(bootstrap: str, topic: str, output: str, checkpoint: str, records_per_batch: str) -> None:
    """Run the query until told to finish; what is in the topic by then is processed first."""
    finish = threading.Event()
    threading.Thread(target=_listen, args=[finish], daemon=True).start()
    spark = session_builder().master("local[2]").appName("flights").config(map=CONF).getOrCreate()
    flights = read_flights(spark, bootstrap, topic, records_per_batch)
    query = (
        flights.writeStream.format("parquet")
        .option("path", output)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    while not finish.is_set():
        if query.awaitTermination(1):
            raise SystemExit("the query ended by itself")
    query.processAllAvailable()
    query.stop()
    spark.stop()


def _listen(finish: threading.Event) -> None:
    if sys.stdin.readline().strip() != "finish":
        os._exit(1)  # whoever started us is gone; Spark's JVM goes with us
    finish.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
