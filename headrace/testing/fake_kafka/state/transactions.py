"""The transaction coordinator (KIP-98, KIP-360, KIP-890): as Kafka's TransactionCoordinator, without its log.

Both versions of the protocol: in version 2 every EndTxn moves the producer to the next epoch, so that a late EndTxn or write
of the transaction before cannot hit the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError

NO_PRODUCER_ID = -1
NO_EPOCH = -1
SECOND_PROTOCOL = 2
"""KIP-890's, as `transaction.version` numbers it."""

_EXHAUSTED_EPOCH = 0x7FFF - 1
_NEVER_MS = 1 << 62

TopicPartition = tuple[str, int]


class TransactionState(Enum):
    """By the names that DescribeTransactions gives them."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


_PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_COMPLETE = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer id and its epoch."""

    id: int
    epoch: int


@dataclass(slots=True)
class TransactionMetadata:
    """What the coordinator knows of one transactional id. `version` is the protocol's that its client last used."""

    transactional_id: str
    producer: ProducerIdentity
    timeout_ms: int
    updated_ms: int
    state: TransactionState = TransactionState.EMPTY
    version: int = 0
    previous_producer_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_EPOCH
    next_producer_id: int = NO_PRODUCER_ID
    started_ms: int = -1
    partitions: set[TopicPartition] = field(default_factory=set)
    marked_by: ProducerIdentity | None = None

    @property
    def bumps_epochs(self) -> bool:
        return self.version >= SECOND_PROTOCOL


class Markers(Protocol):
    """Who writes what a decision means: markers into partitions, and by the partitions of __consumer_offsets into groups."""

    def write(self, transaction: TransactionMetadata, producer: ProducerIdentity, *, commit: bool) -> None:
        """Called once for each decided transaction, with its partitions still in it."""


