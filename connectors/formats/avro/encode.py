"""Arrow to Avro's binary encoding, without a Python object per record: the mirror of `decode`.

Cython in pure-Python mode, as `decode` is. `writing.py` binds an Avro schema to the buffers of an Arrow array, as a tree of
*parts*, each of which writes one value of a row; `run` lets the tree write every row into one binary column.

The format: https://avro.apache.org/docs/1.12.0/specification/#binary-encoding
"""

# Cython's decorators and types carry no annotations, so mypy sees Any where they are used.
# mypy: disable-error-code="untyped-decorator, no-any-return"

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.connectors.formats.avro import NOT_COMPILED

try:
    import cython  # type: ignore[import-untyped]
except ImportError as error:  # compiled, it is not imported
    raise ImportError(NOT_COMPILED) from error
if cython.compiled:
    from cython.cimports.libc.string import memcpy  # type: ignore[import-untyped]

_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
_UINT32_MAX = cython.declare(cython.longlong, 0xFFFFFFFF)
_CODES = cython.declare(cython.int, 8)  # a failing part gives back place * _CODES + code

_BAD_NULL = cython.declare(cython.int, 1)
_BAD_DECIMAL = cython.declare(cython.int, 2)
_BAD_UUID = cython.declare(cython.int, 3)
_BAD_DURATION = cython.declare(cython.int, 4)
_FULL = cython.declare(cython.int, 5)
_NO_MEMORY = cython.declare(cython.int, 6)

REASONS: dict[int, str] = {
    1: "is null, and its Avro type has no null",
    2: "is a decimal that does not fit the size of its fixed type",
    3: "is not a UUID of 36 characters",
    4: "is an interval that is negative, not of whole milliseconds, or too long",
    5: "makes the encoded column larger than 2 GiB; encode fewer rows at a time",
    6: "needs more memory than there is",
}
"""What is wrong with a row, by the code that `run` gives."""


