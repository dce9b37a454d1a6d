"""The core: sources, splits, enumerators, the coordinator and checkpoints, without I/O, threads, clocks or an engine."""

from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.coordinator import Coordinator
from headrace.enumerator.embedded import EmbeddedRun
from headrace.enumerator.enumerator import (
    EagerEnumerator,
    LazyEnumerator,
    SharingEnumerator,
    SplitEnumerator,
    create_enumerator,
    restore_enumerator,
)
from headrace.enumerator.ledger import Ledger, SplitState
from headrace.enumerator.source import (
    Boundedness,
    DiscoveryResult,
    IncrementalDiscovery,
    LogSource,
    Source,
    SourceReader,
    SplitBatch,
    SplitDiscovery,
    SplitSerializer,
)
from headrace.enumerator.split import OffsetSplit, SizedSplit, SourceSplit

__all__ = [
    "Boundedness",
    "Checkpoint",
    "CheckpointSerializer",
    "Coordinator",
    "DiscoveryResult",
    "EagerEnumerator",
    "EmbeddedRun",
    "IncrementalDiscovery",
    "LazyEnumerator",
    "Ledger",
    "LogSource",
    "OffsetSplit",
    "SharingEnumerator",
    "SizedSplit",
    "Source",
    "SourceReader",
    "SourceSplit",
    "SplitBatch",
    "SplitDiscovery",
    "SplitEnumerator",
    "SplitSerializer",
    "SplitState",
    "create_enumerator",
    "restore_enumerator",
]
