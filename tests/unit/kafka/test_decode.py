"""The record batch decoder, compiled and uncompiled, against kafka-python's, against each other, and case by case."""

import random
import struct
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from headrace.enumerator.errors import CorruptDataError, UsageError
from tests.helpers.decode_twin import compiled, uncompiled
from tests.helpers.decoding import outcome
from tests.helpers.record_batches import (
    APPEND_TIME,
    CODECS,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    TRANSACTIONAL,
    Record,
    batch,
    emptied,
    marker,
    numbered,
    payload,
    seal,
)

EVERYTHING = (*compiled.ALL_COLUMNS, "headers")
ABORT, COMMIT = 0, 1


@pytest.fixture(params=[compiled, uncompiled], ids=["compiled", "uncompiled"])
def records(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


def run(records: ModuleType, data: bytes, *, start: int = 0, **options: Any) -> list[Any]:
    """Decode to a list, every Arrow batch validated in full."""
    decoded = list(records.decode(data, topic="topic", partition=3, start=start, **options))
    for each in decoded:
        each.records.validate(full=True)
    return decoded


def column(decoded: list[Any], name: str) -> list[Any]:
    return [item for each in decoded for item in each.records.column(name).to_pylist()]


def offsets(records: ModuleType, data: bytes, **options: Any) -> list[int]:
    return column(run(records, data, **options), "offset")


# --- what is built, and the schema ---
def test_the_module_under_test_is_compiled_and_its_twin_is_not() -> None:
    assert compiled.__file__.endswith(".so")
    assert uncompiled.__file__.endswith(".py")


def test_the_schema_is_that_of_sparks_kafka_source(records: ModuleType) -> None:
    types = pytest.importorskip("pyspark.sql.types")
    conversion = pytest.importorskip("pyspark.sql.pandas.types")
    header = types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    spark = types.StructType()
    spark.add("key", types.BinaryType()).add("value", types.BinaryType()).add("topic", types.StringType())
    spark.add("partition", types.IntegerType()).add("offset", types.LongType()).add("timestamp", types.TimestampType())
    spark.add("timestampType", types.IntegerType()).add("headers", types.ArrayType(header))
    assert records.arrow_schema(EVERYTHING).equals(conversion.to_arrow_schema(spark, timezone="UTC"), check_metadata=False)


@pytest.mark.parametrize("names", [("value",), ("offset", "key"), ("headers", "topic"), EVERYTHING])
def test_only_the_columns_asked_for_are_built_in_schema_order(records: ModuleType, names: tuple[str, ...]) -> None:
    data = batch([Record(0, b"k", b"v", headers=(("h", b"x"),)), Record(1)])
    (decoded,) = run(records, data, columns=names)
    (whole,) = run(records, data, columns=EVERYTHING)
    assert decoded.records.schema.names == [name for name in EVERYTHING if name in names]
    assert decoded.records.num_rows == 2
    for name in names:
        assert decoded.records.column(name).equals(whole.records.column(name))


@pytest.mark.parametrize("options", [
    {"columns": ["valu"]}, {"columns": []}, {"max_batch_bytes": 0}, {"max_batch_bytes": 1 << 31}, {"max_batch_rows": 0},
    {"start": -1},
])  # fmt: skip
def test_bad_arguments_are_refused_before_anything_is_read(records: ModuleType, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        records.decode(b"", topic="t", partition=0, **{"start": 0, **options})


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(records: ModuleType, kind: Any) -> None:
    assert offsets(records, kind(batch(numbered(3)))) == [0, 1, 2]


def test_topics_of_any_length_and_script(records: ModuleType) -> None:
    topic = "søknad-主题" * 25
    assert column(list(records.decode(batch(numbered(2)), topic=topic, partition=0, start=0)), "topic") == [topic, topic]


# --- against kafka-python ---
texts = st.text(st.characters(codec="utf-8"), max_size=8)
blobs = st.none() | st.binary(max_size=200)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    gaps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 70, 9000]), min_size=1, max_size=12))
    times = st.integers(-1, 1 << 41)
    headers = st.lists(st.tuples(texts, blobs), max_size=3).map(tuple)
    deltas = [sum(gaps[: i + 1]) - 1 for i in range(len(gaps))]
    return [Record(delta, draw(blobs), draw(blobs), draw(times), draw(headers)) for delta in deltas]


