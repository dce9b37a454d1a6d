"""Iceberg tables as a sink: `IcebergSink` appends rows, or merges changes by key, exactly once. Needs the extra `iceberg`."""

from headrace._extras import needs_extra as _needs_extra

with _needs_extra("iceberg", "pyiceberg"):
    from headrace.connectors.tables.iceberg import IcebergSink

__all__ = ["IcebergSink"]
