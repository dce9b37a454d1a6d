"""Typed values by each system: on Spark, where the JVM connector has from_avro and from_json, and in one process.

Runs in a child of the harness. Every system's answers are compared with what was written, once for each kind of work.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from benchmarks.harness import Context, Measurement
from benchmarks.jars import spark_avro_jar
from benchmarks.local_systems import CHUNK, CONFLUENT_SETTINGS
from benchmarks.spark_systems import JVM_TUNING, queries, records_read, session
from benchmarks.typed_topics import HEADER, POOL, TypedShape, registry

TYPED_SPARK_SYSTEMS = ("headrace", "jvm")
TYPED_LOCAL_SYSTEMS = ("headrace", "confluent", "fastavro")
TYPED_TOPIC_SYSTEMS = ("headrace", "confluent")
_compared: set[tuple[str, object]] = set()


def typed_read(context: Context, work: TypedShape) -> Measurement:
    """One batch read of the whole topic to typed columns, to noop, from `spark.read` to its end. Records per second."""
    spark = session(context.system, (str(spark_avro_jar()),) if context.system == "jvm" else ())
    with registry(work.writer) as url:
        if (context.system, work) not in _compared:
            found = _frame(spark.read, context, work, url).selectExpr("COUNT(value)", "SUM(value.f0)").first()
            if tuple(found) != (work.records, work.sum):
                raise RuntimeError(f"{context.system} read {tuple(found)}, and {(work.records, work.sum)} was written")
            _compared.add((context.system, work))
        before, started = queries(spark), time.perf_counter()
        _frame(spark.read, context, work, url).write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - started
    return Measurement(work.records / seconds, records_read(spark, before), work.records, {"seconds": seconds})


def _frame(reader: Any, context: Context, work: TypedShape, url: str) -> Any:  # noqa: ANN401 - Spark's
    options = {"kafka.bootstrap.servers": context.bootstrap, "subscribe": work.topic}
    if context.system == "headrace":
        options |= {"valueFormat": work.format} | ({"schemaRegistryUrl": url} if work.format == "avro" else {})
        return reader.format("headrace").options(**options).schema(f"value {work.struct}").load()
    frame = reader.format("kafka").options(**options, **JVM_TUNING).load()
    if work.format == "json":
        from pyspark.sql.functions import col, from_json

        return frame.select(from_json(col("value").cast("string"), work.struct).alias("value"))
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.functions import expr

    # A reader's schema of what is wanted is the fastest way to skip; with .select("value.f0", ...) all fields are decoded.
    bare = expr(f"substring(value, {len(HEADER) + 1})")
    return frame.select(from_avro(bare, work.writer, {"avroSchema": work.reader}).alias("value"))


def undecoded(context: Context, work: TypedShape) -> Measurement:
    """The same topic's values as bytes, to noop: what is left of a read when nothing is decoded. Records per second."""
    spark = session(context.system, (str(spark_avro_jar()),) if context.system == "jvm" else ())
    options = {"kafka.bootstrap.servers": context.bootstrap, "subscribe": work.topic}
    reader = spark.read.format("headrace" if context.system == "headrace" else "kafka").options(**options)
    tuning = {} if context.system == "headrace" else JVM_TUNING
    before, started = queries(spark), time.perf_counter()
    reader.options(**tuning).load().select("value").write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started
    return Measurement(work.records / seconds, records_read(spark, before), work.records, {"seconds": seconds})


Decode = Callable[[], Sequence[Any]]


def typed_decode(context: Context, work: TypedShape) -> Measurement:
    """Values in memory, decoded on one thread. Records per second.

    headrace and fastavro give a typed column; confluent-kafka's deserializer gives dicts, which is less work.
    """
    pool = work.values()
    column = pa.array([pool[number % POOL] for number in range(work.records)], pa.binary())
    with registry(work.writer) as url:
        decode = _DECODERS[context.system](work, column, url)
        if (context.system, work) not in _compared:
            _compare(context.system, decode(), work)
        started = time.perf_counter()
        records = len(decode())
        seconds = time.perf_counter() - started
    return Measurement(records / seconds, records, work.records, {"seconds": seconds})


