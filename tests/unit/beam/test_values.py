"""Values of Beam as Arrow: each as it is, or refused by name."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp

from headrace.beam import schema_of
from headrace.beam.kafka_records import KafkaHeader, KafkaRecord
from headrace.beam.kafka_write import _ToBatches
from headrace.connectors.beam.rows import record_batch, record_batches
from headrace.connectors.beam.values import array_of, same_but_for_units
from headrace.enumerator.errors import UsageError
from headrace.formats import AvroFormat
from headrace.runners.beam.event_time import ColumnTime
from tests.unit.beam.test_source import Elements

UTC = pa.timestamp("us", "UTC")
AT = Timestamp(micros=1_700_000_000_123_456)
WHEN = datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, datetime.UTC)
SPAN = datetime.timedelta(seconds=3, microseconds=5)


class Point(NamedTuple):
    x: Any
    y: Any = None


def column(*values: Any, kind: pa.DataType) -> pa.Array:
    """As `BeamSource` has values that are rows of one column."""
    return record_batch([{"v": each} for each in values], pa.schema([("v", kind)])).column(0)


@pytest.mark.parametrize(
    ("value", "kind", "held"),
    [
        (AT, UTC, WHEN),
        (AT, pa.timestamp("us"), WHEN.replace(tzinfo=None)),
        (Timestamp(micros=5_000), pa.timestamp("ms", "UTC"), datetime.datetime(1970, 1, 1, 0, 0, 0, 5000, datetime.UTC)),
        (Timestamp(-1), pa.timestamp("s"), datetime.datetime(1969, 12, 31, 23, 59, 59)),
        (Duration(micros=3_000_005), pa.duration("us"), SPAN),
        ([AT, None], pa.list_(UTC), [WHEN, None]),
        ([AT], pa.large_list(UTC), [WHEN]),
        ((AT, AT), pa.list_(UTC, 2), [WHEN, WHEN]),
        ({"k": AT}, pa.map_(pa.string(), UTC), [("k", WHEN)]),
        ({AT: "k"}, pa.map_(UTC, pa.string()), [(WHEN, "k")]),
        ([(AT, "k")], pa.map_(UTC, pa.string()), [(WHEN, "k")]),
        (Point(AT), pa.struct([("y", pa.int64()), ("x", UTC)]), {"y": None, "x": WHEN}),
        ((1, 2), pa.struct([("y", pa.int64()), ("x", pa.int8())]), {"y": 1, "x": 2}),
        (beam.Row(x=Point(AT)), pa.struct([("x", pa.struct([("x", UTC), ("y", UTC)]))]), {"x": {"x": WHEN, "y": None}}),
        ([{"x": [AT]}], pa.list_(pa.struct([("x", pa.list_(UTC))])), [{"x": [WHEN]}]),
        (np.datetime64("2023-11-14T22:13:20.123456"), UTC, WHEN),
        (np.datetime64("2023-11-14T22:13:20.123456000"), UTC, WHEN),
        (np.datetime64("2023-11-14"), pa.date32(), datetime.date(2023, 11, 14)),
        (np.timedelta64(3_000_005, "us"), pa.duration("ns"), SPAN),
        (np.int32(7), pa.int64(), 7),
        (np.int64(7), pa.decimal128(9, 2), Decimal("7.00")),
        (np.float64(7.0), pa.int64(), 7),
        (np.bool_(True), pa.bool_(), True),
        ([np.float32(0.5)], pa.list_(pa.float64()), [0.5]),
        (np.array([1, 2], np.int16), pa.list_(pa.int64()), [1, 2]),
        ([1.1], pa.list_(pa.float32()), [float(np.float32(1.1))]),
        (Decimal(2**63), pa.uint64(), 2**63),
        (2**64 - 1, pa.uint64(), 2**64 - 1),
        ({}, pa.struct([]), {}),
        ("a", pa.dictionary(pa.int32(), pa.string()), "a"),
    ],
)
def test_a_value_is_held_as_it_is(value: Any, kind: pa.DataType, held: Any) -> None:
    assert column(value, None, value, kind=kind).to_pylist() == [held, None, held]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        *((AT, kind) for kind in (pa.timestamp("ms"), pa.int64(), pa.date32(), pa.time64("us"), pa.duration("us"))),
        *((Duration(1), kind) for kind in (UTC, pa.int64())),
        (Duration(micros=1), pa.duration("ms")),
        (MAX_TIMESTAMP, pa.timestamp("ns")),
        ([AT], pa.list_(pa.int64())),
        ({AT: 1}, pa.map_(pa.int64(), pa.int64())),
        ({"k": 1.5}, pa.map_(pa.string(), pa.int64())),
        ({"k": WHEN}, pa.map_(pa.string(), pa.date32())),
        ({None: 1}, pa.map_(pa.string(), pa.int64())),
        ([Point(None)], pa.list_(pa.struct([pa.field("x", pa.int64(), nullable=False), ("y", pa.int64())]))),
        (Point(WHEN), pa.struct([("x", pa.date32()), ("y", pa.int64())])),
        *((value, pa.struct([("x", pa.int64())])) for value in (Point(1), (1, 2), 7)),
        *((value, pa.list_(pa.int64())) for value in (7, b"ab")),
        (np.float64(1.5), pa.int64()),
        (np.float32(1.5), pa.date32()),
        (np.bool_(True), pa.int64()),
        (np.datetime64("2023-11-14T22:13"), pa.date32()),
        (np.datetime64("2023-11-14T22:13:20.123456789"), UTC),
        (np.datetime64("2023-11-14"), pa.int64()),
        *((1.5, kind) for kind in (UTC, pa.date32())),
        *((Decimal("1.5"), kind) for kind in (UTC, pa.uint8())),
        (2**53 + 1, pa.float64()),
    ],
)
def test_a_value_that_would_be_another_is_refused_by_its_column(value: Any, kind: pa.DataType) -> None:
    with pytest.raises(UsageError, match="column 'v' cannot hold what the source gives"):
        column(value, None, kind=kind)


def test_values_of_several_kinds_are_each_looked_at() -> None:
    day = datetime.date(2020, 1, 2)
    midnight = datetime.datetime(2020, 1, 1)
    assert column(midnight, day, None, midnight, kind=pa.date32()).to_pylist() == [midnight.date(), day, None, midnight.date()]
    late = datetime.datetime(2020, 1, 1, 23, 5)
    for values in ([late, day], [day, late], [day, None, late]):
        with pytest.raises(UsageError, match="would be cut to date32"):
            column(*values, kind=pa.date32())
        with pytest.raises(UsageError, match="would be cut to date32"):
            column(values, kind=pa.list_(pa.date32()))
    mixed = column(AT, WHEN, None, np.datetime64("2023-11-14T22:13:20.123456"), AT, kind=UTC)
    assert mixed.to_pylist() == [WHEN, WHEN, None, WHEN, WHEN]


def test_times_that_no_datetime_has() -> None:
    ends = column(MIN_TIMESTAMP, MAX_TIMESTAMP, kind=pa.timestamp("us"))
    assert ends.cast(pa.int64()).to_pylist() == [MIN_TIMESTAMP.micros, MAX_TIMESTAMP.micros]


def test_the_first_rows_suggest_beams_times() -> None:
    schema = schema_of(Elements(beam.Row(at=None, d=Duration(1)), beam.Row(at=AT, d=None)))
    assert schema == pa.schema([("at", UTC), ("d", pa.duration("us"))])


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (pa.array([datetime.datetime(2020, 1, 1, 23, 5)]), pa.date32()),
        (pa.array([5]), pa.bool_()),
        (pa.array([1.55]), pa.decimal128(5, 1)),
        (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())])),
        (pa.array([[{"a": 1, "b": 2}]]), pa.list_(pa.struct([("a", pa.int64())]))),
        (pa.array([[("k", 5)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), pa.bool_())),
        (pa.array([[5]]), pa.list_(pa.bool_())),
        (pa.array([{"a": [5]}]), pa.struct([("a", pa.list_(pa.bool_()))])),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([1.5]), pa.int64()),
    ],
)
def test_tables_are_held_to_the_same(given: pa.Array, kind: pa.DataType) -> None:
    table = pa.table({"v": pa.concat_arrays([given.slice(0, 0), given, pa.nulls(1, given.type)])})
    for part in (table, table.slice(0, 1)):
        with pytest.raises(UsageError, match="column 'v' cannot hold what the source gives"):
            record_batches(part, pa.schema([("v", kind)]), 10)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (pa.array([1, None]), pa.int8()),
        (pa.array([1.1, None]), pa.float32()),
        (pa.array([[1.1], None]), pa.list_(pa.float32())),
        (pa.array(["5", None]), pa.int64()),
        (pa.array(["2020-01-01T00:00:00Z", None]), UTC),
        (pa.array([datetime.datetime(2020, 1, 1), None]), pa.date32()),
        (pa.array([{"a": 1}, None]), pa.struct([("a", pa.int8())])),
        (pa.array([[("k", 5)], None], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), pa.int8())),
        (pa.array([Decimal("1.5"), None]), pa.decimal128(20, 5)),
        (pa.array(["a", None]).dictionary_encode(), pa.string()),
        (pa.nulls(2), pa.string()),
    ],
)
def test_tables_are_taken_as_far_as_they_fit(given: pa.Array, kind: pa.DataType) -> None:
    first, second = record_batches(pa.table({"v": given}), pa.schema([("v", kind)]), 1)
    assert pa.concat_arrays([first.column(0), second.column(0)]).equals(given.cast(kind))


def batches_of(*elements: Any, topic: str | None = "t", **formats: Any) -> list[pa.RecordBatch]:
    stage = _ToBatches(topic, formats)
    stage.start_bundle()
    found = [batch for element in elements for batch in stage.process(element)]
    return found + [each.value for each in stage.finish_bundle()]


@pytest.mark.parametrize("at", [AT, WHEN, 1_700_000_000_123, np.datetime64("2023-11-14T22:13:20.123456")])
def test_a_record_has_the_time_of_its_row(at: Any) -> None:
    row = beam.Row(key=b"k", value=b"v", timestamp=at, partition=np.int32(3), headers=[KafkaHeader("h", b"1")])
    (batch,) = batches_of(row, beam.Row(key=None, value=None))
    first, second = batch.to_pylist()
    wanted = {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"1"}], "partition": 3, "topic": "t"}
    assert first == {**wanted, "timestamp": WHEN.replace(microsecond=123000)}
    assert second == {"key": None, "value": None, "headers": None, "partition": None, "timestamp": None, "topic": "t"}


@pytest.mark.parametrize("element", [{"key": b"k", "value": b"v"}, beam.Row(key=b"k", value=b"v", headers=[("h", b"v")])])
def test_what_is_no_row_is_refused_by_its_type(element: Any) -> None:
    with pytest.raises(UsageError, match=r"with_headers takes rows, and headers, with a key and a value, not (dict|tuple)"):
        batches_of(element)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"timestamp": 1.5}, "timestamp does not fit"),
        ({"partition": 1.5}, "partition does not fit"),
        ({"topic": 7}, "topic does"),
    ],
)
def test_what_a_record_cannot_have_is_refused_by_name(named: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"WriteToKafka: {said}"):
        batches_of(beam.Row(key=b"k", value=b"v", **named))


AVRO = AvroFormat(
    """{"type": "record", "name": "R", "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "n", "type": "int"},
        {"name": "by", "type": {"type": "map", "values": {"type": "long", "logicalType": "timestamp-micros"}}}]}"""
)


def test_a_typed_value_has_the_times_of_its_row_cut_to_the_format() -> None:
    rows = [{"at": at, "n": np.int64(7), "by": {"k": at}} for at in (AT, WHEN)]
    rows = [rows[0], beam.Row(**rows[1])]
    (batch,) = batches_of(*((None, row) for row in rows), topic=None, value=AVRO)
    assert batch.column("value").to_pylist() == [{"at": WHEN.replace(microsecond=123000), "n": 7, "by": [("k", WHEN)]}] * 2


@pytest.mark.parametrize("changed", [{"n": 1.5}, {"n": np.float64(1.5)}, {"n": AT}, {"n": True}, {"at": Decimal("1.5")}])
def test_a_typed_value_that_would_be_another_is_refused(changed: Any) -> None:
    with pytest.raises(UsageError, match="keys or values do not fit their format: value"):
        batches_of((None, {"at": AT, "n": 1, "by": {}, **changed}), topic=None, value=AVRO)


def test_numbers_are_times_in_the_unit_of_the_column() -> None:
    found = array_of([5, AT], pa.timestamp("ms"), "v", same_but_for_units)
    assert found.cast(pa.int64()).to_pylist() == [5, AT.micros // 1000]


def test_batches_without_a_topic_go_to_the_one_that_is_given() -> None:
    values = {"value": [b"a", b"b"]}
    (none,), (some,) = batches_of(pa.record_batch(values)), batches_of(pa.record_batch({**values, "topic": ["u", None]}))
    assert (none["topic"].to_pylist(), some["topic"].to_pylist()) == (["t", "t"], ["u", "t"])
    (all_null,) = batches_of(pa.record_batch({**values, "topic": pa.nulls(2)}))
    assert all_null["topic"].to_pylist() == ["t", "t"]
    assert [each.schema.names for each in batches_of(pa.record_batch(values), topic=None)] == [["value"]]


def test_records_as_they_were_read_are_copied_to_the_topic_that_is_given() -> None:
    times = [1_700_000_000_123, -1]
    records = [KafkaRecord("in", 7, 5, time, b"k", b"v", [KafkaHeader("h", None)], 0, "CreateTime") for time in times]
    (batch,) = batches_of(*records)
    row = {"key": b"k", "value": b"v", "partition": None, "topic": "t"}
    assert batch.drop_columns(["timestamp", "headers"]).to_pylist() == [row] * 2
    assert batch["timestamp"].to_pylist() == [WHEN.replace(microsecond=123000), None]
    read = pa.record_batch({"value": [b"v"], "topic": ["in"], "partition": pa.array([7], pa.int32()), "offset": [5]})
    (batch,) = batches_of(read)
    assert batch.to_pylist() == [{"value": b"v", "topic": "t"}]


def test_nanoseconds_are_a_time_of_events() -> None:
    times = pa.record_batch({"at": pa.array([1_500, -1_500, None], pa.timestamp("ns"))})
    assert ColumnTime("at").micros(times).to_pylist()[0] == 1
    for name in ("no", "n"):
        with pytest.raises(UsageError, match=f"a timestamp column, and '{name}' is none: (it is int64|there are at, n)"):
            ColumnTime(name).micros(times.append_column("n", pa.array([1, 2, 3])))
