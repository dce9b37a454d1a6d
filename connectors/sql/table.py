"""The table that is written to, as the database describes it, and whether rows fit it: asked before anything is written.

A pair of types fits if no value changes silently. Values that the database itself refuses (an integer out of range, a text too
long, a null where there may be none) are left to it.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from sqlalchemy import inspect, text
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.sqltypes import _Binary  # there is no public name for what all binary types have in common

from headrace.connectors.base.nested import plain_type
from headrace.connectors.sql.arrow import Field, Kind, innermost, kind_of
from headrace.connectors.sql.errors import code_of
from headrace.connectors.sql.kept import LimitedRecord, refused_text, rule_of
from headrace.connectors.sql.unique import UniqueKey, unique_keys
from headrace.connectors.sql.url import Product
from headrace.enumerator.errors import UsageError

log = logging.getLogger(__name__)

_KNOWN = (sql.Boolean, sql.Integer, sql.Float, sql.Numeric, sql.Date, sql.DateTime, sql.Time, _Binary)
_DOUBLE_BITS = 64
_MICROSECONDS = 6


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the database. `sql` is its name as statements have it; `columns` are SQLAlchemy's descriptions by name.

    In PostgreSQL they have a `cast`, too: the type that a parameter is of which is compared with them.

    `insert` and `delete`: how statements start that do this to its own rows, and to no others.
    """

    name: str
    destination: str
    sql: str
    product: Product
    columns: Mapping[str, Mapping[str, Any]]
    unique: tuple[UniqueKey, ...]
    insert: str
    delete: str


def split_name(name: str) -> tuple[str | None, str]:
    """Schema and table of `table` or `schema.table`. Raises UsageError for anything else."""
    schema, dot, table = name.rpartition(".")
    if not table or "." in schema or (dot and not schema):
        raise UsageError(f"a table is named as in 'orders' or 'sales.orders', with no other dots; got {name!r}")
    return schema or None, table


_FULL_NAME = {
    Product.POSTGRESQL: "SELECT nspname, relname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON relnamespace = "
    "pg_namespace.oid WHERE pg_class.oid = to_regclass(:quoted)",
    Product.MYSQL: "SELECT table_schema, table_name FROM information_schema.tables "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name",
    Product.SQLITE: "SELECT coalesce(:schema, 'main'), name FROM sqlite_master WHERE name = :name COLLATE NOCASE",
}


def destination_of(connection: Connection, name: str, product: Product) -> str:
    """The table's one full name, `schema.table`, however it was written: what a durable list is bound to.

    Raises UsageError when there is no such table.
    """
    found = connection.execute(text(_FULL_NAME[product]), place_of(connection, name)).all()
    if not found:
        raise UsageError(f"there is no table {name!r} in {connection.engine.url.database!r}: create it first")
    # The exact name first: a catalogue may be searched without regard to case where tables are distinguished by it.
    _, table = split_name(name)
    full = min(found, key=lambda row: bool(row[1] != table))
    return f"{full[0]}.{full[1]}"


def place_of(connection: Connection, name: str) -> dict[str, str | None]:
    """What catalogues are asked by: a table's `schema`, `name` and `quoted` name."""
    schema, table = split_name(name)
    quote = connection.dialect.identifier_preparer.quote_identifier
    # The preparer doubles percent signs, for statements with parameters; this is a parameter.
    quoted = ".".join(quote(part) for part in (schema, table) if part is not None).replace("%%", "%")
    return {"schema": schema, "name": table, "quoted": quoted}


def read_table(connection: Connection, name: str, product: Product) -> Table:
    """Ask the database for a table. Raises UsageError when there is none of this name."""
    schema, table = split_name(name)
    destination, written = destination_of(connection, name, product), _written(connection, name)
    inspector = inspect(connection)
    found = inspector.get_columns(table, schema=schema)
    place = place_of(connection, name)
    bases = _domain_bases(connection, place) if product is Product.POSTGRESQL else {}
    columns = {
        _unescaped(column["name"], product): dict(column, type=_stored(column["type"], bases.get(column["name"])))
        for column in found
    }
    if product is Product.MYSQL:
        filled = _filled(connection, place)
        columns = {column_name: column | filled.get(column_name, {}) for column_name, column in columns.items()}
    if product is Product.POSTGRESQL:
        for column_name, cast in connection.execute(text(_CASTS), place):
            columns[column_name]["cast"] = cast
    primary = inspector.get_pk_constraint(table, schema=schema)["constrained_columns"]
    unique = unique_keys(connection, place, primary, product, columns)
    insert, delete = _verbs(connection, place, product)
    return Table(name, destination, written, product, columns, unique, f"{insert} {written}", f"{delete} {written}")


