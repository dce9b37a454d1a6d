"""The topic of the durable lists of Kafka sinks: compacted, with a key for each job and destination (`names.py`).

Here it is made and read. A driver writes its list by `driver_log.py`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import broker_error
from headrace.connectors.kafka.client.fetch import fetch_there, intact
from headrace.connectors.kafka.client.positions import Earliest, Latest
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.client.topology import TopicMetadata
from headrace.connectors.kafka.client.wire.protocol import CreateTopicsRequest
from headrace.connectors.kafka.format.decode import decode
from headrace.connectors.kafka.format.encode import RecordEncoder
from headrace.connectors.kafka.format.fetch_protocol import PartitionAnswer
from headrace.connectors.kafka.format.record_batch import StoredBatch
from headrace.connectors.kafka.format.stored_batch import MarkerKind, control_marker, records_of
from headrace.connectors.kafka.write.list_records import record_rows, whole_lists
from headrace.connectors.kafka.write.produce import OutBatch, idempotent_sender
from headrace.connectors.kafka.write.topic_config import topic_setting
from headrace.connectors.kafka.write.topics import find_topic
from headrace.connectors.kafka.write.transaction_log import open_transactions
from headrace.enumerator.errors import PeerError, RetriableError, StateError, UsageError

log = logging.getLogger(__name__)

_PARTITION = 0
_REPLICAS = 3  # as Kafka's own topics of transactions and offsets have; brokers' default for others is 1
_CLEANUP_POLICY = "cleanup.policy"
_LONGEST_OPEN_S = 20.0  # a driver's write that times out is ended by then: coordinators look every 10 s
_NOTHING = "/"  # no list's key, and no part's: compaction keeps one of them for all jobs at most


_CONFIGS = {
    _CLEANUP_POLICY: "compact",
    # What is in the last segment is not compacted, and a process reads all of the topic once: keep that small.
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "max.message.bytes": str(1 << 20),  # brokers may have a lower default
}


class CommitLog:
    """Reads and creates the topic, and remembers what it has read. Thread-safe; does no I/O before a method is called."""

    def __init__(self, cluster: KafkaCluster, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
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
        return {} if found is None else whole_lists(self._read(found, self._stable_end()))

    def decided(self) -> dict[str, bytes]:
        """`read`, without waiting: a write that is open now is left out, and hides nothing of what comes after it.

        It may be of a driver that has died, and stay open until its timeout, or until its id is taken over.
        """
        found = self._find()
        return {} if found is None else whole_lists(self._decided(found, self._end(Isolation.READ_UNCOMMITTED)))

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
        answers, and lacks what is newest. It cannot have a write acknowledged by all in-sync replicas. So the driver first
        writes a record that changes nothing: a tombstone for a key that is never used. A broker that has this record has all
        that came before it.
        """
        found = self.cluster.topics([self.topic])[self.topic]

        def ask() -> dict[str, bytes]:
            written = self.write_nothing()  # again at each try: an unclean election loses it, and then no broker ever has it
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
        rows = record_rows({_NOTHING: None})
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
