"""Random plans on Spark give the rows that the same plans give over a table; each injected bug is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("pyspark")

from headrace.testing import FakeKafka
from tests.helpers.spark_tools import stop_session
from tests.values.bugs import plans as bugs
from tests.values.plans import Bench, DifferenceError, search, start_session

pytestmark = pytest.mark.spark

SEED, CASES, PLANS = 1, 12, 6
CASES_OF_A_BUG = 50
"""Most of them are found in the first few."""


@pytest.fixture(scope="module")
def spark():
    session = start_session()
    for made in bugs.FORMATS:
        session.dataSource.register(made)
    yield session
    stop_session(session)


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        yield cluster


def test_a_short_run_of_plans(spark, kafka):
    search(Bench(spark, kafka).play, SEED, 2, PLANS)


def test_plans_give_what_they_give_over_a_table(spark, kafka):
    bench = Bench(spark, kafka)
    search(bench.play, SEED, CASES, PLANS)
    assert bench.counts["plans"] >= CASES * PLANS / 2


# Small actions for what the last filter of an action does to the next action.
@pytest.mark.parametrize(("made", "plans"), [(bugs.PrunedScans, 3), (bugs.CutRanges, PLANS), (bugs.NeverNull, PLANS)])
def test_a_format_with_a_bug_is_found(spark, kafka, made, plans):
    """Their batch readers have the bugs; with pushdown on, as Spark refuses a reader that takes filters where it is off."""
    bench = Bench(spark, kafka, made.name())
    with pytest.raises(DifferenceError):
        search(lambda case: bench.play(replace(case, how="view", pushdown=True, grows=False)), SEED, CASES_OF_A_BUG, plans)


def test_a_view_that_is_planned_for_each_use_is_found(spark, kafka):
    bench = Bench(spark, kafka)
    with bugs.planned_for_each_use(), pytest.raises(DifferenceError):
        search(lambda case: bench.play(replace(case, how="view", grows=True)), SEED, CASES_OF_A_BUG, PLANS)
