"""SQL sinks against real databases: exactly once whatever dies, and no value changes on the way."""

import functools
import json
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from time import sleep
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base.commit import JobCommitter, StaleEpochError, SupersededError
from headrace.connectors.base.jobs import one_off_job
from headrace.connectors.base.sink import Attempt, CommitList, Outcome
from headrace.connectors.sql.handles import SqlHandle, SqlHandleSerializer, list_key, split_gid
from headrace.connectors.sql.sink import SqlSink
from headrace.connectors.sql.upsert import UpsertSink
from headrace.enumerator import errors
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.kafka import KafkaSource, Latest
from headrace.run import FixedDelay, Pipeline
from headrace.runners.beam.shard import CLEAN_UP_S
from headrace.runners.local.checkpoints import CheckpointStore, RunCheckpointSerializer
from headrace.runners.local.commit.committer import RunCommitter
from headrace.runners.local.events import WorkerHandle
from headrace.runners.spark import writers
from headrace.testing import FakeKafka
from headrace.testing.memory import MemorySplitSerializer
from headrace.testing.servers.databases import PASSWORD
from tests.helpers import run_into_sql
from tests.helpers.beam_shards import Runner
from tests.helpers.databases import REQUIRED, postgresql, unavailable
from tests.helpers.sql_rig import Crash, CrashingCommitter, SqlRig, batch, prepare, run_epoch, write_epoch

pytestmark = pytest.mark.timeout(300)
STEPS = ["fence", "clean_up", "check", "record", "end", "end", "clean_up", "record"]

# What a task does that is killed: everything but to end by itself.
WRITER = """
import sys, pickle, pyarrow as pa
from headrace.connectors.base.sink import Attempt
sink, attempt, step = pickle.loads(bytes.fromhex(sys.argv[1]))
transaction = sink.begin(attempt)
transaction.write(pa.record_batch({"id": pa.array(range(1000), pa.int64())}))
if step == "prepared":
    handle = transaction.prepare()
    print(sink.handles.serialize(handle), flush=True)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def job(rig) -> str:
    rig.create()
    return rig.job()


@pytest.fixture
def sink(rig) -> SqlSink:
    return rig.sink()


@pytest.fixture
def driver(rig) -> Iterator[Callable[..., JobCommitter[SqlHandle]]]:
    made: list[JobCommitter[SqlHandle]] = []

    def make(job: str, sink: Any = None) -> JobCommitter[SqlHandle]:
        made.append(JobCommitter(job, (sink or rig.sink()).committer(job)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def killed_writer(sink: SqlSink, attempt: Attempt, step: str) -> str:
    """The output of a process that got so far and was killed."""
    command = [sys.executable, "-c", WRITER, pickle.dumps((sink, attempt, step)).hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = []
        for line in process.stdout:
            output.append(line)
            if line == "ready\n":
                break
        assert process.poll() is None, output
        process.kill()
        assert process.wait() == -9
    return "".join(output)


def write_all(sink: Any, attempt: Attempt, *batches: pa.RecordBatch) -> SqlHandle | None:
    with sink.begin(attempt) as transaction:
        for one in batches:
            transaction.write(one)
        return transaction.prepare()


# --- the contract -----------------------------------------------------------------------------------------------------
def test_rows_are_seen_once_committed_and_not_before(rig, job, driver):
    handles = write_epoch(rig.sink(), job, 0, [[1, 2], [3]])
    assert [handle.rows for handle in handles] == [2, 1]
    assert rig.ids() == []
    assert rig.prepared() >= {handle.gid for handle in handles}
    one = driver(job)
    one.commit(0, handles)
    assert rig.ids() == [1, 2, 3]
    one.commit(1, write_epoch(rig.sink(), job, 1, [[4]]))
    assert rig.ids() == [1, 2, 3, 4]
    assert rig.sink().recorded_epochs()[job] == 1
    assert not rig.prepared()


def test_a_prepared_transaction_survives_its_killed_writer_and_is_committed_by_another_process(rig, job, driver):
    output = killed_writer(rig.sink(), Attempt(job, 0, 0, 0), "prepared")
    handle = SqlHandleSerializer().deserialize(1, json.loads(output.splitlines()[0].replace("'", '"')))
    assert rig.ids() == []
    driver(job).commit(0, (handle,))
    assert rig.ids() == list(range(1000))


def test_nothing_is_left_of_a_writer_that_is_killed_before_it_prepares(rig, job, driver):
    killed_writer(rig.sink(), Attempt(job, 0, 0, 0), "written")
    driver(job).commit(0, write_epoch(rig.sink(), job, 0, [[1]]))
    assert rig.ids() == [1]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(len(STEPS)))
def test_a_driver_that_dies_at_any_step_is_recovered_from(rig, job, sink, driver, step, when):
    run_epoch(sink, job, 0, [[1], [2]])
    handles = write_epoch(sink, job, 1, [[3, 4], [5]])
    with closing(CrashingCommitter(sink.committer(job), step, when=when)) as committer:
        with pytest.raises(Crash):
            JobCommitter(job, committer).commit(1, handles)
        assert committer.calls == STEPS[: step + 1]  # it died where it should
    run_epoch(sink, job, 1, [[3, 4], [5]])
    assert rig.ids() == [1, 2, 3, 4, 5]
    assert not rig.prepared()
    run_epoch(sink, job, 2, [[6]])
    assert rig.ids() == [1, 2, 3, 4, 5, 6]
    assert len(rig.execute(f"SELECT gid FROM headrace_transactions WHERE job = '{job}'")) == 1  # of the last epoch


def test_an_epoch_is_written_once_however_often_it_is_committed(rig, job, driver):
    driver(job).commit(0, write_epoch(rig.sink(), job, 0, [[1]]))
    driver(job).commit(0, write_epoch(rig.sink(), job, 0, [[1]]))
    assert rig.ids() == [1]
    assert not rig.prepared()


def test_an_old_checkpoint_is_refused(rig, job, driver):
    driver(job).commit(5, write_epoch(rig.sink(), job, 5, [[1]]))
    with pytest.raises(StaleEpochError, match="epoch 4"):
        driver(job).commit(4, write_epoch(rig.sink(), job, 4, [[0]]))
    assert rig.ids() == [1]


def test_an_old_driver_can_neither_record_nor_cleans_up(rig, job, sink, driver):
    with closing(sink.committer(job)) as old:
        old.fence()
        handles = write_epoch(sink, job, 0, [[1]])
        new = driver(job)
        new.recover()
        (handle,) = write_epoch(sink, job, 0, [[1]])
        assert handle.gid not in {one.gid for one in handles}
        with pytest.raises(errors.FencedError, match=job):
            old.record(CommitList(0, handles))
        with pytest.raises(errors.FencedError, match=job):
            old.clean_up(())
        new.commit(0, (handle,))
        assert rig.ids() == [1]
        new.commit(1, write_epoch(sink, job, 1, [[2]]))
        with pytest.raises(errors.FencedError, match=job):
            old.end(handle)  # its row is dropped by now: not to be taken for aborted


# --- workers of headrace run ------------------------------------------------------------------------------------------
@pytest.fixture
def run_on(rig, tmp_path):
    positions = CheckpointSerializer("memory", MemorySplitSerializer())

    def made(sink, name):
        serializer = RunCheckpointSerializer(positions, SqlHandleSerializer())
        store = stack.enter_context(closing(CheckpointStore(str(tmp_path / name), serializer, 1)))
        run = RunCommitter(store, sink, store.latest(), 0, lambda _: None, lambda _: None, lambda: 0.0, lambda: 1)
        return stack.enter_context(closing(run)), store

    with ExitStack() as stack:
        yield made


def commit_of_run(run, number, *handles):
    run.propose(Checkpoint(number, (), False))
    JobCommitter("x", run).commit(number, handles)


def test_what_a_dead_worker_of_a_run_has_prepared_locks_no_process_out(rig, run_on):
    """It has no checkpoint, and the others, who wait for its locks, would never complete one."""
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    sink = rig.sink(lock_timeout_s=1.0)
    run, store = run_on(sink, "checkpoints")
    JobCommitter("x", run).recover()
    for number in (1, 2):
        store.add_worker(number)
    prepare(sink, Attempt(store.registry.job(1), 0, 0, 0), [1, 2])
    with pytest.raises(errors.RetriableError):
        prepare(sink, Attempt(store.registry.job(2), 0, 0, 0), [1, 2])
    run.retire(1)
    for epoch, ids in enumerate(([1, 2], [3], [4])):
        handle = prepare(sink, Attempt(store.registry.job(2), epoch, 0, 0), ids)
        commit_of_run(run, 1 + epoch, WorkerHandle(2, handle))
    assert (rig.ids(), rig.prepared()) == ([1, 2, 3, 4], set())
    kept = f"SELECT gid FROM headrace_transactions WHERE job = '{store.registry.job(2)}'"
    assert rig.execute(kept) == [(handle.gid,)]  # of the last checkpoint alone
    run.retire(2)
    assert rig.execute(kept) == []


def test_a_coordinator_that_was_replaced_cleans_up_nothing_of_its_successors_workers(rig, run_on, tmp_path):
    rig.create()
    sink = rig.sink()
    run, store = run_on(sink, "checkpoints")
    JobCommitter("x", run).recover()
    store.add_worker(1)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "run.json").write_bytes((tmp_path / "checkpoints" / "run.json").read_bytes())
    successor, copied = run_on(sink, "copy")
    JobCommitter("x", successor).recover()
    handle = prepare(sink, Attempt(copied.registry.job(1), 0, 0, 0), [1])
    with pytest.raises(errors.FencedError):
        run.retire(1)
    commit_of_run(successor, 1, WorkerHandle(1, handle))
    assert rig.ids() == [1]


def test_a_run_into_a_table_with_a_unique_key_outlives_a_worker_that_dies_prepared(rig, tmp_path):
    """One worker kills itself when it has prepared, once, while the other's part of the checkpoint is awaited."""
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    armed = tmp_path / "armed"
    armed.touch()
    sink = run_into_sql.DiesPreparedSink(rig.url, rig.table, lock_timeout_s=20.0, armed=str(armed))
    with FakeKafka() as kafka:
        kafka.create_topic("in", partitions=2)
        for number in range(40):
            kafka.append("in", b"%d" % number, partition=number % 2)
        source = KafkaSource(kafka.bootstrap, topics=["in"], stop=Latest(), columns=["value", "partition"])
        pipeline = Pipeline(source, sink, run_into_sql.rows_of_a_table)
        pipeline.run(checkpoints=str(tmp_path / "run"), workers=2, interval_s=0.3, restart=FixedDelay(5, 0.0))
    assert not armed.exists()
    assert (rig.ids(), rig.prepared()) == (list(range(40)), set())


