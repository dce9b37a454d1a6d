"""Rows of a Kafka source written by a Kafka sink as they are: the first pipeline that one writes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.format.encode import key_partitions
from headrace.connectors.kafka.write.at_least_once import AtLeastOnceKafkaSink
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.enumerator.errors import UsageError
from headrace.kafka import Earliest, KafkaSource, Latest
from headrace.testing.fake_kafka import FakeKafka
from headrace.testing.fake_kafka.state.logs.batches import NewRecord
from tests.helpers.sink_rig import committer

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        cluster.create_topic("in", partitions=8)
        cluster.create_topic("out", partitions=2)
        cluster.append("in", NewRecord(b"v", key=b"k", timestamp_ms=1_700_000_000_123), partition=7)
        yield cluster


@pytest.fixture(params=[KafkaSink, AtLeastOnceKafkaSink])
def sink_of(request, kafka):
    return lambda topic: request.param(kafka.bootstrap, topic=topic)


def rows_of(kafka: FakeKafka, **arguments: Any) -> pa.RecordBatch:
    with KafkaSource(kafka.bootstrap, topics=["in"], start=Earliest(), stop=Latest(), **arguments).batches() as batches:
        (batch,) = (batch for batch in batches if batch.num_rows)
        return batch


def write(sink: Any, rows: pa.RecordBatch) -> None:
    with sink.begin(Attempt("job", 0, 0, 0)) as transaction:
        transaction.write(rows)
        handle = transaction.prepare()
    if isinstance(sink, KafkaSink):
        committer(sink, "job").commit(0, (handle,))


def test_default_columns_are_copied_to_a_topic_with_other_partitions(kafka, sink_of):
    rows = rows_of(kafka)
    assert rows["partition"].to_pylist() == [7]
    write(sink_of("out"), rows)
    (found,) = kafka.records("out")
    assert (found.key, found.value, found.timestamp_ms) == (b"k", b"v", 1_700_000_000_123)
    (expected,) = key_partitions(pa.array([b"k"]), 2).to_pylist()
    assert kafka.records("out", expected) == [found]


def test_all_columns_are_copied_and_a_partition_that_is_asked_for_is_written_to(kafka, sink_of):
    kafka.create_topic("eight", partitions=8)
    rows = rows_of(kafka, columns=["key", "value", "headers", "partition", "timestamp", "timestampType"])
    write(sink_of("eight"), rows)
    assert [each.value for each in kafka.records("eight", 7)] == [b"v"]


def test_the_topic_of_a_record_is_not_written_to_unless_it_is_asked_for(kafka, sink_of):
    with pytest.raises(UsageError, match=r"no topic: .* With a column 'offset' it is where the row was read"):
        write(sink_of(None), rows_of(kafka))
    write(sink_of(None), rows_of(kafka, columns=["value", "topic"]))
    assert len(kafka.records("in")) == 2


def test_rows_are_sharded_as_they_are_written(kafka):
    rows, sink = rows_of(kafka), KafkaSink(kafka.bootstrap, topic="out")
    assert sink.shards_of(rows, 4) == sink.shards_of(rows.select(["key"]).append_column("value", rows["value"]), 4)
    assert sink.shards_of(rows.drop_columns(["offset"]), 4).to_pylist() == [3]


def test_what_else_a_record_cannot_take_is_refused_by_name(kafka, sink_of):
    with pytest.raises(UsageError, match=r"rows for Kafka have a column 'value'.*got 'key', 'value', 'timestamp', 'more'"):
        write(sink_of("out"), rows_of(kafka).append_column("more", pa.array([1])))