_CASTS = """
WITH RECURSIVE parts AS (
    SELECT attname, atttypid AS type
    FROM pg_catalog.pg_attribute WHERE attrelid = to_regclass(:quoted) AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT attname, typbasetype FROM parts JOIN pg_catalog.pg_type ON pg_type.oid = type WHERE typtype = 'd'
) SELECT attname, format_type(type, -1) FROM parts JOIN pg_catalog.pg_type ON pg_type.oid = type WHERE typtype <> 'd'
"""
"""What columns, and domains of them, are of, without a length: by that a value would be cut."""


_OF_VIEWS = (1136, 1471)  # of MariaDB: what is wrong with a view is found later


def _written(connection: Connection, name: str) -> str:
    """A table's name as statements have it."""
    quote = connection.dialect.identifier_preparer.quote
    return ".".join(quote(part) for part in split_name(name) if part is not None)


def lock_table(connection: Connection, name: str, product: Product) -> None:
    """Lock the table as an insert would, until the transaction ends (but in SQLite), so that it is not altered.

    A column that is made narrower before the first row would round or cut silently. Raises UsageError when there is none of
    this name. PREPARE and EXPLAIN need no other right than INSERT, and call no trigger. PREPARE does not even plan: EXPLAIN
    does, which in PostgreSQL looks at the functions of defaults, that rows may give values for, and evaluates those that are
    immutable.
    """
    if product is Product.SQLITE:
        return
    destination_of(connection, name, product)  # which raises
    written = _written(connection, name)
    if product is Product.POSTGRESQL:
        connection.exec_driver_sql(f"PREPARE headrace_lock AS INSERT INTO {written} DEFAULT VALUES")
        connection.exec_driver_sql("DEALLOCATE headrace_lock")
        return
    try:
        connection.exec_driver_sql(f"EXPLAIN INSERT INTO {written} VALUES ()").close()  # noqa: S608 - names are quoted
    except DBAPIError as error:
        if code_of(error) not in _OF_VIEWS:
            raise


_FILLED = """
SELECT column_name AS name, column_default AS `default`, is_nullable = 'YES' AS nullable,
    extra LIKE '%auto_increment%' AS autoincrement, coalesce(generation_expression, '') <> '' AS computed,
    coalesce(generation_expression, '') = 'ROW END' AS row_end
FROM information_schema.columns WHERE table_schema = coalesce(:schema, database()) AND table_name = :name
"""
"""SQLAlchemy reads a column's line in SHOW CREATE TABLE as far as a word it does not know: INVISIBLE, many an expression."""
_TRIGGERS = """
SELECT action_statement FROM information_schema.triggers
WHERE event_object_schema = coalesce(:schema, database()) AND event_object_table = :name
    AND action_timing = 'BEFORE' AND event_manipulation = 'INSERT'
"""
_SETS = ", which a BEFORE INSERT trigger sets"
_MAY_SET = ", which a BEFORE INSERT trigger may set, as this user may not see it: GRANT TRIGGER ON the table, or"


def _filled(connection: Connection, place: Mapping[str, str | None]) -> dict[str, dict[str, Any]]:
    """By column what MariaDB and MySQL put into it. `triggered`: that a trigger sets it in new rows, in words; or empty.

    Of a trigger that the user may not see, no more is known than that it is there. It hardly sets a number that counts itself.
    """
    triggers = connection.execute(text(_TRIGGERS), place).scalars().all()
    seen, hidden = " ".join(filter(None, triggers)), _MAY_SET if None in triggers else ""
    return {
        row["name"]: {
            "default": row["default"],
            "triggered": _SETS if _is_set(row["name"], seen) else "" if row["autoincrement"] else hidden,
            **{what: bool(row[what]) for what in ("nullable", "autoincrement", "computed", "row_end")},
        }
        for row in connection.execute(text(_FILLED), place).mappings()
    }


_BLANK = r"(?:\s|/\*(?:[^*]|\*(?!/))*\*/|(?:--|#)[^\n]*\n)*"  # in one way only: else many comments take for ever


