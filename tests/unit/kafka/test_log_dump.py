"""Batches as they lie in the log: headers, markers, and what became of each transaction."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace import cli
from headrace.cli.dump import batch_row, record_rows
from headrace.connectors.formats.registry import client
from headrace.connectors.kafka import log_dump
from headrace.connectors.kafka.client.offsets import OffsetAnswer
from headrace.connectors.kafka.client.positions import Earliest
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.format.fetch_protocol import PartitionAnswer
from headrace.connectors.kafka.format.record_batch import stored_batches
from headrace.connectors.kafka.format.stored_batch import Marker, MarkerKind, control_marker
from headrace.connectors.kafka.log_dump import DumpedBatch, TransactionStatus, dump
from headrace.enumerator.errors import CorruptDataError, DataLossError, UsageError
from headrace.testing.fake_kafka import FakeKafka, NewRecord, Rewrite
from tests.helpers.record_batches import CONTROL, TRANSACTIONAL, Record, batch, emptied, marker, numbered, seal
from tests.helpers.schema_registry import FakeRegistry

ABORT, COMMIT = 0, 1
LOGIN = ["--property", "schema.registry.basic.auth.user.info=me:secret"]


@pytest.fixture
def kafka():
    with FakeKafka() as kafka:
        kafka.create_topic("t", partitions=1)
        yield kafka


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr("headrace.connectors.formats.registry.client._PAUSES_S", ())
    client._known.clear()
    with FakeRegistry(user="me:secret") as registry:
        yield registry


def command(kafka, *options):
    return CliRunner().invoke(cli.app, ["dump", "t", "--bootstrap", kafka.bootstrap, *options])


def shown_by(kafka, *options):
    """The value of each record, as it is shown."""
    result = command(kafka, *options)
    assert result.exit_code == 0, result.output
    assert "secret" not in result.output
    return [line.split("\t")[5] for line in result.output.splitlines() if line.startswith("record")]


def walked(*parts):
    return list(stored_batches(memoryview(b"".join(parts))))


def transactional(base, count, producer, **settings):
    return batch(numbered(count), base=base, flags=TRANSACTIONAL, producer=producer, **settings)


def test_headers_are_read():
    parts = [batch(numbered(3), codec="lz4"), transactional(3, 2, 7, last=4), marker(COMMIT, base=8, producer=7)]
    plain, written, ended = walked(*parts)
    assert (plain.base_offset, plain.last_offset, plain.records, plain.compression) == (0, 2, 3, "lz4")
    assert (plain.is_transactional, plain.is_control, plain.producer_id) == (False, False, -1)
    assert (written.base_offset, written.last_offset, written.producer_id) == (3, 7, 7)
    assert (written.is_transactional, written.is_control, ended.is_control) == (True, False, True)


def test_the_walk_ends_where_the_last_batch_is_truncated():
    whole = batch(numbered(3))
    for size in range(len(whole)):
        assert [item.base_offset for item in walked(whole, whole[:size])] == [0]


def test_what_cannot_be_walked_is_corrupt():
    with pytest.raises(CorruptDataError, match="v1"):
        walked(seal(b"", count=0, last=0, magic=1))
    broken = bytearray(batch(numbered(1)))
    broken[8:12] = (3).to_bytes(4)
    with pytest.raises(CorruptDataError, match="length of 3"):
        walked(bytes(broken))


def test_markers_say_how_it_ended_and_who_wrote_them():
    markers = walked(marker(ABORT, base=0, producer=1), marker(COMMIT, base=1, producer=1))
    assert [control_marker(each) for each in markers] == [Marker(MarkerKind.ABORT, 0), Marker(MarkerKind.COMMIT, 0)]
    (empty,) = walked(emptied(base=0, last=0, flags=CONTROL | TRANSACTIONAL, producer=1))
    (other,) = walked(marker(2, base=0, producer=-1))
    assert control_marker(empty).kind is control_marker(other).kind is MarkerKind.OTHER


@given(st.integers(0, 40))
def test_a_marker_that_is_cut_short_is_corrupt(size):
    whole = marker(COMMIT, base=0, producer=1)
    body = whole[61:][:size]
    (found,) = walked(seal(body, count=1, last=0, flags=CONTROL | TRANSACTIONAL, producer=1))
    if body == whole[61:]:
        assert control_marker(found) == Marker(MarkerKind.COMMIT, 0)
        return
    try:
        control_marker(found)
    except CorruptDataError:
        return
    assert size >= len(whole[61:]) - 1  # only the count of headers is missing, which no process reads


class Partition:
    """A partition in memory that answers ListOffsets, and Fetch with this many batches at a time."""

    def __init__(self, stable, *parts, aborted=(), batches_per_fetch=2):
        self.batches = walked(*parts)
        self.stable, self.end = stable, self.batches[-1].last_offset + 1
        self.aborted = list(aborted)
        self.batches_per_fetch = batches_per_fetch
        self.fetched = []

    def list_offsets(self, positions, isolation=None):
        ((key, position),) = positions.items()
        if isinstance(position, Earliest):
            return {key: OffsetAnswer(self.batches[0].base_offset)}
        return {key: OffsetAnswer(self.stable if isolation is Isolation.READ_COMMITTED else self.end)}

    def fetch_there(self, _cluster, topic, partition, offset, isolation):
        self.fetched.append(offset)
        limit = self.stable if isolation is Isolation.READ_COMMITTED else self.end
        there = [item for item in self.batches if item.last_offset >= offset and item.base_offset < limit]
        found = there[: self.batches_per_fetch]
        last = found[-1].last_offset if found else -1
        listed = [(producer, first) for producer, first, end in self.aborted if first <= last and end >= offset]
        return PartitionAnswer(
            topic=topic, topic_id=None, partition=partition, error=0, high_watermark=self.end,
            last_stable_offset=self.stable, log_start_offset=0,
            aborted=listed if isolation is Isolation.READ_COMMITTED else None, preferred_replica=None, diverging=None,
            leader=None, records=memoryview(b"".join(item.data for item in found)),
        )  # fmt: skip


@pytest.fixture
def dumped(monkeypatch):
    def of(partition, start=None):
        monkeypatch.setattr(log_dump, "fetch_there", partition.fetch_there)
        return [
            (item.stored.base_offset, item.marker.kind.value if item.marker else item.fate and item.fate.value)
            for item in dump(partition, "t", 0, start)
        ]

    return of


MIXED = (  # three transactions of producer 7, one after the other, and then an open one
    batch(numbered(1), base=0), transactional(1, 2, 7), transactional(3, 1, 8), marker(ABORT, base=4, producer=7),
    transactional(5, 1, 7), marker(COMMIT, base=6, producer=8), transactional(7, 1, 9), marker(COMMIT, base=8, producer=7),
    transactional(9, 1, 7), marker(ABORT, base=10, producer=7), transactional(11, 1, 7),
)  # fmt: skip
FATES = [
    (0, None), (1, "aborted"), (3, "committed"), (4, "ABORT"), (5, "committed"), (6, "COMMIT"), (7, "open"),
    (8, "COMMIT"), (9, "aborted"), (10, "ABORT"), (11, "open"),
]  # fmt: skip


@pytest.mark.parametrize("batches_per_fetch", [1, 2, 3, 100])
@pytest.mark.parametrize("start", [0, 1, 2, 3, 5, 7, 8, 9, 11, 12])
def test_the_fate_of_every_batch_on_both_sides_of_the_last_stable_offset(dumped, batches_per_fetch, start):
    partition = Partition(7, *MIXED, aborted=[(7, 1, 4)], batches_per_fetch=batches_per_fetch)
    ends = [*(base for base, _ in FATES[1:]), 12]
    assert dumped(partition, start) == [item for item, end in zip(FATES, ends, strict=True) if end > start]


def test_without_open_transactions_nothing_is_read_twice(dumped):
    partition = Partition(7, *MIXED[:6], aborted=[(7, 1, 4)], batches_per_fetch=100)
    assert (dumped(partition), partition.fetched) == (FATES[:6], [0])


def test_an_offset_that_is_not_there_is_refused(dumped):
    partition = Partition(5, *MIXED[1:4])
    for start in (0, 6):
        with pytest.raises(UsageError, match="1 to 5"):
            dumped(partition, start)
    assert dumped(partition, 5) == []


def test_what_is_deleted_meanwhile_is_an_error(dumped):
    partition = Partition(7, *MIXED[:6])
    partition.end, partition.stable = 20, 20
    with pytest.raises(DataLossError, match="at 7"):
        dumped(partition)


def test_rows_of_batches_and_records():
    records = [Record(0, b"k", b"\xff\n"), Record(2, None, None)]
    written = batch(records, base=10, codec="zstd", flags=TRANSACTIONAL, producer=7)
    stored, ended = walked(written, marker(ABORT, base=13, producer=7))
    lost = DumpedBatch(stored, TransactionStatus.ABORTED, None)
    moment = "2023-11-14T22:13:20.000Z"
    assert batch_row(3, lost) == (3, 10, 12, 2, 7, None, None, "aborted", None, "zstd", len(stored.data), moment)
    assert list(record_rows("t", 3, lost, {})) == [
        (3, 10, moment, "k", "\\xff\\n", "aborted"),
        (3, 12, moment, "null", "null", "aborted"),
    ]
    end = DumpedBatch(ended, None, control_marker(ended))
    assert (batch_row(3, end)[7:9], list(record_rows("t", 3, end, {}))) == (("ABORT", 0), [])
    (empty,) = walked(emptied(base=0, last=4))
    assert list(record_rows("t", 3, DumpedBatch(empty, None, None), {})) == []


def test_values_are_shown_as_json_by_the_schema_that_each_names_in_a_registry(kafka, registry):
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}
    text, number = registry.register("other-subject", '"string"'), registry.register("t-value", schema)
    header = ("__value_schema_id", b"\1" + registry.guid(text).bytes)
    good = b"\0" + number.to_bytes(4, "big") + b"\2\4\xc2\x9b"
    records = [good, NewRecord(b"\2x", headers=[header]), b"plain", b"\0\0\0\0\x63\0", good[:6], NewRecord(None)]
    kafka.append("t", *records)
    shown = shown_by(kafka, *LOGIN, "--value-format", "avro", "--schema-registry", registry.url)
    assert shown[:2] == ['{"a": 1, "b": "\\x9b"}', '"x"']
    assert shown[2].startswith("plain (the value starts with byte 112")
    assert "(the schema registry" in shown[3]
    assert shown[3].endswith("has no schema 99)")
    assert shown[4].endswith("(field 'b': a length is negative, or runs past the end of the value)")
    assert shown[5] == "null"
    refused = command(kafka, *LOGIN, "--value-format", "avro")
    assert isinstance(refused.exception, UsageError)
    assert "need --schema-registry" in str(refused.exception)
    assert "secret" not in refused.output + str(refused.exception)


def test_floats_that_json_does_not_have_are_shown_as_strings(kafka, registry):
    lists = {"type": "array", "items": "double"}
    number = registry.register("t-value", {"type": "record", "name": "R", "fields": [{"name": "f", "type": lists}]})
    floats = struct.pack("<4d", math.nan, math.inf, -math.inf, 1.5)
    kafka.append("t", b"\0" + number.to_bytes(4, "big") + b"\x08" + floats + b"\0")
    (shown,) = shown_by(kafka, *LOGIN, "--value-format", "avro", "--schema-registry", registry.url)
    assert shown == '{"f": ["NaN", "Infinity", "-Infinity", 1.5]}'


def test_a_value_that_contains_itself_is_shown_and_the_registrys_login_may_stand_in_a_file(kafka, registry, tmp_path):
    (tmp_path / "login").write_text("me:secret\n")
    fields = [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "Tree"]}]
    properties = {
        "config.providers": "dir",
        "config.providers.dir.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
        "basic.auth.user.info": f"${{dir:{tmp_path}:login}}",
    }
    registry.register("t-value", {"type": "record", "name": "Tree", "fields": fields})
    kafka.append("t", b"\0\0\0\0\1\2\2\4\0")
    login = [each for pair in properties.items() for each in ("--property", "schema.registry." + "=".join(pair))]
    (shown,) = shown_by(kafka, "--value-format", "avro", "--schema-registry", registry.url, *login)
    assert json.loads(shown) == {"n": 1, "next": '{"n":2,"next":null}'}


def test_records_with_many_headers_are_dumped_all_of_them(kafka):
    """Decoded, a batch of them comes in parts, and only the first was printed."""
    headers = [(f"h{number}", b"v") for number in range(9)]
    kafka.append("t", *(NewRecord(b"%d" % number, headers=headers) for number in range(5)))
    assert shown_by(kafka, "--records") == ["0", "1", "2", "3", "4"]


def test_protobuf_values_are_shown_by_the_message_type_that_each_names(kafka, registry):
    text = 'syntax="proto3"; message M { int32 a=1; } message N { string b=1; }'
    number, avro = registry.register("t-value", text, kind="PROTOBUF"), registry.register("other", '"string"')
    of = [b"\0" + each.to_bytes(4, "big") for each in (number, avro)]
    kafka.append("t", of[0] + b"\0\x08\x01", of[0] + b"\2\2\x0a\1x", of[0] + b"\0\x08", of[1] + b"\2x", NewRecord(None))
    shown = shown_by(kafka, *LOGIN, "--value-format", "protobuf", "--schema-registry", registry.url)
    assert shown[:2] == ['{"a": 1}', '{"b": "x"}']
    assert shown[2].endswith("(is not a message M: its bytes are not of Protobuf's wire format)")
    assert shown[3].endswith(f"(schema {avro} of the registry is AVRO)")
    assert shown[4] == "null"


def test_a_leader_that_does_not_know_its_high_watermark_yet_is_no_loss(kafka):
    """It brings nothing, and says so of what it has (KAFKA-7703)."""
    empty = Rewrite(lambda response: [setattr(part, "records", b"") for each in response.responses for part in each.partitions])
    kafka.append("t", b"a", b"b")
    fault = kafka.fault("Fetch", empty, times=2)
    assert (shown_by(kafka, "--records"), fault.fired) == (["a", "b"], 2)
