"""Spark's schemas and Arrow's: the columns a user gets, or asks for with `.schema(...)`."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headrace.enumerator.errors import UsageError
from headrace.enumerator.split import OffsetSplitT
from headrace.runners.spark.log_read import LogRead


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of Arrow batches with this schema: a time without a zone is not an instant."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def default_schema(read: LogRead[OffsetSplitT]) -> StructType:
    return spark_schema(pa.schema([read.source.schema.field(name) for name in read.columns]))


def wanted_columns(read: LogRead[OffsetSplitT], wanted: StructType) -> list[str]:
    """The names in `wanted`, in its order. Raises UsageError for an unknown column, a wrong type or NOT NULL."""
    there = {field.name: field for field in spark_schema(read.source.schema).fields}
    wrong = [
        f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' not null'}"
        for field in wanted.fields
        if field.name not in there or not field.nullable or field.dataType != there[field.name].dataType
    ]
    if wrong or not wanted.fields or len(set(wanted.names)) < len(wanted.names):
        columns = ", ".join(f"{name} {field.dataType.simpleString()}" for name, field in there.items())
        problem = f"cannot read {', '.join(wrong)}" if wrong else "needs at least one column, each once"
        raise UsageError(f"the schema {problem}; it may hold these columns, in any order: {columns}")
    return list(wanted.names)
