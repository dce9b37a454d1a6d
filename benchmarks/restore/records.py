"""The records of the load: each states which it is, and has a checksum. Of one size, so that numpy makes and reads many at
once.

value: input partition (4 bytes), sequence within it (8), filling, CRC-32 of all before (4); little-endian
key:   the first 12 bytes of the value, so it is unique too, and decides the output's partition
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HEAD_BYTES = 12
CRC_BYTES = 4
SMALLEST = HEAD_BYTES + CRC_BYTES
RESIDUE = 0x2144DF1C
"""What CRC-32 gives for bytes that are followed by their own CRC-32, little-endian."""
SEQUENCE_BITS = 40

_HEAD = np.dtype([("origin", "<u4"), ("sequence", "<u8")])
_FILLING_ROWS = 4096

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class RecordMaker:
    """Makes records of one size. The filling is random, since real values hardly compress to nothing; it repeats."""

    def __init__(self, value_bytes: int, seed: int = 20_11) -> None:
        """Raises ValueError for a size that has no space for head and checksum."""
        if value_bytes < SMALLEST:
            raise ValueError(f"a record has at least {SMALLEST} bytes, not {value_bytes}")
        self.value_bytes = value_bytes
        self._filling = np.random.default_rng(seed).integers(0, 256, (_FILLING_ROWS, value_bytes), np.uint8)
        self._filling[:, :HEAD_BYTES] = 0
        self._sums = np.array([zlib.crc32(row[:-CRC_BYTES].tobytes()) for row in self._filling], np.uint32)
        self._shifts = _head_sums(value_bytes - CRC_BYTES)

    def values(self, origin: int, first: int, count: int) -> npt.NDArray[np.uint8]:
        """Values of consecutive sequences of one input partition: a row each."""
        chosen = np.arange(first, first + count) % _FILLING_ROWS
        rows = np.take(self._filling, chosen, axis=0)
        head = np.zeros(count, _HEAD)
        head["origin"], head["sequence"] = origin, np.arange(first, first + count)
        heads = head.view(np.uint8).reshape(count, HEAD_BYTES)
        sums = self._sums[chosen]
        for place in range(HEAD_BYTES):
            sums ^= self._shifts[place][heads[:, place]]
        rows[:, :HEAD_BYTES] = heads
        rows[:, -CRC_BYTES:] = sums.astype("<u4").view(np.uint8).reshape(count, CRC_BYTES)
        return rows


def _head_sums(length: int) -> npt.NDArray[np.uint32]:
    """By how much each value of each byte of the head changes the CRC-32 of this many bytes, which is linear: crc(a ^ b ^ c) is
    crc(a) ^ crc(b) ^ crc(c). A loop over records would cost more than all the rest."""
    nothing = zlib.crc32(bytes(length))
    changes = [[zlib.crc32(bytes([*bytes(place), byte, *bytes(length - place - 1)])) ^ nothing for byte in range(256)]
               for place in range(HEAD_BYTES)]  # fmt: skip
    return np.array(changes, np.uint32)


def batch(partition: int, rows: npt.NDArray[np.uint8]) -> pa.RecordBatch:
    """Values for one partition as the columns that the encoder takes."""
    count = len(rows)
    return pa.RecordBatch.from_arrays(
        [_binary(rows), _binary(rows[:, :HEAD_BYTES]), pa.array(np.full(count, partition, np.int32))],
        ["value", "key", "partition"],
    )


def _binary(rows: npt.NDArray[np.uint8]) -> pa.Array:
    count, width = rows.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows.tobytes())])


@dataclass(frozen=True)
class Identities:
    """Which records some values are, in their order. `ids` of damaged ones are -1."""

    ids: Ints
    intact: Bools


def identify(values: Sequence[bytes], value_bytes: int) -> Identities:
    """Read values back. One of another size or with a wrong checksum is not intact."""
    intact = np.fromiter((len(v) == value_bytes and zlib.crc32(v) == RESIDUE for v in values), np.bool_, len(values))
    head = np.frombuffer(b"".join([v[:HEAD_BYTES].ljust(HEAD_BYTES, b"\0") for v in values]), _HEAD)
    ids = record_ids(head["origin"].astype(np.int64), head["sequence"].astype(np.int64))
    return Identities(np.where(intact, ids, -1), intact)


def record_ids(origin: Ints, sequence: Ints) -> Ints:
    """One number for each record."""
    return (origin << SEQUENCE_BITS) | sequence
