"""The Kafka sink while brokers are away: what waits, for how long, what it says, and what ends it."""

from __future__ import annotations

import functools
import pickle
import re
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.sink import Attempt, Outcome
from headrace.connectors.kafka.client import retries
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import BrokerError, NoCoordinatorError, UnknownTopicError, broker_error
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.retries import Outage as Waiting
from headrace.connectors.kafka.client.retries import Retries, giving_up_when
from headrace.connectors.kafka.client.topology import Contact
from headrace.connectors.kafka.format.encode import RecordEncoder
from headrace.connectors.kafka.write import committer as committer_module
from headrace.connectors.kafka.write import produce
from headrace.connectors.kafka.write import sink as sink_module
from headrace.connectors.kafka.write import transaction as transaction_module
from headrace.connectors.kafka.write.produce import OutBatch, transactional_sender
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.connectors.kafka.write.transaction_log import outcome_of
from headrace.connectors.kafka.write.transactions import Transactions, in_parallel
from headrace.enumerator.errors import DeadlineExceededError, FencedError, OutageError, RetriableError, StateError
from headrace.runners.spark.supervision.core import Ending
from headrace.runners.spark.supervision.exit_causes import end_by
from headrace.runners.spark.writers import BatchWriter, PreparedMessage, StreamWriter
from headrace.testing import FakeKafka
from headrace.testing.fake_kafka import Before, CutAfter, CutBefore, Refuse, Rewrite
from headrace.testing.fake_kafka.state.brokers import coordinator_partition
from tests.helpers.sink_rig import ongoing, prepared, rows, values

JOB = "job"
QUICK = {"retry.backoff.ms": "10", "retry.backoff.max.ms": "20", "reconnect.backoff.max.ms": "50"}
LONGEST_S = 20.0
STATE_TOPIC = "__transaction_state"
TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED = 29, 31
PRODUCER_FENCED, TRANSACTION_ABORTABLE = 90, 120
UNKNOWN_SERVER_ERROR, LEADER_NOT_AVAILABLE = -1, 5
NOT_ENOUGH_REPLICAS, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION = 19, 14, 15, 3


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request):
    with FakeKafka(brokers=3) as cluster:
        cluster.set_transaction_version(request.param)
        cluster.create_topic("out")
        yield cluster


@pytest.fixture
def sink(kafka):
    return sink_of(kafka)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """What takes a minute, or is reported after 10 s, does so much sooner."""
    monkeypatch.setattr(retries, "_LONGEST_CALL_S", 0.15)
    monkeypatch.setattr(retries, "_SILENCE_S", 0.2)
    monkeypatch.setattr(retries, "_UNKNOWN_TOPIC_GRACE_S", 0.1)
    monkeypatch.setattr(sink_module, "_LONGEST_BOUNDED_MS", 150)


def sink_of(kafka, **properties):
    return KafkaSink(kafka.bootstrap, topic="out", properties={**QUICK, **properties}, commit_topic="commits")


def writing(sink, flushed=False):
    """A transaction with one row, that is in the log when it is flushed."""
    transaction = sink.begin(Attempt(JOB, 0, 0, 0))
    transaction.write(rows(["a"]))
    if flushed:
        transaction._rows.flush(transaction._sender)
    return transaction


def commit(sink, *handles):
    JobCommitter(JOB, sink.committer(JOB)).commit(0, handles)


@contextmanager
def away(kafka):
    """All brokers."""
    for broker in kafka.brokers:
        kafka.stop_broker(broker)
    try:
        yield
    finally:
        for broker in kafka.brokers:
            kafka.start_broker(broker)


def wait_for(holds, what):
    deadline = time.monotonic() + LONGEST_S
    while not holds():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.01)


def ended(call):
    """What the call returns or raises; it may not wait for ever."""
    outcome = Future()
    threading.Thread(target=lambda: settle(outcome, call), daemon=True).start()
    return outcome.result(LONGEST_S)


def settle(outcome, call):
    try:
        outcome.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        outcome.set_exception(error)


def waiting_for_brokers(call, caplog):
    """What the call comes to later; it waits for brokers now, and has said so."""
    found = Future()
    threading.Thread(target=settle, args=(found, call), daemon=True).start()
    wait_for(lambda: "trying on" in caplog.text or found.done(), "no process waits")
    assert not found.done()
    return found


def said_while_waiting(caplog):
    (said,) = [record.message for record in caplog.records if "trying on" in record.message]
    return said


class Outage:
    """All brokers go away at one moment of a write, and come back when another process has said so."""

    def __init__(self, kafka, moment, caplog, monkeypatch):
        self._kafka, self._moment, self._caplog, self._monkeypatch = kafka, moment, caplog, monkeypatch
        self._waiting = None

    def in_driver(self, committer):
        for step in ("check", "record", "end"):
            setattr(committer, step, self._before(step, getattr(committer, step)))
        return committer

    def _before(self, step, call):
        return lambda *given: (self.at(step), call(*given))[1]

    def at(self, moment):
        if moment == self._moment and self._waiting is None:
            for broker in self._kafka.brokers:
                self._kafka.stop_broker(broker)
            self._waiting = threading.Thread(target=self._back)
            self._waiting.start()

    def _back(self):
        wait_for(lambda: "trying on" in self._caplog.text, "no process states that the brokers are away")
        self._monkeypatch.setattr(retries, "_SILENCE_S", 60.0)  # what comes now is not an outage, on however slow a machine
        for broker in self._kafka.brokers:
            self._kafka.start_broker(broker)

    def over(self):
        assert self._waiting is not None, "there was no outage"
        self._waiting.join()


