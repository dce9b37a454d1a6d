"""Injected bugs in the Kafka sink itself; those in the order of its commits are in `injected_commits`. Each must be caught.

with planted_sinks.produce_errors_swallowed():
    ...  # must fail
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.connectors.kafka.client.errors import BrokerError
from headrace.connectors.kafka.write.names import JobNames
from headrace.connectors.kafka.write.produce import BatchSender
from headrace.connectors.kafka.write.sink import KafkaSink
from tests.simulation.bugs.commits import Injected


@contextmanager
def fresh_transactional_ids() -> Iterator[None]:
    """Every process makes up transactional ids of its own, so that none fences another, nor cleans up after it."""
    names_of, run = KafkaSink.names, uuid.uuid4().hex[:8]

    def injected(self: Any, job: str) -> JobNames:
        names = names_of(self, job)
        return replace(names, prefix=f"{names.prefix}-{run}")

    with patch.object(KafkaSink, "names", injected):
        yield


@contextmanager
def produce_errors_swallowed() -> Iterator[None]:
    """A batch that a broker refuses counts as written."""
    judge = BatchSender._judge

    def injected(self: Any, lane: Any, batch: Any, item: Any) -> Any:
        try:
            return judge(self, lane, batch, item)
        except BrokerError:
            self._acknowledged(lane, batch, item.base_offset)
            return None

    with patch.object(BatchSender, "_judge", injected):
        yield


ALL: tuple[Injected, ...] = (fresh_transactional_ids, produce_errors_swallowed)
