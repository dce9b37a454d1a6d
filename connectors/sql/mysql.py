"""MariaDB and MySQL: inserts of many rows, and XA transactions.

A session that has prepared an XA transaction must end before another one may commit or abort it (MySQL 8.0.29 and newer detach
it at once). The server notices the end of a connection a moment later; until then it states that there is no such transaction
(XAER_NOTA), although XA RECOVER lists it: that is `EndAnswer.BUSY` here, never taken for an aborted one.

XA RECOVER lists the transactions of the whole server, whose names are any bytes. MariaDB states that they are bytes. MySQL says
that they are text, which drivers then cannot decode: it is asked for hexadecimal digits (CONVERT XID, unknown to MariaDB).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from headrace.connectors.sql.arrow import Field, check_finite, python_rows
from headrace.connectors.sql.database import EndAnswer, TwoPhaseDatabase, Writer
from headrace.connectors.sql.errors import code_of
from headrace.connectors.sql.handles import is_gid, split_gid
from headrace.connectors.sql.table import Table, split_name
from headrace.enumerator.errors import AuthenticationError, RetriableError, UsageError

_NO_SUCH_TRANSACTION = 1397  # XAER_NOTA
_MAY_NOT_RECOVER = 1401  # XAER_RMERR: MySQL's answer to XA RECOVER without the privilege
_ROLLED_BACK = (1402, 1613, 1614)  # XA_RBROLLBACK, XA_RBTIMEOUT, XA_RBDEADLOCK: the branch is gone
_LONGEST_VALUE = 100  # of a number or a time, in characters
_FORMAT = 1  # of transactions whose statement named no other


class MySql(TwoPhaseDatabase):
    """MariaDB 10.5 or newer, MySQL 8.0 or newer: older ones abort prepared transactions when their session ends."""

    def check(self, connection: Connection, table: Table) -> None:
        """The server's version, and the engine of the table."""
        version = str(connection.exec_driver_sql("SELECT VERSION()").scalar_one())
        number = tuple(int(part) for part in version.split("-")[0].split(".")[:2])
        if number < ((10, 5) if "mariadb" in version.lower() else (8, 0)):
            raise UsageError(
                f"this server, {version}, loses prepared transactions when their session ends. MariaDB 10.5 or MySQL 8.0 is "
                "needed; or write with UpsertSink, which needs none"
            )
        schema, name = split_name(table.name)
        asked = sa.text(
            "SELECT engine FROM information_schema.tables "
            "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name"
        )
        engine = connection.execute(asked, {"schema": schema, "name": name}).scalar()
        if engine not in ("InnoDB", "ROCKSDB"):
            stored = f"is stored by {engine}, which" if engine else "is a view, which"
            instead = "run ALTER TABLE ... ENGINE=InnoDB" if engine else "write into its table"
            raise UsageError(f"table {table.name!r} {stored} takes no part in XA transactions: {instead}")

    def place(self, connection: Connection) -> tuple[str, ...]:
        """The database: XA's names are shared by all databases of the server."""
        return (str(connection.exec_driver_sql("SELECT database()").scalar_one()),)

    def start(self, connection: Connection, gid: str) -> None:
        """XA START, which must be the first statement of a transaction."""
        connection.exec_driver_sql(f"XA START {_xid(gid)}")

    def writer(self, connection: Connection, table: Table, gid: str) -> Writer:
        return _Writer(connection, table, gid, BulkInsert(connection, table))

    def prepared(self, connection: Connection, prefix: str) -> set[str]:
        """Raises AuthenticationError without the right to look."""
        found = (_gid(*row) for row in _recoverable(connection))
        return {gid for gid in found if gid is not None and gid.startswith(prefix)}

    def end(self, connection: Connection, gid: str, *, commit: bool) -> EndAnswer:
        try:
            connection.exec_driver_sql(f"XA {'COMMIT' if commit else 'ROLLBACK'} {_xid(gid)}")
        except DBAPIError as error:
            if code_of(error) != _NO_SUCH_TRANSACTION and code_of(error) not in _ROLLED_BACK:
                raise
            return EndAnswer.BUSY if gid in self.prepared(connection, gid) else EndAnswer.GONE
        return EndAnswer.DONE

    @contextmanager
    def lock(self, connection: Connection, name: str, timeout_s: float) -> Iterator[None]:
        """A lock of GET_LOCK, which are shared by all databases of the server. `name` has up to 64 characters."""
        taken = connection.exec_driver_sql(f"SELECT GET_LOCK('{name}', {timeout_s:g})").scalar_one()
        if taken != 1:
            holder = connection.exec_driver_sql(f"SELECT IS_USED_LOCK('{name}')").scalar_one()
            raise RetriableError(
                f"another driver has held the lock {name!r} for {timeout_s:g} s: end its process, or its session: KILL {holder}"
            )
        yield
        connection.exec_driver_sql(f"SELECT RELEASE_LOCK('{name}')")


