"""Transforms of pipelines in tests: their processes import them from here."""

from __future__ import annotations

import pyarrow as pa


def narrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What a Kafka sink takes, as it was read."""
    return batch.select(["key", "value", "partition"])


def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A bug of the user's."""
    raise ValueError("a bug of the user's")
