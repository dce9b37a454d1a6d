"""A search for values that formats lose or change: fastavro, Protobuf's runtime, jsonschema and Python's json are the oracles.

Each schema is nested to depth three, has one field next to the others that has no Arrow type, and values that are bad next to
good ones. What was read is written again from other forms of the same column.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import types

from headrace.connectors.formats.protobuf.compiler import descriptor_set
from headrace.enumerator.errors import UsageError
from headrace.formats import AvroFormat, JsonFormat, JsonSchemaFormat, ProtobufFormat
from tests.helpers import avro_cases as avro
from tests.helpers import protobuf_cases as protobuf
from tests.helpers.protobuf_cases import FIELD
from tests.values import schemas
from tests.values.budget import explore, find
from tests.values.bugs import formats as bugs
from tests.values.test_files import parsed

COUNTS: dict[str, Counter[str]] = defaultdict(Counter)
EXAMPLES = {"avro": 100, "protobuf": 60, "json": 150, "json schema": 100}
"""Of the default budget."""
CHANCES = st.integers(0, 2**32).map(random.Random)


def binary(values: list[bytes | None], chance: random.Random) -> pa.Array:
    """In one of the forms of a column that is read, and a slice of it."""
    forms = [pa.binary(), pa.large_binary(), pa.binary_view()]
    return schemas.sliced(pa.array(values, pa.binary()).cast(chance.choice(forms)))


def mixed(good: list[Any], odd: list[Any], chance: random.Random) -> list[Any]:
    """All of them, with a null."""
    return chance.sample(found := [*good, *odd, None], len(found))


def is_refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except UsageError:
        return True
    return False


def counted(name: str, rows: int) -> None:
    COUNTS[name].update({"schemas": 1, "read-backs": 2, "values": rows})


# --- Avro --------------------------------------------------------------------------------------------------------------

SIMPLE = {
    **avro.SIMPLE,
    "int": schemas.scalars(pa.int32()),
    "long": schemas.scalars(pa.int64()),
    "float": schemas.scalars(pa.float32()),
    "double": schemas.scalars(pa.float64()),
    "string": schemas.texts(),
    "bytes": schemas.scalars(pa.binary()),
}
TREE = {"type": "record", "name": "space.Tree", "fields": [{"name": "more", "type": ["null", "space.Tree"]}]}


@st.composite
def of_avro(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    is_inside = draw(CHANCES).random() < 0.6
    schema = draw(avro.schemas(with_empty=False, depth=schemas.DEPTH - 1))
    if is_inside:
        schema = {"type": "record", "name": "space.Outer", "fields": [{"name": "inner", "type": ["null", schema]}]}
    return schema, draw(st.lists(avro.values(schema, SIMPLE), min_size=1, max_size=4)) + [{"inner": None}] * is_inside


def check_avro(drawn: tuple[Any, list[Any]], chance: random.Random) -> None:
    schema, values = drawn
    counted("avro", len(values))
    form = AvroFormat(json.dumps(schema))
    good = [avro.written(schema, value) for value in values]
    rows = mixed(good, [protobuf.mutated(value, chance) for value in good], chance)
    column, bad = form.decode(binary(rows, chance))
    column.validate(full=True)
    for at, (row, found) in enumerate(zip(rows, avro.plain(column), strict=True)):
        wanted = None if row is None else strict(schema, row)
        assert (at in {each.row for each in bad}) == (row is not None and wanted is None), row
        assert avro.said(found) == (wanted or "None")
    written = form.encode(schemas.other_form(form.decode(binary(good, chance)).values, chance)).to_pylist()
    assert [avro.said(avro.read(schema, each)) for each in written] == [avro.said(avro.read(schema, each)) for each in good]
    check_odd_in_avro(schema, values, chance)


def strict(schema: Any, data: bytes) -> str | None:
    try:
        avro.StrictReader(data).read(schema)
    except avro.RefusedError:
        return None
    return avro.said(avro.expected(schema, avro.read(schema, data)))


def check_odd_in_avro(schema: Any, values: list[Any], chance: random.Random) -> None:
    odd, names = {"name": "odd", "type": ["null", TREE]}, [field["name"] for field in schema["fields"]]
    whole = {**schema, "fields": chance.sample(fields := [*schema["fields"], odd], len(fields))}
    assert is_refused(lambda: AvroFormat(json.dumps(whole)))
    trees = [None, {"more": None}, {"more": {"more": None}}]
    encoded = [avro.written(whole, {**value, "odd": chance.choice(trees)}) for value in values]
    column, bad = AvroFormat(json.dumps(whole), fields=names).decode(binary(encoded, chance))
    assert not bad
    assert [*map(avro.said, avro.plain(column))] == [
        avro.said(avro.expected(schema, avro.read(schema, avro.written(schema, value)))) for value in values
    ]


# --- Protobuf ----------------------------------------------------------------------------------------------------------

KNOWN = (
    "Timestamp",
    "Timestamp",
    "Duration",
    "Int32Value",
    "StringValue",
    "BytesValue",
    "BoolValue",
    "DoubleValue",
    "UInt64Value",
)
KEYS = (FIELD.TYPE_STRING, FIELD.TYPE_INT32, FIELD.TYPE_SINT64, FIELD.TYPE_BOOL, FIELD.TYPE_FIXED64)


@cache
def imports() -> FileDescriptorSet:
    """The files of Google's that fields may be of."""
    lines = [f'import "google/protobuf/{name}.proto";' for name in ("timestamp", "duration", "wrappers")]
    return FileDescriptorSet.FromString(descriptor_set(f'syntax = "proto3"; {" ".join(lines)} message M {{}}'))