def test_a_fence_waits_for_a_driver_that_cleans_up_and_not_for_ever(rig, job, driver):
    with closing(rig.sink().committer(job)) as holder, closing(rig.sink(lock_timeout_s=1).committer(job)) as waiting:
        holder.fence()
        held = pytest.raises(errors.RetriableError, match="another driver has held the lock")
        with holder._connected("a test") as connection, holder._locked(connection), held:
            waiting.fence()
        waiting.fence()


def test_a_cleans_up_touches_nothing_of_other_jobs_databases_and_applications(rig, job, sink, driver):
    others = [prepare(sink, Attempt(name, 0, 0, 0), [1]).gid for name in (f"{job}0", f"{job}_", f"x{job}")]
    mine = prepare(sink, Attempt(job, 0, 0, 0), [2]).gid
    place = "00000000"  # of another database of this server
    foreign = f"headrace.{place}.{job}.0.0.0.00c0ffee"
    rig.execute(f"CREATE TABLE {rig.table}_x (id INT)")
    if rig.is_postgresql:
        names = [f"'{foreign}'", "'another application''s'", f"'{mine}.more'"]
        for name in names:
            rig.execute(f"BEGIN; INSERT INTO {rig.table}_x VALUES (1); PREPARE TRANSACTION {name}")
    else:
        gtrid, branch = split_gid(foreign)
        like_ours = f"'{split_gid(mine)[0]}',X'302e302e302eff'"
        names = [f"'{gtrid}','{branch}'", "X'ff00fe2e27','b',7", "X'ff','\\''", like_ours]
        for name in names:
            with rig._engine.connect() as connection:
                insert = f"INSERT INTO {rig.table}_x VALUES (1)"
                for statement in (f"XA START {name}", insert, f"XA END {name}", f"XA PREPARE {name}"):
                    connection.exec_driver_sql(statement)
                connection.invalidate()
    try:
        driver(job).recover()
        left = rig.prepared() if rig.is_postgresql else set(others) | rig.prepared()
        assert mine not in left
        assert set(others) <= left
    finally:
        for name in names:  # each must still be there
            rig.execute(f"ROLLBACK PREPARED {name}" if rig.is_postgresql else f"XA ROLLBACK {name}")
        rig.execute(f"DROP TABLE {rig.table}_x")


