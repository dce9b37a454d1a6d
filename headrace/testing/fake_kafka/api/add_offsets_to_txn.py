"""API key 25, AddOffsetsToTxn: KIP-98."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import AddOffsetsToTxnResponse, Message
from headrace.testing.fake_kafka.state.brokers import coordinator_partition
from headrace.testing.fake_kafka.state.cluster import OFFSETS_TOPIC
from headrace.testing.fake_kafka.state.transactions import ProducerIdentity


def handle(call: Call) -> Message:
    call.admit()
    request = call.request
    if not request.group_id:
        raise RefusedError(ErrorCode.INVALID_GROUP_ID)
    call.state.check_coordinator(call.broker, CoordinatorKind.TRANSACTION, request.transactional_id)
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    partition = (OFFSETS_TOPIC, coordinator_partition(request.group_id))
    call.state.transactions.add(request.transactional_id, producer, [partition], call.now_ms)
    return AddOffsetsToTxnResponse(error_code=ErrorCode.NONE)


API = Api(25, "AddOffsetsToTxn", 0, 4, AddOffsetsToTxnResponse, handle)
