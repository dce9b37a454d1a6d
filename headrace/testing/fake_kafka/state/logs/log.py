"""One partition's log: stored batches as bytes, its bounds, its leader epochs, its producers. Sans-I/O, not thread-safe."""

from __future__ import annotations

import copy
from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter

from headrace.connectors.kafka.format.record_batch import StoredBatch
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.state.logs.batches import BatchShape, control_batch, read_batch, stamped
from headrace.testing.fake_kafka.state.logs.epochs import LeaderEpochs
from headrace.testing.fake_kafka.state.logs.producers import Producers

_base_offset = attrgetter("base_offset")
_COMMIT_AT = 61 + 5 + 3
"""Of a marker: the low byte of its control type. Before it: the header, then five varints of a byte each (length, attributes,
time, offset, key length) and three bytes of the key."""


@dataclass(frozen=True, slots=True)
class ReadLimit:
    """`until` is an offset, exclusive; a first batch larger than `bytes` is given whole where `at_least_one` is set."""

    until: int
    bytes: int
    at_least_one: bool


class Log:
    """Offsets are of records; `end_offset` is the next one to be written."""

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.start_offset: int = 0
        self.end_offset: int = 0
        self.epochs: LeaderEpochs = LeaderEpochs()
        self.producers: Producers = Producers()
        self._held_high_watermark: int | None = None

    @property
    def high_watermark(self) -> int:
        return self.end_offset if self._held_high_watermark is None else min(self._held_high_watermark, self.end_offset)

    @property
    def last_stable_offset(self) -> int:
        """Up to where read_committed may read: the first record of the oldest open transaction (KIP-98)."""
        first_open = self.producers.first_open_offset()
        return self.high_watermark if first_open is None else min(first_open, self.high_watermark)

    @property
    def size(self) -> int:
        return sum(len(batch.data) for batch in self.batches)

    def hold_high_watermark(self) -> None:
        """What is written from now on is not replicated: no consumer may read it, and an unclean election loses it."""
        self._held_high_watermark = self.high_watermark

    def release_high_watermark(self) -> None:
        self._held_high_watermark = None

    def append(self, batch: StoredBatch, append_time_ms: int | None = None) -> int:
        """Store a checked data batch of a client; a retry of one that is here already is not stored again.

        Returns its base offset. Raises RefusedError by the rules of idempotent producers.
        """
        if batch.producer_id >= 0:
            duplicate = self.producers.duplicate_of(batch)
            if duplicate is not None:
                return duplicate
            self.producers.check(batch)
        stored = stamped(batch, self.end_offset, self.epochs.latest, append_time_ms)
        self._put(stored)
        self.producers.note(stored)
        return stored.base_offset

    def append_marker(self, producer_id: int, producer_epoch: int, *, commit: bool, now_ms: int) -> None:
        """End a producer's transaction here. Raises RefusedError for a producer epoch that is no longer the current one."""
        state = self.producers.states.get(producer_id)
        if state is not None and producer_epoch < state.epoch:
            raise RefusedError(ErrorCode.INVALID_PRODUCER_EPOCH)
        shape = BatchShape(producer_id=producer_id, producer_epoch=producer_epoch, leader_epoch=self.epochs.latest)
        marker = stamped(read_batch(control_batch(now_ms, shape, int(commit))), self.end_offset, self.epochs.latest)
        self._put(marker)
        self.producers.note_marker(marker, commit=commit)

    def _put(self, stored: StoredBatch) -> None:
        self.batches.append(stored)
        self.end_offset = stored.last_offset + 1

    def check_offset(self, offset: int, until: int) -> None:
        """Raise OFFSET_OUT_OF_RANGE outside of what the log has."""
        if not self.start_offset <= offset <= max(until, self.start_offset):
            said = f"offset {offset} is not within {self.start_offset} to {until}"
            raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE, said)

    def read(self, offset: int, limit: ReadLimit) -> bytes:
        """Batches from the one that holds `offset`, the last one isolated at the limit as brokers do."""
        parts: list[memoryview] = []
        headroom = limit.bytes
        first = max(bisect_right(self.batches, offset, key=_base_offset) - 1, 0)
        for at in range(first, len(self.batches)):
            batch = self.batches[at]
            if batch.last_offset < offset:  # only the first may, as offsets can be missing between two
                continue
            if batch.base_offset >= limit.until:
                break
            size = len(batch.data)
            if not parts and size > headroom:  # an incomplete first batch is of no use to any process
                return bytes(batch.data) if limit.at_least_one else b""
            parts.append(batch.data[:headroom])
            headroom -= size
            if headroom <= 0:
                break
        return b"".join(parts)

    def delete_before(self, offset: int) -> None:
        """Retention or DeleteRecords: what lies before `offset` is gone; whole batches only, as segments are."""
        self.start_offset = min(max(offset, self.start_offset), self.end_offset)
        self.batches = [batch for batch in self.batches if batch.last_offset >= self.start_offset]
        self.epochs.drop_before(self.start_offset)

    def truncate(self, offset: int) -> None:
        """Everything from `offset` on never happened: what a replica does that is to follow a leader that never had it."""
        self.replace([batch for batch in self.batches if batch.last_offset < offset])
        self.end_offset = max(min(offset, self.end_offset), self.start_offset)
        self.epochs.drop_from(self.end_offset)

    def replace(self, batches: list[StoredBatch]) -> None:
        """Other batches for the same offsets (compaction, truncation); what is known of producers is read from them again."""
        self.batches = batches
        self.producers = Producers()
        for batch in batches:
            if batch.is_control:
                self.producers.note_marker(batch, commit=bool(batch.data[_COMMIT_AT]))
            else:
                self.producers.note(batch)

    def copy(self) -> Log:
        """A log that has the same past and its own future: a replica that is isolated."""
        twin = copy.copy(self)
        twin.batches = list(self.batches)
        twin.epochs = copy.deepcopy(self.epochs)
        twin.producers = copy.deepcopy(self.producers)
        return twin
