"""The Avro format: against fastavro and a strict reader on anything, and case by case."""

from __future__ import annotations

import datetime
import io
import json
import math
import pickle
import random
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.formats.avro import decode as compiled_decode
from headrace.connectors.formats.avro import encode as compiled_encode
from headrace.connectors.formats.value_format import ColumnFullError
from headrace.enumerator.errors import UsageError
from headrace.formats import AvroFormat
from tests.helpers.avro_cases import RefusedError, StrictReader, evolved, expected, plain, read, said, schemas, values, written
from tests.helpers.decode_twin import load
from tests.helpers.python_path import printed

EXAMPLES = 40


def binary(items: list[bytes | None]) -> pa.Array:
    return pa.array(items, pa.binary())


def decoded(schema: Any, items: list[bytes | None], **options: Any) -> tuple[list[Any], dict[int, str]]:
    """Values and what is bad, the column validated in full."""
    column, bad = AvroFormat(json.dumps(schema), **options).decode(binary(items))
    column.validate(full=True)
    assert len(column) == len(items)
    return plain(column), {each.row: each.reason for each in bad}


def one(schema: Any, data: bytes, reader: Any = None) -> Any:
    options = {} if reader is None else {"reader_schema": json.dumps(reader)}
    (value,), bad = decoded(schema, [data], **options)
    assert not bad
    return value


UUID_TEXT = {"type": "string", "logicalType": "uuid"}


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields], **more}


# --- on anything ---
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_values_of_any_schema_are_what_fastavro_reads_and_are_written_as_fastavro_writes_them(data):
    schema = data.draw(schemas())
    items = data.draw(st.lists(values(schema), max_size=4))
    encoded, avro = [written(schema, item) for item in items], AvroFormat(json.dumps(schema))
    column, bad = avro.decode(binary(encoded))
    column.validate(full=True)
    assert not bad
    assert [said(each) for each in plain(column)] == [said(expected(schema, read(schema, each))) for each in encoded]
    assert avro.encode(column).to_pylist() == encoded


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data(), st.randoms(use_true_random=False))
def test_mutated_bytes_are_refused_or_read_as_the_specification_says_and_neighbours_are_read(data, chance):
    schema = data.draw(schemas(with_empty=False))
    good = written(schema, data.draw(values(schema)))
    mutants = [_mutated(good, chance) for _ in range(12)]
    batch = [good, *(each for mutant in mutants for each in (mutant, good))]
    column, bad = decoded(schema, batch)
    sound = said(expected(schema, read(schema, good)))
    for row, item in enumerate(batch):
        strict = _strictly(schema, item)
        assert (row in bad) == (strict is None), (item, bad.get(row))
        if strict is None:
            assert column[row] is None
        else:
            assert said(column[row]) == strict[0] == said(expected(schema, read(schema, item)))
    assert all(said(column[row]) == sound for row in range(0, len(batch), 2))


def _mutated(good: bytes, chance: random.Random) -> bytes:
    changed = bytearray(good)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(4):
            case 0:
                del changed[at:]
            case 1:
                changed[at:at] = bytes([chance.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF])])
            case 2:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case _:
                changed[at : at + 1] = b"\xff" * chance.randint(1, 10)
    return bytes(changed)


def _strictly(schema: Any, item: bytes) -> tuple[str] | None:
    try:
        return (said(expected(schema, StrictReader(item).read(schema))),)
    except RefusedError:
        return None


