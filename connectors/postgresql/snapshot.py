"""The rows that a table has: where it is cut into chunks, and one chunk of it, with what its snapshot sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import psycopg
import pyarrow as pa
import pyarrow.csv as pc
from psycopg import sql

from headrace.connectors.postgresql.catalog import (
    Attribute,
    PublicationOptions,
    flush_log,
    names_of,
    read_columns,
    read_log_end,
    read_snapshot,
)
from headrace.connectors.postgresql.columns import changed, check_names
from headrace.connectors.postgresql.errors import NEW_SNAPSHOT
from headrace.connectors.postgresql.splits import Key, Seen, TableSeam
from headrace.connectors.postgresql.types import PgColumn, PgTable, PgType
from headrace.connectors.postgresql.visible import Moment
from headrace.enumerator.errors import DataLossError, UsageError

_ROWS = "t"
"""The table in queries."""
_BLOCK_BYTES = (1 << 31) - 1
"""Arrow reads no more of a CSV at a time, and no larger row."""
_UNBOUNDED_NAMES = {"character": "bpchar", "bit": "varbit"}
"""Of types whose name without a length has the length 1."""
_Sign = Literal[">=", "<"]
_FIRST_OWN_OID = 16384
_SIGNS = ("<", "<=", "=", ">=", ">")
"""What the operators of a B-tree are called in pg_catalog, by their strategies."""
_Operators = Mapping[str, sql.Composable]
_BUILT_IN: _Operators = {sign: sql.SQL("OPERATOR(pg_catalog.{})").format(sql.SQL(sign)) for sign in _SIGNS}
_OPERATORS = """
    SELECT amopstrategy, nspname, oprname FROM pg_catalog.pg_opclass
    JOIN pg_catalog.pg_am ON pg_am.oid = opcmethod AND amname = 'btree'
    JOIN pg_catalog.pg_amop ON amopfamily = opcfamily AND (amoplefttype, amoprighttype) = (opcintype, opcintype)
    JOIN pg_catalog.pg_operator o ON o.oid = amopopr JOIN pg_catalog.pg_namespace n ON n.oid = oprnamespace
    WHERE opcdefault AND opcintype = %s ORDER BY amopstrategy
