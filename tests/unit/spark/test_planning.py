from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runners.spark.planning import (
    LEAST_TASK_RECORDS,
    PARALLELISM_VARIABLE,
    TASK_RECORDS,
    OffsetRange,
    admit,
    plan_tasks,
    told_parallelism,
)

BACKLOGS = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.tuples(st.integers(0, 1000), st.integers(0, 10**6)))
RANGES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 200_000)), max_size=12).map(
    lambda items: [OffsetRange(f"s{number:02}", start, start + size) for number, (start, size) in enumerate(items)]
)
LIMITS = st.none() | st.integers(1, 300_000)


@pytest.mark.parametrize(
    ("starts", "ends", "limit", "admitted"),
    [
        ({"a": 3, "b": 0}, {"a": 10, "b": 0}, None, {"a": 10, "b": 0}),
        ({"a": 0, "b": 0}, {"a": 4, "b": 6}, 10, {"a": 4, "b": 6}),
        ({"a": 0, "b": 100}, {"a": 300, "b": 200}, 100, {"a": 75, "b": 125}),
        ({"a": 0, "b": 0}, {"a": 3, "b": 1}, 2, {"a": 1, "b": 1}),
        ({"a": 10, "b": 0}, {"a": 3, "b": 5}, None, {"a": 10, "b": 5}),
    ],
    ids=["all without a limit", "all within it", "in proportion", "rounded down", "an end before its start"],
)
def test_what_is_admitted_of_a_backlog_by_a_limit(starts, ends, limit, admitted):
    assert admit(starts, ends, limit) == admitted


def test_a_backlog_of_exactly_the_limit_is_admitted_to_its_last_record_however_large():
    """A share of it would be computed in a float, which has not this many digits."""
    size = 2**60 + 1
    assert admit({"a": 0}, {"a": size}, size) == {"a": size}


def test_a_small_backlog_does_not_starve():
    assert admit({"a": 0, "b": 0}, {"a": 1_000_000, "b": 1}, 10)["b"] == 1


@given(BACKLOGS, st.integers(1, 10**6))
def test_admission_never_leaves_the_range_nor_passes_the_limit_by_more_than_a_record_a_split(backlogs, limit):
    starts = {name: start for name, (start, _) in backlogs.items()}
    ends = {name: start + size for name, (start, size) in backlogs.items()}
    admitted = admit(starts, ends, limit)
    assert all(starts[name] <= admitted[name] <= ends[name] for name in starts)
    assert all(admitted[name] > starts[name] for name in starts if ends[name] > starts[name])
    assert sum(admitted[name] - starts[name] for name in starts) <= limit + len(starts)


@pytest.mark.parametrize("parallelism", [None, 2])
def test_planning_takes_time_and_memory_by_the_ranges_and_not_by_their_records(parallelism):
    ranges = [OffsetRange("a", 0, 10**15), OffsetRange("b", 0, 10**15)]
    assert plan_tasks(ranges, parallelism=parallelism) == [[item] for item in ranges]


def test_nothing_to_read_makes_no_task():
    assert plan_tasks([OffsetRange("a", 5, 5), OffsetRange("b", 5, 3)]) == []


def test_small_ranges_share_a_task():
    ranges = [OffsetRange("a", 0, 10), OffsetRange("b", 5, 6)]
    assert plan_tasks(ranges) == [ranges]


@pytest.mark.parametrize("parallelism", [16, 8, 5, 2, 1])
def test_ranges_are_packed_over_the_tasks_that_run_at_once(parallelism):
    tasks = plan_tasks([OffsetRange(f"s{number:02}", 0, 4000) for number in range(16)], parallelism=parallelism)
    assert len(tasks) >= parallelism
    assert max(map(len, tasks)) <= math.ceil(16 / parallelism)


def test_ranges_are_packed_evenly():
    ranges = [OffsetRange(f"s{number:02}", 0, 4000) for number in range(16)]
    assert [len(task) for task in plan_tasks(ranges, parallelism=2)] == [8, 8]


def test_sixteen_partitions_of_4000_records_are_no_single_task_where_the_cores_are_not_known():
    """Regression: they were one task, where the JVM connector runs sixteen."""
    ranges = [OffsetRange(f"s{number:02}", 0, 4000) for number in range(16)]
    assert plan_tasks(ranges) == [[item] for item in ranges]


@pytest.mark.parametrize("parallelism", [None, 1, 200])
def test_a_batch_of_nearly_nothing_is_one_task_however_many_run_at_once(parallelism):
    ranges = [OffsetRange(f"s{number:03}", 0, 2) for number in range(100)]
    assert plan_tasks(ranges, parallelism=parallelism) == [ranges]


@pytest.mark.parametrize(("text", "settings"), [("8", 8), ("", None), ("0", None), ("-1", None), ("many", None), ("²", None)])
def test_the_parallelism_is_what_the_environment_shows(monkeypatch, text, settings):
    monkeypatch.setenv(PARALLELISM_VARIABLE, text)
    assert told_parallelism() == settings


def test_without_being_reported_the_parallelism_is_not_known(monkeypatch):
    monkeypatch.delenv(PARALLELISM_VARIABLE, raising=False)
    assert told_parallelism() is None


