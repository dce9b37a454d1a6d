"""A job of Spark's under supervision and spark-submit: started again when it is killed, ended after the batch under way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.helpers.python_path import python_path

pytestmark = pytest.mark.timeout(300)

JOB = """
import os, signal, threading
from pathlib import Path
from headrace.run import FixedDelay
from headrace.spark import run

HERE = Path(__file__).parent
SUPERVISOR = os.getppid()
QUERIES = []

def tell(what):
    with (HERE / "history").open("a") as history:
        print(what, file=history)

def write(batch, number):
    tell(f"batch {number} starts")
    if number == 0 and not (HERE / "killed").exists():
        (HERE / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 1:
        os.kill(SUPERVISOR, signal.SIGTERM)
        while not QUERIES or QUERIES[0]._jsq.streamingQuery().state().get().toString() != "TERMINATED":
            threading.Event().wait(0.05)  # polling: Java's reference shows no process
    tell(f"batch {number} ends")

def job(spark):
    tell(f"{spark.sparkContext.master} {spark.conf.get('spark.my.setting')}")
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    QUERIES.append(rows.writeStream.foreachBatch(write).option("checkpointLocation", str(HERE / "checkpoint")).start())
    return QUERIES

if __name__ == "__main__":
    run(job, restart=FixedDelay(attempts=1, delay_s=0.1), status=HERE / "status")
"""


@pytest.mark.long
def test_a_submitted_job_is_started_again_when_it_is_killed_and_sigterm_ends_it_after_its_batch(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.my.setting": "a = b\\c"}
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [submit, "--master", "local[2]", *options, tmp_path / "job.py"],
        env={**os.environ, "PYTHONPATH": python_path(), "PYSPARK_PYTHON": sys.executable}, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 143, done.stderr
    started = "local[2] a = b\\c"
    ended = [f"batch {number} {what}" for number in (0, 1) for what in ("starts", "ends")]
    assert (tmp_path / "history").read_text().splitlines() == [started, "batch 0 starts", started, *ended]
    logs = [{path.name for path in (tmp_path / "checkpoint" / log).glob("[0-9]*")} for log in ("offsets", "commits")]
    assert logs == [{"0", "1"}, {"0", "1"}]
    shown = json.loads((tmp_path / "status").read_text())
    assert shown["ended"] == {"ending": "STOPPED", "exit_status": 143, "reason": "it was stopped"}
    assert (shown["drivers_started"], shown["last_failure"]) == (2, "the driver was killed by SIGKILL")
