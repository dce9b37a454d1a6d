"""API key 0, Produce: KIP-98 (idempotence, transactions), KIP-516 (topic ids, version 13), KIP-890 (version 12), KIP-951."""

from __future__ import annotations

from headrace.connectors.kafka.format.record_batch import StoredBatch
from headrace.testing.fake_kafka.api.cluster import brokers_as
from headrace.testing.fake_kafka.calls import Call, Later, serves
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import Message, producer
from headrace.testing.fake_kafka.state.logs.batches import check_batch, single_batch
from headrace.testing.fake_kafka.state.logs.cleaning import spans
from headrace.testing.fake_kafka.state.quotas import PRODUCER_RATE
from headrace.testing.fake_kafka.state.topics import NO_LEADER, Partition, Topic
from headrace.testing.fake_kafka.state.transactions import ProducerIdentity

_TopicAnswer = producer.ProduceResponse.TopicProduceResponse
_PartitionAnswer = _TopicAnswer.PartitionProduceResponse
_IMPLICIT_ADDITION = 12
_FIRST_WITH_ABORTABLE = 11
_FIRST_WITH_ZSTD = 7
_ZSTD = 4
_COMPRESSION = 0x07
_ALL_ACKS = -1


@serves(producer.ProduceResponse, 0, 13)
def handle(call: Call) -> Message | Later | None:
    request = call.request
    answers = []
    size = 0
    for wanted in request.topic_data:
        items = [_answer(call, wanted, item) for item in wanted.partition_data]
        size += sum(len(item.records or b"") for item in wanted.partition_data)
        answers.append(_TopicAnswer(name=wanted.name, topic_id=wanted.topic_id, partition_responses=items))
    throttle_ms = call.state.quotas.throttle_ms(PRODUCER_RATE, call.peer.user, call.client_id, size, call.now_ms)
    if request.acks == 0:
        return None
    response = producer.ProduceResponse(responses=answers, throttle_time_ms=throttle_ms)
    moved = any(item.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER for topic in answers for item in topic.partition_responses)
    if moved:
        response.node_endpoints, response.tags = brokers_as(producer.ProduceResponse.NodeEndpoint, call), {"node_endpoints"}
    if call.broker.isolation is not None and request.acks == _ALL_ACKS:
        return Later(lambda last: response if last else None, request.timeout_ms)  # for replicas that do not answer
    return response


def _answer(call: Call, wanted: Message, item: Message) -> Message:
    try:
        topic = call.topic(wanted.name, wanted.topic_id if call.version >= 13 else None)
        partition = call.partition(topic.name, item.index)
    except RefusedError as error:
        return _refused(item.index, error)
    try:
        batch = _checked(call, topic, partition, item.records)
        return _append(call, topic, partition, batch)
    except _ContentError as error:
        return _refused(item.index, error, partition.log.start_offset)
    except RefusedError as error:
        answer = _refused(item.index, error)
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and partition.leader != NO_LEADER:
            answer.current_leader = _PartitionAnswer.LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.epoch)
            answer.tags = {"current_leader"}
        return answer


def _refused(index: int, error: RefusedError, log_start_offset: int = -1) -> Message:
    return _PartitionAnswer(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=log_start_offset,
        record_errors=[],
        error_message=error.message,
    )


class _ContentError(RefusedError):
    """What the log itself refuses: such an answer reports where the log starts."""


def _checked(call: Call, topic: Topic, partition: Partition, records: bytes | None) -> StoredBatch:
    batch = single_batch(memoryview(records or b""))
    if batch.attributes & _COMPRESSION == _ZSTD and call.version < _FIRST_WITH_ZSTD:
        raise RefusedError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if call.request.acks not in (_ALL_ACKS, 0, 1):
        raise RefusedError(ErrorCode.INVALID_REQUIRED_ACKS)
    if partition.leader != call.broker.id:
        raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    settings = {name: call.state.setting(name, topic.name) for name in ("min.insync.replicas", "max.message.bytes")}
    least = min(int(settings["min.insync.replicas"]), len(partition.replicas))  # Partition.effectiveMinIsr
    if call.request.acks == _ALL_ACKS and len(partition.isr) < least:
        raise RefusedError(ErrorCode.NOT_ENOUGH_REPLICAS)
    check_batch(batch)
    if len(batch.data) > int(settings["max.message.bytes"]):
        raise RefusedError(ErrorCode.MESSAGE_TOO_LARGE)
    if batch.is_transactional and not call.request.transactional_id:
        raise RefusedError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    _check_transaction(call, topic.name, partition.index, batch)
    return batch


def _append(call: Call, topic: Topic, partition: Partition, batch: StoredBatch) -> Message:
    append_time = call.now_ms if call.state.setting("message.timestamp.type", topic.name) == "LogAppendTime" else None
    try:
        _check_content(call, topic, batch)
        base_offset = partition.log.append(batch, append_time)
    except RefusedError as error:
        raise _ContentError(error.code, error.message) from error
    if call.broker.isolation is not None and call.request.acks == _ALL_ACKS:
        raise RefusedError(ErrorCode.REQUEST_TIMED_OUT)
    return _PartitionAnswer(
        index=partition.index,
        error_code=ErrorCode.NONE,
        base_offset=base_offset,
        log_append_time_ms=-1 if append_time is None else append_time,
        log_start_offset=partition.log.start_offset,
        record_errors=[],
    )


def _check_content(call: Call, topic: Topic, batch: StoredBatch) -> None:
    if batch.is_control:
        raise RefusedError(ErrorCode.INVALID_RECORD, "clients may not write control records")
    compacted = "compact" in call.state.setting("cleanup.policy", topic.name)
    if compacted and any(span.record.key is None for span in spans(batch)):
        said = "Compacted topic cannot accept message without key in topic partition."
        raise RefusedError(ErrorCode.INVALID_RECORD, said)


def _check_transaction(call: Call, topic: str, index: int, batch: StoredBatch) -> None:
    """KIP-890: a transactional write belongs to an open transaction; under version 2 it starts it, or joins it."""
    if not batch.is_transactional:
        return
    sender = ProducerIdentity(batch.producer_id, batch.producer_epoch)
    transactional_id = call.request.transactional_id
    transactions = call.state.transactions
    try:
        if call.version >= _IMPLICIT_ADDITION:
            transactions.add(transactional_id, sender, [(topic, index)], call.now_ms, version=2)
        else:
            transactions.verify(transactional_id, sender, (topic, index))
    except RefusedError as error:
        raise RefusedError(_as_produce_says(error.code, call.version), error.message) from None


def _as_produce_says(code: int, version: int) -> int:
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if code == ErrorCode.CONCURRENT_TRANSACTIONS and version < _IMPLICIT_ADDITION:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code