class Messages:
    """A file of message types within each other, drawn at random."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.file = FileDescriptorProto(name="m.proto", package="p", syntax=chance.choice(["proto2", "proto3"]))
        self.file.dependency.extend(each.name for each in imports().file[:-1])
        self.file.enum_type.add(name="E")
        for name, number in (("ZERO", 0), ("ONE", 1), ("MINUS", -(2**31)), ("LARGEST", 2**31 - 1)):
            self.file.enum_type[0].value.add(name=name, number=number)
        self.message(self.file.message_type.add(), ".p.M", schemas.DEPTH)

    def message(self, made: DescriptorProto, name: str, depth: int) -> None:
        made.name = name.rpartition(".")[2]
        forms = self._chance.choices(["plain", "plain", "optional", "repeated", "map", "oneof"], k=self._chance.randint(1, 4))
        for at, form in enumerate(sorted(forms, key=lambda form: form != "oneof")):  # the compiler's own come last
            field = made.field.add(name=f"f{at}", number=at * self._chance.choice([1, 17, 4099]) + at + 1)
            field.label = FIELD.LABEL_REPEATED if form in ("repeated", "map") else FIELD.LABEL_OPTIONAL
            if form == "map":
                entry = made.nested_type.add(name=f"F{at}Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, type=self._chance.choice(KEYS), label=FIELD.LABEL_OPTIONAL)
                self.kind(entry.field.add(name="value", number=2, label=FIELD.LABEL_OPTIONAL), made, name, depth)
                field.type, field.type_name = FIELD.TYPE_MESSAGE, f"{name}.{entry.name}"
                continue
            self.kind(field, made, name, depth)
            if form == "oneof":
                field.oneof_index = 0
                if not made.oneof_decl:
                    made.oneof_decl.add(name="choice")
            elif form == "optional" and self.file.syntax == "proto3":
                field.proto3_optional, field.oneof_index = True, len(made.oneof_decl)
                made.oneof_decl.add(name=f"_f{at}")

    def kind(self, field: Any, made: DescriptorProto, name: str, depth: int) -> None:
        match self._chance.choice(["number"] * 3 + ["known"] * 2 + ["enum", *(["message"] * 3 if depth else [])]):
            case "number":
                field.type = self._chance.choice([*protobuf.NUMBERS])
            case "known":
                field.type, field.type_name = FIELD.TYPE_MESSAGE, f".google.protobuf.{self._chance.choice(KNOWN)}"
            case "enum":
                field.type, field.type_name = FIELD.TYPE_ENUM, ".p.E"
            case _:
                inner = f"{name}.N{len(made.nested_type)}"
                field.type, field.type_name = FIELD.TYPE_MESSAGE, inner
                self.message(made.nested_type.add(), inner, depth - 1)

    def whole(self) -> bytes:
        return bytes(FileDescriptorSet(file=[*imports().file[:-1], self.file]).SerializeToString())

    def made(self) -> Any:
        """The class of the outermost."""
        pool = descriptor_pool.DescriptorPool()
        for file in FileDescriptorSet.FromString(self.whole()).file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.M"))


def check_protobuf(chance: random.Random) -> None:
    messages = Messages(chance)
    form, of = ProtobufFormat(messages.whole()), messages.made()
    good = [protobuf.message_of(of, chance, schemas.DEPTH).SerializeToString() for _ in range(4)]
    counted("protobuf", len(good))
    # a message after another one is merged into it
    odd = [protobuf.mutated(good[0], chance), good[1] + good[2], good[3] + protobuf.mutated(good[0], chance)]
    rows = mixed(good, odd, chance)
    wanted = [None if row is None else protobuf.oracle_of(of, row) for row in rows]
    assert protobuf.answers_of(form, binary(rows, chance)) == wanted
    sound = [row for row, found in zip(rows, wanted, strict=True) if found not in (None, "bad")]
    written = form.encode(schemas.sliced(schemas.other_form(form.decode(binary(sound, chance)).values, chance)))
    assert [protobuf.oracle_of(of, each) for each in written.to_pylist()] == [protobuf.oracle_of(of, each) for each in sound]
    check_odd_in_protobuf(messages, sound, chance)


def check_odd_in_protobuf(messages: Messages, values: list[bytes], chance: random.Random) -> None:
    """A group, or the message itself, next to other fields."""
    (message,), names = messages.file.message_type, [field.name for field in messages.file.message_type[0].field]
    wanted = [protobuf.oracle_of(messages.made(), value) for value in values]
    odd = message.field.add(name="odd", number=77_777, label=FIELD.LABEL_OPTIONAL, type_name=".p.M", type=FIELD.TYPE_MESSAGE)
    is_group = messages.file.syntax == "proto2" and chance.random() < 0.5
    if is_group:
        odd.type, odd.name, odd.type_name = FIELD.TYPE_GROUP, "odd", ".p.M.Odd"
        message.nested_type.add(name="Odd")
        assert is_refused(lambda: ProtobufFormat(messages.whole()))
    of = messages.made()
    inside = b"" if is_group or not values else of(odd=of.FromString(values[0])).SerializePartialToString()
    rows = [value + inside for value in values]
    assert protobuf.answers_of(ProtobufFormat(messages.whole(), fields=names), binary(rows, chance)) == wanted


# --- JSON --------------------------------------------------------------------------------------------------------------

FLAT_JSON = (
    *(pa.bool_(), pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.string(), pa.large_string()),
    *(pa.decimal128(10, 2), pa.decimal128(38, 38), pa.timestamp("us"), pa.timestamp("ms", "UTC")),
)
OF_JSON_SCHEMA = {pa.bool_(): "boolean", pa.int64(): "integer", pa.float64(): "number", pa.string(): "string"}
ODD_TEXTS = (
    *(
        b"",
        b"{",
        b"NaN",
        b'{"a":NaN}',
        b'{"other":-Infinity}',
        b"\xff",
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"other":"\\ud800"}',
    ),
    *(
        b"[1]",
        *[b'{}],"x":[{}'] * 3,
        b'{}]}\n{"v":[{}',
        b"null",
        b'{"a":1}{"a":2}',
        b'{"a":1,"a":2}',
        b"{}\n{}",
        b"{},{}",
        b"{} //",
    ),
    *(
        b'{"a":1e999}',
        b'{"a":' * 600 + b"1" + b"}" * 600,
        b"[" * 2000,
        b"\xef\xbb\xbf{}",
        b"{'a':1}",
        b" {} \n",
        b'"\0"',
        b"{\0}",
    ),
)


NOT_IN_JSON = re.compile(rb'"(?:[-+][0-9]+-[0-9]{2}-|[0-9]{5,}-[0-9]{2}-)')
"""What is written as a text and not read: years that ISO 8601 has not."""


def without_maps(kind: pa.DataType) -> pa.DataType:
    """JSON values have none, and no large lists."""
    if types.is_struct(kind):
        return pa.struct([field.with_type(without_maps(field.type)) for field in kind])
    if types.is_map(kind):
        return without_maps(kind.item_type)
    if types.is_nested(kind):
        return pa.list_(without_maps(kind.value_type))
    return kind


@st.composite
def columns(draw: st.DrawFn, flat: tuple[pa.DataType, ...]) -> pa.Array:
    kind = without_maps(pa.struct(draw(schemas.fields(flat, depth=schemas.DEPTH - 1, most=5))))
    return pa.array(draw(st.lists(schemas.values(kind, nullable=False), min_size=1, max_size=4)), kind)


def dumped(value: Any, chance: random.Random) -> str:
    """As another writer has it: blanks, escapes, names in another order, nulls left out, names that are not asked for."""
    blank = chance.choice(["", "", " ", "\n\t"])
    if isinstance(value, dict):
        items = [item for item in value.items() if item[1] is not None or chance.random() < 0.5]
        items += [("unknown", {"a": [1, None, "]},{["]})] * (chance.random() < 0.3)
        found = [f"{json.dumps(name)}{blank}:{dumped(each, chance)}" for name, each in chance.sample(items, len(items))]
        return f"{{{blank}{f'{blank},'.join(found)}}}{blank}"
    if isinstance(value, list):
        return f"[{','.join(blank + dumped(each, chance) for each in value)}{blank}]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=chance.random() < 0.5)


def loaded(text: bytes) -> Any:
    """JSON to the letter: no constants."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=int)


