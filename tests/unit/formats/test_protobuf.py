"""Protobuf to columns and back: every answer is the one of Protobuf's own runtime, on good bytes and on mutated ones."""

from __future__ import annotations

import base64
import datetime
import pickle
import random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.formats.protobuf.compiler import descriptor_set
from headrace.connectors.formats.registry.protobuf_values import indices_as_bytes, read_indices
from headrace.enumerator.errors import UsageError
from headrace.formats import ProtobufFormat, create_format
from tests.helpers.protobuf_cases import answers_of, message_class, message_of, mutated, oracle_of

PROTO3 = """
syntax = "proto3"; package p.q;
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto"; import "google/protobuf/wrappers.proto";
enum E { A = 0; B = 1; MINUS = -3; }
message M {
  int32 i = 1; optional int32 oi = 2; string s = 3; In n = 4; repeated int32 ri = 5; repeated In rn = 6;
  map<string, int32> m = 7; oneof c { int32 ca = 8; string cb = 9; In cc = 10; } E e = 11; optional E oe = 12;
  repeated E re = 13; google.protobuf.Timestamp ts = 14; google.protobuf.Duration du = 15;
  google.protobuf.Int32Value wi = 16; google.protobuf.StringValue ws = 17; bool b = 18; bytes y = 19; uint32 u32 = 20;
  uint64 u64 = 21; sint32 s32 = 22; sint64 s64 = 23; fixed32 f32 = 24; fixed64 f64 = 25; sfixed32 sf32 = 26;
  sfixed64 sf64 = 27; float fl = 28; double d = 29; map<int64, In> mi = 30; map<bool, E> me = 31; M self = 32;
  repeated google.protobuf.Timestamp rts = 33; int64 l = 34; repeated string rs = 35 ; repeated int32 un = 36 [packed = false];
}
message In { int32 x = 1; string y = 2; optional string z = 3; oneof c { int32 a = 4; int64 b = 5; } }
"""
PROTO2 = """
syntax = "proto2";
enum E { A = 1; B = 2; }
message M {
  required int32 r = 1; optional int32 o = 2 [default = 5]; optional string s = 3 [default = "x"];
  optional E e = 4 [default = B];
  repeated E re = 5 [packed = true]; repeated int32 rp = 6; optional In n = 9; map<string, int32> m = 10;
  oneof c { int32 ca = 11; E ce = 12; } optional bytes y = 13; extensions 100 to 200; repeated In rn = 14; optional bool b = 15;
}
message In { optional int32 x = 1; required string q = 2; }
"""
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


FORMATS = {name: (ProtobufFormat(text), message_class(text, name)) for text, name in ((PROTO3, "p.q.M"), (PROTO2, "M"))}


# --- against the oracle


def answers(name: str, values: list[bytes]) -> list[Any]:
    return answers_of(FORMATS[name][0], values)


def oracle(name: str, value: bytes) -> Any:
    return oracle_of(FORMATS[name][1], value)


SEEDS = st.integers(0, 2**63)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_good_values_are_what_the_runtime_reads_and_are_written_as_it_reads_them(name, seed):
    made, of = FORMATS[name]
    r = random.Random(seed)
    found = [message_of(of, r) for _ in range(8)]
    values = [each.SerializeToString() for each in found]
    for ours, value in zip(answers(name, values), values, strict=True):
        assert ours == oracle(name, value)
    writable = [each for each, row in zip(values, found, strict=True) if name == "M" or not row.HasField("self")]
    decoded, bad = made.decode(pa.array(writable, pa.binary()))
    for row, again in enumerate(made.encode(decoded).to_pylist()):
        assert row in {each.row for each in bad} or oracle(name, again) == oracle(name, writable[row])


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_mutated_values_are_bad_or_what_the_runtime_reads_and_cost_no_neighbour(name, seed):
    r = random.Random(seed)
    good = [message_of(FORMATS[name][1], r).SerializeToString() for _ in range(8)]
    values = [each for pair in zip(good, [mutated(value, r) for value in good], strict=True) for each in pair]
    for ours, value in zip(answers(name, values), values, strict=True):
        assert ours == oracle(name, value)


def test_the_oracle_sees_a_injected_difference():
    value = b"\x08\x01\x58\x07"
    (row,) = answers("p.q.M", [value])
    assert row == oracle("p.q.M", value) != oracle("p.q.M", b"\x08\x02\x58\x07")


