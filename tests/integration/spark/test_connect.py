"""Spark Connect: batch and streaming reads, with a client that has no JVM."""

import json
import os
import signal
import subprocess
import sys

from tests.helpers.python_path import python_path
from tests.helpers.spark_tools import ROOT

CLIENT = ROOT / "tests" / "helpers" / "connect_client.py"


def test_reads_over_spark_connect(topics, tmp_path):
    topic = topics.numbered(2, 5)
    command = [sys.executable, str(CLIENT), json.dumps(topics.options(topic)), str(tmp_path)]
    # The server does not run where its client does, and an editable install's `pyspark_headrace` is seen on the path only.
    # With SPARK_TESTING it takes a free port; else it insists on 15002, which another one may hold.
    ours = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": python_path(), "SPARK_TESTING": "1"}
    environment = {**os.environ, **ours}
    # its own process group, because the local server outlives its client
    client = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        output, errors = client.communicate(timeout=300)
    finally:
        os.killpg(client.pid, signal.SIGKILL)
    assert client.returncode == 0, errors[-4000:]
    lines = dict(line.split(": ", 1) for line in output.splitlines() if ": " in line)
    assert lines["pushdown false"] == lines["pushdown true"] == "['7', '8', '9']"
    assert lines["stream"] == str([str(number) for number in range(10)])
    assert lines["source"] == "['one', 'three', 'two']"
    assert lines["client"].startswith("pyspark.sql.connect")
