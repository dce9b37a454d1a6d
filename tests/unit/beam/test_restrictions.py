"""What is left to do of a source, and who may do it: the trackers of the Beam transform."""

from __future__ import annotations

import pytest
from apache_beam.io.iobase import RestrictionProgress
from hypothesis import given
from hypothesis import strategies as st

from headrace.enumerator.errors import ProtocolViolationError
from headrace.enumerator.ledger import SplitState
from headrace.runners.beam.reader_restriction import Claim, Published, ReaderRestriction, ReaderTracker, deal
from headrace.runners.beam.split_restriction import (
    Enumerated,
    EnumerationTracker,
    Fresh,
    HandedOn,
    OffsetSplitTracker,
    SplitTracker,
)
from tests.helpers.driving import checkpoint_of, finished, reading, split


class TestEnumeration:
    def test_what_is_handed_on_after_a_look_is_the_ledger_and_never_fresh(self):
        tracker = EnumerationTracker(Fresh(), bounded=False)
        ledger = checkpoint_of(reading("a", 0))
        assert tracker.try_claim(ledger)
        assert tracker.try_split(0) == (HandedOn(), Enumerated(ledger))
        assert tracker.check_done()

    def test_work_that_the_runner_has_taken_away_cannot_be_claimed(self):
        tracker = EnumerationTracker(Fresh(), bounded=False)
        assert tracker.try_split(0) == (HandedOn(), Fresh())
        assert not tracker.try_claim(checkpoint_of(reading("a", 0)))

    def test_a_complete_enumeration_is_done_and_leaves_nothing(self):
        tracker = EnumerationTracker(Fresh(), bounded=True)
        assert tracker.try_claim(checkpoint_of(reading("a", 0, 9), exhausted=True))
        assert tracker.check_done()
        assert tracker.try_split(0) is None

    def test_one_that_is_neither_complete_nor_handed_on_is_not_done(self):
        tracker = EnumerationTracker(Fresh(), bounded=False)
        tracker.try_claim(checkpoint_of(reading("a", 0)))
        with pytest.raises(ValueError, match="neither completed nor handed on"):
            tracker.check_done()

    def test_it_is_not_divided(self):
        assert EnumerationTracker(Enumerated(checkpoint_of()), bounded=False).try_split(0.5) is None


class TestOpaqueSplit:
    def test_the_rest_is_handed_on_where_the_last_batch_left_it(self):
        tracker = SplitTracker(reading("a", 0), bounded=False)
        assert tracker.try_claim(reading("a", 3))
        primary, rest = tracker.try_split(0)
        assert (primary, rest) == (SplitState(split("a", 3), finished=True), reading("a", 3))
        assert tracker.check_done()
        assert not tracker.try_claim(reading("a", 5))

    def test_a_finished_split_leaves_nothing(self):
        tracker = SplitTracker(reading("a", 0, 3), bounded=True)
        assert tracker.try_claim(finished("a", 3))
        assert tracker.try_split(0) is None
        assert tracker.check_done()

    def test_it_is_not_done_while_it_is_read(self):
        tracker = SplitTracker(reading("a", 0), bounded=False)
        with pytest.raises(ValueError, match="neither read to its end nor handed on"):
            tracker.check_done()


