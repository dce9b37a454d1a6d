"""API key 13, LeaveGroup: KIP-345 (several members at once, by instance), KIP-800."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import LeaveGroupResponse, Message

_MANY = 3


def handle(call: Call) -> Message:
    call.admit()
    request = call.request
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, request.group_id)
    if call.version < _MANY:
        _leave(call, request.member_id, None)
        return LeaveGroupResponse(error_code=ErrorCode.NONE, members=[])
    answers = []
    for member in request.members:
        code: int = ErrorCode.NONE
        try:
            _leave(call, member.member_id, member.group_instance_id)
        except RefusedError as error:
            code = error.code
        answers.append(
            LeaveGroupResponse.MemberResponse(
                member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code
            )
        )
    return LeaveGroupResponse(error_code=ErrorCode.NONE, members=answers)


def _leave(call: Call, member_id: str, instance_id: str | None) -> None:
    group = call.state.groups.by_id.get(call.request.group_id)
    if group is None:
        raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
    group.leave(member_id, instance_id, call.now_ms)


API = Api(13, "LeaveGroup", 0, 5, LeaveGroupResponse, handle)
