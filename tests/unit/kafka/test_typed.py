"""Typed keys and values of `KafkaSource`, in a script: formats, bad records, and where a reader continues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.formats.registry import client
from headrace.connectors.formats.value_format import ColumnFullError, DecodedValues
from headrace.enumerator.errors import CorruptDataError, UsageError
from headrace.formats import JsonFormat, RegisteredAvroFormat, SchemaRegistry, StringFormat
from headrace.kafka import KafkaSource, Latest
from headrace.testing.fake_kafka import FakeKafka, NewRecord
from tests.helpers.schema_registry import FakeRegistry

AVRO = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
JSON = JsonFormat(pa.struct([("a", pa.int64())]))


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        kafka.create_topic("t", partitions=1)
        yield kafka


def source(kafka: FakeKafka, **arguments: Any) -> KafkaSource:
    return KafkaSource(kafka.bootstrap, topics=["t"], stop=Latest(), **arguments)


def rows(source: KafkaSource, *names: str) -> list[tuple[Any, ...]]:
    found = [tuple(row[name] for name in names) for batch in source.batches() for row in batch.to_pylist()]
    assert all(batch.schema.equals(source.schema) for batch in source.batches())
    return found


@contextmanager
def reader_of(source: KafkaSource) -> Iterator[Any]:
    with source.create_reader() as reader:
        reader.add_splits(source.create_discovery().initial().added)
        yield reader


def test_a_script_reads_values_of_a_registry_named_before_the_value_or_in_a_header(kafka):
    client._known.clear()
    with FakeRegistry() as registry:
        number = registry.register("t-value", AVRO)
        header = ("__value_schema_id", b"\1" + registry.guid(number).bytes)
        kafka.append("t", b"\0\0\0\0\1\2", NewRecord(b"\4", headers=[header]), NewRecord(None))
        value = RegisteredAvroFormat.of_subject(SchemaRegistry(registry.url), "t-value")
        assert rows(source(kafka, value=value), "value") == [({"a": 1},), ({"a": 2},), (None,)]
        assert "headers" not in source(kafka, value=value).schema.names


def test_bad_keys_and_values_of_one_record_have_one_reason(kafka):
    kafka.append("t", NewRecord(b"{", key=b"\xff"), NewRecord(b'{"a": 1}', key=b"k"), NewRecord(b"]", key=b"k"))
    columns = ["key", "value", "offset", "badKey", "badValue", "badReason"]
    kept = source(kafka, value=JSON, key=StringFormat(), on_bad_record="keep", columns=columns)
    first, second, third = rows(kept, "key", "value", "badKey", "badValue", "badReason")
    assert first[:4] == (None, None, b"\xff", b"{")
    assert first[4].startswith("key: text is not UTF-8; value: is not JSON")
    assert (second, third[:4]) == (("k", {"a": 1}, None, None, None), ("k", None, None, b"]"))


def test_a_reader_that_met_a_bad_record_never_reads_on_behind_it(kafka):
    for value in (b"{}", b"bad", b"{}"):
        kafka.append("t", value)
    with reader_of(source(kafka, value=JSON)) as reader:
        for _ in range(3):
            with pytest.raises(CorruptDataError, match="t-0, offset 1: the value cannot be decoded"):
                assert all(batch is None or batch.split.next_offset <= 1 for batch in iter(lambda: reader.poll(5.0), "no end"))


class OfTwoAtMost(StringFormat):
    """A column of it holds two values, or this many as `headroom` says."""

    headroom = 2

    def decode(self, values: pa.Array) -> DecodedValues:
        if len(values) > self.headroom:
            raise ColumnFullError("too many")
        return super().decode(values)


@pytest.mark.parametrize("on_bad_record", ["fail", "skip", "keep"])
def test_a_batch_that_one_column_cannot_hold_comes_in_parts_and_loses_nothing(kafka, on_bad_record):
    kafka.append("t", *(b"%d" % number for number in range(7)))
    reading = source(kafka, value=OfTwoAtMost(), on_bad_record=on_bad_record, columns=["value", "offset"])
    with reader_of(reading) as reader:
        seen: list[str] = []
        while not (batch := reader.poll(5.0)) or not batch.finished:
            if batch is not None:
                seen += batch.records.column("value").to_pylist()
                assert batch.split.next_offset == len(seen)
        seen += batch.records.column("value").to_pylist()
    assert seen == [str(number) for number in range(7)]


def test_a_value_that_no_column_can_hold_ends_the_reading(kafka):
    kafka.append("t", b"0", b"1")
    value = OfTwoAtMost()
    value.headroom = 0
    with reader_of(source(kafka, value=value, on_bad_record="skip")) as reader:
        for _ in range(2):
            with pytest.raises(ColumnFullError):
                assert all(batch is None for batch in iter(lambda: reader.poll(5.0), "no end"))


def test_what_is_not_asked_for_is_not_decoded_unless_bad_records_are_left_out(kafka):
    kafka.append("t", b"bad", b"{}")
    assert rows(source(kafka, value=JSON, columns=["offset"]), "offset") == [(0,), (1,)]
    assert rows(source(kafka, value=JSON, columns=["offset"], on_bad_record="skip"), "offset") == [(1,)]


@pytest.mark.parametrize(("arguments", "words"), [
    ({"value": "avro"}, "value must be a format of headrace.formats"),
    ({"on_bad_record": "drop"}, "on_bad_record must be 'fail', 'keep' or 'skip'"),
    ({"columns": ["offset", "badValue"]}, "columns must be some of"),
    ({"columns": ["badValue"], "value": JSON, "on_bad_record": "keep"}, "badValue can only be read alongside other columns"),
    ({"columns": ["offset", "badKey"], "value": JSON, "on_bad_record": "keep"}, "columns must be some of"),
])  # fmt: skip
def test_what_cannot_be_is_refused_when_the_source_is_made(kafka, arguments, words):
    with pytest.raises(UsageError, match=words):
        source(kafka, **arguments)
