"""Retention and compaction: what a broker takes out of logs in the background, here when it is asked for or due."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.connectors.kafka.format.decode import decode
from headrace.connectors.kafka.format.record_batch import StoredBatch
from headrace.testing.fake_kafka.state.logs.batches import BatchShape, NewRecord, Span, read_batch, rewritten_batch
from headrace.testing.fake_kafka.state.logs.log import Log

_COLUMNS = ("key", "value", "offset", "timestamp", "headers")
_CODEC_BITS = 0x07


def apply_retention(log: Log, retention_ms: int, retention_bytes: int, now_ms: int) -> None:
    """Delete batches from the front: older than `retention_ms`, or above `retention_bytes` (-1: no bound)."""
    start, size = log.start_offset, log.size
    for batch in log.batches:
        too_old = 0 <= retention_ms < now_ms - batch.max_timestamp_ms
        too_much = 0 <= retention_bytes <= size - len(batch.data)
        if batch.last_offset >= log.last_stable_offset or not (too_old or too_much):
            break
        start, size = batch.last_offset + 1, size - len(batch.data)
    log.delete_before(start)


def compact(log: Log) -> None:
    """Keep the last record of each key, and no tombstone (KIP-87's deletion horizon taken as past); offsets stay.

    The batches of aborted transactions go, their markers stay; a batch whose records are all gone stays, empty, if it is
    its producer's last one, as in Kafka, or else sequences could not be checked.
    """
    stable = log.last_stable_offset
    last_of: dict[bytes, int] = {}
    for batch in log.batches:
        if batch.last_offset < stable and not batch.is_control and not log.producers.is_aborted(batch):
            last_of.update({span.record.key or b"": span.offset for span in spans(batch)})
    kept_producers = {batch.producer_id: batch.base_offset for batch in log.batches if not batch.is_control}
    compacted = []
    for batch in log.batches:
        if batch.is_control or batch.last_offset >= stable:
            compacted.append(batch)
            continue
        wanted = [] if log.producers.is_aborted(batch) else [span for span in spans(batch) if _survives(span, last_of)]
        if wanted or kept_producers[batch.producer_id] == batch.base_offset:
            compacted.append(_rewritten(batch, wanted))
    log.replace(compacted)


def _survives(span: Span, last_of: Mapping[bytes, int]) -> bool:
    return span.record.value is not None and last_of.get(span.record.key or b"") == span.offset


def _rewritten(batch: StoredBatch, wanted: list[Span]) -> StoredBatch:
    if len(wanted) == batch.records:
        return batch
    attributes = batch.attributes & ~_CODEC_BITS
    shape = BatchShape(attributes, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.leader_epoch)
    return read_batch(rewritten_batch(wanted, batch.base_offset, batch.last_offset, shape))


def spans(batch: StoredBatch) -> Iterator[Span]:
    """A time beyond 64-bit microseconds is the batch's greatest."""
    if batch.records:
        read = decode(batch.data, topic="", partition=0, start=batch.base_offset, columns=_COLUMNS, bad_timestamps="null")
        for decoded in read:
            yield from _spans(decoded.records, batch.max_timestamp_ms)


def _spans(records: Any, greatest_ms: int) -> Iterator[Span]:  # noqa: ANN401  pyarrow has no types
    columns = (records.column(name).to_pylist() for name in ("key", "value", "offset", "headers"))
    micros = records.column("timestamp").cast("int64").to_pylist()
    for time, key, value, offset, headers in zip(micros, *columns, strict=True):
        pairs = tuple((header["key"], header["value"]) for header in headers or ())
        time_ms = greatest_ms if time is None else time // 1000
        yield Span(offset, time_ms, NewRecord(value, key, pairs, time_ms))
