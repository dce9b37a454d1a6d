"""Formats by the names that options and command lines have for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.formats.plain import BytesFormat, StringFormat
from headrace.connectors.formats.value_format import ValueFormat
from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    from headrace.connectors.formats.avro.recursion import Recursive

__all__ = ["FORMAT_NAMES", "create_format"]

FORMAT_NAMES = ("avro", "bytes", "json", "json-schema", "protobuf", "string")
"""What `create_format` takes."""


def create_format(
    name: str,
    *,
    arrow_type: pa.DataType | None = None,
    schema: str | None = None,
    reader_schema: str | None = None,
    message: str | None = None,
    references: Mapping[str, str] | None = None,
    fields: Sequence[str] | None = None,
    recursive: Recursive | None = None,
) -> ValueFormat:
    """The format of this name, one of FORMAT_NAMES.

    `json` needs `arrow_type`; `avro`, `json-schema` and `protobuf` need `schema`; what they take besides is as `AvroFormat`,
    `JsonSchemaFormat` and `ProtobufFormat` have it. Raises UsageError for another name, for an argument that is missing, for
    one that the format does not use, and where a library is not installed.
    """
    shared = {"schema": schema, "references": references, "fields": fields}
    more = {"arrow_type": arrow_type, "reader_schema": reader_schema, "message": message, "recursive": recursive}
    given = {key for key, value in {**shared, **more}.items() if value is not None}
    if name not in FORMAT_NAMES:
        raise UsageError(f"format {name!r} is not known; there are {', '.join(FORMAT_NAMES)}")
    own = {
        "json": {"arrow_type"},
        "json-schema": {*shared},
        "avro": {*shared, "reader_schema", "recursive"},
        "protobuf": {*shared, "message"},
    }
    if surplus := given - own.get(name, set()):
        raise UsageError(f"format {name!r} does not use {', '.join(sorted(surplus))}")
    if name == "json":
        return _json(arrow_type)
    if name == "avro":
        if schema is None:
            raise UsageError("format 'avro' needs schema, the JSON text of the writer's Avro schema")
        from headrace.connectors.formats.avro.avro_format import AvroFormat

        how = recursive or "refuse"
        return AvroFormat(schema, reader_schema=reader_schema, references=references, fields=fields, recursive=how)
    if name == "json-schema":
        if schema is None:
            raise UsageError("format 'json-schema' needs schema, the text of a JSON Schema")
        from headrace.connectors.formats.json_schema import JsonSchemaFormat

        return JsonSchemaFormat(schema, references=references, fields=fields)
    if name == "protobuf":
        if schema is None:
            raise UsageError("format 'protobuf' needs schema, the text of a .proto file")
        from headrace.connectors.formats.protobuf.protobuf_format import ProtobufFormat

        return ProtobufFormat(schema, message=message, references=references, fields=fields)
    return StringFormat() if name == "string" else BytesFormat()


def _json(arrow_type: pa.DataType | None) -> ValueFormat:
    if arrow_type is None:
        raise UsageError("format 'json' needs arrow_type, the type of its values")
    from headrace.connectors.formats.json_values import JsonFormat

    return JsonFormat(arrow_type)
