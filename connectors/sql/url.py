"""A database's address: which driver speaks to it, engines made for it, and how it is shown."""

from __future__ import annotations

import os
import ssl
from enum import Enum
from typing import Any
from urllib.parse import unquote, urlsplit

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Dialect, Engine, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from headrace.connectors.postgresql.errors import DURABLE, NO_LIMITS
from headrace.enumerator.errors import UsageError

ISOLATION = "READ COMMITTED"  # weaker locks than MariaDB's default, which would make transactions wait for prepared ones
CONNECT_S = "10"


class Product(Enum):
    """The databases that are known, by the driver we use."""

    POSTGRESQL = "postgresql+psycopg"
    MYSQL = "mysql+pymysql"  # MariaDB too: it is distinguished by what the server says
    SQLITE = "sqlite"


_SCHEMES = {
    "postgresql": Product.POSTGRESQL,
    "postgresql+psycopg": Product.POSTGRESQL,
    "mysql": Product.MYSQL,
    "mysql+pymysql": Product.MYSQL,
    "mariadb": Product.MYSQL,
    "mariadb+pymysql": Product.MYSQL,
    "sqlite": Product.SQLITE,
    "sqlite+pysqlite": Product.SQLITE,
}

# Without strict mode MariaDB clamps and cuts values; without NO_AUTO_VALUE_ON_ZERO a 0 becomes the next number.
_SQL_MODE = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"


# A task's transaction is idle between two batches. MySQL has the last of these only, and takes the others for a comment.
_NO_LIMITS = (
    "/*M!100300 idle_transaction_timeout = 0, idle_write_transaction_timeout = 0, max_statement_time = 0, */ "
    "wait_timeout = GREATEST(@@wait_timeout, 28800)"
)

_OF_PROGRAMS = ("charset", "collation", "use_unicode", "cursorclass", "defer_connect")
"""Parameters of PyMySQL that are left out of an address: only without them are texts and rows what they are here."""

_REFUSED = (
    ArgumentError, TypeError, ValueError, AttributeError, FileNotFoundError, PermissionError, NotImplementedError, ssl.SSLError
)  # fmt: skip
"""What is raised for parameters that no driver can use, and for files of certificates that cannot be read."""


def _session(product: Product, lock_timeout_s: float) -> tuple[str, ...]:
    """What every session is set to first: strict, in UTC, durable, without limits but for how long to wait for locks.

    It may write, whatever a role's default is, and types have the names that SQLAlchemy knows.
    """
    if product is Product.POSTGRESQL:
        timeout = max(1, round(lock_timeout_s * 1000))
        zone, encoding, nulls = "SET TIME ZONE 'UTC'", "SET client_encoding TO 'UTF8'", "SET array_nulls TO on"
        writes, names = "SET default_transaction_read_only TO off", "SET quote_all_identifiers TO off"
        return zone, encoding, nulls, f"SET lock_timeout TO {timeout}", NO_LIMITS, DURABLE, writes, names
    seconds = max(1, round(lock_timeout_s))
    timeouts = f"innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}"
    settings = f"SET SESSION sql_mode = '{_SQL_MODE}', time_zone = '+00:00', {timeouts}, {_NO_LIMITS}"
    return settings, "SET SESSION TRANSACTION READ WRITE"


def _parse(url: str) -> tuple[URL, Product]:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise malformed() from None  # without the cause, whose message may hold the text, and so the password
    product = _SCHEMES.get(parsed.drivername)
    if product is None:
        raise UsageError(f"databases of the kind {parsed.drivername!r} cannot be written; known are {', '.join(_SCHEMES)}")
    if not parsed.database or parsed.database == ":memory:":
        raise UsageError(f"the address {_hidden(parsed)} must name a database that every process sees")
    if product is Product.SQLITE and (parsed.host or parsed.username or parsed.password or parsed.port):
        raise UsageError(f"the address {_hidden(parsed)} names a server, and SQLite is a file: sqlite:////path/to/file")
    return parsed.set(drivername=product.value), product


