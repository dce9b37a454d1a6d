"""API key 14, SyncGroup: the leader's assignments go to the members."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call, Later
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import Message, SyncGroupResponse
from headrace.testing.fake_kafka.state.groups import Group, Member

_NAMES_PROTOCOL = 5


def handle(call: Call) -> Message | Later:
    """Answered once the leader has sent its own."""
    try:
        call.admit()
        request = call.request
        call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, request.group_id)
        group = call.state.groups.by_id.get(request.group_id)
        if group is None:
            raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        if call.version >= _NAMES_PROTOCOL:
            _check_protocol(group, request)
        assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
        member = group.sync(request.member_id, request.group_instance_id, request.generation_id, assignments, call.now_ms)
    except RefusedError as error:
        return SyncGroupResponse(error_code=error.code, assignment=b"")
    if member.has_synced:
        return _answer(group, member)
    generation = group.generation

    def again(_: bool) -> Message | None:  # noqa: FBT001  Later's
        if group.members.get(member.id) is not member:
            return SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, assignment=b"")
        if group.generation != generation or member.is_waiting:
            return SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, assignment=b"")
        return _answer(group, member) if member.has_synced else _interrupted(group)

    return Later(again, None)


def _check_protocol(group: Group, request: Message) -> None:
    """KIP-559."""
    for given, chosen in ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol_name)):
        if given != chosen:
            raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _interrupted(group: Group) -> Message | None:
    if group.state.value == "PreparingRebalance":
        return SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, assignment=b"")
    return None


def _answer(group: Group, member: Member) -> Message:
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


API = Api(14, "SyncGroup", 0, 5, SyncGroupResponse, handle)
