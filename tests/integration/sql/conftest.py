"""Databases for the tests of SQL sinks, and a table of each test in them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="needs headrace[sql]")

from headrace.testing.servers.databases import Database
from tests.helpers.databases import SERVERS, servers
from tests.helpers.sql_rig import SqlRig


@pytest.fixture(scope="session")
def server() -> Iterator[Callable[[str], Database]]:
    with servers() as by_name:
        yield by_name


@pytest.fixture(params=SERVERS)
def rig(server, request) -> Iterator[SqlRig]:
    rig = SqlRig(server(request.param).url)
    yield rig
    rig.drop()


@pytest.fixture(params=[*SERVERS, "sqlite"])
def any_rig(server, request, tmp_path: Path) -> SqlRig:
    return SqlRig(f"sqlite:///{tmp_path / 'some.db'}" if request.param == "sqlite" else server(request.param).url)
