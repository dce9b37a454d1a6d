"""The options of the SQL sinks in Spark, and what they mean as a `SqlSink` or an `UpsertSink`.

Names are those of Spark's JDBC sink where it has the same; case is ignored. An option no one knows is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from headrace.connectors.sql.sink import SqlSink
from headrace.connectors.sql.table_sink import TableSink
from headrace.connectors.sql.upsert import UpsertSink
from headrace.connectors.sql.url import malformed
from headrace.enumerator.errors import UsageError
from headrace.spark.options import (
    CHANGE_TYPE,
    REPEATED_WRITE,
    Option,
    OptionTable,
    SinkWrite,
    choice,
    names,
    sink_write,
    text,
    verbatim,
)

_JDBC = "jdbc:"
_JDBC_LOGIN = ("user", "password")
_JDBC_SAME = frozenset({"sslmode", "sslrootcert"})
"""Parameters of PostgreSQL's JDBC driver that libpq has too, with the same meaning."""


class SqlDelivery(StrEnum):
    """What becomes of rows that are written again after a failure."""

    EXACTLY_ONCE = "exactly-once"
    UPSERT = "upsert"


def _seconds(option: Option, value: str) -> float:
    try:
        return float(text(option, value))
    except ValueError:
        raise option.refuse(value, "a number of seconds") from None


OPTIONS = OptionTable(
    (
        Option(
            "url",
            text,
            "address of the database, as in SQLAlchemy, or `jdbc:postgresql://`, `jdbc:mysql://`, `jdbc:mariadb://`",
        ),
        Option("dbtable", text, "`table` or `schema.table`; it must exist, and rows are only added"),
        Option("user", text, "user name, unless the url has it"),
        Option("password", verbatim, "password, unless the url has it"),
        Option("delivery", choice(SqlDelivery), "`exactly-once` (default), or `upsert`, which needs no two-phase commit"),
        Option("upsertKeys", names, "with `upsert`: columns of a unique key of the table, separated by commas"),
        CHANGE_TYPE,
        Option("lockTimeout", _seconds, "seconds to wait for a lock that another transaction holds (default 30)"),
        *REPEATED_WRITE,
    ),
    required=("url", "dbtable"),
)


def sql_write(options: Mapping[str, str]) -> SinkWrite[TableSink]:
    """Raises UsageError naming the option that is missing, unknown or wrong. Does no I/O; no message shows a secret."""
    given, _ = OPTIONS.parse(options)
    return sink_write(_sink(given), given)


def _sink(given: Mapping[str, Any]) -> TableSink:
    url, table, timeout = _url(given), given["dbtable"], given.get("lockTimeout", 30.0)
    if given.get("delivery") is SqlDelivery.UPSERT:
        if "upsertKeys" not in given:
            raise UsageError("delivery 'upsert' needs the option 'upsertKeys': the columns of a unique key of the table")
        return UpsertSink(url, table, given["upsertKeys"], given.get("changeTypeColumn"), lock_timeout_s=timeout)
    for name in ("upsertKeys", "changeTypeColumn"):
        if name in given:
            raise UsageError(f"option '{name}' is for delivery 'upsert': set that option too, or leave this one out")
    return SqlSink(url, table, lock_timeout_s=timeout)


def _url(given: Mapping[str, Any]) -> str:
    written = given["url"]
    try:
        url = make_url(written.removeprefix(_JDBC))
    except (ArgumentError, ValueError):
        raise malformed() from None  # without the cause, whose message may hold the text, and so the password
    login = {"username": url.username, "password": url.password}
    if written.startswith(_JDBC):
        _add(login, {name: url.query[name] for name in _JDBC_LOGIN if name in url.query}, "the url")
        url = url.difference_update_query(_JDBC_LOGIN)
        _refuse_other_parameters(url)
    _add(login, {name: given[name] for name in _JDBC_LOGIN if name in given}, "the options")
    return url.set(**login).render_as_string(hide_password=False)  # type: ignore[arg-type] # None leaves it as it is


def _add(login: dict[str, str | None], more: Mapping[str, str | tuple[str, ...]], where: str) -> None:
    for name, value in more.items():
        key = "username" if name == "user" else name
        if login[key] is not None or not isinstance(value, str):
            raise UsageError(f"the {name} is given twice, the second time in {where}: give it once")
        login[key] = value


def _refuse_other_parameters(url: URL) -> None:
    same = _JDBC_SAME if url.drivername == "postgresql" else frozenset()
    others = sorted(set(url.query) - same)
    if others:
        raise UsageError(
            f"parameters of the JDBC driver have no meaning here: {', '.join(others)}. Give the address as SQLAlchemy has it, "
            "with the parameters of psycopg or PyMySQL"
        )
