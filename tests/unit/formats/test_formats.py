"""Formats without their own schema, JSON, and formats by name. Avro has `test_avro.py`."""

from __future__ import annotations

import builtins
import inspect
import json
import math
import pickle
import random
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.connectors.formats import json_values
from headrace.connectors.formats.by_name import FORMATS, FormatSpec
from headrace.connectors.formats.json_values import WholeNumbers
from headrace.enumerator.errors import UsageError
from headrace.formats import FORMAT_NAMES, AvroFormat, BytesFormat, JsonFormat, ProtobufFormat, StringFormat, create_format

ROW = pa.struct([("a", pa.int64()), ("b", pa.string()), ("l", pa.list_(pa.float64())), ("s", pa.struct([("t", pa.bool_())]))])


def binary(items: list[bytes | None]) -> pa.Array:
    return pa.array(items, pa.binary())


AVRO = {"type": "record", "name": "R", "fields": [
    {"name": "s", "type": ["null", {"type": "record", "name": "S", "fields": [{"name": "a", "type": "int"}]}]},
    {"name": "l", "type": ["null", {"type": "array", "items": "int"}]},
]}  # fmt: skip
JSON = pa.struct([("s", pa.struct([("a", pa.int32())])), ("l", pa.list_(pa.int32()))])


@pytest.mark.parametrize("value_format", [AvroFormat(json.dumps(AVRO)), JsonFormat(JSON)], ids=["avro", "json"])
def test_what_is_beneath_a_null_and_outside_of_a_slice_is_not_looked_at(value_format):
    """Arrow's cast finds it, and that it does not fit 32 bits."""
    numbers, nulls = pa.array([1, 1 << 40, 1 << 40]), pa.array([False, True, False])
    inner = pa.StructArray.from_arrays([numbers], ["a"], mask=nulls)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), numbers, mask=nulls)
    rows = pa.StructArray.from_arrays([inner, lists], ["s", "l"])
    for column in (rows.slice(0, 2), pa.StructArray.from_arrays([inner.slice(0, 2), lists.slice(0, 2)], ["s", "l"])):
        assert value_format.decode(value_format.encode(column)).values.to_pylist() == [
            {"s": {"a": 1}, "l": [1]},
            {"s": None, "l": None},
        ]
    with pytest.raises(UsageError, match="not in range"):
        value_format.encode(rows)


# --- bytes and strings ---
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string()])
def test_bytes_are_as_they_are_whatever_arrow_calls_them(kind):
    column, bad = BytesFormat().decode(pa.array([b"x", None], kind) if "binary" in str(kind) else pa.array(["x", None], kind))
    assert column.equals(binary([b"x", None]))
    assert not bad


def test_a_column_of_numbers_is_refused():
    for value_format in (BytesFormat(), StringFormat(), JsonFormat(ROW), AvroFormat('"int"')):
        with pytest.raises(UsageError, match="must be binary or string, and is int64"):
            value_format.decode(pa.array([1]))


@given(st.lists(st.none() | st.binary(max_size=6) | st.text(max_size=3).map(str.encode)))
def test_strings_are_what_python_decodes_and_the_others_are_bad(items):
    column, bad = StringFormat().decode(binary(items))
    column.validate(full=True)
    wrong = []
    for index, item in enumerate(items):
        try:
            assert column[index].as_py() == (None if item is None else item.decode())
        except UnicodeDecodeError:
            wrong.append(index)
            assert column[index].as_py() is None
    assert [each.row for each in bad] == wrong
    assert StringFormat().encode(column).to_pylist() == [None if i in wrong else item for i, item in enumerate(items)]


