import contextlib
import struct
from typing import Any
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
        "partition_index": index, "error_code": 0, "high_watermark": 100, "last_stable_offset": 90,
        "log_start_offset": 10, "aborted_transactions": [Partition.AbortedTransaction(producer_id=5, first_offset=6)],
        "preferred_read_replica": -1, "records": records,
    }  # fmt: skip
    return Partition(**(fields | given))


def response(version: int, partitions: list[Partition]) -> memoryview:
    message = FetchResponse(
        throttle_time_ms=3, error_code=0, session_id=0,
        responses=[Topic(topic="orders", topic_id=TOPIC_ID, partitions=partitions)],
    )  # fmt: skip
    return memoryview(bytes(message.encode(version=version)))


def parsed(version: int, *partitions: Partition) -> Any:
    return parse_fetch_response(response(version, list(partitions)), version)


def span(*parts: bytes) -> BatchSpan | None:
    return span_of_batches(memoryview(b"".join(parts)))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_that_another_client_writes_is_read(version):
    answer = parsed(version, partition(0, b"abc"), partition(1, None, error_code=6, aborted_transactions=None))
    assert (answer.error, answer.throttle_time_ms) == (0, 3)
    first, second = answer.partitions
    assert (first.topic, first.topic_id) == (("orders", None) if version < 13 else (None, TOPIC_ID))
    assert (first.partition, first.error, bytes(first.records)) == (0, 0, b"abc")
    assert (first.high_watermark, first.last_stable_offset) == (100, 90)
    assert (first.log_start_offset, first.aborted) == (10 if version >= 5 else None, [(5, 6)])
    assert first.preferred_replica is None
    assert (second.partition, second.error, bytes(second.records), second.aborted) == (1, 6, b"", None)


def test_records_are_a_view_of_the_frame_and_no_copy():
    view = response(18, [partition(0, b"abc")])
    assert parse_fetch_response(view, 18).partitions[0].records.obj is view.obj


def test_what_the_protocol_writes_as_minus_one_is_none():
    answer = parsed(12, partition(0, b"", high_watermark=-1, last_stable_offset=-1))
    assert (answer.partitions[0].high_watermark, answer.partitions[0].last_stable_offset) == (None, None)


def test_divergence_and_the_present_leader_are_read_from_their_tags():
    settings = partition(
        0, b"", diverging_epoch=Partition.EpochEndOffset(epoch=4, end_offset=55),
        current_leader=Partition.LeaderIdAndEpoch(leader_id=2, leader_epoch=9),
    )  # fmt: skip
    answer = parsed(16, settings, partition(1, b"x"))
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
def test_a_length_of_more_than_five_bytes_in_a_fetch_response_is_corrupt_data(length):
    with pytest.raises(CorruptDataError, match="varint at byte 10 is longer than 5 bytes"):
        parse_fetch_response(memoryview(bytes(10) + length), 12)


def test_a_length_of_five_bytes_is_one():
    with pytest.raises(CorruptDataError, match="index out of bounds"):
        parse_fetch_response(memoryview(bytes(10) + b"\xff" * 4 + b"\x0f"), 12)


# --- field by field ---
def uvarint(value: int) -> bytes:
    low = bytes([value & 0x7F])
    return low if value < 0x80 else bytes([low[0] | 0x80]) + uvarint(value >> 7)


def tagged(fields: dict[int, bytes]) -> bytes:
    return uvarint(len(fields)) + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in fields.items())


NO_TAGS = tagged({})
UNKNOWN = tagged({200: b"x" * 200, 7: b""})


def flexible(partitions: list[bytes], *, tags: bytes = NO_TAGS) -> bytes:
    """A response of version 16 with one topic, and these tags wherever there may be some."""
    topic = TOPIC_ID.bytes + uvarint(len(partitions) + 1) + b"".join(partitions) + tags
    return struct.pack(">ihi", 250, 71, 9) + uvarint(2) + topic + tags


def flexible_partition(index: int, records: bytes, tags: bytes, aborted: bytes = uvarint(0), replica: int = -1) -> bytes:
    head = struct.pack(">ihqqq", index, 0, 0, 0, 0)
    return head + aborted + struct.pack(">i", replica) + uvarint(len(records) + 1) + records + tags


def test_tags_that_are_not_known_are_skipped_wherever_they_are():
    aborted = uvarint(3) + struct.pack(">qq", 5, 6) + UNKNOWN + struct.pack(">qq", 7, 8) + NO_TAGS
    parts = [flexible_partition(0, b"abc", UNKNOWN, aborted, 3), flexible_partition(300, b"d" * 200, NO_TAGS)]
    answer = parse_fetch_response(memoryview(flexible(parts, tags=UNKNOWN)), 16)
    assert (answer.throttle_time_ms, answer.error) == (250, 71)
    first, second = answer.partitions
    assert first.aborted == [(5, 6), (7, 8)]
    assert (first.preferred_replica, second.preferred_replica) == (3, None)
    assert (bytes(first.records), bytes(second.records)) == (b"abc", b"d" * 200)
    assert (second.partition, second.topic_id, second.aborted) == (300, TOPIC_ID, None)


def test_zero_is_a_number_and_not_unknown():
    tags = tagged({0: struct.pack(">iq", 0, 0), 1: struct.pack(">ii", 0, 0)})
    (found,) = parse_fetch_response(memoryview(flexible([flexible_partition(0, b"", tags, replica=0)])), 16).partitions
    assert (found.diverging, found.leader, found.preferred_replica) == ((0, 0), (0, 0), 0)
    assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (0, 0, 0)


