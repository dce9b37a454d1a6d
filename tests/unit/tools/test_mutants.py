"""The check of mutants sees a survivor without a reason, and a reason without a survivor."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.mutants import patient, run
from tests.mutants.run import Change

ROOT = Path(__file__).parents[3]
MUTANT = "headrace.connectors.base.commit.x_order__mutmut_3"
CHANGE = Change("headrace.connectors.base.commit.order", "a < b", "a <= b")


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
        ([entry(), entry(function="headrace.connectors.base.commit.other")], ["explained, and no survivor"]),
        ([entry(), entry(function="headrace.enumerator.ledger.other")], []),
    ],
)
def test_every_survivor_needs_a_reason_and_every_reason_a_survivor(survivor, tmp_path, entries, wrong):
    survivor.write_text(json.dumps(entries))
    figures, found = run.check("commit", tmp_path)
    assert [line[: len(start)] for line, start in zip(found, wrong, strict=True)] == wrong
    assert (figures["mutants"], figures["survivors"]) == (2, 1)


def test_a_run_that_has_made_no_mutants_fails(survivor, monkeypatch, tmp_path):
    """As where mutmut is not installed: nothing survives then, and nothing was tried."""
    survivor.write_text("[]")
    monkeypatch.setattr(run, "survivors", lambda copy: {})
    monkeypatch.setattr(run, "mutmut", lambda copy, *command: "")
    assert run.check("commit", tmp_path)[1] == ["commit: mutmut has made no mutants; what it says about that is above"]


def test_a_change_is_named_by_function_and_lines_and_not_by_a_number(monkeypatch, tmp_path):
    said = "# x: survived\n--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n def end(self):\n-    return a < b\n+    return a <= b\n"
    monkeypatch.setattr(run, "mutmut", lambda copy, *command: said)
    mutant = "headrace.enumerator.ledger.x\u01c1Ledger\u01c1end__mutmut_3"
    assert run.change_of(tmp_path, mutant) == Change("headrace.enumerator.ledger.Ledger.end", "return a < b", "return a <= b")
    assert run.change_of(tmp_path, MUTANT).function == "headrace.connectors.base.commit.order"


@pytest.mark.parametrize("changed", ["tests/test_a.py", "headrace/a.py"])
def test_what_mutmut_keeps_of_a_file_that_has_changed_is_forgotten(tmp_path, changed):
    """Which functions a test calls is looked at again where a test has changed: a mutant is run with these tests alone."""
    checkout, kept = tmp_path / "groups" / "g", ["tests/test_a.py", "headrace/a.py", "mutmut-stats.json"]
    for name in kept:
        file = checkout / "mutants" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    run.forget(checkout / changed)
    gone = {changed} | ({"mutmut-stats.json"} if changed.startswith("tests") else set())
    assert {name for name in kept if not (checkout / "mutants" / name).exists()} == gone


@pytest.mark.parametrize("name", run.GROUPS)
def test_modules_and_tests_of_every_group_exist(name):
    group = run.GROUPS[name]
    assert [path for path in (*group.modules, *group.tests) if not (ROOT / f"{path}.py").exists()] == []


def test_every_equivalent_mutant_has_its_reason():
    entries = json.loads(run.EQUIVALENT.read_text())
    assert [each for each in entries if len(each["why"]) < 20] == []
    assert all(run.explained(group.modules) is not None for group in run.GROUPS.values())


# --- who ends a mutant ---


@pytest.fixture
def sleeper():
    """A process that waits for what never comes."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def watch_of(process, limit):
    watch = patient.Watch()
    watch.register(process.pid, limit)
    return watch


def test_a_mutant_that_sleeps_for_ever_is_ended_as_mutmut_ends_one_that_takes_too_long(sleeper):
    watch, looks = watch_of(sleeper, 3.0), 0
    while sleeper.poll() is None:
        watch.look(1.0)
        looks += 1
    assert sleeper.returncode == -signal.SIGXCPU
    assert looks >= 3


def test_a_mutant_that_is_stopped_is_not_ended_however_long_it_takes(sleeper):
    sleeper.send_signal(signal.SIGSTOP)
    while psutil.Process(sleeper.pid).status() != psutil.STATUS_STOPPED:
        pass
    watch = watch_of(sleeper, 3.0)
    for _ in range(50):
        watch.look(1.0)
    assert sleeper.poll() is None


def test_what_was_under_way_when_all_was_paused_has_no_result(sleeper):
    watch = watch_of(sleeper, 1000.0)
    watch.look(patient.PAUSED_S + 1)
    assert sleeper.wait() == -signal.SIGKILL
    watch.look(1.0)


def test_mutants_without_a_result_are_run_again(monkeypatch, tmp_path):
    settings = iter([{MUTANT: "segfault", "other": "survived"}, {"other": "survived"}])
    commands = []
    monkeypatch.setattr(run, "survivors", lambda copy: next(settings))
    monkeypatch.setattr(run, "mutmut", lambda copy, *command, quiet: commands.append(command))
    run.run(tmp_path, 2)
    assert commands == [("run", "--max-children", "2"), ("run", "--max-children", "2", MUTANT)]