# --- single rules
def decoded(text: str, *values: bytes | None, **options: Any) -> tuple[list[Any], dict[int, str]]:
    column, bad = ProtobufFormat(text, **options).decode(pa.array(values, pa.binary()))
    return column.to_pylist(), {each.row: each.reason for each in bad}


def test_what_may_be_absent_is_null_and_the_rest_has_its_default():
    (row,), _ = decoded(PROTO3, b"", fields=["i", "oi", "s", "n", "ri", "m", "ca", "e", "oe", "ts", "wi", "b", "y"])
    assert row == {
        "i": 0, "oi": None, "s": "", "n": None, "ri": [], "m": [], "ca": None, "e": "A", "oe": None, "ts": None, "wi": None,
        "b": False, "y": b"",
    }  # fmt: skip
    (row,), _ = decoded(PROTO2, b"", fields=["r", "o", "s", "e", "re"])
    assert row == {"r": None, "o": None, "s": None, "e": None, "re": []}


def test_an_unknown_number_of_an_open_enum_is_its_number_and_of_a_closed_one_is_not_set():
    assert decoded(PROTO3, b"\x58\x07", fields=["e"]) == ([{"e": "7"}], {})
    assert decoded(PROTO2, b"\x20\x07\x2a\x02\x07\x01", fields=["e", "re"]) == ([{"e": None, "re": ["A"]}], {})


def test_of_several_alternatives_the_last_one_counts_and_of_a_key_too():
    assert decoded(PROTO3, b"\x40\x01\x4a\x01a", fields=["ca", "cb"]) == ([{"ca": None, "cb": "a"}], {})
    twice = b"\x3a\x05\x0a\x01a\x10\x01\x3a\x05\x0a\x01a\x10\x02"
    assert decoded(PROTO3, twice, fields=["m"]) == ([{"m": [("a", 2)]}], {})


