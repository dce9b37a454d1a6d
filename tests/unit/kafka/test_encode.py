"""The record encoder, compiled and uncompiled: read back, against kafka-python's builder byte for byte, and case by case."""

import mmap
import random
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import cramjam
import kafka.codec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_pythons_murmur2
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from headrace.connectors.kafka.format.decode import ALL_COLUMNS, decode
from headrace.enumerator.errors import UsageError
from tests.helpers.encode_twin import compiled, uncompiled
from tests.helpers.record_batches import HEADER

NOW = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
CODECS = list(compiled.Codec)
TRANSACTIONAL = 0x10


class Row(NamedTuple):
    value: bytes | None = b"v"
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp: int | None = None


@pytest.fixture(params=[compiled, uncompiled], ids=["compiled", "uncompiled"])
def encode(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


def encoder(encode: ModuleType, partitions: int = 1, **options: Any) -> Any:
    plain = {"producer_id": -1, "producer_epoch": -1, "transactional": False}
    return encode.RecordEncoder(partitions, **{**plain, **options})


def values(*items: bytes | None, **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(items, pa.binary()), **columns})


def to_arrow(rows: Sequence[Row], blob: pa.DataType = pa.binary(), unit: str = "ms") -> pa.RecordBatch:  # noqa: B008
    """Every column, whether any row needs it or not."""
    scale = {"ms": 1, "us": 1000, "ns": 1_000_000}[unit]
    headers = [[{"key": key, "value": value} for key, value in row.headers] or None for row in rows]
    times = [None if row.timestamp is None else row.timestamp * scale for row in rows]
    columns = {
        "value": pa.array([row.value for row in rows], blob), "key": pa.array([row.key for row in rows], blob),
        "headers": pa.array(headers, HEADERS), "partition": pa.array([row.partition for row in rows], pa.int32()),
        "timestamp": pa.array(times, pa.int64()).cast(pa.timestamp(unit, "UTC")),
    }  # fmt: skip
    return pa.RecordBatch.from_pydict(columns)


def read_back(batch: Any) -> list[Row]:
    """The rows of one encoded batch, as headrace's own decoder has them."""
    columns = [*ALL_COLUMNS, "headers"]
    rows: list[Row] = []
    for decoded in decode(batch.data, topic="t", partition=batch.partition, start=0, columns=columns):
        decoded.records.validate(full=True)
        for record in decoded.records.to_pylist():
            assert record["offset"] == len(rows)
            headers = tuple((header["key"], header["value"]) for header in record["headers"] or ())
            time = round(record["timestamp"].timestamp() * 1000)
            rows.append(Row(record["value"], record["key"], headers, batch.partition, time))
    assert len(rows) == batch.records
    return rows