def check_json(column: pa.Array, chance: random.Random) -> None:
    counted("json", len(column))
    form, wanted, kind = JsonFormat(column.type), schemas.plain(column), column.type
    other = schemas.sliced(schemas.other_form(column, chance))
    try:
        other = other if other.cast(kind) else column
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        other = column
    texts = form.encode(other).to_pylist()
    assert [parsed(loaded(text), kind) for text in texts] == wanted
    check_read(form, [dumped(loaded(text), chance).encode() for text in texts], column, chance)


def check_read(form: Any, texts: list[bytes], column: pa.Array, chance: random.Random) -> None:
    """Good texts are what they were made of, whatever is next to them; what is not JSON is bad."""
    wanted = dict(zip(texts, schemas.plain(column), strict=True))
    rows = mixed(texts, chance.sample(ODD_TEXTS, chance.choice([1, 1, 3])), chance)
    found, bad = form.decode(binary(rows, chance))
    found.validate(full=True)
    wrong = {each.row for each in bad}
    for at, (row, value) in enumerate(zip(rows, schemas.plain(found), strict=True)):
        if row is None:
            assert value is None
            assert at not in wrong
        elif row in wanted:
            assert at not in wrong or NOT_IN_JSON.search(row), (row, bad)
            assert at in wrong or value == wanted[row], row
        elif not is_json(row):
            assert at in wrong, row


