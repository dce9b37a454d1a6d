"""SIGKILL of the driver, JVM and all, and a new one over the same checkpoint: every record once, none lost."""

import json
import os
import random
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.runners.spark_processes.spark_archive import archive_of_spark
from headrace.spark.kafka_offsets import OURS
from tests.helpers.envelopes import body_of
from tests.helpers.spark_jobs import SparkJob

pytestmark = pytest.mark.timeout(900)  # more than all that it waits for


class Driver(SparkJob):
    script = "spark_driver.py"

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL


@pytest.fixture
def start(tmp_path):
    archive_of_spark().at_hand()
    with ExitStack() as stack:
        yield lambda **arguments: stack.enter_context(Driver(tmp_path, "driver", {**arguments, "out": str(tmp_path)}))


def rows_in(out: Path) -> list[tuple[int, int, str]]:
    return [tuple(row) for path in out.glob("*.json") for row in json.loads(path.read_text())]


def test_killed_in_batch_0_of_a_query_from_latest(topics, start, tmp_path):
    """Records arrive between the first and the second run: a new look for "latest" would skip them."""
    topic = topics.create(2)
    topics.send(topic, ["before"])
    first = start(options=topics.options(topic), stop_in=0)
    first.wait_for((tmp_path / "reached").exists)
    offsets = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    (ours,) = (body_of(key.removeprefix(OURS)) for key in offsets if key.startswith(OURS))
    assert ours["began"] == {topic: {"0": 1, "1": 0}}
    topics.send(topic, range(5), 0)
    topics.send(topic, range(5, 10), 1)
    first.kill()
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()
    start(options=topics.options(topic), until=10).finish()
    assert sorted(int(value) for _, _, value in rows_in(tmp_path)) == list(range(10))


@pytest.mark.long
def test_killed_again_and_again_in_mid_stream(topics, start, tmp_path):
    topic = topics.create(3)
    total, sent, random_order = 4500, 0, random.Random(1)
    options = topics.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=450)
    kills = 0
    for _ in range(2):
        for partition in range(3):
            topics.send(topic, range(sent, sent + 500), partition)
            sent += 500
        seen = len(list(tmp_path.glob("*.json")))
        driver = start(options=options)
        target = seen + random_order.randint(2, 4)
        driver.wait_for(lambda: len(list(tmp_path.glob("*.json"))) >= target)  # noqa: B023 - called in this round only
        driver.kill()
        kills += 1
    for partition in range(3):
        topics.send(topic, range(sent, sent + (total - sent) // (3 - partition)), partition)
        sent += (total - sent) // (3 - partition)
    start(options=options, until=total).finish()
    rows = rows_in(tmp_path)
    assert kills == 2
    assert sorted(int(value) for _, _, value in rows) == list(range(total))
    assert len({(partition, offset) for partition, offset, _ in rows}) == total
