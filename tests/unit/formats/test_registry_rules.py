"""Rules of registered schemas: refused where Confluent's clients, which have no executor for them, refuse."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError

from headrace.connectors.formats.registry.registered import RegisteredFormat
from headrace.errors import UsageError
from headrace.formats import RegisteredAvroFormat, RegisteredJsonFormat, RegisteredProtobufFormat, SchemaRegistry
from headrace.kafka import KafkaSource
from tests.helpers.schema_registry import FakeRegistry

PERSON = {"type": "record", "name": "Person", "fields": [{"name": "ssn", "type": "string"}]}
ROWS = pa.array([{"ssn": "000-00-0000"}])
VALUE = SerializationContext("people", MessageField.VALUE)
THEIRS = {"auto.register.schemas": False, "use.latest.version": True}


def rule(mode: str, on_failure: str | None = None, kind: str = "ENCRYPT", **more: Any) -> dict[str, Any]:
    sort = "CONDITION" if kind == "CEL" else "TRANSFORM"
    return {"name": "pii", "kind": sort, "type": kind, "mode": mode, "onFailure": on_failure, "tags": ["PII"], **more}


def domain(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"domainRules": list(rules), **more}


def written_by_them(served: FakeRegistry) -> bytes | None:
    write = AvroSerializer(SchemaRegistryClient({"url": served.url}), conf=THEIRS)
    return write({"ssn": "000-00-0000"}, VALUE)


def is_refused_by_them(call: Any, *arguments: Any) -> bool:
    try:
        call(*arguments)
    except SerializationError:
        return True
    return False


@pytest.mark.parametrize(("rules", "write", "read"), [
    (domain(rule("WRITEREAD")), True, True), (domain(rule("WRITEREAD", "ERROR,NONE")), True, False),
    (domain(rule("WRITEREAD", "NONE,ERROR")), False, True), (domain(rule("WRITEREAD", "NONE")), False, False),
    (domain(rule("WRITE", "ERROR", "CEL", expr="message.ssn != ''")), True, False),
    (domain(rule("READ", "ERROR", "CEL_FIELD")), False, True), (domain(rule("WRITEREAD", disabled=True)), False, False),
    (domain(rule("WRITEREAD"), enableAt="SERVER"), False, False),
    (domain(rule("WRITEREAD"), enableAt="CLIENT"), True, True), (domain(), False, False),
    ({"encodingRules": [rule("WRITEREAD", kind="ENCRYPT_PAYLOAD")]}, True, True),
    ({"migrationRules": [rule("UPGRADE", kind="JSONATA")]}, False, False),
])  # fmt: skip
def test_a_rule_is_refused_in_the_direction_in_which_confluents_client_refuses_it(served, rules, write, read):
    rules = json.loads(json.dumps(rules))
    served.register("people-value", PERSON)
    bare = written_by_them(served)
    number = served.register("people-value", {**PERSON, "doc": "newer"}, rules=rules)
    value = b"\0" + number.to_bytes(4, "big") + bare[5:]
    assert is_refused_by_them(written_by_them, served) == write
    reading = AvroDeserializer(SchemaRegistryClient({"url": served.url}))
    assert is_refused_by_them(reading, value, VALUE) == read

    format_ = RegisteredAvroFormat.of_subject(SchemaRegistry(served.url), "people-value")
    for each in (format_, pickle.loads(pickle.dumps(format_))):
        refused = []
        for call in (lambda each=each: each.encode(ROWS), lambda each=each: each.decode(pa.array([value]))):
            try:
                call()
                refused.append(False)
            except UsageError as error:
                assert "schema 2 of subject 'people-value' has the rule 'pii'" in str(error)  # noqa: PT017 - it may be none
                refused.append(True)
        assert refused == [write, read]


@pytest.mark.parametrize(("kind", "format_", "text"), [
    ("JSON", RegisteredJsonFormat, '{"type": "object", "properties": {"ssn": {"type": "string"}}}'),
    ("PROTOBUF", RegisteredProtobufFormat, 'syntax = "proto3"; message Person { string ssn = 1; }'),
])  # fmt: skip
def test_the_other_kinds_refuse_it_too(served, kind: str, format_: type[RegisteredFormat], text: str):
    served.register("people-value", text, kind=kind, rules=domain(rule("WRITEREAD")))
    made = format_.of_subject(SchemaRegistry(served.url), "people-value")
    with pytest.raises(UsageError, match="'pii'"):
        made.encode(ROWS)
    with pytest.raises(UsageError, match="'pii'"):
        made.decode(pa.array([b"\0\0\0\0\1"]))


def test_a_source_is_refused_when_it_is_made_if_it_reads_such_values(served):
    served.register("people-value", PERSON, rules=domain(rule("WRITEREAD")))
    value = RegisteredAvroFormat.of_subject(SchemaRegistry(served.url), "people-value")
    with pytest.raises(UsageError, match="'pii'"):
        KafkaSource("127.0.0.1:1", topics=["people"], value=value)
    KafkaSource("127.0.0.1:1", topics=["people"], value=value, columns=["offset"])


def test_rules_are_known_of_a_schema_that_was_looked_up_or_registered(served):
    registry = SchemaRegistry(served.url)
    served.register("people-value", PERSON, rules=domain(rule("WRITE")))
    own = registry.compose("AVRO", json.dumps(PERSON))
    newer = registry.compose("AVRO", json.dumps({**PERSON, "doc": "newer"}))
    for found in (registry.lookup("people-value", own), registry.register("people-value", newer)):
        with pytest.raises(UsageError, match="'pii'"):
            RegisteredAvroFormat(registry, found).encode(ROWS)


def test_an_old_registry_that_answers_with_the_id_alone_is_asked_for_the_rules(served):
    registry = SchemaRegistry(served.url)
    number = served.register("people-value", PERSON, rules=domain(rule("WRITE")))
    own = registry.compose("AVRO", json.dumps(PERSON))
    served.answers.append((200, {}, json.dumps({"id": number}).encode()))
    assert registry.register("people-value", own).rules


def test_a_value_whose_writers_schema_has_a_rule_for_reading_is_bad_and_costs_no_neighbour(served):
    plain = served.register("people-value", PERSON)
    format_ = RegisteredAvroFormat.of_subject(SchemaRegistry(served.url), "people-value")
    secret = served.register("people-value", {**PERSON, "doc": "newer"}, rules=domain(rule("WRITEREAD")))
    values = [b"\0" + number.to_bytes(4, "big") + b"\2x" for number in (plain, secret)]
    column, bad = format_.decode(pa.array(values))
    assert column.to_pylist() == [{"ssn": "x"}, None]
    assert [(each.row, "'pii' (ENCRYPT)" in each.reason) for each in bad] == [(1, True)]


@pytest.mark.parametrize(("mode", "at"), [("UPGRADE", 2), ("UPDOWN", 2), ("DOWNGRADE", 1)])
def test_a_value_that_needs_a_migration_is_bad(served, mode: str, at: int):
    old = served.register("people-value", PERSON)
    new = served.register("people-value", {**PERSON, "doc": "newer"}, rules={"migrationRules": [rule(mode, kind="JSONATA")]})
    format_ = RegisteredAvroFormat.of_subject(SchemaRegistry(served.url), "people-value", version=at)
    values = [b"\0" + number.to_bytes(4, "big") + b"\2x" for number in (old, new)]
    column, bad = format_.decode(pa.array(values))
    assert (column.to_pylist(), len(bad)) == ([{"ssn": "x"} if number == at else None for number in (1, 2)], 1)
    assert "'pii' (JSONATA)" in bad[0].reason
