"""One Fetch of one partition, for those who look at the log and do not read it: lists, outcomes, dumps."""

from __future__ import annotations

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import broker_error
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.client.wire.protocol import FetchRequest
from headrace.connectors.kafka.format.fetch_protocol import FetchAnswer, PartitionAnswer

__all__ = ["fetch_once"]

_NONE, _OUT_OF_RANGE = 0, 1
_FETCH_BYTES = 8 * 1024 * 1024
_NO_TOPIC_IDS = 12


def fetch_once(cluster: KafkaCluster, topic: str, partition: int, offset: int, isolation: Isolation) -> PartitionAnswer:
    """One partition's answer to one Fetch from its leader at once; errors that pass are retried.

    `error` is 0 or OFFSET_OUT_OF_RANGE (1). Raises BrokerError for others, UnknownTopicError, DeadlineExceededError.
    """
    where = f"reading {topic}-{partition} at offset {offset}"

    def ask() -> PartitionAnswer:
        leader = cluster.leader(topic, partition)
        request = _request(cluster, topic, partition, offset, isolation)
        answer: FetchAnswer = cluster.call(leader.broker, request)
        code = answer.error or answer.partitions[0].error
        if code not in (_NONE, _OUT_OF_RANGE):
            cluster.invalidate(topic)
            raise broker_error(code, where)
        return answer.partitions[0]

    return cluster.retrying(where, ask)


def _request(cluster: KafkaCluster, topic: str, partition: int, offset: int, isolation: Isolation) -> FetchRequest:
    topic_id = cluster.topic_id(topic)
    part = FetchRequest.FetchTopic.FetchPartition(
        partition=partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=_FETCH_BYTES,
    )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_FETCH_BYTES,
        isolation_level=1 if isolation is Isolation.READ_COMMITTED else 0,
        session_id=0,
        session_epoch=-1,
        rack_id="",
        topics=[FetchRequest.FetchTopic(topic=topic, topic_id=topic_id, partitions=[part])],
        forgotten_topics_data=[],
        min_version=4,
        max_version=_NO_TOPIC_IDS if topic_id is None else None,
    )
