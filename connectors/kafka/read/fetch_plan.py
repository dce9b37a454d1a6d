"""What to fetch next, and what an answer means. Sans-I/O: no sockets, threads or clocks; `now` is always handed in.

A partition is in one of these states:

- *leaderless*: its leader must be looked up (now, or after a backoff), see `leaderless`, `leader_found`, `lookup_failed`;
- *in dispute*: the broker states that the offset is out of range, or for 3 s that the log ends there, before the stop, and
  neither proves anything yet, see `unresolved` and `cleared`;
- *ready*: `take` may put it in the next request to its broker;
  after `metadata.max.age.ms` its leader is looked up again alongside that, and a follower gives way to the leader;
- *in flight*: in a request, or remembered by the broker (`fetch_session`); `landed`, `lost` or `put_back` ends that;
- *ended*: its `stop` is reached, or it failed, or the caller removed it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from enum import Enum, auto
from uuid import UUID

from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import LogTruncatedError, TopicRecreatedError, UnknownTopicError, broker_error
from headrace.connectors.kafka.client.fetch import PartitionFetch
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.topology import Broker, Leader, TopicPartition
from headrace.connectors.kafka.format.fetch_protocol import BatchSpan, PartitionAnswer, span_of_batches
from headrace.connectors.kafka.format.record_batch import AFTER_LENGTH
from headrace.connectors.kafka.read.fetch_index import FetchIndex, Place, Worker
from headrace.connectors.kafka.read.outage_log import Outages
from headrace.enumerator.errors import (
    CorruptDataError,
    DataLossError,
    DeadlineExceededError,
    HeadraceError,
    RetriableError,
    is_retriable,
)

_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_UNKNOWN_TOPIC_GRACE_S = 3.0
_CUT_SHORT_GRACE_S = 3.0
_RAREST_LOOKUP_S = 256.0
_PART_OF_WAITED = 0.125
_LEAST_AGE_MS = 50
_GUESSED_BYTES_PER_OFFSET = 1024.0
_SMALLEST_REQUEST = 64 * 1024
_PARTITION_SHARE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FetchFrom:
    """A partition to fetch, from `offset` (the next one wanted) up to `stop` (exclusive; None: without end).

    With a `topic_id` a topic re-created under the same name is noticed; without, the id is learnt at the first lookup.
    `last_epoch` is the leader epoch of the last batch already read, if known: then a truncated log is noticed too (KIP-320).
    `stop_epoch` is the last that any record before `stop` has, if known: then so is one that was truncated and has grown again.
    `awaited`: no broker knows the topic, and it may come back. It is looked up more and more rarely, with others at one time.
    """

    topic: str
    partition: int
    offset: int
    topic_id: UUID | None = None
    stop: int | None = None
    last_epoch: int | None = None
    stop_epoch: int | None = None
    awaited: bool = False

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class FetchedData:
    """Whole record batches of one partition. They may start before `fetch_offset` and run past the stop: the reader trims.

    `records` is a view of a receive buffer, which is reused once no view of it is left. `next_offset` is where reading
    continues, past control records and gaps. `aborted` lists (producer id, first offset), None under read_uncommitted. `epochs`
    are (first offset, leader epoch) of the first batch of each leader epoch.
    """

    topic: str
    partition: int
    fetch_offset: int
    next_offset: int
    epochs: tuple[tuple[int, int], ...]
    records: memoryview
    high_watermark: int | None
    last_stable_offset: int | None
    log_start_offset: int | None
    aborted: list[tuple[int, int]] | None

    def epoch_before(self, offset: int) -> int | None:
        """The leader epoch of what lies just before this offset; None where nothing of this data does, or it is not known."""
        return next((epoch for first, epoch in reversed(self.epochs) if first < offset), None)


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A partition that is fetched no more, and why. The others continue. `offset` is the next one that was wanted."""

    topic: str
    partition: int
    offset: int
    error: HeadraceError


Outcome = FetchedData | FetchFailed | None


