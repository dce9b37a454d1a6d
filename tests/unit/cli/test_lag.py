"""`headrace lag`: the numbers of a group, from a cluster's answers."""

from __future__ import annotations

import pytest

from headrace.cli.lag import PartitionLag, lag_of, tables
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.connectors.kafka.client.offsets import OffsetAnswer
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.client.topology import PartitionMetadata, TopicMetadata
from headrace.enumerator.errors import StateError


class Answers:
    """A cluster with one topic `t` of three partitions; of `gone` only a group's offset is left."""

    def __init__(self, committed):
        self.committed = committed

    def topics(self, names):
        return {name: self.find_topics([name])[name] for name in names}

    def find_topics(self, names):
        there = TopicMetadata("t", None, {number: PartitionMetadata(1, 0) for number in range(3)})
        return {name: there if name == "t" else None for name in names}

    def committed_offsets(self, group, partitions):
        return self.committed if partitions is None else {tp: self.committed.get(tp) for tp in partitions}

    def list_offsets(self, positions, isolation):
        assert all(topic == "t" for topic, _ in positions)
        return {tp: OffsetAnswer(100 if isolation is Isolation.READ_COMMITTED else 130) for tp in positions}


COMMITTED = {("t", 1): CommittedOffset(110), ("t", 0): CommittedOffset(40), ("gone", 0): CommittedOffset(5)}


def test_every_partition_that_the_group_has_committed():
    lags = lag_of(Answers(COMMITTED), "g", ())
    gone = PartitionLag("gone", 0, 5, None, None)
    assert lags == [gone, PartitionLag("t", 0, 40, 100, 130), PartitionLag("t", 1, 110, 100, 130)]
    assert [item.lag for item in lags] == [None, 60, 0]
    assert sum(item.lag or 0 for item in lags) == 60
    assert tables("g", lags)[1].rows == [(60, 2, 1)]


def test_every_partition_of_the_topics_named():
    lags = lag_of(Answers(COMMITTED), "g", ["t"])
    assert [(item.partition, item.committed, item.lag) for item in lags] == [(0, 40, 60), (1, 110, 0), (2, None, None)]


@pytest.mark.parametrize("topics", [(), ("t",)])
def test_a_group_that_has_committed_nothing_is_an_error(topics):
    with pytest.raises(StateError, match="committed nothing"):
        lag_of(Answers({}), "nobody", topics)
