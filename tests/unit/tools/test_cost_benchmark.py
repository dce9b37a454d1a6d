"""The benchmark of what copies cost: its ratios, what it calls steeper, and that figures of failed runs count nowhere."""

import pytest

from benchmarks.costs.report import ratios, section, steeper
from benchmarks.stored import append_line


def line(kind, system, partitions=8, number=1, **changed):
    step = {"seconds": 1.0, "cpu_s": 1.0}
    figures = {
        "seconds": 10.0,
        "cpu_s": 1.0,
        "memory_bytes": 1 << 20,
        "requests_per_s": {"Fetch": 4.0},
        "checkpoint_bytes": 1024,
    }
    key = {"kind": kind, "system": system, "partitions": partitions, "round": number, "valid": True}
    return {**key, **figures, "records": 500_000, "start": step, "copied": step, "restore": step, **changed}


def grown(partitions, cpu_s):
    step = {"seconds": 1.0, "cpu_s": cpu_s}
    return line("growth", "headrace-run", partitions, start=step)


def test_ratios_are_taken_round_by_round():
    lines = [line("load", "headrace-run", number=n, cpu_s=cpu_s) for n, cpu_s in ((1, 1.0), (2, 4.0), (3, 9.0))]
    lines += [line("load", "flink", number=n, cpu_s=10.0) for n in (1, 2)]
    lines += [line("load", "flink", number=3, cpu_s=0.1, valid=False)]
    found = {what: (reached, bound) for what, reached, bound in ratios(lines)}
    assert found["CPU, headrace run against Flink SQL"] == (pytest.approx(0.25), 0.6)


@pytest.mark.parametrize(("cpu_s", "steep"), [(9.0, False), (30.0, True)])
def test_what_grows_by_more_than_the_partitions_is_steeper(cpu_s, steep):
    found = steeper([grown(100, 1.0), grown(1000, cpu_s)], "headrace-run")
    assert [what.startswith("start CPU s from 100 to 1,000") for what in found] == [True] * steep


def test_the_section_has_all_kinds_and_is_empty_without_measurements(tmp_path):
    assert section(tmp_path) == []
    for each in (line("load", "headrace-run"), line("idle", "headrace-run", 1000), grown(100, 1.0)):
        append_line(tmp_path / "cost" / "headrace-run.jsonl", each)
    text = "\n".join(section(tmp_path))
    assert "| headrace run | 8 | 2.00 | 1.00 | 4.00 | 1.00 |" in text
    assert "| headrace run | 1,000 | 10.0 | 1.00 | 4.00 | 1.00 |" in text
    assert "Steeper, headrace run: nothing." in text