"""


@dataclass(frozen=True, slots=True)
class Followed:
    """A table as its publication has it. `row_filter`: the condition that its rows and changes have to meet, as SQL.

    `known`: when its columns were asked for. `published_by`: as of `PublishedTable`.
    `has_old_rows`: whether updates or deletes are published. `options`: of the publication.
    """

    table: PgTable
    row_filter: str | None
    is_partitioned: bool
    known: Moment
    published_by: tuple[int, ...] = ()
    has_old_rows: bool = True
    options: PublicationOptions | None = None


def created_again(table: str) -> DataLossError:
    """The error for a table that was dropped."""
    return DataLossError(f"table {table} was dropped and created again: {NEW_SNAPSHOT}")


def chunk_key(table: PgTable) -> tuple[str, ...]:
    """The columns that a table is cut by: each change has to tell them. None where it has no such key."""
    if table.identity != "index":
        return table.key
    return tuple(column.name for column in table.columns if column.in_key and table.identity_is_published)


def lower_bounds(connection: psycopg.Connection, followed: Followed, key: tuple[str, ...], rows: int) -> Iterator[Key]:
    """The lower bounds of all chunks but the first, by the key's index: each has about `rows` rows. None without a key.

    They need not be of one snapshot: chunks have what comes between. The connection is in autocommit.
    """
    if not key:
        check_size(connection, followed, rows)
        return
    bound = next_bound(connection, followed, key, rows, None)
    while bound is not None:
        yield bound
        bound = next_bound(connection, followed, key, rows, bound)


def next_bound(
    connection: psycopg.Connection, followed: Followed, key: tuple[str, ...], rows: int, lower: Key | None
) -> Key | None:
    """The lower bound of the chunk behind the one from `lower` on; None where that is the last one."""
    columns = [_column(followed.table, name) for name in key]
    # Qualified, or they would be ordered as the texts that are selected.
    names = sql.SQL(", ").join(sql.Identifier(_ROWS, name) for name in key)
    texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(_ROWS, name)) for name in key)
    query = sql.SQL("SELECT {} FROM {} AS {} WHERE {} ORDER BY {} OFFSET {} LIMIT 1").format(
        texts, _from(followed), sql.Identifier(_ROWS), _between(connection, columns, lower, None), names, sql.Literal(rows)
    )
    found = connection.execute(query).fetchone()
    return None if found is None else tuple(map(str, found))


def check_size(connection: psycopg.Connection, followed: Followed, rows: int) -> None:
    """Raise UsageError for a table of more rows, which nothing cuts: it is read, and held in memory, as a whole."""
    query = sql.SQL("SELECT true FROM {} OFFSET {} LIMIT 1").format(_from(followed), sql.Literal(rows))
    if connection.execute(query).fetchone() is not None:
        raise UsageError(
            f"table {followed.table.full_name} has no primary key to cut it into chunks (or none that is published), and more "
            f"than {rows} rows: give it a key, set chunk_rows to more than its rows, or snapshot='never'"
        )


class Chunk(NamedTuple):
    """The texts of the published columns of its rows, what it has seen, and the columns that the table had after that."""

    texts: list[pa.LargeStringArray]
    seen: Seen
    columns: Sequence[Attribute]


def read_chunk(
    connection: psycopg.Connection, followed: Followed, key: tuple[str, ...], lower: Key | None, upper: Key | None
) -> Chunk:
    """The rows between two keys. The connection is in autocommit.

    What it has seen is on the server's disk when this returns, as a crash would undo it. Raises DataLossError for a table that
    was created again, UsageError for one with a column that was renamed.
    """
    table = followed.table
    selected = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
    within = _between(connection, [_column(table, name) for name in key], lower, upper)
    published = followed.row_filter
    condition = within if published is None else sql.SQL("{} AND ({})").format(within, sql.SQL(published))
    rows = sql.SQL("SELECT {} FROM {} AS {} WHERE {}").format(selected, _from(followed), sql.Identifier(_ROWS), condition)
    seen = None
    while seen is None:
        data, seen = _read_once(connection, table, rows)
    columns = read_columns(connection, table.oid)
    check_names(table.full_name, table.names, names_of(columns))
    flush_log(connection)
    return Chunk(_texts(data, [column.name for column in table.columns]), seen, columns)


def check_unaltered(table: PgTable, columns: Sequence[Attribute]) -> None:
    """Raise UsageError where a chunk may lack what it has seen: columns were added since, or are of another type.

    `columns`: of the table once the chunk was read.
    """
    known, plain = {column.name: column for column in table.columns}, [each for each in columns if not each.is_generated]
    before = [each for each in plain if each.number <= len(table.names)]
    added = [each.name for each in plain if each.number > len(table.names)]
    if len(before) == len(known) and added:  # else a list of the publication has some only
        raise changed(table.full_name, f"columns added: {', '.join(added)}")
    types = {name: (column.type.oid, column.modifier) for name, column in known.items()}
    other = [each.name for each in before if each.name in types and types[each.name] != (each.type, each.modifier)]
    if other:
        raise changed(table.full_name, f"columns of another type: {', '.join(other)}")


_IS_SEEN = """
    SELECT to_regclass(%(name)s)::oid::bigint, bool_and(relfilenode = coalesce(pg_relation_filenode(oid), 0)) FROM pg_class
    WHERE oid = ANY(%(oid)s::oid || ARRAY(SELECT relid::oid FROM pg_partition_tree(%(oid)s)))
"""
"""The table of this name now, and whether all that has its rows is stored where the transaction's snapshot has it."""


