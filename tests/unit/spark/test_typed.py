"""Typed keys and values in `format("headrace")`: from options to rows of Spark's types, and what a checkpoint pins."""

from __future__ import annotations

import datetime
import gc
import io
import json
import logging
import pickle
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import SerializationContext
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from headrace.connectors.base.dead_letters import ADDRESSED_TYPE, LETTER_TYPE
from headrace.connectors.base.sink import Attempt
from headrace.connectors.formats.registry import client
from headrace.enumerator.errors import CorruptDataError, StateError, UsageError
from headrace.errors import AuthenticationError, UnknownSchemaError
from headrace.runners.spark import private
from headrace.runners.spark.stream import StreamPlanner
from headrace.spark import kafka_formats, time_zone
from headrace.spark.connectors import planned_stream_write
from headrace.spark.kafka_read import Mode, any_read, kafka_read
from headrace.testing.fake_kafka import FakeKafka, NewRecord, ReadRecord
from pyspark_headrace import DefaultSource
from tests.helpers.envelopes import body_of
from tests.helpers.forked import in_child
from tests.helpers.schema_registry import FakeRegistry

FIELDS: list[dict[str, Any]] = [
    {"name": "carrier", "type": {"type": "enum", "name": "Carrier", "symbols": ["UA", "AA"]}},
    {"name": "delay", "type": ["null", "int"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {
        "name": "legs",
        "type": {"type": "array", "items": {"type": "record", "name": "Leg", "fields": [
            {"name": "to", "type": "string"}, {"name": "km", "type": "int"}]}},
    },
]  # fmt: skip
FLIGHT = {"type": "record", "name": "Flight", "fields": FIELDS}
LATER = {**FLIGHT, "fields": [*FIELDS, {"name": "gate", "type": "string", "default": "?"}]}
WITHOUT = {**FLIGHT, "fields": FIELDS[1:]}
OTHER = {**FLIGHT, "fields": [FIELDS[0], {"name": "delay", "type": ["null", "string"]}, *FIELDS[2:]]}
ROW = {"carrier": "UA", "delay": 5, "at": 1000, "legs": [{"to": "Rome", "km": 7}]}


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        kafka.create_topic("flights", partitions=1)
        yield kafka


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    client._known.clear()
    kafka_formats._registered.cache_clear()
    monkeypatch.setattr(client, "_PAUSES_S", ())
    with FakeRegistry() as registry:
        yield registry


def avro(schema: Any, row: Any, schema_id: int | None = None) -> bytes:
    out = io.BytesIO(b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big"))
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


class Frame:
    """What Spark does with a batch read: its options, the user's schema if there is one, and the rows of its tasks."""

    def __init__(self, kafka: FakeKafka, schema: StructType | None = None, **options: str) -> None:
        self.source = DefaultSource({"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "flights", **options})
        self.schema = self.source.schema() if schema is None else schema

    def batches(self) -> list[pa.RecordBatch]:
        reader = self.source.reader(self.schema)
        partitions = reader.partitions()
        there = pickle.loads(pickle.dumps(reader))
        found = [batch for each in partitions for batch in there.read(each)]
        assert all(batch.schema.equals(to_arrow_schema(self.schema, timezone="UTC")) for batch in found)  # as Spark asks
        return found

    def column(self, name: str) -> list[Any]:
        return [row for batch in self.batches() for row in batch.column(name).to_pylist()]


def value_of(*fields: StructField) -> StructType:
    return StructType([StructField("value", StructType(list(fields)))])


def typed(registry: FakeRegistry, **options: str) -> dict[str, str]:
    return {"valueFormat": "avro", "schemaRegistryUrl": registry.url, **options}


# --- columns


def test_values_of_a_registry_are_columns_of_sparks_types_whichever_schemas_they_have(kafka, registry):
    first, later = registry.register("flights-value", FLIGHT), registry.register("flights-value", LATER)
    kafka.append("flights", avro(FLIGHT, ROW, first), avro(LATER, {**ROW, "gate": "B"}, later), NewRecord(None))
    frame = Frame(kafka, **typed(registry))
    legs = "array<struct<to:string,km:int>>"
    wanted = f"struct<carrier:string,delay:int,at:timestamp,legs:{legs},gate:string>"
    assert frame.schema["value"].dataType.simpleString() == wanted
    values = frame.column("value")
    assert [row and (row["carrier"], row["delay"], row["gate"]) for row in values] == [("UA", 5, "?"), ("UA", 5, "B"), None]
    assert (values[0]["at"].timestamp(), values[0]["legs"]) == (1.0, [{"to": "Rome", "km": 7}])


def test_the_version_that_is_named_is_the_readers_schema(kafka, registry):
    registry.register("flights-value", FLIGHT)
    registry.register("flights-value", LATER)
    assert "gate" not in Frame(kafka, **typed(registry, valueSchemaVersion="1")).schema["value"].dataType.names
    with pytest.raises(UnknownSchemaError, match="version 9 of subject 'flights-value'"):
        Frame(kafka, **typed(registry, valueSchemaVersion="9"))


def test_only_what_the_users_schema_asks_for_is_decoded(kafka, registry):
    registry.register("flights-value", FLIGHT)
    kafka.append("flights", avro(FLIGHT, ROW, 1))
    assert FIELDS[3]["type"]["items"]["name"] == "Leg"
    kafka.append("flights", b"\0\0\0\0\1\x00\x02\x0a")  # ends after the field that is asked for
    frame = Frame(kafka, value_of(StructField("delay", IntegerType())), onBadRecord="keep", **typed(registry))
    assert frame.column("value") == [{"delay": 5}, None]
    for kind, words in [
        (StructField("dealy", IntegerType()), "record Flight has the fields carrier, delay, at, legs; asked for: 'dealy'"),
        (StructField("delay", StringType()), r"value struct<delay:string>; it may hold .* value struct<delay:int>"),
    ]:
        with pytest.raises(UsageError, match=words):
            Frame(kafka, value_of(kind), **typed(registry)).batches()


def test_a_schema_in_the_options_or_in_a_file_needs_no_registry_and_no_header(kafka, tmp_path):
    kafka.append("flights", avro(FLIGHT, ROW))
    path = tmp_path / "flight.avsc"
    path.write_text(json.dumps(FLIGHT))
    for options in ({"valueSchema": json.dumps(FLIGHT)}, {"valueSchemaFile": str(path)}):
        assert Frame(kafka, valueFormat="avro", **options).column("value")[0]["carrier"] == "UA"


def test_json_and_strings_keys_and_values(kafka):
    kafka.append("flights", NewRecord(b'{"a": 1, "t": "2020-01-01T00:00:00Z"}', key="Zürich".encode()))
    value = StructType([StructField("a", IntegerType()), StructField("t", TimestampType())])
    schema = StructType([StructField("key", StringType()), StructField("value", value)])
    options = {"valueFormat": "json", "keyFormat": "string"}
    frame = Frame(kafka, schema, **options)
    assert (frame.column("key"), frame.column("value")[0]["a"]) == (["Zürich"], 1)
    assert Frame(kafka, valueSchema=value.json(), **options).column("value") == frame.column("value")
    with pytest.raises(UsageError, match="valueFormat=json needs the type of the value"):
        Frame(kafka, **options)


def test_json_times_without_a_zone_are_in_the_sessions_or_the_machines_or_that_of_the_option(kafka, monkeypatch):
    """Spark gives it to the program of a task, whatever was set: tests/integration/spark/test_fake_kafka.py."""
    kafka.append("flights", b'{"t": "2020-07-01T12:00:00"}', b'{"t": "2020-07-01T12:00:00.1234567Z"}')
    schema = value_of(StructField("t", TimestampType()))

    def hours(**options: str) -> list[int]:
        return [
            row["t"].astimezone(datetime.UTC).hour
            for row in Frame(kafka, schema, valueFormat="json", **options).column("value")
        ]

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert hours() == [3, 12]
    monkeypatch.setattr(time_zone, "task_time_zone", lambda: "GMT+5")
    assert hours() == [7, 12]
    assert hours(timeZone="America/New_York") == [16, 12]


class LooksAtThreads:
    """Garbage whose finalizer asks for what Python guards by the lock that it has while it lists the frames of threads."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        sys._current_frames()


def test_the_zone_of_a_task_is_found_while_the_collector_ends_what_looks_at_threads():
    """Regression: in Python 3.11 the task hung (gh-106883)."""

    def look() -> None:
        private.TaskContext = SimpleNamespace(get=lambda: SimpleNamespace(getLocalProperty=lambda name: "0"))
        for _ in range(20):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        for allocations in range(1, 30):  # until one of those is the twentieth thread's frame
            gc.collect()
            LooksAtThreads()
            gc.set_threshold(allocations)
            private.task_time_zone()
            gc.set_threshold(0)

    assert in_child(look) == "None"


def test_a_type_that_spark_does_not_have_is_refused_and_its_neighbours_are_read(kafka):
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "u", "type": ["int", "string"]}]}
    kafka.append("flights", avro(schema, {"a": 1, "u": "x"}))
    options = {"valueFormat": "avro", "valueSchema": json.dumps(schema)}
    with pytest.raises(UsageError, match=r"Spark has no type for .*union.*; with \.schema\(\.\.\.\) ask only for"):
        Frame(kafka, **options)
    assert Frame(kafka, value_of(StructField("a", IntegerType())), **options).column("value") == [{"a": 1}]


def test_a_field_that_contains_itself_is_skipped_or_json_text_and_pinned_as_such(kafka, registry):
    fields = [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "Tree"]}]
    tree = {"type": "record", "name": "Tree", "fields": fields}
    registry.register("flights-value", tree)
    kafka.append("flights", avro(tree, {"n": 1, "next": {"n": 2, "next": None}}, 1))
    with pytest.raises(UsageError, match=r"contains itself at field 'next'.*\(as an option: valueRecursive=json\)"):
        Frame(kafka, **typed(registry))
    assert Frame(kafka, value_of(StructField("n", IntegerType())), **typed(registry)).column("value") == [{"n": 1}]
    options = typed(registry, valueRecursive="json")
    assert Frame(kafka, **options).column("value") == [{"n": 1, "next": '{"n":2,"next":null}'}]
    assert pinned(triggered(kafka, **options))["type"] == {"n": "int32", "next": "string"}
    with pytest.raises(UsageError, match="'keyRecursive' means nothing without keyFormat=avro"):
        Frame(kafka, keyRecursive="json", **options)


def test_a_column_that_no_process_asks_for_may_have_a_type_that_spark_does_not_have(kafka):
    """Its records are still left out, or kept with a reason, where they end too early."""
    union = {"name": "u", "type": ["int", "string"]}
    itself = {"name": "more", "type": ["null", "R"]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, union, itself]}
    kafka.append("flights", avro(schema, {"a": 1, "u": "x", "more": None}), b"\x02")
    options = {"valueFormat": "avro", "valueSchema": json.dumps(schema)}
    offsets = StructType([StructField("offset", LongType())])
    assert Frame(kafka, offsets, **options).column("offset") == [0, 1]
    assert Frame(kafka, offsets, onBadRecord="skip", **options).column("offset") == [0]
    settings = StructType([*offsets, StructField("badReason", StringType())])
    assert [bool(each) for each in Frame(kafka, settings, onBadRecord="keep", **options).column("badReason")] == [False, True]
    assert Frame(kafka, offsets, valueFormat="json").column("offset") == [0, 1]
    assert Frame(kafka, offsets, valueFormat="json", onBadRecord="skip").column("offset") == []


def test_a_query_that_asks_for_no_value_pins_the_whole_schema(kafka, registry):
    registry.register("flights-value", FLIGHT)
    wanted = StructType([StructField("offset", LongType())])
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "flights", **typed(registry)}
    pins = [kafka_read(options, Mode.STREAM, each).source.typed.formats["value"].pinned for each in (None, wanted)]
    assert pins[0] == pins[1]
    assert list(pins[1]["type"]) == ["carrier", "delay", "at", "legs"]


def test_a_decimal_that_spark_cannot_hold_is_refused_and_the_field_named():
    money = {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}
    inner = {"type": "record", "name": "I", "fields": [{"name": "sums", "type": {"type": "array", "items": money}}]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "of", "type": inner}]}
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "valueFormat": "avro"}
    with pytest.raises(UsageError, match=r"Spark has no type for decimal256\(50, 2\), which field 'of.sums' has"):
        kafka_read({**options, "valueSchema": json.dumps(schema)}, Mode.STREAM)


def test_where_formats_are_wrong_their_reason_is_reported_whatever_the_kind_of_query():
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "startingOffsets": "latest"}
    with pytest.raises(UsageError, match="valueFormat=json needs the type of the value"):
        any_read({**options, "valueFormat": "json"})


def test_a_topic_that_is_named_twice_has_one_subject(registry):
    registry.register("t-value", FLIGHT)
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t,t"}
    assert "value" in kafka_read({**options, **typed(registry)}, Mode.STREAM).source.typed.formats


def test_a_time_beyond_sparks_range_is_a_bad_value_and_costs_no_neighbour(kafka):
    schema = {"type": "record", "name": "R", "fields": [FIELDS[2]]}
    times = [0, 2**62, 1, -(2**62), 2]
    kafka.append("flights", *(avro({"type": "record", "name": "R", "fields": [{"name": "at", "type": "long"}]}, {"at": each})
                              for each in times))  # fmt: skip
    frame = Frame(kafka, valueFormat="avro", valueSchema=json.dumps(schema), onBadRecord="keep")
    assert [row and row["at"].timestamp() for row in frame.column("value")] == [0.0, None, 0.001, None, 0.002]
    assert [reason is not None for reason in frame.column("badReason")] == [False, True, False, True, False]


def test_times_of_a_day_are_cut_to_microseconds_as_timestamps_are(kafka):
    """Regression: Spark's `time` kept nanoseconds that it does not show, so two times that look alike were not equal."""
    schema = 'syntax = "proto3"; import "google/type/timeofday.proto"; message R { repeated google.type.TimeOfDay at = 1; }'
    kafka.append("flights", bytes.fromhex("0a0320845e"), bytes.fromhex("0a0520904e1801"))
    values = Frame(kafka, valueFormat="protobuf", valueSchema=schema).column("value")
    assert values == [{"at": [datetime.time(0, 0, 0, 12)]}, {"at": [datetime.time(0, 0, 1, 10)]}]


# --- bad records


@pytest.fixture
def with_bad(kafka: FakeKafka, registry: FakeRegistry) -> dict[str, str]:
    """Offsets 0 to 4, of which 1 and 3 are bad."""
    registry.register("flights-value", FLIGHT)
    good = avro(FLIGHT, ROW, 1)
    kafka.append("flights", good, b"not avro", NewRecord(None, key=b"k"), b"\0\0\0\0\1", good)
    return typed(registry)


def test_a_bad_record_fails_the_task_by_default_and_is_named(kafka, with_bad):
    with pytest.raises(CorruptDataError) as raised:
        Frame(kafka, **with_bad).batches()
    assert "flights-0, offset 1: the value cannot be decoded: the value starts with byte 110" in str(raised.value)
    assert "It has 8 bytes, which start with 6e 6f 74 20 61 76 72 6f" in str(raised.value)


def test_bad_records_are_kept_with_their_bytes_and_the_reason(kafka, with_bad):
    frame = Frame(kafka, onBadRecord="keep", **with_bad)
    assert frame.schema.names[-3:] == ["badValue", "badReason", "deadLetter"]
    assert [row is not None for row in frame.column("value")] == [True, False, False, False, True]
    assert frame.column("badValue") == [None, b"not avro", None, b"\0\0\0\0\1", None]
    assert [reason and reason[:6] for reason in frame.column("badReason")] == [None, "value:", None, "value:", None]


def test_a_dead_letter_is_whole_though_the_users_schema_leaves_out_all_else(kafka, with_bad):
    letter = from_arrow_schema(pa.schema([("deadLetter", LETTER_TYPE)]))["deadLetter"]
    delay = StructField("value", StructType([StructField("delay", IntegerType())]))
    frame = Frame(kafka, StructType([delay, letter]), onBadRecord="keep", **with_bad)
    found = [row and (row["key"], row["value"]) for row in frame.column("deadLetter")]
    assert found == [None, (None, b"not avro"), None, (None, b"\0\0\0\0\1"), None]


def test_a_sink_takes_dead_letters_that_say_where_they_go_and_refuses_others(kafka):
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": "out"}
    value, as_read, as_sent = (
        from_arrow_schema(pa.schema([each]))[0]
        for each in [("value", pa.binary()), ("deadLetter", LETTER_TYPE), ("deadLetter", ADDRESSED_TYPE)]
    )
    assert planned_stream_write(options, StructType([as_sent, value]), complete=False)[1] == ["deadLetter", "value"]
    with pytest.raises(UsageError, match=r"does not say where dead letters go: headrace\.spark\.with_dead_letters"):
        planned_stream_write(options, StructType([value, as_read]), complete=False)


def test_bad_records_are_skipped_and_counted_in_the_log(kafka, with_bad, caplog):
    with caplog.at_level(logging.WARNING):
        assert Frame(kafka, onBadRecord="skip", **with_bad).column("offset") == [0, 2, 4]
    assert "2 records so far cannot be decoded, and are left out" in caplog.text


def test_a_registry_that_gives_no_answer_stops_the_task_and_nothing_is_skipped_for_it(kafka, registry):
    registry.register("flights-value", FLIGHT)
    kafka.append("flights", avro(FLIGHT, ROW, 1), avro(FLIGHT, ROW, 2))
    frame = Frame(kafka, onBadRecord="skip", **typed(registry))
    reader = frame.source.reader(frame.schema)
    (partition,) = reader.partitions()
    registry.answers = [(403, {}, b"")]
    with pytest.raises(AuthenticationError, match="schema 2"):
        list(reader.read(partition))
    assert registry.asked[-1] == "GET /schemas/ids/2"


def test_a_secret_by_reference_is_in_no_plan_no_task_no_checkpoint_and_no_error(kafka, monkeypatch):
    """What Spark is given to keep or to send is searched for it; a task reads it by itself, for an id that it does not know."""
    client._known.clear()
    monkeypatch.setattr(client, "_PAUSES_S", ())
    monkeypatch.setenv("REGISTRY_LOGIN", "me:hunter2")
    with FakeRegistry(user="me:hunter2") as registry:
        registry.register("flights-value", FLIGHT)
        kafka.append("flights", avro(FLIGHT, ROW, 1), avro(LATER, {**ROW, "gate": "B"}, 2))
        options = typed(registry, **{f"schema.registry.{name}": value for name, value in BY_REFERENCE.items()})
        frame = Frame(kafka, **options)
        reader = frame.source.reader(frame.schema)
        partitions = reader.partitions()
        query = triggered(kafka, **options)
        read = kafka_read(query.options, Mode.STREAM)
        kept = [pickle.dumps(each) for each in (frame.source, reader, *partitions, read.source)]
        shown = [repr(each) for each in (frame.source, reader, *partitions, read, query.offset_log)]
        assert not any(b"hunter2" in each or b"bWU6aHVudGVyMg" in each for each in kept)  # nor in base64
        assert "hunter2" not in "".join(shown)
        registry.register("flights-value", LATER)
        there = pickle.loads(pickle.dumps(reader))
        assert sum(batch.num_rows for each in partitions for batch in there.read(each)) == 2
        client._known.clear()
        monkeypatch.setenv("REGISTRY_LOGIN", "me:hunter3")
        with pytest.raises(AuthenticationError, match="answered 401") as raised:
            list(pickle.loads(pickle.dumps(reader)).read(partitions[0]))
        assert "hunter" not in str(raised.value)
        monkeypatch.delenv("REGISTRY_LOGIN")
        with pytest.raises(UsageError, match="'REGISTRY_LOGIN', which is not set here"):
            list(pickle.loads(pickle.dumps(reader)).read(partitions[0]))


BY_REFERENCE = {
    "config.providers": "env",
    "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    "basic.auth.user.info": "${env:REGISTRY_LOGIN}",
}


# --- the checkpoint


class Query:
    """A streaming query's planner, run again over the same offset log."""

    def __init__(self, kafka: FakeKafka, **options: str) -> None:
        self.options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "flights", "startingOffsets": "earliest"}
        self.offset_log: list[str] = []
        self.run(**options)

    def run(self, **options: str) -> None:
        self.options |= options
        self.planner = StreamPlanner(kafka_read(self.options, Mode.STREAM), lambda: 0.0)

    def trigger(self) -> bool:
        start = self.offset_log[-1] if self.offset_log else self.planner.initial_offsets()
        end = self.planner.next_offsets(start, None, None)
        if end != start:
            self.offset_log.append(end)
        return end != start


@pytest.fixture
def query(kafka, registry) -> Query:
    registry.register("flights-value", FLIGHT)
    kafka.append("flights", avro(FLIGHT, ROW, 1))
    return triggered(kafka, **typed(registry))


def triggered(kafka: FakeKafka, **options: str) -> Query:
    query = Query(kafka, **options)
    assert query.trigger()
    return query


def pinned(query: Query) -> Any:
    (own,) = (key for key in json.loads(query.offset_log[-1]) if ":" in key)
    return body_of(own.removeprefix("headrace:"))["formats"]["value"]


def test_a_schema_with_more_fields_continues_and_is_pinned_with_the_next_batch(kafka, registry, query):
    assert (pinned(query)["id"], list(pinned(query)["type"])) == ("1", ["carrier", "delay", "at", "legs"])
    registry.register("flights-value", LATER)
    query.run()
    assert not query.trigger()
    kafka.append("flights", avro(FLIGHT, ROW, 1))
    assert query.trigger()
    assert (pinned(query)["id"], list(pinned(query)["type"])) == ("2", ["carrier", "delay", "at", "legs", "gate"])


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (WITHOUT, "its schema has no field 'carrier' any more"),
        (OTHER, "the type of 'delay' is another one now: string, and was int32"),
    ],
)
def test_a_schema_that_lacks_what_was_read_is_refused_and_the_version_of_before_continues(
    kafka, registry, query, schema, words
):
    registry.register("flights-value", schema)
    query.run()
    with pytest.raises(StateError, match=f"written with valueFormat=avro, and {words}.*valueSchemaVersion"):
        query.trigger()
    query.run(valueSchemaVersion="1")
    kafka.append("flights", avro(FLIGHT, ROW, 1))
    assert query.trigger()


@pytest.mark.parametrize(
    "schemas",
    [{"flights-value": LATER}, {"other-value": {"type": "record", "name": "Other", "fields": []}, "flights-value": FLIGHT}],
    ids=["another schema under the same id", "its newest schema has another id"],
)
def test_another_registry_is_refused(kafka, query, schemas):
    with FakeRegistry() as other:
        for subject, schema in schemas.items():
            other.register(subject, schema)
        query.run(schemaRegistryUrl=other.url)
        with pytest.raises(StateError, match="schema 1 of the registry was another one then: it is another registry"):
            query.trigger()


def test_a_registry_that_does_not_have_the_schema_of_before_is_refused(kafka, registry, query):
    registry.register("flights-value", LATER)
    query.run()
    kafka.append("flights", avro(FLIGHT, ROW, 1))
    assert query.trigger()
    assert pinned(query)["id"] == "2"
    registry.start_over()
    registry.register("flights-value", LATER)
    query.run()
    with pytest.raises(StateError, match="the registry has no schema 2, which was read then: it is another registry"):
        query.trigger()


def test_what_a_checkpoint_pins_is_asked_of_the_registry_once(registry, query):
    registry.register("flights-value", LATER)
    query.run()
    asked = len(registry.asked)
    assert not query.trigger()
    assert not query.trigger()
    assert len(registry.asked) - asked <= 1


def test_a_replayed_batch_is_compared_too(registry, query):
    registry.register("flights-value", WITHOUT)
    query.run()
    with pytest.raises(StateError, match="no field 'carrier'"):
        query.planner.tasks(query.planner.initial_offsets(), query.offset_log[-1])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([StructField("b", StringType())], "its schema has no field 'a' any more"),
        (
            [StructField("a", StringType()), StructField("b", StringType())],
            "the type of 'a' is another one now: string, and was",
        ),
    ],
)
def test_a_type_of_json_that_lacks_what_was_read_is_refused_and_one_with_more_continues(kafka, value, words):
    """Regression: it was accepted, and with onBadRecord=skip all records of the other type were left out."""
    kafka.append("flights", b'{"a": 1, "b": "x"}')
    first = [StructField("a", IntegerType()), StructField("b", StringType())]
    query = triggered(kafka, valueFormat="json", valueSchema=StructType(first).json())
    assert pinned(query) == {"format": "json", "type": {"a": "int32", "b": "string"}}
    query.run(valueSchema=StructType(value).json())
    with pytest.raises(StateError, match=f"written with valueFormat=json, and {words}.*schema of earlier, or start over"):
        query.trigger()
    query.run(valueSchema=StructType([*first, StructField("c", LongType())]).json())
    kafka.append("flights", b'{"a": 1, "b": "x"}')
    assert query.trigger()
    assert list(pinned(query)["type"]) == ["a", "b", "c"]


