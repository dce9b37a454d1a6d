"""Delta tables as a sink: `DeltaSink` appends rows, or merges `Changes` by key, exactly once. Needs the extra `delta`."""

from headrace.connectors.tables.changes import Changes
from headrace.connectors.tables.delta import DeltaSink

__all__ = ["Changes", "DeltaSink"]
