"""Avro's binary encoding to Arrow, without a Python object per record.

Cython in pure-Python mode: `setup.py` compiles this file, with the C types in `decode.pxd`, and the kernel then runs without
the GIL. Uncompiled, the same file is slow, and right. `program.py` turns a writer's and a reader's schema into a tree of
*steps*, each of which reads one value of the writer's schema into a *column* of the reader's, or skips it. `run` executes the
tree for each value of a binary column.

Nothing that the bytes claim is believed: every read is checked against the end of the value, counts of items against the
bytes that are left, and space grows with what was really read. A value that cannot be read becomes a null, what it had
already appended is rolled back, and its neighbours are not concerned.

The format: https://avro.apache.org/docs/1.12.0/specification/#binary-encoding
"""

# Cython's decorators and types carry no annotations, so mypy sees Any where they are used.
# mypy: disable-error-code="untyped-decorator, no-any-return"

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.avro import NOT_COMPILED

try:
    import cython  # type: ignore[import-untyped]
except ImportError as error:  # compiled, it is not imported
    raise ImportError(NOT_COMPILED) from error
if cython.compiled:
    from cython.cimports.libc.string import memcpy, memset  # type: ignore[import-untyped]

_BEYOND = cython.declare(cython.Py_ssize_t, 0x3FFFFFFFFFFFFFFF)  # a position past any end
_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
_INT32_MIN = cython.declare(cython.longlong, -0x80000000)
_MOST_EMPTY_ITEMS = cython.declare(cython.longlong, 4096)  # of one value, in all its arrays together
_DEEPEST = cython.declare(cython.int, 100)  # levels of recursive types in one value, of all of them together
_CODES = cython.declare(cython.int, 32)  # a failing step gives back -(place * _CODES + code)

_DONE = cython.declare(cython.int, 0)
_BAD_END = cython.declare(cython.int, 1)
_BAD_NUMBER = cython.declare(cython.int, 2)
_BAD_LENGTH = cython.declare(cython.int, 3)
_BAD_BOOLEAN = cython.declare(cython.int, 4)
_BAD_TEXT = cython.declare(cython.int, 5)
_BAD_BRANCH = cython.declare(cython.int, 6)
_BAD_SYMBOL = cython.declare(cython.int, 7)
_BAD_COUNT = cython.declare(cython.int, 8)
_BAD_DECIMAL = cython.declare(cython.int, 9)
_BAD_RANGE = cython.declare(cython.int, 10)
_TOO_DEEP = cython.declare(cython.int, 11)
_FULL = cython.declare(cython.int, 12)
_NO_MEMORY = cython.declare(cython.int, 13)
_UNRESOLVED = cython.declare(cython.int, 14)
_TOO_MANY_EMPTY = cython.declare(cython.int, 15)

REASONS: dict[int, str] = {
    1: "the value ends too early",
    2: "not a variable-length number, or one that is too large for its type",
    3: "a length is negative, or runs past the end of the value",
    4: "a boolean is neither 0 nor 1",
    5: "text is not UTF-8",
    6: "the number of a union's branch is out of range",
    7: "the number of an enum's symbol is out of range, or the reader's enum has neither this symbol nor a default",
    8: "a count of items is larger than the rest of the value can hold",
    9: "a decimal has more digits than its precision",
    10: "a number is out of the range of its logical type",
    11: "recursive types are nested more than 100 deep",
    12: "the column would be larger than 2 GiB with this value",
    13: "there is not enough memory",
    14: "the writer's branch of a union does not match the reader's schema",
    15: "the value has more than 4096 items that take no bytes",
}
"""What is wrong with a value, by the code that `run` gives."""

_HEX = b"0123456789abcdef"


