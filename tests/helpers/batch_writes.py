"""Batch writes as Spark does them, without Spark: the writer is pickled, its task writes, its driver commits."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.sink import TwoPhaseSink
from headrace.runners.spark.writers import BatchWriter


class _Context:
    """What Spark tells the only task of a write."""

    def partitionId(self) -> int:  # noqa: N802 - Spark's names
        return 0

    def attemptNumber(self) -> int:  # noqa: N802
        return 0

    def taskAttemptId(self) -> int:  # noqa: N802
        return 0


def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on this process is one of Spark's, in a task."""
    monkeypatch.setattr("headrace.runners.spark.writers.TaskContext.get", _Context)


def written(sink: TwoPhaseSink[Any], job: str, epoch: int, *batches: pa.RecordBatch) -> None:
    """One write of this name and number (`txnAppId`, `txnVersion`), by one task."""
    columns: Sequence[str] = batches[0].schema.names
    writer = BatchWriter(sink, columns, job, epoch)
    writer.commit([pickle.loads(pickle.dumps(writer)).write(iter(batches))])
