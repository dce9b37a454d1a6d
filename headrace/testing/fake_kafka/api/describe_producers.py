"""API key 61, DescribeProducers: KIP-664, what a partition remembers of the producers that wrote to it."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import DescribeProducersResponse, Message
from headrace.testing.fake_kafka.state.logs.producers import ProducerState

_TopicAnswer = DescribeProducersResponse.TopicResponse
_PartitionAnswer = _TopicAnswer.PartitionResponse


def handle(call: Call) -> Message:
    topics = []
    for topic in call.request.topics:
        items = [_answer(call, topic.name, index) for index in topic.partition_indexes]
        topics.append(_TopicAnswer(name=topic.name, partitions=items))
    return DescribeProducersResponse(topics=topics)


def _answer(call: Call, topic: str, index: int) -> Message:
    try:
        log = call.led_partition(topic, index).log
    except RefusedError as error:
        return _PartitionAnswer(partition_index=index, error_code=error.code, error_message=error.message, active_producers=[])
    found = [_described(number, state) for number, state in sorted(log.producers.states.items())]
    return _PartitionAnswer(partition_index=index, error_code=ErrorCode.NONE, active_producers=found)


def _described(producer_id: int, state: ProducerState) -> Message:
    return _PartitionAnswer.ProducerState(
        producer_id=producer_id,
        producer_epoch=state.epoch,
        last_sequence=state.last_sequence,
        last_timestamp=state.last_timestamp_ms,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=-1 if state.transaction_start is None else state.transaction_start,
    )


API = Api(61, "DescribeProducers", 0, 0, DescribeProducersResponse, handle)
