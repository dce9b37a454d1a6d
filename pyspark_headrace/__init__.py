"""Spark's auto-registration hook: PySpark imports every `pyspark_*` package, so `format("headrace")` just works.

A package of one module, because that is all that needs a name which Spark finds.
"""

from headrace.spark.data_source import DefaultSource

__all__ = ["DefaultSource"]
