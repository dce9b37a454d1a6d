"""Messages of pgoutput, PostgreSQL's plugin for logical replication, to Arrow, without a Python object per value.

Cython in pure-Python mode: `setup.py` compiles this file, with the C types in `pgoutput.pxd`. Uncompiled, the same file is the
reference of the tests for the compiled one. Every read is checked against the end of its message: what is damaged is refused
with its place. Versions 1 and 2 of the protocol are read, and values as text.

The format: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

# Cython's decorators and types carry no annotations, so mypy sees Any where they are used.
# mypy: disable-error-code="untyped-decorator, no-any-return"

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Literal, NamedTuple

import pyarrow as pa

from headrace.connectors.postgresql import NOT_COMPILED
from headrace.enumerator.errors import CorruptDataError

try:
    import cython  # type: ignore[import-untyped]
except ImportError as error:  # compiled, it is not imported
    raise ImportError(NOT_COMPILED) from error
if cython.compiled:
    from cython.cimports.libc.string import memcpy, memset  # type: ignore[import-untyped]

BATCH_BYTES = 8 << 20
"""Default, in bytes of messages: a batch that is larger ends with its transaction."""

TRANSACTION_BYTES = 64 << 20
"""Default, in bytes of messages: a transaction that is larger is given in parts."""

Identity = Literal["default", "full", "index", "nothing"]
_IDENTITIES: dict[int, Identity] = {ord("d"): "default", ord("f"): "full", ord("i"): "index", ord("n"): "nothing"}

INSERT, UPDATE, DELETE, TRUNCATE = b"IUDT"
"""The operations of `LoggedChanges`."""


class RelationColumn(NamedTuple):
    """A column as the log describes it."""

    name: str
    type_oid: int
    modifier: int
    in_key: bool  # of the replica identity; with the full row as identity every column is


class LoggedRelation(NamedTuple):
    """A table as the log describes it ahead of its first change, and again where that has changed.

    `partitions`: those that have had changes so far, and whose replica identity has other columns than this one's. Changes of
    them are of this relation, and do not name the partition.
    """

    oid: int
    schema: str
    name: str
    identity: Identity
    columns: tuple[RelationColumn, ...]
    partitions: tuple[LoggedRelation, ...] = ()

    @property
    def key(self) -> frozenset[str]:
        """The columns that the log has of an old row."""
        return frozenset(column.name for column in self.columns if column.in_key)


class Tuples(NamedTuple):
    """The old or the new rows of changes. `changes` has the number of the change that each of them is of, ascending.

    `columns` are the texts of the relation's columns. `unchanged` has for each column the numbers of the rows in it whose value
    the log leaves out, because it is stored out of line and did not change; such a value is null in `columns`.
    """

    changes: pa.Int64Array
    columns: tuple[pa.LargeStringArray, ...]
    unchanged: tuple[pa.Int64Array, ...]


class LoggedChanges(NamedTuple):
    """Changes of one relation, in the log's order. `places` orders them among those of other relations of the same batch.

    An insert has a new row; an update has a new row, and an old one if the replica identity is the full row or its key has
    changed; a delete has an old row; a truncation has none. Of an old row there is only the key unless the identity is the
    full row. `xids` are those of top-level transactions, in 32 bits. `lsns` are not below the end of the previous transaction.
    """

    relation: LoggedRelation
    operations: pa.UInt8Array
    lsns: pa.Int64Array
    xids: pa.Int64Array
    committed_at: pa.TimestampArray
    places: pa.Int64Array
    new: Tuples
    old: Tuples


class Message(NamedTuple):
    """What pg_logical_emit_message has written."""

    lsn: int
    xid: int | None  # None outside of a transaction
    prefix: str
    content: bytes


class Decoded(NamedTuple):
    """What a part of the log holds. `position`: the end of the last transaction that is whole, or where the decoder started.

    `is_whole`: it ends with a transaction; otherwise the rest of the transaction `xid` follows, of which it may have no change.
    """

    changes: tuple[LoggedChanges, ...]
    messages: tuple[Message, ...]
    position: int
    is_whole: bool
    xid: int = 0


# --- layout --------------------------------------------------------------------------------------------------------------

_UNIX_2000 = cython.declare(cython.longlong, 946_684_800_000_000)  # PostgreSQL counts microseconds from the year 2000
_MOST_TIME = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF - 946_684_800_000_000)
_HEADER = cython.declare(cython.int, 25)  # of XLogData: 'w', two positions, a time

_XLOG_DATA = cython.declare(cython.int, 119)  # w
_BEGIN = cython.declare(cython.int, 66)
_COMMIT = cython.declare(cython.int, 67)
_ORIGIN = cython.declare(cython.int, 79)
_RELATION = cython.declare(cython.int, 82)
_TYPE = cython.declare(cython.int, 89)
_INSERT = cython.declare(cython.int, 73)
_UPDATE = cython.declare(cython.int, 85)
_DELETE = cython.declare(cython.int, 68)
_TRUNCATE = cython.declare(cython.int, 84)
_MESSAGE = cython.declare(cython.int, 77)
_STREAM_START = cython.declare(cython.int, 83)
_STREAM_STOP = cython.declare(cython.int, 69)
_STREAM_COMMIT = cython.declare(cython.int, 99)
_STREAM_ABORT = cython.declare(cython.int, 65)

_NEW_ROW = cython.declare(cython.int, 78)
_OLD_KEY = cython.declare(cython.int, 75)
_OLD_ROW = cython.declare(cython.int, 79)
_IS_TEXT = cython.declare(cython.int, 116)
_IS_NULL = cython.declare(cython.int, 110)
_IS_UNCHANGED = cython.declare(cython.int, 117)


# --- columns under construction ------------------------------------------------------------------------------------------


class _Space:
    """A buffer that grows. New bytes are 0xFF, which a validity bitmap takes for valid."""

    def __init__(self) -> None:
        self.buffer: pa.Buffer | None = None
        self.capacity = 0
        if cython.compiled:
            self.bytes = self.longs = cython.NULL
        else:
            self.bytes = self.longs = memoryview(bytearray())

    def grow(self, size: cython.Py_ssize_t) -> cython.int:
        """To `size` bytes, or more."""
        old: cython.Py_ssize_t = self.capacity
        address: cython.size_t
        kept = self.buffer
        before: cython.p_uchar = self.bytes
        capacity: cython.Py_ssize_t = (max(2 * old, size) + 63) // 64 * 64
        buffer = pa.allocate_buffer(capacity)
        self.buffer = buffer
        self.capacity = capacity
        if cython.compiled:
            address = buffer.address
            self.bytes = cython.cast(cython.p_uchar, address)
            self.longs = cython.cast(cython.p_longlong, address)
            if old:
                memcpy(self.bytes, before, old)
            memset(self.bytes + old, 0xFF, capacity - old)
        else:
            self.bytes = memoryview(buffer).cast("B")
            self.longs = self.bytes.cast("q")
            self.bytes[:] = (bytes(before) if old else b"") + b"\xff" * (capacity - old)
        del kept
        return 0

    def finish(self, size: cython.Py_ssize_t) -> pa.Buffer:
        """The first `size` bytes."""
        return pa.py_buffer(b"") if self.buffer is None else self.buffer.slice(0, size)


class _Longs:
    """64-bit integers under construction."""

    def __init__(self) -> None:
        self.space = _Space()
        self.rows = 0

    def append(self, value: cython.longlong) -> cython.int:
        if (self.rows + 1) * 8 > self.space.capacity:
            self.space.grow((self.rows + 1) * 8)
        self.space.longs[self.rows] = value
        self.rows += 1
        return 0

    def finish(self, kind: pa.DataType) -> pa.Array:
        return pa.Array.from_buffers(kind, self.rows, [None, self.space.finish(8 * self.rows)])


class _Texts:
    """A column of texts under construction."""

    def __init__(self) -> None:
        self.validity, self.data = _Space(), _Space()
        self.ends, self.unchanged = _Longs(), _Longs()
        self.ends.append(0)
        self.rows = self.nulls = self.used = 0

    def append(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.int:
        if self.used + length > self.data.capacity:
            self.data.grow(self.used + length)
        if cython.compiled:
            if length > 0:
                memcpy(self.data.bytes + self.used, source + at, length)
        else:
            self.data.bytes[self.used : self.used + length] = source[at : at + length]
        self.used += length
        self.ends.append(self.used)
        self.rows += 1
        return 0

    def append_null(self) -> cython.int:
        place: cython.Py_ssize_t = self.rows >> 3
        if place >= self.validity.capacity:
            self.validity.grow(place + 1)
        self.validity.bytes[place] = self.validity.bytes[place] & (0xFF ^ (1 << (self.rows & 7)))
        self.nulls += 1
        self.ends.append(self.used)
        self.rows += 1
        return 0

    def finish(self) -> pa.Array:
        """Raises ArrowInvalid for what is not UTF-8."""
        size: cython.Py_ssize_t = (self.rows + 7) // 8
        validity = None
        if self.nulls:
            if size > self.validity.capacity:
                self.validity.grow(size)
            validity = self.validity.finish(size)
        ends = self.ends.space.finish(8 * (self.rows + 1))
        texts = pa.LargeStringArray.from_buffers(self.rows, ends, self.data.finish(self.used), validity, self.nulls)
        texts.validate(full=True)
        return texts


class _Tuples:
    """Rows under construction."""

    def __init__(self, width: cython.int) -> None:
        self.changes = _Longs()
        self.columns = [_Texts() for _ in range(width)]

    def finish(self) -> Tuples:
        """Raises ArrowInvalid for what is not UTF-8."""
        columns, unchanged = [], []
        column: _Texts
        for column in self.columns:
            columns.append(column.finish())
            unchanged.append(column.unchanged.finish(pa.int64()))
        return Tuples(self.changes.finish(pa.int64()), tuple(columns), tuple(unchanged))


class _Changes:
    """Changes of one relation under construction."""

    def __init__(self, relation: LoggedRelation) -> None:
        self.relation = relation
        self.width = len(relation.columns)
        self.start()

    def start(self) -> None:
        """Start a batch."""
        self.operations, self.lsns, self.xids, self.times, self.places = _Longs(), _Longs(), _Longs(), _Longs(), _Longs()
        self.new, self.old = _Tuples(self.width), _Tuples(self.width)

    def finish(self) -> LoggedChanges:
        """What was gathered since the start. Raises CorruptDataError for what is not UTF-8."""
        try:
            new, old = self.new.finish(), self.old.finish()
        except pa.ArrowInvalid as error:
            table = f"{self.relation.schema}.{self.relation.name}"
            raise CorruptDataError(f"changes of the table {table} in the log are not UTF-8: {error}") from error
        operations = self.operations.finish(pa.int64()).cast(pa.uint8())
        times = self.times.finish(pa.timestamp("us", "UTC"))
        lsns, xids, places = self.lsns.finish(pa.int64()), self.xids.finish(pa.int64()), self.places.finish(pa.int64())
        return LoggedChanges(self.relation, operations, lsns, xids, times, places, new, old)


class _Stream:
    """A transaction that is sent while it is running: its messages, kept until it ends."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.starts: dict[int, int] = {}  # where the first message of each subtransaction is

    def add(self, xid: int, message: bytes) -> None:
        """Keep a message of the transaction, or of one of its subtransactions."""
        self.starts.setdefault(xid, self.file.tell())
        self.file.write(len(message).to_bytes(8, "big"))
        self.file.write(message)

    def abort(self, xid: int) -> None:
        """Drop a subtransaction. What follows its first message is its own, or that of its subtransactions."""
        start = self.starts.get(xid)
        if start is not None:
            self.file.seek(start)
            self.file.truncate()
            self.starts = {other: at for other, at in self.starts.items() if at < start}

    def messages(self) -> Iterator[bytes]:
        """What is left, in order."""
        self.file.seek(0)
        while size := self.file.read(8):
            yield self.file.read(int.from_bytes(size, "big"))


