"""Subjects in a registry's context, which has separate ids and subjects: `:.plant:readings-value`."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.formats import (
    RegisteredAvroFormat,
    RegisteredJsonFormat,
    RegisteredProtobufFormat,
    SchemaReference,
    SchemaRegistry,
)

SUBJECT = ":.plant:readings-value"


def reading(*names: str, **defaults: int) -> dict[str, Any]:
    fields: list[dict[str, Any]] = [{"name": name, "type": "int"} for name in names]
    fields += [{"name": name, "type": "int", "default": value} for name, value in defaults.items()]
    return {"type": "record", "name": "Reading", "fields": fields}


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def test_an_id_that_is_new_is_looked_up_in_the_subjects_context(served):
    served.register("other-value", reading("sensor"))
    served.register("other-value", reading("sensor", "celsius"))
    assert served.register(SUBJECT, reading("celsius", "sensor")) == 1
    registry = SchemaRegistry(served.url)
    format_ = RegisteredAvroFormat.of_subject(registry, SUBJECT)
    assert served.register(SUBJECT, reading("celsius", "sensor", unit=0)) == 2
    values = [framed(1, bytes([40, 14])), framed(2, bytes([42, 16, 0]))]
    for each in (format_, pickle.loads(pickle.dumps(format_))):
        assert each.decode(pa.array(values)).values.to_pylist() == [{"celsius": 20, "sensor": 7}, {"celsius": 21, "sensor": 8}]
    theirs = AvroDeserializer(SchemaRegistryClient({"url": served.url}), conf={"subject.name.strategy": lambda *_: SUBJECT})
    assert theirs(values[1], SerializationContext("readings", MessageField.VALUE)) == {"celsius": 21, "sensor": 8, "unit": 0}
    assert [each for each in served.asked if "?" in each][:1] == [f"GET /schemas/ids/2?subject={SUBJECT}"]
    elsewhere = RegisteredAvroFormat.of_subject(registry, "other-value").decode(pa.array([framed(2, bytes([2, 4]))]))
    assert elsewhere.values.to_pylist() == [{"sensor": 1, "celsius": 2}]  # what is known of one context is not of another


def test_an_id_that_is_not_in_the_context_is_bad_though_there_is_one_elsewhere(served):
    for number in range(3):
        served.register("other-value", reading(f"f{number}"))
    served.register(SUBJECT, reading("celsius"))
    registry = SchemaRegistry(served.url)
    assert registry.by_id(3).text == json.dumps(reading("f2"))
    found = RegisteredAvroFormat.of_subject(registry, SUBJECT).decode(pa.array([framed(3, b"\2")]))
    assert [each.reason for each in found.bad] == ["the schema registry has no schema 3"]


@pytest.mark.parametrize(("context", "subject"), [(".plant", "place"), (".shared", ":.shared:place")])
def test_references_are_those_of_the_context_unless_they_name_another(served, context: str, subject: str):
    at = f":{context}:place" if context == ".plant" else subject
    wrong, right = ({"type": "record", "name": "Place", "fields": [{"name": n, "type": "int"}]} for n in ("wrong", "right"))
    served.register("place", wrong)
    served.register(at, right)
    whole = {"type": "record", "name": "R", "fields": [{"name": "at", "type": "Place"}]}
    uses = [{"name": "Place", "subject": subject, "version": 1}]
    served.register(SUBJECT, whole, uses)
    registry = SchemaRegistry(served.url)
    assert dict(registry.version(SUBJECT).references) == {"Place": json.dumps(right)}
    own = registry.compose("AVRO", json.dumps(whole), [SchemaReference("Place", subject, 1)], subject=SUBJECT)
    assert registry.lookup(SUBJECT, own).references == registry.version(SUBJECT).references


def test_the_other_kinds_are_looked_up_there_too(served):
    served.register("other-value", reading("a"))
    served.register("other-value", reading("b"))
    texts = [
        '{"type": "object", "properties": {"a": {"type": "integer"}%s}}',
        'syntax = "proto3"; message M { int32 a = 1; %s}',
    ]
    more = [', "b": {"type": "integer"}', "int32 b = 2; "]
    bodies = [b'{"a": 5}', b"\0\x08\5"]
    kinds = [("JSON", ":.j:t-value", RegisteredJsonFormat), ("PROTOBUF", ":.p:t-value", RegisteredProtobufFormat)]
    for (kind, subject, made), text, added, body in zip(kinds, texts, more, bodies, strict=True):
        served.register(subject, text % "", kind=kind)
        format_ = made.of_subject(SchemaRegistry(served.url), subject)
        number = served.register(subject, text % added, kind=kind)
        assert format_.decode(pa.array([framed(number, body)])) == (pa.array([{"a": 5}], format_.arrow_type), [])