def test_another_format_or_none_is_refused_and_one_that_is_new_is_taken(kafka, query):
    del query.options["schemaRegistryUrl"]
    query.run(valueFormat="string")
    with pytest.raises(StateError, match="written with valueFormat=avro, and it is string now"):
        query.trigger()
    del query.options["valueFormat"]
    query.run()
    with pytest.raises(StateError, match="there is no valueFormat now"):
        query.trigger()
    plain = triggered(kafka)
    plain.run(valueFormat="string")
    kafka.append("flights", b"x")
    assert plain.trigger()
    assert pinned(plain) == {"format": "string"}


# --- writing


class Output:
    """A sink as the options make it for a frame, and what it writes in a task."""

    def __init__(self, kafka: FakeKafka, **options: str) -> None:
        self.kafka, self.options = kafka, {"kafka.bootstrap.servers": kafka.bootstrap, "topic": "flights", **options}

    def write(self, rows: list[dict[str, Any]], **kinds: pa.DataType) -> list[ReadRecord]:
        schema = pa.schema(list(kinds.items()))
        write, columns = planned_stream_write(self.options, from_arrow_schema(schema), complete=False)
        with pickle.loads(pickle.dumps(write.sink)).begin(Attempt("job", 0, 0, 0)) as transaction:
            transaction.write(pa.RecordBatch.from_pylist(rows, schema=schema).select(columns))
            transaction.prepare()
        return list(self.kafka.records("flights", isolation_level="read_uncommitted"))