def test_the_strict_reader_refuses_what_is_no_value():
    """The checker of the test above is not one that takes everything, or nothing."""
    schema = record(("n", "int"), ("b", "boolean"), ("s", "string"))
    assert _strictly(schema, b"\x02\x01\x02a") == ("{'b':True,'n':1,'s':'a'}",)
    rest = [b"\x02\x02\x02a", b"\x02\x01\x04a", b"\x02\x01\x01a", b"\xff\xff\xff\xff\x7f\x01\x02a", b"\x02\x01\x02\xff"]
    assert [_strictly(schema, bad) for bad in [b"", *rest]] == [None] * 6


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_an_evolved_reader_reads_what_fastavro_resolves(data):
    writer = data.draw(schemas())
    reader = data.draw(evolved(writer))
    items = data.draw(st.lists(values(writer), min_size=1, max_size=3))
    encoded = [written(writer, item) for item in items]
    column, bad = decoded(writer, encoded, reader_schema=json.dumps(reader))
    assert not bad
    assert [said(each) for each in column] == [said(expected(reader, read(writer, each, reader))) for each in encoded]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_fields_asked_for_are_as_in_the_whole_record_and_bad_values_are_the_same(data):
    schema = data.draw(schemas(with_empty=False))
    good = written(schema, data.draw(values(schema)))
    batch = [good, good[: len(good) // 2], good[:-1]]
    whole, whole_bad = decoded(schema, batch)
    names = [field["name"] for field in schema["fields"]]
    wanted = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    part, part_bad = decoded(schema, batch, fields=wanted)
    assert whole_bad.keys() == part_bad.keys()
    for row in range(len(batch)):
        assert part[row] is None if whole[row] is None else said(part[row]) == said({name: whole[row][name] for name in wanted})


@settings(max_examples=15, deadline=None)
@given(st.data(), st.randoms(use_true_random=False))
def test_compiled_and_uncompiled_agree_on_anything(data, chance):
    schema = data.draw(schemas(with_empty=False))
    good = written(schema, data.draw(values(schema)))
    batch = [good, None, *(_mutated(good, chance) for _ in range(4)), good]
    assert _by(compiled_decode, compiled_encode, schema, batch) == _by(DECODE_TWIN, ENCODE_TWIN, schema, batch)


DECODE_TWIN, ENCODE_TWIN = load(compiled_decode), load(compiled_encode)


def _by(decode: Any, encode: Any, schema: Any, batch: list[bytes | None]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.connectors.formats.avro.program.kernel", decode)
        patch.setattr("headrace.connectors.formats.avro.avro_format.kernel", decode)
        patch.setattr("headrace.connectors.formats.avro.writing.kernel", encode)
        avro = AvroFormat(json.dumps(schema))
        column, bad = avro.decode(binary(batch))
        return [said(each) for each in plain(column)], bad, _encoded(avro, column)


def _encoded(avro: AvroFormat, column: pa.Array) -> Any:
    """What was read may be text that is not a UUID, which is not written."""
    try:
        return avro.encode(column).to_pylist()
    except UsageError as error:
        return str(error)


# --- space ---
@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column holds 10 bytes of text: 2 GiB are more than a test can fill. The kernel is uncompiled."""
    monkeypatch.setattr(DECODE_TWIN, "_INT32_MAX", 10)
    monkeypatch.setattr("headrace.connectors.formats.avro.program.kernel", DECODE_TWIN)
    monkeypatch.setattr("headrace.connectors.formats.avro.avro_format.kernel", DECODE_TWIN)


@pytest.mark.usefixtures("small")
def test_a_good_value_that_its_neighbours_leave_no_space_for_is_not_a_bad_one():
    avro = AvroFormat('"string"')
    with pytest.raises(ColumnFullError, match="decode fewer values at once"):
        avro.decode(binary([b"\x0cabcdef", b"\x0cabcdef"]))
    assert avro.decode(binary([b"\x0cabcdef", b"\x08abcd"])).values.to_pylist() == ["abcdef", "abcd"]
    column, bad = avro.decode(binary([b"\x18abcdefghijkl", b"\x08abcd"]))
    assert (column.to_pylist(), bad[0].row) == ([None, "abcd"], 0)
    assert "larger than 2 GiB" in bad[0].reason


@pytest.mark.usefixtures("small")
def test_a_good_value_is_not_bad_where_memory_is_short(monkeypatch):
    avro = AvroFormat('"string"')
    grow, short = DECODE_TWIN._Headroom.grow, [True]  # for the text, and not for the null that would stand in its place
    scarce = lambda headroom, size: not (short and short.pop()) and grow(headroom, size)  # noqa: E731
    monkeypatch.setattr(DECODE_TWIN._Headroom, "grow", scarce)
    with pytest.raises(MemoryError):
        avro.decode(binary([b"\x08abcd"]))
    assert not short
    assert avro.decode(binary([b"\x08abcd"])).values.to_pylist() == ["abcd"]


# --- what is built ---
@pytest.mark.parametrize("module", [compiled_decode, compiled_encode])
def test_the_modules_under_test_are_compiled(module):
    assert module.__file__.endswith(".so")


def test_running_compiled_imports_neither_cython_nor_fastavro():
    code = "import sys, headrace.formats; print([m for m in ('cython', 'Cython', 'fastavro') if m in sys.modules])"
    assert printed(code, Path(__file__).parent) == "[]"


# --- logical types ---
def test_logical_types_are_the_values_that_fastavro_makes_of_them():
    moment = datetime.datetime(2024, 2, 29, 23, 59, 59, 123000, datetime.UTC)
    values = {
        "date": ("int", "date", datetime.date(2024, 2, 29)),
        "time_millis": ("int", "time-millis", datetime.time(23, 59, 59, 123000)),
        "time_micros": ("long", "time-micros", datetime.time(23, 59, 59, 123456)),
        "millis": ("long", "timestamp-millis", moment),
        "micros": ("long", "timestamp-micros", moment.replace(microsecond=123456)),
        "local_millis": ("long", "local-timestamp-millis", moment.replace(tzinfo=None)),
        "local_micros": ("long", "local-timestamp-micros", moment.replace(tzinfo=None)),
        "text_uuid": ("string", "uuid", uuid.UUID(int=7)),
    }
    schema = record(*((name, {"type": kind, "logicalType": logical}) for name, (kind, logical, _) in values.items()))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {name: value for name, (*_, value) in values.items()})
    avro = AvroFormat(json.dumps(schema))
    column, bad = avro.decode(binary([out.getvalue()]))
    assert not bad
    (found,) = column.to_pylist()
    assert found == {name: str(value) if name == "text_uuid" else value for name, (*_, value) in values.items()}
    assert avro.encode(column).to_pylist() == [out.getvalue()]


def test_a_fixed_uuid_is_text_and_a_duration_an_interval():
    identity = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    span = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    avro = AvroFormat(json.dumps(record(("u", identity), ("d", span))))
    some = uuid.uuid5(uuid.NAMESPACE_DNS, "x")
    data = some.bytes + bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0])
    column, bad = avro.decode(binary([data, some.bytes + b"\xff" * 12]))
    assert column[0].as_py() == {"u": str(some), "d": pa.MonthDayNano([1, 2, 3_000_000])}
    assert [(each.row, each.reason) for each in bad] == [(1, "field 'd': a number is out of the range of its logical type")]
    assert avro.encode(column.slice(0, 1)).to_pylist() == [data]


@pytest.mark.parametrize("size", [1, 8, 16, 20, 33])
@pytest.mark.parametrize("number", [0, 1, -1, 99, -99, 100, -100, 127, -128])
def test_a_fixed_decimal_is_read_within_its_precision_and_written_back(size, number):
    schema = {"type": "fixed", "name": "D", "size": size, "logicalType": "decimal", "precision": 2, "scale": 1}
    data = number.to_bytes(size, "big", signed=True)
    (value,), bad = decoded(schema, [data])
    if abs(number) > 99:
        assert bad == {0: "a decimal has more digits than its precision"}
        return
    assert value == Decimal(number) / 10
    assert AvroFormat(json.dumps(schema)).encode(pa.array([value])).to_pylist() == [data]


@pytest.mark.parametrize("kind", [
    {"type": "long", "logicalType": "date"}, {"type": "int", "logicalType": "of-my-own"},
    {"type": "bytes", "logicalType": "decimal", "precision": 77, "scale": 0},
    {"type": "fixed", "name": "F", "size": 3, "logicalType": "duration"},
])  # fmt: skip
def test_a_logical_type_that_does_not_fit_is_skipped(kind):
    plain_kind = AvroFormat(json.dumps({key: value for key, value in kind.items() if key in ("type", "name", "size")}))
    assert AvroFormat(json.dumps(kind)).arrow_type == plain_kind.arrow_type


# --- resolution ---
@pytest.mark.parametrize(("writer", "reader", "data", "value"), [
    ("int", "long", b"\x01", -1), ("int", "float", b"\x06", 3.0), ("int", "double", b"\x06", 3.0),
    ("long", "float", b"\x06", 3.0), ("long", "double", b"\x06", 3.0), ("float", "double", b"\x00\x00\xc0\x3f", 1.5),
    ("string", "bytes", b"\x02a", b"a"), ("bytes", "string", b"\x02a", "a"), ("int", ["null", "long"], b"\x06", 3),
    (["null", "int"], "long", b"\x02\x06", 3), (["int", "null"], ["null", "long"], b"\x02", None),
    (["null", "long", "string"], ["string", "null", "long"], b"\x02\x06", 3),
])  # fmt: skip
def test_promotions_and_unions_are_those_of_the_specification(writer, reader, data, value):
    assert said(one(writer, data, reader)) == said(value)


def test_a_union_that_both_sides_share_keeps_its_branches():
    """By the first match alone an int goes to the long that is before it."""
    column, _ = AvroFormat('["long", "int"]', reader_schema='["long", "int"]').decode(binary([b"\x02\x06"]))
    assert column.type_codes.to_pylist() == [1]


@pytest.mark.parametrize("schema", ['["null", "int", "string"]', '["int", "null", "string"]', '["int", "string"]'])
def test_a_tombstone_of_a_union_stays_one(schema):
    """It was written as a record whose value is null."""
    format_ = AvroFormat(schema)
    place = json.loads(schema).index("int")
    values = [None, bytes([2 * place, 6]), None, bytes([4, 2, 97]) if "null" in schema else b"\x02\x02a", None]
    column = format_.decode(binary(values)).values
    for start in range(len(values)):
        assert format_.encode(column.slice(start)).to_pylist() == values[start:]
    if "null" in schema:
        assert format_.encode(format_.decode(binary([bytes([2 * (1 - place)])])).values).to_pylist() == [None]


def test_a_branch_that_the_reader_does_not_have_is_bad_where_it_comes():
    items = [b"\x02\x06", b"\x04\x02a", b"\x00"]
    bad = {1: "the writer's branch of a union does not match the reader's schema"}
    assert decoded(["null", "int", "string"], items, reader_schema='["null", "long"]') == ([3, None, None], bad)


def test_an_enum_is_read_by_its_symbols_and_an_unknown_one_is_the_default_or_bad():
    writer = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
    reader = {"type": "enum", "name": "E", "symbols": ["C", "A"]}
    items = [b"\x00", b"\x02", b"\x04"]
    column, bad = decoded(writer, items, reader_schema=json.dumps(reader))
    assert (column, bad.keys()) == (["A", None, "C"], {1})
    assert decoded(writer, items, reader_schema=json.dumps({**reader, "default": "C"})) == (["A", "C", "C"], {})


def test_defaults_of_every_type_are_values_of_that_type():
    defaults = [
        ("null", None, None), ("boolean", True, True), ("int", -5, -5), ("double", 1.5, 1.5),
        ("bytes", "\u00ff", b"\xff"), ({"type": "fixed", "name": "F", "size": 2}, "\u00ff\u0000", b"\xff\x00"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]), ({"type": "map", "values": "int"}, {"k": 1}, {"k": 1}),
        (["null", "int"], None, None), (["string", "null"], "s", "s"), (["null", "int"], 7, 7),
        (record(("x", "int"), name="I"), {"x": 3}, {"x": 3}),
    ]  # fmt: skip
    fields = [{"name": f"f{i}", "type": kind, "default": value} for i, (kind, value, _) in enumerate(defaults)]
    reader = {"type": "record", "name": "R", "fields": fields}
    row = {f"f{i}": value for i, (*_, value) in enumerate(defaults)}
    assert decoded(record(), [b"", b""], reader_schema=json.dumps(reader)) == ([row] * 2, {})


@pytest.mark.parametrize(("writer", "reader", "words"), [
    ("int", "string", "wants string; the writer's has int"),
    (record(("a", "int")), record(("a", "boolean")), "wants boolean at field 'a'; the writer's has int"),
    (record(), record(("b", "int")), "field 'b' that the writer's has not"),
    (record(name="A"), record(name="B"), "wants B; the writer's has A"),
    (["null", "int"], "string", "wants string; the writer's has a union of null, int"),
    ("int", ["null", "string"], "wants a union of null, string; the writer's has int"),
    ({"type": "long", "logicalType": "timestamp-millis"}, {"type": "long", "logicalType": "timestamp-micros"}, "not converted"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        "decimal of scale 2; the writer's has decimal of scale 1"),
    (record(), {**record(), "fields": [{"name": "n", "type": "int", "default": "x"}]},
        "the Avro default at field 'n' is not of type int"),
])  # fmt: skip
def test_schemas_that_never_resolve_are_refused_at_once_and_the_field_is_named(writer, reader, words):
    with pytest.raises(UsageError, match=words):
        AvroFormat(json.dumps(writer), reader_schema=json.dumps(reader))


def test_a_record_is_found_by_an_alias_with_and_without_its_namespace():
    reader = record(("n", "int"), name="new.Name", aliases=["old.Former"])
    assert one(record(("n", "int"), name="old.Former"), b"\x06", reader) == {"n": 3}
    assert one(record(("n", "int"), name="other.Name"), b"\x06", reader) == {"n": 3}


# --- fields, recursion, headers ---
TREE = record(("n", "int"), ("next", ["null", "Tree"]), ("after", "string"), name="Tree")
TOO_DEEP = "field 'next': recursive types are nested more than 100 deep"


def test_a_type_within_itself_is_refused_by_name_and_its_other_fields_are_read():
    with pytest.raises(UsageError, match=r"type Tree contains itself at field 'next'.*ask only for fields without it"):
        AvroFormat(json.dumps(TREE))
    leaf = b"\x02\x00\x02x"
    nested = b"\x04\x02" + leaf + b"\x02y"
    items = [leaf, nested, b"\x04\x02" * 99 + leaf + b"\x02y" * 99, b"\x04\x02" * 200]
    rows = [{"n": 1, "after": "x"}, {"n": 2, "after": "y"}, {"n": 2, "after": "y"}, None]
    assert decoded(TREE, items, fields=["n", "after"]) == (rows, {3: TOO_DEEP})


def test_a_deeper_recursion_than_the_stack_holds_is_a_bad_value():
    assert decoded(TREE, [b"\x04\x02" * 1_000_000], fields=["n"]) == ([None], {0: TOO_DEEP})


def test_a_chain_of_recursive_types_has_one_depth_and_not_one_for_each_type():
    """Each of 60 types is nested 99 deep, and the last of them holds the first of the next: 5940 levels of the stack."""
    kinds, chain = 60, {}
    for i in reversed(range(kinds)):
        more = [("n", ["null", f"R{i + 1}"])] if i + 1 < kinds else []
        chain[f"R{i}"] = json.dumps(record(("s", ["null", f"R{i}"]), *more, name=f"R{i}"))
    schema = record(("a", "int"), ("r", "R0"), ("z", "int"))
    deep = b"\x02" + (b"\x02" * 99 + b"\x00\x02") * kinds + b"\x00" * 200 * kinds
    two = b"\x02" + b"\x02" * 50 + b"\x00" + b"\x02" + b"\x00\x00" + b"\x00" * 50 + b"\x04"
    column, bad = decoded(schema, [deep, two], references=chain, fields=["a", "z"])
    assert (column, bad.keys()) == ([None, {"a": 1, "z": 2}], {0})
    assert "recursive types are nested more than 100 deep" in bad[0]


def test_a_field_that_contains_itself_is_json_text_if_that_is_asked_for():
    leaf = b"\x02\x00\x02x"
    nested = b"\x04\x02" + leaf + b"\x02y"
    made = AvroFormat(json.dumps(TREE), recursive="json")
    assert made.arrow_type == pa.struct([("n", pa.int32()), ("next", pa.string()), ("after", pa.string())])
    column, bad = made.decode(pa.array([leaf, None, nested, b"\x04\x02" * 200, nested], pa.binary()))
    column.validate(full=True)
    assert column.type == made.arrow_type
    whole = {"n": 2, "next": '{"n":1,"next":null,"after":"x"}', "after": "y"}
    assert column.to_pylist() == [{"n": 1, "next": None, "after": "x"}, None, whole, None, whole]
    assert [(each.row, each.reason) for each in bad] == [(3, TOO_DEEP)]
    assert pickle.loads(pickle.dumps(made)).decode(pa.array([nested])).values.to_pylist() == [whole]
    behind = AvroFormat(json.dumps(TREE), recursive="json", header_bytes=5, fields=["next"])
    assert behind.decode(pa.array([b"\0\0\0\0\1" + nested])).values.to_pylist() == [{"next": whole["next"]}]
    with pytest.raises(UsageError, match="contains itself"):
        made.encode(column)


def test_a_json_text_is_where_the_recursion_starts_and_its_neighbours_are_typed():
    node = record(("v", "double"), ("raw", "bytes"), ("kids", {"type": "array", "items": "Node"}), name="Node")
    inner = record(("at", {"type": "long", "logicalType": "timestamp-millis"}), ("tree", node), name="Inner")
    schema = record(("id", "int"), ("inner", ["null", inner]), ("trees", {"type": "map", "values": "Node"}), name="Top")
    made = AvroFormat(json.dumps(schema), recursive="json")
    inside = pa.struct([("at", pa.timestamp("ms", tz="UTC")), ("tree", pa.string())])
    assert made.arrow_type == pa.struct([("id", pa.int32()), ("inner", inside), ("trees", pa.string())])
    leaf = {"v": math.nan, "raw": b"\xff\x00", "kids": []}
    tree = {"v": 1.5, "raw": b"a", "kids": [leaf, {**leaf, "v": -math.inf}]}
    rows = [{"id": 1, "inner": {"at": 7, "tree": tree}, "trees": {"é": leaf}}, {"id": 2, "inner": None, "trees": {}}]
    column, bad = made.decode(pa.array([written(schema, row) for row in rows], pa.binary()))
    column.validate(full=True)
    assert bad == []
    first, second = column.to_pylist()
    assert first["inner"]["at"].microsecond == 7000
    kids = [{"v": each, "raw": "\xff\0", "kids": []} for each in ("NaN", "-Infinity")]
    assert json.loads(first["inner"]["tree"]) == {"v": 1.5, "raw": "a", "kids": kids}
    assert (json.loads(first["trees"]), second) == ({"é": kids[0]}, {"id": 2, "inner": None, "trees": "{}"})


def test_a_writers_recursive_type_is_resolved_with_the_readers_in_json_too():
    writer = record(("n", "int"), ("next", ["null", "Tree"]), ("old", "string"), name="Tree")
    reader = record(("n", "long"), ("next", ["null", "Tree"]), ("new", "string"), name="Tree")
    reader["fields"][2]["default"] = "?"
    made = AvroFormat(json.dumps(writer), reader_schema=json.dumps(reader), recursive="json")
    value = b"\x04\x02" + b"\x02\x00\x02x" + b"\x02y"
    (row,) = made.decode(pa.array([value])).values.to_pylist()
    assert row == {"n": 2, "next": '{"n":1,"next":null,"new":"?"}', "new": "?"}


def test_a_recursive_field_that_can_never_be_resolved_is_refused_at_once_in_json_too():
    def read(writer: Any, *, default: bool = False) -> Any:
        more = {"default": None} if default else {}
        inner = record(("tree", ["null", TREE]), name="I")
        inner["fields"][0] |= more
        reader = record(("id", "int"), ("a", ["null", inner]))
        return AvroFormat(json.dumps(writer), reader_schema=json.dumps(reader), recursive="json")

    lacking = record(("id", "int"), ("a", record(("b", "int"), name="I")))
    with pytest.raises(UsageError, match=r"has a field 'a\.tree' that the writer's has not; give it a default"):
        read(lacking)
    assert read(lacking, default=True).decode(pa.array([b"\2\2"])).values.to_pylist() == [{"id": 1, "a": {"tree": None}}]
    with pytest.raises(UsageError, match=r"wants a union of null, Tree at field 'a\.tree'; the writer's has int"):
        read(record(("id", "int"), ("a", record(("tree", "int"), name="I"))))


def test_a_value_that_only_its_recursive_field_makes_bad_costs_no_neighbour_and_is_not_quoted():
    good, bad_text = b"\x02\x02\x02\x00\x02x\x02y", b"\x02\x02\x02\x00\x04\xff\xfe\x02y"
    column, bad = AvroFormat(json.dumps(TREE), recursive="json").decode(pa.array([good, bad_text, good]))
    assert [row is None for row in column.to_pylist()] == [False, True, False]
    assert bad == [(1, "field 'next': fastavro, which reads types that contain themselves, fails with UnicodeDecodeError")]


def test_a_value_is_bad_by_its_recursive_field_whatever_types_its_neighbours_have():
    symbol = {"type": "enum", "name": "E", "symbols": ["A"]}
    duration = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    schema = record(("e", symbol), ("u", ["int", "string"]), ("d", duration), ("tree", ["null", TREE]))
    value = written(schema, {"e": "A", "u": "x", "d": b"\1" + b"\0" * 11, "tree": {"n": 1, "next": None, "after": "x"}})
    made = AvroFormat(json.dumps(schema), recursive="json")
    column, bad = made.decode(pa.array([value[:-1] + b"\xff", value, None]))
    column.validate(full=True)
    assert [each.row for each in bad] == [0]
    assert column.is_valid().to_pylist() == [False, True, False]
    assert column[1].as_py()["tree"] == '{"n":1,"next":null,"after":"x"}'


def test_mutated_values_are_bad_or_what_fastavro_reads_in_json_too():
    made, schema = AvroFormat(json.dumps(TREE), recursive="json"), fastavro.parse_schema(TREE)
    value = bytearray(b"\x04\x02" * 5 + b"\x02\x00\x02x" + b"\x04yz" * 5)
    dice, mutants = random.Random(5), []
    for _ in range(3000):
        mutant = value.copy()
        for _ in range(dice.randint(1, 3)):
            mutant[dice.randrange(len(mutant))] = dice.randrange(256)
        mutants.append(bytes(mutant[: dice.choice([None, dice.randrange(len(mutant))])]))
    column, bad = made.decode(binary(mutants))
    column.validate(full=True)
    assert 0 < len(bad) < len(mutants)
    rows = {each.row for each in bad}
    for row, (mutant, found) in enumerate(zip(mutants, column.to_pylist(), strict=True)):
        if row not in rows:
            whole = fastavro.schemaless_reader(io.BytesIO(mutant), schema, None)
            following = None if found["next"] is None else json.loads(found["next"])
            assert {**found, "next": following} == whole


def test_recursion_that_is_no_field_of_a_record_is_refused_in_json_too():
    many = {"type": "array", "items": TREE}
    with pytest.raises(UsageError, match="where it is a record's field, and this is none"):
        AvroFormat(json.dumps(many), recursive="json")
    with pytest.raises(UsageError, match="recursive must be 'refuse' or 'json'"):
        AvroFormat(json.dumps(TREE), recursive="text")


def test_fields_of_fields_are_asked_for_by_dotted_names():
    inner = record(("x", "int"), ("y", "string"), name="I")
    schema = record(("a", inner), ("b", ["null", "I"]), ("c", {"type": "array", "items": "I"}), ("d", "long"))
    value = {"a": {"x": 1, "y": "p"}, "b": {"x": 2, "y": "q"}, "c": [{"x": 3, "y": "r"}], "d": 4}
    row = {"a": {"y": "p"}, "b": {"x": 2}, "c": [{"y": "r"}]}
    assert decoded(schema, [written(schema, value)], fields=["a.y", "b.x", "c.y"]) == ([row], {})
    with pytest.raises(UsageError, match="record I has the fields x, y; asked for: 'z'"):
        AvroFormat(json.dumps(schema), fields=["a.z"])


def test_a_header_is_skipped_and_the_array_may_be_a_slice():
    items = binary([b"no", b"\0\0\0\0\7\2a", None, b"\0\0\0\0\7\2b", b"\0\0"])[1:]
    column, bad = AvroFormat('"string"', header_bytes=5).decode(items)
    assert (column.to_pylist(), [each.row for each in bad]) == (["a", None, "b", None], [3])


def test_references_are_types_of_other_schemas():
    address = json.dumps(record(("city", "string"), name="x.Address"))
    avro = AvroFormat(json.dumps(record(("at", "x.Address"))), references={"x.Address": address})
    assert avro.decode(binary([b"\x02p"])).values.to_pylist() == [{"at": {"city": "p"}}]


# --- bytes that mean harm ---
HUGE = b"\xff" * 9 + b"\x01"  # the least 64-bit number
MANY = b"\xfe" + b"\xff" * 8 + b"\x01"  # the greatest


@pytest.mark.parametrize(
    "items", ["null", "int", "double", "string", record(name="Nothing"), {"type": "fixed", "name": "F", "size": 0}]
)
@pytest.mark.parametrize("count", [HUGE, MANY, b"\x80\x80\x80\x80\x20", HUGE + b"\x00"])
def test_a_count_that_the_bytes_cannot_hold_costs_nothing(items, count):
    before, schema = pa.total_allocated_bytes(), {"type": "array", "items": items}
    column, bad = decoded(schema, [count, b"\x00", count + b"\x00" * 100])
    assert (column[1], bad.keys()) == ([], {0, 2})
    assert pa.total_allocated_bytes() - before < 1 << 20
    fields = record(("a", schema), ("b", "int"))
    assert decoded(fields, [count, count + b"\x00" * 100], fields=["b"])[1].keys() == {0, 1}


@pytest.mark.parametrize("fields", [None, ["b"]], ids=["read", "skipped"])
def test_items_without_bytes_are_counted_by_value_and_not_by_array(fields):
    """A hundred arrays of 4096 nulls, 4 bytes each, and each null is 1000 bytes of the reader's column."""
    before = pa.total_allocated_bytes()
    nulls = b"\x80\x40\x00"  # 4096 items, and no more
    wide = {"type": "fixed", "name": "F", "size": 1000}
    writer = record(("a", {"type": "array", "items": {"type": "array", "items": "null"}}), ("b", "int"))
    reader = record(("a", {"type": "array", "items": {"type": "array", "items": ["null", wide]}}), ("b", "int"))
    items = [b"\x02" + nulls + b"\x00\x02", b"\xc8\x01" + nulls * 100 + b"\x00\x02", b"\x00\x02"]
    column, bad = decoded(writer, items, reader_schema=json.dumps(reader), fields=fields)
    assert [None if each is None else each["b"] for each in column] == [1, None, 1]
    assert bad.keys() == {1}
    assert "the value has more than 4096 items that take no bytes" in bad[1]
    assert pa.total_allocated_bytes() - before < 16 << 20


@pytest.mark.parametrize("length", [HUGE, MANY, b"\x01", b"\x80\x80\x80\x80\x10"])
def test_a_length_that_is_not_there_is_bad_read_or_skipped(length):
    schema = record(("a", "string"), ("b", "int"))
    for fields in (None, ["b"]):
        assert decoded(schema, [length + b"x" * 20], fields=fields)[1].keys() == {0}


@pytest.mark.parametrize("size", ["4", -1, -5, 1 << 40, 1.5, True, None])
@pytest.mark.parametrize("fields", [None, ["a"]], ids=["read", "skipped"])
def test_a_fixed_type_of_no_size_is_refused_and_never_taken_for_a_step_of_the_kernel(size, fields):
    fixed = {"type": "fixed", "name": "F", "size": size}
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "f", "type": fixed}]}
    with pytest.raises(UsageError, match=r"size|not an Avro schema"):
        AvroFormat(json.dumps(schema), fields=fields)


