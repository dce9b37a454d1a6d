import contextlib
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse

from headrace.connectors.kafka.format.fetch_protocol import BatchSpan, parse_fetch_response, span_of_batches
from headrace.enumerator.errors import CorruptDataError

VERSIONS = range(4, 19)
TOPIC_ID = UUID(int=0x1234)
Topic = FetchResponse.FetchableTopicResponse
Partition = Topic.PartitionData


def batch(base: int, count: int, *, body: bytes = b"", epoch: int = 7) -> bytes:
    rest = struct.pack(">ibIhi", epoch, 2, 0, 0, count - 1) + body
    return struct.pack(">qi", base, len(rest)) + rest


def old_message(offset: int) -> bytes:
    rest = struct.pack(">Ibb", 0, 1, 0) + bytes(8) + struct.pack(">ii", -1, -1)
    return struct.pack(">qi", offset, len(rest)) + rest


def partition(index: int, records: bytes | None, **given) -> Partition:
    fields = {
        "partition_index": index,
        "error_code": 0,
        "high_watermark": 100,
        "last_stable_offset": 90,
        "log_start_offset": 10,
        "aborted_transactions": [Partition.AbortedTransaction(producer_id=5, first_offset=6)],
        "preferred_read_replica": -1,
        "records": records,
    }
    return Partition(**(fields | given))


def response(version: int, partitions: list[Partition]) -> memoryview:
    message = FetchResponse(
        throttle_time_ms=3,
        error_code=0,
        session_id=0,
        responses=[Topic(topic="orders", topic_id=TOPIC_ID, partitions=partitions)],
    )
    return memoryview(bytes(message.encode(version=version)))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_that_another_client_writes_is_read(version):
    view = response(version, [partition(0, b"abc"), partition(1, None, error_code=6, aborted_transactions=None)])
    answer = parse_fetch_response(view, version)
    assert (answer.error, answer.throttle_time_ms) == (0, 3)
    first, second = answer.partitions
    assert (first.topic, first.topic_id) == (("orders", None) if version < 13 else (None, TOPIC_ID))
    assert (first.partition, first.error, bytes(first.records)) == (0, 0, b"abc")
    assert (first.high_watermark, first.last_stable_offset) == (100, 90)
    assert first.log_start_offset == (10 if version >= 5 else None)
    assert first.aborted == [(5, 6)]
    assert first.preferred_replica is None
    assert (second.partition, second.error, bytes(second.records), second.aborted) == (1, 6, b"", None)


def test_records_are_a_view_of_the_frame_and_no_copy():
    view = response(18, [partition(0, b"abc")])
    assert parse_fetch_response(view, 18).partitions[0].records.obj is view.obj


def test_what_the_protocol_writes_as_minus_one_is_none():
    answer = parse_fetch_response(response(12, [partition(0, b"", high_watermark=-1, last_stable_offset=-1)]), 12)
    assert (answer.partitions[0].high_watermark, answer.partitions[0].last_stable_offset) == (None, None)


def test_divergence_and_the_present_leader_are_read_from_their_tags():
    told = partition(
        0,
        b"",
        diverging_epoch=Partition.EpochEndOffset(epoch=4, end_offset=55),
        current_leader=Partition.LeaderIdAndEpoch(leader_id=2, leader_epoch=9),
    )
    answer = parse_fetch_response(response(16, [told, partition(1, b"x")]), 16)
    assert (answer.partitions[0].diverging, answer.partitions[0].leader) == ((4, 55), (2, 9))
    assert bytes(answer.partitions[1].records) == b"x"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_cut_short_anywhere_is_refused(version):
    view = response(version, [partition(0, b"abc")])
    for size in range(len(view)):
        with pytest.raises(CorruptDataError):
            parse_fetch_response(view[:size], version)


@given(st.binary(max_size=200), st.sampled_from(VERSIONS))
def test_any_bytes_are_parsed_or_refused_and_nothing_else(data, version):
    with contextlib.suppress(CorruptDataError):
        parse_fetch_response(memoryview(data), version)


@given(
    counts=st.lists(st.integers(1, 1000), min_size=1, max_size=20),
    start=st.integers(0, 2**40),
    cut=st.integers(0, 10_000),
    body=st.integers(0, 200),
)
def test_the_next_offset_is_that_after_the_last_whole_batch(counts, start, cut, body):
    data, ends, offset = b"", [], start
    for count in counts:
        data += batch(offset, count, body=bytes(body))
        offset += count
        ends.append((len(data), offset))
    data = data[: max(0, len(data) - cut)]
    whole = [BatchSpan(size, after, ((start, 7),)) for size, after in ends if size <= len(data)]
    assert span_of_batches(memoryview(data)) == (whole[-1] if whole else None)


def test_an_empty_batch_left_by_compaction_moves_the_offset():
    compacted = batch(10, 5)  # last offset delta 4, whatever number of records is left
    assert span_of_batches(memoryview(compacted)) == BatchSpan(len(compacted), 15, ((10, 7),))


def test_messages_of_the_old_formats_count_one_by_one():
    data = old_message(5) + old_message(6)
    assert span_of_batches(memoryview(data)) == BatchSpan(len(data), 7, ())


@pytest.mark.parametrize("size", [-1, 0, 13])
def test_a_length_that_cannot_be_is_corruption_and_no_endless_loop(size):
    with pytest.raises(CorruptDataError, match="length"):
        span_of_batches(memoryview(struct.pack(">qi", 0, size) + bytes(100)))


@pytest.mark.parametrize("length", [b"\xff" * 9 + b"\x01", b"\x80" * 5 + b"\0", b"\xff" * 100_000])
def test_seen_here_a_length_of_more_than_five_bytes_in_a_fetch_response_is_corrupt_data(length):
    head = bytes(10)
    with pytest.raises(CorruptDataError, match="varint at byte 10 is longer than 5 bytes"):
        parse_fetch_response(memoryview(head + length), 12)


def test_a_length_of_five_bytes_is_one():
    with pytest.raises(CorruptDataError, match="index out of bounds"):
        parse_fetch_response(memoryview(bytes(10) + b"\xff" * 4 + b"\x0f"), 12)
