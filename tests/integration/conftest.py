"""Which integration tests `make test` runs: one module each of Kafka and Spark. The rest is of `make test-all`.

A database is in `make test` by the conformance tests of PostgreSQL.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
OF_MAKE_TEST = {HERE / "kafka" / "test_source.py", HERE / "spark" / "test_stream.py"}


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/integration/") and item.path not in OF_MAKE_TEST:
            item.add_marker(pytest.mark.full)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What `make test` does not run is not imported by each of its processes, either: it took them seconds."""
    is_left_out = collection_path.name.startswith("test_") and collection_path not in OF_MAKE_TEST
    return True if is_left_out and config.option.markexpr.startswith("not full") else None