def _is_set(name: str, statements: str) -> bool:
    """Whether there is NEW.name, in any quotes and with comments in it. One that is only read there counts, too."""
    names = "|".join(re.escape(name.replace(quote, quote * 2)) for quote in ("", "`", '"') if not quote or quote in name)
    column = rf"\bnew[`\"]?{_BLANK}\.{_BLANK}[`\"]?({names})(?!\w)"
    return re.search(column, statements, re.IGNORECASE) is not None


_IN_HEIRS = """
SELECT relkind = 'p' OR to_regclass('_timescaledb_catalog.hypertable') IS NOT NULL
FROM pg_catalog.pg_class WHERE oid = to_regclass(:quoted)
"""
"""Whether the rows of a table may be in those that inherit from it, as partitions or chunks."""
_MAY_IGNORE = "SELECT sql LIKE '%conflict%' FROM sqlite_master WHERE name = :name COLLATE NOCASE"


def _verbs(connection: Connection, place: Mapping[str, str | None], product: Product) -> tuple[str, str]:
    """Without ONLY, PostgreSQL deletes in tables that inherit from this one, too, where some tables have all their rows.

    SQLite's constraints may state (ON CONFLICT) that a row which they refuse is dropped, or replaces others; OR ABORT overrides
    that, in the table's triggers as well.
    """
    if product is Product.POSTGRESQL and not connection.execute(text(_IN_HEIRS), place).scalar():
        return "INSERT INTO", "DELETE FROM ONLY"
    if product is Product.SQLITE and connection.execute(text(_MAY_IGNORE), place).scalar():
        return "INSERT OR ABORT INTO", "DELETE FROM"
    return "INSERT INTO", "DELETE FROM"


_UNLOGGED = """
    SELECT nspname || '.' || relname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON relnamespace = pg_namespace.oid
    WHERE relpersistence = 'u' AND relkind = 'r' AND pg_class.oid IN (
        SELECT to_regclass(:quoted)::oid UNION ALL SELECT relid::oid FROM pg_partition_tree(to_regclass(:quoted))
    ) ORDER BY 1
"""
_WITHOUT_TRANSACTIONS = (
    "SELECT engine FROM information_schema.tables WHERE table_schema = coalesce(:schema, database()) AND table_name = :name "
    "AND engine NOT IN (SELECT engine FROM information_schema.engines WHERE transactions = 'YES')"
)
_UNFLUSHED = (  # of the server: no session can set them
    "SHOW GLOBAL VARIABLES WHERE value IN ('0', '2') "
    "AND variable_name IN ('innodb_flush_log_at_trx_commit', 'rocksdb_flush_log_at_trx_commit')"
)


def check_durable(connection: Connection, table: Table) -> None:
    """Raise UsageError for a table that may lose committed rows in a crash of the server: no job would write them again.

    Of a server that loses them when its machine crashes, and not itself, there is a warning.
    """
    place, costs = place_of(connection, table.name), "so a crash of the server takes committed rows with it"
    if table.product is Product.POSTGRESQL and (found := connection.execute(text(_UNLOGGED), place).scalars().all()):
        raise UsageError(f"table {table.name!r}: unlogged is {', '.join(found)}, {costs}: run ALTER TABLE ... SET LOGGED")
    if table.product is Product.MYSQL and (engine := connection.execute(text(_WITHOUT_TRANSACTIONS), place).scalar()):
        raise UsageError(
            f"table {table.name!r} is stored by {engine}, which has no transactions, {costs}: run ALTER TABLE ... ENGINE=InnoDB"
        )
    if table.product is Product.MYSQL and (unflushed := connection.execute(text(_UNFLUSHED)).all()):
        found = ", ".join(f"{name}={value}" for name, value in unflushed)
        url = connection.engine.url
        where = url.query.get("unix_socket") if url.host is None else f"{url.host}:{url.port or 3306}"
        server, remedy = f"the server {where or 'localhost'} has {found}", "and no job writes them again: set it to 1"
        if any(value == "0" for _, value in unflushed):
            raise UsageError(f"{server}, {costs}, {remedy}")
        _warn_once(f"{server}, so a crash of its machine takes committed rows with it, {remedy}")


@functools.cache
def _warn_once(said: str) -> None:
    log.warning("%s", said)


_HIDES = """
SELECT row_security_active(place.oid) AND (
    EXISTS (SELECT FROM pg_catalog.pg_policy WHERE polrelid = place.oid AND NOT polpermissive)
    OR NOT EXISTS (
        SELECT FROM pg_catalog.pg_policy
        WHERE polrelid = place.oid AND polcmd = '*' AND 0 = ANY (polroles) AND pg_get_expr(polqual, polrelid) = 'true'
    )
) FROM (SELECT to_regclass(:quoted)::oid AS oid) AS place
"""
"""Whether policies may hide rows: they apply, and none shows all rows to everyone."""


