"""API key 37, CreatePartitions: KIP-195."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import CreatePartitionsResponse, Message
from headrace.testing.fake_kafka.state.topics import Partition, Topic

_Answer = CreatePartitionsResponse.CreatePartitionsTopicResult


def handle(call: Call) -> Message:
    return CreatePartitionsResponse(results=[_answer(call, item) for item in call.request.topics])


def _answer(call: Call, item: Message) -> Message:
    try:
        call.admit(item.name)
        topic = call.topic(item.name)
        added = _added(call, topic, item)
    except RefusedError as error:
        return _Answer(name=item.name, error_code=error.code, error_message=error.message)
    if not call.request.validate_only:
        topic.partitions += added
    return _Answer(name=item.name, error_code=ErrorCode.NONE, error_message=None)


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
    return [Partition(topic.name, have + at, each, list(each), each[0]) for at, each in enumerate(replicas)]


API = Api(37, "CreatePartitions", 0, 3, CreatePartitionsResponse, handle)
