"""`format("headrace")` as sessions and drivers are given it."""

from __future__ import annotations

from headrace.runners.spark.session import DataSourceFormat
from headrace.spark.data_source import DefaultSource
from headrace.spark.preload import preload


def headrace_format() -> DataSourceFormat:
    """The format. A function, as a driver is another process, and finds it by its name."""
    return DataSourceFormat(DefaultSource, preload)
