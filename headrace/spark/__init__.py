"""What a program for Spark may import: the builders of sessions, `run` for a job that is started again when it fails,
`metrics` for Prometheus, `read_source` (a frame of any bounded source), `read_stream` (a streaming one of any source), and
`with_dead_letters` for where bad records go.

Needs `pip install 'headrace[spark]'`. `spark.read.format("headrace")` needs no import.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.spark.program import (
        MetricsServer,
        metrics,
        read_source,
        read_stream,
        run,
        session_builder,
        warm_session_builder,
        with_dead_letters,
    )

__all__ = [
    "MetricsServer",
    "metrics",
    "read_source",
    "read_stream",
    "run",
    "session_builder",
    "warm_session_builder",
    "with_dead_letters",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever has this name
    """A public name, looked up only when asked for: every Python process that Spark starts imports this package.

    Raises ImportError, with advice, where there is no PySpark.
    """
    if name not in __all__:
        raise AttributeError(f"module 'headrace.spark' has no attribute {name!r}")
    from headrace._extras import needs_extra as _needs_extra

    with _needs_extra("spark", "pyspark"):
        from headrace.spark import program as _program
    return getattr(_program, name)
