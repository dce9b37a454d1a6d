"""Arrow to Kafka record batches (message format v2), without a Python object per record: the mirror of `decode`.

Cython in pure-Python mode, as `decode` is. One Arrow batch is encoded in three steps:

1. *place*, without the GIL: check every row, and give it its size and its partition;
2. *write*, without the GIL: append the rows, partition by partition, to the batch that is open there;
3. *seal*, with the GIL: compress a full batch, and put its header with the CRC before it.

A refused Arrow batch is refused in the first step, so nothing of it has been written.

The format: https://kafka.apache.org/documentation/#recordbatch and KIP-98 (producer ids and sequences). The partitioner:
the Java client's `BuiltInPartitioner` (KIP-480, KIP-794).
"""

# Cython's decorators and types carry no annotations, so mypy sees Any where they are used.
# mypy: disable-error-code="untyped-decorator, no-any-return"

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import cramjam
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from headrace.connectors.kafka.format import NOT_COMPILED
from headrace.connectors.kafka.format.record_batch import (
    AFTER_LENGTH,
    CODEC_BITS,
    CRC_AT,
    CRC_FROM,
    HEADER,
    LEVELS,
    MAGIC,
    TRANSACTIONAL,
)
from headrace.enumerator.errors import UsageError

try:
    import cython  # type: ignore[import-untyped]
except ImportError as error:  # compiled, it is not imported
    raise ImportError(NOT_COMPILED) from error
if cython.compiled:
    from cython.cimports.libc.string import memcpy  # type: ignore[import-untyped]

_INT16_MAX = 0x7FFF
_INT32_MAX = 0x7FFFFFFF

MAX_BATCH_BYTES = 900_000
"""Default bound on one record batch in bytes, with its header: below the 1048588 bytes that a broker takes
(`message.max.bytes`)."""