# --- reading what is most elementary ---------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _long_varint(
    source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A zigzag varint of up to 64 bits and the position after it, which is _BEYOND if there is none before `end`."""
    raw: cython.ulonglong = 0
    shift: cython.int = 0
    part: cython.ulonglong
    while at < end and shift < 64:
        part = source[at]
        at += 1
        if shift == 63 and part > 1:
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
def _long(
    source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """The same; most are one byte."""
    raw: cython.longlong
    if at < end and source[at] < 0x80:
        raw = source[at]
        return (raw >> 1) ^ -(raw & 1), at + 1
    return _long_varint(source, at, end)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _length(
    source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A length in bytes that are there, and the position after it; _BEYOND otherwise."""
    length: cython.longlong
    length, at = _long(source, at, end)
    if at == _BEYOND or length < 0 or length > end - at:
        return 0, _BEYOND
    return length, at


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
def _unsigned(source: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    """Little-endian, 4 bytes. The caller has checked that they are there."""
    value: cython.longlong = source[at + 3]
    value = (value << 8) | source[at + 2]
    value = (value << 8) | source[at + 1]
    return (value << 8) | source[at]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _float(source: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.double:
    """A 32-bit float, widened. The caller has checked that its bytes are there."""
    value: cython.float = 0
    if cython.compiled:
        memcpy(cython.address(value), source + at, 4)
    else:
        (value,) = struct.unpack_from("<f", source, at)
    return value


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


# --- columns: Arrow arrays under construction --------------------------------------------------------------------------


class _Headroom:
    """A buffer that grows. New bytes are 0xFF, which a validity bitmap takes for valid."""

    def __init__(self) -> None:
        self.point_to(pa.allocate_buffer(0, resizable=True))

    def point_to(self, buffer: pa.Buffer) -> cython.void:
        address: cython.size_t
        self.buffer = buffer
        self.capacity = buffer.size
        if cython.compiled:
            address = buffer.address
            self.bytes = cython.cast(cython.p_uchar, address)
            self.ints = cython.cast(cython.p_int, address)
            self.longs = cython.cast(cython.p_longlong, address)
            self.floats = cython.cast(cython.p_float, address)
            self.doubles = cython.cast(cython.p_double, address)
        else:
            self.bytes = memoryview(buffer).cast("B")
            whole = self.bytes[: self.capacity // 8 * 8]
            self.ints, self.longs, self.floats, self.doubles = (whole.cast(code) for code in "iqfd")

    def has(self, size: cython.Py_ssize_t) -> cython.bint:
        """Whether there is space for `size` bytes in all, now."""
        return size <= self.capacity or self.grow(size)

    def require(self, size: cython.Py_ssize_t) -> cython.void:
        if not self.has(size):
            raise MemoryError(REASONS[_NO_MEMORY])

    def grow(self, size: cython.Py_ssize_t) -> cython.bint:
        old: cython.Py_ssize_t = self.capacity
        kept = self.buffer
        before: cython.p_uchar = self.bytes
        try:
            self.point_to(pa.allocate_buffer((max(2 * old, size, 64) + 63) // 64 * 64, resizable=True))
        except MemoryError:
            return False
        _copy(self.bytes, 0, before, 0, old)
        if cython.compiled:
            memset(self.bytes + old, 0xFF, self.capacity - old)
        else:
            self.bytes[old:] = b"\xff" * (self.capacity - old)
        del kept
        return True

    def finish(self, size: cython.Py_ssize_t) -> pa.Buffer:
        """The first `size` bytes; the space is empty afterwards."""
        buffer = self.buffer
        self.point_to(pa.allocate_buffer(0, resizable=True))
        return buffer.slice(0, size)


class Column:
    """An Arrow array under construction. `append_null` gives _DONE, or the code of what is wrong."""

    def __init__(self) -> None:
        self.validity = _Headroom()
        self.rows = 0
        self.nulls = 0

    def append_null(self) -> cython.int:
        """Append a null. Overridden where a null takes space besides the validity's."""
        if not self.validity.has((self.rows >> 3) + 1):
            return _NO_MEMORY
        self.validity.bytes[self.rows >> 3] = self.validity.bytes[self.rows >> 3] & (0xFF ^ (1 << (self.rows & 7)))
        self.nulls += 1
        self.rows += 1
        return _DONE

    def truncate(self, rows: cython.Py_ssize_t) -> cython.void:
        """Take back what was appended after `rows` rows, whole or in part."""
        bit: cython.int
        while self.rows > rows:
            self.rows -= 1
            bit = 1 << (self.rows & 7)
            if (self.rows >> 3) < self.validity.capacity and self.validity.bytes[self.rows >> 3] & bit == 0:
                self.validity.bytes[self.rows >> 3] = self.validity.bytes[self.rows >> 3] | bit
                self.nulls -= 1

    def finish_validity(self) -> pa.Buffer | None:
        nulls: cython.Py_ssize_t = self.nulls
        self.nulls = 0
        if nulls == 0:
            return None
        self.validity.require((self.rows >> 3) + 1)
        return self.validity.finish((self.rows >> 3) + 1)

    def finish(self, kind: pa.DataType) -> pa.Array:
        """Everything so far as an Arrow array of this type. The column is empty afterwards."""
        rows, self.rows, self.nulls = self.rows, 0, 0
        return pa.nulls(rows, kind)


class Nulls(Column):
    """The column of Avro's `null`: a number of rows."""

    def append_null(self) -> cython.int:
        self.rows += 1
        return _DONE


class Bits(Column):
    """Booleans, a bit each."""

    def __init__(self) -> None:
        super().__init__()
        self.data = _Headroom()

    def append(self, value: cython.bint) -> cython.int:
        bit: cython.int = 1 << (self.rows & 7)
        at: cython.Py_ssize_t = self.rows >> 3
        if not self.data.has(at + 1):
            return _NO_MEMORY
        self.data.bytes[at] = self.data.bytes[at] | bit if value else self.data.bytes[at] & (0xFF ^ bit)
        self.rows += 1
        return _DONE

    def finish(self, kind: pa.DataType) -> pa.Array:
        rows, nulls = self.rows, self.nulls
        self.data.require((rows >> 3) + 1)
        buffers = [self.finish_validity(), self.data.finish((rows >> 3) + 1)]
        self.rows = 0
        return pa.Array.from_buffers(kind, rows, buffers, nulls)


class Fixed(Column):
    """Values of `width` bytes each: numbers, times, decimals, Avro's `fixed`, indices of an enum's symbols."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.data = _Headroom()
        self.width = width

    def has_headroom(self) -> cython.bint:
        """Whether there is space for one more, which the caller writes, and then counts in `rows`."""
        return self.data.has((self.rows + 1) * self.width)

    def append_null(self) -> cython.int:
        i: cython.Py_ssize_t
        if not self.has_headroom():
            return _NO_MEMORY
        for i in range(self.rows * self.width, (self.rows + 1) * self.width):
            self.data.bytes[i] = 0
        return Column.append_null(self)

    def finish(self, kind: pa.DataType) -> pa.Array:
        rows, nulls = self.rows, self.nulls
        buffers = [self.finish_validity(), self.data.finish(rows * self.width)]
        self.rows = 0
        return pa.Array.from_buffers(kind, rows, buffers, nulls)


class Ended(Column):
    """Values of any length: `ends` has where each ends."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = _Headroom()
        self.begin()

    def begin(self) -> cython.void:
        self.ends.require(8)
        self.ends.ints[0] = 0

    def append_null(self) -> cython.int:
        if not self.ends.has((self.rows + 2) * 4):
            return _NO_MEMORY
        self.ends.ints[self.rows + 1] = self.ends.ints[self.rows]
        return Column.append_null(self)


class Binary(Ended):
    """Strings and bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.data = _Headroom()
        self.used = 0

    def has_headroom(self, length: cython.Py_ssize_t) -> cython.int:
        """_DONE if there is space for one more of this length, else what is wrong."""
        if self.used + length > _INT32_MAX:
            return _FULL
        return _DONE if self.data.has(self.used + length) and self.ends.has((self.rows + 2) * 4) else _NO_MEMORY

    def append(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.int:
        status: cython.int = self.has_headroom(length)
        if status == _DONE:
            _copy(self.data.bytes, self.used, source, at, length)
            self.close(length)
        return status

    def close(self, length: cython.Py_ssize_t) -> cython.void:
        """Count one more, whose bytes are there."""
        self.used += length
        self.rows += 1
        self.ends.ints[self.rows] = cython.cast(cython.int, self.used)

    def truncate(self, rows: cython.Py_ssize_t) -> cython.void:
        Column.truncate(self, rows)
        self.used = self.ends.ints[rows]

    def finish(self, kind: pa.DataType) -> pa.Array:
        rows, nulls = self.rows, self.nulls
        buffers = [self.finish_validity(), self.ends.finish(4 * (rows + 1)), self.data.finish(self.used)]
        self.rows = self.used = 0
        self.begin()
        return pa.Array.from_buffers(kind, rows, buffers, nulls)


class _Table:
    """Steps or columns that the kernel goes through without the GIL: their addresses, and the objects, kept alive."""

    def __init__(self, kept: Sequence[object]) -> None:
        i: cython.Py_ssize_t
        self.kept: list[Any] = list(kept)
        for each in self.kept:  # they are cast to these without another look
            if not isinstance(each, (Step, Column)):
                raise TypeError(f"{each!r} is not a step and no column")
        self.count = len(self.kept)
        if cython.compiled:
            self.addresses = pa.allocate_buffer(8 * self.count + 8)
            self.items = cython.cast(cython.pp_void, cython.cast(cython.size_t, self.addresses.address))
            for i in range(self.count):
                self.items[i] = cython.cast(cython.p_void, self.kept[i])
        else:
            self.items = self.kept


class Struct(Column):
    """Records: a row more in each child is a row more here."""

    def __init__(self, children: Sequence[Column]) -> None:
        super().__init__()
        self.children = _Table(children)

    def append_null(self) -> cython.int:
        i: cython.Py_ssize_t
        status: cython.int
        for i in range(self.children.count):
            status = cython.cast(Column, self.children.items[i]).append_null()
            if status != _DONE:
                return status
        return Column.append_null(self)

    def truncate(self, rows: cython.Py_ssize_t) -> cython.void:
        i: cython.Py_ssize_t
        for i in range(self.children.count):
            cython.cast(Column, self.children.items[i]).truncate(rows)
        Column.truncate(self, rows)

    def finish(self, kind: pa.DataType) -> pa.Array:
        rows, nulls = self.rows, self.nulls
        validity = self.finish_validity()
        self.rows = 0
        children = [finished(column, kind.field(i).type) for i, column in enumerate(self.children.kept)]
        return pa.StructArray.from_buffers(kind, rows, [validity], nulls, children=children)


class Lists(Ended):
    """Arrays, and maps: their child is then a struct of key and value."""

    def __init__(self, child: Column) -> None:
        super().__init__()
        self.child = child

    def append(self) -> cython.int:
        """Close a list of all that the child has more than at the end of the last one."""
        if self.child.rows > _INT32_MAX:
            return _FULL
        if not self.ends.has((self.rows + 2) * 4):
            return _NO_MEMORY
        self.rows += 1
        self.ends.ints[self.rows] = cython.cast(cython.int, self.child.rows)
        return _DONE

    def truncate(self, rows: cython.Py_ssize_t) -> cython.void:
        Column.truncate(self, rows)
        self.child.truncate(self.ends.ints[rows])

    def finish(self, kind: pa.DataType) -> pa.Array:
        rows, nulls = self.rows, self.nulls
        validity, ends = self.finish_validity(), self.ends.finish(4 * (rows + 1))
        self.rows = 0
        self.begin()
        if pa.types.is_map(kind):
            entries = pa.struct([pa.field("key", kind.key_type, nullable=False), kind.item_field])
            child = self.child.finish(entries)
        else:
            child = finished(self.child, kind.value_type)
        return pa.Array.from_buffers(kind, rows, [validity, ends], nulls, children=[child])


class Dense(Column):
    """A dense union. Arrow gives it no validity: its null is one of a branch, of `null` where there is such a branch."""

    def __init__(self, branches: Sequence[Column], null_branch: int) -> None:
        super().__init__()
        self.branches = _Table(branches)
        self.kinds, self.places, self.counts = _Headroom(), _Headroom(), _Headroom()
        self.null_branch = null_branch
        self.begin()

    def begin(self) -> cython.void:
        i: cython.Py_ssize_t
        self.counts.require(8 * self.branches.count)
        for i in range(self.branches.count):
            self.counts.longs[i] = 0

    def append(self, branch: cython.Py_ssize_t) -> cython.int:
        """Count one more of this branch, whose column has it already."""
        if self.counts.longs[branch] >= _INT32_MAX:
            return _FULL
        if not (self.kinds.has(self.rows + 1) and self.places.has((self.rows + 2) * 4)):
            return _NO_MEMORY
        self.kinds.bytes[self.rows] = cython.cast(cython.uchar, branch)
        self.places.ints[self.rows] = cython.cast(cython.int, self.counts.longs[branch])
        self.counts.longs[branch] = self.counts.longs[branch] + 1
        self.rows += 1
        return _DONE

    def append_null(self) -> cython.int:
        status: cython.int = cython.cast(Column, self.branches.items[self.null_branch]).append_null()
        return status if status != _DONE else self.append(self.null_branch)

    def truncate(self, rows: cython.Py_ssize_t) -> cython.void:
        i: cython.Py_ssize_t
        while self.rows > rows:
            self.rows -= 1
            i = self.kinds.bytes[self.rows]
            self.counts.longs[i] = self.counts.longs[i] - 1
        for i in range(self.branches.count):
            cython.cast(Column, self.branches.items[i]).truncate(self.counts.longs[i])

    def finish(self, kind: pa.DataType) -> pa.Array:
        rows = self.rows
        kinds = pa.Array.from_buffers(pa.int8(), rows, [None, self.kinds.finish(rows)])
        places = pa.Array.from_buffers(pa.int32(), rows, [None, self.places.finish(4 * rows)])
        self.rows = 0
        self.begin()
        fields = [kind.field(i) for i in range(kind.num_fields)]
        children = [finished(column, field.type) for column, field in zip(self.branches.kept, fields, strict=True)]
        return pa.UnionArray.from_dense(kinds, places, children, [field.name for field in fields])


class Symbols(Column):
    """An enum: indices into the reader's symbols."""

    def __init__(self, symbols: Sequence[str]) -> None:
        super().__init__()
        self.indices = Fixed(4)
        self.symbols = pa.array(symbols, pa.string())

    def append_null(self) -> cython.int:
        self.rows += 1
        return self.indices.append_null()

    def truncate(self, rows: cython.Py_ssize_t) -> cython.void:
        self.rows = rows
        self.indices.truncate(rows)

    def finish(self, kind: pa.DataType) -> pa.Array:
        self.rows = 0
        return pa.DictionaryArray.from_arrays(self.indices.finish(pa.int32()), self.symbols)


def finished(column: Column, kind: pa.DataType) -> pa.Array:
    """`column.finish(kind)`, for a column of whatever class."""
    return column.finish(kind)


# --- steps -------------------------------------------------------------------------------------------------------------


class Budget:
    """What one value has used up of what its bytes do not bound: one object for all steps of a program."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> cython.void:
        """A value starts."""
        self.empty_items = 0
        self.depth = 0

    def has_empty(self, count: cython.longlong) -> cython.bint:
        """Count this many more items without bytes; whether the value may have them. `count` is at most _MOST_EMPTY_ITEMS."""
        self.empty_items += count
        return self.empty_items <= _MOST_EMPTY_ITEMS


class Step:
    """Reads one value of the writer's schema. `place` is the number of its field, for messages. This one refuses the value.

    `read` gives the position after the value, or a negative number: minus `place * 32 + code`.
    """

    def __init__(self, place: int) -> None:
        self.place = place

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return self.bad(_UNRESOLVED)

    def bad(self, code: cython.int) -> cython.Py_ssize_t:
        return -(self.place * _CODES + code)

    def after(self, status: cython.int, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return at if status == _DONE else self.bad(status)


class ReadNull(Step):
    """No bytes; a null in whatever column."""

    def __init__(self, place: int, column: Column) -> None:
        super().__init__(place)
        self.column = column

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return self.after(self.column.append_null(), at)


class ReadBoolean(Step):
    """A byte, 0 or 1."""

    def __init__(self, place: int, column: Bits) -> None:
        super().__init__(place)
        self.column = column

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if at >= end:
            return self.bad(_BAD_END)
        if source[at] > 1:
            return self.bad(_BAD_BOOLEAN)
        return self.after(self.column.append(source[at] == 1), at + 1)


class IntoFixed(Step):
    """Reads into a column of values of one width."""

    def __init__(self, place: int, column: Fixed) -> None:
        super().__init__(place)
        self.column = column


class ReadInt(IntoFixed):
    """An `int`, or a `long`, within bounds, as a number of 4 or 8 bytes."""

    def __init__(self, place: int, column: Fixed, least: int, most: int, *, is_logical: bool) -> None:
        super().__init__(place, column)
        self.least, self.most = least, most
        self.is_long = column.width == 8
        self.wrong = _BAD_RANGE if is_logical else _BAD_NUMBER

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        value: cython.longlong
        if at >= end:
            return self.bad(_BAD_END)
        value, at = _long(source, at, end)
        if at == _BEYOND:
            return self.bad(_BAD_NUMBER)
        if value < self.least or value > self.most:
            return self.bad(self.wrong)
        if not self.column.has_headroom():
            return self.bad(_NO_MEMORY)
        if self.is_long:
            self.column.data.longs[self.column.rows] = value
        else:
            self.column.data.ints[self.column.rows] = cython.cast(cython.int, value)
        self.column.rows += 1
        return at


class ReadIntAsFloat(IntoFixed):
    """An `int` or a `long`, promoted to a floating-point number of 4 or 8 bytes."""

    def __init__(self, place: int, column: Fixed, least: int, most: int) -> None:
        super().__init__(place, column)
        self.least, self.most = least, most
        self.is_double = column.width == 8

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        value: cython.longlong
        value, at = _long(source, at, end)
        if at == _BEYOND or value < self.least or value > self.most:
            return self.bad(_BAD_NUMBER)
        if not self.column.has_headroom():
            return self.bad(_NO_MEMORY)
        if self.is_double:
            self.column.data.doubles[self.column.rows] = cython.cast(cython.double, value)
        else:
            self.column.data.floats[self.column.rows] = cython.cast(cython.float, value)
        self.column.rows += 1
        return at


class ReadFloatAsDouble(IntoFixed):
    """A `float`, promoted."""

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if end - at < 4:
            return self.bad(_BAD_END)
        if not self.column.has_headroom():
            return self.bad(_NO_MEMORY)
        self.column.data.doubles[self.column.rows] = _float(source, at)
        self.column.rows += 1
        return at + 4


class ReadBytes(IntoFixed):
    """As many bytes as a column's values have, as they are: `float`, `double`, `fixed`."""

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        width: cython.Py_ssize_t = self.column.width
        if end - at < width:
            return self.bad(_BAD_END)
        if not self.column.has_headroom():
            return self.bad(_NO_MEMORY)
        _copy(self.column.data.bytes, self.column.rows * width, source, at, width)
        self.column.rows += 1
        return at + width


class ReadBinary(Step):
    """Bytes or a string, with their length before them."""

    def __init__(self, place: int, column: Binary, *, is_text: bool) -> None:
        super().__init__(place)
        self.column = column
        self.is_text = is_text

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        length: cython.longlong
        length, at = _length(source, at, end)
        if at == _BEYOND:
            return self.bad(_BAD_LENGTH)
        if self.is_text and not _is_utf8(source, at, at + length):
            return self.bad(_BAD_TEXT)
        return self.after(self.column.append(source, at, length), at + length)


class ReadDecimal(IntoFixed):
    """A decimal's unscaled value, big-endian in `size` bytes (0: with a length before them), as Arrow's of 16 or 32 bytes."""

    def __init__(self, place: int, column: Fixed, size: int, precision: int) -> None:
        super().__init__(place, column)
        self.size = size
        most = 10**precision - 1
        self.most = most.to_bytes(column.width, "little")
        self.least = (-most).to_bytes(column.width, "little", signed=True)
        self.greatest, self.smallest = self.most, self.least

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        length: cython.longlong = self.size
        i: cython.Py_ssize_t
        sign: cython.uchar = 0
        to: cython.Py_ssize_t = self.column.rows * self.column.width
        if self.size == 0:
            length, at = _length(source, at, end)
        if at == _BEYOND:
            return self.bad(_BAD_LENGTH)
        if length > end - at:
            return self.bad(_BAD_END)
        if not self.column.has_headroom():
            return self.bad(_NO_MEMORY)
        if length > 0 and source[at] >= 0x80:
            sign = 0xFF
        for i in range(self.column.width):
            self.column.data.bytes[to + i] = source[at + length - 1 - i] if i < length else sign
        for i in range(length - self.column.width):
            if source[at + i] != sign:
                return self.bad(_BAD_DECIMAL)
        if not self.fits(to, sign):
            return self.bad(_BAD_DECIMAL)
        self.column.rows += 1
        return at + length

    def fits(self, to: cython.Py_ssize_t, sign: cython.uchar) -> cython.bint:
        """Whether the value there is within the precision. Of one sign, two's complement is ordered as unsigned."""
        bound: cython.p_const_uchar = self.smallest if sign == 0xFF else self.greatest
        i: cython.Py_ssize_t = self.column.width - 1
        if (self.column.data.bytes[to + i] >= 0x80) != (sign == 0xFF):
            return False
        while i > 0 and self.column.data.bytes[to + i] == bound[i]:
            i -= 1
        if sign == 0xFF:
            return self.column.data.bytes[to + i] >= bound[i]
        return self.column.data.bytes[to + i] <= bound[i]


class ReadUuid(Step):
    """A `fixed` of 16 bytes as the 36 characters of a UUID."""

    def __init__(self, place: int, column: Binary) -> None:
        super().__init__(place)
        self.column = column

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        status: cython.int
        i: cython.Py_ssize_t
        nibble: cython.int
        to: cython.Py_ssize_t
        if end - at < 16:
            return self.bad(_BAD_END)
        status = self.column.has_headroom(36)
        if status != _DONE:
            return self.bad(status)
        to = self.column.used
        for i in range(32):
            if i == 8 or i == 12 or i == 16 or i == 20:  # a tuple would be an object
                self.column.data.bytes[to] = 45
                to += 1
            nibble = source[at + (i >> 1)]
            nibble = nibble >> 4 if i & 1 == 0 else nibble & 15
            self.column.data.bytes[to] = nibble + (48 if nibble < 10 else 87)
            to += 1
        self.column.close(36)
        return at + 16


class ReadDuration(IntoFixed):
    """Three unsigned 32-bit numbers (months, days, milliseconds) as Arrow's interval of months, days and nanoseconds."""

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        rows: cython.Py_ssize_t = self.column.rows
        if end - at < 12:
            return self.bad(_BAD_END)
        if source[at + 3] >= 0x80 or source[at + 7] >= 0x80:
            return self.bad(_BAD_RANGE)
        if not self.column.has_headroom():
            return self.bad(_NO_MEMORY)
        self.column.data.ints[4 * rows] = cython.cast(cython.int, _unsigned(source, at))
        self.column.data.ints[4 * rows + 1] = cython.cast(cython.int, _unsigned(source, at + 4))
        self.column.data.longs[2 * rows + 1] = _unsigned(source, at + 8) * 1_000_000
        self.column.rows += 1
        return at + 12


class ReadEnum(Step):
    """A symbol's number, as the number of the reader's symbol; -1 represents one that the reader does not know."""

    def __init__(self, place: int, column: Symbols, numbers: Sequence[int]) -> None:
        super().__init__(place)
        self.column = column
        self.count = len(numbers)
        self.numbers = _Headroom()
        self.numbers.require(4 * len(numbers))
        for i, number in enumerate(numbers):
            self.numbers.ints[i] = number

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        symbol: cython.longlong
        if at >= end:
            return self.bad(_BAD_END)
        symbol, at = _long(source, at, end)
        if at == _BEYOND:
            return self.bad(_BAD_NUMBER)
        if symbol < 0 or symbol >= self.count or self.numbers.ints[symbol] < 0:
            return self.bad(_BAD_SYMBOL)
        if not self.column.indices.has_headroom():
            return self.bad(_NO_MEMORY)
        self.column.indices.data.ints[self.column.rows] = self.numbers.ints[symbol]
        self.column.indices.rows += 1
        self.column.rows += 1
        return at


class SkipSteps(Step):
    """Values one after the other: those that are not wanted, or fields."""

    def __init__(self, place: int, steps: Sequence[Step]) -> None:
        super().__init__(place)
        self.steps = _Table(steps)

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        i: cython.Py_ssize_t
        for i in range(self.steps.count):
            at = cython.cast(Step, self.steps.items[i]).read(source, at, end)
            if at < 0:
                break
        return at


class ReadFields(SkipSteps):
    """The writer's fields, one after the other, then what counts a row."""

    def __init__(self, place: int, steps: Sequence[Step], column: Struct) -> None:
        super().__init__(place, steps)
        self.column = column

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        at = SkipSteps.read(self, source, at, end)
        if at >= 0:
            self.column.rows += 1
        return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _block(
    source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, least: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A block's count of items of at least this many bytes each, and the position after it: _BEYOND if that cannot be.

    A negative count is followed by the block's size in bytes, which says nothing that reading the items does not.
    """
    count: cython.longlong
    size: cython.longlong
    count, at = _long(source, at, end)
    if at == _BEYOND:
        return 0, _BEYOND
    if count < 0:
        size, at = _long(source, at, end)
        if at == _BEYOND or size < 0 or count + _BEYOND < 0:
            return 0, _BEYOND
        count = -count
    if count > (end - at if least > 0 else _MOST_EMPTY_ITEMS):
        return 0, _BEYOND
    if count * least > end - at:
        return 0, _BEYOND
    return count, at


class SkipItems(Step):
    """An array, or a map whose item reads key and value, that is not wanted. `least`: bytes that each item takes at least."""

    def __init__(self, place: int, budget: Budget, item: Step, least: int) -> None:
        super().__init__(place)
        self.budget, self.item, self.least = budget, item, least

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        count: cython.longlong
        while True:
            if at >= end:
                return self.bad(_BAD_END)
            count, at = _block(source, at, end, self.least)
            if at == _BEYOND:
                return self.bad(_BAD_COUNT)
            if count == 0:
                return at
            if self.least == 0 and not self.budget.has_empty(count):
                return self.bad(_TOO_MANY_EMPTY)
            at = self.read_block(source, at, end, count)
            if at < 0:
                return at

    def read_block(
        self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, count: cython.longlong
    ) -> cython.Py_ssize_t:
        while count > 0:
            count -= 1
            at = self.item.read(source, at, end)
            if at < 0:
                break
        return at


class ReadItems(SkipItems):
    """An array, or a map: its entries then have their key before them."""

    def __init__(
        self, place: int, budget: Budget, column: Lists, item: Step, least: int, keys: Binary | None, entries: Struct | None
    ) -> None:
        super().__init__(place, budget, item, least)
        self.column = column
        self.has_keys = keys is not None
        self.keys = Binary() if keys is None else keys
        self.entries = Struct([]) if entries is None else entries

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        at = SkipItems.read(self, source, at, end)
        return at if at < 0 else self.after(self.column.append(), at)

    def read_block(
        self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, count: cython.longlong
    ) -> cython.Py_ssize_t:
        length: cython.longlong
        status: cython.int
        if not self.has_keys:
            return SkipItems.read_block(self, source, at, end, count)
        while count > 0:
            count -= 1
            length, at = _length(source, at, end)
            if at == _BEYOND:
                return self.bad(_BAD_LENGTH)
            if not _is_utf8(source, at, at + length):
                return self.bad(_BAD_TEXT)
            status = self.keys.append(source, at, length)
            if status != _DONE:
                return self.bad(status)
            at = self.item.read(source, at + length, end)
            if at < 0:
                return at
            self.entries.rows += 1
        return at


class ReadBranch(Step):
    """A union: the number of a branch, then a value of it. Each branch's step knows its column."""

    def __init__(self, place: int, branches: Sequence[Step]) -> None:
        super().__init__(place)
        self.branches = _Table(branches)

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        branch: cython.longlong
        if at >= end:
            return self.bad(_BAD_END)
        branch, at = _long(source, at, end)
        if at == _BEYOND:
            return self.bad(_BAD_NUMBER)
        if branch < 0 or branch >= self.branches.count:
            return self.bad(_BAD_BRANCH)
        return cython.cast(Step, self.branches.items[branch]).read(source, at, end)


class IntoUnion(Step):
    """A value that becomes one of a branch of the reader's union."""

    def __init__(self, place: int, step: Step, column: Dense, branch: int) -> None:
        super().__init__(place)
        self.step, self.column, self.branch = step, column, branch

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        at = self.step.read(source, at, end)
        if at < 0:
            return at
        return self.after(self.column.append(self.branch), at)


class Default(Step):
    """No bytes: the default of a field that the writer does not have, read from its encoding by the reader's schema."""

    def __init__(self, place: int, step: Step, encoded: bytes) -> None:
        super().__init__(place)
        self.step = step
        self.encoded = encoded
        self.start = self.encoded
        self.size = len(encoded)

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        after: cython.Py_ssize_t = self.step.read(self.start, 0, self.size)
        return after if after < 0 else at


# --- steps that skip ---------------------------------------------------------------------------------------------------

VARINT = -1
"""For `SkipRun`: a variable-length number."""
PREFIXED = -2
"""For `SkipRun`: as many bytes as the number before them says."""


class SkipRun(Step):
    """Values without structure, one after the other: VARINT, PREFIXED, or a number of bytes."""

    def __init__(self, place: int, sizes: Sequence[int]) -> None:
        super().__init__(place)
        self.sizes = _Headroom()
        self.count = len(sizes)
        self.sizes.require(8 * len(sizes))
        for i, size in enumerate(sizes):
            self.sizes.longs[i] = size

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        i: cython.Py_ssize_t
        size: cython.longlong
        for i in range(self.count):
            size = self.sizes.longs[i]
            if size >= 0:
                if size > end - at:
                    return self.bad(_BAD_END)
                at += size
            elif size == -1:
                size, at = _long(source, at, end)
                if at == _BEYOND:
                    return self.bad(_BAD_NUMBER)
            else:
                size, at = _length(source, at, end)
                if at == _BEYOND:
                    return self.bad(_BAD_LENGTH)
                at += size
        return at


class SkipRecursive(SkipSteps):
    """The fields of a record that is not wanted, and is within one of its own fields: so `steps` is set when they are made."""

    def __init__(self, place: int, budget: Budget) -> None:
        super().__init__(place, [])
        self.budget = budget

    def set_steps(self, steps: Sequence[Step]) -> None:
        """Say what the fields are, once."""
        self.steps = _Table(steps)

    def read(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if self.budget.depth >= _DEEPEST:
            return self.bad(_TOO_DEEP)
        self.budget.depth += 1
        at = SkipSteps.read(self, source, at, end)
        self.budget.depth -= 1
        return at


# --- the interface -----------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _run(
    step: Step,
    budget: Budget,
    source: cython.p_const_uchar,
    ends: cython.p_int,
    row: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    skipped: cython.Py_ssize_t,
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t]:
    """Read values until one fails: the row of the next one and the failing one's answer, or 0."""
    at: cython.Py_ssize_t
    while row < stop:
        at = cython.cast(cython.Py_ssize_t, ends[row]) + skipped
        budget.begin()
        at = step.read(source, at, ends[row + 1])
        row += 1
        if at < 0:
            return row, at
    return row, 0


def run(step: Step, budget: Budget, column: Column, values: pa.Array, skipped: int) -> list[tuple[int, int, int]]:
    """Append each of `values` to `column`, which has to be empty, and give row, place and code of those that are bad.

    `values` is of Arrow's `binary`. The first `skipped` bytes of each are skipped. A null, and a bad value, become nulls.
    Raises MemoryError if there is not enough for the value alone. One thread at a time may use a step
    and its column, and the `used` of that step.
    """
    row: cython.Py_ssize_t = 0
    rows: cython.Py_ssize_t = len(values)
    stop: cython.Py_ssize_t
    answer: cython.Py_ssize_t
    start: cython.Py_ssize_t = values.offset
    header: cython.Py_ssize_t = skipped
    source: cython.p_const_uchar
    ends: cython.p_int
    _, end_buffer, data_buffer = values.buffers()
    if rows == 0:
        return []
    if cython.compiled:
        source = cython.cast(cython.p_const_uchar, cython.cast(cython.size_t, data_buffer.address if data_buffer else 0))
        ends = cython.cast(cython.p_int, cython.cast(cython.size_t, end_buffer.address)) + start
    else:
        source = memoryview(data_buffer or b"").cast("B")
        ends = memoryview(end_buffer).cast("B")[4 * start : 4 * (start + rows + 1)].cast("i")
    bad: list[tuple[int, int, int]] = []
    nulls: list[int] = pc.indices_nonzero(values.is_null()).to_pylist() if values.null_count else []
    for null in [*nulls, rows]:
        stop = null
        while row < stop:
            with cython.nogil:
                row, answer = _run(step, budget, source, ends, row, stop, header)
            if answer < 0:
                column.truncate(row - 1)
                bad.append((row - 1, -answer // _CODES, -answer % _CODES))
                _append_null(column)
        if row < rows:
            _append_null(column)
            row += 1
    return bad


@cython.cfunc
def _append_null(column: Column) -> cython.void:
    if column.append_null() != _DONE:
        raise MemoryError(REASONS[_NO_MEMORY])
