"""What a worker process keeps between two calls: readers that continue fetching."""

from __future__ import annotations

import gc
import threading
import weakref
from unittest.mock import Mock

import pytest

from headrace.enumerator.errors import CorruptDataError, RetriableError
from headrace.runners.beam import worker
from headrace.runners.beam.worker import MOST_CACHED, Cached, CachedReaders, Ends
from tests.helpers.driving import split


class FakeReader:
    closed = False

    def close(self):
        self.closed = True


def positions(*splits):
    return {item.split_id: item for item in splits}


def standing(reader, *splits):
    return Cached(reader, positions(*splits), {})


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def cached(now):
    return CachedReaders(lambda: now[0])


def test_a_reader_is_taken_over_at_the_position_where_it_is(cached):
    reader = FakeReader()
    cached.cache(standing(reader, split("a", 5)))
    assert cached.take(positions(split("a", 5))).reader is reader
    assert cached.take(positions(split("a", 5))) is None
    assert not reader.closed


@pytest.mark.parametrize("where", [split("a", 3), split("a", 5, 9)], ids=["elsewhere", "with another stop"])
def test_a_reader_that_is_not_where_it_is_asked_for_is_closed(cached, where):
    reader = FakeReader()
    cached.cache(standing(reader, split("a", 5)))
    assert cached.take(positions(where)) is None
    assert reader.closed


def test_a_second_reader_of_a_split_takes_the_place_of_the_first(cached):
    first, second = FakeReader(), FakeReader()
    cached.cache(standing(first, split("a", 5)))
    cached.cache(standing(second, split("a", 5)))
    assert first.closed
    assert cached.take(positions(split("a", 5))).reader is second


def test_a_reader_of_many_splits_is_taken_over_when_all_of_them_stand_where_it_left_them(cached):
    first, second = FakeReader(), FakeReader()
    cached.cache(standing(first, split("a", 5), split("b", 7)))
    cached.cache(standing(second, split("b", 7)))
    assert cached.take(positions(split("b", 7), split("a", 5))).reader is first
    assert cached.take(positions(split("a", 5))) is None
    cached.cache(standing(first, split("a", 5), split("b", 7)))
    assert cached.take(positions(split("a", 5), split("b", 8))) is None
    assert (first.closed, second.closed) == (True, False)


def test_many_busy_readers_take_turns_and_each_is_there_when_its_turn_comes(cached, now):
    """16 splits, each with a call of one second on one thread: a timeout of 10 seconds threw every reader away, each round."""
    readers = [FakeReader() for _ in range(40)]
    for number, reader in enumerate(readers):
        cached.cache(standing(reader, split(str(number))))
        now[0] += 1.0
        cached.clean_up_late()
    assert [reader.closed for reader in readers] == [False] * 40
    now[0] += 2.0 * 40
    assert cached.clean_up_late() == 0


def test_over_many_calls_with_changing_splits_this_many_readers_are_kept_and_no_more(cached, now):
    kept = []
    for number in range(3000):
        reader = FakeReader()
        kept.append(weakref.ref(reader))
        cached.cache(standing(reader, split(str(number % 500), number), split("always", number)))
        now[0] += 0.01
        del reader
    gc.collect()
    assert len([1 for reader in kept if reader() is not None]) == len(cached) == MOST_CACHED


def test_readers_that_no_process_takes_are_closed(cached, now):
    old, young = FakeReader(), FakeReader()
    cached.cache(standing(old, split("a", 5)))
    now[0] = 8.0
    cached.cache(standing(young, split("b", 5)))
    now[0] = 11.0
    assert cached.clean_up(10.0) == 1
    assert (old.closed, young.closed) == (True, False)


def test_this_many_are_cached_and_then_the_oldest_is_closed(cached, monkeypatch):
    monkeypatch.setattr(cached, "_most", 2)
    readers = [FakeReader() for _ in range(3)]
    for number, reader in enumerate(readers):
        cached.cache(standing(reader, split(str(number))))
    assert [reader.closed for reader in readers] == [True, False, False]


def test_the_last_user_of_a_transform_closes_what_is_cached():
    first, second = worker.join("t"), worker.join("t")
    assert first is second
    reader = FakeReader()
    first.readers.cache(standing(reader, split("a")))
    worker.leave("t")
    assert not reader.closed
    worker.leave("t")
    assert reader.closed


def test_a_call_that_outlives_its_transform_leaves_no_reader_behind():
    """A cancelled pipeline's DoFn is partially committed down while it still processes."""
    orphaned = worker.join("t")
    worker.leave("t")
    reader = FakeReader()
    orphaned.readers.cache(standing(reader, split("a")))
    assert reader.closed


def test_transforms_do_not_share():
    one, other = worker.join("one"), worker.join("other")
    assert one is not other
    worker.leave("one")
    worker.leave("other")


class TestEnds:
    def test_a_call_does_not_wait_for_what_is_only_a_hint(self):
        """The look-up of where splits end rides out an outage of 60 s, and a call was still for it."""
        ends, may_answer = Ends(), threading.Event()

        def look(splits):
            may_answer.wait(60)
            return {item.split_id: 9 for item in splits}

        ends.ask([split("a", 5)], look)
        assert ends.of("a") is None
        assert not may_answer.is_set()
        may_answer.set()
        assert ends.wait(30)
        assert ends.of("a").offset == 9

    def test_what_is_asked_while_a_question_is_out_is_asked_together_afterwards(self):
        ends, out, may_answer, asked = Ends(), threading.Event(), threading.Event(), []

        def look(splits):
            asked.append(sorted(item.split_id for item in splits))
            out.set()
            may_answer.wait(60)
            return {}

        ends.ask([split("a", 5)], look)
        assert out.wait(30)
        for split_id in "bcb":
            ends.ask([split(split_id, 5)], look)
        may_answer.set()
        assert ends.wait(30)
        assert asked == [["a"], ["b", "c"]]

    @pytest.mark.parametrize(("error", "raised"), [(RetriableError("no leader"), False), (CorruptDataError("rubbish"), True)])
    def test_only_what_cannot_pass_is_raised_and_once(self, error, raised):
        ends = Ends()
        ends.ask([split("a", 5)], Mock(side_effect=error))
        assert ends.wait(30)
        if raised:
            with pytest.raises(CorruptDataError):
                ends.of("a")
        assert ends.of("a") is None