def test_what_an_administrator_rolled_back_after_it_was_durable_is_reported_as_lost(rig, job, sink, driver):
    handles = write_epoch(sink, job, 0, [[1, 2], [3, 4, 5]])
    with closing(sink.committer(job)) as committer:
        committer.fence()
        committer.record(CommitList(0, handles))
    rig.roll_back(handles[1].gid)
    with pytest.raises(errors.DataLossError) as caught:
        driver(job).recover()
    assert all(text in str(caught.value) for text in (job, handles[1].gid, "3 rows"))
    assert handles[0].gid not in str(caught.value)
    assert rig.ids() == [1, 2]
    # The way out that the message names.
    rig.execute(f"INSERT INTO headrace_transactions (gid, job, epoch) VALUES ('{handles[1].gid}', '{job}', 0)")
    run_epoch(sink, job, 1, [[6]])
    assert rig.ids() == [1, 2, 6]


def test_what_an_administrator_rolled_back_before_is_written_again(rig, job, sink, driver):
    handles = write_epoch(sink, job, 0, [[1], [2]])
    rig.roll_back(handles[0].gid)
    with pytest.raises(errors.PeerError, match="must be written again") as caught:
        driver(job).commit(0, handles)
    assert handles[0].gid in str(caught.value)
    assert handles[1].gid not in str(caught.value)
    run_epoch(sink, job, 0, [[1], [2]])
    assert rig.ids() == [1, 2]


def test_what_another_process_else_committed_counts_as_committed(rig, job, sink):
    (handle,) = write_epoch(sink, job, 0, [[1]])
    with closing(sink.committer(job)) as committer:
        committer.fence()
        assert committer.end(handle) is Outcome.COMMITTED
        assert committer.end(handle) is Outcome.COMMITTED
    assert rig.ids() == [1]


def test_a_writer_that_is_still_connected_is_waited_for_and_not_taken_for_aborted(rig, job):
    transaction = rig.sink().begin(Attempt(job, 0, 0, 0))
    transaction.write(batch([1]))
    handle = transaction._pre_commit()
    with closing(rig.sink(lock_timeout_s=1).committer(job)) as committer:
        committer.fence()
        committer.check([handle])
        if rig.is_postgresql:
            assert committer.end(handle) is Outcome.COMMITTED
        else:
            with pytest.raises(errors.RetriableError, match=handle.gid):
                committer.end(handle)
            with pytest.raises(errors.RetriableError, match=handle.gid):
                committer.clean_up(())
        transaction.abort()
        assert committer.end(handle) is Outcome.COMMITTED
    assert rig.ids() == [1]


def test_a_second_drivers_attempt_of_the_same_name_rolls_back_nothing_that_a_list_names(rig, job, sink):
    """findings: Sinks 3. Two drivers overlap: the first has checked, the second's task starts, the first records."""
    handles = write_epoch(sink, job, 0, [[1], [2]])
    with closing(sink.committer(job)) as committer:
        committer.fence()
        committer.check(handles)
        transaction = sink.begin(Attempt(job, 0, 0, 0))
        assert {handle.gid for handle in handles} <= rig.prepared()
        committer.record(CommitList(0, handles))
        transaction.abort()
        transaction.abort()
        assert [committer.end(handle) for handle in handles] == [Outcome.COMMITTED] * 2
    assert rig.ids() == [1, 2]


# --- two tables of one job ----------------------------------------------------------------------------------------------
@pytest.fixture
def other(rig) -> Iterator[SqlRig]:
    other = SqlRig(rig.url)
    other.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    yield other
    for gid in other.prepared():
        other.roll_back(gid)
    other.execute(f"DROP TABLE {other.table}")


@pytest.mark.parametrize("step", range(len(STEPS)))
def test_two_tables_of_one_job_have_each_row_once_whatever_step_the_driver_dies_at(rig, other, step):
    """findings: Sinks 1. As `foreachBatch` with one txnAppId and txnVersion: the second table had nothing, silently."""
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    job = rig.job()
    for sink in (rig.sink(), other.sink()):
        run_epoch(sink, job, 0, [[1], [2]])
    for dying in (rig, other):  # the batch is written to both, and the driver dies in the first one's commit, then the other's
        if dying is other:
            run_epoch(rig.sink(), job, 1, [[3], [4]])
        handles = write_epoch(dying.sink(), job, 1, [[3], [4]])
        with closing(CrashingCommitter(dying.sink().committer(job), step, when="after")) as committer:
            with pytest.raises(Crash):
                JobCommitter(job, committer).commit(1, handles)
            assert committer.calls == STEPS[: step + 1]
    for sink in (rig.sink(), other.sink()):
        run_epoch(sink, job, 1, [[3], [4]])
    assert rig.ids() == other.ids() == [1, 2, 3, 4]
    assert not rig.prepared()


def test_a_driver_of_one_table_cleans_up_and_fences_nothing_of_another(rig, job, other):
    with closing(other.sink().committer(job)) as others:
        others.fence()
        handles = write_epoch(other.sink(), job, 0, [[1], [2]])
        run_epoch(rig.sink(), job, 0, [[1]])
        run_epoch(rig.sink(), job, 7, [[2]])
        others.check(handles)
        others.record(CommitList(0, handles))
        assert others.end(handles[0]) is Outcome.COMMITTED
        run_epoch(rig.sink(), job, 9, [[3]])  # drops what is kept of this job at this table
        assert [others.end(handle) for handle in handles] == [Outcome.COMMITTED] * 2
    assert other.ids() == [1, 2]
    assert rig.sink().left_over() == other.sink().left_over() == frozenset()


def test_a_table_has_one_list_however_its_name_is_written(rig, job):
    run_epoch(rig.sink(), job, 0, [[1]])
    run_epoch(SqlSink(rig.url, full(rig)), job, 0, [[2]])
    assert rig.ids() == [1]


# --- what an earlier run remaining --------------------------------------------------------------------------------------
class Context:
    """What Spark shows a task of a streaming query."""

    def __init__(self, job: str, epoch: int, task: int, attempt: int) -> None:
        self._properties = {writers.QUERY_ID: job, writers._BATCH_ID: str(epoch)}
        self.partitionId = lambda: task
        self.taskAttemptId = lambda: attempt
        self.attemptNumber = lambda: 0

    def getLocalProperty(self, name: str) -> str:  # noqa: N802 - Spark's name
        return self._properties[name]


