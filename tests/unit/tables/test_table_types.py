"""What `create_table` made takes the rows that it was made for, with every value as it was; or it is refused by name."""

from datetime import datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, NestedField, TimeType, UUIDType

from headrace.enumerator.errors import UsageError
from tests.helpers.both_tables import KINDS, commit_rows, rows_of, sink_of
from tests.helpers.iceberg_rig import TABLE, catalog_of, iceberg_table

ZONE = "Europe/Berlin"


def values_of(kind: str, folder: Path) -> list[Any]:
    return rows_of(kind, folder)["c"].to_pylist()


@KINDS
@pytest.mark.parametrize("is_widened", [False, True])
@pytest.mark.parametrize(("type_", "stored", "wanted"), [
    (pa.uint8(), 255, 255), (pa.uint16(), 65535, 65535), (pa.uint32(), 2**32 - 1, 2**32 - 1),
    (pa.uint64(), 2**64 - 1, Decimal(2**64 - 1)), (pa.int8(), -128, -128), (pa.float16(), 1.5, 1.5),
    (pa.binary(4), b"abcd", b"abcd"), (pa.large_string(), "a", "a"),
    (pa.timestamp("ms"), datetime(2024, 1, 1), datetime(2024, 1, 1)),
    (pa.list_(pa.uint32()), [2**32 - 1, None], [2**32 - 1, None]),
    (pa.struct([("n", pa.uint64()), ("b", pa.binary(2))]), {"n": 5, "b": b"ab"}, {"n": Decimal(5), "b": b"ab"}),
    (pa.map_(pa.string(), pa.uint8()), [("a", 200)], [("a", 200)]),
], ids=str)  # fmt: skip
def test_a_table_takes_the_rows_that_it_was_made_for(tmp_path, kind, is_widened, type_, stored, wanted):
    batch = pa.record_batch([pa.array([1, 2]), pa.array([stored, None], type_)], names=["id", "c"])
    sink = sink_of(kind, tmp_path, merge_schema=is_widened)
    if is_widened:
        sink.create_table(pa.schema([("id", pa.int64())]))
    sink.create_table(batch.schema)
    sink.check_rows(batch.schema)
    commit_rows(sink, 0, batch)
    assert values_of(kind, tmp_path) == [wanted, None]


@KINDS
def test_a_timestamp_of_any_zone_is_the_same_instant(tmp_path, kind):
    batch = pa.record_batch([pa.array([0], pa.timestamp("ns", ZONE))], names=["c"])
    sink = sink_of(kind, tmp_path)
    sink.create_table(batch.schema)
    commit_rows(sink, 0, batch)
    assert [value.timestamp() for value in values_of(kind, tmp_path)] == [0]


@KINDS
@pytest.mark.parametrize(("table", "fits"), [((38, 0), True), ((22, 2), True), ((19, 0), False), ((19, 1), False)], ids=str)
@pytest.mark.parametrize("type_", [pa.int8(), pa.int64(), pa.uint64()], ids=str)
def test_integers_are_the_same_numbers_in_a_decimal_that_has_all_their_digits(tmp_path, kind, table, fits, type_):
    """Nineteen digits are those of the signed ones."""
    ends = [0, 2**64 - 1] if type_ == pa.uint64() else [-(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1) - 1]
    sink = sink_of(kind, tmp_path)
    sink.create_table(pa.schema([("c", pa.decimal128(*table))]))
    rows = pa.record_batch([pa.array([*ends, None], type_)], names=["c"])
    if not fits and type_ != pa.int8() and (type_, table) != (pa.int64(), (19, 0)):
        with pytest.raises(UsageError, match=rf"column 'c' is decimal128\({table[0]}, {table[1]}\) in the table, and u?int64"):
            sink.check_rows(rows.schema)
        return
    commit_rows(sink, 0, rows)
    assert values_of(kind, tmp_path) == [*map(Decimal, ends), None]


