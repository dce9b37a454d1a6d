"""API key 15, DescribeGroups: KIP-1043 (version 6 states that there is none)."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import DescribeGroupsResponse, Message
from headrace.testing.fake_kafka.state.groups import Group, Member

_Answer = DescribeGroupsResponse.DescribedGroup
_SAYS_NOT_FOUND = 6


def handle(call: Call) -> Message:
    return DescribeGroupsResponse(groups=[_answer(call, group_id) for group_id in call.request.groups])


def _answer(call: Call, group_id: str) -> Message:
    try:
        call.admit()
        call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, group_id)
        group = call.state.groups.known(group_id)
    except RefusedError as error:
        gone = error.code == ErrorCode.GROUP_ID_NOT_FOUND
        code = ErrorCode.NONE if gone and call.version < _SAYS_NOT_FOUND else error.code
        state = "Dead" if gone else ""
        return _Answer(error_code=code, error_message=error.message, group_id=group_id, group_state=state, members=[])
    return _Answer(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name or "",
        members=[_member(group, member) for member in group.members.values()],
    )


def _member(group: Group, member: Member) -> Message:
    return _Answer.DescribedGroupMember(
        member_id=member.id,
        group_instance_id=member.joining.instance_id,
        client_id=member.joining.client_id,
        client_host=member.joining.host,
        member_metadata=member.metadata(group.protocol_name or ""),
        member_assignment=member.assignment,
    )


API = Api(15, "DescribeGroups", 0, 6, DescribeGroupsResponse, handle)
