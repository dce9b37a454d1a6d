"""Batch writes as Spark does them, without Spark: the writer is pickled, its tasks write, its driver commits."""

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base.sink import Committer, TwoPhaseSink
from headrace.runners.spark.writers import BatchWriter


class _Context:
    """What Spark shows a task of a write."""

    def __init__(self, task: int) -> None:
        self.partitionId = lambda: task
        self.taskAttemptId = lambda: task
        self.attemptNumber = lambda: 0


class _Driver:
    """The sink as the driver has it, with another committer."""

    def __init__(self, sink: TwoPhaseSink[Any], committer: Callable[[Committer[Any]], Committer[Any]]) -> None:
        self._sink, self._committer = sink, committer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def committer(self, job: str) -> Committer[Any]:
        return self._committer(self._sink.committer(job))


_one_executor = threading.Lock()
"""Drivers may write at once, from several threads. A process has one context of a task, which stays where two have set it."""


def written(
    sink: TwoPhaseSink[Any], job: str, epoch: int, *tasks: pa.RecordBatch,
    committer: Callable[[Committer[Any]], Committer[Any]] = lambda made: made,
) -> None:  # fmt: skip
    """One write of this name and number (`txnAppId`, `txnVersion`); each of its tasks has one batch of rows."""
    writer: BatchWriter[Any] = BatchWriter(sink, tasks[0].schema.names, job, epoch)
    pickled = pickle.dumps(writer)
    messages = []
    with _one_executor, pytest.MonkeyPatch.context() as patched:
        for task, rows in enumerate(tasks):
            patched.setattr("headrace.runners.spark.writers.TaskContext.get", lambda task=task: _Context(task))
            messages.append(pickle.loads(pickled).write(iter([rows])))
    writer._sink = _Driver(sink, committer)  # type: ignore[assignment] # all but its name
    writer.commit(messages)