@pytest.fixture
def driver_process(monkeypatch) -> Iterator[None]:
    made: list[JobCommitter[SqlHandle]] = []

    @functools.cache
    def committer(sink: SqlSink, job: str, driver_id: str | None) -> JobCommitter[SqlHandle]:
        made.append(JobCommitter(job, sink.committer(job), driver_id))
        return made[-1]

    monkeypatch.setattr(writers, "_committer", committer)
    yield
    for one in made:
        one.close()


def run_batch(monkeypatch, sink: SqlSink, job: str, epoch: int, tasks: Sequence[Sequence[int]]) -> list[Any]:
    """The tasks of a batch as Spark runs them: each has a copy of the writer, which is pickled before they start."""
    pickled = pickle.dumps(writers.StreamWriter(sink, ["id", "name"]))
    sent = []
    for task, ids in enumerate(tasks):
        monkeypatch.setattr(writers.TaskContext, "get", lambda task=task: Context(job, epoch, task, 100 + task))
        sent.append(pickle.loads(pickled).write(iter([batch(ids)])))
    return sent


@pytest.mark.usefixtures("driver_process")
def test_a_query_that_is_restarted_with_fewer_tasks_is_not_stuck_behind_what_another_task_prepared(rig, monkeypatch):
    """findings: Sinks 5. Nothing is recorded, the driver is dead, and row 2 is locked by a task that never comes again."""
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    job, sink = rig.job(), rig.sink(lock_timeout_s=2)
    run_batch(monkeypatch, sink, job, 0, [[1], [2]])
    assert len(rig.prepared()) == 2
    sent = run_batch(monkeypatch, sink, job, 0, [[1, 2]])
    writers.StreamWriter(sink, ["id", "name"]).commit(sent, 0)
    assert rig.ids() == [1, 2]
    assert not rig.prepared()


@pytest.mark.usefixtures("driver_process")
def test_a_query_continues_when_its_tasks_have_fenced_its_own_driver(rig, monkeypatch):
    """Something is remaining in the middle of a run, the tasks recover, and the driver takes its job back to commit."""
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    job, sink = rig.job(), rig.sink(lock_timeout_s=2)
    writer = writers.StreamWriter(sink, ["id", "name"])
    writer.commit(run_batch(monkeypatch, sink, job, 0, [[1], [2]]), 0)
    prepare(sink, Attempt(job, 1, 7, 0), [3, 4])
    writer.commit(run_batch(monkeypatch, sink, job, 1, [[3], [4]]), 1)
    assert rig.ids() == [1, 2, 3, 4]
    assert not rig.prepared()


def test_what_an_overlapping_driver_has_recorded_is_committed_by_a_tasks_recovery_and_the_rest_is_fenced(rig, job, sink):
    """findings: Sinks 3: rolled back is only what no process can record any more."""
    first = write_epoch(sink, job, 0, [[1], [2]])
    with closing(sink.committer(job)) as old:
        old.fence()
        old.record(CommitList(0, first))
        second = write_epoch(sink, job, 1, [[3]])
        old.check(second)
        left_over = sink.left_over()
        assert left_over >= {handle.gid for handle in first + second}
        sink.end_left_over(job, left_over)
        with pytest.raises(errors.FencedError, match=job):
            old.record(CommitList(1, second))
    assert rig.ids() == [1, 2]
    assert not rig.prepared()


def test_a_task_of_a_driver_that_was_taken_for_dead_rolls_back_nothing_of_the_one_in_its_place(rig, job, sink):
    with closing(JobCommitter(job, sink.committer(job), "old")) as old:
        old.claim()
    with closing(JobCommitter(job, sink.committer(job), "young")) as young:
        young.claim()
        handles = write_epoch(sink, job, 0, [[1]])
        left_over = sink.left_over()
        for superseded in ("old", None):
            with pytest.raises(SupersededError):
                sink.end_left_over(job, left_over, superseded)
        assert rig.prepared() == {handle.gid for handle in handles}
        with pytest.raises(errors.FencedError):
            young.commit(0, handles)
    with closing(JobCommitter(job, sink.committer(job), "young")) as again:
        again.commit(0, handles)
    assert rig.ids() == [1]


def test_a_tasks_recovery_leaves_its_siblings_and_other_jobs_alone(rig, job, sink):
    prepare(sink, Attempt(job, 0, 5, 0), [1])
    other = prepare(sink, Attempt(f"{job}0", 0, 0, 0), [9])
    left_over = sink.left_over()
    sibling = prepare(sink, Attempt(job, 0, 0, 0), [1])
    sink.end_left_over(job, left_over)
    assert rig.prepared() == {other.gid, sibling.gid}
    run_epoch(sink, f"{job}0", 0, [[9]])


def test_tasks_that_recover_at_the_same_time_wait_for_each_other(rig, job, sink):
    for task in range(6):
        prepare(sink, Attempt(job, 0, task, 0), [task])
    left_over = sink.left_over()

    def task(number: int) -> SqlHandle:
        sink.end_left_over(job, left_over)
        return prepare(sink, Attempt(job, 0, number, 1), [number])

    with ThreadPoolExecutor(4) as pool:
        handles = tuple(pool.map(task, range(4)))
    assert rig.prepared() == {handle.gid for handle in handles}
    with closing(sink.committer(job)) as committer:
        JobCommitter(job, committer).commit(0, handles)
    assert rig.ids() == [0, 1, 2, 3]


@pytest.mark.parametrize("rig", ["postgresql"], indirect=True)  # others have no search path
def test_a_new_schema_in_the_search_path_hides_nothing_that_is_prepared(rig):
    """Our tables are found where they were, and names of transactions were made of the schema that came first."""
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    job, sink = rig.job(), rig.sink(lock_timeout_s=1)
    run_epoch(sink, job, 0, [[1]])
    prepare(sink, Attempt(job, 1, 0, 0), [2])
    rig.execute("CREATE SCHEMA writer")  # of the user's name: the first in the default path
    try:
        assert sink.left_over() == rig.prepared() != set()
        run_epoch(sink, job, 1, [[2]])
        assert rig.ids() == [1, 2]
        assert not rig.prepared()
        assert rig.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'headrace_commits'") == [("public",)]
    finally:
        rig.execute("DROP SCHEMA writer CASCADE")


def test_a_recovery_without_anything_of_the_job_contacts_no_process():
    SqlSink("postgresql://127.0.0.1:1/none", "t").end_left_over("q", frozenset({"headrace.00000000.q0.0.0.0.00c0ffee"}))


