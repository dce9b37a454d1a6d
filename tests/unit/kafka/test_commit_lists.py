"""Lists of committables in Kafka: one for each destination of a job, of any size."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from headrace.connectors.base.commit import JobCommitter, StaleEpochError
from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.sink import Attempt, CommitList, RecordedEpoch
from headrace.connectors.kafka.client.errors import BrokerError
from headrace.connectors.kafka.format.record_batch import HEADER, stored_batches
from headrace.connectors.kafka.write.commit_log import CommitLog
from headrace.connectors.kafka.write.driver_log import DriverLog
from headrace.connectors.kafka.write.handles import KafkaHandle, KafkaHandleSerializer, WrittenRange
from headrace.connectors.kafka.write.names import EACH_ROWS_TOPIC, parse_key
from headrace.connectors.kafka.write.sink import _commit_log
from headrace.connectors.kafka.write.transactions import Producer, TransactionProtocol, Transactions
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.errors import CorruptDataError, FencedError, StateError, UsageError
from headrace.runners.local.checkpoints import CheckpointStore, RunCheckpointSerializer
from headrace.runners.local.commit.committer import RunCommitter
from headrace.runners.local.events import WorkerHandle
from headrace.runners.spark.writers import BatchWriter
from headrace.testing import DyingCommitter, FakeKafka, Killed
from headrace.testing.fake_kafka import Before, ErrorCode, NewRecord, Refuse, Rewrite, StoppedClock
from headrace.testing.memory import MemorySplitSerializer
from tests.helpers.record_batches import CONTROL
from tests.helpers.sink_rig import committer, kafka_sink, prepared, rows, values

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka_commit_list_v1.json"
JOB = "job"
LISTS = CommitListSerializer(KafkaHandleSerializer())
RUN_CHECKPOINTS = RunCheckpointSerializer(CheckpointSerializer("memory", MemorySplitSerializer()), KafkaHandleSerializer())
TOPIC_ID = UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        for topic in ("a", "b"):
            cluster.create_topic(topic)
        yield cluster


def sink_to(kafka, topic, **given):
    return kafka_sink(kafka.bootstrap, topic, "commits", **given)


@pytest.fixture
def sink(kafka):
    return sink_to(kafka, "a")


class FakeContext:
    """As Spark names it."""

    partitionId = attemptNumber = taskAttemptId = lambda _: 0  # noqa: N815


@pytest.fixture
def in_a_task(monkeypatch):
    monkeypatch.setattr("headrace.runners.spark.writers.TaskContext.get", FakeContext)


def written(sink, epoch, *batches):
    """A batch write of one task, as Spark does it: the writer is pickled before its tasks start."""
    writer = BatchWriter(sink, batches[0].schema.names, JOB, epoch)
    writer._recorded.__getstate__()
    writer.commit([writer.write(iter(batches))])


def to_topic(sink, task, topic):
    """The handle of a task that wrote the topic's name to it."""
    with sink.begin(Attempt(JOB, 0, task, 0)) as transaction:
        transaction.write(rows([topic], topic=[topic]))
        return transaction.prepare()


def log_of(sink):
    return DriverLog(sink.commit_log(), Transactions(sink.cluster()), sink.names(JOB))


# --- the topic -----------------------------------------------------------------------------------------------------------
def created_again(kafka, topic="commits"):
    """As an operator does, or another job that finds it missing."""
    kafka.delete_topic(topic)
    kafka.create_topic(topic, configs={"cleanup.policy": "compact"})


