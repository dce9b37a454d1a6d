"""Everything that the broker speaks: a module for each subject, and this table of their API keys."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.testing.fake_kafka.api import (
    api_versions,
    cluster,
    configs,
    fetch,
    groups,
    offsets,
    positions,
    produce,
    sasl,
    topics,
    transactions,
)
from headrace.testing.fake_kafka.calls import Api

__all__ = ["APIS"]

_MODULES = (cluster, configs, fetch, groups, offsets, positions, produce, sasl, topics, transactions)
_DECLARED = (value for module in _MODULES for value in vars(module).values() if isinstance(value, Api))

APIS: Mapping[int, Api] = {api.key: api for api in (api_versions.api(lambda: APIS), *_DECLARED)}
"""By API key."""
