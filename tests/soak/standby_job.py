"""A job for supervisors: copies a topic to another, exactly once. what it is given is the JSON in STANDBY_JOB."""

import json
import os


def job(spark):
    settings = json.loads(os.environ["STANDBY_JOB"])
    servers = {"kafka.bootstrap.servers": settings["bootstrap"]}
    reading = {**servers, "subscribe": settings["source"], "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20000"}
    frame = spark.readStream.format("headrace").options(**reading).schema("key binary, value binary").load()
    writer = frame.writeStream.format("headrace").options(**servers, topic=settings["target"], commitTopic=settings["commits"])
    return writer.option("checkpointLocation", settings["checkpoint"]).start()