def check_visible(connection: Connection, table: Table) -> None:
    """Raise UsageError for a table that may have rows which this user does not see."""
    place = place_of(connection, table.name)
    if table.product is Product.POSTGRESQL and connection.execute(text(_HIDES), place).scalar():
        raise UsageError(
            f"table {table.name!r}: its row-level security policies apply to this user, so that deletes would leave rows which "
            "they hide, and COPY is refused: give the user BYPASSRLS, or write as the table's owner, without FORCE"
        )


def _unescaped(name: str, product: Product) -> str:
    """A column's name. SQLAlchemy gives it as MariaDB and MySQL write it between backticks."""
    return name.replace("``", "`") if product is Product.MYSQL else name


_RECORD = "record"
_DOMAIN_BASES = """
    WITH RECURSIVE parts AS (
        SELECT attname, atttypid AS type, atttypmod AS modifier, false AS of_domain, false AS of_record
        FROM pg_catalog.pg_attribute WHERE attrelid = to_regclass(:quoted) AND attnum > 0 AND NOT attisdropped
        UNION
        SELECT attname, part.type, part.modifier, parts.of_domain OR part.of_domain, parts.of_record OR part.of_record
        FROM parts JOIN pg_catalog.pg_type t ON t.oid = parts.type CROSS JOIN LATERAL (
            SELECT t.typbasetype AS type, t.typtypmod AS modifier, true AS of_domain, false AS of_record WHERE t.typtype = 'd'
            UNION ALL
            SELECT e.oid, -1, false, false FROM pg_catalog.pg_type e
            WHERE e.oid = t.typelem AND e.typarray = t.oid AND e.typtype IN ('d', 'c')
            UNION ALL
            SELECT a.atttypid, a.atttypmod, false, true FROM pg_catalog.pg_attribute a
            WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        ) part
    )
    SELECT attname, format_type(type, modifier) FROM parts JOIN pg_catalog.pg_type ON pg_type.oid = type
    WHERE of_domain AND NOT of_record AND typtype <> 'd'
    UNION ALL
    SELECT attname, 'record' FROM parts CROSS JOIN LATERAL (
        SELECT coalesce((SELECT e.typname FROM pg_catalog.pg_type e WHERE e.typarray = parts.type), typname) AS item
        FROM pg_catalog.pg_type WHERE oid = parts.type
    ) named
    WHERE of_record AND (
        item IN ('money', 'float4', 'char', 'name')
        OR modifier <> -1 AND item IN ('numeric', 'varchar', 'bpchar', 'interval')
        OR modifier BETWEEN 0 AND 5 AND item IN ('time', 'timetz', 'timestamp', 'timestamptz')
    )
"""


def _domain_bases(connection: Connection, place: Mapping[str, str | None]) -> dict[str, str]:
    """What the domains of a table's columns are made of, as `numeric(5,1)`: SQLAlchemy knows them without the numbers.

    `_RECORD` for a composite type with a field that has such limits. Of an array it is that of the items.
    """
    return {row[0]: row[1] for row in connection.execute(text(_DOMAIN_BASES), place)}


def _stored(column: sql.TypeEngine[Any], base: str | None) -> sql.TypeEngine[Any]:
    """What a domain is made of: `base`, in PostgreSQL's words."""
    while isinstance(column, postgresql.DOMAIN):
        column = column.data_type
    if base is None:
        return column
    if isinstance(column, sql.ARRAY) and not base.endswith("[]"):
        return sql.ARRAY(_stored(column.item_type, base))
    return LimitedRecord() if base == _RECORD else _limited(column, base)


def _limited(column: sql.TypeEngine[Any], base: str) -> sql.TypeEngine[Any]:
    """The type with the limits that the words have: `timestamp(3) without time zone`, `interval day to hour`."""
    numbers = [int(number) for number in re.findall(r"-?\d+", base)]
    if base.endswith("[]"):  # of which SQLAlchemy may know the items only
        return sql.ARRAY(_limited(column.item_type if isinstance(column, sql.ARRAY) else column, base.removesuffix("[]")))
    match column:
        case postgresql.INTERVAL():
            fields = re.sub(r"interval|[^a-z ]", "", base).strip()
            return postgresql.INTERVAL(fields=fields or None, precision=numbers[0] if numbers else None)
        case sql.Numeric() if numbers and not isinstance(column, sql.Float):
            return sql.NUMERIC(numbers[0], numbers[1] if len(numbers) > 1 else None)
        case postgresql.TIMESTAMP() | postgresql.TIME() if numbers:
            return type(column)(timezone=column.timezone, precision=numbers[0])
        case sql.String() if numbers and not isinstance(column, sql.Enum):
            return type(column)(length=numbers[0])
    return column


