"""API key 19, CreateTopics: KIP-4, KIP-525 (configs in the answer), KIP-516 (topic ids)."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import CreateTopicsResponse, Message
from headrace.testing.fake_kafka.state.configs import TOPIC_CONFIGS, check_topic_config, topic_setting
from headrace.testing.fake_kafka.state.topics import Partition, Topic, check_name

_Answer = CreateTopicsResponse.CreatableTopicResult
_DEFAULT = -1
_OF_TOPIC, _OF_DEFAULTS = 1, 5  # DescribeConfigsResponse.ConfigSource


def handle(call: Call) -> Message:
    return CreateTopicsResponse(topics=[_answer(call, item) for item in call.request.topics])


def _answer(call: Call, item: Message) -> Message:
    try:
        call.admit(item.name)
        topic = _create(call, item)
    except RefusedError as error:
        return _Answer(name=item.name, error_code=error.code, error_message=error.message, configs=None)
    return _Answer(
        name=topic.name,
        topic_id=topic.id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=_configs(call, topic),
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
    return [
        Partition(item.name, index, by_index[index], list(by_index[index]), by_index[index][0]) for index in sorted(by_index)
    ]


def _configs(call: Call, topic: Topic) -> list[Message]:
    return [
        _Answer.CreatableTopicConfigs(
            name=name,
            value=topic_setting(name, topic.configs, call.state.config),
            config_source=_OF_TOPIC if name in topic.configs else _OF_DEFAULTS,
        )
        for name in TOPIC_CONFIGS
    ]


API = Api(19, "CreateTopics", 2, 7, CreateTopicsResponse, handle)
