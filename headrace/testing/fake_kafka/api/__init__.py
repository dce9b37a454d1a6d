"""Everything that the broker speaks: a module for each subject, and this table of their API keys."""

from headrace.testing.fake_kafka.api import (  # noqa: F401  each adds its APIs to the table
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
from headrace.testing.fake_kafka.calls import APIS

__all__ = ["APIS"]
