"""The durable lists of Kafka sinks: a compacted topic, a key for each job and destination (`names.py`), written under a
transactional id of its driver.

The transactional id is what makes it safe: taking it over fences an older driver, whose write can then no longer land after
the new driver has read the list. A plain compacted topic would let it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import BrokerError, broker_error
from headrace.connectors.kafka.client.fetch import fetch_there, intact
from headrace.connectors.kafka.client.positions import Earliest, Latest
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.client.topology import TopicMetadata
from headrace.connectors.kafka.client.wire.protocol import CreateTopicsRequest
from headrace.connectors.kafka.format.decode import decode
from headrace.connectors.kafka.format.encode import Codec, RecordEncoder
from headrace.connectors.kafka.format.fetch_protocol import PartitionAnswer
from headrace.connectors.kafka.format.record_batch import StoredBatch
from headrace.connectors.kafka.format.stored_batch import MarkerKind, control_marker, records_of
from headrace.connectors.kafka.write.names import JobNames
from headrace.connectors.kafka.write.produce import OutBatch, idempotent_sender, transactional_sender
from headrace.connectors.kafka.write.topic_config import topic_setting
from headrace.connectors.kafka.write.topics import find_topic
from headrace.connectors.kafka.write.transaction_log import open_transactions
from headrace.connectors.kafka.write.transactions import (
    ENDED_BY_OTHERS,
    Answer,
    Producer,
    TransactionDescription,
    TransactionProtocol,
    TransactionResult,
    Transactions,
)
from headrace.enumerator.envelope import Envelope
from headrace.enumerator.errors import FencedError, PeerError, RetriableError, StateError, UsageError

__all__ = ["CommitLog", "DriverLog"]

log = logging.getLogger(__name__)

_PARTITION = 0
_DRIVER_TIMEOUT_MS = 10_000  # a driver that dies in the middle of a write holds others up no longer than this
_REPLICAS = 3  # as Kafka's own topics of transactions and offsets have; brokers' default for others is 1
_CLEANUP_POLICY = "cleanup.policy"
_HAS_WRITTEN = ("PrepareCommit", "CompleteCommit")
_LONGEST_OPEN_S = 20.0  # a driver's write that times out is ended by then: coordinators look every 10 s
_MOST_QUICK_FAILURES = 3  # before its timeout a write is aborted by no outage
_ROW = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_NOTHING = b"/"  # no list's key, and no part's: compaction keeps one of them for all jobs at most


_CONFIGS = {
    _CLEANUP_POLICY: "compact",
    # What is in the last segment is not compacted, and a process reads all of the topic once: keep that small.
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "max.message.bytes": str(1 << 20),  # brokers may have a lower default
}

_PART_BYTES = 1 << 19
"""A longer list is split: well below what a broker takes as one record, whatever compression makes of it."""
_PARTS = Envelope("headrace-commit-list-parts", "head of a list of transactions")


class CommitLog:
    """Reads and creates the topic, and remembers what it has read. Thread-safe; does no I/O before a method is called."""

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`topic` holds the lists of all jobs that name it. `clock`: in s."""
        self.cluster: KafkaCluster = cluster
        self.topic: str = topic
        self._lock = threading.Lock()
        self._checked: UUID | None = None
        self._topic_id: UUID | None = None
        self._position: int | None = None
        self._last_epoch: int | None = None
        self._lists: dict[str, bytes] = {}
        self._clock = clock
        self._open: _Open | None = None
        _logs.add(self)

    def start_afresh(self) -> None:
        """In a forked child: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def create(self) -> None:
        """Make the topic if it is not there: compacted, one partition, three replicas, or one on each of fewer brokers.

        Raises RefusedByBrokerError without the right to; then it has to be made beforehand. Raises UsageError for a topic that
        is there and not compacted.
        """
        found = self.cluster.find_topics([self.topic])[self.topic]
        if found is None:  # if it is only this broker that does not know it, the controller states that it is there
            self.cluster.retrying(f"creating topic {self.topic!r}", self._create)
            found = self.cluster.topics([self.topic])[self.topic]  # every broker's view of a new topic comes with a delay
        if found.topic_id is None or found.topic_id != self._checked:
            self.cluster.retrying(f"looking at the settings of topic {self.topic!r}", self._check_policy)
            self._checked = found.topic_id

    def _check_policy(self) -> None:
        """Raise UsageError for a topic whose records go by time or size, and with them what is to be committed."""
        setting = topic_setting(self.cluster, self.topic, _CLEANUP_POLICY)
        if setting is None:
            log.info("whether topic %r is compacted is not known: that needs the right to DescribeConfigs", self.topic)
            return
        policy = {part.strip() for part in setting.split(",")}
        if policy != {"compact"}:
            raise UsageError(
                f"the topic {self.topic!r} for the lists of transactions has {_CLEANUP_POLICY}={','.join(sorted(policy))}, so "
                "that "
                "these are deleted while they are needed: set it to compact, and to nothing else (kafka-configs --alter "
                f"--entity-type topics --entity-name {self.topic} --add-config {_CLEANUP_POLICY}=compact)"
            )

    def _create(self) -> None:
        config_class = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig
        replicas = min(_REPLICAS, len(self.cluster.brokers()))
        configs = {**_CONFIGS, "min.insync.replicas": str(max(1, replicas - 1))}
        topic = CreateTopicsRequest.CreatableTopic(
            name=self.topic,
            num_partitions=1,
            replication_factor=replicas,
            assignments=[],
            configs=[config_class(name=name, value=value) for name, value in configs.items()],
        )
        timeout_ms = self.cluster.config.request_timeout_ms
        request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms, validate_only=False)
        response = self.cluster.call_any(request)  # brokers pass it on to the controller
        code = response.topics[0].error_code
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            said = response.topics[0].error_message or ""
            hint = f"create it beforehand, with one partition and cleanup.policy=compact. {said}"
            raise broker_error(code, f"creating topic {self.topic!r} for the lists of transactions", hint)

    def read(self) -> dict[str, bytes]:
        """Key to durable list, of all jobs and destinations. Waits until all writes started before are decided.

        No topic, no lists; but that takes every broker, looked at several times. Raises StateError for a topic that this
        process has read before and that is gone, or was created again since.
        """
        found = self._find()
        return {} if found is None else _wholes(self._read(found, self._stable_end()))

    def decided(self) -> dict[str, bytes]:
        """`read`, without waiting: a write that is open now is left out, and hides nothing of what comes after it.

        It may be of a driver that has died, and stay open until its timeout, or until its id is taken over.
        """
        found = self._find()
        return {} if found is None else _wholes(self._decided(found, self._end(Isolation.READ_UNCOMMITTED)))

    def decided_records(self) -> dict[str, bytes]:
        """Records by their keys, as `decided`, after `create`: a broker that does not know the topic yet is asked again.

        What a broker that is isolated from the others has of it may be less than what they have. Raises UnknownTopicError.
        """
        found = self.cluster.topics([self.topic])[self.topic]
        return self._decided(found, self._end(Isolation.READ_UNCOMMITTED))

    def proved_records(self) -> dict[str, bytes]:
        """`decided_records`, and certainly all that was decided before this call: who has taken an id over, and has waited for
        what was under way there, finds all that was written under it.

        A broker that says it leads the topic may be isolated from the others, which have elected another one since: it still
        answers, and lacks what is newest. It cannot have a write acknowledged by all in-sync replicas. So a record is written
        first, which is nothing: a tombstone of a key that there never is. Who has that has all that came before it.
        """
        found = self.cluster.topics([self.topic])[self.topic]

        def ask() -> dict[str, bytes]:
            written = self.write_nothing()  # again at each try: an unclean election loses it, and no process would have it ever
            end = self._end(Isolation.READ_UNCOMMITTED)
            if end <= written:
                self.cluster.invalidate(self.topic)
                raise RetriableError(
                    f"{self.topic}-{_PARTITION} was written to at offset {written}, and the broker that says it leads it ends "
                    f"at {end}: it may be isolated from the others"
                )
            self._forget_beyond(end)
            return self._decided(found, end)

        return self.cluster.retrying(f"reading {self.topic!r} up to its end", ask)

    def _forget_beyond(self, end: int) -> None:
        """Forget what was read of a log that went further, and was truncated by an unclean election."""
        with self._lock:
            if self._position is not None and self._position > end:
                self._lists, self._last_epoch, self._position = {}, None, 0  # before the log's start, so that it is read again

    def write_nothing(self) -> int:
        """The offset of a record that says nothing, once all in-sync replicas have it: see `proved_records`."""
        rows = pa.RecordBatch.from_arrays([_binary([_NOTHING]), _binary([None])], schema=_ROW)
        encoder = RecordEncoder(1, producer_id=-1, producer_epoch=-1, transactional=False)
        encoded = [*encoder.append(rows, time.time_ns() // 1_000_000), *encoder.flush()]
        with closing(idempotent_sender(self.cluster)) as sender:
            sender.send(self.topic, [OutBatch(batch.partition, batch.data, batch.records) for batch in encoded])
            sender.flush()
            return sender.written[self.topic, _PARTITION].last

    def _find(self) -> TopicMetadata | None:
        """None where there is no topic yet. Raises StateError for one that was there."""
        was_there = self._position is not None  # before the look: another thread may make the topic and read it meanwhile
        found = find_topic(self.cluster, self.topic)
        if found is None and was_there:
            raise StateError(
                f"the topic {self.topic!r} was there, and no broker knows it any more: the lists of all jobs are lost"
            )
        return found

    def _read(self, found: TopicMetadata, end: int) -> dict[str, bytes]:
        """The records up to `end`, before which all is over, by their keys."""
        with self._lock:
            if self._position is None:
                self._topic_id = found.topic_id
            elif found.topic_id != self._topic_id and not self._is_still_there():
                raise StateError(
                    f"the topic {self.topic!r} was deleted, and created again: the lists of all jobs are lost, and with them "
                    "which epochs are committed. Restore the topic, or see headrace transactions forget"
                )
            self._catch_up(end)
            return dict(self._lists)

    def _decided(self, found: TopicMetadata, end: int) -> dict[str, bytes]:
        """The records that are committed before `end`, by their keys."""
        stable = min(self._end(Isolation.READ_COMMITTED), end)
        self._watch(stable, end)
        records = self._read(found, stable)
        committed: list[StoredBatch] = []
        inconclusive: dict[int, list[StoredBatch]] = {}
        for batch in self._beyond(stable, end):
            if not batch.is_transactional:
                committed.append(batch)
            elif not batch.is_control:
                inconclusive.setdefault(batch.producer_id, []).append(batch)
            else:
                ended = inconclusive.pop(batch.producer_id, [])
                committed += ended if control_marker(batch).kind is MarkerKind.COMMIT else []
        for batch in sorted(committed, key=lambda batch: batch.base_offset):
            for row in records_of(self.topic, _PARTITION, batch).to_pylist():
                _take_in(records, row)
        return records

    def _watch(self, stable: int, end: int) -> None:
        """Say once what has been open for 20 s: all that lies behind it is read again each time."""
        now = self._clock()
        with self._lock:
            if stable == end:
                self._open = None
                return
            if self._open is None or self._open.first != stable:
                self._open = _Open(stable, now)
            found, open_s = self._open, now - self._open.since
            if found.is_told or open_s < _LONGEST_OPEN_S:
                return
            found.is_told = True
        try:
            why = open_transactions(self.cluster, (self.topic, _PARTITION))(stable)
        except RetriableError:
            found.is_told = False  # whose it is cannot be asked now: the next look does
            return
        log.warning(
            "what is behind offset %d of %r is read again each time, as it has been open for %.0f s: %s",
            stable,
            self.topic,
            open_s,
            why,
        )

    def _beyond(self, position: int, end: int) -> Iterator[StoredBatch]:
        """What lies from here up to `end`, decided or not."""
        while position < end:
            before = position
            _, batches = self._fetch(position, Isolation.READ_UNCOMMITTED)
            for batch in batches:
                if batch.last_offset < end:
                    yield batch
                    position = batch.last_offset + 1
            if position == before:
                raise PeerError(f"{self.topic}-{_PARTITION} ends at offset {end}, and nothing could be read at {position}")

    def _fetch(
        self, position: int, isolation: Isolation, last_epoch: int | None = None
    ) -> tuple[PartitionAnswer, list[StoredBatch]]:
        """What one Fetch brings. Markers are compared, too: one bit turns a COMMIT into an ABORT. Raises CorruptDataError."""
        key = (self.topic, _PARTITION)
        where = f"{self.topic}-{_PARTITION}"
        return intact(where, position, lambda: fetch_there(self.cluster, *key, position, isolation, last_epoch=last_epoch))

    def _is_still_there(self) -> bool:
        """Whether some broker knows the topic that was read before; another one may have seen an older or a newer one."""
        return find_topic(self.cluster, self.topic, lambda topic: topic.topic_id == self._topic_id) is not None

    def _stable_end(self) -> int:
        """Where the topic ends now, when every transaction before it is over. No other process waits for whose: no lock is
        held.
        """
        key = (self.topic, _PARTITION)
        end = self._end(Isolation.READ_UNCOMMITTED)
        why_open = open_transactions(self.cluster, key)

        def wait() -> None:
            stable = self._end(Isolation.READ_COMMITTED)
            if stable < end:
                raise RetriableError(why_open(stable))

        self.cluster.retrying(f"waiting for open transactions in {self.topic!r}", wait)
        return end

    def _end(self, isolation: Isolation) -> int:
        key = (self.topic, _PARTITION)
        return self.cluster.list_offsets({key: Latest()}, isolation)[key].offset or 0

    def _catch_up(self, end: int) -> None:
        if self._position is not None and self._goes_on(end):
            return
        first = self.cluster.list_offsets({(self.topic, _PARTITION): Earliest()})[self.topic, _PARTITION].offset or 0
        self._lists, self._last_epoch, self._position = {}, None, first
        while self._position < end:
            answer, found = self._fetch(self._position, Isolation.READ_COMMITTED)
            self._position = self._take(answer, found, end)

    def _goes_on(self, end: int) -> bool:
        """Take in what came since the last reading. False where that may be less than there was, or is of another log.

        Compaction has been there: a tombstone of what is remembered may have been removed with it. Or an unclean election has
        truncated the log, which others have written on (KIP-320).
        """
        while self._position is not None and self._position < end:
            answer, found = self._fetch(self._position, Isolation.READ_COMMITTED, self._last_epoch)
            if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE or answer.diverging is not None:
                return False
            if not _is_whole(found, self._position):
                return False
            self._position = self._take(answer, found, end)
        return True

    def _take(self, answer: PartitionAnswer, found: Sequence[StoredBatch], end: int) -> int:
        """Take in what one Fetch brought; the position after it."""
        position = self._position or 0
        if answer.error or not found:
            raise PeerError(f"{self.topic}-{_PARTITION} ends at offset {end}, and nothing could be read at {position}")
        batches = decode(
            answer.records,
            topic=self.topic,
            partition=_PARTITION,
            start=position,
            stop=end,
            columns=("key", "value"),
            aborted=answer.aborted or (),
        )
        for batch in batches:
            position = batch.next_offset
            for row in batch.records.to_pylist():
                _take_in(self._lists, row)
        self._last_epoch = next(
            (each.leader_epoch for each in reversed(found) if each.last_offset < position), self._last_epoch
        )
        return position


def _is_whole(found: Sequence[StoredBatch], position: int) -> bool:
    """Whether every offset from `position` on has its record still: compaction has not been there."""
    for batch in found:
        if batch.base_offset > position or batch.records <= batch.last_offset - batch.base_offset:
            return False
        position = batch.last_offset + 1
    return True


@dataclass(slots=True)
class _Open:
    """The oldest open transaction: its first offset, and since when it is known, by the clock of the log."""

    first: int
    since: float
    is_told: bool = False


def _take_in(records: dict[str, bytes], row: Mapping[str, Any]) -> None:
    key, value = (row["key"] or b"").decode(errors="replace"), row["value"]
    if value is None:
        records.pop(key, None)
    else:
        records[key] = value


_logs: weakref.WeakSet[CommitLog] = weakref.WeakSet()


def _renew_locks() -> None:
    for each in _logs:
        each.start_afresh()


os.register_at_fork(after_in_child=_renew_locks)


# --- a list in several records -------------------------------------------------------------------------------------------

_SEPARATOR = "/"


def _split(key: str, value: bytes | None, before: Collection[str]) -> dict[str, bytes | None]:
    """Key to value of the records that are the list; those of `before` that are not part of it are removed.

    All are of one transaction. Parts start with the id of their list, which the record under the list's own key names.
    """
    gone: dict[str, bytes | None] = dict.fromkeys(before)
    if value is None or len(value) <= _PART_BYTES:
        return {**gone, key: value}
    list_id = uuid4().hex
    parts = [value[start : start + _PART_BYTES] for start in range(0, len(value), _PART_BYTES)]
    named = {f"{key}{_SEPARATOR}{index}": list_id.encode() + part for index, part in enumerate(parts)}
    return {**gone, **named, key: _PARTS.seal({"id": list_id, "parts": len(parts)})}


def _wholes(records: Mapping[str, bytes]) -> dict[str, bytes]:
    """The lists, each whole, by their keys."""
    return {key: _whole(key, records) for key in records if _SEPARATOR not in key}


def _list_of(key: str, records: Mapping[str, bytes]) -> bytes | None:
    """The list under this key, whole."""
    return _whole(key, records) if key in records else None


def _whole(key: str, records: Mapping[str, bytes]) -> bytes:
    """What `_split` was given; a list whose parts are not there as it is, which is then no list that can be read."""
    value = records[key]
    if _PARTS.name.encode() not in value[:_HEAD_BYTES]:
        return value
    try:
        head = _PARTS.open(value, key)
        with _PARTS.reading(key):
            list_id = head["id"].encode()
            parts = [records[f"{key}{_SEPARATOR}{index}"] for index in range(head["parts"])]
    except StateError:
        return value
    if not all(part.startswith(list_id) for part in parts):
        return value
    return b"".join(part[len(list_id) :] for part in parts)


_HEAD_BYTES = 100


def _has_ended(found: TransactionDescription, own: Producer | None) -> bool:
    """Whether it is the transaction of this very producer that is over, by its timeout as a rule, and no process has come
    since.

    That bumps the epoch once. Another driver's InitProducerId bumps it, too, but leaves the id without a transaction, and what
    that driver writes ends one epoch later still.
    """
    by_its_end = None if own is None else (own.producer_id, own.epoch + 1)
    return found.is_decided and (found.producer.producer_id, found.producer.epoch) == by_its_end


class DriverLog:
    """The list of one job at one destination, and its driver's right to write it. Used by one thread."""

    def __init__(self, commit_log: CommitLog, transactions: Transactions, names: JobNames) -> None:
        self._log, self._transactions, self._names = commit_log, transactions, names
        self._parts: frozenset[str] = frozenset()
        self._recorded: bytes | None = None
        self._producer: Producer | None = None
        self._protocol = TransactionProtocol.V1

    def fence(self) -> bytes | None:
        """Shut other drivers of the job out; then the job's durable list.

        Raises StateError if there is none, and the job's driver has written one: then the topic is not the one that it was.
        """
        self._log.create()
        self._refuse_lost()
        self._protocol = self._transactions.protocol()
        self._take_over_and_read()
        return self._recorded

    def _take_over_and_read(self) -> None:
        self._producer = self._transactions.init(self._names.driver, _DRIVER_TIMEOUT_MS)
        key, records = self._names.key, self._log.proved_records()
        self._recorded = _list_of(key, records)
        self._parts = frozenset(name for name in records if name.startswith(f"{key}{_SEPARATOR}"))

    def _refuse_lost(self) -> None:
        """The coordinator knows what the driver's last transaction was, until the id is taken over.

        Checked before that, so that it is known at the next start, too. A driver that has taken the id over and died before
        its first write leaves nothing to know it by.
        """
        known = self._transactions.describe([self._names.driver])[self._names.driver]
        if known is None or known.state not in _HAS_WRITTEN or self._names.key in self._log.decided_records():
            return
        self._await_end(self._names.driver)  # its first write may be decided, and not in the log yet
        if self._names.key in self._log.proved_records():
            return
        raise StateError(
            f"the driver of job {self._names.job!r} has recorded epochs in the topic {self._log.topic!r}, and it has no list "
            "of the job: it was deleted and created again, or the job had another commit topic. Which epochs are committed is "
            f"not known. Restore the topic, or start over with headrace transactions forget --job {self._names.job}"
        )

    def _await_end(self, transactional_id: str) -> None:
        """Return when nothing is under way under the id: all that was committed is in the log then, with its markers."""

        def look() -> None:
            found = self._transactions.describe([transactional_id])[transactional_id]
            if found is not None and found.is_under_way:
                raise RetriableError(
                    f"a transaction of {transactional_id!r} is {found.state}, and ends by its timeout at the latest"
                )

        self._log.cluster.retrying(f"waiting for a transaction of {transactional_id!r} to end", look)

    def write(self, value: bytes | None) -> None:
        """Replace the job's list (None: leave none). Raises FencedError when another driver has claimed the job since `fence`.

        An outage may outlast the transaction of this write, whose coordinator then aborts and fences it. That is no other
        driver: the list is read again, and written again unless it is there.
        """
        quick_failures = 0
        while True:
            started_at = time.monotonic()
            try:
                self._write(value)
            except BrokerError as error:
                if error.code not in ENDED_BY_OTHERS:
                    raise
                quick_failures += time.monotonic() - started_at < _DRIVER_TIMEOUT_MS / 1000
                if quick_failures > _MOST_QUICK_FAILURES:
                    raise
                self._refuse_rival(value, error)
                self._log.cluster.back_off(quick_failures)
                if self._recorded == value:
                    return
            else:
                self._recorded = value
                return

    def _refuse_rival(self, value: bytes | None, error: BrokerError) -> None:
        """Raise FencedError if another driver has taken the id over, or has changed the list; else take it again, and read."""
        own, before = self._producer, self._recorded
        found = self._transactions.describe([self._names.driver])[self._names.driver]
        if found is not None and found.producer != own and not _has_ended(found, own):
            raise self._fenced() from error
        log.warning(
            "job %s: the write of its list was aborted, and no other driver has done it: it took longer than %.0f s, or the "
            "brokers forgot its id; looking whether it is to be written again (%s)",
            self._names.job,
            _DRIVER_TIMEOUT_MS / 1000,
            error,
        )
        self._take_over_and_read()
        if self._recorded not in (before, value):
            raise self._fenced() from error

    def remove(self) -> None:
        """Remove the job's list, and that it had one. Raises FencedError as `write`."""
        self.write(None)
        self._producer = self._transactions.init(self._names.driver, _DRIVER_TIMEOUT_MS)

    def reset(self) -> None:
        """Shut other drivers of the job out and leave no list, whatever was recorded, can be read of it, or is lost."""
        self._log.create()
        self._protocol = self._transactions.protocol()
        self._take_over_and_read()
        self.remove()

    def _write(self, value: bytes | None) -> None:
        assert self._producer is not None
        if self._protocol is TransactionProtocol.V1:
            # A delayed EndTxn of the write before could end this one (KAFKA-17754); version 2 bumps the epoch with each.
            self._producer = self._transactions.renew(self._producer, _DRIVER_TIMEOUT_MS)
        producer = self._producer
        records = _split(self._names.key, value, self._parts)
        columns = [_binary([key.encode() for key in records]), _binary(list(records.values()))]
        rows = pa.RecordBatch.from_arrays(columns, schema=_ROW)
        encoder = RecordEncoder(
            1, producer_id=producer.producer_id, producer_epoch=producer.epoch, transactional=True, codec=Codec.ZSTD
        )
        encoded = [*encoder.append(rows, time.time_ns() // 1_000_000), *encoder.flush()]
        sender = transactional_sender(self._log.cluster, self._transactions, producer, self._protocol)
        try:
            sender.send(self._log.topic, [OutBatch(batch.partition, batch.data, batch.records) for batch in encoded])
            sender.flush()
        finally:
            sender.close()
        answer, self._producer = self._transactions.end(producer, self._protocol, TransactionResult.COMMIT)
        if answer is not Answer.DONE:
            code = ErrorCode.PRODUCER_FENCED if answer is Answer.UNKNOWN else ErrorCode.INVALID_TXN_STATE
            raise broker_error(code, f"writing the list of transactions of job {self._names.job!r}")
        self._parts = frozenset(name for name, data in records.items() if _SEPARATOR in name and data is not None)

    def _fenced(self) -> FencedError:
        return FencedError(f"another driver of job {self._names.job!r} claimed it: this one must stop, and has changed nothing")


def _binary(values: Sequence[bytes | None]) -> pa.Array:
    """Not by `pa.array`: for a list that imports pandas where it is installed, half a second in a driver's first commit."""
    known = sum((value is not None) << place for place, value in enumerate(values))
    ends = array("i", accumulate((len(value or b"") for value in values), initial=0))
    buffers = (known.to_bytes(len(values) // 8 + 1, "little"), ends, b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(pa.binary(), len(values), [pa.py_buffer(buffer) for buffer in buffers])
