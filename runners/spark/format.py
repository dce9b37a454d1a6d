"""The data source that the layer above gives to sessions and drivers: they know no connector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql.datasource import DataSource

__all__ = ["DataSourceFormat"]


@dataclass(frozen=True, slots=True)
class DataSourceFormat:
    """A format for Spark.

    `preload` imports what the Python processes of its queries import. It is a function at the top of a module: another process
    finds it by its name.
    """

    data_source: type[DataSource]
    preload: Callable[[], None]
