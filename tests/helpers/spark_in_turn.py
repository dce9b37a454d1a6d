"""Readers of files without threads, and Spark's side of a streaming read, batch by batch, with kills in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark import cloudpickle

from headrace.connectors.files.read import reader
from headrace.enumerator import events
from headrace.runners.spark.column_types import spark_types
from headrace.runners.spark.pipeline import stream_reader
from headrace.spark.any_stream import stream_read


class AtOnce:
    """An executor that has done its work when it answers: what is read ahead does not depend on threads."""

    def __init__(self, *_: object) -> None: ...

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work())  # errors are part of what it returns
        return done

    def shutdown(self, **_: object) -> None: ...


class OnSpark:
    """A streaming query as Spark runs it. `state`: the offset of its last batch that is committed, and of one that is not."""

    def __init__(self, source: Any, folder: str, most_splits: int, state: tuple[Any, Any] | None) -> None:
        read = stream_read(source, folder, {"maxSplitsPerTrigger": most_splits})
        self.reader = stream_reader(read, spark_types(source))
        self.start, self.planned = state or (None, None)
        if state is not None and self.planned is None:
            self.reader.commit(self.start)

    def plan(self) -> bool:
        """Whether there is a batch to run."""
        if self.planned is None:
            start = self.reader.initialOffset() if self.start is None else self.start
            end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
            self.planned = None if end == start else end
        return self.planned is not None

    def read(self) -> list[pa.RecordBatch]:
        start = self.reader.initialOffset() if self.start is None else self.start
        shipped = cloudpickle.dumps((self.reader, self.reader.partitions(start, self.planned)))
        worker, partitions = cloudpickle.loads(shipped)
        return [batch for partition in partitions for batch in worker.read(partition)]

    def commit(self) -> None:
        self.reader.commit(self.start)

    def close(self) -> None:
        self.reader.stop()


@contextmanager
def in_turn() -> Iterator[None]:
    """Nothing depends on threads, and few files are found at once."""
    with patch.object(reader, "ThreadPoolExecutor", AtOnce), patch.object(events, "SPLITS_AT_ONCE", 3):
        yield
