"""JSON values by a schema registry: all are read as the reader's JSON Schema has them, whichever version wrote them."""

from __future__ import annotations

import functools
import json
from typing import ClassVar

import pyarrow as pa

from headrace.connectors.formats.json_schema import JsonSchemaFormat
from headrace.connectors.formats.registry.framing import Framed
from headrace.connectors.formats.registry.registered import RegisteredFormat
from headrace.connectors.formats.registry.schemas import RegisteredSchema
from headrace.connectors.formats.value_format import DecodedValues


class RegisteredJsonFormat(RegisteredFormat):
    """JSON values in a registry's wire format, as `RegisteredFormat` has them. `fields`: as `JsonSchemaFormat` has them.

    Properties that the reader's schema does not have are skipped; those that a value lacks are null.
    """

    kind: ClassVar[str] = "JSON"

    @property
    def record(self) -> str | None:
        """The title of the reader's JSON Schema, if it has one."""
        document = json.loads(self.reader.text.removeprefix("\ufeff"))
        title = document.get("title") if isinstance(document, dict) else None
        return title if isinstance(title, str) else None

    def _reading_own(self) -> JsonSchemaFormat:
        self._behind = functools.cache(self._format)
        return self._behind(0)

    def _decoded(self, writer: RegisteredSchema, group: Framed, values: pa.Array) -> DecodedValues | str:
        del writer
        if group.tail:
            return "the header that names its schema continues after the id"
        return self._behind(group.skipped).decode(values)

    def _format(self, header_bytes: int) -> JsonSchemaFormat:
        references = dict(self.reader.references)
        return JsonSchemaFormat(self.reader.text, references=references, fields=self._fields, header_bytes=header_bytes)