FORBIDDEN = [
    (["null", ["int", "string"]], "a union directly in a union"),
    (record(("a", "int"), ("a", "string")), "record R has two fields 'a'"),
    (record(("a", "int"), ("a", "int")), "record R has two fields 'a'"),
    (record((1, "int")), "record R has a field whose name is 1"),
    ({"type": "enum", "name": "E", "symbols": "AB"}, "symbols of the Avro enum E must be a list"),
    ({"type": "record", "name": "R", "aliases": [1], "fields": []}, "aliases of the Avro type R must be a list of names"),
    ({"type": "fixed", "name": "F", "size": 1, "aliases": "AB"}, "aliases of the Avro type F must be a list of names"),
]


@pytest.mark.parametrize(("schema", "words"), FORBIDDEN)
@pytest.mark.parametrize("fields", [None, []], ids=["read", "skipped"])
def test_what_avro_forbids_and_fastavro_parses_is_refused(schema, words, fields):
    """Regression: unions in unions were read as bad values and failed to write, and other such schemas raised TypeError."""
    with pytest.raises(UsageError, match=words):
        AvroFormat(json.dumps(schema), fields=fields)


@pytest.mark.parametrize("union", [["null", ["int", "string"]], ["string", ["int", "string"]]])
def test_a_union_in_a_union_is_refused_where_it_is_read_or_written_and_skipped_elsewhere(union):
    """Regression: a schema with such a field was refused whether the field was read or not."""
    schema, flat = json.dumps(record(("x", union), ("a", "int"))), record(("x", ["null", "int", "string"]), ("a", "int"))
    value = pa.array([b"\2\2\4hi\6"])
    for there in (AvroFormat(schema, fields=["a"]), AvroFormat(schema, reader_schema=json.dumps(record(("a", "int"))))):
        assert there.decode(value).values.to_pylist() == [{"a": 3}]
    words = "a union directly in a union at field 'x'"
    for reader in (None, json.dumps(flat)):
        with pytest.raises(UsageError, match=words):
            AvroFormat(schema, reader_schema=reader)
    with pytest.raises(UsageError, match=words):
        there.encode(pa.array([{"x": "hi", "a": 3}]))