def _read_once(connection: psycopg.Connection, table: PgTable, rows: sql.Composed) -> tuple[bytes, Seen | None]:
    """The rows as CSV. None was seen if the table was rewritten behind the snapshot, which has none of its rows then.

    The query takes its lock after the snapshot. LOCK TABLE would take it before, and needs a right to all columns.
    """
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        snapshot = read_snapshot(connection)
        with connection.cursor() as cursor:
            copied = sql.SQL("COPY ({}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)").format(rows)
            with cursor.copy(copied) as copy:
                data = b"".join(map(bytes, copy))
        name = sql.Identifier(table.schema, table.name).as_string(connection)
        oid, is_seen = connection.execute(_IS_SEEN, {"name": name, "oid": table.oid}).fetchone() or (0, False)
        if oid != table.oid:
            raise created_again(table.full_name)
        return data, Seen(snapshot, read_log_end(connection)) if is_seen else None


class KeyOrder:
    """Finds chunks by the order that the server has keys in. Asks for the columns' collations once."""

    def __init__(self, connection: psycopg.Connection, table: PgTable, seam: TableSeam) -> None:
        self._connection, self._bounds = connection, seam.bounds
        columns = [_column(table, name) for name in seam.key]
        names = [sql.Identifier(f"k{place}") for place in range(len(columns))]
        # Cast one by one: there are no arrays of arrays, and a key may be one.
        compared = [_compared(connection, table, *pair) for pair in zip(columns, names, strict=True)]
        row = sql.SQL("ROW({})").format(sql.SQL(", ").join(compared)).as_string(connection)
        self._query = sql.SQL(
            "WITH bounds AS (SELECT array_agg({row} ORDER BY n) AS rows FROM unnest({texts}) WITH ORDINALITY AS b({listed}, n))"
            " SELECT width_bucket({row}, bounds.rows) FROM unnest({texts}) WITH ORDINALITY AS k({listed}, n), bounds ORDER BY n"
        ).format(
            row=sql.SQL(row.replace("%", "%%")),  # names of types may have it
            texts=sql.SQL(", ").join([sql.SQL("%s::text[]")] * len(columns)),
            listed=sql.SQL(", ").join(names),
        )

    def chunks(self, keys: Sequence[Key]) -> Sequence[int]:
        """The number of the chunk that each of these keys is in."""
        if not self._bounds:
            return [0] * len(keys)
        texts = [list(column) for rows in (self._bounds, keys) for column in zip(*rows, strict=True)]
        return [int(number) for (number,) in self._connection.execute(self._query, texts)]


def _compared(connection: psycopg.Connection, table: PgTable, column: PgColumn, name: sql.Identifier) -> sql.Composable:
    """A text of this name, to be compared as the column is."""
    found = connection.execute(
        "SELECT nspname, collname FROM pg_catalog.pg_attribute JOIN pg_catalog.pg_collation c ON c.oid = attcollation "
        "JOIN pg_catalog.pg_namespace n ON n.oid = collnamespace WHERE attrelid = %s AND attname = %s",
        [table.oid, column.name],
    ).fetchone()
    value = sql.SQL("{}::{}").format(name, _cast(column))
    return value if found is None else sql.SQL("{} COLLATE {}").format(value, sql.Identifier(*found))


def _column(table: PgTable, name: str) -> PgColumn:
    return next(column for column in table.columns if column.name == name)


def _cast(column: PgColumn) -> sql.Composable:
    name = column.type.name
    return sql.SQL(_UNBOUNDED_NAMES.get(name, name))


def _from(followed: Followed) -> sql.Composable:
    """Tables that inherit from it have their own changes. Partitions are followed as their root."""
    only = sql.SQL("" if followed.is_partitioned else "ONLY ")
    return sql.SQL("{}{}").format(only, sql.Identifier(followed.table.schema, followed.table.name))


