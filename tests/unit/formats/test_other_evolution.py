"""Protobuf and JSON Schemas that change: what is read, bad, or another value, in each kind of a registry's compatibility."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from headrace.connectors.formats.protobuf.compiler import descriptor_set
from headrace.connectors.formats.registry.schemas import RegisteredSchema
from headrace.enumerator.errors import UsageError
from headrace.formats import JsonSchemaFormat, RegisteredJsonFormat, RegisteredProtobufFormat, SchemaRegistry
from tests.helpers import json_evolution, protobuf_evolution
from tests.helpers.avro_evolution import KINDS, Change, History, Lost, Outcome, Refused, holds, told_apart
from tests.helpers.protobuf_evolution import Other

NOBODY = SchemaRegistry("http://127.0.0.1:1")
"""It is asked for nothing: all schemas are known."""

CONTEXT = SerializationContext("t", MessageField.VALUE)
OLD, NEW = 1, 2


@pytest.mark.parametrize("format_", [protobuf_evolution, json_evolution])
def test_every_kind_of_compatibility_is_reported_from_the_others(format_):
    assert told_apart(format_.SCHEDULES.values())


# --- Protobuf
def message_class(text: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set(text, {})).file
    for file in files:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"air.{files[-1].message_type[0].name}"))


def by_runtime(message: Any) -> dict[str, Any]:
    """What the columns are to be of a message that Protobuf's runtime has read."""
    found = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            found[field.name] = [*value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        elif field.message_type is not None:
            found[field.name] = by_runtime(value)
        elif field.enum_type is not None:
            symbol = field.enum_type.values_by_number.get(value)
            found[field.name] = str(value) if symbol is None else symbol.name
        else:
            found[field.name] = value
    return found


def kept(written: Any, read: dict[str, Any]) -> bool:
    """Whether each field that both versions have by its name is read as what was written."""
    return same(by_runtime(written), read)


def same(one: Any, other: Any) -> bool:
    """A text is the same as its bytes; what a struct has besides does not count."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(same(one[name], other[name]) for name in one.keys() & other.keys())
    plain = [each.encode() if isinstance(each, str) else each for each in (one, other)]
    return plain[0] == plain[1]


def check_protobuf(outcome: Outcome | Other, writer: tuple[int, str], reader: tuple[int, str], values: list[Any]) -> None:
    classes = [message_class(text) for _, text in (writer, reader)]
    written = [classes[0](**each) for each in values]
    schemas = [RegisteredSchema(number, "PROTOBUF", text) for number, text in (writer, reader)]
    topic = [b"\0" + writer[0].to_bytes(4, "big") + b"\0" + each.SerializeToString() for each in written]
    column, bad = RegisteredProtobufFormat(NOBODY, schemas[1], known=schemas).decode(pa.array(topic, pa.binary()))
    column.validate(full=True)
    assert [each.row for each in bad] == ([*outcome.rows] if isinstance(outcome, Lost) else [])
    assert all(isinstance(outcome, Lost) and outcome.why in each.reason for each in bad)
    lost = {each.row for each in bad}
    others = set()
    for row, found in enumerate(column.to_pylist()):
        if row in lost:
            continue
        assert found == by_runtime(classes[1].FromString(written[row].SerializeToString()))
        if not kept(written[row], found):
            others.add(row)
    assert others == (set(outcome.rows) if isinstance(outcome, Other) else set())


@pytest.mark.parametrize("change", protobuf_evolution.CHANGES.values(), ids=protobuf_evolution.CHANGES.keys())
def test_protobufs_new_version_reads_the_old_ones_values_as_protobufs_runtime_does(change: protobuf_evolution.Change):
    check_protobuf(change.backward, (OLD, change.old), (NEW, change.new), [*change.old_values])


@pytest.mark.parametrize("change", protobuf_evolution.CHANGES.values(), ids=protobuf_evolution.CHANGES.keys())
def test_protobufs_old_version_reads_the_new_ones_values_as_protobufs_runtime_does(change: protobuf_evolution.Change):
    check_protobuf(change.forward, (NEW, change.new), (OLD, change.old), [*change.new_values])


def test_a_renamed_protobuf_field_keeps_its_value_under_the_new_name():
    change = protobuf_evolution.CHANGES["a field is renamed"]
    known = [RegisteredSchema(number, "PROTOBUF", text) for number, text in ((OLD, change.old), (NEW, change.new))]
    body = message_class(change.old)(id=1, x=5).SerializeToString()
    column, bad = RegisteredProtobufFormat(NOBODY, known[1], known=known).decode(pa.array([b"\0\0\0\0\1\0" + body]))
    assert (column.to_pylist(), bad) == ([{"id": 1, "y": 5}], [])


@pytest.mark.parametrize("history", protobuf_evolution.SCHEDULES.values(), ids=protobuf_evolution.SCHEDULES.keys())
def test_confluents_protobuf_of_all_versions_is_kept_as_far_as_they_are_compatible(registry, history: History):
    theirs = SchemaRegistryClient({"url": registry.url})
    topic, written = [], []
    for text, value in zip(history.versions, history.values, strict=True):
        of = message_class(text)
        written.append(of(**value))
        topic.append(ProtobufSerializer(of, theirs, {"use.deprecated.format": False})(written[-1], CONTEXT))
    reads = []
    for version in range(1, len(topic) + 1):
        made = RegisteredProtobufFormat.of_subject(SchemaRegistry(registry.url), "t-value", version=version)
        column, bad = made.decode(pa.array(topic, pa.binary()))
        assert bad == []
        reads.append([kept(each, found) for each, found in zip(written, column.to_pylist(), strict=True)])
    assert {kind for kind in KINDS if holds(kind, reads)} == history.kinds


# --- JSON Schema
def check_json(outcome: Outcome, reader: Any, values: list[Any]) -> None:
    if isinstance(outcome, Refused):
        with pytest.raises(UsageError) as raised:
            JsonSchemaFormat(json.dumps(reader))
        assert outcome.why in str(raised.value)
        return
    made = JsonSchemaFormat(json.dumps(reader))
    column, bad = made.decode(pa.array([json.dumps(each).encode() for each in values]))
    column.validate(full=True)
    assert [each.row for each in bad] == ([*outcome.rows] if isinstance(outcome, Lost) else [])
    lost = {each.row for each in bad}
    for row, (value, found) in enumerate(zip(values, column.to_pylist(), strict=True)):
        assert row in lost or found == named(reader, value)


def named(schema: Any, value: Any) -> Any:
    """Of a value what is under the names of a schema, and null for what does not."""
    if "properties" in schema and value is not None:
        return {name: named(each, value.get(name)) for name, each in schema["properties"].items()}
    return value


@pytest.mark.parametrize("change", json_evolution.CHANGES.values(), ids=json_evolution.CHANGES.keys())
def test_a_json_schemas_new_version_reads_the_old_ones_values_by_name(change: Change):
    check_json(change.backward, change.new, [*change.old_values])


@pytest.mark.parametrize("change", json_evolution.CHANGES.values(), ids=json_evolution.CHANGES.keys())
def test_a_json_schemas_old_version_reads_the_new_ones_values_by_name(change: Change):
    check_json(change.forward, change.old, [*change.new_values])


@pytest.mark.parametrize("history", json_evolution.SCHEDULES.values(), ids=json_evolution.SCHEDULES.keys())
def test_confluents_json_of_all_versions_is_read_as_far_as_they_are_compatible(registry, history: History):
    theirs = SchemaRegistryClient({"url": registry.url})
    pairs = [*zip(history.versions, history.values, strict=True)]
    topic = [JSONSerializer(json.dumps(version), theirs)(value, CONTEXT) for version, value in pairs]
    assert [JSONDeserializer(None, schema_registry_client=theirs)(each, CONTEXT) for each in topic] == [*history.values]
    reads = []
    for number, version in enumerate(history.versions, 1):
        made = RegisteredJsonFormat.of_subject(SchemaRegistry(registry.url), "t-value", version=number)
        column, bad = made.decode(pa.array(topic))
        lost = {each.row for each in bad}
        for row, (value, found) in enumerate(zip(history.values, column.to_pylist(), strict=True)):
            assert row in lost or found == named(version, value)
        reads.append([row not in lost for row in range(len(topic))])
    assert {kind for kind in KINDS if holds(kind, reads)} == history.kinds
