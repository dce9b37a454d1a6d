"""The Kafka sink on a fake broker: what goes wrong between a job's tasks, its driver and the brokers."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.jobs import one_off_job
from headrace.connectors.base.sink import Attempt, Outcome
from headrace.connectors.kafka.client.errors import BrokerError, InvalidForBrokerError, RefusedByBrokerError
from headrace.connectors.kafka.format.encode import RecordEncoder
from headrace.connectors.kafka.write.at_least_once import AtLeastOnceKafkaSink
from headrace.connectors.kafka.write.produce import OutBatch, transactional_sender
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.connectors.kafka.write.transactions import Transactions
from headrace.enumerator.errors import CorruptDataError, DataLossError, DeadlineExceededError, HeadraceError, StateError
from headrace.testing import DyingCommitter, FakeKafka, Killed
from headrace.testing.fake_kafka import Before, ErrorCode, Refuse, Rewrite, StoppedClock
from tests.helpers.isolated import Isolated
from tests.helpers.sink_rig import committer, kafka_sink, ongoing, prepared, rows, take_over, values
from tests.helpers.waiting import eventually

JOB = "job"
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED, OPERATION_NOT_ATTEMPTED = 3, 29, 55
QUICK = {"default.api.timeout.ms": "20000", "request.timeout.ms": "300", "retry.backoff.ms": "20", "retry.backoff.max.ms": "50"}


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request):
    with FakeKafka(brokers=3) as cluster:
        cluster.set_transaction_version(request.param)
        cluster.create_topic("out")
        yield cluster


@pytest.fixture
def sink(kafka):
    return kafka_sink(kafka.bootstrap, "out", "commits")


def recorded_and_killed(sink, handles, epoch=0, job=JOB):
    """The driver dies when the list is durable and nothing is committed."""
    with pytest.raises(Killed):
        JobCommitter(job, DyingCommitter(sink.committer(job), "record", "after")).commit(epoch, handles)


class TestAbsence:
    def test_a_broker_that_does_not_know_the_commit_topic_does_not_undo_what_is_recorded(self, kafka, sink):
        """findings: Sinks 2. Taken for "nothing is recorded", the committables were aborted."""
        recorded_and_killed(sink, prepared(sink, JOB, 0, ["a"], ["b"]))
        kafka.flap_metadata("commits", [1, None])  # it is there for `create`, and not for the look that follows
        committer(kafka_sink(kafka.bootstrap, "out", "commits"), JOB).recover()
        assert values(kafka) == ["a", "b"]

    def test_nor_does_a_task_write_an_epoch_again_because_of_it(self, kafka, sink):
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


class TestIsolatedLeader:
    """A leader that is isolated from the others, which have elected another one, and that all that is heard still names."""

    @pytest.fixture
    def sink(self, kafka):
        """A leader that is isolated answers a write when this has passed."""
        return replace(kafka_sink(kafka.bootstrap, "out", "commits"), properties=QUICK)

    @pytest.fixture
    def isolated(self, kafka, sink):
        """What was recorded before it was isolated, and what since, is for the test to say."""
        sink.commit_log().create()
        return Isolated(kafka)

    def test_what_it_lacks_is_not_written_again(self, kafka, sink, isolated):
        """A restart found the epoch before, and committed this one a second time."""
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
        isolated.cut_off("out")
        committer(sink, JOB).commit(1, prepared(sink, JOB, 1, ["1"]))
        with isolated.heard_by(sink) as restarted:
            committer(restarted, JOB).commit(1, prepared(restarted, JOB, 1, ["1"]))
            assert isolated.is_found_out
        assert (values(kafka), ongoing(sink, JOB)) == (["0", "1"], [])

    def test_nor_is_what_is_recorded_there_aborted_by_a_start_that_only_recovers(self, kafka, sink, isolated):
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
        isolated.cut_off("out")
        recorded_and_killed(sink, handles := prepared(sink, JOB, 1, ["1"]), epoch=1)
        with isolated.heard_by(sink) as restarted:
            committer(restarted, JOB).recover()
            assert isolated.is_found_out
        assert values(kafka) == ["0", "1"]
        assert kafka.offsets("out")[2] == 4  # both with their markers, and no copy
        assert sink.committer(JOB).end(handles[0]) is Outcome.COMMITTED

    def test_nor_is_the_first_list_of_a_job_taken_for_lost(self, kafka, sink, isolated):
        isolated.cut_off("out")
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
        with isolated.heard_by(sink) as restarted:
            committer(restarted, JOB).commit(0, prepared(restarted, JOB, 0, ["0"]))
            assert isolated.is_found_out
        assert values(kafka) == ["0"]

    def test_a_list_that_was_superseded_there_is_not_taken_up(self, kafka, sink, isolated):
        """Its transaction had timed out, and was copied by another driver."""
        recorded_and_killed(sink, handles := prepared(sink, JOB, 0, ["0"]))
        isolated.cut_off("out")
        take_over(sink, handles[0])
        committer(sink, JOB).recover()
        with isolated.heard_by(sink) as restarted:
            committer(restarted, JOB).recover()
        assert (values(kafka), ongoing(sink, JOB)) == (["0"], [])

    def test_records_that_say_nothing_are_no_lists(self, kafka, sink):
        committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
        committer(sink, JOB).recover()
        said = [record for record in kafka.records("commits") if record.value is None]
        assert len(said) == 2
        assert {record.key for record in said} == {b"/"}
        assert list(sink.commit_log().read()) == [sink.names(JOB).key]

    @pytest.mark.parametrize("case", ["records", "an outcome", "open to it"])
    def test_what_it_lacks_is_not_taken_for_lost_nor_unknown_for_good_nor_waited_for_without_end(self, kafka, sink, case):
        """One OFFSET_OUT_OF_RANGE was a DataLossError, which advises to accept the loss of records that are there."""
        isolated = Isolated(kafka, "out", "Fetch")
        isolated.cut_off()
        epoch = 0 if case == "open to it" else 1
        if epoch:
            committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
        recorded_and_killed(sink, handles := prepared(sink, JOB, epoch, [str(epoch)]), epoch=epoch)
        if case == "an outcome":
            assert sink.committer(JOB).end(handles[0]) is Outcome.COMMITTED
        take_over(sink, handles[0])
        with isolated.heard_by(sink) as restarted:
            committer(restarted, JOB).recover()
            assert isolated.is_found_out
        assert values(kafka) == [str(each) for each in range(epoch + 1)]


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
        assert (len(used), ongoing(sink, JOB)) == (4, [])


class TestStragglers:
    def test_a_writer_whose_transaction_was_cleaned_up_opens_no_other_one(self, kafka, sink):
        """findings: Sinks 15. Under version 1 EndTxn leaves the writer its epoch: it continued in the next partition."""
        kafka.create_topic("two", partitions=2)
        sink = kafka_sink(kafka.bootstrap, "two", "commits")
        writer = sink.begin(Attempt(JOB, 0, 0, 0))
        writer.write(rows(["first"], partition=pa.array([0], pa.int32())))
        flushed(writer)
        committer(sink, JOB).recover()
        writer.write(rows(["second"], partition=pa.array([1], pa.int32())))
        with pytest.raises(BrokerError):
            writer.prepare()
        assert (ongoing(sink, JOB), kafka.offsets("two", 1)[1]) == ([], kafka.offsets("two", 1)[2])
        assert values(kafka, "two") == []

    def test_kafka_14053_a_produce_that_an_abort_has_overtaken_is_not_written(self, kafka, sink):
        """findings: Sinks 15. The task's connection is closed with a request under way, which arrives after the abort."""
        writer = sink.begin(Attempt(JOB, 0, 0, 0))
        writer.write(rows(["first"]))
        flushed(writer)
        late = writer._producer
        writer.abort()
        sender = transactional_sender(sink.cluster(), Transactions(sink.cluster()), late, writer._protocol)
        sender._before_first = lambda _: None  # it was added before the abort
        producer = {"producer_id": late.producer_id, "producer_epoch": late.epoch, "transactional": True}
        encoder = RecordEncoder(1, **producer, first_sequences={0: 1})
        encoded = [*encoder.append(rows(["late"]), 0), *encoder.flush()]
        sender.send("out", [OutBatch(batch.partition, batch.data, batch.records) for batch in encoded])
        with closing(sender), pytest.raises(BrokerError):
            sender.flush()
        found = Transactions(sink.cluster()).describe([late.transactional_id])[late.transactional_id]
        assert (found.producer.epoch, found.state) == (late.epoch + 1, "CompleteAbort")

    def test_an_attempt_that_prepares_after_the_write_was_committed_leaves_nothing_open(self, kafka, sink):
        """findings: Sinks 14. No process comes after a batch write: readers waited 15 minutes for the timeout."""
        job = one_off_job()
        winners = prepared(sink, job, 0, ["a"])
        loser = sink.begin(Attempt(job, 0, 0, 1, retry=1))
        committer(sink, job).commit(0, winners)
        loser.write(rows(["a"]))
        with pytest.raises(StateError, match="is committed or aborted already"):
            loser.prepare()
        assert (ongoing(sink, job), values(kafka)) == ([], ["a"])

    def test_nor_does_one_that_was_open_when_the_write_was_committed(self, kafka, sink):
        job = one_off_job()
        winners = prepared(sink, job, 0, ["a"])
        loser = sink.begin(Attempt(job, 0, 0, 1, retry=1))
        loser.write(rows(["a"]))
        flushed(loser)
        driver = committer(sink, job)
        driver.commit(0, winners)
        driver.forget()
        with pytest.raises(HeadraceError):
            loser.prepare()
        assert (ongoing(sink, job), values(kafka)) == ([], ["a"])

    def test_rows_that_are_pushed_are_sent_before_the_transaction_is_prepared(self, kafka, sink):
        writer = sink.begin(Attempt(JOB, 0, 0, 0))
        writer.push()
        writer.write(rows(["a"]))
        writer.push()
        eventually(lambda: kafka.offsets("out")[2] == 1)
        writer.write(rows(["b"]))
        handle = writer.prepare()
        assert (kafka.offsets("out")[2], handle.ranges[0].records, values(kafka)) == (2, 2, [])

    def test_recovery_cleans_up_its_own_stragglers_before_it_asks_the_log(self, kafka):
        """findings: Sinks 17. The last stable offset was at a straggler, and recovery waited for it until it gave up."""
        properties = {"default.api.timeout.ms": "4000"}
        sink = KafkaSink(kafka.bootstrap, topic="out", properties=properties, commit_topic="commits")
        driver = JobCommitter(JOB, DyingCommitter(sink.committer(JOB), "record", "after"))
        driver.recover()
        straggler = sink.begin(Attempt(JOB, 0, 1, 0))
        straggler.write(rows(["straggler"]))
        flushed(straggler)
        handles = prepared(sink, JOB, 0, ["a"])
        with pytest.raises(Killed):
            driver.commit(0, handles)
        take_over(sink, handles[0])
        committer(sink, JOB).recover()
        assert values(kafka) == ["a"]
        straggler.abort()


