"""A schema registry in this process, of which nothing is known yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.connectors.formats.registry import client
from tests.helpers.schema_registry import FakeRegistry


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port may be that of an earlier test's registry. That a follower lags is a test's own matter."""
    client._known.clear()
    monkeypatch.setattr(client, "_PAUSES_S", ())


@pytest.fixture
def served() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def registry(served: FakeRegistry) -> FakeRegistry:
    return served
