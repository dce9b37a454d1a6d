"""Formats by the names that options and command lines have for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.connectors.formats.plain import BytesFormat, StringFormat
from headrace.connectors.formats.value_format import ValueFormat
from headrace.enumerator.errors import UsageError

__all__ = ["FORMAT_NAMES", "create_format"]

FORMAT_NAMES = ("avro", "bytes", "json", "string")
"""What `create_format` takes."""


def create_format(
    name: str,
    *,
    arrow_type: pa.DataType | None = None,
    schema: str | None = None,
    reader_schema: str | None = None,
    references: Mapping[str, str] | None = None,
    fields: Sequence[str] | None = None,
) -> ValueFormat:
    """The format of this name, one of FORMAT_NAMES.

    `json` needs `arrow_type`, and `avro` needs `schema`; `reader_schema`, `references` and `fields` are of `avro` alone and as
    `AvroFormat` has them. Raises UsageError for another name, for an argument that is missing, and for one that the format does
    not use; MissingExtraError where `avro` has no fastavro.
    """
    avro = {"schema": schema, "reader_schema": reader_schema, "references": references, "fields": fields}
    given = {key for key, value in {"arrow_type": arrow_type, **avro}.items() if value is not None}
    if name == "protobuf":
        raise UsageError("format 'protobuf' is not supported; take 'bytes', and decode the column with a Protobuf library")
    if name not in FORMAT_NAMES:
        raise UsageError(f"format {name!r} is not known; there are {', '.join(FORMAT_NAMES)}")
    if surplus := given - {"json": {"arrow_type"}, "avro": set(avro)}.get(name, set()):
        raise UsageError(f"format {name!r} does not use {', '.join(sorted(surplus))}")
    if name == "json":
        return _json(arrow_type)
    if name == "avro":
        if schema is None:
            raise UsageError("format 'avro' needs schema, the JSON text of the writer's Avro schema")
        from headrace.connectors.formats.avro.avro_format import AvroFormat

        return AvroFormat(schema, reader_schema=reader_schema, references=references, fields=fields)
    return StringFormat() if name == "string" else BytesFormat()


def _json(arrow_type: pa.DataType | None) -> ValueFormat:
    if arrow_type is None:
        raise UsageError("format 'json' needs arrow_type, the type of its values")
    from headrace.connectors.formats.json_values import JsonFormat

    return JsonFormat(arrow_type)
