"""Random plans on Spark give the rows that the same plans give over a table; each injected bug is found."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from headrace.testing import FakeKafka
from tests.helpers.spark_tools import stop_session
from tests.values.bugs import plans as bugs
from tests.values.plans import Bench, DifferenceError, search, start_session

pytestmark = [pytest.mark.full, pytest.mark.spark]

SEED, CASES, PLANS = 1, 12, 6


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


def test_plans_give_what_they_give_over_a_table(spark, kafka):
    bench = Bench(spark, kafka)
    search(bench.play, SEED, CASES, PLANS)
    assert bench.counts["plans"] >= CASES * PLANS / 2


@pytest.mark.parametrize("made", bugs.FORMATS)
def test_a_format_with_a_bug_is_found(spark, kafka, made):
    with pytest.raises(DifferenceError):
        search(Bench(spark, kafka, made.name()).play, SEED, CASES, PLANS)


def test_a_view_that_is_planned_for_each_use_is_found(spark, kafka):
    with bugs.planned_for_each_use(), pytest.raises(DifferenceError):
        search(Bench(spark, kafka).play, SEED, CASES, PLANS)
