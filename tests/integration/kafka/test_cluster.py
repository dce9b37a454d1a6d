"""The control plane against real brokers."""

import os
import pickle
import re
import time

import pytest
from confluent_kafka import Consumer

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.connectors.kafka.client.errors import GroupInUseError, UnknownTopicError
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.connectors.kafka.client.offsets import OffsetAnswer
from headrace.connectors.kafka.client.positions import Earliest, Latest, Timestamp
from headrace.connectors.kafka.client.properties import ClientConfig, Isolation
from headrace.connectors.kafka.read.discovery import java_pattern
from headrace.enumerator.errors import DeadlineExceededError, RetriableError, UsageError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.kafka import BrokerCluster, create_topic, delete_topic
from tests.helpers.kafka_rig import transactional
from tests.helpers.kafka_tools import created, produce
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.broker


@pytest.fixture
def kafka(broker):
    with KafkaCluster(ClientConfig(bootstrap=broker.bootstrap)) as cluster:
        yield cluster


def test_nothing_is_contacted_before_it_is_used():
    started = time.monotonic()
    with KafkaCluster(ClientConfig(bootstrap="127.0.0.1:1")):
        pass
    assert time.monotonic() - started < 1


def test_topics_by_name(broker, kafka, topic):
    name = created(broker.bootstrap, topic, partitions=3)
    found = kafka.topics([name])
    assert list(found) == [name]
    assert list(found[name].partitions) == [0, 1, 2]
    assert found[name].topic_id is not None
    assert {p.leader for p in found[name].partitions.values()} <= set(broker.nodes)
    assert not found[name].internal


def test_topics_by_pattern_match_the_whole_name_and_no_internal_topic(broker, kafka, topic):
    name = created(broker.bootstrap, topic)
    create_topic(broker.bootstrap, name + "-more")
    kafka.commit_offsets(topic(), {(name, 0): CommittedOffset(0)})  # so that __consumer_offsets exists
    assert set(kafka.topics(re.compile(re.escape(name)))) == {name}
    assert set(kafka.topics(java_pattern(rf"\Q{name}\E.*"))) == {name, name + "-more"}
    everything = kafka.topics(re.compile(".*"))
    assert name in everything
    assert "__consumer_offsets" not in everything
    assert kafka.topics(["__consumer_offsets"])["__consumer_offsets"].internal


def test_a_pattern_that_python_cannot_take_is_refused():
    with pytest.raises(UsageError, match="not a regular expression"):
        java_pattern("(")


def test_an_unknown_topic_is_reported_after_a_grace(broker, kafka, topic):
    name = created(broker.bootstrap, topic)
    assert kafka.find_topics([name, "no-such"])["no-such"] is None
    started = time.monotonic()
    with pytest.raises(UnknownTopicError, match="'no-such'") as caught:
        kafka.topics([name, "no-such"])
    assert caught.value.topics == {"no-such"}
    assert 2.5 < time.monotonic() - started < 10
    assert "no-such" not in kafka.topics(re.compile(".*")), "asking must not create the topic"


def test_offsets(broker, kafka, topic):
    name = created(broker.bootstrap, topic, partitions=2)
    tp, other = (name, 0), (name, 1)
    assert kafka.list_offsets({tp: Earliest(), other: Latest()}) == dict.fromkeys((tp, other), OffsetAnswer(0, None, 0))
    before = int(time.time() * 1000)
    produce(broker.bootstrap, name, {0: [b"a", b"b", b"c"]})
    assert kafka.list_offsets({tp: Latest(), other: Latest()})[tp].offset == 3
    assert kafka.list_offsets({tp: Earliest()})[tp].offset == 0
    first = kafka.list_offsets({tp: Timestamp(before)})[tp]
    assert first.offset == 0
    assert first.timestamp is not None
    assert first.timestamp >= before


def test_a_timestamp_that_nothing_matches_answers_none_and_not_minus_one(broker, kafka, topic):
    name = created(broker.bootstrap, topic)
    produce(broker.bootstrap, name, {0: [b"a"]})
    late = Timestamp(int(time.time() * 1000) + 3_600_000)
    assert kafka.list_offsets({(name, 0): late}) == {(name, 0): OffsetAnswer(None)}


def test_latest_under_read_committed_is_the_last_stable_offset(broker, kafka, topic):
    name = created(broker.bootstrap, topic)
    producer = transactional(broker.bootstrap, topic()).producer
    producer.begin_transaction()
    producer.produce(name, b"open", partition=0)
    producer.flush(30)
    tp = (name, 0)
    assert kafka.list_offsets({tp: Latest()}, Isolation.READ_COMMITTED)[tp].offset == 0
    assert kafka.list_offsets({tp: Latest()}, Isolation.READ_UNCOMMITTED)[tp].offset == 1
    producer.commit_transaction(30)
    eventually(lambda: kafka.list_offsets({tp: Latest()}, Isolation.READ_COMMITTED)[tp].offset == 2, "no stable marker")


