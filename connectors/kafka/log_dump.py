"""The log as it is, batch by batch, with the outcome of each transaction: for finding out what went wrong.

Up to the last stable offset the broker itself says what was aborted (the list that comes with a fetch under read_committed).
Beyond it there is no such list, as something before is still open; there the markers that follow a batch decide (KIP-98).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.fetch import fetch_there, intact
from headrace.connectors.kafka.client.positions import Earliest, Latest
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.format.record_batch import StoredBatch
from headrace.connectors.kafka.format.stored_batch import Marker, MarkerKind, control_marker
from headrace.connectors.kafka.write.handles import KafkaHandle
from headrace.enumerator.errors import DataLossError, PeerError, UsageError


class TransactionStatus(StrEnum):
    """What became of the transaction that wrote a batch."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"  # no marker ends it so far
    UNKNOWN = "unknown"  # the log no longer shows


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """One batch: `fate` for a transaction's records, `marker` for a control batch, both None for what is not transactional."""

    stored: StoredBatch
    fate: TransactionStatus | None
    marker: Marker | None


@dataclass(frozen=True, slots=True)
class _Log:
    """One partition, as far as it went when it was asked."""

    cluster: KafkaCluster
    topic: str
    partition: int
    first: int
    stable: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def fetch(self, position: int, isolation: Isolation) -> tuple[list[StoredBatch], list[tuple[int, int]]]:
        """The batches from the one that holds `position` on, and (producer id, first offset) of the aborted among them."""
        answer, batches = intact(
            str(self), position, lambda: fetch_there(self.cluster, self.topic, self.partition, position, isolation)
        )
        if answer.error or not batches:
            raise DataLossError(f"{self} went to offset {self.end} (exclusive), and nothing can be read at {position} any more")
        return batches, sorted(answer.aborted or (), key=lambda item: item[1])


def dump(cluster: KafkaCluster, topic: str, partition: int, start: int | None = None) -> Iterator[DumpedBatch]:
    """Every batch from the one that holds the offset `start` (default: the first) to where the partition ends when called.

    Raises UsageError for an offset that the partition does not have, UnknownTopicError, DataLossError when batches are deleted
    while they are read, CorruptDataError for one that came damaged twice.
    """
    log = _look(cluster, topic, partition)
    position = log.first if start is None else start
    if not log.first <= position <= log.end:
        raise UsageError(f"{log} has the offsets {log.first} to {log.end} (exclusive): offset {start} is not there")
    for batch in _stable_part(log, position):
        position = batch.stored.last_offset + 1
        yield batch
    yield from _rest(log, position)


def fate_of(cluster: KafkaCluster, handle: KafkaHandle) -> TransactionStatus:
    """What became of a prepared transaction, as the log has it now: neither coordinator nor open neighbours are waited for."""
    for written in handle.ranges:
        found = cluster.find_topics([written.topic])[written.topic]
        if found is None or written.partition not in found.partitions or written.topic_id not in (None, found.topic_id):
            continue
        log = _look(cluster, written.topic, written.partition)
        if not log.first <= written.first < log.end:
            continue
        batch = next(dump(cluster, written.topic, written.partition, written.first))
        writer = (batch.stored.producer_id, batch.stored.producer_epoch)
        if batch.fate is not None and writer == (handle.producer.producer_id, handle.producer.epoch):
            return batch.fate
    return TransactionStatus.UNKNOWN


def _look(cluster: KafkaCluster, topic: str, partition: int) -> _Log:
    key = (topic, partition)
    first = cluster.list_offsets({key: Earliest()})[key].offset
    stable = cluster.list_offsets({key: Latest()}, Isolation.READ_COMMITTED)[key].offset
    end = cluster.list_offsets({key: Latest()}, Isolation.READ_UNCOMMITTED)[key].offset
    if first is None or stable is None or end is None:
        raise PeerError(f"{topic}-{partition}: the broker does not say where it starts and ends")
    return _Log(cluster, topic, partition, first, stable, max(stable, end))


def _stable_part(log: _Log, position: int) -> Iterator[DumpedBatch]:
    """What lies before the last stable offset. Each response's list names all aborted transactions that overlap with it."""
    while position < log.stable:
        batches, listed = log.fetch(position, Isolation.READ_COMMITTED)
        waiting, aborting = deque(listed), set[int]()
        for batch in batches:
            if position >= log.end:
                return
            while waiting and waiting[0][1] <= batch.last_offset:
                aborting.add(waiting.popleft()[0])
            marker = control_marker(batch) if batch.is_control else None
            if marker is not None and marker.kind is MarkerKind.ABORT:
                aborting.discard(batch.producer_id)
            fate = TransactionStatus.ABORTED if batch.producer_id in aborting else TransactionStatus.COMMITTED
            yield _dumped(batch, marker, fate)
            position = batch.last_offset + 1


def _rest(log: _Log, position: int) -> Iterator[DumpedBatch]:
    """What lies beyond the last stable offset: read twice, for the markers and then for the batches."""
    if position >= log.end:
        return
    markers: dict[int, deque[tuple[int, TransactionStatus]]] = {}
    for batch in _uncommitted(log, position):
        kind = control_marker(batch).kind if batch.is_control else MarkerKind.OTHER
        if kind is not MarkerKind.OTHER:
            fate = TransactionStatus.COMMITTED if kind is MarkerKind.COMMIT else TransactionStatus.ABORTED
            markers.setdefault(batch.producer_id, deque()).append((batch.base_offset, fate))
    for batch in _uncommitted(log, position):
        ahead = markers.get(batch.producer_id, deque())
        while ahead and ahead[0][0] <= batch.base_offset:
            ahead.popleft()
        marker = control_marker(batch) if batch.is_control else None
        yield _dumped(batch, marker, ahead[0][1] if ahead else TransactionStatus.OPEN)


def _uncommitted(log: _Log, position: int) -> Iterator[StoredBatch]:
    while position < log.end:
        batches, _ = log.fetch(position, Isolation.READ_UNCOMMITTED)
        for batch in batches:
            if position >= log.end:
                return
            yield batch
            position = batch.last_offset + 1


def _dumped(batch: StoredBatch, marker: Marker | None, fate: TransactionStatus) -> DumpedBatch:
    return DumpedBatch(batch, fate if batch.is_transactional and marker is None else None, marker)
