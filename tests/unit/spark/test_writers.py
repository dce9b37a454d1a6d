"""Spark's writers on a sink in memory: what the driver's processes do with what tasks have prepared."""

from __future__ import annotations

import functools
import pickle
import shutil
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace.connectors.base.capabilities import LeftoverCleanup, OutageRetry
from headrace.connectors.base.commit import JobCommitter, StaleEpochError, SupersededError
from headrace.connectors.base.sink import Attempt, CommitList
from headrace.delta import DeltaSink
from headrace.enumerator.errors import DeadlineExceededError, FencedError, PeerError, StateError
from headrace.files import FileSink
from headrace.runners.spark import writers
from headrace.runners.spark.writers import BatchWriter, PreparedMessage, StreamWriter
from headrace.testing import FakeKafka
from headrace.testing.memory_sink import MemoryCommitter, MemorySink, MemoryTransactionLog
from tests.helpers.sink_rig import kafka_sink, ongoing
from tests.helpers.sink_rig import values as committed_values

JOB = "query"


@pytest.fixture
def log():
    return MemoryTransactionLog()


@pytest.fixture
def sink(log):
    return MemorySink(log)


def new_process(monkeypatch):
    """What a process of the driver remembers, forgotten."""
    fresh = functools.lru_cache(writers._committer.__wrapped__)
    monkeypatch.setattr(writers, "_committer", fresh)
    return fresh


def messages(sink, epoch, *tasks):
    """What the tasks of an epoch send to the driver."""
    sent = []
    for task, values in enumerate(tasks):
        with sink.begin(Attempt(JOB, epoch, task, 0)) as transaction:
            transaction.write(pa.RecordBatch.from_pydict({"value": values}))
            sent.append(PreparedMessage(JOB, epoch, transaction.prepare()))
    return sent


def values(log):
    return sorted(row["value"] if isinstance(row, dict) else row for row in log.rows())


def test_commits_may_change_between_the_drivers_processes(monkeypatch, sink, log):
    processes = [new_process(monkeypatch), new_process(monkeypatch)]
    for epoch in range(6):
        monkeypatch.setattr(writers, "_committer", processes[epoch % 2])
        StreamWriter(sink, ["value"]).commit(messages(sink, epoch, [f"{epoch}a"], [f"{epoch}b"]), epoch)
    assert values(log) == sorted(f"{epoch}{task}" for epoch in range(6) for task in "ab")


@pytest.mark.parametrize("aborts_in_new_process", [False, True])
def test_a_driver_that_was_overtaken_stops_and_its_abort_takes_nothing_back(monkeypatch, sink, log, aborts_in_new_process):
    """findings: Sinks 13. Spark starts a process for the abort, which does not remember who was fenced."""
    new_process(monkeypatch)
    StreamWriter(sink, ["value"]).commit(messages(sink, 0, ["0"]), 0)
    successor = JobCommitter(JOB, sink.committer(JOB))
    successor.commit(1, tuple(item.handle for item in messages(sink, 1, ["1"])))
    late = messages(sink, 1, ["late"])
    with pytest.raises(FencedError):
        StreamWriter(sink, ["value"]).commit(late, 1)
    under_way = messages(sink, 2, ["2"])
    if aborts_in_new_process:
        new_process(monkeypatch)
    StreamWriter(sink, ["value"]).abort(late, 1)
    successor.commit(2, tuple(item.handle for item in under_way))
    assert values(log) == ["0", "1", "2"]


def of(driver, sink):
    """A writer of this driver's, in whichever of its processes."""
    return StreamWriter(sink, ["value"], driver_id=driver)


def no_batch():
    """What the offset log ends with, of a query that has planned nothing."""


