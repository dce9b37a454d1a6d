"""What the bytes of a record's key or value mean: binary columns to typed ones and back.

`AvroFormat(schema).decode(batch.column("value"))` gives the typed column and the values that are bad. Formats by name are
`create_format("json", arrow_type=...)`. Avro needs `pip install 'headrace[avro]'`,
Protobuf `pip install 'headrace[protobuf]'`.

`RegisteredAvroFormat.of_subject(SchemaRegistry(url), "flights-value")` decodes values in the wire format of Confluent's schema
registry, whichever of its schemas they have: `pip install 'headrace[registry]'`; `RegisteredProtobufFormat` and
`RegisteredJsonFormat` likewise.
"""

from headrace.connectors.formats.avro.avro_format import AvroFormat
from headrace.connectors.formats.by_name import FORMAT_NAMES, create_format
from headrace.connectors.formats.debezium import debezium_changes, debezium_envelope
from headrace.connectors.formats.json_schema import JsonSchemaFormat
from headrace.connectors.formats.json_values import JsonFormat
from headrace.connectors.formats.plain import BytesFormat, StringFormat
from headrace.connectors.formats.protobuf.protobuf_format import ProtobufFormat
from headrace.connectors.formats.registry.avro_values import RegisteredAvroFormat
from headrace.connectors.formats.registry.client import SchemaRegistry
from headrace.connectors.formats.registry.json_values import RegisteredJsonFormat
from headrace.connectors.formats.registry.protobuf_values import RegisteredProtobufFormat
from headrace.connectors.formats.registry.schemas import RegisteredSchema, SchemaReference, SubjectStrategy, subject_name
from headrace.connectors.formats.value_format import BadValue, DecodedValues, ValueFormat

__all__ = [
    "FORMAT_NAMES", "AvroFormat", "BadValue", "BytesFormat", "DecodedValues", "JsonFormat", "JsonSchemaFormat",
    "ProtobufFormat", "RegisteredAvroFormat", "RegisteredJsonFormat", "RegisteredProtobufFormat", "RegisteredSchema",
    "SchemaReference", "SchemaRegistry", "StringFormat", "SubjectStrategy", "ValueFormat", "create_format",
    "debezium_changes", "debezium_envelope", "subject_name",
]  # fmt: skip