class TransactionCoordinator:
    """All transactional ids of the cluster. Every method that refuses raises RefusedError."""

    def __init__(self, markers: Markers) -> None:
        """None yet; `markers` are written at once unless they are held."""
        self.by_id: dict[str, TransactionMetadata] = {}
        self.max_timeout_ms = 900_000
        self.id_expiration_ms = 604_800_000
        self.server_version = 2
        self._markers = markers
        self._next_producer_id = 0
        self._held = False
        self.look_from_ms: int | None = None  # before this, `expire` has nothing to do

    # --- producer ids ---------------------------------------------------------------------------------------------------

    def new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id - 1

    def init(self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None, now_ms: int) -> ProducerIdentity:
        """InitProducerId (22). `expected` is set by a producer that wants its own epoch bumped (KIP-360)."""
        if not transactional_id:
            raise RefusedError(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self.max_timeout_ms:
            raise RefusedError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        known = self.by_id.get(transactional_id)
        if known is None:
            fresh = ProducerIdentity(self.new_producer_id(), NO_EPOCH)
            known = self.by_id[transactional_id] = TransactionMetadata(transactional_id, fresh, timeout_ms, now_ms)
            self._look_by(now_ms + self.id_expiration_ms)
        elif expected is not None and not _may_go_on(known, expected):
            raise RefusedError(ErrorCode.PRODUCER_FENCED)
        if known.state in _PREPARED:
            raise RefusedError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if known.state is TransactionState.ONGOING:
            self._fence(known, now_ms)
            raise RefusedError(ErrorCode.CONCURRENT_TRANSACTIONS)  # the client asks again, and gets the next epoch
        self._bump(known, expected)
        known.state, known.timeout_ms, known.started_ms, known.updated_ms = TransactionState.EMPTY, timeout_ms, -1, now_ms
        known.partitions.clear()
        return known.producer

    def _bump(self, known: TransactionMetadata, expected: ProducerIdentity | None) -> None:
        current = known.producer
        if current.epoch >= _EXHAUSTED_EPOCH and (expected is None or expected.epoch == current.epoch):
            known.previous_producer_id = current.id
            known.last_epoch = NO_EPOCH if expected is None else current.epoch
            known.producer = ProducerIdentity(self.new_producer_id(), 0)
        elif expected is None:
            known.producer, known.last_epoch = ProducerIdentity(current.id, current.epoch + 1), NO_EPOCH
        elif current.epoch in (NO_EPOCH, expected.epoch):
            known.producer, known.last_epoch = ProducerIdentity(current.id, current.epoch + 1), current.epoch
        elif expected.epoch != known.last_epoch:  # else it is the same request again
            raise RefusedError(ErrorCode.PRODUCER_FENCED)

    # --- what belongs to a transaction ----------------------------------------------------------------------------------

    def add(self, transactional_id: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition], now_ms: int,
            version: int = 0) -> None:  # fmt: skip
        """AddPartitionsToTxn (24), or under version 2 what a write to a new partition does by itself."""
        known = self._current(transactional_id, producer)
        if known.state in _PREPARED:
            raise RefusedError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if known.state is not TransactionState.ONGOING:
            known.state, known.started_ms = TransactionState.ONGOING, now_ms
            self._look_by(now_ms + known.timeout_ms)
            known.partitions.clear()
        known.version, known.updated_ms = version, now_ms
        known.partitions.update(partitions)

    def verify(self, transactional_id: str, producer: ProducerIdentity, partition: TopicPartition) -> None:
        """KIP-890, part 1: a write under version 1 belongs to a partition that was added."""
        known = self._current(transactional_id, producer)
        if known.state in _PREPARED:
            raise RefusedError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if known.state is not TransactionState.ONGOING or partition not in known.partitions:
            raise RefusedError(ErrorCode.TRANSACTION_ABORTABLE)

    def _current(self, transactional_id: str, producer: ProducerIdentity) -> TransactionMetadata:
        if not transactional_id:
            raise RefusedError(ErrorCode.INVALID_REQUEST)
        known = self.by_id.get(transactional_id)
        if known is None or known.producer.id != producer.id:
            raise RefusedError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if known.producer.epoch != producer.epoch:
            raise RefusedError(ErrorCode.PRODUCER_FENCED)
        return known

    # --- the end --------------------------------------------------------------------------------------------------------

    def end(
        self, transactional_id: str, producer: ProducerIdentity, version: int, now_ms: int, *, commit: bool
    ) -> ProducerIdentity:
        """EndTxn (26), in version 1 or 2 of the protocol. Returns the producer to continue with."""
        if not transactional_id:
            raise RefusedError(ErrorCode.INVALID_REQUEST)
        known = self.by_id.get(transactional_id)
        if known is None:
            raise RefusedError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        second = version >= SECOND_PROTOCOL
        over_rotation = second and _is_retry_over_rotation(known, producer)
        retry = over_rotation or (second and known.producer.epoch == producer.epoch + 1)
        if known.producer.id != producer.id and not over_rotation:
            raise RefusedError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if not (_allows_retry(known, producer, retry) if second else producer.epoch == known.producer.epoch):
            raise RefusedError(ErrorCode.PRODUCER_FENCED)
        if known.state is TransactionState.ONGOING:
            self._decide(known, version, now_ms, commit=commit)
        elif second and not retry and not commit and known.state not in _PREPARED:
            known.partitions.clear()  # it may have started one, without having heard of it
            self._decide(known, version, now_ms, commit=False)
        elif second and not retry:
            raise RefusedError(ErrorCode.INVALID_TXN_STATE)
        else:
            _answer_again(known, commit=commit)
        return known.producer

    def _decide(self, known: TransactionMetadata, version: int, now_ms: int, *, commit: bool) -> None:
        known.state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        known.version, known.updated_ms = version, now_ms
        known.marked_by = known.producer
        if known.bumps_epochs:
            if known.producer.epoch >= _EXHAUSTED_EPOCH:
                known.next_producer_id = self.new_producer_id()
            known.last_epoch = known.producer.epoch
            known.producer = ProducerIdentity(known.producer.id, known.producer.epoch + 1)
            known.marked_by = known.producer
        self._complete(known)

    def _fence(self, known: TransactionMetadata, now_ms: int) -> None:
        """Abort a transaction over its producer's head, whose epoch is the past from here on."""
        known.state = TransactionState.PREPARE_ABORT
        known.version, known.updated_ms = self.server_version, now_ms
        known.producer = ProducerIdentity(known.producer.id, known.producer.epoch + 1)
        known.last_epoch = NO_EPOCH
        known.marked_by = known.producer
        self._complete(known)

    def _complete(self, known: TransactionMetadata) -> None:
        if self._held or known.marked_by is None:
            return
        self._markers.write(known, known.marked_by, commit=known.state is TransactionState.PREPARE_COMMIT)
        known.state = _COMPLETE[known.state]
        known.partitions.clear()
        if known.next_producer_id != NO_PRODUCER_ID:
            known.previous_producer_id, known.last_epoch = known.producer.id, known.producer.epoch
            known.producer = ProducerIdentity(known.next_producer_id, 0)
            known.next_producer_id = NO_PRODUCER_ID

    # --- markers that come late -----------------------------------------------------------------------------------------

    def hold_markers(self) -> None:
        """From now on decided transactions stay prepared: not yet visible, and their ids busy (CONCURRENT_TRANSACTIONS)."""
        self._held = True

    def release_markers(self) -> None:
        self._held = False
        for known in self.by_id.values():
            if known.state in _PREPARED:
                self._complete(known)

    # --- time -----------------------------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> bool:
        """Abort what is past its timeout, forget ids unused for long. Whether anything was done."""
        if self.look_from_ms is None or now_ms < self.look_from_ms:
            return False
        due = [known for known in self.by_id.values() if now_ms >= self._due_ms(known)]
        for known in due:
            if known.state is TransactionState.ONGOING:
                self._fence(known, now_ms)
            else:
                del self.by_id[known.transactional_id]
        self.look_from_ms = min(map(self._due_ms, self.by_id.values()), default=None)
        return bool(due)

    def _look_by(self, due_ms: int) -> None:
        self.look_from_ms = due_ms if self.look_from_ms is None else min(due_ms, self.look_from_ms)

    def _due_ms(self, known: TransactionMetadata) -> int:
        if known.state is TransactionState.ONGOING:
            return known.started_ms + known.timeout_ms
        return _NEVER_MS if known.state in _PREPARED else known.updated_ms + self.id_expiration_ms