class TestTopic:
    def test_a_commit_topic_that_was_created_again_is_not_taken_for_no_lists(self, kafka, sink):
        """findings: Sinks 2, again. The epoch would have been written again."""
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
        assert sink.recorded_epochs() == {JOB: 0}
        created_again(kafka)
        with pytest.raises(StateError, match="the topic 'commits' was deleted, and created again"):
            sink.recorded_epochs()

    def test_one_broker_that_knows_another_topic_is_no_proof_of_that(self):
        with FakeKafka(brokers=3) as kafka:
            kafka.create_topic("a")
            sink = sink_to(kafka, "a")
            committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
            assert sink.recorded_epochs() == {JOB: 0}
            other = kafka.fault("Metadata", Rewrite(with_another_id), times=1, when=is_about("commits"))
            assert (sink.recorded_epochs(), other.fired) == ({JOB: 0}, 1)

    def test_nor_by_a_new_process_that_has_not_read_it_before(self, kafka, sink):
        """The coordinator knows that the job's driver has written a list."""
        handles = prepared(sink, JOB, 0, ["0"], ["1"])
        with pytest.raises(Killed):
            JobCommitter(JOB, DyingCommitter(sink.committer(JOB), "end", "before", 2)).commit(0, handles)
        created_again(kafka)
        _commit_log.cache_clear()
        for _ in range(2):
            with pytest.raises(StateError, match="has recorded epochs in the topic 'commits', and it has no list of the job"):
                committer(sink_to(kafka, "a"), JOB).recover()
        assert kafka.offsets("a")[1] < kafka.offsets("a")[2]  # what is prepared is not aborted

    def test_a_list_of_the_job_under_another_prefix_is_named_until_there_is_an_own_one(self, kafka, sink, caplog):
        """An epoch that it has is written again. A copy of a query has its name, and rightly another prefix."""
        for job, topic in ((JOB, "a"), (JOB, "b"), ("other", "a")):
            committer(sink_to(kafka, topic), job).commit(0, prepared(sink_to(kafka, topic), job, 0, ["0"]))
        other = sink_to(kafka, "a", transactional_id_prefix="new")
        for epoch in (0, 1):
            committer(other, JOB).commit(epoch, prepared(other, JOB, epoch, ["0"]))
        committer(sink_to(kafka, "a", transactional_id_prefix="third"), "alone").recover()
        said = [each.getMessage() for each in caplog.records if "under the prefix" in each.getMessage()]
        assert len(said) == 1
        assert "job job: the topic 'commits' has no list of it under the prefix 'new', and one under 'headrace'" in said[0]

    def test_a_job_that_was_forgotten_starts_over(self, kafka, sink):
        driver = committer(sink, JOB)
        driver.commit(7, prepared(sink, JOB, 7, ["7"]))
        driver.forget()
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
        assert values(kafka, "a") == ["0", "7"]

    def test_what_was_forgotten_is_not_remembered_by_who_has_missed_the_tombstone(self, kafka, sink):
        """Compaction removes it after a day. To a process that had not looked meanwhile the epoch was recorded still."""
        driver = committer(sink, JOB)
        driver.commit(0, prepared(sink, JOB, 0, ["0"]))
        memory = CommitLog(sink.cluster(), "commits")
        assert list(memory.decided()) == [sink.names(JOB).key]
        driver.forget()
        committer(sink, "other").commit(3, prepared(sink, "other", 3, ["3"]))
        kafka.compact("commits")
        assert [record.key.decode() for record in kafka.records("commits")] == [sink.names("other").key]
        assert list(memory.decided()) == [sink.names("other").key]

    @pytest.mark.parametrize("written_since", [0, 5])
    def test_what_an_unclean_election_lost_is_not_remembered(self, kafka, sink, written_since):
        """To who had read it, it was recorded; and what others have written since, up to that place, was not."""
        driver = committer(sink, JOB)
        driver.commit(0, prepared(sink, JOB, 0, ["0"]))
        end = kafka.offsets("commits")[2]
        driver.commit(1, prepared(sink, JOB, 1, ["1"]))
        memory = CommitLog(sink.cluster(), "commits")
        assert epochs_in(memory) == {JOB: 1}
        kafka.lose_records("commits", from_offset=end)
        other = in_a_new_process(sink)
        if written_since:
            committer(other, "other").commit(7, prepared(other, "other", 7, ["7"]))
        for _ in range(written_since):
            committer(other, "third").recover()
        assert (kafka.offsets("commits")[2] > end + 4) is bool(written_since)
        DriverLog(memory, Transactions(sink.cluster()), sink.names("new")).fence()
        assert epochs_in(memory) == ({JOB: 0, "other": 7} if written_since else {JOB: 0})

    @pytest.mark.parametrize(("brokers", "replicas", "in_sync"), [(1, 1, "1"), (2, 2, "1"), (3, 3, "2"), (5, 3, "2")])
    def test_it_is_made_with_three_replicas_though_the_brokers_default_is_one(self, brokers, replicas, in_sync):
        """findings: Sinks 16."""
        with FakeKafka(brokers=brokers) as kafka:
            requests = []
            kafka.fault("CreateTopics", Before(lambda: None), when=lambda request: requests.append(request) or True)
            sink_to(kafka, "a").commit_log().create()
            (made,) = requests[0].topics
            assert made.replication_factor == replicas
            assert {config.name: config.value for config in made.configs}["min.insync.replicas"] == in_sync

    @pytest.mark.parametrize("policy", ["delete", "compact,delete"])
    def test_one_whose_records_go_by_time_is_refused(self, kafka, policy):
        """findings: Sinks 16. After retention.ms the list of a job that had been stopped was gone."""
        kafka.create_topic("commits", configs={"cleanup.policy": policy})
        with pytest.raises(UsageError, match=f"cleanup.policy={policy}.*set it to compact"):
            committer(sink_to(kafka, "a"), JOB).recover()

    @pytest.mark.parametrize("code", [29, 31])
    def test_without_the_right_to_look_at_its_settings_it_is_taken_as_it_is(self, kafka, code):
        kafka.create_topic("commits", configs={"cleanup.policy": "compact"})
        kafka.fault("DescribeConfigs", Rewrite(partial(not_authorised, code)))
        sink = sink_to(kafka, "a")
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
        assert values(kafka, "a") == ["0"]

    def test_a_process_forked_while_the_lists_are_read_can_read_them(self, kafka):
        """A lock that a thread of the parent holds at the fork is never released in the child."""
        log = sink_to(kafka, "a").commit_log()
        with log._lock:
            child = os.fork()
            if child == 0:
                os._exit(0 if log._lock.acquire(timeout=5) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_a_row_that_names_it_is_refused(self, kafka):
        sink = sink_to(kafka, None)
        begun = sink.begin(Attempt(JOB, 0, 0, 0))
        with begun as transaction, pytest.raises(UsageError, match="a row names the topic 'commits'"):
            transaction.write(rows(["x"], topic=["commits"]))


def epochs_in(memory):
    """What is recorded, by a log that remembers what it has read."""
    return {parse_key(key).job: LISTS.deserialize(data, key).epoch for key, data in memory.decided().items()}


def is_about(topic):
    return lambda request: request.topics is not None and any(item.name == topic for item in request.topics)


def with_another_id(response):
    for item in response.topics:
        item.topic_id = TOPIC_ID


def not_authorised(code, response):
    response.results[0].error_code, response.results[0].configs = code, []


# --- destinations --------------------------------------------------------------------------------------------------------
class TestDestinations:
    def test_two_writes_of_one_name_and_number_to_two_topics_both_write(self, kafka, in_a_task):
        """findings: Sinks 1. The second found the epoch recorded, and wrote nothing, silently."""
        for epoch in (0, 1, 1):
            written(sink_to(kafka, "a"), epoch, rows([f"a{epoch}"]))
            written(sink_to(kafka, "b"), epoch, rows([f"b{epoch}"]))
        assert (values(kafka, "a"), values(kafka, "b")) == (["a0", "a1"], ["b0", "b1"])

    def test_also_from_two_threads_at_once(self, kafka, in_a_task):
        sinks = [sink_to(kafka, "a"), sink_to(kafka, "b")]
        for epoch in range(4):
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(lambda sink, epoch=epoch: written(sink, epoch, rows([f"{epoch}"])), sinks))
        assert values(kafka, "a") == values(kafka, "b") == ["0", "1", "2", "3"]

    def test_an_application_with_another_prefix_writes_for_itself(self, kafka, in_a_task):
        written(sink_to(kafka, "a"), 0, rows(["blue"]))
        written(sink_to(kafka, "a", transactional_id_prefix="green"), 0, rows(["green"]))
        assert values(kafka, "a") == ["blue", "green"]

    def test_a_driver_fences_and_cleans_up_its_own_destination_only(self, kafka):
        one, other = sink_to(kafka, "a"), sink_to(kafka, "b")
        driver = committer(one, JOB)
        driver.commit(0, prepared(one, JOB, 0, ["0"]))
        handles = prepared(one, JOB, 1, ["1"])
        committer(other, JOB).recover()
        driver.commit(1, handles)
        assert values(kafka, "a") == ["0", "1"]
        committer(one, JOB).recover()
        with pytest.raises(FencedError):
            driver.commit(2, prepared(one, JOB, 2, ["2"]))

    def test_a_list_under_ones_key_for_another_destination_is_refused_by_name(self, kafka, sink):
        driver = log_of(sink)
        driver.fence()
        driver.write(LISTS.serialize(CommitList(0, (), completed=True, destination="elsewhere")))
        with pytest.raises(StateError, match="this is a list for elsewhere, not for a"):
            committer(sink, JOB).recover()
        assert sink.recorded_epochs() == {}


