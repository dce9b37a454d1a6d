"""Regression tests: what a client did not see taken for what is not there. Absence needs proof."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import uuid4

import pytest

from headrace.connectors.kafka.client import retries
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import ConnectionLostError, UnknownTopicError
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.retries import Retries
from headrace.connectors.kafka.client.topology import Broker, Leader
from headrace.connectors.kafka.format.fetch_protocol import PartitionAnswer
from headrace.connectors.kafka.read.fetch_plan import FetchFailed, FetchFrom, FetchPlan
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import DeadlineExceededError, OutageError, RetriableError
from headrace.kafka import Earliest, KafkaSource, Latest
from headrace.testing.fake_kafka import CutBefore, ErrorCode, FakeKafka, Refuse, Rewrite
from tests.helpers.kafka_rig import read_all


@pytest.fixture
def kafka():
    with FakeKafka(brokers=3) as cluster:
        cluster.create_topic("t")
        yield cluster


@pytest.fixture
def cluster(kafka):
    with KafkaCluster(ClientConfig(bootstrap=kafka.bootstrap, retry_backoff_ms=1, retry_backoff_max_ms=10)) as client:
        yield client


def source_of(kafka: FakeKafka, **fields) -> KafkaSource:
    properties = {"retry.backoff.ms": "1", "retry.backoff.max.ms": "10"}
    return KafkaSource(kafka.bootstrap, **({"topics": ["t"], "start": Earliest(), "properties": properties} | fields))


# --- discovery --------------------------------------------------------------------------------------------------------------
def test_one_of_three_brokers_does_not_know_a_topic_for_long_and_its_partition_is_not_missing(kafka):
    discovery = source_of(kafka).create_discovery()
    known = {split.split_id: split for split in discovery.initial().added}
    stale = kafka.fault("Metadata", Refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic="t"), broker=1, times=None)
    rounds = 0
    while stale.fired < 10:  # asked in random order, so that before this was fixed one in 81 rounds was wrong
        assert discovery.later(known).missing == frozenset()
        rounds += 1
    stale.stop()
    assert rounds > 1


def test_a_broker_that_cannot_be_asked_may_know_a_topic_that_the_others_do_not(kafka, caplog):
    discovery = source_of(kafka).create_discovery()
    known = {split.split_id: split for split in discovery.initial().added}
    unknown = [kafka.fault("Metadata", Refuse(3, topic="t"), broker=broker, times=None) for broker in (1, 2)]
    unknown[0].optional(), unknown[1].optional()
    about_t = lambda request: request.topics is not None and any(item.name == "t" for item in request.topics)  # noqa: E731
    away = kafka.fault("Metadata", CutBefore(), broker=3, when=about_t, times=None)
    assert discovery.later(known).missing == frozenset()
    assert away.fired
    assert "not known yet" in caplog.text


def test_what_no_broker_knows_is_missing(kafka):
    discovery = source_of(kafka).create_discovery()
    known = {split.split_id: split for split in discovery.initial().added}
    kafka.delete_topic("t")
    assert discovery.later(known).missing == known.keys()


def test_a_broker_that_names_no_live_broker_proves_nothing(kafka):
    source = source_of(kafka)
    nobody = kafka.fault("Metadata", Rewrite(lambda response: setattr(response, "brokers", [])))
    assert (source.retired([KafkaSplit("t", None, 0, 0)]), nobody.fired) == (frozenset(), 1)
    assert source.retired([KafkaSplit("u", None, 0, 0)]) == {"u-0@"}


def test_a_lost_connection_while_topic_ids_are_looked_up_is_tried_again(kafka):
    discovery = source_of(kafka).create_discovery()
    lost = kafka.fault("Metadata", CutBefore(), nth=3)  # of the first look at every broker
    assert (discovery.topic_ids([("t", 0), ("t", 1)]).keys(), lost.fired) == ({("t", 0)}, 1)


# --- metadata ---------------------------------------------------------------------------------------------------------------
def test_a_topic_that_is_just_being_created_is_waited_for_and_no_topic_of_no_partitions(kafka, cluster):
    kafka.append("t", b"a")
    creating = kafka.fault("Metadata", Refuse(ErrorCode.LEADER_NOT_AVAILABLE, topic="t"), times=3)
    assert (cluster.topics(["t"])["t"].partitions.keys(), creating.fired) == ({0}, 3)
    again = kafka.fault("Metadata", Refuse(ErrorCode.LEADER_NOT_AVAILABLE, topic="t"))
    assert [value for *_, value in read_all(source_of(kafka, stop=Latest()))] == [b"a"]
    assert again.fired == 1


def test_a_topic_that_is_just_being_created_does_not_fail_a_pattern(kafka):
    kafka.create_topic("u")
    discovery = source_of(kafka, topics=None, pattern="[tu]").create_discovery()
    creating = kafka.fault("Metadata", Refuse(ErrorCode.LEADER_NOT_AVAILABLE, topic="u"))
    assert [split.topic for split in discovery.initial().added] == ["t"]
    assert creating.fired == 1
    assert {split.topic for split in discovery.later({}).added} == {"t", "u"}


# --- the time that a topic is unknown ---------------------------------------------------------------------------------------
UNKNOWN = UnknownTopicError(frozenset({"t"}))


def run(monkeypatch, script: list[tuple[float, BaseException | str]]) -> str:
    """What `Retries` make of tries that take so long each and end so."""
    clock, tries = SimpleNamespace(now=0.0, monotonic=lambda: clock.now), iter(script)
    monkeypatch.setattr(retries, "time", clock)
    runner = Retries(ClientConfig(bootstrap="nowhere:1", retry_backoff_ms=0, retry_backoff_max_ms=0), None)

    def attempt() -> str:
        seconds, outcome = next(tries)
        clock.now += seconds
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return runner.run("looking", attempt)


def test_the_grace_of_an_unknown_topic_starts_with_the_first_answer_and_not_with_the_request(monkeypatch):
    assert run(monkeypatch, [(3.2, UNKNOWN), (0.1, "found")]) == "found"


def test_an_outage_between_two_answers_is_no_time_for_which_a_topic_was_unknown(monkeypatch):
    away = ConnectionLostError("no process is there")
    assert run(monkeypatch, [(0.1, UNKNOWN), (9.0, away), (0.1, UNKNOWN), (0.1, "found")]) == "found"
    with pytest.raises(UnknownTopicError):
        run(monkeypatch, [(0.1, UNKNOWN), (2.0, UNKNOWN), (2.0, UNKNOWN)])


def test_a_call_within_a_call_that_has_given_up_is_not_made_again(monkeypatch):
    """Else a wrong address is an error after twice the time, and the error is about what was not even asked."""
    monkeypatch.setattr(retries, "_LONGEST_CALL_S", 0.3)
    tried = []
    config = ClientConfig(bootstrap="127.0.0.1:1", retry_backoff_ms=20, retry_backoff_max_ms=20)
    gave_up = "^looking up topics: gave up after .* 127.0.0.1:1: no connection"
    with KafkaCluster(config) as cluster, pytest.raises(OutageError, match=gave_up):
        cluster.retrying("looking for what is behind it", lambda: (tried.append(1), cluster.topics(["t"])))
    assert len(tried) == 1


def test_a_fetched_topic_that_is_unknown_twice_with_an_outage_in_between_was_not_deleted():
    plan, source = FetchPlan(ClientConfig(bootstrap="a:1")), FetchFrom("t", 0, 7, topic_id=uuid4())
    plan.add(source)
    assert plan.lookup_failed(source, UNKNOWN, 0.0) is None
    for second in range(1, 30):
        assert plan.lookup_failed(source, RetriableError("t-0 has no leader at the moment"), float(second)) is None
    assert plan.lookup_failed(source, UNKNOWN, 30.0) is None
    assert plan.lookup_failed(source, UNKNOWN, 32.0) is None
    assert isinstance(plan.lookup_failed(source, UNKNOWN, 33.0), FetchFailed)


# --- answers that leave something out ---------------------------------------------------------------------------------------
def leave_out(response) -> None:
    response.topics = []


def test_a_partition_left_out_of_an_answer_about_leader_epochs_is_asked_for_again(kafka, cluster):
    kafka.append("t", b"a")
    silent = kafka.fault("OffsetForLeaderEpoch", Rewrite(leave_out))
    assert (cluster.epoch_ends({("t", 0): 0}), silent.fired) == ({("t", 0): 1}, 1)


def test_a_partition_that_is_always_left_out_is_said(kafka):
    kafka.fault("OffsetForLeaderEpoch", Rewrite(leave_out), times=None)
    config = ClientConfig(bootstrap=kafka.bootstrap, default_api_timeout_ms=50)
    with KafkaCluster(config) as client, pytest.raises(DeadlineExceededError, match="left 1 partitions out"):
        client.epoch_ends({("t", 0): 0})


# --- a follower that lags ---------------------------------------------------------------------------------------------------
def _answer(error: int = 0, preferred: int | None = None) -> PartitionAnswer:
    return PartitionAnswer("t", None, 0, error, 100, 100, 0, None, preferred, None, None, memoryview(b""))


def test_a_leader_and_a_follower_that_send_a_reader_to_each_other_are_asked_once_and_not_in_a_loop():
    leader, follower = Broker(1, "a", 1), Broker(2, "b", 1)
    plan, source = FetchPlan(ClientConfig(bootstrap="a:1")), FetchFrom("t", 0, 50)
    plan.add(source)
    plan.leader_found(source, Leader(leader, 1), None, 0.0)
    (asked,) = plan.take(leader, 0.0, 1 << 20)
    plan.landed(asked, _answer(preferred=2), follower, 0.0)
    (asked,) = plan.take(follower, 0.0, 1 << 20)
    plan.landed(asked, _answer(error=ErrorCode.OFFSET_OUT_OF_RANGE), None, 0.0)
    (asked,) = plan.take(leader, 0.0, 1 << 20)
    assert not asked.may_be_nearby  # the leader must answer by itself
    plan.landed(asked, _answer(), None, 0.5)
    (asked,) = plan.take(leader, 1.0, 1 << 20)
    assert asked.may_be_nearby
