"""What a supervised driver does at the sink before its query starts, and to whom: on Kafka's protocol, without Spark."""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from headrace.connectors.base.commit import JobCommitter, StaleEpochError, SupersededError
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.enumerator.errors import FencedError
from headrace.kafka import KafkaSource
from headrace.run import Pipeline
from headrace.runners.spark.driver_id import DRIVER_ID
from headrace.runners.spark.offset_log import OffsetLog
from headrace.runners.spark.supervision.exit_causes import end_by
from headrace.runners.spark.supervision.lock import CheckpointLock
from headrace.runners.spark.supervision.process_tree import new_tree
from headrace.runners.spark.supervision.query_hooks import StartedQuery
from headrace.runners.spark.supervision.takeover import Takeover
from headrace.runners.spark.writers import PreparedMessage, StreamWriter
from headrace.testing import FakeKafka
from pyspark_headrace import DefaultSource
from tests.helpers import run_jobs
from tests.helpers.sink_rig import prepared
from tests.helpers.spark_in_process import InProcessSpark

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="supervision is for Linux")

JOB = "6f0c3c52-9c5e-4f0a-8f0e-000000000001"


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        cluster.create_topic("out")
        yield cluster


@pytest.fixture
def checkpoint(tmp_path):
    """A function that makes one with this many batches of the job."""

    def make(name, batches):
        folder = tmp_path / name
        (folder / "offsets").mkdir(parents=True)
        (folder / "metadata").write_text(json.dumps({"id": JOB}))
        for batch in range(batches):
            (folder / "offsets" / str(batch)).write_text('v1\n{"batchTimestampMs":1}\n{}')
            (folder / "offsets" / f".{batch}.crc").write_text("")
        return str(folder)

    return make


SCHEMA = StructType([StructField("value", BinaryType())])


def query_of(kafka, location, **options):
    """Which writes to the topic "out", unless the options say otherwise."""
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "checkpointlocation": f"file:{location}"}
    return StartedQuery(SimpleNamespace(schema=SCHEMA), "headrace", "append", given | (options or {"topic": "out"}))


def started(kafka, location):
    """What `Takeover` is notified of a query; Spark's own start comes last."""
    opened = []
    Takeover(new_tree(), DefaultSource, 0).start(query_of(kafka, location), lambda: opened.append(location))
    return opened


def commit(sink, driver, epochs):
    for epoch in epochs:
        driver.commit(epoch, prepared(sink, JOB, epoch, [str(epoch)]))


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_an_older_copy_of_a_checkpoint_is_refused_before_the_healthy_query_is_fenced(kafka, checkpoint, batches):
    sink = KafkaSink(kafka.bootstrap, topic="out")
    live = JobCommitter(JOB, sink.committer(JOB))
    commit(sink, live, range(3))
    next_epoch = prepared(sink, JOB, 3, ["3"])  # a clean-up would abort it
    message = r"committed up to epoch 2 of it.*older copy\. Nothing of the job was changed"
    with pytest.raises(StaleEpochError, match=message) as refused:
        started(kafka, checkpoint("copy", batches))
    assert end_by(refused.value).ending.name == "BAD_CHECKPOINT"
    live.commit(3, next_epoch)
    assert [record.value for record in kafka.records("out")] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("batches", [3, 4])
def test_the_checkpoint_itself_takes_over_whether_its_last_batch_was_recorded_or_not(kafka, checkpoint, batches):
    sink = KafkaSink(kafka.bootstrap, topic="out")
    old = JobCommitter(JOB, sink.committer(JOB))
    commit(sink, old, range(3))
    location = checkpoint("own", batches)
    assert started(kafka, location) == [location]
    with pytest.raises(FencedError):
        commit(sink, old, [3])


def test_a_driver_that_continues_while_it_is_superseded_makes_no_older_copy_of_its_checkpoint(kafka, checkpoint, monkeypatch):
    """The checkpoint was asked first, and then the sink: it had a batch that was planned and recorded in between. Status 66 is
    final, and a lease shows it to all hosts.
    """
    sink, location = KafkaSink(kafka.bootstrap, topic="out"), checkpoint("own", 1)
    live = JobCommitter(JOB, sink.committer(JOB))
    commit(sink, live, [0])
    looks = []

    def goes_on_after(look):
        def looked(*what):
            found = look(*what)
            looks.append(found)
            if len(looks) == 1:
                (Path(location) / "offsets" / "1").write_text('v1\n{"batchTimestampMs":2}\n{}')
                commit(sink, live, [1])
            return found

        return looked

    monkeypatch.setattr(KafkaSink, "recorded_now", goes_on_after(KafkaSink.recorded_now))
    monkeypatch.setattr(OffsetLog, "last_batch", goes_on_after(OffsetLog.last_batch))
    assert started(kafka, location) == [location]
    assert len(looks) == 2
    with pytest.raises(FencedError):
        commit(sink, live, [2])


