"""Each row of the table names tests that exist, or gives the reason why there is none. `test_a_*` starts a test's name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).parent / "README.md"
NAMED = re.compile(r"`(?:([\w/.-]+\.py)::)?((?:Test\w+|test_\w+)(?:::test_\w+)?\*?)(?:\[[^`]*\])?`")
DEFINED = re.compile(r"^\s*(?:async )?(?:def|class) (Test\w+|test_\w+)", re.MULTILINE)


@pytest.fixture(scope="module")
def defined():
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return {str(path.relative_to(ROOT)): set(DEFINED.findall(path.read_text())) for path in paths}


def rows():
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [(bug, tests) for bug, _, tests in cells if bug != "bug" and set(bug) != {"-"}]


def is_defined(name, names):
    if name.endswith("*"):
        return any(each.startswith(name[:-1]) for each in names)
    return set(name.split("::")) <= names


def test_a_start_of_a_name_is_not_taken_for_another():
    assert is_defined("test_beam_1_*", {"test_beam_1_a"})
    assert not is_defined("test_beam_1_*", {"test_beam_12_a"})


def test_each_row_names_tests_that_exist(defined):
    """By name, its start, class or file: `test_a`, `test_a_*`, `TestA`, `tests/unit/test_x.py::TestA::test_a`."""
    everywhere = set().union(*defined.values())
    found = [(bug, path, name) for bug, tests in rows() for path, name in NAMED.findall(tests)]
    assert len(found) > 70
    assert [path for _, path, _ in found if path]
    assert [each for each in found if not is_defined(each[2], defined.get(each[1], everywhere))] == []
    files = re.findall(r"`(tests/[\w/]+\.py)", TABLE.read_text())
    assert [path for path in files if not (ROOT / path).is_file()] == []


def test_each_row_without_a_test_gives_a_reason():
    assert [bug for bug, tests in rows() if not NAMED.search(tests) and not tests.startswith("cannot arise: ")] == []