@given(
    lists=st.lists(record_lists(), min_size=1, max_size=3),
    codecs=st.lists(st.sampled_from(sorted(CODECS)), min_size=3, max_size=3),
)
def test_record_by_record_as_kafka_python_reads_them(lists: list[list[Record]], codecs: list[str]) -> None:
    data, expected, base = b"", [], 7
    for each, codec in zip(lists, codecs, strict=False):
        data += batch(each, base=base, codec=codec)
        for record in DefaultRecordBatch(batch(each, base=base)):
            time = record.timestamp * 1000
            headers = [{"key": key, "value": value} for key, value in record.headers] or None
            expected.append((record.key, record.value, "topic", 3, record.offset, time, record.timestamp_type, headers))
        base += each[-1].delta + 1
    for records in (compiled, uncompiled):
        decoded = run(records, data, start=7, columns=EVERYTHING)
        table = pa.Table.from_batches([one.records for one in decoded])
        table = table.set_column(5, "timestamp", table.column("timestamp").cast(pa.int64()))
        assert list(zip(*(column.to_pylist() for column in table.columns), strict=True)) == expected
        assert decoded[-1].next_offset == base


@pytest.mark.parametrize("codec", CODECS)
def test_batches_larger_than_a_codecs_blocks(records: ModuleType, codec: str) -> None:
    noise = random.Random(1)
    values = [noise.randbytes(3000) + b"a" * 3000 for _ in range(40)]
    data = batch([Record(i, value=value) for i, value in enumerate(values)], codec=codec)
    assert column(run(records, data), "value") == values


def test_kafka_pythons_own_marker_reading_agrees_with_the_markers_made_here() -> None:
    for kind in (ABORT, COMMIT):
        (record,) = DefaultRecordBatch(marker(kind, base=0, producer=1))
        assert record.abort is (kind == ABORT)


# --- positions ---
def test_records_before_the_start_and_from_the_stop_on_are_left_out(records: ModuleType) -> None:
    data = batch(numbered(10), base=100) + batch(numbered(10), base=110)
    for start in range(100, 120):
        for stop in range(start + 1, 121):
            decoded = run(records, data, start=start, stop=stop)
            assert (column(decoded, "offset"), decoded[-1].next_offset) == (list(range(start, stop)), stop)


def test_a_stop_within_a_gap_is_the_position_reached(records: ModuleType) -> None:
    data = batch([Record(0), Record(9)], base=0) + batch(numbered(5), base=20)
    for stop in range(1, 10):
        assert [(each.records.num_rows, each.next_offset) for each in run(records, data, stop=stop)] == [(1, stop)]
    for stop in range(10, 21):
        assert run(records, data, stop=stop)[-1].next_offset == stop


@pytest.mark.parametrize("stop", [0, 5])
def test_nothing_is_read_when_the_stop_is_at_or_before_the_start(records: ModuleType, stop: int) -> None:
    assert run(records, batch(numbered(9)), start=5, stop=stop) == []


def test_no_data_yields_nothing(records: ModuleType) -> None:
    assert run(records, b"", start=5) == []


def test_the_position_passes_the_gaps_that_compaction_leaves(records: ModuleType) -> None:
    data = batch([Record(3), Record(7)], base=100, last=19) + emptied(base=120, last=9)
    decoded = run(records, data, start=100)
    assert (column(decoded, "offset"), decoded[-1].next_offset) == ([103, 107], 130)


def test_start_in_a_gap(records: ModuleType) -> None:
    decoded = run(records, batch([Record(3), Record(7)], base=100, last=19), start=110)
    assert [(each.records.num_rows, each.next_offset) for each in decoded] == [(0, 120)]
    assert decoded[0].records.schema == records.arrow_schema()