def malformed() -> UsageError:
    """The error for an address that cannot be taken apart: it is not shown, as no one knows where its password is."""
    return UsageError("the database's address must look like postgresql://user:password@host:5432/database")


def product_of(url: str) -> Product:
    """Which database this is the address of. Raises UsageError for one that cannot be used; does no I/O."""
    return _parse(url)[1]


def file_of(url: str) -> str | None:
    """The file of SQLite's database, the same for every spelling of its path; None for a server's."""
    parsed, product = _parse(url)
    if product is not Product.SQLITE:
        return None
    path = str(parsed.database)
    return os.path.realpath(unquote(urlsplit(path).path) if path.startswith("file:") else path)


def shown(url: str) -> str:
    """The address without its password and without its parameters, which may hold other secrets."""
    return _hidden(_parse(url)[0])


def _hidden(url: URL) -> str:
    return url.set(query={}).render_as_string(hide_password=True)


def task_engine(url: str, lock_timeout_s: float) -> Engine:
    """For one connection of a task: closed when given back, and never sent a rollback, which a prepared one may refuse."""
    return _engine(url, lock_timeout_s, poolclass=NullPool, pool_reset_on_return=None)


def driver_engine(url: str, lock_timeout_s: float) -> Engine:
    """For a driver that is long-lived: connections are kept, and looked at before they are used again.

    In PostgreSQL a statement fails if a policy would hide lists from it. (A task's also run triggers on other tables.)
    """
    engine = _engine(url, lock_timeout_s, pool_size=1, pool_pre_ping=True)
    if product_of(url) is Product.POSTGRESQL:
        event.listen(engine, "connect", lambda connection, _: _tell(connection, ("SET row_security TO off",)))
    return engine


def _engine(url: str, lock_timeout_s: float, **options: Any) -> Engine:  # noqa: ANN401 - of create_engine
    parsed, product = _parse(url)
    if product is Product.SQLITE:
        options["connect_args"] = {"timeout": lock_timeout_s}
        if "pool_size" in options:
            options = {"connect_args": options["connect_args"], "poolclass": NullPool}
    else:
        options["isolation_level"] = ISOLATION
        if product is Product.MYSQL:
            parsed = parsed.difference_update_query(_OF_PROGRAMS).update_query_dict({"charset": "utf8mb4"})
        if "connect_timeout" not in parsed.query:
            parsed = parsed.update_query_dict({"connect_timeout": CONNECT_S})
    try:
        engine = create_engine(parsed, hide_parameters=True, **options)
    except ImportError as error:
        raise UsageError(f"{error.name or error} is not installed; run: pip install 'headrace[sql]'") from error
    except _REFUSED as error:
        raise _unfit(parsed, error) from error
    event.listen(engine, "do_connect", lambda dialect, _, args, given: _connect(parsed, dialect, args, given))
    if product is not Product.SQLITE:
        statements = _session(product, lock_timeout_s)
        # Before SQLAlchemy itself looks at the session, and how it quotes.
        event.listen(engine, "connect", lambda connection, _: _tell(connection, statements), insert=True)
    return engine


def _connect(url: URL, dialect: Dialect, args: list[Any], given: dict[str, Any]) -> DBAPIConnection:
    """As SQLAlchemy does it. PyMySQL raises errors of Python for parameters that it cannot use."""
    try:
        return dialect.connect(*args, **given)
    except _REFUSED as error:
        raise _unfit(url, error) from error


def _unfit(url: URL, error: Exception) -> UsageError:
    return UsageError(f"a parameter of the address {_hidden(url)} cannot be used: {error}")


def _tell(connection: DBAPIConnection, statements: tuple[str, ...]) -> None:
    cursor = connection.cursor()
    for statement in statements:
        cursor.execute(statement)
    cursor.close()
    connection.commit()
