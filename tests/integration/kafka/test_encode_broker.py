"""What the encoder makes, through a broker: Kafka checks and unpacks the batches, and librdkafka reads them."""

import random
from collections import defaultdict

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import broker_error
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.wire.protocol import ProduceRequest
from headrace.connectors.kafka.format.encode import Codec, EncodedBatch, RecordEncoder
from tests.helpers.kafka_tools import created

pytestmark = pytest.mark.broker
PARTITIONS = 3
NOW = 1_760_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]
"""Key, value, headers, timestamp."""


@pytest.fixture
def kafka(broker):
    with KafkaCluster(ClientConfig(bootstrap=broker.bootstrap)) as cluster:
        yield cluster


def some_records(count: int) -> list[Record]:
    """With and without each part; values are text and noise, so that blocks of both kinds are in every codec's frames."""
    noise, records = random.Random(11), []
    for n in range(count):
        value = None if n % 11 == 0 else noise.randbytes(150) if n % 3 else b"%d all work and no play " % n * 9
        headers = None if n % 4 else [("trace", b"%d" % n), ("nothing", None), ("", b"")][: n % 3 + 1]
        records.append((None if n % 5 == 0 else b"key-%d" % (n % 40), value, headers, NOW + n % 17))
    return records


def to_arrow(records: list[Record]) -> pa.RecordBatch:
    keys, values, headers, times = zip(*records, strict=True)
    listed = [each and [{"key": key, "value": value} for key, value in each] for each in headers]
    return pa.RecordBatch.from_pydict({
        "key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary()), "headers": pa.array(listed, HEADERS),
        "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
    })  # fmt: skip


def produce(kafka: KafkaCluster, topic: str, batch: EncodedBatch) -> int:
    """Produce one batch, acknowledged by all replicas; give its base offset."""
    return kafka.retrying(f"producing to {topic}", lambda: produce_once(kafka, topic, batch))


def produce_once(kafka: KafkaCluster, topic: str, batch: EncodedBatch) -> int:
    topic_class = ProduceRequest.TopicProduceData
    partition = topic_class.PartitionProduceData(index=batch.partition, records=batch.data)
    request = ProduceRequest(
        transactional_id=None, acks=-1, timeout_ms=30_000,
        topic_data=[topic_class(name=topic, topic_id=kafka.topic_id(topic), partition_data=[partition])],
    )  # fmt: skip
    response = kafka.call(kafka.leader(topic, batch.partition).broker, request)
    (answer,) = response.responses[0].partition_responses
    if answer.error_code:  # of a new topic, its leader may not know yet that it leads
        raise broker_error(answer.error_code, f"producing to {topic}", answer.error_message or "")
    return answer.base_offset


def consume(bootstrap: str, topic: str) -> dict[int, list[Record]]:
    """Every record, by partition, as librdkafka reads them; it checks the CRCs too."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "check.crcs": True}
    consumer = Consumer({**settings, "log_level": 0})
    found: dict[int, list[Record]] = defaultdict(list)
    try:
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in range(PARTITIONS)}
        consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        while any(len(found[p]) < end for p, end in ends.items()):
            message = consumer.poll(30)
            assert message is not None, f"librdkafka finds no more than {sum(map(len, found.values()))} of {ends}"
            if message.error():
                raise KafkaException(message.error())
            assert message.offset() == len(found[message.partition()])
            record = (message.key(), message.value(), message.headers(), message.timestamp()[1])
            found[message.partition()].append(record)
    finally:
        consumer.close()
    return dict(found)


@pytest.mark.parametrize(("codec", "level"), [*((codec, None) for codec in Codec), (Codec.LZ4, 12), (Codec.ZSTD, -1)])
def test_kafka_takes_the_batches_and_librdkafka_reads_them(broker, kafka, topic, codec, level):
    name, records = created(broker.bootstrap, topic, partitions=PARTITIONS), some_records(4000)
    kafka.topics([name])  # waits until the new topic is known
    plain = {"producer_id": -1, "producer_epoch": -1, "transactional": False}
    encoder = RecordEncoder(PARTITIONS, **plain, codec=codec, compression_level=level, max_batch_bytes=150_000)
    batches = [batch for at in range(0, 4000, 500) for batch in encoder.append(to_arrow(records[at : at + 500]), NOW)]
    assert batches, "no batch was cut"
    ends: dict[int, int] = defaultdict(int)
    for batch in batches + encoder.flush():
        assert produce(kafka, name, batch) == ends[batch.partition]
        ends[batch.partition] += batch.records

    found = consume(broker.bootstrap, name)
    assert {partition: len(mine) for partition, mine in found.items()} == ends
    assert sorted(map(repr, (record for mine in found.values() for record in mine))) == sorted(map(repr, records))
    keyed = [record for record in records if record[0] is not None]
    for mine in found.values():
        keys = {record[0] for record in mine}
        expected = [record for record in keyed if record[0] in keys]
        assert [record for record in mine if record[0] is not None] == expected
