"""Delta tables as a sink: `DeltaSink` appends rows, or merges changes by key, exactly once. Needs the extra `delta`."""

from headrace._extras import needs_extra as _needs_extra

with _needs_extra("delta", "deltalake"):
    from headrace.connectors.tables.delta import DeltaSink

__all__ = ["DeltaSink"]