# --- all that have a schema: what is written ---
def forms(kind: pa.DataType) -> list[Any]:
    """Of one field of this type."""
    avro = {
        pa.float32(): "float", pa.float64(): "double", pa.bool_(): "boolean", pa.string(): "string",
        pa.date32(): {"type": "int", "logicalType": "date"},
        pa.decimal128(4, 2): {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
    }  # fmt: skip
    protobuf = {pa.float32(): "float", pa.float64(): "double", pa.bool_(): "bool", pa.string(): "string"}
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", avro[kind]]}]}
    found: list[Any] = [AvroFormat(json.dumps(record))]
    if kind in protobuf:
        found.append(ProtobufFormat(f'syntax = "proto3"; message M {{ optional {protobuf[kind]} a = 1; }}'))
    return found if kind == pa.date32() else [*found, JsonFormat(pa.struct([("a", kind)]))]


@pytest.mark.parametrize(("kind", "given", "refused"), [
    (pa.float32(), pa.array([0.5, None, float("nan"), float("-inf")]), pa.array([0.1])),
    (pa.float32(), pa.array([2**24]), pa.array([1e300])),
    (pa.float64(), pa.array([Decimal("1.10"), None]), pa.array([Decimal("0.12345678901234567890")])),
    (pa.bool_(), pa.array([1, 0, None]), pa.array([5])),
    (pa.date32(), pa.array([86_400, None], pa.timestamp("s")), pa.array([86_399], pa.timestamp("s"))),
    (pa.decimal128(4, 2), pa.array([1.1, None]), pa.array([1.005])),
    (pa.string(), pa.array([5, None]), pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())),
], ids=str)  # fmt: skip
def test_a_value_is_written_as_it_is_or_refused(kind, given, refused):
    """Arrow rounds it, makes it infinite or true, and cuts a time to its day; and asks no text whether it is UTF-8."""
    for form in forms(kind):
        written = form.encode(pa.StructArray.from_arrays([given], ["a"]))
        assert form.decode(written).bad == []
        with pytest.raises(UsageError, match=r"would change|does not have: .*UTF8"):
            form.encode(pa.StructArray.from_arrays([refused], ["a"]))


def test_a_field_that_a_json_type_does_not_have_is_not_left_out():
    nested = JsonFormat(pa.struct([("l", pa.list_(pa.struct([("a", pa.int64())])))]))
    narrow = pa.struct([("l", pa.list_(pa.struct([("a", pa.int32())])))])
    assert nested.encode(pa.array([{"l": [{"a": 5}, None]}], narrow)).to_pylist() == [b'{"l":[{"a":5},null]}']
    with pytest.raises(UsageError, match="would change, or be left out"):
        nested.encode(pa.array([{"l": [{"a": 5, "b": 6}]}]))


# --- JSON ---
rows = st.fixed_dictionaries({}, optional={
    "a": st.none() | st.integers(-(1 << 63), (1 << 63) - 1), "b": st.none() | st.text(max_size=5),
    "l": st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    "s": st.none() | st.fixed_dictionaries({"t": st.booleans()}),
    "surplus": st.none() | st.integers() | st.text(max_size=3),
})  # fmt: skip
BAD = [
    b"", b" ", b"{", b'"', b"[1]", b'{"a":"text"}', b'{"a":1}{"a":2}', b'{"a":1}\n{"a":2}', b'{"a":1}}{"v":{"a":2}',
    b'{"a":1},"v":{"a":2}', b'{"a":1},"x":{"a":2}', b'{"a":1},{"a":2}', b'{"a":1}],"x":[{"a":2}',
    b'{"a":1}]},{"v":[{"a":2}', b'{"a":1}]}{"v":[{"a":2}', b"null,null", b'{"b":"\xff"}', b'{"b":"a\nb"}',
    b'{"a":1,"a":2}', b'{"l":[NaN]}', b'{"l":[1.5,Infinity]}', b"[" * 2000,
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.none(), rows.map(lambda row: json.dumps(row, indent=1).encode()), st.sampled_from(BAD)), max_size=8)
)
@example([b'{"l":[NaN]}'])
@example([b'{"l":[1.5,Infinity]}', b'{"b":"NaN"}'])
def test_json_values_are_what_python_parses_and_a_bad_one_costs_no_neighbour(items):
    column, bad = JsonFormat(ROW).decode(binary(items))
    column.validate(full=True)
    assert [each.row for each in bad] == [index for index, item in enumerate(items) if item in BAD]
    for index, item in enumerate(items):
        parsed = None if item is None or item in BAD else json.loads(item)
        assert column[index].as_py() == (None if parsed is None else {name: parsed.get(name) for name in ("a", "b", "l", "s")})


