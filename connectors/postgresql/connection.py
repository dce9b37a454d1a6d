"""Sessions of a PostgreSQL: the address, what each session is set to, and errors in our tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headrace.connectors.postgresql.errors import NO_LIMITS, kind_of_state, kind_while_connecting
from headrace.enumerator.errors import HeadraceError, RetriableError, UnclassifiedError, UsageError

_SCHEME = re.compile(r"postgres(?:ql)?(?:\+psycopg)?://", re.IGNORECASE)

SESSION = {
    # The texts of values: the same ones by COPY and in the log, and one way to read each.
    "DateStyle": "ISO",
    "TimeZone": "UTC",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
    # Names of types have their schema, but for those of PostgreSQL itself.
    "search_path": "",
    "quote_all_identifiers": "off",
    # The log has rows that a policy hides from our role. A query that would leave them out fails.
    "row_security": "off",
    "statement_timeout": "0",  # also of the statement that sets the other limits
}
"""What each of our sessions is set to, by its first message; also one of replication."""

_DEFAULTS = {
    "fallback_application_name": "headrace",
    "connect_timeout": "10",
    # A server that is gone without a word is noticed after a minute.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


def parameters(url: str) -> dict[str, str]:
    """The parameters of a connection, by libpq's names, with our settings. Raises UsageError; does no I/O.

    `url` is one of libpq (`postgresql://user@host:5432/database?sslmode=require`), or the one that SQLAlchemy takes
    (`postgresql+psycopg://`). What it sets overrides our defaults, but not what the texts of values depend on.
    """
    given = _parse(url)
    options = " ".join(f"-c {name}={value}" for name, value in SESSION.items())
    merged = {**_DEFAULTS, **given, "client_encoding": "UTF8"}
    return {**merged, "options": f"{given['options']} {options}" if "options" in given else options}


def _parse(url: str) -> dict[str, str]:
    scheme = _SCHEME.match(url)
    before_parameters = url.partition("?")[0]
    # Of a password with an @ or / that is not escaped, the rest would be taken for a host or database, and be shown.
    if scheme is None or before_parameters.count("@") > 1 or "@" in before_parameters[scheme.end() :].partition("/")[2]:
        raise _malformed()
    try:
        found = conninfo_to_dict(f"postgresql://{url[scheme.end() :]}")
    except (psycopg.Error, UnicodeError):
        raise _malformed() from None  # without the cause, whose message may hold the text, and so the password
    given = {name: str(value) for name, value in found.items() if value is not None}
    if not given.get("dbname") and "service" not in given:
        raise UsageError(f"the address {_shown(given)} must name a database: changes are read of one")
    return given


def _malformed() -> UsageError:
    """It is not shown, as no one knows where its password is."""
    return UsageError("the database's address must look like postgresql://user:password@host:5432/database")


def shown(url: str) -> str:
    """The address without its password and without its parameters, which may hold other secrets. Raises UsageError."""
    return _shown(_parse(url))


def _shown(given: Mapping[str, str]) -> str:
    user = f"{given['user']}@" if given.get("user") else ""
    hosts = given.get("host", "").split(",")
    ports = given.get("port", "").split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    bracketed = (f"[{host}]" if ":" in host else host for host in hosts)
    places = ",".join(f"{host}:{port}" if port else host for host, port in zip(bracketed, ports, strict=True))
    return f"postgresql://{user}{places}/{given.get('dbname', '')}"


def connect(url: str) -> psycopg.Connection:
    """A session in autocommit, for one thread; the caller closes it. Raises as `translated` does, and UsageError."""
    given = parameters(url)
    with translated(url, "connecting"):
        connection = psycopg.connect(**given, autocommit=True)  # type: ignore[arg-type]  # it takes any of libpq's
        try:
            connection.execute(NO_LIMITS)
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def translated(url: str, doing: str) -> Iterator[None]:
    """Raise psycopg's errors in our tree, saying what was being done to which database; no password is in any message."""
    try:
        yield
    except psycopg.Error as error:
        raise _kind_of(error)(f"{doing} ({shown(url)}): {_without_secrets(url, str(error).strip())}") from error


def _kind_of(error: psycopg.Error) -> type[HeadraceError]:
    if error.sqlstate is not None:
        return kind_of_state(error.sqlstate)
    is_of_connection = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return kind_while_connecting(str(error), RetriableError if is_of_connection else UnclassifiedError)


def _without_secrets(url: str, text: str) -> str:
    given = _parse(url)
    for name in ("password", "sslpassword"):
        if secret := given.get(name):
            text = text.replace(secret, "***")
    return text
