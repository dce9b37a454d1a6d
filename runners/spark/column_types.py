"""Columns and rows of Arrow as Spark has them: which of its types a source's columns get, and what these do not hold."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, TimeType

from headrace.connectors.base.nested import cast_nested, with_types
from headrace.enumerator.errors import UsageError
from headrace.enumerator.source import Source
from headrace.runners.spark.readers import spark_schema
from headrace.runners.spark.version import HAS_NANOSECONDS

_NANOSECONDS = 9
_TIMES = {0: pa.time32("s"), 3: pa.time32("ms"), 6: pa.time64("us"), _NANOSECONDS: pa.time64("ns")}
"""By the most digits that they hold."""


def spark_types(source: Source[Any]) -> StructType:
    """The source's columns as Spark has them. Raises UsageError, which names the column, for a type that Spark has not."""
    for field in source.schema:
        try:
            (held,) = to_arrow_schema(spark_schema(pa.schema([field])), timezone="UTC")  # which refuses too many digits
            _check_scales(held.type)
        except Exception as error:  # PySpark has several kinds for it, some without a text
            raise UsageError(f"column {field.name!r} of source {source.name!r}: Spark has no type for {field.type}") from error
    schema = spark_schema(source.schema)
    if not HAS_NANOSECONDS:
        return schema
    pairs = zip(schema, source.schema.types, strict=True)
    return StructType([_field_of(field, _with_nanoseconds(field.dataType, arrow)) for field, arrow in pairs])


def _check_scales(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        raise ValueError(kind)
    return with_types(kind, _check_scales)


def _with_nanoseconds(kind: DataType, arrow: pa.DataType) -> DataType:
    """The type as PySpark makes it of Arrow's, with all digits of times: PySpark names six of them, and Spark keeps nine."""
    if pa.types.is_dictionary(arrow):
        return _with_nanoseconds(kind, arrow.value_type)
    match kind:
        case StructType():
            pairs = zip(kind, arrow, strict=True)
            return StructType([_field_of(field, _with_nanoseconds(field.dataType, inner.type)) for field, inner in pairs])
        case ArrayType():
            return ArrayType(_with_nanoseconds(kind.elementType, arrow.value_type), kind.containsNull)
        case MapType():
            key, item = _with_nanoseconds(kind.keyType, arrow.key_type), _with_nanoseconds(kind.valueType, arrow.item_type)
            return MapType(key, item, kind.valueContainsNull)
    return TimeType(_NANOSECONDS) if arrow == pa.time64("ns") else kind


def _field_of(field: StructField, kind: DataType) -> StructField:
    return StructField(field.name, kind, field.nullable, field.metadata)


def held_schema(schema: StructType) -> pa.Schema:
    """Arrow's types that hold what these columns do, and no more: PySpark makes nanoseconds of a `time` of any precision."""
    columns = zip(schema, to_arrow_schema(schema, timezone="UTC"), strict=True)
    return pa.schema([arrow.with_type(_held(field.dataType, arrow.type, field.name)) for field, arrow in columns])


def _held(kind: DataType, arrow: pa.DataType, column: str) -> pa.DataType:
    match kind:
        case TimeType():
            if kind.precision not in _TIMES:
                others = " or ".join(f"time({digits})" for digits in _TIMES)
                raise UsageError(f"column {column!r}: Spark would keep more digits in time({kind.precision}): read {others}")
            return _TIMES[kind.precision]
        case StructType():
            pairs = zip(kind, arrow, strict=True)
            return pa.struct([inner.with_type(_held(field.dataType, inner.type, column)) for field, inner in pairs])
        case ArrayType():
            return pa.list_(arrow.value_field.with_type(_held(kind.elementType, arrow.value_type, column)))
        case MapType():
            key, item = _held(kind.keyType, arrow.key_type, column), _held(kind.valueType, arrow.item_type, column)
            return pa.map_(arrow.key_field.with_type(key), arrow.item_field.with_type(item))
    return arrow


def has_nanoseconds(kind: DataType) -> bool:
    """Whether a time in it has more digits than microseconds."""
    return re.search(r"TimeType\([789]\)", repr(kind)) is not None


def in_microseconds(kind: pa.DataType) -> pa.DataType:
    """With microseconds in its times of a day, at any depth."""
    return _with_times(kind, pa.time64("us"))


def _with_times(kind: pa.DataType, time: pa.DataType) -> pa.DataType:
    return time if pa.types.is_time(kind) else with_types(kind, functools.partial(_with_times, time=time))


def spark_rows(batches: Iterable[pa.RecordBatch], held: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches as Spark takes them, by a `held_schema`. Raises UsageError for a value that its column cannot hold."""
    taken = pa.schema([field.with_type(_with_times(field.type, pa.time64("ns"))) for field in held])
    for batch in batches:
        yield converted(converted(batch, held), taken)


def converted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with this schema. Raises UsageError for a value that it cannot hold."""
    if batch.schema.equals(schema):
        return batch
    try:
        for place, field in enumerate(schema if batch.schema.names == schema.names else ()):
            if pa.types.is_nested(field.type) and batch.column(place).type != field.type:
                batch = batch.set_column(place, field.name, cast_nested(batch.column(place), field.type))
        return batch.cast(schema)
    except (ValueError, pa.ArrowNotImplementedError) as error:  # ValueError: also of nulls where the schema has none
        raise UsageError(f"Spark cannot hold what the source gives: {error}") from error