def flushed(writer):
    """What it has written is in the log, and its transaction open."""
    writer._rows.flush(writer._sender)


class TestTimeLeft:
    """By the coordinator's clock and the driver's; FakeKafka's is at some seconds before ours."""

    @pytest.fixture
    def handles(self, request):
        now_ms = time.time_ns() // 1_000_000
        with FakeKafka(clock=StoppedClock(now_ms - 1000 * request.param)) as kafka:
            kafka.create_topic("out")
            sink = kafka_sink(kafka.bootstrap, "out", "commits", transaction_timeout_ms=60_000)
            yield sink, prepared(sink, JOB, 0, ["a"])

    @pytest.mark.parametrize("handles", [0], indirect=True)
    @pytest.mark.parametrize("wrong_s", [-3600, 3600])
    def test_the_clock_of_a_writers_machine_does_not_matter(self, handles, wrong_s):
        """findings: Sinks 22. The epoch of a writer whose clock was behind by the timeout was refused, at every try."""
        sink, (handle,) = handles
        committer(sink, JOB).commit(0, (replace(handle, started_ms=handle.started_ms + 1000 * wrong_s),))
        assert sink.recorded_epochs() == {JOB: 0}

    @pytest.mark.parametrize(("handles", "said"), [
        (40, "open for 40 s of its 60"), (3600, "the clocks of this machine and of the brokers differ by minutes"),
    ], indirect=["handles"], ids=["nearly used up", "over, so that clocks differ"])  # fmt: skip
    def test_a_timeout_that_is_nearly_used_up_or_over_is_warned_of_and_committed(self, handles, caplog, said):
        sink, prepared_ones = handles
        committer(sink, JOB).commit(0, prepared_ones)
        assert said in caplog.text
        assert sink.recorded_epochs() == {JOB: 0}

    @pytest.mark.parametrize("handles", [57], indirect=True)
    def test_one_that_is_all_but_used_up_fails_the_epoch_before_it_is_recorded(self, handles):
        sink, prepared_ones = handles
        with pytest.raises(DeadlineExceededError, match=r"has [23] s left of its 60"):
            committer(sink, JOB).commit(0, prepared_ones)
        assert sink.recorded_epochs() == {}


