"""Record batches that cannot be decoded: what a second look at one brings, and where it ends. Sans-I/O.

A damaged answer is not a damaged log: bytes are damaged on the way, too, or in the copy of one replica. So nothing is called
damaged before its leader was asked for it again, over another connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.connectors.kafka.format.fetch_protocol import PartitionAnswer
from headrace.connectors.kafka.format.record_batch import MAGIC, StoredBatch, stored_batches
from headrace.enumerator.errors import CorruptDataError

BadBatches = Literal["error", "skip"]
"""What becomes of a record batch that cannot be decoded: an error, or it is skipped."""

_MAGIC_AT = 16


@dataclass(frozen=True, slots=True)
class SecondRead:
    """The first batch of an answer of the leader, which is the one that was doubted.

    `following`: the base offset of what lies behind it, if the answer has that. `ends`: the offsets where the leader's log, or
    what of it may be read, ends.
    """

    batch: StoredBatch
    aborted: list[tuple[int, int]] | None
    following: int | None
    ends: frozenset[int]

    @property
    def last(self) -> int | None:
        """The last offset of the batch; None where that is not known, as what its header says may be damaged as well.

        What lies behind it says it, or that it is the last of the log; else its header has to agree with itself.
        """
        batch = self.batch
        if batch.last_offset < batch.base_offset:
            return None
        if self.following is not None:
            return min(batch.last_offset, self.following - 1) if self.following > batch.base_offset else None
        is_consistent = batch.last_offset - batch.base_offset + 1 == batch.records
        is_inside = all(batch.last_offset < end for end in self.ends)
        return batch.last_offset if is_inside and (is_consistent or batch.last_offset + 1 in self.ends) else None


def second_look(answer: PartitionAnswer) -> SecondRead | None:
    """What an answer to a Fetch at the doubted offset says: the first batch is the one that has it, or comes next.

    None: it does not start with a batch.
    """
    batch = _first(answer.records)
    if batch is None:
        return None
    known = (answer.high_watermark, None if answer.aborted is None else answer.last_stable_offset)
    ends = frozenset(end for end in known if end is not None)
    return SecondRead(batch, answer.aborted, _base_offset(answer.records[len(batch.data) :]), ends)


def _first(records: memoryview) -> StoredBatch | None:
    try:
        return next(stored_batches(records), None)
    except CorruptDataError:
        return None


def _base_offset(records: memoryview) -> int | None:
    """Of a batch, whole or truncated; None for what is none."""
    if len(records) <= _MAGIC_AT or records[_MAGIC_AT] != MAGIC:
        return None
    return int.from_bytes(records[:8], "big", signed=True)
