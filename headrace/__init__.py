"""Flink's source model (enumerator, splits, readers) for engines without it, with restores that never re-initialise.

The public names live in small modules, so that importing headrace imports no engine and no client library:

- `headrace.kafka`: KafkaSource and the positions, KafkaSink
- `headrace.sql`, `headrace.files`, `headrace.delta`, `headrace.iceberg`: sinks
- `headrace.Pipeline`, `headrace.run`: pipelines in processes of this machine, exactly once, without an engine
- `headrace.beam`: transforms for Beam, and Beam's bounded sources as sources
- `headrace.spark`: sessions, and any bounded source as a frame
- `headrace.errors`: what may be caught
- `headrace.enumerator`: what a source implements, and the core
- `headrace.sinks`: what a sink implements
- `headrace.sources`: one source after another
- `headrace.testing`: conformance kits, and sources and sinks in memory
- `spark.read.format("headrace")` and `spark.readStream.format("headrace")` need no import at all
"""

from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401 - text or a class
    """`__version__` and `Pipeline`, looked up only when asked for: every Spark worker process imports this module."""
    if name == "Pipeline":
        from headrace.run import Pipeline

        return Pipeline
    if name == "__version__":
        from importlib.metadata import version

        return version("headrace")
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