@KINDS
@pytest.mark.parametrize(("partition", "message"), [
    ("inner.at", "'inner.at' is a field in column 'inner', and partitions are made of whole columns: add a column with its"),
    ("outer.at", "'outer.at' is not among the columns, of which partitions are made: id, inner"),
], ids=str)  # fmt: skip
def test_a_partition_that_is_no_column_is_refused_by_name(tmp_path, kind, partition, message):
    sink = sink_of(kind, tmp_path)
    for text in [partition] if kind == "delta" else [partition, f"day({partition})"]:
        with pytest.raises(UsageError, match=message):
            sink.create_table(pa.schema([("id", pa.int64()), ("inner", pa.struct([("at", pa.int64())]))]), [text])


@KINDS
@pytest.mark.parametrize("type_", [
    pa.map_(pa.string(), pa.int32()), pa.list_(pa.map_(pa.string(), pa.string())),
    pa.struct([("m", pa.map_(pa.string(), pa.int8()))]),
], ids=str)  # fmt: skip
def test_maps_that_were_filtered_are_written(tmp_path, kind, type_):
    """Arrow would end the process."""
    item = 1 if "int" in str(type_) else "1"
    maps = [[("a", item)], None, [("b", None)]]
    values = (
        [{"m": each} for each in maps] if pa.types.is_struct(type_) else maps if pa.types.is_map(type_) else [maps, None, []]
    )
    batch = pa.record_batch([pa.array(range(3)), pa.array(values, type_)], names=["id", "c"])
    sink = sink_of(kind, tmp_path)
    sink.create_table(batch.schema)
    commit_rows(sink, 0, batch.filter(pa.array([False, True, True])), batch.take(pa.array([0])))
    stored = rows_of(kind, tmp_path).sort_by("id")
    assert (stored["id"].to_pylist(), stored["c"].to_pylist()[0]) == ([0, 1, 2], values[0])


@KINDS
@pytest.mark.parametrize("nest", [
    lambda times: pa.StructArray.from_arrays([times], ["at"], mask=pa.array([False, True])),
    lambda times: pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), times, mask=pa.array([False, True])),
    lambda times: pa.MapArray.from_arrays([0, 1, 2], ["a", "b"], times, mask=pa.array([False, True])),
], ids=["struct", "list", "map"])  # fmt: skip
def test_what_is_beneath_a_null_is_not_looked_at(tmp_path, kind, nest):
    """A cast does, and found a nanosecond there."""
    column = nest(pa.array([1000, 1001]).cast(pa.timestamp("ns", "UTC")))
    sink = sink_of(kind, tmp_path)
    sink.create_table(pa.schema([("c", column.type)]))
    commit_rows(sink, 0, pa.record_batch([column], names=["c"]))
    assert rows_of(kind, tmp_path)["c"].null_count == 1


@KINDS
def test_a_partition_of_a_date_after_the_year_9999_is_refused(tmp_path, kind):
    batch = pa.record_batch([pa.array([3_000_000], pa.date32()), [1]], names=["day", "id"])
    sink = sink_of(kind, tmp_path)
    sink.create_table(batch.schema, ["day"])
    with pytest.raises(UsageError, match="3000000 days after 1970, is not in the years 1 to 9999"):
        commit_rows(sink, 0, batch)


REFUSED = [
    *(
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.decimal256(50, 2),
        pa.decimal128(5, -2),
        pa.decimal128(3, 5),
        pa.null(),
        pa.struct([]),
    ),
    pa.struct([("a", pa.int64()), ("a", pa.int64())]),
]


@KINDS
@pytest.mark.parametrize("type_", [*REFUSED, pa.list_(pa.struct([])), pa.struct([("e", pa.struct([]))])], ids=str)
def test_a_type_that_no_table_has_is_refused_by_name_before_anything_is_made(tmp_path, kind, type_):
    sink = sink_of(kind, tmp_path)
    with pytest.raises(UsageError, match=r"column 'c' is .*, which a table of this format cannot have"):
        sink.create_table(pa.schema([("id", pa.int64()), ("c", type_)]))
    with pytest.raises(UsageError, match="there is no"):
        sink.check_rows(pa.schema([("id", pa.int64())]))


