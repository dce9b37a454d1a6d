"""A job of Spark's under supervision: it ends after the batch under way, which is committed, and begins no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.python_path import python_path

pytestmark = pytest.mark.timeout(300)

JOB = """
import os, signal, threading
from pathlib import Path

HERE = Path(__file__).parent
SUPERVISOR = os.getppid()
QUERIES = []

def tell(what):
    with (HERE / "history").open("a") as history:
        print(what, file=history)

def write(batch, number):
    tell(f"batch {number} begins")
    if number == 1:
        os.kill(SUPERVISOR, signal.SIGTERM)
        while not QUERIES or QUERIES[0]._jsq.streamingQuery().state().get().toString() != "TERMINATED":
            threading.Event().wait(0.05)  # polling: Java's reference tells nobody
    tell(f"batch {number} ends")

def job(spark):
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    QUERIES.append(rows.writeStream.foreachBatch(write).option("checkpointLocation", str(HERE / "checkpoint")).start())
    return QUERIES
"""


def test_sigterm_ends_a_job_after_the_batch_under_way(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = ["supervise", f"{tmp_path / 'job.py'}:job", *options, "--restart", "none", "--status", str(tmp_path / "status")]
    done = subprocess.run(
        [sys.executable, "-c", "from headrace.cli import main; main()", *command],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 143, done.stderr
    assert (tmp_path / "history").read_text().splitlines() == [
        f"batch {number} {what}" for number in (0, 1) for what in ("begins", "ends")
    ]
    logs = [{path.name for path in (tmp_path / "checkpoint" / log).glob("[0-9]*")} for log in ("offsets", "commits")]
    assert logs == [{"0", "1"}, {"0", "1"}]
    shown = json.loads((tmp_path / "status").read_text())
    assert shown["ended"] == {"ending": "STOPPED", "exit_status": 143, "reason": "it was stopped"}
