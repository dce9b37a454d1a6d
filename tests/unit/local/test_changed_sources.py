"""A run that continues from its checkpoints with a source that was changed meanwhile."""

from __future__ import annotations

import os
import signal
import time

import pytest

from headrace.testing import FakeKafka
from tests.unit.local.test_processes import Run

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]

JOB = """
from headrace import Pipeline
from headrace.kafka import KafkaSink, KafkaSource
source = KafkaSource({0!r}, topics={1!r}, columns=["key", "value"], group="g", fail_on_data_loss={2!r})
pipeline = Pipeline(source, KafkaSink({0!r}, topic="out"))
"""


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        for topic in ("in", "old", "out"):
            cluster.create_topic(topic)
        yield cluster


def values(kafka):
    return sorted(record.value for record in kafka.records("out"))


def run(kafka, folder, topics, *, strict=False):
    return Run(kafka, folder, workers=1, job=JOB.format(kafka.bootstrap, topics, strict))


def test_a_topic_that_is_subscribed_to_no_more_is_read_no_more_where_that_is_tolerated(kafka, tmp_path):
    """The log said that the run continues without it, and its records were still copied and committed."""
    kafka.append("in", b"in-0")
    kafka.append("old", b"old-0")
    first = run(kafka, tmp_path, ["in", "old"])
    first.wait(lambda: values(kafka) == [b"in-0", b"old-0"], "both topics")
    first.stop()
    kafka.append("in", b"in-1")
    kafka.append("old", b"old-1")
    strict = run(kafka, tmp_path, ["in"], strict=True)
    assert strict.process.wait(100) != 0
    assert "old-0 (topic id" in (said := strict.log.read_text())
    assert "the source no longer selects the partition. To continue without these records" in said
    second = run(kafka, tmp_path, ["in"])
    second.wait(lambda: b"in-1" in values(kafka), "the topic that is left")
    second.wait(lambda: kafka.committed("g")["in", 0] == 2, "its position")
    second.stop()
    assert "the source no longer selects the partition; continuing without them" in second.log.read_text()
    assert values(kafka) == [b"in-0", b"in-1", b"old-0"]
    assert kafka.committed("g") == {("in", 0): 2, ("old", 0): 1}


PLANNED = """
from dataclasses import replace
from pathlib import Path
from headrace import Pipeline
from headrace.enumerator import SplitDiscovery
from headrace.kafka import KafkaSink, KafkaSource

TOPICS = Path(__file__).with_name("topics")
PLANNED = TOPICS.with_name({1!r}).read_text().split()

class Looking(SplitDiscovery):
    def __init__(self, kafka):
        self._kafka, self.close = kafka, kafka.close

    def initial(self):
        return self._kafka.initial()

    def later(self, known):
        now = TOPICS.read_text().split()
        return replace(self._kafka.later(known), replan=None if now == PLANNED else f"the topics are {{now}}")

class Source(KafkaSource):
    def create_discovery(self):
        return Looking(super().create_discovery())

source = Source({0!r}, topics=PLANNED, columns=["key", "value"], discovery_interval_s=0.1)
pipeline = Pipeline(source, KafkaSink({0!r}, topic="out"))
"""


def replanned(kafka, folder, planned_from):
    (folder / "topics").write_text("in")
    (folder / "pinned").write_text("in")
    return Run(kafka, folder, workers=2, job=PLANNED.format(kafka.bootstrap, planned_from))


def test_a_run_whose_source_has_to_be_planned_again_starts_again_by_itself(kafka, tmp_path):
    """It is no failure, as one of its coordinators is that dies afterwards."""
    kafka.append("in", b"in-0")
    kafka.append("old", b"old-0")
    with replanned(kafka, tmp_path, "topics") as first:
        first.wait(lambda: values(kafka) == [b"in-0"], "the first topic")
        before, _ = first.group(2)
        (tmp_path / "topics").write_text("in old")
        first.wait(lambda: values(kafka) == [b"in-0", b"old-0"], "the topic that was added")
        after, _ = first.group(2)
        assert after != before
        os.kill(after, signal.SIGKILL)
        kafka.append("old", b"old-1")
        first.wait(lambda: b"old-1" in values(kafka), "what was read after a kill")
        first.stop()
        said = first.log.read_text()
        assert said.count("starting again after a checkpoint, as the topics are ['in', 'old']") == 1
        assert said.count("the run has failed") == 1, "the kill, and no other start, is a failure"
    assert values(kafka) == [b"in-0", b"old-0", b"old-1"]


def test_a_run_that_is_planned_again_as_before_does_not_start_again_for_the_same(kafka, tmp_path):
    with replanned(kafka, tmp_path, "pinned") as run:
        for count, topics in enumerate(("in old", "in old out"), 1):
            before, _ = run.group(2)
            (tmp_path / "topics").write_text(topics)
            run.wait(lambda least=count: run.log.read_text().count("starting again") == least, "a start")
            run.wait(lambda old=before: run.group(2)[0] != old, "its coordinator")
            after, _ = run.group(2)
            kafka.append("in", b"%d" % count)
            run.wait(lambda value=b"%d" % count: value in values(kafka), "a record")
            time.sleep(1.0)  # ten looks of its discovery
            assert run.group(2)[0] == after
        run.stop()
        assert run.log.read_text().count("starting again") == 2
