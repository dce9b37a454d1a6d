"""The unique keys of a table, and whether rows are identified by exactly the columns that an upsert names.

PostgreSQL and SQLite take the columns that identify a row (ON CONFLICT). MariaDB and MySQL take none: a new row replaces the
first one that it agrees with in any unique key (ON DUPLICATE KEY), so there every other unique key counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Connection

from headrace.connectors.sql.url import Product
from headrace.enumerator.errors import UsageError


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique index by its name. `flaw`: why it does not identify rows by exactly its columns; None if it does.

    `collations` and `operators`: by which it compares its columns, as the parts of their names, where another index may
    compare otherwise.
    """

    name: str
    columns: frozenset[str]
    flaw: str | None = None
    collations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    operators: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        """The name and the columns."""
        return f"{self.name!r} ({', '.join(sorted(self.columns)) or 'an expression'})"


# Each row is one part of an index: its name, the column (null for an expression), what is wrong with it, its collation and its
# operator. Of an extension's type that is where the extension is: by the search path another may be found.
_PARTS = {
    Product.POSTGRESQL: "SELECT index.relname, attname, CASE WHEN indpred IS NOT NULL THEN 'is partial: it has a WHERE clause' "
    "WHEN part = 0 THEN 'has an expression' WHEN NOT indimmediate THEN 'is deferrable' "
    "WHEN NOT indisvalid THEN 'is not valid: it is being built, or that has failed' "
    "WHEN indcollation[place - 1] <> attcollation THEN 'compares by another collation than the column' END, "
    "(SELECT ARRAY[nspname, collname]::text[] FROM pg_catalog.pg_collation JOIN pg_catalog.pg_namespace "
    "ON pg_namespace.oid = collnamespace WHERE pg_collation.oid = attcollation), "
    "(SELECT ARRAY[nspname, oprname]::text[] FROM pg_catalog.pg_opclass JOIN pg_catalog.pg_am ON pg_am.oid = opcmethod "
    "AND amname = 'btree' JOIN pg_catalog.pg_amop ON amopfamily = opcfamily AND (amoplefttype, amoprighttype) = (opcintype, "
    "opcintype) AND amopstrategy = 3 JOIN pg_catalog.pg_operator ON pg_operator.oid = amopopr "
    "JOIN pg_catalog.pg_namespace ON pg_namespace.oid = oprnamespace WHERE pg_opclass.oid = indclass[place - 1]) "
    "FROM pg_catalog.pg_index JOIN pg_catalog.pg_class AS index ON index.oid = indexrelid "
    "CROSS JOIN LATERAL unnest(indkey) WITH ORDINALITY AS parts (part, place) "
    "LEFT JOIN pg_catalog.pg_attribute ON attrelid = indrelid AND attnum = part "
    "WHERE indisunique AND place <= indnkeyatts AND indrelid = to_regclass(:quoted)",
    Product.MYSQL: "SELECT index_name, column_name, CASE WHEN column_name IS NULL THEN 'has an expression' "
    "WHEN sub_part IS NOT NULL THEN concat('compares only the first ', sub_part, ' characters or bytes') END, NULL, NULL "
    "FROM information_schema.statistics "
    "WHERE NOT non_unique AND table_schema = coalesce(:schema, database()) AND table_name = :name",
    Product.SQLITE: "SELECT indexes.name, parts.name, CASE WHEN indexes.partial THEN 'is partial: it has a WHERE clause' "
    "WHEN parts.name IS NULL THEN 'has an expression' END, parts.coll, NULL "
    "FROM pragma_index_list(:name, coalesce(:schema, 'main')) AS indexes, "
    "pragma_index_xinfo(indexes.name, coalesce(:schema, 'main')) AS parts WHERE indexes.\"unique\" AND parts.key",
}
_NEW_EACH_TIME = re.compile(r"\(?(uuid|nextval)\b", re.IGNORECASE)


def unique_keys(
    connection: Connection,
    place: Mapping[str, str | None],
    primary: Collection[str],
    product: Product,
    columns: Mapping[str, Mapping[str, Any]],
) -> tuple[UniqueKey, ...]:
    """All unique keys of a table. `place`: its `schema`, `name` and `quoted` name. `primary`: its primary key's columns."""
    parts: dict[str, list[_Part]] = defaultdict(list)
    for name, column, flaw, collation, operator in connection.execute(text(_PARTS[product]), place):
        if column is not None and columns.get(column, {}).get("row_end"):
            continue  # MariaDB adds the end of a version to each key, the same for all current rows
        by = (collation,) if isinstance(collation, str) else tuple(collation or ())
        parts[name].append(_Part(column, flaw, by, tuple(operator or ())))
    keys = [_key(name, found) for name, found in sorted(parts.items())]
    if primary and product is Product.SQLITE:  # of the row's number there is no index
        keys.append(UniqueKey("PRIMARY KEY", frozenset(primary)))
    return tuple(keys)


class _Part(NamedTuple):
    column: str | None
    flaw: str | None
    collation: tuple[str, ...]
    operator: tuple[str, ...]


def _key(name: str, parts: Sequence[_Part]) -> UniqueKey:
    columns = {part.column: part for part in parts if part.column is not None}
    return UniqueKey(
        name,
        frozenset(columns),
        next((part.flaw for part in parts if part.flaw is not None), None),
        {column: part.collation for column, part in columns.items() if part.collation},
        {column: part.operator for column, part in columns.items() if part.operator},
    )


