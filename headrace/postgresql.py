"""PostgreSQL's changes: `ChangesSource` reads tables' rows, then every change. Needs `pip install 'headrace[sql]'`."""

from headrace._extras import needs_extra as _needs_extra

with _needs_extra("sql", "psycopg"):
    from headrace.connectors.postgresql.rows import table_rows
    from headrace.connectors.postgresql.source import ChangesSource

__all__ = ["ChangesSource", "table_rows"]