class TestRange:
    def test_a_batch_without_records_moves_the_position(self):
        tracker = OffsetSplitTracker(reading("a", 5))
        assert tracker.try_claim(reading("a", 9))
        assert tracker.try_split(0)[1] == reading("a", 9)

    def test_a_batch_that_reaches_beyond_the_new_stop_is_refused_and_the_rest_stays(self):
        tracker = OffsetSplitTracker(reading("a", 0, 100))
        assert tracker.try_claim(reading("a", 10, 100))
        primary, rest = tracker.try_split(0.5)
        assert (primary, rest) == (reading("a", 0, 55), reading("a", 55, 100))
        assert not tracker.try_claim(reading("a", 60, 100))
        assert tracker.current_restriction() == reading("a", 10, 55)
        with pytest.raises(ValueError, match="offsets from 10 to 55 are left"):
            tracker.check_done()
        assert tracker.try_claim(reading("a", 55, 55))
        assert tracker.check_done()

    def test_a_range_without_a_stop_is_handed_on_but_not_divided(self):
        tracker = OffsetSplitTracker(reading("a", 0))
        assert tracker.try_split(0.5) is None
        assert tracker.try_split(0) == (SplitState(split("a", 0, 0), finished=True), reading("a", 0))

    def test_one_whose_positions_are_published_is_not_divided(self):
        tracker = OffsetSplitTracker(reading("a", 0, 100), divisible=False)
        assert tracker.try_split(0.5) is None
        assert tracker.try_split(0)[1] == reading("a", 0, 100)

    def test_an_empty_range_is_done(self):
        tracker = OffsetSplitTracker(reading("a", 7, 7))
        assert tracker.current_restriction().finished
        assert tracker.check_done()
        assert tracker.try_split(0) is None

    def test_a_stop_at_0_is_a_stop(self):
        assert OffsetSplitTracker(reading("a", 0, 0)).check_done()

    def test_a_split_that_ends_before_its_stop_is_done(self):
        tracker = OffsetSplitTracker(reading("a", 0, 100))
        assert tracker.try_claim(SplitState(split("a", 40, 100), finished=True))
        assert tracker.check_done()

    def test_in_a_range_with_a_stop_a_position_that_goes_back_is_a_bug_of_the_connector(self):
        tracker = OffsetSplitTracker(reading("a", 10, 20))
        with pytest.raises(ProtocolViolationError, match="goes back from offset 10 to 9"):
            tracker.try_claim(reading("a", 9, 20))

    def test_without_a_stop_a_position_goes_back_where_a_source_lets_data_loss_pass(self):
        tracker = OffsetSplitTracker(reading("a", 10))
        assert tracker.try_claim(reading("a", 7))
        assert tracker.current_progress().completed_work == 0
        assert tracker.try_split(0) == (SplitState(split("a", 7, 7), finished=True), reading("a", 7))

    def test_progress_of_a_range_is_in_offsets(self):
        tracker = OffsetSplitTracker(reading("a", 0, 100))
        tracker.try_claim(reading("a", 25, 100))
        progress = tracker.current_progress()
        assert (progress.completed_work, progress.remaining_work) == (25, 75)

    @pytest.mark.parametrize("state", [reading("a", 0), reading("a", 7, 7)])
    def test_nothing_read_and_nothing_left_is_no_division_by_zero_in_beam_2_70(self, state, monkeypatch):
        """Of nothing, all is done. Beam 2.70 divides what is done by all there is, where it is not reported the fraction."""

        def as_in_2_70(progress):
            return progress._completed / progress.total_work if progress._fraction is None else progress._fraction

        monkeypatch.setattr(RestrictionProgress, "fraction_completed", property(as_in_2_70))
        progress = OffsetSplitTracker(state).current_progress()
        assert (progress.fraction_completed, progress.completed_work, progress.remaining_work) == (1.0, 0.0, 0.0)

    def test_without_a_stop_the_backlog_is_up_to_the_end_that_was_last_seen(self):
        tracker = OffsetSplitTracker(reading("a", 10), end=lambda: 50)
        tracker.try_claim(reading("a", 20))
        assert tracker.current_progress().remaining_work == 30
        assert OffsetSplitTracker(reading("a", 10)).current_progress().remaining_work == 0
        assert OffsetSplitTracker(reading("a", 60), end=lambda: 50).current_progress().remaining_work == 0


steps = st.lists(st.one_of(st.integers(1, 30), st.floats(0, 0.99)), max_size=20)


@given(start=st.integers(0, 50), length=st.integers(0, 100), steps=steps)
def test_however_a_range_is_claimed_and_divided_every_offset_is_read_once(start, length, steps):
    """Every piece is worked off by claims (whole numbers) and divisions (fractions); the rest is claimed to its end."""
    todo, read, turns = [reading("a", start, start + length)], [], iter(steps)
    while todo:
        tracker = OffsetSplitTracker(todo.pop())
        while not (state := tracker.current_restriction()).finished:
            at, stop = state.split.next_offset, state.split.stop_offset
            step = next(turns, stop - at)
            if isinstance(step, float):
                if divided := tracker.try_split(step):
                    primary, rest = divided
                    assert primary.split.stop_offset == rest.split.next_offset
                    todo.append(rest)
            elif tracker.try_claim(reading("a", at + step, stop)):
                read += range(at, at + step)
            else:
                assert at + step > stop
                assert tracker.try_claim(reading("a", stop, stop))
                read += range(at, stop)
        tracker.check_done()
    assert sorted(read) == list(range(start, start + length))


