"""`headrace transactions accept-loss` and `forget` on a fake broker: the ways out of a job that cannot continue by itself."""

from __future__ import annotations

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace import cli
from headrace.cli.accept_loss import known_destinations, recorded_digests
from headrace.cli.durable_lists import DurableLists
from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.sink import Attempt, CommitList
from headrace.connectors.kafka.write import sink as sink_module
from headrace.connectors.kafka.write.names import EACH_ROWS_TOPIC, digest_of
from headrace.connectors.kafka.write.sink import _commit_log
from headrace.enumerator.errors import DataLossError, StateError
from headrace.testing import DyingCommitter, FakeKafka, Killed
from headrace.testing.fake_kafka import NewRecord, Refuse
from tests.helpers.sink_rig import committer, kafka_sink, ongoing, prepared, rows, take_over

JOB = "job"
RUN = f"run-{'5' * 32}"
CONCURRENT_TRANSACTIONS = 51


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request):
    with FakeKafka() as cluster:
        cluster.set_transaction_version(request.param)
        cluster.create_topic("out", partitions=2)
        yield cluster


@pytest.fixture
def sink(kafka):
    return kafka_sink(kafka.bootstrap, "out", "commits")


@pytest.fixture
def run(kafka):
    def invoke(command, *arguments, answer=None):
        options = ["--bootstrap", kafka.bootstrap, "--commit-topic", "commits", "--job", JOB]
        return CliRunner().invoke(cli.app, ["transactions", command, *options, *arguments], input=answer)

    return invoke


def values(kafka):
    return sorted(record.value.decode() for record in kafka.records("out"))


def to_partitions(sink, task, *partitions):
    """The handle of a task that has written a row to each of these partitions: its number and theirs."""
    with sink.begin(Attempt(JOB, 0, task, 0)) as transaction:
        transaction.write(rows([f"{task}{at}" for at in partitions], partition=pa.array(partitions, pa.int32())))
        return transaction.prepare()


def killed(sink, method, when, handles, *driver, job=JOB):
    """Epoch 0, whose driver is killed before or after this method."""
    with pytest.raises(Killed):
        JobCommitter(job, DyingCommitter(sink.committer(job), method, when), *driver).commit(0, handles)


@pytest.fixture
def lost(kafka, sink):
    """Recorded: one that was committed; one that timed out, of which one row of two is gone; one that is gone altogether."""
    handles = to_partitions(sink, 0, 0, 1), to_partitions(sink, 1, 0, 1), to_partitions(sink, 2, 0)
    killed(sink, "end", "after", handles)
    for handle in handles[1:]:
        take_over(sink, handle)
    gone = handles[2].ranges[0]
    kafka.delete_records("out", gone.partition, before=gone.last + 1)
    with pytest.raises(DataLossError):
        committer(sink, JOB).recover()


def test_a_job_that_cannot_be_ended_holds_up_no_other_one_and_is_named(kafka, monkeypatch):
    """Its coordinator was busy with it for ever, and `commit --all` waited as long."""
    monkeypatch.setattr(sink_module, "_LONGEST_BOUNDED_MS", 500)
    kafka.create_topic("other")
    for job, topic in (("aaa", "other"), ("bbb", "out")):
        sink = kafka_sink(kafka.bootstrap, topic, "commits")
        killed(sink, "record", "after", prepared(sink, job, 0, [job]), job=job)
    refuse, of_aaa = Refuse(CONCURRENT_TRANSACTIONS), lambda request: ".aaa." in request.transactional_id
    stuck = kafka.fault("EndTxn", refuse, times=None, when=of_aaa)
    options = ["--all", "--commit-topic", "commits", "--bootstrap", kafka.bootstrap]
    result = CliRunner().invoke(cli.app, ["transactions", "commit", *options])
    assert stuck.fired
    assert result.exit_code == 1
    assert "job aaa: ending a transaction of" in result.output
    assert "CONCURRENT_TRANSACTIONS" in result.output
    assert values(kafka) == ["bbb"]


def test_the_list_of_a_job_that_a_supervised_driver_has_claimed_is_completed_for_that_one(kafka, sink, run):
    """Of one that was only claimed there is nothing to complete."""
    JobCommitter(JOB, sink.committer(JOB), "mine").claim()
    done = run("commit")
    assert (done.exit_code, done.stdout) == (0, "")
    killed(sink, "end", "before", prepared(sink, JOB, 0, ["a"]), "mine")
    done = run("commit")
    assert done.exit_code == 0, done.output
    assert values(kafka) == ["a"]
    JobCommitter(JOB, sink.committer(JOB), "mine").recover()


