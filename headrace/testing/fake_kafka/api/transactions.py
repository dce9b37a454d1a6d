"""Transactions and their producers."""

from __future__ import annotations

import re
from functools import partial

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Call, serves
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError, code_of
from headrace.testing.fake_kafka.protocol import Message, admin, producer
from headrace.testing.fake_kafka.state.brokers import coordinator_partition
from headrace.testing.fake_kafka.state.cluster import OFFSETS_TOPIC
from headrace.testing.fake_kafka.state.transactions import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    ProducerIdentity,
    TransactionMetadata,
    TransactionState,
)


@serves(producer.InitProducerIdResponse, 0, 5)
def _init_producer_id(call: Call) -> Message:
    """A new producer id, or the transactional id's with its next epoch.

    KIP-98, KIP-360 (a producer bumps its own epoch), KIP-890.
    """
    code, found = int(ErrorCode.NONE), ProducerIdentity(NO_PRODUCER_ID, NO_EPOCH)
    try:
        found = _init(call)
    except RefusedError as error:
        code = error.code
    return producer.InitProducerIdResponse(error_code=code, producer_id=found.id, producer_epoch=found.epoch)


def _init(call: Call) -> ProducerIdentity:
    call.admit()
    request, transactions = call.request, call.state.transactions
    if request.transactional_id is None:
        return ProducerIdentity(transactions.new_producer_id(), 0)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        raise RefusedError(ErrorCode.INVALID_REQUEST)
    call.state.check_coordinator(call.broker, CoordinatorKind.TRANSACTION, request.transactional_id)
    expected = None if request.producer_id == NO_PRODUCER_ID else _sender(request)
    return transactions.init(request.transactional_id, request.transaction_timeout_ms, expected, call.now_ms)


def _sender(request: Message) -> ProducerIdentity:
    return ProducerIdentity(request.producer_id, request.producer_epoch)


_NOT_ATTEMPTED = 55


@serves(producer.AddPartitionsToTxnResponse, 0, 3)
def _add_partitions_to_txn(call: Call) -> Message:
    """All of them, or none: one that does not exist keeps the others out (OPERATION_NOT_ATTEMPTED, 55).

    KIP-98. Versions from 4 on are for brokers among themselves (KIP-890).
    """
    asked = call.request.v3_and_below_topics
    codes = _codes(call, [(topic.name, index) for topic in asked for index in topic.partitions])
    kind = producer.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    of_one = kind.AddPartitionsToTxnPartitionResult
    topics = []
    for topic in asked:
        items = [of_one(partition_index=index, partition_error_code=codes[topic.name, index]) for index in topic.partitions]
        topics.append(kind(name=topic.name, results_by_partition=items))
    return producer.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)


