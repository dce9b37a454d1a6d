"""The Kafka reader: what the fetcher brings, decoded to Arrow, with the split's next position."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue

import pyarrow as pa

from headrace.connectors.base.counters import COUNTERS, Counted
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import LogTruncatedError, OffsetOutOfRangeError, TopicRecreatedError
from headrace.connectors.kafka.client.fetch import fetch_there
from headrace.connectors.kafka.client.topology import TopicPartition
from headrace.connectors.kafka.format.decode import MAX_UNCOMPRESSED_BYTES, BadTimestamps, DecodedBatch, arrow_schema, decode
from headrace.connectors.kafka.format.fetch_protocol import PartitionAnswer
from headrace.connectors.kafka.format.record_batch import BadBatchError
from headrace.connectors.kafka.read.bad_batches import BadBatches, SecondRead, second_look
from headrace.connectors.kafka.read.fetcher import Fetcher, FetchFailed, FetchFrom
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import CorruptDataError, DataLossError, HeadraceError, RetriableError, UsageError
from headrace.enumerator.source import SourceReader, SplitBatch

log = logging.getLogger(__name__)

SKIP_BATCH = "To continue without it, set bad_batches='skip' (as an option: badBatches=skip)"
ALLOW_LOSS = "To continue without these records, set fail_on_data_loss=False (as an option: failOnDataLoss=false)"


_LOOK_BYTES = 64 * 1024
"""One batch is asked for, which comes whole if it is larger; what lies behind it says only where it ends."""


@dataclass(slots=True)
class _Decoding:
    """Data that is being turned into batches: what the fetcher has brought, or one batch of it that was asked for again.

    `epoch_before`: as that of FetchedData. `second`: the look that it is; behind it the fetcher continues.
    """

    key: TopicPartition
    batches: Iterator[DecodedBatch]
    epoch_before: Callable[[int], int | None]
    second: SecondRead | None = None


class KafkaReader(SourceReader[KafkaSplit]):
    """Reads Kafka splits. Fetching continues in the fetcher's threads while the caller's thread decodes."""

    def __init__(
        self,
        cluster: KafkaCluster,
        *,
        columns: Sequence[str],
        fetch_budget_bytes: int,
        fail_on_data_loss: bool,
        bad_timestamps: BadTimestamps = "error",
        bad_batches: BadBatches = "error",
        max_uncompressed_batch_bytes: int = MAX_UNCOMPRESSED_BYTES,
    ) -> None:
        """Does no I/O before it is given splits. The arguments are those of `KafkaSource`."""
        self._bad_timestamps = bad_timestamps
        self._max_uncompressed_bytes = max_uncompressed_batch_bytes
        self._nulled = 0
        self._skips_batches = bad_batches == "skip"
        self._passed_over = 0
        self._cluster = cluster
        self._columns = tuple(columns)
        self._budget_bytes = fetch_budget_bytes
        self._linger_s = 0.0
        self._fail_on_data_loss = fail_on_data_loss
        self._fetcher: Fetcher | None = None
        self._dropped: weakref.finalize[..., KafkaReader] | None = None
        self._splits: dict[TopicPartition, KafkaSplit] = {}
        self._waiting: dict[TopicPartition, deque[KafkaSplit]] = {}
        self._ended: deque[KafkaSplit] = deque()
        self._decoding: _Decoding | None = None
        self._failure: HeadraceError | None = None
        self._awaited: set[str] = set()
        self._closed: SimpleQueue[None] = SimpleQueue()  # unlike an event, a signal handler may set it

    def linger(self, seconds: float) -> None:
        self._linger_s = seconds

    def add_splits(self, splits: Sequence[KafkaSplit]) -> None:
        """Start to fetch these. Where a topic was re-created, the split given later waits for the end of the other."""
        fetch: list[FetchFrom] = []
        for split in splits:
            key = (split.topic, split.partition)
            if split.exhausted:
                self._ended.append(split)
            elif key in self._splits:
                self._wait(key, split)
            else:
                self._splits[key] = split
                fetch.append(_fetch_from(split))
        if self._fetcher is None:
            self._fetcher = Fetcher(self._cluster, fetch, budget_bytes=self._budget_bytes, linger_s=self._linger_s)
            self._dropped = weakref.finalize(self, _close_beside, self._fetcher)
            self._dropped.atexit = False
        else:
            self._fetcher.assign(fetch)

    def poll(self, timeout: float) -> SplitBatch[KafkaSplit] | None:
        """The next batch; raises DataLossError, CorruptDataError or PeerError naming topic, partition and offset.

        A reader that has raised continues raising: it never reads on behind what it could not read.
        """
        if self._failure is not None:
            raise self._failure
        if self._ended:
            return SplitBatch(self._ended.popleft(), self._no_rows(), finished=True)
        if self._decoding is None and not self._fetch(timeout):
            return None
        if self._decoding is None:
            return self.poll(0.0) if self._ended else None
        return self._decode()

    def wake_up(self) -> None:
        fetcher = self._fetcher
        if fetcher is None or not self._splits:
            self._closed.put(None)
        else:
            fetcher.wake_up()

    def close(self) -> None:
        """Stop the fetching threads. A signal handler may, too: so `poll` may find this done at any place."""
        self._closed.put(None)
        fetcher, self._decoding = self._fetcher, None
        if fetcher is not None and self._dropped is not None:
            fetcher.close()
            self._dropped.detach()  # whose thread would have nothing to close
        self._fetcher = None  # last: who is interrupted closes again

    def _fetch(self, timeout: float) -> bool:
        fetcher = self._fetcher
        if fetcher is None or not self._splits:
            with suppress(Empty):  # there is nothing to wait for, and a caller in a loop must not be kept busy
                self._closed.get(timeout=timeout)
            return False
        item = fetcher.poll(timeout)
        if isinstance(item, FetchFailed):
            self._failed(item)
        elif item is not None:
            split = self._splits[item.topic, item.partition]
            batches = self._decoded(split, item.records, item.aborted)
            self._decoding = _Decoding((item.topic, item.partition), batches, item.epoch_before)
        return item is not None

    def _decoded(self, split: KafkaSplit, records: memoryview, aborted: list[tuple[int, int]] | None) -> Iterator[DecodedBatch]:
        return decode(
            records,
            topic=split.topic,
            partition=split.partition,
            start=split.next_offset,
            stop=split.stop_offset,
            columns=self._columns,
            aborted=aborted,
            max_uncompressed_bytes=self._max_uncompressed_bytes,
            bad_timestamps=self._bad_timestamps,
        )

    def _decode(self) -> SplitBatch[KafkaSplit] | None:
        decoding = self._decoding
        if decoding is None:
            return None
        key = decoding.key
        try:
            batch = self._next(decoding, self._splits[key])
        except HeadraceError as error:
            self._failure = error
            raise
        decoding = self._decoding
        if batch is None or decoding is None:
            self._decoding = None
            if decoding is not None and decoding.second is not None:
                self._read_from(self._splits[key])
            return None
        self._note_nulls(batch)
        split = self._splits[key]
        epoch = decoding.epoch_before(batch.next_offset)
        split = replace(split, next_offset=batch.next_offset, last_epoch=split.last_epoch if epoch is None else epoch)
        if split.exhausted:
            self._decoding = None
            self._leave(key)
        else:
            self._splits[key] = split
        return SplitBatch(split, batch.records, finished=split.exhausted)

    def _next(self, decoding: _Decoding, split: KafkaSplit) -> DecodedBatch | None:
        """What could be decoded; or no rows, and the offset behind what could not, twice."""
        try:
            return next(decoding.batches, None)
        except BadBatchError as error:
            if decoding.second is not None:
                return self._pass_over(decoding, decoding.second, split, error)
            self._look_again(split, error)
        return None if self._decoding is None else self._next(self._decoding, split)

    def _look_again(self, split: KafkaSplit, dispute: CorruptDataError) -> None:
        """Ask the leader for the batch again; where it cannot be asked now the fetcher starts with it again."""
        key = (split.topic, split.partition)
        try:
            answer = self._leaders_answer(split)
            is_there = not answer.error and answer.diverging is None and len(answer.records) > 0
            is_it = is_there and split.topic_id in (None, self._cluster.topic_id(split.topic))
        except RetriableError:
            is_it = False
        second = second_look(answer) if is_it else None
        if is_it and second is None:
            raise _endless(dispute)
        if second is None or _is_written_later(second, split):  # the fetcher says what has become of the log
            self._decoding = None
            self._read_from(split)
            return
        if (fetcher := self._fetcher) is not None:
            fetcher.finish(*key)
        epoch = None if second.batch.leader_epoch < 0 else second.batch.leader_epoch
        batches = self._decoded(split, second.batch.data, second.aborted)
        self._decoding = _Decoding(key, batches, lambda _: epoch, second)

    def _leaders_answer(self, split: KafkaSplit) -> PartitionAnswer:
        """Of little more than the batch; and of more, where only what lies behind it can say where it ends."""
        look = partial(
            fetch_there,
            self._cluster,
            split.topic,
            split.partition,
            split.next_offset,
            self._cluster.config.isolation,
            last_epoch=split.last_epoch,
        )
        answer = look(max_bytes=_LOOK_BYTES)
        second = second_look(answer)
        return answer if second is None or second.last is not None else look()

    def _pass_over(self, decoding: _Decoding, second: SecondRead, split: KafkaSplit, error: BadBatchError) -> DecodedBatch:
        last = second.last
        if last is None:
            raise _endless(error)
        where = f"{error}; the batch has offsets {error.base_offset} to {last}"
        if not self._skips_batches:
            raise CorruptDataError(f"{where}. {SKIP_BATCH}") from error
        self._note_passed_over(max(split.next_offset, error.base_offset), last, where)
        decoding.batches = iter(())
        behind = last + 1 if split.stop_offset is None else min(last + 1, split.stop_offset)
        return DecodedBatch(self._no_rows(), max(behind, split.next_offset))

    def _note_passed_over(self, first: int, last: int, where: str) -> None:
        """Each is logged: as a warning the first, and whenever their number has doubled, so that the log stays short."""
        lost = max(0, last + 1 - first)
        COUNTERS.add(Counted.RECORDS_SKIPPED, lost)
        before, self._passed_over = self._passed_over, self._passed_over + 1
        level = logging.WARNING if self._passed_over.bit_length() != before.bit_length() else logging.INFO
        reported = "%s. Skipped: %d offsets from %d on; batches skipped so far: %d"
        log.log(level, reported, where, lost, first, self._passed_over)

    def _note_nulls(self, batch: DecodedBatch) -> None:
        """Said the first time, and whenever their number has doubled, so that the log does not grow."""
        nulls = batch.records.column("timestamp").null_count if "timestamp" in self._columns else 0
        before, self._nulled = self._nulled, self._nulled + nulls
        if self._nulled.bit_length() != before.bit_length():
            log.warning("%d records so far have a timestamp that does not fit 64-bit microseconds; it is null", self._nulled)

    def _wait(self, key: TopicPartition, split: KafkaSplit) -> None:
        """Two splits of one name: the topic was re-created, and only the broker knows which of them still is (I5)."""
        waiting = self._waiting.setdefault(key, deque())
        if any(split.topic_id == other.topic_id for other in (self._splits[key], *waiting)):
            raise UsageError(f"{split} was given to this reader twice")
        waiting.append(split)

    def _leave(self, key: TopicPartition) -> None:
        """The split has ended: the next of its name, if one waits, takes its place."""
        del self._splits[key]
        if waiting := self._waiting.get(key):
            self._read_from(waiting.popleft())

    def _read_from(self, split: KafkaSplit, *, awaited: bool = False) -> None:
        self._splits[split.topic, split.partition] = split
        if (fetcher := self._fetcher) is not None:
            fetcher.assign([replace(_fetch_from(split), awaited=awaited)])

    def _failed(self, failure: FetchFailed) -> None:
        """Raise the failure; or, when data loss is allowed, warn and continue after what is lost.

        What is corrupt is asked for again: the answer may be, or the copy of a follower.
        """
        if isinstance(failure.error, CorruptDataError):
            try:
                self._look_again(self._splits[failure.topic, failure.partition], failure.error)
            except HeadraceError as error:
                self._failure = error
                raise
            return
        split = self._splits[failure.topic, failure.partition]
        if self._fail_on_data_loss or not isinstance(failure.error, DataLossError):
            if isinstance(failure.error, DataLossError):
                failure.error.add_note(f"{split} was read up to offset {split.next_offset}. {ALLOW_LOSS}")
            self._failure = failure.error
            raise failure.error
        if split.stop_offset is None and isinstance(failure.error, TopicRecreatedError) and failure.error.found is None:
            if split.split_id not in self._awaited:
                log.warning("%s; waiting for it to come back", failure.error)
            self._awaited.add(split.split_id)
            self._read_from(split, awaited=True)  # that no one knows it now ends nothing: a new id does
            return
        resume = _after_loss(failure.error, split)
        if resume is None:
            reported = "%s (topic id %s, read up to offset %d): %s; continuing without the rest of it"
            log.warning(reported, split, split.topic_id, split.next_offset, failure.error)
            at = split.next_offset if split.stop_offset is None else split.stop_offset
            COUNTERS.add(Counted.OFFSETS_LOST, at - split.next_offset)
            self._ended.append(replace(split, next_offset=at))
            self._leave((failure.topic, failure.partition))
            return
        log.warning("%s; continuing at offset %d", failure.error, resume)
        COUNTERS.add(Counted.OFFSETS_LOST, max(0, resume - split.next_offset))
        epoch = failure.error.epoch if isinstance(failure.error, LogTruncatedError) else None
        self._read_from(replace(split, next_offset=resume, last_epoch=epoch))

    def _no_rows(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=arrow_schema(self._columns))


def _close_beside(fetcher: Fetcher) -> None:
    """A reader was dropped and not closed. In its own thread: the collector may run in one that has the fetcher's lock."""
    threading.Thread(target=fetcher.close, name="headrace-fetch-close", daemon=True).start()


