"""Regression tests: an older copy of a checkpoint whose next batch ends elsewhere is not a replay, and is refused by name."""

from __future__ import annotations

import functools
import json
import pickle
import traceback

import pyarrow as pa
import pytest

from headrace.connectors.base.commit import JobCommitter, StaleEpochError, SupersededError
from headrace.connectors.base.sink import Attempt
from headrace.delta import DeltaSink
from headrace.files import FileSink
from headrace.iceberg import IcebergSink
from headrace.kafka import KafkaSink
from headrace.runners.spark import offset_log, writers
from headrace.runners.spark.offset_log import OffsetLog, arrow_uri
from headrace.runners.spark.supervision.core import Ending
from headrace.runners.spark.supervision.exit_causes import end_by
from headrace.runners.spark.writers import BatchWriter, PreparedMessage, StreamWriter
from headrace.spark.connectors import offset_log as offset_log_of
from headrace.sql import UpsertSink
from headrace.testing import FakeKafka
from headrace.testing.memory_sink import MemorySink, MemoryTransactionLog
from tests.helpers.iceberg_rig import TABLE, catalog_of
from tests.helpers.sql_rig import SqlRig
from tests.helpers.table_rig import VALUES

JOB = "query"


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(offset_log, "_unreadable", set())
    return MemoryTransactionLog()


@pytest.fixture
def checkpoint(tmp_path):
    """As Spark writes it: a version, metadata with the time of planning, a line for each source."""

    def plan(name, batch, end, *, at=1):
        folder = tmp_path / name / "offsets"
        folder.mkdir(parents=True, exist_ok=True)
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at})
        (folder / str(batch)).write_text(f'v1\n{metadata}\n{{"t":{{"0":{end}}}}}')
        return OffsetLog(str(tmp_path / name))

    return plan


def new_run(monkeypatch):
    monkeypatch.setattr(writers, "_committer", functools.lru_cache(writers._committer.__wrapped__))


def messages(sink, epoch, values):
    with sink.begin(Attempt(JOB, epoch, 0, 0)) as transaction:
        transaction.write(pa.RecordBatch.from_pydict({"value": values}))
        return [PreparedMessage(JOB, epoch, transaction.prepare())]


def skipped(epoch):
    """What a task states that finds its epoch recorded."""
    return [PreparedMessage(JOB, epoch, None)]


def visible(log):
    return sorted(row["value"] for row in log.rows())


@pytest.mark.parametrize("end", [2, 9], ids=["before", "behind"])
@pytest.mark.parametrize("looked_before", [False, True])
def test_a_copy_that_is_one_batch_old_and_ends_its_next_batch_elsewhere_is_refused(
    log, checkpoint, monkeypatch, end, looked_before
):
    sink = MemorySink(log)
    StreamWriter(sink, ["value"], checkpoint("own", 0, 5)).commit(messages(sink, 0, ["a", "b"]), 0)
    new_run(monkeypatch)
    said = messages(sink, 0, ["a", "b", "c"]) if looked_before else skipped(0)
    with pytest.raises(StaleEpochError, match="is to write epoch 0, which the sink has committed already, from another plan"):
        StreamWriter(sink, ["value"], checkpoint("copy", 0, end)).commit(said, 0)
    assert visible(log) == ["a", "b"]
    assert not log.unended(JOB)


def of_spark(writer):
    """As it comes to the process that commits: before the tasks it was pickled, with a check at the sink."""
    return pickle.loads(pickle.dumps(writer))


@pytest.fixture(params=["kafka", "files", "sql", "delta", "iceberg"])
def any_sink(request, tmp_path):
    with FakeKafka() as kafka:
        kafka.create_topic("out")
        sink = {
            "kafka": lambda: KafkaSink(kafka.bootstrap, topic="out"),
            "files": lambda: FileSink(str(tmp_path / "files")),
            "sql": lambda: table_in(f"sqlite:///{tmp_path / 'some.db'}"),
            "delta": lambda: DeltaSink(str(tmp_path / "table")),
            "iceberg": lambda: IcebergSink(TABLE, catalog_of(str(tmp_path))),
        }[request.param]()
        if request.param in ("delta", "iceberg"):
            sink.create_table(VALUES)
        yield sink


