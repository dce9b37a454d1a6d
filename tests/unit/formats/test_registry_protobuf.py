"""Protobuf in a registry's wire format, held to Confluent's serializers: they write what we read, and read what we write."""

from __future__ import annotations

import pickle
import sys
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tenacity import wait_none

from headrace.connectors.formats.protobuf import compiler
from headrace.connectors.formats.protobuf.compiler import descriptor_set
from headrace.enumerator.errors import RetriableError, UsageError
from headrace.formats import RegisteredAvroFormat, RegisteredProtobufFormat, SchemaRegistry
from tests.helpers.schema_registry import FakeRegistry

FLIGHT = """
syntax = "proto3"; package air; import "leg.proto"; import "google/protobuf/timestamp.proto";
message Flight { string carrier = 1; optional int32 delay = 2; repeated Leg legs = 3; google.protobuf.Timestamp at = 4;
  message Seat { string row = 1; } }
message Other { int32 delay = 2; message Inner { message Most { int32 x = 1; } } }
"""
LEG = 'syntax = "proto3"; package air; message Leg { string to = 1; int32 km = 2; }'
LATER = FLIGHT.replace("message Seat", "string gate = 5; message Seat")


def register(registry: FakeRegistry, text: str = FLIGHT, subject: str = "flights-value") -> int:
    registry.register("leg.proto", LEG, kind="PROTOBUF")
    return registry.register(subject, text, [{"name": "leg.proto", "subject": "leg.proto", "version": 1}], "PROTOBUF")


def message_class(name: str, text: str = FLIGHT) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set(text, {"leg.proto": LEG})).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


Flight = message_class("air.Flight")
CONTEXT = SerializationContext("flights", MessageField.VALUE)


def theirs(registry: FakeRegistry, of: Any, **settings: Any) -> ProtobufSerializer:
    conf = {"use.deprecated.format": False, "auto.register.schemas": True, **settings}
    return ProtobufSerializer(of, SchemaRegistryClient({"url": registry.url}), conf)


def flight(**more: Any) -> Any:
    return Flight(carrier="UA", delay=5, legs=[{"to": "Rome", "km": 7}], **more)


def column(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def test_what_confluents_serializer_writes_is_read_and_it_registers_descriptors_with_references(registry):
    serializer = theirs(registry, Flight)
    values = [serializer(flight(), CONTEXT), None, serializer(Flight(), CONTEXT)]
    made = RegisteredProtobufFormat.of_subject(
        SchemaRegistry(registry.url), "flights-value", fields=["carrier", "delay", "legs"]
    )
    assert made.message == "air.Flight"
    asked = len(registry.asked)
    found, bad = pickle.loads(pickle.dumps(made)).decode(column(*values))
    assert found.to_pylist() == [
        {"carrier": "UA", "delay": 5, "legs": [{"to": "Rome", "km": 7}]},
        None,
        {"carrier": "", "delay": None, "legs": []},
    ]
    assert (bad, len(registry.asked)) == ([], asked)


@pytest.mark.parametrize("name", ["air.Flight", "air.Flight.Seat", "air.Other.Inner.Most"])
def test_a_message_type_anywhere_in_the_schema_is_read_and_written_as_confluent_does(registry, name):
    of = message_class(name)
    written = theirs(registry, of)(of(), CONTEXT)
    made = RegisteredProtobufFormat.of_subject(SchemaRegistry(registry.url), "flights-value", message=name)
    rows, bad = made.decode(column(written))
    assert (len(bad), rows.is_valid().to_pylist()) == (0, [True])
    (ours,) = made.encode(rows).to_pylist()
    assert ours == written
    reading = ProtobufDeserializer(of, {"use.deprecated.format": False}, SchemaRegistryClient({"url": registry.url}))
    assert reading(ours, CONTEXT) == of()


def test_a_header_names_the_schema_and_the_message_type(registry):
    headers: list[tuple[str, bytes]] = []
    context = SerializationContext("flights", MessageField.VALUE, headers)
    bare = theirs(registry, Flight, **{"schema.id.serializer": header_schema_id_serializer})(flight(), context)
    made = RegisteredProtobufFormat.of_subject(SchemaRegistry(registry.url), "flights-value")
    ((name, frame),) = headers
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    other = frame[:17] + b"\4\0\0"
    rows = pa.array([[{"key": name, "value": each}] for each in (frame, other, frame + b"x", frame[:17])], kind)
    found, bad = made.decode_records(column(*[bare] * 4), rows)
    assert [row and row["carrier"] for row in found.to_pylist()] == ["UA", None, None, None]
    assert [each.reason for each in bad] == [
        f"it is a message air.Flight.Seat of schema {UUID(bytes=frame[1:17])}, and not air.Flight",
        "the header that names its schema is damaged",
        "the indices of its message type are not a list of numbers",
    ]


def test_values_of_several_versions_and_message_types_stand_side_by_side(registry):
    first, later = register(registry), register(registry, LATER)
    made = RegisteredProtobufFormat.of_subject(SchemaRegistry(registry.url), "flights-value", fields=["carrier", "gate"])
    body = flight().SerializeToString()
    after = message_class("air.Flight", LATER)(carrier="AA", gate="B").SerializeToString()
    of = {number: b"\0" + number.to_bytes(4, "big") for number in (first, later)}
    values = [
        of[first] + b"\0" + body,
        of[later] + b"\2\0" + after,  # the long form
        of[later] + b"\2\2" + b"",  # Other
        of[later] + b"\4\0",
        of[later] + b"\2\x12" + after,
        of[later],
        of[first] + b"\0" + body[:-1],
        of[later] + b"\0" + after,
    ]
    found, bad = made.decode(column(*values))
    rows = [row and (row["carrier"], row["gate"]) for row in found.to_pylist()]
    assert rows == [("UA", ""), ("AA", "B"), None, None, None, None, None, ("AA", "B")]
    assert {each.row: each.reason for each in bad} == {
        2: f"it is a message air.Other of schema {later}, and not air.Flight",
        3: "the indices of its message type are not a list of numbers",
        4: f"schema {later} cannot be used: the Protobuf schema has no message type at [9]",
        5: "the indices of its message type are not a list of numbers",
        6: "is not a message air.Flight: its bytes are not of Protobuf's wire format",
    }


def test_a_schema_of_another_kind_is_bad_and_as_the_readers_it_is_refused(registry):
    number = registry.register("avro-value", '"int"')
    register(registry)
    known = SchemaRegistry(registry.url)
    made = RegisteredProtobufFormat.of_subject(known, "flights-value")
    _, bad = made.decode(column(b"\0" + number.to_bytes(4, "big") + b"\0"))
    assert [each.reason for each in bad] == [f"schema {number} of the registry is AVRO, and not PROTOBUF"]
    for of, subject, words in [
        (RegisteredProtobufFormat, "avro-value", "is AVRO, and not PROTOBUF"),
        (RegisteredAvroFormat, "flights-value", "is PROTOBUF, and not AVRO"),
    ]:
        with pytest.raises(UsageError, match=words):
            of.of_subject(known, subject)


def compiler_that(script, tmp_path, injected):
    """In place of Python with protoc: a shell script. `$REAL` is the real one; gives a file with a line for each start."""
    instead, starts = tmp_path / "python", tmp_path / "starts"
    instead.write_text(f"#!/bin/sh\nREAL={sys.executable}\necho >> {starts}\nN=$(wc -l < {starts})\n{script}\n")
    instead.chmod(0o755)
    injected.setattr(compiler.sys, "executable", str(instead))
    injected.setattr(compiler, "_PAUSES", wait_none())
    return starts


@pytest.mark.parametrize("fault", [
    *(f"kill -{signal} $$" for signal in ("KILL", "TERM", "ABRT", "BUS", "XCPU", "SEGV")), "exit 127", "exit 1",
    "echo 'Traceback (most recent call last):' >&2; echo 'MemoryError' >&2; exit 1",
    "echo 'Fatal Python error: init: no memory' >&2; exit 1", "echo '/tmp/x/out: No space left on device' >&2; exit 1",
    "echo 'WARNING: All log messages before' >&2; exit 1",
])  # fmt: skip
def test_a_compiler_that_dies_says_nothing_of_a_schema_and_is_tried_again(tmp_path, monkeypatch, fault):
    """Memory that is short for a moment makes no value bad."""
    starts = compiler_that(f'if [ $N -lt 3 ]; then {fault}; fi\nexec $REAL "$@"', tmp_path, monkeypatch)
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set(f"{LEG} // {fault!r}"))
    assert len(starts.read_text().splitlines()) == 3
    assert files.file[-1].message_type