def check_key(table: str, keys: Sequence[UniqueKey], key: Sequence[str]) -> None:
    """Raise UsageError unless a unique key is of exactly these columns: else an upsert would add rows, or change others."""
    same = [unique for unique in keys if unique.columns == frozenset(key)]
    if any(unique.flaw is None for unique in same):
        return
    if same:
        flaws = "; ".join(f"index {unique.name!r} {unique.flaw}" for unique in same)
        raise UsageError(
            f"table {table!r}: rows are not identified by the columns {sorted(key)} of the upsert's key alone: {flaws}. Create "
            "a unique index of exactly these columns, or name those of another one"
        )
    known = ", ".join(map(str, keys)) or "none"
    raise UsageError(f"table {table!r} has no unique key of the columns {sorted(key)}; it has {known}")


_ROUTES = r"""
SELECT tgname FROM pg_catalog.pg_trigger JOIN pg_catalog.pg_class ON pg_class.oid = tgrelid AND relkind <> 'p'
JOIN pg_catalog.pg_proc ON pg_proc.oid = tgfoid JOIN pg_catalog.pg_language ON pg_language.oid = prolang
WHERE tgrelid = to_regclass(:quoted) AND EXISTS (
    SELECT FROM pg_catalog.pg_inherits JOIN pg_catalog.pg_class AS heir ON heir.oid = inhrelid
    WHERE inhparent = tgrelid AND heir.relnamespace IS DISTINCT FROM to_regnamespace('_timescaledb_internal')
) AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 7 = 7 AND lanname NOT IN ('c', 'internal')
AND (lanname <> 'plpgsql' OR prosrc ~* '\m(insert|merge|copy|execute|perform|call)\M' AND (
    prosrc ~* '\mreturn\M(?!\s+((new|old)\s*;|coalesce\s*\(\s*new\M))' OR prosrc ~* '\mnew\s*:?=\s*null\M'
)) ORDER BY tgname LIMIT 1
"""
"""A trigger by which a row may go into a table that inherits from this one: it runs statements, and may return no row.

Chunks of TimescaleDB have the keys of all.
"""


def check_routes(connection: Connection, table: str, place: Mapping[str, str | None]) -> None:
    """For PostgreSQL: raise UsageError where a trigger may put rows into tables that inherit, of which the key is not."""
    if trigger := connection.execute(text(_ROUTES), place).scalar():
        raise UsageError(
            f"table {table!r}: its trigger {trigger!r} may put rows into the tables that inherit from it, and no unique "
            "key is of all of these, so each retry would add the rows again: make it a partitioned table (PARTITION BY), or "
            "write into those tables"
        )


def collations_of(table: str, keys: Sequence[UniqueKey], key: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """By which the rows of a key are compared. Raises UsageError where unique keys of these columns compare in several ways."""
    return _agreed(table, {unique.name: unique.collations for unique in _of_columns(keys, key)}, "collations")


def operators_of(table: str, keys: Sequence[UniqueKey], key: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """As `collations_of`: by which operators two values are equal."""
    return _agreed(table, {unique.name: unique.operators for unique in _of_columns(keys, key)}, "operators")


def _of_columns(keys: Sequence[UniqueKey], key: Sequence[str]) -> list[UniqueKey]:
    return [unique for unique in keys if unique.columns == frozenset(key) and unique.flaw is None]


def _agreed(table: str, by: Mapping[str, Mapping[str, tuple[str, ...]]], what: str) -> Mapping[str, tuple[str, ...]]:
    found = {name: each for name, each in by.items() if each}
    first = next(iter(found.values()), {})
    if any(each != first for each in found.values()):
        names = ", ".join(map(repr, found))
        raise UsageError(f"table {table!r}: the indexes {names} compare the upsert's key by several {what}: drop one of them")
    return first


def check_other_keys(
    table: str, keys: Sequence[UniqueKey], key: Sequence[str], columns: Mapping[str, Mapping[str, Any]], given: Collection[str]
) -> None:
    """For MariaDB and MySQL: raise UsageError where a row may agree with one of another key in another unique key.

    `columns`: of the table. `given`: what rows have of them.
    """
    others = [
        str(unique) + (f", which {unique.flaw}" if unique.flaw else "") + _triggered(unique, columns)
        for unique in other_keys(keys, key, columns, given)
    ]
    if others:
        raise UsageError(
            f"table {table!r} has other unique keys than the upsert's {sorted(key)}: {'; '.join(others)}. MariaDB and MySQL "
            "match rows by any of them, so rows of other keys would be overwritten. Drop these indexes, or make them non-unique"
        )


def other_keys(
    keys: Sequence[UniqueKey], key: Sequence[str], columns: Mapping[str, Mapping[str, Any]], given: Collection[str]
) -> list[UniqueKey]:
    """Those besides the upsert's key in which rows of several keys may meet."""
    others = [unique for unique in keys if unique.columns != frozenset(key) or unique.flaw]
    return [unique for unique in others if not _is_new_each_time(unique, columns, given)]


def _is_new_each_time(unique: UniqueKey, columns: Mapping[str, Mapping[str, Any]], given: Collection[str]) -> bool:
    """Whether rows have no part of it, and a default makes each new row differ from all others: a number, a null, a UUID."""
    parts = [columns[name] for name in unique.columns]
    if (
        unique.flaw is not None
        or unique.columns & set(given)
        or any(part.get("computed") or part.get("triggered") for part in parts)
    ):
        return False
    return any(
        part.get("autoincrement") is True
        or part.get("identity")
        or (part["nullable"] and part.get("default") in (None, "NULL"))
        or _NEW_EACH_TIME.match(str(part.get("default")))
        for part in parts
    )


def _triggered(unique: UniqueKey, columns: Mapping[str, Mapping[str, Any]]) -> str:
    """That a trigger sets a part of it, in words; or empty."""
    return next((said for name in sorted(unique.columns) if (said := str(columns[name].get("triggered", "")))), "")
