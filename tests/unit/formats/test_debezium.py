"""Debezium's envelope as rows that change a table."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.delta import DeltaSink
from headrace.errors import UsageError
from headrace.formats import JsonFormat, debezium_changes, debezium_envelope
from headrace.kafka import KafkaSource, Latest
from headrace.run import Pipeline
from headrace.sinks import Changes
from headrace.sql import UpsertSink
from headrace.testing import FakeKafka
from headrace.testing.fake_kafka.kafka import NewRecord
from tests.helpers.sql_rig import SqlRig

ROW = pa.struct([("id", pa.int64()), ("name", pa.string())])
ENVELOPE = pa.struct([("before", ROW), ("after", ROW), ("op", pa.string())])


def batch(*values: object) -> pa.RecordBatch:
    columns = [pa.array(values, ENVELOPE), pa.array(range(len(values)), pa.int64())]
    return pa.RecordBatch.from_arrays(columns, ["value", "offset"])


def change(op, before=None, after=None):
    rows = [None if row is None else {"id": row[0], "name": row[1]} for row in (before, after)]
    return {"before": rows[0], "after": rows[1], "op": op}


def test_a_change_is_the_row_after_it_or_of_a_delete_the_row_before():
    made = debezium_changes(batch(change("c", None, (1, "a")), change("u", (1, "a"), (1, None)), change("d", (1, "b")), None))
    assert made.schema.names == ["id", "name", "op", "offset"]
    rows = [(1, "a", "c", 0), (1, "a", "-U", 1), (1, None, "u", 1), (1, "b", "d", 2)]
    assert [tuple(row.values()) for row in made.to_pylist()] == rows
    assert debezium_changes(batch(None)).num_rows == 0


@pytest.mark.parametrize(
    ("before", "row"),
    [
        (pa.struct([("id", pa.int64())]), (1, None)),
        (pa.struct([("name", pa.string()), ("id", pa.int32())]), (1, "a")),
        (pa.null(), (None, None)),
        (pa.struct([("other", pa.string())]), (None, None)),
    ],
    ids=["keys alone", "another order and type", "nothing", "no field of it"],
)
def test_the_row_before_may_have_fewer_fields_than_the_one_after(before, row):
    """As a source gives it that is asked for some of the fields."""
    old = None if before == pa.null() else {"id": 1, "name": "a"}
    parts = [
        pa.array([old, None, old], before),
        pa.array([None, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}], ROW),
        pa.array(["d", "c", "u"]).dictionary_encode(),
    ]
    made = debezium_changes(pa.record_batch([pa.StructArray.from_arrays(parts, ["before", "after", "op"])], names=["value"]))
    assert [tuple(each.values()) for each in made.to_pylist()] == [
        (*row, "d"), (2, "b", "c"), *([(*row, "-U")] if old and row != (None, None) else []), (3, "c", "u"),
    ]  # fmt: skip


def test_a_field_of_several_types_is_kept():
    """Arrow ended the process."""
    row = pa.struct([("id", pa.int64()), ("x", pa.sparse_union([pa.field("i", pa.int32()), pa.field("s", pa.string())]))])
    numbers, texts = pa.array([5, None, 5], pa.int32()), pa.array([None, "s", "s"])

    def rows(kinds, mask):
        x = pa.UnionArray.from_sparse(pa.array(kinds, pa.int8()), [numbers, texts], ["i", "s"])
        return pa.StructArray.from_arrays([pa.array([1, 1, 1]), x], fields=list(row), mask=pa.array(mask))

    parts = [rows([0, 0, 1], [True, False, False]), rows([0, 1, 1], [False, False, True]), pa.array(["c", "u", "d"])]
    value = pa.StructArray.from_arrays(parts, ["before", "after", "op"])
    made = debezium_changes(pa.record_batch({"value": value}))
    assert [tuple(each.values()) for each in made.to_pylist()] == [
        (1, 5, "c"), (1, None, "-U"), (1, "s", "u"), (1, "s", "d")
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [change("c"), change("r", (1, "a")), change("u", (1, "a")), change("d")], ids=str)
def test_a_change_without_its_row_is_refused(wrong):
    """An update without `after` wrote the row of `before` as the new one, others a row of nulls."""
    with pytest.raises(UsageError, match=f"a change of Debezium has no row: it is '{wrong['op']}'"):
        debezium_changes(batch(change("c", None, (1, "a")), wrong))


@pytest.mark.parametrize("op", ["t", None])
def test_a_change_of_no_row_is_named(op):
    with pytest.raises(UsageError, match=f"is c, r, u or d, and this one is {op!r}"):
        debezium_changes(batch(change("c", None, (1, "a")), change(op)))


def test_what_is_no_envelope_is_named():
    texts = {"before": "{}", "after": "{}", "op": "c"}
    for column in (pa.array([b"x"]), pa.array([{"after": 1}]), pa.array([texts])):
        with pytest.raises(UsageError, match="a column 'value' with before, after and op"):
            debezium_changes(pa.RecordBatch.from_arrays([column], ["value"]))
    rows = batch(change("c", None, (1, "a")))
    with pytest.raises(UsageError, match="named as other columns are: id"):
        debezium_changes(rows.rename_columns(["value", "id"]))


def delta(folder):
    sink = DeltaSink(str(folder / "table"), changes=Changes(("id",), change_type="op"))
    sink.create_table(pa.schema([("id", pa.int64()), ("name", pa.string()), ("offset", pa.int64())]))
    return sink, lambda: [tuple(row.values()) for row in DeltaTable(sink.uri).to_pyarrow_table().to_pylist()]


def sqlite(folder):
    rig = SqlRig(f"sqlite:///{folder / 'some.db'}")
    rig.create("id BIGINT PRIMARY KEY, name TEXT NOT NULL, offset BIGINT")
    return UpsertSink(rig.url, rig.table, ("id",), "op"), rig.rows


@pytest.mark.parametrize("made", [delta, sqlite])
def test_a_changelog_becomes_a_table_without_an_engine(tmp_path, made):
    sink, rows = made(tmp_path)
    with FakeKafka() as kafka:
        kafka.create_topic("changes", partitions=1)
        one, two, renamed, moved = (
            {"id": 1, "name": "a"},
            {"id": 2, "name": "b"},
            {"id": 1, "name": "c"},
            {"id": 3, "name": "c"},
        )
        changes = [(None, one, "c"), (None, two, "r"), (one, renamed, "u"), (two, None, "d"), (renamed, moved, "u")]
        for before, after, op in changes:
            kafka.append("changes", json.dumps({"before": before, "after": after, "op": op}).encode())
        kafka.append("changes", NewRecord(None))
        columns, value = ["value", "offset"], JsonFormat(ENVELOPE)
        source = KafkaSource(kafka.bootstrap, topics=["changes"], stop=Latest(), columns=columns, value=value)
        Pipeline(source, sink, debezium_changes).run(checkpoints=str(tmp_path / "checkpoints"), interval_s=0.2)
    assert rows() == [(3, "c", 4)]


MARK = "__debezium_unavailable_value"
MARKS = {
    "text": (MARK, "a", pa.string()),
    "bytes": (MARK.encode(), b"a", pa.binary()),
    "bytes as JSON has them": ("X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", "YQ==", pa.large_string()),
    "texts": ([MARK], ["a", MARK], pa.list_(pa.string())),
    "bytes in a list": ([MARK.encode()], [], pa.list_(pa.binary())),
    "numbers": ([*MARK.encode()], [1, 2], pa.list_(pa.int32())),
    "UUIDs": (["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], ["00000000-0000-0000-0000-00000000000a"], pa.list_(pa.string())),
    "hstore": ([(MARK, MARK)], [("a", None)], pa.map_(pa.string(), pa.string())),
    "hstore as JSON": (f'{{"{MARK}":"{MARK}"}}', "{}", pa.string()),
}


@pytest.mark.parametrize("name", MARKS)
def test_a_value_that_the_log_leaves_out_is_that_of_before_or_refused(name):
    mark, value, kind = MARKS[name]
    row = pa.struct([("id", pa.int64()), ("doc", kind)])
    old, after, new = {"id": 1, "doc": value}, {"id": 1, "doc": mark}, {"id": 2, "doc": value}

    def made(*changes):
        values = [dict(zip(("before", "after", "op"), each, strict=True)) for each in changes]
        envelope = pa.struct([("before", row), ("after", row), ("op", pa.string())])
        return debezium_changes(pa.record_batch({"value": pa.array(values, envelope)})).to_pylist()

    found = made((None, new, "c"), (old, after, "u"), (None, {"id": 3, "doc": None}, "u"))
    assert [(each["id"], each["doc"], each["op"]) for each in found] == [
        (2, value, "c"), (1, value, "-U"), (1, value, "u"), (3, None, "u"),
    ]  # fmt: skip
    for before in (None, {"id": 1, "doc": None}, after):
        with pytest.raises(UsageError, match="field 'doc' of a change is large and as before"):
            made((None, new, "c"), (before, after, "u"))


CHANGES = pa.schema(
    [
        ("_op", pa.string()), ("_lsn", pa.int64()), ("_xid", pa.int64()), ("_committed_at", pa.timestamp("us", "UTC")),
        ("_table", pa.string()), ("_unchanged", pa.list_(pa.string())), ("_before", ROW), *ROW,
    ]
)  # fmt: skip


def changed(op, row=None, before=None, unchanged=()):
    committed = None if op == "snapshot" else 1_700_000_000_123_456
    return dict(
        zip(CHANGES.names, (op, 9, 7, committed, "public.people", unchanged, before, *(row or (None, None))), strict=True)
    )


def test_changes_of_a_table_become_envelopes_and_a_delete_a_tombstone_too():
    old = {"id": 1, "name": "a"}
    rows = [
        changed("snapshot", (1, "a")), changed("insert", (2, None)), changed("update", (1, "b"), old),
        changed("delete", (2, None)), changed("delete", (1, None), old), changed("update", (3, None), None, ["name"]),
        changed("truncate"),
    ]  # fmt: skip
    made = debezium_envelope(pa.RecordBatch.from_pylist(rows, CHANGES), ["id"]).to_pylist()
    assert [row["key"] and row["key"]["id"] for row in made] == [1, 2, 1, 2, 2, 1, 1, 3, None]
    assert [row["value"] and row["value"]["op"] for row in made] == ["r", "c", "u", "d", None, "d", None, "u", "t"]
    values = [row["value"] for row in made if row["value"]]
    keys = {"id": 2, "name": None}
    assert [value["before"] for value in values] == [None, None, old, keys, old, None, None]
    left_out = {"id": 3, "name": "__debezium_unavailable_value"}
    assert [value["after"] for value in values] == [old, keys, {"id": 1, "name": "b"}, None, None, left_out, None]
    origin = {"connector": "postgresql", "schema": "public", "table": "people", "txId": 7, "lsn": 9}
    assert values[1]["source"] == {**origin, "ts_ms": 1_700_000_000_123, "snapshot": "false"}
    assert values[0]["source"] == {**origin, "ts_ms": None, "snapshot": "true"}
    assert values[1]["ts_ms"] == 1_700_000_000_123


def test_envelopes_are_made_of_what_the_source_gives():
    rows = pa.RecordBatch.from_pylist([{"_op": "insert", "id": 1}, {"_op": "delete", "id": 1}])
    made = debezium_envelope(rows, ["id"])
    assert [row["value"] and row["value"]["after"] for row in made.to_pylist()] == [{"id": 1}, None, None]
    assert debezium_envelope(rows.slice(0, 0), ["id"]).schema == made.schema
    for missing, columns in (("_op", ["id"]), ("key", ["_op", "id"])):
        with pytest.raises(UsageError, match=f"needs the column '{missing}'"):
            debezium_envelope(rows.select(columns), ["key"])


def test_a_large_value_that_the_log_leaves_out_is_never_a_null():
    """A reader of the topic would write the null."""
    mark = "__debezium_unavailable_value"
    values = {"bytes": pa.binary(), "texts": pa.list_(pa.string()), "numbers": pa.list_(pa.int64())}
    kind = pa.schema([("_op", pa.string()), ("_unchanged", pa.list_(pa.string())), ("id", pa.int64()), *values.items()])
    row = {"_op": "update", "id": 1, "bytes": None, "texts": None, "numbers": None}
    rows = pa.RecordBatch.from_pylist([{**row, "_unchanged": ["bytes", "texts"]}, {**row, "_unchanged": []}], kind)
    after = [made["value"]["after"] for made in debezium_envelope(rows, ["id"]).to_pylist()]
    assert after == [{"id": 1, "bytes": mark.encode(), "texts": [mark], "numbers": None}, {"id": 1, **dict.fromkeys(values)}]
    with pytest.raises(UsageError, match=r"leaves out the value of 'numbers', .* Debezium marks no list<.*int64>"):
        debezium_envelope(pa.RecordBatch.from_pylist([{**row, "_unchanged": ["numbers"]}], kind), ["id"])


def test_an_operation_that_the_source_does_not_give_is_refused():
    rows = pa.RecordBatch.from_pylist([{"_op": "upsert", "id": 1}])
    with pytest.raises(UsageError, match="and not 'upsert'"):
        debezium_envelope(rows, ["id"])


def test_the_columns_about_changes_are_those_of_the_source():
    from headrace.connectors.formats import debezium
    from headrace.connectors.postgresql.rows import METADATA

    assert debezium._ABOUT_CHANGES == METADATA


def test_envelopes_that_a_format_has_encoded_are_changes_again():
    rows = [changed("insert", (1, "a")), changed("update", (1, "b")), changed("delete", (1, None))]
    value = debezium_envelope(pa.RecordBatch.from_pylist(rows, CHANGES), ["id"]).column("value")
    encoded = JsonFormat(value.type).encode(value)
    assert encoded.null_count == 1, "the tombstone"
    found = debezium_changes(pa.RecordBatch.from_arrays([JsonFormat(ENVELOPE).decode(encoded).values], ["value"]))
    assert [tuple(row.values()) for row in found.to_pylist()] == [(1, "a", "c"), (1, "b", "u"), (1, None, "d")]
