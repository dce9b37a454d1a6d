"""API key 28, TxnOffsetCommit: KIP-98, KIP-447 (members and generations), KIP-890 (version 5 joins the transaction itself)."""

from __future__ import annotations

from functools import partial

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.api.committing import by_partition, checked_offset
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import Message, TxnOffsetCommitResponse
from headrace.testing.fake_kafka.state.brokers import coordinator_partition
from headrace.testing.fake_kafka.state.cluster import OFFSETS_TOPIC
from headrace.testing.fake_kafka.state.transactions import ProducerIdentity

_TopicAnswer = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_PartitionAnswer = _TopicAnswer.TxnOffsetCommitResponsePartition
_IMPLICIT_ADDITION = 5
_AS_SAID_HERE: dict[int, int] = {
    ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}


def handle(call: Call) -> Message:
    code: int = ErrorCode.NONE
    try:
        _join(call)
    except RefusedError as error:
        code = error.code
    topics = by_partition(call, _TopicAnswer, _PartitionAnswer, partial(_commit, call), code)
    return TxnOffsetCommitResponse(topics=topics)


def _join(call: Call) -> None:
    request = call.request
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, request.group_id)
    group = call.state.groups.get_or_create(request.group_id)
    if request.generation_id >= 0 or request.member_id or request.group_instance_id is not None:
        group.check(request.member_id, request.group_instance_id, request.generation_id)
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    partition = (OFFSETS_TOPIC, coordinator_partition(request.group_id))
    transactions = call.state.transactions
    try:
        if call.version >= _IMPLICIT_ADDITION:
            transactions.add(request.transactional_id, producer, [partition], call.now_ms, version=2)
        else:
            transactions.verify(request.transactional_id, producer, partition)
    except RefusedError as error:
        raise RefusedError(_AS_SAID_HERE.get(error.code, error.code)) from None


def _commit(call: Call, topic: Message, item: Message) -> None:
    committed = checked_offset(call, topic.name, item)
    offsets = call.state.groups.get_or_create(call.request.group_id).offsets
    offsets.commit_in_transaction(call.request.producer_id, {(topic.name, item.partition_index): committed})


API = Api(28, "TxnOffsetCommit", 0, 5, TxnOffsetCommitResponse, handle)