def test_a_transaction_without_rows_has_no_handle(rig):
    rig.create()
    with rig.sink().begin(Attempt(rig.job(), 0, 0, 0)) as transaction:
        transaction.write(batch([]))
        assert transaction.prepare() is None
    assert not rig.prepared()


def test_a_forgotten_job_starts_over(rig, job, driver):
    one = driver(job)
    one.commit(9, write_epoch(rig.sink(), job, 9, [[1]]))
    one.forget()
    assert job not in rig.sink().recorded_epochs()
    run_epoch(rig.sink(), job, 0, [[2]])
    assert rig.ids() == [1, 2]


def test_an_attempt_that_prepares_after_the_write_was_committed_holds_no_lock_for_ever(rig, driver):
    """findings: Sinks 14. After a batch write without a name no process comes to roll back what a late attempt prepares."""
    rig.create("id BIGINT, name VARCHAR(100)")
    job = one_off_job()
    loser = rig.sink().begin(Attempt(job, 0, 0, 1))
    loser.write(batch([1]))
    one = driver(job)
    one.commit(0, write_epoch(rig.sink(), job, 0, [[1]]))
    one.forget()
    with pytest.raises(errors.StateError, match="is committed or aborted already"):
        loser.prepare()
    assert rig.ids() == [1]
    assert not rig.prepared()
    assert job not in rig.sink().recorded_epochs()


def test_what_is_kept_of_a_write_without_a_name_goes_with_one_that_is_an_hour_later(rig, driver):
    rig.create()
    first, second, third = jobs = [one_off_job() for _ in range(3)]

    def kept() -> set[str]:
        keys = {key.partition(".")[0] for (key,) in rig.execute("SELECT job FROM headrace_commits")}
        return keys.intersection(jobs)

    for job, wanted in ((first, {first}), (second, {first, second}), (third, {second, third})):
        if job is third:
            key = list_key(first, full(rig))
            rig.execute(f"UPDATE headrace_commits SET generation = generation - 3601 WHERE job = '{key}'")
        one = driver(job)
        one.commit(0, ())
        one.forget()
        assert kept() == wanted


def full(rig: SqlRig) -> str:
    """The table's name as lists have it."""
    ((schema,),) = rig.execute("SELECT current_schema()" if rig.is_postgresql else "SELECT database()")
    return f"{schema}.{rig.table}"


def test_a_shard_of_beam_writes_once_and_keeps_nothing_of_earlier_transactions(rig):
    rig.create(f"value {'BYTEA' if rig.is_postgresql else 'BLOB'}")
    runner = Runner(rig.sink())
    runner.call(["a"])
    runner.checkpointed()
    runner.call(["b"])
    runner.restored()
    for value in "bcdef":
        runner.call([value])
        runner.quiet()
    runner.now_s += CLEAN_UP_S
    runner.call()
    assert [bytes(value) for (value,) in rig.rows()] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert rig.prepared() == set()
    kept = rig.execute(f"SELECT epoch FROM headrace_transactions WHERE job = '{runner.job}'")
    assert kept == [(6,)]


def test_two_attempts_at_one_unique_key_do_not_wait_for_ever(rig, driver):
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    job, sink = rig.job(), rig.sink(lock_timeout_s=1)
    prepare(sink, Attempt(job, 0, 0, 0), [1])
    with pytest.raises(errors.RetriableError):
        prepare(sink, Attempt(job, 0, 0, 1), [1])
    run_epoch(sink, job, 0, [[1]])
    assert rig.ids() == [1]


def test_an_epoch_may_take_longer_than_a_roles_statements_and_idle_transactions(rig):
    """Administrators limit them; each attempt would end in the same place."""
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    limits = "statement_timeout", "idle_in_transaction_session_timeout"
    setting, value, normal = "ALTER ROLE CURRENT_USER SET {} = '{}'", "300ms", "0"
    if not rig.is_postgresql:
        limits = "idle_transaction_timeout", "idle_write_transaction_timeout", "wait_timeout"
        setting, value, normal = "SET GLOBAL {} = {}", "1", "DEFAULT"
    try:
        for limit in limits:
            rig.execute(setting.format(limit, value))
        for number, sink in enumerate((rig.sink(), UpsertSink(rig.url, rig.table, ("id",)))):
            with sink.begin(Attempt(rig.job(), 0, 0, 0)) as transaction:
                transaction.write(batch([2 * number]))
                sleep(0.6 if rig.is_postgresql else 2.2)
                transaction.write(batch([2 * number + 1]))
                transaction.prepare()
    finally:
        for limit in limits:
            rig.execute(setting.format(limit, normal))
    assert rig.ids() == [2, 3]
    assert len(rig.prepared()) == 1


def test_jobs_with_the_longest_names_and_tables_with_odd_ones(rig):
    rig.table = f'"O\'Hara 100%s ""{uuid.uuid4().hex[:6]}"' if rig.is_postgresql else f"`O'Hara 100%s \"{uuid.uuid4().hex[:6]}`"
    rig._engine.connect().close()
    quoted = rig.table.replace("%", "%%")
    column = '"a %%s ""` b"' if rig.is_postgresql else '`a %%s "`` b`'
    rig.execute(f"CREATE TABLE {quoted} (id BIGINT, {column} VARCHAR(100))")
    sink = SqlSink(rig.url, rig.table[1:-1].replace('""', '"'))
    job = "J" * 100
    with sink.begin(Attempt(job, 2**63 - 1, 2**31 - 1, 2**31 - 1)) as transaction:
        transaction.write(pa.record_batch({'a %s "` b': ["x"], "id": [1]}))
        handle = transaction.prepare()
    driver = JobCommitter(job, sink.committer(job))
    driver.commit(2**63 - 1, (handle,))
    driver.forget()
    driver.close()
    assert rig.execute(f"SELECT * FROM {quoted}") == [(1, "x")]
    rig.execute(f"DROP TABLE {quoted}")
    rig.table = "none"


def test_our_tables_are_made_by_the_process_that_comes_first(rig):
    rig.create()
    for name in ("headrace_commits", "headrace_transactions"):
        rig.execute(f"DROP TABLE IF EXISTS {name}")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: dict(rig.sink().recorded_epochs()), range(8))) == [{}] * 8


# --- what is refused --------------------------------------------------------------------------------------------------
def test_a_missing_table_is_named(rig):
    with pytest.raises(errors.UsageError, match=rig.table):
        rig.sink().begin(Attempt("q", 0, 0, 0))