def test_a_copy_that_has_planned_the_last_batch_again_is_refused_before_the_healthy_query_is_fenced(
    checkpoint, monkeypatch, any_sink
):
    own, copy = checkpoint("own", 0, 5), checkpoint("copy", 0, 9)
    checkpoint("own", 1, 7)
    live = JobCommitter(JOB, any_sink.committer(JOB))
    live.commit(0, prepared(any_sink, 0), own.digest(0))
    new_run(monkeypatch)
    with pytest.raises(StaleEpochError, match="committed already, from another plan"):
        of_spark(StreamWriter(any_sink, ["value"], copy)).commit(skipped(0), 0)
    with pytest.raises(StaleEpochError, match="committed already, from another plan"):
        of_spark(BatchWriter(any_sink, ["value"], JOB, 0, copy)).commit(skipped(0))
    with pytest.raises(StaleEpochError, match="committed already, from another plan"):
        StreamWriter(any_sink, ["value"], copy).recover(JOB, lambda: 0)
    live.commit(1, prepared(any_sink, 1), own.digest(1))
    assert any_sink.recorded_epochs() == {JOB: 1}


def test_a_driver_that_a_younger_one_has_left_behind_is_superseded_and_its_checkpoint_no_older_copy(monkeypatch, any_sink):
    """It was paused before it asked what is recorded. Status 66 is final, and a lease shows it to all hosts."""
    JobCommitter(JOB, any_sink.committer(JOB), "old").commit(0, prepared(any_sink, 0))
    young = JobCommitter(JOB, any_sink.committer(JOB), "young")
    young.claim()
    for epoch in (1, 2):
        young.commit(epoch, prepared(any_sink, epoch))
    new_run(monkeypatch)
    with pytest.raises(SupersededError, match=r"\(claim 2\): this one has stopped") as refused:
        of_spark(StreamWriter(any_sink, ["value"], driver_id="old")).commit(skipped(1), 1)
    assert end_by(RuntimeError("".join(traceback.format_exception(refused.value)))).ending is Ending.FENCED
    for driver in ("young", None):
        with pytest.raises(StaleEpochError):
            of_spark(StreamWriter(any_sink, ["value"], driver_id=driver)).commit(skipped(1), 1)
    young.commit(3, prepared(any_sink, 3))


def table_in(address):
    rig = SqlRig(address)
    rig.create("value VARCHAR(100) PRIMARY KEY")
    return UpsertSink(rig.url, rig.table, ("value",))


def prepared(sink, epoch):
    with sink.begin(Attempt(JOB, epoch, 0, 0)) as transaction:
        value = f"{epoch}".encode() if isinstance(sink, KafkaSink) else f"{epoch}"
        transaction.write(pa.RecordBatch.from_pydict({"value": [value]}))
        handle = transaction.prepare()
        return () if handle is None else (handle,)


def test_a_replay_of_the_same_offsets_is_completed_whatever_rows_and_tasks_it_has(log, checkpoint, monkeypatch):
    sink = MemorySink(log)
    StreamWriter(sink, ["value"], checkpoint("own", 0, 5)).commit(messages(sink, 0, ["a", "b"]), 0)
    new_run(monkeypatch)
    StreamWriter(sink, ["value"], checkpoint("own", 0, 5)).commit([*messages(sink, 0, ["x"]), *skipped(0)], 0)
    assert visible(log) == ["a", "b"]
    StreamWriter(sink, ["value"], checkpoint("copy", 1, 7)).commit(messages(sink, 1, ["c"]), 1)
    assert visible(log) == ["a", "b", "c"]


def test_a_copy_that_plans_the_batch_again_is_refused_though_its_sources_log_the_same(log, checkpoint, monkeypatch):
    """Spark's file source logs a counter, whatever files the batch has; timers make rows of the time alone."""
    sink = MemorySink(log)
    StreamWriter(sink, ["value"], checkpoint("own", 0, 5)).commit(messages(sink, 0, ["a"]), 0)
    new_run(monkeypatch)
    with pytest.raises(StaleEpochError):
        StreamWriter(sink, ["value"], checkpoint("copy", 0, 5, at=2)).commit(messages(sink, 0, ["a", "b"]), 0)
    assert visible(log) == ["a"]