STRUCT = pa.struct([("carrier", pa.string()), ("delay", pa.int32())])
SIMPLE = {"type": "record", "name": "Flight", "fields": [FIELDS[0], FIELDS[1]]}


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_frame_is_written_by_the_schema_of_a_registry_and_confluents_deserializer_reads_it(kafka, registry, delivery):
    registry.register("flights-key", '"string"')
    registry.register("flights-value", SIMPLE)
    rows = [{"key": "a", "value": {"carrier": "UA", "delay": 5}}, {"key": "b", "value": None}, {"key": None, "value": None}]
    written = Output(kafka, delivery=delivery, keyFormat="avro", **typed(registry)).write(rows, key=pa.string(), value=STRUCT)
    theirs = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    for field in ("key", "value"):
        context = SerializationContext("flights", field)
        found = [getattr(each, field) and theirs(getattr(each, field), context) for each in written]
        assert found == [row[field] for row in rows]


def test_a_schema_of_ones_own_has_to_be_registered_unless_it_is_to_be(kafka, registry):
    registry.register("flights-value", LATER)
    options = typed(registry, valueSchema=json.dumps(SIMPLE))
    rows = [{"value": {"carrier": "UA", "delay": 5}}]
    with pytest.raises(UnknownSchemaError, match="this schema in subject 'flights-value'"):
        Output(kafka, **options).write(rows, value=STRUCT)
    (record,) = Output(kafka, registerSchemas="true", **options).write(rows, value=STRUCT)
    assert record.value == avro(SIMPLE, rows[0]["value"], 2)
    kafka_formats._registered.cache_clear()
    assert len(Output(kafka, **options).write(rows, value=STRUCT)) == 2


