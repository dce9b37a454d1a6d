"""SQL databases as sinks: `SqlSink` writes exactly once, `UpsertSink` by key. Needs `pip install 'headrace[sql]'`."""

from headrace._extras import needs_extra as _needs_extra

with _needs_extra("sql", "sqlalchemy"):
    from headrace.connectors.sql.sink import SqlSink
    from headrace.connectors.sql.upsert import UpsertSink

__all__ = ["SqlSink", "UpsertSink"]
