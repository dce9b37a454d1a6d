"""Offsets that groups commit, also within transactions."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Call, serves
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError, code_of
from headrace.testing.fake_kafka.protocol import Message, consumer, producer
from headrace.testing.fake_kafka.state.brokers import coordinator_partition
from headrace.testing.fake_kafka.state.cluster import OFFSETS_TOPIC
from headrace.testing.fake_kafka.state.groups import Group, GroupState
from headrace.testing.fake_kafka.state.offsets import GroupOffsets, OffsetAndMetadata
from headrace.testing.fake_kafka.state.transactions import ProducerIdentity


def _by_partition(call: Call, kind: Message, change: Callable[[Message, Message], None], code: int = 0) -> list[Message]:
    """The topics of an answer: an error code for each partition, which is `code` for all or what `change` is refused with."""
    of_topic = getattr(kind, f"{kind.__name__}Topic")
    of_partition = getattr(of_topic, f"{kind.__name__}Partition")
    topics = []
    for topic in call.request.topics:
        items = [
            of_partition(partition_index=item.partition_index, error_code=code or code_of(partial(change, topic, item)))
            for item in topic.partitions
        ]
        ids = {"topic_id": topic.topic_id} if hasattr(topic, "topic_id") else {}  # of later versions of OffsetCommit
        topics.append(of_topic(name=topic.name, **ids, partitions=items))
    return topics


def _checked_offset(call: Call, topic: str, item: Message) -> OffsetAndMetadata:
    """The offset that a request commits for a partition. Raises RefusedError."""
    call.partition(topic, item.partition_index)
    metadata = item.committed_metadata or ""
    if len(metadata) > int(call.state.config["offset.metadata.max.bytes"]):
        raise RefusedError(ErrorCode.OFFSET_METADATA_TOO_LARGE)
    return OffsetAndMetadata(item.committed_offset, item.committed_leader_epoch, metadata)


def _check_committer(group: Group, generation: int, member_id: str, instance_id: str | None) -> None:
    """A member in its generation; or any process, without a generation, while the group has no members. Raises RefusedError."""
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation < 0 and not member_id and instance_id is None:
        raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
    group.check(member_id, instance_id, generation)
    if group.state is GroupState.COMPLETING:
        raise RefusedError(ErrorCode.REBALANCE_IN_PROGRESS)


_SAYS_NOT_FOUND = 9


@serves(consumer.OffsetCommitResponse, 2, 10)
def _offset_commit(call: Call) -> Message:
    """KIP-320 (leader epochs), KIP-345, KIP-848 (topic ids, version 10)."""
    kind, code = consumer.OffsetCommitResponse, code_of(partial(_check, call))
    return kind(topics=_by_partition(call, kind, partial(_offset_commit_commit, call), code))


def _check(call: Call) -> None:
    request = call.request
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, request.group_id)
    generation = request.generation_id_or_member_epoch
    if generation >= 0 and request.group_id not in call.state.groups.by_id:
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND if call.version >= _SAYS_NOT_FOUND else ErrorCode.ILLEGAL_GENERATION)
    group = call.state.groups.get_or_create(request.group_id)
    _check_committer(group, generation, request.member_id, request.group_instance_id)
    if request.member_id in group.members:
        group.members[request.member_id].seen_ms = call.now_ms


def _offset_commit_commit(call: Call, topic: Message, item: Message) -> None:
    name = call.topic(topic.name, topic.topic_id).name
    committed = _checked_offset(call, name, item)
    call.state.commit_offsets(call.request.group_id, {(name, item.partition_index): committed})


_IMPLICIT_ADDITION = 5
_AS_SAID_HERE: dict[int, int] = {
    ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}


@serves(producer.TxnOffsetCommitResponse, 0, 5)
def _txn_offset_commit(call: Call) -> Message:
    """KIP-98, KIP-447 (members and generations), KIP-890 (version 5 joins the transaction itself)."""
    kind, code = producer.TxnOffsetCommitResponse, code_of(partial(_join, call))
    return kind(topics=_by_partition(call, kind, partial(_txn_offset_commit_commit, call), code))


def _join(call: Call) -> None:
    request = call.request
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, request.group_id)
    group = call.state.groups.get_or_create(request.group_id)
    if request.generation_id >= 0 or request.member_id or request.group_instance_id is not None:
        group.check(request.member_id, request.group_instance_id, request.generation_id)
    sender = ProducerIdentity(request.producer_id, request.producer_epoch)
    partition = (OFFSETS_TOPIC, coordinator_partition(request.group_id))
    transactions = call.state.transactions
    try:
        if call.version >= _IMPLICIT_ADDITION:
            transactions.add(request.transactional_id, sender, [partition], call.now_ms, version=2)
        else:
            transactions.verify(request.transactional_id, sender, partition)
    except RefusedError as error:
        raise RefusedError(_AS_SAID_HERE.get(error.code, error.code)) from None


def _txn_offset_commit_commit(call: Call, topic: Message, item: Message) -> None:
    committed = _checked_offset(call, topic.name, item)
    offsets = call.state.groups.get_or_create(call.request.group_id).offsets
    offsets.commit_in_transaction(call.request.producer_id, {(topic.name, item.partition_index): committed})


_MANY = 8
_BY_ID = 10
_NOTHING = OffsetAndMetadata(-1, -1, "")


class _Wanted(NamedTuple):
    name: str
    topic_id: uuid.UUID | None
    indexes: list[int]


@serves(consumer.OffsetFetchResponse, 1, 10)
def _offset_fetch(call: Call) -> Message:
    """-1 for a partition of which nothing is committed.

    KIP-447 (require_stable), KIP-709 (many groups), KIP-848 (topic ids, version 10).
    """
    kind = consumer.OffsetFetchResponse
    if call.version < _MANY:
        topic = kind.OffsetFetchResponseTopic
        return kind(**_of_group(call, call.request, topic, topic.OffsetFetchResponsePartition))
    of_group, topic = kind.OffsetFetchResponseGroup, kind.OffsetFetchResponseGroup.OffsetFetchResponseTopics
    groups = []
    for asked in call.request.groups:
        found = _of_group(call, asked, topic, topic.OffsetFetchResponsePartitions)
        groups.append(of_group(group_id=asked.group_id, **found))
    return kind(groups=groups)


def _of_group(call: Call, asked: Message, kind: Message, of_partition: Message) -> dict[str, Any]:
    """`error_code` and `topics` of an answer; `asked` is the request, or in later versions its part about a group."""
    try:
        call.admit()
        call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, asked.group_id)
    except RefusedError as error:
        return {"error_code": error.code, "topics": []}
    group = call.state.groups.by_id.get(asked.group_id)
    offsets = GroupOffsets() if group is None else group.offsets
    answers = []
    for topic in _all(call, offsets) if asked.topics is None else map(_wanted, asked.topics):
        items = [_partition(of_partition, index, *_one(call, offsets, topic, index)) for index in topic.indexes]
        ids = {"topic_id": topic.topic_id} if call.version >= _MANY else {}
        answers.append(kind(name=topic.name, **ids, partitions=items))
    return {"error_code": ErrorCode.NONE, "topics": answers}


def _wanted(topic: Message) -> _Wanted:
    return _Wanted(topic.name, getattr(topic, "topic_id", None), topic.partition_indexes)


def _all(call: Call, offsets: GroupOffsets) -> list[_Wanted]:
    topics: dict[str, list[int]] = {}
    for name, index in sorted(offsets.committed):
        topics.setdefault(name, []).append(index)
    known = call.state.topics.by_name
    return [_Wanted(name, known[name].id, indexes) for name, indexes in topics.items() if name in known]


def _one(call: Call, offsets: GroupOffsets, wanted: _Wanted, index: int) -> tuple[OffsetAndMetadata, int]:
    try:
        name = call.topic(wanted.name, wanted.topic_id).name if call.version >= _BY_ID else wanted.name
    except RefusedError as error:
        return _NOTHING, error.code
    if call.request.require_stable and offsets.is_unstable((name, index)):
        return _NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT
    return offsets.committed.get((name, index), _NOTHING), ErrorCode.NONE


def _partition(kind: Message, index: int, committed: OffsetAndMetadata, code: int) -> Message:
    return kind(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=code,
    )


@serves(consumer.OffsetDeleteResponse, 0, 0)
def _offset_delete(call: Call) -> Message:
    """Not of topics that the group's members are subscribed to. KIP-496."""
    call.admit()
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, call.request.group_id)
    group = call.state.groups.known(call.request.group_id)
    if group.members and group.protocol_type != "consumer":
        raise RefusedError(ErrorCode.NON_EMPTY_GROUP)
    kind = consumer.OffsetDeleteResponse
    return kind(error_code=ErrorCode.NONE, topics=_by_partition(call, kind, partial(_delete, call, group)))


def _delete(call: Call, group: Group, topic: Message, item: Message) -> None:
    call.partition(topic.name, item.partition_index)
    if topic.name in group.subscribed_topics():
        raise RefusedError(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    group.offsets.committed.pop((topic.name, item.partition_index), None)
