"""SQL handles: what was written is read, and names keep jobs apart within the databases' limits."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.sink import Attempt, CommitList
from headrace.connectors.sql.handles import (
    SqlHandle,
    SqlHandleSerializer,
    attempt_prefix,
    job_prefix,
    new_gid,
    place_digest,
    split_gid,
)
from headrace.enumerator.errors import StateError, UsageError
from tests.helpers.envelopes import resealed

PLACE = "0a1b2c3d"
serializer = SqlHandleSerializer()
jobs = st.from_regex(r"[A-Za-z0-9_-]{1,100}", fullmatch=True)
attempts = st.builds(Attempt, jobs, st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))


@given(attempts, st.integers(0, 2**63 - 1))
def test_what_is_written_is_read_back(attempt, rows):
    handle = SqlHandle(new_gid(PLACE, attempt), rows)
    assert serializer.deserialize(1, json.loads(json.dumps(serializer.serialize(handle)))) == handle
    assert pickle.loads(pickle.dumps(handle)) == handle


@given(attempts)
def test_names_are_within_the_limits_of_every_database(attempt):
    gid = new_gid(PLACE, attempt)
    assert len(gid.encode()) < 200
    job, branch = split_gid(gid)
    assert len(job.encode()) <= 64
    assert len(branch.encode()) <= 64
    assert f"{job}.{branch}" == gid
    assert gid.startswith(attempt_prefix(PLACE, attempt))
    assert gid.startswith(job_prefix(PLACE, attempt.job))


def test_a_name_comes_once():
    attempt = Attempt("q", 0, 0, 0)
    assert new_gid(PLACE, attempt) != new_gid(PLACE, attempt)


@given(jobs, jobs)
def test_no_jobs_prefix_starts_another_jobs(one, other):
    if one != other:
        assert not job_prefix(PLACE, one).startswith(job_prefix(PLACE, other))


def test_jobs_that_look_alike_are_reported_apart():
    alike = ["q1", "q10", "q", "x" * 100, "x" * 99 + "y", "x" * 13, "x" * 46, "x" * 47]
    prefixes = [job_prefix(PLACE, job) for job in alike]
    assert not any(a != b and a.startswith(b) for a in prefixes for b in prefixes)
    assert not job_prefix(place_digest("a"), "q").startswith(job_prefix(place_digest("b"), "q"))
    assert place_digest("a", "bc") != place_digest("ab", "c")


def test_attempts_are_reported_apart():
    assert not new_gid(PLACE, Attempt("q", 1, 1, 10)).startswith(attempt_prefix(PLACE, Attempt("q", 1, 1, 1)))


@pytest.mark.parametrize("job", ["", "a.b", "a%", "a'b", "x" * 101, "ä"])
def test_what_could_be_no_name_is_refused(job):
    with pytest.raises(UsageError, match="job's name"):
        job_prefix(PLACE, job)


@pytest.mark.parametrize("attempt", [Attempt("q", -1, 0, 0), Attempt("q", 0, 10**30, 10**30)])
def test_numbers_that_do_not_fit_are_refused(attempt):
    with pytest.raises(UsageError, match="name of a transaction"):
        new_gid(PLACE, attempt)


@pytest.mark.parametrize("value", [
    {"gid": "x'; DROP TABLE orders; --", "rows": 1}, {"gid": "headrace.0a1b2c3d.q.1.1.1.00c0ffee'", "rows": 1},
    {"gid": "headrace.0a1b2c3d.q.1.1.00c0ffee", "rows": 1}, {"gid": f"headrace.0a1b2c3d.q.{'1' * 70}.1.1.00c0ffee", "rows": 1},
    {"gid": "headrace.0a1b2c3d.q.1.1.1.00c0ffee", "rows": -1}, {"gid": "headrace.0a1b2c3d.q.1.1.1.00c0ffee", "rows": "1"},
    {"gid": "headrace.0a1b2c3d.q.1.1.1.00c0ffee"}, {"gid": 1, "rows": 1}, [],
])  # fmt: skip
def test_a_damaged_list_is_refused(value):
    lists = CommitListSerializer(serializer)
    data = resealed(lists.serialize(CommitList(1, ())), handles=[value])
    with pytest.raises(StateError, match="damaged"):
        lists.deserialize(data, "here")


def test_a_newer_version_is_refused():
    with pytest.raises(ValueError, match="version 2"):
        serializer.deserialize(2, {})
