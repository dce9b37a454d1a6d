"""At least once, and the same table in the end: rows replace those of their key, or delete them. Needs no two-phase commit.

Each task's transaction commits by itself, so that readers see an epoch bit by bit, and a replayed epoch writes its rows again.
The table ends up right if an epoch has at most one row for each key, or they are in the same task, where the last one wins. A
source whose splits are other rows when they are read again must also give all changes since they were read first.

What a slow attempt of a dead driver would write is refused once its epoch is recorded: it cannot overwrite newer rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, NestedTransaction
from sqlalchemy.exc import IntegrityError

from headrace.connectors.base.arguments import names, text
from headrace.connectors.base.capabilities import EpochRecord
from headrace.connectors.base.change_types import PREIMAGE, check_one_column, deleted_rows
from headrace.connectors.base.jobs import check_job
from headrace.connectors.base.nested import plain_rows
from headrace.connectors.base.sink import Attempt, Outcome
from headrace.connectors.sql.arrow import Field, Kind, check_finite, normalised_columns, python_rows, text_rows
from headrace.connectors.sql.commits import COMMITS, create_tables
from headrace.connectors.sql.errors import is_between_rows
from headrace.connectors.sql.handles import SqlHandle, list_key
from headrace.connectors.sql.mysql import BulkInsert
from headrace.connectors.sql.order import ties_rows
from headrace.connectors.sql.rows import RowTransaction
from headrace.connectors.sql.table import Table, fields_of, place_of
from headrace.connectors.sql.table_sink import StoredListCommitter, TableSink
from headrace.connectors.sql.unique import check_key, check_other_keys, check_routes, collations_of, operators_of, other_keys
from headrace.connectors.sql.url import Product, shown
from headrace.enumerator.errors import FencedError, UsageError

_MOST_HELD_ROWS = 200_000
_NO, _YES = map(pa.scalar, (False, True))
_BY_BYTES = (Kind.BOOLEAN, Kind.INTEGER, Kind.DECIMAL, Kind.DATE, Kind.TIME, Kind.INSTANT, Kind.LOCAL)
"""Keys of which a database holds no two for equal that differ here, as it does with texts by their collation, or with UUIDs."""


@dataclass(frozen=True, repr=False)
class UpsertSink(TableSink, EpochRecord):
    """Inserts rows, or replaces or deletes those of the same key. Picklable; its repr hides the password.

    url: as SQLAlchemy has it, of PostgreSQL, MariaDB, MySQL or SQLite (`sqlite:////folder/file.db`).
    table: `table` or `schema.table`. Columns are matched by name; those that the rows do not have keep their values.
    key: the columns of a unique index of the table, of these columns and as a whole. No row has a null in them. MariaDB and
    MySQL match rows by every unique index: there is no other that rows give a part of.
    change_type: a column that says what becomes of the row, and is not written: as that of `Changes`, without preimages. Of a
    delete only the key counts. -U deletes, unless a row of its key follows. Changes of a key are applied in the order in which
    they come, if one task of an epoch has them; of a table where rows may meet (another unique index, a foreign key back to
    it, an exclusion constraint, a trigger), so are all of its changes. None: every row is inserted, or replaces another.
    lock_timeout_s: how long to wait for a lock that another transaction holds, in seconds; 30 by default.

    Raises UsageError for an address or a table's name that cannot be used, without any I/O.
    """

    key: tuple[str, ...]
    change_type: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "key", names("key", self.key))
        if not self.key or not all(self.key) or len(set(self.key)) != len(self.key):
            raise UsageError(f"the key must name columns, each once; got {list(self.key)}")
        if self.change_type is not None and text("change_type", self.change_type) in self.key:
            raise UsageError(f"column {self.change_type!r} cannot be the change type and a part of the key too")

    @property
    def row_key(self) -> tuple[str, ...]:
        """The key."""
        return self.key

    @property
    def records_all_epochs(self) -> bool:
        """There are no handles."""
        return True

    def begin(self, attempt: Attempt) -> UpsertTransaction:
        """Connect and look at the table. Raises as `SqlSink.begin`, and UsageError when it has no such unique key."""
        check_job(attempt.job)
        with self._session(f"beginning to write to {shown(self.url)}") as (engine, connection):
            create_tables(connection)
            return UpsertTransaction(engine, connection, self._locked_table(connection), self, attempt)

    def committer(self, job: str) -> UpsertCommitter:
        """The one that records this job's epochs; connects when it is first used. Close it."""
        return UpsertCommitter(self._store(), check_job(job))

    def _check_table(self, connection: Connection, table: Table) -> None:
        check_key(table.name, table.unique, self.key)
        if table.product is Product.POSTGRESQL:
            check_routes(connection, table.name, place_of(connection, table.name))

    def _fields_of(self, table: Table, schema: pa.Schema) -> tuple[Field, ...]:
        return _fields_of(table, self, schema)