def test_an_emptied_batch_alone_moves_the_position(records: ModuleType) -> None:
    decoded = run(records, emptied(base=50, last=9, flags=DELETE_HORIZON), start=50)
    assert [(each.records.num_rows, each.next_offset) for each in decoded] == [(0, 60)]


def test_a_control_batch_at_the_end_moves_the_position(records: ModuleType) -> None:
    decoded = run(records, batch(numbered(2), flags=TRANSACTIONAL, producer=5) + marker(COMMIT, base=2, producer=5))
    assert (column(decoded, "offset"), decoded[-1].next_offset) == ([0, 1], 3)


def test_a_batch_truncated_at_the_end_is_ignored(records: ModuleType) -> None:
    whole, cut = batch(numbered(3)), batch(numbered(3), base=3)
    for length in range(len(cut)):
        decoded = run(records, whole + cut[:length])
        assert (column(decoded, "offset"), decoded[-1].next_offset) == ([0, 1, 2], 3)


def test_a_part_of_the_first_batch_is_refused_as_asking_again_would_not_help(records: ModuleType) -> None:
    data = batch(numbered(3), base=40)
    for length in range(1, len(data)):
        with pytest.raises(CorruptDataError, match=r"'topic', partition 3.* offset 40.*only a part of the first"):
            run(records, data[:length], start=40)


def test_batches_all_below_the_start_are_refused_too(records: ModuleType) -> None:
    with pytest.raises(CorruptDataError, match="all of them below"):
        run(records, batch(numbered(3)), start=3)


# --- limits on one Arrow batch ---
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_rows_are_bounded_and_nothing_is_lost_at_the_bounds(records: ModuleType, codec: str) -> None:
    data = b"".join(batch(numbered(7), base=base, codec=codec) for base in range(0, 70, 7))
    for most in (1, 2, 6, 7, 8, 69, 70, 71):
        decoded = run(records, data, max_batch_rows=most)
        assert column(decoded, "offset") == list(range(70))
        assert max(each.records.num_rows for each in decoded) <= most
        assert [each.next_offset for each in decoded] == [each.records.column("offset")[-1].as_py() + 1 for each in decoded]


