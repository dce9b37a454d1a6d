"""JSON by a JSON Schema, and in a registry's wire format, held to Confluent's own serializer and deserializer."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.jsonschema import specification_with

from headrace.connectors.formats import json_references
from headrace.connectors.formats.registry import client
from headrace.enumerator.errors import UsageError
from headrace.formats import JsonSchemaFormat, RegisteredJsonFormat, SchemaRegistry, create_format
from tests.helpers.schema_registry import FakeRegistry

INTEGER: dict[str, Any] = {"type": "integer"}
STRING: dict[str, Any] = {"type": "string"}
LEG = {"$id": "https://air/leg.json", "type": "object", "properties": {"to": STRING, "km": INTEGER}, "required": ["to"]}
FLIGHT = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Flight",
    "type": "object",
    "properties": {
        "carrier": {"enum": ["UA", "AA"]},
        "delay": {"oneOf": [{"type": "null"}, INTEGER]},
        "price": {"type": ["null", "number"]},
        "late": {"type": "boolean"},
        "legs": {"type": "array", "items": {"$ref": "leg.json"}},
        "first": {"$ref": "#/definitions/seat"},
    },
    "required": ["carrier"],
    "definitions": {"seat": {"type": "object", "properties": {"row": STRING}}},
}
ROW = {"carrier": "UA", "delay": None, "price": 1.5, "legs": [{"to": "Rome"}], "first": {"row": "1A"}}
CONTEXT = SerializationContext("flights", MessageField.VALUE)


NEWER = "https://json-schema.org/draft/2020-12/schema"
REFERS: dict[str, Any] = {"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "properties": {"a": INTEGER}}}}


X = {"$ref": "#/$defs/x"}


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def made(schema: Any, **options: Any) -> JsonSchemaFormat:
    return JsonSchemaFormat(json.dumps(schema), **options)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    client._known.clear()
    monkeypatch.setattr(client, "_PAUSES_S", ())
    with FakeRegistry() as registry:
        registry.register("leg", LEG, kind="JSON")
        registry.register("flights-value", FLIGHT, [{"name": "leg.json", "subject": "leg", "version": 1}], "JSON")
        yield registry


@pytest.mark.parametrize(("schema", "kind"), [
    (obj(a=INTEGER, b=STRING), "struct<a: int64, b: string>"),
    (obj(a={"type": ["integer", "null"]}, b={"type": ["number", "integer"]}), "struct<a: int64, b: double>"),
    (obj(a={"anyOf": [STRING, {"type": "null"}]}), "struct<a: string>"),
    (obj(a={"const": 1}, b={"enum": ["x", None]}), "struct<a: int64, b: string>"),
    ({"properties": {"a": {"type": "boolean"}}}, "struct<a: bool>"),
    ({"type": "array", "items": obj(a=STRING)}, "list<item: struct<a: string>>"),
    ({"allOf": [{"$ref": "#/$defs/x"}, obj(b=STRING)], "$defs": {"x": obj(a=INTEGER)}}, "struct<a: int64, b: string>"),
    ({**obj(c=STRING), "allOf": [obj(a=INTEGER)]}, "struct<c: string, a: int64>"),
    ({**obj(c=STRING), **REFERS, "$schema": NEWER}, "struct<c: string, a: int64>"),
    ({**obj(c=STRING), **REFERS, "$schema": "http://json-schema.org/draft-07/schema#"}, "struct<a: int64>"),
    ({**obj(c=STRING), **REFERS}, "struct<a: int64>"),
    ({"$schema": NEWER, "allOf": [{**obj(c=STRING), "$ref": "#/$defs/x"}, obj(d=STRING)], "$defs": REFERS["$defs"]},
     "struct<c: string, a: int64, d: string>"),
    ({**REFERS, "$schema": NEWER, "allOf": [obj(b=STRING)]}, "struct<a: int64, b: string>"),
    ({**REFERS, "$schema": NEWER, "anyOf": [obj(b=STRING), {"type": "null"}]}, "struct<b: string, a: int64>"),
    ({**obj(a=INTEGER), "anyOf": [obj(b=INTEGER)]}, "struct<a: int64, b: int64>"),
    ({**obj(a=INTEGER), "oneOf": [{"type": "null"}, REFERS], "$defs": {"x": obj(b=INTEGER)}}, "struct<a: int64, b: int64>"),
    ({"allOf": [{"$ref": "#/$defs/x"}, obj(boss={"$ref": "#/$defs/x"})], "$defs": REFERS["$defs"]},
     "struct<a: int64, boss: struct<a: int64>>"),
    ({"allOf": [X, obj(b={"allOf": [X, obj(c=X)]})], "$defs": REFERS["$defs"]},
     "struct<a: int64, b: struct<a: int64, c: struct<a: int64>>>"),
    ({"anyOf": [obj(a=INTEGER)], "allOf": [obj(b=INTEGER)]}, "struct<a: int64, b: int64>"),
    ({"oneOf": [obj(a=INTEGER)], "anyOf": [obj(b=INTEGER)]}, "struct<a: int64, b: int64>"),
    ({**obj(a=INTEGER), "anyOf": [{"required": ["a"]}, {"type": "object", "minProperties": 2}]}, "struct<a: int64>"),
    (obj(a={"allOf": [{"type": "number"}, INTEGER, {"minimum": 0}]}), "struct<a: int64>"),
    (obj(a={"allOf": [{"enum": [1, 2]}, {"type": "number"}]}, b={"allOf": [{"const": "x"}, {"minLength": 1}]}),
     "struct<a: double, b: string>"),
    (obj(a={"allOf": [INTEGER, {"type": ["number", "null"]}]}), "struct<a: int64>"),
    ({"allOf": [obj(a=STRING), {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}]}, "struct<a: string>"),
    ({"allOf": [obj(a=STRING), obj(a={"const": "x"})]}, "struct<a: string>"),
    (obj(a={"$ref": "#/$defs/x~1y%20z"}) | {"$defs": {"x/y z": STRING}}, "struct<a: string>"), (STRING, "string"),
])  # fmt: skip
def test_properties_are_columns(schema, kind):
    assert str(made(schema).arrow_type) == kind


def test_a_null_is_allowed_where_all_schemas_of_a_field_allow_it():
    may, must = {"type": ["string", "null"]}, {"minLength": 1}
    schema = obj(a={"allOf": [may, must]}, b={"allOf": [may, STRING]}, c={"anyOf": [STRING, {"type": "null"}], **may})
    written = made(schema).encode(pa.array([{"a": None, "b": None, "c": None}], made(schema).arrow_type))
    assert written.to_pylist() == [b'{"a":null,"c":null}']


def test_schemas_of_several_documents_are_put_together():
    schema = {"allOf": [{"$ref": "leg.json"}, obj(b=STRING)]}
    references = {"leg.json": json.dumps({**obj(a={"$ref": "#/$defs/x"}), "$defs": {"x": INTEGER}})}
    assert str(made(schema, references=references).arrow_type) == "struct<a: int64, b: string>"


def test_what_is_put_together_of_what_was_put_together_has_all_of_its_columns():
    definitions = {
        "base": {"allOf": [{"$ref": "#/$defs/root"}, obj(b=INTEGER, where=obj(city=STRING))]},
        "root": {"allOf": [obj(a=INTEGER), {"allOf": [obj(z=STRING)]}]},
    }
    schema = {"allOf": [{"$ref": "#/$defs/base"}, obj(c=STRING, where=obj(zip=STRING))], "$defs": definitions}
    where = "struct<city: string, zip: string>"
    assert str(made(schema).arrow_type) == f"struct<a: int64, z: string, b: int64, where: {where}, c: string>"


@pytest.mark.parametrize(("schema", "words"), [
    (obj(a={}), "allows any value at field 'a', for which there is no Arrow type; ask only for other fields"),
    (obj(a=True), "allows any value at field 'a'"),
    (obj(a={"type": ["string", "integer"]}), "may be string or integer at field 'a'"),
    (obj(a={"oneOf": [STRING, INTEGER]}), "is one of 2 alternatives at field 'a'"),
    (obj(a={"type": "object", "additionalProperties": STRING}), "is an object without named properties at field 'a'"),
    (obj(a={"type": "array"}), r"allows any value at field 'a\[\]'"),
    (obj(a={"type": "array", "items": [STRING]}), r"allows any value at field 'a\[\]'"),
    (obj(a={"type": "text"}), "there is no type 'text' at field 'a'"),
    (obj(a={"$ref": "#"}), "contains itself at field 'a'"),
    (obj(a={"$ref": "#/a"}) | {"a": {"$ref": "#/a"}}, "contains itself at field 'a'"),
    (obj(a={"allOf": [{"$ref": "#/a"}, {}]}) | {"a": {"$ref": "#/a"}}, "contains itself at field 'a'"),
    (obj(a={"allOf": [{"$ref": "#"}, obj(b=STRING)]}), r"contains itself at field 'a\.a'"),
    (obj(a={"$ref": "#/no"}), "refers to '#/no' at field 'a', which there is not"),
    (obj(a={"$ref": "#anchor"}), "refers to '#anchor' at field 'a', which there is not"),
    (obj(a={"$ref": "other.json"}), "refers to 'other.json' at field 'a', which is not among its references"),
    (obj(a={"$ref": 5}), "a \\$ref at field 'a' is not text"),
    (obj(a={"allOf": [STRING, obj(b=STRING)]}), "has to be string and object at once at field 'a'"),
    (obj(a={"allOf": [obj(b=STRING), {"oneOf": [obj(c=STRING), obj(d=STRING)]}]}), "is one of 2 alternatives at field 'a'"),
    (obj(a={"allOf": [{"allOf": [STRING, STRING]}, obj(b=STRING)]}), "has to be string and object at once at field 'a'"),
    (obj(a={"type": "array", "prefixItems": [STRING], "items": INTEGER}), "first items have other schemas at field 'a'"),
])  # fmt: skip
def test_what_has_no_column_is_refused_by_name_and_its_neighbours_are_read(schema, words):
    with pytest.raises(UsageError, match=words):
        made(schema)
    schema["properties"]["n"] = obj(x=INTEGER, y={})
    there = made(schema, fields=["n.x"])
    assert there.decode(pa.array([b'{"a": 1, "n": {"x": 2, "y": []}}'])).values.to_pylist() == [{"n": {"x": 2}}]


def test_what_is_no_json_schema_and_fields_that_there_are_not_are_refused():
    with pytest.raises(UsageError, match="this is not a JSON Schema: Expecting value"):
        JsonSchemaFormat("nonsense")
    with pytest.raises(UsageError, match="the JSON Schema has the fields x at field 'n'; asked for: 'z'"):
        made(obj(n=obj(x=INTEGER)), fields=["n.z"])
    with pytest.raises(UsageError, match="field 'x' is integer, and has no fields; asked for: z"):
        made(obj(x=INTEGER), fields=["x.z"])
    assert (
        str(made(obj(n=obj(x=INTEGER, y=STRING)), fields=["n.x", "n"]).arrow_type) == "struct<n: struct<x: int64, y: string>>"
    )
    assert str(made(obj(x=INTEGER), fields=[]).arrow_type) == "struct<>"


def test_nulls_are_left_out_where_the_schema_does_not_allow_them_and_refused_where_it_needs_a_value():
    schema = obj(a=INTEGER, b={"type": ["string", "null"]}, c=obj(x=INTEGER), d={"type": "array", "items": INTEGER})
    there = made({**schema, "required": ["b"]})
    rows = [{"a": None, "b": None, "c": {"x": None}, "d": [1]}, {"a": 1, "b": "null", "c": None, "d": None}, None]
    assert there.encode(pa.array(rows, there.arrow_type)).to_pylist() == [
        b'{"b":null,"c":{},"d":[1]}', b'{"a":1,"b":"null"}', None
    ]  # fmt: skip
    for items, required, words in [([None], [], r"field 'd\[\]' is null"), ([], ["a"], "field 'a' is required, and null")]:
        strict = made({**schema, "required": required})
        with pytest.raises(UsageError, match=f"row 1 .* {words}"):
            strict.encode(pa.array([{"a": 1}, {"d": items}], strict.arrow_type))


def test_numbers_that_json_does_not_have_are_refused_and_a_zero_keeps_its_sign():
    there = made(obj(a={"type": ["number", "null"]}, b={"type": "array", "items": {"type": "number"}}, c=STRING))
    for value in (math.nan, math.inf, -math.inf):
        for row, where in ({"a": value, "c": "x"}, "a"), ({"b": [value], "c": None}, r"b\[\]"):
            with pytest.raises(UsageError, match=f"row 1 .* the number at field '{where}' is .*, which JSON does not have"):
                there.encode(pa.array([{"c": "NaN"}, row], there.arrow_type))
    rows = pa.array([{"a": -0.0, "b": [-0.0], "c": c} for c in ("NaN", None)], there.arrow_type)
    assert [repr(row["a"].as_py()) for row in there.decode(there.encode(rows)).values] == ["-0.0", "-0.0"]
    others = there.decode(pa.array([b'{"a":"NaN","b":["-Infinity"],"c":"NaN"}']))  # Java's Jackson writes and reads them so
    assert (str(others.values.to_pylist()), others.bad) == ("[{'a': nan, 'b': [-inf], 'c': 'NaN'}]", [])


def test_whole_numbers_are_integers_however_they_are_written_and_keep_each_digit():
    there = made(obj(a=INTEGER, b={"type": "array", "items": obj(c=INTEGER)}, d={"type": "number"}, e={"type": "string"}))
    values = {
        b'{"a": 1.0}': 1, b'{"a": 1e3}': 1000, b'{"a": -12.50E1}': -125, b'{"a": 0.0e5}': 0, b'{"a": 7}': 7,
        b'{"a": 9007199254740993.0}': 2**53 + 1, b'{"a": 9223372036854775807.000}': 2**63 - 1,
    }  # fmt: skip
    bad = [b'{"a": 1.5}', b'{"a": 9223372036854775808.0}', b'{"a": 1e999999999}', b'{"a": 1e-999999999}', b'{"a": "1.0"}']
    bad += [b'{"a": 1.0, "a": 2}', b'{"a": 1.0} x', b'{"a": 1.0, "d": NaN}', b'{"a": 1e99999999999999999999}', b'{"a": true}']
    column, refused = there.decode(pa.array([*bad, *values]))
    assert [each.row for each in refused] == [*range(len(bad))]
    assert [row and row["a"] for row in column.to_pylist()] == [None] * len(bad) + [*values.values()]
    text = '{"a": 2.0, "b": [{"c": 3.0}, {"c": null}], "d": "NaN", "e": "1.0 é \\ud83d\\ude00", "f": 1.5}'.encode()
    assert str(there.decode(pa.array([text])).values[0].as_py()) == str(
        {"a": 2, "b": [{"c": 3}, {"c": None}], "d": float("nan"), "e": "1.0 é 😀"}
    )


def test_what_confluents_serializer_writes_is_read_and_the_other_way_round(registry):
    confluent = SchemaRegistryClient({"url": registry.url})
    conf = {"auto.register.schemas": False, "use.latest.version": True}
    theirs = JSONSerializer(confluent.get_latest_version("flights-value").schema, confluent, conf=conf)(ROW, CONTEXT)
    there = pickle.loads(pickle.dumps(RegisteredJsonFormat.of_subject(SchemaRegistry(registry.url), "flights-value")))
    asked = len(registry.asked)
    values, bad = there.decode(pa.array([theirs, None, theirs[:-1]]))
    assert values.to_pylist() == [{**ROW, "late": None, "legs": [{"to": "Rome", "km": None}]}, None, None]
    assert [each.row for each in bad] == [2]
    assert len(registry.asked) == asked
    read = JSONDeserializer(None, schema_registry_client=confluent)
    assert read(there.encode(values.slice(0, 1))[0].as_py(), CONTEXT) == ROW


def test_a_header_names_the_schema_of_json_too(registry):
    confluent, headers = SchemaRegistryClient({"url": registry.url}), list[tuple[str, bytes]]()
    conf = {"auto.register.schemas": False, "use.latest.version": True, "schema.id.serializer": header_schema_id_serializer}
    write = JSONSerializer(confluent.get_latest_version("flights-value").schema, confluent, conf=conf)
    value = write(ROW, SerializationContext("flights", MessageField.VALUE, headers))
    ((name, frame),) = headers
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.array([[{"key": name, "value": each}] for each in (frame, frame + b"x")], kind)
    there = RegisteredJsonFormat.of_subject(SchemaRegistry(registry.url), "flights-value", fields=["carrier"])
    values, bad = there.decode_records(pa.array([value, value]), rows)
    assert values.to_pylist() == [{"carrier": "UA"}, None]
    assert [each.reason for each in bad] == ["the header that names its schema continues after the id"]


def test_a_reference_is_found_by_the_own_id_of_a_schema_too():
    schema = obj(leg={"$ref": "https://air/leg.json#/properties/to"})
    there = create_format("json-schema", schema=json.dumps(schema), references={"leg": json.dumps(LEG)})
    assert str(there.arrow_type) == "struct<leg: string>"


BASE = "http://air/s/order.json"
SEAT = obj(n=INTEGER)
REFERENCES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"$id": BASE, **obj(c={"$ref": "seat.json"})}, {"http://air/s/seat.json": SEAT}),
    ({"$id": BASE, **obj(c={"$ref": "seat.json"})}, {"http://air/s/seat.json": {"$id": "http://air/s/seat.json", **SEAT}}),
    ({"$id": BASE, **obj(c={"$ref": "./seat.json"})}, {"http://air/s/seat.json": SEAT}),
    ({"$id": BASE, **obj(c={"$ref": "seat.json"}), "$defs": {"c": {"$id": "seat.json", **SEAT}}}, {}),
    ({"$id": BASE, **obj(c={"$ref": "order.json#/$defs/c"}), "$defs": {"c": SEAT}}, {}),
    (obj(a={"allOf": [SEAT]}, c={"$ref": "#/properties/a/allOf/0"}), {}),
    (obj(c={"$ref": "#cc"}) | {"$defs": {"c": {"$anchor": "cc", **SEAT}}}, {}),
    # its own document's path, not the one around it
    ({"$id": BASE, **obj(c={"$ref": "#/$defs/c"}), "$defs": {
        "n": STRING, "c": {"$id": "seat.json", **obj(n={"$ref": "#/$defs/n"}), "$defs": {"n": INTEGER}}}}, {}),
    # a base below a base
    ({"$id": BASE, **obj(c={"$ref": "#/$defs/c"}), "$defs": {
        "n": STRING, "c": {"$id": "seats/", **obj(n={"$ref": "n.json"}), "$defs": {"n": {"$id": "n.json", **INTEGER}}}}}, {}),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "id": BASE, **obj(c={"$ref": "seat.json#in"})},
     {"http://air/s/seat.json": {"definitions": {"s": {"id": "#in", **SEAT}}}}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "references"), REFERENCES)
def test_references_lead_where_jsonschema_follows_them(schema, references):
    """Regression: legal references were refused, and those in a schema with its own `$id` led into the document around it."""
    schema = {"$schema": NEWER, **schema}
    dialect = specification_with(schema["$schema"])
    registry = Registry().with_resources((name, dialect.create_resource(each)) for name, each in references.items())
    oracle = validator_for(schema)(schema, registry=registry)
    there = made(schema, references={name: json.dumps(each) for name, each in references.items()})
    rows = [{"c": {"n": 2**53 + 1}}, {"c": {"n": "x"}}, {"c": {"n": 1.5}}]
    decoded = there.decode(pa.array([json.dumps(each).encode() for each in rows]))
    assert [each.row for each in decoded.bad] == [row for row, each in enumerate(rows) if not oracle.is_valid(each)] == [1, 2]
    assert decoded.values.field("c").to_pylist()[0] == rows[0]["c"]


def test_a_document_is_found_by_the_name_it_was_given_whatever_the_base():
    references = {"leg.json": {"$id": "https://air/leg.json", **obj(to={"$ref": "place.json"})}, "place.json": STRING}
    texts = {name: json.dumps(each) for name, each in references.items()}
    for url in ("leg.json", "https://air/leg.json", "http://air/s/leg.json"):
        there = made({"$id": BASE, **obj(leg={"$ref": url})}, references=texts)
        assert str(there.arrow_type) == "struct<leg: struct<to: string>>"


def test_the_documents_are_looked_through_once_for_all_references(monkeypatch):
    """Regression: for each reference the `$id` of each document was made again."""
    asked = []
    own_id = json_references._own_id
    monkeypatch.setattr(json_references, "_own_id", lambda *each: asked.append(each) or own_id(*each))
    texts = {f"t{number}": json.dumps({"$id": f"http://x/{number}.json", "type": "string"}) for number in range(5)}
    fields = {f"{field}": {"$ref": f"http://x/{field % 5}.json"} for field in range(50)}
    assert made({"$id": "http://x/all.json", **obj(**fields)}, references=texts).arrow_type.num_fields == 50
    assert len(asked) == 2 + len(texts)  # the document's own is the base of all names, too


def test_one_id_that_several_schemas_have_gives_none_of_them_the_parts_of_another():
    """Generators of schemas put the same `$id` into each."""
    same = {"$id": "http://example.com/root.json"}
    leg = {**same, **obj(to=X), "$defs": {"x": INTEGER}}
    schema = {**same, **obj(leg={"$ref": "leg.json"}, a=X), "$defs": {"x": STRING}}
    there = made(schema, references={"leg.json": json.dumps(leg)})
    assert str(there.arrow_type) == "struct<leg: struct<to: int64>, a: string>"
    schema["properties"]["leg"] = {"$ref": "http://example.com/root.json"}
    with pytest.raises(UsageError, match=r"two of the JSON Schemas have the address 'http://example.com/root.json'"):
        made(schema, references={"root.json": json.dumps(leg)})


DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
AIR_SEAT = {"$id": "http://air/seat.json", **SEAT}
NAMED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # draft 4 with the later name of an id
    ({**DRAFT_4, **obj(c={"$ref": "http://air/seat.json"})}, {"seat": {**DRAFT_4, **AIR_SEAT}}),
    ({**DRAFT_4, **obj(c={"$ref": "http://air/seat.json"})}, {"seat": AIR_SEAT}),
    ({**DRAFT_4, "$id": BASE, **obj(c={"$ref": f"{BASE}#/definitions/c"}), "definitions": {"c": SEAT}}, {}),
    # a relative $id as it is written
    (obj(c={"$ref": "seat.json"}), {"air/seat": {"$id": "seat.json", **SEAT}}),
    ({"$id": BASE, **obj(c={"$ref": "seat.json"})}, {"http://sea/seat": {"$id": "seat.json", **SEAT}}),
    # addresses that several have
    ({"$id": "Seat", **obj(c={"$ref": "Seat"})}, {"Seat": SEAT}),
    ({"$id": BASE, **obj(c={"$ref": "order.json"})}, {"order.json": SEAT}),
    ({"$id": BASE, **obj(c={"$ref": f"{BASE}#/$defs/c"}), "$defs": {"c": SEAT}}, {"order.json": obj(n=STRING)}),
    (obj(c=SEAT), {"T#1": SEAT, "T#2": obj(n=STRING)}),
    ({"$id": BASE, **obj(c={"$ref": "seat.json"})}, {"seat.json": SEAT, "http://air/s/seat.json": obj(n=STRING)}),
    ({"$id": BASE, **obj(c={"$ref": "seat.json#/$defs/c"})},
     {"http://air/s/seat.json": obj(n=STRING), "seat.json": {"$defs": {"n": INTEGER, "c": obj(n={"$ref": "#/$defs/n"})}}}),
    ({"$id": BASE, **obj(c={"$ref": "seat.json"}), "definitions": {"c": {"$id": "seat.json", **obj(n=STRING)}}},
     {"seat.json": SEAT}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "references"), NAMED)
def test_documents_are_found_by_their_names_and_by_ids_as_they_are_written(schema, references):
    """Regression: such references were refused, and addresses that two have also where no reference used them."""
    there = made(schema, references={name: json.dumps(each) for name, each in references.items()})
    assert str(there.arrow_type) == "struct<c: struct<n: int64>>"


@pytest.mark.parametrize("url", ["seat.json", "other.json"])
def test_a_relative_id_that_two_documents_have_is_refused_where_it_is_used(url):
    references = {"air/a": json.dumps({"$id": "seat.json", **SEAT}), "sea/a": json.dumps({"$id": "seat.json", **obj(n=STRING)})}
    assert str(made(obj(c=SEAT), references=references).arrow_type) == "struct<c: struct<n: int64>>"
    words = "two of the JSON Schemas have the address 'seat.json'" if url == "seat.json" else "not among its references"
    with pytest.raises(UsageError, match=words):
        made(obj(c={"$ref": url}), references={**references, "T#1": "{}", "T#2": json.dumps(SEAT)})


@pytest.mark.parametrize("schema", [
    {"$id": BASE, **obj(c={"$ref": "#/$defs/c"}), "$defs": {
        "n": STRING, "c": {"$id": "seat.json", **obj(n={"$ref": "#/$defs/n"}), "$defs": {"n": INTEGER}}}},
    {"$id": BASE, **obj(c={"$ref": "seat.json"}), "$defs": {"c": {"$id": "seat.json", **SEAT}}},
    obj(c={"$ref": "#cc"}) | {"$defs": {"c": {"$anchor": "cc", **SEAT}}},
    obj(c={"$ref": "#cc"}) | {"definitions": {"c": {"$id": "#cc", **SEAT}}},
    obj(a={"type": "array", "items": [SEAT]}, c={"$ref": "#/properties/a/items/0"}),
])  # fmt: skip
def test_ids_within_the_definitions_of_a_schema_that_names_no_dialect_count(schema):
    """Regression: those in `$defs` were ignored, where jsonschema takes the newest dialect."""
    assert str(made(schema, fields=["c"]).arrow_type) == "struct<c: struct<n: int64>>"


def test_what_referencing_cannot_search_is_read_as_far_as_it_can_be():
    odd = {"$id": "http://air/odd.json", "definitions": [1], "allOf": [5], "$defs": {"x": INTEGER}}
    assert str(made({**odd, **obj(a=X)}).arrow_type) == "struct<a: int64>"
    for url in ("other.json", "http://[x"):
        with pytest.raises(UsageError, match="not among its references"):
            made({**odd, **obj(a={"$ref": url})})
    there = made(
        {"$id": "http://[x", **obj(a=X, b={"$ref": "http://[y"}), "$defs": {"x": INTEGER}},
        references={"http://[y": "{}"},
        fields=["a"],
    )
    assert str(there.arrow_type) == "struct<a: int64>"


def test_paths_in_the_place_of_ids_and_what_is_not_an_id_give_no_base():
    for name in ("#/properties/a", "#a", 5, None):
        schema = obj(a={"$id": name, **obj(b=X)}) | {"$defs": {"x": INTEGER}}
        assert str(made({"$schema": NEWER, **schema}).arrow_type) == "struct<a: struct<b: int64>>"


def test_a_property_with_a_dot_in_its_name_is_asked_for_between_backticks():
    inner = {"type": "object", "properties": {"b.c": {"type": "integer"}, "d": {"type": "string"}}}
    names = {"service.name": {"type": "string"}, "ok": {"type": "integer"}, "a": inner, "x`.y": inner}
    schema = json.dumps({"type": "object", "properties": names})
    asked = JsonSchemaFormat(schema, fields=["`service.name`", "a.`b.c`", "`x``.y`.d", "`ok`"])
    assert asked.arrow_type == pa.struct([
        ("service.name", pa.string()), ("ok", pa.int64()), ("a", pa.struct([("b.c", pa.int64())])),
        ("x`.y", pa.struct([("d", pa.string())])),
    ])  # fmt: skip
    column, bad = asked.decode(pa.array([b'{"service.name": "s", "a": {"b.c": 1}}']))
    assert column.to_pylist() == [{"service.name": "s", "ok": None, "a": {"b.c": 1}, "x`.y": None}]
    assert not bad
    with pytest.raises(UsageError, match="asked for: 'service'"):
        JsonSchemaFormat(schema, fields=["service.name"])