def reader_tracker(*splits, unpublished=(), publishes=False):
    return ReaderTracker(ReaderRestriction(splits, tuple(unpublished)), OffsetSplitTracker, publishes=publishes)


def claim(split_id, at, stop=None, *, done=False):
    return Claim(split(split_id, at, stop), done)


class TestReader:
    def test_splits_move_on_by_themselves_and_are_handed_on_together(self):
        tracker = reader_tracker(split("a", 0), split("b", 5))
        assert tracker.try_claim(claim("b", 8))
        assert tracker.try_split(0) == (ReaderRestriction(()), ReaderRestriction((split("a", 0), split("b", 8))))
        assert tracker.check_done()
        late = claim("a", 3)
        assert not tracker.try_claim(late)
        assert late.left is None

    def test_whole_splits_are_moved_and_the_batch_under_way_of_one_is_refused(self):
        tracker = reader_tracker(split("a", 0), split("b", 0), split("c", 0), split("d", 0))
        kept, moved = tracker.try_split(0.5)
        assert kept == ReaderRestriction((split("a", 0), split("b", 0)))
        assert moved == ReaderRestriction((split("c", 0), split("d", 0)))
        late = claim("d", 3)
        assert not tracker.try_claim(late)
        assert late.left is None
        assert tracker.try_claim(claim("a", 3))

    def test_at_least_one_split_stays_and_of_one_a_range_is_truncated(self):
        tracker = reader_tracker(split("a", 0, 100), split("b", 0, 100))
        assert tracker.try_split(0.0001) == (ReaderRestriction((split("a", 0, 100),)), ReaderRestriction((split("b", 0, 100),)))
        assert tracker.try_split(0.5) == (ReaderRestriction((split("a", 0, 50),)), ReaderRestriction((split("a", 50, 100),)))
        cut = claim("a", 60, 100)
        assert not tracker.try_claim(cut)
        assert cut.left == split("a", 0, 50)

    def test_splits_without_an_end_are_moved_but_not_divided(self):
        tracker = reader_tracker(split("a", 0), split("b", 0))
        assert tracker.try_split(0.5) is not None
        assert tracker.try_split(0.5) is None

    def test_a_split_read_to_its_end_is_gone(self):
        tracker = reader_tracker(split("a", 0, 4), split("b", 0, 4))
        last = claim("a", 4, 4, done=True)
        assert tracker.try_claim(last)
        assert last.left is None
        assert tracker.current_restriction() == ReaderRestriction((split("b", 0, 4),))
        with pytest.raises(ValueError, match="neither read to its end nor handed on"):
            tracker.check_done()

    def test_but_stays_until_its_last_position_is_published_where_positions_are(self):
        tracker = reader_tracker(split("a", 0, 4), publishes=True)
        assert tracker.try_claim(claim("a", 4, 4, done=True))
        assert tracker.current_restriction() == ReaderRestriction((), (split("a", 4, 4),))
        with pytest.raises(ValueError, match=r"last positions of .'a'. were neither published nor handed on"):
            tracker.check_done()
        assert tracker.try_claim(Published("a"))
        assert tracker.check_done()
        assert tracker.try_split(0) is None

    def test_last_positions_are_handed_on_and_not_moved(self):
        tracker = reader_tracker(split("a", 0), split("b", 0), unpublished=[split("c", 4, 4)], publishes=True)
        kept, moved = tracker.try_split(0.5)
        assert (kept.unpublished, moved.unpublished) == ((split("c", 4, 4),), ())
        assert tracker.try_split(0)[1] == ReaderRestriction((split("a", 0),), (split("c", 4, 4),))

    def test_progress_is_the_sum(self):
        tracker = reader_tracker(split("a", 0, 10), split("b", 0, 20))
        tracker.try_claim(claim("a", 10, 10, done=True))
        tracker.try_claim(claim("b", 5, 20))
        progress = tracker.current_progress()
        assert (progress.completed_work, progress.remaining_work) == (15, 15)

    def test_splits_are_dealt_out(self):
        splits = [split(name, 0) for name in "abcde"]
        assert [[s.split_id for s in part.reading] for part in deal(splits, 2)] == [["a", "c", "e"], ["b", "d"]]
        assert len(deal(splits, 9)) == 5
        assert deal([], 4) == []
