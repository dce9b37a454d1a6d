"""The check of mutants sees a survivor without a reason, and a reason without a survivor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutants import run
from tests.mutants.run import Change

ROOT = Path(__file__).parents[2]
MUTANT = "headrace.connectors.commit.x_order__mutmut_3"
CHANGE = Change("headrace.connectors.commit.order", "a < b", "a <= b")


@pytest.fixture
def survivor(monkeypatch, tmp_path):
    """One, in the group "commit"."""
    monkeypatch.setattr(run, "survivors", lambda copy: {MUTANT: "survived"})
    monkeypatch.setattr(run, "change_of", lambda copy, mutant: CHANGE)
    monkeypatch.setattr(run, "mutmut", lambda copy, *command: "one\ntwo\n")
    monkeypatch.setattr(run, "EQUIVALENT", tmp_path / "equivalent.json")
    return run.EQUIVALENT


def entry(**changes):
    return {"function": CHANGE.function, "was": CHANGE.was, "now": CHANGE.now, "why": "equal values never meet", **changes}


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ([], ["survived: "]),
        ([entry()], []),
        ([entry(now="a > b")], ["survived: ", "explained, and no survivor"]),
        ([entry(), entry(function="headrace.connectors.commit.other")], ["explained, and no survivor"]),
        ([entry(), entry(function="headrace.enumerator.ledger.other")], []),
    ],
)
def test_every_survivor_needs_a_reason_and_every_reason_a_survivor(survivor, tmp_path, entries, wrong):
    survivor.write_text(json.dumps(entries))
    figures, found = run.check("commit", tmp_path)
    assert [line[: len(start)] for line, start in zip(found, wrong, strict=True)] == wrong
    assert (figures["mutants"], figures["survivors"]) == (2, 1)


def test_a_change_is_named_by_function_and_lines_and_not_by_a_number(monkeypatch, tmp_path):
    said = "# x: survived\n--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n def end(self):\n-    return a < b\n+    return a <= b\n"
    monkeypatch.setattr(run, "mutmut", lambda copy, *command: said)
    mutant = "headrace.enumerator.ledger.x\u01c1Ledger\u01c1end__mutmut_3"
    assert run.change_of(tmp_path, mutant) == Change("headrace.enumerator.ledger.Ledger.end", "return a < b", "return a <= b")
    assert run.change_of(tmp_path, MUTANT).function == "headrace.connectors.commit.order"


@pytest.mark.parametrize("name", run.GROUPS)
def test_modules_and_tests_of_every_group_exist(name):
    group = run.GROUPS[name]
    assert [path for path in (*group.modules, *group.tests) if not (ROOT / f"{path}.py").exists()] == []


def test_every_equivalent_mutant_has_its_reason():
    entries = json.loads(run.EQUIVALENT.read_text())
    assert [each for each in entries if len(each["why"]) < 20] == []
    assert all(run.explained(group.modules) is not None for group in run.GROUPS.values())
