"""Injected bugs of reads on Spark: formats that are wrong in one way, and a bench on which views are planned for each use.

A format is a class that a session registers: what is patched in this process is not patched in Spark's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pyspark.sql.datasource import EqualTo, Filter, InputPartition, IsNotNull
from pyspark.sql.types import StructType

from headrace.runners.spark.readers import BatchReader, SplitsPartition
from headrace.spark.data_source import DefaultSource
from tests.values.plans import Bench


class _PruningReader(BatchReader[Any]):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asked: dict[str, Any] = {}

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        for each in filters:
            if isinstance(each, EqualTo) and each.attribute in (("partition",), ("topic",)):
                self._asked[each.attribute[0]] = each.value
        return filters

    def partitions(self) -> list[InputPartition]:
        """Spark keeps these in the data source object, which all scans of a frame share."""

        def kept(task: Any) -> list[Any]:
            return [split for split in task.splits if all(getattr(split, name) == value for name, value in self._asked.items())]

        return [SplitsPartition(kept(task)) for task in super().partitions()]


class _CutReader(BatchReader[Any]):
    def partitions(self) -> list[InputPartition]:
        def cut(split: Any) -> Any:
            return split.between(split.next_offset, max(split.next_offset, split.stop_offset - 1))

        return [SplitsPartition([cut(split) for split in task.splits]) for task in super().partitions()]


class _NeverNullReader(BatchReader[Any]):
    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        return [each for each in filters if not (isinstance(each, IsNotNull) and each.attribute == ("timestamp",))]


class PrunedScans(DefaultSource):
    """A pushed filter prunes the scan of all other uses of the frame."""

    @classmethod
    def name(cls) -> str:
        return "pruned_scans"

    def reader(self, schema: StructType) -> BatchReader[Any]:
        return _PruningReader(super().reader(schema)._job, schema)


class CutRanges(DefaultSource):
    """Each range ends one offset too soon."""

    @classmethod
    def name(cls) -> str:
        return "cut_ranges"

    def reader(self, schema: StructType) -> BatchReader[Any]:
        return _CutReader(super().reader(schema)._job, schema)


class NeverNull(DefaultSource):
    """A column that may be null is called never null: Spark need not ask for `timestamp IS NOT NULL`."""

    @classmethod
    def name(cls) -> str:
        return "never_null"

    def reader(self, schema: StructType) -> BatchReader[Any]:
        return _NeverNullReader(super().reader(schema)._job, schema)


FORMATS = (PrunedScans, CutRanges, NeverNull)


@contextmanager
def planned_for_each_use() -> Iterator[None]:
    """A view's ends are looked up for each use with a filter, while its topic grows."""
    with patch.object(Bench, "pushes", lambda *_: True):
        yield
