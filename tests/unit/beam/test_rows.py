"""Typed columns as rows with a Beam schema, and rows written by a format."""

from __future__ import annotations

import datetime
import io
import json
import pickle
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import apache_beam as beam
import fastavro
import pyarrow as pa
import pytest
from apache_beam.coders import RowCoder
from apache_beam.coders.typecoders import registry as coders
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.typehints.schemas import typing_to_runner_api
from apache_beam.utils.timestamp import Timestamp

from headrace.beam import ReadFromKafka, WriteToKafka
from headrace.beam.typed_rows import AsRows, row_type
from headrace.connectors.formats.registry import client
from headrace.enumerator.errors import UsageError
from headrace.formats import AvroFormat, RegisteredAvroFormat, SchemaRegistry
from headrace.kafka import Earliest, Latest
from headrace.testing.fake_kafka import FakeKafka
from tests.helpers.schema_registry import FakeRegistry

LEG = {"type": "record", "name": "Leg", "fields": [{"name": "to", "type": "string"}, {"name": "km", "type": "int"}]}
FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": {"type": "enum", "name": "Carrier", "symbols": ["UA", "AA"]}},
        {"name": "delay", "type": ["null", "int"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "legs", "type": {"type": "array", "items": LEG}},
        {"name": "by", "type": {"type": "map", "values": "double"}},
    ],
}
ROW = {
    "carrier": "AA",
    "delay": None,
    "at": datetime.datetime(2024, 2, 29, 1, 2, 3, 4000, datetime.UTC),
    "day": datetime.date(2024, 2, 29),
    "price": Decimal("12.34"),
    "legs": [{"to": "Rome", "km": 7}],
    "by": {"k": 0.5},
}
AT = Timestamp(micros=1_709_168_523_004_000)


class Leg(NamedTuple):
    to: str
    km: int


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        for topic in ("flights", "out"):
            kafka.create_topic(topic, partitions=1)
        yield kafka


@pytest.fixture
def flights() -> Iterator[RegisteredAvroFormat]:
    client._known.clear()
    with FakeRegistry() as registry:
        registry.register("flights-value", FLIGHT)
        yield RegisteredAvroFormat.of_subject(SchemaRegistry(registry.url), "flights-value")


def avro(row: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(FLIGHT), row)
    return out.getvalue()


def test_a_topic_of_a_registry_is_rows_in_a_pipeline_and_back(kafka, flights):
    value = b"\0\0\0\0\1" + avro(ROW)
    kafka.append("flights", value, value)
    config = {"bootstrap.servers": kafka.bootstrap}
    with beam.Pipeline("FnApiRunner") as pipeline:  # Beam's in Python
        typed = {"value_format": flights, "output": "rows", "columns": ["value", "offset"]}
        read = ReadFromKafka(config, ["flights"], start=Earliest(), stop=Latest(), **typed)
        rows = pipeline | read
        assert isinstance(coders.get_coder(rows.element_type), RowCoder)
        settings = rows | beam.Map(lambda row: (row.value.carrier, row.value.at, row.value.legs[0].km, row.offset))
        assert_that(settings, equal_to([("AA", AT, 7, 0), ("AA", AT, 7, 1)]))
        by_carrier = rows | beam.Map(lambda row: row.value) | beam.GroupBy("carrier").aggregate_field("price", sum, "total")
        assert_that(by_carrier, equal_to([beam.Row(carrier="AA", total=Decimal("24.68"))]), label="by carrier")
        _ = rows | beam.Map(lambda row: (b"k", row.value)) | WriteToKafka(config, "out", value_format=flights)
    assert [(each.key, each.value) for each in kafka.records("out")] == [(b"k", value)] * 2


def test_batches_with_typed_columns_are_written(kafka, flights):
    value = b"\0\0\0\0\1" + avro(ROW)
    kafka.append("flights", value)
    config = {"bootstrap.servers": kafka.bootstrap}
    with beam.Pipeline("FnApiRunner") as pipeline:
        read = ReadFromKafka(config, ["flights"], start=Earliest(), stop=Latest(), value_format=flights, output="arrow")
        columns = pipeline | read | beam.Map(lambda batch: batch.select(["key", "value"]))
        _ = columns | WriteToKafka(config, "out", value_format=flights)
    assert [each.value for each in kafka.records("out")] == [value]