def test_a_frame_is_written_without_a_registry_too(kafka):
    rows = [{"key": "Zürich", "value": {"carrier": "UA", "delay": 5}}]
    plain = Output(kafka, valueFormat="avro", valueSchema=json.dumps(SIMPLE), keyFormat="string")
    assert plain.write(rows, key=pa.string(), value=STRUCT)[0].value == avro(SIMPLE, rows[0]["value"])
    as_json = Output(kafka, valueFormat="json").write(rows, key=pa.string(), value=STRUCT)[-1]
    assert (as_json.key, json.loads(as_json.value)) == ("Zürich".encode(), rows[0]["value"])


@pytest.mark.parametrize(
    ("strategy", "subject"), [("RecordNameStrategy", "air.Flight"), ("TopicRecordNameStrategy", "flights-air.Flight")]
)
def test_subjects_are_named_by_a_strategy_in_writing_and_in_reading(kafka, registry, strategy, subject):
    schema = {**SIMPLE, "name": "air.Flight"}
    options = typed(registry, **{"schema.registry.value.subject.name.strategy": strategy})
    rows = [{"value": {"carrier": "UA", "delay": 5}}]
    Output(kafka, registerSchemas="true", valueSchema=json.dumps(schema), **options).write(rows, value=STRUCT)
    assert SchemaRegistryClient({"url": registry.url}).get_subjects() == [subject]
    Output(kafka, valueRecord="air.Flight", **options).write(rows, value=STRUCT)
    assert Frame(kafka, valueRecord="air.Flight", **options).column("value") == [rows[0]["value"]] * 2
    with pytest.raises(UsageError, match=f"option 'valueRecord' is missing: {strategy} names the subject after the record"):
        Frame(kafka, **options)
    with pytest.raises(UnknownSchemaError, match="Other"):
        Frame(kafka, valueRecord="air.Other", **options)


