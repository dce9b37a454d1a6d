"""API key 20, DeleteTopics: KIP-4, KIP-516 (by id, version 6)."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import DeleteTopicsResponse, Message

_Answer = DeleteTopicsResponse.DeletableTopicResult
_BY_ID = 6


def handle(call: Call) -> Message:
    if call.version >= _BY_ID:
        return DeleteTopicsResponse(responses=[_delete(call, item.name, item.topic_id) for item in call.request.topics])
    return DeleteTopicsResponse(responses=[_delete(call, name, None) for name in call.request.topic_names])


def _delete(call: Call, name: str | None, topic_id: Message) -> Message:
    by_id = topic_id if topic_id is not None and topic_id.int else None
    try:
        call.admit(name)
        topic = call.topic(name or "", by_id)
        call.state.delete_topic(topic)
    except RefusedError as error:
        return _Answer(name=name, topic_id=topic_id, error_code=error.code, error_message=error.message)
    return _Answer(name=topic.name, topic_id=topic.id, error_code=ErrorCode.NONE)


API = Api(20, "DeleteTopics", 1, 6, DeleteTopicsResponse, handle)