def is_json(text: bytes) -> bool:
    try:
        loaded(text)
    except (ValueError, RecursionError):
        return False
    return True


# --- JSON Schema -------------------------------------------------------------------------------------------------------


class JsonSchemas:
    """Schemas of an Arrow type, drawn at random: what may be null, what is required, by which words that is said."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.definitions: dict[str, Any] = {}

    def of(self, kind: pa.DataType) -> Any:
        made = self._plain(kind)
        match self._chance.choice(["never", "never", "type", "oneOf", "anyOf", "$ref"]):
            case "type":
                return {**made, "type": chance_order([made["type"], "null"], self._chance)}
            case "oneOf" | "anyOf" as word:
                return {word: chance_order([made, {"type": "null"}], self._chance)}
            case "$ref":
                name = f"d/{len(self.definitions)}~"
                self.definitions[name] = made
                return {"$ref": f"#/definitions/{name.replace('~', '~0').replace('/', '~1')}"}
        return made

    def _plain(self, kind: pa.DataType) -> dict[str, Any]:
        if types.is_struct(kind):
            properties = {field.name: self.of(field.type) for field in kind}
            required = [name for name in properties if self._chance.random() < 0.5]
            return {"type": "object", "properties": properties, "required": required}
        if types.is_nested(kind):
            return {"type": "array", "items": self.of(kind.value_type)}
        return {"type": OF_JSON_SCHEMA[kind]}


def chance_order(found: list[Any], chance: random.Random) -> list[Any]:
    return chance.sample(found, len(found))


def allowed(schema: Any, whole: Any, value: Any) -> Any:
    """The value without the properties that are null and may not be."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/definitions/").replace("~1", "/").replace("~0", "~")
        return allowed(whole["definitions"][name], whole, value)
    schema = next((each for word in ("oneOf", "anyOf") for each in schema.get(word, ()) if each["type"] != "null"), schema)
    if isinstance(value, dict):
        inside = {name: (schema["properties"][name], each) for name, each in value.items()}
        is_valid = jsonschema.Draft7Validator({"definitions": whole["definitions"]}).evolve
        return {
            name: allowed(of, whole, each)
            for name, (of, each) in inside.items()
            if each is not None or is_valid(schema={**of, "definitions": whole["definitions"]}).is_valid(None)
        }
    return [allowed(schema["items"], whole, each) for each in value] if isinstance(value, list) else value


