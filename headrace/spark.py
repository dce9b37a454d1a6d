"""What a program for Spark may import: the builders of sessions, and `read_source` for any bounded source.

Needs `pip install 'headrace[spark]'`. `spark.read.format("headrace")` needs no import.
"""

from headrace._extras import needs_extra as _needs_extra

with _needs_extra("spark", "pyspark"):
    from headrace.runners.spark.bounded import read_source
    from headrace.runners.spark.session import session_builder, warm_session_builder

__all__ = ["read_source", "session_builder", "warm_session_builder"]