class _State(Enum):
    LEADERLESS = auto()
    IN_DISPUTE = auto()
    READY = auto()
    IN_FLIGHT = auto()


@dataclass(slots=True, eq=False)
class _Partition:
    """One partition under way."""

    source: FetchFrom
    offset: int
    topic_id: UUID | None
    last_epoch: int | None
    state: _State = _State.LEADERLESS
    leader: Leader | None = None
    replica: Broker | None = None  # the leader, or a follower nearer to us (KIP-392)
    ready_at: float = 0.0
    known_until: float = 0.0  # the leader is to be looked up again then
    nearby_until: float = 0.0  # the follower gives way to the leader then
    leader_until: float = 0.0  # until then the leader must not send us to a follower
    failing_since: float | None = None
    missing_since: float | None = None
    short_since: float | None = None  # since when the log is said to end here, before the stop
    nothing_since: float | None = None  # since when no batch has come whole, although there is something
    failures: int = 0
    bytes_per_offset: float = _GUESSED_BYTES_PER_OFFSET
    max_bytes: int | None = None  # raised when not even one batch fitted
    order: int = 0  # of fetching
    place: Place = field(default_factory=Place)

    @property
    def lookup_at(self) -> float | None:
        if self.state is _State.IN_DISPUTE:
            return None
        return self.ready_at if self.state is _State.LEADERLESS else self.known_until

    def stands(self) -> Place:
        return Place(self.replica, self.state is _State.READY, self.state is _State.IN_DISPUTE, self.lookup_at)

    @property
    def ended(self) -> bool:
        return self.source.stop is not None and self.offset >= self.source.stop


@dataclass(frozen=True, slots=True)
class Asked:
    """One partition in a request: what is sent."""

    partition: _Partition = field(repr=False)
    topic: str
    topic_id: UUID | None
    index: int
    offset: int
    leader_epoch: int | None
    last_epoch: int | None
    max_bytes: int
    may_be_nearby: bool

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.index

    def fetch(self) -> PartitionFetch:
        return PartitionFetch(
            self.topic, self.topic_id, self.index, self.offset, self.max_bytes, self.leader_epoch, self.last_epoch
        )


