"""A run that continues from its checkpoints with a source that was changed meanwhile."""

from __future__ import annotations

import pytest

from headrace.testing import FakeKafka
from tests.unit.local.test_processes import Run

pytestmark = pytest.mark.timeout(120)

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
