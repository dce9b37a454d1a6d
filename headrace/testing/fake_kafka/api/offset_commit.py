"""API key 8, OffsetCommit: KIP-320 (leader epochs), KIP-345, KIP-848 (topic ids, version 10)."""

from __future__ import annotations

from functools import partial

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.api.committing import by_partition, check_committer, checked_offset
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import Message, OffsetCommitResponse

_TopicAnswer = OffsetCommitResponse.OffsetCommitResponseTopic
_PartitionAnswer = _TopicAnswer.OffsetCommitResponsePartition

_SAYS_NOT_FOUND = 9


def handle(call: Call) -> Message:
    code: int = ErrorCode.NONE
    try:
        _check(call)
    except RefusedError as error:
        code = error.code
    topics = by_partition(call, _TopicAnswer, _PartitionAnswer, partial(_commit, call), code)
    return OffsetCommitResponse(topics=topics)


def _check(call: Call) -> None:
    request = call.request
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, request.group_id)
    generation = request.generation_id_or_member_epoch
    if generation >= 0 and request.group_id not in call.state.groups.by_id:
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND if call.version >= _SAYS_NOT_FOUND else ErrorCode.ILLEGAL_GENERATION)
    group = call.state.groups.get_or_create(request.group_id)
    check_committer(group, generation, request.member_id, request.group_instance_id)
    if request.member_id in group.members:
        group.members[request.member_id].seen_ms = call.now_ms


def _commit(call: Call, topic: Message, item: Message) -> None:
    name = call.topic(topic.name, topic.topic_id).name
    committed = checked_offset(call, name, item)
    call.state.commit_offsets(call.request.group_id, {(name, item.partition_index): committed})


API = Api(8, "OffsetCommit", 2, 10, OffsetCommitResponse, handle)
