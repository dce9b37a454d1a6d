"""A PostgreSQL of each module whose changes can be read: the oldest and the newest that the machine has.

What a server answers is tested with both. What a job then does is the same: with the oldest `make test-long` tests it.
"""

import re
from collections.abc import Iterator

import pytest

pytest.importorskip("psycopg", reason="needs headrace[sql]")

from headrace.testing.servers.databases import Database
from tests.helpers.databases import RELEASES, logical_postgresql

OF_A_JOB = "tests/integration/postgresql/test_changes.py"
WITH_BOTH = (
    "test_the_seam_is_exact",
    "test_chunks_are_of_any_key",
    "test_odd_names_and_values",
    "test_several_tables",
    "test_a_restore_continues",
    "test_a_promotion_is_followed",
    "test_a_transaction_that_is_too_large",
    "test_a_large_value_that_the_log_leaves_out",
)


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_of_a_job = item.nodeid.startswith(OF_A_JOB) and not item.name.startswith(WITH_BOTH)
        if is_of_a_job and re.search(r"\[oldest\b", item.name):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module", params=RELEASES)
def server(request) -> Iterator[Database]:
    """Processes, which a test may kill, stop and freeze; it must restart what it ends."""
    with logical_postgresql(request.param) as database:
        yield database
