"""API key 12, Heartbeat."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import HeartbeatResponse, Message


def handle(call: Call) -> Message:
    """A sign of lifetime; the answer says when a rebalance is on."""
    call.admit()
    request = call.request
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, request.group_id)
    group = call.state.groups.by_id.get(request.group_id)
    if group is None:
        raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
    group.heartbeat(request.member_id, request.group_instance_id, request.generation_id, call.now_ms)
    return HeartbeatResponse(error_code=ErrorCode.NONE)


API = Api(12, "Heartbeat", 0, 4, HeartbeatResponse, handle)
