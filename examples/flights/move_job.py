"""The pipeline of `demo_move.py`: one object, which headrace run, Spark and Beam run. The environment says where."""

from __future__ import annotations

import os
from dataclasses import replace

import pyarrow as pa

from headrace import Pipeline
from headrace.kafka import Committed, Earliest, KafkaSink, KafkaSource

BOOTSTRAP = os.environ.get("FLIGHTS_BOOTSTRAP", "127.0.0.1:9092")
TOPIC = os.environ.get("FLIGHTS_TOPIC", "flights")
COPY = os.environ.get("FLIGHTS_COPY", "copy")


def flight(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What is copied of a record."""
    return batch.select(["key", "value"])


source = KafkaSource(BOOTSTRAP, topics=[TOPIC], discovery_interval_s=2.0)
pipeline = Pipeline(source, KafkaSink(BOOTSTRAP, topic=COPY), flight)
after_beam = replace(pipeline, source=replace(source, start=Committed(TOPIC, fallback=Earliest())))