def test_a_logical_type_that_is_not_text_is_ignored():
    assert AvroFormat('{"type": "int", "logicalType": ["date"]}').arrow_type == pa.int32()


def test_branches_of_one_type_are_read_and_written():
    schema = record(("a", ["int", {"type": "int", "logicalType": "date"}]))
    values = AvroFormat(json.dumps(schema)).decode(binary([b"\0\2", b"\2\4"])).values
    assert values.to_pylist() == [{"a": 1}, {"a": datetime.date(1970, 1, 3)}]
    assert AvroFormat(json.dumps(schema)).encode(values).to_pylist() == [b"\0\2", b"\2\4"]


def test_a_format_travels_to_other_processes_by_its_arguments():
    there = pickle.loads(pickle.dumps(AvroFormat('"long"', header_bytes=5)))
    assert there.decode(pa.array([b"\0\0\0\0\1\2"], pa.binary())).values.to_pylist() == [1]


def test_a_schema_of_very_many_types_is_refused():
    fields = [("x0", record(("x", "int"), name="N0"))]
    named = record(*fields, name="R")
    for level in range(1, 40):
        named["fields"].append(
            {"name": f"x{level}", "type": record(("l", f"N{level - 1}"), ("r", f"N{level - 1}"), name=f"N{level}")}
        )
    with pytest.raises(UsageError, match="more than 10000 types"):
        AvroFormat(json.dumps(named))