@pytest.fixture
def many_hosts(monkeypatch):
    """The lock of the checkpoint keeps no process apart."""
    monkeypatch.setattr(CheckpointLock, "take", lambda *_: None)


@pytest.mark.usefixtures("many_hosts")
def test_each_supervised_driver_claims_its_job_and_every_process_of_the_query_knows_its_name(kafka, checkpoint):
    query = query_of(kafka, checkpoint("own", 1))
    drivers = [Takeover(new_tree(), DefaultSource, 0) for _ in range(2)]
    marked = []
    for driver in drivers:
        driver.start(replace(query, mark=lambda *what: marked.append(what)), lambda: None)
    assert [name for name, _ in marked] == [DRIVER_ID, DRIVER_ID]
    older, younger = (
        DefaultSource({**query.options, name.lower(): value}).streamWriter(SCHEMA, False) for name, value in marked
    )
    messages = [PreparedMessage(JOB, 0, handle) for handle in prepared(KafkaSink(kafka.bootstrap, topic="out"), JOB, 0, ["0"])]
    with pytest.raises(SupersededError, match=r"\(claim 2\)") as refused:
        older.commit(messages, 0)
    assert end_by(refused.value).ending.name == "FENCED"
    younger.commit(messages, 0)
    assert [record.value for record in kafka.records("out")] == [b"0"]
    with pytest.raises(SupersededError):
        drivers[0].start(query, lambda: None)


@pytest.mark.usefixtures("many_hosts")
def test_a_driver_that_ends_in_good_order_gives_its_jobs_back_and_one_that_cannot_has_ended_well_all_the_same(
    kafka, checkpoint, caplog
):
    query = query_of(kafka, checkpoint("own", 1))
    first, second = Takeover(new_tree(), DefaultSource, 0), Takeover(new_tree(), DefaultSource, 0)
    for driver in (first, second):
        driver.start(query, lambda: None)
    first.release()
    assert "could not be given back" in caplog.text
    sink = KafkaSink(kafka.bootstrap, topic="out")
    with pytest.raises(SupersededError, match="not supervised"):
        JobCommitter(JOB, sink.committer(JOB)).recover()
    second.release()
    JobCommitter(JOB, sink.committer(JOB)).recover()


@pytest.mark.usefixtures("many_hosts")
def test_a_driver_claims_its_job_at_each_sink_that_it_starts_the_query_with_and_gives_all_of_them_back(kafka, checkpoint):
    """With a second destination it only recovered: where a killed driver had claimed the job there, it ended as superseded."""
    location = checkpoint("own", 1)
    opened = []

    def start(driver, cluster):
        driver.start(query_of(cluster, location), lambda: opened.append((driver, cluster)))

    with FakeKafka() as another:
        another.create_topic("out")
        killed, driver = Takeover(new_tree(), DefaultSource, 0), Takeover(new_tree(), DefaultSource, 0)
        start(killed, another)
        start(driver, kafka)
        start(driver, another)
        assert opened == [(killed, another), (driver, kafka), (driver, another)]
        with pytest.raises(SupersededError):
            start(killed, another)
        driver.release()
        for cluster in (kafka, another):
            JobCommitter(JOB, KafkaSink(cluster.bootstrap, topic="out").committer(JOB)).recover()


def test_the_last_batch_of_an_offset_log_is_reported_by_its_numbers_wherever_it_lies(checkpoint):
    location = checkpoint("own", 12)
    assert OffsetLog(location).last_batch() == OffsetLog(f"file://{location}").last_batch() == 11
    assert OffsetLog(f"{location}/nowhere").last_batch() is OffsetLog(f"file://{location}/nowhere").last_batch() is None


ENDED = 'v1\n{"nextBatchWatermarkMs":0}'


def commit_all(kafka, location, batches, **options):
    """The sink has all batches, and the commit log all but the last: the driver was killed in between. Gives that log."""
    sink = KafkaSink(kafka.bootstrap, **options)
    for batch in range(batches):
        said = [PreparedMessage(JOB, batch, handle) for handle in prepared(sink, JOB, batch, [str(batch)])]
        StreamWriter(sink, ["value"], OffsetLog(location)).commit(said, batch)
    commits = Path(location, "commits")
    commits.mkdir()
    for batch in range(batches - 1):
        (commits / str(batch)).write_text(ENDED)
    return commits


def start(kafka, location, **options):
    Takeover(new_tree(), DefaultSource, 1).start(query_of(kafka, location, **options), lambda: None)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("many_hosts")
