"""Metrics of a Spark session's streaming queries for Prometheus: query listeners, and counts that other processes send."""
