"""The Kafka sink on a fake broker: what goes wrong between a job's tasks, its driver and the brokers."""

from __future__ import annotations

import pytest

from headrace.connectors.commit import JobCommitter
from headrace.connectors.sink import Attempt
from headrace.enumerator.errors import StateError
from headrace.testing import DyingCommitter, FakeKafka, Killed
from tests.helpers.sink_rig import committer, kafka_sink, ongoing, prepared, rows

JOB = "job"


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request):
    with FakeKafka(brokers=3) as cluster:
        cluster.set_transaction_version(request.param)
        cluster.create_topic("out")
        yield cluster


@pytest.fixture
def sink(kafka):
    return kafka_sink(kafka.bootstrap, "out", "commits")


def values(kafka, topic="out"):
    return sorted(record.value.decode() for record in kafka.records(topic))


def recorded_and_killed(sink, handles, epoch=0, job=JOB):
    """The driver dies when the list is durable and nothing is committed."""
    with pytest.raises(Killed):
        JobCommitter(job, DyingCommitter(sink.committer(job), "record", "after")).commit(epoch, handles)


class TestAbsence:
    def test_seen_here_a_broker_that_does_not_know_the_commit_topic_does_not_undo_what_is_recorded(self, kafka, sink):
        """findings: Sinks 2. Taken for "nothing is recorded", the committables were aborted."""
        recorded_and_killed(sink, prepared(sink, JOB, 0, ["a"], ["b"]))
        kafka.flap_metadata("commits", [1, None])  # it is there for `create`, and not for the look that follows
        committer(kafka_sink(kafka.bootstrap, "out", "commits"), JOB).recover()
        assert values(kafka) == ["a", "b"]

    def test_seen_here_nor_does_a_task_write_an_epoch_again_because_of_it(self, kafka, sink):
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["a"]))
        kafka.flap_metadata("commits", [None, None])
        assert sink.recorded_epochs() == {JOB: 0}

    def test_a_commit_topic_that_no_broker_knows_has_no_lists(self, sink):
        assert sink.recorded_epochs() == {}

    def test_one_that_was_read_and_is_gone_is_an_error(self, kafka, sink):
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["a"]))
        assert sink.recorded_epochs() == {JOB: 0}
        kafka.delete_topic("commits")
        with pytest.raises(StateError, match="the lists of all jobs are lost"):
            sink.recorded_epochs()


class TestNames:
    def test_spark_24552_an_attempt_of_another_attempt_at_the_stage_has_the_same_number_and_aborts_nothing(self, kafka, sink):
        """findings: Sinks 3. It was the same transactional id, and what the first had prepared was aborted."""
        (first,) = prepared(sink, JOB, 0, ["first"])
        second = sink.begin(Attempt(JOB, 0, 0, 0))
        second.write(rows(["second"]))
        committer(sink, JOB).commit(0, (first,))
        assert values(kafka) == ["first"]

    def test_an_id_is_used_again_when_nothing_is_open_under_it(self, kafka, sink):
        used = set()
        for epoch in range(6):
            handles = prepared(sink, JOB, epoch, ["a"], ["b"], number=epoch)
            used |= {handle.transactional_id for handle in handles}
            committer(sink, JOB).commit(epoch, handles)
        assert len(used) == 4
        assert ongoing(sink, JOB) == []
