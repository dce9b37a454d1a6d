"""Delta tables as a sink: `DeltaSink` appends, exactly once. Needs `pip install 'headrace[delta]'`."""

from headrace.connectors.tables.delta import DeltaSink

__all__ = ["DeltaSink"]