class Codec(StrEnum):
    """How record batches are compressed, named as Kafka's `compression.type` names them."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class EncodedBatch(NamedTuple):
    """One complete record batch, to be put in a Produce request for `partition` as it is.

    `data` is the batch with its header: base offset 0 and leader epoch -1, both of which the broker sets. `records` is how
    many it holds, `base_sequence` the sequence number of the first (-1 without a producer id).
    """

    partition: int
    data: bytes | memoryview
    records: int
    base_sequence: int


# --- what Arrow batches are taken ---------------------------------------------------------------------------------------

_TEXT = (pa.string(), pa.large_string())
_BLOB = (pa.binary(), pa.large_binary(), *_TEXT)
_PER_MILLI = {"ms": 1, "us": 1000, "ns": 1_000_000}


def _is_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    if kind.value_type.num_fields != 2 or fields.keys() != {"key", "value"}:
        return False
    return fields["key"] in _TEXT and fields["value"] in _BLOB


_BLOB_TYPES = "binary or string (or large_binary, large_string)"
_COLUMNS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "value": (lambda kind: kind in _BLOB, _BLOB_TYPES),
    "key": (lambda kind: kind in _BLOB, _BLOB_TYPES),
    "headers": (_is_headers, "list<struct<key: string, value: binary>>"),
    "partition": (lambda kind: kind == pa.int32(), "int32"),
    "timestamp": (lambda kind: pa.types.is_timestamp(kind) and kind.unit in _PER_MILLI, "timestamp in ms, us or ns"),
}


def _check_schema(schema: pa.Schema) -> None:
    """Raise UsageError unless these are columns that make records."""
    names = schema.names
    unknown = [name for name in names if name not in _COLUMNS]
    if unknown or len(set(names)) < len(names) or "value" not in names:
        raise UsageError(
            f"rows for Kafka have a column 'value' and may have key, headers, partition and timestamp, each once; "
            f"got {', '.join(map(repr, names)) or 'none'}"
        )
    for field in schema:
        check_column(field.name, field.type)


def check_column(name: str, kind: pa.DataType) -> None:
    """Raise UsageError unless records can be made of a column of this name and type."""
    fits, wanted = _COLUMNS[name]
    if not fits(kind):
        raise UsageError(f"column {name!r} must be {wanted}, and is {kind}; cast it")


# --- the kernel: no Python object is touched in functions without the GIL ------------------------------------------------

_RECORDS = cython.declare(cython.int, 61)  # bytes of a batch before its records
_MOST_RECORD = cython.declare(cython.longlong, 0x7FFFFF00)  # bytes of key, value and headers: the rest of the batch fits too
_LEAST_AROUND = cython.declare(cython.int, 4)  # bytes of a record besides those: length, attributes, time delta, offset delta
_MOST_AROUND = cython.declare(cython.int, 21)

# What may be wrong with a row.
_DONE = cython.declare(cython.int, 0)
_BAD_HEADER = cython.declare(cython.int, 1)
_BAD_PARTITION = cython.declare(cython.int, 2)
_BAD_TIME = cython.declare(cython.int, 3)
_TOO_LARGE = cython.declare(cython.int, 4)


@cython.cfunc
def _bytes(buffer: pa.Buffer | None) -> cython.p_uchar:
    """The bytes of an Arrow buffer, which another process has to keep alive."""
    found: cython.p_uchar
    address: cython.size_t
    if cython.compiled:
        address = 0 if buffer is None else buffer.address
        found = cython.cast(cython.p_uchar, address)
    else:
        found = memoryview(b"" if buffer is None else buffer).cast("B")
    return found


@cython.cfunc
def _ints(buffer: pa.Buffer | None) -> cython.p_int:
    """The same as 32-bit integers."""
    found: cython.p_int
    if cython.compiled:
        found = cython.cast(cython.p_int, _bytes(buffer))
    else:
        found = _bytes(buffer)
        found = found[: len(found) // 4 * 4].cast("i")
    return found


@cython.cfunc
def _longs(buffer: pa.Buffer | None) -> cython.p_longlong:
    """The same as 64-bit integers."""
    found: cython.p_longlong
    if cython.compiled:
        found = cython.cast(cython.p_longlong, _bytes(buffer))
    else:
        found = _bytes(buffer)
        found = found[: len(found) // 8 * 8].cast("q")
    return found


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy(
    target: cython.p_uchar,
    to: cython.Py_ssize_t,
    source: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
) -> cython.void:
    if cython.compiled:
        memcpy(target + to, source + at, length)
    else:
        target[to : to + length] = source[at : at + length]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _zigzag(value: cython.longlong) -> cython.ulonglong:
    """0, -1, 1, -2 as 0, 1, 2, 3: the small ones stay small."""
    return (cython.cast(cython.ulonglong, value) << 1) ^ cython.cast(cython.ulonglong, value >> 63)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint_size(value: cython.longlong) -> cython.int:
    """How many bytes _put_varint writes."""
    raw: cython.ulonglong = _zigzag(value)
    size: cython.int = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_varint(target: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a zigzag varint and give the position after it. There has to be space."""
    raw: cython.ulonglong = _zigzag(value)
    while raw >= 0x80:
        target[at] = raw & 0x7F | 0x80
        raw >>= 7
        at += 1
    target[at] = raw
    return at + 1