def test_rows_that_do_not_fit_are_refused_at_once_and_every_column_is_named(rig):
    wanted = "id BIGINT NOT NULL, amount NUMERIC(10, 2), at DATE, needed INT NOT NULL, filled INT NOT NULL DEFAULT 1"
    rig.create(f"{wanted}, small REAL, single {'REAL' if rig.is_postgresql else 'FLOAT'}")
    rows = pa.record_batch({
        "id": ["text"], "amount": pa.array([Decimal("1.001")], pa.decimal128(10, 3)), "at": pa.array([1.5]), "other": [1],
        "nested": [[1]], "small": pa.array([1]),
        "single": pa.array([0.1]).dictionary_encode(),
    })  # fmt: skip
    with rig.sink().begin(Attempt(rig.job(), 0, 0, 0)) as transaction, pytest.raises(errors.UsageError) as caught:
        transaction.write(rows)
    message = str(caught.value)
    assert rig.table in message
    assert all(f"{name!r}" in message for name in ("id", "amount", "at", "other", "nested", "needed", "small", "single"))
    assert "'filled'" not in message
    assert rig.execute(f"SELECT count(*) FROM {rig.table}") == [(0,)]
    assert not rig.prepared()


@pytest.mark.parametrize(("column", "values"), [
    ("SMALLINT", pa.array([2**15])), ("VARCHAR(3)", pa.array(["four"])), ("BIGINT NOT NULL", pa.array([None], pa.int64())),
    ("BIGINT UNIQUE", pa.array([1, 1])), ("NUMERIC(3, 1)", pa.array([Decimal("100.0")])),
    ("TIMESTAMP(0) NULL", pa.array([datetime(2020, 1, 1, 0, 0, 0, 1, UTC)])), ("TIME(3)", pa.array([time(1, 2, 3, 4)])),
])  # fmt: skip
def test_a_value_that_does_not_fit_fails_the_transaction(rig, column, values):
    rig.create(f"id {column}")
    rows = pa.record_batch({"id": values})
    with pytest.raises(errors.UsageError, match=f"{rig.table}|column 'id' of the table"):
        write_all(rig.sink(), Attempt(rig.job(), 0, 0, 0), rows)
    assert not rig.prepared()
    assert rig.execute(f"SELECT count(*) FROM {rig.table}") == [(0,)]


def test_nanoseconds_are_refused_and_not_cut(rig):
    rig.create("id TIMESTAMP(6) NULL")
    rows = pa.record_batch({"id": pa.array([1], pa.timestamp("ns", "UTC"))})
    with rig.sink().begin(Attempt("q", 0, 0, 0)) as transaction, pytest.raises(errors.UsageError, match="'id'"):
        transaction.write(rows)


def test_rows_must_not_change_their_columns(rig):
    rig.create()
    with rig.sink().begin(Attempt("q", 0, 0, 0)) as transaction:
        transaction.write(batch([1]))
        with pytest.raises(errors.UsageError, match="changed"):
            transaction.write(pa.record_batch({"id": [1]}))


def test_a_wrong_password_is_an_authentication_error_that_does_not_show_it(rig):
    sink = SqlSink(rig.url.replace(PASSWORD, "wr0ng-s3cret"), "orders")
    with pytest.raises(errors.AuthenticationError) as caught:
        sink.begin(Attempt("q", 0, 0, 0))
    seen: BaseException | None = caught.value
    while seen is not None:
        assert "wr0ng" not in f"{seen!r} {seen}"
        seen = seen.__cause__ or seen.__context__
    assert "wr0ng" not in repr(sink)
    assert pickle.loads(pickle.dumps(sink)) == sink


def test_a_missing_database_is_the_callers_mistake(rig):
    with pytest.raises(errors.UsageError, match="nowhere"):
        SqlSink(rig.url.rsplit("/", 1)[0] + "/nowhere", "orders").begin(Attempt("q", 0, 0, 0))


@pytest.mark.parametrize(("value", "outcome"), [("1", "Failed"), ("", "Skipped")])
def test_a_database_that_is_required_is_not_skipped(monkeypatch, value, outcome):
    monkeypatch.setenv(REQUIRED, value)
    with pytest.raises(BaseException, match="install it") as caught:
        unavailable("install it")
    assert type(caught.value).__name__ == outcome


def test_an_unreachable_server_is_worth_another_try(rig):
    url = rig.url.rsplit("@", 1)[0] + "@127.0.0.1:1/none"
    with pytest.raises(errors.RetriableError):
        SqlSink(url, "orders").begin(Attempt("q", 0, 0, 0))


