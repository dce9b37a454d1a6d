"""The soak of files: what comes is what it expects, and of each output a lost, a doubled and a foreign row is counted."""

import json
import random
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.soak.files_job import OUTPUTS
from tests.soak.files_soak import BAD, Input, judged

COMMITTED = Path(__file__).parents[3] / "benchmarks" / "results" / "files-soak.json"


def test_the_files_hold_what_is_expected(tmp_path):
    for format_ in ("jsonl", "parquet"):
        (tmp_path / format_).mkdir()
    incoming = Input(tmp_path, random.Random(1))
    for _ in range(30):
        incoming.add()
    lines = [json.loads(line)["value"] for path in (tmp_path / "jsonl").iterdir() for line in path.read_text().splitlines()]
    values = [value for path in (tmp_path / "parquet").iterdir() for value in pq.read_table(path)["value"].to_pylist()]
    assert lines
    assert values
    assert Counter(lines + values) == incoming.written


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_lost_a_doubled_and_a_foreign_row_are_found(output):
    written = Counter(["a", "b", "c"])
    right = dict.fromkeys(OUTPUTS, written)
    assert not any(judged(written, right).values())
    for rows, what in ((["a", "c"], "lost"), (["a", "b", "b", "c"], BAD[1]), (["a", "b", "c", "d"], BAD[1])):
        wrong = judged(written, right | {output: Counter(rows)})
        assert {name for name, count in wrong.items() if count} == {f"{output}: {what}"}
        assert sum(wrong.values()) == 1


def test_the_committed_results_are_good():
    runs = json.loads(COMMITTED.read_text())
    assert {run["engine"] for run in runs} == {"run", "spark", "flink"}
    for run in runs:
        assert not any(run[f"{output}: {what}"] for output in OUTPUTS for what in BAD)
        assert sum(run["kills"].values()) > 10
        assert run["files"] >= 20_000