def test_of_two_supervised_drivers_that_live_the_older_is_done_for_and_the_younger_continues(monkeypatch, sink, log):
    """Without who owns the job they fenced each other alternately, for ever: each took the other for a sibling."""
    processes = {}

    def in_process(driver, number, act):
        monkeypatch.setattr(writers, "_committer", processes.setdefault((driver, number), new_process(monkeypatch)))
        act(of(driver, sink))

    in_process("old", 0, lambda writer: writer.commit(messages(sink, 0, ["0"]), 0))
    in_process("old", 1, lambda writer: writer.commit(messages(sink, 1, ["1"]), 1))
    in_process("young", 0, lambda writer: writer.claim(JOB, lambda: 2))
    in_process("young", 1, lambda writer: writer.commit(messages(sink, 2, ["2"]), 2))
    under_way = messages(sink, 3, ["3"])
    late = [PreparedMessage(JOB, 3, None)]
    for number in (0, 1, 2):
        with pytest.raises(SupersededError, match=r"another driver's, young \(claim 2\)"):
            in_process("old", number, lambda writer: writer.commit(late, 3))
        in_process("old", number, lambda writer: writer.abort(late, 3))
    assert len(log.unended(JOB)) == 1
    in_process("young", 1, lambda writer: writer.commit(under_way, 3))
    assert values(log) == ["0", "1", "2", "3"]


def test_a_driver_that_starts_its_query_again_does_not_take_the_job_back_from_a_younger_one(sink):
    of("old", sink).claim(JOB, no_batch)
    of("young", sink).claim(JOB, no_batch)
    with pytest.raises(SupersededError):
        of("old", sink).recover(JOB, no_batch)
    of("young", sink).recover(JOB, no_batch)


def test_a_driver_that_is_fenced_while_it_claims_claims_again(monkeypatch, sink, log):
    """By a previous one, which finds out thereby that it is done for."""
    of("old", sink).claim(JOB, no_batch)
    store, fences = MemoryTransactionLog.store, []

    def fenced_first(self, job, generation, data):
        if not fences:
            fences.append(log.fence(job))
        store(self, job, generation, data)

    monkeypatch.setattr(MemoryTransactionLog, "store", fenced_first)
    of("young", sink).claim(JOB, no_batch)
    assert fences
    of("young", sink).recover(JOB, no_batch)
    with pytest.raises(SupersededError):
        of("old", sink).recover(JOB, no_batch)


def test_an_owner_that_is_fenced_without_end_gives_up(monkeypatch, sink, log):
    of("mine", sink).claim(JOB, no_batch)
    fenced = []

    def always(self, job, generation, data):
        fenced.append(generation)
        raise FencedError("again")

    monkeypatch.setattr(MemoryTransactionLog, "store", always)
    new_process(monkeypatch)
    with pytest.raises(FencedError, match="again"):
        of("mine", sink).commit(messages(sink, 0, ["0"]), 0)
    assert len(fenced) == writers._MOST_FENCES


def test_a_query_without_supervision_is_refused_where_the_job_is_claimed_and_welcome_once_it_is_given_back(
    monkeypatch, sink, log
):
    new_process(monkeypatch)
    of("mine", sink).commit(messages(sink, 0, ["0"]), 0)
    with pytest.raises(SupersededError, match="not supervised"):
        of(None, sink).commit(messages(sink, 1, ["1"]), 1)
    of("mine", sink).release(JOB)
    of(None, sink).commit(messages(sink, 1, ["1"]), 1)
    assert values(log) == ["0", "1"]


def test_who_has_ended_well_does_not_wait_for_a_sink_that_is_away(sink, log):
    """Calls ride out an outage, however long: a job of which all was committed did not end."""

    class Riding(MemorySink, OutageRetry):
        def committer(self, job):
            pytest.fail("it would wait until the outage is over")

        def bounded(self):
            return sink

        def reached(self):
            pass

    of("mine", sink).claim(JOB, no_batch)
    of("mine", Riding(log)).release(JOB)
    of(None, sink).commit(messages(sink, 0, ["0"]), 0)


class Leaving(MemorySink, LeftoverCleanup):
    """A transaction is always left over."""

    ended: ClassVar[list[tuple[object, ...]]] = []

    def left_over(self):
        return frozenset({"x"})

    def end_left_over(self, *what):
        self.ended.append(what)


