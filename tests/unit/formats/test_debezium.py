"""Debezium's envelope as rows that change a table."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.delta import DeltaSink
from headrace.errors import UsageError
from headrace.formats import JsonFormat, debezium_changes
from headrace.kafka import KafkaSource, Latest
from headrace.run import Pipeline
from headrace.sinks import Changes
from headrace.testing import FakeKafka
from headrace.testing.fake_kafka.kafka import NewRecord

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
    assert [tuple(row.values()) for row in made.to_pylist()] == [(1, "a", "c", 0), (1, None, "u", 1), (1, "b", "d", 2)]
    assert debezium_changes(batch(None)).num_rows == 0


@pytest.mark.parametrize("op", ["t", None])
def test_a_change_of_no_row_is_named(op):
    with pytest.raises(UsageError, match=f"is c, r, u or d, and this one is {op!r}"):
        debezium_changes(batch(change("c", None, (1, "a")), change(op)))


def test_what_is_no_envelope_is_named():
    for column in (pa.array([b"x"]), pa.array([{"after": 1}])):
        with pytest.raises(UsageError, match="a column 'value' with before, after and op"):
            debezium_changes(pa.RecordBatch.from_arrays([column], ["value"]))
    rows = batch(change("c", None, (1, "a")))
    with pytest.raises(UsageError, match="named as other columns are: id"):
        debezium_changes(rows.rename_columns(["value", "id"]))


def test_a_changelog_becomes_a_table_without_an_engine(tmp_path):
    columns = pa.schema([("id", pa.int64()), ("name", pa.string()), ("offset", pa.int64())])
    sink = DeltaSink(str(tmp_path / "table"), changes=Changes(("id",), change_type="op"))
    sink.create_table(columns)
    with FakeKafka() as kafka:
        kafka.create_topic("changes", partitions=1)
        one, two, renamed = {"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 1, "name": "c"}
        for before, after, op in [(None, one, "c"), (None, two, "r"), (one, renamed, "u"), (two, None, "d")]:
            kafka.append("changes", json.dumps({"before": before, "after": after, "op": op}).encode())
        kafka.append("changes", NewRecord(None))
        columns, value = ["value", "offset"], JsonFormat(ENVELOPE)
        source = KafkaSource(kafka.bootstrap, topics=["changes"], stop=Latest(), columns=columns, value=value)
        Pipeline(source, sink, debezium_changes).run(checkpoints=str(tmp_path / "checkpoints"), interval_s=0.2)
    assert DeltaTable(sink.uri).to_pyarrow_table().to_pylist() == [{"id": 1, "name": "c", "offset": 2}]
