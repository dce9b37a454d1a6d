"""A Spark Connect client with a local server of its own, as a script: options as JSON, a checkpoint. Prints what it read."""

import json
import sys


def say(what: str, value: object) -> None:
    sys.stdout.write(f"{what}: {value}\n")


def main(options: dict, checkpoint: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    for pushdown in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
        frame = spark.read.format("headrace").options(**options).load()
        rows = frame.where("partition = 1 and offset >= 2").select("value").collect()
        say(f"pushdown {pushdown}", sorted(row["value"].decode() for row in rows))
    streamed = spark.readStream.format("headrace").options(**options, startingOffsets="earliest").load()
    writer = streamed.writeStream.format("memory").queryName("seen").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    say("stream", sorted(row["value"].decode() for row in spark.table("seen").collect()))
    say("client", type(spark).__module__)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
