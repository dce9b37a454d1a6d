"""Consumer groups: who is a member, and what each one is assigned."""

from __future__ import annotations

from functools import partial

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Call, Later, serves
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError, code_of
from headrace.testing.fake_kafka.protocol import Message, admin, consumer
from headrace.testing.fake_kafka.state.groups import Group, GroupState, Joining, Member


def _group_of(call: Call) -> Group:
    """The group of a member's request, at its coordinator. Raises RefusedError, also where there is no such group."""
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, call.request.group_id)
    group = call.state.groups.by_id.get(call.request.group_id)
    if group is None:
        raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
    return group


_NEEDS_KNOWN_ID = 4
_NULLABLE_NAME = 7


@serves(consumer.JoinGroupResponse, 0, 9)
def _join_group(call: Call) -> Message | Later:
    """Answered once the rebalance that it starts, or joins, has everyone.

    KIP-62, KIP-345 (static members), KIP-394 (a newcomer is given its id first), KIP-559, KIP-814.
    """
    try:
        member = _join(call)
    except RefusedError as error:
        member_id = error.message if error.code == ErrorCode.MEMBER_ID_REQUIRED else call.request.member_id
        name = None if call.version >= _NULLABLE_NAME else ""
        return consumer.JoinGroupResponse(
            error_code=error.code, protocol_name=name, leader="", member_id=member_id or "", members=[]
        )
    group = call.state.groups.by_id[call.request.group_id]
    if not member.is_waiting:
        return _join_group_answer(call, group, member)
    return Later(lambda _: None if member.is_waiting else _join_group_answer(call, group, member), None)


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


def _join_group_answer(call: Call, group: Group, member: Member) -> Message:
    if member.id not in group.members:
        return consumer.JoinGroupResponse(
            error_code=ErrorCode.UNKNOWN_MEMBER_ID, protocol_name="", leader="", member_id=member.id, members=[]
        )
    reported = group.members.values() if group.leader == member.id else ()
    return consumer.JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader,
        skip_assignment=group.state is GroupState.STABLE and group.leader == member.id,  # a static leader that is back
        member_id=member.id,
        members=[
            consumer.JoinGroupResponse.JoinGroupResponseMember(
                member_id=each.id, group_instance_id=each.joining.instance_id, metadata=each.metadata(group.protocol_name or "")
            )
            for each in reported
        ],
    )


_NAMES_PROTOCOL = 5


@serves(consumer.SyncGroupResponse, 0, 5)
def _sync_group(call: Call) -> Message | Later:
    """Answered once the leader has sent its own. The leader's assignments go to the members."""
    try:
        call.admit()
        request, group = call.request, _group_of(call)
        if call.version >= _NAMES_PROTOCOL:
            _check_protocol(group, request)
        assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
        member = group.sync(request.member_id, request.group_instance_id, request.generation_id, assignments, call.now_ms)
    except RefusedError as error:
        return consumer.SyncGroupResponse(error_code=error.code, assignment=b"")
    if member.has_synced:
        return _sync_group_answer(group, member)
    generation = group.generation

    def again(_: bool) -> Message | None:  # noqa: FBT001  Later's
        if group.members.get(member.id) is not member:
            return consumer.SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, assignment=b"")
        is_interrupted = group.state is GroupState.PREPARING and not member.has_synced
        if group.generation != generation or member.is_waiting or is_interrupted:
            return consumer.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, assignment=b"")
        return _sync_group_answer(group, member) if member.has_synced else None

    return Later(again, None)


def _check_protocol(group: Group, request: Message) -> None:
    """KIP-559."""
    for given, chosen in ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol_name)):
        if given != chosen:
            raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _sync_group_answer(group: Group, member: Member) -> Message:
    return consumer.SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


@serves(consumer.HeartbeatResponse, 0, 4)
def _heartbeat(call: Call) -> Message:
    """A sign of lifetime; the answer says when a rebalance is on."""
    call.admit()
    request, group = call.request, _group_of(call)
    group.heartbeat(request.member_id, request.group_instance_id, request.generation_id, call.now_ms)
    return consumer.HeartbeatResponse(error_code=ErrorCode.NONE)


_MANY = 3


@serves(consumer.LeaveGroupResponse, 0, 5)
def _leave_group(call: Call) -> Message:
    """KIP-345 (several members at once, by instance), KIP-800."""
    call.admit()
    request = call.request
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, request.group_id)
    if call.version < _MANY:
        _leave(call, request.member_id, None)
        return consumer.LeaveGroupResponse(error_code=ErrorCode.NONE, members=[])
    kind = consumer.LeaveGroupResponse.MemberResponse
    answers = []
    for member in request.members:
        named = {"member_id": member.member_id, "group_instance_id": member.group_instance_id}
        answers.append(kind(**named, error_code=code_of(partial(_leave, call, *named.values()))))
    return consumer.LeaveGroupResponse(error_code=ErrorCode.NONE, members=answers)


def _leave(call: Call, member_id: str, instance_id: str | None) -> None:
    _group_of(call).leave(member_id, instance_id, call.now_ms)


_Answer = admin.DescribeGroupsResponse.DescribedGroup
_SAYS_NOT_FOUND = 6


@serves(admin.DescribeGroupsResponse, 0, 6)
def _describe_groups(call: Call) -> Message:
    """KIP-1043 (version 6 states that there is none)."""
    return admin.DescribeGroupsResponse(groups=[_describe_groups_answer(call, group_id) for group_id in call.request.groups])


def _describe_groups_answer(call: Call, group_id: str) -> Message:
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


_TYPE = "classic"


@serves(admin.ListGroupsResponse, 0, 5)
def _list_groups(call: Call) -> Message:
    """KIP-518 (states), KIP-848 (types). Each broker lists those it coordinates."""
    call.admit()
    states = {state.lower() for state in call.request.states_filter or ()}
    types = {kind.lower() for kind in call.request.types_filter or ()}
    listed = []
    for group in call.state.groups.by_id.values():
        state = group.state.value
        is_mine = call.state.coordinator(CoordinatorKind.GROUP, group.id) is call.broker
        if is_mine and (not states or state.lower() in states) and (not types or _TYPE in types):
            named = {"group_id": group.id, "protocol_type": group.protocol_type}
            listed.append(admin.ListGroupsResponse.ListedGroup(**named, group_state=state, group_type=_TYPE))
    return admin.ListGroupsResponse(error_code=ErrorCode.NONE, groups=listed)


@serves(admin.DeleteGroupsResponse, 0, 2)
def _delete_groups(call: Call) -> Message:
    """KIP-229."""
    kind = admin.DeleteGroupsResponse.DeletableGroupResult
    results = [kind(group_id=name, error_code=code_of(partial(_delete, call, name))) for name in call.request.groups_names]
    return admin.DeleteGroupsResponse(results=results)


def _delete(call: Call, group_id: str) -> None:
    call.admit()
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, group_id)
    if call.state.groups.known(group_id).members:
        raise RefusedError(ErrorCode.NON_EMPTY_GROUP)
    del call.state.groups.by_id[group_id]