@pytest.mark.parametrize("more", [',"x":{"a":2}', ',"v":{"a":2}', ',{"a":2}', '],"x":[{"a":2}', '] , "\\"]" :\n[{"a":2}'])
def test_a_value_that_ends_what_it_was_put_into_and_starts_more_is_no_json_value(more):
    values = [b'{"a":1}', b'{"a":3}' + more.encode(), b'{"l":[1],"x":[2],"a":4}']
    column, bad = JsonFormat(ROW).decode(binary(values))
    assert [each.row for each in bad] == [1]
    assert [row and row["a"] for row in column.to_pylist()] == [1, None, 4]


def test_a_bad_json_values_reason_says_what_is_wrong_and_quotes_nothing():
    _, bad = JsonFormat(ROW).decode(binary([b'{"a":"secret"}', b'{"b":secret}', b"\xffsecret"]))
    assert [each.reason for each in bad] == [
        "does not fit the type: field 'a' is a string that is not int64",
        "is not JSON: Expecting value at character 5",
        "text is not UTF-8",
    ]


@pytest.mark.parametrize("value", [" 4111", "4_111", "41' 11"])
def test_the_reason_that_arrow_reports_is_given_without_the_value(value):
    kind = pa.struct([("a", pa.list_(pa.decimal128(20, 0)))])
    (bad,) = JsonFormat(kind).decode(binary([json.dumps({"a": [value]}).encode()])).bad
    assert bad.reason.startswith("does not fit the type: ")
    assert "11" not in bad.reason


def test_json_that_was_written_is_read_back():
    column = pa.array([{"a": 1, "b": 'é"\n', "l": [1.5, None], "s": {"t": True}}, None, {"a": None}], ROW)
    encoded = JsonFormat(ROW).encode(column)
    assert (encoded[1].as_py(), json.loads(encoded[0].as_py())) == (None, column[0].as_py())
    assert JsonFormat(ROW).decode(encoded).values.equals(column)


NOT_FINITE = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("others", [[], [b'{"f":"nan"}', b'{"f":NaN}', b'{"f":"INF"}', b'{"b":1,"f":"NaN"}']], ids=["", "bad"])
@pytest.mark.parametrize("real", [pa.float32(), pa.float64()], ids=str)
def test_floats_that_json_does_not_have_are_read_as_they_were_written(real, others):
    """As by Spark's `to_json` and `from_json`. Other fields keep their digits."""
    inner = pa.struct([("f", real), ("d", pa.decimal128(38, 20)), ("t", pa.timestamp("us")), ("b", pa.string())])
    kind = pa.struct([*inner, ("l", pa.list_(pa.list_(real))), ("s", pa.list_(inner))])
    row = {"d": Decimal("123456789012345678.12345678901234567891"), "t": 1, "b": 'é"NaN", "f":"NaN"'}
    rows = [{**row, "f": each, "l": [[0.1, each, None], None], "s": [{**row, "f": each}, None]} for each in NOT_FINITE]
    column = pa.array([*rows, None, {"f": 1.5, "b": "NaN"}], kind)
    encoded = JsonFormat(kind).encode(column).to_pylist()
    found, bad = JsonFormat(kind).decode(binary([*encoded, *others]))
    assert [each.row for each in bad] == [len(encoded) + at for at in range(len(others))]
    assert repr(found[: len(column)].to_pylist()) == repr(column.to_pylist())


def test_every_name_that_spark_reads_for_an_infinity_is_one():
    names = ["NaN", "Infinity", "+Infinity", "+INF", "-Infinity", "-INF"]
    column, bad = JsonFormat(pa.float64()).decode(binary([f' "{name}"\n'.encode() for name in names]))
    assert (str(column.to_pylist()), bad) == ("[nan, inf, inf, inf, -inf, -inf]", [])


def test_json_values_of_one_scalar_type_are_columns_of_it():
    column, bad = JsonFormat(pa.int32()).decode(binary([b"1", b" -2 ", b"null", b"x", None]))
    assert column.equals(pa.array([1, -2, None, None, None], pa.int32()))
    assert [each.row for each in bad] == [3]


