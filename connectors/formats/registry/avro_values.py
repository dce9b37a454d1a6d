"""Avro values by a schema registry: each is resolved from its own writer's schema to the reader's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import pyarrow as pa

from headrace.connectors.formats.avro.avro_format import AvroFormat
from headrace.connectors.formats.avro.recursion import Recursive
from headrace.connectors.formats.avro.schema import AvroEnum, AvroFixed, AvroRecord, parse
from headrace.connectors.formats.registry.client import SchemaRegistry
from headrace.connectors.formats.registry.framing import Framed
from headrace.connectors.formats.registry.registered import RegisteredFormat
from headrace.connectors.formats.registry.schemas import RegisteredSchema
from headrace.connectors.formats.value_format import DecodedValues
from headrace.enumerator.errors import UsageError

__all__ = ["RegisteredAvroFormat"]

_MOST_FORMATS = 256
"""Programs that are kept, one for each writer's schema: more than a topic has, and a bound on what garbage can cost."""


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
        self._formats: dict[tuple[RegisteredSchema, int], AvroFormat | str] = {}
        return self._format(self.reader, 0)

    def _decoded(self, writer: RegisteredSchema, group: Framed, values: pa.Array) -> DecodedValues | str:
        if group.tail:
            return "the header that names its schema continues after the id"
        avro = self._resolved(writer, group.skipped)
        return avro if isinstance(avro, str) else avro.decode(values)

    def _resolved(self, writer: RegisteredSchema, skipped: int) -> AvroFormat | str:
        """What decodes these values, or why nothing does."""
        if (writer, skipped) not in self._formats:
            try:
                made: AvroFormat | str = self._format(writer, skipped)
            except UsageError as error:
                made = f"schema {writer.id} cannot be read by the reader's schema: {error}"
            if len(self._formats) >= _MOST_FORMATS:
                self._formats.clear()
            self._formats[writer, skipped] = made
        return self._formats[writer, skipped]

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
