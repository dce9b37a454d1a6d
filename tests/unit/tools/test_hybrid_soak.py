"""The soak of hybrid sources: its oracle finds what is wrong, and so it was with its committed runs and injected bugs."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.soak.hybrid_soak import BAD, PHASES, judged

COMMITTED = json.loads((Path(__file__).parents[3] / "benchmarks" / "results" / "hybrid-soak.json").read_text())
RIGHT = {"lost": 0, "doubled": 0, "foreign": 0}


@pytest.mark.parametrize(("found", "wrong"), [
    ((0, 1, 2), {}), ((0, 2), {"lost": 1}), ((0, 1, 1, 1, 2), {"doubled": 2}), ((0, 1, 2, 3), {"foreign": 1}),
])  # fmt: skip
def test_each_number_is_wanted_once(found, wrong):
    assert judged(Counter(found), range(3)) == RIGHT | wrong


def test_committed_runs_are_right_and_those_of_injected_bugs_are_not():
    wrong = {(run["bug"], kind) for run in COMMITTED for kind in BAD if run[kind]}
    assert wrong == {("double", "doubled"), ("loss", "lost")}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("engine", ["spark", "run", "flink"])
def test_there_were_ten_kills_in_each_phase(engine, phase):
    kills = [run["kills"] for run in COMMITTED if run["engine"] == engine and run["bug"] is None]
    assert sum(count for each in kills for name, count in each.items() if name.startswith(f"{phase}:")) >= 10
