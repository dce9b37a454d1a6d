"""For tests: the kits that show a connector, a sink and a runner to be right, sources and sinks in memory, and a Kafka cluster.

The kits need pytest (`pip install 'headrace[testing]'`), the rest does not. A kit is imported when it is asked for, and so is
`FakeKafka`, a Kafka cluster in this process.
"""

import sys
import warnings
from typing import TYPE_CHECKING, Any

from headrace.testing.dying import COMMITTER_STEPS, DyingCommitter, Killed
from headrace.testing.memory import MemoryLog, MemoryPieces, MemorySource, MemorySplit
from headrace.testing.memory_sink import MemoryHandle, MemorySink, MemoryTransactionLog

if TYPE_CHECKING:
    from headrace.testing.conformance import ExternalContext, Run, SourceConformance
    from headrace.testing.fake_kafka import FakeKafka
    from headrace.testing.sink_conformance import SinkConformance, SinkContext
    from headrace.testing.spark_conformance import SparkSourceConformance

__all__ = [
    "COMMITTER_STEPS",
    "DyingCommitter",
    "ExternalContext",
    "FakeKafka",
    "Killed",
    "MemoryHandle",
    "MemoryLog",
    "MemoryPieces",
    "MemorySink",
    "MemorySource",
    "MemorySplit",
    "MemoryTransactionLog",
    "Run",
    "SinkConformance",
    "SinkContext",
    "SourceConformance",
    "SparkSourceConformance",
]

_OF_SOURCES = ("ExternalContext", "Run", "SourceConformance")
_OF_SINKS = ("SinkConformance", "SinkContext")
_ON_SPARK = ("SparkSourceConformance",)
_KITS = ("conformance", "sink_conformance", "spark_conformance")


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module has under this name
    """The fake, or a kit's class. Raises ImportError, with advice, for a kit where there is no pytest."""
    if name == "FakeKafka":
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)  # kafka-python's, 200 times
            from headrace.testing.fake_kafka import FakeKafka
        return FakeKafka
    if name not in (*_OF_SOURCES, *_OF_SINKS, *_ON_SPARK):
        raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}")
    try:
        import pytest
    except ImportError as error:
        raise ImportError(f"headrace.testing.{name} needs pytest: pip install 'headrace[testing]'") from error
    kits = {f"headrace.testing.{kit}" for kit in _KITS}
    pytest.register_assert_rewrite(*(kits - sys.modules.keys()))
    if name in _ON_SPARK:
        from headrace.testing import spark_conformance as _spark_conformance

        return getattr(_spark_conformance, name)
    from headrace.testing import conformance as _conformance
    from headrace.testing import sink_conformance as _sink_conformance

    return getattr(_conformance if name in _OF_SOURCES else _sink_conformance, name)
