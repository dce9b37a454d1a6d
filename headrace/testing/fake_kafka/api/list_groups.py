"""API key 16, ListGroups: KIP-518 (states), KIP-848 (types). Each broker lists those it coordinates."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode
from headrace.testing.fake_kafka.protocol import ListGroupsResponse, Message

_TYPE = "classic"


def handle(call: Call) -> Message:
    call.admit()
    states = {state.lower() for state in call.request.states_filter or ()}
    types = {kind.lower() for kind in call.request.types_filter or ()}
    mine = [
        group
        for group in call.state.groups.by_id.values()
        if call.state.coordinator(CoordinatorKind.GROUP, group.id) is call.broker
    ]
    return ListGroupsResponse(
        error_code=ErrorCode.NONE,
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=group.id, protocol_type=group.protocol_type, group_state=group.state.value, group_type=_TYPE
            )
            for group in mine
            if (not states or group.state.value.lower() in states) and (not types or _TYPE in types)
        ],
    )


API = Api(16, "ListGroups", 0, 5, ListGroupsResponse, handle)
