"""The conformance kit on real Spark streams: what `headrace.spark.read_stream` makes of a connector's source.

    class TestLinesOnSpark(SparkSourceConformance):
        def create_external_context(self) -> ExternalContext:
            return Folder()

The context is that of `SourceConformance`. Its sources are read by Spark's processes, so what they read has to be in reach of
other processes. The session of a class is its fixture `spark`; it must try a failed
task again, as on a cluster (`local[2,4]`). Needs `pip install 'headrace[spark,testing]'`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.enumerator import Boundedness
from headrace.spark import read_stream, session_builder
from headrace.testing.conformance import PER_SPLIT, ExternalContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SPARK_TIMEOUT_S = 120.0


class SparkSourceConformance(ABC):
    """Cases for sources as streams. Subclass it, once for each connector."""

    @abstractmethod
    def create_external_context(self) -> ExternalContext:
        """A fresh, empty external system."""

    @pytest.fixture(scope="class")
    def spark(self) -> Iterator[SparkSession]:
        """The session; one that is there already is taken, and left."""
        from pyspark.sql import SparkSession

        active = SparkSession.getActiveSession()
        session = active or session_builder().master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
        yield session
        if active is None:
            session.stop()

    @pytest.fixture
    def stream(self, spark: SparkSession, tmp_path: Path) -> Iterator[SourceStream]:
        """A query of the source, and the system that it reads."""
        with closing(self.create_external_context()) as external, closing(SourceStream(spark, external, tmp_path)) as stream:
            yield stream

    def test_reads_what_is_there_and_what_comes(self, stream: SourceStream) -> None:
        """Twice to two splits, while the query runs."""
        splits = [stream.external.create_split() for _ in range(2)]
        for _ in range(2):
            for split_id in splits:
                stream.write(split_id)
            stream.start()
            stream.wait_for_all()

    def test_continues_where_it_was_stopped(self, stream: SourceStream) -> None:
        """Splits and records that come while no query runs are read by the next one, and nothing is read again."""
        split_id = stream.external.create_split()
        stream.write(split_id)
        stream.start()
        stream.wait_for_all()
        stream.stop()
        for changed in (split_id, stream.external.create_split()):
            stream.write(changed)
        stream.start()
        stream.wait_for_all()
        stream.write(stream.external.create_split())
        stream.stop()
        stream.start()
        stream.wait_for_all()

    def test_a_batch_that_failed_is_run_again_as_it_was(self, stream: SourceStream) -> None:
        """More is written between its two runs."""
        split_id = stream.external.create_split()
        stream.write(split_id)
        seen: list[Counter[str]] = []

        def failing(frame: DataFrame, _: int) -> None:
            seen.append(Counter(stream.values_of(frame)))
            raise ValueError("the batch is computed, and fails")

        for _ in range(2):
            stream.run_to_its_failure(failing)
            stream.write(split_id)
        assert seen[0] == seen[1]
        assert seen[0].total() == PER_SPLIT
        stream.start()
        stream.wait_for_all()

    def test_every_use_of_a_batch_sees_the_same_records(self, stream: SourceStream) -> None:
        """More is written between two uses of a batch's frame."""
        split_id = stream.external.create_split()
        stream.write(split_id)
        uses: list[tuple[Counter[str], Counter[str]]] = []
        is_written = threading.Event()

        def used_twice(frame: DataFrame, _: int) -> None:
            first = Counter(stream.values_of(frame))
            uses.append((first, Counter()))
            is_written.wait(SPARK_TIMEOUT_S)
            uses[-1] = first, Counter(stream.values_of(frame))

        query = stream.frame().writeStream.foreachBatch(used_twice).option("checkpointLocation", stream.checkpoint).start()
        try:
            stream.wait(lambda: bool(uses), query)
            stream.write(split_id)
            is_written.set()
            stream.wait(lambda: sum((second for _, second in uses), Counter()) == stream.written, query)
        finally:
            is_written.set()
            query.stop()
        assert all(first == second for first, second in uses)

    def test_a_task_whose_process_is_killed_is_run_again(self, stream: SourceStream) -> None:
        """SIGKILL of the process that reads, once in the first batch, when it has given its first rows."""
        split_id = stream.external.create_split()
        stream.write(split_id)
        marker = str(stream.folder / "killed")

        def dying(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if batch.num_rows and _is_first(marker):
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch

        stream.start(lambda frame: frame.mapInArrow(dying, frame.schema))
        stream.wait_for_all()
        assert os.path.exists(marker)
        stream.write(split_id)
        stream.wait_for_all()

    def test_a_bounded_source_is_read_once(self, stream: SourceStream) -> None:
        """By two runs of `availableNow`. Not of logs: a streaming query of one has no end."""
        from headrace.enumerator import LogSource

        for _ in range(2):
            stream.write(stream.external.create_split())
        if isinstance(stream.external.create_source(Boundedness.BOUNDED), LogSource):
            pytest.skip("a streaming query of a log has no end")
        for _ in range(2):
            stream.start(boundedness=Boundedness.BOUNDED, availableNow=True)
            stream.wait_until_ended()
            stream.wait_for_all()


def _is_first(marker: str) -> bool:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class SourceStream:
    """A query that copies a source to Parquet, exactly once, and what was written to the source."""

    def __init__(self, spark: SparkSession, external: ExternalContext, folder: Path) -> None:
        self.external: ExternalContext = external
        self.folder: Path = folder
        self.checkpoint: str = str(folder / "checkpoint")
        self._out = folder / "out"
        self.written: Counter[str] = Counter()
        self._spark = spark
        self._query: StreamingQuery | None = None

    def write(self, split_id: str) -> None:
        values = [f"{split_id} {self.written.total() + number}" for number in range(PER_SPLIT)]
        self.written.update(values)
        self.external.write(split_id, values)

    def frame(self, boundedness: Boundedness = Boundedness.UNBOUNDED) -> DataFrame:
        return read_stream(self._spark, self.external.create_source(boundedness), checkpointLocation=self.checkpoint)

    def start(
        self,
        change: Callable[[DataFrame], DataFrame] = lambda frame: frame,
        *,
        boundedness: Boundedness = Boundedness.UNBOUNDED,
        **trigger: Any,  # noqa: ANN401 - as Spark's
    ) -> None:
        """Start the query, unless it runs."""
        if self._query is not None and self._query.isActive:
            return
        writer = change(self.frame(boundedness)).writeStream.format("headrace").option("connector", "files")
        writer = writer.option("path", str(self._out)).option("checkpointLocation", self.checkpoint)
        self._query = (writer.trigger(**trigger) if trigger else writer).start()

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def close(self) -> None:
        self.stop()

    def run_to_its_failure(self, act: Callable[[DataFrame, int], None]) -> None:
        query = self.frame().writeStream.foreachBatch(act).option("checkpointLocation", self.checkpoint).start()
        self.wait(lambda: not query.isActive)
        query.stop()

    def wait_for_all(self) -> None:
        """Until the output holds all that was written. Fails where it holds anything twice."""
        self.wait(lambda: self._output().total() >= self.written.total(), self._query)
        assert self._output() == self.written

    def wait_until_ended(self) -> None:
        query = self._query
        assert query is not None
        self.wait(lambda: not query.isActive)

    def wait(self, condition: Callable[[], bool], query: StreamingQuery | None = None) -> None:
        until = time.monotonic() + SPARK_TIMEOUT_S
        while not condition():
            failure = None if query is None else query.exception()
            assert failure is None, failure
            assert time.monotonic() < until, f"not reached in {SPARK_TIMEOUT_S:g} s: {self._output()}, of {self.written}"
            time.sleep(0.1)

    def values_of(self, frame: DataFrame) -> list[str]:
        table = frame.toArrow()
        return [value for batch in table.to_batches() for value in self.external.values(batch)]

    def _output(self) -> Counter[str]:
        tables = [pq.read_table(path) for path in sorted(self._out.glob("*.parquet"))]
        return Counter(value for table in tables for batch in table.to_batches() for value in self.external.values(batch))
