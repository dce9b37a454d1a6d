"""Runs any log source, bounded source or sink as a Python data source of Spark. No connector is known here.

`StreamReader` and `BatchReader` carry out a `LogRead`. Import them from `headrace.runners.spark.readers`: this package
stays light, as every process that Spark starts imports it.
"""

from headrace.runners.spark.session import require_pyspark, session_builder, warm_session_builder

__all__ = ["require_pyspark", "session_builder", "warm_session_builder"]
