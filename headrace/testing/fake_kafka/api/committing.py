"""What the calls that change a group's offsets share: who may commit, what is checked of an offset, the form of the answer."""

from __future__ import annotations

from collections.abc import Callable

from headrace.testing.fake_kafka.calls import Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import Message
from headrace.testing.fake_kafka.state.groups import Group, GroupState
from headrace.testing.fake_kafka.state.offsets import OffsetAndMetadata

__all__ = ["by_partition", "check_committer", "checked_offset"]

_MAX_METADATA = "offset.metadata.max.bytes"


def by_partition(
    call: Call, topic_answer: Message, partition_answer: Message, change: Callable[[Message, Message], None], code: int = 0
) -> list[Message]:
    """The topics of the answer: an error code for each partition, which is `code` for all or what `change` is refused with."""

    def error_code(topic: Message, item: Message) -> int:
        try:
            change(topic, item)
        except RefusedError as error:
            return error.code
        return ErrorCode.NONE

    topics = []
    for topic in call.request.topics:
        items = [
            partition_answer(partition_index=item.partition_index, error_code=code or error_code(topic, item))
            for item in topic.partitions
        ]
        ids = {"topic_id": topic.topic_id} if hasattr(topic, "topic_id") else {}  # of later versions of OffsetCommit
        topics.append(topic_answer(name=topic.name, **ids, partitions=items))
    return topics


def checked_offset(call: Call, topic: str, item: Message) -> OffsetAndMetadata:
    """The offset that a request commits for a partition. Raises RefusedError."""
    call.partition(topic, item.partition_index)
    metadata = item.committed_metadata or ""
    if len(metadata) > int(call.state.config[_MAX_METADATA]):
        raise RefusedError(ErrorCode.OFFSET_METADATA_TOO_LARGE)
    return OffsetAndMetadata(item.committed_offset, item.committed_leader_epoch, metadata)


def check_committer(group: Group, generation: int, member_id: str, instance_id: str | None) -> None:
    """A member in its generation; or any process, without a generation, while the group has no members. Raises RefusedError."""
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation < 0 and not member_id and instance_id is None:
        raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
    group.check(member_id, instance_id, generation)
    if group.state is GroupState.COMPLETING:
        raise RefusedError(ErrorCode.REBALANCE_IN_PROGRESS)
