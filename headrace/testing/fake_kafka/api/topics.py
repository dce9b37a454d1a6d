"""Topics: creation, deletion, leaders."""

from __future__ import annotations

from functools import partial

from headrace.testing.fake_kafka.calls import Call, serves
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError, outcome_of
from headrace.testing.fake_kafka.protocol import Message, admin
from headrace.testing.fake_kafka.state.configs import TOPIC_CONFIGS, check_topic_config, topic_setting
from headrace.testing.fake_kafka.state.topics import Partition, Topic, check_name, placed

_DEFAULT = -1
_OF_TOPIC, _OF_DEFAULTS = 1, 5  # DescribeConfigsResponse.ConfigSource


@serves(admin.CreateTopicsResponse, 2, 7)
def _create_topics(call: Call) -> Message:
    """KIP-4, KIP-525 (configs in the answer), KIP-516 (topic ids)."""
    return admin.CreateTopicsResponse(topics=[_created(call, item) for item in call.request.topics])


def _created(call: Call, item: Message) -> Message:
    kind = admin.CreateTopicsResponse.CreatableTopicResult
    try:
        call.admit(item.name)
        topic = _create(call, item)
    except RefusedError as error:
        return kind(name=item.name, error_code=error.code, error_message=error.message, configs=None)
    configs = [
        kind.CreatableTopicConfigs(
            name=name,
            value=topic_setting(name, topic.configs, call.state.config),
            config_source=_OF_TOPIC if name in topic.configs else _OF_DEFAULTS,
        )
        for name in TOPIC_CONFIGS
    ]
    return kind(
        name=topic.name,
        topic_id=topic.id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=configs,
    )


def _create(call: Call, item: Message) -> Topic:
    check_name(item.name)
    if item.name in call.state.topics.by_name:
        raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{item.name}' already exists.")
    configs = {config.name: config.value for config in item.configs}
    for name, value in configs.items():
        check_topic_config(name, value)
    topic = Topic(item.name, _partitions(call, item), configs)
    return topic if call.request.validate_only else call.state.create_topic(topic)


def _partitions(call: Call, item: Message) -> list[Partition]:
    config = call.state.config
    if item.assignments:
        if (item.num_partitions, item.replication_factor) != (_DEFAULT, _DEFAULT):
            raise RefusedError(ErrorCode.INVALID_REQUEST, "Counts must be -1 where replicas are assigned.")
        return _assigned(call, item)
    count = int(config["num.partitions"]) if item.num_partitions == _DEFAULT else item.num_partitions
    wanted = item.replication_factor
    return call.state.place(item.name, 0, count, int(config["default.replication.factor"]) if wanted == _DEFAULT else wanted)


def _assigned(call: Call, item: Message) -> list[Partition]:
    by_index = {each.partition_index: list(each.broker_ids) for each in item.assignments}
    known = set(call.state.brokers)
    for index, replicas in by_index.items():
        if index not in range(len(by_index)) or not replicas or len(set(replicas)) < len(replicas) or set(replicas) - known:
            raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {index} cannot be at brokers {replicas}.")
    return [placed(item.name, index, by_index[index]) for index in sorted(by_index)]


@serves(admin.CreatePartitionsResponse, 0, 3)
def _create_partitions(call: Call) -> Message:
    """KIP-195."""
    kind = admin.CreatePartitionsResponse.CreatePartitionsTopicResult
    results = [kind(name=item.name, **outcome_of(partial(_grow, call, item))) for item in call.request.topics]
    return admin.CreatePartitionsResponse(results=results)


def _grow(call: Call, item: Message) -> None:
    call.admit(item.name)
    topic = call.topic(item.name)
    added = _added(call, topic, item)
    if not call.request.validate_only:
        topic.partitions += added