def test_a_record_names_one_subject_of_several_topics(kafka, registry):
    kafka.create_topic("others", partitions=1)
    kafka.append("others", b"\0" + registry.register("air.Flight", PROTO, kind="PROTOBUF").to_bytes(4, "big") + b"\0\x10\x05")
    by_record = {"schema.registry.value.subject.name.strategy": "RecordNameStrategy", "subscribe": "flights,others"}
    options = {"valueFormat": "protobuf", "schemaRegistryUrl": registry.url, **by_record}
    (value,) = Frame(kafka, valueMessage="air.Flight", **options).column("value")
    assert value["delay"] == 5
    with pytest.raises(UsageError, match="option 'valueMessage' is missing: RecordNameStrategy"):
        Frame(kafka, **options)
    by_both = {**options, "schema.registry.value.subject.name.strategy": "TopicRecordNameStrategy"}
    with pytest.raises(UsageError, match="'valueSubject' is missing: with a pattern or several topics"):
        Frame(kafka, valueMessage="air.Flight", **by_both)


def test_a_schema_of_ones_own_is_registered_with_what_it_refers_to(kafka, registry):
    registry.register("carrier", FIELDS[0]["type"])
    schema = {**SIMPLE, "fields": [{"name": "carrier", "type": "Carrier"}, FIELDS[1]]}
    uses = [{"name": "Carrier", "subject": "carrier", "version": 1}]
    options = typed(registry, valueSchema=json.dumps(schema), valueSchemaReferences=json.dumps(uses))
    rows = [{"value": {"carrier": "UA", "delay": 5}}]
    Output(kafka, registerSchemas="true", **options).write(rows, value=STRUCT)
    found = SchemaRegistryClient({"url": registry.url}).get_latest_version("flights-value").schema
    assert [(each.name, each.subject, each.version) for each in found.references] == [("Carrier", "carrier", 1)]
    kafka_formats._registered.cache_clear()
    Output(kafka, **options).write(rows, value=STRUCT)
    assert Frame(kafka, **typed(registry)).column("value") == [rows[0]["value"]] * 2


