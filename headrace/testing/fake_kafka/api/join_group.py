"""API key 11, JoinGroup: KIP-62, KIP-345 (static members), KIP-394 (a newcomer is given its id first), KIP-559, KIP-814."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call, Later
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import JoinGroupResponse, Message
from headrace.testing.fake_kafka.state.groups import Group, GroupState, Joining, Member

_NEEDS_KNOWN_ID = 4
_NULLABLE_NAME = 7


def handle(call: Call) -> Message | Later:
    """Answered once the rebalance that it starts, or joins, has everyone."""
    try:
        member = _join(call)
    except RefusedError as error:
        member_id = error.message if error.code == ErrorCode.MEMBER_ID_REQUIRED else call.request.member_id
        name = None if call.version >= _NULLABLE_NAME else ""
        return JoinGroupResponse(error_code=error.code, protocol_name=name, leader="", member_id=member_id or "", members=[])
    group = call.state.groups.by_id[call.request.group_id]
    if not member.is_waiting:
        return _answer(call, group, member)
    return Later(lambda _: None if member.is_waiting else _answer(call, group, member), None)


def _join(call: Call) -> Member:
    call.admit()
    request = call.request
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, request.group_id)
    config = call.state.config
    least, most = int(config["group.min.session.timeout.ms"]), int(config["group.max.session.timeout.ms"])
    if not least <= request.session_timeout_ms <= most:
        raise RefusedError(ErrorCode.INVALID_SESSION_TIMEOUT)
    if not request.group_id:
        raise RefusedError(ErrorCode.INVALID_GROUP_ID)
    if request.member_id and request.group_id not in call.state.groups.by_id:
        raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
    joining = Joining(
        request.member_id,
        request.group_instance_id,
        call.client_id,
        f"/{call.peer.host}",
        request.session_timeout_ms,
        request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms,
        request.protocol_type,
        [(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols],
    )
    delay = int(config["group.initial.rebalance.delay.ms"])
    group = call.state.groups.get_or_create(request.group_id)
    return group.join(joining, call.now_ms, delay, needs_known_id=call.version >= _NEEDS_KNOWN_ID)


def _answer(call: Call, group: Group, member: Member) -> Message:
    if member.id not in group.members:
        return JoinGroupResponse(
            error_code=ErrorCode.UNKNOWN_MEMBER_ID, protocol_name="", leader="", member_id=member.id, members=[]
        )
    reported = group.members.values() if group.leader == member.id else ()
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader,
        skip_assignment=group.state is GroupState.STABLE and group.leader == member.id,  # a static leader that is back
        member_id=member.id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=each.id,
                group_instance_id=each.joining.instance_id,
                metadata=each.metadata(group.protocol_name or ""),
            )
            for each in reported
        ],
    )


API = Api(11, "JoinGroup", 0, 9, JoinGroupResponse, handle)
