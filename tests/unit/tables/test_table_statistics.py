"""What a table's log reports about values: readers of others find each row by filters, and changes by key find each key."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.connectors.tables import delta, writing
from headrace.connectors.tables.changes import Changes
from headrace.enumerator.errors import UsageError
from tests.helpers.both_tables import KINDS, commit_rows, rows_of, sink_of
from tests.helpers.iceberg_rig import iceberg_table

LAST = datetime(9999, 12, 31, 23, 59, 59, 999999)
TOO_LATE = 1_700_000_000_000_000_000  # microseconds: what 2023 is in nanoseconds

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [False, True]), (pa.string(), ["a" * 65, "b" * 65]), (pa.string(), ["a" * 5000, "b", "é" * 3000]),
    (pa.string(), ["a", "b" * 63 + "\ud7ff" + "c", "b" * 63 + "\U0010ffff" + "c"]),
    (pa.decimal128(10, 2), [Decimal("-1.50"), Decimal("1.50")]),
    (pa.decimal128(38, 10), [Decimal("0.0000000001"), Decimal("1234567890123456789.0123456789")]),
    (pa.decimal128(20, 0), [Decimal(0), Decimal(2**64 - 1)]), (pa.timestamp("us"), [datetime(1, 1, 1), LAST]),
    (pa.timestamp("us", tz="UTC"), [datetime(2024, 1, 1, 0, 0, 0, 1, UTC), LAST.replace(tzinfo=UTC)]),
    (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]), (pa.float64(), [-1e300, 1e-300]),
    (pa.float32(), [float("-inf"), 0.5, float("inf")]),
]  # fmt: skip
KEYS = [(type_, values) for type_, values in VALUES if not pa.types.is_floating(type_)]


@pytest.mark.parametrize(("type_", "values"), VALUES, ids=lambda value: str(value)[:24])
@pytest.mark.parametrize("is_one_file", [True, False])
def test_the_librarys_own_filters_find_each_row(tmp_path, type_, values, is_one_file):
    """It takes a bound that is missing for null, and finds nothing. At, below and above each bound."""
    schema = pa.schema([("key", type_), ("id", pa.int64())])
    sink = sink_of("delta", tmp_path)
    sink.create_table(schema)
    rows = [{"key": value, "id": at} for at, value in enumerate(values)]
    shares = [rows] if is_one_file else [[row] for row in rows]
    for epoch, share in enumerate(shares):
        commit_rows(sink, epoch, pa.RecordBatch.from_pylist(share, schema=schema))
    table = DeltaTable(sink.uri).to_pyarrow_dataset()
    for value in values:
        bound, key = pa.scalar(value, type_), ds.field("key")
        for found, wanted in [
            (key == bound, [at for at, other in enumerate(values) if other == value]),
            (key >= bound, [at for at, other in enumerate(values) if other >= value]),
            (key <= bound, [at for at, other in enumerate(values) if other <= value]),
            (key > bound, [at for at, other in enumerate(values) if other > value]),
            (key < bound, [at for at, other in enumerate(values) if other < value]),
        ]:
            assert sorted(table.to_table(filter=found)["id"].to_pylist()) == wanted


@KINDS
@pytest.mark.parametrize(("type_", "values"), KEYS, ids=lambda value: str(value)[:24])
@pytest.mark.parametrize("is_of_others", [False, True])
def test_a_row_is_replaced_or_deleted_whatever_its_key_is(tmp_path, kind, type_, values, is_of_others):
    schema = pa.schema([("key", type_), ("id", pa.int64())])
    rows = pa.RecordBatch.from_pylist([{"key": value, "id": 0} for value in values], schema=schema)
    sink = sink_of(kind, tmp_path, changes=Changes(("key",), (), "op"))
    if is_of_others and kind == "delta":
        write_deltalake(f"{tmp_path}/table", pa.table(rows))
    else:
        sink.create_table(schema)
        if is_of_others:
            iceberg_table(str(tmp_path)).append(pa.table(rows))
        else:
            commit_rows(sink, 0, rows.append_column("op", pa.array(["c"] * len(values))))
    changes = [{"key": values[0], "id": 1, "op": "u"}, *({"key": value, "op": "d"} for value in values[1:])]
    for epoch, change in enumerate(changes, 1):
        commit_rows(sink, epoch, pa.RecordBatch.from_pylist([change], schema=schema.append(pa.field("op", pa.string()))))
    assert rows_of(kind, tmp_path).to_pylist() == [{"key": values[0], "id": 1}]


def test_a_file_of_others_without_statistics_is_read(tmp_path):
    schema = pa.schema([("key", pa.int64()), ("id", pa.int64())])
    old = pa.Table.from_pylist([{"key": key, "id": 0} for key in (1, 2)], schema=schema)
    write_deltalake(f"{tmp_path}/table", old, configuration={"delta.dataSkippingNumIndexedCols": "0"})
    commit_rows(sink_of("delta", tmp_path, changes=Changes(("key",), ())), 0, pa.record_batch([[2], [1]], schema=schema))
    assert rows_of("delta", tmp_path).sort_by("key").to_pylist() == [{"key": 1, "id": 0}, {"key": 2, "id": 1}]


@pytest.mark.parametrize(("given", "number"), [(None, 32), (" 2 ", 2), ("-1", None), ("2147483647", 2**31 - 1)])
def test_how_many_columns_have_statistics_is_a_property(given, number):
    """Regression: the highest number of Java was refused."""
    assert delta._indexed({} if given is None else {"delta.dataskippingnumindexedcols": given}) == number


@pytest.mark.parametrize("given", ["abc", "1.0", "1_0"])
def test_a_number_of_columns_that_is_none_is_named(given):
    with pytest.raises(UsageError, match=rf"dataSkippingNumIndexedCols is '{given}'"):
        delta._indexed({"delta.dataskippingnumindexedcols": given})


@pytest.mark.parametrize("late", ["z" * 5000, "a" * 15 + "\ud7ff" + "b"])
def test_a_bound_of_an_iceberg_file_is_that_of_all_its_row_groups(tmp_path, monkeypatch, late):
    monkeypatch.setattr(writing, "ROW_GROUP_BYTES", 1)
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    sink = sink_of("iceberg", tmp_path)
    sink.create_table(schema)
    commit_rows(sink, 0, *(pa.record_batch([[id], [text]], schema=schema) for id, text in enumerate(["Z", late, "M"])))
    table = iceberg_table(str(tmp_path))
    assert [task.file.record_count for task in table.scan().plan_files()] == [3]
    for literal, wanted in [("a", [1]), ("M", [1, 0]), ("Y", [1, 0]), ("", [1, 2, 0])]:
        found = table.scan(row_filter=f"text > '{literal}'").to_arrow().sort_by([("text", "descending")])["id"].to_pylist()
        assert sorted(found) == sorted(wanted)
    assert table.scan(row_filter="id = 2").to_arrow().num_rows == 1


@KINDS
def test_a_timestamp_after_the_calendar_is_written_without_bounds(tmp_path, kind):
    """A producer has given microseconds where Kafka has milliseconds."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    sink = sink_of(kind, tmp_path)
    sink.create_table(schema)
    commit_rows(sink, 0, pa.record_batch([pa.array([1, 2]), pa.array([0, TOO_LATE], schema.field("at").type)], schema=schema))
    found = rows_of(kind, tmp_path).sort_by("id")
    assert found["at"].cast(pa.int64()).to_pylist() == [0, TOO_LATE]


