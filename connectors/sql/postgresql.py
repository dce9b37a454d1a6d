"""PostgreSQL: COPY, PREPARE TRANSACTION, and what ends it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from headrace.connectors.sql.arrow import Field, copy_lines
from headrace.connectors.sql.commits import COMMITS
from headrace.connectors.sql.database import EndAnswer, TwoPhaseDatabase, Writer
from headrace.connectors.sql.errors import POOLED, code_of
from headrace.connectors.sql.handles import is_gid
from headrace.connectors.sql.table import Table, place_of
from headrace.enumerator.errors import RetriableError, UsageError

_UNDEFINED_OBJECT = "42704"
_OBJECT_IN_USE = "55006"
_LOCK_NOT_AVAILABLE = "55P03"
_RULE = """
SELECT rulename FROM pg_catalog.pg_rewrite
WHERE ev_class = to_regclass(:quoted) AND ev_type = '3' AND ev_enabled IN ('O', 'A') LIMIT 1
"""


class PostgreSql(TwoPhaseDatabase):
    """PostgreSQL 12 or newer."""

    def check(self, connection: Connection, table: Table) -> None:
        """Prepared transactions are switched off unless the server's configuration allows some."""
        if int(connection.exec_driver_sql("SHOW max_prepared_transactions").scalar_one()) == 0:
            raise UsageError(
                "this PostgreSQL has prepared transactions switched off. Set max_prepared_transactions in its configuration to "
                "at least twice the number of tasks that write at a time, and restart it; or write with UpsertSink, which "
                "needs none"
            )
        if rule := connection.execute(text(_RULE), place_of(connection, table.name)).scalar():
            raise UsageError(
                f"table {table.name!r} has the rule {rule!r} for INSERT, and COPY, which writes the rows, runs none: make it a "
                "trigger"
            )

    def place(self, connection: Connection) -> tuple[str, ...]:
        """The database, and the schema where our tables are, or would be made: a new one may come first in the search path."""
        found = "SELECT nspname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON relnamespace = pg_namespace.oid "
        found += f"WHERE pg_class.oid = to_regclass('{COMMITS.name}')"
        database, schema = connection.exec_driver_sql(f"SELECT current_database(), coalesce(({found}), current_schema())").one()
        return str(database), str(schema)

    def start(self, connection: Connection, gid: str) -> None:
        """The driver does it with its first statement."""

    def writer(self, connection: Connection, table: Table, gid: str) -> Writer:
        return _Writer(connection, table, gid)

    def prepared(self, connection: Connection, prefix: str) -> set[str]:
        """Those of this database: others cannot be ended from here."""
        found = connection.exec_driver_sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        return {gid for (gid,) in found if gid.startswith(prefix) and is_gid(gid)}

    def end(self, connection: Connection, gid: str, *, commit: bool) -> EndAnswer:
        try:
            connection.exec_driver_sql(f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED '{gid}'")
        except DBAPIError as error:
            if code_of(error) == _UNDEFINED_OBJECT:
                return EndAnswer.GONE
            if code_of(error) == _OBJECT_IN_USE:
                return EndAnswer.BUSY
            raise
        return EndAnswer.DONE

    @contextmanager
    def lock(self, connection: Connection, name: str, timeout_s: float) -> Iterator[None]:
        """An advisory lock. The session's lock timeout is of this length already. Raises UsageError where it has no session."""
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        try:
            _, holder = connection.exec_driver_sql(f"SELECT pg_advisory_lock({number}), pg_backend_pid()").one()
        except DBAPIError as error:
            if code_of(error) != _LOCK_NOT_AVAILABLE:
                raise
            raise RetriableError(
                f"another driver has held the lock {name!r} for {timeout_s:g} s: end its process, or its session, which is the "
                f"one in pg_locks with the advisory lock {number}. It may be the session of a pooler, which must not be in "
                "transaction mode"
            ) from error
        if connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() != holder:
            raise UsageError(f"the lock {name!r} is of another session now, {POOLED}")
        yield
        if not connection.exec_driver_sql(f"SELECT pg_advisory_unlock({number})").scalar_one():
            raise UsageError(f"the lock {name!r} was of another session, {POOLED}")


class _Writer(Writer):
    """One COPY from the first row to the last, so that nothing waits for the server between batches."""

    def __init__(self, connection: Connection, table: Table, gid: str) -> None:
        super().__init__(connection, table, gid)
        self._stack = ExitStack()
        self._copy: Any = None

    def put(self, fields: Sequence[Field], columns: Sequence[pa.Array]) -> None:
        if self._copy is None:
            # The preparer doubles percent signs, for statements with parameters; this one has none.
            statement = f"COPY {self._table.sql} ({self._names(fields)}) FROM STDIN".replace("%%", "%")
            cursor = self._stack.enter_context(self._connection.connection.driver_connection.cursor())  # type: ignore[union-attr] # open
            self._copy = self._stack.enter_context(cursor.copy(statement))
        self._copy.write(copy_lines(columns, fields))

    def end_rows(self) -> None:
        self._stack.close()

    def _prepare(self) -> None:
        self._connection.exec_driver_sql(f"PREPARE TRANSACTION '{self._gid}'")

    def release(self) -> None:
        self._stack.close()
