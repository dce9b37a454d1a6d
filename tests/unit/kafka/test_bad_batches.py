"""Where a record batch ends that cannot be decoded."""

from __future__ import annotations

import pytest

from headrace.connectors.kafka.format.fetch_protocol import PartitionAnswer
from headrace.connectors.kafka.read.bad_batches import second_look
from tests.helpers.record_batches import batch, numbered


def answer(records, high_watermark, last_stable=None):
    return PartitionAnswer(
        topic="t", topic_id=None, partition=0, error=0, high_watermark=high_watermark, last_stable_offset=last_stable,
        log_start_offset=0, aborted=None if last_stable is None else [], preferred_replica=None, diverging=None,
        leader=None, records=memoryview(records),
    )  # fmt: skip


def with_end(data, delta):
    damaged = bytearray(data)
    damaged[23:27] = delta.to_bytes(4, "big", signed=True)
    return bytes(damaged)


THREE = batch(numbered(3), base=5)
NEXT = batch(numbered(2), base=8)


@pytest.mark.parametrize("behind", [NEXT, NEXT[:20]], ids=["whole", "truncated"])
@pytest.mark.parametrize("delta", [2, 50])
def test_what_lies_behind_it_says_where_it_ends(behind, delta):
    found = second_look(answer(with_end(THREE, delta) + behind, high_watermark=100))
    assert (found.last, bytes(found.batch.data)) == (7, with_end(THREE, delta))


@pytest.mark.parametrize(("delta", "high_watermark", "last_stable", "last"), [
    (2, 8, None, 7),  # the last of the log
    (2, 100, None, 7),  # of a segment; it has as many records as offsets
    (4, 10, None, 9),  # compacted, and the last of the log
    (4, 100, 10, 9),  # or of what may be read
    (4, 100, None, None), (1, 8, None, None),
    (50, 40, None, None),  # behind the end of the log
    (50, 100, 10, None), (-2, 100, None, None), (-2147483648, 100, None, None),
])  # fmt: skip
def test_at_the_end_of_an_answer_its_header_is_believed_where_something_agrees(delta, high_watermark, last_stable, last):
    assert second_look(answer(with_end(THREE, delta), high_watermark, last_stable)).last == last


def test_one_behind_it_that_starts_before_it_says_nothing():
    assert second_look(answer(THREE + batch(numbered(1), base=4), 100)).last is None


@pytest.mark.parametrize("cut", [0, 10, 60, len(THREE) - 1])
def test_what_is_no_whole_batch_has_no_end(cut):
    assert second_look(answer(THREE[:cut], 100)) is None
    broken = bytearray(THREE)
    broken[8:12] = (3).to_bytes(4, "big")
    assert second_look(answer(bytes(broken), 100)) is None