@pytest.mark.parametrize(
    "text", ["", "{", "[", '"x.Y"', "{}", '{"type":"record"}', "7", '{"type":"enum","name":"E"}', "[" * 5000]
)
def test_text_that_is_no_schema_is_refused(text):
    with pytest.raises(UsageError, match="Avro schema"):
        AvroFormat(text)


# --- encoding ---
def test_a_structs_fields_are_found_by_name_and_cast():
    avro = AvroFormat(json.dumps(record(("a", "long"), ("b", ["null", "string"]))))
    frame = pa.array([{"b": "x", "a": 1}, {"b": None, "a": 2}, None], pa.struct([("b", pa.large_string()), ("a", pa.int8())]))
    assert avro.encode(frame).to_pylist() == [b"\x02\x02\x02x", b"\x04\x00", None]


@pytest.mark.parametrize(("schema", "column", "words"), [
    (record(("a", "int")), pa.array([{"a": 1}, {"a": None}]), "row 1 cannot be written as Avro: field 'a' is null"),
    (record(("a", "int")), pa.array([{"b": 1}]), "lacks a and has b besides"),
    ("int", pa.array([1 << 40]), "takes int32"), (record(("a", "int")), pa.array([1]), "the value is int64"),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.array(["A", "B"]), "value at 1 that is not a symbol"),
    ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, pa.array(["x"]), "row 0.*not a UUID"),
    ({"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}, pa.array([pa.MonthDayNano([0, 0, 1])]),
        "row 0.*not of whole milliseconds"),
    (UUID_TEXT, pa.array([str(uuid.UUID(int=1)), None, "x"]), "value at 2 that is not a UUID"),
    (record(("a", {"type": "array", "items": UUID_TEXT})), pa.array([{"a": [f"{uuid.UUID(int=1)}\n"]}]), "a.*not a UUID"),
])  # fmt: skip
def test_what_avro_cannot_hold_is_refused_and_the_row_named(schema, column, words):
    with pytest.raises(UsageError, match=words):
        AvroFormat(json.dumps(schema)).encode(column)


