"""Whether changes of one row may matter to other rows of its table, so that they must be made in the order of all changes."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.engine import Connection

from headrace.connectors.sql.table import Table, place_of
from headrace.connectors.sql.url import Product

_TIES = {
    Product.POSTGRESQL: """
    WITH RECURSIVE root AS (SELECT to_regclass(:quoted)::oid AS oid),
    parts AS (SELECT oid FROM root UNION SELECT relid FROM pg_partition_tree(to_regclass(:quoted))),
    referred AS (
        SELECT confrelid AS oid FROM pg_catalog.pg_constraint JOIN parts ON conrelid = parts.oid WHERE contype = 'f'
        UNION
        SELECT confrelid FROM pg_catalog.pg_constraint JOIN referred ON conrelid = referred.oid WHERE contype = 'f'
    )
    SELECT EXISTS (SELECT FROM referred JOIN parts USING (oid))
        OR EXISTS (SELECT FROM pg_catalog.pg_constraint JOIN parts ON conrelid = parts.oid WHERE contype = 'x')
        OR EXISTS (SELECT FROM pg_catalog.pg_trigger JOIN parts ON tgrelid = parts.oid WHERE NOT tgisinternal)
        OR EXISTS (
            SELECT FROM pg_catalog.pg_index JOIN parts ON indrelid = parts.oid WHERE indisunique
            AND indrelid NOT IN (SELECT oid FROM root) AND indexrelid NOT IN (SELECT inhrelid FROM pg_catalog.pg_inherits)
        )
    """,
    Product.MYSQL: """
    SELECT EXISTS (
        SELECT * FROM information_schema.referential_constraints
        WHERE constraint_schema = coalesce(:schema, database()) AND table_name = :name
    ) OR EXISTS (
        SELECT * FROM information_schema.triggers
        WHERE event_object_schema = coalesce(:schema, database()) AND event_object_table = :name
    )
    """,
    Product.SQLITE: """
    WITH RECURSIVE referred AS (
        SELECT lower("table") AS name FROM pragma_foreign_key_list(:name, coalesce(:schema, 'main'))
        UNION
        SELECT lower(others."table") FROM referred, pragma_foreign_key_list(referred.name, coalesce(:schema, 'main')) AS others
    )
    SELECT EXISTS (SELECT * FROM referred WHERE name = lower(:name))
        OR EXISTS (SELECT * FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :name COLLATE NOCASE)
    """,
}
"""Foreign keys that lead back to the table, of MariaDB and MySQL all of it, as the way through other tables is long to look up
there; exclusion constraints; triggers; unique indexes of a partition alone."""


def ties_rows(connection: Connection, table: Table) -> bool:
    """Whether a constraint, or a trigger, may compare a row with others. Unique keys of the whole table are not looked at."""
    return bool(connection.execute(text(_TIES[table.product]), place_of(connection, table.name)).scalar())
