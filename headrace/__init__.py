"""Flink's source model (enumerator, splits, readers) for engines without it, with restores that never re-initialise.

The public names live in small modules, so that importing headrace imports no engine and no client library:

- `headrace.kafka`: KafkaSource and the positions
- `headrace.enumerator`: what a connector implements, and the heart
- `headrace.testing`: the conformance kit
- `spark.read.format("headrace")` and `spark.readStream.format("headrace")` need no import at all
"""

from headrace._version import __version__

__all__ = ["__version__"]
