"""Any bounded source as a frame of Spark: a task reads a split.

A task that fails is tried again from the split's start, and Spark forgets what the first attempt gave.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Self, cast
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, TimeType

from headrace.connectors.base.nested import cast_nested, with_types
from headrace.enumerator.errors import UsageError
from headrace.enumerator.source import Boundedness, Source, StagedSource, check_needs_no_ends, check_needs_no_finished
from headrace.runners.spark.planning import packed, told_parallelism
from headrace.runners.spark.private import active
from headrace.runners.spark.readers import SplitsPartition, spark_schema
from headrace.runners.spark.tasks import read_splits
from headrace.runners.spark.version import HAS_NANOSECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STALL_S = 600.0
_NANOSECONDS = 9
_TIMES = {0: pa.time32("s"), 3: pa.time32("ms"), 6: pa.time64("us"), _NANOSECONDS: pa.time64("ns")}
"""By the most digits that they hold."""


def read_source(spark: SparkSession, source: Source[Any]) -> DataFrame:
    """A frame of all that the source has, with its columns.

    The source is asked for its splits once, by the first action: for what has come since, call this again. Each split is a
    task; small ones share one where they state their size (`SizedSplit`). A task whose reader has nothing for ten minutes
    fails. Raises UsageError for a source without end, for a `Hybrid`, for files that are to be archived or deleted, and
    for a type of its schema that Spark does not have.
    """
    check_needs_no_ends(source, "a frame of Spark")
    if source.boundedness is not Boundedness.BOUNDED:
        raise UsageError(f"source {source.name!r} has no end: only a bounded source can be read as a frame")
    if isinstance(source, StagedSource):
        raise UsageError(f"source {source.name!r} has several stages: unite the frames of its sources, or read it as a stream")
    check_needs_no_finished(source, "a frame may be read again: read it as a stream, or without that argument")
    spark_types(source)
    with active(spark), advised():
        return spark.read.format(register_once(spark, BoundedSourceFormat.of(source))).load()


@contextmanager
def advised() -> Iterator[None]:
    """Around what has Spark load a format: UsageError says what to do where its Python has not what the format needs."""
    try:
        yield
    except PySparkException as error:
        if (missing := re.search(r"ModuleNotFoundError: (No module named \S+)", str(error))) is None:
            raise
        raise UsageError(
            f"the Python that Spark has started cannot load the source: {missing[1]}. Set PYSPARK_PYTHON to the Python that "
            "has headrace before the session starts, or start it with headrace.spark.session_builder(). Modules of yours are "
            "given it by --py-files"
        ) from error


_registered: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def register_once(spark: SparkSession, made: type[DataSource]) -> str:
    """The format's name, which no other has. Registered with the session again, Spark would warn that it replaces another.

    Called, as what uses the name, while the session is the active one.
    """
    known = _registered.setdefault(spark, set())
    if made.name() not in known:
        spark.dataSource.register(made)
        known.add(made.name())
    return made.name()


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


def _time_of(kind: DataType) -> pa.DataType:
    """What holds its times of a day."""
    digits = max(map(int, re.findall(r"TimeType\((\d)\)", repr(kind))), default=0)
    return next(time for most, time in _TIMES.items() if digits <= most)


def has_nanoseconds(kind: DataType) -> bool:
    """Whether a time in it has more digits than microseconds."""
    return bool(_time_of(kind) == pa.time64("ns"))


def in_microseconds(kind: pa.DataType) -> pa.DataType:
    """With microseconds in its times of a day, at any depth."""
    return _with_times(kind, pa.time64("us"))


def _with_times(kind: pa.DataType, time: pa.DataType) -> pa.DataType:
    return time if pa.types.is_time(kind) else with_types(kind, functools.partial(_with_times, time=time))


def spark_rows(batch: pa.RecordBatch, held: pa.Schema) -> pa.RecordBatch:
    """The batch as Spark takes it, by a `held_schema`. Raises UsageError for a value that its column cannot hold."""
    taken = pa.schema([field.with_type(_with_times(field.type, pa.time64("ns"))) for field in held])
    return converted(converted(batch, held), taken)


def pickled(value: object) -> bytes:
    """By PySpark's own copy of cloudpickle: what is in the user's `__main__`, and lambdas, travel by value."""
    return cast("bytes", cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


@functools.lru_cache(maxsize=16)
def loaded(data: bytes) -> Any:  # noqa: ANN401 - what was pickled
    """Once in a process, so that what is kept by sink (connections, a driver's fence) is found for the next batch."""
    return cloudpickle.loads(data)


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


class PickledFormat(DataSource):
    """The base of formats, one for each source or sink, that hold it pickled. Made in a Python process alongside the driver.

    Spark pickles the classes that are registered with a session, which only its owner does. An option of a frame would not do:
    many may set those, and to unpickle is to run code.
    """

    PREFIX: str
    PICKLED: bytes

    @classmethod
    def of(cls, held: object) -> type[Self]:
        """The format that holds this. Travels by value, as no module holds it."""
        return type(f"Registered{cls.__name__}", (cls,), {"PICKLED": pickled(held)})

    @classmethod
    def name(cls) -> str:
        return f"{cls.PREFIX}{hashlib.sha256(cls.PICKLED).hexdigest()[:16]}"


class BoundedSourceFormat(PickledFormat):
    """The base of the formats that `read_source` registers."""

    PREFIX = "headrace_source_"

    def schema(self) -> StructType:
        return spark_types(loaded(self.PICKLED))

    def reader(self, schema: StructType) -> BoundedReader:
        return BoundedReader(self.PICKLED, held_schema(schema))


class BoundedReader(DataSourceReader):
    """Spark plans by it in a planning process; `read` runs on an unpickled copy in each worker."""

    def __init__(self, source: bytes, schema: pa.Schema) -> None:
        """`source` is pickled: Spark pickles the reader, and need not know how a source is pickled. `schema`: as held."""
        self._source, self._schema = source, schema

    def partitions(self) -> list[InputPartition]:
        source: Source[Any] = loaded(self._source)
        with closing(source.create_discovery()) as discovery:
            findings = discovery.initial()
        if not findings.complete:
            raise UsageError(f"source {source.name!r} is bounded, and states that there may be more splits later")
        return [SplitsPartition(task) for task in packed(findings.added, told_parallelism())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SplitsPartition):
            return  # Spark's stand-in for an empty list of partitions
        source: Source[Any] = loaded(self._source)
        for batch in read_splits(source, partition.splits, source.schema.names, STALL_S):
            yield spark_rows(batch, self._schema)
