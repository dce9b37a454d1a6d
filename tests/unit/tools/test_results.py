"""RESULTS.md says what the committed JSON says, whatever kinds of files lie in that folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from benchmarks.report import report

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_the_committed_report_is_what_the_committed_results_give(tmp_path):
    json_only = shutil.ignore_patterns("*.svg", "quick")
    shutil.copytree(BENCHMARKS / "results", tmp_path / "results", ignore=json_only)
    written = report(tmp_path / "results", tmp_path)
    assert written.read_text() == (BENCHMARKS / "RESULTS.md").read_text()