def test_a_registry_is_not_asked_for_every_batch(kafka, registry):
    registry.register("flights-value", SIMPLE)
    output = Output(kafka, **typed(registry))
    for _ in range(3):
        output.write([{"value": {"carrier": "UA", "delay": 5}}], value=STRUCT)
    assert len([asked for asked in registry.asked if "versions" in asked]) == 1


def referring(more: dict[str, Any]) -> dict[str, str]:
    return {"valueFormat": "avro", "valueSchemaReferences": json.dumps([{"name": "A", "subject": "a", **more}])}


@pytest.mark.parametrize(
    ("options", "kinds", "words"),
    [
        ({"keyFormat": "string"}, {"value": pa.string()}, "'keyFormat' needs a column 'key'; the columns are value"),
        ({"valueFormat": "avro"}, {"value": STRUCT}, "valueFormat=avro needs schemaRegistryUrl, or a schema in"),
        ({"valueFormat": "avro", "valueSchema": json.dumps(LATER)}, {"value": STRUCT}, "lacks at, legs, gate"),
        ({"valueFormat": "avro", "valueSchema": '"int"', "valueSubject": "s"}, {"value": pa.int32()}, "need schemaRegistryUrl"),
        (referring({"version": 1}), {"value": STRUCT}, "'valueSchemaReferences' needs schemaRegistryUrl and valueSchema"),
        (referring({}), {"value": STRUCT}, "'valueSchemaReferences' must be a JSON list of objects like"),
        ({"valueFormat": "avro", "valueSchema": "{}"}, {"value": STRUCT}, "not an Avro schema"),
        ({"valueFormat": "json", "valueSchema": "{}"}, {"value": STRUCT}, "the frame has the type"),
        ({"registerSchemas": "true"}, {"value": pa.string()}, "'registerSchemas' needs schemaRegistryUrl"),
        ({}, {"value": STRUCT}, "value attribute type must be string or binary"),
    ],
)
def test_what_a_frame_cannot_be_written_as_is_refused_when_it_is_planned(kafka, options, kinds, words):
    with pytest.raises(UsageError, match=words):
        Output(kafka, **options).write([], **kinds)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_column_that_the_option_topic_overrides_may_be_anything(kafka, delivery):
    """Regression: a column `topic` of numbers was refused."""
    output = Output(kafka, delivery=delivery)
    (record,) = output.write([{"value": "v", "topic": 7}], value=pa.string(), topic=pa.int64())
    assert record.value == b"v"
    del output.options["topic"]
    with pytest.raises(UsageError, match="topic attribute type must be string, not bigint"):
        output.write([], value=pa.string(), topic=pa.int64())


