"""API key 22, InitProducerId: KIP-98, KIP-360 (a producer bumps its own epoch), KIP-890."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import InitProducerIdResponse, Message
from headrace.testing.fake_kafka.state.transactions import NO_EPOCH, NO_PRODUCER_ID, ProducerIdentity


def handle(call: Call) -> Message:
    """A new producer id, or the transactional id's with its next epoch."""
    try:
        return _init(call)
    except RefusedError as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)


def _init(call: Call) -> Message:
    call.admit()
    request = call.request
    transactions = call.state.transactions
    if request.transactional_id is None:
        return InitProducerIdResponse(error_code=ErrorCode.NONE, producer_id=transactions.new_producer_id(), producer_epoch=0)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        raise RefusedError(ErrorCode.INVALID_REQUEST)
    call.state.check_coordinator(call.broker, CoordinatorKind.TRANSACTION, request.transactional_id)
    expected = None
    if request.producer_id != NO_PRODUCER_ID:
        expected = ProducerIdentity(request.producer_id, request.producer_epoch)
    found = transactions.init(request.transactional_id, request.transaction_timeout_ms, expected, call.now_ms)
    return InitProducerIdResponse(error_code=ErrorCode.NONE, producer_id=found.id, producer_epoch=found.epoch)


API = Api(22, "InitProducerId", 0, 5, InitProducerIdResponse, handle)
