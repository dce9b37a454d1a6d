"""Searches are long, and may take longer than other tests; of each there is a short run, which is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.values.budget import MINUTES

if TYPE_CHECKING:
    from benchmarks.tables_soak import Reader


@pytest.fixture(scope="module")
def duckdb() -> Iterator[Reader]:
    from benchmarks.tables_soak import Reader

    reader = Reader()
    reader.query("SET TimeZone = 'UTC'", "delta", "")
    yield reader
    reader.close()


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/values/"):
            item.add_marker(pytest.mark.timeout(300 + MINUTES * 60))
            item.add_marker(pytest.mark.full if item.name.startswith("test_a_short_run") else pytest.mark.long)
