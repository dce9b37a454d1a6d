"""A PostgreSQL of each module whose changes can be read: the oldest and the newest that the machine has."""

from collections.abc import Iterator

import pytest

pytest.importorskip("psycopg", reason="needs headrace[sql]")

from headrace.testing.servers.databases import Database
from tests.helpers.databases import RELEASES, logical_postgresql


@pytest.fixture(scope="module", params=RELEASES)
def server(request) -> Iterator[Database]:
    """Processes, which a test may kill, stop and freeze; it must restart what it ends."""
    with logical_postgresql(request.param) as database:
        yield database