@pytest.mark.parametrize(("value", "reason"), [
    (b"\x08\xff", "is not a message p.q.M: its bytes are not of Protobuf's wire format"),
    (b"\x1a\x01\xff", "is not a message p.q.M"), (b"\x7b" * 200_000 + b"\x7c" * 200_000, "is not a message p.q.M"),
    (b"\x82\x02\x00" + b"\x22\x02\x08", "is not a message p.q.M"),
    (b"\x72\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "a time or a duration in it does not fit 64-bit microseconds"),
])  # fmt: skip
def test_what_is_no_message_is_bad_and_costs_no_neighbour(value, reason):
    rows, bad = decoded(PROTO3, b"\x08\x01", value, None, b"\x08\x02")
    assert [row and row["i"] for row in rows] == [1, None, None, 2]
    assert list(bad) == [1]
    assert bad[1].startswith(reason)


def test_text_of_proto2_that_is_not_utf8_is_bad():
    assert decoded(PROTO2, b"\x08\x01", b"\x1a\x01\xff", fields=["r", "s"])[1] == {1: "text is not UTF-8"}


def test_only_the_fields_that_are_asked_for_are_columns_and_the_format_is_pickled_with_them():
    there = pickle.loads(pickle.dumps(ProtobufFormat(PROTO3, fields=["n.x", "mi.y", "rn", "i", "self"])))
    inner_type = "struct<x: int32, y: string, z: string, a: int32, b: int64>"
    assert str(there.arrow_type) == (
        f"struct<i: int32, n: struct<x: int32>, rn: list<item: {inner_type}>, mi: map<int64, struct<y: string>>, self: binary>"
    )
    value = FORMATS["p.q.M"][1](i=3, n={"x": 1, "y": "no"}, mi={7: {"x": 2, "y": "yes"}}, rn=[{"z": "z"}], l=5)
    (row,), bad = there.decode(pa.array([value.SerializeToString()])).values.to_pylist(), []
    assert (row["n"], row["mi"], row["rn"][0]["z"], bad) == ({"x": 1}, [(7, {"y": "yes"})], "z", [])
    assert decoded(PROTO3, b"\x08\x01", None, b"\x08", fields=[])[0] == [{}, None, None]


@pytest.mark.parametrize("number", [7, -7, 1210056703, 2**31 - 1, -(2**31)])
def test_the_number_of_an_open_enum_without_a_symbol_is_written_again(number):
    made, message = FORMATS["p.q.M"]
    value = message(e=number).SerializeToString()
    assert made.encode(made.decode(pa.array([value])).values).to_pylist() == [value]


@pytest.mark.parametrize(("row", "words"), [
    ({"e": "X"}, "row 1 cannot be written as Protobuf: field 'e' has a value that is not a symbol of the enum p.q.E"),
    ({"e": "2147483648"}, "row 1 cannot be written as Protobuf: field 'e' has a value that is not a symbol"),
    ({"me": [(True, "X")]}, "field 'me{}' has a value that is not a symbol"),
    ({"ca": 1, "cb": "x"}, "has more than one of ca, cb, cc, which are alternatives"),
    ({"ri": [1, None]}, r"row 1 .* field 'ri\[\]' is null, which no repeated field can hold"),
    ({"rn": [{"a": 1, "b": 1}]}, r"row 1 .* field 'rn\[\]' has more than one of a, b"),
    ({"m": [("a", None)]}, "field 'm{}' is null"),
    ({"self": b""}, "field 'self' is a message p.q.M within itself, which cannot be written"),
])  # fmt: skip
def test_what_a_message_cannot_hold_is_refused_with_its_row(row, words):
    made = FORMATS["p.q.M"][0]
    with pytest.raises(UsageError, match=words):
        made.encode(pa.array([None, row], made.arrow_type))


def test_columns_are_cast_and_found_by_name_and_what_is_missing_is_not_set():
    made, message = FORMATS["p.q.M"]
    enum, time, texts = pa.dictionary(pa.int8(), pa.string()), pa.timestamp("ms", "UTC"), pa.large_list(pa.large_string())
    more = [("rs", texts), ("n", pa.struct([("x", pa.int64())])), ("s", pa.null())]
    kind = pa.struct([("u32", pa.int64()), ("e", enum), ("ts", time), *more])
    row = {"u32": 7, "e": "MINUS", "ts": EPOCH + datetime.timedelta(milliseconds=-1), "rs": ["a"], "n": {"x": 1}}
    values = made.encode(pa.array([row, None, {}, row], kind)[1:])
    found = [None if value is None else message.FromString(value) for value in values.to_pylist()]
    assert found[:2] == [None, message()]
    assert (found[2].u32, found[2].e, found[2].ts.ToMilliseconds(), found[2].rs, found[2].n.x) == (7, -3, -1, ["a"], 1)
    for wrong, words in [
        (pa.array([{"i": 2**40}]), "field 'i' is int64; this field takes int32: Integer value 1099511627776"),
        (pa.array([{"zz": 1, "i": 1}]), "the message p.q.M, which has no field zz"),
        (pa.array([{"ri": 1}]), "field 'ri' is int64; this repeated field takes a list"),
        (pa.array([1]), "the value is int64; the message p.q.M takes a struct"),
        (
            pa.array([{"ts": 10**18}], pa.struct([("ts", pa.timestamp("us", "UTC"))])),
            "'ts' is beyond what a google.protobuf.Time",
        ),
    ]:
        with pytest.raises(UsageError, match=words):
            made.encode(wrong)
    with pytest.raises(UsageError, match="row 0 cannot be written as Protobuf: field 'r' is required, and null"):
        FORMATS["M"][0].encode(pa.array([{"o": 1}]))


@pytest.mark.parametrize(("text", "options", "words"), [
    ("nonsense", {}, "this is not a Protobuf schema: line 1:1: Expected top-level statement"),
    ('syntax="proto3"; message M { X x = 1; }', {}, 'this is not a Protobuf schema: line 1:30: "X" is not defined'),
    ('syntax="proto3"; import "o.proto"; message M { }', {}, "o.proto: File not found"),
    ('syntax="proto3"; message M { }', {"references": {"../o": "x"}}, "refers to a file named '../o'"),
    ('syntax="proto3";', {}, "has no message type"),
    ('edition="2023"; message M { }', {}, "is of an edition; proto2 and proto3 can be read"),
    ('syntax="proto2"; message M { optional group G = 1 { } }', {}, "field 'g' of message M is a group"),
    (PROTO3, {"message": "p.q.X"}, "has no message type p.q.X; there are: .*p.q.In"),
    (PROTO3, {"fields": ["zz"]}, "message p.q.M has the fields i, .*; asked for: 'zz'"),
    (PROTO3, {"fields": ["i.x"]}, "field 'i' of message p.q.M has no fields; asked for: 'i.x'"),
    (b"\x08", {}, "this is not a FileDescriptorSet"),
])  # fmt: skip
def test_what_is_no_schema_or_cannot_be_read_is_refused_by_name(text, options, words):
    with pytest.raises(UsageError, match=words):
        ProtobufFormat(text, **options)


def test_references_are_files_that_the_schema_imports_and_a_set_of_descriptors_is_a_schema():
    other = 'syntax="proto3"; package o; message X { int32 a = 1; }'
    text = (
        'syntax="proto3"; import "d/o.proto"; import "google/type/date.proto"; message M { o.X x = 1; google.type.Date d = 2; }'
    )
    made = create_format("protobuf", schema=text, references={"d/o.proto": other})
    assert str(made.arrow_type) == "struct<x: struct<a: int32>, d: date32[day]>"
    assert str(ProtobufFormat(descriptor_set(text, {"d/o.proto": other}), message="o.X").arrow_type) == "struct<a: int32>"


@pytest.mark.parametrize("inside", [False, True])
def test_proto3_fields_that_are_alike_in_camel_case_are_a_usage_error(inside):
    """It was a panic, which is not an Exception, so that no handler of a run saw it."""
    text = 'syntax="proto3"; message M { int32 user_id = 1; int32 UserID = 2; }'
    text += " message N { M m = 1; int32 x = 2; }" if inside else ""
    message = "N" if inside else "M"
    with pytest.raises(UsageError, match=r"'user_id' conflicts with field 'UserID'\. Ask for other fields"):
        ProtobufFormat(text, message=message)
    made = ProtobufFormat(text, message=message, fields=["m.UserID" if inside else "UserID"])
    (value,) = made.encode(pa.array([{"m": {"UserID": 5}} if inside else {"UserID": 5}], made.arrow_type))
    assert value.as_py() == (b"\x0a\x02\x10\x05" if inside else b"\x10\x05")


@pytest.mark.parametrize(("name", "key", "value"), [("m", "a", 1), ("mi", 5, None)])
def test_a_map_with_a_key_twice_is_refused(name, key, value):
    """The last was kept."""
    format_ = FORMATS["p.q.M"][0]
    kind = format_.arrow_type.field(name).type
    item = {} if value is None else value
    for column in ([None, [(key, item)], [(key, item)]], [None, [(key, item)], [(key, item), (key, item)]]):
        rows = pa.StructArray.from_arrays([pa.array(column, kind)], [name])
        if len(column[2]) == 1:
            assert format_.encode(rows.slice(1)).null_count == 0
        else:
            with pytest.raises(UsageError, match=f"row 2 cannot be written as Protobuf: field '{name}{{}}' has a key twice"):
                format_.encode(rows)


MOMENTS = """syntax = "proto3"; import "google/type/date.proto"; import "google/type/timeofday.proto";
    message M { google.type.Date day = 1; In within = 2; }
    message In { repeated google.type.Date days = 1; map<string, google.type.TimeOfDay> times = 2;
        In more = 3; map<string, int32> n = 4; }"""


@pytest.mark.parametrize(("fields", "reason"), [
    ({"day": {"year": 2024, "month": 2, "day": 29}}, None),
    ({"day": {"month": 12, "day": 25}}, "a google.type.Date in it is not a date"),
    ({"day": {"year": 2024, "month": 2, "day": 31}}, "a google.type.Date in it is not a date"),
    ({"day": {}}, "a google.type.Date in it is not a date"),
    ({"within": {"days": [{"year": 1, "month": 1, "day": 1}, {"year": 2024}], "n": {"a": 1}}},
     "a google.type.Date in it is not a date"),
    ({"within": {"times": {"a": {"hours": 23, "minutes": 59, "seconds": 59, "nanos": 999_999_999}, "b": {}}}}, None),
    ({"within": {"times": {"a": {}, "b": {"hours": 24}}}}, "a google.type.TimeOfDay in it is not a time of a day"),
    ({"within": {"times": {"b": {"minutes": -1}}}}, "a google.type.TimeOfDay in it is not a time of a day"),
    ({"within": {"more": {"days": [{}]}}}, None),  # it stays bytes
])  # fmt: skip
def test_moments_of_googles_types_that_arrow_has_not_are_bad(fields, reason):
    """1970-01-01 was in their place, and 24:00 in a column of times before it."""
    format_ = ProtobufFormat(MOMENTS)
    written = format_._reader.message(**fields).SerializeToString()
    values, bad = format_.decode(pa.array([written, None], pa.binary()))
    values.validate(full=True)
    assert [(each.row, each.reason) for each in bad] == ([] if reason is None else [(0, reason)])
    assert values.null_count == (1 if reason is None else 2)
    assert ProtobufFormat(MOMENTS, fields=["within.n"]).decode(pa.array([written])).bad == []


@pytest.mark.parametrize(
    "day", [datetime.date(*parts) for parts in ((1970, 1, 1), (1, 1, 1), (9999, 12, 31), (1969, 12, 31), (2024, 2, 29))]
)
def test_dates_are_written_as_googles_own_runtime_writes_them(day):
    """1970-01-01 was written as a date without a year, month and day."""
    format_ = ProtobufFormat(MOMENTS)
    row = {"day": day, "within": {"days": [day, day], "times": [("a", datetime.time(1, 2, 3))]}}
    (written,) = format_.encode(pa.array([row], format_.arrow_type)).to_pylist()
    as_message = {"year": day.year, "month": day.month, "day": day.day}
    within = {"days": [as_message] * 2, "times": {"a": {"hours": 1, "minutes": 2, "seconds": 3}}}
    message = format_._reader.message
    assert message.FromString(written) == message(day=as_message, within=within)
    values, bad = format_.decode(pa.array([written]))
    assert (values[0].as_py()["day"], values[0].as_py()["within"]["days"], bad) == (day, [day, day], [])


@pytest.mark.parametrize("days", [-719_163, 2_932_897, 2**31 - 1, -(2**31)])
def test_a_day_that_googles_date_does_not_have_is_refused(days):
    format_ = ProtobufFormat(MOMENTS, fields=["day"])
    column = pa.array([None, days], pa.int32()).view(pa.date32())
    with pytest.raises(UsageError, match=r"row 1 .* field 'day' is beyond what a google\.type\.Date may be"):
        format_.encode(pa.StructArray.from_arrays([column], ["day"]))


def test_a_date_that_is_the_message_is_a_struct_and_as_a_column_it_has_no_fields():
    whole = ProtobufFormat('syntax="proto3"; import "google/type/date.proto";', message="google.type.Date")
    row = {"year": 0, "month": 12, "day": 25}
    assert whole.decode(whole.encode(pa.array([row], whole.arrow_type))).values.to_pylist() == [row]
    with pytest.raises(UsageError, match=r"fields 'year' were asked for of a column that is date32\[day\], and has no fields"):
        ProtobufFormat(MOMENTS, fields=["day.year"])


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), st.binary(max_size=3))
def test_indices_of_message_types_are_read_as_they_are_written(indices, more):
    head = indices_as_bytes(indices)
    assert read_indices(head + more) == (tuple(indices), len(head))


