"""The soak of PostgreSQL's changes: its oracle finds what is wrong, and so it was with its committed runs."""

import datetime
import json
from pathlib import Path

import pytest

from tests.soak.changes_soak import BAD, KILLS, VICTIMS, difference, replayed
from tests.soak.changes_tables import SHAPES
from tests.soak.results import kept

COMMITTED = json.loads((Path(__file__).parents[3] / "benchmarks" / "results" / "changes-soak.json").read_text())
NAME = SHAPES[0].name
SNAPSHOT = (NAME, "snapshot", 5, "a", 1)
UPDATE, DELETE, INSERT = (NAME, "update", 7, "a", 2), (NAME, "delete", 8, "a", None), (NAME, "insert", 9, "a", 3)


@pytest.mark.parametrize(("changes", "wrong"), [
    ([SNAPSHOT, UPDATE, DELETE, INSERT], {}), ([SNAPSHOT, UPDATE, UPDATE], {"twice": 1}), ([SNAPSHOT, INSERT], {"twice": 1}),
    ([SNAPSHOT, SNAPSHOT], {"twice": 1}), ([SNAPSHOT, DELETE, DELETE], {"missing": 1}), ([UPDATE], {"missing": 1}),
    ([(NAME, "snapshot", 5, "a", 2), UPDATE], {"twice": 1}),
    ([SNAPSHOT, DELETE, (NAME, "insert", 7, "a", 3)], {"disordered": 1}),
], ids=["each once", "update", "insert", "chunk", "delete", "no insert", "in a chunk and the log", "order"])  # fmt: skip
def test_what_comes_twice_or_not_is_found(changes, wrong):
    assert +replayed(changes).wrong == wrong


def test_a_replay_ends_with_the_last_versions():
    assert replayed([SNAPSHOT, UPDATE, DELETE]).rows[NAME] == {}
    assert replayed([SNAPSHOT, UPDATE, DELETE, INSERT]).rows[NAME] == {"a": 3}


def test_a_row_of_one_side_alone_is_different():
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert difference([(1, moment), (2, None)], [(2, None), (1, moment)]) == 0
    assert difference([(1, moment)], [(1, moment), (1, moment)]) == 1
    assert difference([(1, moment)], [(1, None)]) == 2


def test_the_committed_results_are_good():
    for run in COMMITTED:
        assert not any(run[kind] for kind in BAD)
        assert run["comparisons"] >= len(SHAPES) * run["rounds"]
    assert sum(run["changes"] for run in COMMITTED) >= 500_000


@pytest.mark.parametrize("names", [KILLS, VICTIMS], ids=["phases", "victims"])
def test_there_were_kills_of_each_kind(names):
    kills = [(name.split(": "), count) for run in COMMITTED for name, count in run["kills"].items()]
    assert sum(count for _, count in kills) >= 30
    for name in names:
        assert sum(count for parts, count in kills if name in parts) > 0


def test_a_file_has_the_last_result_of_a_run_behind_those_of_others(tmp_path):
    path = tmp_path / "results.json"
    for runs in (1, 2):
        assert kept([{"kills": 1}, {"kills": runs + 1}], path) == {"kills": runs + 1}
    assert json.loads(path.read_text()) == [{"kills": 2}, {"kills": 3}]
    assert kept([{"kills": 1}], None) == {"kills": 1}
