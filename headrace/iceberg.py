"""Iceberg tables as a sink: `IcebergSink` appends rows, or merges `Changes` by key, exactly once. Needs the extra `iceberg`."""

from headrace.connectors.tables.changes import Changes
from headrace.connectors.tables.iceberg import IcebergSink

__all__ = ["Changes", "IcebergSink"]