def test_tasks_end_what_is_remaining_for_their_driver_wherever_they_run(sink):
    Leaving.ended.clear()
    pickle.loads(pickle.dumps(of("mine", Leaving(sink.log))._recorded)).recover(JOB)
    assert Leaving.ended == [(JOB, frozenset({"x"}), "mine")]


def test_a_repeated_batch_write_that_is_recorded_by_another_driver_is_left_alone_by_its_abort(monkeypatch, sink, log):
    successor = JobCommitter(JOB, sink.committer(JOB))
    successor.commit(1, tuple(item.handle for item in messages(sink, 1, ["1"])))
    under_way = messages(sink, 2, ["2"])
    monkeypatch.setattr(writers.time, "sleep", lambda _: None)
    BatchWriter(sink, ["value"], JOB, 1).abort([None])
    successor.commit(2, tuple(item.handle for item in under_way))
    assert values(log) == ["1", "2"]


def test_an_abort_that_cannot_ask_what_is_recorded_aborts_nothing(monkeypatch, sink, log):
    prepared = messages(sink, 0, ["0"])
    with monkeypatch.context() as patched:
        patched.setattr(MemorySink, "recorded_epochs", Mock(side_effect=DeadlineExceededError("no broker")))
        StreamWriter(sink, ["value"]).abort(prepared, 0)
    assert len(log.unended(JOB)) == 1
    StreamWriter(sink, ["value"]).abort(prepared, 0)
    assert log.unended(JOB) == []


@pytest.mark.parametrize("writes", ["a stream", "a batch"])
def test_what_a_query_with_another_commit_topic_has_prepared_is_aborted_when_it_is_refused(monkeypatch, writes):
    """It stayed open until its timeout, and readers saw nothing that came behind it."""
    monkeypatch.setattr(writers.time, "sleep", lambda _: None)
    with FakeKafka() as kafka:
        kafka.create_topic("out")
        first, second = (kafka_sink(kafka.bootstrap, "out", topic) for topic in ("lists", "other-lists"))
        StreamWriter(first, ["value"]).commit(messages(first, 0, ["0"]), 0)
        writer = StreamWriter(second, ["value"]) if writes == "a stream" else BatchWriter(second, ["value"], JOB, 1)
        number, sent = (1,) if writes == "a stream" else (), messages(second, 1, ["1"], ["2"])
        with pytest.raises(StateError, match="the job had another commit topic"):
            writer.commit(sent, *number)
        assert len(ongoing(second, JOB)) == 2
        writer.abort(sent, *number)
        assert ongoing(second, JOB) == []
        StreamWriter(first, ["value"]).commit(messages(first, 1, ["3"]), 1)
        assert committed_values(kafka) == ["0", "3"]


def task(properties, attempt=0):
    """Gives the context of a task, whose job has these local properties of the query's thread."""
    context = {"partitionId": lambda: 3, "attemptNumber": lambda: 0, "taskAttemptId": lambda: attempt}
    return lambda: SimpleNamespace(**context, getLocalProperty=properties.get)


@pytest.mark.parametrize(("job", "epoch", "warned"), [(None, None, True), (JOB, 0, False)])
def test_a_write_in_foreach_batch_without_a_name_is_warned_of(monkeypatch, sink, log, caplog, job, epoch, warned):
    """findings: Sinks 21. Each took names that no process uses again, and coordinators keep them for a week."""
    monkeypatch.setattr(writers.TaskContext, "get", task({"sql.streaming.queryId": "the-query"}))
    writer = BatchWriter(sink, ["value"], job, epoch)
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"value": ["0"]})]))])
    assert values(log) == ["0"]
    assert ("query the-query writes in foreachBatch without txnAppId and txnVersion" in caplog.text) is warned


