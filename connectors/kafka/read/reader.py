"""The Kafka reader: what the fetcher brings, decoded to Arrow, with the split's next position."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.connectors.counters import COUNTERS, Counted
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import LogTruncatedError, OffsetOutOfRangeError, TopicRecreatedError
from headrace.connectors.kafka.client.topology import TopicPartition
from headrace.connectors.kafka.format.decode import MAX_UNCOMPRESSED_BYTES, BadTimestamps, DecodedBatch, arrow_schema, decode
from headrace.connectors.kafka.format.record_batch import BadBatchError
from headrace.connectors.kafka.read.fetcher import FetchedData, Fetcher, FetchFailed, FetchFrom
from headrace.connectors.kafka.read.passing_over import BadBatches, PassedOver, without
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import CorruptDataError, DataLossError, HeadraceError, UsageError
from headrace.enumerator.source import SourceReader, SplitBatch

log = logging.getLogger(__name__)

SKIP_BATCH = "To go on without it, set bad_batches='skip' (as an option: badBatches=skip)"
ALLOW_LOSS = "To go on without these records, set fail_on_data_loss=False (as an option: failOnDataLoss=false)"


@dataclass(slots=True)
class _Decoding:
    """Fetched data that is being turned into batches."""

    data: FetchedData
    records: bytes | memoryview
    aborted: list[tuple[int, int]] | None
    batches: Iterator[DecodedBatch]


class KafkaReader(SourceReader[KafkaSplit]):
    """Reads Kafka splits. Fetching goes on in the fetcher's threads while the caller's thread decodes."""

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
        """Contacts nobody before it is given splits. The arguments are those of `KafkaSource`."""
        self._bad_timestamps = bad_timestamps
        self._max_uncompressed_bytes = max_uncompressed_batch_bytes
        self._nulled = 0
        self._skips_batches = bad_batches == "skip"
        self._passed_over = 0
        self._cluster = cluster
        self._columns = tuple(columns)
        self._budget_bytes = fetch_budget_bytes
        self._fail_on_data_loss = fail_on_data_loss
        self._fetcher: Fetcher | None = None
        self._dropped: weakref.finalize[..., KafkaReader] | None = None
        self._splits: dict[TopicPartition, KafkaSplit] = {}
        self._waiting: dict[TopicPartition, deque[KafkaSplit]] = {}
        self._ended: deque[KafkaSplit] = deque()
        self._decoding: _Decoding | None = None
        self._failure: HeadraceError | None = None
        self._awaited: set[str] = set()
        self._closed = threading.Event()

    def add_splits(self, splits: Sequence[KafkaSplit]) -> None:
        """Begin to fetch these. Where a topic was re-created, the split given later waits for the end of the other."""
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
            self._fetcher = Fetcher(self._cluster, fetch, budget_bytes=self._budget_bytes)
            self._dropped = weakref.finalize(self, _close_beside, self._fetcher)
            self._dropped.atexit = False
        else:
            for source in fetch:
                self._fetcher.assign(source)

    def poll(self, timeout: float) -> SplitBatch[KafkaSplit] | None:
        """The next batch; raises DataLossError, CorruptDataError or PeerError naming topic, partition and offset.

        A reader that has raised goes on raising: it never reads on behind what it could not read.
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

    def close(self) -> None:
        """Stop the fetching threads."""
        self._closed.set()
        self._decoding = None
        if self._fetcher is not None and self._dropped is not None:
            self._fetcher.close()
            self._dropped.detach()  # whose thread would have nothing to close
            self._fetcher = None

    def _fetch(self, timeout: float) -> bool:
        """Wait for what comes next; True when something did."""
        if self._fetcher is None or not self._splits:
            self._closed.wait(timeout)  # there is nothing to wait for, and a caller in a loop must not be kept busy
            return False
        item = self._fetcher.poll(timeout)
        if isinstance(item, FetchFailed):
            self._failed(item)
        elif item is not None:
            split = self._splits[item.topic, item.partition]
            batches = self._decoded(split, item.records, item.aborted, split.next_offset)
            self._decoding = _Decoding(item, item.records, item.aborted, batches)
        return item is not None

    def _decoded(
        self, split: KafkaSplit, records: bytes | memoryview, aborted: list[tuple[int, int]] | None, start: int
    ) -> Iterator[DecodedBatch]:
        return decode(
            records,
            topic=split.topic,
            partition=split.partition,
            start=start,
            stop=split.stop_offset,
            columns=self._columns,
            aborted=aborted,
            max_uncompressed_bytes=self._max_uncompressed_bytes,
            bad_timestamps=self._bad_timestamps,
        )

    def _decode(self) -> SplitBatch[KafkaSplit] | None:
        decoding = self._decoding
        assert decoding is not None
        key = (decoding.data.topic, decoding.data.partition)
        try:
            batch = self._next(decoding, self._splits[key])
        except HeadraceError as error:
            self._failure = error
            raise
        if batch is None:
            self._decoding = None
            return None
        self._note_nulls(batch)
        split = self._splits[key]
        epoch = decoding.data.epoch_before(batch.next_offset)
        split = replace(split, next_offset=batch.next_offset, last_epoch=split.last_epoch if epoch is None else epoch)
        if split.exhausted:
            self._decoding = None
            self._leave(key)
        else:
            self._splits[key] = split
        return SplitBatch(split, batch.records, finished=split.exhausted)

    def _next(self, decoding: _Decoding, split: KafkaSplit) -> DecodedBatch | None:
        """What could be decoded, or no rows and the offset behind what could not."""
        try:
            return next(decoding.batches, None)
        except BadBatchError as error:
            found = without(decoding.records, decoding.aborted, error, split.next_offset, decoding.data.high_watermark)
            if found is None:
                raise CorruptDataError(f"{error}; where it ends is not known, so that it cannot be passed over") from error
            where = f"{error}; the batch has offsets {error.base_offset} to {found.last}"
            if not self._skips_batches:
                raise CorruptDataError(f"{where}. {SKIP_BATCH}") from error
        self._note_passed_over(found, where)
        behind = found.last + 1
        decoding.records, decoding.aborted = found.rest, found.aborted
        decoding.batches = self._decoded(split, found.rest, found.aborted, behind) if len(found.rest) else iter(())
        behind = behind if split.stop_offset is None else min(behind, split.stop_offset)
        return DecodedBatch(self._no_rows(), max(behind, split.next_offset))

    def _note_passed_over(self, found: PassedOver, where: str) -> None:
        """Each is told of; as a warning the first, and whenever their number has doubled, so that the log does not grow."""
        lost = max(0, found.last + 1 - found.first)
        COUNTERS.add(Counted.RECORDS_SKIPPED, lost)
        before, self._passed_over = self._passed_over, self._passed_over + 1
        level = logging.WARNING if self._passed_over.bit_length() != before.bit_length() else logging.INFO
        told = "%s. Passed over: %d offsets from %d on; batches passed over so far: %d"
        log.log(level, told, where, lost, found.first, self._passed_over)

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

    def _read_from(self, split: KafkaSplit) -> None:
        self._splits[split.topic, split.partition] = split
        assert self._fetcher is not None
        self._fetcher.assign(_fetch_from(split))

    def _failed(self, failure: FetchFailed) -> None:
        """Raise the failure; or, when data loss is allowed, warn and go on after what is lost."""
        if self._fail_on_data_loss or not isinstance(failure.error, DataLossError):
            if isinstance(failure.error, DataLossError):
                failure.error.add_note(ALLOW_LOSS)
            self._failure = failure.error
            raise failure.error
        split = self._splits[failure.topic, failure.partition]
        if split.stop_offset is None and isinstance(failure.error, TopicRecreatedError) and failure.error.found is None:
            if split.split_id not in self._awaited:
                log.warning("%s; waiting for it to come back", failure.error)
            self._awaited.add(split.split_id)
            self._read_from(split)  # that nobody knows it now ends nothing: a new id does
            return
        resume = _after_loss(failure.error, split)
        if resume is None:
            log.warning("%s; going on without the rest of it", failure.error)
            at = split.next_offset if split.stop_offset is None else split.stop_offset
            COUNTERS.add(Counted.OFFSETS_LOST, at - split.next_offset)
            self._ended.append(replace(split, next_offset=at))
            self._leave((failure.topic, failure.partition))
            return
        log.warning("%s; going on at offset %d", failure.error, resume)
        COUNTERS.add(Counted.OFFSETS_LOST, max(0, resume - split.next_offset))
        self._read_from(replace(split, next_offset=resume, last_epoch=None))

    def _no_rows(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=arrow_schema(self._columns))


def _close_beside(fetcher: Fetcher) -> None:
    """A reader was dropped and not closed. In a thread of its own: the collector may run in one that has the fetcher's lock."""
    threading.Thread(target=fetcher.close, name="headrace-fetch-close", daemon=True).start()


def _fetch_from(split: KafkaSplit) -> FetchFrom:
    return FetchFrom(
        split.topic, split.partition, split.next_offset, split.topic_id, split.stop_offset, split.last_epoch, split.stop_epoch
    )


def _after_loss(error: DataLossError, split: KafkaSplit) -> int | None:
    """Where to go on: where the log begins, or where it is no more what was read. None when nothing is left to read.

    With a stop that is only what was there when the read was planned. So such a read never goes back: what was written since
    the log was truncated is no part of it, and before its start there may be another part of the same read.
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
