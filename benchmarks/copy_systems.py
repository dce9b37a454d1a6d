"""A topic copied to another: by headrace exactly once, by Spark's JVM connector at least once, by Flink exactly once."""

from __future__ import annotations

import uuid
from typing import Any

from benchmarks.flink_systems import flink
from benchmarks.harness import Context, Measurement
from benchmarks.spark_systems import Stream, spark_copy
from headrace.kafka import Earliest, KafkaSource, Latest
from headrace.testing.servers.kafka import create_topic, delete_topic


def copy_topic(context: Context, work: Stream) -> Measurement:
    """Key and value of the whole topic to a new one. Records per second, from the start of the query or job to its end.

    What came out is counted by reading it back, read_committed.
    """
    topic = f"bench-copy-{uuid.uuid4().hex}"
    create_topic(context.bootstrap, topic, work.shape.partitions)
    copy = _flink_copy if context.system == "flink" else spark_copy
    seconds, detail = copy(context, work, topic)
    written = KafkaSource(context.bootstrap, topics=[topic], start=Earliest(), stop=Latest(), isolation_level="read_committed")
    records = sum(batch.num_rows for batch in written.batches())
    delete_topic(context.bootstrap, topic)
    return Measurement(work.shape.records / seconds, records, work.shape.records, {"seconds": seconds, **detail})


def _flink_copy(context: Context, work: Stream, topic: str) -> tuple[float, dict[str, Any]]:
    return flink().copy(context.bootstrap, work.shape.topic, topic), {}
