"""What the bytes of a record's key or value mean: binary columns to typed ones and back.

`AvroFormat(schema).decode(batch.column("value"))` gives the typed column and the values that are bad. Formats by name are
`create_format("json", arrow_type=...)`. Avro needs `pip install 'headrace[avro]'`.
"""

from headrace.connectors.formats.avro.avro_format import AvroFormat
from headrace.connectors.formats.by_name import FORMAT_NAMES, create_format
from headrace.connectors.formats.json_values import JsonFormat
from headrace.connectors.formats.plain import BytesFormat, StringFormat
from headrace.connectors.formats.value_format import BadValue, DecodedValues, ValueFormat

__all__ = [
    "FORMAT_NAMES",
    "AvroFormat",
    "BadValue",
    "BytesFormat",
    "DecodedValues",
    "JsonFormat",
    "StringFormat",
    "ValueFormat",
    "create_format",
]
