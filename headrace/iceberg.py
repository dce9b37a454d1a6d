"""Iceberg tables as a sink: `IcebergSink` appends rows, or merges changes by key, exactly once. Needs the extra `iceberg`."""

from headrace.connectors.tables.iceberg import IcebergSink

__all__ = ["IcebergSink"]
