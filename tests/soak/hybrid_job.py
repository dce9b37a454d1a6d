"""The job of `hybrid_soak`: a year of daily files, then the topic they were written from, to another topic, exactly once.

    headrace run hybrid_job.py:pipeline --checkpoints FOLDER
    python -m tests.soak.hybrid_job                                on Spark

`HEADRACE_HYBRID_SOAK` is JSON: the fields of `Settings`. On Flink the soak itself makes the pipeline.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace import Pipeline
from headrace.files import FileSource
from headrace.kafka import KafkaSink, KafkaSource, Timestamp
from headrace.sources import Hybrid, SourceEnd

DAY_MS = 86_400_000
BUGS_MS = {"double": -DAY_MS, "loss": DAY_MS}
"""Injected: the topic is read from a day too early, or too late."""

VARIABLE = "HEADRACE_HYBRID_SOAK"
SPARK = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.task.maxFailures": "10",
    "spark.executor.maxNumFailures": "1000000",
    "spark.deploy.maxExecutorRetries": "-1",
}
SPLITS = "60"
"""Files in a batch of Spark."""


@dataclass(frozen=True)
class Settings:
    """Of one round. `pause_s`: how long a batch of records takes, so that kills come in the middle of the files."""

    bootstrap: str
    folder: str
    source: str
    target: str
    pause_s: float
    bug: str | None = None
    master: str = "local[2,10]"

    @property
    def gate(self) -> Path:
        """There is no topic yet where this file is not."""
        return Path(self.folder) / "open"

    @property
    def mark(self) -> Path:
        """A process has made the source of the topic."""
        return Path(self.folder) / "switching"

    def pipeline(self) -> Pipeline:
        files = FileSource(str(Path(self.folder) / "days"), columns=["value"])
        sink = KafkaSink(self.bootstrap, topic=self.target, transactional_id_prefix=self.target)
        return Pipeline(Hybrid(files, then=Topic(self)), sink, Slowly(self.pause_s))


@dataclass(frozen=True)
class Topic:
    """What follows the files."""

    settings: Settings

    def __call__(self, end: SourceEnd) -> KafkaSource:
        settings = self.settings
        if not settings.gate.exists():
            raise ConnectionError("the topic is not to be had yet")
        settings.mark.touch()
        start = Timestamp(end.newest_modified_ms + 1 + BUGS_MS.get(settings.bug or "", 0))
        return KafkaSource(settings.bootstrap, topics=[settings.source], columns=["value"], start=start)


@dataclass(frozen=True)
class Slowly:
    """A transform that changes nothing."""

    pause_s: float

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(self.pause_s)
        return batch


def on_spark(settings: Settings) -> None:
    """Until it is killed."""
    from headrace.spark import session_builder

    spark = session_builder().master(settings.master).config(map=SPARK).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    checkpoint = str(Path(settings.folder) / "checkpoint")
    settings.pipeline().start_on_spark(spark, checkpointLocation=checkpoint, maxSplitsPerTrigger=SPLITS).awaitTermination()


if VARIABLE in os.environ:
    given = Settings(**json.loads(os.environ[VARIABLE]))
    pipeline = given.pipeline()
    if __name__ == "__main__":
        on_spark(given)
