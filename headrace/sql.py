"""SQL databases as sinks: `SqlSink` writes exactly once, `UpsertSink` by key. Needs `pip install 'headrace[sql]'`."""

from headrace.connectors.sql.sink import SqlSink
from headrace.connectors.sql.upsert import UpsertSink

__all__ = ["SqlSink", "UpsertSink"]