def test_a_named_write_that_the_destination_has_already_is_warned_of(monkeypatch, sink, log, caplog):
    """Of two writes of one batch with one name the second lost its rows without a word."""
    monkeypatch.setattr(writers.TaskContext, "get", task({}))
    for number, warned in (("0", False), ("1", True)):
        writer = pickle.loads(pickle.dumps(BatchWriter(sink, ["value"], JOB, 7)))
        writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"value": [number]})]))])
        assert ("needs another txnAppId" in caplog.text) is warned
    assert values(log) == ["0"]


@pytest.mark.parametrize("error", [PeerError("gone"), OSError("gone")])
def test_a_list_that_cannot_be_removed_does_not_fail_a_committed_write(monkeypatch, sink, log, caplog, error):
    """findings: Sinks 7. The caller would repeat it."""
    monkeypatch.setattr(MemoryCommitter, "forget", Mock(side_effect=error))
    BatchWriter(sink, ["value"], None, None).commit(messages(sink, 0, ["0"]))
    assert values(log) == ["0"]
    assert "could not be removed: gone" in caplog.text


def test_spark_24552_attempts_at_a_task_in_two_attempts_at_its_stage_have_two_names(monkeypatch, sink, log):
    """findings: Sinks 3. Attempts count from 0 again. With one name the second would abort what the first has prepared."""
    rows = [pa.RecordBatch.from_pydict({"value": ["0"]})]
    sent = []
    for task_attempt in (17, 29):
        monkeypatch.setattr(writers.TaskContext, "get", task({}, task_attempt))
        sent.append(BatchWriter(sink, ["value"], JOB, 0).write(iter(rows)))
    assert len(log.unended(JOB)) == 2
    BatchWriter(sink, ["value"], JOB, 0).commit(sent[:1])
    assert values(log) == ["0"]


def test_a_process_that_knows_nothing_recovers_before_it_commits(monkeypatch, sink, log):
    new_process(monkeypatch)
    StreamWriter(sink, ["value"]).commit(messages(sink, 0, ["0"]), 0)
    messages(sink, 1, ["orphan"], ["orphan"])
    new_process(monkeypatch)
    StreamWriter(sink, ["value"]).commit(messages(sink, 1, ["1"]), 1)
    assert values(log) == ["0", "1"]
    assert log.unended(JOB) == []


def test_an_epoch_without_messages_is_nobodys(monkeypatch, sink, log):
    new_process(monkeypatch)
    StreamWriter(sink, ["value"]).commit([None], 0)
    StreamWriter(sink, ["value"]).abort([None], 0)
    assert sink.recorded_epochs() == {}


def test_a_batch_write_that_was_killed_in_its_commit_is_completed_when_it_is_repeated(sink, log):
    killed = sink.committer(JOB)
    killed.fence()
    killed.record(CommitList(0, tuple(item.handle for item in messages(sink, 0, ["0a"], ["0b"]))))
    assert values(log) == []
    BatchWriter(sink, ["value"], JOB, 0).commit([PreparedMessage(JOB, 0, None)])  # the tasks see that the epoch is recorded
    assert values(log) == ["0a", "0b"]


BATCH_4 = {"sql.streaming.queryId": JOB, "streaming.sql.batchId": "4"}


def test_a_task_of_a_driver_that_a_younger_one_has_left_behind_says_so(monkeypatch, sink):
    """It took the checkpoint for an older copy: `test_stale_checkpoints.py`."""
    new_process(monkeypatch)
    monkeypatch.setattr(writers.TaskContext, "get", task(BATCH_4))
    of("old", sink).claim(JOB, no_batch)
    of("young", sink).claim(JOB, no_batch)
    of("young", sink).commit(messages(sink, 5, ["5"]), 5)
    with pytest.raises(SupersededError, match="another driver's, young"):
        pickle.loads(pickle.dumps(of("old", sink))).write(iter([]))
    with pytest.raises(StaleEpochError):
        pickle.loads(pickle.dumps(of("young", sink))).write(iter([]))