def test_more_json_than_is_read_at_once_is_read_in_runs(monkeypatch):
    monkeypatch.setattr("headrace.connectors.formats.json_values._MOST_JOINED_BYTES", 64)
    items = [b'{"a":%d}' % i for i in range(50)] + [b'{"b":"' + b"x" * 200 + b'"}', b"bad", b'{"a":50}']
    column, bad = JsonFormat(ROW).decode(binary(items))
    assert [each["a"].as_py() for each in column if each.is_valid] == [*range(50), None, 50]
    assert [each.row for each in bad] == [51]


def test_the_words_nan_and_infinity_in_strings_parse_no_value_one_by_one(monkeypatch):
    def refuse(*_: object) -> str | None:
        raise AssertionError("a value is parsed by itself")

    monkeypatch.setattr(JsonFormat, "_fault", refuse, raising=False)
    monkeypatch.setattr(json_values, "_fault", refuse, raising=False)
    items = [b'{"b": "Information"}', b'{"b": "NaNo, Inf: no"}', b'{"Infinity": 1}']
    assert JsonFormat(ROW).decode(binary(items)).bad == []


BAD_FIELDS = [
    b'{"a":"x"}', b'{"a":99999999999999999999}', b'{"a":1.0}', b'{"a":', b'{"a":1,}', b'{"a":[1],"b":"c"}',
    b'{"b":"\xff"}', b'{"l":[NaN]}', b'{"b":1}', b'{"s":{"t":2}}', b'{"s":[]}', b'{"d":true}', b'{"d":1234567.5}',
    b'{"d":"1.234"}', b'{"d":"x"}', b'{"d":1e9}', b'{"f":1e400}', b'{"f":1.7976931348623159e308}', b'{"g":-1e39}',
    b'{"f":"Infinity","g":1e39}',
    b'{"at":"2020-01-01T25:00:00Z"}',
    b'{"at":"2023-02-29"}', b'{"at":1577836800}', b'{"a":1,"b":"c","a":2}', b'{"s":{"t":true,"t":false}}',
]  # fmt: skip


NAN = b'{"f":"NaN","z":1}'


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("value", [*BAD_FIELDS, NAN])
def test_an_odd_json_value_costs_only_itself(monkeypatch, share: float, value: bytes):
    """By bytes that Arrow reads and values that Python parses: halving reads a chunk ten times, and more."""
    kind = pa.struct(
        [*ROW, ("d", pa.decimal128(7, 2)), ("f", pa.float64()), ("g", pa.float32()), ("at", pa.timestamp("us", "UTC"))]
    )
    format_ = JsonFormat(kind)
    read, parsed = [], []
    inner, checked = json_values._parsed, JsonFormat._fault

    def counted(lines: bytes, *arguments: Any, **options: Any) -> pa.Table:
        read.append(memoryview(lines).nbytes)
        return inner(lines, *arguments, **options)

    def check(self: JsonFormat, text: bytes) -> str | None:
        parsed.append(text)
        return checked(self, text)

    monkeypatch.setattr(json_values, "_parsed", counted)
    monkeypatch.setattr(JsonFormat, "_fault", check)
    rng = random.Random(1)
    good = b'{"a":%d,"b":"b%d","d":"1.50","f":1e9,"at":"2020-02-29T10:00:00.123Z","z":{"y":[{"x":1}]}}'
    items = [value if rng.random() < share else good % (row, row) for row in range(5_000)]
    column, bad = format_.decode(binary(items))
    odd = [row for row, item in enumerate(items) if item == value]
    wrong = [] if value == NAN else odd
    assert [each.row for each in bad] == wrong
    assert column.null_count == len(wrong)
    assert len(parsed) <= 2 * len(odd)
    assert sum(read) <= 2 * (sum(map(len, items)) + 10 * len(items))


@pytest.mark.parametrize(
    "value", [b'{"l":["x"]}', b'{"a":{"b":{"c":{"d":[}}}}}', b'{"s":{"t":true,"t":false}}', b'{"b":1e400}']
)
def test_what_no_expression_finds_python_does(monkeypatch, value: bytes):
    monkeypatch.setattr(JsonFormat, "_halved", None)
    column, bad = JsonFormat(ROW).decode(binary([*[b'{"a":1,"l":[1]}'] * 20, value] * 30))
    assert [each.row for each in bad] == list(range(20, 630, 21))
    assert column.null_count == 30


