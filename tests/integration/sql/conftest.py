"""Databases for the tests of SQL sinks, and a table of each test in them."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="needs headrace[sql]")

from headrace.testing.servers.databases import Database
from tests.helpers.databases import mariadb, postgresql
from tests.helpers.sql_rig import SqlRig

SERVERS = {"postgresql": postgresql, "mariadb": mariadb}


@pytest.fixture(scope="session")
def server() -> Iterator[Callable[[str], Database]]:
    """Gives servers by name, each started when it is first asked for."""
    with ExitStack() as stack:
        yield functools.cache(lambda name: stack.enter_context(SERVERS[name]()))


@pytest.fixture(params=SERVERS)
def rig(server, request) -> Iterator[SqlRig]:
    rig = SqlRig(server(request.param).url)
    yield rig
    for gid in rig.prepared():
        rig.roll_back(gid)
    rig.execute(f"DROP TABLE IF EXISTS {rig.table}")


@pytest.fixture(params=[*SERVERS, "sqlite"])
def any_rig(server, request, tmp_path: Path) -> SqlRig:
    return SqlRig(f"sqlite:///{tmp_path / 'some.db'}" if request.param == "sqlite" else server(request.param).url)
