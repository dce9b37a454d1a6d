"""A database's errors in our tree: one table for PostgreSQL's SQLSTATEs, one for the numbers of MariaDB and MySQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from headrace.enumerator.errors import AuthenticationError, HeadraceError, PeerError, RetriableError, UsageError

__all__ = ["code_of", "text_of", "translated"]

# By the longest prefix of the SQLSTATE. A value or a row that the table refuses is the caller's.
_STATES: dict[str, type[HeadraceError]] = {
    "08": RetriableError,  # connection lost
    "22": UsageError,  # a value that cannot be stored
    "23": UsageError,  # a constraint
    "28": AuthenticationError,
    "3D": UsageError,  # no such database
    "40": RetriableError,  # deadlock, serialization failure
    "42": UsageError,  # no such table or column
    "42501": AuthenticationError,  # insufficient privilege
    "53": RetriableError,  # out of connections, prepared transactions, memory, disk
    "55P03": RetriableError,  # lock timeout
    "57": RetriableError,  # shutting down, statement timeout
}
_NUMBERS: dict[int, type[HeadraceError]] = {
    **dict.fromkeys((1044, 1045, 1142, 1143, 1227, 1370, 1401, 1698), AuthenticationError),
    **dict.fromkeys((1040, 1041, 1053, 1203, 1205, 1213, 1637, 1927, 2002, 2003, 2006, 2013, 2055, 3024), RetriableError),
    **dict.fromkeys((1048, 1049, 1054, 1062, 1064, 1146, 1153, 1264, 1265, 1292, 1364, 1366, 1367, 1406), UsageError),
    **dict.fromkeys((1451, 1452, 3140, 3819, 4025), UsageError),
}
# What the driver itself, or SQLite, refuses has no code.
_REFUSED = ("DataError", "IntegrityError", "OverflowError", "ProgrammingError")
# Nor has, in psycopg, what happens while it connects.
_CONNECTING: tuple[tuple[str, type[HeadraceError]], ...] = (
    ('database ".*" does not exist', UsageError),
    ("authentication failed|no password supplied|no pg_hba.conf entry|does not exist|permission denied", AuthenticationError),
)


def code_of(error: BaseException) -> str | int | None:
    """The SQLSTATE (PostgreSQL) or the number (MariaDB, MySQL) of a driver's error, as it is or as SQLAlchemy wraps it."""
    error = _driver_error(error)
    # The number first: newer drivers of MariaDB give a SQLSTATE too, which says less.
    if error.args and isinstance(error.args[0], int):
        return error.args[0]
    state = getattr(error, "sqlstate", None)
    return None if state is None else str(state)


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
        raise _kind_of(error, driver.OperationalError)(f"{doing}: {text}") from error


def _driver_error(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def _kind_of(error: BaseException, operational: type[Exception]) -> type[HeadraceError]:
    code, original = code_of(error), _driver_error(error)
    if isinstance(code, str):
        return next((_STATES[code[:length]] for length in (5, 2) if code[:length] in _STATES), PeerError)
    if isinstance(code, int):
        return _NUMBERS.get(code, PeerError)
    if isinstance(original, operational):
        return next((kind for text, kind in _CONNECTING if re.search(text, str(original))), RetriableError)
    return UsageError if type(original).__name__ in _REFUSED else PeerError
