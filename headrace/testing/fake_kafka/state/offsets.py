"""The offsets that a group has committed, and those that wait for the end of a transaction (KIP-98, KIP-447)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.testing.fake_kafka.state.logs.batches import NewRecord

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """The next offset to read, its leader epoch (-1: not known), and what the client wrote alongside it."""

    offset: int
    leader_epoch: int
    metadata: str


class GroupOffsets:
    """The committed offsets of one group."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._pending: dict[int, dict[TopicPartition, OffsetAndMetadata]] = {}

    def commit_in_transaction(self, producer_id: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._pending.setdefault(producer_id, {}).update(offsets)

    def take_pending(self, producer_id: int) -> dict[TopicPartition, OffsetAndMetadata]:
        """What waited for the end of the producer's transaction, and waits no longer."""
        return self._pending.pop(producer_id, {})

    def is_unstable(self, partition: TopicPartition) -> bool:
        """True while an open transaction has offsets for it: its outcome decides where to continue."""
        return any(partition in offsets for offsets in self._pending.values())


def offset_record(group: str, partition: TopicPartition, committed: OffsetAndMetadata, now_ms: int) -> NewRecord:
    """As __consumer_offsets has it (OffsetCommitKey version 1, OffsetCommitValue version 3)."""
    topic, index = partition
    key = struct.pack(">h", 1) + _text(group) + _text(topic) + struct.pack(">i", index)
    value = struct.pack(">hqi", 3, committed.offset, committed.leader_epoch) + _text(committed.metadata)
    return NewRecord(value + struct.pack(">q", now_ms), key, (), now_ms)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