_SEED = cython.declare(cython.uint, 0x9747B28C)
_MIX = cython.declare(cython.uint, 0x5BD1E995)
_LOW = cython.declare(cython.uint, 0xFFFFFFFF)  # the bits of a C int, for the interpreter, whose integers have more


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _murmur2(source: cython.p_const_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.uint:
    """MurmurHash2 with the seed and the byte order of Kafka's `Utils.murmur2`."""
    end: cython.Py_ssize_t = at + length
    found: cython.uint = (_SEED ^ length) & _LOW
    part: cython.uint
    while end - at >= 4:
        part = source[at] | (source[at + 1] << 8) | (source[at + 2] << 16)
        part |= cython.cast(cython.uint, source[at + 3]) << 24
        part = (part * _MIX) & _LOW
        part ^= part >> 24
        part = (part * _MIX) & _LOW
        found = ((found * _MIX) & _LOW) ^ part
        at += 4
    if end - at == 3:
        found ^= source[at + 2] << 16
    if end - at >= 2:
        found ^= source[at + 1] << 8
    if end - at >= 1:
        found = ((found ^ source[at]) * _MIX) & _LOW
    found ^= found >> 13
    found = (found * _MIX) & _LOW
    return found ^ (found >> 15)


class _Nulls:
    """Which slots of a column are null: every one, where there is no such column."""

    def __init__(self, array: pa.Array | None) -> None:
        self.is_absent = array is None
        self.is_mixed = array is not None and array.null_count > 0
        self.first = 0 if array is None else array.offset
        self.buffer = None if array is None or not self.is_mixed else array.buffers()[0]
        self.bits = _bytes(self.buffer)

    def at(self, slot: cython.Py_ssize_t) -> cython.bint:
        bit: cython.Py_ssize_t = self.first + slot
        if self.is_mixed:
            return not self.bits[bit >> 3] & (1 << (bit & 7))
        return self.is_absent


class _Blobs:
    """A binary or string column, read where it lies."""

    def __init__(self, array: pa.Array | None) -> None:
        self.buffers = [None, None, None] if array is None else array.buffers()
        self.nulls = _Nulls(array)
        self.is_large = array is not None and array.type in (pa.large_binary(), pa.large_string())
        self.ends = _ints(None if self.is_large else self.buffers[1])
        self.long_ends = _longs(self.buffers[1] if self.is_large else None)
        self.data = _bytes(self.buffers[2])

    def begin(self, slot: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Where in `data` the slot's bytes start. The slot must not be null."""
        slot += self.nulls.first
        return self.long_ends[slot] if self.is_large else self.ends[slot]

    def length(self, slot: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """In bytes; -1 for null, as Kafka has it."""
        return -1 if self.nulls.at(slot) else self.begin(slot + 1) - self.begin(slot)

    def size(self, slot: cython.Py_ssize_t) -> cython.longlong:
        """How many bytes `put` writes."""
        length: cython.longlong = self.length(slot)
        return _varint_size(length) + (length if length > 0 else 0)

    def put(self, target: cython.p_uchar, at: cython.Py_ssize_t, slot: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Write length and bytes, and give the position after them."""
        length: cython.Py_ssize_t = self.length(slot)
        at = _put_varint(target, at, length)
        if length > 0:
            _copy(target, at, self.data, self.begin(slot), length)
            at += length
        return at


class _HeaderLists:
    """A column of header lists, read where it lies. A null list is one of no headers."""

    def __init__(self, array: pa.ListArray | None) -> None:
        entries = None if array is None else array.values
        self.buffer = None if array is None else array.buffers()[1]
        self.nulls = _Nulls(array)
        self.null_entries = _Nulls(entries)
        self.keys = _Blobs(None if entries is None else entries.field("key"))
        self.values = _Blobs(None if entries is None else entries.field("value"))
        self.ends = _ints(self.buffer)

    def count(self, slot: cython.Py_ssize_t) -> cython.Py_ssize_t:
        at: cython.Py_ssize_t = self.nulls.first + slot
        return 0 if self.nulls.at(slot) else self.ends[at + 1] - self.ends[at]

    def size(self, slot: cython.Py_ssize_t) -> cython.longlong:
        """How many bytes `put` writes; -1 if a header is null, or its key."""
        left: cython.Py_ssize_t = self.count(slot)
        size: cython.longlong = _varint_size(left)
        entry: cython.Py_ssize_t
        if left > 0:
            entry = self.ends[self.nulls.first + slot]
            while left > 0:
                if self.null_entries.at(entry) or self.keys.nulls.at(entry):
                    return -1
                size += self.keys.size(entry) + self.values.size(entry)
                entry += 1
                left -= 1
        return size

    def put(self, target: cython.p_uchar, at: cython.Py_ssize_t, slot: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Write the headers behind their count, and give the position after them."""
        left: cython.Py_ssize_t = self.count(slot)
        entry: cython.Py_ssize_t
        at = _put_varint(target, at, left)
        if left > 0:
            entry = self.ends[self.nulls.first + slot]
            while left > 0:
                at = self.keys.put(target, at, entry)
                at = self.values.put(target, at, entry)
                entry += 1
                left -= 1
        return at


class _Rows:
    """The rows of one Arrow batch, and once they are placed: which go to each partition, and their sizes."""

    def __init__(self, rows: pa.RecordBatch, partitions: int, now: cython.longlong) -> None:
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        partition, time = columns.get("partition"), columns.get("timestamp")
        self.count = rows.num_rows
        self.now = now
        self.keys = _Blobs(columns.get("key"))
        self.values = _Blobs(columns["value"])
        self.headers = _HeaderLists(columns.get("headers"))
        self.no_partition = _Nulls(partition)
        self.no_time = _Nulls(time)
        self.per_milli = 1 if time is None else _PER_MILLI[time.type.unit]
        self.refused = -1
        self.buffers = [pa.allocate_buffer(4 * self.count) for _ in range(3)]
        self.buffers += [pa.py_buffer(bytearray(8 * partitions)) for _ in range(2)]
        self.buffers += [array.buffers()[1] for array in (partition, time) if array is not None]
        self.sizes = _ints(self.buffers[0])
        self.targets = _ints(self.buffers[1])
        self.order = _ints(self.buffers[2])
        self.ends = _longs(self.buffers[3])
        self.totals = _longs(self.buffers[4])
        self.partitions = _ints(None if partition is None else self.buffers[5])
        self.times = _longs(None if time is None else self.buffers[-1])

    @cython.cdivision(True)  # noqa: FBT003 - nothing is negative or zero here, and checking that would take the GIL
    def time(self, row: cython.Py_ssize_t) -> cython.longlong:
        """In milliseconds. The row's own time is checked; where it is negative it is none."""
        if self.no_time.at(row) or self.times[self.no_time.first + row] < 0:
            return self.now
        return self.times[self.no_time.first + row] // self.per_milli

    def check(self, row: cython.Py_ssize_t, partitions: cython.int) -> cython.int:
        """Whether the row can be encoded; notes its size."""
        partition: cython.int
        time: cython.longlong
        size: cython.longlong = self.headers.size(row)
        if size < 0:
            return _BAD_HEADER
        size += self.keys.size(row) + self.values.size(row)
        if size > _MOST_RECORD:
            return _TOO_LARGE
        if not self.no_time.at(row):
            time = self.times[self.no_time.first + row]
            if time < 0 and time != -self.per_milli:  # -1 ms: Kafka's NO_TIMESTAMP
                return _BAD_TIME
        if not self.no_partition.at(row):
            partition = self.partitions[self.no_partition.first + row]
            if partition < 0 or partition >= partitions:
                return _BAD_PARTITION
        self.sizes[row] = cython.cast(cython.int, size)
        return _DONE

    def sort(self, partitions: cython.int) -> cython.void:
        """Put the rows in order by partition. Stable: within a partition they stay as they were."""
        row: cython.Py_ssize_t
        target: cython.int
        begin: cython.longlong = 0
        rows: cython.longlong
        for target in range(partitions):  # so far `ends` counts the rows of each partition
            rows = self.ends[target]
            self.ends[target] = begin
            begin += rows
        for row in range(self.count):
            target = self.targets[row]
            self.order[self.ends[target]] = cython.cast(cython.int, row)
            self.ends[target] += 1

    def refusal(self, status: cython.int, partitions: cython.int) -> UsageError:
        """What is wrong with the refused row."""
        row: cython.Py_ssize_t = self.refused
        if status == _BAD_HEADER:
            what = "a header is null or has a null key; Kafka's header keys are never null"
        elif status == _BAD_PARTITION:
            partition = self.partitions[self.no_partition.first + row]
            what = f"there is no partition {partition}; the topic has {partitions}, from 0 to {partitions - 1}"
        elif status == _BAD_TIME:
            time = self.times[self.no_time.first + row]
            unit = {1: "ms", 1000: "us", 1_000_000: "ns"}[self.per_milli]
            what = f"the timestamp {time} {unit} is before 1970, for which Kafka has none"
        else:
            what = f"key, value and headers take more than {_MOST_RECORD} bytes, which no record batch can hold"
        return UsageError(f"row {row}: {what}")


class _Partitioner:
    """Chooses partitions. Remembers where rows without a key go next."""

    def __init__(self, partitions: int, enough: int) -> None:
        self.partitions = partitions
        self.sticky = random.randrange(partitions)  # noqa: S311 - spreads the load; it is not a secret
        self.enough = enough

    def place(self, rows: _Rows) -> None:
        """Check and place the rows. Raises UsageError for one that cannot be encoded."""
        status: cython.int
        with cython.nogil:
            status = self.place_all(rows)
            if status == _DONE:
                rows.sort(self.partitions)
        if status != _DONE:
            raise rows.refusal(status, self.partitions)

    def after(self, partition: cython.int) -> cython.int:
        return partition + 1 if partition + 1 < self.partitions else 0

    def place_all(self, rows: _Rows) -> cython.int:
        row: cython.Py_ssize_t
        status: cython.int
        target: cython.int
        length: cython.Py_ssize_t
        sticky: cython.int = self.sticky
        written: cython.longlong = 0
        for row in range(rows.count):
            status = rows.check(row, self.partitions)
            if status != _DONE:
                rows.refused = row
                return status
            length = rows.keys.length(row)
            if not rows.no_partition.at(row):
                target = rows.partitions[rows.no_partition.first + row]
            elif length >= 0:
                target = self.of_key(rows.keys.data, rows.keys.begin(row), length)
            else:
                target = sticky
                written += rows.sizes[row] + _LEAST_AROUND
                if written >= self.enough:
                    sticky = self.after(sticky)
                    written = 0
            rows.targets[row] = target
            rows.ends[target] += 1
            rows.totals[target] += rows.sizes[row] + _MOST_AROUND
        self.sticky = sticky if written == 0 else self.after(sticky)
        return _DONE

    @cython.cdivision(True)  # noqa: FBT003 - nothing is negative or zero here, and checking that would take the GIL
    def of_key(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.int:
        return cython.cast(cython.int, _murmur2(source, at, length) & 0x7FFFFFFF) % self.partitions


# --- compression --------------------------------------------------------------------------------------------------------

_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)  # then version and the oldest version that can read it
_XERIAL_BLOCK = 32 << 10
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"  # version 1, blocks independent and of at most 64 KiB, no checksum but this one's
_LZ4_BLOCK = 64 << 10
_LZ4_STORED = 1 << 31  # in a block's length: not compressed
_LZ4_DEFAULT_LEVEL = 9  # which in the Java client means the fast compressor, and every other one the thorough (KIP-390)


def _pack_snappy(data: memoryview) -> bytes:
    """Snappy as snappy-java frames it, and so every Java client reads it."""
    parts = [_XERIAL_HEADER]
    for at in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _pack_lz4(data: memoryview) -> bytes:
    """An LZ4 frame by the fast compressor, as the Java client writes it by default. The frames of `cramjam.lz4.compress` have
    linked blocks, which the Java client refuses."""
    parts = [_LZ4_HEADER]
    for at in range(0, len(data), _LZ4_BLOCK):
        raw = data[at : at + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(raw, store_size=False))
        if len(block) < len(raw):
            parts += (len(block).to_bytes(4, "little"), block)
        else:
            parts += ((len(raw) | _LZ4_STORED).to_bytes(4, "little"), bytes(raw))
    parts.append(bytes(4))
    return b"".join(parts)


def _pack_lz4_harder(data: memoryview, level: int) -> bytes:
    """An LZ4 frame of a level. It has a checksum for each block, which the Java client reads but does not write."""
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _compressor(codec: Codec, level: int | None) -> Callable[[memoryview], bytes] | None:
    """What compresses the records of a batch, or None. Raises UsageError for a level that the codec does not have."""
    if level is not None:
        if codec not in LEVELS:
            raise UsageError(f"compression_level is for gzip, lz4 and zstd; with {codec.value} leave it out")
        least, most = LEVELS[codec]
        if not least <= level <= most:
            raise UsageError(f"compression_level of {codec.value} must be between {least} and {most}, got {level}")
    if codec is Codec.GZIP:
        return lambda data: bytes(cramjam.gzip.compress(data, level=level))
    if codec is Codec.SNAPPY:
        return _pack_snappy
    if codec is Codec.LZ4:
        if level is None or level == _LZ4_DEFAULT_LEVEL:
            return _pack_lz4
        return partial(_pack_lz4_harder, level=level)
    if codec is Codec.ZSTD:
        return lambda data: bytes(cramjam.zstd.compress(data, level=level))
    return None


# --- batches ------------------------------------------------------------------------------------------------------------

_NO_PRODUCER = -1


class _Producer(NamedTuple):
    """What all batches of an encoder have in common."""

    producer_id: int
    producer_epoch: int
    attributes: int
    compress: Callable[[memoryview], bytes] | None


class _OpenBatch:
    """The batch of one partition that records are being appended to."""

    def __init__(self, partition: int, producer: _Producer, limit: int, sequence: int) -> None:
        self.partition = partition
        self.producer = producer
        self.limit = limit
        self.sequence = sequence
        self.count = 0
        self.base_time = self.max_time = 0
        self.used = _RECORDS
        self.set_buffer(pa.allocate_buffer(0))

    def set_buffer(self, buffer: pa.Buffer) -> cython.void:
        self.buffer = buffer
        self.data = _bytes(buffer)
        self.capacity = buffer.size

    def has_records(self) -> bool:
        """Whether there is anything to close."""
        return self.count > 0

    def add(self, rows: _Rows, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> list[EncodedBatch]:
        """Append the rows that come from `at` to `end` in `rows.order`, and give the batches that became full."""
        full: list[EncodedBatch] = []
        pending: cython.longlong = rows.totals[self.partition]
        before: cython.Py_ssize_t
        while True:
            before = self.used
            self.reserve(pending, rows.sizes[rows.order[at]] + _MOST_AROUND)
            with cython.nogil:
                at = self.write(rows, at, end)
            if at == end:
                return full
            pending -= self.used - before
            full.append(self.close())

    def reserve(self, pending: cython.longlong, first: cython.longlong) -> cython.void:
        """Make space for `pending` more bytes up to the limit, and in an empty batch for the `first` of them at any rate."""
        needed: cython.Py_ssize_t = min(self.used + pending, self.limit)
        old_buffer = self.buffer  # exists until it has been copied
        old: cython.p_uchar = self.data
        if self.count == 0:
            needed = max(needed, self.used + first)
        if needed > self.capacity:
            self.set_buffer(pa.allocate_buffer(max(needed, min(2 * self.capacity, self.limit))))
            if self.count > 0:
                _copy(self.data, _RECORDS, old, _RECORDS, self.used - _RECORDS)
        del old_buffer

    def write(self, rows: _Rows, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Append rows until the batch has no space for the next; give the position of that one. An empty batch takes one."""
        row: cython.Py_ssize_t
        pos: cython.Py_ssize_t
        time: cython.longlong
        length: cython.longlong
        while at < end:
            row = rows.order[at]
            time = rows.time(row)
            if self.count == 0:
                self.base_time = self.max_time = time
            length = 1 + _varint_size(time - self.base_time) + _varint_size(self.count) + rows.sizes[row]
            if self.count > 0 and self.used + _varint_size(length) + length > self.limit:
                break
            pos = _put_varint(self.data, self.used, length)
            self.data[pos] = 0  # attributes, which are unused
            pos = _put_varint(self.data, pos + 1, time - self.base_time)
            pos = _put_varint(self.data, pos, self.count)
            pos = rows.keys.put(self.data, pos, row)
            pos = rows.values.put(self.data, pos, row)
            self.used = rows.headers.put(self.data, pos, row)
            self.max_time = max(self.max_time, time)
            self.count += 1
            at += 1
        return at

    def close(self) -> EncodedBatch:
        """Seal the batch, which must not be empty, and start the next."""
        view = memoryview(self.buffer).cast("B")[: self.used]
        attributes: int = self.producer.attributes
        packed = None if self.producer.compress is None else self.producer.compress(view[_RECORDS:])
        data: bytes | memoryview
        if packed is not None and _RECORDS + len(packed) <= max(self.used, self.limit):
            data = self.header(packed, attributes) + packed
        else:  # also where compression only made it too large
            view[:_RECORDS] = self.header(view[_RECORDS:], attributes & ~CODEC_BITS)
            data = view.toreadonly()
            self.set_buffer(pa.allocate_buffer(0))
        closed = EncodedBatch(self.partition, data, self.count, self.first_sequence())
        self.sequence = (self.sequence + self.count) & _INT32_MAX
        self.count = 0
        self.used = _RECORDS
        return closed

    def first_sequence(self) -> int:
        return self.sequence if self.producer.producer_id != _NO_PRODUCER else -1

    def header(self, body: bytes | memoryview, attributes: int) -> bytes:
        """The header of a batch whose records, compressed or not, are `body`."""
        length = HEADER.size - AFTER_LENGTH + len(body)
        producer = (self.producer.producer_id, self.producer.producer_epoch, self.first_sequence())
        times = (self.base_time, self.max_time)
        fields = HEADER.pack(0, length, -1, MAGIC, 0, attributes, self.count - 1, *times, *producer, self.count)
        crc = crc32c(body, crc32c(fields[CRC_FROM:]))
        return fields[:CRC_AT] + crc.to_bytes(4, "big") + fields[CRC_FROM:]


# --- the interface ------------------------------------------------------------------------------------------------------


def murmur2(data: bytes) -> int:
    """The hash by which Kafka's clients place keys (Java's `Utils.murmur2`): a signed 32-bit integer."""
    found: cython.longlong = _murmur2(data, 0, len(data))
    return found if found <= _INT32_MAX else found - (1 << 32)


def key_partitions(keys: pa.Array, partitions: int) -> pa.Int32Array:
    """Of this many partitions, the one to which Kafka's clients send each key; null where the key is null.

    `keys` are binary or string, also large; raises UsageError for another type.
    """
    check_column("key", keys.type)
    blobs: _Blobs = _Blobs(keys)
    partitioner: _Partitioner = _Partitioner(partitions, MAX_BATCH_BYTES)
    buffer = pa.py_buffer(bytearray(4 * len(keys)))
    targets: cython.p_int = _ints(buffer)
    row: cython.Py_ssize_t
    for row in range(len(keys)):
        if not blobs.nulls.at(row):
            targets[row] = partitioner.of_key(blobs.data, blobs.begin(row), blobs.length(row))
    placed = pa.Array.from_buffers(pa.int32(), len(keys), [None, buffer])
    return pc.if_else(keys.is_valid(), placed, None)


class RecordEncoder:
    """One topic's rows into record batches, with one open batch per partition.

    `append` rows, and produce what it returns; `flush` for the rest. Batches of one partition come in the order of their
    rows, and have to be produced in that order. An encoder holds at most one batch per partition back, and belongs to one
    thread at a time; while it works it mostly holds no GIL.

    **Partitions.** A row's own `partition` is taken as it is. Else a row with a key, even an empty one, goes to
    `(murmur2(key) & 0x7fffffff) % partitions`, where the Java client puts it. Rows without a key stick to one partition
    until a batch's worth of bytes or the end of an Arrow batch has come, then to the next (as KIP-480 and KIP-794, but
    round robin from a random start, which spreads a few large batches more evenly).

    **Sequences** are counted per partition and wrap from 2^31 - 1 to 0, as the broker expects of an idempotent producer.
    """

    def __init__(
        self,
        partitions: int,
        *,
        producer_id: int,
        producer_epoch: int,
        transactional: bool,
        codec: Codec = Codec.NONE,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        compression_level: int | None = None,
        first_sequences: Mapping[int, int] | None = None,
    ) -> None:
        """An encoder for a topic of this many `partitions`. `producer_id` and `producer_epoch` are -1 for a plain producer.

        `max_batch_bytes` bounds a batch before compression, header included (default 900 000), and after it: one that would
        outgrow it by being compressed is left as it is. A record that is larger goes alone into its own batch, for the
        broker to decide. `compression_level` is Kafka's `compression.gzip.level` (1
        to 9), `compression.lz4.level` (1 to 17; 9 is its default) or `compression.zstd.level` (-131072 to 22); None is the
        codec's default. `first_sequences` says where the sequences of a producer that has written before continue, by
        partition; default 0.

        Raises UsageError for arguments out of range, and for a transactional encoder without a producer id.
        """
        _check_range("partitions", partitions, 1, _INT32_MAX)
        _check_range("max_batch_bytes", max_batch_bytes, 1, _INT32_MAX)
        _check_range("producer_id", producer_id, _NO_PRODUCER, (1 << 63) - 1)
        _check_range("producer_epoch", producer_epoch, -1 if producer_id == _NO_PRODUCER else 0, _INT16_MAX)
        if transactional and producer_id == _NO_PRODUCER:
            raise UsageError("a transactional encoder needs the producer id and epoch that InitProducerId gave")
        try:
            codec = Codec(codec)
        except ValueError:
            raise UsageError(f"codec must be one of {', '.join(Codec)}, got {codec!r}") from None
        sequences = dict(first_sequences or {})
        for partition, sequence in sequences.items():
            _check_range("a partition in first_sequences", partition, 0, partitions - 1)
            _check_range("a sequence in first_sequences", sequence, 0, _INT32_MAX)
        attributes = list(Codec).index(codec) | (TRANSACTIONAL if transactional else 0)
        producer = _Producer(producer_id, producer_epoch, attributes, _compressor(codec, compression_level))
        self._partitions = partitions
        self._partitioner = _Partitioner(partitions, max_batch_bytes)
        self._open = [_OpenBatch(each, producer, max_batch_bytes, sequences.get(each, 0)) for each in range(partitions)]

    def append(self, rows: pa.RecordBatch, now_ms: int) -> list[EncodedBatch]:
        """Encode rows, and return the batches that became full with them, by partition.

        Columns: `value`, and as wanted `key` (both binary or string, also large; null is Kafka's null), `headers`
        (list<struct<key: string, value: binary>>; null for none), `partition` (int32; null lets the partitioner choose) and
        `timestamp` (in ms, us or ns, cut to milliseconds; null, or -1 ms as a record without one is read, for `now_ms`, which
        is milliseconds since 1970).

        Raises UsageError for columns that are unknown, missing or of other types, and naming the row for a partition that
        the topic does not have, a null header or header key, and a timestamp before 1970. Nothing of the Arrow batch has
        then been encoded. Nothing returned refers to `rows`.
        """
        _check_schema(rows.schema)
        _check_range("now_ms", now_ms, 0, (1 << 63) - 1)
        _check_range("the number of rows", rows.num_rows, 0, _INT32_MAX)
        placed: _Rows = _Rows(rows, self._partitions, now_ms)
        self._partitioner.place(placed)
        full: list[EncodedBatch] = []
        begin: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t
        partition: cython.Py_ssize_t
        for partition in range(self._partitions):
            end = placed.ends[partition]
            if end > begin:
                full += self._open[partition].add(placed, begin, end)
            begin = end
        return full

    def flush(self) -> list[EncodedBatch]:
        """Close the open batches and return them, by partition. Sequences continue afterwards."""
        return [batch.close() for batch in self._open if batch.has_records()]


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{name} must be between {least} and {most}, got {value}")
