"""Two pipelines for `headrace run`: `store` adds a topic's numbers to a table of PostgreSQL, `load` its rows to another topic.

The variable RELAY is JSON: "bootstrap", "source", "target", "database".
"""

import json
import os

import pyarrow as pa

from headrace import Pipeline
from headrace.kafka import Earliest, KafkaSink, KafkaSource
from headrace.postgresql import ChangesSource
from headrace.sql import SqlSink

TABLE = "relay"


def as_rows(batch):
    return pa.record_batch({"number": batch.column("value").cast(pa.string()).cast(pa.int64())})


def as_records(batch):
    numbers = batch.column("number")
    return pa.record_batch({"value": numbers.cast(pa.string()).cast(pa.binary())})


if "RELAY" in os.environ:
    settings = json.loads(os.environ["RELAY"])
    bootstrap, database = settings["bootstrap"], settings["database"]
    numbers = KafkaSource(bootstrap, topics=[settings["source"]], start=Earliest(), columns=["value"])
    store = Pipeline(numbers, SqlSink(database, TABLE), as_rows)
    rows = ChangesSource(database, tables=[f"public.{TABLE}"], publication=TABLE, slot=f"headrace_{TABLE}")
    load = Pipeline(rows, KafkaSink(bootstrap, topic=settings["target"]), as_records)