@pytest.mark.parametrize("stream", [True, False])
def test_an_epoch_that_tasks_have_skipped_is_not_recorded_as_empty_where_it_is_not_recorded(monkeypatch, sink, log, stream):
    """Tasks were informed that it is recorded; then the job was forgotten, or its table recreated. The rows were lost."""
    new_process(monkeypatch)
    monkeypatch.setattr(writers.TaskContext, "get", task(BATCH_4))
    driver = JobCommitter(JOB, sink.committer(JOB))
    driver.commit(4, tuple(item.handle for item in messages(sink, 4, ["4"])))

    def written():
        writer = StreamWriter(sink, ["value"]) if stream else BatchWriter(sink, ["value"], JOB, 4)
        writer._recorded._epochs = pickle.loads(pickle.dumps(writer._recorded.__getstate__()))["_epochs"]
        return writer, [writer.write(iter([pa.RecordBatch.from_pydict({"value": ["again"]})]))]

    writer, sent = written()
    driver.forget()
    with pytest.raises(PeerError, match="tasks of epoch 4 of job 'query' have written nothing"):
        writer.commit(sent, 4) if stream else writer.commit(sent)
    assert JOB not in sink.recorded_epochs()
    writer, sent = written()
    writer.commit(sent, 4) if stream else writer.commit(sent)
    assert values(log) == ["4", "again"]


def test_a_query_whose_first_batch_here_is_not_its_first_is_notified_of_once(monkeypatch, sink, log, caplog):
    """It may have a new destination; or the one it had was recreated, and lacks what the batches before have written."""
    new_process(monkeypatch)
    StreamWriter(sink, ["value"]).commit(messages(sink, 7, ["7"]), 7)
    assert caplog.text.count("job query: batch 7 is the first one that is recorded here") == 1
    StreamWriter(sink, ["value"]).commit(messages(sink, 8, ["8"]), 8)
    new_process(monkeypatch)
    StreamWriter(sink, ["value"]).commit(messages(sink, 9, ["9"]), 9)
    assert caplog.text.count("is the first one") == 1
    StreamWriter(MemorySink(MemoryTransactionLog()), ["value"]).commit([PreparedMessage(JOB, 0, None)], 0)
    assert caplog.text.count("is the first one") == 1


def rows_of_files(folder):
    return pq.read_table(folder)


def rows_of_table(folder):
    return DeltaTable(folder).to_pyarrow_table()


@pytest.mark.parametrize(("make", "rows"), [(FileSink, rows_of_files), (DeltaSink, rows_of_table)])
def test_a_destination_that_was_restored_from_an_older_backup_is_warned_of(monkeypatch, tmp_path, caplog, make, rows):
    """`headrace run` refuses it. On Spark a batch may have had no tasks, so that the sink does not know of it."""
    folder, backup = tmp_path / "rows", tmp_path / "backup"
    if make is DeltaSink:
        DeltaTable.create(folder, pa.schema({"value": pa.string()}))
    sink = make(str(folder))
    for epoch in range(6):
        new_process(monkeypatch)
        if epoch == 2:
            shutil.copytree(folder, backup)
        if epoch == 5:
            shutil.rmtree(folder)
            backup.rename(folder)
        writer = pickle.loads(pickle.dumps(StreamWriter(sink, ["value"])))
        writer.commit(messages(sink, epoch, [f"{epoch}"]), epoch)
        assert ("the sink's last batch is 1, and this is batch 5" in caplog.text) == (epoch == 5)
    assert caplog.text.count("the sink's last batch") == 1
    assert sorted(rows(folder)["value"].to_pylist()) == ["0", "1", "5"]


def test_what_a_stopped_task_prepares_after_the_abort_of_a_batch_write_is_aborted_too(monkeypatch, sink, log):
    stragglers = []

    def straggle(seconds):
        assert seconds == writers.STRAGGLERS_S
        stragglers.extend(messages(sink, 0, ["late"]))
        assert log.unended(JOB) != []

    monkeypatch.setattr(writers.time, "sleep", straggle)
    BatchWriter(sink, ["value"], JOB, 0).abort([None])
    assert len(stragglers) == 1
    assert log.unended(JOB) == []
    assert values(log) == []