@pytest.mark.parametrize("head", [b"", b"\x02", b"\x01", b"\x80", b"\x02\x01", b"\xff\xff\xff\xff\xff\x01", b"\x04\x00"])
def test_indices_that_are_no_list_of_numbers_are_none(head):
    assert read_indices(head) == ((), 0)


# --- imports that a registry has built in
GOOGLES = (
    "any api descriptor duration empty field_mask source_context struct timestamp type wrappers",
    "calendar_period color date datetime dayofweek decimal expr fraction interval latlng money month phone_number "
    "postal_address quaternion timeofday",
)
BUILT_IN = [
    *(f"google/protobuf/{name}.proto" for name in GOOGLES[0].split()),
    *(f"google/type/{name}.proto" for name in GOOGLES[1].split()),
    *(f"confluent/{name}.proto" for name in ("meta", "type/decimal", "type/variant")),
]


@pytest.mark.parametrize("is_serialized", [False, True])
def test_all_that_confluents_registry_has_built_in_is_known(is_serialized: bool):
    imports = "".join(f'import "{name}";' for name in BUILT_IN)
    text = f"""syntax = "proto3"; {imports} message M {{
        int32 a = 1 [(confluent.field_meta).params = {{ key: "connect.type", value: "int16" }}];
        confluent.type.Decimal price = 2; google.type.Color color = 3; confluent.type.Variant v = 4; }}"""
    schema = text
    if is_serialized:  # as a registry has it for some clients: the file alone, without those that it imports
        schema = base64.b64encode(FileDescriptorSet.FromString(descriptor_set(text)).file[-1].SerializeToString()).decode()
    format_ = ProtobufFormat(schema, fields=["a", "price", "v"])
    row = {"a": 5, "price": {"value": b"\1", "precision": 3, "scale": 2}, "v": {"metadata": b"", "value": b"x"}}
    assert format_.decode(format_.encode(pa.array([row], format_.arrow_type))).values.to_pylist() == [row]
