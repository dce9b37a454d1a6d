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
from pyspark.sql.types import StructType

from headrace.enumerator.errors import UsageError
from headrace.enumerator.source import Boundedness, Source, StagedSource, check_needs_no_ends, check_needs_no_finished
from headrace.runners.spark.column_types import held_schema, spark_rows, spark_types
from headrace.runners.spark.planning import packed, told_parallelism
from headrace.runners.spark.private import active
from headrace.runners.spark.readers import SplitsPartition
from headrace.runners.spark.tasks import read_splits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STALL_S = 600.0


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


def pickled(value: object) -> bytes:
    """By PySpark's own copy of cloudpickle: what is in the user's `__main__`, and lambdas, travel by value."""
    return cast("bytes", cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


@functools.lru_cache(maxsize=16)
def loaded(data: bytes) -> Any:  # noqa: ANN401 - what was pickled
    """Once in a process, so that what is kept by sink (connections, a driver's fence) is found for the next batch."""
    return cloudpickle.loads(data)


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
        yield from spark_rows(read_splits(source, partition.splits, source.schema.names, STALL_S), self._schema)
