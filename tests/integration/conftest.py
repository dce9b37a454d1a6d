"""Which integration tests `make test` runs: one module each of Kafka and Spark. The rest is of `make test-all`.

A database is in `make test` by the conformance tests of PostgreSQL.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
OF_MAKE_TEST = ("kafka/test_source.py", "spark/test_stream.py")


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.path.relative_to(HERE).as_posix() not in OF_MAKE_TEST:
            item.add_marker(pytest.mark.full)
