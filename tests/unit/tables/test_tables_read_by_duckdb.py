"""Tables that the sinks have written, read by DuckDB, which has code of its own for both formats and for their statistics."""

import math
import operator
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, QueryBuilder

from benchmarks.tables_changes import SCHEMA, TEXT, Replay
from benchmarks.tables_job import BY_ID, CHANGES_SCHEMA, TABLE, catalog_of, changes_of
from benchmarks.tables_soak import Reader
from headrace.connectors.tables import merging
from headrace.delta import DeltaSink
from headrace.iceberg import IcebergSink
from tests.helpers.both_tables import KINDS, prepared_rows
from tests.helpers.table_rig import driver

OPERATORS: dict[str, Any] = {"=": operator.eq, "<": operator.lt, ">": operator.gt, ">=": operator.ge}


@pytest.fixture(scope="module")
def duckdb() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()


def sink_of(kind: str, folder: Path, **options: Any) -> DeltaSink | IcebergSink:
    if kind == "delta":
        return DeltaSink(f"{folder}/table", **options)
    return IcebergSink(TABLE, catalog_of(str(folder)), **options)


def commit(sink: Any, epoch: int, *shares: pa.RecordBatch) -> None:
    driver(sink).commit(epoch, tuple(prepared_rows(sink, epoch, task, rows) for task, rows in enumerate(shares)))


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()], ids=str)
def test_comparisons_with_numbers_find_rows_with_nan_where_it_is_sorted_last(duckdb, tmp_path, type_):
    """Of Parquet, too, a row group has no bounds that leave them out. `deltalake`, for which NaN is no number, finds others."""
    reals = [[1.0, 2.0], [3.0, math.nan, math.inf], [math.nan], [-5.0, math.nan, 7.0]]
    sink = sink_of("delta", tmp_path)
    sink.create_table(pa.schema([("x", type_), ("id", pa.int64())]))
    for epoch, values in enumerate(reals):
        numbers = pa.array(range(10 * epoch, 10 * epoch + len(values)))
        commit(sink, epoch, pa.record_batch({"x": pa.array(values, type_), "id": numbers}))
    table = DeltaTable(sink.uri)
    filters, last = table.to_pyarrow_dataset(), QueryBuilder().register("t", table)
    nans = [11, 20, 31]
    for condition, wanted in [("x > 8", [*nans, 12]), ("x >= 7", [*nans, 12, 32]), ("x = 3", [10]), ("x < 0", [30])]:
        found = duckdb.query(f"SELECT id FROM {{}} WHERE {condition}", "delta", str(tmp_path)).fetchall()
        assert sorted(number for (number,) in found) == sorted(wanted), condition
        sorted_last = pa.table(last.execute(f"SELECT id FROM t WHERE {condition}").read_all())
        assert sorted(sorted_last["id"].to_pylist()) == sorted(wanted), condition
        sign, number = condition.split()[1:]
        plain = filters.to_table(filter=OPERATORS[sign](ds.field("x"), float(number)))["id"].to_pylist()
        assert sorted(plain) == sorted(set(wanted) - set(nans)), condition
    assert sorted(filters.to_table(filter=ds.field("x").is_nan())["id"].to_pylist()) == nans


@KINDS
def test_values_and_partitions_come_back_and_filters_skip_no_row(duckdb, tmp_path, kind):
    schema = pa.schema([
        ("text", pa.string()), ("day", pa.date32()), ("number", pa.int64()), ("real", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")), ("raw", pa.binary()), ("list", pa.list_(pa.int32())),
    ])  # fmt: skip
    at = datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)
    row = {
        "text": "a/b=c% ", "day": date(1969, 12, 31), "number": -5, "real": 1.5, "at": at, "raw": b"\x00\xff",
        "list": [1, None],
    }  # fmt: skip
    rows = [row, {**row, "text": "d", "number": 2**62, "real": float("inf")}, dict.fromkeys(row)]
    sink = sink_of(kind, tmp_path)
    sink.create_table(schema, ("text", "day"))
    for epoch, found in enumerate(rows):
        commit(sink, epoch, pa.RecordBatch.from_pylist([found], schema=schema))

    def ask(condition: str) -> list[dict[str, Any]]:
        text = f"SELECT * FROM {{}} WHERE {condition} ORDER BY number"
        return duckdb.query(text, kind, str(tmp_path)).to_arrow_table().select(schema.names).cast(schema).to_pylist()

    assert ask("true") == rows
    assert ask("number = -5") == rows[:1]
    assert ask("day = DATE '1969-12-31' AND text = 'd'") == rows[1:2]
    assert ask("real > 1e300") == rows[1:2]
    assert ask("\"at\" < TIMESTAMPTZ '2024-03-01 00:00:00+00'") == rows[:2]
    assert ask("number IS NULL") == rows[2:]


def changelog(duckdb: Reader, kind: str, folder: Path) -> tuple[pa.Table, pa.Table]:
    """What a table and a plain replay have after a changelog in three epochs of two tasks."""
    sink, replay = sink_of(kind, folder, changes=BY_ID), Replay(rows=60, keys=20)
    sink.create_table(CHANGES_SCHEMA)
    for epoch in range(3):
        changes = changes_of(epoch, rows=60, keys=20)
        commit(sink, epoch, changes.slice(30), changes.slice(0, 30))
        replay.step()
    return duckdb.query(TEXT, kind, str(folder)).to_arrow_table().cast(SCHEMA), replay.table


@KINDS
def test_a_changelog_gives_the_same_table_as_a_plain_replay(duckdb, tmp_path, kind):
    found, wanted = changelog(duckdb, kind, tmp_path)
    assert 0 < wanted.num_rows < 20
    assert found.equals(wanted)


def test_the_replay_sees_a_merge_that_takes_another_change_than_the_last_one(duckdb, tmp_path, monkeypatch):
    """What the soak of changelogs goes by."""
    last = merging.last_of_each_key

    def first(changes: Any, staged: pa.Table, where: str) -> Any:
        column = staged.column_names.index("_headrace_sequence_0")
        turned = pa.compute.negate(staged.column(column))
        return last(changes, staged.set_column(column, "_headrace_sequence_0", turned), where)

    monkeypatch.setattr(merging, "last_of_each_key", first)
    found, wanted = changelog(duckdb, "delta", tmp_path)
    assert not found.equals(wanted)


def test_the_replay_sees_a_merge_that_leaves_a_row_in_another_file(duckdb, tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "without_keys", lambda rows, keys: rows)
    found, wanted = changelog(duckdb, "iceberg", tmp_path)
    assert found.num_rows > wanted.num_rows
