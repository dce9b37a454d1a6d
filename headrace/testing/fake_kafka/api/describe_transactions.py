"""API key 65, DescribeTransactions: KIP-664."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import DescribeTransactionsResponse, Message
from headrace.testing.fake_kafka.state.transactions import TransactionMetadata

_Answer = DescribeTransactionsResponse.TransactionState


def handle(call: Call) -> Message:
    return DescribeTransactionsResponse(transaction_states=[_answer(call, each) for each in call.request.transactional_ids])


def _answer(call: Call, transactional_id: str) -> Message:
    try:
        call.admit()
        if not transactional_id:
            raise RefusedError(ErrorCode.INVALID_REQUEST)
        call.state.check_coordinator(call.broker, CoordinatorKind.TRANSACTION, transactional_id)
        known = call.state.transactions.by_id.get(transactional_id)
        if known is None:
            raise RefusedError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    except RefusedError as error:
        return _Answer(error_code=error.code, transactional_id=transactional_id, topics=[])
    return _described(known)


def _described(known: TransactionMetadata) -> Message:
    topics: dict[str, list[int]] = {}
    for name, index in sorted(known.partitions):
        topics.setdefault(name, []).append(index)
    return _Answer(
        error_code=ErrorCode.NONE,
        transactional_id=known.transactional_id,
        transaction_state=known.state.value,
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.started_ms,
        producer_id=known.producer.id,
        producer_epoch=known.producer.epoch,
        topics=[_Answer.TopicData(topic=name, partitions=indexes) for name, indexes in topics.items()],
    )


API = Api(65, "DescribeTransactions", 0, 0, DescribeTransactionsResponse, handle)
