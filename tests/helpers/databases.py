"""The harness's databases, for tests: without one on the machine the test is skipped, or fails where they are required."""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NoReturn

import pytest

from headrace.testing.servers import databases

REQUIRED = "HEADRACE_REQUIRE_DATABASES"
"""Where this is set, a database that cannot be started is a failure."""


def postgresql(*settings: str) -> AbstractContextManager[databases.Database]:
    return _or_skipped(databases.postgresql(*settings))


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
