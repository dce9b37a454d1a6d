"""A job for clusters: copies a topic to another, exactly once.

    spark-submit --conf spark.copy=<json> copy_job.py, with "bootstrap", "source", "target", "commits", "checkpoint"

It imports headrace and PySpark alone, as a user's job does, and runs until it is ended. `job` is for `headrace supervise`.
"""

import json

from headrace.spark import session_builder


def job(spark):
    settings = json.loads(spark.conf.get("spark.copy"))
    servers = {"kafka.bootstrap.servers": settings["bootstrap"]}
    reading = {**servers, "subscribe": settings["source"], "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20000"}
    frame = spark.readStream.format("headrace").options(**reading).load().selectExpr("key", "value")
    writer = frame.writeStream.format("headrace").options(**servers, topic=settings["target"], commitTopic=settings["commits"])
    return writer.option("checkpointLocation", settings["checkpoint"]).start()


if __name__ == "__main__":
    job(session_builder().getOrCreate()).awaitTermination()
