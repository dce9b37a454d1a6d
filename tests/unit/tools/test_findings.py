"""The list of findings, tests and commits sees what is missing."""

from __future__ import annotations

import subprocess

import pytest

from tests.helpers.findings import COUNTS, Finding, Suite, first_commits, named_tests, regressions, rows, wanted

TABLE = """
| regression test | sequence -> wrong outcome | test, or why there is none |
|---|---|---|
| regression (findings: Beam 1, 2) | a \\| b -> c | `test_a` in `tests/unit/test_x.py` |
| regression, findings: Spark 3 | -> d | cannot arise: there is none |
| KAFKA-1 (findings: Beam 4, Spark 5) | -> e | `tests/unit/test_x.py::TestA::test_b` |
| regression, findings: Sinks 6 | -> f | |
| FLINK-1 | findings: Source 7 | `test_c` |
"""


def test_rows_are_found_by_the_findings_that_they_name():
    found = regressions(TABLE)
    assert {str(finding) for finding in found} == {"Beam 1", "Beam 2", "Spark 3", "Beam 4", "Spark 5"}
    assert found[Finding("Beam", 2)][0].tests == ("test_a",)
    assert found[Finding("Spark", 3)][0].tests == ()
    assert found[Finding("Spark", 5)][0].tests == ("tests/unit/test_x.py::TestA::test_b",)


def whole(**replaced):
    """A table in which each finding has a row."""
    lines = [f"| x (findings: {each}) | s | {replaced.get(str(each).replace(' ', '_'), '`test_a`')} |" for each in wanted()]
    return "\n".join(lines)


@pytest.fixture
def tests(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text("def test_a():\n    pass\n\nclass TestA:\n    def test_b(self): pass\n")
    return Suite(tmp_path)


def test_a_whole_table_is_not_complained_of(tests):
    lines, wrong = rows(whole(), tests, {"test_a": "abc1234"})
    assert wrong == []
    assert len(lines) == sum(COUNTS.values())
    assert lines[0] == ("Source 1", "test_a", "abc1234")


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (whole().replace("findings: Spark 9", "x"), "Spark 9 has no row"),
        (whole(Beam_14=""), "Beam 14 has no row"),
        (whole(Sinks_25="`test_gone`"), "Sinks 25 names test_gone, which is not there"),
        (whole(Package_5="`tests/test_y.py::test_a`"), "Package 5 names tests/test_y.py::test_a, which is not there"),
    ],
    ids=["no row", "an empty row", "a test that is gone", "a test that is in another file"],
)
def test_a_injected_gap_is_seen(tests, table, complaint):
    assert rows(table, tests, {})[1] == [complaint]


def test_a_reason_represents_a_test(tests):
    lines, wrong = rows(whole(Source_26="cannot arise: there is no such thing"), tests, {})
    assert wrong == []
    assert ("Source 26", "cannot arise: there is no such thing", "-") in lines


def test_tests_are_known_by_name_class_and_file(tests):
    for name in ("test_a", "TestA", "TestA::test_b", "tests/test_x.py::TestA::test_b"):
        assert tests.has(name)
    assert not tests.has("tests/test_x.py::TestB::test_b")
    assert named_tests("`test_a`, `tests/x.py::TestA::test_b[v1]`; `TestA` and `tests/x.py`") == [
        "test_a",
        "tests/x.py::TestA::test_b",
        "TestA",
    ]


def test_the_commit_is_the_one_that_first_had_the_test(tmp_path):
    def git(*words):
        author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *author, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    commits = []
    (tmp_path / "tests").mkdir()
    for body in (
        "def test_a(): pass\n",
        "def test_a(): pass\ndef test_b(): pass\n",
        "def test_b(): pass\ndef test_a(): pass\n",
    ):
        (tmp_path / "tests" / "test_x.py").write_text(body)
        git("add", "-A")
        git("commit", "-qm", "x")
        commits.append(git("rev-parse", "--short", "HEAD"))
    assert first_commits(tmp_path) == {"test_a": commits[0], "test_b": commits[1]}
