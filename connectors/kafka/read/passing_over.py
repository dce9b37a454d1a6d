"""Record batches that cannot be decoded, in fetched data, and what is left of the data without one. Sans-IO."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from headrace.connectors.kafka.format.record_batch import BadBatchError, StoredBatch, stored_batches
from headrace.enumerator.errors import CorruptDataError

__all__ = ["BadBatches", "PassedOver", "without"]

BadBatches = Literal["error", "skip"]
"""What becomes of a record batch that cannot be decoded: an error, or it is passed over."""

Aborted = list[tuple[int, int]] | None


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Offsets `first` to `last`, both inclusive, of a batch; none where `last` < `first`, as all of it was read before.

    `rest` and `aborted` are for a decoder that begins behind `last`; where `rest` is empty there is nothing more.
    """

    first: int
    last: int
    rest: bytes | memoryview
    aborted: Aborted


def without(
    records: bytes | memoryview, aborted: Aborted, error: BadBatchError, position: int, high_watermark: int | None
) -> PassedOver | None:
    """The data without the batch that the error is about, for who has read up to `position`. None: it cannot be told apart.

    What is before the batch stays there as long as transactions may be aborted: their markers say which are over.
    """
    found = _located(memoryview(records), error.base_offset)
    if found is None:
        return None
    batch, at, following = found
    last = batch.last_offset if following is None else min(batch.last_offset, following - 1)
    if last < batch.base_offset or (high_watermark is not None and last >= high_watermark):
        return None  # what its header says of its offsets is wrong as well
    end = at + len(batch.data)
    view = memoryview(records)
    rest = view[end:] if not aborted or end == len(view) else b"".join((view[:at], view[end:]))
    return PassedOver(max(position, batch.base_offset), last, rest, _still_open(aborted, batch))


def _located(records: memoryview, base_offset: int) -> tuple[StoredBatch, int, int | None] | None:
    """The batch, where it begins, and the base offset of the one behind it."""
    batches, at = _walked(records), 0
    for batch in batches:
        if batch.base_offset == base_offset:
            following = next(iter(batches), None)
            return batch, at, None if following is None else following.base_offset
        at += len(batch.data)
    return None


def _walked(records: memoryview) -> Iterable[StoredBatch]:
    """As far as it goes: what stops the walk is for whoever decodes it."""
    try:
        yield from stored_batches(records)
    except CorruptDataError:
        return


def _still_open(aborted: Aborted, batch: StoredBatch) -> Aborted:
    """The marker that ends a transaction cannot be read: what its producer writes later is not of that transaction."""
    if not aborted or not batch.is_control:
        return aborted
    return [(producer, first) for producer, first in aborted if producer != batch.producer_id or first > batch.base_offset]
