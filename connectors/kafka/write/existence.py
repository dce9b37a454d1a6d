"""Whether a topic is there: one broker that does not know it proves nothing, as each learns of topics for itself."""

from __future__ import annotations

from collections.abc import Callable

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.topology import TopicMetadata

__all__ = ["find_topic"]

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
