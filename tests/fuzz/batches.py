"""Mutated record batches, made fast: a few microseconds each, the same for the same noise."""

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from crc32c import crc32c

from headrace.connectors.kafka.format.decode import ALL_COLUMNS
from headrace.connectors.kafka.format.record_batch import CRC_AT, CRC_FROM, HEADER
from tests.helpers import record_batches as made
from tests.helpers.record_batches import APPEND_TIME, CODECS, TRANSACTIONAL, Record, batch, emptied, marker, numbered, payload

EVERYTHING = (*ALL_COLUMNS, "headers")
UNPACKED_LIMIT = 1 << 16
"""Bytes that a batch may unpack to in these runs."""

_LENGTH_AT = 8
_NOISE = 24  # bytes for each mutant
_TELLING = (0x00, 0x01, 0x02, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF, 0x0F, 0x10, 0x1F, 0x3F, 0x40, 0xC0, 0xF8)


class Mutant(NamedTuple):
    """Bytes for the decoder, and what it is asked."""

    data: bytes
    options: dict[str, Any]


def seeds() -> dict[str, bytes]:
    """Valid batches by name: each codec, headers, gaps, transactions and their markers, what compaction leaves, a run."""
    rich = [Record(i * 2, b"k%d" % i, b"v" * i, headers=(("h", b"x"), ("ключ", None))[: i % 3]) for i in range(4)]
    found = {f"{name.replace(' ', '-')}-{size}": batch(of, codec=name) for name in CODECS for size, of in SIZES.items()}
    found["rich"] = batch(rich)
    found["append-time"] = batch(rich, flags=APPEND_TIME)
    found["nulls"] = batch([Record(0, None, None), Record(1, b"", b""), Record(2, b"k", None)])
    found["aborted"] = batch(numbered(3), flags=TRANSACTIONAL, producer=1) + marker(0, base=3, producer=1)
    found["committed"] = batch(numbered(3), flags=TRANSACTIONAL, producer=2) + marker(1, base=3, producer=2)
    found["emptied"] = emptied(base=0, last=9) + batch(numbered(2), base=10)
    found["run"] = batch(numbered(2)) + batch(rich, base=2, codec="lz4") + batch(numbered(1), base=20, codec="zstd")
    return found


SIZES = {"small": numbered(2), "repetitive": [Record(i, b"key", b"value" * 20, headers=(("h", b"x"),)) for i in range(3)]}
_BODY, _TIMES = payload([Record(i, b"k", b"v" * 9, headers=(("h", b"x"), ("i", None))) for i in range(4)])
_QUICK = [CODECS[name] for name in ("raw snappy", "lz4", "gzip")]  # quick to compress

OPTIONS: tuple[dict[str, Any], ...] = tuple(
    {"topic": "t", "partition": 3, "start": 0, "max_uncompressed_bytes": UNPACKED_LIMIT, **changed}
    for changed in (
        {"columns": ("value",)}, {"columns": ("key", "value", "headers")},
        {"columns": ("key", "value", "headers"), "aborted": [(1, 0), (2, 0)]},
        {"columns": ("headers", "offset"), "start": 1, "stop": 3},
        {"columns": ("offset", "timestamp"), "bad_timestamps": "null"}, {"columns": ("value", "headers"), "max_batch_rows": 1},
        {"columns": ("key", "headers"), "max_batch_bytes": 30},
        {"columns": EVERYTHING, "aborted": [(1, 2)], "max_uncompressed_bytes": 1 << 20},
    )
)  # fmt: skip

# Of 256. The last three take several times as long as the others.
_OPTION_OF = [OPTIONS[which] for which, share in enumerate((72, 64, 48, 36, 24, 5, 5, 2)) for _ in range(share)]


def mutants(seed: str) -> Iterator[Mutant]:
    """Without end; the same for the same seed."""
    randbytes = random.Random(seed).randbytes
    templates = list(seeds().values())
    while True:
        noise = randbytes(_NOISE)
        if noise[0] < _SHARE_INSIDE:
            data = _changed_inside(noise)
        else:
            data = bytearray(templates[noise[1] % len(templates)])
            change(data, noise)
            if noise[0] < _SHARE_SEALED:
                _reseal(data)
            elif noise[0] < _SHARE_RUN:
                _reseal(data)
                data += templates[noise[2] % len(templates)]
        yield Mutant(bytes(data), _OPTION_OF[noise[3]])


_SHARE_INSIDE = 64  # of 256: records are changed, then compressed and sealed
_SHARE_SEALED = 208  # a stored batch is changed, its length and CRC made good again
_SHARE_RUN = 224  # the same, with another batch behind it; the rest keep whatever length and CRC they have


def change(data: bytearray, noise: bytes) -> None:
    """One to four changes, each with three bytes of the noise, which is of 24."""
    for at in range(6, 6 + 4 * (1 + (noise[4] & 3)), 4):
        if data:
            _CHANGES[noise[at] & 7](data, (noise[at + 1] << 8 | noise[at + 2]) % len(data), noise[at + 3])


def _set(data: bytearray, at: int, value: int) -> None:
    data[at] = value


def _flip(data: bytearray, at: int, value: int) -> None:
    data[at] ^= 1 << (value & 7)


def _tell(data: bytearray, at: int, value: int) -> None:
    data[at] = _TELLING[value & 15]


def _remove(data: bytearray, at: int, value: int) -> None:
    del data[at : at + (value & 15)]


def _repeat(data: bytearray, at: int, value: int) -> None:
    data[at:at] = data[at : at + (value & 31)]


def _number(data: bytearray, at: int, value: int) -> None:
    data[at : at + 4] = _NUMBERS[value & 7]


_NUMBERS = [struct.pack(">i", value) for value in (-1, 0, 1, 0x7FFFFFFF, -0x80000000, 0x10000, 0x7F, 0x100)]
_CHANGES: tuple[Callable[[bytearray, int, int], None], ...] = (_set, _set, _flip, _tell, _tell, _remove, _repeat, _number)


def _reseal(data: bytearray) -> None:
    """The first batch is all there is: its length and its CRC are those of the bytes that are there."""
    if len(data) >= HEADER.size:
        struct.pack_into(">i", data, _LENGTH_AT, len(data) - _LENGTH_AT - 4)
        struct.pack_into(">I", data, CRC_AT, crc32c(memoryview(data)[CRC_FROM:]))


def resealed(data: bytes) -> bytes:
    """With length and CRC of one batch that is all of these bytes."""
    made_good = bytearray(data)
    _reseal(made_good)
    return bytes(made_good)


def _changed_inside(noise: bytes) -> bytes:
    body = bytearray(_BODY)
    change(body, noise)
    number, compress = _QUICK[noise[2] % len(_QUICK)] if noise[2] & 1 else CODECS["none"]
    return made.seal(compress(bytes(body)), count=4, last=3, codec=number, first_time=_TIMES[0], max_time=_TIMES[1])