class TestEachRowsTopic:
    def test_rows_for_a_topic_that_the_recorded_epoch_lacks_are_not_skipped_silently(self, kafka, in_a_task):
        """findings: Sinks 1. Both writes have one destination: that each row has its own topic."""
        sink = sink_to(kafka, None)
        written(sink, 0, rows(["1"], topic=["a"]))
        with pytest.raises(StateError, match="epoch 0 of job 'job' is recorded as written to a, and there are rows for b"):
            written(sink, 0, rows(["1", "2"], topic=["a", "b"]))

    def test_a_replay_is_skipped(self, kafka, in_a_task):
        sink = sink_to(kafka, None)
        for _ in range(2):
            written(sink, 0, rows(["1", "2"], topic=["a", "b"]))
        assert (values(kafka, "a"), values(kafka, "b")) == (["1"], ["2"])
        assert sink.recorded() == {JOB: RecordedEpoch(0, ("a", "b"))}

    def test_two_writes_at_once_that_find_out_at_their_commit_do_not_lose_one_silently(self, kafka):
        sink = sink_to(kafka, None)
        first, second = (to_topic(sink, task, topic) for task, topic in enumerate("ab"))
        committer(sink, JOB).commit(0, (first,))
        with pytest.raises(StateError, match="recorded as written to a, and there are rows for b"):
            committer(sink, JOB).commit(0, (second,))

    def test_what_was_committed_before_a_repair_is_still_known(self, kafka):
        sink = sink_to(kafka, None)
        handles = tuple(to_topic(sink, task, topic) for task, topic in enumerate("ab"))
        with pytest.raises(Killed):
            JobCommitter(JOB, DyingCommitter(sink.committer(JOB), "end", "before", 2)).commit(0, handles)
        Transactions(sink.cluster()).init(handles[1].transactional_id, 10_000)
        committer(sink, JOB).recover()
        assert (values(kafka, "a"), values(kafka, "b")) == (["a"], ["b"])
        assert sink.recorded() == {JOB: RecordedEpoch(0, ("a", "b"))}

    def test_an_epoch_without_rows_was_written_to_nothing(self, kafka, in_a_task):
        sink = sink_to(kafka, None)
        committer(sink, JOB).commit(0, ())
        with pytest.raises(StateError, match="is recorded as written to nothing, and there are rows for a"):
            written(sink, 0, rows(["1"], topic=["a"]))