def _codes(call: Call, wanted: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    missing = {key for key in wanted if not _exists(call, key)}
    if missing:
        return {key: int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if key in missing else _NOT_ATTEMPTED for key in wanted}
    return dict.fromkeys(wanted, code_of(partial(_add, call, wanted)))


def _add(call: Call, wanted: list[tuple[str, int]]) -> None:
    for topic, index in wanted:
        call.admit(topic, index)
    request = call.request
    transactional_id = request.v3_and_below_transactional_id
    call.state.check_coordinator(call.broker, CoordinatorKind.TRANSACTION, transactional_id)
    sender = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    call.state.transactions.add(transactional_id, sender, wanted, call.now_ms)


def _exists(call: Call, key: tuple[str, int]) -> bool:
    topic = call.state.topics.by_name.get(key[0])
    return topic is not None and 0 <= key[1] < len(topic.partitions)


@serves(producer.AddOffsetsToTxnResponse, 0, 4)
def _add_offsets_to_txn(call: Call) -> Message:
    """KIP-98."""
    call.admit()
    request = call.request
    if not request.group_id:
        raise RefusedError(ErrorCode.INVALID_GROUP_ID)
    call.state.check_coordinator(call.broker, CoordinatorKind.TRANSACTION, request.transactional_id)
    partition = (OFFSETS_TOPIC, coordinator_partition(request.group_id))
    call.state.transactions.add(request.transactional_id, _sender(request), [partition], call.now_ms)
    return producer.AddOffsetsToTxnResponse(error_code=ErrorCode.NONE)


_SECOND_PROTOCOL = 5


@serves(producer.EndTxnResponse, 0, 5)
def _end_txn(call: Call) -> Message:
    """Commit or abort. KIP-98, and from version 5 on KIP-890: the producer continues with the next epoch."""
    call.admit()
    request = call.request
    call.state.check_coordinator(call.broker, CoordinatorKind.TRANSACTION, request.transactional_id)
    version = 2 if call.version >= _SECOND_PROTOCOL else 0
    ending, commit = call.state.transactions, bool(request.committed)
    found = ending.end(request.transactional_id, _sender(request), version, call.now_ms, commit=commit)
    return producer.EndTxnResponse(error_code=ErrorCode.NONE, producer_id=found.id, producer_epoch=found.epoch)


_Answer = admin.DescribeTransactionsResponse.TransactionState


@serves(admin.DescribeTransactionsResponse, 0, 0)
def _describe_transactions(call: Call) -> Message:
    """KIP-664."""
    answers = [_describe_transactions_answer(call, each) for each in call.request.transactional_ids]
    return admin.DescribeTransactionsResponse(transaction_states=answers)


def _describe_transactions_answer(call: Call, transactional_id: str) -> Message:
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
    return _describe_transactions_described(known)


def _describe_transactions_described(known: TransactionMetadata) -> Message:
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


@serves(admin.ListTransactionsResponse, 0, 2)
def _list_transactions(call: Call) -> Message:
    """Those that every filter lets through; a pattern has to match the whole id.

    KIP-664, KIP-994 (duration), KIP-1152 (pattern). Each broker lists those it coordinates.
    """
    call.admit()
    request = call.request
    if not call.broker.is_member:
        raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    names = {state.value for state in TransactionState}
    kind = admin.ListTransactionsResponse.TransactionState
    listed = []
    for each in call.state.transactions.by_id.values():
        is_mine = call.state.coordinator(CoordinatorKind.TRANSACTION, each.transactional_id) is call.broker
        if is_mine and _is_wanted(call, each):
            named = {"transactional_id": each.transactional_id, "producer_id": each.producer.id}
            listed.append(kind(**named, transaction_state=each.state.value))
    unknown = [state for state in request.state_filters if state not in names]
    return admin.ListTransactionsResponse(error_code=ErrorCode.NONE, unknown_state_filters=unknown, transaction_states=listed)


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


@serves(admin.DescribeProducersResponse, 0, 0)
def _describe_producers(call: Call) -> Message:
    """KIP-664, what a partition remembers of the producers that wrote to it."""
    kind = admin.DescribeProducersResponse.TopicResponse
    topics = []
    for topic in call.request.topics:
        items = [_producers(kind.PartitionResponse, call, topic.name, index) for index in topic.partition_indexes]
        topics.append(kind(name=topic.name, partitions=items))
    return admin.DescribeProducersResponse(topics=topics)


def _producers(kind: Message, call: Call, topic: str, index: int) -> Message:
    try:
        log = call.led_partition(topic, index).log
    except RefusedError as error:
        return kind(partition_index=index, error_code=error.code, error_message=error.message, active_producers=[])
    found = [
        kind.ProducerState(
            producer_id=producer_id,
            producer_epoch=state.epoch,
            last_sequence=state.last_sequence,
            last_timestamp=state.last_timestamp_ms,
            coordinator_epoch=state.coordinator_epoch,
            current_txn_start_offset=-1 if state.transaction_start is None else state.transaction_start,
        )
        for producer_id, state in sorted(log.producers.states.items())
    ]
    return kind(partition_index=index, error_code=ErrorCode.NONE, active_producers=found)
