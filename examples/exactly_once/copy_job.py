"""The Spark job of two experiments: copies a topic, and takes long over one record while a file is there.

    python copy_job.py '{"read": OPTIONS, "write": OPTIONS, "checkpoint": PATH, "slow": RECORD, "while": PATH}'

Ends when it has copied what was in the topic at its start.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from headrace.spark import warm_session_builder

Batches = Iterator[pa.RecordBatch]


def slow_over(record: bytes, hold: str) -> Callable[[Batches], Batches]:
    """Represents a computation, here one that does not end."""

    def compute(batches: Batches) -> Batches:
        for batch in batches:
            while record in batch.column("value").to_pylist() and Path(hold).exists():
                time.sleep(0.05)
            yield batch

    return compute


def main(job: dict) -> None:
    """Run the job."""
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    spark = warm_session_builder().master("local[2]").config(map=settings).getOrCreate()
    records = spark.readStream.format("headrace").options(**job["read"]).load().select("value")
    computed = records.mapInArrow(slow_over(job["slow"].encode(), job["while"]), records.schema)
    writer = computed.writeStream.format("headrace").options(**job["write"]).option("checkpointLocation", job["checkpoint"])
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