def _recoverable(connection: Connection) -> list[tuple[int, int, int, bytes]]:
    """Format, the lengths of the name's two parts, and both of them."""
    if connection.dialect.is_mariadb:  # type: ignore[attr-defined] # every dialect of this space has it
        rows = connection.exec_driver_sql("XA RECOVER").fetchall()
        return [(form, job, branch, data if isinstance(data, bytes) else data.encode()) for form, job, branch, data in rows]
    try:
        rows = connection.exec_driver_sql("XA RECOVER CONVERT XID").fetchall()
    except DBAPIError as error:
        if code_of(error) != _MAY_NOT_RECOVER:
            raise
        raise AuthenticationError(
            "MySQL does not let this user see prepared transactions: GRANT XA_RECOVER_ADMIN ON *.* TO the user"
        ) from error
    return [(form, job, branch, bytes.fromhex(_text(data).removeprefix("0x"))) for form, job, branch, data in rows]


def _text(data: str | bytes) -> str:
    return data.decode("ascii") if isinstance(data, bytes) else data


def _gid(form: int, job: int, branch: int, data: bytes) -> str | None:
    """The name, if it is one of headrace, in its two parts and in their format: another one could not be ended by it."""
    if form != _FORMAT or not data.isascii():
        return None
    parts = data[:job].decode(), data[job : job + branch].decode()
    gid = ".".join(parts)
    return gid if is_gid(gid) and split_gid(gid) == parts else None


def _xid(gid: str) -> str:
    job, attempt = split_gid(gid)
    return f"'{job}','{attempt}'"


class BulkInsert:
    """The driver makes one INSERT of many rows, up to a megabyte each, or as much as the server takes in one packet.

    A larger row cannot be sent: the server closes the connection, which looks like an outage.
    """

    def __init__(self, connection: Connection, table: Table) -> None:
        self._connection = connection
        self._table = table
        self._packet = int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one())

    def put(self, statement: str, fields: Sequence[Field], columns: Sequence[pa.Array]) -> None:
        """Run the statement, which is for one row, for all rows. Raises UsageError for one that is too large."""
        cursor: Any = self._connection.connection.driver_connection.cursor()  # type: ignore[union-attr] # open
        rows = python_rows(columns, fields)
        for number in self._large(statement, columns).to_pylist():
            size = len(cursor.mogrify(statement, rows[number]).encode(errors="surrogateescape"))
            if size >= self._packet:
                raise UsageError(
                    f"a row for table {self._table.name!r} is a statement of {size} bytes, and the server takes "
                    f"{self._packet}: raise its max_allowed_packet, or leave such rows out"
                )
        cursor.max_stmt_length = min(cursor.max_stmt_length, self._packet - 1)
        cursor.executemany(statement, rows)
        cursor.close()

    def _large(self, statement: str, columns: Sequence[pa.Array]) -> pa.Array:
        """The numbers of the rows that may be too large: escaped, a byte becomes two at most."""
        others = 4 * len(statement) + _LONGEST_VALUE * len(columns)
        texts = [column for column in columns if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)]
        if 2 * sum(column.nbytes for column in texts) + others < self._packet:
            return pa.array([], pa.int64())
        lengths = [pc.fill_null(pc.binary_length(column), 0) for column in texts]
        sizes = functools.reduce(pc.add, lengths, pa.repeat(pa.scalar(0, pa.int64()), len(columns[0])))
        return pc.indices_nonzero(pc.greater_equal(sizes, (self._packet - others) // 2))


class _Writer(Writer):
    """Each batch is its own statements."""

    def __init__(self, connection: Connection, table: Table, gid: str, bulk: BulkInsert) -> None:
        super().__init__(connection, table, gid)
        self._bulk = bulk

    def put(self, fields: Sequence[Field], columns: Sequence[pa.Array]) -> None:
        check_finite(columns, fields, "MariaDB")
        values = ", ".join("%s" for _ in fields)
        statement = f"INSERT INTO {self._table.sql} ({self._names(fields)}) VALUES ({values})"  # noqa: S608 - names are quoted
        self._bulk.put(statement, fields, columns)

    def _prepare(self) -> None:
        for step in ("END", "PREPARE"):
            self._connection.exec_driver_sql(f"XA {step} {_xid(self._gid)}")
