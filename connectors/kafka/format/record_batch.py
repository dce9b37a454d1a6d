"""A record batch as it lies in the log: its header, without its records (message format 2). Sans-I/O.

For what writes batches, or reads the log batch by batch. Reading records in bulk is `decode.py`, with its own walk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from crc32c import crc32c

from headrace.enumerator.errors import CorruptDataError

HEADER = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base and greatest timestamp, producer id,
producer epoch, base sequence, record count."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""Compression types by their number."""

LEVELS = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}
"""The lowest and highest level of each compression type that has levels (KIP-390)."""

AFTER_LENGTH = 12
"""Where the part starts whose size is the header's length field."""

CRC_AT = 17
"""Where the CRC lies, which covers all that follows it."""

CRC_FROM = CRC_AT + 4
"""Where the part starts that the CRC covers."""

MAGIC = 2
TRANSACTIONAL = 0x10
LOG_APPEND_TIME = 0x08
CODEC_BITS = 0x07
"""Those of the attributes that number the compression type."""

_CONTROL = 0x20
_MAGIC_AT = 16


class BadBatchError(CorruptDataError):
    """A record batch that cannot be decoded, from some record on or at all, while others behind it may be. Names the place."""

    def __init__(self, place: str, base_offset: int, reason: str) -> None:
        """`base_offset`: as its header says."""
        self.base_offset: int = base_offset
        self._arguments = (place, base_offset, reason)
        super().__init__(f"{place}, record batch at offset {base_offset}: {reason}")

    def __reduce__(self) -> tuple[type[BadBatchError], tuple[str, int, str], dict[str, Any]]:
        return type(self), self._arguments, vars(self)


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch. Producer id, producer epoch and sequence are -1 where its producer was not idempotent.

    `last_offset` stays what it was when compaction takes records away, `records` does not. `data` is the whole batch.
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int
    data: memoryview

    @property
    def is_control(self) -> bool:
        """True for a marker that ends a transaction: its record is not a user's."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """True for what was written in a transaction, and for the marker that ends it."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_intact(self) -> bool:
        """Whether the CRC is right, which covers all from the attributes on: not the base offset, nor the leader epoch."""
        return crc32c(self.data[CRC_FROM:]) == int.from_bytes(self.data[CRC_AT:CRC_FROM], "big")

    @property
    def compression(self) -> str:
        """As `compression.type` names it."""
        number = self.attributes & CODEC_BITS
        return CODECS[number] if number < len(CODECS) else f"codec {number}"


def stored_batches(records: memoryview) -> Iterator[StoredBatch]:
    """The complete batches of a response, in order. Nothing is checked but that the walk can continue.

    Raises CorruptDataError for a length that cannot be, and for message formats before 2.
    """
    at = 0
    while at + HEADER.size <= len(records):
        if records[at + _MAGIC_AT] != MAGIC:
            raise CorruptDataError(f"message format v{records[at + _MAGIC_AT]}: only v2 (Kafka 0.11 and later) can be read")
        base, length, leader_epoch, _, _, attributes, delta, _, max_time, producer, epoch, sequence, count = HEADER.unpack_from(
            records, at
        )
        end = at + AFTER_LENGTH + length
        if length < HEADER.size - AFTER_LENGTH:
            raise CorruptDataError(f"the record batch at offset {base} claims a length of {length} bytes")
        if end > len(records):
            return
        yield StoredBatch(
            base, base + delta, leader_epoch, attributes, max_time, producer, epoch, sequence, count, records[at:end]
        )
        at = end