def test_a_file_that_cannot_be_read_for_once_is_read_the_next_time(checkpoint, monkeypatch, log, caplog):
    known = checkpoint("own", 0, 5)
    read = offset_log.read_file

    def busy(name):
        monkeypatch.setattr(offset_log, "read_file", read)
        raise OSError(24, "too many open files")

    monkeypatch.setattr(offset_log, "read_file", busy)
    assert known.digest(0) is None
    assert known.digest(0) is not None
    assert caplog.text.count("cannot be read here") == 1


def test_a_batch_without_rows_is_reported_by_its_offsets_too(log, checkpoint, monkeypatch):
    sink = MemorySink(log)
    StreamWriter(sink, ["value"], checkpoint("own", 0, 5)).commit(skipped(0), 0)
    new_run(monkeypatch)
    with pytest.raises(StaleEpochError):
        StreamWriter(sink, ["value"], checkpoint("copy", 0, 6)).commit(messages(sink, 0, ["c"]), 0)
    assert visible(log) == []


def test_a_write_in_foreach_batch_that_names_the_checkpoint_is_refused_too(log, checkpoint):
    sink = MemorySink(log)
    BatchWriter(sink, ["value"], JOB, 0, checkpoint("own", 0, 5)).commit(messages(sink, 0, ["a", "b"]))
    BatchWriter(sink, ["value"], JOB, 0, checkpoint("own", 0, 5)).commit(skipped(0))
    with pytest.raises(StaleEpochError):
        BatchWriter(sink, ["value"], JOB, 0, checkpoint("copy", 0, 9)).commit(skipped(0))


def test_what_is_not_known_is_no_difference(log, checkpoint, monkeypatch, caplog):
    sink = MemorySink(log)
    StreamWriter(sink, ["value"]).commit(messages(sink, 0, ["a"]), 0)  # without a location
    for known in (checkpoint("own", 0, 5), OffsetLog("nowhere:/at/all"), OffsetLog("/no/such/checkpoint"), None):
        new_run(monkeypatch)
        StreamWriter(sink, ["value"], known).commit(skipped(0), 0)
    assert visible(log) == ["a"]
    assert caplog.text.count("the checkpoint at nowhere:/at/all cannot be read here") == 1
    assert OffsetLog("nowhere:/at/all").digest(1) is None


def test_a_checkpoint_is_found_under_a_path_and_a_uri(checkpoint, monkeypatch, tmp_path, log):
    known = checkpoint("own", 3, 5).digest(3)
    assert known is not None
    assert OffsetLog((tmp_path / "own").as_uri() + "/").digest(3) == known
    monkeypatch.chdir(tmp_path)
    assert OffsetLog("own").digest(3) == known
    (tmp_path / "own" / "offsets" / "4").write_text("v1\n")
    assert OffsetLog("own").digest(4) is None, "torn"


@pytest.mark.parametrize("name", ["a space", "umläut", "a%20b", "a#b", "what?", "[a]"])
def test_a_name_in_a_uri_is_not_quoted_as_hadoop_has_it(name, checkpoint, tmp_path):
    """Regression: it was taken as Arrow has it, not found, and an older copy of it was not noticed."""
    known = checkpoint(name, 3, 5).digest(3)
    assert known is not None
    for scheme in ("file:", "file://"):
        found = OffsetLog(f"{scheme}{tmp_path}/{name}")
        assert (found.digest(3), found.last_batch()) == (known, 3)


def test_a_name_in_a_uri_of_another_store_is_quoted_for_arrow():
    assert arrow_uri("s3a://bucket/a b%20#1/offsets") == "s3://bucket/a%20b%2520%231/offsets"
    assert arrow_uri("hdfs://host:8020/a") == "hdfs://host:8020/a"


def test_the_location_is_that_of_the_option_whatever_its_case():
    assert offset_log_of({"CheckpointLocation": "/a"}) == OffsetLog("/a")
    assert offset_log_of({"topic": "t"}) is None