def _added(call: Call, topic: Topic, item: Message) -> list[Partition]:
    have = len(topic.partitions)
    if item.count <= have:
        said = f"The topic {topic.name} currently has {have} partition(s); {item.count} would not be an increase."
        raise RefusedError(ErrorCode.INVALID_PARTITIONS, said)
    if item.assignments is None:
        return call.state.place(topic.name, have, item.count - have, len(topic.partitions[0].replicas))
    replicas = [list(each.broker_ids) for each in item.assignments]
    if len(replicas) != item.count - have or any(not each or set(each) - set(call.state.brokers) for each in replicas):
        raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    return [placed(topic.name, have + at, each) for at, each in enumerate(replicas)]


_BY_ID = 6


@serves(admin.DeleteTopicsResponse, 1, 6)
def _delete_topics(call: Call) -> Message:
    """KIP-4, KIP-516 (by id, version 6)."""
    if call.version >= _BY_ID:
        return admin.DeleteTopicsResponse(responses=[_delete(call, item.name, item.topic_id) for item in call.request.topics])
    return admin.DeleteTopicsResponse(responses=[_delete(call, name, None) for name in call.request.topic_names])


def _delete(call: Call, name: str | None, topic_id: Message) -> Message:
    kind = admin.DeleteTopicsResponse.DeletableTopicResult
    by_id = topic_id if topic_id is not None and topic_id.int else None
    try:
        call.admit(name)
        topic = call.topic(name or "", by_id)
        call.state.delete_topic(topic)
    except RefusedError as error:
        return kind(name=name, topic_id=topic_id, error_code=error.code, error_message=error.message)
    return kind(name=topic.name, topic_id=topic.id, error_code=ErrorCode.NONE)


_HIGH_WATERMARK = -1


@serves(admin.DeleteRecordsResponse, 0, 2)
def _delete_records(call: Call) -> Message:
    """Everything before an offset, -1 being the high watermark. KIP-107."""
    kind = admin.DeleteRecordsResponse.DeleteRecordsTopicResult
    topics = []
    for topic in call.request.topics:
        items = [_shortened(kind.DeleteRecordsPartitionResult, call, topic.name, item) for item in topic.partitions]
        topics.append(kind(name=topic.name, partitions=items))
    return admin.DeleteRecordsResponse(topics=topics)


def _shortened(kind: Message, call: Call, topic: str, item: Message) -> Message:
    code, start = int(ErrorCode.NONE), -1
    try:
        log = call.led_partition(topic, item.partition_index).log
        if "delete" not in call.state.setting("cleanup.policy", topic):
            raise RefusedError(ErrorCode.POLICY_VIOLATION)
        offset = log.high_watermark if item.offset == _HIGH_WATERMARK else item.offset
        if not 0 <= offset <= log.high_watermark:
            raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE)
        log.delete_before(offset)
        start = log.start_offset
    except RefusedError as error:
        code = error.code
    return kind(partition_index=item.partition_index, low_watermark=start, error_code=code)


@serves(admin.ElectLeadersResponse, 0, 2)
def _elect_leaders(call: Call) -> Message:
    """KIP-183 (the preferred leader), KIP-460."""
    call.admit()
    wanted = call.request.topic_partitions
    if wanted is None:
        asked = [(topic.name, [partition.index for partition in topic.partitions]) for topic in call.state.topics]
    else:
        asked = [(topic.topic, list(topic.partitions)) for topic in wanted]
    kind = admin.ElectLeadersResponse.ReplicaElectionResult
    answers = []
    for name, indexes in asked:
        found = [kind.PartitionResult(partition_id=each, **outcome_of(partial(_elect, call, name, each))) for each in indexes]
        answers.append(kind(topic=name, partition_result=found))
    return admin.ElectLeadersResponse(error_code=ErrorCode.NONE, replica_election_results=answers)


def _elect(call: Call, topic: str, index: int) -> None:
    partition = call.partition(topic, index)
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise RefusedError(ErrorCode.ELECTION_NOT_NEEDED)
    if preferred not in partition.isr:
        raise RefusedError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    partition.lead(preferred)