@pytest.mark.parametrize(
    "url",
    ["s3cret", "postgresql://u:s3cret@h:port/d", "oracle://u:s3cret@h/d", "sqlite:////tmp/x.db", "postgresql://u:s3cret@h/"],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(url):
    with pytest.raises(errors.UsageError) as caught:
        SqlSink(url, "orders")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("table", ["", "a.b.c", ".a", "a."])
def test_a_table_that_cannot_be_named_is_refused(table):
    with pytest.raises(errors.UsageError, match="a table is named"):
        SqlSink("postgresql://h/d", table)


def test_postgresql_without_prepared_transactions_says_what_to_set():
    with postgresql("-c", "max_prepared_transactions=0") as server:
        rig = SqlRig(server.url)
        rig.create()
        with pytest.raises(errors.UsageError, match="max_prepared_transactions"):
            rig.sink().begin(Attempt("q", 0, 0, 0))


@pytest.mark.parametrize("rig", ["mariadb"], indirect=True)  # all tables of PostgreSQL have transactions
def test_a_table_whose_engine_has_no_transactions_is_refused(rig):
    rig.create("id BIGINT", "ENGINE=MyISAM")
    with pytest.raises(errors.UsageError, match="MyISAM"):
        rig.sink().begin(Attempt("q", 0, 0, 0))


# --- values -----------------------------------------------------------------------------------------------------------
TEXTS = ["", "\\N", "\\.", "a\tb\nc\rd\\e", "%s %% 'quoted\" `", "ä🎈", " trailing ", None]
LEAP_DAY = datetime(2020, 2, 29, 23, 59, 59, 999999, UTC)
INSTANTS = [LEAP_DAY, datetime(1970, 1, 1, tzinfo=UTC), datetime(1969, 7, 20, 20, 17, tzinfo=UTC)]
SUMMER = [datetime(2021, 6, 1, 12, tzinfo=timezone(timedelta(hours=2)))]

# Column: Arrow's type, values, the type in PostgreSQL and in MariaDB.
VALUES: dict[str, tuple[pa.DataType, list[Any], str, str]] = {
    "c_bool": (pa.bool_(), [True, False], "BOOLEAN", "BOOLEAN"),
    "c_i8": (pa.int8(), [-128, 127], "SMALLINT", "TINYINT"),
    "c_i16": (pa.int16(), [-(2**15), 2**15 - 1], "SMALLINT", "SMALLINT"),
    "c_i32": (pa.int32(), [-(2**31), 2**31 - 1], "INTEGER", "INTEGER"),
    "c_i64": (pa.int64(), [-(2**63), 2**63 - 1, 0], "BIGINT", "BIGINT"),
    "c_u32": (pa.uint32(), [2**32 - 1], "BIGINT", "INTEGER UNSIGNED"),
    "c_u64": (pa.uint64(), [2**64 - 1], "NUMERIC(20)", "BIGINT UNSIGNED"),
    "c_f32": (pa.float32(), [0.5, -1.25e5, 0.10000000149011612], "DOUBLE PRECISION", "DOUBLE"),
    "c_f64": (pa.float64(), [0.1, 1e300, -5e-324, 1 / 3, 1e22, -0.0], "DOUBLE PRECISION", "DOUBLE"),
    "c_text": (pa.string(), TEXTS, "TEXT", "TEXT"),
    "c_large": (pa.large_string(), TEXTS, "VARCHAR(100)", "VARCHAR(100)"),
    "c_view": (pa.string_view(), TEXTS, "TEXT", "LONGTEXT"),
    "c_dict": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"], "TEXT", "TEXT"),
    "c_dict_dec": (pa.dictionary(pa.int32(), pa.decimal128(10, 2)), [Decimal("1.50")], "NUMERIC(10, 2)", "DECIMAL(10, 2)"),
    "c_bytes": (pa.binary(), [b"", bytes(range(256)), b"\\N\n\t'"], "BYTEA", "BLOB"),
    "c_fixed": (pa.binary(3), [b"\x00\xff\n"], "BYTEA", "VARBINARY(3)"),
    "c_instant": (pa.timestamp("us", "UTC"), INSTANTS, "TIMESTAMPTZ", "DATETIME(6)"),
    "c_zone": (pa.timestamp("ms", "Europe/Berlin"), SUMMER, "TIMESTAMPTZ", "TIMESTAMP(3) NULL"),
    "c_ns": (pa.timestamp("ns", "UTC"), INSTANTS, "TIMESTAMPTZ", "DATETIME(6)"),
    "c_local": (pa.timestamp("s"), [datetime(2020, 3, 29, 2, 30)], "TIMESTAMP", "DATETIME"),
    "c_date": (pa.date32(), [date(2020, 2, 29), date(1000, 1, 1), date(9999, 12, 31)], "DATE", "DATE"),
    "c_date64": (pa.date64(), [date(1969, 12, 31)], "DATE", "DATE"),
    "c_time": (pa.time64("us"), [time(23, 59, 59, 999999), time(0)], "TIME", "TIME(6)"),
    "c_time32": (pa.time32("s"), [time(1, 2, 3)], "TIME(0)", "TIME"),
    "c_dec": (pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789"), Decimal("1E-10"), Decimal("-0.5")],
              "NUMERIC(38, 10)", "DECIMAL(38, 10)"),
    "c_dec256": (pa.decimal256(60, 2), [Decimal("123456789012345678901234567890123456789012345678901234567.25")],
                 "NUMERIC", "DECIMAL(60, 2)"),
    "c_dec0": (pa.decimal128(10, 0), [Decimal(42)], "NUMERIC(10)", "DECIMAL(10)"),
    "c_null": (pa.null(), [None], "INTEGER", "INTEGER"),
    "c_json": (pa.string(), ['{"a": "\\\\ \\n"}'], "JSON", "JSON"),
}  # fmt: skip


def expected(value: Any, is_postgresql: bool, sql_type: str) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            value = value.astimezone(UTC)
        return value if is_postgresql else value.replace(tzinfo=None)
    if isinstance(value, bool) and not is_postgresql:
        return int(value)
    if isinstance(value, float) and not is_postgresql:
        return value + 0.0  # MariaDB knows no -0.0
    if isinstance(value, time) and not is_postgresql:
        return timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
    return json.loads(value) if value and is_postgresql and sql_type == "JSON" else value


def exact(value: Any) -> Any:
    """For which -0.0 is not 0.0."""
    return repr(value) if isinstance(value, float) else value


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("kind", ["sink", "upsert"])
def test_every_type_comes_back_as_it_was(rig, driver, name, kind):
    arrow, values, in_postgresql, in_mariadb = VALUES[name]
    sql_type = in_postgresql if rig.is_postgresql else in_mariadb
    rig.create(f"id BIGINT PRIMARY KEY, {name} {sql_type}")
    values = [*values, None, *values]
    is_dictionary = pa.types.is_dictionary(arrow)
    column = pa.array([values[0], *values, values[0]], arrow.value_type if is_dictionary else arrow)
    column = column.dictionary_encode() if is_dictionary else column
    padded = pa.record_batch({"id": range(-1, len(values) + 1), name: column})
    job = rig.job()
    sink: Any = rig.sink() if kind == "sink" else UpsertSink(rig.url, rig.table, ("id",))
    with sink.begin(Attempt(job, 0, 0, 0)) as transaction:
        transaction.write(padded.slice(1, 2))  # slices share buffers with what is not theirs
        transaction.write(padded.slice(3, len(values) - 2))
        handle = transaction.prepare()
    driver(job, sink).commit(0, () if handle is None else (handle,))
    with rig._engine.connect() as connection:
        connection.exec_driver_sql("SET TIME ZONE 'UTC'" if rig.is_postgresql else "SET time_zone = '+00:00'")
        got = [tuple(row) for row in connection.exec_driver_sql(f"SELECT {name} FROM {rig.table} ORDER BY id")]
    want = [expected(value, rig.is_postgresql, sql_type) for value in values]
    assert [exact(value) for (value,) in got] == [exact(value) for value in want]


def test_infinities_are_stored_or_refused(rig, driver):
    rig.create("id DOUBLE PRECISION")
    rows = pa.record_batch({"id": [float("inf"), float("-inf"), float("nan")]})
    job = rig.job()
    with rig.sink().begin(Attempt(job, 0, 0, 0)) as transaction:
        if rig.is_postgresql:
            transaction.write(rows)
            driver(job).commit(0, (transaction.prepare(),))
            assert [str(value) for value in rig.ids()] == ["-inf", "inf", "nan"]
        else:
            with pytest.raises(errors.UsageError, match="'id' holds NaN"):
                transaction.write(rows)


def test_many_rows(rig, driver):
    rig.create("id BIGINT, name VARCHAR(100), amount DOUBLE PRECISION")
    count, size, job = 200_000, 50_000, rig.job()
    with rig.sink().begin(Attempt(job, 0, 0, 0)) as transaction:
        for start in range(0, count, size):
            ids = pa.array(range(start, start + size), pa.int64())
            transaction.write(pa.record_batch({"name": ids.cast(pa.string()), "id": ids, "amount": ids.cast(pa.float64())}))
        handle = transaction.prepare()
    assert handle.rows == count
    driver(job).commit(0, (handle,))
    wanted = "count(*), count(DISTINCT id), min(id), max(id), sum(amount)"
    assert rig.execute(f"SELECT {wanted} FROM {rig.table}") == [(count, count, 0, count - 1, count * (count - 1) / 2)]


# --- upsert -----------------------------------------------------------------------------------------------------------
def test_an_upsert_that_is_replayed_gives_the_same_table(any_rig):
    rig, job = any_rig, any_rig.job()
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100), other INT DEFAULT 7")
    sink = UpsertSink(rig.url, rig.table, ("id",))
    assert pickle.loads(pickle.dumps(sink)) == sink
    for attempt in range(2):  # the first time the driver dies before the epoch is recorded
        write_all(sink, Attempt(job, 0, 0, attempt), batch([1, 2, 3]))
        write_all(sink, Attempt(job, 0, 1, attempt), batch([4]))
        assert rig.ids() == [1, 2, 3, 4]
    with closing(JobCommitter(job, sink.committer(job))) as driver:
        driver.commit(0, ())
        assert sink.recorded_epochs()[job] == 0
        with pytest.raises(errors.FencedError, match="comes too late"):
            write_all(sink, Attempt(job, 0, 0, 9), batch([1], "late"))
        rows = pa.record_batch({"id": pa.array([2, 2, 2], pa.int64()), "name": ["early2", "early2", "new2"]})
        write_all(sink, Attempt(job, 1, 0, 0), rows)
        driver.commit(1, ())
        with pytest.raises(StaleEpochError):
            driver.commit(0, ())
    assert rig.rows() == [(1, "n1", 7), (2, "new2", 7), (3, "n3", 7), (4, "n4", 7)]


