"""API key 24, AddPartitionsToTxn: KIP-98. Versions from 4 on are for brokers among themselves (KIP-890)."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import AddPartitionsToTxnResponse, Message
from headrace.testing.fake_kafka.state.transactions import ProducerIdentity

_TopicAnswer = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_PartitionAnswer = _TopicAnswer.AddPartitionsToTxnPartitionResult


def handle(call: Call) -> Message:
    """All of them, or none: one that does not exist keeps the others out (OPERATION_NOT_ATTEMPTED, 55)."""
    request = call.request
    wanted = [(topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions]
    codes = _codes(call, wanted)
    topics = []
    for topic in request.v3_and_below_topics:
        items = [
            _PartitionAnswer(partition_index=index, partition_error_code=codes[topic.name, index]) for index in topic.partitions
        ]
        topics.append(_TopicAnswer(name=topic.name, results_by_partition=items))
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)


def _codes(call: Call, wanted: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    missing = {key for key in wanted if not _exists(call, key)}
    if missing:
        refused = {key: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if key in missing else _NOT_ATTEMPTED for key in wanted}
        return {key: int(code) for key, code in refused.items()}
    request = call.request
    producer = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    try:
        for topic, index in wanted:
            call.admit(topic, index)
        transactional_id = request.v3_and_below_transactional_id
        call.state.check_coordinator(call.broker, CoordinatorKind.TRANSACTION, transactional_id)
        call.state.transactions.add(transactional_id, producer, wanted, call.now_ms)
    except RefusedError as error:
        return dict.fromkeys(wanted, int(error.code))
    return dict.fromkeys(wanted, 0)


def _exists(call: Call, key: tuple[str, int]) -> bool:
    topic = call.state.topics.by_name.get(key[0])
    return topic is not None and 0 <= key[1] < len(topic.partitions)


_NOT_ATTEMPTED = 55

API = Api(24, "AddPartitionsToTxn", 0, 3, AddPartitionsToTxnResponse, handle)
