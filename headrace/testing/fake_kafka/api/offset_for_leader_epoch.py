"""API key 23, OffsetForLeaderEpoch: KIP-101, KIP-279, KIP-320: by this a client finds out that the log was truncated."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import Message, OffsetForLeaderEpochResponse

_TopicAnswer = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_PartitionAnswer = _TopicAnswer.EpochEndOffset


def handle(call: Call) -> Message:
    topics = [
        _TopicAnswer(topic=topic.topic, partitions=[_answer(call, topic.topic, item) for item in topic.partitions])
        for topic in call.request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


def _answer(call: Call, topic: str, item: Message) -> Message:
    try:
        partition = call.led_partition(topic, item.partition, item.current_leader_epoch)
        epoch, end_offset = partition.log.epochs.end_of(item.leader_epoch, partition.log.high_watermark)
    except RefusedError as error:
        return _PartitionAnswer(partition=item.partition, error_code=error.code, leader_epoch=-1, end_offset=-1)
    return _PartitionAnswer(partition=item.partition, error_code=ErrorCode.NONE, leader_epoch=epoch, end_offset=end_offset)


API = Api(23, "OffsetForLeaderEpoch", 2, 4, OffsetForLeaderEpochResponse, handle)