def compressible(size: int, source: random.Random) -> bytes:
    return b"".join(source.randbytes(128) * 8 for _ in range(size // 1024))


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
@pytest.mark.parametrize(
    "kib", [[110] * 16, [884] * 8, [1769] * 4, [600, 1500, 200, 884] * 3], ids=["small", "large", "huge", "mixed"]
)
def test_a_compressed_batch_is_decompressed_once(records: ModuleType, codec: str, kib: list[int], monkeypatch) -> None:
    """Of what is nearly as large as an Arrow batch each was decompressed to see that it found no space, then again."""
    calls: list[int] = []

    def counted(name: str, decompress: Any) -> Any:
        return name, lambda packed, target: (calls.append(len(packed)), decompress(packed, target))[1]

    monkeypatch.setattr(records, "_CODECS", tuple(counted(*each) for each in records._CODECS))
    source = random.Random(1)
    values = [compressible(size * 1024, source) for size in kib]
    data = b"".join(batch([Record(0, b"k", value)], base=base, codec=codec) for base, value in enumerate(values))
    assert (column(run(records, data), "value"), len(calls)) == (values, len(values))


def test_bytes_are_bounded_but_a_larger_record_is_given_whole(records: ModuleType) -> None:
    sizes = [10, 500, 20, 20, 2000, 0, 3]
    data = batch([Record(i, value=b"x" * size) for i, size in enumerate(sizes)]) + batch(numbered(3), base=7)
    decoded = run(records, data, max_batch_bytes=60)
    assert [len(value) for value in column(decoded, "value")] == [*sizes, 1, 1, 1]
    for each in decoded:
        assert each.records.num_rows == 1 or sum(len(value) for value in each.records.column("value").to_pylist()) <= 60


def test_a_record_of_very_many_headers(records: ModuleType) -> None:
    many = tuple((f"h{i}", None if i % 2 else b"x") for i in range(5000))
    data = batch([Record(0), Record(1, headers=many), Record(2, headers=many[:3])])
    decoded = run(records, data, columns=["headers"], max_batch_bytes=100)
    assert [None if item is None else len(item) for item in column(decoded, "headers")] == [None, 5000, 3]


def test_yielded_batches_do_not_refer_to_the_data(records: ModuleType) -> None:
    data = bytearray(batch([Record(0, b"key", b"value")]))
    decoded = run(records, data)
    data[:] = bytes(len(data))
    assert column(decoded, "value") == [b"value"]


# --- what a record holds ---
def test_null_and_empty_keys_and_values_are_reported_apart(records: ModuleType) -> None:
    pairs = [(None, None), (b"", b""), (b"k", None), (None, b"v"), (b"", None)]
    decoded = run(records, batch([Record(i, *pair) for i, pair in enumerate(pairs)]))
    assert list(zip(column(decoded, "key"), column(decoded, "value"), strict=True)) == pairs


def test_headers_keep_their_order_repeated_keys_and_null_values_and_none_at_all_is_null(records: ModuleType) -> None:
    headers = (("a", b"1"), ("a", None), ("", b""), ("ключ", b"2"))
    decoded = run(records, batch([Record(0), Record(1, headers=headers), Record(2)]), columns=["headers"])
    assert column(decoded, "headers") == [None, [{"key": key, "value": value} for key, value in headers], None]


def test_create_time_and_log_append_time(records: ModuleType) -> None:
    times = [Record(0, timestamp=5000), Record(1, timestamp=4000), Record(2, timestamp=-1)]
    data = batch(times) + batch(times, base=3, flags=APPEND_TIME)
    decoded = run(records, data)
    micros = pa.concat_arrays([each.records.column("timestamp") for each in decoded]).cast(pa.int64()).to_pylist()
    assert micros == [5_000_000, 4_000_000, -1000, 5_000_000, 5_000_000, 5_000_000]
    assert column(decoded, "timestampType") == [0, 0, 0, 1, 1, 1]


def test_the_delete_horizon_flag_changes_nothing(records: ModuleType) -> None:
    plain = run(records, batch(numbered(4)))
    assert run(records, batch(numbered(4), flags=DELETE_HORIZON))[0].records.equals(plain[0].records)


@pytest.mark.parametrize("time", [9_223_372_036_854_776, -9_223_372_036_854_776])
def test_a_timestamp_beyond_64_bit_microseconds_is_refused_only_where_it_is_asked_for(records: ModuleType, time: int) -> None:
    body, _ = payload(numbered(1))
    data = seal(body, count=1, last=0, first_time=time)
    with pytest.raises(CorruptDataError, match="timestamp"):
        run(records, data)
    assert column(run(records, data, columns=["value"]), "value") == [b"0"]


@pytest.mark.parametrize("time", [9_223_372_036_854_776, -9_223_372_036_854_776])
def test_a_timestamp_beyond_64_bit_microseconds_may_be_a_null_alongside_all_else_of_its_record(records, time) -> None:
    bad, _ = payload(numbered(2))
    data = batch(numbered(3)) + seal(bad, base=3, count=2, last=1, first_time=time) + batch(numbered(1), base=5)
    decoded = run(records, data, bad_timestamps="null", columns=[*records.ALL_COLUMNS, "headers"])
    assert column(decoded, "offset") == list(range(6))
    assert [micros is None for micros in column(decoded, "timestamp")] == [False, False, False, True, True, False]
    assert column(decoded, "value") == [b"0", b"1", b"2", b"0", b"1", b"0"]
    (good,) = run(records, batch(numbered(3)), bad_timestamps="null")
    assert good.records.equals(run(records, batch(numbered(3)))[0].records)


# --- transactions ---
def interleaved() -> bytes:
    """Producer 1 aborts 0-1 and commits 7; producer 2 commits 2-3; 3 aborts 4 and is never ended; plain records at 9."""
    parts = [
        batch(numbered(2), base=0, flags=TRANSACTIONAL, producer=1),
        batch(numbered(2), base=2, flags=TRANSACTIONAL, producer=2),
        batch(numbered(1), base=4, flags=TRANSACTIONAL, producer=3), marker(ABORT, base=5, producer=1),
        marker(COMMIT, base=6, producer=2), batch(numbered(1), base=7, flags=TRANSACTIONAL, producer=1),
        marker(COMMIT, base=8, producer=1), batch(numbered(1), base=9),
        batch(numbered(1), base=10, flags=TRANSACTIONAL, producer=3),
    ]  # fmt: skip
    return b"".join(parts)


def test_read_uncommitted_sees_all_but_the_markers(records: ModuleType) -> None:
    assert offsets(records, interleaved()) == [0, 1, 2, 3, 4, 7, 9, 10]


def test_aborted_transactions_are_left_out_until_their_marker(records: ModuleType) -> None:
    decoded = run(records, interleaved(), aborted=[(1, 0), (3, 4)])
    assert (column(decoded, "offset"), decoded[-1].next_offset) == ([2, 3, 7, 9], 11)


def test_the_aborted_list_counts_from_each_first_offset(records: ModuleType) -> None:
    data = b"".join(
        batch(numbered(1), base=base, flags=TRANSACTIONAL, producer=1) + marker(kind, base=base + 1, producer=1)
        for base, kind in ((0, COMMIT), (2, ABORT), (4, COMMIT), (6, ABORT))
    )
    assert offsets(records, data, aborted=[(1, 6), (1, 2)]) == [0, 4]
    assert offsets(records, data, aborted=[]) == [0, 2, 4, 6]


def test_a_transaction_aborted_before_the_response_starts(records: ModuleType) -> None:
    data = batch(numbered(3), base=20, flags=TRANSACTIONAL, producer=1) + marker(ABORT, base=23, producer=1)
    decoded = run(records, data, start=21, aborted=[(1, 4)])
    assert [(each.records.num_rows, each.next_offset) for each in decoded] == [(0, 24)]


def test_records_outside_transactions_of_an_aborted_producer_are_kept(records: ModuleType) -> None:
    assert offsets(records, batch(numbered(2), producer=1), aborted=[(1, 0)]) == [0, 1]


def test_an_emptied_control_batch_ends_no_transaction(records: ModuleType) -> None:
    data = emptied(base=0, last=0, flags=CONTROL | TRANSACTIONAL, producer=1)
    data += batch(numbered(1), base=1, flags=TRANSACTIONAL, producer=1)
    assert offsets(records, data, aborted=[(1, 0)]) == []


def test_a_control_record_without_a_type_is_refused(records: ModuleType) -> None:
    data = batch([Record(key=b"\0\0")], flags=CONTROL | TRANSACTIONAL, producer=1)
    with pytest.raises(CorruptDataError, match="control record"):
        run(records, data, aborted=[(1, 0)])
    assert run(records, data)[-1].next_offset == 1


# --- corruption ---
def zigzag(value: int) -> bytes:
    raw, out = (value << 1) ^ (value >> 63), b""
    while raw > 0x7F:
        out += bytes([raw & 0x7F | 0x80])
        raw >>= 7
    return out + bytes([raw])


def record(*fields: bytes) -> bytes:
    body = b"\0" + b"".join(fields)
    return zigzag(len(body)) + body


ZERO, NULL = zigzag(0), zigzag(-1)
GOOD = record(ZERO, ZERO, NULL, NULL, ZERO)

BAD_BODIES = {
    "length of -1": (zigzag(-1) + b"\0" * 8, "length"),
    "length past the end": (zigzag(100) + b"\0" * 8, "length"),
    "length of 2 GiB": (zigzag((1 << 31) - 1) + b"\0" * 8, "length"),
    "length in six bytes": (b"\x80\x80\x80\x80\x80\0" + b"\0" * 8, "length"),
    "length of 33 bits": (b"\xff\xff\xff\xff\x1f" + b"\0" * 8, "length"),
    "empty record": (zigzag(0) + b"\0" * 8, "field"),
    "time in eleven bytes": (record(b"\x80" * 10 + b"\0", ZERO, NULL, NULL, ZERO), "field"),
    "time of 65 bits": (record(b"\xff" * 9 + b"\x02", ZERO, NULL, NULL, ZERO), "field"),
    "offset before the base": (record(ZERO, zigzag(-1), NULL, NULL, ZERO), "offset"),
    "offset past the last": (record(ZERO, zigzag(1), NULL, NULL, ZERO), "offset"),
    "key length of -2": (record(ZERO, ZERO, zigzag(-2), NULL, ZERO), "field"),
    "value length of -2": (record(ZERO, ZERO, NULL, zigzag(-2), ZERO), "field"),
    "key past the end": (record(ZERO, ZERO, zigzag(4), NULL, ZERO), "field"),
    "value past the end": (record(ZERO, ZERO, NULL, zigzag(1 << 30), ZERO), "field"),
    "no header count": (record(ZERO, ZERO, NULL, NULL) + b"\0", "field"),
    "header count of -1": (record(ZERO, ZERO, NULL, NULL, NULL), "header"),
    "more headers than there are": (record(ZERO, ZERO, NULL, NULL, zigzag(2), zigzag(1), b"h", NULL), "header"),
    "a billion headers": (record(ZERO, ZERO, NULL, NULL, zigzag(1 << 30), ZERO, NULL), "header"),
    "fewer headers than there are": (record(ZERO, ZERO, NULL, NULL, zigzag(1), zigzag(1), b"h", NULL, b"\0"), "header"),
    "null header key": (record(ZERO, ZERO, NULL, NULL, zigzag(1), NULL, NULL), "header"),
    "header value length of -2": (record(ZERO, ZERO, NULL, NULL, zigzag(1), ZERO, zigzag(-2)), "header"),
    "header key past the end": (record(ZERO, ZERO, NULL, NULL, zigzag(1), zigzag(9), NULL), "header"),
    "bytes after the last field": (record(ZERO, ZERO, NULL, NULL, ZERO, b"\0"), "remaining"),
    "bytes after the last record": (GOOD + b"\0", "remaining"),
}


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_corrupt_record_is_refused_after_the_good_ones_before_it(records: ModuleType, name: str, codec: str) -> None:
    body, what = BAD_BODIES[name]
    number, compress = CODECS[codec]
    data = batch(numbered(3)) + seal(compress(body), base=3, count=1, last=0, codec=number)
    rows, positions, error = outcome(records, data, start=0, columns=EVERYTHING)
    assert error is not None
    assert what in error
    assert "topic 'topic', partition 3, record batch at offset 3:" in error
    assert [row[1] for row in rows[:3]] == [b"0", b"1", b"2"]
    assert (len(rows), positions) == (4 if name == "bytes after the last record" else 3, [len(rows)])


def test_offsets_that_do_not_rise_are_refused(records: ModuleType) -> None:
    with pytest.raises(CorruptDataError, match="offset 0: the record's offset"):
        run(records, seal(GOOD + GOOD, count=2, last=5))
    with pytest.raises(CorruptDataError, match="offset 2: the batch before it ends at offset 4"):
        run(records, batch(numbered(5)) + batch(numbered(5), base=2))


LIES = {
    "count too great": {"count": 4, "last": 9}, "count too small": {"count": 2, "last": 9},
    "count of zero": {"count": 0, "last": 9}, "count of -1": {"count": -1, "last": 9},
    "count of two billion": {"count": (1 << 31) - 1, "last": 9}, "last offset delta of -1": {"count": 3, "last": -1},
    "last offset delta too small": {"count": 3, "last": 1}, "base offset of -1": {"count": 3, "last": 2, "base": -1},
    "offsets past 64 bits": {"count": 3, "last": 2, "base": (1 << 63) - 2},
    "codec 5": {"count": 3, "last": 2, "codec": 5}, "codec 7": {"count": 3, "last": 2, "codec": 7},
}  # fmt: skip


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("name", LIES)
def test_lies_in_the_batch_header_are_refused(records: ModuleType, name: str, codec: str) -> None:
    number, compress = CODECS[codec]
    body, _ = payload(numbered(3))
    fields = {"codec": number, **LIES[name]}
    with pytest.raises(CorruptDataError, match=r"topic 'topic', partition 3, record batch at offset -?\d+: "):
        run(records, seal(compress(body), **fields))


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_message_formats_are_named(records: ModuleType, magic: int) -> None:
    data = bytearray(batch(numbered(3), base=6))
    data[16] = magic
    with pytest.raises(CorruptDataError, match=f"'topic', partition 3, record batch at offset 6: message format v{magic}"):
        run(records, bytes(data), start=6)


def test_every_flipped_bit_behind_the_crc_is_found(records: ModuleType) -> None:
    data = batch(numbered(2))
    for at in range(17, len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(CorruptDataError, match="CRC32C"):
                run(records, bytes(flipped))


@pytest.mark.parametrize("length", [-1, 0, 48, -(1 << 31)])
def test_a_batch_length_too_small_for_a_header_is_refused(records: ModuleType, length: int) -> None:
    data = bytearray(batch(numbered(2)))
    data[8:12] = struct.pack(">i", length)
    with pytest.raises(CorruptDataError, match=f"length of {length} bytes"):
        run(records, bytes(data))


def test_a_batch_length_beyond_the_data_is_a_batch_truncated(records: ModuleType) -> None:
    data = bytearray(batch(numbered(2)))
    data[8:12] = struct.pack(">i", (1 << 31) - 1)
    with pytest.raises(CorruptDataError, match="part of the first"):
        run(records, bytes(data))


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_a_decompression_bomb_is_refused_and_does_not_take_the_memory(records: ModuleType, codec: str) -> None:
    number, compress = CODECS[codec]
    body, _ = payload([Record(value=bytes(4 << 20))])
    data = seal(compress(body), count=1, last=0, codec=number)
    with pytest.raises(CorruptDataError, match=rf"decompression into at most {1 << 20} bytes \(the limit is \w+\) failed"):
        run(records, data, max_uncompressed_bytes=1 << 20)
    assert len(column(run(records, data), "value")[0]) == 4 << 20


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_compressed_bytes_that_are_cut_or_garbage_are_refused(records: ModuleType, codec: str) -> None:
    number, compress = CODECS[codec]
    packed = compress(payload(numbered(50))[0])
    for bad in (b"", b"\0", packed[:-1], packed[: len(packed) // 2], bytes(len(packed)), b"\xff" * len(packed), packed + b"\1"):
        data = batch(numbered(2)) + seal(bad, base=2, count=50, last=49, codec=number)
        rows, _, error = outcome(records, data, start=0)
        assert len(rows) == 2
        assert error is not None
        assert "offset 2" in error


@settings(max_examples=3 * settings.default.max_examples)
@given(st.binary(max_size=12) | texts.map(str.encode))
def test_header_keys_that_are_not_utf8_are_decoded_leniently_as_java_does(key: bytes) -> None:
    body = record(ZERO, ZERO, NULL, NULL, zigzag(1), zigzag(len(key)), key, NULL)
    for records in (compiled, uncompiled):
        rows, _, error = outcome(records, seal(body, count=1, last=0), start=0, columns=["headers"])
        assert (error, rows[0][0][0]["key"]) == (None, key.decode("utf-8", "replace"))


# --- compiled against uncompiled, on anything ---
@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """Batches of every kind, some with bytes changed and the CRC made good again, the whole perhaps changed or cut."""
    data, base = b"", 0
    for _ in range(draw(st.integers(1, 4))):
        producer = draw(st.sampled_from([-1, 1, 2]))
        flags = draw(st.sampled_from([0, 0, APPEND_TIME])) | (TRANSACTIONAL if producer > 0 else 0)
        if producer > 0 and draw(st.booleans()):
            part, last = marker(draw(st.sampled_from([ABORT, COMMIT])), base=base, producer=producer), 0
        else:
            each = draw(record_lists())
            last = each[-1].delta
            part = batch(each, base=base, codec=draw(st.sampled_from(sorted(CODECS))), flags=flags, producer=producer)
        data += draw(changed(part)) if draw(st.booleans()) else part
        base += last + 1
    if draw(st.integers(0, 3)) == 0:
        data = mutate(draw, data)
    return data[: draw(st.sampled_from([len(data), len(data), draw(st.integers(0, len(data)))]))]


def mutate(draw: st.DrawFn, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        out[draw(st.integers(0, len(out) - 1))] = draw(st.integers(0, 255) | st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    return bytes(out)


@st.composite
def changed(draw: st.DrawFn, part: bytes) -> bytes:
    """A batch with some bytes changed behind the CRC, which is made to hold again; within the records or the header."""
    fields, packed = list(HEADER.unpack_from(part)), draw(st.sampled_from(sorted(CODECS)))
    body = part[HEADER.size :]
    if body:
        body = mutate(draw, body)
    if draw(st.booleans()) and fields[5] & 7 == 0:  # changed inside, then compressed
        number, compress = CODECS[packed]
        body, fields[5] = compress(body), fields[5] | number
    if draw(st.integers(0, 3)) == 0:
        which = draw(st.sampled_from([5, 6, 7, 8, 9, 12]))
        fields[which] = draw(st.integers(-(1 << 15), (1 << 15) - 1))
    fields[1] = HEADER.size - 12 + len(body)
    fields[4] = 0
    fields[4] = crc32c(HEADER.pack(*fields)[21:] + body)
    return HEADER.pack(*fields) + body


@settings(max_examples=8 * settings.default.max_examples)
@given(
    data=responses(),
    start=st.integers(0, 30) | st.integers(0, 20000),
    length=st.none() | st.integers(1, 30) | st.integers(1, 20000),
    columns=st.sampled_from([EVERYTHING, compiled.ALL_COLUMNS, ("value",), ("offset",), ("headers", "offset")]),
    aborted=st.none() | st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 40)), max_size=4),
    most_bytes=st.sampled_from([1, 50, 400, 1 << 24]),
    most_rows=st.sampled_from([None, 1, 3]),
)
def test_compiled_and_uncompiled_agree_on_anything(data, start, length, columns, aborted, most_bytes, most_rows) -> None:
    stop = None if length is None else start + length
    options: dict[str, Any] = {
        "start": start, "stop": stop, "columns": columns, "aborted": aborted, "max_uncompressed_bytes": 1 << 20
    }  # fmt: skip
    limits = {"max_batch_bytes": most_bytes, "max_batch_rows": most_rows}
    found = rows, positions, error = outcome(compiled, data, **limits, **options)
    assert outcome(uncompiled, data, **limits, **options) == found

    in_one = outcome(compiled, data, **options)
    assert (rows, error) == (in_one[0], in_one[2])  # whatever the limits
    assert (positions[-1:], positions) == (in_one[1][-1:], sorted(set(positions)))
    assert all(start < position and (stop is None or position <= stop) for position in positions)
    if data and stop != start and error is None:
        assert positions
    if "offset" in columns:
        seen = [row[[name for name in EVERYTHING if name in columns].index("offset")] for row in rows]
        assert seen == sorted(set(seen))
        assert all(start <= offset < positions[-1] for offset in seen)


def test_a_year_of_noise_crashes_nothing() -> None:
    noise = random.Random(7)
    base = batch([Record(i, b"k" * i, b"v" * 30, headers=(("h", b"x"),)) for i in range(8)])
    for _ in range(4000):
        body = bytearray(base[HEADER.size :])
        for _ in range(noise.randrange(1, 6)):
            body[noise.randrange(len(body))] = noise.choice([0, 1, 0x7F, 0x80, 0xFF, noise.randrange(256)])
        outcome(compiled, seal(bytes(body), count=8, last=7), start=noise.randrange(8), columns=EVERYTHING)