def test_where_a_leader_epoch_ends(broker, kafka, topic):
    """Of a single broker, which leads in epoch 0 for ever; what leaders answer after a truncation: test_truncation.py."""
    name = created(broker.bootstrap, topic, partitions=2)
    produce(broker.bootstrap, name, {0: [b"a", b"b", b"c"]})
    epoch = kafka.list_offsets({(name, 0): Latest()})[name, 0].leader_epoch
    assert epoch is not None
    assert kafka.epoch_ends({(name, 0): epoch, (name, 1): epoch}) == {(name, 0): 3, (name, 1): 0}
    assert kafka.epoch_ends({(name, 0): epoch + 7}) == {(name, 0): None}
    assert kafka.epoch_ends({}) == {}


def test_every_broker_says_what_it_knows(broker, kafka, topic):
    name = created(broker.bootstrap, topic)
    kafka.topics([name])
    answers = kafka.find_topics_everywhere([name, "no-such-topic"])
    assert len(answers) == len(kafka.brokers())
    assert all(answer["no-such-topic"] is None and answer[name].partitions.keys() == {0} for answer in answers)


def test_group_offsets(broker, kafka, topic):
    name, group = created(broker.bootstrap, topic, partitions=2), topic()
    assert kafka.committed_offsets(group, [(name, 0), (name, 1)]) == {(name, 0): None, (name, 1): None}
    kafka.commit_offsets(group, {(name, 0): CommittedOffset(0)})
    kafka.commit_offsets(group, {(name, 1): CommittedOffset(7, leader_epoch=0)})
    committed = kafka.committed_offsets(group, [(name, 0), (name, 1)])
    assert committed == {(name, 0): CommittedOffset(0), (name, 1): CommittedOffset(7, leader_epoch=0)}
    kafka.commit_offsets(group, {})


def test_offsets_of_a_group_with_live_members_cannot_be_committed_from_outside(broker, kafka, topic):
    name, group = created(broker.bootstrap, topic), topic()
    produce(broker.bootstrap, name, {0: [b"a"]})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([name])
        eventually(lambda: consumer.poll(0.2) is not None, "the consumer never joined")
        with pytest.raises(GroupInUseError, match="live members"):
            kafka.commit_offsets(group, {(name, 0): CommittedOffset(1)})
    finally:
        consumer.close()


def test_what_travels_is_the_configuration(broker, kafka, topic):
    name = created(broker.bootstrap, topic)
    with pickle.loads(pickle.dumps(kafka)) as copy:
        assert copy.config == kafka.config
        assert set(copy.topics([name])) == {name}


def test_a_topic_made_again_has_another_id(broker, kafka, topic):
    name = created(broker.bootstrap, topic)
    first = kafka.topics([name])[name].topic_id
    delete_topic(broker.bootstrap, name)
    assert kafka.find_topics([name])[name] is None
    create_topic(broker.bootstrap, name)
    assert kafka.topics([name])[name].topic_id not in (None, first)


def test_when_no_broker_answers_the_error_says_what_was_tried_and_why():
    config = ClientConfig(bootstrap="127.0.0.1:1", default_api_timeout_ms=1000)
    tried = pytest.raises(DeadlineExceededError, match=r"looking up topics.*127\.0\.0\.1:1.*refused")
    with KafkaCluster(config) as kafka, tried as caught:
        kafka.topics(["t"])
    assert isinstance(caught.value.__cause__, RetriableError)


def test_a_forked_child_connects_again_and_leaves_its_parents_connections_alone(broker, kafka, topic):
    name = created(broker.bootstrap, topic)
    kafka.topics([name])
    (parents,) = [c for idle in kafka._pool._idle.values() for c in idle]
    child = os.fork()
    if child == 0:
        try:
            fine = kafka.topics([name])[name].name == name and not parents.usable
            parents.close()
            os._exit(0 if fine else 1)
        except BaseException:  # noqa: BLE001 - a forked test process must not continue running tests
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert parents.usable
    assert parents.is_quiet(), "the child closed the connection under its parent"
    kafka.topics([name])


def test_offsets_and_groups_survive_the_death_of_leaders(three: BrokerCluster, topic):
    name, group = created(three.bootstrap, topic, partitions=6, replication=3), topic()
    tps = [(name, number) for number in range(6)]
    produce(three.bootstrap, name, {number: [b"x"] * (number + 1) for number in range(6)})
    with KafkaCluster(ClientConfig(bootstrap=three.bootstrap)) as kafka:
        before = kafka.list_offsets(dict.fromkeys(tps, Latest()))
        kafka.commit_offsets(group, dict.fromkeys(tps, CommittedOffset(1)))
        leaders = {tp: kafka.leader(*tp).broker.node_id for tp in tps}
        victim = kafka.coordinator(CoordinatorKind.GROUP, group).node_id
        three.kill(victim)
        assert not three.is_running(victim)
        assert victim in leaders.values()
        after = kafka.list_offsets(dict.fromkeys(tps, Latest()))
        assert {tp: a.offset for tp, a in after.items()} == {tp: b.offset for tp, b in before.items()}
        assert victim not in {kafka.leader(*tp).broker.node_id for tp in tps}

        def check_committed() -> None:
            committed = kafka.committed_offsets(group, tps)
            if {tp: found and found.offset for tp, found in committed.items()} != dict.fromkeys(tps, 1):
                raise RetriableError(f"{committed}")

        # A new coordinator shows what is below its high watermark, which it learns from the others.
        wait_until(check_committed, "what was committed")
        kafka.commit_offsets(group, dict.fromkeys(tps, CommittedOffset(2)))