@pytest.mark.parametrize("value", [b'{"b":"\\ud800"}', b'{"d":1e-99999999999999999999}'])
def bad_reason_of(value):
    """Why it is bad, alone among 600 good ones."""
    kind = pa.struct([("b", pa.string()), ("d", pa.decimal128(5, 2)), ("t", pa.timestamp("us"))])
    items = [b'{"d":"1.23","t":"2020-02-28T00:00:00.5"}'] * 300 + [value] + [b'{"d":"4"}'] * 300
    column, ((row, reason),) = JsonFormat(kind).decode(binary(items))
    assert (row, column.null_count) == (300, 1)
    assert "/v" not in reason
    return reason


@pytest.mark.parametrize("value", [b'{"b":"\\ud800"}', b'{"d":1e-99999999999999999999}'])
def test_what_only_arrow_knows_is_found_by_halving(value):
    assert bad_reason_of(value)


@pytest.mark.parametrize(
    "value", [b'{"d":"1.234"}', b'{"t":"2020-02-30T00:00:00"}', b'{"t":"2020-01-01T25:00:00"}', b'{"d":true}']
)
def test_a_decimal_or_a_time_that_does_not_fit_is_bad_and_named(value):
    assert bad_reason_of(value).startswith(f"does not fit the type: field '{value[2:3].decode()}' is a ")


@pytest.mark.parametrize("number", [b"1" * 30 + b".5", b"-" + b"1" * 30])
def test_a_number_that_runs_over_as_arrow_scales_it_is_bad(number):
    """Arrow's reader gives another one, which has no more digits than the type."""
    most = b"9" * 28 + b".9999999999"
    kind = pa.struct([("d", pa.list_(pa.decimal128(38, 10))), ("f", pa.float64())])
    column, bad = JsonFormat(kind).decode(binary([b'{"d":["1.5",%s,null],"f":"NaN"}' % each for each in (most, number, most)]))
    assert [each.row for each in bad] == [1]
    good = [Decimal("1.5"), Decimal(most.decode()), None]
    assert [row and row["d"] for row in column.to_pylist()] == [good, None, good]


SKIPPED = [
    b"1e400", b'{"deep":[-2e999]}', b"0e999", b"1e99999999999", b"9" * 5000, b"[" * 5000 + b"]" * 5000,
    b'"\\ud800"', b'{"\\udc00":"\\ud83dA"}',
]  # fmt: skip


@pytest.mark.parametrize("format_", [JsonFormat, WholeNumbers])
@pytest.mark.parametrize("other", SKIPPED, ids=range(len(SKIPPED)))
def test_what_is_skipped_may_be_any_json(format_, other: bytes):
    """Regression: numbers that no double holds and half a surrogate were bad values, and depth was next to bad values."""
    kind = pa.struct([("a", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(5, 2)), ("l", pa.list_(pa.string()))])
    good = '{"a":1,"o":%s,"f":1.5,"d":"1.50","l":["é",null]}'.encode()
    values = [good % other, b'{"a":2,"o":%s' % other, b'{"a":"x"}', good % b"1", b'{"a":3,"o":%s,"a":4}' % other]
    column, bad = format_(kind).decode(binary(values * 3))
    assert [each.row for each in bad] == [1, 2, 4, 6, 7, 9, 11, 12, 14]
    row = {"a": 1, "f": 1.5, "d": Decimal("1.50"), "l": ["é", None]}
    assert column.to_pylist() == [row, None, None, row, None] * 3


@pytest.mark.parametrize("number", [b"1.0", b"1e400", b"9" * 5000, b'"1"'])
def test_what_is_skipped_changes_nothing_in_what_is_read(number: bytes):
    column, bad = JsonFormat(pa.struct([("a", pa.int64())])).decode(binary([b'{"a":%s,"o":1e400}' % number, b'{"o":1e400}']))
    assert [each.row for each in bad] == [0]
    assert column.to_pylist() == [None, {"a": None}]


def test_nan_in_what_is_skipped_is_not_json_at_any_depth():
    items = [b'{"o":%s}' % (b"[" * depth + b"NaN" + b"]" * depth) for depth in (0, 1, 5000)]
    assert [each.row for each in JsonFormat(ROW).decode(binary(items)).bad] == [0, 1, 2]