def test_rows_have_a_schema_that_other_languages_read_and_are_encoded_by_it():
    column = AvroFormat(json.dumps(FLIGHT)).decode(pa.array([avro(ROW), None], pa.binary())).values
    numbers = pa.array([1, 2**63], pa.uint64()), pa.array([-128, 127], pa.int8())
    batch = pa.record_batch([column, *numbers], names=["value", "n", "small"])
    made = pickle.loads(pickle.dumps(AsRows(batch.schema)))
    rows = list(made(batch.slice(0, 1))) + list(made(batch.slice(1)))
    kind = row_type(batch.schema)
    coder = coders.get_coder(kind)
    first, second = (coder.decode(coder.encode(row)) for row in rows)
    assert (first.n, second.n, second.value) == (Decimal(1), Decimal(2**63), None)
    assert (first.small, second.small) == (-128, 127)  # Beam's coder of bytes takes no sign
    assert first.value._asdict() == {**ROW, "at": AT, "legs": [tuple(ROW["legs"][0].values())]}
    fields = typing_to_runner_api(kind).row_type.schema.fields[0].type.row_type.schema.fields
    urns = {each.name: each.type.logical_type.urn.rsplit(":", 2)[-2] for each in fields if each.type.HasField("logical_type")}
    assert urns.pop("day") in ("date", "javasdk_date")  # as older versions of Beam have it
    assert urns == {"at": "micros_instant", "price": "decimal"}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.dense_union([pa.field("a", pa.int32()), pa.field("b", pa.string())]), r"Beam has no type for dense_union.*'v\.x'"),
        (pa.time32("ms"), r"Beam has no type for time32\[ms\], which field 'v\.x' has"),
        (pa.timestamp("ms"), r"Beam has no type for timestamp\[ms\], which field 'v\.x' has"),
        (pa.list_(pa.null()), r"Beam has no type for null, which field 'v\.x\[\]' has"),
        (pa.struct([("_y", pa.int32())]), r"cannot have a field 'v\.x\._y': ask only for others"),
        (pa.struct([("class", pa.int32())]), r"cannot have a field 'v\.x\.class'"),
        (pa.struct([("self", pa.string())]), r"cannot have a field 'v\.x\.self'"),
    ],
)
def test_what_a_row_cannot_have_is_refused_by_name_and_with_the_field(kind, said):
    with pytest.raises(UsageError, match=said):
        row_type(pa.schema([("v", pa.struct([("x", kind)]))]))


def test_it_is_refused_where_the_transform_is_made():
    union = {"type": "record", "name": "R", "fields": [{"name": "u", "type": ["int", "string"]}, {"name": "a", "type": "int"}]}
    config = {"bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(UsageError, match=r"which field 'value\.u' has: ask only for others, or take output='arrow'"):
        ReadFromKafka(config, ["t"], value_format=AvroFormat(json.dumps(union)), output="rows")
    ReadFromKafka(config, ["t"], value_format=AvroFormat(json.dumps(union), fields=["a"]), output="rows")


@pytest.mark.parametrize(
    "value",
    [ROW, beam.Row(**{**ROW, "at": AT, "legs": [Leg("Rome", 7)]}), beam.Row(**{**ROW, "legs": [beam.Row(to="Rome", km=7)]})],
)
def test_a_value_to_be_written_may_be_a_dict_a_row_or_have_named_tuples(kafka, value):
    written = WriteToKafka({"bootstrap.servers": kafka.bootstrap}, "out", value_format=AvroFormat(json.dumps(FLIGHT)))
    with beam.Pipeline("FnApiRunner") as pipeline:
        _ = pipeline | beam.Create([(b"k", value), (None, None)], reshuffle=False) | written
    assert [(each.key, each.value) for each in kafka.records("out")] == [(b"k", avro(ROW)), (None, None)]


@pytest.mark.parametrize(
    ("value", "formats", "said"),
    [
        ({**ROW, "gate": "B"}, True, "value has no field 'gate' in its format, which has carrier, delay"),
        ({**ROW, "legs": [{"to": "Rome", "miles": 7}]}, True, r"value\.legs\[\] has no field 'miles'"),
        ({**ROW, "delay": "late"}, True, "keys or values do not fit their format"),
        (ROW, False, "takes a value of bytes, not dict: give value_format, or encode it in a Map"),
    ],
)
def test_a_value_that_its_format_does_not_hold_is_refused_by_name(kafka, value, formats, said):
    form = AvroFormat(json.dumps(FLIGHT)) if formats else None
    written = WriteToKafka({"bootstrap.servers": kafka.bootstrap}, "out", value_format=form)
    with pytest.raises(Exception, match=said), beam.Pipeline("FnApiRunner") as pipeline:
        _ = pipeline | beam.Create([(b"k", value)], reshuffle=False) | written
    assert kafka.records("out") == []


def test_a_decimal_that_beam_would_round_is_refused():
    """Regression: behind a shuffle it was another number."""
    kept = [Decimal("1234567890123456789012345678"), Decimal("1.5"), None]
    for kind in (pa.decimal128(38, 5), pa.decimal128(38, 10), pa.decimal128(28, 0)):
        column = pa.array([Decimal(1), None] if kind.scale == 10 else kept[: 3 if kind.scale else 1], kind)
        made = AsRows(pa.schema({"v": kind}))
        coder = coders.get_coder(row_type(made.schema))
        rows = [coder.decode(coder.encode(row)).v for row in made(pa.record_batch({"v": column}))]
        assert rows == column.to_pylist()
    column = pa.array([{"x": Decimal("-1234567890123456789012345.12345")}], pa.struct({"x": pa.decimal128(38, 5)}))
    with pytest.raises(UsageError, match="field 'v': Beam rounds decimals of more than 28 digits"):
        list(AsRows(pa.schema({"v": column.type}))(pa.record_batch({"v": column})))