def _compare(system: str, found: Sequence[Any], work: TypedShape) -> None:
    rows = found.to_pylist() if isinstance(found, pa.Array) else found
    if len(rows) != work.records or sum(row["f0"] for row in rows) != work.sum:
        raise RuntimeError(f"{system} did not decode what was written")
    if set(rows[0]) != {f"f{number}" for number in work.numbers}:
        raise RuntimeError(f"{system} decoded the fields {sorted(rows[0])}")
    _compared.add((system, work))


def _headrace_format(work: TypedShape, url: str) -> Any:  # noqa: ANN401 - imported here and not before
    from headrace.formats import RegisteredAvroFormat, SchemaRegistry

    return RegisteredAvroFormat.of_subject(SchemaRegistry(url), f"{work.topic}-value", fields=work.names)


def _headrace(work: TypedShape, column: pa.Array, url: str) -> Decode:
    avro = _headrace_format(work, url)

    def decode() -> pa.Array:
        values, bad = avro.decode(column)
        if bad:
            raise RuntimeError(bad[0].reason)
        return values

    return decode


def _deserializer(work: TypedShape, url: str) -> Callable[[bytes | None], Any]:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    wanted = None if work.wanted is None else work.reader
    deserialize: Any = AvroDeserializer(SchemaRegistryClient({"url": url}), wanted)
    about = SerializationContext(work.topic, MessageField.VALUE)
    return lambda value: deserialize(value, about)


def _confluent(work: TypedShape, column: pa.Array, url: str) -> Decode:
    deserialize, values = _deserializer(work, url), column.to_pylist()
    return lambda: [deserialize(value) for value in values]


def _fastavro(work: TypedShape, column: pa.Array, url: str) -> Decode:
    import fastavro

    writer = fastavro.parse_schema(json.loads(work.writer))
    reader = None if work.wanted is None else fastavro.parse_schema(json.loads(work.reader))
    kind = _headrace_format(work, url).arrow_type

    def decode() -> pa.Array:
        bare = (io.BytesIO(value[len(HEADER) :]) for value in column.to_pylist())
        return pa.array([fastavro.schemaless_reader(value, writer, reader) for value in bare], kind)

    return decode


_DECODERS: Mapping[str, Callable[[TypedShape, pa.Array, str], Decode]] = {
    "headrace": _headrace,
    "confluent": _confluent,
    "fastavro": _fastavro,
}


@dataclass(frozen=True)
class TypedTopic:
    """A topic to be read in one process; the slow system reads this many of its records only."""

    shape: TypedShape
    slow_records: int


def typed_topic(context: Context, work: TypedTopic) -> Measurement:
    """A topic's values, read and decoded on one thread, from making the consumer to its last record. Records per second."""
    limit = work.slow_records if context.system == "confluent" else work.shape.records
    with registry(work.shape.writer) as url:
        started = time.perf_counter()
        records = _TOPIC_READERS[context.system](context.bootstrap, work.shape, url, limit)
        seconds = time.perf_counter() - started
    return Measurement(records / seconds, records, limit, {"seconds": seconds})


def _headrace_topic(bootstrap: str, shape: TypedShape, url: str, limit: int) -> int:
    from headrace.kafka import KafkaSource, Latest

    value = _headrace_format(shape, url)
    source = KafkaSource(bootstrap, topics=[shape.topic], stop=Latest(), columns=["value"], value=value)
    return sum(batch.num_rows - batch.column("value").null_count for batch in source.batches())


def _confluent_topic(bootstrap: str, shape: TypedShape, url: str, limit: int) -> int:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    deserialize = _deserializer(shape, url)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", **CONFLUENT_SETTINGS})
    consumer.assign([TopicPartition(shape.topic, number, OFFSET_BEGINNING) for number in range(shape.partitions)])
    records = 0
    while records < limit:
        messages = consumer.consume(min(CHUNK, limit - records), 1.0)
        records += sum(deserialize(message.value()) is not None for message in messages)
    consumer.close()
    return records


_TOPIC_READERS: Mapping[str, Callable[[str, TypedShape, str, int], int]] = {
    "headrace": _headrace_topic,
    "confluent": _confluent_topic,
}