def test_text_that_is_a_uuid_is_written_as_it_is():
    texts = [str(uuid.UUID(int=0xAB << 64)), str(uuid.UUID(int=0xAB << 64)).upper(), None]
    encoded = AvroFormat(json.dumps(UUID_TEXT)).encode(pa.array(texts))
    assert encoded.to_pylist() == [b"\x48" + texts[0].encode(), b"\x48" + texts[1].encode(), None]


@pytest.mark.parametrize(("branch", "good"), [
    (UUID_TEXT, str(uuid.UUID(int=1))), ({"type": "enum", "name": "E", "symbols": ["A"]}, "A"),
])  # fmt: skip
def test_what_a_union_holds_outside_of_its_slice_is_not_refused(branch, good):
    """Regression: a value that an enum does not have was refused there."""
    avro = AvroFormat(json.dumps(["int", branch]))
    kinds, places = pa.array([1, 1, 0], pa.int8()), pa.array([0, 1, 0], pa.int32())
    texts = pa.array(["x", good])
    branches = [pa.array([7], pa.int32()), texts if branch is UUID_TEXT else texts.dictionary_encode()]
    column = pa.UnionArray.from_dense(kinds, places, branches, [each.name for each in avro.arrow_type])
    assert avro.encode(column.slice(2)).to_pylist() == [b"\0\x0e"]
    assert len(avro.encode(column.slice(1))) == 2
    with pytest.raises(UsageError, match="value at 0 that is not a"):
        avro.encode(column)