def test_a_partition_of_a_timestamp_after_the_calendar_is_refused_by_name(tmp_path):
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    sink = sink_of("iceberg", tmp_path)
    sink.create_table(schema, ["day(at)"])
    with pytest.raises(UsageError, match="column 'at' of the table's partitions has a value whose day is beyond its type"):
        commit_rows(sink, 0, pa.record_batch([pa.array([1]), pa.array([TOO_LATE], pa.timestamp("us"))], schema=schema))


@KINDS
@pytest.mark.parametrize("changes", [None, Changes(("country",), ())], ids=["append", "changes"])
def test_rows_of_partition_columns_alone_are_there(tmp_path, kind, changes):
    table = pa.schema([("country", pa.string()), ("note", pa.string())])
    sink = sink_of(kind, tmp_path, changes=changes)
    sink.create_table(table, ["country"])
    countries = ["at", "at", "de"] if changes is None else ["at", "de"]
    commit_rows(sink, 0, pa.record_batch({"country": countries}))
    assert rows_of(kind, tmp_path).sort_by("country").to_pylist() == [{"country": name, "note": None} for name in countries]


def test_a_delta_table_that_is_partitioned_by_all_columns_is_refused(tmp_path):
    sink = sink_of("delta", tmp_path)
    with pytest.raises(UsageError, match="partitioned by all of its columns"):
        sink.create_table(pa.schema([("country", pa.string())]), ["country"])
    DeltaTable.create(sink.uri, schema=pa.schema([("country", pa.string())]), partition_by=["country"])
    with pytest.raises(UsageError, match="partitioned by all of its columns"):
        sink.check_rows(pa.schema([("country", pa.string())]))


