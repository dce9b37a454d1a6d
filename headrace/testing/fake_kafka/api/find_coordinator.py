"""API key 10, FindCoordinator: KIP-98 (of transactional ids), KIP-699 (many keys at once)."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import FindCoordinatorResponse, Message
from headrace.testing.fake_kafka.state.brokers import HOST

_MANY = 4
_KEY_TYPES = frozenset({0, 1})  # group, transaction


def handle(call: Call) -> Message:
    if call.version < _MANY:
        found = _answer(call, call.request.key)
        return FindCoordinatorResponse(**{name: getattr(found, name) for name in ("error_code", "node_id", "host", "port")})
    return FindCoordinatorResponse(coordinators=[_answer(call, key) for key in call.request.coordinator_keys])


def _answer(call: Call, key: str) -> Message:
    try:
        call.admit()
        if call.request.key_type not in _KEY_TYPES:
            raise RefusedError(ErrorCode.INVALID_REQUEST)
        if call.broker.isolation is not None:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        broker = call.state.coordinator(CoordinatorKind(call.request.key_type), key)
    except RefusedError as error:
        said = {"error_code": error.code, "error_message": error.message}
        return FindCoordinatorResponse.Coordinator(key=key, node_id=-1, host="", port=-1, **said)
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=broker.id, host=HOST, port=broker.port, error_code=ErrorCode.NONE, error_message=""
    )


API = Api(10, "FindCoordinator", 0, 6, FindCoordinatorResponse, handle)