def _is_written_later(second: SecondRead, split: KafkaSplit) -> bool:
    """Whether it is not a part of what the read was planned for: the log was truncated meanwhile, and has grown again."""
    if split.stop_offset is None or split.stop_epoch is None:
        return False
    return second.batch.base_offset < split.stop_offset and second.batch.leader_epoch > split.stop_epoch


def _endless(error: CorruptDataError) -> CorruptDataError:
    return CorruptDataError(f"{error}; where it ends is not known, so that it cannot be skipped")


def _fetch_from(split: KafkaSplit) -> FetchFrom:
    return FetchFrom(
        split.topic, split.partition, split.next_offset, split.topic_id, split.stop_offset, split.last_epoch, split.stop_epoch
    )


def _after_loss(error: DataLossError, split: KafkaSplit) -> int | None:
    """Where to continue: where the log starts, or where it is no more what was read. None when nothing is left to read.

    With a stop that is only what was there when the read was planned. So such a read never goes back: what was written since
    the log was truncated is not a part of it, and before its start there may be another part of the same read.
    """
    match error:
        case OffsetOutOfRangeError(earliest=earliest, latest=latest):
            resume = earliest if split.next_offset < earliest else latest
        case LogTruncatedError(diverges_at=diverges_at):
            resume = diverges_at
        case _:
            return None
    if split.stop_offset is None or split.next_offset <= resume < split.stop_offset:
        return resume
    return None
