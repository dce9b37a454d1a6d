"""The types of a frame's columns, as its rows have them in Python."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from headrace.enumerator.errors import UsageError


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns in Arrow's types. Raises UsageError naming one whose type Spark gives to no Python: an interval of years."""
    fields: list[pa.Field] = []
    for field in schema:
        try:
            fields += to_arrow_schema(StructType([field]), timezone="UTC")
        except (PySparkException, TypeError, ValueError) as error:
            kind = field.dataType.simpleString()
            raise UsageError(f"column {field.name!r}: {kind} cannot be read or written, only another type: {error}") from error
    return pa.schema(fields)


def arrow_type(name: str, kind: DataType) -> pa.DataType:
    """That of one column. Raises as `arrow_schema`."""
    return arrow_schema(StructType([StructField(name, kind)])).field(0).type
