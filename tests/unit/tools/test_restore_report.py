"""The report of the restore benchmark, from documents made up: what it must say, and what it must leave out."""

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from benchmarks.restore.report import section
from benchmarks.restore.runs import capacities_in, runs_in
from benchmarks.restore.stages import STAGES, processes, stages

MARKS = [
    {"name": "python", "at": 0.5, "pid": 1}, {"name": "imported", "at": 1.0, "pid": 1},
    {"name": "session", "at": 4.0, "pid": 1}, {"name": "query", "at": 5.0, "pid": 1},
    {"name": "fork", "at": 5.5, "took": 0.0, "pid": 7, "module": "pyspark.worker"},
    {"name": "KafkaTransaction.write", "at": 6.0, "took": 0.25, "pid": 7, "module": "pyspark.worker"},
    {"name": "KafkaTransaction.write", "at": 9.0, "took": 0.25, "pid": 8, "module": "pyspark.worker"},
]  # fmt: skip


def document(system: str, number: int, **changes) -> dict:
    made = {
        "system": system, "title": f"The {system}", "guarantee": "exactly once", "ablation": False, "number": number,
        "value_bytes": 100, "rate": 5000, "load": "own-load", "valid": True, "wrong": [], "dfrt": 4000.0 + number,
        "scenario": {"name": "by the clock", "phase": None},
        "restore": {"outage_s": 8.0 + number, "recovery_s": 11.0, "first_30_s": 3000.0, "steady": 5000.0},
        "verdict": {"records_in": 10, "duplicates": 0, "lost": 0, "torn": 0, "out_of_order": 0}, "read_amplification": 1.5,
        "load_average": [0.5, 0.5, 0.5], "stolen": 0.01, "environment": {"machine": {"cpus": 2}, "commit": "abc"},
        "series": {"s": [-1.0, 0.0, 1.0, 2.0], "produced": [0, 1, 2, 3], "visible": [0, 1, 1, 3]},
    }  # fmt: skip
    return {**made, **changes}


def written(tmp_path: Path, *documents: dict) -> str:
    for made in documents:
        runs_in(tmp_path).add(made)
    return "\n".join(section(tmp_path, tmp_path))


def test_without_runs_there_is_no_section(tmp_path):
    assert section(tmp_path, tmp_path) == []


def test_a_system_has_one_row_with_medians_and_the_worst(tmp_path):
    text = written(tmp_path, *(document("a", number) for number in range(3)))
    (row,) = [line for line in text.splitlines() if line.startswith("| The a")]
    assert row.startswith(
        "| The a (exactly once) | 3 | 5.0 | 4.0 (4.0 to 4.0) | 4.0 | 0.80 | 3.0 (3.0 to 3.0) | 9.0 (8.5 to 9.5) | 10.0 |"
    )
    plots = sorted(file.name for file in (tmp_path / "restore").glob("*.svg"))
    assert plots == ["restore-100-b-own-load-bars.svg", "restore-100-b-own-load-time.svg"]
    assert all(f"](restore/{plot})" in text for plot in plots)


def test_the_same_runs_give_the_same_plots_byte_for_byte(tmp_path):
    for place in ("first", "second"):
        written(tmp_path / place, *(document("a", number) for number in range(3)))
    plots = sorted((tmp_path / "first" / "restore").glob("*.svg"))
    assert len(plots) == 2
    assert all(plot.read_bytes() == (tmp_path / "second" / "restore" / plot.name).read_bytes() for plot in plots)


def test_a_run_with_duplicates_counts_with_a_dfrt_of_nothing(tmp_path):
    bad = document("a", 1, dfrt=0.0, verdict={**document("a", 1)["verdict"], "duplicates": 77})
    text = written(tmp_path, document("a", 0), bad)
    (row,) = [line for line in text.splitlines() if line.startswith("| The a")]
    assert "| 77 | 0 | 0 |" in row
    assert row.split(" | ")[4] == "0.0"


def test_an_invalid_run_is_left_out_and_said_so(tmp_path):
    text = written(tmp_path, document("a", 0), document("a", 1, valid=False, wrong=["late"]))
    assert "1 of 2 runs were invalid" in text
    assert "| The a (exactly once) | 1 |" in text


def test_a_system_that_never_came_back_is_shown(tmp_path):
    gone = {"outage_s": None, "recovery_s": None, "first_30_s": 0.0, "steady": 5000.0}
    text = written(tmp_path, document("a", 0, restore=gone, dfrt=0.0))
    (row,) = [line for line in text.splitlines() if line.startswith("| The a")]
    assert "| - | - | - | 1 |" in row


def test_ablations_have_a_table_of_their_own(tmp_path):
    flaws = {"records_in": 10, "duplicates": 9, "lost": 3, "torn": 0, "out_of_order": 0}
    text = written(tmp_path, document("a", 0), document("b", 0, ablation=True, verdict=flaws, dfrt=0.0))
    assert "| The b | 0 | by the clock | 10 | 9 | 3 | 0.0 |" in text
    assert "| The b (" not in text


def test_an_ablation_whose_bug_was_not_seen_is_left_out(tmp_path):
    unseen = document("b", 0, ablation=True, valid=False, wrong=["the injected bug was not seen"])
    assert "| The b" not in written(tmp_path, document("a", 0), unseen)


def test_capacities_have_a_table_of_their_own(tmp_path):
    capacities = capacities_in(tmp_path)
    for system in ("b", "a"):
        costs = {"load": 1.5, system: 2.25}
        capacities.add(
            {"system": system, "title": f"The {system}", "value_bytes": 100, "records_per_s": 5e4, "processors_us": costs}
        )
    text = written(tmp_path, document("a", 0))
    assert "| | records/s | load, µs | a, µs | b, µs |" in text
    assert "| The a, 100 B | 50,000 | 1.50 | 2.25 | 0.00 |\n| The b, 100 B |" in text


def test_the_stages_of_a_restore_add_up_to_the_outage():
    found = stages(MARKS, 7.0)
    assert list(found.values()) == [0.5, 0.5, 3.0, 1.0, 2.0]
    assert tuple(found) == STAGES
    assert sum(found.values()) == 7.0


def test_a_mark_that_is_missing_is_named():
    with pytest.raises(ValueError, match="session"):
        stages([mark for mark in MARKS if mark["name"] != "session"], 7.0)


def test_python_processes_are_those_until_the_first_record():
    (only,) = processes(MARKS, 7.0)
    assert (only["module"], only["at"]) == ("pyspark.worker", 5.5)
    assert [step["name"] for step in only["steps"]] == ["fork", "KafkaTransaction.write"]
