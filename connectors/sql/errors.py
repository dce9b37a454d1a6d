"""A database's errors in our tree: tables for the numbers of MariaDB and MySQL, and SQLite's codes; PostgreSQL's are its own.

What a table does not have becomes an `UnclassifiedError`, which runners retry a bounded number of times.
"""

from __future__ import annotations

import sqlite3
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from headrace.connectors.postgresql.errors import kind_of_state, kind_while_connecting
from headrace.enumerator.errors import AuthenticationError, HeadraceError, RetriableError, UnclassifiedError, UsageError

_Kind = type[HeadraceError]

_NUMBERS: dict[int, _Kind] = {
    **dict.fromkeys((
        # refused logins and hosts, missing rights, expired passwords, locked accounts
        1044, 1045, 1129, 1130, 1131, 1132, 1142, 1143, 1227, 1251, 1370, 1401, 1410, 1524, 1698, 1820, 1862, 2059, 3118, 4151,
    ), AuthenticationError),
    **dict.fromkeys((
        # connections, processes, memory, disk space
        0, 1021, 1037, 1038, 1040, 1041, 1043, 1053, 1079, 1114, 1135, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1290,
        # locks, deadlocks, timeouts, statements and transactions that were ended, servers that are read-only for now
        1020, 1047, 1205, 1206, 1213, 1317, 1402, 1412, 1613, 1614, 1615, 1637, 1792, 1836, 1927, 1969, 3024, 3101, 3572, 4031,
        2002, 2003, 2006, 2013, 2055,  # of the client
    ), RetriableError),
    **dict.fromkeys((
        # no such database, table, column, function or definer; a table or view that takes no rows
        1036, 1046, 1049, 1051, 1054, 1064, 1103, 1109, 1110, 1136, 1146, 1286, 1288, 1305, 1347, 1356, 1423, 1449, 1471, 2026,
        # values that the column cannot hold, and rows that are too large
        1048, 1118, 1153, 1264, 1265, 1292, 1364, 1366, 1367, 1406, 1411, 1416, 1690, 3140, 3141, 3144, 3156, 3157, 3903, 4078,
        1267,  # a text that a column's character set does not have
        1665,  # a format of the binary log that has no transactions in READ COMMITTED
        # keys, foreign keys, checks, partitions, views, generated columns
        1022, 1062, 1169, 1216, 1217, 1369, 1451, 1452, 1526, 1586, 1591, 1748, 1761, 1762, 1906, 1907, 3105, 3819, 4025,
        1235,  # what the server does not do, as to replace rows by a key WITHOUT OVERLAPS
        1172, 1242, 1329, 1339, 1362, 1422, 1442, 1456, 1642, 1643, 1644, 1645,  # SIGNAL, triggers
    ), UsageError),
}  # fmt: skip

# By the primary code, the lowest byte. A folder that is missing looks like one that is not mounted yet: retriable.
_SQLITE: dict[int, _Kind] = {
    **dict.fromkeys((sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY), AuthenticationError),
    **dict.fromkeys((
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_SCHEMA,
        sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
    ), RetriableError),
    **dict.fromkeys((
        sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_RANGE,
    ), UsageError),
}  # fmt: skip
_PRIMARY = 0xFF

POOLED = "as the address leads to a pooler in transaction mode: give that of the server, or of a pool in session mode"
_LOCKED = (
    ". If another output of the pipeline holds the lock, as by a foreign key between their tables, that never passes: drop "
    "that key, or run a pipeline for each output"
)
_WAITED = (1205, "55P03")
_OF_SESSIONS = ("26000", "42P05")  # of prepared statements: one that there is not, or that there is

# What a driver itself refuses has no code.
_BY_NAME: dict[str, _Kind] = {
    **dict.fromkeys(("DataError", "IntegrityError", "OverflowError", "ProgrammingError"), UsageError),
    **dict.fromkeys(("InterfaceError", "OperationalError"), RetriableError),  # the connection is gone
}


def code_of(error: BaseException) -> str | int | None:
    """The SQLSTATE (PostgreSQL) or the number (MariaDB, MySQL) of a driver's error, as it is or as SQLAlchemy wraps it."""
    error = _driver_error(error)
    # The number first: newer drivers of MariaDB give a SQLSTATE too, which says less.
    if error.args and isinstance(error.args[0], int):
        return error.args[0]
    state = getattr(error, "sqlstate", None)
    return None if state is None else str(state)


_BETWEEN_ROWS = {"23503", "23505", "23P01", 1062, 1169, 1216, 1217, 1451, 1452, 1586, 1761, 1762}
_BETWEEN_ROWS_OF_SQLITE = tuple(f"SQLITE_CONSTRAINT_{kind}" for kind in ("FOREIGNKEY", "PRIMARYKEY", "ROWID", "UNIQUE"))


def is_between_rows(error: BaseException) -> bool:
    """Whether a row is refused because of others: by a unique key, a foreign key, or an exclusion constraint."""
    name = getattr(_driver_error(error), "sqlite_errorname", None)
    return code_of(error) in _BETWEEN_ROWS or name in _BETWEEN_ROWS_OF_SQLITE


def text_of(error: BaseException) -> str:
    """What the server or the driver says, without the statement and its parameters."""
    error = _driver_error(error)
    if len(error.args) > 1 and isinstance(error.args[0], int):
        return f"{error.args[1]} (error {error.args[0]})"
    return str(error).strip()


@contextmanager
def translated(engine: Engine, doing: str) -> Iterator[None]:
    """Raise a driver's errors in our tree, saying what was being done to which database; no password is in any message."""
    driver = engine.dialect.loaded_dbapi
    try:
        yield
    except (SQLAlchemyError, driver.Error, OverflowError) as error:
        text = text_of(error)
        if engine.url.password:
            text = text.replace(str(engine.url.password), "***")
        code = code_of(error)
        why = f", {POOLED}" if code in _OF_SESSIONS else _LOCKED if code in _WAITED else ""
        raise _kind_of(error)(f"{doing}: {text}{why}") from error


def _driver_error(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def _kind_of(error: BaseException) -> _Kind:
    code, original = code_of(error), _driver_error(error)
    if isinstance(code, str):
        return kind_of_state(code)
    if isinstance(getattr(original, "original_exception", None), ssl.SSLCertVerificationError):
        return UsageError  # PyMySQL gives it the number of an outage
    if isinstance(code, int):
        return _NUMBERS.get(code, UnclassifiedError)
    extended = getattr(original, "sqlite_errorcode", None)
    if extended is not None:
        return _SQLITE.get(extended & _PRIMARY, UnclassifiedError)
    kind = next((_BY_NAME[base.__name__] for base in type(original).__mro__ if base.__name__ in _BY_NAME), UnclassifiedError)
    return kind_while_connecting(str(original)) if kind is RetriableError else kind
