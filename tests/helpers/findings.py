"""Which test shows which finding of the reviews, and the commit that brought it: `python -m tests.helpers.findings`.

A finding has a row in tests/regression suite/README.md that says `findings: Source 1`, of several `findings: Source 1, 4`. The
row names tests, or says why there is none. Exit status 1 when a finding has no row, or a row names a test that is not there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "regressions" / "README.md"
COUNTS = {"Source": 26, "Sinks": 25, "Spark": 9, "Beam": 14, "Package": 5}
"""How many findings there are of each part."""

_SAID = re.compile(r"findings: ((?:[A-Z][a-z]+ )?\d+(?:, (?:[A-Z][a-z]+ )?\d+)*)")
_NAMED = re.compile(r"`((?:[\w/.-]+\.py::)?(?:Test\w+|test_\w+)(?:::test_\w+)?)(?:\[[^`]*\])?`")
_DEFINED = re.compile(r"^\s*(?:async )?(?:def|class) (Test\w+|test_\w+)", re.MULTILINE)
_COMMIT = "commit "
_ADDED = re.compile(r"^\+\s*(?:async )?(?:def|class) (Test\w+|test_\w+)")


@dataclass(frozen=True, order=True)
class Finding:
    """`part` of the product, and its number there, from 1."""

    part: str
    number: int

    def __str__(self) -> str:
        """As the table has it."""
        return f"{self.part} {self.number}"


@dataclass(frozen=True)
class Regression:
    """What a row of the table has for a finding: tests as they are named there, or a reason why there is none."""

    tests: tuple[str, ...]
    reason: str


def wanted(counts: Mapping[str, int] = COUNTS) -> list[Finding]:
    """Every finding, in order."""
    return [Finding(part, number) for part, count in counts.items() for number in range(1, count + 1)]


def named_tests(text: str) -> list[str]:
    """Tests that a text names between backticks: `test_a`, `TestA`, `TestA::test_a`, each also behind `path.py::`."""
    return list(dict.fromkeys(_NAMED.findall(text)))


def regressions(table: str) -> dict[Finding, list[Regression]]:
    """The rows of the table by the findings that they show. A row without a word in its last column shows nothing."""
    found: dict[Finding, list[Regression]] = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 3 or not cells[2]:
            continue
        for finding in _said(f"{cells[0]}; {cells[2]}"):
            found.setdefault(finding, []).append(Regression(tuple(named_tests(cells[2])), cells[2]))
    return found


def _said(cell: str) -> Iterator[Finding]:
    for listed in _SAID.findall(cell):
        part = ""
        for item in listed.split(", "):
            part = item.rpartition(" ")[0] or part
            yield Finding(part, int(item.rpartition(" ")[2]))


class Suite:
    """The tests of a checkout, by name."""

    def __init__(self, root: Path = ROOT) -> None:
        """Reads every test file."""
        self._root = root
        files = sorted((root / "tests").rglob("test_*.py"))
        self._by_file = {str(path.relative_to(root)): set(_DEFINED.findall(path.read_text())) for path in files}

    def has(self, name: str) -> bool:
        """Whether there is one; of `path.py::TestA::test_a`, in that file."""
        path, *names = name.split("::") if ".py" in name else ("", *name.split("::"))
        files = [self._by_file.get(path, set())] if path else self._by_file.values()
        return any(set(names) <= defined for defined in files)


def first_commits(root: Path = ROOT) -> dict[str, str]:
    """The commit, abbreviated, that first had each test. One that is not committed yet is left out."""
    command = ["git", "log", "--reverse", f"--format={_COMMIT}%h", "--unified=0", "--patch", "--", "tests"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, errors="replace", check=True)
    found: dict[str, str] = {}
    commit = ""
    for line in done.stdout.splitlines():
        if line.startswith(_COMMIT):
            commit = line.removeprefix(_COMMIT)
        elif match := _ADDED.match(line):
            found.setdefault(match[1], commit)
    return found


def rows(table: str, tests: Suite, commits: Mapping[str, str]) -> tuple[list[tuple[str, str, str]], list[str]]:
    """(finding, test or reason, commit) of every regression test; and what is wrong: findings and tests that are missing."""
    shown, wrong = regressions(table), []
    lines = []
    for finding in wanted():
        if finding not in shown:
            wrong.append(f"{finding} has no row")
        for regression in shown.get(finding, []):
            for test in regression.tests:
                lines.append((str(finding), test, commits.get(test.rpartition("::")[2], "not committed")))
                if not tests.has(test):
                    wrong.append(f"{finding} names {test}, which is not there")
            if not regression.tests:
                lines.append((str(finding), regression.reason, "-"))
    return list(dict.fromkeys(lines)), wrong


def main() -> int:
    """Print the table, and then what is missing."""
    lines, wrong = rows(TABLE.read_text(), Suite(), first_commits())
    for finding, test, commit in lines:
        print(f"{finding:<10} {commit:<13} {test}")  # noqa: T201 - the command's output
    for complaint in wrong:
        print(f"MISSING: {complaint}")  # noqa: T201
    print(f"{len(wanted())} findings, {len(wrong)} complaints")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
