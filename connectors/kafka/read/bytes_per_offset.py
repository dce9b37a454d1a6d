"""How many bytes an offset of each partition takes, as last fetched: what a reader of a bounded range plans its requests by."""

from __future__ import annotations

import functools
from collections.abc import MutableMapping

from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.topology import TopicPartition


@functools.lru_cache(maxsize=32)
def shared_densities(config: ClientConfig) -> MutableMapping[TopicPartition, float]:
    """The process's one memory for a configuration: bytes per offset, one entry for each partition fetched.

    A reader may live for one task; with this the next one on the same process asks for no more than its range holds.
    Read and written by readers' threads, one item at a time.
    """
    return {}
