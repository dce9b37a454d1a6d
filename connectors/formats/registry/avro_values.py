"""Avro values by a schema registry: each is resolved from its own writer's schema to the reader's.

A value whose schema is `bytes` is these bytes, without Avro's length before them: so Confluent's serializers have it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.avro.avro_format import AvroFormat
from headrace.connectors.formats.avro.recursion import Recursive
from headrace.connectors.formats.avro.schema import AvroEnum, AvroFixed, AvroPrimitive, AvroRecord, parse
from headrace.connectors.formats.registry.client import SchemaRegistry
from headrace.connectors.formats.registry.framing import Framed
from headrace.connectors.formats.registry.registered import RegisteredFormat
from headrace.connectors.formats.registry.schemas import RegisteredSchema
from headrace.connectors.formats.value_format import DecodedValues
from headrace.enumerator.errors import UsageError

_MOST_FORMATS = 256
"""Programs that are kept, one for each writer's schema: more than a topic has, and a bound on what garbage can cost."""

_LONGEST = 2**31 - 1


class RegisteredAvroFormat(RegisteredFormat):
    """Avro values in a registry's wire format, as `RegisteredFormat` has them.

    `fields`, `recursive`: as `AvroFormat` has them.
    """

    kind: ClassVar[str] = "AVRO"

    def __init__(
        self,
        registry: SchemaRegistry,
        reader: RegisteredSchema,
        *,
        known: Iterable[RegisteredSchema] = (),
        fields: Sequence[str] | None = None,
        field: Literal["key", "value"] = "value",
        recursive: Recursive = "refuse",
    ) -> None:
        self._recursive: Recursive = recursive
        super().__init__(registry, reader, known=known, fields=fields, field=field)

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "recursive": self._recursive}

    @property
    def record(self) -> str | None:
        """The full name of the reader's Avro type, if it is one with a name."""
        schema = parse(self.reader.text, dict(self.reader.references))
        return schema.name if isinstance(schema, AvroRecord | AvroEnum | AvroFixed) else None

    def _reading_own(self) -> AvroFormat:
        self._resolved = functools.lru_cache(_MOST_FORMATS)(self._resolve)
        self._bytes = AvroFormat("bytes")
        return self._format(self.reader, 0)

    def _decoded(self, writer: RegisteredSchema, group: Framed, values: pa.Array) -> DecodedValues | str:
        if group.tail:
            return "the header that names its schema continues after the id"
        avro, encoded = self._resolved(writer, group.skipped), values
        if not isinstance(avro, str) and is_raw(writer):
            # with an end, as Arrow counts too much space without one
            avro, encoded = self._resolved(writer, 0), self._bytes.encode(pc.binary_slice(values, group.skipped, _LONGEST))
        return avro if isinstance(avro, str) else avro.decode(encoded)

    def _encoded(self, values: pa.Array) -> pa.Array:
        encoded = super()._encoded(values)
        if not is_raw(self.reader):
            return encoded
        return pa.array([None if each is None else _without_length(each) for each in encoded.to_pylist()], pa.binary())

    def _resolve(self, writer: RegisteredSchema, skipped: int) -> AvroFormat | str:
        """What decodes these values, or why nothing does."""
        try:
            return self._format(writer, skipped)
        except UsageError as error:
            return f"schema {writer.id} cannot be read by the reader's schema: {error}"

    def _format(self, writer: RegisteredSchema, skipped: int) -> AvroFormat:
        return AvroFormat(
            writer.text,
            references=dict(writer.references),
            reader_schema=self.reader.text,
            reader_references=dict(self.reader.references),
            fields=self._fields,
            header_bytes=skipped,
            recursive=self._recursive,
        )


@functools.lru_cache(maxsize=_MOST_FORMATS)
def is_raw(schema: RegisteredSchema) -> bool:
    """Whether its values are bytes without a length before them."""
    tree = parse(schema.text, dict(schema.references))
    return isinstance(tree, AvroPrimitive) and tree.kind == "bytes"


def _without_length(value: bytes) -> bytes:
    return value[1 + next(at for at, byte in enumerate(value) if byte < 0x80) :]