def test_a_task_is_filled_to_its_last_record():
    full = [OffsetRange("a", 0, LEAST_TASK_RECORDS - 1), OffsetRange("b", 0, 1)]
    assert plan_tasks(full) == [full]
    assert len(plan_tasks([*full, OffsetRange("c", 0, 1)])) == 2


def test_ranges_are_packed_in_the_order_of_their_splits():
    """So that the tasks of a replay are the same."""
    a, b, c = OffsetRange("a", 5, 6), OffsetRange("b", 0, 10), OffsetRange("c", 3, 4)
    assert plan_tasks([b, c, a]) == [[a, b, c]]


def test_a_range_as_large_as_a_task_has_one_to_itself():
    large = OffsetRange("b", 0, TASK_RECORDS)
    small = [OffsetRange("a", 0, 10), OffsetRange("c", 0, 10)]
    assert plan_tasks([*small, large], parallelism=1) == [small, [large]]


@pytest.mark.parametrize("sizes", [(2050, 2010, 1990, 1950), (3000, 2000, 2000, 1000), (1, 4000, 2000, 2001, 1)])
def test_there_is_no_task_more_than_can_run_at_once(sizes):
    """Regression: four partitions with nearly the same number of records were three tasks for two cores."""
    ranges = [OffsetRange(f"s{number}", 0, size) for number, size in enumerate(sizes)]
    tasks = plan_tasks(ranges, parallelism=2)
    assert len(tasks) == 2
    assert max(sum(item.size for item in task) for task in tasks) <= sum(sizes) / 2 * 1.01


@given(RANGES, st.integers(1, 50))
def test_packed_tasks_are_few_and_the_same_whatever_the_order_of_the_ranges(ranges, parallelism):
    tasks = plan_tasks(ranges, parallelism=parallelism)
    assert tasks == plan_tasks(ranges[::-1], parallelism=parallelism)
    assert len(tasks) <= max(parallelism, 2 * math.ceil(sum(item.size for item in ranges if item.size > 0) / TASK_RECORDS))


def test_a_large_range_is_cut_evenly():
    tasks = plan_tasks([OffsetRange("a", 0, 10)], max_task_records=4)
    assert tasks == [[OffsetRange("a", 0, 3)], [OffsetRange("a", 3, 6)], [OffsetRange("a", 6, 10)]]


def test_min_tasks_cuts_the_largest_and_packs_nothing():
    tasks = plan_tasks([OffsetRange("a", 0, 300), OffsetRange("b", 0, 100)], min_tasks=4)
    assert tasks == [[OffsetRange("a", start, start + 100)] for start in (0, 100, 200)] + [[OffsetRange("b", 0, 100)]]


def test_min_tasks_does_not_cut_below_one_record():
    assert plan_tasks([OffsetRange("a", 7, 9)], min_tasks=10) == [[OffsetRange("a", 7, 8)], [OffsetRange("a", 8, 9)]]


@pytest.mark.parametrize("min_tasks", [1, 2])
def test_min_tasks_that_are_there_already_change_nothing(min_tasks):
    ranges = [OffsetRange("a", 0, 3), OffsetRange("b", 0, 3)]
    assert plan_tasks(ranges, min_tasks=min_tasks) == [[ranges[0]], [ranges[1]]]


def test_min_tasks_that_are_there_already_cut_nothing_however_unequal_the_ranges_are():
    ranges = [OffsetRange("a", 0, 100), OffsetRange("b", 0, 1)]
    assert plan_tasks(ranges, min_tasks=2) == [[ranges[0]], [ranges[1]]]


def test_min_tasks_of_nothing_are_none():
    assert plan_tasks([OffsetRange("a", 3, 3)], min_tasks=2) == []


def test_a_range_that_is_cut_is_in_order_over_tasks_that_it_shares():
    tasks = plan_tasks(
        [OffsetRange("a", 0, 1), OffsetRange("b", 0, 2), OffsetRange("c", 0, 1001)], max_task_records=1000, parallelism=1
    )
    assert tasks == [[OffsetRange("b", 0, 2), OffsetRange("c", 0, 500)], [OffsetRange("a", 0, 1), OffsetRange("c", 500, 1001)]]


COUNTS = st.none() | st.integers(1, 50)


@given(RANGES, COUNTS, LIMITS.map(lambda limit: limit and max(limit, 1000)), COUNTS)
def test_tasks_cover_every_offset_once_and_in_order(ranges, min_tasks, max_task_records, parallelism):
    tasks = plan_tasks(ranges, min_tasks=min_tasks, max_task_records=max_task_records, parallelism=parallelism)
    assert all(task and all(piece.size > 0 for piece in task) for task in tasks)
    for item in ranges:
        pieces = [piece for task in tasks for piece in task if piece.split_id == item.split_id]
        edges = [item.start, *(piece.stop for piece in pieces)]
        assert [piece.start for piece in pieces] == edges[:-1]
        assert edges[-1] == (item.stop if pieces else item.start)
        assert bool(pieces) == (item.size > 0)
    if max_task_records is not None:
        assert all(sum(piece.size for piece in task) <= max_task_records for task in tasks)
