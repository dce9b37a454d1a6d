"""The jobs of `files_soak`: for each format a watched folder, whose rows go into a topic, a Delta table and PostgreSQL.

`HEADRACE_FILES_SOAK` is a `Place` as JSON. `headrace run` finds the formats as variables of this module; on Spark, by
`python -m tests.soak.files_job`, each output is a query.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace import Pipeline
from headrace.delta import DeltaSink
from headrace.files import FileSource
from headrace.kafka import KafkaSink
from headrace.sql import SqlSink

FORMATS = ("jsonl", "parquet")
OUTPUTS = ("kafka", "delta", "sql")
NAME = "rows"
SCHEMA = pa.schema([("value", pa.string())])
VARIABLE = "HEADRACE_FILES_SOAK"
SPLIT_BYTES = 8192


@dataclass(frozen=True)
class Place:
    """Where the files come, and where the rows go."""

    folder: str
    bootstrap: str
    url: str

    @property
    def table(self) -> DeltaSink:
        return DeltaSink(f"{self.folder}/{NAME}")

    def pipeline(self, format_: str) -> Pipeline:
        return Pipeline(
            FileSource(
                f"{self.folder}/{format_}", format=format_, schema=SCHEMA, watch=True, discovery_interval_s=1.0,
                split_bytes=SPLIT_BYTES,
            ),
            {"kafka": KafkaSink(self.bootstrap, topic=NAME), "delta": self.table, "sql": SqlSink(self.url, NAME)},
            into_each,
        )  # fmt: skip


def into_each(batch: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    return dict.fromkeys(OUTPUTS, batch)


def __getattr__(name: str) -> Pipeline:
    if name not in FORMATS:
        raise AttributeError(name)
    return Place(**json.loads(os.environ[VARIABLE])).pipeline(name)


def on_spark(place: Place) -> None:
    from headrace.spark import session_builder
    from tests.soak.split_job import SETTINGS

    spark = session_builder().master("local-cluster[2,2,1024]").config(map=SETTINGS).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for format_ in FORMATS:
        for output in OUTPUTS:
            checkpoint = str(Path(place.folder) / f"checkpoint-{format_}-{output}")
            pipeline = place.pipeline(format_).only(output)
            query = pipeline.start_on_spark(spark, checkpointLocation=checkpoint, trigger={"processingTime": "2 seconds"})
            while query.isActive and query.status["message"].startswith("Initializing"):
                time.sleep(0.2)  # Spark gives a Python process ten seconds to start, which six at once may need
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    on_spark(Place(**json.loads(os.environ[VARIABLE])))
