"""Kafka record batches (message format v2) to Arrow, without a Python object per record.

Cython in pure-Python mode: `setup.py` compiles this file, with the C types in `decode.pxd`, and the kernel then runs without
the GIL. Uncompiled, the same file is the reference of the tests for the compiled one. A response is decoded in two steps:

1. *plan*, with the GIL: walk the batch headers, check every CRC, drop control and aborted batches, decompress, and note
   where the records of each remaining batch lie;
2. *fill*, without the GIL: parse the records of all planned batches into the buffers of one Arrow record batch.

Nothing that the bytes claim is believed: every read is checked against the end of what was received, and every
allocation is bounded by it, or by a limit of the caller's.

The format: https://kafka.apache.org/documentation/#recordbatch and KIP-98 (transactions); next offset and aborted
transactions as in the Java client's `CompletedFetch`.
"""

# Cython's decorators and types carry no annotations, so mypy sees Any where they are used.
# mypy: disable-error-code="untyped-decorator, no-any-return"

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from operator import itemgetter
from typing import Literal, NamedTuple

import cramjam
import pyarrow as pa
from crc32c import crc32c

from headrace.connectors.kafka.format import NOT_COMPILED
from headrace.connectors.kafka.format.record_batch import BadBatchError
from headrace.enumerator.errors import BadRecordError, CorruptDataError, UsageError

try:
    import cython  # type: ignore[import-untyped]
except ImportError as error:  # compiled, it is not imported
    raise ImportError(NOT_COMPILED) from error
if cython.compiled:
    from cython.cimports.libc.string import memcpy, memset  # type: ignore[import-untyped]

_INT32_MAX = 0x7FFFFFFF
_INT64_MAX = 0x7FFFFFFFFFFFFFFF

HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}

ALL_COLUMNS: tuple[str, ...] = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of Spark's Kafka source, in its order. `headers` is the eighth, and has to be asked for by name."""

BadTimestamps = Literal["error", "null"]
"""What becomes of a record's timestamp that does not fit 64-bit microseconds: an error, or a null."""

MAX_BATCH_BYTES = 3 << 19
"""Default bound, in bytes of uncompressed records, on one decoded Arrow batch: 1.5 MiB, so that it is still in the processor's
cache when its reader passes it on. Measured on Spark: larger ones cost a tenth of the throughput, smaller ones more."""

MAX_UNCOMPRESSED_BYTES = 256 << 20
"""Default bound, in bytes, on what one compressed Kafka batch may unpack to: the guard against decompression bombs."""


class DecodedBatch(NamedTuple):
    """One Arrow batch and the position after it.

    `records` has the columns asked for, in schema order, and may have no rows. `next_offset` is the offset to read next:
    it lies past control records, aborted transactions, emptied batches and the gaps that compaction leaves, and is never
    beyond `stop`.
    """

    records: pa.RecordBatch
    next_offset: int


def arrow_schema(columns: Collection[str] = ALL_COLUMNS) -> pa.Schema:
    """The Arrow schema of what `decode` yields for `columns`: names and types of Spark's own Kafka source.

    Columns come in schema order whatever order they are asked in; add "headers" to have them. All are nullable, as Spark
    has them. Raises UsageError for an unknown name, and for none at all: a batch without columns cannot say how many rows.
    """
    unknown = [name for name in columns if name not in _TYPES]
    if unknown or not columns:
        raise UsageError(f"columns must be some of {', '.join(_TYPES)}; got {', '.join(map(repr, unknown)) or 'none'}")
    return pa.schema([pa.field(name, kind) for name, kind in _TYPES.items() if name in columns])


# --- layout of a record batch, and of the plan ----------------------------------------------------------------------

_LENGTH = cython.declare(cython.int, 8)  # bytes from the start of a batch; the length counts what follows it
_MAGIC = cython.declare(cython.int, 16)
_CRC = cython.declare(cython.int, 17)
_ATTRIBUTES = cython.declare(cython.int, 21)  # the CRC covers everything from here
_LAST_DELTA = cython.declare(cython.int, 23)
_BASE_TIME = cython.declare(cython.int, 27)
_MAX_TIME = cython.declare(cython.int, 35)
_PRODUCER = cython.declare(cython.int, 43)
_COUNT = cython.declare(cython.int, 57)
_RECORDS = cython.declare(cython.int, 61)

_MOST_OFFSET = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFE)
_MOST_MILLIS = cython.declare(cython.longlong, 9223372036854775)  # that fit 64-bit microseconds

_CODEC_BITS = cython.declare(cython.int, 0x07)
_APPEND_TIME_BIT = cython.declare(cython.int, 0x08)
_TRANSACTIONAL_BIT = cython.declare(cython.int, 0x10)
_CONTROL_BIT = cython.declare(cython.int, 0x20)
_ABORT_MARKER = cython.declare(cython.int, 0)
_SMALLEST_RECORD = cython.declare(cython.int, 7)  # bytes: length, attributes, time, offset, key and value length, header count

