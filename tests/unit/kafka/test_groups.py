"""Offsets of groups, as a source commits them: by the ids of topics, and not waiting where later ones will be tried."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest

from headrace.connectors.kafka.client import groups
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.enumerator.errors import RetriableError
from headrace.testing.fake_kafka import FakeKafka, Refuse


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        cluster.create_topic("t", partitions=2)
        yield cluster


@pytest.fixture
def client(kafka):
    with KafkaCluster(ClientConfig(bootstrap=kafka.bootstrap, retry_backoff_ms=20, retry_backoff_max_ms=20)) as cluster:
        yield cluster


def test_a_position_of_brokers_without_ids_is_committed_for_the_topic_of_its_name(kafka, client):
    own = client.topic_id("t")
    offsets = {(None, "t", 0): CommittedOffset(3), (own, "t", 1): CommittedOffset(4), (None, "gone", 0): CommittedOffset(5)}
    client.commit_offsets_by_id("g", offsets)
    assert kafka.committed("g") == {("t", 0): 3, ("t", 1): 4}
    client.commit_offsets_by_id("g", {(uuid4(), "t", 0): CommittedOffset(9)})
    assert kafka.committed("g") == {("t", 0): 3, ("t", 1): 4}


def test_while_the_coordinator_is_away_positions_are_tried_for_some_time_and_later_ones_once(kafka, client, monkeypatch):
    monkeypatch.setattr(groups, "_COMMIT_S", 0.3)
    own = client.topic_id("t")
    away = kafka.fault("FindCoordinator", Refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE), times=None)

    def commit(offset: int) -> None:
        client.commit_offsets_by_id("g", {(own, "t", 0): CommittedOffset(offset)})

    started = time.monotonic()
    with pytest.raises(RetriableError, match="COORDINATOR_NOT_AVAILABLE"):
        commit(1)
    assert 0.3 <= time.monotonic() - started < 20
    tried = away.fired
    assert tried > 1
    with pytest.raises(RetriableError, match="COORDINATOR_NOT_AVAILABLE"):
        commit(2)
    assert away.fired == tried + 1
    away.stop()
    commit(3)
    assert kafka.committed("g") == {("t", 0): 3}
    kafka.fault("OffsetCommit", Refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), times=2)
    commit(4)  # which is tried for some time again
    assert kafka.committed("g") == {("t", 0): 4}