ODD = [
    (pa.float64(), [float("nan"), 1.0, 2.0]), (pa.float64(), [-0.0, 1.0, 2.0]),
    (pa.timestamp("us", tz="UTC"), [TOO_LATE, 1, 2]), (pa.timestamp("us"), [-TOO_LATE, 1, 2]), (pa.date32(), [10**7, 1, 2]),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "values"), ODD, ids=str)
def test_an_odd_value_hides_no_other_one_from_the_librarys_own_filters(tmp_path, type_, values):
    schema = pa.schema([("key", type_), ("id", pa.int64())])
    sink = sink_of("delta", tmp_path)
    sink.create_table(schema)
    commit_rows(sink, 0, pa.record_batch([pa.array(values, type_), pa.array([0, 1, 2])], schema=schema))
    table, key = DeltaTable(sink.uri).to_pyarrow_dataset(), ds.field("key")
    low, high = (pa.scalar(value, type_) for value in values[1:])
    for found, wanted in [(key == low, [1]), (key >= high, [2]), (key <= low, [1]), (key > low, [2]), (key < high, [1])]:
        assert {1, 2} & set(table.to_table(filter=found)["id"].to_pylist()) == set(wanted)


def test_a_row_with_a_key_after_the_calendar_is_replaced(tmp_path):
    schema = pa.schema([("key", pa.timestamp("us", tz="UTC")), ("id", pa.int64())])
    sink = sink_of("delta", tmp_path, changes=Changes(("key",), ()))
    sink.create_table(schema)
    for epoch in range(2):
        keys = pa.array([-TOO_LATE, 0, TOO_LATE], schema.field("key").type)
        commit_rows(sink, epoch, pa.record_batch([keys, pa.array([epoch] * 3)], schema=schema))
    assert rows_of("delta", tmp_path)["id"].to_pylist() == [1, 1, 1]


@pytest.mark.parametrize(
    "wanted", [{"delta.dataSkippingNumIndexedCols": "-1"}, {"delta.dataSkippingStatsColumns": "c39"}, {}], ids=str
)
def test_every_column_that_the_table_wants_statistics_of_has_them(tmp_path, wanted):
    schema = pa.schema([(f"c{at}", pa.int64()) for at in range(40)])
    sink = sink_of("delta", tmp_path)
    DeltaTable.create(sink.uri, schema=schema, configuration=wanted)
    commit_rows(sink, 0, pa.record_batch([[at] for at in range(40)], schema=schema))
    for at in (0, 31, 32, 39):
        assert DeltaTable(sink.uri).to_pyarrow_dataset().to_table(filter=ds.field(f"c{at}") == at).num_rows == 1


def test_nulls_of_structs_and_of_columns_that_rows_do_not_have_are_found(tmp_path):
    inner = pa.struct([("a", pa.int64())])
    schema = pa.schema([("id", pa.int64()), ("inner", inner), ("later", pa.string()), ("x.y", pa.int64())])
    sink = sink_of("delta", tmp_path)
    sink.create_table(schema)
    rows = [{"id": 1, "inner": None, "x.y": None}, {"id": 2, "inner": {"a": None}, "x.y": 1}]
    commit_rows(sink, 0, pa.RecordBatch.from_pylist(rows, schema=pa.schema([schema.field(at) for at in (0, 1, 3)])))
    table = DeltaTable(sink.uri).to_pyarrow_dataset()
    for name, wanted in [("inner", [1]), ("later", [1, 2]), ("x.y", [1])]:
        assert table.to_table(filter=ds.field(name).is_null())["id"].to_pylist() == wanted


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.decimal128(4, 2)], ids=str)
def test_a_truncated_value_beyond_its_type_is_refused_by_its_column(tmp_path, kind):
    """The least numbers are often written for what is not known."""
    least = Decimal("-99.99") if pa.types.is_decimal(kind) else -(2 ** (kind.bit_width - 1))
    rows = pa.record_batch({"n": pa.array([least], kind)})
    sink = sink_of("iceberg", tmp_path)
    sink.create_table(rows.schema, ["truncate(7, n)"])
    with pytest.raises(UsageError, match="column 'n' of the table's partitions has a value whose"):
        commit_rows(sink, 0, rows)
