"""WriteToKafka on the local runner with a real broker: pairs, rows and Arrow batches arrive, in bounded pipelines, too."""

from __future__ import annotations

from collections.abc import Callable

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from confluent_kafka import Consumer, TopicPartition

from headrace.beam import WriteToKafka
from headrace.testing.servers.kafka import BrokerCluster, create_topic
from tests.helpers.kafka_tools import created
from tests.helpers.sink_rig import read_all

pytestmark = [pytest.mark.broker, pytest.mark.timeout(200)]


def run(elements: list[object], bootstrap: str, topic: str, **arguments: object) -> None:
    with beam.Pipeline(runner="BundleBasedDirectRunner", options=PipelineOptions([])) as pipeline:
        _ = pipeline | beam.Create(elements) | WriteToKafka({"bootstrap.servers": bootstrap}, topic, **arguments)


def test_pairs_arrive(broker: BrokerCluster, topic: Callable[[], str]) -> None:
    name = created(broker.bootstrap, topic, partitions=2)
    run([(b"%d" % (number % 7), b"%04d" % number) for number in range(3000)], broker.bootstrap, name)
    assert read_all(broker.bootstrap, name) == [f"{number:04d}" for number in range(3000)]


def test_arrow_batches_arrive(broker: BrokerCluster, topic: Callable[[], str]) -> None:
    name = created(broker.bootstrap, topic)
    batches = [pa.RecordBatch.from_pydict({"value": values}) for values in ([b"a", b"b"], [b"c"])]
    run(batches, broker.bootstrap, name)
    assert read_all(broker.bootstrap, name) == ["a", "b", "c"]


def test_rows_arrive_with_headers_where_they_say(broker: BrokerCluster, topic: Callable[[], str]) -> None:
    name, other = topic(), topic()
    for each in (name, other):
        create_topic(broker.bootstrap, each, partitions=2)
    header = beam.Row(key="h", value=b"1")
    rows = [
        beam.Row(key=b"k", value=b"here", headers=[header], topic=name, partition=1, timestamp=1_700_000_000_000),
        beam.Row(key=b"k", value=b"there", headers=[header], topic=other, partition=0, timestamp=1_700_000_000_001),
    ]
    run(rows, broker.bootstrap, name, with_headers=True)
    assert read_all(broker.bootstrap, other) == ["there"]
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name, "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(name, 1, 0)])
        message = consumer.poll(30)
        assert (message.key(), message.value(), message.headers()) == (b"k", b"here", [("h", b"1")])
        assert message.timestamp()[1] == 1_700_000_000_000
    finally:
        consumer.close()
