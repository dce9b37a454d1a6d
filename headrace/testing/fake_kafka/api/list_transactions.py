"""API key 66, ListTransactions: KIP-664, KIP-994 (duration), KIP-1152 (pattern). Each broker lists those it coordinates."""

from __future__ import annotations

import re

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import ListTransactionsResponse, Message
from headrace.testing.fake_kafka.state.transactions import TransactionMetadata, TransactionState


def handle(call: Call) -> Message:
    """Those that every filter lets through; a pattern has to match the whole id."""
    call.admit()
    request = call.request
    if not call.broker.is_member:
        raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    names = {state.value for state in TransactionState}
    mine = [
        each
        for each in call.state.transactions.by_id.values()
        if call.state.coordinator(CoordinatorKind.TRANSACTION, each.transactional_id) is call.broker
    ]
    return ListTransactionsResponse(
        error_code=ErrorCode.NONE,
        unknown_state_filters=[state for state in request.state_filters if state not in names],
        transaction_states=[
            ListTransactionsResponse.TransactionState(
                transactional_id=each.transactional_id, producer_id=each.producer.id, transaction_state=each.state.value
            )
            for each in mine
            if _is_wanted(call, each)
        ],
    )


def _is_wanted(call: Call, known: TransactionMetadata) -> bool:
    request = call.request
    running_ms = call.now_ms - known.started_ms if known.state is TransactionState.ONGOING else 0
    return (
        (not request.state_filters or known.state.value in request.state_filters)
        and (not request.producer_id_filters or known.producer.id in request.producer_id_filters)
        and (request.duration_filter < 0 or running_ms > request.duration_filter)
        and _matches(request.transactional_id_pattern, known.transactional_id)
    )


def _matches(pattern: str | None, transactional_id: str) -> bool:
    if not pattern:
        return True
    try:
        return re.fullmatch(pattern, transactional_id) is not None
    except re.error as error:
        raise RefusedError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error


API = Api(66, "ListTransactions", 0, 2, ListTransactionsResponse, handle)
