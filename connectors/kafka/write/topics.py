"""Whether a topic is there: one broker that does not know it proves nothing, as each learns of topics for itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import UnknownPartitionError, UnknownTopicError
from headrace.connectors.kafka.client.topology import TopicMetadata, TopicPartition

_LOOKS = 3


def find_topic(
    cluster: KafkaCluster, name: str, is_it: Callable[[TopicMetadata], bool] = lambda _: True
) -> TopicMetadata | None:
    """The topic as some broker knows it, if `is_it`; None only after several looks, each but the first at every broker."""
    found = cluster.find_topics([name])[name]
    for attempt in range(1, _LOOKS):
        if found is not None and is_it(found):
            return found
        cluster.back_off(attempt)
        answers = cluster.retrying(f"looking for topic {name!r}", lambda: cluster.find_topics_everywhere([name]))
        there = [answer[name] for answer in answers]
        found = next((topic for topic in there if topic is not None and is_it(topic)), None)
    return found


def refuse_deleted(cluster: KafkaCluster, partitions: Iterable[TopicPartition]) -> None:
    """Raise UnknownTopicError for partitions that no broker knows: they were deleted, and to wait for them has no end."""
    by_topic: dict[str, set[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, set()).add(partition)
    for topic, wanted in by_topic.items():
        missing: set[int] = set()
        if find_topic(cluster, topic, functools.partial(_has, wanted, missing)) is None:
            raise UnknownPartitionError(topic, min(missing)) if missing else UnknownTopicError({topic})


def _has(partitions: set[int], missing: set[int], topic: TopicMetadata) -> bool:
    """`missing`: where those that the topic does not have are noted."""
    missing |= partitions - topic.partitions.keys()
    return partitions <= topic.partitions.keys()
