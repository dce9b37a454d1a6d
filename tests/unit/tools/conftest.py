"""Tests of the project's form, of its benchmarks and soaks: `make test-all` runs them, `make test` does not."""

import pytest


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/unit/tools/"):
            item.add_marker(pytest.mark.full)