# --- lists that are staged ---------------------------------------------------------------------------------------------
def listed(sink, epoch):
    return LISTS.serialize(CommitList(epoch, (), completed=True, destination=sink.destination))


class TestStaged:
    @pytest.fixture(params=[1, 2])
    def kafka(self, request):
        with FakeKafka(clock=StoppedClock()) as cluster:
            cluster.set_transaction_version(request.param)
            cluster.create_topic("a")
            yield cluster

    @pytest.fixture
    def driver(self, sink):
        driver = log_of(sink)
        driver.fence()
        driver.write(listed(sink, 1))
        return driver

    def test_one_that_is_recorded_is_sent_once(self, kafka, sink, driver):
        driver.stage(listed(sink, 2))
        sent = kafka.fault("Produce", Before(lambda: None))
        driver.write(listed(sink, 2))
        assert (sent.fired, log_of(sink).fence()) == (0, listed(sink, 2))

    def test_one_that_is_not_recorded_is_not_found(self, sink, driver):
        driver.stage(listed(sink, 2))
        assert log_of(sink).fence() == listed(sink, 1)

    def test_another_one_is_recorded_in_its_place(self, sink, driver):
        driver.stage(listed(sink, 2))
        driver.stage(listed(sink, 3))
        driver.write(listed(sink, 4))
        driver.write(listed(sink, 5))
        assert log_of(sink).fence() == listed(sink, 5)

    def test_a_driver_that_was_replaced_since_records_nothing(self, sink, driver):
        driver.stage(listed(sink, 2))
        follower = log_of(sink)
        follower.fence()
        with pytest.raises(FencedError, match="another driver of job 'job' claimed it"):
            driver.write(listed(sink, 2))
        assert log_of(sink).fence() == listed(sink, 1)

    def test_one_that_its_coordinator_has_aborted_is_written_again(self, kafka, sink, driver):
        driver.stage(listed(sink, 2))
        kafka.clock.advance(60)
        driver.write(listed(sink, 2))
        assert log_of(sink).fence() == listed(sink, 2)

    def test_after_an_error_it_is_written_again(self, kafka, sink, driver):
        kafka.fault("Produce", Refuse(ErrorCode.INVALID_RECORD), times=1)
        with pytest.raises(BrokerError):
            driver.stage(listed(sink, 2))
        driver.write(listed(sink, 2))
        assert log_of(sink).fence() == listed(sink, 2)

    def test_a_run_records_its_checkpoint_as_staged(self, kafka, sink, tmp_path):
        store = CheckpointStore(str(tmp_path), RUN_CHECKPOINTS, 1)
        run = RunCommitter(store, sink, None, 0, lambda _: None, lambda _: None, lambda: 0.0, iter(range(1, 9)).__next__)
        run.fence()
        run.stage(1)
        staged = kafka.fault("Produce", Before(lambda: None))
        with sink.begin(Attempt(store.registry.job(0), 0, 0, 0)) as transaction:
            transaction.write(rows(["x"]))
            handle = WorkerHandle(0, transaction.prepare())
        rows_sent = staged.fired
        run.propose(Checkpoint(1, (), exhausted=False))
        JobCommitter(store.registry.run, run).commit(1, (handle,))
        assert (staged.fired, values(kafka, "a")) == (rows_sent, ["x"])
        store.close()


