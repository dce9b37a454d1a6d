"""The Kafka sink on a fake broker: what goes wrong between a job's tasks, its driver and the brokers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.connectors.commit import JobCommitter
from headrace.connectors.kafka.client.errors import InvalidForBrokerError
from headrace.connectors.kafka.write.sink import KafkaSink
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


class TestSmallTopics:
    @pytest.mark.parametrize("codec", ["none", "gzip"])
    def test_seen_here_a_topic_that_takes_small_batches_only_gets_small_ones(self, kafka, codec):
        """findings: Sinks 19 (KIP-126). Records of 100 bytes were refused, in a batch of 900 kB."""
        kafka.create_topic("small", partitions=2, configs={"max.message.bytes": "4000"})
        properties = {"compression.type": codec}
        sink = KafkaSink(kafka.bootstrap, topic="small", properties=properties, commit_topic="commits")
        wanted = [f"{number:0100}" for number in range(2000)]
        with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
            for start in range(0, 2000, 500):
                transaction.write(rows(wanted[start : start + 500], key=wanted[start : start + 500]))
            handle = transaction.prepare()
        committer(sink, JOB).commit(0, (handle,))
        assert handle.records == 2000
        assert values(kafka, "small") == wanted
        for partition in range(2):
            assert in_order(kafka.records("small", partition))

    def test_headers_timestamps_and_nulls_stay_what_they_were(self, kafka):
        kafka.create_topic("small", configs={"max.message.bytes": "200"})
        sink = KafkaSink(kafka.bootstrap, topic="small", commit_topic="commits")
        headers = [[{"key": f"h{number}", "value": None}, {"key": "", "value": b"x"}] for number in range(20)]
        times = pa.array([1_700_000_000_000 + 86_400_000 * (number % 3) for number in range(20)], pa.timestamp("ms", "UTC"))
        data = pa.RecordBatch.from_pydict(
            {
                "value": pa.array([None if number % 4 == 0 else b"%d" % number for number in range(20)], pa.binary()),
                "key": pa.array([None if number % 5 == 0 else b"k" for number in range(20)], pa.binary()),
                "headers": pa.array(headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
                "timestamp": times,
            }
        )
        with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
            transaction.write(data)
            committer(sink, JOB).commit(0, (transaction.prepare(),))
        found = kafka.records("small")
        assert [record.value for record in found] == data["value"].to_pylist()
        assert [record.key for record in found] == data["key"].to_pylist()
        assert [list(record.headers) for record in found] == [[(f"h{n}", None), ("", b"x")] for n in range(20)]
        assert [record.timestamp_ms for record in found] == times.cast(pa.int64()).to_pylist()

    def test_a_record_that_alone_is_too_large_is_an_error_that_names_the_topic(self, kafka):
        kafka.create_topic("small", configs={"max.message.bytes": "200"})
        sink = KafkaSink(kafka.bootstrap, topic="small", commit_topic="commits")
        with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
            transaction.write(rows(["x", "y" * 300, "z"]))
            with pytest.raises(
                InvalidForBrokerError, match=r"small-0: the broker answered MESSAGE_TOO_LARGE .*max\.message\.bytes"
            ):
                transaction.prepare()
        assert ongoing(sink, JOB) == []


def in_order(records):
    values = [record.value for record in records]
    return values == sorted(values)
