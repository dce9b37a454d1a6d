"""What databases with two-phase commit do differently: `postgresql` and `mysql` implement it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import Enum, auto
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.connectors.sql.arrow import Field
from headrace.connectors.sql.commits import TRANSACTIONS
from headrace.connectors.sql.table import Table


class EndAnswer(Enum):
    """The database's answer to COMMIT PREPARED or ROLLBACK PREPARED (MySQL: XA COMMIT, XA ROLLBACK)."""

    DONE = auto()
    GONE = auto()  # there is none of this name
    BUSY = auto()  # another session has it: the one that prepared it and has not quite ended, or one that ends it now


class Writer(ABC):
    """One transaction of a task, in its own session."""

    def __init__(self, connection: Connection, table: Table, gid: str) -> None:
        self._connection, self._table, self._gid = connection, table, gid

    @abstractmethod
    def put(self, fields: Sequence[Field], columns: Sequence[pa.Array]) -> None:
        """Add rows; `fields` are the same each time, `columns` are normalised."""

    def _names(self, fields: Sequence[Field]) -> str:
        """The columns, for a statement with parameters."""
        return ", ".join(map(self._connection.dialect.identifier_preparer.quote_identifier, (field.name for field in fields)))

    def end_rows(self) -> None:  # noqa: B027 - not where each batch is its own statement
        """No more rows come: from here on the session takes other statements."""

    def prepare(self, epoch: int, job: str) -> None:
        """Add the row of `headrace_transactions`, and prepare. After it the session is of no use: close it."""
        self._connection.execute(sa.insert(TRANSACTIONS).values(gid=self._gid, job=job, epoch=epoch))
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None: ...

    def release(self) -> None:  # noqa: B027 - only where something is held
        """Release resources; the session is closed. May raise the driver's errors, which say no more than that."""


class TwoPhaseDatabase(ABC):
    """A kind of database. Stateless; connections are SQLAlchemy's, outside a transaction unless noted."""

    @abstractmethod
    def check(self, connection: Connection, table: Table) -> None:
        """Raise UsageError, saying what to set, when rows of this table cannot be written in two phases."""

    @abstractmethod
    def place(self, connection: Connection) -> tuple[str, ...]:
        """Where our tables are: the database, and its schema if it has some."""

    @abstractmethod
    def start(self, connection: Connection, gid: str) -> None:
        """Start a transaction of this name."""

    @abstractmethod
    def writer(self, connection: Connection, table: Table, gid: str) -> Writer:
        """Of the transaction of this name, which has started."""

    @abstractmethod
    def prepared(self, connection: Connection, prefix: str) -> set[str]:
        """The names of all prepared transactions that start with this."""

    @abstractmethod
    def end(self, connection: Connection, gid: str, *, commit: bool) -> EndAnswer:
        """Commit or abort a prepared transaction. The connection is in autocommit."""

    @abstractmethod
    def lock(self, connection: Connection, name: str, timeout_s: float) -> AbstractContextManager[Any]:
        """Hold the lock of this name, which ends with the connection's session at the latest. It is in autocommit.

        Raises RetriableError when another session holds it for longer than this.
        """
