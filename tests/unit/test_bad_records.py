"""Records that Arrow cannot represent, and batches larger than is usual: what may be done about them on each engine."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from headrace.beam.kafka_records import as_kafka_records
from headrace.connectors.kafka.write.sink import AtLeastOnceKafkaSink
from headrace.connectors.sink import Attempt
from headrace.enumerator.errors import CorruptDataError, UsageError
from headrace.kafka import KafkaSource, Latest
from headrace.runners.beam.event_time import ColumnTime
from headrace.testing.fake_kafka import FakeKafka, NewRecord
from pyspark_headrace.kafka_read import Mode, kafka_read

NANOSECONDS = 1_700_000_000_000_000_000  # of a producer that counts in them


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        cluster.create_topic("t")
        cluster.append("t", b"good")
        cluster.append("t", *(NewRecord(b"bad-%d" % number, timestamp_ms=NANOSECONDS) for number in range(3)))
        cluster.append("t", b"last")
        yield cluster


def write(sink: AtLeastOnceKafkaSink, value: bytes) -> None:
    task = sink.begin(Attempt(job="j", epoch=0, task=0, number=0))
    task.write(pa.RecordBatch.from_pydict({"value": [value]}))
    task.prepare()


def read(source: KafkaSource):
    with source.batches() as batches:
        return list(batches)


def test_a_timestamp_in_nanoseconds_is_an_error_that_names_its_place_by_default(kafka):
    with pytest.raises(CorruptDataError, match=r"topic 't', partition 0, .*offset 1: .*timestamp"):
        read(KafkaSource(kafka.bootstrap, topics=["t"], stop=Latest()))


def test_a_timestamp_in_nanoseconds_may_be_null_and_its_record_is_kept_and_counted(kafka, caplog):
    with caplog.at_level(logging.WARNING):
        batches = read(KafkaSource(kafka.bootstrap, topics=["t"], stop=Latest(), bad_timestamps="null"))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == [b"good", b"bad-0", b"bad-1", b"bad-2", b"last"]
    assert [row["timestamp"] is None for row in rows] == [False, True, True, True, False]
    assert "3 records so far have a timestamp that does not fit" in caplog.text


def test_in_spark_it_is_an_option(kafka):
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "t"}
    assert kafka_read(options, Mode.BATCH).source.bad_timestamps == "error"
    made = kafka_read(options | {"badTimestamps": "NULL", "maxUncompressedBatchBytes": "1000000000"}, Mode.BATCH).source
    assert (made.bad_timestamps, made.max_uncompressed_batch_bytes) == ("null", 1_000_000_000)
    assert sum(batch.column("timestamp").null_count for batch in read(made)) == 3
    with pytest.raises(UsageError, match="error or null"):
        kafka_read(options | {"badTimestamps": "skip"}, Mode.BATCH)


def test_in_beam_it_is_minus_one_and_at_the_beginning_of_time(kafka):
    source = KafkaSource(
        kafka.bootstrap,
        topics=["t"],
        stop=Latest(),
        bad_timestamps="null",
        columns=["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"],
    )
    batches = read(source)
    records = [record for batch in batches for record in as_kafka_records(batch)]
    assert [record.timestamp == -1 for record in records] == [False, True, True, True, False]
    times = [micros for batch in batches for micros in ColumnTime("timestamp").micros(batch).to_pylist()]
    assert len(set(times[1:4])) == 1
    assert times[1] < 0


def test_the_limit_of_what_a_batch_may_unpack_to_can_be_raised(kafka):
    kafka.create_topic("big")
    sink = AtLeastOnceKafkaSink(kafka.bootstrap, topic="big", properties={"compression.type": "gzip"})
    write(sink, b"x" * 3_000_000)
    limited = KafkaSource(kafka.bootstrap, topics=["big"], stop=Latest(), max_uncompressed_batch_bytes=1 << 20)
    with pytest.raises(CorruptDataError, match=r"topic 'big'.*at most 1048576 bytes .the limit is max_uncompressed"):
        read(limited)
    (batch,) = read(KafkaSource(kafka.bootstrap, topics=["big"], stop=Latest(), max_uncompressed_batch_bytes=1 << 22))
    assert len(batch.column("value")[0].as_py()) == 3_000_000
