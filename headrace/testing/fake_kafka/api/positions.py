"""Offsets in the log: by time, and by leader epoch."""

from __future__ import annotations

from typing import NamedTuple

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import ListOffsetsResponse, Message, OffsetForLeaderEpochResponse
from headrace.testing.fake_kafka.state.logs.cleaning import spans
from headrace.testing.fake_kafka.state.logs.log import Log

_ListOffsetsTopicAnswer = ListOffsetsResponse.ListOffsetsTopicResponse
_ListOffsetsPartitionAnswer = _ListOffsetsTopicAnswer.ListOffsetsPartitionResponse
_READ_COMMITTED = 1
_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5
_OLDEST_WITH = {_MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}


class _Found(NamedTuple):
    timestamp: int
    offset: int
    epoch: int


_NOTHING = _Found(-1, -1, -1)


def _list_offsets(call: Call) -> Message:
    """Of the leader only; a timestamp after every record's answers -1.

    KIP-79 (by timestamp), KIP-98 (isolation), KIP-320 (epochs), KIP-405, KIP-734 (max timestamp).
    """
    topics = []
    for topic in call.request.topics:
        items = [_list_offsets_answer(call, topic.name, item) for item in topic.partitions]
        topics.append(_ListOffsetsTopicAnswer(name=topic.name, partitions=items))
    return ListOffsetsResponse(topics=topics)


def _list_offsets_answer(call: Call, topic: str, item: Message) -> Message:
    code: int = ErrorCode.NONE
    found = _NOTHING
    try:
        partition = call.led_partition(topic, item.partition_index, item.current_leader_epoch)
        if item.timestamp < 0 and call.version < _OLDEST_WITH.get(item.timestamp, 0):
            raise RefusedError(ErrorCode.UNSUPPORTED_VERSION)
        committed = call.request.isolation_level == _READ_COMMITTED
        until = partition.log.last_stable_offset if committed else partition.log.high_watermark
        found = _find(partition.log, item.timestamp, until)
    except RefusedError as error:
        code = error.code
    return _ListOffsetsPartitionAnswer(
        partition_index=item.partition_index,
        error_code=code,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.epoch,
    )


def _find(log: Log, timestamp: int, until: int) -> _Found:
    if timestamp == _LATEST:
        return _Found(-1, until, log.epochs.latest)
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return _Found(-1, log.start_offset, log.epochs.at(log.start_offset))
    if timestamp == _LATEST_TIERED:
        return _NOTHING
    if timestamp == _MAX_TIMESTAMP:
        greatest = _greatest(log)
        return greatest if greatest.offset < until else _NOTHING
    if timestamp < 0:
        raise RefusedError(ErrorCode.UNSUPPORTED_VERSION)
    return _first_from(log, timestamp, until)


def _greatest(log: Log) -> _Found:
    batch = max(log.batches, key=lambda batch: batch.max_timestamp_ms, default=None)
    if batch is None:
        return _NOTHING
    if batch.is_control:
        return _Found(batch.max_timestamp_ms, batch.base_offset, batch.leader_epoch)
    found = next(span for span in spans(batch) if span.timestamp_ms == batch.max_timestamp_ms)
    return _Found(found.timestamp_ms, found.offset, batch.leader_epoch)


def _first_from(log: Log, timestamp: int, until: int) -> _Found:
    for batch in log.batches:
        if batch.max_timestamp_ms < timestamp:
            continue
        if batch.is_control:
            found = _Found(batch.max_timestamp_ms, batch.base_offset, batch.leader_epoch)
            return found if found.offset < until else _NOTHING
        for span in spans(batch):
            if span.timestamp_ms >= timestamp and span.offset >= log.start_offset:
                return _Found(span.timestamp_ms, span.offset, batch.leader_epoch) if span.offset < until else _NOTHING
    return _NOTHING


LIST_OFFSETS = Api(2, "ListOffsets", 1, 11, ListOffsetsResponse, _list_offsets)


_OffsetForLeaderEpochTopicAnswer = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_OffsetForLeaderEpochPartitionAnswer = _OffsetForLeaderEpochTopicAnswer.EpochEndOffset


def _offset_for_leader_epoch(call: Call) -> Message:
    """KIP-101, KIP-279, KIP-320: by this a client finds out that the log was truncated."""
    topics = [
        _OffsetForLeaderEpochTopicAnswer(
            topic=topic.topic,
            partitions=[_offset_for_leader_epoch_answer(call, topic.topic, item) for item in topic.partitions],
        )
        for topic in call.request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


def _offset_for_leader_epoch_answer(call: Call, topic: str, item: Message) -> Message:
    try:
        partition = call.led_partition(topic, item.partition, item.current_leader_epoch)
        epoch, end_offset = partition.log.epochs.end_of(item.leader_epoch, partition.log.high_watermark)
    except RefusedError as error:
        return _OffsetForLeaderEpochPartitionAnswer(
            partition=item.partition, error_code=error.code, leader_epoch=-1, end_offset=-1
        )
    return _OffsetForLeaderEpochPartitionAnswer(
        partition=item.partition, error_code=ErrorCode.NONE, leader_epoch=epoch, end_offset=end_offset
    )


OFFSET_FOR_LEADER_EPOCH = Api(23, "OffsetForLeaderEpoch", 2, 4, OffsetForLeaderEpochResponse, _offset_for_leader_epoch)
