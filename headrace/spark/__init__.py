"""What a program for Spark may import: the builders of sessions, `run` for a job that is started again when it fails,
`metrics` for Prometheus, `read_source` for any bounded source, and `with_dead_letters` for where bad records go.

Needs `pip install 'headrace[spark]'`. `spark.read.format("headrace")` needs no import.
"""

from headrace._extras import needs_extra as _needs_extra

with _needs_extra("spark", "pyspark"):
    from headrace.runners.spark.bounded import read_source
    from headrace.runners.spark.dead_letters import with_dead_letters
    from headrace.runners.spark.metrics.exporter import MetricsServer, metrics
    from headrace.runners.spark.session import session_builder, warm_session_builder
    from headrace.runners.spark.supervision.supervisor import run

__all__ = [
    "MetricsServer",
    "metrics",
    "read_source",
    "run",
    "session_builder",
    "warm_session_builder",
    "with_dead_letters",
]
