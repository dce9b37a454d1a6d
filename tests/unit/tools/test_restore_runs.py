"""Runs of the restore benchmark as they are kept: which are there, which are made (again), and files that are damaged."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from benchmarks.restore.run import QUICK
from benchmarks.restore.runs import capacities_in, runs_in
from benchmarks.restore.systems import BY_NAME
from benchmarks.restore_throughput import Plan, Share

HEADRACE, JVM, ABLATION = BY_NAME["headrace"], BY_NAME["jvm"], BY_NAME["reinitialise"]
COMMITTED = Path(__file__).parents[3] / "benchmarks" / "results"


def run(system: str = "headrace", number: int = 0, **changes) -> dict:
    return {"system": system, "value_bytes": 100, "load": "20000-a-s", "number": number, "valid": True, **changes}


@pytest.fixture
def plan(tmp_path) -> Plan:
    return Plan([HEADRACE, JVM], [100], 2, 20_000.0, Share.COMMON, QUICK, tmp_path)


def test_a_run_that_is_kept_adds_a_line_to_its_systems_file(tmp_path):
    for made in (run(number=0), run(number=1), run("jvm")):
        runs_in(tmp_path).add(made)
    lines = {file.name: len(file.read_text().splitlines()) for file in (tmp_path / "restore").iterdir()}
    assert lines == {"headrace.jsonl": 2, "jvm.jsonl": 1}
    assert runs_in(tmp_path).all() == [run(number=0), run(number=1), run("jvm")]


def test_what_is_kept_is_not_run_again(plan):
    assert plan.pending() == [(HEADRACE, 100, 0), (JVM, 100, 0), (HEADRACE, 100, 1), (JVM, 100, 1)]
    runs_in(plan.results).add(run(number=0))
    runs_in(plan.results).add(run("jvm", number=1))
    assert plan.pending() == [(JVM, 100, 0), (HEADRACE, 100, 1)]


@pytest.mark.parametrize("other", [{"value_bytes": 1024}, {"load": "own-load"}, {"number": 7}])
def test_a_run_of_another_size_load_or_number_does_not_count(plan, other):
    runs_in(plan.results).add(run(**other))
    assert len(plan.pending()) == 4


def test_an_invalid_run_is_made_again_and_keeps_its_line(plan):
    invalid, valid = run(valid=False), run()
    runs_in(plan.results).add(invalid)
    assert (HEADRACE, 100, 0) in plan.pending()
    runs_in(plan.results).add(valid)
    assert (HEADRACE, 100, 0) not in plan.pending()
    assert runs_in(plan.results).all() == [invalid, valid]


def test_an_ablation_has_three_kills_at_its_own_load(plan):
    plan = replace(plan, systems=[ABLATION], kills=10)
    assert [number for _, _, number in plan.pending()] == [0, 1, 2]
    runs_in(plan.results).add(run("reinitialise", load="10000-a-s"))
    assert [number for _, _, number in plan.pending()] == [1, 2]


def test_a_damaged_line_is_named(plan):
    runs_in(plan.results).add(run())
    with (plan.results / "restore" / "headrace.jsonl").open("a") as file:
        file.write('{"system": "head')
    with pytest.raises(ValueError, match=r"headrace.jsonl, line 2, is not JSON .* restore the file with git"):
        plan.pending()


def test_a_capacity_is_of_a_system_and_a_size(tmp_path):
    capacities_in(tmp_path).add({"system": "jvm", "value_bytes": 100, "records_per_s": 1234.5})
    assert capacities_in(tmp_path).of("jvm", 100) == 1234.5
    assert capacities_in(tmp_path).of("jvm", 1024) is None
    assert capacities_in(tmp_path).of("flink", 100) is None


def test_every_committed_run_lies_in_its_systems_file_and_none_is_there_twice():
    for file in sorted((COMMITTED / "restore").glob("*.jsonl")):
        assert file.stem in BY_NAME
    found = runs_in(COMMITTED).all()
    kept = [(each["system"], each["value_bytes"], each["load"], each["number"]) for each in found if each["valid"]]
    assert len(kept) > 100
    assert len(set(kept)) == len(kept)
    assert all(runs_in(COMMITTED).has_valid(system, size, load, number) for system, size, load, number in kept)
