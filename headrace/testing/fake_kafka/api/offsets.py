"""Offsets that groups commit, also within transactions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError, code_of
from headrace.testing.fake_kafka.protocol import (
    Message,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    TxnOffsetCommitResponse,
)
from headrace.testing.fake_kafka.state.brokers import coordinator_partition
from headrace.testing.fake_kafka.state.cluster import OFFSETS_TOPIC
from headrace.testing.fake_kafka.state.groups import Group, GroupState
from headrace.testing.fake_kafka.state.offsets import GroupOffsets, OffsetAndMetadata
from headrace.testing.fake_kafka.state.transactions import ProducerIdentity

_MAX_METADATA = "offset.metadata.max.bytes"


def by_partition(
    call: Call, topic_answer: Message, partition_answer: Message, change: Callable[[Message, Message], None], code: int = 0
) -> list[Message]:
    """The topics of the answer: an error code for each partition, which is `code` for all or what `change` is refused with."""
    topics = []
    for topic in call.request.topics:
        items = [
            partition_answer(partition_index=item.partition_index, error_code=code or code_of(partial(change, topic, item)))
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


_OffsetCommitTopicAnswer = OffsetCommitResponse.OffsetCommitResponseTopic
_OffsetCommitPartitionAnswer = _OffsetCommitTopicAnswer.OffsetCommitResponsePartition

_SAYS_NOT_FOUND = 9


def _offset_commit(call: Call) -> Message:
    """KIP-320 (leader epochs), KIP-345, KIP-848 (topic ids, version 10)."""
    code = code_of(partial(_check, call))
    topics = by_partition(
        call, _OffsetCommitTopicAnswer, _OffsetCommitPartitionAnswer, partial(_offset_commit_commit, call), code
    )
    return OffsetCommitResponse(topics=topics)


def _check(call: Call) -> None:
    request = call.request
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, request.group_id)
    generation = request.generation_id_or_member_epoch
    if generation >= 0 and request.group_id not in call.state.groups.by_id:
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND if call.version >= _SAYS_NOT_FOUND else ErrorCode.ILLEGAL_GENERATION)
    group = call.state.groups.get_or_create(request.group_id)
    check_committer(group, generation, request.member_id, request.group_instance_id)
    if request.member_id in group.members:
        group.members[request.member_id].seen_ms = call.now_ms


def _offset_commit_commit(call: Call, topic: Message, item: Message) -> None:
    name = call.topic(topic.name, topic.topic_id).name
    committed = checked_offset(call, name, item)
    call.state.commit_offsets(call.request.group_id, {(name, item.partition_index): committed})


OFFSET_COMMIT = Api(8, "OffsetCommit", 2, 10, OffsetCommitResponse, _offset_commit)


_TxnOffsetCommitTopicAnswer = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_TxnOffsetCommitPartitionAnswer = _TxnOffsetCommitTopicAnswer.TxnOffsetCommitResponsePartition
_IMPLICIT_ADDITION = 5
_AS_SAID_HERE: dict[int, int] = {
    ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}


def _txn_offset_commit(call: Call) -> Message:
    """KIP-98, KIP-447 (members and generations), KIP-890 (version 5 joins the transaction itself)."""
    code = code_of(partial(_join, call))
    topics = by_partition(
        call, _TxnOffsetCommitTopicAnswer, _TxnOffsetCommitPartitionAnswer, partial(_txn_offset_commit_commit, call), code
    )
    return TxnOffsetCommitResponse(topics=topics)


def _join(call: Call) -> None:
    request = call.request
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, request.group_id)
    group = call.state.groups.get_or_create(request.group_id)
    if request.generation_id >= 0 or request.member_id or request.group_instance_id is not None:
        group.check(request.member_id, request.group_instance_id, request.generation_id)
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    partition = (OFFSETS_TOPIC, coordinator_partition(request.group_id))
    transactions = call.state.transactions
    try:
        if call.version >= _IMPLICIT_ADDITION:
            transactions.add(request.transactional_id, producer, [partition], call.now_ms, version=2)
        else:
            transactions.verify(request.transactional_id, producer, partition)
    except RefusedError as error:
        raise RefusedError(_AS_SAID_HERE.get(error.code, error.code)) from None


def _txn_offset_commit_commit(call: Call, topic: Message, item: Message) -> None:
    committed = checked_offset(call, topic.name, item)
    offsets = call.state.groups.get_or_create(call.request.group_id).offsets
    offsets.commit_in_transaction(call.request.producer_id, {(topic.name, item.partition_index): committed})


TXN_OFFSET_COMMIT = Api(28, "TxnOffsetCommit", 0, 5, TxnOffsetCommitResponse, _txn_offset_commit)


_MANY = 8
_BY_ID = 10
_NOTHING = OffsetAndMetadata(-1, -1, "")


class _Wanted(NamedTuple):
    name: str
    topic_id: uuid.UUID | None
    indexes: list[int]


def _offset_fetch(call: Call) -> Message:
    """-1 for a partition of which nothing is committed.

    KIP-447 (require_stable), KIP-709 (many groups), KIP-848 (topic ids, version 10).
    """
    request = call.request
    if call.version >= _MANY:
        return OffsetFetchResponse(groups=[_group(call, group) for group in request.groups])
    topics = None if request.topics is None else [_Wanted(each.name, None, each.partition_indexes) for each in request.topics]
    kind = OffsetFetchResponse.OffsetFetchResponseTopic
    try:
        found = _find(call, request.group_id, topics)
    except RefusedError as error:
        return OffsetFetchResponse(error_code=error.code, topics=[])
    answers = [
        kind(name=wanted.name, partitions=[_partition(kind.OffsetFetchResponsePartition, *item) for item in items])
        for wanted, items in found
    ]
    return OffsetFetchResponse(error_code=ErrorCode.NONE, topics=answers)


def _group(call: Call, group: Message) -> Message:
    kind = OffsetFetchResponse.OffsetFetchResponseGroup
    parts = kind.OffsetFetchResponseTopics
    topics = (
        None if group.topics is None else [_Wanted(each.name, each.topic_id, each.partition_indexes) for each in group.topics]
    )
    try:
        found = _find(call, group.group_id, topics)
    except RefusedError as error:
        return kind(group_id=group.group_id, topics=[], error_code=error.code)
    answers = [
        parts(
            name=wanted.name,
            topic_id=wanted.topic_id,
            partitions=[_partition(parts.OffsetFetchResponsePartitions, *item) for item in items],
        )
        for wanted, items in found
    ]
    return kind(group_id=group.group_id, topics=answers, error_code=ErrorCode.NONE)


def _find(
    call: Call, group_id: str, topics: Iterable[_Wanted] | None
) -> list[tuple[_Wanted, list[tuple[int, OffsetAndMetadata, int]]]]:
    call.admit()
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, group_id)
    group = call.state.groups.by_id.get(group_id)
    offsets = GroupOffsets() if group is None else group.offsets
    found = []
    for wanted in _all(call, offsets) if topics is None else topics:
        found.append((wanted, [_one(call, offsets, wanted, index) for index in wanted.indexes]))
    return found


def _all(call: Call, offsets: GroupOffsets) -> list[_Wanted]:
    topics: dict[str, list[int]] = {}
    for name, index in sorted(offsets.committed):
        topics.setdefault(name, []).append(index)
    known = call.state.topics.by_name
    return [_Wanted(name, known[name].id, indexes) for name, indexes in topics.items() if name in known]


def _one(call: Call, offsets: GroupOffsets, wanted: _Wanted, index: int) -> tuple[int, OffsetAndMetadata, int]:
    try:
        name = call.topic(wanted.name, wanted.topic_id).name if call.version >= _BY_ID else wanted.name
    except RefusedError as error:
        return index, _NOTHING, error.code
    if call.request.require_stable and offsets.is_unstable((name, index)):
        return index, _NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT
    return index, offsets.committed.get((name, index), _NOTHING), ErrorCode.NONE


def _partition(kind: Message, index: int, committed: OffsetAndMetadata, code: int) -> Message:
    return kind(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=code,
    )


OFFSET_FETCH = Api(9, "OffsetFetch", 1, 10, OffsetFetchResponse, _offset_fetch)


_OffsetDeleteTopicAnswer = OffsetDeleteResponse.OffsetDeleteResponseTopic
_OffsetDeletePartitionAnswer = _OffsetDeleteTopicAnswer.OffsetDeleteResponsePartition


def _offset_delete(call: Call) -> Message:
    """Not of topics that the group's members are subscribed to. KIP-496."""
    call.admit()
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, call.request.group_id)
    group = call.state.groups.known(call.request.group_id)
    if group.members and group.protocol_type != "consumer":
        raise RefusedError(ErrorCode.NON_EMPTY_GROUP)
    topics = by_partition(call, _OffsetDeleteTopicAnswer, _OffsetDeletePartitionAnswer, partial(_delete, call, group))
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics)


def _delete(call: Call, group: Group, topic: Message, item: Message) -> None:
    call.partition(topic.name, item.partition_index)
    if topic.name in group.subscribed_topics():
        raise RefusedError(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    group.offsets.forget((topic.name, item.partition_index))


OFFSET_DELETE = Api(47, "OffsetDelete", 0, 0, OffsetDeleteResponse, _offset_delete)
