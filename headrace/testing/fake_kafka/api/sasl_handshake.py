"""API key 17, SaslHandshake: KIP-43, KIP-152 (version 1: the rest of the exchange is of Kafka's own requests)."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import Message, SaslHandshakeResponse
from headrace.testing.fake_kafka.state.users import begin_exchange


def handle(call: Call) -> Message:
    try:
        call.admit()
        if not call.state.users.must_log_in:
            raise RefusedError(ErrorCode.ILLEGAL_SASL_STATE)
        call.peer.exchange = begin_exchange(call.request.mechanism, call.state.users)
    except RefusedError as error:
        return SaslHandshakeResponse(error_code=error.code, mechanisms=call.state.users.mechanisms)
    return SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=call.state.users.mechanisms)


API = Api(17, "SaslHandshake", 1, 1, SaslHandshakeResponse, handle)