class Output:
    """The binary column under construction."""

    def __init__(self) -> None:
        self.used = 0
        self.point_to(pa.allocate_buffer(1 << 12, resizable=True))

    def point_to(self, buffer: pa.Buffer) -> cython.void:
        self.buffer = buffer
        self.capacity = buffer.size
        if cython.compiled:
            self.bytes = cython.cast(cython.p_uchar, cython.cast(cython.size_t, buffer.address))
        else:
            self.bytes = memoryview(buffer).cast("B")

    def headroom(self, size: cython.Py_ssize_t) -> cython.int:
        """0 if there is space for `size` bytes more, now; else what is wrong."""
        if self.used + size <= self.capacity:
            return 0
        if self.used + size > _INT32_MAX:
            return _FULL
        return self.grow(size)

    def grow(self, size: cython.Py_ssize_t) -> cython.int:
        kept = self.buffer
        before: cython.p_uchar = self.bytes
        try:
            self.point_to(pa.allocate_buffer(2 * (self.used + size), resizable=True))
        except MemoryError:
            return _NO_MEMORY
        if cython.compiled:
            memcpy(self.bytes, before, self.used)
        else:
            self.bytes[: self.used] = before[: self.used]
        del kept
        return 0

    def number(self, value: cython.longlong) -> cython.int:
        """Append a zigzag varint."""
        raw: cython.ulonglong
        status: cython.int = self.headroom(10)
        if status != 0:
            return status
        if cython.compiled:
            raw = (cython.cast(cython.ulonglong, value) << 1) ^ cython.cast(cython.ulonglong, value >> 63)
        else:
            raw = (value << 1) ^ (value >> 63)
        while raw > 0x7F:
            self.bytes[self.used] = raw & 0x7F | 0x80
            self.used += 1
            raw >>= 7
        self.bytes[self.used] = cython.cast(cython.uchar, raw)
        self.used += 1
        return 0

    def copy(self, source: cython.p_const_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.int:
        """Append bytes as they are."""
        status: cython.int = self.headroom(length)
        if status != 0:
            return status
        if cython.compiled:
            memcpy(self.bytes + self.used, source + at, length)
        else:
            self.bytes[self.used : self.used + length] = source[at : at + length]
        self.used += length
        return 0


class _View:
    """The bytes of an Arrow buffer, which it keeps alive."""

    def __init__(self, buffer: pa.Buffer | None) -> None:
        address: cython.size_t
        self.buffer = buffer
        if cython.compiled:
            address = 0 if buffer is None else buffer.address
            self.bytes = cython.cast(cython.p_const_uchar, address)
            self.ints = cython.cast(cython.p_int, address)
            self.longs = cython.cast(cython.p_longlong, address)
        else:
            self.bytes = memoryview(b"" if buffer is None else buffer).cast("B")
            self.ints = self.bytes[: len(self.bytes) // 4 * 4].cast("i")
            self.longs = self.bytes[: len(self.bytes) // 8 * 8].cast("q")


class Part:
    """Writes the value of one row. `place` is the number of its field, for messages.

    `write` gives 0, or what is wrong: `place * 8 + code`. `start` is the array's offset into its buffers.
    """

    def __init__(self, out: Output, place: int, array: pa.Array | None) -> None:
        self.out, self.place = out, place
        self.start = 0 if array is None else array.offset

    def write(self, row: cython.Py_ssize_t) -> cython.int:
        """Nothing: Avro's null."""
        return 0

    def bad(self, code: cython.int) -> cython.int:
        return 0 if code == 0 else self.place * _CODES + code


class OfFixed(Part):
    """Writes a value of a column whose values have one width."""

    def __init__(self, out: Output, place: int, array: pa.Array) -> None:
        super().__init__(out, place, array)
        self.data = _View(array.buffers()[1])


class WriteBoolean(OfFixed):
    """A byte, of a bit."""

    def write(self, row: cython.Py_ssize_t) -> cython.int:
        at: cython.Py_ssize_t = row + self.start
        status: cython.int = self.out.headroom(1)
        if status == 0:
            self.out.bytes[self.out.used] = (self.data.bytes[at >> 3] >> (at & 7)) & 1
            self.out.used += 1
        return self.bad(status)


class WriteNumber(OfFixed):
    """A variable-length number, of one of 4 or 8 bytes."""

    def __init__(self, out: Output, place: int, array: pa.Array) -> None:
        super().__init__(out, place, array)
        self.is_long = array.type.bit_width == 64

    def write(self, row: cython.Py_ssize_t) -> cython.int:
        if self.is_long:
            return self.bad(self.out.number(self.data.longs[row + self.start]))
        return self.bad(self.out.number(self.data.ints[row + self.start]))


class WriteFixed(OfFixed):
    """As many bytes as a value has, as they are."""

    def __init__(self, out: Output, place: int, array: pa.Array) -> None:
        super().__init__(out, place, array)
        self.width = array.type.bit_width // 8

    def write(self, row: cython.Py_ssize_t) -> cython.int:
        return self.bad(self.out.copy(self.data.bytes, (row + self.start) * self.width, self.width))


class WriteBinary(Part):
    """Bytes or a string, with the length before them."""

    def __init__(self, out: Output, place: int, array: pa.Array) -> None:
        super().__init__(out, place, array)
        _, ends, data = array.buffers()
        self.ends, self.data = _View(ends), _View(data)

    def write(self, row: cython.Py_ssize_t) -> cython.int:
        at: cython.Py_ssize_t = self.ends.ints[row + self.start]
        length: cython.Py_ssize_t = self.ends.ints[row + self.start + 1] - at
        status: cython.int = self.out.number(length)
        if status == 0:
            status = self.out.copy(self.data.bytes, at, length)
        return self.bad(status)


class WriteDecimal(OfFixed):
    """A decimal's unscaled value, big-endian: in `size` bytes, or (0) in as few as it takes with their number before them."""

    def __init__(self, out: Output, place: int, array: pa.Array, size: int) -> None:
        super().__init__(out, place, array)
        self.width = array.type.bit_width // 8
        self.size = size

    def write(self, row: cython.Py_ssize_t) -> cython.int:
        at: cython.Py_ssize_t = (row + self.start) * self.width
        needed: cython.Py_ssize_t = self.width
        size: cython.Py_ssize_t = self.size
        status: cython.int = 0
        i: cython.Py_ssize_t
        sign: cython.uchar = 0xFF if self.data.bytes[at + self.width - 1] >= 0x80 else 0
        while needed > 1 and self.data.bytes[at + needed - 1] == sign and (self.data.bytes[at + needed - 2] ^ sign) < 0x80:
            needed -= 1
        if size == 0:
            size = needed
            status = self.out.number(size)
        elif needed > size:
            status = _BAD_DECIMAL
        if status == 0:
            status = self.out.headroom(size)
        if status == 0:
            for i in range(size):
                self.out.bytes[self.out.used + size - 1 - i] = self.data.bytes[at + i] if i < self.width else sign
            self.out.used += size
        return self.bad(status)


class WriteUuid(WriteBinary):
    """The 36 characters of a UUID as 16 bytes."""

    def write(self, row: cython.Py_ssize_t) -> cython.int:
        at: cython.Py_ssize_t = self.ends.ints[row + self.start]
        i: cython.Py_ssize_t
        nibble: cython.int
        high: cython.int = -1
        status: cython.int = self.out.headroom(16)
        if status != 0:
            return self.bad(status)
        if self.ends.ints[row + self.start + 1] - at != 36:
            return self.bad(_BAD_UUID)
        for i in range(36):
            nibble = self.data.bytes[at + i]
            if i == 8 or i == 13 or i == 18 or i == 23:  # a tuple would be an object
                if nibble != 45:
                    return self.bad(_BAD_UUID)
                continue
            if 48 <= nibble <= 57:
                nibble -= 48
            elif 97 <= nibble <= 102:
                nibble -= 87
            elif 65 <= nibble <= 70:
                nibble -= 55
            else:
                return self.bad(_BAD_UUID)
            if high < 0:
                high = nibble
            else:
                self.out.bytes[self.out.used] = (high << 4) | nibble
                self.out.used += 1
                high = -1
        return 0


class WriteDuration(OfFixed):
    """An interval of months, days and nanoseconds as three unsigned 32-bit numbers: months, days, milliseconds."""

    def write(self, row: cython.Py_ssize_t) -> cython.int:
        at: cython.Py_ssize_t = row + self.start
        nanos: cython.longlong = self.data.longs[2 * at + 1]
        millis: cython.longlong = nanos // 1_000_000
        i: cython.int
        status: cython.int = self.out.headroom(12)
        if status != 0:
            return self.bad(status)
        if self.data.ints[4 * at] < 0 or self.data.ints[4 * at + 1] < 0:
            return self.bad(_BAD_DURATION)
        if nanos < 0 or nanos % 1_000_000 != 0 or millis > _UINT32_MAX:
            return self.bad(_BAD_DURATION)
        self.out.copy(self.data.bytes, 16 * at, 8)
        for i in range(4):
            self.out.bytes[self.out.used] = (millis >> (8 * i)) & 0xFF
            self.out.used += 1
        return 0


class _Parts:
    """Parts that the kernel goes through without the GIL: their addresses, and the objects, kept alive."""

    def __init__(self, kept: Sequence[Part]) -> None:
        i: cython.Py_ssize_t
        self.kept = list(kept)
        for each in self.kept:  # they are cast to it without another look
            if not isinstance(each, Part):
                raise TypeError(f"{each!r} is not a part")
        self.count = len(self.kept)
        if cython.compiled:
            self.addresses = pa.allocate_buffer(8 * self.count + 8)
            self.items = cython.cast(cython.pp_void, cython.cast(cython.size_t, self.addresses.address))
            for i in range(self.count):
                self.items[i] = cython.cast(cython.p_void, self.kept[i])
        else:
            self.items = self.kept


class WriteRecord(Part):
    """Fields, one after the other."""

    def __init__(self, out: Output, place: int, parts: Sequence[Part]) -> None:
        super().__init__(out, place, None)
        self.parts = _Parts(parts)

    def write(self, row: cython.Py_ssize_t) -> cython.int:
        i: cython.Py_ssize_t
        status: cython.int
        for i in range(self.parts.count):
            status = cython.cast(Part, self.parts.items[i]).write(row)
            if status != 0:
                return status
        return 0


class WriteItems(Part):
    """An array, or a map whose item writes key and value: one block and its end."""

    def __init__(self, out: Output, place: int, array: pa.Array, item: Part) -> None:
        super().__init__(out, place, array)
        self.ends = _View(array.buffers()[1])
        self.item = item

    def write(self, row: cython.Py_ssize_t) -> cython.int:
        at: cython.Py_ssize_t = self.ends.ints[row + self.start]
        end: cython.Py_ssize_t = self.ends.ints[row + self.start + 1]
        status: cython.int
        if end > at:
            status = self.out.number(end - at)
            if status != 0:
                return self.bad(status)
        while at < end:
            status = self.item.write(at)
            if status != 0:
                return status
            at += 1
        return self.bad(self.out.number(0))


class WriteNullable(Part):
    """A union of null and one type. `null_branch` -1: there is no union, and a null is refused."""

    def __init__(self, out: Output, place: int, array: pa.Array, part: Part, null_branch: int, branch: int) -> None:
        super().__init__(out, place, array)
        self.validity = _View(array.buffers()[0] if array.null_count else None)
        self.has_nulls = array.null_count > 0
        self.part, self.null_branch, self.branch = part, null_branch, branch

    def write(self, row: cython.Py_ssize_t) -> cython.int:
        at: cython.Py_ssize_t = row + self.start
        status: cython.int = 0
        if self.has_nulls and (self.validity.bytes[at >> 3] >> (at & 7)) & 1 == 0:
            return self.bad(_BAD_NULL if self.null_branch < 0 else self.out.number(self.null_branch))
        if self.branch >= 0:
            status = self.out.number(self.branch)
        return self.bad(status) if status != 0 else self.part.write(row)


class WriteUnion(Part):
    """One of several types, of a dense union whose branches are the schema's."""

    def __init__(self, out: Output, place: int, array: pa.Array, branches: Sequence[Part]) -> None:
        super().__init__(out, place, array)
        _, kinds, places, *_ = array.buffers()
        self.kinds, self.places = _View(kinds), _View(places)
        self.branches = _Parts(branches)

    def write(self, row: cython.Py_ssize_t) -> cython.int:
        branch: cython.Py_ssize_t = self.kinds.bytes[row + self.start]
        status: cython.int = self.out.number(branch)
        if status != 0:
            return self.bad(status)
        return cython.cast(Part, self.branches.items[branch]).write(self.places.ints[row + self.start])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _run(
    part: Part, out: Output, ends: cython.p_int, row: cython.Py_ssize_t, stop: cython.Py_ssize_t
) -> tuple[cython.Py_ssize_t, cython.int]:
    """Write rows until one fails: the row after the last written and what is wrong with that one, or 0."""
    status: cython.int
    while row < stop:
        status = part.write(row)
        if status != 0:
            return row, status
        row += 1
        ends[row] = cython.cast(cython.int, out.used)
    return row, 0


def run(part: Part, out: Output, array: pa.Array) -> tuple[pa.Array, tuple[int, int, int] | None]:
    """Write every row of `array`, which `part` is bound to, into `out`, which has to be empty.

    Gives the binary column, with the array's nulls, and None; or what there is and (row, place, code) of the first bad one.
    """
    rows: cython.Py_ssize_t = len(array)
    row: cython.Py_ssize_t = 0
    stop: cython.Py_ssize_t
    status: cython.int = 0
    ends: cython.p_int
    end_buffer = pa.allocate_buffer(4 * (rows + 1))
    if cython.compiled:
        ends = cython.cast(cython.p_int, cython.cast(cython.size_t, end_buffer.address))
    else:
        ends = memoryview(end_buffer).cast("B").cast("i")
    ends[0] = 0
    valid = array.is_valid()
    for null in [*(i for i, is_valid in enumerate(valid.to_pylist() if array.null_count else []) if not is_valid), rows]:
        stop = null
        with cython.nogil:
            row, status = _run(part, out, ends, row, stop)
        if status != 0:
            return pa.nulls(rows, pa.binary()), (row, status // _CODES, status % _CODES)
        if row < rows:
            row += 1
            ends[row] = cython.cast(cython.int, out.used)
    validity = valid.buffers()[1] if array.null_count else None
    data = out.buffer.slice(0, out.used)
    return pa.Array.from_buffers(pa.binary(), rows, [validity, end_buffer, data], array.null_count), None
