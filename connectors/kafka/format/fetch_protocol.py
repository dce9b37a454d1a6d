"""The Fetch response, parsed without copying: records stay memoryview slices of the receive buffer. Sans-I/O.

Our own parser because kafka-python's copies the records. It reads the versions from 4 on (KIP-74; flexible from 12, topic
ids from 13, KIP-516). Nothing here knows of sockets or of kafka-python.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from uuid import UUID

from headrace.enumerator.errors import CorruptDataError

_TOPIC_IDS_FROM = 13
_FLEXIBLE_FROM = 12

_INT32 = struct.Struct(">i")
_TWO_INT64 = struct.Struct(">qq")
_HEAD = struct.Struct(">ihi")  # throttle time, error, session id
_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_EPOCH_END = struct.Struct(">iq")
_TWO_INT32 = struct.Struct(">ii")
_VARINT_SHIFTS = range(0, 35, 7)  # of 32 bits: a longer one is not a length, and would take time that grows with its square


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """What a broker said about one partition. `records` may end in a cut-off batch, and may start before the asked offset.

    `topic` is None from version 13 on, `topic_id` before it. `aborted` holds (producer id, first offset), and is None when the
    isolation level was read_uncommitted. Numbers that the protocol writes as -1 when unknown are None.
    """

    topic: str | None
    topic_id: UUID | None
    partition: int
    error: int
    high_watermark: int | None
    last_stable_offset: int | None
    log_start_offset: int | None
    aborted: list[tuple[int, int]] | None
    preferred_replica: int | None
    diverging: tuple[int, int] | None
    leader: tuple[int, int] | None
    records: memoryview


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """A whole Fetch response: its own error code, the throttle time in ms (KIP-219), and the partitions.

    `session_id`: of the fetch session (KIP-227), 0 for none.
    """

    error: int
    throttle_time_ms: int
    partitions: list[PartitionAnswer]
    session_id: int = 0


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """The complete batches at the head of some records: their size in bytes, and the offset after the last.

    `epochs` are (first offset, leader epoch) of the first batch of each epoch, in the order of the log; old formats have none.
    """

    complete_bytes: int
    next_offset: int
    epochs: tuple[tuple[int, int], ...]

    @property
    def last_epoch(self) -> int | None:
        return self.epochs[-1][1] if self.epochs else None


def or_none(value: int) -> int | None:
    """A number that the protocol writes as -1 when it is unknown."""
    return None if value < 0 else value


class _Cursor:
    """A reading position in a frame, with the protocol's variable-length types."""

    __slots__ = ("flexible", "pos", "view")

    def __init__(self, view: memoryview, pos: int, version: int) -> None:
        self.view, self.pos, self.flexible = view, pos, version >= _FLEXIBLE_FROM

    def varint(self) -> int:
        view, pos = self.view, self.pos
        value = 0
        for shift in _VARINT_SHIFTS:
            byte = view[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.pos = pos
                return value
        raise ValueError(f"the varint at byte {self.pos} is longer than {len(_VARINT_SHIFTS)} bytes")

    def length(self) -> int:
        """The length of an array, string or byte run; -1 is null."""
        if self.flexible:
            return self.varint() - 1
        (value,) = _INT32.unpack_from(self.view, self.pos)
        self.pos += 4
        return int(value)

    def topic_name(self) -> str:
        if self.flexible:
            size = self.varint() - 1
        else:
            size = int.from_bytes(self.view[self.pos : self.pos + 2], "big")
            self.pos += 2
        self.pos += size
        return str(self.view[self.pos - size : self.pos], "utf-8")

    def uuid(self) -> UUID:
        self.pos += 16
        return UUID(bytes=bytes(self.view[self.pos - 16 : self.pos]))

    def tags(self) -> dict[int, memoryview]:
        if not self.flexible:
            return {}
        found = {}
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            found[tag] = self.view[self.pos : self.pos + size]
            self.pos += size
        return found


def parse_fetch_response(view: memoryview, version: int, pos: int = 0) -> FetchAnswer:
    """Parse a response body of this version, starting at `pos` (after the response header).

    Raises `CorruptDataError` when the bytes are no such response.
    """
    cursor = _Cursor(view, pos, version)
    try:
        return _parse_answer(cursor, version)
    except (struct.error, IndexError, ValueError) as error:
        raise CorruptDataError(
            f"a Fetch response (version {version}) of {len(view)} bytes cannot be parsed: {error}"
        ) from error


def _parse_answer(cursor: _Cursor, version: int) -> FetchAnswer:
    if version >= 7:
        throttle, error, session_id = _HEAD.unpack_from(cursor.view, cursor.pos)
        cursor.pos += _HEAD.size
    else:
        (throttle,), error, session_id = _INT32.unpack_from(cursor.view, cursor.pos), 0, 0
        cursor.pos += 4
    partitions = []
    for _ in range(cursor.length()):
        topic = cursor.topic_name() if version < _TOPIC_IDS_FROM else None
        topic_id = cursor.uuid() if version >= _TOPIC_IDS_FROM else None
        partitions += [_parse_partition(cursor, version, topic, topic_id) for _ in range(cursor.length())]
        cursor.tags()
    cursor.tags()
    return FetchAnswer(error, throttle, partitions, session_id)


def _parse_partition(cursor: _Cursor, version: int, topic: str | None, topic_id: UUID | None) -> PartitionAnswer:
    view, start = cursor.view, -1
    if version >= 5:
        index, error, high, stable, start = _PARTITION_V5.unpack_from(view, cursor.pos)
        cursor.pos += _PARTITION_V5.size
    else:
        index, error, high, stable = _PARTITION_V4.unpack_from(view, cursor.pos)
        cursor.pos += _PARTITION_V4.size
    aborted = _parse_aborted(cursor)
    replica = -1
    if version >= 11:
        (replica,) = _INT32.unpack_from(view, cursor.pos)
        cursor.pos += 4
    size = max(cursor.length(), 0)
    records = view[cursor.pos : cursor.pos + size]
    if len(records) != size:
        raise ValueError(f"the records of partition {index} run past the end")
    cursor.pos += size
    diverging = leader = None
    tags = cursor.tags()
    if 0 in tags:
        diverging = _EPOCH_END.unpack_from(tags[0])
    if 1 in tags:
        leader = _TWO_INT32.unpack_from(tags[1])
    return PartitionAnswer(
        topic=topic,
        topic_id=topic_id,
        partition=index,
        error=error,
        high_watermark=or_none(high),
        last_stable_offset=or_none(stable),
        log_start_offset=or_none(start),
        aborted=aborted,
        preferred_replica=or_none(replica),
        diverging=diverging if diverging and diverging[1] >= 0 else None,
        leader=leader if leader and leader[0] >= 0 else None,
        records=records,
    )


def _parse_aborted(cursor: _Cursor) -> list[tuple[int, int]] | None:
    count = cursor.length()
    if count < 0:
        return None
    aborted = []
    for _ in range(count):
        aborted.append(_TWO_INT64.unpack_from(cursor.view, cursor.pos))
        cursor.pos += 16
        cursor.tags()
    return aborted


_OFFSET_AND_SIZE = struct.Struct(">qi")
_BATCH_HEAD = struct.Struct(">qiib4xhi")  # base offset, length, leader epoch, magic, (crc), attributes, last offset delta
_ENTRY_OVERHEAD = 12
_MAGIC = 16
_SHORTEST = 14  # what a message of the oldest format has behind its length
_SHORTEST_BATCH = 15  # and what is read here of a batch of format 2


def span_of_batches(records: memoryview, newest_epoch: int | None = None) -> BatchSpan | None:
    """Walk the batch headers (message format 2; of the old formats 0 and 1 each message counts as a batch).

    With a `newest_epoch` the span ends before the first batch of a later leader epoch, unless that is the first of all.
    None means that not one batch is complete: the fetch was too small, or there was nothing. The cost is one header per
    batch, not per record. Raises `CorruptDataError` for a batch length that cannot be.
    """
    position = complete = 0
    end = len(records)
    last = -1
    epochs: list[tuple[int, int]] = []
    while position + _ENTRY_OVERHEAD <= end:
        offset, size = _OFFSET_AND_SIZE.unpack_from(records, position)
        if size < _SHORTEST:
            raise CorruptDataError(f"a record batch claims a length of {size} bytes")
        position += size + _ENTRY_OVERHEAD
        if position > end:
            break
        if records[complete + _MAGIC] >= 2 and size < _SHORTEST_BATCH:
            raise CorruptDataError(f"a record batch claims a length of {size} bytes")
        epoch = _INT32.unpack_from(records, complete + _ENTRY_OVERHEAD)[0] if records[complete + _MAGIC] >= 2 else -1
        if newest_epoch is not None and epoch > newest_epoch and last >= 0:
            break
        last, complete = complete, position
        if epoch >= 0 and (not epochs or epochs[-1][1] != epoch):
            epochs.append((offset, epoch))
    if last < 0:
        return None
    if records[last + _MAGIC] < 2:
        return BatchSpan(complete, _OFFSET_AND_SIZE.unpack_from(records, last)[0] + 1, tuple(epochs))
    base, _, _, _, _, delta = _BATCH_HEAD.unpack_from(records, last)
    return BatchSpan(complete, base + delta + 1, tuple(epochs))