def by_partition(batches: Iterable[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for batch in batches:
        found[batch.partition].append(batch)
    return dict(found)


def encoded(made: Any, *rows: pa.RecordBatch) -> list[Any]:
    return [batch for each in rows for batch in made.append(each, NOW)] + made.flush()


def rows_of(batches: Iterable[Any]) -> list[Row]:
    return [row for batch in batches for row in read_back(batch)]


def placed(batches: Iterable[Any]) -> dict[int, list[bytes | None]]:
    """The values in each partition."""
    return {each: [row.value for row in rows_of(mine)] for each, mine in by_partition(batches).items()}


def header_of(batch: Any) -> dict[str, int]:
    names = "base length epoch magic crc attributes last first_time max_time producer_id producer_epoch sequence count"
    return dict(zip(names.split(), HEADER.unpack_from(batch.data), strict=True))


# --- what is built ---
def test_the_module_under_test_is_compiled_and_its_twin_is_not() -> None:
    assert compiled.__file__.endswith(".so")
    assert uncompiled.__file__.endswith(".py")


# --- round trips ---
texts = st.text(st.characters(codec="utf-8"), max_size=8)
blobs = st.none() | st.binary(max_size=30) | st.integers(60, 300).map(bytes)
header_lists = st.lists(st.tuples(texts, blobs), max_size=3).map(tuple)
times = st.none() | st.integers(0, 1 << 40) | st.integers(NOW, NOW + 100)


FREE = ("free", None)
"""The first header of the rows whose partition is the encoder's choice, so that they are known again."""


@st.composite
def row_lists(draw: st.DrawFn, partitions: int) -> list[Row]:
    sent = st.builds(Row, blobs, blobs, header_lists, st.integers(0, partitions - 1), times)
    keyed = st.builds(Row, blobs, st.binary(max_size=30), header_lists, st.none(), times)
    free = st.builds(Row, blobs, st.none(), header_lists.map(lambda headers: (FREE, *headers)), st.none(), times)
    return draw(st.lists(sent | keyed | free, max_size=12))


class Job(NamedTuple):
    partitions: int
    batches: list[pa.RecordBatch]
    rows: list[Row]
    options: dict[str, Any]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Arrow batches that are slices of larger ones, with the rows expected of them."""
    partitions = draw(st.integers(1, 4))
    batches, rows = [], []
    for _ in range(draw(st.integers(1, 4))):
        each = draw(row_lists(partitions))
        begin = draw(st.integers(0, len(each)))
        end = draw(st.integers(begin, len(each)) | st.just(len(each)))
        blob = draw(st.sampled_from([pa.binary(), pa.large_binary()]))
        arrow = to_arrow(each, blob, draw(st.sampled_from(["ms", "us"])))
        batches.append(arrow.slice(begin, end - begin))
        rows += each[begin:end]
    producer = draw(st.sampled_from([(-1, -1), (0, 0), (1 << 40, 32767)]))
    options = {
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "transactional": producer[0] >= 0 and draw(st.booleans()),
        "max_batch_bytes": draw(st.sampled_from([1, 100, 400, 900_000])),
        "first_sequences": {0: draw(st.sampled_from([0, (1 << 31) - 3]))},
    }
    return Job(partitions, batches, rows, options)


def run(encode: ModuleType, job: Job, codec: str = "none") -> list[Any]:
    random.seed(3)  # the start of the rows without a key
    made = encoder(encode, job.partitions, codec=encode.Codec(codec), **job.options)
    return encoded(made, *job.batches)


def expected_at(partition: int | None, job: Job) -> list[Row]:
    """The rows that have to be in a partition, or None: that may be in any."""
    out = []
    for row in job.rows:
        target = row.partition
        if target is None and row.key is not None:
            target = (kafka_pythons_murmur2(row.key) & 0x7FFFFFFF) % job.partitions
        if target == partition:
            out.append(row._replace(partition=None, timestamp=NOW if row.timestamp is None else row.timestamp))
    return out


@given(job=jobs(), codec=st.sampled_from(CODECS))
def test_rows_come_back_as_they_were_from_every_codec(job: Job, codec: str) -> None:
    encoded = by_partition(run(compiled, job, codec))
    free: list[Row] = []
    for partition in range(job.partitions):
        read = [row._replace(partition=None) for row in rows_of(encoded.get(partition, []))]
        free += [row for row in read if FREE in row.headers]
        assert [row for row in read if FREE not in row.headers] == expected_at(partition, job)
    assert sorted(map(repr, free)) == sorted(map(repr, expected_at(None, job)))


@given(job=jobs(), codec=st.sampled_from(CODECS))
def test_compiled_and_uncompiled_agree_to_the_byte(job: Job, codec: str) -> None:
    assert [tuple(each) for each in run(compiled, job, codec)] == [tuple(each) for each in run(uncompiled, job, codec)]


def built(rows: list[Row], partition: int, options: dict[str, Any]) -> list[tuple[int, bytes, int, int]]:
    """What kafka-python's builder makes of a partition's rows, cut where it states that a batch is full."""
    out: list[tuple[int, bytes, int, int]] = []
    sequence = options["first_sequences"].get(partition, 0)
    while rows:
        base = sequence if options["producer_id"] >= 0 else -1
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=options["transactional"], producer_id=options["producer_id"],
            producer_epoch=options["producer_epoch"], base_sequence=base, batch_size=options["max_batch_bytes"],
        )  # fmt: skip
        count = 0
        while count < len(rows) and builder.append(
            count, rows[count].timestamp, rows[count].key, rows[count].value, list(rows[count].headers)
        ):
            count += 1
        data = bytearray(builder.build())
        data[12:16] = b"\xff" * 4  # it claims leader epoch 0, which the CRC does not cover
        out.append((partition, bytes(data), count, base))
        sequence, rows = (sequence + count) % (1 << 31), rows[count:]
    return out


@given(job=jobs())
def test_the_bytes_are_those_of_kafka_pythons_builder_and_so_are_the_cuts(job: Job) -> None:
    for encode in (compiled, uncompiled):
        for partition, mine in by_partition(run(encode, job)).items():
            found = [(each.partition, bytes(each.data), each.records, each.base_sequence) for each in mine]
            assert found == built(rows_of(mine), partition, job.options)


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_reads_it(encode: ModuleType, codec: str) -> None:
    if not getattr(kafka.codec, f"has_{codec}", lambda: True)():
        pytest.skip(f"kafka-python has no {codec} here")
    rows = [Row(b"v%d" % n * n, b"k", (("h", b"x"), ("n", None)), 0, NOW + n % 3) for n in range(50)]
    made = encoder(encode, codec=encode.Codec(codec))
    assert made.append(to_arrow(rows), NOW) == []
    (batch,) = made.flush()
    memory = MemoryRecords(bytes(batch.data))
    records = memory.next_batch()
    assert not memory.has_next()
    assert records.validate_crc()
    assert (records.base_offset, records.leader_epoch, records.timestamp_type) == (0, -1, 0)
    found = [(each.offset, each.value, each.key, tuple(each.headers), each.timestamp) for each in records]
    assert found == [(n, row.value, row.key, row.headers, row.timestamp) for n, row in enumerate(rows)]


@pytest.mark.parametrize("blob", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_text_is_written_as_its_bytes(encode: ModuleType, blob: pa.DataType) -> None:
    items = pa.array([None, "", "søknad", "主题"], pa.string())
    expected = [None, b"", "søknad".encode(), "主题".encode()]
    made = encoder(encode)
    assert made.append(pa.RecordBatch.from_pydict({"value": items.cast(blob), "key": items.cast(blob)}), NOW) == []
    rows = rows_of(made.flush())
    assert [row.value for row in rows] == [row.key for row in rows] == expected


def test_headers_of_every_layout_that_arrow_allows(encode: ModuleType) -> None:
    entries = pa.StructArray.from_arrays(
        [pa.array([b"lost", b"1", None, b"3"], pa.large_binary()), pa.array(["lost", "a", "b", "c"], pa.large_string())],
        names=["value", "key"],
    )
    kind = pa.list_(entries.type)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3, 3, 4], pa.int32()), entries, type=kind)
    masked = pa.Array.from_buffers(kind, 4, [pa.py_buffer(b"\x0e"), lists.buffers()[1]], children=[entries])
    assert masked.to_pylist()[0] is None
    made = encoder(encode)
    made.append(values(b"0", b"1", b"2", b"3", headers=masked), NOW)
    assert [row.headers for row in rows_of(made.flush())] == [(), (("a", b"1"), ("b", None)), (), (("c", b"3"),)]
    made.append(values(b"2", b"3", headers=masked.slice(2)), NOW)
    made.append(values(b"1", headers=pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), entries.slice(1, 1))), NOW)
    assert [row.headers for row in rows_of(made.flush())] == [(), (("c", b"3"),), (("a", b"1"),)]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_timestamps_are_cut_to_milliseconds(encode: ModuleType, unit: str) -> None:
    scale = {"ms": 1, "us": 1000, "ns": 1_000_000}[unit]
    numbers = pa.array([0, 7 * scale + scale - 1, None, 1_700_000_000_123 * scale], pa.int64())
    (batch,) = encoded(encoder(encode), values(*[b""] * 4, timestamp=numbers.cast(pa.timestamp(unit, "Europe/Oslo"))))
    assert [row.timestamp for row in read_back(batch)] == [0, 7, NOW, 1_700_000_000_123]
    assert (header_of(batch)["first_time"], header_of(batch)["max_time"]) == (0, 1_700_000_000_123)


def test_a_first_timestamp_may_be_the_greatest_and_differ_by_63_bits(encode: ModuleType) -> None:
    most = (1 << 63) - 1
    (batch,) = encoded(encoder(encode), values(b"", b"", timestamp=pa.array([most, 0], pa.timestamp("ms"))))
    assert (header_of(batch)["first_time"], header_of(batch)["max_time"]) == (most, most)
    assert [record.timestamp for record in MemoryRecords(bytes(batch.data)).next_batch()] == [most, 0]


def test_nothing_encoded_depends_on_the_rows_afterwards(encode: ModuleType) -> None:
    memory = bytearray(b"abcdef")
    array = pa.Array.from_buffers(pa.binary(), 2, [None, pa.py_buffer(struct.pack("3i", 0, 3, 6)), pa.py_buffer(memory)])
    made = encoder(encode)
    made.append(pa.RecordBatch.from_pydict({"value": array}), NOW)
    memory[:] = b"xxxxxx"
    assert [row.value for row in rows_of(made.flush())] == [b"abc", b"def"]


def test_no_rows_no_batches(encode: ModuleType) -> None:
    made = encoder(encode, 3)
    assert (made.flush(), made.append(to_arrow([]), NOW)) == ([], [])
    assert (made.append(to_arrow([Row()]).slice(1), NOW), made.flush()) == ([], [])


# --- the batch header ---
def test_the_header_of_a_transactional_batch(encode: ModuleType) -> None:
    made = encoder(encode, producer_id=77, producer_epoch=5, transactional=True, codec=encode.Codec.ZSTD)
    (batch,) = encoded(made, values(b"a", b"b", b"c"))
    header = header_of(batch)
    assert header.pop("crc") > 0
    assert header == {
        "base": 0, "length": len(batch.data) - 12, "epoch": -1, "magic": 2, "attributes": TRANSACTIONAL | 4, "last": 2,
        "first_time": NOW, "max_time": NOW, "producer_id": 77, "producer_epoch": 5, "sequence": 0, "count": 3,
    }  # fmt: skip


def test_sequences_are_counted_by_partition_and_continue_after_a_flush(encode: ModuleType) -> None:
    made = encoder(encode, 2, producer_id=1, producer_epoch=0)
    seen = []
    for count in (3, 2, 4):
        for partition in (0, 1):
            made.append(to_arrow([Row(partition=partition)] * (count + partition)), NOW)
        seen += [(each.partition, each.base_sequence, header_of(each)["sequence"]) for each in made.flush()]
    assert seen == [(0, 0, 0), (1, 0, 0), (0, 3, 3), (1, 4, 4), (0, 5, 5), (1, 7, 7)]


def test_sequences_wrap_to_zero_behind_the_greatest_also_within_a_batch(encode: ModuleType) -> None:
    most = (1 << 31) - 1
    made = encoder(encode, 2, producer_id=1, producer_epoch=0, first_sequences={1: most - 1})
    seen = []
    for count in (1, 1, 2):
        seen += [each.base_sequence for each in encoded(made, to_arrow([Row(partition=1)] * count))]
    assert seen == [most - 1, most, 0]
    made = encoder(encode, 1, producer_id=1, producer_epoch=0, first_sequences={0: most - 1})
    for _ in range(2):
        seen += [each.base_sequence for each in encoded(made, values(*[b""] * 5))]
    assert seen[3:] == [most - 1, 3]


def test_without_a_producer_id_there_are_no_sequences(encode: ModuleType) -> None:
    made = encoder(encode)
    for _ in range(2):
        (batch,) = encoded(made, values(b"a", b"b"))
        header = header_of(batch)
        assert (batch.base_sequence, header["sequence"], header["producer_id"], header["producer_epoch"]) == (-1, -1, -1, -1)


# --- cutting ---
@pytest.mark.parametrize(("unit", "none"), [("ms", -1), ("us", -1000), ("ns", -1_000_000)])
def test_a_time_as_a_record_without_one_is_read_is_that_of_the_write(encode: ModuleType, unit: str, none: int) -> None:
    (batch,) = encoded(encoder(encode), values(b"", b"", timestamp=pa.array([none, 0], pa.timestamp(unit))))
    assert [row.timestamp for row in read_back(batch)] == [NOW, 0]


@pytest.mark.parametrize("size", [0, 1, 90, 5000])
@pytest.mark.parametrize("most", [62, 1000, 20_000])
def test_batches_are_as_large_as_the_bound_lets_them_be(encode: ModuleType, size: int, most: int) -> None:
    whole = encoder(encode, max_batch_bytes=1 << 24)
    whole.append(values(*[bytes(size)] * 400), NOW)
    record = (len(whole.flush()[0].data) - HEADER.size) / 400  # the mean
    made = encoder(encode, max_batch_bytes=most)
    full = made.append(values(*[bytes(size)] * 400), NOW)
    rest = made.flush()
    assert (len(rest), sum(each.records for each in full + rest)) == (1, 400)
    for each in full:
        assert len(each.data) <= most or each.records == 1
        assert len(each.data) + record + 2 >= most


def test_a_record_larger_than_a_batch_goes_alone(encode: ModuleType) -> None:
    made = encoder(encode, max_batch_bytes=1000)
    full = made.append(values(b"a", b"b", bytes(5000), b"c"), NOW)
    assert [[row.value for row in read_back(each)] for each in full] == [[b"a", b"b"], [bytes(5000)]]
    assert made.append(values(bytes(3000)), NOW)[0].records == 1
    assert [each.records for each in made.flush()] == [1]


def test_a_batch_fills_over_many_arrow_batches(encode: ModuleType) -> None:
    made = encoder(encode, max_batch_bytes=10_000)
    full = [each for n in range(300) for each in made.append(values(b"%99d" % n), NOW)]
    encoded = full + made.flush()
    assert 9_890 < len(full[0].data) <= 10_000
    assert [row.value for row in rows_of(encoded)] == [b"%99d" % n for n in range(300)]


def test_many_large_arrow_batches_by_many_partitions() -> None:
    noise = random.Random(5)
    made = encoder(compiled, 37, max_batch_bytes=50_000, codec=compiled.Codec.LZ4)
    written: dict[int, list[bytes]] = defaultdict(list)
    encoded = []
    for _ in range(5):
        items = [noise.randbytes(noise.randrange(300)) for _ in range(4000)]
        targets = [noise.randrange(37) for _ in items]
        for item, target in zip(items, targets, strict=True):
            written[target].append(item)
        encoded += made.append(values(*items, partition=pa.array(targets, pa.int32())), NOW)
    assert placed(encoded + made.flush()) == written


# --- partitions ---
VECTORS = {
    b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829, b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107, b"": 275646681,
}  # fmt: skip


@pytest.mark.parametrize("key", VECTORS)
def test_murmur2_of_the_java_clients_own_tests(encode: ModuleType, key: bytes) -> None:
    assert encode.murmur2(key) == VECTORS[key]


@given(st.binary(max_size=40))
def test_murmur2_is_that_of_kafka_python(key: bytes) -> None:
    for encode in (compiled, uncompiled):
        assert encode.murmur2(key) & 0xFFFFFFFF == kafka_pythons_murmur2(key)


def test_keys_go_where_the_java_client_puts_them(encode: ModuleType) -> None:
    keys = [b"key-%d" % n for n in range(200)] + list(VECTORS)
    made = encoder(encode, 7)
    made.append(values(*keys, key=pa.array(keys, pa.binary())), NOW)
    found = {key: partition for partition, mine in placed(made.flush()).items() for key in mine}
    assert found == {key: (encode.murmur2(key) & 0x7FFFFFFF) % 7 for key in keys}


def test_keys_have_their_partitions_without_being_encoded(encode: ModuleType) -> None:
    keys = [b"before", None, b"", *(b"key-%d" % n for n in range(200)), *VECTORS]
    wanted = [None if key is None else (encode.murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]
    for kind in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()):
        assert encode.key_partitions(pa.array(keys, pa.binary()).cast(kind)[1:], 7).to_pylist() == wanted[1:]


def test_an_explicit_partition_is_taken_whatever_the_key(encode: ModuleType) -> None:
    made = encoder(encode, 5)
    made.append(to_arrow([Row(b"%d" % n, key=b"same" if n % 2 else None, partition=n % 5) for n in range(20)]), NOW)
    assert placed(made.flush()) == {p: [b"%d" % n for n in range(20) if n % 5 == p] for p in range(5)}


def test_rows_without_a_key_stick_to_a_partition_until_the_arrow_batch_ends(encode: ModuleType) -> None:
    made, turns = encoder(encode, 3), []
    for n in range(7):
        ((partition, found),) = placed(encoded(made, values(*[b"%d" % n] * 10))).items()
        assert found == [b"%d" % n] * 10
        turns.append(partition)
    assert turns == [(turns[0] + n) % 3 for n in range(7)]


def test_rows_with_a_key_or_a_partition_do_not_move_the_turn(encode: ModuleType) -> None:
    made, turns = encoder(encode, 3), []
    for _ in range(4):
        made.append(to_arrow([Row(b"chosen", partition=0), Row(b"keyed", key=b"k")]), NOW)
        turns += [partition for partition, found in placed(encoded(made, values(b"free"))).items() if b"free" in found]
    assert turns == [(turns[0] + n) % 3 for n in range(4)]


def test_a_large_arrow_batch_is_spread_by_whole_batches(encode: ModuleType) -> None:
    made = encoder(encode, 4, max_batch_bytes=10_000)
    full = made.append(values(*[bytes(100)] * 1000), NOW)
    sizes = {partition: sum(each.records for each in mine) for partition, mine in by_partition(full + made.flush()).items()}
    assert set(sizes) == {0, 1, 2, 3}
    assert max(sizes.values()) - min(sizes.values()) <= 100  # a batch's worth
    assert len(full) >= 1000 // 100 - 4


def test_where_an_encoder_starts_is_left_to_chance(encode: ModuleType) -> None:
    seen = set()
    for _ in range(200):
        seen.add(encoded(encoder(encode, 3), values(b""))[0].partition)
    assert seen == {0, 1, 2}


# --- codecs ---
def body(batch: Any) -> bytes:
    return bytes(batch.data[HEADER.size :])


def unpack_xerial(data: bytes) -> bytes:
    assert data[:16] == bytes.fromhex("82534e415050590000000001 00000001")
    out, at = [], 16
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        out.append(bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size])))
        at += 4 + size
    assert all(len(block) == 32768 for block in out[:-1])
    return b"".join(out)


def unpack_lz4(data: bytes) -> bytes:
    flags, block_size = data[4], data[5]
    assert flags == 0x60  # version 1, independent blocks, no checksums, no content size: all the Java client reads
    assert block_size == 0x40
    return bytes(cramjam.lz4.decompress(data))  # checks the descriptor's checksum


UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: bytes(cramjam.gzip.decompress(data)), "snappy": unpack_xerial, "lz4": unpack_lz4,
    "zstd": lambda data: bytes(cramjam.zstd.decompress(data)),
}  # fmt: skip


@pytest.mark.parametrize("filler", ["text", "noise", "both"])
@pytest.mark.parametrize("codec", UNPACK)
def test_compressed_records_unpack_to_the_plain_ones(encode: ModuleType, codec: str, filler: str) -> None:
    noise = random.Random(2)
    text, rough = b"all work and no play " * 50, noise.randbytes(1000)
    items = [{"text": text, "noise": noise.randbytes(1000), "both": text + rough}[filler] for _ in range(300)]
    plain, packed = encoder(encode), encoder(encode, codec=encode.Codec(codec))
    for made in (plain, packed):
        made.append(values(*items), NOW)
    (expected,), (batch,) = plain.flush(), packed.flush()
    assert (UNPACK[codec](body(batch)), header_of(batch)["attributes"]) == (body(expected), CODECS.index(codec))
    if filler == "text":
        assert len(batch.data) < len(expected.data) / 5
    else:
        assert len(batch.data) < 1.05 * len(expected.data)
    assert [row.value for row in read_back(batch)] == items


@pytest.mark.parametrize(("codec", "levels"), [("gzip", (1, 9)), ("lz4", (1, 12, 17)), ("zstd", (-5, 1, 19))])
def test_levels_change_the_size_and_nothing_else(encode: ModuleType, codec: str, levels: tuple[int, ...]) -> None:
    noise = random.Random(4)
    words = [noise.randbytes(5).hex().encode() for _ in range(300)]
    items = [b" ".join(noise.choice(words) for _ in range(30)) for _ in range(1000)]
    sizes = []
    for level in (*levels, None):
        made = encoder(encode, codec=encode.Codec(codec), compression_level=level)
        made.append(values(*items), NOW)
        encoded = made.flush()
        assert [row.value for row in rows_of(encoded)] == items
        sizes.append(len(encoded[0].data))
    assert sizes[0] > sizes[1]


def test_level_9_of_lz4_is_its_default_as_in_the_java_client(encode: ModuleType) -> None:
    out = []
    for level in (None, 9, 10):
        made = encoder(encode, codec=encode.Codec.LZ4, compression_level=level)
        out.append(len(encoded(made, values(*[b"%d" % (n * n) for n in range(5000)]))[0].data))
    assert out[0] == out[1] > out[2]


def test_lz4_of_any_level_has_independent_blocks_as_the_java_client_demands(encode: ModuleType) -> None:
    made = encoder(encode, codec=encode.Codec.LZ4, compression_level=12)
    (batch,) = encoded(made, values(*[b"%d" % (n * n) for n in range(20_000)]))
    assert body(batch)[4] == 0x70  # version 1, independent blocks with checksums
    assert len(read_back(batch)) == 20_000


# --- bad inputs ---
STRUCT = pa.struct([("key", pa.string()), ("value", pa.binary())])
BYTES_STRUCT = pa.struct([("key", pa.binary()), ("value", pa.binary())])
V = pa.array([b"v"])
BAD_COLUMNS = {
    "no value": ({"key": pa.array([b"k"])}, "column 'value'"),
    "no columns": ({}, "got none"),
    "unknown": ({"value": V, "topic": pa.array(["t"])}, "'topic'"),
    "value of ints": ({"value": pa.array([1])}, "'value' must be binary or string"),
    "value of nulls": ({"value": pa.nulls(1)}, "is null"),
    "value of fixed size": ({"value": pa.array([b"abc"], pa.binary(3))}, "fixed_size_binary"),
    "value as dictionary": ({"value": pa.array(["a"]).dictionary_encode()}, "dictionary"),
    "value as view": ({"value": pa.array(["a"], pa.string_view())}, "string_view"),
    "key of floats": ({"value": V, "key": pa.array([1.0])}, "'key' must be binary"),
    "headers as map": ({"value": V, "headers": pa.nulls(1, pa.map_(pa.string(), pa.binary()))}, "must be list<struct"),
    "headers of strings": ({"value": V, "headers": pa.array([["h"]])}, "'headers' must be list<struct"),
    "header keys of bytes": ({"value": V, "headers": pa.nulls(1, pa.list_(BYTES_STRUCT))}, "must be list<struct"),
    "headers of three": ({"value": V, "headers": pa.nulls(1, pa.list_(pa.struct([*STRUCT, ("more", pa.binary())])))},
        "must be list<struct"),
    "partition of 64 bits": ({"value": V, "partition": pa.array([1])}, "'partition' must be int32, and is int64"),
    "timestamp in seconds": ({"value": V, "timestamp": pa.array([1], pa.timestamp("s"))}, "'timestamp' must be"),
    "timestamp of ints": ({"value": V, "timestamp": pa.array([1])}, "'timestamp' must be timestamp in"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_COLUMNS)
def test_columns_that_make_no_records_are_refused(encode: ModuleType, name: str) -> None:
    columns, what = BAD_COLUMNS[name]
    with pytest.raises(UsageError, match=what):
        encoder(encode).append(pa.RecordBatch.from_pydict(columns), NOW)


def test_a_column_twice_is_refused(encode: ModuleType) -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([b"v"])] * 2, names=["value", "value"])
    with pytest.raises(UsageError, match="each once"):
        encoder(encode).append(twice, NOW)


def listed(*headers: dict[str, Any] | None) -> pa.Array:
    return pa.array([[{"key": "good", "value": b""}], list(headers)], pa.list_(STRUCT))


BAD_ROWS = {
    "partition of -1": ({"partition": pa.array([0, -1], pa.int32())}, "row 1: there is no partition -1; the topic has 3"),
    "partition past the end": ({"partition": pa.array([2, 3], pa.int32())}, "row 1: there is no partition 3; .* from 0 to 2"),
    "null header key": ({"headers": listed({"key": None, "value": b""})}, "row 1: a header is null or has a null key"),
    "null header": ({"headers": listed(None)}, "row 1: a header is null"),
    "before 1970": ({"timestamp": pa.array([0, -1], pa.timestamp("us"))}, "row 1: the timestamp -1 us is before 1970"),
    "2 ms before 1970": ({"timestamp": pa.array([0, -2], pa.timestamp("ms"))}, "row 1: the timestamp -2 ms is before 1970"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_row_that_makes_no_record_is_named_and_nothing_is_encoded(encode: ModuleType, name: str) -> None:
    columns, what = BAD_ROWS[name]
    bad, made = values(b"bad", b"bad", **columns), encoder(encode, 3)
    made.append(values(b"good"), NOW)
    with pytest.raises(UsageError, match=what):
        made.append(bad, NOW)
    with pytest.raises(UsageError, match=what.replace("row 1", "row 0")):
        made.append(bad.slice(1), NOW)
    assert [row.value for row in rows_of(encoded(made, values(b"good")))] == [b"good", b"good"]


def test_a_record_that_no_batch_can_hold_is_refused() -> None:
    ends = pa.py_buffer(struct.pack("3q", 0, 1, (1 << 31) + 1))
    nothing = pa.py_buffer(mmap.mmap(-1, (1 << 31) + 1))  # of which no page is ever touched
    column = pa.Array.from_buffers(pa.large_binary(), 2, [None, ends, nothing])
    for encode in (compiled, uncompiled):
        with pytest.raises(UsageError, match="row 1: key, value and headers take more than"):
            encoder(encode).append(pa.RecordBatch.from_pydict({"value": column}), NOW)


@pytest.mark.parametrize(("options", "what"), [
    ({"partitions": 0}, "partitions must be between 1 and"), ({"max_batch_bytes": 0}, "max_batch_bytes"),
    ({"max_batch_bytes": 1 << 31}, "max_batch_bytes"), ({"producer_id": -2}, "producer_id"),
    ({"producer_id": 1}, "producer_epoch must be between 0"),
    ({"producer_id": 1, "producer_epoch": 1 << 15}, "producer_epoch"), ({"transactional": True}, "needs the producer id"),
    ({"codec": "lzo"}, "codec must be one of none, gzip, snappy, lz4, zstd"),
    ({"compression_level": 1}, "with none leave it out"),
    ({"codec": "snappy", "compression_level": 1}, "with snappy leave it out"),
    ({"codec": "gzip", "compression_level": 10}, "compression_level of gzip must be between 1 and 9, got 10"),
    ({"codec": "lz4", "compression_level": 0}, "compression_level of lz4"),
    ({"codec": "zstd", "compression_level": 23}, "compression_level of zstd"),
    ({"first_sequences": {1: 0}}, "a partition in first_sequences"),
    ({"first_sequences": {0: -1}}, "a sequence in first_sequences"),
])  # fmt: skip
def test_arguments_out_of_range_are_refused(encode: ModuleType, options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        encoder(encode, **options)


def test_a_clock_before_1970_is_refused(encode: ModuleType) -> None:
    with pytest.raises(UsageError, match="now_ms"):
        encoder(encode).append(values(b"v"), -1)
