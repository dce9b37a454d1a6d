"""Reading a topic in one process, with no engine: `headrace`, `confluent` and `kafka-python`. Runs in a child of the harness.

The work is to get every record and add up the bytes of the values; ours come as Arrow, the others' as Python objects, which
is less than they would have to do to give Arrow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.harness import Context, Measurement
from benchmarks.topics import Shape

LOCAL_SYSTEMS = ("headrace", "confluent", "kafka-python")
CHUNK = 10_000
# By default librdkafka stops fetching for a second whenever its queue is full; so set, it is 3 to 4 times faster.
CONFLUENT_SETTINGS = {"enable.auto.commit": False, "fetch.queue.backoff.ms": 1, "queued.min.messages": 1_000_000}


@dataclass(frozen=True)
class LocalRead:
    """A topic to read; kafka-python reads this many of its records only, as what counts is records per second."""

    shape: Shape
    slow_records: int


def local_read(context: Context, work: LocalRead) -> Measurement:
    """One read, from making the consumer to its last record. Records per second."""
    limit = min(work.slow_records, work.shape.records) if context.system == "kafka-python" else work.shape.records
    started = time.perf_counter()
    records, size = _READERS[context.system](context.bootstrap, work.shape, limit)
    seconds = time.perf_counter() - started
    right = size == records * work.shape.value_bytes
    return Measurement(records / seconds, records if right else -1, limit, {"seconds": seconds})


def _headrace(bootstrap: str, shape: Shape, limit: int) -> tuple[int, int]:
    import pyarrow.compute as pc

    from headrace.kafka import KafkaSource, Latest

    records = size = 0
    for batch in KafkaSource(bootstrap, topics=[shape.topic], stop=Latest()).batches():
        records += batch.num_rows
        size += pc.sum(pc.binary_length(batch.column("value"))).as_py()
    return records, size


def _confluent(bootstrap: str, shape: Shape, limit: int) -> tuple[int, int]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", **CONFLUENT_SETTINGS})
    consumer.assign([TopicPartition(shape.topic, number, OFFSET_BEGINNING) for number in range(shape.partitions)])
    records = size = 0
    while records < limit:
        messages = consumer.consume(min(CHUNK, limit - records), 1.0)
        records += len(messages)
        size += sum([len(message.value() or b"") for message in messages])
    consumer.close()
    return records, size


def _kafka_python(bootstrap: str, shape: Shape, limit: int) -> tuple[int, int]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(shape.topic, number) for number in range(shape.partitions)])
    records = size = 0
    while records < limit:
        for messages in consumer.poll(1000, max_records=min(CHUNK, limit - records)).values():
            records += len(messages)
            size += sum([len(message.value) for message in messages])
    consumer.close()
    return records, size


_READERS: Mapping[str, Callable[[str, Shape, int], tuple[int, int]]] = {
    "headrace": _headrace,
    "confluent": _confluent,
    "kafka-python": _kafka_python,
}