def test_a_value_that_the_schema_cannot_hold_is_refused_and_nothing_of_the_batch_is_written(kafka):
    output = Output(kafka, valueFormat="avro", valueSchema=json.dumps(SIMPLE))
    with pytest.raises(UsageError, match="not a symbol of the Avro enum"):
        output.write([{"value": {"carrier": "UA", "delay": 1}}, {"value": {"carrier": "XX", "delay": 1}}], value=STRUCT)
    assert kafka.records("flights", isolation_level="read_uncommitted") == []


# --- options

BY_RECORD = {
    "valueFormat": "avro",
    "schemaRegistryUrl": "http://a",
    "schema.registry.value.subject.name.strategy": "RecordNameStrategy",
}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"valueFormat": "avro"}, "valueFormat=avro needs schemaRegistryUrl, or a schema in valueSchema or valueSchemaFile"),
        ({"valueFormat": "protobuf"}, "valueFormat=protobuf needs schemaRegistryUrl, or a schema in valueSchema"),
        ({"valueFormat": "csv"}, "'valueFormat' must be avro or json or json-schema or protobuf or string"),
        ({"valueFormat": "avro", "valueMessage": "M"}, "'valueMessage' means nothing without valueFormat=protobuf"),
        ({"valueFormat": "protobuf", "valueSchema": "nonsense"}, "this is not a Protobuf schema: line 1:1"),
        ({"schemaRegistryUrl": "http://a"}, "'schemaRegistryUrl' means nothing without valueFormat or keyFormat of avro"),
        ({"valueSubject": "s"}, "'valueSubject' means nothing without valueFormat of another kind than string"),
        ({"keyFormat": "json", "keySchemaFile": "f"}, "'keySchemaFile' means nothing with keyFormat=json"),
        ({"valueFormat": "json", "timeZone": "Berlin"}, "option 'timeZone': time zone 'Berlin' is not known"),
        ({"valueFormat": "string", "timeZone": "UTC"}, "'timeZone' means nothing without valueFormat or keyFormat of json"),
        ({"onBadRecord": "skip"}, "'onBadRecord' means nothing without valueFormat or keyFormat"),
        ({"schema.registry.basic.auth.user.info": "u:hidden"}, "'schema.registry.basic.auth.user.info' needs schemaRegistry"),
        ({"valueFormat": "avro", "valueSchema": "{}", "schemaRegistryUrl": "http://a"}, "not both"),
        ({"valueFormat": "avro", "valueSchema": "{}", "valueSchemaFile": "f"}, "give valueSchema or valueSchemaFile, not both"),
        ({"valueFormat": "avro", "valueSchema": '"int"', "valueSubject": "s"}, "not both"),
        ({"valueFormat": "avro", "valueSchemaFile": "/no/such/file"}, "'valueSchemaFile': /no/such/file cannot be read"),
        ({"valueFormat": "json", "valueSchema": "[]"}, "must be the JSON of a Spark schema"),
        ({"valueFormat": "avro", "subscribe": "a,b", "schemaRegistryUrl": "http://a"}, "'valueSubject' is missing"),
        ({**BY_RECORD, "valueSubject": "s"}, "valueSubject or schema.registry.value.subject.name.strategy, not both"),
        ({**BY_RECORD, "valueFormat": "protobuf", "valueRecord": "R"}, "'valueRecord' means nothing with valueFormat=protobuf"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "http://a", "valueRecord": "R"}, "'valueRecord' means nothing without"),
        ({"valueFormat": "avro", "valueSchema": '"int"', "valueRecord": "R"}, "'valueRecord' needs schemaRegistryUrl"),
        ({**BY_RECORD, "schema.registry.key.subject.name.strategy": "RecordNameStrategy"}, "means nothing without keyFormat"),
        ({**BY_RECORD, "schema.registry.value.subject.name.strategy": "Own"}, "must be TopicNameStrategy, RecordNameStrategy"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "http://a", "schema.registry.x": "hidden"}, "'x' is not known"),
    ],
)
def test_options_that_contradict_each_other_or_mean_nothing_are_refused_by_name(options, words):
    with pytest.raises(UsageError, match=words) as raised:
        kafka_read({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "flights", **options}, Mode.STREAM)
    assert "hidden" not in str(raised.value)


# --- Protobuf