# --- messages ------------------------------------------------------------------------------------------------------------


class Decoder:
    """Decodes the log of one connection, from where it starts. Not thread-safe.

    `spool` makes a file for each transaction that is streamed while it runs (version 2 of the protocol). A batch
    of more than `batch_bytes` of messages ends with its transaction.
    """

    def __init__(
        self,
        batch_bytes: int = BATCH_BYTES,
        transaction_bytes: int = TRANSACTION_BYTES,
        spool: Callable[[], BinaryIO] = io.BytesIO,
        position: int = 0,
    ) -> None:
        self.types: dict[int, tuple[str, str]] = {}
        """Schema and name of the types that are not built in, by oid, as far as the log has named them."""
        self.batch_bytes, self.transaction_bytes, self.spool = batch_bytes, transaction_bytes, spool
        self.pending: list[bytes] = []
        self.pending_bytes = 0
        self.is_pending_open = False
        self.relations: dict[int, _Changes] = {}
        self.retired: list[_Changes] = []
        self.messages: list[Message] = []
        self.streams: dict[int, _Stream] = {}
        self.stream: _Stream | None = None
        self.ended: tuple[int, int] | None = None
        self.last_oid = -1
        self.last: _Changes | None = None
        self.described = -1
        self.partition: tuple[int, LoggedRelation] | None = None
        self.message = b""
        self.at = self.end = 0
        self.place = self.taken_bytes = self.lsn = self.xid = self.time = 0
        self.position = self.given = position
        self.is_open = self.is_replay = False

    def decode(self, messages: Sequence[bytes]) -> Iterator[Decoded]:
        """What these messages hold, each a whole XLogData with its header: nothing, or one or more batches.

        What follows the last transaction that is whole is kept for the next call, unless it is larger than the bound on a
        transaction. Raises CorruptDataError for a message that is not of the protocol; the decoder cannot be used after that.
        """
        for message in self._ready(messages):
            self.read(message)
            if self.ended is not None:
                yield from self._replayed()
            if self._is_full():
                yield self._take()
        if self.place or self.messages or self.position > self.given:
            yield self._take()

    @property
    def is_between_transactions(self) -> bool:
        """Whether the messages so far, but for transactions that are streamed, end with a whole transaction."""
        return not (self.is_pending_open or self.is_open)

    def close(self) -> None:
        """Close the files of transactions that have not ended."""
        for stream in self.streams.values():
            stream.file.close()
        self.streams.clear()

    def _ready(self, messages: Sequence[bytes]) -> list[bytes]:
        """What can be decoded now: up to the last transaction that is not whole, or all where that one is too large."""
        start = 0 if self.is_pending_open else -1
        at = len(self.pending)
        self.pending.extend(messages)
        for message in messages:
            self.pending_bytes += len(message)
            kind = message[_HEADER] if len(message) > _HEADER else 0
            if kind == _BEGIN:
                start = at
            elif kind == _COMMIT:
                start = -1
            at += 1
        self.is_pending_open = start >= 0
        if start < 0 or self.pending_bytes > self.transaction_bytes:
            start = len(self.pending)
        ready = self.pending[:start]
        if ready:
            del self.pending[:start]
            self.pending_bytes = sum(map(len, self.pending))
        return ready

    def _is_full(self) -> bool:
        return bool(self.taken_bytes > (self.transaction_bytes if self.is_open else self.batch_bytes))

    def _take(self) -> Decoded:
        """What was decoded since the last call."""
        finished = []
        changes: _Changes
        for changes in (*self.retired, *self.relations.values()):
            if changes.lsns.rows:
                finished.append(changes.finish())
                changes.start()
        messages = tuple(self.messages)
        self.retired, self.messages = [], []
        self.place = self.taken_bytes = 0
        self.given = self.position
        return Decoded(tuple(finished), messages, self.position, not self.is_open, self.xid)

    def _replayed(self) -> Iterator[Decoded]:
        """Decode the transaction that was streamed and has been committed."""
        assert self.ended is not None
        xid, end = self.ended
        stream = self.streams.pop(xid)
        self.ended = None
        self.is_open = self.is_replay = True
        for message in stream.messages():
            self.read(message)
            if self._is_full():
                yield self._take()
        stream.file.close()
        self.is_open = self.is_replay = False
        self.position = end

    def refused(self, what: str) -> CorruptDataError:
        return CorruptDataError(
            f"the log at {self.lsn >> 32:X}/{self.lsn & 0xFFFFFFFF:X}, byte {self.at} of a message of {self.end}: {what}"
        )

    def integer(self, size: cython.int) -> cython.Py_ssize_t:
        """Big-endian, two's complement, of up to 8 bytes."""
        value: cython.longlong
        i: cython.int
        if self.end - self.at < size:
            raise self.refused("it ends within a number")
        value = self.raw[self.at]
        if value >= 0x80:
            value -= 0x100
        for i in range(1, size):
            value = value * 0x100 + self.raw[self.at + i]
        self.at += size
        return value

    def natural(self) -> cython.Py_ssize_t:
        """Of 4 bytes."""
        return self.integer(4) & 0xFFFFFFFF

    def log_position(self) -> cython.Py_ssize_t:
        value: cython.longlong = self.integer(8)
        if value < 0:
            raise self.refused("a position of the log is negative")
        return value

    def timestamp(self) -> cython.Py_ssize_t:
        """In microseconds since 1970."""
        value: cython.longlong = self.integer(8)
        if value > _MOST_TIME:
            raise self.refused("a time does not fit 64-bit microseconds")
        return value + _UNIX_2000

    def byte(self) -> cython.int:
        if self.at >= self.end:
            raise self.refused("it ends too early")
        self.at += 1
        return self.raw[self.at - 1]

    def string(self) -> str:
        """Up to a byte that is zero."""
        stop = self.message.find(b"\0", self.at)
        if stop < 0:
            raise self.refused("a name has no end")
        try:
            found = self.message[self.at : stop].decode()
        except UnicodeDecodeError as error:
            raise self.refused("a name is not UTF-8") from error
        self.at = stop + 1
        return found

    def read(self, message: bytes) -> cython.int:
        """Read one message into the columns."""
        kind: cython.int
        self.message = message
        self.raw = message
        self.at, self.end = 0, len(message)
        if self.byte() != _XLOG_DATA:
            raise self.refused("it is not XLogData")
        self.lsn = self.log_position()
        self.at = _HEADER
        kind = self.byte()
        if self.stream is not None and kind != _STREAM_STOP:
            self.keep(kind, self.stream)
            return 0
        if kind in (_INSERT, _UPDATE, _DELETE, _TRUNCATE):
            self.change(kind)
        elif kind == _BEGIN:
            self.begin()
        elif kind == _COMMIT:
            self.commit()
        else:
            self.rare(kind)
        if self.at != self.end:
            raise self.refused("bytes follow its last field")
        return 0

    def begin(self) -> cython.int:
        if self.is_open:
            raise self.refused("a transaction starts within another one")
        self.log_position()
        self.time = self.timestamp()
        self.xid = self.natural()
        self.is_open = True
        return 0

    def commit(self) -> cython.int:
        if not self.is_open or self.is_replay:
            raise self.refused("a transaction ends that has not started")
        self.byte()
        self.log_position()
        self.position = self.log_position()
        self.timestamp()
        self.is_open = False
        return 0

    def change(self, kind: cython.int) -> cython.int:
        """An insert, update, delete or truncation."""
        count: cython.longlong
        if not self.is_open:
            raise self.refused("a change is not in a transaction")
        if self.is_replay:
            self.natural()  # the transaction's number, or that of a subtransaction
        if kind != _TRUNCATE:
            self.row(kind)
            return 0
        count = self.natural()
        self.byte()
        self.partition = None
        while count > 0:
            self.add(self.changes(), _TRUNCATE)
            count -= 1
        return 0

    def row(self, kind: cython.int) -> cython.int:
        part: cython.int
        changes: _Changes = self.changes()
        number: cython.longlong = self.add(changes, kind)
        part = self.byte()
        if kind != _INSERT and part in (_OLD_KEY, _OLD_ROW):
            self.values(changes.old, number, changes.width)
            if kind == _DELETE:
                return 0
            part = self.byte()
        if part != _NEW_ROW or kind == _DELETE:
            raise self.refused("a change has no such row")
        self.values(changes.new, number, changes.width)
        return 0

    def changes(self) -> _Changes:
        """Those of the relation whose oid is next."""
        oid: cython.longlong = self.natural()
        if oid != self.last_oid:
            if self.partition is not None:
                self.note_partition(oid)
            self.described = -1
            self.last = self.relations.get(oid)
            self.last_oid = oid
        if self.last is None:
            raise self.refused(f"the relation {oid} has not been described")
        return self.last

    def add(self, changes: _Changes, kind: cython.int) -> cython.Py_ssize_t:
        """A change without its rows; its number."""
        number: cython.longlong = changes.lsns.rows
        changes.operations.append(kind)
        # A transaction writes a row, then may wait for another one that deletes the row of this key later, but commits first.
        changes.lsns.append(self.lsn if self.lsn > self.position else self.position)
        changes.xids.append(self.xid)
        changes.times.append(self.time)
        changes.places.append(self.place)
        self.place += 1
        self.taken_bytes += self.end - _HEADER
        return number

    def values(self, rows: _Tuples, number: cython.longlong, width: cython.int) -> cython.int:
        """A row's values."""
        kind: cython.int
        size: cython.longlong
        i: cython.int
        column: _Texts
        if self.integer(2) != width:
            raise self.refused(f"a row has not the {width} columns of its relation")
        rows.changes.append(number)
        for i in range(width):
            column = cython.cast(_Texts, rows.columns[i])
            kind = self.byte()
            if kind == _IS_TEXT:
                size = self.integer(4)
                if size < 0 or size > self.end - self.at:
                    raise self.refused("a value is longer than the message")
                column.append(self.raw, self.at, size)
                self.at += size
            elif kind == _IS_NULL:
                column.append_null()
            elif kind == _IS_UNCHANGED:
                column.unchanged.append(column.rows)
                column.append_null()
            else:
                raise self.refused("a value is neither text, nor null, nor unchanged")
        return 0

    def rare(self, kind: cython.int) -> cython.int:
        """Messages that are not of every transaction, or of every row."""
        if kind == _RELATION:
            self.relation()
        elif kind == _TYPE:
            if self.is_replay:
                self.natural()
            oid = self.natural()
            schema, name = self.string(), self.string()
            self.types[oid] = (schema or "pg_catalog", name)
        elif kind == _ORIGIN:
            self.log_position()
            self.string()
        elif kind == _MESSAGE:
            self.logical_message()
        elif kind == _STREAM_START:
            self.start_stream()
        elif kind == _STREAM_STOP:
            if self.stream is None:
                raise self.refused("a stream ends that has not started")
            self.stream = None
        elif kind == _STREAM_COMMIT:
            self.commit_stream()
        elif kind == _STREAM_ABORT:
            self.abort_stream()
        else:
            raise self.refused(f"there is no message of the kind {kind}")
        return 0

    def relation(self) -> cython.int:
        if self.is_replay:
            self.natural()
        oid = self.natural()
        schema, name = self.string(), self.string()
        identity = _IDENTITIES.get(self.byte())
        if identity is None:
            raise self.refused("there is no such replica identity")
        columns = []
        for _ in range(self.integer(2)):
            flags = self.byte()
            column = self.string()
            type_oid = self.natural()
            columns.append(RelationColumn(column, type_oid, self.integer(4), bool(flags & 1)))
        known: _Changes | None = self.relations.get(oid)
        partitions = () if known is None else known.relation.partitions
        relation = LoggedRelation(oid, schema or "pg_catalog", name, identity, tuple(columns), partitions)
        self.describe(relation)
        # A root is described ahead of the partition that has the next change, which comes under the root's name.
        self.partition = None if self.described < 0 else (self.described, relation)
        self.described = oid
        self.last_oid = -1
        return 0

    def describe(self, relation: LoggedRelation) -> cython.int:
        known: _Changes | None = self.relations.get(relation.oid)
        if known is None or known.relation != relation:
            if known is not None:
                self.retired.append(known)
            self.relations[relation.oid] = _Changes(relation)
        return 0

    def note_partition(self, oid: cython.longlong) -> cython.int:
        """The change that follows the last two relations is of the one with this oid."""
        assert self.partition is not None
        root_oid, partition = self.partition
        self.partition = None
        if root_oid == oid:
            known: _Changes = self.relations[oid]
            root = known.relation
            others = tuple(each for each in root.partitions if each.oid != partition.oid)
            is_other = partition.key != root.key
            self.describe(root._replace(partitions=(*others, partition) if is_other else others))
        return 0

    def logical_message(self) -> cython.int:
        if self.is_replay:
            self.natural()
        is_transactional = self.byte() & 1
        lsn, prefix, size = self.log_position(), self.string(), self.natural()
        if size > self.end - self.at:
            raise self.refused("its content is longer than the message")
        content = self.message[self.at : self.at + size]
        self.at += size
        self.messages.append(Message(lsn, self.xid if is_transactional else None, prefix, content))
        self.taken_bytes += size
        return 0

    def keep(self, kind: cython.int, stream: _Stream) -> cython.int:
        """Keep a message within a stream until the transaction ends."""
        if kind == _ORIGIN:
            return 0
        if kind in (_BEGIN, _COMMIT, _STREAM_START, _STREAM_COMMIT, _STREAM_ABORT):
            raise self.refused("a stream has not ended")
        xid = self.natural()
        stream.add(xid, self.message)
        return 0

    def start_stream(self) -> cython.int:
        if self.is_open:
            raise self.refused("a stream starts within a transaction")
        xid = self.natural()
        is_first = self.byte() == 1
        if is_first == (xid in self.streams):
            raise self.refused(f"it is not the next part of the transaction {xid}")
        if is_first:
            self.streams[xid] = _Stream(self.spool())
        self.stream = self.streams[xid]
        return 0

    def commit_stream(self) -> cython.int:
        xid = self.natural()
        if xid not in self.streams or self.is_open:
            raise self.refused(f"the transaction {xid} is not streamed, or ends within another one")
        self.byte()
        self.log_position()
        self.ended = (xid, self.log_position())
        self.xid, self.time = xid, self.timestamp()
        return 0

    def abort_stream(self) -> cython.int:
        xid, subtransaction = self.natural(), self.natural()
        stream = self.streams.get(xid)
        if stream is None:
            raise self.refused(f"the transaction {xid} is not streamed")
        if xid == subtransaction:
            stream.file.close()
            del self.streams[xid]
        else:
            stream.abort(subtransaction)
        return 0