def fields_of(table: Table, schema: pa.Schema) -> tuple[Field, ...]:
    """How rows of this schema go into the table. Raises one UsageError that names every column that does not fit."""
    problems = [
        f"column {name!r} occurs more than once" for name in sorted({n for n in schema.names if schema.names.count(n) > 1})
    ]
    if not schema.names:
        problems.append("the rows have no columns")
    fields = []
    for arrow in (each.with_type(plain_type(each.type)) for each in schema):
        column = table.columns.get(arrow.name)
        if column is None:
            problems.append(f"column {arrow.name!r} ({arrow.type}) is not in the table")
            continue
        if column.get("computed"):
            problems.append(f"column {arrow.name!r} is generated by the database: leave it out")
            continue
        if refusal := _refusal(arrow.type, column["type"], table.product):
            problems.append(f"column {arrow.name!r}: {refusal}")
            continue
        fields.append(replace(_field(arrow, column["type"], table.product), fills=_fills(column, table)))
    missing = [name for name, column in table.columns.items() if name not in schema.names and _is_needed(column, table.product)]
    problems += [f"column {name!r} may not be null and has no default, and the rows have none" for name in missing]
    if problems:
        rows = ", ".join(f"{arrow.name} {arrow.type}" for arrow in schema) or "nothing"
        columns = ", ".join(f"{name} {_sql_name(column['type'])}" for name, column in table.columns.items())
        raise UsageError(
            f"the rows do not fit table {table.name!r}: {'; '.join(problems)}. The rows have {rows}; the table has {columns}"
        )
    return tuple(fields)


def _field(arrow: pa.Field, column: sql.TypeEngine[Any], product: Product) -> Field:
    kind = kind_of(arrow.type)
    assert kind is not None  # or it would have been refused
    items = None
    if isinstance(column, sql.ARRAY) and kind is Kind.LIST:
        items = _field(arrow.with_type(innermost(arrow.type)), column.item_type, product)
    return Field(arrow.name, kind, _digits(column, product), _rule(kind, column, product), items=items)


def _is_needed(column: Mapping[str, Any], product: Product) -> bool:
    if column["nullable"] or column.get("default") is not None or column.get("computed") or column.get("identity"):
        return False
    by_itself = column.get("autoincrement") is True
    # SQLite numbers the rows of an INTEGER PRIMARY KEY.
    return not by_itself and not (product is Product.SQLITE and column.get("primary_key"))


def _fills(column: Mapping[str, Any], table: Table) -> bool:
    """Whether a null that is given becomes another value."""
    if table.product is Product.SQLITE:  # the number of the row
        primary = [each for each in table.columns.values() if each.get("primary_key")]
        return primary == [column] and isinstance(column["type"], sql.INTEGER)
    is_dated = column.get("autoincrement") is True or isinstance(column["type"], sql.TIMESTAMP)
    return table.product is Product.MYSQL and not column["nullable"] and is_dated


def _digits(column: sql.TypeEngine[Any], product: Product) -> int:
    """How many decimals of a second the column keeps; fewer are rounded to."""
    if product is Product.MYSQL:
        return int(getattr(column, "fsp", None) or 0)
    precision = getattr(column, "precision", None) if isinstance(column, sql.DateTime | sql.Time) else None
    return 6 if precision is None else int(precision)


def _rule(kind: Kind, column: sql.TypeEngine[Any], product: Product) -> Callable[[pa.Array], str | None] | None:
    return rule_of(column, product, binary=kind is Kind.BINARY) if kind in (Kind.TEXT, Kind.BINARY) else None


def _refusal(arrow: pa.DataType, column: sql.TypeEngine[Any], product: Product) -> str | None:
    """Why values of this type cannot go into this column; None if they can."""
    kind = kind_of(arrow)
    if kind is None or (kind is Kind.LIST and product is not Product.POSTGRESQL):
        return f"{arrow} has no counterpart in a table; turn it into text first"
    reason = _REASONS.get(kind, _fits)(kind, arrow, column, product)
    if reason is None:
        return None
    return f"{arrow} does not go into {_sql_name(column)}" + (f": {reason}" if reason else "")