def test_an_upsert_of_nothing_but_the_key(any_rig):
    any_rig.create("a INT, b VARCHAR(10), UNIQUE (a, b)")
    sink = UpsertSink(any_rig.url, any_rig.table, ("b", "a"))
    for number in range(2):
        write_all(sink, Attempt("q", 0, 0, number), pa.record_batch({"a": [1, 1, 2], "b": ["x", "x", "x"]}))
    assert any_rig.rows() == [(1, "x"), (2, "x")]


def test_an_upsert_gives_the_numbers_that_the_database_would_give(server):
    """The key of a table that is copied is often such a column."""
    rig = SqlRig(server("postgresql").url)
    rig.create("id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name VARCHAR(100)")
    for name in ("a", "b"):
        write_all(UpsertSink(rig.url, rig.table, ("id",)), Attempt("q", 0, 0, 0), batch([7], name))
    assert rig.rows() == [(7, "b7")]


def test_an_upsert_of_numbers_that_the_database_always_gives_is_refused_outside_the_key(server):
    """Regression: the rows were accepted, and PostgreSQL refused the statement."""
    rig = SqlRig(server("postgresql").url)
    rig.create("id BIGINT GENERATED ALWAYS AS IDENTITY, name VARCHAR(100) PRIMARY KEY")
    sink = UpsertSink(rig.url, rig.table, ("name",))
    with pytest.raises(errors.UsageError, match=r"column 'id' of table .* is GENERATED ALWAYS AS IDENTITY"):
        sink.check_rows(pa.schema([("id", pa.int64()), ("name", pa.string())]))
    write_all(sink, Attempt("q", 0, 0, 0), pa.record_batch({"name": ["a"]}))
    assert rig.rows() == [(1, "a")]


def test_an_upsert_without_a_unique_key_is_refused(any_rig):
    any_rig.create("id BIGINT UNIQUE, name VARCHAR(100)")
    with pytest.raises(errors.UsageError, match="no unique key"):
        UpsertSink(any_rig.url, any_rig.table, ("name",)).begin(Attempt("q", 0, 0, 0))
    sink = UpsertSink(any_rig.url, any_rig.table, ("id",))
    with pytest.raises(errors.UsageError, match="lack the columns"):
        write_all(sink, Attempt("q", 0, 0, 0), pa.record_batch({"name": ["x"]}))


def test_values_in_sqlite(tmp_path):
    rig = SqlRig(f"sqlite:///{tmp_path / 'some.db'}")
    rig.create("id INTEGER PRIMARY KEY, t TEXT, b BLOB, f DOUBLE, at DATETIME, d DATE, yes BOOLEAN, n NUMERIC(10, 2)")
    sink = UpsertSink(rig.url, rig.table, ("id",))
    rows = {
        "id": pa.array([1, 2]), "t": ["a'b", None], "b": [b"\x00\xff", None], "f": [0.1, None],
        "at": pa.array([INSTANTS[0], None], pa.timestamp("us", "UTC")), "d": [date(2020, 2, 29), None], "yes": [True, None],
    }  # fmt: skip
    write_all(sink, Attempt("q", 0, 0, 0), pa.record_batch(rows))
    first = (1, "a'b", b"\x00\xff", 0.1, "2020-02-29 23:59:59.999999", "2020-02-29", 1, None)
    assert rig.rows() == [first, (2, *[None] * 7)]
    for refused in ({"n": pa.array([Decimal("1.10")])}, {"f": [float("nan")]}):
        with sink.begin(Attempt("q", 1, 0, 0)) as transaction, pytest.raises(errors.UsageError):
            transaction.write(pa.record_batch({"id": [3], **refused}))
    with pytest.raises(errors.UsageError), sink.begin(Attempt("q", 1, 0, 0)) as transaction:
        transaction.write(pa.record_batch({"id": pa.array([2**64 - 1], pa.uint64())}))


def test_other_unique_keys_are_refused_where_they_would_match_too(rig):
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100) UNIQUE")
    with UpsertSink(rig.url, rig.table, ("id",)).begin(Attempt("q", 0, 0, 0)) as transaction:
        if rig.is_postgresql:
            transaction.write(batch([1]))
        else:
            with pytest.raises(errors.UsageError, match="other unique keys"):
                transaction.write(batch([1]))
