"""The soak of tokens: what it searches for it finds, and what must not be is never taken for good."""

import json
from pathlib import Path

import pytest

from tests.soak.token_authority import TokenAuthority
from tests.soak.token_soak import LONGEST_GAP_S, SECRET, is_good, leaks

COMMITTED = Path(__file__).parents[3] / "benchmarks" / "results" / "token-soak.json"


def test_a_secret_and_a_token_are_found_wherever_they_lie(tmp_path):
    with TokenAuthority("job", SECRET, 20.0) as authority:
        token = authority.issue()
        (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
        (tmp_path / "log").write_text("nothing")
        assert leaks(authority, tmp_path) == []
        (tmp_path / "log").write_text(f"a plan with {SECRET} in it")
        (tmp_path / "checkpoint" / "offsets" / "0").write_bytes(b"\0" + token.encode())
        assert sorted(leaks(authority, tmp_path)) == ["checkpoint/offsets/0", "log"]


def test_the_committed_result_is_good():
    assert is_good(json.loads(COMMITTED.read_text()))


@pytest.mark.parametrize("change", [
    {"written": 0, "read": 0}, {"read": 1}, {"tokens": 1}, {"longest_gap_s": LONGEST_GAP_S + 0.1},
    {"problems": ["AuthenticationError"]}, {"lost": 1}, {"duplicates": 1}, {"leaks": ["log"]},
])  # fmt: skip
def test_a_result_with_anything_wrong_is_not_good(change):
    assert not is_good(json.loads(COMMITTED.read_text()) | change)
