from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.enumerator import SplitBatch
from headrace.enumerator.errors import ProtocolViolationError
from headrace.enumerator.progress import ReaderProgress
from headrace.testing.memory import SCHEMA, MemorySplit
from tests.helpers.driving import finished, reading, split

NOTHING = pa.RecordBatch.from_pylist([], schema=SCHEMA)


def progress_of(*splits: MemorySplit) -> ReaderProgress[MemorySplit]:
    progress: ReaderProgress[MemorySplit] = ReaderProgress()
    progress.assigned(splits)
    return progress


def test_a_split_that_delivered_nothing_is_where_it_started():
    assert progress_of(split("a", 5)).snapshot() == {"a": reading("a", 5)}


def test_a_position_is_where_the_last_delivered_batch_ended():
    progress = progress_of(split("a"), split("b"))
    progress.delivered(SplitBatch(split("a", 7), NOTHING))
    assert progress.snapshot() == {"a": reading("a", 7), "b": reading("b", 0)}


def test_a_snapshot_does_not_move_with_the_reader():
    progress = progress_of(split("a"))
    before = progress.snapshot()
    progress.delivered(SplitBatch(split("a", 7), NOTHING))
    assert before == {"a": reading("a", 0)}


def test_a_finished_split_is_reported_until_a_completed_checkpoint_has_it():
    """FLINK-37416"""
    progress = progress_of(split("a", 0, 9))
    progress.delivered(SplitBatch(split("a", 9, 9), NOTHING, finished=True))
    reported = progress.snapshot()
    assert (reported, progress.snapshot()) == ({"a": finished("a", 9)}, reported)
    progress.checkpoint_completed(reported)
    assert progress.snapshot() == {}


def test_a_checkpoint_may_be_completed_after_another_one_that_reported_the_same():
    progress = progress_of(split("a", 0, 9))
    progress.delivered(SplitBatch(split("a", 9, 9), NOTHING, finished=True))
    reported = progress.snapshot()
    progress.checkpoint_completed(reported)
    progress.checkpoint_completed(reported)
    assert progress.snapshot() == {}


def test_a_split_that_finished_after_the_snapshot_is_still_to_be_reported():
    progress = progress_of(split("a", 0, 9))
    reported = progress.snapshot()
    progress.delivered(SplitBatch(split("a", 9, 9), NOTHING, finished=True))
    progress.checkpoint_completed(reported)
    assert progress.snapshot() == {"a": finished("a", 9)}


def test_the_end_of_a_split_may_come_without_records():
    progress = progress_of(split("a", 9, 9))
    progress.delivered(SplitBatch(split("a", 9, 9), NOTHING, finished=True))
    assert progress.snapshot() == {"a": finished("a", 9)}


def test_a_batch_of_a_split_that_was_never_assigned_is_refused():
    said = r"^a batch of split a was delivered, but the split was never assigned to this reader$"
    with pytest.raises(ProtocolViolationError, match=said):
        progress_of().delivered(SplitBatch(split("a", 7), NOTHING))


def test_what_has_moved_is_what_no_completed_checkpoint_has():
    progress = progress_of(split("a", 5), split("b", 0), split("c", 0, 9))
    assert progress.moved() == {}
    progress.delivered(SplitBatch(split("a", 7), NOTHING))
    progress.delivered(SplitBatch(split("c", 9, 9), NOTHING, finished=True))
    reported = progress.snapshot()
    assert progress.moved() == {"a": reading("a", 7), "c": finished("c", 9)}
    progress.delivered(SplitBatch(split("a", 8), NOTHING))
    progress.checkpoint_completed(reported)
    assert progress.moved() == {"a": reading("a", 8)}
    progress.assigned([split("a", 3)])
    assert progress.moved() == {}