def test_what_no_row_of_a_union_uses_is_not_refused():
    """Regression: where rows share a place, as many values as rows were taken for those of the rows."""
    avro = AvroFormat(json.dumps(["int", UUID_TEXT]))
    kinds, places, good = pa.array([1, 1, 0], pa.int8()), pa.array([1, 1, 0], pa.int32()), str(uuid.UUID(int=1))
    branches = [pa.array([7], pa.int32()), pa.array(["x", good])]
    column = pa.UnionArray.from_dense(kinds, places, branches, [each.name for each in avro.arrow_type])
    assert avro.encode(column).to_pylist() == [b"\x02\x48" + good.encode()] * 2 + [b"\0\x0e"]


def test_what_the_fields_of_a_null_record_hold_is_not_written_and_not_refused():
    """Arrow's builder appends an empty text, which is not a symbol."""
    symbols = {"type": "enum", "name": "E", "symbols": ["x"]}
    schema = record(("inner", ["null", record(("e", symbols), ("deep", record(("f", "E"), name="D")), name="I")]))
    kind = pa.struct([("inner", pa.struct([("e", pa.string()), ("deep", pa.struct([("f", pa.string())]))]))])
    empty = pa.StructArray.from_arrays([pa.array(["", "", "x"])], ["f"])
    inner = pa.StructArray.from_arrays(
        [pa.array(["", "", "x"]), empty], fields=list(kind.field("inner").type), mask=pa.array([True, True, False])
    )
    column = pa.StructArray.from_arrays([inner], fields=list(kind), mask=pa.array([True, False, False]))
    assert AvroFormat(json.dumps(schema)).encode(column).to_pylist() == [None, b"\0", b"\2\0\0"]