class FetchPlan:
    """The partitions under way and their states. Not thread-safe: the fetcher guards it with its lock."""

    def __init__(self, config: ClientConfig, densities: MutableMapping[TopicPartition, float] | None = None) -> None:
        """Empty; see `add`. `densities`, in bytes per offset, is what plans before this one found, and is kept up to date."""
        self._config = config
        self._densities = {} if densities is None else densities
        self._max_age_s = max(config.metadata_max_age_ms, config.retry_backoff_ms, _LEAST_AGE_MS) / 1000
        self._longest_backoff_s = max(config.retry_backoff_ms, config.retry_backoff_max_ms) / 1000
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._index: FetchIndex[_Partition] = FetchIndex()
        self._orders = itertools.count()
        self.outages = Outages()

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, source: FetchFrom, now: float = 0.0) -> None:
        """Start a partition, or start it over at another offset; an answer to an older request for it is then ignored.

        `now` counts for one that is awaited only.
        """
        self.remove(source.key)
        partition = _Partition(source, source.offset, source.topic_id, source.last_epoch)
        partition.bytes_per_offset = self._densities.get(source.key, _GUESSED_BYTES_PER_OFFSET)
        if source.awaited:
            self._put_off(partition, now)
        if not partition.ended:
            self._partitions[source.key] = partition
            partition.order = next(self._orders)
            self._index.put(partition, partition.stands())

    def remove(self, key: TopicPartition) -> None:
        partition = self._partitions.pop(key, None)
        if partition is not None:
            self._index.put(partition, Place())
        self.outages.over(key)

    def changed(self) -> set[Worker]:
        """Who has got something to do since this was last asked, and brokers from which nothing is fetched any more."""
        return self._index.changed()

    def _settle(self, partition: _Partition) -> None:
        if self._partitions.get(partition.source.key) is partition:
            self._index.put(partition, partition.stands())

    # --- finding leaders -----------------------------------------------------------------------------------------------

    def leaderless(self, now: float) -> list[FetchFrom]:
        """The partitions whose leader is to be looked up now: there is none, or it is known for longer than it should be."""
        return [partition.source for partition in self._index.lookups(now)]

    def unresolved(self) -> list[tuple[FetchFrom, int]]:
        """The partitions, with their offsets, of which the leader must be asked what range it has."""
        return [(partition.source, partition.offset) for partition in self._index.unresolved()]

    def leader_found(self, source: FetchFrom, leader: Leader, topic_id: UUID | None, now: float) -> Outcome:
        """A leader was found. One of a topic with another id than that of the positions is none: `lookup_failed` shows more."""
        partition = self._current(source)
        if partition is None:
            return None
        if partition.state is _State.IN_FLIGHT:
            self._led_by(partition, leader, now)
            return None
        if partition.topic_id is not None and topic_id != partition.topic_id:
            return self._failed(partition, RetriableError(f"the topic {source.topic!r} has another id at one broker"), now)
        partition.topic_id, partition.missing_since = topic_id, None
        if partition.state is _State.LEADERLESS:
            partition.replica, partition.state = leader.broker, _State.READY
        self._led_by(partition, leader, now)
        return None

    def _led_by(self, partition: _Partition, leader: Leader, now: float) -> None:
        if partition.leader is None or partition.leader.broker != leader.broker:
            partition.replica = leader.broker
        partition.leader, partition.known_until = leader, now + self._max_age_s
        self._settle(partition)

    def lookup_failed(self, source: FetchFrom, error: HeadraceError, now: float) -> Outcome:
        """No leader was found; ask again after a backoff, or give up when the deadline has passed or trying does not help.

        UnknownTopicError and TopicRecreatedError are what all brokers say (see `topic_ids.absence`), and count once they have
        stayed for 3 s.
        """
        partition = self._current(source)
        if partition is None:
            return None
        is_gone = isinstance(error, TopicRecreatedError)
        if partition.state is _State.IN_FLIGHT or (partition.state is not _State.LEADERLESS and not is_gone):
            partition.known_until = now + self._max_age_s  # it is being fetched: that will tell what is wrong
            self._settle(partition)
            return None
        if is_gone:
            return self._missing(partition, error, now)
        if isinstance(error, UnknownTopicError):
            if partition.topic_id is not None and source.topic in error.topics:
                return self._missing(partition, TopicRecreatedError(source.topic, str(partition.topic_id), None), now)
            return self._missing(partition, error, now)
        return self._failed(partition, error, now)

    def cleared(self, source: FetchFrom, error: HeadraceError, now: float) -> Outcome:
        """The dispute is over: `error` is retriable when the offset is in range after all, and final when it is not."""
        partition = self._current(source)
        return None if partition is None else self._failed(partition, error, now)

    def is_ready(self, source: FetchFrom) -> bool:
        partition = self._current(source)
        return partition is not None and partition.state in (_State.READY, _State.IN_FLIGHT)

    def topic_id_of(self, source: FetchFrom) -> UUID | None:
        """The topic id that the positions of this partition are for: given by the caller or learnt at the first lookup."""
        partition = self._current(source)
        return source.topic_id if partition is None else partition.topic_id

    # --- requests ------------------------------------------------------------------------------------------------------

    def take(self, broker: Broker, now: float, headroom: int) -> list[Asked]:
        """The next request to a broker: its ready partitions, those longest not served first. They are then in flight."""
        ready = [partition for partition in self._index.ready(broker) if partition.ready_at <= now]
        return [self._ask(partition, max(headroom // len(ready), _PARTITION_SHARE), now) for partition in ready]

    def wants_wait(self, asked: Iterable[Asked]) -> bool:
        """True when all partitions asked are without a stop, so that waiting for more bytes than one makes sense."""
        return all(item.partition.source.stop is None for item in asked)

    def allows_session(self, asked: Iterable[Asked]) -> bool:
        """Whether the broker may remember these: a read with an end wants an answer for each, and it may send none away."""
        endless = all(item.partition.source.stop is None and item.topic_id is not None for item in asked)
        return endless and self._config.client_rack is None

    def left(self, broker: Broker) -> list[TopicPartition]:
        """The partitions that have been fetched from the broker, and may not be any more, since this was last asked."""
        return [partition.source.key for partition in self._index.left(broker)]

    def next_due(self, broker: Broker | None) -> float | None:
        """When a partition waiting for its backoff is due: of this broker, or with None of those to be looked up."""
        if broker is None:
            return self._index.next_lookup()
        return min((partition.ready_at for partition in self._index.ready(broker)), default=None)

    def replicas(self) -> set[Broker]:
        return self._index.brokers()

    def fetches_from(self, broker: Broker) -> bool:
        return self._index.belongs(broker)

    def _ask(self, partition: _Partition, share: int, now: float) -> Asked:
        partition.state = _State.IN_FLIGHT
        self._settle(partition)
        source = partition.source
        limit = partition.max_bytes or self._config.max_partition_fetch_bytes or share
        if source.stop is not None and partition.max_bytes is None:
            wanted = int((source.stop - partition.offset) * partition.bytes_per_offset * 1.25) + _SMALLEST_REQUEST
            limit = min(limit, wanted)
        return Asked(
            partition=partition,
            topic=source.topic,
            topic_id=partition.topic_id,
            index=source.partition,
            offset=partition.offset,
            leader_epoch=partition.leader.epoch if partition.leader else None,
            last_epoch=partition.last_epoch,
            max_bytes=limit,
            may_be_nearby=now >= partition.leader_until,
        )

    # --- answers -------------------------------------------------------------------------------------------------------

    def landed(
        self, asked: Asked, answer: PartitionAnswer, preferred: Broker | None, now: float, *, hint: Leader | None = None
    ) -> Outcome:
        """Digest what the broker said about one partition.

        `preferred` is the broker behind `answer.preferred_replica`, None when it is not among those we know: then the leader is
        looked up, with the brokers, and is asked not to send us away meanwhile. `hint` is the leader that the answer names
        (KIP-951): one of a later epoch is asked at once.
        """
        partition = asked.partition
        if self._partitions.get(partition.source.key) is not partition:
            return None
        if hint is not None and answer.error in _MOVED and _is_later(hint, partition.leader):
            partition.replica, partition.state = hint.broker, _State.READY
            self._led_by(partition, hint, now)
            return None
        outcome = self._digest(partition, asked, answer, preferred, now)
        self._settle(partition)
        return outcome

    def _digest(
        self, partition: _Partition, asked: Asked, answer: PartitionAnswer, preferred: Broker | None, now: float
    ) -> Outcome:
        where = f"fetching {asked.topic}-{asked.index} at offset {asked.offset} from {partition.replica}"
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(partition, now)
            return None
        if answer.error:
            return self._failed(partition, broker_error(answer.error, where), now)
        if answer.diverging is not None:
            epoch, end = answer.diverging  # the end may lie above what was read: nothing between was read, nothing is left out
            diverges_at = min(end, asked.offset)
            return self._end(partition, LogTruncatedError(asked.topic, asked.index, asked.offset, diverges_at, epoch))
        partition.failing_since, partition.failures, partition.state = None, 0, _State.READY
        if answer.preferred_replica is not None:
            self._sent_away(partition, preferred, now)
            return None
        if partition.leader is not None and partition.replica != partition.leader.broker and now >= partition.nearby_until:
            partition.replica = partition.leader.broker
        try:
            return self._advance(partition, asked, answer, now)
        except CorruptDataError as error:
            return self._end(partition, CorruptDataError(f"{where}: {error}"))

    def _sent_away(self, partition: _Partition, preferred: Broker | None, now: float) -> None:
        if preferred is None:
            partition.leader_until = now + self._longest_backoff_s
            partition.state, partition.ready_at = _State.LEADERLESS, now
        else:
            partition.replica, partition.nearby_until = preferred, now + self._max_age_s

    def lost(self, asked: Iterable[Asked], error: HeadraceError, now: float) -> list[FetchFailed]:
        """The request failed as a whole, or the answer left these partitions out."""
        outcomes = []
        for item in asked:
            if self._partitions.get(item.partition.source.key) is item.partition:
                outcome = self._failed(item.partition, error, now)
                if outcome is not None:
                    outcomes.append(outcome)
        return outcomes

    def put_back(self, asked: Iterable[Asked]) -> None:
        """Nothing was said about these, such as for a quota: they are in the next request."""
        for item in asked:
            if self._partitions.get(item.partition.source.key) is item.partition:
                item.partition.state = _State.READY
                self._settle(item.partition)

    def _advance(self, partition: _Partition, asked: Asked, answer: PartitionAnswer, now: float) -> Outcome:
        span = span_of_batches(answer.records, partition.source.stop_epoch)
        if span is None:
            self._note_empty(partition, asked, answer, now)
            return None
        if span.next_offset <= asked.offset:
            raise CorruptDataError(f"the broker answered with batches that end before, at {span.next_offset}")
        rewritten = _rewritten_at(partition.source, span)
        if rewritten is not None:
            return self._end(partition, _rewritten(partition.source, rewritten))
        partition.bytes_per_offset = span.complete_bytes / (span.next_offset - asked.offset)
        self._densities[partition.source.key] = partition.bytes_per_offset
        partition.max_bytes = partition.short_since = partition.nothing_since = None
        self.outages.over(partition.source.key)
        partition.offset = span.next_offset
        partition.last_epoch = span.last_epoch if span.last_epoch is not None else partition.last_epoch
        partition.order = next(self._orders)
        if partition.ended:
            self.remove(partition.source.key)
        return FetchedData(
            topic=asked.topic,
            partition=asked.index,
            fetch_offset=asked.offset,
            next_offset=span.next_offset,
            epochs=span.epochs,
            records=answer.records[: span.complete_bytes],
            high_watermark=answer.high_watermark,
            last_stable_offset=answer.last_stable_offset,
            log_start_offset=answer.log_start_offset,
            aborted=answer.aborted,
        )

    def _note_empty(self, partition: _Partition, asked: Asked, answer: PartitionAnswer, now: float) -> None:
        """No whole batch came. A new leader may say for a moment that the log ends before a stop that it once reached."""
        if asked.offset != answer.high_watermark or partition.source.stop is None:
            partition.short_since = None
        elif partition.short_since is None:
            partition.short_since = now
        elif now - partition.short_since >= _CUT_SHORT_GRACE_S:
            partition.short_since, partition.state = now, _State.IN_DISPUTE
        end = answer.high_watermark if answer.aborted is None else answer.last_stable_offset
        if len(answer.records) or (end is not None and end > asked.offset):
            self._came_to_nothing(partition, asked, answer, now)
        else:
            partition.nothing_since = None
            self.outages.over(partition.source.key)

    def _came_to_nothing(self, partition: _Partition, asked: Asked, answer: PartitionAnswer, now: float) -> None:
        """Nothing, although there is something: no batch fitted (the broker promises one for the first partition only).

        So it is asked again, for more; each time later, by a part of what it has waited already, as others may be served first.
        Raises CorruptDataError for a batch that starts, and is not whole however much is asked for.
        """
        if partition.nothing_since is None:
            partition.nothing_since = now
        waited = now - partition.nothing_since
        if waited >= _CUT_SHORT_GRACE_S:
            if len(answer.records) >= AFTER_LENGTH and asked.max_bytes >= self._config.fetch_max_bytes:
                raise CorruptDataError(f"a batch of {_claimed_size(answer.records)} bytes that never comes whole")
            nothing = RetriableError(
                f"{partition.replica} brings no whole batch from offset {asked.offset} on, and its log has more"
            )
            self.outages.failed(partition.source.key, nothing, now)
        partition.max_bytes = min(asked.max_bytes * 2, max(self._config.fetch_max_bytes, asked.max_bytes))
        partition.ready_at = now + min(waited * _PART_OF_WAITED, self._longest_backoff_s)

    def _out_of_range(self, partition: _Partition, now: float) -> None:
        if partition.leader is not None and partition.replica != partition.leader.broker:
            partition.replica, partition.state = partition.leader.broker, _State.READY  # a follower lags: ask the leader
            partition.leader_until = now + self._longest_backoff_s
        else:
            partition.state = _State.IN_DISPUTE

    def _missing(self, partition: _Partition, error: HeadraceError, now: float) -> FetchFailed | None:
        """No broker knows the topic. It is an error only after 3 s without any other answer: a new topic takes its time."""
        if partition.source.awaited and isinstance(error, TopicRecreatedError) and error.found is None:
            self._put_off(partition, now)
            return None
        if partition.missing_since is None:
            partition.missing_since = now
        elif now - partition.missing_since >= _UNKNOWN_TOPIC_GRACE_S:
            return self._end(partition, error)
        self._back_off(partition, now)
        return None

    def _failed(self, partition: _Partition, error: HeadraceError, now: float) -> FetchFailed | None:
        if not is_retriable(error):
            return self._end(partition, error)
        partition.missing_since = None  # no broker could be asked, or one knows it: this time does not count as unknown
        if partition.failing_since is None:
            partition.failing_since = now
        self.outages.failed(partition.source.key, error, now)
        waited, limit_ms = now - partition.failing_since, self._config.default_api_timeout_ms
        if limit_ms is not None and waited >= limit_ms / 1000:
            late = DeadlineExceededError(
                f"{partition.source.topic}-{partition.source.partition}: no successful fetch for {waited:.0f} s "
                f"({partition.failures} tries); the last error was: {error}"
            )
            late.__cause__ = error
            return self._end(partition, late)
        self._back_off(partition, now)
        return None

    def _back_off(self, partition: _Partition, now: float) -> None:
        backoff_s = self._config.retry_backoff_ms * 2 ** min(partition.failures, 30) / 1000
        partition.ready_at = now + min(backoff_s, self._longest_backoff_s)
        partition.failures += 1
        partition.state = _State.LEADERLESS
        self._settle(partition)

    def _put_off(self, partition: _Partition, now: float) -> None:
        """Look it up in 1 s, 2 s, 4 s and so on: at multiples of these, so that one question is for all that are awaited."""
        wait_s = min(2.0 ** min(partition.failures, 30), _RAREST_LOOKUP_S)
        partition.ready_at = (now // wait_s + 1) * wait_s
        partition.failures += 1
        partition.failing_since, partition.state = None, _State.LEADERLESS
        self.outages.over(partition.source.key)
        self._settle(partition)

    def _end(self, partition: _Partition, error: HeadraceError) -> FetchFailed:
        self.remove(partition.source.key)
        return FetchFailed(partition.source.topic, partition.source.partition, partition.offset, error)

    def _current(self, source: FetchFrom) -> _Partition | None:
        partition = self._partitions.get(source.key)
        return partition if partition is not None and partition.source is source else None


def _claimed_size(records: memoryview) -> int:
    return AFTER_LENGTH + int.from_bytes(records[AFTER_LENGTH - 4 : AFTER_LENGTH])


def _is_later(leader: Leader, known: Leader | None) -> bool:
    return leader.epoch is not None and (known is None or known.epoch is None or leader.epoch > known.epoch)


def _rewritten_at(source: FetchFrom, span: BatchSpan) -> int | None:
    """The first offset before the stop that was written after the read was planned, if any was."""
    if source.stop is None or source.stop_epoch is None:
        return None
    stop, known = source.stop, source.stop_epoch
    return next((max(first, source.offset) for first, epoch in span.epochs if epoch > known and first < stop), None)


def _rewritten(source: FetchFrom, offset: int) -> DataLossError:
    return DataLossError(
        f"{source.topic}-{source.partition}: this read was planned up to offset {source.stop}, and what is at offset {offset} "
        "now was written later: the log was truncated meanwhile, and what was planned from there on is gone"
    )
