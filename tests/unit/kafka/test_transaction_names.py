"""Transactional ids: what is made is read back, what others make is not ours, and reading them imports no client."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.connectors.kafka.write.names import JobNames, ListKey, Role, TransactionName, digest_of, parse_key, parse_name
from headrace.kafka import KafkaSink
from tests.helpers.python_path import printed

JOBS = st.text("abcXYZ019-_", min_size=1, max_size=20)
NUMBERS = st.integers(0, 2**63 - 1)


@given(JOBS, JOBS, NUMBERS, NUMBERS, NUMBERS)
@example("headrace", "job", 0, 0, 2**62)  # regression: a worker of Beam's, whose numbers are random
def test_names_are_read_as_the_sink_writes_them(prefix, job, epoch, task, number):
    names = KafkaSink("h:1", topic="out", transactional_id_prefix=prefix).names(job)
    made = names.task(epoch, task, number)
    assert parse_name(made) == TransactionName(prefix, job, Role.TASK, digest_of("out"), epoch % 2, task, number)
    assert made.startswith(names.beginning)
    assert parse_name(names.driver) == TransactionName(prefix, job, Role.DRIVER, digest_of("out"))
    assert parse_name(names.repair) == TransactionName(prefix, job, Role.REPAIR, digest_of("out"))


@pytest.mark.parametrize("other", [
    *("", "app", "app-1", "a.b", "a.b.c", "a.b.1.2", "a.b.1.2.x", "a.b.1.2.-3", "a.b.1.2.3.4", "a.b.1.2.²", "a.b.task"),
    # findings: what `check_job` or a slot cannot be, and numbers that we write otherwise
    *(".b.1.2.3", "a..1.2.3", "a b.c.1.2.3", "a.b.2.2.3", "a.b.01.2.3", "a.b.1.02.3", "a.b.1.2.3\n", f"a.{'b' * 101}.1.2.3"),
    *("a.b.0123456g.1.2.3", "a.b.0123ABCD.1.2.3", f"a.b.1.2.{10**19}"),
])  # fmt: skip
def test_names_of_others_are_not_ours(other):
    assert parse_name(other) is None


def test_no_job_starts_as_another_does():
    assert not JobNames("p", "q10", "t").task(0, 0, 0).startswith(JobNames("p", "q1", "t").of_job)


def test_no_destination_has_the_names_of_another():
    assert not JobNames("p", "q", "t1").task(0, 0, 0).startswith(JobNames("p", "q", "t2").beginning)


@pytest.mark.parametrize("name", ["p.q.1.20.3", "p.q.driver", "p.q.repair"])
def test_an_id_without_a_destination_is_none_of_ours(name):
    assert parse_name(name) is None


def test_a_lists_key_says_whose_it_is():
    assert parse_key(JobNames("p", "q", "t").key) == ListKey("q", "p", digest_of("t"))
    assert parse_key("q") == ListKey("q")


def test_two_epochs_in_a_row_and_two_attempts_share_no_name():
    names = JobNames("p", "q", "t")
    made = {names.task(epoch, task, attempt) for epoch in (7, 8) for task in (0, 1) for attempt in (0, 1)}
    assert len(made | {names.driver, names.repair}) == 10


def test_reading_names_imports_no_client():
    code = (
        "import sys, headrace.connectors.kafka.write.names; "
        "print([m for m in ('kafka', 'pyarrow', 'tenacity', 'headrace.connectors.base.sink') if m in sys.modules])"
    )
    assert printed(code) == "[]"
