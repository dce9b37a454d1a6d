"""A job for supervisors: copies a topic to another, exactly once. What it is told is the JSON in STANDBY_JOB."""

from __future__ import annotations

import json
import os


def job(spark):
    told = json.loads(os.environ["STANDBY_JOB"])
    servers = {"kafka.bootstrap.servers": told["bootstrap"]}
    reading = {**servers, "subscribe": told["source"], "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20000"}
    frame = spark.readStream.format("headrace").options(**reading).schema("key binary, value binary").load()
    writer = frame.writeStream.format("headrace").options(**servers, topic=told["target"], commitTopic=told["commits"])
    return writer.option("checkpointLocation", told["checkpoint"]).start()