PROTO = """syntax = "proto3"; package air; import "google/protobuf/timestamp.proto"; enum Carrier { UA = 0; AA = 1; }
message Flight { Carrier carrier = 1; optional int32 delay = 2; google.protobuf.Timestamp at = 3; repeated Leg legs = 4;
  uint32 seats = 5; uint64 miles = 6; map<string, Leg> named = 7; message Leg { string to = 1; int32 km = 2; } }
message Other { string x = 1; }
"""


def test_protobuf_of_a_registry_is_written_and_read_in_sparks_types(kafka, registry):
    registry.register("flights-value", PROTO, kind="PROTOBUF")
    options = {"valueFormat": "protobuf", "schemaRegistryUrl": registry.url}
    kind = Frame(kafka, **options).schema["value"].dataType
    assert kind.simpleString() == (
        "struct<carrier:string,delay:int,at:timestamp,legs:array<struct<to:string,km:int>>,seats:bigint,"
        "miles:decimal(20,0),named:map<string,struct<to:string,km:int>>>"
    )
    struct = to_arrow_schema(StructType([StructField("value", kind)]), timezone="UTC").field("value").type
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    leg = {"to": "Rome", "km": 7}
    row = {"carrier": "AA", "delay": 5, "at": at, "legs": [leg], "seats": 2**32 - 1, "miles": 2**64 - 1, "named": [("a", leg)]}
    Output(kafka, **options).write([{"value": row}, {"value": None}], value=struct)
    assert Frame(kafka, **options).column("value") == [row, None]
    assert Frame(kafka, value_of(StructField("delay", IntegerType())), **options).column("value") == [{"delay": 5}, None]
    others = Frame(kafka, onBadRecord="keep", valueMessage="air.Other", **options)
    assert others.column("badReason")[0] == "value: it is a message air.Flight of schema 1, and not air.Other"


def test_protobuf_in_the_options_or_in_a_file_needs_no_registry(kafka, tmp_path):
    path = tmp_path / "flight.proto"
    path.write_text(PROTO)
    kafka.append("flights", b"\x10\x05")
    for options in ({"valueSchema": PROTO}, {"valueSchemaFile": str(path), "valueMessage": "air.Flight"}):
        assert Frame(kafka, valueFormat="protobuf", **options).column("value")[0]["delay"] == 5


def test_a_protobuf_schema_is_pinned_and_one_with_fewer_fields_refused(kafka, registry):
    registry.register("flights-value", PROTO, kind="PROTOBUF")
    kafka.append("flights", b"\0\0\0\0\1\0")
    query = triggered(kafka, valueFormat="protobuf", schemaRegistryUrl=registry.url)
    assert (pinned(query)["format"], pinned(query)["id"], pinned(query)["type"]["delay"]) == ("protobuf", "1", "int32")
    registry.register("flights-value", PROTO.replace("optional int32 delay = 2;", ""), kind="PROTOBUF")
    query.run()
    with pytest.raises(StateError, match="its schema has no field 'delay' any more"):
        query.trigger()


def test_json_of_a_registry_is_written_and_read_in_the_columns_of_its_schema(kafka, registry):
    leg = {"type": "object", "properties": {"to": {"type": "string"}, "km": {"type": "integer"}}}
    delay = {"oneOf": [{"type": "null"}, {"type": "integer"}]}
    legs = {"type": "array", "items": {"$ref": "#/definitions/leg"}}
    properties = {"carrier": {"type": "string"}, "delay": delay, "legs": legs, "any": {}}
    schema = {"type": "object", "properties": properties, "definitions": {"leg": leg}, "required": ["carrier"]}
    registry.register("flights-value", schema, kind="JSON")
    options = {"valueFormat": "json-schema", "schemaRegistryUrl": registry.url}
    with pytest.raises(UsageError, match="the JSON Schema allows any value at field 'any', for which there is no Arrow type"):
        Frame(kafka, **options)
    del properties["any"]
    registry.register("flights-value", schema, kind="JSON")
    kind = Frame(kafka, **options).schema["value"].dataType
    assert kind.simpleString() == "struct<carrier:string,delay:bigint,legs:array<struct<to:string,km:bigint>>>"
    struct = to_arrow_schema(StructType([StructField("value", kind)]), timezone="UTC").field("value").type
    row = {"carrier": "AA", "delay": None, "legs": [{"to": "Rome", "km": None}]}
    Output(kafka, **options).write([{"value": row}, {"value": None}], value=struct)
    written, nothing = [each.value for each in kafka.records("flights", isolation_level="read_uncommitted")]
    assert (written, nothing) == (b'\0\0\0\0\2{"carrier":"AA","delay":null,"legs":[{"to":"Rome"}]}', None)
    assert Frame(kafka, **options).column("value") == [row, None]
    kinds = {"carrier": "string", "delay": "int64", "legs": ["list", {"to": "string", "km": "int64"}]}
    assert pinned(triggered(kafka, **options))["type"] == kinds


def test_a_property_with_a_dot_in_its_name_is_a_column_of_its_own(kafka):
    schema = json.dumps({"type": "object", "properties": {"service.name": {"type": "string"}, "ok": {"type": "integer"}}})
    kafka.append("flights", b'{"service.name": "a", "ok": 1}')
    options = {"valueFormat": "json-schema", "valueSchema": schema}
    assert Frame(kafka, **options).column("value") == [{"service.name": "a", "ok": 1}]
    asked = value_of(StructField("service.name", StringType()))
    assert Frame(kafka, asked, **options).column("value") == [{"service.name": "a"}]


def test_a_struct_of_what_is_never_null_is_written_as_json(kafka):
    kind = pa.struct([pa.field("id", pa.int64(), nullable=False)])
    Output(kafka, valueFormat="json").write([{"value": {"id": 0}}], value=kind)
    assert [each.value for each in kafka.records("flights", isolation_level="read_uncommitted")] == [b'{"id":0}']
