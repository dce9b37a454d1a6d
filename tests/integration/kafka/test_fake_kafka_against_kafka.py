"""The fake broker is held to the real one: the same requests to both, and the answers are the same."""

import uuid
from typing import Any

import pytest

from headrace.connectors.kafka.format.record_batch import stored_batches
from headrace.testing.fake_kafka import FakeKafka
from headrace.testing.servers.kafka import start_broker
from tests.helpers.kafka_scenarios import SCENARIOS, Facts, Rig, played, recorded
from tests.helpers.raw_kafka import RawKafka, batch

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]
LEADER, FOLLOWER, STRANGER = 1, 2, 3
_NO_ID = uuid.UUID(int=0)


def leaders_that_move(cluster: Any) -> Facts:
    with RawKafka(cluster.address(STRANGER)) as raw, RawKafka(cluster.address(FOLLOWER)) as follower:
        rig = Rig(raw)
        topic = rig.name("led")
        _create(rig, topic)
        with RawKafka(cluster.address(LEADER)) as leader:
            rig.until(lambda: _write(leader, topic) == 0)
            assert _write(leader, topic) == 0
            facts: Facts = [["leader", *_asked(rig, leader, topic, 0)]]
            rig.until(lambda: _fetched(follower, topic, 0).high_watermark == 2)
        facts += [["follower", *_asked(rig, follower, topic, 0)], ["stranger", *_asked(rig, raw, topic, 0)]]
        facts.append(["metadata", _described(raw, topic, 0)])
        cluster.stop(LEADER)
        rig.until(lambda: _partition(raw, topic).leader_id == FOLLOWER and _partition(follower, topic).leader_id == FOLLOWER)
        rig.until(lambda: _partition(raw, topic).isr_nodes == [FOLLOWER])
        epoch = _partition(raw, topic).leader_epoch
        rig.until(lambda: _write(follower, topic) == 0)
        facts += [["new leader", *_asked(rig, follower, topic, epoch)], ["stranger", *_asked(rig, raw, topic, epoch)]]
        facts.append(["metadata", epoch > 0, _described(raw, topic, epoch)])
        cluster.restart(LEADER)
        rig.until(lambda: sorted(_partition(raw, topic).isr_nodes) == [LEADER, FOLLOWER])
        with RawKafka(cluster.address(LEADER)) as back:
            rig.until(lambda: _fetched(back, topic, 0).high_watermark == 3)
            facts.append(["back again", *_asked(rig, back, topic, _partition(raw, topic).leader_epoch)])
    return facts


def _create(rig: Rig, topic: str) -> None:
    place = [{"partition_index": 0, "broker_ids": [LEADER, FOLLOWER]}]
    lasting = [{"name": "retention.ms", "value": "-1"}, {"name": "segment.ms", "value": str((1 << 63) - 1)}]
    wanted = {"name": topic, "num_partitions": -1, "replication_factor": -1, "assignments": place, "configs": lasting}
    answer = rig.raw("CreateTopics", 7, topics=[wanted], timeout_ms=10_000, validate_only=False)
    assert answer.topics[0].error_code == 0, answer


def _write(raw: RawKafka, topic: str) -> int:
    parts = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"x")}]}]
    answer = raw("Produce", 9, acks=-1, timeout_ms=5000, transactional_id=None, topic_data=parts)
    return int(answer.responses[0].partition_responses[0].error_code)


def _fetched(raw: RawKafka, topic: str, offset: int, version: int = 12, **fields: int) -> Any:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **fields}
    whole = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20}
    return raw("Fetch", version, topics=[{"topic": topic, "partitions": [part]}], **whole).responses[0].partitions[0]


def _partition(raw: RawKafka, topic: str) -> Any:
    return raw("Metadata", 12, topics=[{"name": topic, "topic_id": _NO_ID}]).topics[0].partitions[0]


def _described(raw: RawKafka, topic: str, epoch: int) -> Any:
    found = _partition(raw, topic)
    return [
        found.error_code, found.leader_id, found.leader_epoch - epoch, found.replica_nodes, sorted(found.isr_nodes),
        found.offline_replicas,
    ]  # fmt: skip


def _asked(rig: Rig, raw: RawKafka, topic: str, epoch: int) -> Facts:
    """Everything about the partition, at the current epoch, the ones alongside it, and none."""
    facts: Facts = []
    for known in (-1, epoch - 1 if epoch else 0, epoch, epoch + 1):
        answer = _fetched(raw, topic, 0, current_leader_epoch=known)
        facts.append(["fetch", known - epoch, answer.error_code, answer.high_watermark, _epochs(answer, epoch)])
        parts = [{"partition": 0, "current_leader_epoch": known, "leader_epoch": 0}]
        answer = raw("OffsetForLeaderEpoch", 4, replica_id=-1, topics=[{"topic": topic, "partitions": parts}])
        found = answer.topics[0].partitions[0]
        facts.append(["end of epoch 0", known - epoch, found.error_code, found.leader_epoch, found.end_offset])
        wanted = [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": known}]
        answer = raw("ListOffsets", 6, isolation_level=0, topics=[{"name": topic, "partitions": wanted}])
        listed = answer.topics[0].partitions[0]
        facts.append(["latest", known - epoch, listed.error_code, listed.offset])
    facts.append(["old fetch", _fetched(raw, topic, 0, version=10).error_code])
    facts.append(["diverging", rig.facts(_fetched(raw, topic, 2, last_fetched_epoch=0))["diverging_epoch"]])
    parts = [{"name": topic, "partition_data": [{"index": 0, "records": b"broken"}]}]
    refused = raw("Produce", 9, acks=-1, timeout_ms=5000, transactional_id=None, topic_data=parts)
    facts.append(["broken write", refused.responses[0].partition_responses[0].error_code])
    return facts


def _epochs(answer: Any, epoch: int) -> list[Any]:
    found = stored_batches(memoryview(answer.records or b""))
    return [[each.base_offset, "current" if each.leader_epoch == epoch else each.leader_epoch] for each in found]


@pytest.fixture(scope="module")
def real():
    """One of its own: scenarios move the cluster's transaction.version."""
    config = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100", "group.initial.rebalance.delay.ms": "0"}
    with start_broker(config=config) as cluster:
        yield cluster.bootstrap


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_answer_the_same(real, name):
    expected = played(name, real)
    with FakeKafka() as kafka:
        assert played(name, kafka.bootstrap) == expected
    assert recorded()[name] == expected, "record again what the real broker says: tests/helpers/kafka_scenarios.py"


class Fake:
    """The fake cluster, by the words of the real one."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.address, self.stop, self.restart = kafka.address, kafka.stop_broker, kafka.start_broker


def test_both_answer_the_same_while_a_leader_goes_and_comes_back(cluster3):
    expected = leaders_that_move(cluster3)
    with FakeKafka(brokers=3) as kafka:
        assert leaders_that_move(Fake(kafka)) == expected