def test_a_last_batch_that_the_sink_has_is_not_run_again_to_find_that_out(kafka, checkpoint):
    """Spark runs each planned batch that is not in its commit log: a third of a second of a takeover, for nothing."""
    location = checkpoint("own", 3)
    commits = commit_all(kafka, location, 3, topic="out")
    start(kafka, location, topic="out")
    assert names(commits) == ["0", "1", "2"]
    assert (commits / "2").read_text() == ENDED
    start(kafka, location, topic="out")  # again, with nothing to complete
    assert names(commits) == ["0", "1", "2"]


@pytest.mark.usefixtures("many_hosts")
def test_a_last_batch_that_the_sink_has_not_is_run_again(kafka, checkpoint):
    commits = commit_all(kafka, checkpoint("own", 3), 3, topic="out")
    (commits.parent / "offsets" / "3").write_text('v1\n{"batchTimestampMs":1}\n{}')
    (commits / "2").write_text(ENDED)
    start(kafka, str(commits.parent), topic="out")
    assert names(commits) == ["0", "1", "2"]


@pytest.mark.usefixtures("many_hosts")
def test_a_last_batch_whose_rows_name_their_topics_is_run_again_as_they_may_name_others_now(kafka, checkpoint):
    location = checkpoint("own", 3)
    sink = KafkaSink(kafka.bootstrap)
    rows = pa.record_batch({"topic": pa.array(["out"]), "value": pa.array([b"x"])})
    for batch in range(3):
        with sink.begin(Attempt(JOB, batch, 0, 0)) as transaction:
            transaction.write(rows)
            said = [PreparedMessage(JOB, batch, transaction.prepare())]
        StreamWriter(sink, ["topic", "value"], OffsetLog(location)).commit(said, batch)
    commits = Path(location, "commits")
    commits.mkdir()
    (commits / "1").write_text(ENDED)
    assert StreamWriter(sink, ["topic", "value"], OffsetLog(location)).recover(JOB, lambda: 2) is None


@pytest.fixture
def commits(checkpoint):
    """The commit log of a query whose last batch, 2, is not in it."""
    folder = Path(checkpoint("own", 3), "commits")
    folder.mkdir()
    (folder / "1").write_text(ENDED)
    return folder


SPOILED = {
    "a watermark": lambda commits: (commits / "1").write_text('v1\n{"nextBatchWatermarkMs":7}'),
    "ids of state": lambda commits: (commits / "1").write_text('v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}'),
    "state": lambda commits: (commits.parent / "state").mkdir(),
    "no batch before": lambda commits: (commits / "1").unlink(),
    "a checksum is left": lambda commits: (commits / ".2.crc").write_bytes(b"crc"),
    "it is there": lambda commits: (commits / "2").write_text("v1"),
}


@pytest.mark.parametrize("spoiled", SPOILED)
def test_nothing_is_put_into_a_commit_log_of_which_it_is_not_known_what_spark_would_write(commits, spoiled):
    SPOILED[spoiled](commits)
    before = {path.name: path.read_bytes() for path in commits.iterdir()}
    OffsetLog(str(commits.parent)).complete(2)
    assert {path.name: path.read_bytes() for path in commits.iterdir()} == before


def test_a_start_does_not_fail_for_a_commit_log_that_cannot_be_written_to(commits, monkeypatch, caplog):
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EPERM, "no hard links")))
    OffsetLog(str(commits.parent)).complete(2)
    assert names(commits) == ["1"]
    assert "batch 2 is in the sink, and is run again" in caplog.text


def test_nothing_is_put_into_a_commit_log_elsewhere(commits):
    OffsetLog(f"nowhere:{commits.parent}").complete(2)
    assert names(commits) == ["1"]
    (commits / ".2.whatever.tmp").touch()  # of a driver that was killed as it wrote
    OffsetLog(str(commits.parent)).complete(2)
    assert names(commits) == [".2.whatever.tmp", "1", "2"]


def test_a_pipelines_query_is_recovered_before_spark_reads_its_checkpoint(kafka, checkpoint, tmp_path, caplog):
    kafka.create_topic("in")
    pipeline = Pipeline(KafkaSource(kafka.bootstrap, topics=["in"]), KafkaSink(kafka.bootstrap, topic="out"), run_jobs.narrow)
    spark = InProcessSpark()
    pipeline.start_on_spark(spark, checkpointLocation=str(tmp_path / "its own")).stop()
    (sink,) = [name for name in spark.formats if "_sink_" in name]
    recovered = []
    with patch.object(StreamWriter, "claim", lambda writer, job, last: recovered.append((writer.sink.topic, job, last()))):
        query = StartedQuery(
            SimpleNamespace(schema=None), sink, "append", {"checkpointlocation": f"file:{checkpoint('own', 2)}"}
        )
        Takeover(new_tree(), DefaultSource, 1).start(query, lambda: recovered.append("started"))
    assert recovered == [("out", JOB, 1), "started"]
    assert "at least once" not in caplog.text
