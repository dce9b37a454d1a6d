"""API key 9, OffsetFetch: KIP-447 (require_stable), KIP-709 (many groups), KIP-848 (topic ids, version 10)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import Message, OffsetFetchResponse
from headrace.testing.fake_kafka.state.offsets import GroupOffsets, OffsetAndMetadata

_MANY = 8
_BY_ID = 10
_NOTHING = OffsetAndMetadata(-1, -1, "")


class _Wanted(NamedTuple):
    name: str
    topic_id: uuid.UUID | None
    indexes: list[int]


def handle(call: Call) -> Message:
    """-1 for a partition of which nothing is committed."""
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


API = Api(9, "OffsetFetch", 1, 10, OffsetFetchResponse, handle)
