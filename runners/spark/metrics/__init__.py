"""Metrics of a Spark session's streaming queries, for Prometheus."""