@pytest.mark.parametrize("type_", [pa.time32("ms"), pa.time64("ns")], ids=str)
def test_times_are_for_iceberg_and_not_for_delta(tmp_path, type_):
    batch = pa.record_batch([pa.array([1_000_000 if type_ == pa.time64("ns") else 1], type_)], names=["c"])
    with pytest.raises(UsageError, match="column 'c' is time"):
        sink_of("delta", tmp_path).create_table(batch.schema)
    sink = sink_of("iceberg", tmp_path)
    sink.create_table(batch.schema)
    commit_rows(sink, 0, batch)
    assert values_of("iceberg", tmp_path) == [time(0, 0, 0, 1000)]


@pytest.mark.parametrize(("type_", "column", "wanted", "bad"), [
    (UUIDType(), pa.array([str(UUID(int=1)), None]), [UUID(int=1), None], pa.array(["no uuid"])),
    (FixedType(4), pa.array([b"abcd", None]), [b"abcd", None], pa.array([b"abc"])),
    (TimeType(), pa.array([1_000, None], pa.time64("ns")), [time(0, 0, 0, 1), None], pa.array([1], pa.time64("ns"))),
], ids=["uuid", "fixed", "time"])  # fmt: skip
def test_sparks_types_are_written_to_icebergs_own(tmp_path, type_, column, wanted, bad):
    there = load_catalog(**catalog_of(str(tmp_path)))
    there.create_namespace(TABLE.rpartition(".")[0])
    there.create_table(TABLE, Schema(NestedField(1, "c", type_, required=False)))
    sink = sink_of("iceberg", tmp_path)
    with pytest.raises(UsageError, match="column 'c'"):
        commit_rows(sink, 0, pa.record_batch([bad], names=["c"]))
    commit_rows(sink, 0, pa.record_batch([column], names=["c"]))
    assert values_of("iceberg", tmp_path) == wanted


def test_a_table_takes_over_the_comments_of_the_rows_columns(tmp_path):
    """Regression: they were taken for rules of another table."""
    rows = pa.schema([pa.field("id", pa.int64(), metadata={"comment": "the key", "doc": "the key"})])
    for kind in ("delta", "iceberg"):
        sink_of(kind, tmp_path).create_table(rows)
    assert DeltaTable(f"{tmp_path}/table").schema().fields[0].metadata["comment"] == "the key"
    assert iceberg_table(str(tmp_path)).schema().find_field("id").doc == "the key"


@KINDS
@pytest.mark.parametrize("is_widened", [False, True])
@pytest.mark.parametrize("metadata", [
    {"delta.generationExpression": "id * 2"}, {"delta.columnMapping.id": "2", "delta.columnMapping.physicalName": "col-1"},
    {"PARQUET:field_id": "7"}, {b"k": b"\xff"},
], ids=str)  # fmt: skip
def test_a_table_takes_over_no_metadata_of_the_rows_columns(tmp_path, kind, is_widened, metadata):
    """Regression: with rules of another table no row could be written, and deltalake failed for ids and bytes."""
    inner = pa.field("n", pa.int64(), metadata=metadata)
    kinds = [pa.int64(), pa.struct([inner]), pa.list_(inner), pa.map_(pa.string(), inner)]
    fields = [pa.field(f"c{at}", each, metadata=metadata) for at, each in enumerate(kinds)]
    schema = pa.schema([("id", pa.int64()), *fields])
    batch = pa.record_batch([pa.array([1]), *(pa.nulls(1, each) for each in kinds)], schema=schema)
    sink = sink_of(kind, tmp_path, merge_schema=is_widened)
    if is_widened:
        sink.create_table(pa.schema([("id", pa.int64())]))
    sink.create_table(batch.schema)
    commit_rows(sink, 0, batch)
    assert rows_of(kind, tmp_path)["id"].to_pylist() == [1]
