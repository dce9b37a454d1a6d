"""Protobuf values with a schema registry: before each value, or in a header, are the ids of its schema and message type."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.protobuf.compiler import descriptor_set
from headrace.connectors.formats.protobuf.protobuf_format import ProtobufFormat
from headrace.connectors.formats.protobuf.schema import indices_of, message_at
from headrace.connectors.formats.registry.client import SchemaRegistry
from headrace.connectors.formats.registry.framing import Framed
from headrace.connectors.formats.registry.registered import RegisteredFormat
from headrace.connectors.formats.registry.schemas import RegisteredSchema
from headrace.connectors.formats.value_format import BadValue, DecodedValues
from headrace.enumerator.errors import UsageError

_MOST_DEEP = 100
_MOST_KEPT = 1024
"""Message types of which it is known whether they are read: more than a topic has, and a bound on what garbage can cost."""


class RegisteredProtobufFormat(RegisteredFormat):
    """Protobuf values in a registry's wire format, as `RegisteredFormat` has them.

    `message`: the full name of the message type that is read, by default the first of the reader's schema. A value that says
    that it is of another one is bad. Fields are found by their numbers, whichever version of the schema wrote them.
    `fields`: as `ProtobufFormat` has them.
    """

    kind: ClassVar[str] = "PROTOBUF"

    def __init__(
        self,
        registry: SchemaRegistry,
        reader: RegisteredSchema,
        *,
        known: Iterable[RegisteredSchema] = (),
        fields: Sequence[str] | None = None,
        field: Literal["key", "value"] = "value",
        message: str | None = None,
    ) -> None:
        self._message = message
        self._found = functools.lru_cache(_MOST_KEPT)(self._find)
        super().__init__(registry, reader, known=known, fields=fields, field=field)

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "message": self._message}

    @property
    def record(self) -> str | None:
        """The full name of the message type that is read."""
        return self.message

    def _reading_own(self) -> ProtobufFormat:
        self._behind = functools.cache(self._format)
        own = self._behind(0)
        self.message: str = own.message
        return own

    def _format(self, header_bytes: int) -> ProtobufFormat:
        """For values whose message starts after this many bytes."""
        references, text = dict(self.reader.references), self.reader.text
        return ProtobufFormat(
            text, message=self._message, references=references, fields=self._fields, header_bytes=header_bytes
        )

    def _prefix(self, schema_id: int) -> bytes:
        indices = indices_of(_files(self.reader), self.message)
        return super()._prefix(schema_id) + indices_as_bytes(indices)

    def _decoded(self, writer: RegisteredSchema, group: Framed, values: pa.Array) -> DecodedValues | str:
        if group.skipped == 0:
            indices, length = read_indices(group.tail)
            fault = self._fault(writer, indices) if length == len(group.tail) else "the header that names its schema is damaged"
            return self._own.decode(values) if fault is None else fault
        heads = pc.binary_slice(values, group.skipped, group.skipped + 1)
        if pc.all(pc.equal(heads, b"\0")).as_py():  # the short form for the first message type, which most values have
            fault = self._fault(writer, (0,))
            return self._behind(group.skipped + 1).decode(values) if fault is None else fault
        return self._one_by_one(writer, group.skipped, values)

    def _one_by_one(self, writer: RegisteredSchema, skipped: int, values: pa.Array) -> DecodedValues:
        messages: list[bytes | None] = []
        bad: dict[int, str] = {}
        for row, value in enumerate(values.to_pylist()):
            body = value[skipped:]
            indices, length = read_indices(body)
            fault = self._fault(writer, indices)
            if fault is not None:
                bad[row] = fault
            messages.append(body[length:] if fault is None else None)
        decoded = self._own.decode(pa.array(messages, pa.binary()))
        bad |= {each.row: each.reason for each in decoded.bad}
        return DecodedValues(decoded.values, [BadValue(row, bad[row]) for row in sorted(bad)])

    def _fault(self, writer: RegisteredSchema, indices: tuple[int, ...]) -> str | None:
        """Why values of this message type are bad; None if they are not. Empty `indices` could not be read."""
        if not indices:
            return "the indices of its message type are not a list of numbers"
        return self._found(writer, indices)

    def _find(self, writer: RegisteredSchema, indices: tuple[int, ...]) -> str | None:
        try:
            name = message_at(_files(writer), indices)
        except UsageError as error:
            return f"schema {writer.id} cannot be used: {error}"
        return None if name == self.message else f"it is a message {name} of schema {writer.id}, and not {self.message}"


def by_message_type(
    schema: RegisteredSchema, group: Framed, values: pa.Array
) -> Iterator[tuple[list[int], pa.Array, ProtobufFormat]]:
    """The values of a group by message type: for each its rows, the values without their prefix, and a format.

    Raises UsageError for a message type that the schema does not have, or that cannot be read.
    """
    found: dict[tuple[int, ...], tuple[list[int], list[bytes]]] = {}
    for row, value in enumerate(values.to_pylist()):
        head = value[group.skipped :] if group.skipped else group.tail
        indices, length = read_indices(head)
        rows, bodies = found.setdefault(indices, ([], []))
        rows.append(row)
        bodies.append(head[length:] if group.skipped else value)
    for indices, (rows, bodies) in found.items():
        files = _files(schema)
        if not indices:
            raise UsageError("the indices of its message type are not a list of numbers")
        message = message_at(files, indices)
        yield rows, pa.array(bodies, pa.binary()), ProtobufFormat(files, message=message)


def _files(schema: RegisteredSchema) -> bytes:
    return descriptor_set(schema.text, dict(schema.references))


def read_indices(head: bytes) -> tuple[tuple[int, ...], int]:
    """The indices of a message type as Confluent writes them, and how many bytes they take; no indices if there are none.

    A count and as many numbers, all zigzag varints; a count of 0 means the first message type.
    """
    count, at = _zigzag(head, 0)
    if count == 0 and at > 0:
        return (0,), at
    if not 0 < count <= _MOST_DEEP:
        return (), 0
    indices = []
    for _ in range(count):
        before = at
        index, at = _zigzag(head, at)
        if at <= before or index < 0:
            return (), 0
        indices.append(index)
    return tuple(indices), at


def indices_as_bytes(indices: Sequence[int]) -> bytes:
    """The bytes that `read_indices` reads, in the short form where there is one."""
    if tuple(indices) == (0,):
        return b"\0"
    return b"".join(_varint(2 * number) for number in (len(indices), *indices))


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    """A number and the position after it, which is the previous one if there is no number of 32 bits."""
    raw = 0
    for length, byte in enumerate(data[at : at + 5]):
        raw |= (byte & 0x7F) << 7 * length
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at + length + 1
    return 0, at


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
