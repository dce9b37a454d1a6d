"""Injected bugs in the Kafka sink itself; those in the order of its commits are in `commits`. Each must be caught."""

import uuid
from dataclasses import replace
from typing import Any

from headrace.connectors.kafka.client.errors import BrokerError
from headrace.connectors.kafka.write.produce import BatchSender
from headrace.connectors.kafka.write.sink import KafkaSink
from tests.simulation.bugs.injecting import bugs_of, instead_of

RUN = uuid.uuid4().hex[:8]


@instead_of(KafkaSink, "names")
def fresh_transactional_ids(names_of: Any, self: Any, job: str) -> Any:
    """Every process makes up transactional ids of its own, so that none fences another, nor cleans up after it."""
    names = names_of(self, job)
    return replace(names, prefix=f"{names.prefix}-{RUN}")


@instead_of(BatchSender, "_judge")
def produce_errors_swallowed(judge: Any, self: Any, lane: Any, batch: Any, item: Any) -> Any:
    """A batch that a broker refuses counts as written."""
    try:
        return judge(self, lane, batch, item)
    except BrokerError:
        self._acknowledged(lane, batch, item.base_offset)
        return None


ALL = bugs_of(globals())
