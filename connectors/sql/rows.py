"""What every transaction of a task does: batches become rows of the table, in a session that ends with the transaction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from headrace.connectors.base.guard import AllOrNothing, check_values
from headrace.connectors.base.sink import Transaction
from headrace.connectors.sql.arrow import Field, normalised_columns
from headrace.connectors.sql.errors import translated
from headrace.connectors.sql.handles import SqlHandle
from headrace.connectors.sql.table import Table, fields_of
from headrace.enumerator.errors import UsageError

_CHUNK_ROWS = 16_384  # bounds what a batch takes in its other form


def end_session(engine: Engine, connection: Connection) -> None:
    """Close the connection without a word to the server, which aborts what was not prepared. Never raises."""
    with suppress(SQLAlchemyError, engine.dialect.loaded_dbapi.Error, OSError):
        connection.invalidate()
    with suppress(SQLAlchemyError, engine.dialect.loaded_dbapi.Error, OSError):
        connection.close()
    engine.dispose()


class RowTransaction(Transaction[SqlHandle]):
    """Rows of one schema into one table. A subclass says how they are put there, and what the pre-commit is."""

    def __init__(self, engine: Engine, connection: Connection, table: Table) -> None:
        """Takes the connection over, in which the transaction has started, or starts with its first statement."""
        self._engine, self._connection, self._table = engine, connection, table
        self._schema: pa.Schema | None = None
        self._fields: tuple[Field, ...] = ()
        self._rows = 0
        self._is_open = True
        self._whole = AllOrNothing(f"table {table.name!r}", "the transaction", self.abort)

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the rows. Raises UsageError when they do not fit the table, or are not like the previous ones."""
        self._whole.check_rows(batch)
        if self._schema is None:
            self._fields = self._fields_of(batch.schema)
            self._schema = batch.schema
        elif not batch.schema.equals(self._schema):
            raise UsageError(f"the rows for table {self._table.name!r} have changed from {self._schema} to {batch.schema}")
        with self._whole.steps():
            check_values(batch, f"table {self._table.name!r}")
            for start in range(0, batch.num_rows, _CHUNK_ROWS):
                chunk = batch.slice(start, _CHUNK_ROWS)
                with translated(self._engine, f"writing to table {self._table.name!r}"):
                    self._send(chunk)
                self._rows += chunk.num_rows

    def prepare(self) -> SqlHandle | None:
        """Pre-commit. Raises UsageError for rows that the database refuses, RetriableError for a lost connection."""
        self._whole.check()
        try:
            if not self._rows:
                return None
            with translated(self._engine, f"writing to table {self._table.name!r}"):
                return self._pre_commit()
        finally:
            self.abort()  # the session is over either way; what is prepared or committed does not mind

    def abort(self) -> None:
        if self._whole.end() and self._is_open:
            self._is_open = False
            end_session(self._engine, self._connection)

    def _fields_of(self, schema: pa.Schema) -> tuple[Field, ...]:
        """The columns that are written of such rows. Raises UsageError for rows that do not fit the table, or this sink."""
        return fields_of(self._table, schema)

    def _send(self, rows: pa.RecordBatch) -> None:
        """Send some rows."""
        self._put(self._fields, normalised_columns(rows, self._fields))

    @abstractmethod
    def _put(self, fields: Sequence[Field], columns: Sequence[pa.Array]) -> None:
        """Send normalised rows."""

    @abstractmethod
    def _pre_commit(self) -> SqlHandle | None:
        """Make sure of the rows; there is at least one."""