# --- writes under way ----------------------------------------------------------------------------------------------------
def dies_in_its_write(monkeypatch, sink, job, epoch):
    """A driver that takes the job over, and dies before the end of the transaction in which it records an epoch."""

    def dies(self, producer, protocol, outcome):
        raise Killed

    driver = DriverLog(sink.commit_log(), Transactions(sink.cluster()), sink.names(job))
    driver.fence()
    recorded = LISTS.serialize(CommitList(epoch, (), completed=True, destination=sink.destination))
    with monkeypatch.context() as patched:
        patched.setattr(Transactions, "end", dies)
        with pytest.raises(Killed):
            driver.write(recorded)
    assert Transactions(sink.cluster()).ongoing(sink.names(job).driver) == [sink.names(job).driver]


def in_a_new_process(sink):
    """What no earlier reading is known to."""
    _commit_log.cache_clear()
    return replace(sink, properties={"default.api.timeout.ms": "3000"})  # who waits for a transaction's end is informed by then


def marker_flipped(response):
    """A COMMIT's lowest bit: it says ABORT then."""
    for part in (part for topic in response.responses for part in topic.partitions if part.records):
        found = [bytearray(each.data) for each in stored_batches(memoryview(bytes(part.records)))]
        for each in found:
            at = each.find(b"\0\0\0\1", HEADER.size)
            if at > 0 and each[22] & CONTROL:
                each[at + 3] ^= 1
        part.records = b"".join(found)


