"""API key 47, OffsetDelete: KIP-496."""

from __future__ import annotations

from functools import partial

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.api.committing import by_partition
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
    topics = by_partition(call, _TopicAnswer, _PartitionAnswer, partial(_delete, call, group))
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics)


def _delete(call: Call, group: Group, topic: Message, item: Message) -> None:
    call.partition(topic.name, item.partition_index)
    if topic.name in group.subscribed_topics():
        raise RefusedError(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    group.offsets.forget((topic.name, item.partition_index))


API = Api(47, "OffsetDelete", 0, 0, OffsetDeleteResponse, handle)
