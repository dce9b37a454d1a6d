"""`headrace run` and `headrace top` in real processes, looked at while coordinators are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from headrace.testing import FakeKafka
from tests.helpers.python_path import python_path
from tests.unit.test_run_processes import PATIENCE_S, Run, produce, seen

pytestmark = pytest.mark.timeout(280)

COPY = """
from headrace import Pipeline
from headrace.kafka import KafkaSink, KafkaSource

pipeline = Pipeline(KafkaSource({0!r}, topics=["in"], columns=["key", "value", "partition"]), KafkaSink({0!r}, topic="out"))
"""


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        for topic in ("in", "out"):
            cluster.create_topic(topic, partitions=3)
        yield cluster


class Copy(Run):
    """`headrace run` of a pipeline that copies the topic."""

    def __init__(self, kafka, folder, *options):
        super().__init__(kafka, folder, *options, workers=1, job=COPY.format(kafka.bootstrap))
        self._kafka, self._produced = kafka, 0

    def more(self, what):
        """Produce some records, and wait for them."""
        produce(self._kafka, self._produced, 30)
        self._produced += 30
        self.wait(lambda: seen(self._kafka).keys() >= set(range(self._produced)), what)


def test_seen_here_top_goes_on_while_a_coordinator_that_was_killed_is_replaced(kafka, tmp_path):
    """It ended with the first coordinator."""
    run = Copy(kafka, tmp_path)
    try:
        run.more("the first records")
        command = [sys.executable, "-c", "from headrace.cli import main; main()", "top", str(tmp_path / "checkpoints")]
        environment = os.environ | {"PYTHONPATH": python_path()}
        told = tmp_path / "told"
        with told.open("w") as file:
            top = subprocess.Popen([*command, "--every", "0.2"], stdout=file, env=environment)

        def lines():
            return [json.loads(line) for line in told.read_text().splitlines(keepends=True) if line.endswith("\n")]

        run.wait(lambda: any(line["phase"] == "RUNNING" for line in lines()), "what top tells")
        killed, _ = run.group(1)
        run.process.send_signal(signal.SIGSTOP)  # so that it does not start the next one before top has looked
        os.kill(killed, signal.SIGKILL)
        run.wait(lambda: lines()[-1]["phase"] == "RESTARTING", "that the run starts again")
        run.process.send_signal(signal.SIGCONT)
        assert (lines()[-1]["coordinator"], lines()[-1]["workers"]) == (killed, [])
        run.wait(lambda: lines()[-1]["phase"] == "RUNNING" and lines()[-1]["coordinator"] != killed, "another coordinator")
        run.stop()
        assert top.wait(PATIENCE_S) == 0
        assert not {"supervisor", "status.json"} & set(os.listdir(tmp_path / "checkpoints"))
    finally:
        run.kill()
        top.kill()
        top.wait()