def cut_in_the_first_batch(response):
    for part in (part for topic in response.responses for part in topic.partitions if part.records):
        part.records = bytes(part.records)[: HEADER.size]


class TestWritesUnderWay:
    def test_what_a_dead_driver_has_under_way_is_not_waited_for(self, kafka, sink, monkeypatch):
        """A restart looked first what was recorded, and waited for the timeout of that write: 10 s, and up to 10 more until
        the coordinator looks for what has timed out."""
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
        dies_in_its_write(monkeypatch, sink, JOB, 1)
        successor = in_a_new_process(sink)
        assert successor.recorded_now() == {JOB: RecordedEpoch(0)}
        committer(successor, JOB).commit(1, prepared(successor, JOB, 1, ["1"]))
        assert values(kafka, "a") == ["0", "1"]

    def test_nor_is_what_another_jobs_dead_driver_has_under_way(self, kafka, sink, monkeypatch):
        """All jobs of a commit topic waited at their next start."""
        driver = committer(sink, JOB)
        driver.commit(0, prepared(sink, JOB, 0, ["0"]))
        dies_in_its_write(monkeypatch, sink, "other", 7)
        driver.commit(1, prepared(sink, JOB, 1, ["1"]))
        successor = in_a_new_process(sink)
        assert successor.recorded_now() == {JOB: RecordedEpoch(1)}
        with pytest.raises(StaleEpochError):
            committer(successor, JOB).commit(0, prepared(successor, JOB, 0, ["0"]))
        committer(successor, JOB).commit(2, prepared(successor, JOB, 2, ["2"]))
        assert values(kafka, "a") == ["0", "1", "2"]

    def test_nor_does_a_first_start_wait_for_what_another_job_has_under_way(self, kafka, sink, monkeypatch):
        """It waited 10.8 s, also in each one-off write; for ever behind one that hangs."""
        committer(sink, JOB).recover()
        dies_in_its_write(monkeypatch, sink, "other", 7)
        fresh = in_a_new_process(sink)
        committer(fresh, "new").commit(0, prepared(fresh, "new", 0, ["0"]))
        assert values(kafka, "a") == ["0"]
        assert Transactions(sink.cluster()).ongoing(sink.names("other").driver) == [sink.names("other").driver]

    def test_what_stays_open_is_notified_of_once(self, kafka, sink, monkeypatch, caplog):
        """All behind it was read again for each epoch, and nothing was said."""
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
        dies_in_its_write(monkeypatch, sink, "other", 7)
        now = [1000.0]
        log = CommitLog(sink.cluster(), "commits", clock=lambda: now[0])
        for seconds in (0, 19, 0):
            now[0] += seconds
            log.decided()
        assert "still open" not in caplog.text
        now[0] += 2
        kafka.fault("ListTransactions", Refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))  # it is informed by the next look
        for _ in range(4):
            assert sink.names(JOB).key in log.decided()
        assert caplog.text.count("still open") == 1
        assert f"transactional id '{sink.names('other').driver}'" in caplog.text
        assert "has been open for 21 s" in caplog.text
        Transactions(sink.cluster()).init(sink.names("other").driver, 10_000)
        dies_in_its_write(monkeypatch, sink, "other", 7)
        log.decided()
        now[0] += 21
        log.decided()
        assert caplog.text.count("still open") == 2

    def test_what_was_aborted_behind_an_open_write_is_not_taken_for_recorded(self, kafka, sink, monkeypatch):
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
        dies_in_its_write(monkeypatch, sink, "other", 7)
        dies_in_its_write(monkeypatch, sink, JOB, 1)
        Transactions(sink.cluster()).init(sink.names(JOB).driver, 10_000)  # which aborts it
        assert in_a_new_process(sink).recorded_now() == {JOB: RecordedEpoch(0)}

    @pytest.mark.parametrize(("times", "damage"), [(1, "marker"), (1, "cut"), (None, "marker"), (None, "cut")])
    def test_one_bit_of_a_marker_behind_an_open_write_does_not_make_a_commit_an_abort(self, kafka, monkeypatch, times, damage):
        """No checksum of it was compared: the epoch was taken for not recorded, and written again."""
        sink = sink_to(kafka, "a")
        driver = committer(sink, JOB)
        driver.commit(0, prepared(sink, JOB, 0, ["0"]))
        dies_in_its_write(monkeypatch, sink, "other", 7)
        driver.commit(1, prepared(sink, JOB, 1, ["1"]))
        successor = in_a_new_process(sink)
        unstable = kafka.fault(
            "Fetch", Rewrite(marker_flipped if damage == "marker" else cut_in_the_first_batch), times=times,
            when=lambda request: request.isolation_level == 0,
        )  # fmt: skip
        if times:
            assert successor.recorded_now() == {JOB: RecordedEpoch(1)}
        else:
            with pytest.raises(CorruptDataError, match=r"commits-0.*(checksum|no whole batch)"):
                successor.recorded_now()
        assert unstable.fired == (times or 2)

    def test_the_parts_of_a_list_behind_an_open_write_are_removed_with_it(self, kafka, monkeypatch):
        sink = sink_to(kafka, "orders")
        dies_in_its_write(monkeypatch, sink, "other", 7)
        driver = log_of(sink)
        driver.fence()
        driver.write(LISTS.serialize(CommitList(0, many(300, 200), destination="orders")))
        successor = in_a_new_process(sink)
        log = log_of(successor)
        log.fence()
        log.write(LISTS.serialize(CommitList(1, (), completed=True, destination="orders")))
        Transactions(sink.cluster()).init(sink.names("other").driver, 10_000)
        found = records_by_key(kafka)
        assert len(found) > 2
        assert [name for name, value in found.items() if value is not None] == [sink.names(JOB).key]


