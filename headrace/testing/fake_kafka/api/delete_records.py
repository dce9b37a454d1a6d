"""API key 21, DeleteRecords: KIP-107."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import DeleteRecordsResponse, Message

_TopicAnswer = DeleteRecordsResponse.DeleteRecordsTopicResult
_PartitionAnswer = _TopicAnswer.DeleteRecordsPartitionResult
_HIGH_WATERMARK = -1


def handle(call: Call) -> Message:
    """Everything before an offset, -1 being the high watermark."""
    topics = []
    for topic in call.request.topics:
        items = [_answer(call, topic.name, item) for item in topic.partitions]
        topics.append(_TopicAnswer(name=topic.name, partitions=items))
    return DeleteRecordsResponse(topics=topics)


def _answer(call: Call, topic: str, item: Message) -> Message:
    try:
        log = call.led_partition(topic, item.partition_index).log
        if "delete" not in call.state.setting("cleanup.policy", topic):
            raise RefusedError(ErrorCode.POLICY_VIOLATION)
        offset = log.high_watermark if item.offset == _HIGH_WATERMARK else item.offset
        if not 0 <= offset <= log.high_watermark:
            raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE)
        log.delete_before(offset)
    except RefusedError as error:
        return _PartitionAnswer(partition_index=item.partition_index, low_watermark=-1, error_code=error.code)
    return _PartitionAnswer(partition_index=item.partition_index, low_watermark=log.start_offset, error_code=ErrorCode.NONE)


API = Api(21, "DeleteRecords", 0, 2, DeleteRecordsResponse, handle)
