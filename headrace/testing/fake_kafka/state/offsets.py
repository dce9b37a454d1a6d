"""The offsets that a group has committed, and those that wait for the end of a transaction (KIP-98, KIP-447)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["GroupOffsets", "OffsetAndMetadata"]

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """The next offset to read, its leader epoch (-1: not known), and what the client wrote beside it."""

    offset: int
    leader_epoch: int
    metadata: str


class GroupOffsets:
    """Of one group."""

    def __init__(self) -> None:
        """None."""
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._pending: dict[int, dict[TopicPartition, OffsetAndMetadata]] = {}

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """At once."""
        self.committed.update(offsets)

    def commit_in_transaction(self, producer_id: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """With the producer's transaction."""
        self._pending.setdefault(producer_id, {}).update(offsets)

    def end(self, producer_id: int, *, commit: bool) -> None:
        """The producer's transaction has ended."""
        pending = self._pending.pop(producer_id, {})
        if commit:
            self.committed.update(pending)

    def is_unstable(self, partition: TopicPartition) -> bool:
        """True while an open transaction has offsets for it: its outcome decides where to go on."""
        return any(partition in offsets for offsets in self._pending.values())

    def forget(self, partition: TopicPartition) -> None:
        """OffsetDelete, or the topic is gone."""
        self.committed.pop(partition, None)
