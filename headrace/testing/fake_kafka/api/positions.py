"""Offsets in the log: by time, and by leader epoch."""

from __future__ import annotations

from typing import NamedTuple

from headrace.testing.fake_kafka.calls import Call, serves
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import Message, consumer
from headrace.testing.fake_kafka.state.logs.cleaning import spans
from headrace.testing.fake_kafka.state.logs.log import Log

_READ_COMMITTED = 1
_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5
_OLDEST_WITH = {_MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}


class _Found(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


_NOTHING = _Found(-1, -1, -1)


@serves(consumer.ListOffsetsResponse, 1, 11)
def _list_offsets(call: Call) -> Message:
    """Of the leader only; a timestamp after every record's answers -1.

    KIP-79 (by timestamp), KIP-98 (isolation), KIP-320 (epochs), KIP-405, KIP-734 (max timestamp).
    """
    kind = consumer.ListOffsetsResponse.ListOffsetsTopicResponse
    topics = []
    for topic in call.request.topics:
        items = [_offset(kind.ListOffsetsPartitionResponse, call, topic.name, item) for item in topic.partitions]
        topics.append(kind(name=topic.name, partitions=items))
    return consumer.ListOffsetsResponse(topics=topics)


def _offset(kind: Message, call: Call, topic: str, item: Message) -> Message:
    code, found = int(ErrorCode.NONE), _NOTHING
    try:
        partition = call.led_partition(topic, item.partition_index, item.current_leader_epoch)
        if item.timestamp < 0 and call.version < _OLDEST_WITH.get(item.timestamp, 0):
            raise RefusedError(ErrorCode.UNSUPPORTED_VERSION)
        committed = call.request.isolation_level == _READ_COMMITTED
        until = partition.log.last_stable_offset if committed else partition.log.high_watermark
        found = _find(partition.log, item.timestamp, until)
    except RefusedError as error:
        code = error.code
    return kind(partition_index=item.partition_index, error_code=code, **found._asdict())


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


@serves(consumer.OffsetForLeaderEpochResponse, 2, 4)
def _offset_for_leader_epoch(call: Call) -> Message:
    """KIP-101, KIP-279, KIP-320: by this a client finds out that the log was truncated."""
    kind = consumer.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    topics = []
    for topic in call.request.topics:
        items = [_end_of_epoch(kind.EpochEndOffset, call, topic.topic, item) for item in topic.partitions]
        topics.append(kind(topic=topic.topic, partitions=items))
    return consumer.OffsetForLeaderEpochResponse(topics=topics)


def _end_of_epoch(kind: Message, call: Call, topic: str, item: Message) -> Message:
    code, epoch, end_offset = int(ErrorCode.NONE), -1, -1
    try:
        log = call.led_partition(topic, item.partition, item.current_leader_epoch).log
        epoch, end_offset = log.epochs.end_of(item.leader_epoch, log.high_watermark)
    except RefusedError as error:
        code = error.code
    return kind(partition=item.partition, error_code=code, leader_epoch=epoch, end_offset=end_offset)