def _sql_name(column: sql.TypeEngine[Any]) -> str:
    try:
        return str(column)
    except Exception:  # noqa: BLE001 - some types cannot be shown without their dialect
        return type(column).__name__


def _fits(kind: Kind, _: pa.DataType, column: sql.TypeEngine[Any], product: Product) -> str | None:
    accepted: dict[Kind, tuple[type, ...]] = {
        Kind.BOOLEAN: (sql.Boolean,) if product is Product.POSTGRESQL else (sql.Boolean, sql.Integer),
        Kind.BINARY: (_Binary,),
        Kind.DATE: (sql.Date,),
        Kind.INSTANT: (sql.DateTime,),
    }
    return None if kind is Kind.NULL or isinstance(column, accepted[kind]) else ""


def _integer(_: Kind, __: pa.DataType, column: sql.TypeEngine[Any], ___: Product) -> str | None:
    if isinstance(column, sql.Integer):
        return None
    if isinstance(column, sql.Float):
        return "large integers would be rounded; cast them first"
    if not isinstance(column, sql.Numeric):
        return ""
    return "the column rounds" if (column.scale or 0) < 0 else None


def _float(_: Kind, arrow: pa.DataType, column: sql.TypeEngine[Any], product: Product) -> str | None:
    if not isinstance(column, sql.Float):
        return "values would be rounded; cast them first" if isinstance(column, sql.Numeric) else ""
    single = isinstance(column, sql.REAL) if product is Product.POSTGRESQL else isinstance(column, mysql.FLOAT)
    if product is Product.MYSQL and (single or isinstance(column, mysql.DOUBLE | mysql.REAL)) and column.scale is not None:
        return "the column rounds"
    return "values would be rounded; cast them first" if single and arrow.bit_width == _DOUBLE_BITS else None


def _decimal(_: Kind, arrow: pa.DataType, column: sql.TypeEngine[Any], product: Product) -> str | None:
    if product is Product.SQLITE:
        return "SQLite stores decimals as floating point; cast them first"
    if isinstance(column, sql.Float) or not isinstance(column, sql.Numeric):
        return ""
    scale = column.scale if column.scale is not None or column.precision is None else 0
    return (
        None if scale is None or arrow.scale <= scale else f"the table keeps {scale} decimals, and the rows have {arrow.scale}"
    )


def _text(_: Kind, __: pa.DataType, column: sql.TypeEngine[Any], product: Product) -> str | None:
    """Texts also go where the database reads its own text form: JSON, UUID, arrays, intervals, types of extensions.

    And where no other type holds what PostgreSQL does: numbers of any length, and times of day with a zone.
    """
    if product is Product.POSTGRESQL and not isinstance(column, sql.Float):
        is_any_number = isinstance(column, sql.Numeric) and column.precision is None
        if is_any_number:
            return None
        if isinstance(column, sql.Time) and column.timezone:
            precision = getattr(column, "precision", None)
            return None if precision in (None, _MICROSECONDS) else "the column rounds"
    return "" if isinstance(column, _KNOWN) else refused_text(column, product)


def _time(_: Kind, __: pa.DataType, column: sql.TypeEngine[Any], ___: Product) -> str | None:
    if not isinstance(column, sql.Time):
        return ""
    return "these times have no zone" if column.timezone else None


def _local(_: Kind, __: pa.DataType, column: sql.TypeEngine[Any], product: Product) -> str | None:
    if not isinstance(column, sql.DateTime):
        return ""
    instants = isinstance(column, sql.TIMESTAMP) if product is Product.MYSQL else column.timezone
    return "these times have no zone, so which instants they are is not known" if instants else None


def _list(_: Kind, arrow: pa.DataType, column: sql.TypeEngine[Any], product: Product) -> str | None:
    """PostgreSQL declares no dimensions: arrays of arrays go into the same columns."""
    if not isinstance(column, sql.ARRAY):
        return ""
    if isinstance(column.item_type, sql.NullType):
        return "what its items are is not known here; turn it into text first"
    return _refusal(innermost(arrow), column.item_type, product)


_REASONS = {
    Kind.INTEGER: _integer,
    Kind.FLOAT: _float,
    Kind.DECIMAL: _decimal,
    Kind.TEXT: _text,
    Kind.TIME: _time,
    Kind.LOCAL: _local,
    Kind.LIST: _list,
}