def _may_go_on(known: TransactionMetadata, expected: ProducerIdentity) -> bool:
    return (
        known.producer.epoch == NO_EPOCH
        or expected.id == known.producer.id
        or (expected.id == known.previous_producer_id and expected.epoch >= _EXHAUSTED_EPOCH)
    )


def _is_retry_over_rotation(known: TransactionMetadata, producer: ProducerIdentity) -> bool:
    """The same EndTxn again, after which the producer's epochs were used up, and it has another id."""
    return known.previous_producer_id == producer.id and producer.epoch == _EXHAUSTED_EPOCH and known.producer.epoch == 0


def _allows_retry(known: TransactionMetadata, producer: ProducerIdentity, retry: bool) -> bool:  # noqa: FBT001
    """Version 2: the current epoch, or the previous one where its EndTxn may have lost its answer."""
    current = producer.epoch == known.producer.epoch
    if known.state in (TransactionState.ONGOING, TransactionState.EMPTY):
        return current
    return retry if known.state in _PREPARED else retry or current


def _answer_again(known: TransactionMetadata, *, commit: bool) -> None:
    """What is said of a transaction that has ended: nothing where it ended so, else why not."""
    prepared = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    if known.state not in (prepared, _COMPLETE[prepared]):
        raise RefusedError(ErrorCode.INVALID_TXN_STATE)
    if known.state is prepared:
        raise RefusedError(ErrorCode.CONCURRENT_TRANSACTIONS)
