"""API key 43, ElectLeaders: KIP-183 (the preferred leader), KIP-460."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import ElectLeadersResponse, Message
from headrace.testing.fake_kafka.state.topics import Partition

_TopicAnswer = ElectLeadersResponse.ReplicaElectionResult


def handle(call: Call) -> Message:
    call.admit()
    wanted = call.request.topic_partitions
    if wanted is None:
        asked = [(topic.name, [partition.index for partition in topic.partitions]) for topic in call.state.topics]
    else:
        asked = [(topic.topic, list(topic.partitions)) for topic in wanted]
    answers = [
        _TopicAnswer(topic=name, partition_result=[_answer(call, name, each) for each in indexes]) for name, indexes in asked
    ]
    return ElectLeadersResponse(error_code=ErrorCode.NONE, replica_election_results=answers)


def _answer(call: Call, topic: str, index: int) -> Message:
    code: int = ErrorCode.NONE
    said = None
    try:
        _elect(call.partition(topic, index))
    except RefusedError as error:
        code, said = error.code, error.message
    return _TopicAnswer.PartitionResult(partition_id=index, error_code=code, error_message=said)


def _elect(partition: Partition) -> None:
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise RefusedError(ErrorCode.ELECTION_NOT_NEEDED)
    if preferred not in partition.isr:
        raise RefusedError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    partition.lead(preferred)


API = Api(43, "ElectLeaders", 0, 2, ElectLeadersResponse, handle)
