"""`make demo-beam`: it passes, with kills, a savepoint and new partitions on a real Flink."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

DEMO = Path(__file__).parents[3] / "examples" / "flights" / "demo_beam.py"
COUNT = 20_000
LAST_LINE = re.compile(r"headrace demo: (\d+) records in, (\d+) out, (\d+) duplicates, (\d+) lost, (\d+) restores")


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.flink
@pytest.mark.timeout(900)
def test_every_flight_is_copied_and_totalled_once(broker, tmp_path):
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": broker.bootstrap}
    command = [sys.executable, DEMO, "--flights", str(COUNT), "--rate", "1000"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    found = LAST_LINE.fullmatch(done.stdout.rstrip().rpartition("\n")[2])
    assert found, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert (done.returncode, [int(group) for group in found.groups()]) == (0, [COUNT, COUNT, 0, 0, 3])
    topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
    assert not [name for name in topics if name.startswith("flights-")]