def _between(
    connection: psycopg.Connection, columns: Sequence[PgColumn], lower: Key | None, upper: Key | None
) -> sql.Composable:
    """The condition on the key. Rows are compared by the key's index."""
    parts: list[sql.Composable] = [sql.SQL("true")]
    if columns and (lower is not None or upper is not None):
        operators = [_operators_of(connection, column) for column in columns]
        is_plain = all(each is _BUILT_IN for each in operators)
        compared = _compared_rows if is_plain else partial(_compared_one_by_one, operators)
        names = [_as_base(column, sql.Identifier(_ROWS, column.name)) for column in columns]
        bounds: tuple[tuple[Key | None, _Sign], ...] = ((lower, ">="), (upper, "<"))
        for bound, sign in bounds:
            if bound is not None:
                texts = zip(columns, map(sql.Literal, bound), strict=True)
                values = [_as_base(column, sql.SQL("{}::{}").format(text, _cast(column))) for column, text in texts]
                parts.append(compared(names, sign, values))
    return sql.SQL(" AND ").join(parts)


def _as_base(column: PgColumn, value: sql.Composable) -> sql.Composable:
    """The server finds no operators of a domain over an enum."""
    kind = _base(column.type)
    return sql.SQL("{}::{}").format(value, sql.SQL(kind.name)) if kind is not column.type and kind.kind == "enum" else value


def _base(kind: PgType) -> PgType:
    """What a domain is of."""
    while kind.kind == "domain" and kind.element is not None:
        kind = kind.element
    return kind


def _operators_of(connection: psycopg.Connection, column: PgColumn) -> _Operators:
    """Those by which the column is ordered, by `_SIGNS`.

    Of an extension's type they are where that is, which no search path has: others would be taken, to which it is cast. They
    may have other names: hstore's are `#<#` and so on.
    """
    kind = _base(column.type)
    found = [] if kind.oid < _FIRST_OWN_OID else connection.execute(_OPERATORS, [kind.oid]).fetchall()
    if not found:
        return _BUILT_IN
    own = {_SIGNS[number - 1]: (schema, name) for number, schema, name in found}
    named = {sign: own.get(sign, (found[0][1], sign)) for sign in _SIGNS}  # an operator class may lack some
    return {
        sign: sql.SQL("OPERATOR({}.{})").format(sql.Identifier(schema), sql.SQL(name)) for sign, (schema, name) in named.items()
    }


def _compared_rows(names: Sequence[sql.Composable], sign: _Sign, values: Sequence[sql.Composable]) -> sql.Composable:
    row, other = sql.SQL(", ").join(names), sql.SQL(", ").join(values)
    return sql.SQL("({}) {} ({})").format(row, sql.SQL(sign), other)


def _compared_one_by_one(
    operators: Sequence[_Operators], names: Sequence[sql.Composable], sign: _Sign, values: Sequence[sql.Composable]
) -> sql.Composable:
    """The same, by each column's operators. The first comparison is for the index."""

    def by(place: int, operator: str) -> sql.Composable:
        return sql.SQL("{} {} {}").format(names[place], operators[place][operator], values[place])

    condition = by(len(names) - 1, sign)
    for place in reversed(range(len(names) - 1)):
        condition = sql.SQL("({} OR {} AND {})").format(by(place, sign[0]), by(place, "="), condition)
    return sql.SQL("{} AND {}").format(by(0, f"{sign[0]}="), condition)


def _texts(data: bytes, names: Sequence[str]) -> list[pa.LargeStringArray]:
    """Of each column. What is not quoted is null."""
    places = [str(place) for place in range(len(names))]
    if not data:
        return [pa.array([], pa.large_string()) for _ in places]
    table = pc.read_csv(
        pa.BufferReader(data),
        read_options=pc.ReadOptions(
            column_names=places, use_threads=False, block_size=min(max(len(data), 1 << 20), _BLOCK_BYTES)
        ),
        parse_options=pc.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pc.ConvertOptions(
            column_types=dict.fromkeys(places, pa.large_string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).combine_chunks()
    return [pa.concat_arrays(table.column(place).chunks) for place in places]
