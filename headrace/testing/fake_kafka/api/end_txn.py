"""API key 26, EndTxn: KIP-98, and from version 5 on KIP-890: the producer continues with the next epoch."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode
from headrace.testing.fake_kafka.protocol import EndTxnResponse, Message
from headrace.testing.fake_kafka.state.transactions import ProducerIdentity

_SECOND_PROTOCOL = 5


def handle(call: Call) -> Message:
    """Commit or abort."""
    call.admit()
    request = call.request
    call.state.check_coordinator(call.broker, CoordinatorKind.TRANSACTION, request.transactional_id)
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    version = 2 if call.version >= _SECOND_PROTOCOL else 0
    found = call.state.transactions.end(
        request.transactional_id, producer, version, call.now_ms, commit=bool(request.committed)
    )
    return EndTxnResponse(error_code=ErrorCode.NONE, producer_id=found.id, producer_epoch=found.epoch)


API = Api(26, "EndTxn", 0, 5, EndTxnResponse, handle)
