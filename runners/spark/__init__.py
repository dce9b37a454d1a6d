"""Runs any log source, bounded source or sink as a Python data source of Spark. No connector is known here.

`StreamReader` and `BatchReader` carry out a `LogRead`. Import them from `headrace.runners.spark.readers`: this package
stays light, as every process that Spark starts imports it.
"""
