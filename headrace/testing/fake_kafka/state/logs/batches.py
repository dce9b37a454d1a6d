"""NewRecord batches (message format 2, KIP-98): how the broker checks, stamps and writes them. Records stay bytes.

https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from headrace.connectors.kafka.format import record_batch as layout
from headrace.connectors.kafka.format.record_batch import StoredBatch, stored_batches
from headrace.enumerator.errors import CorruptDataError
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError

CONTROL = 0x20
_CODEC_BITS = 0x07
_COVERED_AT = layout.CRC_AT + 4  # what the CRC covers
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


class NewRecord(NamedTuple):
    """One record; `timestamp_ms` None: the time of writing."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


class Span(NamedTuple):
    """A record and where it lies: its offset and its timestamp, milliseconds."""

    offset: int
    timestamp_ms: int
    record: NewRecord


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What a batch's header says alongside its records."""

    attributes: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    leader_epoch: int = 0


def single_batch(data: memoryview) -> StoredBatch:
    """The one batch of a produced partition. Raises RefusedError for anything else (Kafka's ProduceRequest.validateRecords)."""
    try:
        batches = list(stored_batches(data))
    except CorruptDataError as error:
        raise RefusedError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if not batches or sum(len(batch.data) for batch in batches) != len(data):
        raise RefusedError(ErrorCode.INVALID_RECORD, "there is no whole record batch")
    if len(batches) > 1:
        raise RefusedError(ErrorCode.INVALID_RECORD, "a produce request has exactly one record batch for a partition")
    return batches[0]


def check_batch(batch: StoredBatch) -> None:
    """Raise RefusedError for a batch that contradicts itself (LogValidator in Kafka)."""
    data = batch.data
    (claimed,) = struct.unpack_from(">I", data, layout.CRC_AT)
    if crc32c(data[_COVERED_AT:]) != claimed:
        raise RefusedError(ErrorCode.CORRUPT_MESSAGE, "the record batch's CRC does not match")
    if batch.attributes & _CODEC_BITS >= len(layout.CODECS):
        raise RefusedError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if batch.records < 1 or batch.last_offset - batch.base_offset + 1 != batch.records:
        raise RefusedError(ErrorCode.INVALID_RECORD, "the record batch's count and last offset contradict each other")


def read_batch(data: bytes | bytearray) -> StoredBatch:
    """One whole batch, as `stored_batches` shows it."""
    return next(stored_batches(memoryview(data)))


def stamped(batch: StoredBatch, base_offset: int, leader_epoch: int, append_time_ms: int | None = None) -> StoredBatch:
    """As the leader stores it: offset and leader epoch set, which no CRC covers; with LogAppendTime the time as well."""
    data = bytearray(batch.data)
    struct.pack_into(">q", data, 0, base_offset)
    struct.pack_into(">i", data, layout.AFTER_LENGTH, leader_epoch)
    if append_time_ms is not None:
        struct.pack_into(">h", data, _COVERED_AT, batch.attributes | layout.LOG_APPEND_TIME)
        struct.pack_into(">q", data, _COVERED_AT + 14, append_time_ms)
    elif batch.attributes & layout.LOG_APPEND_TIME:
        struct.pack_into(">h", data, _COVERED_AT, batch.attributes & ~layout.LOG_APPEND_TIME)
    else:
        return read_batch(data)
    struct.pack_into(">I", data, layout.CRC_AT, crc32c(memoryview(data)[_COVERED_AT:]))
    return read_batch(data)


def record_batch(records: Sequence[NewRecord], now_ms: int, shape: BatchShape | None = None) -> bytearray:
    times = [now_ms if record.timestamp_ms is None else record.timestamp_ms for record in records]
    spans = [Span(at, time, record) for at, (time, record) in enumerate(zip(times, records, strict=True))]
    return rewritten_batch(spans, 0, len(records) - 1, shape or BatchShape())


def rewritten_batch(spans: Sequence[Span], base_offset: int, last_offset: int, shape: BatchShape) -> bytearray:
    """A batch that keeps its first and last offset whatever records are left in it, as compaction leaves it."""
    first_time = spans[0].timestamp_ms if spans else -1
    greatest = max((span.timestamp_ms for span in spans), default=-1)
    body = b"".join(_record(span.offset - base_offset, span.timestamp_ms - first_time, span.record) for span in spans)
    return _sealed(body, len(spans), base_offset, last_offset, (first_time, greatest), shape)


def control_batch(now_ms: int, shape: BatchShape, commit: int) -> bytearray:
    """The marker that ends a transaction in one partition; `commit` is 1 or, for an abort, 0 (KIP-98)."""
    record = NewRecord(_MARKER_VALUE.pack(0, 0), _MARKER_KEY.pack(0, commit), (), now_ms)
    marked = BatchShape(CONTROL | layout.TRANSACTIONAL, shape.producer_id, shape.producer_epoch, -1, shape.leader_epoch)
    return record_batch([record], now_ms, marked)


def _sealed(body: bytes, count: int, base: int, last: int, times: tuple[int, int], shape: BatchShape) -> bytearray:
    data = bytearray(layout.HEADER.size + len(body))
    length = len(data) - layout.AFTER_LENGTH
    layout.HEADER.pack_into(
        data, 0, base, length, shape.leader_epoch, layout.MAGIC, 0, shape.attributes, last - base, *times,
        shape.producer_id, shape.producer_epoch, shape.base_sequence, count,
    )  # fmt: skip
    data[layout.HEADER.size :] = body
    struct.pack_into(">I", data, layout.CRC_AT, crc32c(memoryview(data)[_COVERED_AT:]))
    return data


def _record(offset_delta: int, time_delta: int, record: NewRecord) -> bytes:
    parts = [b"\x00", _varint(time_delta), _varint(offset_delta), *_blob(record.key), *_blob(record.value)]
    parts.append(_varint(len(record.headers)))
    for name, value in record.headers:
        parts += [*_blob(name.encode()), *_blob(value)]
    body = b"".join(parts)
    return _varint(len(body)) + body


def _blob(data: bytes | None) -> Iterable[bytes]:
    return (_varint(-1),) if data is None else (_varint(len(data)), data)


def _varint(value: int) -> bytes:
    number = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
