"""Iceberg tables as a sink: `IcebergSink` appends, exactly once. Needs `pip install 'headrace[iceberg]'`."""

from headrace.connectors.tables.iceberg import IcebergSink

__all__ = ["IcebergSink"]