# --- size ----------------------------------------------------------------------------------------------------------------
def handle_of(name, task, started_ms, ranges):
    return KafkaHandle(Producer(name, 4000 + task, 2), TransactionProtocol.V2, started_ms, 900_000, tuple(ranges))


def many(tasks, partitions, epoch=0):
    """The handles of this many tasks that wrote to each of this many partitions of a topic, at offsets that differ."""

    def written(task, at):
        first = hash((task, at, epoch)) % 10**9
        return WrittenRange("orders", TOPIC_ID, at, first, first + 99, 100)

    names = [f"headrace.{JOB}.00000000.0.{task}.0" for task in range(tasks)]
    ranges = [[written(task, at) for at in range(partitions)] for task in range(tasks)]
    return tuple(handle_of(names[task], task, 1_700_000_000_000 + task, ranges[task]) for task in range(tasks))


class TestSize:
    @pytest.fixture
    def driver(self, kafka):
        sink = sink_to(kafka, "orders")
        return log_of(sink)

    def test_1000_tasks_that_wrote_to_200_partitions_are_recorded_and_recovered(self, kafka, driver):
        """findings: Sinks 4. It was one record, and MESSAGE_TOO_LARGE failed every commit and every restart."""
        commits = CommitList(0, many(1000, 200), destination="orders")
        driver.fence()
        driver.write(LISTS.serialize(commits))
        sizes = [len(record.value) for record in kafka.records("commits") if record.value is not None]
        assert len(sizes) > 5
        assert max(sizes) < 1_000_000
        sink = sink_to(kafka, "orders")
        assert LISTS.deserialize(log_of(sink).fence(), "") == commits
        assert sink.recorded_epochs() == {JOB: 0}

    def test_parts_that_are_no_longer_needed_are_removed(self, kafka, driver):
        driver.fence()
        driver.write(LISTS.serialize(CommitList(0, many(300, 200), destination="orders")))
        assert len(records_by_key(kafka)) > 2
        driver.write(LISTS.serialize(CommitList(0, (), completed=True, destination="orders")))
        key = sink_to(kafka, "orders").names(JOB).key
        assert [name for name, value in records_by_key(kafka).items() if value is not None] == [key]
        driver.write(None)
        assert set(records_by_key(kafka).values()) == {None}

    def test_also_by_the_next_driver(self, kafka, driver):
        driver.fence()
        driver.write(LISTS.serialize(CommitList(0, many(300, 200), destination="orders")))
        sink = sink_to(kafka, "orders")
        successor = log_of(sink)
        successor.fence()
        successor.write(LISTS.serialize(CommitList(1, many(150, 200), destination="orders")))
        live = {name for name, value in records_by_key(kafka).items() if value is not None}
        assert 1 < len(live) < len(records_by_key(kafka))
        assert sink.recorded_epochs() == {JOB: 1}

    def test_a_list_whose_parts_are_of_another_is_refused_and_not_put_together(self, kafka, driver):
        driver.fence()
        driver.write(LISTS.serialize(CommitList(0, many(150, 200), destination="orders")))
        with FakeKafka() as other:
            other.create_topic("commits", configs={"cleanup.policy": "compact"})
            for key, value in records_by_key(kafka).items():
                damaged = value if "/1" not in key else b"0" * 32 + value[32:]
                other.append("commits", NewRecord(damaged, key=key.encode()))
            sink = sink_to(other, "orders")
            message = "the list of transactions cannot be read: its format is 'headrace-commit-list-parts'"
            with pytest.raises(StateError, match=message):
                committer(sink, JOB).recover()

    def test_the_commit_topic_takes_a_part_whatever_the_brokers_default(self, kafka, driver):
        requests = []
        kafka.fault("CreateTopics", Before(lambda: None), when=lambda request: requests.append(request) or True)
        driver.fence()
        configs = {config.name: config.value for config in requests[0].topics[0].configs}
        assert configs["max.message.bytes"] == "1048576"


def records_by_key(kafka):
    """What compaction leaves of the lists."""
    return {record.key.decode(): record.value for record in kafka.records("commits") if record.key != b"/"}


# --- stored formats -----------------------------------------------------------------------------------------------------
RANGES = (WrittenRange("out", TOPIC_ID, 0, 5, 9, 5), WrittenRange("out", TOPIC_ID, 1, 7, 7, 1))
LISTED = tuple(handle_of(f"headrace.job.1.{task}.0", task, 1_700_000_000_000, RANGES) for task in range(2))
GOLDEN_LIST = CommitList(7, LISTED, destination=EACH_ROWS_TOPIC, targets=("out",))


def test_the_golden_list_is_read_and_written():
    """A difference here means that the format has changed, and needs a new version."""
    assert LISTS.deserialize(GOLDEN.read_bytes(), "here") == GOLDEN_LIST
    assert LISTS.serialize(GOLDEN_LIST) == GOLDEN.read_bytes()
