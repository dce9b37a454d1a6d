"""Delta tables as a sink: `DeltaSink` appends rows, or merges changes by key, exactly once. Needs the extra `delta`."""

from headrace.connectors.tables.delta import DeltaSink

__all__ = ["DeltaSink"]
