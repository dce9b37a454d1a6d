"""Searches are long; of each there is a short run, which is not."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/values/"):
            item.add_marker(pytest.mark.full if item.name.startswith("test_a_short_run") else pytest.mark.long)