# Columns of the plan: one row of 64-bit integers for each batch whose records are wanted.
_UNPACKED = cython.declare(cython.int, 0)  # 0: the records lie in the data as received, 1: in the arena of decompressed bytes
_AT = cython.declare(cython.int, 1)  # first byte not yet parsed
_END = cython.declare(cython.int, 2)
_LEFT = cython.declare(cython.int, 3)  # records not yet parsed
_BASE = cython.declare(cython.int, 4)
_FLOOR = cython.declare(cython.int, 5)  # smallest offset delta that the next record may have
_LAST = cython.declare(cython.int, 6)  # greatest offset delta
_TIME = cython.declare(cython.int, 7)
_TIME_TYPE = cython.declare(cython.int, 8)
_WIDTH = cython.declare(cython.int, 9)
_MOST_BATCHES = cython.declare(cython.int, 1 << 16)  # in one plan

# How a step of the kernel ends.
_DONE = cython.declare(cython.int, 0)
_FULL = cython.declare(cython.int, 1)
_STOPPED = cython.declare(cython.int, 2)
_BAD_LENGTH = cython.declare(cython.int, 3)
_BAD_FIELD = cython.declare(cython.int, 4)
_BAD_OFFSET = cython.declare(cython.int, 5)
_BAD_TIME = cython.declare(cython.int, 6)
_BAD_HEADER = cython.declare(cython.int, 7)
_BAD_END = cython.declare(cython.int, 9)
_TRAILING = cython.declare(cython.int, 10)

_WHAT: dict[int, str] = {
    3: "the record's length runs past the end of the batch, or is not a varint",
    4: "a field of the record runs past its end, or has a negative length or a malformed varint",
    5: "the record's offset is not between the previous one and the last of the batch",
    6: "the record's timestamp does not fit 64-bit microseconds",
    7: "a header of the record runs past its end, has a negative length or a malformed varint, or the count is wrong",
    9: "bytes are remaining after the record's last field",
    10: "bytes are remaining after the last record",
}

_NULL_TIMES = "bad_timestamps='null', as an option badTimestamps=null, keeps such records without it"

# --- the kernel: no Python object is touched below, up to _Binary.finish --------------------------------------------