def test_a_slice_of_nested_columns_is_written_as_its_copy_is():
    schema = record(
        ("l", {"type": "array", "items": ["null", "string"]}), ("m", {"type": "map", "values": "int"}),
        ("u", ["null", "long", "string"]), ("b", "boolean"), ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    )  # fmt: skip
    items = [
        {"l": [None, str(i)] * (i % 3), "m": {str(i): i}, "u": [None, i, str(i)][i % 3], "b": i % 2 == 0, "e": "AB"[i % 2]}
        for i in range(20)
    ]
    encoded, avro = [written(schema, item) for item in items], AvroFormat(json.dumps(schema))
    whole = avro.decode(binary(encoded)).values
    for start, count in ((0, 20), (3, 9), (11, 9), (7, 0)):
        assert avro.encode(whole.slice(start, count)).to_pylist() == encoded[start : start + count]


# --- schemas that others read though they are odd
@pytest.mark.parametrize("odd", [
    {"precision": 4, "scale": 9}, {"precision": 4, "scale": "2"}, {"precision": 4, "scale": 2.0}, {"precision": "4"},
    {"precision": 0}, {},
])  # fmt: skip
@pytest.mark.parametrize("base", [{"type": "bytes"}, {"type": "fixed", "name": "F", "size": 1}])
def test_a_decimal_that_is_none_is_its_base_type_and_costs_only_itself(odd, base):
    amount = {"name": "amount", "type": {**base, "logicalType": "decimal", **odd}}
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, amount]})
    value = b"\2\2\5" if base["type"] == "bytes" else b"\2\5"
    assert AvroFormat(schema).decode(pa.array([value])).values.to_pylist() == [{"id": 1, "amount": b"\5"}]
    assert AvroFormat(schema, fields=["id"]).decode(pa.array([value])).values.to_pylist() == [{"id": 1}]


def test_a_decimal_of_more_digits_than_its_fixed_type_holds_is_its_base_type():
    kind = {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal"}
    assert AvroFormat(json.dumps({**kind, "precision": 4})).arrow_type == pa.decimal128(4)
    assert AvroFormat(json.dumps({**kind, "precision": 5})).arrow_type == pa.binary(2)


@pytest.mark.parametrize(("kind", "default"), [("string", None), ("int", "x"), (["null", "int"], "x")])
def test_a_default_of_another_type_is_an_error_only_where_it_is_needed(kind, default):
    record = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    wrong = {**record, "fields": [*record["fields"], {"name": "f", "type": kind, "default": default}]}
    value = b"\2" + bytes(8)
    assert AvroFormat(json.dumps(wrong), fields=["id"]).decode(pa.array([value])).values.to_pylist() == [{"id": 1}]
    with pytest.raises(UsageError, match="default at field 'f'"):
        AvroFormat(json.dumps(record), reader_schema=json.dumps(wrong))


def test_a_whole_number_is_a_default_of_a_double():
    record = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    added = {**record, "fields": [*record["fields"], {"name": "f", "type": "double", "default": 1}]}
    found = AvroFormat(json.dumps(record), reader_schema=json.dumps(added)).decode(pa.array([b"\2"]))
    assert found.values.to_pylist() == [{"id": 1, "f": 1.0}]


def test_a_schema_may_have_comments_and_a_byte_order_mark_as_in_java():
    head = '\ufeff// of flights\n{"type": "record", /* one */ "name": "R", "doc": "http://x /* y */",'
    text = head + '\n"fields": [{"name": "a", "type": "int"}]}'
    assert AvroFormat(text).arrow_type == pa.struct([("a", pa.int32())])
    assert AvroFormat('"R"', references={"R": text}).arrow_type == pa.struct([("a", pa.int32())])


def test_a_field_of_a_type_within_itself_is_read_though_a_default_is_odd():
    kids = {"name": "kids", "type": {"type": "array", "items": "T"}, "default": None}
    tree = json.dumps({"type": "record", "name": "T", "fields": [{"name": "n", "type": "int"}, kids]})
    found = AvroFormat(tree, recursive="json").decode(pa.array([b"\2\2\4\0\0"])).values.to_pylist()
    assert found == [{"n": 1, "kids": '[{"n":2,"kids":[]}]'}]