def test_a_field_that_is_there_twice_is_bad_and_named():
    _, bad = JsonFormat(ROW).decode(binary([b'{"s":{"t":true,"t":false}}', b'{"x":1,"x":2}']))
    assert [(each.row, each.reason) for each in bad] == [
        (0, "does not fit the type: JSON parse error: field 's.t' was specified twice")
    ]


def test_a_type_whose_fields_are_never_null_is_written_and_read():
    kind = pa.struct(
        [pa.field("id", pa.int64(), nullable=False), pa.field("l", pa.list_(pa.field("e", pa.int8(), nullable=False)))]
    )
    format_ = pickle.loads(pickle.dumps(JsonFormat(kind)))
    written = format_.encode(pa.array([{"id": 0, "l": [1]}, None], kind))
    assert written.to_pylist() == [b'{"id":0,"l":[1]}', None]
    assert format_.decode(written).values.to_pylist() == [{"id": 0, "l": [1]}, None]
    assert format_.decode(binary([b"{}"])).values.to_pylist() == [{"id": None, "l": None}]


def test_no_json_values_are_an_empty_column():
    assert JsonFormat(ROW).decode(binary([])).values.equals(pa.array([], ROW))


@pytest.mark.parametrize("kind", [
    pa.map_(pa.string(), pa.int32()), pa.binary(), pa.time64("us"), pa.date32(), pa.duration("s"),
    pa.month_day_nano_interval(), pa.struct([("x", pa.int32()), ("x", pa.string())]),
])  # fmt: skip
def test_a_type_that_json_does_not_give_back_is_refused_wherever_it_is(kind):
    for nested in (kind, pa.struct([("x", kind)]), pa.list_(kind)):
        with pytest.raises(UsageError, match="cannot be"):
            JsonFormat(nested)


# --- by name ---
@pytest.mark.parametrize(("name", "options", "kind"), [
    ("bytes", {}, pa.binary()), ("string", {}, pa.string()), ("json", {"arrow_type": ROW}, ROW),
    ("avro", {"schema": '"int"', "reader_schema": '"long"'}, pa.int64()),
])  # fmt: skip
def test_a_format_is_made_by_its_name(name, options, kind):
    assert name in FORMAT_NAMES
    assert create_format(name, **options).arrow_type == kind


@pytest.mark.parametrize(("name", "options", "words"), [
    ("jsn", {}, "format 'jsn' is not known; there are avro, bytes, json, json-schema, protobuf, string"),
    ("protobuf", {}, "'protobuf' needs schema, the text of a .proto file"), ("json", {}, "'json' needs arrow_type"),
    ("avro", {}, "'avro' needs schema"), ("string", {"schema": "{}"}, "'string' does not use schema"),
    ("json", {"arrow_type": ROW, "fields": ["a"], "schema": "{}"}, "'json' does not use fields, schema"),
    ("avro", {"schema": '"int"', "arrow_type": ROW}, "'avro' does not use arrow_type"),
])  # fmt: skip
def test_a_wrong_name_or_argument_is_refused(name: str, options: dict[str, Any], words: str):
    with pytest.raises(UsageError, match=words):
        create_format(name, **options)


@pytest.mark.parametrize("spec", FORMATS.values(), ids=lambda spec: spec.name)
def test_the_table_of_formats_agrees_with_their_classes(spec: FormatSpec):
    assert spec.arguments <= inspect.signature(spec.load()).parameters.keys()
    assert spec.needs is None or spec.needs[0] in spec.arguments
    registered = None if spec.load_registered is None else spec.load_registered().kind
    assert spec.registry_kind == registered


def test_without_fastavro_the_extra_is_named_and_the_other_formats_work(monkeypatch):
    real = builtins.__import__

    def without_fastavro(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "fastavro":
            raise ModuleNotFoundError("No module named 'fastavro'", name=name)
        return real(name, *args, **options)

    for name in [name for name in sys.modules if name.partition(".")[0] == "fastavro"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_fastavro)
    with pytest.raises(UsageError, match=r"fastavro is not installed; run: pip install 'headrace\[avro\]'"):
        create_format("avro", schema='"int"')
    assert create_format("string").decode(binary([b"x"])).values.to_pylist() == ["x"]
