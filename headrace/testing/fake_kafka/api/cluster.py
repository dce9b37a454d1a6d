"""The cluster: brokers, metadata, coordinators, features."""

from __future__ import annotations

from functools import partial

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Call, serves
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError, outcome_of
from headrace.testing.fake_kafka.protocol import Message, admin, metadata
from headrace.testing.fake_kafka.state.brokers import HOST
from headrace.testing.fake_kafka.state.topics import NO_LEADER, Partition, Topic, check_name


def brokers_as(kind: Message, call: Call) -> list[Message]:
    """The brokers as nodes of an answer: of Metadata, or with the news of another leader, where to find it (KIP-951)."""
    brokers = call.state.brokers_at(call.broker)
    return [kind(node_id=broker.id, host=HOST, port=broker.port, rack=None) for broker in brokers]


_TopicAnswer = metadata.MetadataResponse.MetadataResponseTopic
_PartitionAnswer = _TopicAnswer.MetadataResponsePartition
_FIRST_WITH_EMPTY = 1  # before it, an empty list asks for all topics


@serves(metadata.MetadataResponse, 0, 13)
def _metadata(call: Call) -> Message:
    """KIP-4, KIP-112 (offline replicas), KIP-320 (epochs), KIP-516 (topic ids)."""
    request = call.request
    wants_all = request.topics is None or (call.version < _FIRST_WITH_EMPTY and not request.topics)
    topics = [_one_of_all(call, topic) for topic in call.state.topics_at(call.broker)] if wants_all else []
    topics += [_wanted(call, item) for item in (request.topics or ())]
    return metadata.MetadataResponse(
        brokers=brokers_as(metadata.MetadataResponse.MetadataResponseBroker, call),
        cluster_id=call.state.id,
        controller_id=call.state.controller,
        topics=topics,
        error_code=ErrorCode.NONE,
    )


def _one_of_all(call: Call, topic: Topic) -> Message:
    try:
        call.admit(topic.name)
    except RefusedError as error:
        return _refused(topic.name, topic.id, error.code)
    return _described(call, topic)


def _wanted(call: Call, item: Message) -> Message:
    try:
        call.admit(item.name)
        by_id = item.topic_id if item.topic_id is not None and item.topic_id.int else None
        if by_id is None:
            check_name(item.name)
        return _described(call, call.topic(item.name, by_id))
    except RefusedError as error:
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return _created(call, item)
        return _refused(item.name, item.topic_id, error.code)


def _created(call: Call, item: Message) -> Message:
    """KIP-487: a client may ask for the topics that it writes to, where the broker's auto.create.topics.enable allows."""
    state = call.state
    if not call.request.allow_auto_topic_creation or state.config["auto.create.topics.enable"] != "true":
        return _refused(item.name, item.topic_id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        count, replicas = int(state.config["num.partitions"]), int(state.config["default.replication.factor"])
        partitions = state.place(item.name, 0, count, replicas)
        return _described(call, state.create_topic(Topic(item.name, partitions, {})))
    except RefusedError as error:
        return _refused(item.name, item.topic_id, error.code)


def _refused(name: str, topic_id: Message, code: int) -> Message:
    return _TopicAnswer(error_code=code, name=name, topic_id=topic_id, is_internal=False, partitions=[])


def _described(call: Call, topic: Topic) -> Message:
    return _TopicAnswer(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[_partition(call, partition) for partition in topic.partitions],
    )


def _partition(call: Call, partition: Partition) -> Message:
    present = {broker.id for broker in call.state.brokers_at(call.broker)}
    lost = partition.leader == NO_LEADER
    return _PartitionAnswer(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if lost else ErrorCode.NONE,
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=[replica for replica in partition.replicas if replica not in present],
    )


@serves(admin.DescribeClusterResponse, 0, 2)
def _describe_cluster(call: Call) -> Message:
    """KIP-700."""
    call.admit()
    return admin.DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=call.state.id,
        controller_id=call.state.controller,
        brokers=[
            admin.DescribeClusterResponse.DescribeClusterBroker(broker_id=broker.id, host=HOST, port=broker.port, rack=None)
            for broker in call.state.brokers_at(call.broker)
        ],
    )


_MANY = 4
_KEY_TYPES = frozenset({0, 1})  # group, transaction


@serves(metadata.FindCoordinatorResponse, 0, 6)
def _find_coordinator(call: Call) -> Message:
    """KIP-98 (of transactional ids), KIP-699 (many keys at once)."""
    kind = metadata.FindCoordinatorResponse
    if call.version < _MANY:
        found = _coordinator(call, call.request.key)
        return kind(**{name: found[name] for name in ("error_code", "node_id", "host", "port")})
    return kind(coordinators=[kind.Coordinator(key=key, **_coordinator(call, key)) for key in call.request.coordinator_keys])


def _coordinator(call: Call, key: str) -> dict[str, object]:
    try:
        call.admit()
        if call.request.key_type not in _KEY_TYPES:
            raise RefusedError(ErrorCode.INVALID_REQUEST)
        if call.broker.isolation is not None:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        broker = call.state.coordinator(CoordinatorKind(call.request.key_type), key)
    except RefusedError as error:
        return {"node_id": -1, "host": "", "port": -1, "error_code": error.code, "error_message": error.message}
    return {"node_id": broker.id, "host": HOST, "port": broker.port, "error_code": ErrorCode.NONE, "error_message": ""}


_ONE_ERROR_FOR_ALL = 2


@serves(admin.UpdateFeaturesResponse, 0, 2)
def _update_features(call: Call) -> Message:
    """All or none from version 2 on. KIP-584, KIP-1022; moves `transaction.version` between the versions of the protocol."""
    call.admit()
    results = []
    for item in call.request.feature_updates:
        if call.version >= _ONE_ERROR_FOR_ALL:
            _update(call, item)
            continue
        outcome = outcome_of(partial(_update, call, item))
        results.append(admin.UpdateFeaturesResponse.UpdatableFeatureResult(feature=item.feature, **outcome))
    return admin.UpdateFeaturesResponse(error_code=ErrorCode.NONE, results=results)


def _update(call: Call, update: Message) -> None:
    if not call.request.validate_only:
        call.state.update_feature(update.feature, update.max_version_level)
