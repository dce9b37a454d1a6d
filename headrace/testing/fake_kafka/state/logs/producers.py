"""What a partition remembers of the producers that wrote to it: epochs, sequences, open transactions (KIP-98, KIP-360).

As Kafka's ProducerStateManager and ProducerAppendInfo.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headrace.connectors.kafka.format.record_batch import StoredBatch
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError

_REMEMBERED = 5  # batches: as many as a client may have in flight
_SEQUENCES = 2**31


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """As Fetch lists them: `last_offset` is the abort marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class ProducerState:
    """One producer id in one partition. `recent` holds (first sequence, last sequence, base offset) of its last batches."""

    epoch: int
    last_timestamp_ms: int = -1
    coordinator_epoch: int = -1
    transaction_start: int | None = None
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    @property
    def last_sequence(self) -> int:
        """-1 when nothing was written in this epoch."""
        return self.recent[-1][1] if self.recent else -1


class Producers:
    """All producers of one partition."""

    def __init__(self) -> None:
        self.states: dict[int, ProducerState] = {}
        self.aborted: list[AbortedTransaction] = []

    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction starts: the last stable offset."""
        return min(
            (state.transaction_start for state in self.states.values() if state.transaction_start is not None), default=None
        )

    def duplicate_of(self, batch: StoredBatch) -> int | None:
        """The base offset at which this very batch was stored before: a retry is answered by it, not written again."""
        state = self.states.get(batch.producer_id)
        if state is None or state.epoch != batch.producer_epoch:
            return None
        last = _plus(batch.base_sequence, batch.records - 1)
        return next((base for first, end, base in state.recent if (first, end) == (batch.base_sequence, last)), None)

    def check(self, batch: StoredBatch) -> None:
        """Raise RefusedError for an older epoch, a sequence out of order, or a write outside the open transaction."""
        state = self.states.get(batch.producer_id)
        if state is None:
            return  # nothing is known, for instance after retention: any sequence is taken
        if batch.producer_epoch < state.epoch:
            raise RefusedError(ErrorCode.INVALID_PRODUCER_EPOCH, f"the producer's epoch is {state.epoch} by now")
        if batch.producer_epoch > state.epoch:
            if batch.base_sequence != 0:
                raise RefusedError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a new epoch starts with sequence 0")
        elif batch.base_sequence != _plus(state.last_sequence, 1):
            said = f"sequence {batch.base_sequence} after {state.last_sequence}"
            raise RefusedError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, said)
        if state.transaction_start is not None and not batch.is_transactional:
            raise RefusedError(ErrorCode.INVALID_TXN_STATE, "a write outside the producer's open transaction")

    def note(self, batch: StoredBatch) -> None:
        if batch.producer_id < 0:
            return
        state = self.states.setdefault(batch.producer_id, ProducerState(batch.producer_epoch))
        if state.epoch != batch.producer_epoch:
            state.epoch = batch.producer_epoch
            state.recent.clear()
        last = _plus(batch.base_sequence, batch.last_offset - batch.base_offset)
        state.recent.append((batch.base_sequence, last, batch.base_offset))
        state.last_timestamp_ms = batch.max_timestamp_ms
        if batch.is_transactional and state.transaction_start is None:
            state.transaction_start = batch.base_offset

    def note_marker(self, marker: StoredBatch, *, commit: bool) -> None:
        state = self.states.setdefault(marker.producer_id, ProducerState(marker.producer_epoch))
        if state.epoch != marker.producer_epoch:
            state.recent.clear()
        if state.transaction_start is not None and not commit:
            self.aborted.append(AbortedTransaction(marker.producer_id, state.transaction_start, marker.base_offset))
        state.epoch = marker.producer_epoch
        state.transaction_start = None
        state.coordinator_epoch = 0
        state.last_timestamp_ms = marker.max_timestamp_ms

    def is_aborted(self, batch: StoredBatch) -> bool:
        return batch.is_transactional and any(
            each.producer_id == batch.producer_id and each.first_offset <= batch.base_offset < each.last_offset
            for each in self.aborted
        )

    def aborted_since(self, start: int) -> list[AbortedTransaction]:
        """The answer to a read_committed Fetch from `start`: a broker's index is sparse, so it lists what lies beyond, too."""
        return [each for each in self.aborted if each.last_offset >= start]


def _plus(sequence: int, count: int) -> int:
    return (sequence + count) % _SEQUENCES
