"""Fixtures for users' own tests; pytest finds them by itself once the package is installed (entry point `pytest11`).

Every run of pytest in such an environment imports this module, so it imports nothing of headrace before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.testing import FakeKafka


@pytest.fixture
def fake_kafka() -> Iterator[FakeKafka]:
    """A Kafka cluster of one broker for one test; see `headrace.testing.FakeKafka`."""
    from headrace.testing import FakeKafka

    with FakeKafka() as kafka:
        yield kafka