class TestAcceptLoss:
    def test_what_is_left_is_committed_what_is_lost_is_named_and_the_job_continues(self, kafka, sink, lost, run):
        """findings: Sinks 18. There was no way out of a DataLossError but to delete the list by hand."""
        result = run("accept-loss", "--yes")
        assert result.exit_code == 0, result.output
        losses = [line.split("\t")[1:] for line in result.stdout.splitlines()]
        found = [(job, topic, partition, records) for job, topic, partition, _, _, records, _ in losses]
        assert found == [(JOB, "out", "0", "1")] * 2
        assert "retention or compaction took the others" in losses[0][-1]
        assert "whether it was ever visible cannot be determined any more" in losses[1][-1]
        assert values(kafka) == ["01", "11"]  # the rows in partition 0 are deleted, one of them after it was visible
        assert sink.recorded_epochs() == {JOB: 0}
        assert ongoing(sink, JOB) == []
        committer(sink, JOB).commit(1, prepared(sink, JOB, 1, ["next"]))
        assert values(kafka) == ["01", "11", "next"]

    def test_without_a_yes_nothing_is_given_up(self, kafka, sink, lost, run):
        result = run("accept-loss", answer="n\n")
        assert result.exit_code == 1
        assert "job job, epoch 0: 3 transaction(s) to out" in result.stderr
        assert "neither committed nor copied?" in result.stderr
        with pytest.raises(DataLossError):
            committer(sink, JOB).recover()

    def test_what_no_process_can_tell_the_outcome_of_is_given_up(self, kafka, sink, run):
        (handle,) = prepared(sink, JOB, 0, ["a"])
        killed(sink, "record", "after", (handle,))
        take_over(sink, handle)
        kafka.delete_topic("out")
        kafka.create_topic("out")
        result = run("accept-loss", "--yes")
        assert result.exit_code == 0, result.output
        assert "whether it was ever visible cannot be determined any more" in result.stdout
        committer(sink, JOB).recover()

    def test_a_list_that_only_waits_for_its_driver_loses_nothing(self, kafka, sink, run):
        killed(sink, "record", "after", prepared(sink, JOB, 0, ["a"]))
        result = run("accept-loss", "--yes")
        assert (result.exit_code, result.stdout) == (0, "")
        assert "nothing was lost" in result.stderr
        assert values(kafka) == ["a"]

    def test_a_completed_one_is_left_alone(self, sink, run):
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["a"]))
        assert "nothing to accept: every list of job job is completed" in run("accept-loss", "--yes").stderr


class TestForget:
    def test_a_job_whose_commit_topic_was_created_again_starts_over(self, kafka, sink, run):
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["a"]))
        left = prepared(sink, JOB, 1, ["b"])
        kafka.delete_topic("commits")
        kafka.create_topic("commits", configs={"cleanup.policy": "compact"})
        _commit_log.cache_clear()
        with pytest.raises(StateError, match="headrace transactions forget --job job"):
            committer(sink, JOB).recover()
        assert ongoing(sink, JOB) == [left[0].transactional_id]
        result = run("forget", "--yes")
        assert (result.exit_code, result.stdout) == (0, f"forgotten\t{JOB}\tout\n")
        assert ongoing(sink, JOB) == []
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["again"]))
        assert values(kafka) == ["a", "again"]

    def test_so_does_one_whose_list_cannot_be_read_and_what_is_on_it_is_said_before(self, kafka, sink, run):
        committer(sink, JOB).commit(3, prepared(sink, JOB, 3, ["a"]))
        kafka.append("commits", NewRecord(b"{", key=sink.names(JOB).key.encode()))
        with pytest.raises(StateError, match="damaged"):
            committer(sink, JOB).recover()
        refused = run("forget", answer="n\n")
        assert (refused.exit_code, "it has written to: out" in refused.stderr) == (1, True)
        assert run("forget", "--yes").exit_code == 0
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["b"]))
        assert values(kafka) == ["a", "b"]

    def test_what_is_recorded_and_not_committed_is_said(self, kafka, sink, run):
        killed(sink, "record", "after", prepared(sink, JOB, 0, ["a"]))
        result = run("forget", answer="y\n")
        assert "job job, epoch 0 to out: 1 transaction(s) NOT committed yet" in result.stderr
        assert result.exit_code == 0
        assert (values(kafka), ongoing(sink, JOB)) == ([], [])

    @pytest.mark.parametrize("whole", [RUN, f"{RUN}-even"])
    def test_of_a_run_what_its_workers_have_open_is_aborted_too(self, kafka, sink, whole):
        """Regression: workers write as jobs of their numbers, which stayed open, with exit status 0."""
        others = ["run", f"{RUN}2", f"{RUN}-even-2-x"]
        for job in (whole, f"{whole}-1", f"{whole}-12", *others):
            prepared(sink, job, 0, [job])
        killed(sink, "record", "after", prepared(sink, whole, 0, ["a"]), job=whole)
        options = ["--bootstrap", kafka.bootstrap, "--commit-topic", "commits", "--job", whole, "--yes"]
        result = CliRunner().invoke(cli.app, ["transactions", "forget", *options])
        assert (result.exit_code, result.stdout) == (0, f"forgotten\t{whole}\tout\n")
        assert [len(ongoing(sink, job)) for job in (whole, f"{whole}-1", f"{whole}-12", *others)] == [0, 0, 0, 1, 1, 1]

    def test_a_job_of_whom_nothing_is_known_is_an_error(self, kafka, run):
        kafka.create_topic("commits")
        result = run("forget", "--yes")
        assert isinstance(result.exception, StateError)
        assert "nothing is known of job job" in str(result.exception)

    def test_a_destination_that_is_gone_has_to_be_named(self):
        readable, damaged = (f"p.{JOB}.{digest_of(topic)}" for topic in "ab")
        lists = DurableLists("commits", {readable: CommitList(0, ())}, {damaged: "damaged"})
        names = [f"p.{JOB}.{digest_of(EACH_ROWS_TOPIC)}.0.1.2", f"p.{JOB}2.{digest_of('c')}.driver", "x"]
        digests = recorded_digests(lists, names, "p", JOB)[JOB]
        assert known_destinations(digests, ["a", "b", "c", EACH_ROWS_TOPIC]) == ["a", "b", EACH_ROWS_TOPIC]
        with pytest.raises(StateError, match=f"not there any more .{digest_of('b')}.: name it by --topic"):
            known_destinations(digests, ["a", EACH_ROWS_TOPIC])
