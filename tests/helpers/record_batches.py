"""Record batches for the decoder's tests: kafka-python's builder, then whatever its interface does not reach, by hand."""

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

import cramjam
from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

HEADER = DefaultRecordBatch.HEADER_STRUCT
APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40


def xerial(data: bytes) -> bytes:
    """Snappy as the Java clients frame it, in blocks of 32 KiB."""
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + 32768])) for at in range(0, len(data), 32768)]
    framed = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + framed


def plain_lz4(data: bytes) -> bytes:
    """An LZ4 frame as the Java clients write it: independent blocks of 64 KiB, no checksums but the descriptor's."""
    framed = b""
    for at in range(0, len(data), 65536):
        raw = data[at : at + 65536]
        block = bytes(cramjam.lz4.compress_block(raw, store_size=False))
        is_smaller = len(block) < len(raw)
        framed += struct.pack("<I", len(block)) + block if is_smaller else struct.pack("<I", len(raw) | 1 << 31) + raw
    return bytes.fromhex("04224d18604082") + framed + bytes(4)


CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, bytes), "gzip": (1, lambda data: bytes(cramjam.gzip.compress(data))), "snappy": (2, xerial),
    "raw snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))), "lz4": (3, plain_lz4),
    "lz4 with checksums": (3, lambda data: bytes(cramjam.lz4.compress(data))),
    "zstd": (4, lambda data: bytes(cramjam.zstd.compress(data))),
}  # fmt: skip


class Record(NamedTuple):
    delta: int = 0
    key: bytes | None = None
    value: bytes | None = b"v"
    timestamp: int = 1_700_000_000_000
    headers: tuple[tuple[str, bytes | None], ...] = ()


def numbered(count: int) -> list[Record]:
    return [Record(delta, value=b"%d" % delta) for delta in range(count)]


def payload(records: Iterable[Record]) -> tuple[bytes, list[int]]:
    """The records as they lie in a batch, uncompressed, and (first timestamp, max timestamp)."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=False, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1 << 30,
    )  # fmt: skip
    for record in records:
        assert builder.append(record.delta, record.timestamp, record.key, record.value, list(record.headers))
    built = bytes(builder.build())
    fields = HEADER.unpack_from(built)
    return built[HEADER.size :], [fields[7], fields[8]]


def seal(
    body: bytes, *, base: int = 0, count: int, last: int, codec: int = 0, flags: int = 0, first_time: int = 0,
    max_time: int = 0, producer: int = -1, magic: int = 2,
) -> bytes:  # fmt: skip
    """A batch around `body`, with its length and a CRC that holds, whatever else is claimed."""
    fields = [base, HEADER.size - 12 + len(body), 0, magic, 0, codec | flags]
    fields += [last, first_time, max_time, producer, -1, -1, count]
    fields[4] = crc32c(HEADER.pack(*fields)[21:] + body)
    batch: bytes = HEADER.pack(*fields) + body
    return batch


def batch(
    records: Iterable[Record], *, base: int = 0, codec: str = "none", last: int | None = None, flags: int = 0,
    producer: int = -1,
) -> bytes:  # fmt: skip
    """A well-formed batch; `last` is the last offset delta, by default that of the last record."""
    records = list(records)
    body, (first_time, max_time) = payload(records)
    number, compress = CODECS[codec]
    return seal(
        compress(body), base=base, count=len(records), last=records[-1].delta if last is None else last, codec=number,
        flags=flags, first_time=first_time, max_time=max_time, producer=producer,
    )  # fmt: skip


def marker(kind: int, *, base: int, producer: int) -> bytes:
    """The control batch that ends a transaction: 0 aborts it, 1 commits it."""
    record = Record(key=struct.pack(">hh", 0, kind), value=struct.pack(">hi", 0, 0))
    return batch([record], base=base, flags=CONTROL | TRANSACTIONAL, producer=producer)


def emptied(*, base: int, last: int, flags: int = 0, producer: int = -1) -> bytes:
    """What compaction leaves of a batch it has taken every record from."""
    return seal(b"", base=base, count=0, last=last, flags=flags, producer=producer)