class TestSpeed:
    def test_the_transactions_of_an_epoch_are_committed_at_once_and_sixteen_at_a_time_at_most(self, kafka, sink):
        """findings: Sinks 20. One after the other, 200 tasks were seconds in which readers saw a part of the epoch."""
        handles = prepared(sink, JOB, 0, *[[f"{task:02}"] for task in range(40)])
        tasks = {handle.transactional_id for handle in handles}
        together, now, most = threading.Barrier(16), [], []

        def arrive():
            now.append(None)
            most.append(len(now))
            if len(most) <= 16:
                together.wait(30)  # no process continues before sixteen are there
            now.pop()

        ends = kafka.fault("EndTxn", Before(arrive), times=None, when=lambda request: request.transactional_id in tasks)
        committer(sink, JOB).commit(0, handles)
        assert (ends.fired, max(most), values(kafka)) == (40, 16, [f"{task:02}" for task in range(40)])

    def test_one_that_fails_leaves_the_others_committed_and_a_restart_completes_the_epoch(self, kafka, sink):
        handles = prepared(sink, JOB, 0, ["a"], ["b"], ["c"])
        middle = handles[1].transactional_id
        refused = Refuse(TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        kafka.fault("EndTxn", refused, when=lambda request: request.transactional_id == middle)
        with pytest.raises(RefusedByBrokerError):
            committer(sink, JOB).commit(0, handles)
        assert ongoing(sink, JOB) == [middle]
        committer(sink, JOB).recover()
        assert values(kafka) == ["a", "b", "c"]


class TestErrors:
    def test_a_partition_that_cannot_be_added_yet_is_waited_for_though_others_were_not_attempted(self, kafka):
        """findings: Sinks 12. The first error was taken, which states that another partition's is the reason."""
        kafka.set_transaction_version(1)
        kafka.create_topic("two", partitions=2)
        passing = kafka.fault("AddPartitionsToTxn", Rewrite(codes(OPERATION_NOT_ATTEMPTED, UNKNOWN_TOPIC_OR_PARTITION)))
        sink = kafka_sink(kafka.bootstrap, "two", "commits")
        committer(sink, JOB).commit(0, to_both(sink))
        assert (passing.fired, values(kafka, "two")) == (1, ["a" * 30, "b" * 30, "c" * 30])

    def test_and_the_one_that_is_refused_is_named(self, kafka):
        kafka.set_transaction_version(1)
        kafka.create_topic("two", partitions=2)
        kafka.fault("AddPartitionsToTxn", Rewrite(codes(OPERATION_NOT_ATTEMPTED, TOPIC_AUTHORIZATION_FAILED)))
        with pytest.raises(RefusedByBrokerError, match="adding two-1 to a transaction"):
            to_both(kafka_sink(kafka.bootstrap, "two", "commits"))

    def test_a_copy_that_fails_leaves_no_transaction_open(self, kafka, sink):
        """findings: Sinks 10. At every restart one more was open for 15 minutes, and readers saw nothing behind it."""
        kafka.create_topic("two", partitions=2)
        properties = {"max.request.size": "100"}  # so that the first partition is copied before the second is looked at
        sink = KafkaSink(kafka.bootstrap, topic="two", properties=properties, commit_topic="commits")
        handles = to_both(sink)
        recorded_and_killed(sink, handles)
        take_over(sink, handles[0])
        kafka.append("two", b"behind", partition=0)
        kafka.delete_records("two", 1, before=1)
        with pytest.raises(DataLossError, match="two-1"):
            committer(sink, JOB).recover()
        assert (ongoing(sink, JOB), values(kafka, "two")) == ([], ["behind"])


def one_bit_of(value):
    """Of a record's value, in every answer that has it."""

    def change(response):
        for part in (part for topic in response.responses for part in topic.partitions if part.records):
            data = bytearray(part.records)
            at = data.find(value)
            if at >= 0:
                data[at] ^= 8
            part.records = bytes(data)

    return change


class TestDamageOnTheWay:
    def timed_out(self, kafka, sink):
        """A recorded transaction that is aborted: its records are to be copied out of the log."""
        handles = prepared(sink, JOB, 0, ["amount=1000"])
        recorded_and_killed(sink, handles)
        take_over(sink, handles[0])
        topic = sink.cluster().topic_id("out")
        return lambda request: request.isolation_level == 0 and asks(request, topic)

    def test_a_copy_of_an_aborted_transaction_has_the_bytes_that_were_written(self, kafka, sink):
        """It was sealed with its own checksum, whatever had come, and `amount=9000` was committed."""
        spoilt = kafka.fault("Fetch", Rewrite(one_bit_of(b"1000")), times=1, when=self.timed_out(kafka, sink))
        committer(sink, JOB).recover()
        assert (values(kafka), spoilt.fired) == (["amount=1000"], 1)

    def test_what_is_damaged_in_the_log_is_not_copied(self, kafka, sink):
        spoilt = kafka.fault("Fetch", Rewrite(one_bit_of(b"1000")), times=None, when=self.timed_out(kafka, sink))
        with pytest.raises(CorruptDataError, match=r"out-.*offset 0.*checksum"):
            committer(sink, JOB).recover()
        assert (values(kafka), spoilt.fired) == ([], 2)


def brought_nothing(topic):
    """A new leader's answer as long as it does not know its high watermark."""

    def change(response):
        for part in (part for found in response.responses if found.topic_id == topic for part in found.partitions):
            part.records, part.high_watermark, part.last_stable_offset = b"", 0, 0

    return change


class TestNewLeader:
    """It brings nothing of what it has until it knows its high watermark, for some milliseconds after an outage."""

    def test_what_is_to_be_copied_is_not_taken_for_lost_when_a_new_leader_brings_nothing_yet(self, kafka, sink):
        handles = prepared(sink, JOB, 0, ["a"])
        recorded_and_killed(sink, handles)
        take_over(sink, handles[0])
        topic = sink.cluster().topic_id("out")
        nothing = kafka.fault("Fetch", Rewrite(brought_nothing(topic)), nth=2, times=2, when=lambda asked: asks(asked, topic))
        committer(sink, JOB).recover()
        assert (values(kafka), nothing.fired) == (["a"], 2)

    def test_nor_does_it_end_the_reading_of_the_lists(self, kafka, sink):
        recorded_and_killed(sink, prepared(sink, JOB, 0, ["a"]))
        other = replace(sink, properties={**sink.properties, "client.id": "another"})
        topic = other.cluster().topic_id("commits")
        nothing = kafka.fault("Fetch", Rewrite(brought_nothing(topic)), times=2, when=lambda asked: asks(asked, topic))
        committer(other, JOB).recover()
        assert (values(kafka), nothing.fired) == (["a"], 2)


def asks(request, topic):
    return any(item.topic_id == topic for item in request.topics)


def codes(*wanted):
    """An answer with these codes, partition by partition."""

    def change(response):
        items = [item for topic in response.results_by_topic_v3_and_below for item in topic.results_by_partition]
        for item, code in zip(items, wanted, strict=True):
            item.partition_error_code = code

    return change


def to_both(sink):
    """The handle of a task that has written to both partitions."""
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(rows(["a" * 30, "b" * 30, "c" * 30], partition=pa.array([0, 0, 1], pa.int32())))
        return (transaction.prepare(),)


class TestSmallTopics:
    @pytest.mark.parametrize("codec", ["none", "gzip"])
    def test_a_topic_that_takes_small_batches_only_gets_small_ones(self, kafka, codec):
        """findings: Sinks 19 (KIP-126). Records of 100 bytes were refused, in a batch of 900 kB."""
        kafka.create_topic("small", partitions=2, configs={"max.message.bytes": "4000"})
        sink = KafkaSink(kafka.bootstrap, topic="small", properties={"compression.type": codec}, commit_topic="commits")
        wanted = [f"{number:0100}" for number in range(2000)]
        with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
            for start in range(0, 2000, 500):
                transaction.write(rows(wanted[start : start + 500], key=wanted[start : start + 500]))
            handle = transaction.prepare()
        committer(sink, JOB).commit(0, (handle,))
        assert (handle.records, values(kafka, "small")) == (2000, wanted)
        for partition in range(2):
            found = [record.value for record in kafka.records("small", partition)]
            assert found == sorted(found)

    def test_headers_timestamps_and_nulls_stay_what_they_were(self, kafka):
        kafka.create_topic("small", configs={"max.message.bytes": "200"})
        sink = KafkaSink(kafka.bootstrap, topic="small", commit_topic="commits")
        headers = [[{"key": f"h{number}", "value": None}, {"key": "", "value": b"x"}] for number in range(20)]
        times = pa.array([1_700_000_000_000 + 86_400_000 * (number % 3) for number in range(20)], pa.timestamp("ms", "UTC"))
        data = pa.RecordBatch.from_pydict({
            "value": pa.array([None if number % 4 == 0 else b"%d" % number for number in range(20)], pa.binary()),
            "key": pa.array([None if number % 5 == 0 else b"k" for number in range(20)], pa.binary()),
            "headers": pa.array(headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            "timestamp": times,
        })  # fmt: skip
        with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
            transaction.write(data)
            committer(sink, JOB).commit(0, (transaction.prepare(),))
        found = kafka.records("small")
        assert [record.value for record in found] == data["value"].to_pylist()
        assert [record.key for record in found] == data["key"].to_pylist()
        assert [list(record.headers) for record in found] == [[(f"h{n}", None), ("", b"x")] for n in range(20)]
        assert [record.timestamp_ms for record in found] == times.cast(pa.int64()).to_pylist()

    @pytest.mark.parametrize("code", [None, "POLICY_VIOLATION", "UNSUPPORTED_FOR_MESSAGE_FORMAT"])
    def test_rows_that_a_topic_never_takes_are_an_error_that_ends_a_run(self, kafka, code):
        """Every worker would have it: the run restarted without end. Without a code: no key, for a compacted topic."""
        kafka.create_topic("comp", configs={} if code else {"cleanup.policy": "compact"})
        if code:
            kafka.fault("Produce", Refuse(ErrorCode[code]))
        sink = KafkaSink(kafka.bootstrap, topic="comp", commit_topic="commits")
        with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
            transaction.write(rows(["x"]))
            with pytest.raises(InvalidForBrokerError, match=f"comp-0: .*{code or 'INVALID_RECORD'}"):
                transaction.prepare()

    def test_a_record_that_alone_is_too_large_is_an_error_that_names_the_topic(self, kafka):
        kafka.create_topic("small", configs={"max.message.bytes": "200"})
        sink = KafkaSink(kafka.bootstrap, topic="small", commit_topic="commits")
        with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
            transaction.write(rows(["x", "y" * 300, "z"]))
            message = r"small-0: the broker answered MESSAGE_TOO_LARGE .*max\.message\.bytes"
            with pytest.raises(InvalidForBrokerError, match=message):
                transaction.prepare()
        assert ongoing(sink, JOB) == []


@pytest.mark.parametrize("error", ["NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT", "MESSAGE_TOO_LARGE"])
@pytest.mark.parametrize("nth", [1, 2])
def test_records_are_in_order_and_once_where_a_batch_is_refused_behind_which_others_wait(error, nth):
    """Regression: with none acknowledged, the broker took the next batch for the producer's first, and this one never more."""
    with FakeKafka() as kafka:
        kafka.create_topic("out", partitions=1)
        refused = kafka.fault("Produce", Refuse(ErrorCode[error]), nth=nth)
        sink = AtLeastOnceKafkaSink(kafka.bootstrap, topic="out", properties={"batch.size": "200"})
        transaction = sink.begin(Attempt("job", epoch=0, task=0, number=0))
        transaction.write(pa.record_batch({"value": [b"%02d" % number for number in range(60)]}))
        transaction.prepare()
        assert refused.fired
        assert [record.value for record in kafka.records("out")] == [b"%02d" % number for number in range(60)]
