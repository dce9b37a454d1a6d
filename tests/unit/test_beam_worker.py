"""What a worker process keeps between two calls: readers that go on fetching."""

from __future__ import annotations

import pytest

from headrace.runners.beam import worker
from headrace.runners.beam.worker import ParkedReaders
from tests.helpers.driving import split


class FakeReader:
    closed = False

    def close(self):
        self.closed = True


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def parked(now):
    return ParkedReaders(lambda: now[0])


def test_a_reader_is_taken_over_at_the_position_where_it_stands(parked):
    reader = FakeReader()
    parked.park(reader, split("a", 5))
    assert parked.take(split("a", 5)) is reader
    assert parked.take(split("a", 5)) is None
    assert not reader.closed


def test_a_reader_that_stands_elsewhere_is_closed(parked):
    reader = FakeReader()
    parked.park(reader, split("a", 5))
    assert parked.take(split("a", 3)) is None
    assert reader.closed


def test_a_reader_with_another_stop_is_closed(parked):
    reader = FakeReader()
    parked.park(reader, split("a", 5))
    assert parked.take(split("a", 5, 9)) is None
    assert reader.closed


def test_a_second_reader_of_a_split_takes_the_place_of_the_first(parked):
    first, second = FakeReader(), FakeReader()
    parked.park(first, split("a", 5))
    parked.park(second, split("a", 5))
    assert first.closed
    assert parked.take(split("a", 5)) is second


def test_readers_that_nobody_takes_are_closed(parked, now):
    old, young = FakeReader(), FakeReader()
    parked.park(old, split("a", 5))
    now[0] = 8.0
    parked.park(young, split("b", 5))
    now[0] = 11.0
    assert parked.sweep(10.0) == 1
    assert (old.closed, young.closed) == (True, False)


def test_so_many_are_parked_and_then_the_oldest_is_closed(parked, monkeypatch):
    monkeypatch.setattr(parked, "_most", 2)
    readers = [FakeReader() for _ in range(3)]
    for number, reader in enumerate(readers):
        parked.park(reader, split(str(number)))
    assert [reader.closed for reader in readers] == [True, False, False]


def test_the_last_user_of_a_transform_closes_what_is_parked():
    first, second = worker.join("t"), worker.join("t")
    assert first is second
    reader = FakeReader()
    first.readers.park(reader, split("a"))
    worker.leave("t")
    assert not reader.closed
    worker.leave("t")
    assert reader.closed


def test_a_call_that_outlives_its_transform_leaves_no_reader_behind():
    """A cancelled pipeline's DoFn is torn down while it still processes."""
    orphaned = worker.join("t")
    worker.leave("t")
    reader = FakeReader()
    orphaned.readers.park(reader, split("a"))
    assert reader.closed


def test_transforms_do_not_share():
    one, other = worker.join("one"), worker.join("other")
    assert one is not other
    worker.leave("one")
    worker.leave("other")
