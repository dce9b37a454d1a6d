"""Tables of open formats as sinks: `DeltaSink` appends to Delta tables, exactly once. Needs `pip install 'headrace[delta]'`."""

from headrace.connectors.tables.delta import DeltaSink

__all__ = ["DeltaSink"]
