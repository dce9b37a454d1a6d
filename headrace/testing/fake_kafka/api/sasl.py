"""Logins by SASL."""

from __future__ import annotations

from functools import partial

from headrace.testing.fake_kafka.calls import Call, serves
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError, code_of
from headrace.testing.fake_kafka.protocol import Message, sasl
from headrace.testing.fake_kafka.state.users import SaslExchange, begin_exchange


@serves(sasl.SaslHandshakeResponse, 1, 1)
def _sasl_handshake(call: Call) -> Message:
    """KIP-43, KIP-152 (version 1: the rest of the exchange is of Kafka's own requests)."""
    return sasl.SaslHandshakeResponse(error_code=code_of(partial(_begin, call)), mechanisms=call.state.users.mechanisms)


def _begin(call: Call) -> None:
    call.admit()
    if not call.state.users.must_log_in:
        raise RefusedError(ErrorCode.ILLEGAL_SASL_STATE)
    call.peer.exchange = begin_exchange(call.request.mechanism, call.state.users)


@serves(sasl.SaslAuthenticateResponse, 0, 2)
def _sasl_authenticate(call: Call) -> Message:
    """KIP-152, KIP-368 (sessions as `connections.max.reauth.ms` says; tokens have no lifetime here)."""
    try:
        call.admit()
        exchange = call.peer.exchange
        if exchange is None:
            raise RefusedError(ErrorCode.ILLEGAL_SASL_STATE)
        said = _answer(call, call.request.auth_bytes)
        _check_unchanged(call, exchange)
    except RefusedError as error:
        return sasl.SaslAuthenticateResponse(error_code=error.code, error_message=error.message, auth_bytes=b"")
    lifetime_ms = 0
    if exchange.user is not None:
        call.peer.user, call.peer.is_authenticated, call.peer.exchange = exchange.user, True, None
        lifetime_ms = max(0, int(call.state.config["connections.max.reauth.ms"]))
        call.peer.session_ends_ms = call.now_ms + lifetime_ms if lifetime_ms else None
    return sasl.SaslAuthenticateResponse(
        error_code=ErrorCode.NONE, error_message=None, auth_bytes=said, session_lifetime_ms=lifetime_ms
    )


def _check_unchanged(call: Call, exchange: SaslExchange) -> None:
    """Who authenticates again is who it was. Raises SASL_AUTHENTICATION_FAILED."""
    if call.peer.is_authenticated and exchange.user not in (None, call.peer.user):
        raise RefusedError(
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            f"Cannot change principals during re-authentication from User:{call.peer.user}: User:{exchange.user}",
        )


def _answer(call: Call, message: bytes) -> bytes:
    exchange = call.peer.exchange
    assert exchange is not None
    try:
        return exchange.answer(bytes(message))
    except (ValueError, KeyError, IndexError) as error:  # not of the mechanism's form
        raise exchange.refuse() from error
