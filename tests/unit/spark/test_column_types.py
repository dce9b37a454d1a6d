"""Columns and rows of Arrow as Spark has them."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, StructField, StructType, TimeType

from headrace.enumerator.errors import UsageError
from headrace.files import FileSource
from headrace.runners.spark import column_types
from headrace.runners.spark.bounded import BoundedSourceFormat
from headrace.runners.spark.column_types import converted, held_schema, spark_rows, spark_types


def test_a_null_struct_fits_a_schema_whose_fields_are_never_null():
    """Spark marks the fields of what it has made itself so, as in `read.schema(frame.schema)`."""
    inner = pa.struct([pa.field("b", pa.int64(), nullable=False)])
    schema = pa.schema([("s", inner), ("of", pa.list_(inner))])
    rows = pa.RecordBatch.from_pylist([{"s": None, "of": [None, {"b": 1}]}, {"s": {"b": 2}, "of": None}])
    assert converted(rows, schema).to_pylist() == rows.to_pylist()
    assert converted(rows, schema).schema == schema
    with pytest.raises(UsageError, match="'b' is declared as never null"):
        converted(pa.RecordBatch.from_pylist([{"s": {"b": None}, "of": None}], schema=rows.schema), schema)


@pytest.mark.parametrize("wrapped", [lambda kind: kind, pa.list_, lambda kind: pa.struct([("x", kind)])])
@pytest.mark.parametrize("kind", [pa.decimal128(5, -2), pa.decimal128(3, 5)], ids=str)
def test_a_decimal_whose_scale_spark_does_not_have_is_refused_by_name(tmp_path, kind, wrapped):
    """Regression: Spark's own error named neither the column nor the source."""
    source = FileSource(tmp_path, format="arrow", schema=pa.schema([("fine", pa.int64()), ("odd", wrapped(kind))]))
    with pytest.raises(UsageError, match=r"column 'odd' of source 'files': Spark has no type for .*decimal128\(\d, -?\d\)"):
        spark_types(source)


TIMES = pa.array([0, 1_000, None], pa.time64("ns"))


def nested_times(times):
    record = pa.StructArray.from_arrays([times, times.cast(pa.time64("us"), safe=False)], names=["fine", "coarse"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), times)
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array(["a", "b", "c"]), times)
    return pa.record_batch([times, record, lists, maps, times.dictionary_encode()], names=["t", "r", "l", "m", "d"])


def read_times(tmp_path, rows):
    with pa.ipc.new_file(str(tmp_path / "times.arrow"), rows.schema) as file:
        file.write_batch(rows)
    made = BoundedSourceFormat.of(FileSource(tmp_path, format="arrow"))({})
    reader = made.reader(made.schema())
    return made.schema(), [batch for split in reader.partitions() for batch in reader.read(split)]


@pytest.mark.parametrize("nanoseconds", [0, 1])
def test_a_time_with_nanoseconds_keeps_them_where_sparks_type_has_them(tmp_path, nanoseconds):
    """Regression: the column was a `time(6)`, in which Spark kept the nanoseconds until something cut them."""
    rows = nested_times(pa.array([nanoseconds, 1_000, None], pa.time64("ns")))
    schema, (found,) = read_times(tmp_path, rows)
    assert schema.simpleString() == (
        "struct<t:time(9),r:struct<fine:time(9),coarse:time(6)>,l:array<time(9)>,m:map<string,time(9)>,d:time(9)>"
    )
    assert found.schema.equals(to_arrow_schema(schema, timezone="UTC"))  # as Spark asks
    assert found["t"].cast(pa.int64()).to_pylist() == [nanoseconds, 1_000, None]
    assert found["d"].cast(pa.int64()).to_pylist() == [nanoseconds, 1_000, None]


def test_digits_are_those_of_each_field_and_others_than_arrow_has_are_refused():
    """Regression: a `time(0)` in a struct with a `time(6)` took six digits, and a `time(1)` three."""
    fields = StructType([StructField("whole", TimeType(0)), StructField("fine", TimeType(6))])
    held = held_schema(StructType([StructField("of", fields)])).field("of").type
    assert [field.type for field in held] == [pa.time32("s"), pa.time64("us")]
    with pytest.raises(UsageError, match=r"column 'at': Spark would keep more digits in time\(1\)"):
        held_schema(StructType([StructField("at", TimeType(1))]))


@pytest.mark.parametrize(
    ("precision", "fits", "beyond"), [(0, 10**9, 10**8), (3, 10**6, 10**5), (6, 10**3, 10**2), (9, 1, None)]
)
def test_a_time_is_refused_where_its_column_has_fewer_digits(precision, fits, beyond):
    """Regression: Spark keeps digits that it is given in a `time` of fewer, and shows them, or compares by them."""
    schema = held_schema(
        StructType([StructField("at", TimeType(precision)), StructField("of", ArrayType(TimeType(precision)))])
    )
    rows = pa.record_batch(
        [pa.array([fits], pa.time64("ns")), pa.array([[fits]], pa.list_(pa.time64("ns")))], names=["at", "of"]
    )
    assert next(spark_rows([rows], schema)).equals(rows)
    for name in ("at", "of") if beyond else ():
        lost = pa.array([beyond], pa.time64("ns"))
        bad = (
            rows.set_column(0, "at", lost) if name == "at" else rows.set_column(1, "of", pa.ListArray.from_arrays([0, 1], lost))
        )
        with pytest.raises(UsageError, match="would lose data"):
            next(spark_rows([bad], schema))


def test_a_time_with_nanoseconds_is_refused_where_sparks_type_has_none(tmp_path, monkeypatch):
    """Regression: of 01:01:01.000000001 Spark's `time(6)` kept all digits, and was equal to no other time."""
    monkeypatch.setattr(column_types, "HAS_NANOSECONDS", False)
    schema, (found,) = read_times(tmp_path, nested_times(TIMES))
    assert "time(9)" not in schema.simpleString()
    assert found["t"].cast(pa.int64()).to_pylist() == [0, 1_000, None]
    with pytest.raises(UsageError, match=r"Spark cannot hold what the source gives: .* time64\[us\] would lose data"):
        read_times(tmp_path, nested_times(pa.array([0, 1, None], pa.time64("ns"))))