ODD_PROPERTIES: tuple[Any, ...] = (
    {},
    True,
    {"type": ["string", "integer"]},
    {"type": "object"},
    {"type": "array"},
    {"$ref": "#"},
)


def check_json_schema(column: pa.Array, chance: random.Random) -> None:
    made = JsonSchemas(chance)
    schema = made._plain(column.type) | {"definitions": made.definitions}
    counted("json schema", len(column))
    form, sound, texts = JsonSchemaFormat(json.dumps(schema)), [], []
    for at, text in enumerate(JsonFormat(column.type).encode(column).to_pylist()):
        value = allowed(schema, schema, json.loads(text))
        if not jsonschema.Draft7Validator(schema).is_valid(value):
            assert is_refused(lambda at=at: form.encode(column[at : at + 1]))
            continue
        sound.append(at)
        texts += form.encode(column[at : at + 1]).to_pylist()
        assert json.loads(texts[-1]) == value
    good = column.take(pa.array(sound, pa.int64()))
    assert form.encode(schemas.sliced(good)).to_pylist() == texts
    check_read(form, [dumped(loaded(text), chance).encode() for text in texts], good, chance)
    odd = {**schema, "properties": {**schema["properties"], "odd": chance.choice(ODD_PROPERTIES)}}
    assert is_refused(lambda: JsonSchemaFormat(json.dumps(odd)))
    names = ["`" + name.replace("`", "``") + "`" for name in schema["properties"]]
    others = [b'{"odd":[1,"a",{}],' + text[1:] for text in texts if text != b"{}"]
    found, bad = JsonSchemaFormat(json.dumps(odd), fields=names).decode(binary(others, chance))
    assert not bad
    assert schemas.plain(found) == [each for each, text in zip(schemas.plain(good), texts, strict=True) if text != b"{}"]


# --- the searches ------------------------------------------------------------------------------------------------------

SEARCHES: dict[str, Callable[[], Callable[[], None]]] = {
    "avro": lambda: given(of_avro(), CHANCES)(check_avro),
    "protobuf": lambda: given(CHANCES)(check_protobuf),
    "json": lambda: given(columns(FLAT_JSON), CHANCES)(check_json),
    "json schema": lambda: given(columns(tuple(OF_JSON_SCHEMA)), CHANCES)(check_json_schema),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_short_run_over_formats(name):
    find(SEARCHES[name](), 15)


@pytest.mark.parametrize("name", SEARCHES)
def test_what_a_format_writes_others_read_and_the_reverse(name):
    explore(SEARCHES[name], EXAMPLES[name], f"formats: {name}", COUNTS[name])


@pytest.mark.parametrize(("name", "bug"), bugs.OF_FORMATS)
def test_a_bug_of_formats_is_found(name, bug):
    with bug(), pytest.raises((AssertionError, UsageError, pa.ArrowInvalid)):
        find(SEARCHES[name](), EXAMPLES[name])
