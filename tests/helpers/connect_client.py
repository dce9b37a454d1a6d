"""A Spark Connect client with its own local server, as a script: options as JSON, a folder. Prints what it read."""

import json
import sys
from pathlib import Path

import apache_beam as beam

from headrace.beam import BeamSource
from headrace.spark import read_source


def say(what: str, value: object) -> None:
    sys.stdout.write(f"{what}: {value}\n")


def lines(folder: Path) -> BeamSource:
    (folder / "lines").write_text("one\ntwo\nthree\n")
    return BeamSource(beam.io.ReadFromText(str(folder / "lines")))


def main(options: dict, folder: Path) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    for pushdown in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
        frame = spark.read.format("headrace").options(**options).load()
        rows = frame.where("partition = 1 and offset >= 2").select("value").collect()
        say(f"pushdown {pushdown}", sorted(row["value"].decode() for row in rows))
    streamed = spark.readStream.format("headrace").options(**options, startingOffsets="earliest").load()
    writer = streamed.writeStream.format("memory").queryName("seen").option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    say("stream", sorted(row["value"].decode() for row in spark.table("seen").collect()))
    say("source", sorted(row["value"] for row in read_source(spark, lines(folder)).collect()))
    say("client", type(spark).__module__)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