def test_a_compiler_that_is_killed_makes_no_value_bad(registry, tmp_path, monkeypatch):
    register(registry)
    made = RegisteredProtobufFormat.of_subject(SchemaRegistry(registry.url), "flights-value")
    later = register(registry, f"{LATER} // killed")
    value = b"\0" + later.to_bytes(4) + b"\0" + Flight(carrier="UA").SerializeToString()
    starts = compiler_that('if [ $N -lt 2 ]; then kill -9 $$; fi\nexec $REAL "$@"', tmp_path, monkeypatch)
    found, bad = made.decode(column(value))
    assert (found.to_pylist()[0]["carrier"], bad) == ("UA", [])
    assert len(starts.read_text().splitlines()) == 2


@pytest.mark.parametrize(("script", "message"), [
    ("kill -9 $$", "in 5 tries, the last of which ended with status -9"),
    ("exec sleep 60", "in 5 tries, .* longer than 0.05 s"),
])  # fmt: skip
def test_a_schema_that_always_ends_the_compiler_does_not_restart_a_job_for_ever(tmp_path, monkeypatch, script, message):
    starts = compiler_that(script, tmp_path, monkeypatch)
    monkeypatch.setattr(compiler, "_PROTOC_S", 0.05 if "sleep" in script else 30.0)
    with pytest.raises(UsageError, match=message):
        descriptor_set(f"{LEG} // always: {script}")
    assert "sleep" in script or len(starts.read_text().splitlines()) == 5


def test_a_compiler_that_cannot_be_started_says_nothing_of_any_schema(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler.sys, "executable", str(tmp_path / "none"))
    with pytest.raises(RetriableError, match="could not be started"):
        descriptor_set(f"{LEG} // not started")


@pytest.mark.parametrize(("references", "message"), [
    ({}, "leg.proto"), ({"leg.proto": "no schema"}, "leg.proto"), ({"leg.proto": 'syntax = "proto3";'}, "Leg")
])  # fmt: skip
def test_what_is_wrong_in_what_a_schema_imports_is_a_result_at_the_first_try(tmp_path, monkeypatch, references, message):
    starts = compiler_that('exec $REAL "$@"', tmp_path, monkeypatch)
    with pytest.raises(UsageError, match=f"not a Protobuf schema: .*{message}"):
        descriptor_set('syntax = "proto3"; import "leg.proto"; message A { Leg leg = 1; }', references)
    assert len(starts.read_text().splitlines()) == 1
