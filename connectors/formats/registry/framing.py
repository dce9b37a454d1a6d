"""How a record says by which schema it was written: before the value, or in a header of the record.

Before the value: a byte 0 and the id as 4 bytes, big-endian; or a byte 1 and the schema's own id (a GUID) as 16 bytes. In the
header `__value_schema_id` (`__key_schema_id`), which newer writers choose: the same bytes, and nothing before the value.
Of Protobuf the indices of the message type follow the id, wherever that is.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.registry.schemas import SchemaId

_NUMBER, _GUID = 5, 17  # bytes, with the previous one the id
_LARGEST_ID = 2**31 - 1  # a registry's ids are Java's int


class Framed(NamedTuple):
    """Rows of one schema. `skipped`: bytes before each value. `tail`: what follows the id in the header that names it."""

    rows: pa.Array
    schema_id: SchemaId
    skipped: int
    tail: bytes = b""


class Unframed(NamedTuple):
    """Rows that do not say which schema they have, and why."""

    rows: pa.Array
    reason: str


@dataclass(frozen=True, slots=True)
class _Frame:
    """Rows with the same bytes before the value, or in the header."""

    rows: pa.Array
    frame: bytes
    in_header: bool


def header_name(field: str) -> str:
    """The header for the `field` ("key" or "value") of a record."""
    return f"__{field}_schema_id"


def prefix(schema_id: int) -> bytes:
    """What is before a value of this schema."""
    return b"\0" + schema_id.to_bytes(4, "big")


def framing(values: pa.Array, headers: pa.Array | None, field: str) -> Iterator[Framed | Unframed]:
    """The rows of `values` (Arrow's `binary`) by their schema, nulls left out. `rows` are indices, in order.

    `headers`: the records' headers, a list of structs of key and value for each row, where they may name the schema; a header
    goes before what is before the value.
    """
    for found in _frames(values, headers, header_name(field)):
        yield _read(found)


def _frames(values: pa.Array, headers: pa.Array | None, name: str) -> Iterator[_Frame]:
    rows = pc.indices_nonzero(values.is_valid())
    in_headers = _header_frames(headers, name) if headers is not None else None
    if in_headers is not None:
        yield from _grouped(pc.indices_nonzero(pc.and_(in_headers.is_valid(), values.is_valid())), in_headers, in_header=True)
        rows = pc.indices_nonzero(pc.and_(in_headers.is_null(), values.is_valid()))
    if len(rows) == 0:
        return
    first = pc.binary_slice(values, 0, _NUMBER)
    if pc.any(pc.starts_with(first, b"\1")).as_py():
        first = pc.if_else(pc.starts_with(first, b"\1"), pc.binary_slice(values, 0, _GUID), first)
    yield from _grouped(rows, first, in_header=False)


def _header_frames(headers: pa.Array, name: str) -> pa.Array | None:
    """For each row the header of this name, or null; None where no row has one. The last of several counts."""
    flat = headers.flatten()  # the rows' own, of a slice too
    wanted = pc.equal(flat.field("key"), name) if len(flat) else None
    if wanted is None or not pc.any(wanted).as_py():
        return None
    parents, found = pc.list_parent_indices(headers).filter(wanted), flat.field("value").filter(wanted)
    is_last = pa.concat_arrays([pc.not_equal(parents[1:], parents[:-1]), pa.array([True])])
    rows = pa.array(range(len(headers)), parents.type)
    return found.filter(is_last).take(pc.index_in(rows, value_set=parents.filter(is_last)))


def _grouped(rows: pa.Array, frames: pa.Array, *, in_header: bool) -> Iterator[_Frame]:
    if len(rows) == 0:
        return
    encoded = frames.take(rows).dictionary_encode()
    ordered, start = rows.take(pc.sort_indices(encoded.indices)), 0
    for frame, count in zip(encoded.dictionary.to_pylist(), encoded.value_counts().field("counts").to_pylist(), strict=True):
        yield _Frame(ordered.slice(start, count), frame, in_header)
        start += count


def _read(found: _Frame) -> Framed | Unframed:
    """Of garbage many rows may start alike or not; each reason says how."""
    frame = found.frame
    length = _NUMBER if frame.startswith(b"\0") else _GUID
    skipped, tail = (0, frame[length:]) if found.in_header else (length, b"")
    if len(frame) >= length and frame[0] == 0:
        number = int.from_bytes(frame[1:length], "big")
        if number > _LARGEST_ID:
            return Unframed(found.rows, f"it names schema {number}, and a schema registry has no ids above {_LARGEST_ID}")
        return Framed(found.rows, number, skipped, tail)
    if len(frame) >= length and frame[0] == 1:
        return Framed(found.rows, UUID(bytes=frame[1:length]), skipped, tail)
    where = "the header that names its schema" if found.in_header else "the value"
    if not frame:
        return Unframed(found.rows, f"{where} is empty, and names no schema")
    if frame[0] > 1:
        return Unframed(found.rows, f"{where} starts with byte {frame[0]}, where a schema registry's wire format has 0 or 1")
    return Unframed(found.rows, f"{where} ends within the id of its schema")
