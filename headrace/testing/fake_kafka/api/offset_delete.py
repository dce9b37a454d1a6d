"""API key 47, OffsetDelete: KIP-496."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import Message, OffsetDeleteResponse
from headrace.testing.fake_kafka.state.groups import Group

_TopicAnswer = OffsetDeleteResponse.OffsetDeleteResponseTopic
_PartitionAnswer = _TopicAnswer.OffsetDeleteResponsePartition


def handle(call: Call) -> Message:
    """Not of topics that the group's members are subscribed to."""
    call.admit()
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, call.request.group_id)
    group = call.state.groups.known(call.request.group_id)
    if group.members and group.protocol_type != "consumer":
        raise RefusedError(ErrorCode.NON_EMPTY_GROUP)
    topics = []
    for topic in call.request.topics:
        items = [
            _PartitionAnswer(partition_index=item.partition_index, error_code=_delete(call, group, topic.name, item))
            for item in topic.partitions
        ]
        topics.append(_TopicAnswer(name=topic.name, partitions=items))
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics)


def _delete(call: Call, group: Group, topic: str, item: Message) -> int:
    try:
        call.partition(topic, item.partition_index)
    except RefusedError as error:
        return error.code
    if topic in group.subscribed_topics():
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    group.offsets.forget((topic, item.partition_index))
    return ErrorCode.NONE


API = Api(47, "OffsetDelete", 0, 0, OffsetDeleteResponse, handle)