_BEYOND = cython.declare(cython.Py_ssize_t, 0x3FFFFFFFFFFFFFFF)  # a position past any end: reading on from it fails again


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _unsigned(source: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.int) -> cython.longlong:
    """Big-endian, of fewer than 8 bytes. The caller has checked that they are there."""
    value: cython.longlong = 0
    i: cython.int
    for i in range(size):
        value = (value << 8) | source[at + i]
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _signed(source: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.int) -> cython.longlong:
    """Big-endian, two's complement, of up to 8 bytes. The caller has checked that they are there."""
    value: cython.longlong = source[at]
    i: cython.int
    if value >= 0x80:
        value -= 0x100
    for i in range(1, size):
        value = value * 0x100 + source[at + i]
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _long_varint(
    source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, bits: cython.int
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A zigzag varint of up to `bits` bits and the position after it, which is _BEYOND if there is none before `end`."""
    raw: cython.ulonglong = 0
    shift: cython.int = 0
    part: cython.ulonglong
    while at < end and shift < bits:
        part = source[at]
        at += 1
        if shift + 7 > bits and (part & 0x7F) >> (bits - shift) != 0:
            break
        raw |= (part & 0x7F) << shift
        shift += 7
        if part < 0x80:
            return cython.cast(cython.longlong, raw >> 1) ^ -cython.cast(cython.longlong, raw & 1), at
    return 0, _BEYOND


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint(
    source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, bits: cython.int
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A zigzag varint of up to `bits` bits and the position after it; most are one byte."""
    raw: cython.longlong
    if at < end and source[at] < 0x80:
        raw = source[at]
        return (raw >> 1) ^ -(raw & 1), at + 1
    return _long_varint(source, at, end, bits)


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
@cython.nogil
@cython.exceptval(check=False)
def _is_utf8(source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Well-formed UTF-8 (Unicode table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF)."""
    lead: cython.int
    low: cython.int
    high: cython.int
    more: cython.int
    while at < end:
        lead = source[at]
        at += 1
        if lead < 0x80:
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        if end - at < more:
            return False
        low = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        high = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        while more > 0:
            if source[at] < low or source[at] > high:
                return False
            low, high = 0x80, 0xBF
            at += 1
            more -= 1
    return True


class _Validity:
    """Arrow validity bitmap of `capacity` slots: all valid until cleared."""

    def __init__(self, capacity: cython.Py_ssize_t) -> None:
        size: cython.Py_ssize_t = capacity // 8 + 1
        self.buffer = pa.allocate_buffer(size)
        self.nulls = 0
        if cython.compiled:
            self.bits = cython.cast(cython.p_uchar, cython.cast(cython.size_t, self.buffer.address))
            memset(self.bits, 0xFF, size)
        else:
            self.bits = memoryview(self.buffer).cast("B")
            self.bits[:] = b"\xff" * size

    def clear(self, slot: cython.Py_ssize_t) -> cython.void:
        self.bits[slot >> 3] = self.bits[slot >> 3] & (0xFF ^ (1 << (slot & 7)))
        self.nulls += 1

    def finish(self) -> pa.Buffer | None:
        return self.buffer if self.nulls else None


class _Binary:
    """An Arrow binary or string array under construction. The caller keeps it within its capacities."""

    def __init__(self, row_capacity: cython.Py_ssize_t, byte_capacity: cython.Py_ssize_t) -> None:
        self.validity = _Validity(row_capacity)
        self.data_buffer = pa.allocate_buffer(byte_capacity, resizable=True)
        self.ends_buffer = pa.allocate_buffer(4 * (row_capacity + 1), resizable=True)
        self.rows = 0
        self.used = 0
        if cython.compiled:
            self.data = cython.cast(cython.p_uchar, cython.cast(cython.size_t, self.data_buffer.address))
            self.ends = cython.cast(cython.p_int, cython.cast(cython.size_t, self.ends_buffer.address))
        else:
            self.data = memoryview(self.data_buffer).cast("B")
            self.ends = memoryview(self.ends_buffer).cast("B").cast("i")
        self.ends[0] = 0

    def append(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.void:
        """Append `length` bytes of `source`, or a null where `length` is negative."""
        if length < 0:
            self.validity.clear(self.rows)
        else:
            _copy(self.data, self.used, source, at, length)
            self.used += length
        self.rows += 1
        self.ends[self.rows] = cython.cast(cython.int, self.used)

    def finish(self, kind: pa.DataType) -> pa.Array:
        self.data = self.ends = cython.NULL if cython.compiled else None
        self.data_buffer.resize(self.used, shrink_to_fit=True)
        self.ends_buffer.resize(4 * (self.rows + 1), shrink_to_fit=True)
        buffers = [self.validity.finish(), self.ends_buffer, self.data_buffer]
        return pa.Array.from_buffers(kind, self.rows, buffers, self.validity.nulls)


class _Headers:
    """The headers column under construction: a list per record, null for a record without headers, as Spark has it."""

    def __init__(self, row_capacity: cython.Py_ssize_t, byte_capacity: cython.Py_ssize_t, capacity: cython.Py_ssize_t) -> None:
        self.validity = _Validity(row_capacity)
        self.keys = _Binary(capacity, byte_capacity)
        self.values = _Binary(capacity, byte_capacity)
        self.capacity = capacity
        self.malformed = False
        self.ends_buffer = pa.allocate_buffer(4 * (row_capacity + 1))
        if cython.compiled:
            self.ends = cython.cast(cython.p_int, cython.cast(cython.size_t, self.ends_buffer.address))
        else:
            self.ends = memoryview(self.ends_buffer).cast("B").cast("i")
        self.ends[0] = 0

    def append(
        self,
        row: cython.Py_ssize_t,
        source: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        count: cython.longlong,
    ) -> cython.void:
        """Append the `count` headers between `at` and `end`, which _check_headers has accepted."""
        length: cython.longlong
        if count == 0:
            self.validity.clear(row)
        while count > 0:
            length, at = _varint(source, at, end, 32)
            self.keys.append(source, at, length)
            if not _is_utf8(source, at, at + length):
                self.malformed = True
            at += length
            length, at = _varint(source, at, end, 32)
            self.values.append(source, at, length)
            at += _size(length)
            count -= 1
        self.ends[row + 1] = cython.cast(cython.int, self.keys.rows)

    def finish(self, rows: cython.Py_ssize_t) -> pa.Array:
        keys = _decoded(self.keys.finish(pa.binary())) if self.malformed else self.keys.finish(pa.string())
        fields = [keys, self.values.finish(pa.binary())]
        entries = pa.StructArray.from_arrays(fields, fields=list(HEADERS_TYPE.value_type))
        buffers = [self.validity.finish(), self.ends_buffer]
        return pa.Array.from_buffers(HEADERS_TYPE, rows, buffers, self.validity.nulls, children=[entries])


def _decoded(keys: pa.Array) -> pa.Array:
    """Some are not UTF-8, which no broker checks: replaced by U+FFFD, as the Java client does."""
    return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _size(length: cython.longlong) -> cython.longlong:
    """How many bytes follow a nullable length."""
    return length if length > 0 else 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_time(base: cython.longlong, delta: cython.longlong) -> cython.bint:
    """Whether both milliseconds together fit 64-bit microseconds; the first two tests keep their sum from overflowing."""
    return (
        -_MOST_MILLIS <= base <= _MOST_MILLIS
        and -2 * _MOST_MILLIS <= delta <= 2 * _MOST_MILLIS
        and -_MOST_MILLIS <= base + delta <= _MOST_MILLIS
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _check_headers(
    source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, count: cython.longlong
) -> cython.int:
    """Whether exactly `count` well-formed headers lie between `at` and `end`."""
    length: cython.longlong
    key_end: cython.Py_ssize_t
    while count > 0:
        length, at = _varint(source, at, end, 32)
        if length < 0 or at > end or length > end - at:
            return _BAD_HEADER
        key_end = at + length
        length, at = _varint(source, key_end, end, 32)
        if length < -1 or at > end or length > end - at:
            return _BAD_HEADER
        at += _size(length)
        count -= 1
    return _DONE if at == end else _BAD_HEADER


class _Columns:
    """The columns of one Arrow batch under construction; those not asked for cost nothing."""

    def __init__(
        self,
        names: Collection[str],
        rows: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        headers: cython.Py_ssize_t,
        nulls_times: cython.bint,
    ) -> None:
        """Space for `rows` rows, `size` bytes of records and `headers` headers in all.

        `nulls_times`: a timestamp that does not fit becomes a null, and is not an error.
        """
        self.rows = 0
        self.row_capacity = rows
        self.headroom = size
        self.has_keys = "key" in names
        self.has_values = "value" in names
        self.has_headers = "headers" in names
        self.has_offsets = "offset" in names
        self.has_times = "timestamp" in names
        self.has_time_types = "timestampType" in names
        self.nulls_times = nulls_times
        self.times_validity = _Validity(rows if self.has_times and nulls_times else 0)
        self.keys = _Binary(rows, size) if self.has_keys else _Binary(0, 0)
        self.values = _Binary(rows, size) if self.has_values else _Binary(0, 0)
        self.headers = _Headers(rows, size, headers) if self.has_headers else _Headers(0, 0, 0)
        self.offsets_buffer = pa.allocate_buffer(8 * rows if self.has_offsets else 0)
        self.times_buffer = pa.allocate_buffer(8 * rows if self.has_times else 0)
        self.time_types_buffer = pa.allocate_buffer(4 * rows if self.has_time_types else 0)
        if cython.compiled:
            self.offsets = cython.cast(cython.p_longlong, cython.cast(cython.size_t, self.offsets_buffer.address))
            self.times = cython.cast(cython.p_longlong, cython.cast(cython.size_t, self.times_buffer.address))
            self.time_types = cython.cast(cython.p_int, cython.cast(cython.size_t, self.time_types_buffer.address))
        else:
            self.offsets = memoryview(self.offsets_buffer).cast("B").cast("q")
            self.times = memoryview(self.times_buffer).cast("B").cast("q")
            self.time_types = memoryview(self.time_types_buffer).cast("B").cast("i")

    def append(
        self,
        source: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
        offset: cython.longlong,
        base_time: cython.longlong,
        time_delta: cython.longlong,
    ) -> cython.int:
        """Append the record of `length` bytes whose key length is at `at` and which ends at `end`.

        Nothing of it is kept unless all went well.
        """
        key_length: cython.longlong
        value_length: cython.longlong
        count: cython.longlong
        key_at: cython.Py_ssize_t
        value_at: cython.Py_ssize_t
        headers_at: cython.Py_ssize_t
        status: cython.int
        fits: cython.bint

        if self.rows == self.row_capacity or length > self.headroom:
            return _FULL
        key_length, key_at = _varint(source, at, end, 32)
        value_length, value_at = _varint(source, key_at + _size(key_length), end, 32)
        count, headers_at = _varint(source, value_at + _size(value_length), end, 32)
        if headers_at > end or key_length < -1 or value_length < -1:
            return _BAD_FIELD
        if count == 0 and headers_at != end:
            return _BAD_END
        if count < 0:
            return _BAD_HEADER
        fits = _is_time(base_time, time_delta)
        if self.has_times and not fits and not self.nulls_times:
            return _BAD_TIME
        if self.has_headers:
            status = _check_headers(source, headers_at, end, count)
            if status != _DONE:
                return status
            if count > self.headers.capacity - self.headers.keys.rows:
                return _FULL
            self.headers.append(self.rows, source, headers_at, end, count)
        if self.has_keys:
            self.keys.append(source, key_at, key_length)
        if self.has_values:
            self.values.append(source, value_at, value_length)
        if self.has_offsets:
            self.offsets[self.rows] = offset
        if self.has_times:
            if fits:
                self.times[self.rows] = (base_time + time_delta) * 1000
            else:
                self.times[self.rows] = 0
                self.times_validity.clear(self.rows)
        self.headroom -= length
        self.rows += 1
        return _DONE

    def fill_time_types(self, first: cython.Py_ssize_t, time_type: cython.int) -> cython.void:
        """Give the rows from `first` on their timestamp type: it is one for all records of a batch."""
        row: cython.Py_ssize_t
        if self.has_time_types:
            for row in range(first, self.rows):
                self.time_types[row] = time_type

    def array(self, name: str, topic: str, partition: int) -> pa.Array:
        if name == "key":
            return self.keys.finish(pa.binary())
        if name == "value":
            return self.values.finish(pa.binary())
        if name == "topic":
            return pa.repeat(pa.scalar(topic, pa.string()), self.rows)
        if name == "partition":
            return pa.repeat(pa.scalar(partition, pa.int32()), self.rows)
        if name == "headers":
            return self.headers.finish(self.rows)
        buffer = {"offset": self.offsets_buffer, "timestamp": self.times_buffer, "timestampType": self.time_types_buffer}
        if name == "timestamp":
            nulls = self.times_validity.nulls
            return pa.Array.from_buffers(_TYPES[name], self.rows, [self.times_validity.finish(), buffer[name]], nulls)
        return pa.Array.from_buffers(_TYPES[name], self.rows, [None, buffer[name]], 0)

    def finish(self, topic: str, partition: int, schema: pa.Schema) -> pa.RecordBatch:
        """The Arrow batch. Nothing may be appended afterwards."""
        return pa.RecordBatch.from_arrays([self.array(name, topic, partition) for name in schema.names], schema=schema)


# --- the plan ---------------------------------------------------------------------------------------------------------

_XERIAL = b"\x82SNAPPY\x00"  # how snappy-java, and so every Java client, starts its frames of snappy blocks


def _unpack_snappy(packed: memoryview, target: memoryview) -> int:
    """Snappy as Kafka has it: snappy-java's frames (a 16-byte header, then blocks behind their lengths), or one raw block."""
    if packed[: len(_XERIAL)] != _XERIAL:
        return int(cramjam.snappy.decompress_raw_into(packed, target))
    at = used = 0
    while at < len(packed):
        if packed[at : at + len(_XERIAL)] == _XERIAL:  # frames may be concatenated
            at += 16
            continue
        size = int.from_bytes(packed[at : at + 4], "big")
        if size > len(packed) - at - 4:
            raise cramjam.DecompressionError("snappy: block runs past the end")
        used += cramjam.snappy.decompress_raw_into(packed[at + 4 : at + 4 + size], target[used:])
        at += 4 + size
    return used


_LZ4_PLAIN = (b"\x04\x22\x4d\x18\x60", b"\x04\x22\x4d\x18\x40")  # no checksums, no sizes; blocks independent, linked


def _unpack_lz4(packed: memoryview, target: memoryview) -> int:
    """An LZ4 frame. The plain ones of the Java client and librdkafka are taken apart here: setting up a frame decoder costs
    three times the decompression of a 16 KiB batch. Linked blocks after the first and all that is unusual are left to it."""
    if packed[:5] not in _LZ4_PLAIN:
        return int(cramjam.lz4.decompress_into(packed, target))
    at = 7  # after the descriptor and its checksum, which the CRC of the batch makes superfluous
    used = 0
    while True:
        size = int.from_bytes(packed[at : at + 4], "little")
        block = packed[at + 4 : at + 4 + (size & 0x7FFFFFFF)]
        at += 4 + len(block)
        if size == 0 and at == len(packed):
            return used
        if size == 0 or size >> 31 or len(block) < size or (used and packed[4] == 0x40):
            return int(cramjam.lz4.decompress_into(packed, target))
        used += cramjam.lz4.decompress_block_into(block, target[used:], output_len=len(target) - used)


_CODECS: tuple[tuple[str, Callable[[memoryview, memoryview], int]], ...] = (
    ("gzip", cramjam.gzip.decompress_into),
    ("snappy", _unpack_snappy),
    ("lz4", _unpack_lz4),
    ("zstd", cramjam.zstd.decompress_into),
)


class _Plan:
    """Walks the batches of one response: `extend` plans some, `fill` takes their records, alternately until `finished`."""

    def __init__(
        self,
        data: bytes | bytearray | memoryview,
        place: str,
        start: int,
        stop: int,
        aborted: Sequence[tuple[int, int]] | None,
        max_bytes: int,
        max_rows: int,
        max_unpacked: int,
    ) -> None:
        self.place = place
        self.start = self.position = self.planned = start
        self.stop = stop
        self.finished = start >= stop
        self.max_bytes = max_bytes
        self.max_rows = max_rows
        self.max_unpacked = max_unpacked
        self.data = pa.py_buffer(data)
        self.view = memoryview(self.data).cast("B")
        self.size = self.data.size
        self.walked = 0
        self.aborted = None if aborted is None else sorted(aborted, key=itemgetter(1), reverse=True)
        self.aborting: set[int] = set()
        self.floor = self.arena_used = self.batches = self.current = self.needed = 0
        self.last_packed, self.last_unpacked = 1, 0
        self.failure: CorruptDataError | None = None
        self.table_capacity = min(self.size // _RECORDS + 1, _MOST_BATCHES)
        self.table_buffer = pa.allocate_buffer(8 * _WIDTH * self.table_capacity)
        if cython.compiled:
            self.raw = cython.cast(cython.p_const_uchar, cython.cast(cython.size_t, self.data.address))
            self.table = cython.cast(cython.p_longlong, cython.cast(cython.size_t, self.table_buffer.address))
        else:
            self.raw = self.view
            self.table = memoryview(self.table_buffer).cast("B").cast("q")
        self.set_arena(pa.allocate_buffer(0))

    def set_arena(self, buffer: pa.Buffer) -> cython.void:
        self.arena_buffer = buffer
        if cython.compiled:
            self.arena = cython.cast(cython.p_const_uchar, cython.cast(cython.size_t, buffer.address))
        else:
            self.arena = memoryview(buffer).cast("B")

    # Planning

    def extend(self) -> None:
        """Plan batches until the limits of one Arrow batch, the end of the data, `stop`, or a corrupt batch."""
        self.arena_used = self.batches = self.current = self.bytes_planned = self.rows_planned = 0
        try:
            while not self.finished and self.plan_next():
                pass
        except CorruptDataError as failure:  # of use only after what was planned before it
            self.failure = failure
            self.finished = True
        if self.batches == 0:
            self.position = self.planned

    def plan_next(self) -> cython.bint:
        """Plan or skip the next batch. False: it is not there, or has to wait until this plan has been filled."""
        at: cython.Py_ssize_t = self.walked
        end: cython.Py_ssize_t
        base: cython.longlong
        last: cython.longlong
        end = self.batch_end(at)
        if end > self.size:
            self.finished = True
            return False
        base = _signed(self.raw, at, 8)
        last = _signed(self.raw, at + _LAST_DELTA, 4)
        if base >= self.stop:
            self.planned = self.stop
            self.finished = True
            return False
        self.check(at, end, base, last)
        if self.is_wanted(at, end, base, last) and not self.add(at, end, base, last):
            return False
        self.walked = end
        self.floor = base + last + 1
        self.planned = min(max(self.planned, self.floor), self.stop)
        self.finished = self.planned == self.stop or end == self.size
        return True

    def batch_end(self, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Where the batch at `at` ends: beyond the data if it is truncated."""
        length: cython.longlong
        magic: cython.int
        if self.size - at < _ATTRIBUTES:
            return self.size + 1
        magic = self.raw[at + _MAGIC]
        if magic != 2:
            self.refuse(at, f"message format v{magic}: only v2 (Kafka 0.11 and later) can be decoded")
        length = _signed(self.raw, at + _LENGTH, 4)
        if length < _RECORDS - _LENGTH - 4:
            self.refuse(at, f"a batch length of {length} bytes")
        return at + _LENGTH + 4 + length

    def check(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t, base: cython.longlong, last: cython.longlong) -> cython.void:
        claimed: cython.longlong = _unsigned(self.raw, at + _CRC, 4)
        found: cython.longlong = crc32c(self.view[at + _ATTRIBUTES : end])
        if claimed != found:
            self.refuse(at, f"CRC32C is {found:#010x}, the batch says {claimed:#010x}")
        if base < 0 or last < 0 or base > _MOST_OFFSET - last:
            self.refuse(at, f"last offset delta {last} from base offset {base}")
        if base < self.floor:
            self.refuse(at, f"the batch before it ends at offset {self.floor - 1}")

    def is_wanted(
        self, at: cython.Py_ssize_t, end: cython.Py_ssize_t, base: cython.longlong, last: cython.longlong
    ) -> cython.bint:
        """Whether a reader may see records of this batch. Keeps the book on aborted transactions, as KIP-98 has it."""
        attributes: cython.longlong = _unsigned(self.raw, at + _ATTRIBUTES, 2)
        producer: cython.longlong = _signed(self.raw, at + _PRODUCER, 8)
        if self.aborted is not None and producer >= 0:
            while self.aborted and self.aborted[-1][1] <= base + last:
                self.aborting.add(self.aborted.pop()[0])
            if attributes & _CONTROL_BIT:
                if producer in self.aborting and self.is_abort_marker(at, end):
                    self.aborting.remove(producer)
            elif attributes & _TRANSACTIONAL_BIT and producer in self.aborting:
                return False
        return not attributes & _CONTROL_BIT and base + last >= self.start

    def is_abort_marker(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Whether the control batch holds an ABORT record: its key is two 16-bit integers, version and type."""
        length: cython.longlong
        pos: cython.Py_ssize_t
        if _signed(self.raw, at + _COUNT, 4) < 1:
            return False  # compaction has emptied it
        if _unsigned(self.raw, at + _ATTRIBUTES, 2) & _CODEC_BITS:
            self.refuse(at, "a compressed control batch")
        length, pos = _varint(self.raw, at + _RECORDS, end, 32)
        length, pos = _varint(self.raw, pos + 1, end, 64)  # after the attributes
        length, pos = _varint(self.raw, pos, end, 32)
        length, pos = _varint(self.raw, pos, end, 32)
        if pos > end or length < 4 or length > end - pos:
            self.refuse(at, "a control record without a key of version and type")
        return _unsigned(self.raw, pos + 2, 2) == _ABORT_MARKER

    def add(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t, base: cython.longlong, last: cython.longlong) -> cython.bint:
        """Plan the records of a batch, decompressed if need be. False: this plan has no space for it."""
        attributes: cython.longlong = _unsigned(self.raw, at + _ATTRIBUTES, 2)
        count: cython.longlong = _signed(self.raw, at + _COUNT, 4)
        append_time: cython.bint = attributes & _APPEND_TIME_BIT != 0
        codec: cython.int = attributes & _CODEC_BITS
        row: cython.Py_ssize_t = self.batches * _WIDTH
        at_records: cython.Py_ssize_t = at + _RECORDS
        size: cython.Py_ssize_t = end - at_records
        if self.batches == self.table_capacity:
            return False
        if self.batches > 0 and not self.has_headroom(count, self.expected(size) if codec else size):
            return False
        if codec and count > 0:
            size = self.unpack(at, end, codec)
            at_records = self.arena_used
            if size < 0 or (self.batches > 0 and not self.has_headroom(count, size)):
                return False
        if count < 0 or count * _SMALLEST_RECORD > size or (count == 0 and size > 0):
            self.refuse(at, f"a count of {count} records in {size} bytes")
        if count == 0:
            return True
        if codec:
            self.arena_used += size
        self.table[row + _UNPACKED] = codec != 0
        self.table[row + _AT] = at_records
        self.table[row + _END] = at_records + size
        self.table[row + _LEFT] = count
        self.table[row + _BASE] = base
        self.table[row + _FLOOR] = 0
        self.table[row + _LAST] = last
        self.table[row + _TIME] = _signed(self.raw, at + (_MAX_TIME if append_time else _BASE_TIME), 8)
        self.table[row + _TIME_TYPE] = append_time
        self.batches += 1
        self.rows_planned += count
        self.bytes_planned += size
        return True

    def has_headroom(self, count: cython.longlong, size: cython.Py_ssize_t) -> cython.bint:
        return self.rows_planned + count <= self.max_rows and self.bytes_planned + size <= self.max_bytes

    def expected(self, packed: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """What a batch of this size probably unpacks to: decompressing one that finds no space is work for nothing."""
        return packed * self.last_unpacked // self.last_packed

    def unpack(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t, codec: cython.int) -> cython.Py_ssize_t:
        """Decompress a batch behind what the arena holds and give the size. Negative: it has to wait for an empty arena.

        A codec does not say whether it ran out of space or out of sense, so the arena grows until the limit is reached.
        """
        if codec > 4:
            self.refuse(at, f"compression codec {codec} is not known")
        name, decompress_into = _CODECS[codec - 1]
        packed = self.view[at + _RECORDS : end]
        if self.arena_buffer.size == 0:
            self.grow_arena()
        while True:
            try:
                size: cython.Py_ssize_t = decompress_into(packed, memoryview(self.arena_buffer).cast("B")[self.arena_used :])
                self.last_packed, self.last_unpacked = max(len(packed), 1), size
                return size
            except cramjam.DecompressionError as error:
                if self.arena_used > 0:
                    return -1
                if self.arena_buffer.size >= self.max_unpacked:
                    limit = f"{self.max_unpacked} bytes (the limit is max_uncompressed_batch_bytes)"
                    self.refuse(at, f"{name} decompression into at most {limit} failed: {error}")
                self.grow_arena()

    def grow_arena(self) -> cython.void:
        size = max(8 * self.arena_buffer.size, 4 * self.size, min(16 * self.size, 2 * self.max_bytes), 1 << 16)
        self.set_arena(pa.allocate_buffer(min(size, self.max_unpacked)))

    # Filling

    def has_records(self) -> bool:
        """Whether planned records are still to be taken."""
        return self.current < self.batches

    def columns(self, names: list[str], nulls_times: bool) -> _Columns:  # noqa: FBT001 - of the kernel
        """Empty columns with space for what is planned, within the limits of one Arrow batch."""
        rows: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t = 0
        batch: cython.Py_ssize_t
        for batch in range(self.current, self.batches):
            rows += self.table[batch * _WIDTH + _LEFT]
            size += self.table[batch * _WIDTH + _END] - self.table[batch * _WIDTH + _AT]
        rows = min(rows, self.max_rows)
        size = max(min(size, self.max_bytes), self.needed)
        # More headers than this cut the batch short; one record may have as many as its bytes allow, two for each.
        return _Columns(names, rows, size, max(4 * rows, self.needed // 2), nulls_times)

    def fill(self, columns: _Columns) -> None:
        """Append planned records until `columns` are full or none are left, and move `position` after the last."""
        status: cython.int
        self.needed = 0
        with cython.nogil:
            status = _fill(self, columns)
        if status == _FULL:
            return
        if status == _STOPPED:
            self.finished = True
            self.position = self.stop
        elif status == _DONE:
            self.position = self.planned
        else:
            self.finished = True
            base, what = self.table[self.current * _WIDTH + _BASE], _WHAT[status]
            if status == _BAD_TIME:  # the batch is sound, and what becomes of such records is said elsewhere
                self.failure = BadRecordError(f"{self.place}, record batch at offset {base}: {what} ({_NULL_TIMES})")
            else:
                self.failure = BadBatchError(self.place, base, what)
        self.current = self.batches

    # Refusing

    def refuse(self, at: cython.Py_ssize_t, what: str) -> cython.void:
        raise BadBatchError(self.place, _signed(self.raw, at, 8), what)

    def raise_failure(self) -> None:
        """Raise what stopped the planning or the filling, if anything did."""
        if self.failure is not None:
            raise self.failure

    def refuse_standstill(self) -> None:
        """Raise CorruptDataError if there was something to read and none of it moves the position."""
        if self.size == 0 or self.start >= self.stop:
            return
        if self.walked > 0:
            what = f"{self.size} bytes of record batches, all of them below that offset"
        else:
            what = f"{self.size} bytes, which is only a part of the first record batch"
        raise CorruptDataError(f"{self.place}: a read from offset {self.start} was answered with {what}")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill(plan: _Plan, out: _Columns) -> cython.int:
    """Append planned records to `out` for as long as all goes well."""
    status: cython.int = _DONE
    first: cython.Py_ssize_t
    while plan.current < plan.batches and status == _DONE:
        first = out.rows
        status = _fill_batch(plan, out)
        out.fill_time_types(first, cython.cast(cython.int, plan.table[plan.current * _WIDTH + _TIME_TYPE]))
        if status == _DONE:
            plan.current += 1
    return status


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill_batch(plan: _Plan, out: _Columns) -> cython.int:
    """Append the records of the plan's current batch to `out`, and note in the plan how far that came."""
    table: cython.p_longlong = plan.table
    row: cython.Py_ssize_t = plan.current * _WIDTH
    source: cython.p_const_uchar = plan.arena if table[row + _UNPACKED] else plan.raw
    at: cython.Py_ssize_t = table[row + _AT]
    end: cython.Py_ssize_t = table[row + _END]
    left: cython.longlong = table[row + _LEFT]
    base: cython.longlong = table[row + _BASE]
    lowest: cython.longlong = table[row + _FLOOR]
    last: cython.longlong = table[row + _LAST]
    base_time: cython.longlong = table[row + _TIME]
    append_time: cython.bint = table[row + _TIME_TYPE] == 1
    status: cython.int = _DONE
    pos: cython.Py_ssize_t
    record_end: cython.Py_ssize_t
    length: cython.longlong
    time: cython.longlong
    delta: cython.longlong

    while left > 0:
        length, pos = _varint(source, at, end, 32)
        if pos > end or length < 0 or length > end - pos:
            status = _BAD_LENGTH
            break
        record_end = pos + length
        time, pos = _varint(source, pos + 1, record_end, 64)  # after the attributes, which are unused
        delta, pos = _varint(source, pos, record_end, 32)
        if pos > record_end:
            status = _BAD_FIELD
        elif delta < lowest or delta > last:
            status = _BAD_OFFSET
        elif base + delta >= plan.stop:
            status = _STOPPED
        elif base + delta >= plan.start:
            status = out.append(source, pos, record_end, length, base + delta, base_time, 0 if append_time else time)
        if status != _DONE:
            break
        at = record_end
        lowest = delta + 1
        left -= 1

    table[row + _AT] = at
    table[row + _LEFT] = left
    table[row + _FLOOR] = lowest
    if status == _DONE:
        lowest = last + 1
    plan.position = max(plan.position, base + lowest)
    if status == _FULL and out.rows == 0:
        plan.needed = length
    if status == _DONE and at != end:
        status = _TRAILING
    return status


# --- the interface ----------------------------------------------------------------------------------------------------


def decode(
    data: bytes | bytearray | memoryview,
    *,
    topic: str,
    partition: int,
    start: int,
    stop: int | None = None,
    columns: Collection[str] = ALL_COLUMNS,
    aborted: Sequence[tuple[int, int]] | None = None,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    max_batch_rows: int | None = None,
    max_uncompressed_bytes: int = MAX_UNCOMPRESSED_BYTES,
    bad_timestamps: BadTimestamps = "error",
) -> Iterator[DecodedBatch]:
    """Decode the `records` of one partition in a Fetch response.

    `data` is a run of record batches: the first may start before `start`, the last may be truncated. Records below `start`
    and from `stop` on (exclusive; default: none) are left out. `columns` are built, no others; the rest of each record
    is skipped, not parsed. `aborted` is the response's list of (producer id, first offset) of aborted transactions, and
    None means read_uncommitted: every record is kept. Nothing yielded refers to `data`, but it must not change until the
    iterator is exhausted.

    An Arrow batch holds at most `max_batch_bytes` bytes of records (default 1.5 MiB; a single larger record is given
    whole, alone) and `max_batch_rows` rows (default: no bound). One Kafka batch may unpack to at most
    `max_uncompressed_bytes` (default 256 MiB). `bad_timestamps`: what becomes of a timestamp that does not fit 64-bit
    microseconds, where the column is built: "error" (default), or "null", which keeps the record.

    Whenever `data` is not empty and `start` < `stop`, the last `next_offset` is greater than `start`; a batch without rows
    is yielded if need be. Data that cannot move the position (only a part of the first batch, or only batches below
    `start`) is refused, as asking again would loop for ever.

    Raises UsageError for bad arguments, at once, and while iterating CorruptDataError, naming topic, partition and the
    batch's base offset: CRC mismatch, anything unparsable, a failed or oversized decompression, a message format before
    v2. The good records before the bad one are yielded first.
    """
    schema = arrow_schema(columns)
    for name, limit in (("max_batch_bytes", max_batch_bytes), ("max_uncompressed_bytes", max_uncompressed_bytes)):
        if not 0 < limit <= _INT32_MAX:
            raise UsageError(f"{name} must be between 1 and {_INT32_MAX}, got {limit}")
    if max_batch_rows is not None and max_batch_rows < 1:
        raise UsageError(f"max_batch_rows must be at least 1, got {max_batch_rows}")
    if start < 0:
        raise UsageError(f"start must be an offset, 0 or greater, got {start}")
    plan = _Plan(
        data,
        f"topic {topic!r}, partition {partition}",
        start,
        _INT64_MAX if stop is None else stop,
        aborted,
        max_batch_bytes,
        _INT32_MAX if max_batch_rows is None else min(max_batch_rows, _INT32_MAX),
        max_uncompressed_bytes,
    )
    return _batches(plan, topic, partition, schema, nulls_times=bad_timestamps == "null")


def _batches(plan: _Plan, topic: str, partition: int, schema: pa.Schema, *, nulls_times: bool) -> Iterator[DecodedBatch]:
    """Plan and fill alternately until the data is used up; what is yielded last moves the position, rows or not."""
    position = plan.start
    while not plan.finished:
        plan.extend()
        while plan.has_records():
            columns: _Columns = plan.columns(schema.names, nulls_times)
            plan.fill(columns)
            if columns.rows:
                position = plan.position
                yield DecodedBatch(columns.finish(topic, partition, schema), position)
        plan.raise_failure()
    if plan.position > position:
        yield DecodedBatch(pa.RecordBatch.from_pylist([], schema=schema), plan.position)
    elif position == plan.start:
        plan.refuse_standstill()
