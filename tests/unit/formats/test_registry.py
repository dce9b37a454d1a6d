"""The schema registry: held to Confluent's own client and serializers, and what becomes of values and look-ups that fail."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry import SchemaReference as TheirReference
from confluent_kafka.schema_registry import record_subject_name_strategy as theirs_by_record
from confluent_kafka.schema_registry import topic_record_subject_name_strategy as theirs_by_topic_and_record
from confluent_kafka.schema_registry import topic_subject_name_strategy as theirs_by_topic
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from headrace.connectors.formats.registry import client
from headrace.connectors.security import renewal
from headrace.enumerator.errors import (
    AuthenticationError,
    CorruptDataError,
    DeadlineExceededError,
    PeerError,
    RetriableError,
    UsageError,
)
from headrace.errors import UnknownSchemaError
from headrace.formats import (
    RegisteredAvroFormat,
    RegisteredJsonFormat,
    RegisteredProtobufFormat,
    RegisteredSchema,
    SchemaReference,
    SchemaRegistry,
    SubjectStrategy,
    subject_name,
)
from headrace.testing.servers.kafka.security import Certificates, make_certificates
from tests.helpers.schema_registry import NO_SUCH_PATH, FakeRegistry
from tests.helpers.token_endpoint import PROVIDERS, TokenEndpoint

FLIGHT = {
    "type": "record", "name": "Flight", "namespace": "air",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"]}],
}  # fmt: skip
LATER = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "gate", "type": "string", "default": "?"}]}
VALUE = SerializationContext("flights", MessageField.VALUE)


def binary(items: list[bytes | None]) -> pa.Array:
    return pa.array(items, pa.binary())


def with_headers(*rows: list[tuple[str, bytes]]) -> pa.Array:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.array([[{"key": key, "value": value} for key, value in row] for row in rows], kind)


OAUTH = {
    "bearer.auth.credentials.source": "OAUTHBEARER", "bearer.auth.client.id": "me",
    "bearer.auth.client.secret": "hunter2", "bearer.auth.scope": "schemas", "bearer.auth.logical.cluster": "lsrc-1",
    "bearer.auth.identity.pool.id": "pool-1",
}  # fmt: skip


@pytest.fixture
def flights(served: FakeRegistry) -> None:
    served.register("flights-value", FLIGHT)


@contextlib.contextmanager
def flights_at(**options: Any) -> Iterator[FakeRegistry]:
    with FakeRegistry(**options) as served:
        served.register("flights-value", FLIGHT)
        yield served


@pytest.fixture
def theirs(served: FakeRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": served.url})


def reading(served: FakeRegistry, subject: str = "flights-value", **options: Any) -> RegisteredAvroFormat:
    registry = SchemaRegistry(served.url)
    return RegisteredAvroFormat(registry, registry.version(subject), **options)


# --- Confluent's own
def test_what_confluents_serializer_writes_is_read(served, theirs):
    write = AvroSerializer(theirs, json.dumps(FLIGHT))
    rows = [{"carrier": "UA", "delay": 5}, {"carrier": "AA", "delay": None}]
    values = binary([write(row, VALUE) for row in rows])
    assert reading(served).decode(values) == (pa.array(rows, reading(served).arrow_type), [])


def test_what_is_written_here_confluents_deserializer_reads(served, flights, theirs):
    rows = [{"carrier": "UA", "delay": 5}, None, {"carrier": "AA", "delay": None}]
    encoded = reading(served).encode(pa.array(rows, pa.struct([("carrier", pa.string()), ("delay", pa.int32())])))
    read = AvroDeserializer(theirs)
    assert [None if each is None else read(each, VALUE) for each in encoded.to_pylist()] == rows


@pytest.mark.parametrize("schema", ['"bytes"', '{"type": "bytes"}'])
def test_a_schema_of_bytes_is_raw_bytes_both_ways_as_in_confluents_client(served, theirs, schema: str):
    rows = [b"{}", b"\x06abc-and-more", b"x" * 300, b"\x80"]
    write, read = AvroSerializer(theirs, schema), AvroDeserializer(theirs)
    values = binary([*(write(each, VALUE) for each in rows), b"\0\0\0\0\1", None])
    format_ = reading(served)
    assert format_.decode(values) == (binary([*rows, b"", None]), [])
    assert format_.encode(binary([*rows, b"", None])).equals(values)
    assert [read(each, VALUE) for each in format_.encode(binary(rows)).to_pylist()] == rows
    served.register("flights-value", ["null", "string"])
    column, bad = reading(served).decode(values)
    assert column.to_pylist() == ["{}", "\x06abc-and-more", "x" * 300, None, "", None]
    assert [each.row for each in bad] == [3]


def test_a_schema_that_confluents_serializer_names_in_a_header_is_found_there(served, theirs):
    write = AvroSerializer(theirs, json.dumps(FLIGHT), conf={"schema.id.serializer": header_schema_id_serializer})
    headers: list[tuple[str, bytes]] = [("trace", b"x")]
    value = write({"carrier": "UA", "delay": 1}, SerializationContext("flights", MessageField.VALUE, headers))
    assert [name for name, _ in headers] == ["trace", "__value_schema_id"]
    prefixed = AvroSerializer(theirs, json.dumps(LATER))({"carrier": "AA", "delay": 2, "gate": "B"}, VALUE)
    format_ = reading(served)
    column, bad = format_.decode_records(binary([prefixed, value, None]), with_headers([], headers, headers))
    assert not bad
    assert column.to_pylist() == [{"carrier": "AA", "delay": 2, "gate": "B"}, {"carrier": "UA", "delay": 1, "gate": "?"}, None]
    assert format_.decode_records(binary([value]), with_headers([("__key_schema_id", headers[1][1])])).bad  # that is the key's


def test_a_number_in_a_header_and_an_own_id_before_the_value_are_read_too(served):
    number = served.register("flights-value", FLIGHT)
    own = b"\1" + served.guid(number).bytes
    values = binary([b"\4UA\0", own + b"\4AA\0"])
    column, bad = reading(served).decode_records(
        values, with_headers([("__value_schema_id", b"\0" + number.to_bytes(4, "big"))], [])
    )
    assert (column.field("carrier").to_pylist(), bad) == (["UA", "AA"], [])


def test_schemas_that_refer_to_others_are_read_with_these(served, theirs):
    city = {"type": "record", "name": "City", "namespace": "air", "fields": [{"name": "name", "type": "string"}]}
    airport = {"type": "record", "name": "Airport", "namespace": "air", "fields": [{"name": "city", "type": "air.City"}]}
    served.register("city", city)
    served.register("airport", airport, [{"name": "air.City", "subject": "city", "version": 1}])
    fields = [{"name": "from", "type": "air.Airport"}, {"name": "to", "type": "air.City"}]
    both = [{"name": n, "subject": s, "version": 1} for n, s in (("air.Airport", "airport"), ("air.City", "city"))]
    served.register("flights-value", {"type": "record", "name": "Leg", "fields": fields}, both)
    write = AvroSerializer(theirs, theirs.get_latest_version("flights-value").schema)
    row = {"from": {"city": {"name": "Rome"}}, "to": {"name": "Oslo"}}
    assert reading(served).decode(binary([write(row, VALUE)])).values.to_pylist() == [row]


@pytest.mark.parametrize(("strategy", "their_strategy"), [
    (SubjectStrategy.TOPIC_NAME, theirs_by_topic), (SubjectStrategy.RECORD_NAME, theirs_by_record),
    (SubjectStrategy.TOPIC_RECORD_NAME, theirs_by_topic_and_record),
])  # fmt: skip
def test_subjects_are_named_as_confluents_strategies_name_them(strategy, their_strategy):
    for field in ("key", "value"):
        wanted = their_strategy(SerializationContext("flights", field), "air.Flight")
        assert subject_name(strategy, "flights", field=field, record="air.Flight") == wanted
    if strategy is not SubjectStrategy.TOPIC_NAME:
        with pytest.raises(UsageError, match="names a subject after a record"):
            subject_name(strategy, "flights", field="value", record=None)


CITY = {"type": "record", "name": "City", "namespace": "air", "fields": [{"name": "name", "type": "string"}]}
LEG = {
    "type": "record", "name": "Leg", "namespace": "air",
    "fields": [{"name": "from", "type": "City"}, {"name": "to", "type": "air.City"}],
}  # fmt: skip


def test_a_schema_with_references_is_registered_and_found_as_by_confluents_client(served, theirs):
    served.register("city", CITY)
    registry, uses = SchemaRegistry(served.url), [SchemaReference("air.City", "city", 1)]
    leg = registry.compose("AVRO", json.dumps(LEG), uses)
    assert (leg.id, leg.references) == (0, (("air.City", json.dumps(CITY)),))
    with pytest.raises(UnknownSchemaError, match="subject 'legs-value'"):
        registry.lookup("legs-value", leg)
    ours = registry.register("legs-value", leg)
    assert (ours.uses, ours.references, ours.fingerprint) == (tuple(uses), leg.references, leg.fingerprint)
    found = theirs.get_latest_version("legs-value").schema
    assert found.references == [TheirReference("air.City", "city", 1)]
    assert theirs.lookup_schema("legs-value", found).schema_id == ours.id == registry.lookup("legs-value", leg).id
    row = {"from": {"name": "Rome"}, "to": {"name": "Oslo"}}
    write = AvroSerializer(theirs, found, conf={"auto.register.schemas": False})
    (encoded,) = RegisteredAvroFormat(registry, ours).encode(pa.array([row]))
    assert encoded.as_py() == write(row, SerializationContext("legs", MessageField.VALUE))
    copied = registry.register("copies-value", registry.version("legs-value"))  # whichever way it came
    assert (copied, theirs.get_latest_version("copies-value").schema.references) == (ours, found.references)
    assert theirs.register_schema("legs-value", Schema(json.dumps(LEG), "AVRO", found.references)) == ours.id


def test_a_schema_of_other_kinds_with_references_is_registered_too(served, theirs):
    registry = SchemaRegistry(served.url)
    served.register("place", 'syntax = "proto3"; package air; message Place { string name = 1; }', kind="PROTOBUF")
    flight = 'syntax = "proto3"; package air; import "place.proto"; message Flight { Place to = 1; }'
    proto = registry.register("f-value", registry.compose("PROTOBUF", flight, [SchemaReference("place.proto", "place", 1)]))
    row = {"to": {"name": "Rome"}}
    (encoded,) = RegisteredProtobufFormat(registry, proto).encode(pa.array([row]))
    assert RegisteredProtobufFormat.of_subject(registry, "f-value").decode(pa.array([encoded.as_py()])).values[0].as_py() == row
    served.register("name", {"type": "string"}, kind="JSON")
    person = json.dumps({"type": "object", "title": "Person", "properties": {"name": {"$ref": "name.json"}}})
    schema = registry.register("p-value", registry.compose("JSON", person, [SchemaReference("name.json", "name", 1)]))
    assert RegisteredJsonFormat(registry, schema).arrow_type == pa.struct([("name", pa.string())])
    assert theirs.get_latest_version("p-value").schema.references == [TheirReference("name.json", "name", 1)]


def test_a_reference_to_what_is_not_registered_is_refused_before_anything_is(served):
    registry = SchemaRegistry(served.url)
    with pytest.raises(UnknownSchemaError, match="version 1 of subject 'city'"):
        registry.compose("AVRO", json.dumps(LEG), [SchemaReference("air.City", "city", 1)])
    bare = RegisteredSchema(0, "AVRO", json.dumps(LEG), (("air.City", json.dumps(CITY)),))
    with pytest.raises(UsageError, match=r"make it by SchemaRegistry\.compose"):
        registry.register("legs-value", bare)
    own = RegisteredSchema(0, "AVRO", json.dumps(LEG), bare.references, (SchemaReference("air.City", "city", 1),))
    with pytest.raises(PeerError, match=r"answered 422 .*reference air\.City not found"):
        registry.register("legs-value", own)
    assert not [each for each in served.asked if each.startswith("POST")][1:]


@pytest.mark.parametrize("strategy", SubjectStrategy)
@pytest.mark.parametrize("field", ["key", "value"])
def test_what_confluents_serializer_registers_by_a_strategy_is_found_by_it(served, theirs, strategy, field):
    name = {"TopicNameStrategy": theirs_by_topic, "RecordNameStrategy": theirs_by_record}.get(
        strategy, theirs_by_topic_and_record
    )
    write = AvroSerializer(theirs, json.dumps(FLIGHT), conf={"subject.name.strategy": name})
    value = write({"carrier": "UA", "delay": 5}, SerializationContext("flights", field))
    for text in (str(strategy), f"io.confluent.kafka.serializers.subject.{strategy}"):
        registry = SchemaRegistry(served.url, {f"schema.registry.{field}.subject.name.strategy": text})
        format_ = RegisteredAvroFormat.of_topic(registry, "flights", record="air.Flight", field=field)
        assert format_.decode(binary([value])).values.to_pylist() == [{"carrier": "UA", "delay": 5}]
        assert format_.record == "air.Flight"
        assert registry.subject("flights", field=field, record=format_.record) == theirs.get_subjects()[0]
        other = "value" if field == "key" else "key"
        assert registry.subject("flights", field=other) == f"flights-{other}"  # the default


def test_a_strategy_that_lacks_what_it_names_a_subject_after_is_refused(served):
    by_record = SchemaRegistry(served.url, {"value.subject.name.strategy": "RecordNameStrategy"})
    with pytest.raises(UsageError, match="RecordNameStrategy names a subject after a record"):
        RegisteredAvroFormat.of_topic(by_record, "flights")
    with pytest.raises(UsageError, match="TopicNameStrategy names a subject after a topic"):
        SchemaRegistry(served.url).subject(None)
    served.register("air.Flight", FLIGHT)
    assert RegisteredAvroFormat.of_topic(by_record, None, record="air.Flight").reader.id == 1
    assert RegisteredAvroFormat(by_record, RegisteredSchema(9, "AVRO", '"long"')).record is None


def test_versions_and_registrations_are_those_that_confluents_client_sees(served, theirs):
    registry = SchemaRegistry(served.url)
    served.register("flights-value", FLIGHT)
    later = registry.register("flights-value", type(registry.version("flights-value"))(0, "AVRO", json.dumps(LATER)))
    assert later.id == theirs.get_latest_version("flights-value").schema_id
    assert [each.id for each in registry.versions("flights-value", 10)] == [1, 2]
    assert [each.id for each in registry.versions("flights-value", 1)] == [2]
    assert registry.lookup("flights-value", registry.version("flights-value", 1)).id == 1
    with pytest.raises(UnknownSchemaError, match="subject 'nothing'"):
        registry.lookup("nothing", later)


# --- values
def test_values_of_several_schemas_stay_in_their_order_and_a_bad_one_costs_no_neighbour(served):
    first, later = served.register("flights-value", FLIGHT), served.register("flights-value", LATER)
    other = served.register("text", '"string"')
    foreign = served.register("json", "{}", kind="JSON")
    frame = {number: b"\0" + number.to_bytes(4, "big") for number in (first, later, other, foreign, 999)}
    values = [
        frame[later] + b"\4UA\0\2B", None, frame[first] + b"\4AA\2\6", b"{}", b"", frame[later] + b"\4DL\0\2C",
        frame[first] + b"\xff", frame[999] + b"\0", frame[other] + b"\2x", frame[foreign] + b"{}", b"\0\0",
        frame[first] + b"\4WN\0",
    ]  # fmt: skip
    column, bad = reading(served).decode(binary([b"skipped", *values])[1:])
    column.validate(full=True)
    carriers = [None if row is None else (row["carrier"], row["delay"], row["gate"]) for row in column.to_pylist()]
    assert carriers == [
        ("UA", None, "B"), None, ("AA", 3, "?"), None, None, ("DL", None, "C"), *[None] * 5, ("WN", None, "?")
    ]  # fmt: skip
    assert [each.row for each in bad] == [3, 4, 6, 7, 8, 9, 10]
    said = [
        "starts with byte 123", "is empty", "a length is negative", "has no schema 999", "cannot be read by the reader's",
        "is JSON, and not AVRO", "ends within the id",
    ]  # fmt: skip
    assert [words in each.reason for words, each in zip(said, bad, strict=True)] == [True] * 7


def test_only_the_fields_asked_for_are_read(served, flights):
    column, _ = reading(served, fields=["delay"]).decode(binary([b"\0\0\0\0\1\4UA\2\4"]))
    assert column.to_pylist() == [{"delay": 2}]


def test_a_format_that_knows_its_schemas_asks_no_process_in_another_process(served, flights):
    served.register("flights-value", LATER)
    travelled = pickle.dumps(RegisteredAvroFormat.of_subject(SchemaRegistry(served.url), "flights-value", version=1))
    client._known.clear()
    asked = len(served.asked)
    column, bad = pickle.loads(travelled).decode(binary([b"\0\0\0\0\1\4UA\0", b"\0\0\0\0\2\4AA\0\2B"]))
    assert (column.field("carrier").to_pylist(), bad) == (["UA", "AA"], [])
    assert len(served.asked) == asked > 0


def test_one_id_is_another_schema_in_another_registry(served):
    with FakeRegistry() as other:
        served.register("flights-value", FLIGHT)
        other.register("flights-value", LATER)
        ours, others = SchemaRegistry(served.url), SchemaRegistry(other.url)
        assert ours.version("flights-value").id == others.version("flights-value").id
        assert ours.by_id(1).text != others.by_id(1).text
        assert ours.by_id(1).fingerprint != others.by_id(1).fingerprint


# --- look-ups that fail
def test_what_is_under_an_id_is_asked_for_once_in_a_process_and_the_newest_version_each_time(served, flights):
    for _ in range(3):
        assert SchemaRegistry(served.url).by_id(1).text == json.dumps(FLIGHT)
    assert served.asked == ["GET /schemas/ids/1"]
    SchemaRegistry(served.url).version("flights-value")
    served.register("flights-value", LATER)
    assert SchemaRegistry(served.url).version("flights-value").text == json.dumps(LATER)


def test_an_unknown_id_is_not_asked_for_by_every_batch_and_is_asked_for_again_later(served, monkeypatch):
    registry = SchemaRegistry(served.url)
    for _ in range(3):
        with pytest.raises(UnknownSchemaError, match="schema 1"):
            registry.by_id(1)
    assert served.asked == ["GET /schemas/ids/1"]
    served.register("flights-value", FLIGHT)
    monkeypatch.setattr(client, "_UNKNOWN_KEPT_S", 0.0)
    assert registry.by_id(1).id == 1


def test_a_followers_no_to_a_new_id_is_asked_again_and_costs_no_record(served, flights, monkeypatch):
    format_ = reading(served)
    served.register("flights-value", LATER)
    monkeypatch.setattr(client, "_PAUSES_S", (0.0, 0.0))
    served.answers = [(404, {}, b'{"error_code": 40403, "message": "Schema 2 not found"}')] * 2
    column, bad = format_.decode(binary([b"\0\0\0\0\2\4AA\0\2B"]))
    assert (served.answers, bad, column.field("carrier").to_pylist()) == ([], [], ["AA"])


def test_ids_that_stay_unknown_are_asked_for_again_together_and_then_once_in_a_while(served, monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(client, "_PAUSES_S", (0.001, 0.002))
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append)  # the client's own: other threads sleep as ever
    monkeypatch.setattr(client, "time", clock)
    garbage = binary([b"\0\0\0\0" + bytes([each]) for each in range(100, 150)])
    served.register("flights-value", FLIGHT)
    format_, asked = reading(served), len(served.asked)
    assert len(format_.decode(garbage).bad) == 50
    assert (pauses, len(served.asked) - asked) == ([0.001, 0.002], 150)
    assert (len(format_.decode(garbage).bad), len(served.asked) - asked) == (50, 150)
    monkeypatch.setattr(client, "_UNKNOWN_KEPT_S", 0.0)
    assert len(format_.decode(garbage).bad) == 50
    assert (len(pauses), len(served.asked) - asked) == (2, 200)


@pytest.mark.parametrize("value", [b"\0\xff\xff\xff\xff abc", b"\0\x80\0\0\0x"])
def test_a_number_that_no_registry_can_have_is_a_bad_value_and_asked_of_no_process(served, flights, value):
    format_, asked = reading(served), len(served.asked)
    column, bad = format_.decode(binary([value, b"\0\0\0\0\1\4UA\0"]))
    assert column.is_valid().to_pylist() == [False, True]
    assert "a schema registry has no ids above 2147483647" in bad[0].reason
    assert served.asked[asked:] == ["GET /schemas/ids/1"] * (len(served.asked) - asked)


def test_a_guid_of_a_registry_that_knows_none_is_a_bad_value_if_the_registry_itself_says_so(served, flights):
    format_ = reading(served)
    served.answers = [(404, {}, json.dumps(NO_SUCH_PATH).encode())]
    assert "has no schema 78787878-" in format_.decode(binary([b"\1" + b"x" * 20])).bad[0].reason
    assert served.asked[-1].startswith("GET /schemas/guids/78787878-")
    for not_the_registry in (b"<html>404</html>", b"{}", b'{"error_code": []}', b'{"error_code": 1e999}'):
        served.answers = [(404, {}, not_the_registry)]
        with pytest.raises(PeerError, match="answered 404"):
            format_.decode(binary([b"\1" + b"y" * 20]))
    served.answers = [(404, {}, json.dumps(NO_SUCH_PATH).encode())]
    with pytest.raises(PeerError, match="answered 404"):  # for a number, it is the wrong path
        format_.decode(binary([b"\0\0\0\0\7"]))


def test_a_registry_that_was_set_up_again_is_believed_and_what_was_known_of_it_forgotten(served):
    registry = SchemaRegistry(served.url)
    for schema in (FLIGHT, LATER):
        served.register("flights-value", schema)
    assert [registry.by_id(number).text for number in (1, 2)] == [json.dumps(FLIGHT), json.dumps(LATER)]
    served.start_over()
    for schema in (LATER, FLIGHT):
        served.register("flights-value", schema)
    format_ = RegisteredAvroFormat.of_subject(registry, "flights-value", version=1)
    assert format_.reader.text == json.dumps(LATER)
    assert format_.decode(binary([b"\0\0\0\0\1\4AA\0\2B"])).values.to_pylist() == [
        {"carrier": "AA", "delay": None, "gate": "B"}
    ]
    assert registry.by_id(2).text == json.dumps(FLIGHT)


def test_a_registry_that_is_away_stops_only_what_needs_an_unknown_id_and_says_so_after_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    registry = SchemaRegistry(f"http://me:very-secret@127.0.0.1:{port}", deadline_s=0.3)
    with flights_at() as served:
        reader = SchemaRegistry(served.url).version("flights-value")
    format_ = RegisteredAvroFormat(registry, reader, known=[reader])
    assert format_.decode(binary([b"\0\0\0\0\1\4UA\0", b"no schema"])).values.is_valid().to_pylist() == [True, False]
    with pytest.raises(DeadlineExceededError, match=r"did not tell schema 2 within 0\.3 s; the last error was") as raised:
        format_.decode(binary([b"\0\0\0\0\2\4UA\0"]))
    assert "very-secret" not in str(raised.value) + repr(registry) + repr(registry.config)


def test_an_answer_that_trickles_is_held_to_the_deadline(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(9999)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while not over.wait(0.02):
                    connection.sendall(b" ")

        over, thread = threading.Event(), threading.Thread(target=trickle)
        thread.start()
        try:
            with pytest.raises(RetriableError, match=r"did not end its answer within 5\.0 s"):
                SchemaRegistry(url := f"http://127.0.0.1:{server.getsockname()[1]}")._ask(url, "GET", "/", "it", None, 5.0)
        finally:
            over.set()
            thread.join()


def test_an_answer_that_is_too_long_is_not_read_to_its_end(served, flights, monkeypatch):
    monkeypatch.setattr(client, "_LONGEST_ANSWER", 100)
    monkeypatch.setattr(client, "_CHUNK", 64)
    with pytest.raises(CorruptDataError, match="answered with more than 100 bytes"):
        SchemaRegistry(served.url).by_id(1)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_failure_is_tried_again(served, flights, status):
    served.answers = [(status, {}, b"busy")] * 2
    assert (SchemaRegistry(served.url).by_id(1).id, len(served.asked)) == (1, 3)


def test_the_next_url_is_asked_where_one_does_not_answer_or_does_not_know_yet(served, flights):
    with FakeRegistry() as lagging, socket.create_server(("127.0.0.1", 0)) as closed:
        away = f"http://127.0.0.1:{closed.getsockname()[1]}"
        closed.close()
        assert SchemaRegistry(f"{away}, {lagging.url},{served.url}/").by_id(1).id == 1
        assert lagging.asked == ["GET /schemas/ids/1"]
        with pytest.raises(DeadlineExceededError):  # one does not know it, and no one knows what the other would say
            SchemaRegistry(f"{lagging.url},{away}", deadline_s=0.2).by_id(2)


@pytest.mark.parametrize(("answer", "error", "words"), [
    ((404, {}, b"<html>nothing here</html>"), PeerError, "answered 404"),
    ((302, {"Location": "http://example.org"}, b""), PeerError, "sends elsewhere"),
    ((200, {}, b"<html>"), PeerError, "is it one"), ((200, {}, b"[]"), PeerError, "is it one"),
    ((403, {}, b""), AuthenticationError, "refused the user"),
])  # fmt: skip
def test_an_answer_that_is_none_is_an_error_at_once_and_no_proof_that_there_is_no_schema(served, answer, error, words):
    served.answers = [answer]
    with pytest.raises(error, match=words) as raised:
        SchemaRegistry(served.url).by_id(1)
    assert not isinstance(raised.value, UnknownSchemaError)
    assert len(served.asked) == 1


def test_references_in_a_circle_are_refused(served):
    fields = {"type": "record", "fields": []}
    served.register("a", {**fields, "name": "A"}, [{"name": "B", "subject": "b", "version": 1}])
    served.register("b", {**fields, "name": "B"}, [{"name": "A", "subject": "a", "version": 1}])
    with pytest.raises(PeerError, match="in a circle"):
        SchemaRegistry(served.url).by_id(1)


# --- who asks
@pytest.mark.parametrize(("url", "properties"), [
    ("http://me:se%20cret@", {}), ("http://", {"basic.auth.user.info": "me:se cret"}),
    ("http://", {"schema.registry.basic.auth.user.info": "me:se cret", "Basic.Auth.Credentials.Source": "USER_INFO"}),
])  # fmt: skip
def test_a_user_logs_in_by_confluents_properties_or_the_url(url, properties):
    with flights_at(user="me:se cret") as served:
        assert SchemaRegistry(url + served.url.removeprefix("http://"), properties).by_id(1).id == 1
        with pytest.raises(AuthenticationError, match="answered 401") as raised:
            SchemaRegistry(served.url, {"basic.auth.user.info": "me:wrong-one"}).by_id(2)
        assert "wrong-one" not in str(raised.value)


def test_a_token_is_sent(served):
    with FakeRegistry(token="abc.def") as guarded:
        guarded.register("flights-value", FLIGHT)
        properties = {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "abc.def"}
        assert SchemaRegistry(guarded.url, properties).by_id(1).id == 1


@pytest.mark.parametrize(("url", "properties", "words"), [
    ("", {}, "url is empty"), ("registry:8081", {}, "must be like https://host:8081"),
    ("ftp://me:hidden@host", {}, "must be like https://host:8081"),
    ("https://me:hid,hidden@host:8081", {}, "',' must be written %2C"),
    ("https://me:hidden,x@host:8081", {}, "',' must be written %2C"), ("https://me:12/hidden@host:8081", {}, "'/' %2F"),
    ("https://me:12?hidden@host:8081", {}, "'\\?' %3F"),
    ("http://a", {"basic.auth.user.infos": "x"}, "'basic.auth.user.infos' is not known"),
    ("http://a", {"basic.auth.user.info": "hidden"}, "must be like user:password"),
    ("http://u:hidden@a", {"basic.auth.user.info": "u:hidden"}, "not in both"),
    ("http://u:hidden@a,http://v:hidden@b", {}, "different users"),
    ("http://a", {"basic.auth.credentials.source": "SASL_INHERIT"}, "may be USER_INFO or URL"),
    ("http://a", {"basic.auth.credentials.source": "USER_INFO"}, "must be like user:password"),
    ("http://a", {"basic.auth.credentials.source": "URL", "basic.auth.user.info": "u:hidden"}, "USER_INFO"),
    ("http://a", {"bearer.auth.credentials.source": "CUSTOM"}, "may be STATIC_TOKEN or OAUTHBEARER"),
    ("http://a", {"bearer.auth.credentials.source": "OAUTHBEARER"}, "'bearer.auth.issuer.endpoint.url' is missing"),
    ("http://a", {"bearer.auth.client.secret": "hidden"}, "'bearer.auth.client.secret' needs bearer.auth"),
    ("http://u:hidden@a", OAUTH | {"bearer.auth.issuer.endpoint.url": "http://b"}, "or a user in the url, not both"),
    ("http://a", OAUTH | {"bearer.auth.token": "hidden"}, "or bearer.auth.token, not both"),
    ("http://a", OAUTH | {"bearer.auth.issuer.endpoint.url": "me:hidden@b"}, "must be like https://host/path"),
    ("http://a", {"bearer.auth.credentials.source": "STATIC_TOKEN"}, "'bearer.auth.token' is missing"),
    ("http://a", {"bearer.auth.token": "hidden\nX: y"}, "one line"),
    ("http://u:hidden@a", {"bearer.auth.token": "hidden"}, "not both"),
    ("http://a", {"ssl.key.location": "k"}, "needs 'ssl.certificate.location'"),
    ("http://a", {"ssl.truststore.location": "k", "ssl.truststore.type": "BKS"}, "type must be one of PEM, PKCS12, JKS"),
    ("http://a", {"ssl.truststore.location": "k", "ssl.ca.location": "k"}, "'ssl.ca.location' or 'ssl.trust"),
    ("http://a", {"ssl.keystore.password": "hidden"}, "'ssl.keystore.password' needs 'ssl.keystore.location'"),
    ("http://a", {"ssl.key.password": "hidden"}, "'ssl.key.password' needs"),
    ("http://a", {"config.providers.env.class": "hidden"}, "'config.providers.env.class' is not supported"),
    ("http://a", {"config.providers": "vault"}, r"config\.providers\.vault\.class must be"),
    ("http://u:${env:P}@a", PROVIDERS, "takes no reference to a secret"),
    ("http://a", {"value.subject.name.strategy": "com.example.Own"}, "must be TopicNameStrategy, RecordName"),
])  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name_and_nothing_secret_is_shown(url, properties, words):
    with pytest.raises(UsageError, match=words) as raised:
        SchemaRegistry(url, properties)
    assert "hidden" not in str(raised.value)


def test_a_secret_is_in_the_environment_or_a_file_and_is_read_when_the_registry_is_asked(tmp_path, monkeypatch):
    (tmp_path / "login").write_text("me:hunter2\n")
    (tmp_path / "registry.properties").write_text("login = me:hunter2\npassword = hunter2\n")
    monkeypatch.setenv("LOGIN", "me:hunter2")
    in_part = f"me:${{file:{tmp_path}/registry.properties:password}}"
    for reference in ("${env:LOGIN}", f"${{directory:{tmp_path}:login}}", in_part):
        client._known.clear()
        with flights_at(user="me:hunter2") as served:
            registry = SchemaRegistry(served.url, PROVIDERS | {"basic.auth.user.info": reference})
            format_ = RegisteredAvroFormat.of_subject(registry, "flights-value")
            served.register("flights-value", LATER)
            travelled = pickle.dumps(format_)
            assert b"hunter2" not in travelled
            assert b"hunter2" not in pickle.dumps(registry)
            assert "hunter2" not in repr(registry) + repr(registry.config)
            later = pickle.loads(travelled).decode(binary([b"\0\0\0\0\2\4UA\0\2B"]))
            assert later == format_.decode(binary([b"\0\0\0\0\1\4UA\0"]))


def test_a_secret_that_changes_is_read_again_and_one_that_is_gone_is_named(tmp_path):
    secret = tmp_path / "token"
    secret.write_text("of-before")
    with flights_at(token="of-now") as served:
        registry = SchemaRegistry(served.url, PROVIDERS | {"bearer.auth.token": f"${{directory:{tmp_path}:token}}"})
        with pytest.raises(AuthenticationError, match="answered 401") as raised:
            registry.by_id(1)
        assert "of-before" not in str(raised.value)
        secret.write_text("of-now\n")
        assert registry.by_id(1).id == 1
        secret.unlink()
        assert registry.by_id(1).id == 1  # it is known
        with pytest.raises(UsageError, match=r"property 'bearer\.auth\.token' names the file .*token, which cannot be read"):
            registry.by_id(2)
        secret.write_text("one\nX-Other: two")
        with pytest.raises(UsageError, match="must be one line") as refused:
            registry.by_id(2)
        assert "X-Other" not in str(refused.value)


def test_a_value_is_never_bad_as_a_secret_is_not_there(monkeypatch):
    """It fails the task instead: nothing is skipped for it."""
    with flights_at(user="me:hunter2") as served:
        monkeypatch.setenv("LOGIN", "me:hunter2")
        registry = SchemaRegistry(served.url, PROVIDERS | {"basic.auth.user.info": "${env:LOGIN}"})
        format_ = RegisteredAvroFormat.of_subject(registry, "flights-value")
        served.register("flights-value", LATER)
        monkeypatch.delenv("LOGIN")
        with pytest.raises(UsageError, match="names the environment variable 'LOGIN', which is not set here"):
            format_.decode(binary([b"\0\0\0\0\2\4UA\0\2B"]))


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    renewal.kept.start_afresh()
    with contextlib.closing(TokenEndpoint()) as server:
        yield server
    renewal.kept.start_afresh()


def test_a_token_of_an_endpoint_is_asked_for_once_and_sent_with_each_request(endpoint, monkeypatch):
    monkeypatch.setenv("CLIENT_SECRET", "hunter2")
    with flights_at(token="good") as served:
        by_reference = {"bearer.auth.client.secret": "${env:CLIENT_SECRET}"}
        own = PROVIDERS | OAUTH | by_reference | {"bearer.auth.issuer.endpoint.url": endpoint.url}
        registry = SchemaRegistry(served.url, own)
        assert endpoint.asked == []  # no process is contacted
        assert registry.by_id(1).id == registry.version("flights-value").id == 1
        ((form, headers),) = endpoint.asked
        assert form == {"grant_type": "client_credentials", "scope": "schemas"}
        assert headers["Authorization"] == "Basic " + base64.b64encode(b"me:hunter2").decode()
        assert b"hunter2" not in pickle.dumps(registry)
        theirs = SchemaRegistryClient({"url": served.url, **OAUTH, "bearer.auth.issuer.endpoint.url": endpoint.url})
        assert theirs.get_latest_version("flights-value").schema_id == 1
        assert (endpoint.asked[1][0], endpoint.asked[1][1]["Authorization"]) == (form, headers["Authorization"])


def test_a_token_that_the_registry_refuses_is_asked_for_again(endpoint):
    endpoint.body = json.dumps({"access_token": "revoked", "expires_in": 3600})
    with flights_at(token="good") as served:
        registry = SchemaRegistry(served.url, OAUTH | {"bearer.auth.issuer.endpoint.url": endpoint.url})
        with pytest.raises(AuthenticationError, match="answered 401") as raised:
            registry.by_id(1)
        assert "revoked" not in str(raised.value)
        endpoint.body = json.dumps({"access_token": "good", "expires_in": 3600})
        assert (registry.by_id(1).id, len(endpoint.asked)) == (1, 2)


def test_an_endpoint_that_refuses_the_client_or_is_away_is_named_and_no_secret(endpoint):
    endpoint.status, endpoint.body = 401, json.dumps({"error": "invalid_client"})
    properties = OAUTH | {"bearer.auth.issuer.endpoint.url": endpoint.url}
    with pytest.raises(AuthenticationError, match=r"endpoint .* answered 401 .*invalid_client.*client id 'me'") as refused:
        SchemaRegistry("http://127.0.0.1:1", properties).by_id(1)
    endpoint.status = 503
    with pytest.raises(DeadlineExceededError, match=r"token endpoint .* answered 503") as away:
        SchemaRegistry("http://127.0.0.1:1", properties, deadline_s=0.3).by_id(1)
    assert "hunter2" not in str(refused.value) + str(away.value)


def test_a_reference_is_replaced_by_no_process_where_no_provider_is_named(monkeypatch):
    monkeypatch.setenv("LOGIN", "me:hunter2")
    with FakeRegistry(user="me:hunter2") as served, pytest.raises(AuthenticationError, match="answered 401"):
        SchemaRegistry(served.url, {"basic.auth.user.info": "${env:LOGIN}"}).by_id(1)


def test_files_of_tls_that_cannot_be_used_are_named(tmp_path):
    registry = SchemaRegistry("https://127.0.0.1:1", {"ssl.ca.location": str(tmp_path / "ca.pem")}, deadline_s=0.2)
    with pytest.raises(UsageError, match=r"TLS cannot be set up: .*ca\.pem"):
        registry.by_id(1)


def test_a_registry_behind_tls_is_trusted_by_its_authority_and_sees_our_certificate(tmp_path):
    certificates = make_certificates(tmp_path)
    ours = {"ssl.ca.location": str(certificates.ca), "ssl.certificate.location": str(certificates.client)}
    javas = {
        "ssl.truststore.location": str(certificates.ca), "ssl.truststore.type": "PEM",
        "ssl.keystore.location": str(certificates.client), "ssl.keystore.type": "PEM",
    }  # fmt: skip
    key, chain = key_and_chain(certificates)
    (tmp_path / "key.pem").write_text(key)
    (tmp_path / "chain.pem").write_text(chain)
    apart = ours | {"ssl.certificate.location": str(tmp_path / "chain.pem"), "ssl.key.location": str(tmp_path / "key.pem")}
    with flights_at(certificates=certificates) as served:
        for properties in (ours, javas, apart, pkcs12_stores(certificates, tmp_path)):
            assert SchemaRegistry(served.url, properties).version("flights-value").id == 1
        assert SchemaRegistryClient({"url": served.url, **apart}).get_latest_version("flights-value").schema_id == 1
        wrong = pkcs12_stores(certificates, tmp_path) | {"ssl.keystore.password": "hunter2"}
        with pytest.raises(UsageError, match=r"ssl\.keystore\.password is wrong") as raised:
            SchemaRegistry(served.url, wrong).version("flights-value")
        assert "hunter2" not in str(raised.value)
        (tmp_path / "trust.jks").write_bytes(b"\xfe\xed\xfe\xed")
        with pytest.raises(UsageError, match="JKS file, which only Java can read; convert it once with: keytool"):
            SchemaRegistry(served.url, {"ssl.truststore.location": str(tmp_path / "trust.jks")}).version("flights-value")
        with pytest.raises(DeadlineExceededError, match=r"cannot be reached: .*certificate"):
            SchemaRegistry(served.url, deadline_s=0.2).version("flights-value")


def test_certificates_that_are_renewed_are_used_by_a_registry_that_is_known(tmp_path, caplog):
    old, new = make_certificates(tmp_path / "old"), make_certificates(tmp_path / "new")
    key, chain = key_and_chain(old)
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "certificate", "key")}
    properties = {f"ssl.{name}.location": str(path) for name, path in files.items()}
    for path, text in zip(files.values(), (old.ca.read_text(), chain, key), strict=True):
        path.write_text(text)
    with flights_at(certificates=old) as served:
        registry = SchemaRegistry(served.url, properties, deadline_s=2)
        assert registry.version("flights-value").id == 1
        files["key"].write_text("")  # as it is being renewed
        assert registry.version("flights-value").id == 1
        assert "the previous connections are used" in caplog.text
        key, chain = key_and_chain(new)
        files["certificate"].write_text(chain)
        files["key"].write_text(key)
        with pytest.raises(DeadlineExceededError):  # the server does not trust the new authority
            registry.version("flights-value")


def key_and_chain(certificates: Certificates) -> tuple[str, str]:
    key, separator, chain = certificates.client.read_text().partition("-----BEGIN CERTIFICATE-----")
    return key, separator + chain


def pkcs12_stores(certificates: Certificates, folder: Path) -> dict[str, str]:
    """The same as stores of Java, whose passwords stand in a file, and by the names with Confluent's prefix."""
    password = serialization.BestAvailableEncryption(b"change it")
    ca = x509.load_pem_x509_certificates(certificates.ca.read_bytes())
    pem = certificates.client.read_bytes()
    key, (own, *others) = serialization.load_pem_private_key(pem, None), x509.load_pem_x509_certificates(pem)
    trusted = [pkcs12.PKCS12Certificate(each, b"ca") for each in ca]
    (folder / "trust.p12").write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, trusted, password))
    (folder / "key.p12").write_bytes(pkcs12.serialize_key_and_certificates(b"client", key, own, others, password))
    (folder / "stores.properties").write_text("store = change it\n")
    return PROVIDERS | {
        "schema.registry.ssl.truststore.location": str(folder / "trust.p12"),
        "schema.registry.ssl.truststore.type": "PKCS12",
        "schema.registry.ssl.truststore.password": f"${{file:{folder}/stores.properties:store}}",
        "ssl.keystore.location": str(folder / "key.p12"),
        "ssl.keystore.password": f"${{file:{folder}/stores.properties:store}}",
    }


def test_a_guid_is_a_uuid(served):
    guid = served.guid(served.register("flights-value", FLIGHT))
    assert SchemaRegistry(served.url).by_id(guid).id == guid
