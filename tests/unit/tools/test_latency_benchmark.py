"""The delay benchmark: its percentiles, its oracle with injected anomalies, and a load that leaves out no late record."""

import numpy as np
import pytest

from benchmarks.delay.commit import read_steps
from benchmarks.delay.judge import Seen, delays_ms, judge, percentiles
from benchmarks.delay.load import NS, Schedule
from benchmarks.delay.records import HEAD, RecordMaker, read_back
from benchmarks.restore.records import record_ids

PRODUCED = [3, 2]
MS = NS // 1000


def seen(*records: tuple[int, int, int, int]) -> Seen:
    """By input partition, sequence, due and seen in ms."""
    origin, sequence, due_ms, at_ms = (np.array(column, np.int64) for column in zip(*records, strict=True))
    return Seen(record_ids(origin, sequence), due_ms * MS, at_ms * MS)


GOOD = ((0, 0, 0, 5), (1, 0, 1, 5), (0, 1, 2, 9), (1, 1, 3, 9), (0, 2, 4, 9))


@pytest.mark.parametrize(
    ("records", "flaws"),
    [
        (GOOD, (0, 0, 0)),
        ((*GOOD, (0, 1, 2, 50)), (1, 0, 0)),
        (GOOD[:-1], (0, 1, 0)),
        ((*GOOD, (0, 3, 9, 50), (2, 0, 9, 50)), (0, 0, 2)),
        ((*GOOD[1:], GOOD[1]), (1, 1, 0)),
    ],
)
def test_a_duplicate_a_loss_and_a_stranger_are_counted(records, flaws):
    found = judge(PRODUCED, seen(*records))
    assert (found.duplicates, found.lost, found.foreign) == flaws
    assert found.clean is not any(flaws)


def test_a_delay_is_from_when_the_record_was_due_to_its_first_sight():
    assert delays_ms(seen(*GOOD, (0, 0, 0, 90)), 0, 4 * MS) == {"p50": 5.0, "p99": 7.0, "p99.9": 7.0, "worst": 7.0}
    assert delays_ms(seen(*GOOD), 5 * MS, 9 * MS) == {}


def test_percentiles_are_values_that_were_measured():
    assert percentiles(np.arange(1.0, 1001.0)) == {"p50": 500.0, "p99": 990.0, "p99.9": 999.0, "worst": 1000.0}
    assert percentiles(np.array([3.0])) == {"p50": 3.0, "p99": 3.0, "p99.9": 3.0, "worst": 3.0}


def test_a_load_that_was_held_up_writes_what_was_due_meanwhile_with_the_times_it_was_due():
    schedule = Schedule(1000.0, 0)
    assert schedule.due(2 * MS, 100).tolist() == [0, MS]
    late = [*schedule.due(50 * MS, 30), *schedule.due(50 * MS, 30)]
    assert late == [number * MS for number in range(2, 50)]


def test_a_record_says_which_it_is_and_when_it_was_due():
    due_ns = np.array([5, 7], np.int64)
    values = RecordMaker(100).batch(3, 41, due_ns).column("value")
    found = read_back(values)
    assert {len(value) for value in values.to_pylist()} == {100}
    assert found.ids.tolist() == record_ids(np.array([3, 3]), np.array([41, 42])).tolist()
    assert found.due_ns.tolist() == [5, 7]
    assert HEAD.itemsize < 100


def test_steps_of_a_commit_are_those_that_began_in_the_window():
    lines = [f"store {5 * MS} {9 * MS}", f"store {7 * MS} {8 * MS}", f"end {6 * MS} {16 * MS}", f"store {4 * MS} {99 * MS}"]
    assert read_steps(lines, 5 * MS) == {"store": [4.0, 1.0], "end": [10.0]}
