"""Records that state which they are, and when they were due. Of one size, so that numpy makes and reads many at once.

value: input partition (4 bytes), sequence within it (8), due time in monotonic nanoseconds (8), filling; little-endian
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.restore.records import Ints, batch, record_ids

HEAD = np.dtype([("origin", "<u4"), ("sequence", "<u8"), ("due_ns", "<i8")])
_FILLING_ROWS = 4096


class RecordMaker:
    """Makes records of one size. The filling is random, since real values hardly compress to nothing; it repeats."""

    def __init__(self, value_bytes: int) -> None:
        self._filling = np.random.default_rng(20_11).integers(0, 256, (_FILLING_ROWS, value_bytes), np.uint8)

    def batch(self, origin: int, first: int, due_ns: Ints) -> pa.RecordBatch:
        """Consecutive sequences of one input partition, as the columns that the encoder takes."""
        count = len(due_ns)
        rows = np.take(self._filling, np.arange(first, first + count) % _FILLING_ROWS, axis=0)
        head = np.zeros(count, HEAD)
        head["origin"], head["sequence"], head["due_ns"] = origin, np.arange(first, first + count), due_ns
        rows[:, : HEAD.itemsize] = head.view(np.uint8).reshape(count, HEAD.itemsize)
        return batch(origin, rows)


@dataclass(frozen=True)
class Read:
    """What some values say, in their order."""

    ids: Ints
    due_ns: Ints


def read_back(values: pa.Array) -> Read:
    """Which records these are. One that is too short for its head has the id -1."""
    heads = np.frombuffer(b"".join(value[: HEAD.itemsize].ljust(HEAD.itemsize, b"\xff") for value in values.to_pylist()), HEAD)
    ids = record_ids(heads["origin"].astype(np.int64), heads["sequence"].astype(np.int64))
    return Read(np.where(heads["origin"] == np.uint32(0xFFFFFFFF), -1, ids), heads["due_ns"].astype(np.int64))