def test_a_divergence_without_an_end_and_a_leader_that_is_not_known_are_none():
    tags = tagged({0: struct.pack(">iq", 4, -1), 1: struct.pack(">ii", -1, 9)})
    (found,) = parse_fetch_response(memoryview(flexible([flexible_partition(0, b"", tags)])), 16).partitions
    assert (found.diverging, found.leader) == (None, None)


def test_each_tag_is_read_without_the_other():
    only = [tagged({0: struct.pack(">iq", 4, 55)}), tagged({1: struct.pack(">ii", 2, 9)})]
    parts = [flexible_partition(0, b"", tags) for tags in only]
    found = parse_fetch_response(memoryview(flexible(parts)), 16).partitions
    assert [(each.diverging, each.leader) for each in found] == [((4, 55), None), (None, (2, 9))]


@pytest.mark.parametrize("version", VERSIONS)
def test_no_aborted_transaction_is_reported_from_none_being_asked_for(version):
    assert parsed(version, partition(0, b"x", aborted_transactions=[])).partitions[0].aborted == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_is_read_from_where_its_header_ends(version):
    view = memoryview(b"header" + bytes(response(version, [partition(0, b"abc"), partition(1, b"")])))
    answer = parse_fetch_response(view, version, 6)
    assert [(found.partition, bytes(found.records)) for found in answer.partitions] == [(0, b"abc"), (1, b"")]
    assert answer.throttle_time_ms == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_the_preferred_replica_is_reported_from_version_11_on(version):
    (found,) = parsed(version, partition(0, b"x", preferred_read_replica=2)).partitions
    assert found.preferred_replica == (2 if version >= 11 else None)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_error_of_the_whole_answer_is_reported_from_version_7_on(version):
    message = FetchResponse(throttle_time_ms=3, error_code=70, session_id=5, responses=[])
    answer = parse_fetch_response(memoryview(bytes(message.encode(version=version))), version)
    assert (answer.error, answer.throttle_time_ms) == (70 if version >= 7 else 0, 3)
    assert answer.partitions == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_partition_of_every_topic_is_read(version):
    topics = [
        Topic(topic=name, topic_id=UUID(int=number), partitions=[partition(each, b"%d" % each) for each in range(number)])
        for number, name in enumerate(["none", "ö" * 20, "b"])
    ]
    message = FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=topics)
    answer = parse_fetch_response(memoryview(bytes(message.encode(version=version))), version)
    names = [found.topic if version < 13 else found.topic_id for found in answer.partitions]
    assert names == (["ö" * 20, "b", "b"] if version < 13 else [UUID(int=1), UUID(int=2), UUID(int=2)])
    assert [bytes(found.records) for found in answer.partitions] == [b"0", b"0", b"1"]


def test_records_that_run_past_the_end_are_named_with_their_partition_and_the_version():
    view = response(11, [partition(4, b"abcdef")])
    message = rf"version 11\) of {len(view) - 1} bytes .*records of partition 4 run past the end"
    with pytest.raises(CorruptDataError, match=message):
        parse_fetch_response(view[:-1], 11)


# --- spans, at their edges ---
def test_a_span_ends_before_a_later_leader_epoch_than_is_wanted():
    first, second, third = batch(0, 2, epoch=3), batch(2, 2, epoch=3), batch(4, 1, epoch=5)
    data = memoryview(first + second + third)
    whole, older = BatchSpan(len(data), 5, ((0, 3), (4, 5))), BatchSpan(len(first + second), 4, ((0, 3),))
    assert [span_of_batches(data, *wanted) for wanted in [(), (5,), (4,), (3,)]] == [whole, whole, older, older]
    assert span_of_batches(data, 2) == BatchSpan(len(first), 2, ((0, 3),))


def test_the_last_epoch_is_that_of_the_last_batch_and_none_is_not_zero():
    assert (BatchSpan(1, 1, ((0, 3), (4, 5))).last_epoch, BatchSpan(1, 1, ()).last_epoch) == (5, None)
    found = span(batch(0, 1, epoch=-1), batch(1, 1, epoch=0), batch(2, 1, epoch=0))
    assert (found.epochs, found.last_epoch) == (((1, 0),), 0)


def test_an_epoch_that_comes_again_is_reported_again():
    found = span(batch(0, 1, epoch=1), batch(1, 1, epoch=2), batch(2, 1, epoch=1))
    assert found.epochs == ((0, 1), (1, 2), (2, 1))


def test_nothing_and_less_than_one_batch_have_no_span():
    assert [span(part) for part in (b"", batch(0, 1)[:-1], batch(0, 1)[:11])] == [None, None, None]


@pytest.mark.parametrize(("magic", "shortest"), [(0, 14), (1, 14), (2, 15)])
def test_the_shortest_batch_of_each_format_and_one_byte_less(magic, shortest):
    def of(size: int) -> BatchSpan | None:
        return span(struct.pack(">qiib", 5, size, 0, magic) + bytes(size - 5))

    found = of(shortest)
    assert (found.complete_bytes, found.next_offset) == (shortest + 12, 6)
    with pytest.raises(CorruptDataError, match=f"claims a length of {shortest - 1} bytes"):
        of(shortest - 1)


def test_a_batch_that_is_truncated_after_its_length_is_left_for_the_next_fetch():
    whole = batch(0, 3)
    assert span_of_batches(memoryview(whole + batch(3, 1)[:12])) == BatchSpan(len(whole), 3, ((0, 7),))


def test_a_length_that_cannot_be_is_seen_though_nothing_comes_behind_it():
    with pytest.raises(CorruptDataError, match="claims a length of 13 bytes"):
        span_of_batches(memoryview(batch(0, 3) + struct.pack(">qi", 3, 13)))
