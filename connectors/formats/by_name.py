"""Formats by the names that options and command lines have for them: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connectors.base.arguments import text
from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connectors.formats.avro.recursion import Recursive
    from headrace.connectors.formats.registry.registered import RegisteredFormat
    from headrace.connectors.formats.value_format import ValueFormat


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """One format. The loaders import its library: a process that does not use the format does not need it."""

    name: str
    load: Callable[[], Callable[..., ValueFormat]]
    arguments: frozenset[str] = frozenset()
    """Those of `create_format` that the format takes."""

    needs: tuple[str, str] | None = None
    """The argument that it cannot be made without, and what that argument is."""

    registry_kind: str | None = None
    """What a schema registry calls its schemas; None for a format without a schema."""

    load_registered: Callable[[], type[RegisteredFormat]] | None = None
    """The class for values in a schema registry's wire format."""


def _avro() -> type[ValueFormat]:
    from headrace.connectors.formats.avro.avro_format import AvroFormat

    return AvroFormat


def _registered_avro() -> type[RegisteredFormat]:
    from headrace.connectors.formats.registry.avro_values import RegisteredAvroFormat

    return RegisteredAvroFormat


def _bytes() -> type[ValueFormat]:
    from headrace.connectors.formats.plain import BytesFormat

    return BytesFormat


def _json() -> type[ValueFormat]:
    from headrace.connectors.formats.json_values import JsonFormat

    return JsonFormat


def _json_schema() -> type[ValueFormat]:
    from headrace.connectors.formats.json_schema import JsonSchemaFormat

    return JsonSchemaFormat


def _registered_json() -> type[RegisteredFormat]:
    from headrace.connectors.formats.registry.json_values import RegisteredJsonFormat

    return RegisteredJsonFormat


def _protobuf() -> type[ValueFormat]:
    from headrace.connectors.formats.protobuf.protobuf_format import ProtobufFormat

    return ProtobufFormat


def _registered_protobuf() -> type[RegisteredFormat]:
    from headrace.connectors.formats.registry.protobuf_values import RegisteredProtobufFormat

    return RegisteredProtobufFormat


def _string() -> type[ValueFormat]:
    from headrace.connectors.formats.plain import StringFormat

    return StringFormat


_SCHEMA = frozenset({"schema", "references", "fields"})

FORMATS: Mapping[str, FormatSpec] = {
    spec.name: spec
    for spec in (
        FormatSpec(
            "avro",
            _avro,
            _SCHEMA | {"reader_schema", "recursive"},
            needs=("schema", "the JSON text of the writer's Avro schema"),
            registry_kind="AVRO",
            load_registered=_registered_avro,
        ),
        FormatSpec("bytes", _bytes),
        FormatSpec("json", _json, frozenset({"arrow_type", "time_zone"}), needs=("arrow_type", "the type of its values")),
        FormatSpec(
            "json-schema",
            _json_schema,
            _SCHEMA,
            needs=("schema", "the text of a JSON Schema"),
            registry_kind="JSON",
            load_registered=_registered_json,
        ),
        FormatSpec(
            "protobuf",
            _protobuf,
            _SCHEMA | {"message"},
            needs=("schema", "the text of a .proto file"),
            registry_kind="PROTOBUF",
            load_registered=_registered_protobuf,
        ),
        FormatSpec("string", _string),
    )
}
"""All formats, in the order of their names. Options, command lines and documents take their lists from here."""

FORMAT_NAMES = tuple(FORMATS)
"""What `create_format` takes."""


def create_format(
    name: str,
    *,
    arrow_type: pa.DataType | None = None,
    time_zone: str | Callable[[], str] | None = None,
    schema: str | None = None,
    reader_schema: str | None = None,
    message: str | None = None,
    references: Mapping[str, str] | None = None,
    fields: Sequence[str] | None = None,
    recursive: Recursive | None = None,
) -> ValueFormat:
    """The format of this name, one of FORMAT_NAMES.

    `json` needs `arrow_type`; `avro`, `json-schema` and `protobuf` need `schema`; what they take besides is as `JsonFormat`,
    `AvroFormat`, `JsonSchemaFormat` and `ProtobufFormat` have it. Raises UsageError for another name, for an argument that is
    missing, for one that the format does not use, and where a library is not installed.
    """
    all_arguments = {
        "arrow_type": arrow_type,
        "time_zone": time_zone,
        "schema": schema,
        "reader_schema": reader_schema,
        "message": message,
        "references": references,
        "fields": fields,
        "recursive": recursive,
    }
    given = {key: value for key, value in all_arguments.items() if value is not None}
    spec = FORMATS.get(text("name", name))
    if spec is None:
        raise UsageError(f"format {name!r} is not known; there are {', '.join(FORMAT_NAMES)}")
    if surplus := given.keys() - spec.arguments:
        raise UsageError(f"format {name!r} does not use {', '.join(sorted(surplus))}")
    if spec.needs is not None and spec.needs[0] not in given:
        argument, meaning = spec.needs
        raise UsageError(f"format {name!r} needs {argument}, {meaning}")
    return spec.load()(**given)