class UpsertTransaction(RowTransaction):
    """A task's transaction; `prepare` commits it."""

    def __init__(self, engine: Engine, connection: Connection, table: Table, sink: UpsertSink, attempt: Attempt) -> None:
        super().__init__(engine, connection, table)
        self._sink = sink
        self._key_fields: tuple[Field, ...] = ()
        self._attempt = attempt
        self._held: pa.RecordBatch | None = None
        self._wanted = 0  # how many rows are held until those that were refused are tried again
        self._in_order = sink.change_type is not None and ties_rows(connection, table)
        self._bulk = BulkInsert(connection, table) if table.product is Product.MYSQL else None

    def _fields_of(self, schema: pa.Schema) -> tuple[Field, ...]:
        fields = _fields_of(self._table, self._sink, schema)
        self._key_fields = tuple(field for field in fields if field.name in self._sink.key)
        given = [field.name for field in fields]
        self._in_order |= bool(other_keys(self._table.unique, self._sink.key, self._table.columns, given))
        return fields

    def _send(self, rows: pa.RecordBatch) -> None:
        if self._sink.change_type is None:
            super()._send(rows)
            return
        rows = plain_rows(rows)
        if self._held is not None:
            rows = pa.Table.from_batches([self._held, rows]).combine_chunks().to_batches()[0]
        deleted = deleted_rows(rows, self._sink.change_type, f"table {self._table.name!r}")
        if deleted.null_count and PREIMAGE in pc.unique(rows.column(self._sink.change_type)).to_pylist():
            raise UsageError(
                f"table {self._table.name!r}: column {self._sink.change_type!r} has a preimage, and no column states which row "
                "takes its place: leave preimages out, or delete by rows of the old keys"
            )
        count = len(rows) if deleted[-1].is_valid else len(rows) - 1
        if count < self._wanted:
            self._held = rows
            return
        self._held = rows.slice(count) if count < len(rows) else None  # the row that takes its place comes next
        if not count:
            return
        refusal = self._change(rows.slice(0, count), deleted.slice(0, count))
        if refusal is not None:
            if count > _MOST_HELD_ROWS:
                raise refusal
            self._held = rows
        self._wanted = 0 if refusal is None else 2 * count

    def _change(self, rows: pa.RecordBatch, deleted: pa.BooleanArray) -> Exception | None:
        """In order where rows may meet others. A replay, whose rows are there already, may be refused so, and not without.

        Returns why the rows are refused both ways, and are not written: with more of the replay's rows they may not be.
        """
        if not self._in_order:
            self._change_by_key(rows, deleted)
            return None
        refusal = self._refused(self._change_in_order, rows, deleted)
        return None if refusal is None or self._refused(self._change_by_key, rows, deleted) is None else refusal

    def _refused(self, change: Callable[..., None], rows: pa.RecordBatch, deleted: pa.BooleanArray) -> Exception | None:
        savepoint = self._savepoint()
        try:
            change(rows, deleted)
        except (IntegrityError, self._engine.dialect.loaded_dbapi.IntegrityError) as error:
            if not is_between_rows(error) or not self._is_in_transaction():  # which SQLite's RAISE(ROLLBACK) ends
                raise
            savepoint.rollback()  # after nothing else: a deadlock of MariaDB ends the savepoint, too
            return error
        savepoint.commit()
        return None

    def _savepoint(self) -> NestedTransaction:
        if not self._is_in_transaction():
            connection: Any = self._connection.connection.driver_connection
            connection.execute("BEGIN")  # else the savepoint's end would commit
        return self._connection.begin_nested()

    def _is_in_transaction(self) -> bool:
        """Of SQLite, which the driver starts with the first change of a row; elsewhere there always is one."""
        connection: Any = self._connection.connection.driver_connection
        return self._table.product is not Product.SQLITE or bool(connection.in_transaction)

    def _change_by_key(self, rows: pa.RecordBatch, deleted: pa.BooleanArray) -> None:
        """Deletes first, then the last row of each key: what is inserted behind a delete keeps nothing of the row before it.

        Keys that the database holds for equal count as different ones here: deleting again finds them, and only then are the
        changes made in their order.
        """
        keys = normalised_columns(rows, self._key_fields)
        last = _last_of_each(keys)
        is_deleted = pc.coalesce(deleted, pc.is_in(pa.array(range(len(rows)), pa.int64()), last))
        self._delete([column.filter(is_deleted) for column in keys])
        is_delete = is_deleted.take(last)
        self._insert(rows.take(last.filter(pc.invert(is_delete))))
        if all(field.kind in _BY_BYTES for field in self._key_fields) or len(pc.unique(is_delete)) < 2:
            return
        again = last.filter(is_delete)
        if self._delete([column.take(again) for column in keys]):
            self._change_in_order(rows, deleted)

    def _change_in_order(self, rows: pa.RecordBatch, deleted: pa.BooleanArray) -> None:
        """A run of deletes, or of other rows, is one call of the driver, which runs the statement row by row."""
        counts = pc.invert(pc.and_(deleted.is_null(), _same_as_next(normalised_columns(rows, self._key_fields))))
        rows, deleted = rows.filter(counts), deleted.fill_null(_YES).filter(counts)
        starts = (np.flatnonzero(np.diff(deleted.to_numpy(zero_copy_only=False))) + 1).tolist()
        for start, end in pairwise([0, *starts, len(rows)]):
            run = rows.slice(start, end - start)
            if deleted[start].as_py():
                self._delete(normalised_columns(run, self._key_fields))
            else:
                self._insert(run)

    def _insert(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            super()._send(rows)

    def _put(self, fields: Sequence[Field], columns: Sequence[pa.Array]) -> None:
        self._check_key([column for field, column in zip(fields, columns, strict=True) if field.name in self._sink.key])
        if self._table.product is not Product.POSTGRESQL:
            check_finite(columns, fields, "this database")
        statement = _upsert(self._connection, self._table, self._sink.key, [field.name for field in fields])
        if self._bulk is not None:
            self._bulk.put(statement, fields, columns)
        else:
            self._execute(statement, fields, columns)

    def _delete(self, keys: Sequence[pa.Array]) -> int:
        """How many rows there were."""
        self._check_key(keys)
        if not len(keys[0]):
            return 0
        statement = _delete(self._connection, self._table, self._key_fields)
        return self._execute(statement, self._key_fields, keys)

    def _execute(self, statement: str, fields: Sequence[Field], columns: Sequence[pa.Array]) -> int:
        """Run the statement for each row, and count what it has changed."""
        rows = text_rows if self._table.product is Product.SQLITE else python_rows
        return self._connection.exec_driver_sql(statement, rows(columns, fields)).rowcount

    def _check_key(self, keys: Sequence[pa.Array]) -> None:
        """Raise UsageError for a null in these columns, which are those of the key."""
        for field, column in zip(self._key_fields, keys, strict=True):
            if column.null_count:
                raise UsageError(
                    f"table {self._table.name!r}: column {field.name!r} of the upsert's key must not be null, and a row has a "
                    "null there: no unique index finds it again, so it would be added with each retry"
                )

    def _pre_commit(self) -> None:
        if self._held is not None:
            deleted = deleted_rows(self._held, str(self._sink.change_type), f"table {self._table.name!r}")
            if refusal := self._change(self._held, deleted):
                raise refusal
        # Holds the row until the commit, so that the epoch cannot be recorded in between.
        job = self._attempt.job
        is_own = COMMITS.c.job == list_key(job, self._table.destination)
        epoch = self._connection.execute(sa.select(COMMITS.c.epoch).where(is_own).with_for_update(read=True)).scalar()
        if epoch is not None and epoch >= self._attempt.epoch:
            raise FencedError(f"epoch {epoch} of job {job!r} is recorded: {self._attempt} comes too late")
        self._connection.commit()


def _fields_of(table: Table, sink: UpsertSink, schema: pa.Schema) -> tuple[Field, ...]:
    if sink.change_type is not None:
        check_one_column(schema, sink.change_type, f"table {table.name!r}")
        schema = pa.schema([field for field in schema if field.name != sink.change_type])
    fields = fields_of(table, schema)
    missing = sorted(set(sink.key) - set(schema.names))
    if missing:
        raise UsageError(f"the rows for table {table.name!r} lack the columns {missing} of the key; they have {schema.names}")
    for name in schema.names:
        if name not in sink.key and (table.columns[name].get("identity") or {}).get("always"):
            raise UsageError(
                f"column {name!r} of table {table.name!r} is GENERATED ALWAYS AS IDENTITY, and no upsert changes such a value: "
                "leave it out, or make it GENERATED BY DEFAULT"
            )
    if table.product is Product.MYSQL:
        check_other_keys(table.name, table.unique, sink.key, table.columns, schema.names)
    return fields


def _last_of_each(keys: Sequence[pa.Array]) -> pa.Int64Array:
    """The number of the last row of each key, in their order."""
    names = [str(number) for number in range(len(keys))]
    numbered = pa.table([*keys, pa.array(range(len(keys[0])), pa.int64())], names=[*names, "row"])
    return numbered.group_by(names, use_threads=False).aggregate([("row", "max")])["row_max"].combine_chunks().sort()


def _same_as_next(keys: Sequence[pa.Array]) -> pa.BooleanArray:
    """Whether the next row has the same key, for each row."""
    same = [pc.equal(column.slice(0, len(column) - 1), column.slice(1)).fill_null(_NO) for column in keys]
    return pa.concat_arrays([functools.reduce(pc.and_, same), pa.array([False])])


def _upsert(connection: Connection, table: Table, key: Sequence[str], names: Sequence[str]) -> str:
    """A statement for one row."""
    quote, sign = connection.dialect.identifier_preparer.quote_identifier, _sign(table)
    # Of a column that is GENERATED ALWAYS AS IDENTITY: COPY keeps what is given, too.
    given = " OVERRIDING SYSTEM VALUE" if table.product is Product.POSTGRESQL else ""
    insert = f"{table.insert} ({', '.join(map(quote, names))}){given} VALUES ({', '.join([sign] * len(names))})"
    others = [quote(name) for name in names if name not in key]
    if table.product is Product.MYSQL:
        same = f"{quote(key[0])} = {quote(key[0])}"  # the key stays as it was written first
        changes = ", ".join(f"{name} = VALUES({name})" for name in others) or same
        return f"{insert} ON DUPLICATE KEY UPDATE {changes}"
    changes = ", ".join(f"{name} = excluded.{name}" for name in others)
    action = f"DO UPDATE SET {changes}" if changes else "DO NOTHING"
    # SQLite finds the row's number, which an INTEGER PRIMARY KEY is, by the column's name alone.
    compared = _compared(connection, table, key)
    columns = map(quote, key) if table.product is Product.SQLITE else compared
    return f"{insert} ON CONFLICT ({', '.join(columns)}) {action}"


def _delete(connection: Connection, table: Table, fields: Sequence[Field]) -> str:
    """A statement for the row of one key."""
    key = [field.name for field in fields]
    quote, by = connection.dialect.identifier_preparer.quote_identifier, operators_of(table.name, table.unique, key)
    # An operator's name is not quoted; the driver takes a percent sign for a parameter.
    operators = [f"OPERATOR({quote(by[name][0])}.{by[name][1].replace('%', '%%')})" if name in by else "=" for name in key]
    # By its operator alone a parameter would be of the index's type, as `record` or `oid`, which may not read it.
    # Numbers and times have their types, and may be out of the column's range.
    casts = [str(table.columns[name].get("cast", "")).replace("%", "%%") for name in key]
    casts = ["" if field.kind in _BY_BYTES else cast for field, cast in zip(fields, casts, strict=True)]
    values = [f"CAST({_sign(table)} AS {cast})" if cast else _sign(table) for cast in casts]
    compared = zip(_compared(connection, table, key), operators, values, strict=True)
    found = " AND ".join(map(" ".join, compared))
    return f"{table.delete} WHERE {found}"


def _compared(connection: Connection, table: Table, key: Sequence[str]) -> list[str]:
    """The columns of the key, each compared as by its unique index: not as by the column, or by another index."""
    quote, by = connection.dialect.identifier_preparer.quote_identifier, collations_of(table.name, table.unique, key)
    return [quote(name) + (f" COLLATE {'.'.join(map(quote, by[name]))}" if name in by else "") for name in key]


def _sign(table: Table) -> str:
    """What is in the place of a value."""
    return "?" if table.product is Product.SQLITE else "%s"


class UpsertCommitter(StoredListCommitter):
    """Records which epochs are written. No transaction is ever still open for it to end."""

    def check(self, handles: Sequence[SqlHandle]) -> None:
        if handles:
            self._unknown()

    def end(self, handle: SqlHandle) -> Outcome:
        self._unknown()

    def copy(self, handles: Sequence[SqlHandle]) -> SqlHandle:
        self._unknown()

    def clean_up(self, keep: Collection[SqlHandle]) -> None:
        """Nothing is ever still open."""

    def _unknown(self) -> NoReturn:
        raise UsageError(
            f"job {self._job!r} has prepared transactions: SqlSink wrote it. Let that recover it once, then continue here"
        )
