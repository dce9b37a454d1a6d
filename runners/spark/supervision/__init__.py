"""Supervision of Spark jobs: drivers as child processes, started again as `headrace.runners.spark.supervision.core` decides."""