class TestRidingOut:
    """Longer than any one call may take, in a task and in the driver: an engine would end the job for its error."""

    @pytest.mark.parametrize("moment", ["begin", "prepare", "check", "record", "end"])
    def test_a_write_rides_out_an_outage_and_says_so_once_and_once_that_it_is_over(
        self, kafka, sink, caplog, monkeypatch, moment
    ):
        outage = Outage(kafka, moment, caplog, monkeypatch)
        driver = JobCommitter(JOB, outage.in_driver(sink.committer(JOB)))
        driver.recover()
        transaction = sink.begin(Attempt(JOB, 0, 0, 0))
        outage.at("begin")
        transaction.write(rows(["a"]))
        outage.at("prepare")
        driver.commit(0, [transaction.prepare()])
        outage.over()
        said = [caplog.text.count(words) for words in ("trying on", "the brokers answer again")]
        assert (values(kafka), said) == (["a"], [1, 1])

    def test_an_outage_between_the_last_acknowledgement_and_the_handle_is_ridden_out(self, kafka, sink, caplog, monkeypatch):
        """The ids of topics were looked up without another try."""
        transaction = writing(sink, flushed=True)
        sink.cluster().invalidate("out")
        outage = Outage(kafka, "handle", caplog, monkeypatch)
        threading.Event().wait(0.02)  # what was just looked up is not looked up again
        outage.at("handle")
        handle = transaction.prepare()
        outage.over()
        commit(sink, handle)
        assert values(kafka) == ["a"]

    def test_a_coordinator_that_has_moved_is_looked_up_again_while_partitions_are_added(self, kafka, sink):
        """findings: an attacker's coord. The old one is there, and answers NOT_COORDINATOR as long as it is asked."""
        transaction = writing(sink)
        name = transaction._producer.transactional_id
        partition = ("__transaction_state", coordinator_partition(name))
        old, _ = kafka.leader(*partition)
        kafka.move_leader(*partition, to=next(broker for broker in kafka.brokers if broker != old))
        api = "AddPartitionsToTxn" if kafka_version(sink) == 1 else "DescribeTransactions"
        asked = kafka.fault(api, Before(lambda: None), broker=old, times=None)
        if kafka_version(sink) == 2:
            sink.cluster().coordinator(CoordinatorKind.TRANSACTION, name)
            Transactions(sink.cluster()).describe([name])
        handle = ended(transaction.prepare)
        assert asked.fired == 1
        commit(sink, handle)
        assert values(kafka) == ["a"]

    def test_a_partition_without_a_leader_ends_the_write_when_its_transaction_has_timed_out(self, kafka):
        """findings: an attacker's nl1 and nl2. Its only replica is gone; nothing is answered that would tell of the timeout."""
        sink = KafkaSink(kafka.bootstrap, topic="out", properties=QUICK, commit_topic="commits", transaction_timeout_ms=100)
        transaction = writing(sink, flushed=True)
        transaction.write(rows(["b"]))
        leaderless = kafka.fault("Metadata", Rewrite(without_leader), times=None)
        sink.cluster().invalidate("out")
        threading.Event().wait(0.05)  # what was just looked up is not looked up again
        kafka.clock.advance(3600)
        with pytest.raises(DeadlineExceededError, match=r"timed out, after 0\.1 s \(transaction\.timeout\.ms\)"):
            ended(transaction.prepare)
        assert leaderless.fired

    def test_one_that_its_coordinator_still_has_open_continues(self, kafka, sink):
        transaction = writing(sink, flushed=True)
        transaction.write(rows(["b"]))
        transaction._sender._lifetime._ends = time.monotonic()  # by our clock, which is fast
        busy = kafka.fault("Produce", Refuse(NOT_ENOUGH_REPLICAS, "out"), times=3)
        asked = kafka.fault("DescribeTransactions", Before(lambda: None), times=None)
        assert ended(transaction.prepare) is not None
        assert (busy.fired, asked.fired) == (3, 3)

    @pytest.mark.parametrize("api", ["Produce", "InitProducerId"])
    def test_an_answer_that_is_no_outage_is_not_waited_on_for_ever(self, kafka, sink, api):
        """findings: an attacker's unknown. The broker is there, and answers UNKNOWN_SERVER_ERROR each time."""
        sink.cluster().brokers()
        sink.reached()
        refused = kafka.fault(api, Refuse(UNKNOWN_SERVER_ERROR), times=None)
        with pytest.raises(DeadlineExceededError, match="UNKNOWN_SERVER_ERROR"):
            ended(lambda: prepared(sink, JOB, 0, ["a"]))
        assert refused.fired > 1

    @pytest.mark.parametrize(("properties", "longest_ms"), [
        ({}, None), ({"default.api.timeout.ms": "60000"}, 60_000), ({"delivery.timeout.ms": "90000"}, 90_000),
        ({"default.api.timeout.ms": "3000", "request.timeout.ms": "5000"}, 5000),
        ({"default.api.timeout.ms": "3000", "delivery.timeout.ms": "90000"}, 90_000),
    ])  # fmt: skip
    def test_a_limit_for_calls_is_one_for_deliveries_and_no_request_is_cut_short_by_it(self, properties, longest_ms):
        config = ClientConfig.from_properties({"bootstrap.servers": "a:1", **properties})
        assert config.longest_delivery_ms == longest_ms

    @pytest.mark.parametrize("limit", ["default.api.timeout.ms", "delivery.timeout.ms"])
    def test_a_delivery_ends_at_the_limit_that_was_set(self, kafka, limit):
        """findings: an attacker's R. The leader is there and takes nothing: no call fails, and only a delivery waits."""
        transaction = writing(sink_of(kafka, **{limit: "600", "request.timeout.ms": "500"}))
        kafka.fault("Produce", Refuse(NOT_ENOUGH_REPLICAS, "out"), times=None)
        with pytest.raises(DeadlineExceededError, match="NOT_ENOUGH_REPLICAS"):
            transaction.prepare()

    @pytest.mark.parametrize("may_ask", [True, False])
    def test_who_waits_for_replicas_is_reported_how_many_there_are_and_have_to_be(self, kafka, monkeypatch, caplog, may_ask):
        """It said NOT_ENOUGH_REPLICAS and nothing else, for as long as it took."""
        transaction, follower = to_three_replicas(kafka, monkeypatch)
        if not may_ask:
            kafka.fault("DescribeConfigs", Refuse(TOPIC_AUTHORIZATION_FAILED), times=None)
        asked = kafka.fault("DescribeConfigs", Before(lambda: None), times=None)
        kafka.stop_broker(follower)
        found = waiting_for_brokers(transaction.prepare, caplog)
        kafka.start_broker(follower)
        assert found.result(LONGEST_S) is not None
        said = "three-0 has 3 replicas, 2 of them in sync, and min.insync.replicas=3" in said_while_waiting(caplog)
        assert (said, asked.fired) == (may_ask, 1)

    def test_the_next_outage_is_reported_by_figures_of_its_own(self, kafka, monkeypatch):
        """Those of the first one were kept for as long as the transaction lasted."""
        transaction, follower = to_three_replicas(kafka, monkeypatch)
        asked = kafka.fault("DescribeConfigs", Before(lambda: None), times=None)
        for outage in (1, 2):
            kafka.stop_broker(follower)
            found = Future()
            flush = functools.partial(transaction._rows.flush, transaction._sender)
            threading.Thread(target=settle, args=(found, flush)).start()
            wait_for(lambda outage=outage: asked.fired == outage, "no process looks")
            kafka.start_broker(follower)
            found.result(LONGEST_S)
            transaction.write(rows(["b"]))
        transaction.abort()

    def test_more_replicas_in_sync_than_there_are_replicas_end_no_write(self, kafka, monkeypatch, caplog):
        """Brokers from 3.7 on take such a write, and answer so too while the coordinator of its transaction is away."""
        monkeypatch.setattr(produce, "_SHORT_GRACE_S", 0.05)
        kafka.create_topic("one", replicas=1, configs={"min.insync.replicas": "2"})
        refused = kafka.fault("Produce", Refuse(NOT_ENOUGH_REPLICAS, "one"), times=None)
        sink = replace(sink_of(kafka), topic="one")
        found = waiting_for_brokers(lambda: prepared(sink, JOB, 0, ["a"]), caplog)
        refused.stop()
        commit(sink, *found.result(LONGEST_S))
        assert values(kafka, "one") == ["a"]
        said = said_while_waiting(caplog)
        assert "one-0 has 1 replicas, 1 of them in sync, and min.insync.replicas=2" in said
        assert "before Kafka 3.7 acknowledge no such write until min.insync.replicas of the topic is lowered" in said

    def test_the_limit_of_a_delivery_holds_while_partitions_are_added_too(self, kafka):
        kafka.set_transaction_version(1)
        transaction = writing(sink_of(kafka, **{"delivery.timeout.ms": "600", "request.timeout.ms": "500"}))
        refused = kafka.fault("AddPartitionsToTxn", Refuse(COORDINATOR_LOAD_IN_PROGRESS), times=None)
        with pytest.raises(DeadlineExceededError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            transaction.prepare()
        assert refused.fired

    def test_one_that_outlasts_the_transaction_is_reported_by_what_limits_it(self, kafka, sink, monkeypatch):
        """It was "fenced", as if another producer had taken over."""
        clock = SimpleNamespace(late_s=0, time_ns=lambda: time.time_ns() + clock.late_s * 10**9)
        for module in (transaction_module, committer_module):
            monkeypatch.setattr(module, "time", clock)
        transaction = writing(sink, flushed=True)
        (handle,) = prepared(sink, JOB, 0, ["b"], number=1)
        clock.late_s = 1000
        kafka.clock.advance(1000)
        transaction.write(rows(["c"]))
        with pytest.raises(DeadlineExceededError, match=r"timed out after 10\d\d s.* 900 s here \(transaction\.timeout\.ms\)"):
            transaction.prepare()
        with pytest.raises(DeadlineExceededError, match=r"transaction\.max\.timeout\.ms, by default 15 minutes"):
            commit(sink, handle)

    def test_one_that_outlasts_what_was_prepared_is_fixed_by_the_drivers_next_start(self, kafka, sink):
        """It ended a supervised job of Spark for good, as one whose checkpoint cannot be used."""
        handles = prepared(sink, JOB, 0, ["a"])
        kafka.clock.advance(1000)
        with pytest.raises(DeadlineExceededError, match="not prepared: it timed out") as raised:
            commit(sink, *handles)
        assert end_by(raised.value).ending is Ending.FAILED
        commit(sink, *prepared(sink, JOB, 0, ["a"], number=1))
        assert values(kafka) == ["a"]


def to_three_replicas(kafka, monkeypatch):
    """A transaction with one row for a topic all of whose replicas have to take it, and a broker that only follows."""
    monkeypatch.setattr(produce, "_SHORT_GRACE_S", 0.05)
    kafka.create_topic("three", replicas=3, configs={"min.insync.replicas": "3"})
    transaction = writing(replace(sink_of(kafka), topic="three"))
    state = coordinator_partition(transaction._producer.transactional_id)
    spared = {kafka.leader("three", 0)[0], kafka.leader("__transaction_state", state)[0]}
    return transaction, next(broker for broker in kafka.brokers if broker not in spared)


def without_leader(response):
    for partition in (each for topic in response.topics if topic.name == "out" for each in topic.partitions):
        partition.leader_id, partition.error_code = -1, LEADER_NOT_AVAILABLE


class TestDeletedTopic:
    def test_a_topic_that_is_deleted_while_it_is_written_to_ends_the_write(self, kafka, sink):
        transaction = writing(sink)
        kafka.delete_topic("out")
        with pytest.raises(UnknownTopicError, match="no broker knows the topic 'out';"):
            transaction.prepare()
        assert ongoing(sink, JOB) == []

    def test_a_partition_that_its_successor_lacks_is_named(self, kafka, sink):
        """Regression: the topic was named as if it were 'wide-3', also where it was the topic that was missing."""
        kafka.create_topic("wide", partitions=4)
        transaction = replace(sink, topic="wide").begin(Attempt(JOB, 0, 0, 0))
        transaction.write(rows(["a"], partition=pa.array([3], pa.int32())))
        kafka.delete_topic("wide")
        kafka.create_topic("wide")
        with pytest.raises(UnknownTopicError, match="no broker knows the partition 3 of topic 'wide';"):
            transaction.prepare()

    def test_one_that_a_broker_does_not_know_for_a_while_does_not(self, kafka, sink):
        api = "AddPartitionsToTxn" if kafka_version(sink) == 1 else "Produce"
        transaction = writing(sink)
        unknown = kafka.fault(api, Refuse(UNKNOWN_TOPIC_OR_PARTITION, "out"), times=6)
        flaps = kafka.flap_metadata("out", [None, 1, None, 1])
        commit(sink, transaction.prepare())
        assert flaps[0].fired
        assert (unknown.fired, values(kafka)) == (6, ["a"])

    def test_a_commit_topic_that_is_deleted_before_its_settings_are_looked_at_is_not_waited_for(self, kafka, sink):
        """findings: an attacker's policy."""
        deleted = []

        def delete():
            if not deleted:
                kafka.delete_topic("commits")
                deleted.append(None)

        asked = kafka.fault("DescribeConfigs", Before(delete), times=None)
        with pytest.raises(UnknownTopicError, match="'commits'"):
            ended(sink.committer(JOB).fence)
        assert asked.fired


def get_an_answer(sink):
    """Of a broker, at the address that it names."""
    for _ in range(2):
        sink.cluster().find_topics(["out"])
    assert sink.cluster()._calls.contact() is Contact.ANSWERED


def asks_for_state(request):
    return STATE_TOPIC in [topic.name for topic in request.topics or ()]


def kafka_version(sink):
    return Transactions(sink.cluster()).protocol()


class TestFirstContact:
    """As the JVM's client, whose first call ends after max.block.ms."""

    def test_a_wrong_address_is_an_error_and_no_outage(self):
        sink = KafkaSink("127.0.0.1:1", topic="out", properties=QUICK, commit_topic="commits")
        with pytest.raises(DeadlineExceededError, match=r"has not reached the cluster once: is 127\.0\.0\.1:1 its address"):
            JobCommitter(JOB, sink.committer(JOB)).recover()
        with pytest.raises(DeadlineExceededError, match="has not reached the cluster once"):
            sink.begin(Attempt(JOB, 0, 0, 0)).write(rows(["a"]))

    def test_so_are_brokers_whose_advertised_addresses_lead_nowhere(self, kafka, sink):
        """The bootstrap address answers; what it names cannot be reached from here."""
        named = kafka.fault("Metadata", Rewrite(lead_nowhere), times=None)
        kafka.fault("FindCoordinator", Rewrite(lead_nowhere), times=None).optional()
        with pytest.raises(DeadlineExceededError, match="has not reached the cluster once"):
            JobCommitter(JOB, sink.committer(JOB)).recover()
        assert named.fired

    def test_so_is_a_cluster_that_never_has_a_coordinator(self, kafka, sink):
        """One broker, and transaction.state.log.replication.factor=3: the brokers are there, and it stays so for ever."""
        kafka.fault("FindCoordinator", Refuse(COORDINATOR_NOT_AVAILABLE), times=None)
        with pytest.raises(DeadlineExceededError, match=r"transaction\.state\.log\.replication\.factor"):
            JobCommitter(JOB, sink.committer(JOB)).recover()

    def test_one_that_had_one_is_waited_for(self, kafka, sink, caplog):
        JobCommitter(JOB, sink.committer(JOB)).recover()
        lost = kafka.fault("FindCoordinator", Refuse(COORDINATOR_NOT_AVAILABLE), times=None)
        found = waiting_for_brokers(lambda: Transactions(sink.cluster()).describe(["another"]), caplog)
        lost.stop()
        found.result(LONGEST_S)

    def test_so_is_one_that_others_had_though_this_process_has_found_none(self, kafka, sink, caplog):
        """A new task in the outage of its coordinator alone: "there never is one" was said after a minute."""
        JobCommitter(JOB, sink.committer(JOB)).recover()
        lost = kafka.fault("FindCoordinator", Refuse(COORDINATOR_NOT_AVAILABLE), times=None)
        task = sink_of(kafka, **{"client.id": "task"})
        task.reached()
        found = waiting_for_brokers(lambda: prepared(task, JOB, 0, ["a"]), caplog)
        threading.Event().wait(0.2)
        lost.stop()
        assert len(found.result(LONGEST_S)) == 1

    def test_so_is_one_whose_topic_may_not_be_described(self, kafka, sink, caplog):
        """That a broker may not say whether the topic is there was taken for its absence."""
        lost = kafka.fault("FindCoordinator", Refuse(COORDINATOR_NOT_AVAILABLE), times=None)
        hidden = kafka.fault("Metadata", Refuse(TOPIC_AUTHORIZATION_FAILED, STATE_TOPIC), times=None, when=asks_for_state)
        get_an_answer(sink)
        found = waiting_for_brokers(lambda: Transactions(sink.cluster()).describe(["one"]), caplog)
        wait_for(lambda: lost.fired > 10, "no process asks")
        lost.stop()
        found.result(LONGEST_S)
        assert hidden.fired

    def test_but_not_for_ever_and_what_would_tell_is_named(self, kafka, monkeypatch):
        monkeypatch.setattr(retries, "_LEAST_VOUCHED_S", 0.0)
        sink = replace(sink_of(kafka), transaction_timeout_ms=300)
        kafka.fault("FindCoordinator", Refuse(COORDINATOR_NOT_AVAILABLE), times=None)
        kafka.fault("Metadata", Refuse(TOPIC_AUTHORIZATION_FAILED, STATE_TOPIC), times=None, when=asks_for_state)
        get_an_answer(sink)
        with pytest.raises(DeadlineExceededError, match=r"not known, as that needs the right to Describe __transaction_state"):
            ended(lambda: Transactions(sink.cluster()).describe(["one"]))

    def test_one_answer_that_there_is_no_coordinator_ends_no_call_that_has_waited_for_long(self):
        """An outage of hours, and brokers that are just back: the time of the whole call counted."""
        started_at = time.monotonic()
        answers = iter([NoCoordinatorError(COORDINATOR_NOT_AVAILABLE, "looking"), RetriableError("again"), None])

        def ask():
            if time.monotonic() - started_at < 2 * retries._LONGEST_CALL_S:
                raise RetriableError("away")
            if (error := next(answers)) is not None:
                raise error
            return "found"

        config = ClientConfig(bootstrap="somebody:1", retry_backoff_ms=10, retry_backoff_max_ms=20)
        assert Retries(config, lambda: Contact.ANSWERED).run("looking", ask) == "found"

    def test_another_process_of_a_run_that_has_reached_it_waits_from_its_first_call_on(self, kafka, sink, caplog, monkeypatch):
        outage = Outage(kafka, "begin", caplog, monkeypatch)
        outage.at("begin")
        sink.reached()
        transaction = writing(sink)
        outage.over()
        commit(sink, transaction.prepare())
        assert values(kafka) == ["a"]

    @pytest.mark.parametrize("reachable", ["nothing", "the bootstrap address"])
    def test_but_not_for_ever_where_it_is_itself_never_answered(self, kafka, sink, monkeypatch, caplog, reachable):
        """findings: an attacker's vouched. Executors behind a firewall waited without limit, as their driver had reached it."""
        monkeypatch.setattr(retries, "_LEAST_VOUCHED_S", 1.0)
        sink = replace(sink, transaction_timeout_ms=1)
        sink.reached()
        if reachable == "nothing":
            away = [kafka.fault(None, CutBefore(), times=None)]
        else:
            away = [kafka.fault(api, Rewrite(lead_nowhere), times=None) for api in ("FindCoordinator", "Metadata")]
            away[1].optional()
        why = r"answered the process that started this one, a driver as a rule, and never this one: .*advertised\.listeners"
        with pytest.raises(DeadlineExceededError, match=why) as refused:
            ended(lambda: prepared(sink, JOB, 0, ["a"]))
        assert kafka.bootstrap in str(refused.value)
        assert away[0].fired > 1
        assert re.search(why, said_while_waiting(caplog))

    def test_and_longer_where_a_transaction_may_be(self, monkeypatch):
        monkeypatch.setattr(retries, "_LEAST_VOUCHED_S", 0.0)
        config = ClientConfig(bootstrap="nowhere:1", retry_backoff_ms=10, retry_backoff_max_ms=20, transaction_timeout_ms=500)
        started_at = time.monotonic()
        with pytest.raises(DeadlineExceededError, match="firewall"):
            Retries(config, lambda: Contact.VOUCHED).run("trying", never)
        assert time.monotonic() - started_at > 0.3  # it ends before a pause that would be too long

    def test_a_call_that_can_be_made_again_ends_with_an_outage_error_as_before(self):
        config = ClientConfig.from_properties({"bootstrap.servers": "127.0.0.1:1", **QUICK})
        with KafkaCluster(config) as cluster, pytest.raises(OutageError):
            cluster.brokers()


def never():
    raise RetriableError("not now")


def lead_nowhere(response):
    for broker in (*getattr(response, "brokers", ()), *getattr(response, "coordinators", ())):
        broker.port = 1


class TestBounded:
    """What is not to wait for ever: an abort, and an operator's command."""

    def test_it_takes_the_shorter_limit_and_keeps_all_else(self):
        given = {"Default.Api.Timeout.Ms": "120", "request.timeout.ms": "100", "client.id": "me"}
        apart = {"delivery.timeout.ms": "50000", "request.timeout.ms": "100"}
        for properties, call_ms, delivery_ms in (({}, 150, 30_000), (given, 120, 120), (apart, 150, 150)):
            sink = KafkaSink("a:1", topic="out", properties=properties, transaction_timeout_ms=5000)
            config = sink.bounded().config
            assert (config.default_api_timeout_ms, config.longest_delivery_ms) == (call_ms, delivery_ms)
            assert (config.client_id, config.transaction_timeout_ms) == (sink.config.client_id, 5000)
            assert sink.bounded().bounded() == sink.bounded()
            assert pickle.loads(pickle.dumps(sink.bounded())).config == config

    def test_an_abort_needs_nothing_of_where_the_sink_was_made(self, kafka, monkeypatch, tmp_path):
        """The sink is made on the driver, and aborts on an executor, which has neither its environment nor its files."""
        monkeypatch.setenv("KAFKA_CLIENT", "me")
        (tmp_path / "client").write_text("rack=here\n")
        classes = "org.apache.kafka.common.config.provider."
        made = sink_of(kafka, **{
            "config.providers": "env,file", "config.providers.env.class": f"{classes}EnvVarConfigProvider",
            "config.providers.file.class": f"{classes}FileConfigProvider", "client.id": "${env:KAFKA_CLIENT}",
            "client.rack": f"${{file:{tmp_path / 'client'}:rack}}",
        })  # fmt: skip
        sent = pickle.dumps(made)
        monkeypatch.delenv("KAFKA_CLIENT")
        (tmp_path / "client").unlink()
        sink = pickle.loads(sent)
        writing(sink, flushed=True).abort()
        assert (ongoing(sink, JOB), sink.open_transactions()) == ([], {})
        bounded = sink.bounded().config
        assert (bounded.client_id, bounded.client_rack) == ("me", "here")

    @pytest.mark.parametrize("kind", ["stream", "batch", "repeatable"])
    def test_an_abort_in_an_outage_ends(self, kafka, sink, monkeypatch, caplog, kind):
        monkeypatch.setattr("headrace.runners.spark.writers.STRAGGLERS_S", 0)
        sink = sink_of(kafka, **{"request.timeout.ms": "2000"})
        messages = [PreparedMessage(JOB, 0, handle) for handle in prepared(sink, JOB, 0, ["a"])]
        with away(kafka):
            if kind == "stream":
                StreamWriter(sink, ["value"]).abort(messages, 0)
            else:
                BatchWriter(sink, ["value"], JOB if kind == "repeatable" else None, 0).abort(messages)
        assert "now, " in caplog.text

    def test_and_so_does_that_of_a_task(self, kafka, caplog):
        transaction = writing(sink_of(kafka, **{"request.timeout.ms": "2000"}), flushed=True)
        with away(kafka):
            transaction.abort()
        assert "could not be aborted now" in caplog.text


class TestListOfTheDriver:
    """It is written in a transaction of 10 s, which an outage outlasts: its coordinator aborts it, and fences the driver."""

    @pytest.mark.parametrize("moment", ["writing", "ending"])
    def test_its_own_timeout_is_not_taken_for_another_driver(self, kafka, sink, caplog, moment):
        driver = JobCommitter(JOB, sink.committer(JOB))
        driver.commit(0, prepared(sink, JOB, 0, ["a"]))
        handles, late = prepared(sink, JOB, 1, ["b"]), Before(lambda: kafka.clock.advance(20))
        if moment == "writing":  # the record is taken, its answer is lost, and then everyone is away
            kafka.fault("Produce", CutAfter(), when=is_of_driver(sink))
            kafka.fault("Produce", late, nth=2, when=is_of_driver(sink))
        else:
            kafka.fault("EndTxn", late, when=is_of_driver(sink))
        driver.commit(1, handles)
        kafka.check_faults()
        assert "no other driver has done it" in caplog.text
        assert (values(kafka), sink.recorded_epochs()) == (["a", "b"], {JOB: 1})

    def test_nor_is_the_end_of_its_id_which_coordinators_forget_after_a_week(self, kafka, sink):
        driver = JobCommitter(JOB, sink.committer(JOB))
        driver.commit(0, prepared(sink, JOB, 0, ["a"]))
        kafka.clock.advance(8 * 24 * 3600)
        driver.commit(1, prepared(sink, JOB, 1, ["b"]))
        assert values(kafka) == ["b"]  # the other one went by retention
        assert sink.recorded_epochs() == {JOB: 1}

    def test_a_list_that_is_there_though_its_write_seemed_to_fail_is_not_written_again(self, kafka, sink):
        driver = JobCommitter(JOB, sink.committer(JOB))
        driver.recover()
        fenced = Rewrite(lambda answer: setattr(answer, "error_code", PRODUCER_FENCED))
        refused = kafka.fault("EndTxn", fenced, when=is_of_driver(sink))  # it was committed all the same
        driver.commit(0, prepared(sink, JOB, 0, ["a"]))
        assert (refused.fired, values(kafka)) == (1, ["a"])

    @pytest.mark.parametrize("progress", ["has taken over", "has recorded", "has timed out"])
    @pytest.mark.parametrize("api", ["Produce", "EndTxn"])
    def test_a_rival_is_one(self, kafka, sink, api, progress):
        driver = JobCommitter(JOB, sink.committer(JOB))
        driver.commit(0, prepared(sink, JOB, 0, ["a"]))
        ours, theirs = prepared(sink, JOB, 1, ["ours"]), prepared(sink, JOB, 1, ["theirs"], number=1)
        other = sink_of(kafka, **{"client.id": "rival"})

        def take_over():
            if progress == "has recorded":
                JobCommitter(JOB, other.committer(JOB)).commit(1, theirs)
                return
            other.committer(JOB).fence()
            if progress == "has timed out":
                *_, sender = hanging_write(other, "commits", other.names(JOB).driver)
                sender.close()
                kafka.clock.advance(120)

        rival = kafka.fault(api, Before(take_over), when=is_of_driver(sink))
        with pytest.raises(FencedError, match="another driver of job 'job' claimed it"):
            driver.commit(1, ours)
        assert rival.fired
        assert values(kafka) == (["a", "theirs"] if progress == "has recorded" else ["a"])

    def test_what_ends_the_write_each_time_at_once_is_not_repeated_for_ever(self, kafka, sink):
        driver = JobCommitter(JOB, sink.committer(JOB))
        driver.recover()
        handles = prepared(sink, JOB, 0, ["a"])
        refused = kafka.fault("Produce", Refuse(TRANSACTION_ABORTABLE, "commits"), times=None, when=is_of_driver(sink))
        with pytest.raises(BrokerError, match="TRANSACTION_ABORTABLE"):
            driver.commit(0, handles)
        assert refused.fired == 4


def is_of_driver(sink):
    return lambda request: request.transactional_id == sink.names(JOB).driver


class TestCommitLog:
    def test_who_waits_for_an_open_transaction_in_the_commit_topic_holds_up_no_process_who_need_not(self, kafka, sink, caplog):
        """It waited with the lock held, and said so again after every call of any process that succeeded."""
        sink.commit_log().create()
        transactions, producer, sender = hanging_write(sink, "commits")
        found = waiting_for_brokers(sink.recorded, caplog)
        assert "abort --topic commits --partition 0 --start-offset 0` ends it" in caplog.text
        assert f"producer {producer.producer_id}, epoch {producer.epoch}, transactional id 'foreign'" in caplog.text
        assert sink.commit_log().decided() == {}  # it takes the lock
        sink.cluster().brokers()
        threading.Event().wait(0.1)
        transactions.abort(producer, transactions.protocol(), 60_000)
        found.result(LONGEST_S)
        sender.close()
        assert (caplog.text.count("trying on"), caplog.text.count("answer again")) == (1, 1)


class TestOutcome:
    @pytest.mark.parametrize("known", ["known", "forgotten", "not to be asked for"])
    def test_who_waits_behind_anothers_transaction_is_reported_whose_it_is_and_what_ends_it(self, kafka, sink, caplog, known):
        """findings: an attacker's hang. It said that our own transaction was still open, which had been committed."""
        transactions, producer, sender = hanging_write(sink, "out")
        (handle,) = prepared(sink, JOB, 0, ["a"])
        assert sink.committer(JOB).end(handle) is Outcome.COMMITTED
        if known == "forgotten":
            kafka.fault("ListTransactions", Rewrite(lambda answer: answer.transaction_states.clear()), times=None)
        elif known == "not to be asked for":
            kafka.fault("ListTransactions", Refuse(CLUSTER_AUTHORIZATION_FAILED), times=None)
        found = waiting_for_brokers(lambda: outcome_of(sink.cluster(), handle), caplog)
        transactions.abort(producer, transactions.protocol(), 60_000)
        sender.close()
        assert found.result(LONGEST_S) is Outcome.COMMITTED
        assert "abort --topic out --partition 0 --start-offset 0` ends it" in caplog.text
        whose = f"of producer {producer.producer_id}, epoch {producer.epoch}, "
        by_name = {"known": "transactional id 'foreign'", "forgotten": "which no coordinator knows"}
        assert (whose + by_name[known] in caplog.text) if known in by_name else (whose not in caplog.text)


def hanging_write(sink, topic, transactional_id="foreign"):
    transactions = Transactions(sink.cluster())
    producer = transactions.init(transactional_id, 60_000)
    encoder = RecordEncoder(1, producer_id=producer.producer_id, producer_epoch=producer.epoch, transactional=True)
    found = pa.RecordBatch.from_pydict({"key": pa.array([b"x"]), "value": pa.array([b"y"])})
    encoded = [*encoder.append(found, 1), *encoder.flush()]
    sender = transactional_sender(sink.cluster(), transactions, producer, transactions.protocol())
    sender.send(topic, [OutBatch(batch.partition, batch.data, batch.records) for batch in encoded])
    sender.flush()
    return transactions, producer, sender


class TestSayingSo:
    def test_calls_that_succeed_meanwhile_do_not_end_an_outage_for_the_log(self, caplog):
        """Each success of any thread let the next failure be reported again, and again."""
        outage, long_ago = Waiting(), time.monotonic() - 1
        for _ in range(3):
            outage.goes_on("first", "looking up topics", long_ago, RetriableError("refused"))
            outage.goes_on("second", "writing", long_ago, RetriableError("refused"))
            outage.over("another, which waited for milliseconds")
        outage.over("first")
        outage.given_up("third")
        assert [record.message.split(":")[0] for record in caplog.records] == ["looking up topics"]
        outage.over("second")
        assert "the brokers answer again, after 1 s" in caplog.records[-1].message
        outage.goes_on("first", "looking up topics", long_ago, RetriableError("refused"))
        assert len(caplog.records) == 3

    def test_one_who_gives_up_is_reported_by_the_error_alone(self, caplog):
        outage = Waiting()
        outage.goes_on("first", "looking up topics", time.monotonic() - 1, None)
        outage.given_up("first")
        outage.over("first")
        assert len(caplog.records) == 1


class TestInterruption:
    def test_ctrl_c_ends_what_waits_for_brokers_in_several_threads(self, kafka, sink):
        """The threads of an executor are waited for, by the process that asked and at the end of the process."""
        transactions = Transactions(sink.cluster())
        transactions.describe(["a"])
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored by what it runs alongside
        main = threading.main_thread().ident
        try:
            with away(kafka):
                threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
                started_at = time.monotonic()
                with pytest.raises(KeyboardInterrupt):
                    transactions.describe(["a", "b"])
                assert time.monotonic() - started_at < 5
                names = lambda: {thread.name for thread in threading.enumerate()}  # noqa: E731
                wait_for(lambda: "headrace-transactions" not in names(), "they try on though no process waits for them")
        finally:
            signal.signal(signal.SIGINT, before)

    def test_the_error_of_the_first_item_is_raised_when_all_are_done(self):
        done = []

        def ask(item):
            if item == 1:
                raise ValueError("1")
            done.append(item)

        with pytest.raises(ValueError, match="1"):
            in_parallel(ask, range(40))
        assert sorted(done) == [0, *range(2, 40)]

    def test_an_error_that_waiting_does_not_mend_is_reported_though_others_wait(self):
        """It was raised when the outage of the others was over."""
        runner = Retries(ClientConfig(bootstrap="nowhere:1", retry_backoff_ms=0), lambda: Contact.ANSWERED)
        waits = threading.Event()

        def away():
            waits.set()
            raise RetriableError("not now")

        def ask(item):
            if item == 0:
                return runner.run("trying", away)
            assert waits.wait(LONGEST_S)
            raise StateError("never")

        with pytest.raises(StateError, match="never"):
            ended(lambda: in_parallel(ask, [0, 1]))

    def test_nothing_is_tried_again_once_it_is_enough(self):
        runner, tries = Retries(ClientConfig(bootstrap="nowhere:1", retry_backoff_ms=0), lambda: Contact.ANSWERED), []

        def fail():
            tries.append(None)
            raise RetriableError("not now")

        with giving_up_when(lambda: len(tries) == 3), pytest.raises(RetriableError, match="not now"):
            runner.run("trying", fail)
        assert len(tries) == 3

    def test_a_transaction_that_is_being_ended_is_asked_for_sooner_than_a_broker_that_is_away(self, monkeypatch):
        """Each takeover of an id with something open comes upon one: 20 ms and more, as Java's client, and not 100."""
        runner, pauses = Retries(ClientConfig(bootstrap="nowhere:1"), lambda: Contact.ANSWERED), []
        monkeypatch.setattr(runner, "_pause", pauses.append)
        monkeypatch.setattr(retries.random, "uniform", lambda *_: 1.0)
        failures = [*[broker_error(ErrorCode.CONCURRENT_TRANSACTIONS, "here")] * 7, RetriableError("away")]

        def ask():
            if failures:
                raise failures.pop(0)
            return "done"

        assert (runner.run("trying", ask), pauses) == ("done", [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0])
        runner.back_off(1)
        assert pauses[-1] == 0.1
