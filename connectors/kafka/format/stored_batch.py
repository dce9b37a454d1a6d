"""What a batch says that was read from the log as it is stored there: the records, or the marker of a control batch."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from headrace.connectors.kafka.format.decode import decode
from headrace.connectors.kafka.format.record_batch import HEADER, StoredBatch
from headrace.enumerator.errors import CorruptDataError

_MARKER_KEY = struct.Struct(">hh")  # version, type
_MARKER_VALUE = struct.Struct(">hi")  # version, coordinator epoch


class MarkerKind(StrEnum):
    """What a control batch says."""

    ABORT = "ABORT"
    COMMIT = "COMMIT"
    OTHER = "CONTROL"  # of the brokers' own, or emptied by compaction


@dataclass(frozen=True, slots=True)
class Marker:
    """A control batch's content; `coordinator_epoch` is of the transaction coordinator that wrote it."""

    kind: MarkerKind
    coordinator_epoch: int | None = None


def records_of(topic: str, partition: int, batch: StoredBatch) -> pa.RecordBatch:
    """The records of a batch that is not a control batch: offset, timestamp, key, value and headers. Raises CorruptDataError.

    A timestamp that does not fit is null: a producer may claim any time.
    """
    decoded = decode(
        batch.data,
        topic=topic,
        partition=partition,
        start=batch.base_offset,
        columns=("key", "value", "offset", "timestamp", "headers"),
        max_batch_bytes=0x7FFFFFFF,
        bad_timestamps="null",
    )
    return pa.concat_batches([each.records for each in decoded])  # several, where records have many headers


def control_marker(batch: StoredBatch) -> Marker:
    """What a control batch says. Raises CorruptDataError."""
    if batch.records < 1:
        return Marker(MarkerKind.OTHER)
    data = batch.data
    try:
        _, at = _varint(data, HEADER.size)  # the record's length
        _, at = _varint(data, at + 1)  # timestamp, after the attributes
        _, at = _varint(data, at)  # offset
        key_length, at = _varint(data, at)
        _, kind = _MARKER_KEY.unpack_from(data, at)
        if kind not in (0, 1):
            return Marker(MarkerKind.OTHER)
        _, at = _varint(data, at + key_length)  # the value's length
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(data, at)
    except (struct.error, IndexError) as error:
        raise CorruptDataError(f"the control batch at offset {batch.base_offset} cannot be parsed: {error}") from error
    return Marker(MarkerKind.COMMIT if kind else MarkerKind.ABORT, coordinator_epoch)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A zigzag varint and the position after it. Raises IndexError at the end of the data."""
    raw = shift = 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
