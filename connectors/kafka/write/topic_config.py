"""What a topic's settings mean to who writes to it."""

from __future__ import annotations

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import UnknownTopicError, broker_error
from headrace.connectors.kafka.client.topology import TopicPartition
from headrace.connectors.kafka.client.wire.protocol import DescribeConfigsRequest

_TOPIC_RESOURCE = 2
_LEAST = "min.insync.replicas"


def topic_setting(cluster: KafkaCluster, topic: str, name: str) -> str | None:
    """The value that a topic's setting has, also by default; None without the right to DescribeConfigs. One try.

    Raises UnknownTopicError, and BrokerError.
    """
    resource_class = DescribeConfigsRequest.DescribeConfigsResource
    resource = resource_class(resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=[name])
    (answer,) = cluster.call_any(DescribeConfigsRequest(resources=[resource])).results
    if answer.error_code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
        return None
    if answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopicError(frozenset({topic}))
    if answer.error_code != ErrorCode.NONE:
        raise broker_error(answer.error_code, f"looking at the settings of topic {topic!r}")
    return next((str(config.value) for config in answer.configs if config.name == name), None)


def replicas_in_sync(cluster: KafkaCluster, key: TopicPartition) -> str:
    """How many replicas have to be in sync for a write, and are, and what to do: in words; nothing where one may not ask.

    For who is answered NOT_ENOUGH_REPLICAS, which is not proof of a shortage: so answers also a leader that cannot ask the
    transaction's coordinator. Brokers before Kafka 3.7 take `min.insync.replicas` by its word, later ones no more of it than a
    partition has replicas.
    """
    topic, partition = key
    least = topic_setting(cluster, topic, _LEAST)
    found = cluster.topics([topic])[topic].partitions.get(partition)
    if least is None or found is None:
        return ""
    there, in_sync = len(found.replicas), len(found.isr)
    said = f"{topic}-{partition} has {there} replicas, {in_sync} of them in sync, and {_LEAST}={least}"
    if int(least) > there:
        return (
            f"{said}: brokers before Kafka 3.7 acknowledge no such write until {_LEAST} of the topic is lowered, or it has "
            "more replicas; later ones do"
        )
    if in_sync < int(least):
        return f"{said}: start the brokers of the others, or lower {_LEAST} of the topic"
    return said
