"""A query of Spark's JVM connector, continued with headrace from the same checkpoint."""

import json
import re
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from headrace.runners.spark.offset_log import OffsetLog
from headrace.spark.checkpoints.copies import export_to_jvm, write_copy
from headrace.spark.checkpoints.logs import read_checkpoint
from tests.helpers.spark_tools import numbers


@pytest.fixture
def filled(topics):
    return topics.numbered(2, 10)


def logged(query, batch):
    return json.loads((Path(query.checkpoint) / "offsets" / str(batch)).read_text().splitlines()[-1])


def test_it_continues_where_the_jvm_connector_was_stopped(query, topics, filled):
    options = topics.options(filled, startingOffsets="earliest", maxOffsetsPerTrigger=6)
    query.run_available(options, "kafka")
    assert query.values == numbers(range(20))
    batches = len(query.batches)
    topics.send(filled, range(20, 30), 0)
    topics.grow(filled, 3)
    topics.send(filled, range(30, 40), 2)
    query.run_available(options)
    assert query.values == numbers(range(40))
    assert not is_ours(logged(query, batches - 1))
    assert is_ours(logged(query, batches))


def test_the_jvm_connector_continues_where_ours_was_stopped_with_an_export_too_and_ours_from_there(
    query, topics, filled, tmp_path
):
    options = topics.options(filled, startingOffsets="earliest", maxOffsetsPerTrigger=6)
    query.run_available(options)
    assert is_ours(logged(query, len(query.batches) - 1))
    topics.send(filled, range(20, 30), 0)
    query.run_available(options, "kafka")
    assert query.values == numbers(range(30))
    topics.send(filled, range(30, 40), 1)
    query.run_available(options)
    checkpoint = read_checkpoint(str(query.checkpoint))
    query.checkpoint = tmp_path / "exported"
    write_copy(checkpoint, str(query.checkpoint), export_to_jvm(checkpoint), quiet_s=0.0)
    assert not is_ours(logged(query, len(query.batches) - 1))
    topics.send(filled, range(40, 50), 0)
    query.run_available(options, "kafka")
    topics.send(filled, range(50, 60), 1)
    query.run_available(options)
    assert query.values == numbers(range(60))
    assert is_ours(logged(query, len(query.batches) - 1))


def test_spark_continues_behind_a_batch_that_a_takeover_has_put_into_the_commit_log(query, topics, filled):
    """Its entry is the one that Spark has written, and the batch is not run again."""
    options = topics.options(filled, startingOffsets="earliest", maxOffsetsPerTrigger=6)
    query.run_available(options)
    last = OffsetLog(str(query.checkpoint)).last_batch()
    commits = Path(query.checkpoint) / "commits"
    written = (commits / str(last)).read_bytes()
    for path in list(commits.iterdir()):
        if path.name.lstrip(".").partition(".")[0] == str(last):
            path.unlink()
    OffsetLog(str(query.checkpoint)).complete(last)
    assert (commits / str(last)).read_bytes() == written
    query.batches.clear()
    topics.send(filled, range(20, 30), 0)
    query.run_available(options)
    assert query.values == numbers(range(20, 30))


def is_ours(offsets):
    return any(key.startswith("headrace:") for key in offsets)


@pytest.mark.parametrize("kept", ["kept", "rewritten"])
def test_its_uncommitted_batch_is_included(query, topics, filled, kept):
    """`rewritten`: the JVM connector had handed the batch's records on when it died; they are handed on again, the same."""
    options = topics.options(filled, startingOffsets="earliest", maxOffsetsPerTrigger=6)
    query.fails_in = 2
    with pytest.raises(StreamingQueryException, match="injected failure"):
        query.run_available(options, "kafka")
    query.fails_in = None
    assert sorted(query.batches) == [0, 1]
    assert not is_ours(logged(query, 2))
    if kept == "rewritten":
        query.batches[2] = ["represents what was written unsuccessfully"]
    topics.send(filled, range(20, 30), 1)
    query.run_available(options)
    assert query.values == numbers(range(30))
    assert len(query.batches[2]) == 6


class TestKilledInItsFirstBatch:
    @pytest.fixture
    def killed(self, query, topics):
        """A JVM query from latest, started when 0-9 were there, whose batch 0 of 10-14 failed; then 15-19 came."""
        topic = topics.holding(range(10))
        start = topics.options(topic, startingOffsets=json.dumps({topic: {"0": 10}}))
        topics.send(topic, range(10, 15))
        query.fails_in = 0
        with pytest.raises(StreamingQueryException, match="injected failure"):
            query.run_available(start, "kafka")
        query.fails_in = None
        topics.send(topic, range(15, 20))
        return topic

    def test_it_is_refused_with_advice(self, query, topics, killed):
        with pytest.raises(StreamingQueryException, match=re.escape("option jvmCheckpoint")):
            query.run_available(topics.options(killed))
        assert query.values == []

    def test_it_is_continued_when_the_checkpoint_is_named(self, query, topics, killed):
        query.run_available(topics.options(killed, jvmCheckpoint=query.checkpoint))
        assert query.values == numbers(range(10, 20))
        assert len(query.batches[0]) == 5
