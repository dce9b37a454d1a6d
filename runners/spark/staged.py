"""A source of several stages as a stream of Spark: each stage is read as if it were alone, by the reader of its kind.

An offset has the stage, what the previous stage ended with, and the offset of the stage's own reader. Spark stores it before
the batch runs, so the switch to the next stage is made once: a replay of its first batch finds the stage in the batch's end.

    {"stage": 1, "after": {"newest_modified_ms": 1700000000000}, "offset": {...}}

in the envelope of `headrace.enumerator.envelope`, version 1. Only the last stage may be a log, whose streams have no end.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.enumerator.envelope import stored_number, stored_object
from headrace.enumerator.errors import is_retriable
from headrace.enumerator.source import JsonObject, Source, StagedSource
from headrace.enumerator.source_driver import FailureLog
from headrace.runners.spark.bounded import loaded, pickled
from headrace.runners.spark.log_read import WHERE, LogRead
from headrace.runners.spark.readers import offset_of, text_of
from headrace.runners.spark.split_readers import SplitStreamReader
from headrace.runners.spark.split_state import STAGE
from headrace.runners.spark.split_stream import SplitRead

log = logging.getLogger(__name__)

Offset = dict[str, Any]
ReadOf = Callable[[Source[Any]], LogRead[Any] | SplitRead[Any]]
ReaderOf = Callable[[LogRead[Any] | SplitRead[Any], StructType], Any]


@dataclass(frozen=True, kw_only=True)
class StagedRead:
    """A source of several stages, and how a streaming query reads each: `read_of` says it of a stage's source. Picklable."""

    source: StagedSource[Any]
    read_of: ReadOf
    parallelism: int | None = None

    def of(self, stage: int, after: JsonObject | None) -> LogRead[Any] | SplitRead[Any]:
        read = replace(self.read_of(self.source.source_of(stage, after)), parallelism=self.parallelism)
        # the last one, too: a query that continues may have another behind it
        return replace(read, keeps_finished=True) if isinstance(read, SplitRead) else read


@dataclass(frozen=True, slots=True)
class _Place:
    stage: int
    after: JsonObject | None
    offset: Offset

    @classmethod
    def of(cls, given: Offset) -> _Place:
        body = STAGE.open(text_of(given), WHERE)
        with STAGE.reading(WHERE):
            after = None if body["after"] is None else stored_object(body["after"])
            return cls(stored_number(body["stage"]), after, dict(stored_object(body["offset"])))

    def to_offset(self) -> Offset:
        return offset_of(STAGE.seal({"stage": self.stage, "after": self.after, "offset": self.offset}).decode())

    def is_with(self, other: _Place) -> bool:
        return (self.stage, self.after) == (other.stage, other.after)


class StagePartition(InputPartition):
    """A task of one stage."""

    def __init__(self, stage: int, after: JsonObject | None, partition: InputPartition) -> None:
        self.stage, self.after, self.partition = stage, after, partition


class StagedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One instance plans a run of a query in the driver's Python process; copies `read` in the workers. Made without I/O."""

    def __init__(self, read: StagedRead, schema: StructType, reader_of: ReaderOf) -> None:
        """`reader_of` makes the reader of a stage."""
        self._job, self._schema, self._reader_of = read, schema, reader_of
        self._readers: dict[str, Any] = {}
        self._pins_end = False
        self._outages = FailureLog()

    def __getstate__(self) -> Mapping[str, Any]:
        return {"job": pickled((self._job, self._reader_of)), "schema": self._schema}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        job, reader_of = loaded(state["job"])
        self.__init__(job, state["schema"], reader_of)  # type: ignore[misc]  # as it was made

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The mark of a query without a checkpoint, and no position. Driver; Spark calls it for every run of batch 0."""
        return _Place(0, None, self._reader(0, None).initialOffset()).to_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxFiles(1)  # whatever it is: each stage has its own

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        place = _Place.of(start)
        reader = self._reader(place.stage, place.after)
        end = reader.latestOffset(place.offset, _of_stage(limit, reader))
        if end != place.offset:
            return replace(place, offset=end).to_offset()
        try:
            following = self._following(place, reader, limit)
        except Exception as error:
            is_once = self._pins_end or isinstance(limit, ReadAllAvailable)
            if is_once or not is_retriable(error):
                raise
            if self._outages.failed():
                log.warning("the query continues, but not with its next source until this is over: %s", error)
            return start
        if self._outages.worked():
            log.warning("the query continues with its next source")
        return start if following is None else following.to_offset()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """As the readers of the stages. Driver, once per run, before the first batch."""
        self._pins_end = True
        for reader in self._readers.values():
            reader.prepareForTriggerAvailableNow()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        first, last = _Place.of(start), _Place.of(end)
        reader = self._reader(last.stage, last.after)
        start_at = first.offset if first.is_with(last) else reader.initialOffset()
        return [StagePartition(last.stage, last.after, task) for task in reader.partitions(start_at, last.offset)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task. Worker process."""
        if isinstance(partition, StagePartition):
            yield from self._reader(partition.stage, partition.after).read(partition.partition)

    def commit(self, end: Offset) -> None:
        """The batch that ends here is committed. Driver, while the next batch is made."""
        place = _Place.of(end)
        self._reader(place.stage, place.after).commit(place.offset)

    def stop(self) -> None:
        """Release connections. Spark does not always call it."""
        for reader in self._readers.values():
            reader.stop()

    def _following(self, place: _Place, reader: Any, limit: ReadLimit) -> _Place | None:  # noqa: ANN401 - of several kinds
        """The first batch of the next stage, once this one is read."""
        if place.stage == self._job.source.last_stage or not isinstance(reader, SplitStreamReader):
            return None
        over = reader.ended(place.offset)
        if over is None:
            return None
        after = self._job.source.end_of(place.stage, place.after, over.cursor, over.finished)
        following = self._reader(place.stage + 1, after)
        first = following.latestOffset(following.initialOffset(), _of_stage(limit, following))
        return _Place(place.stage + 1, self._job.source.kept_end(place.stage + 1, after), first)

    def _reader(self, stage: int, after: JsonObject | None) -> Any:  # noqa: ANN401 - of one of several kinds
        key = json.dumps([stage, after], sort_keys=True)
        if key not in self._readers:
            made = self._readers[key] = self._reader_of(self._job.of(stage, after), self._schema)
            if self._pins_end:
                made.prepareForTriggerAvailableNow()
        return self._readers[key]


def _of_stage(limit: ReadLimit, reader: Any) -> ReadLimit:  # noqa: ANN401 - of one of several kinds
    """A query that is triggered once has no limit; else it is the stage's own."""
    own: ReadLimit = reader.getDefaultReadLimit()
    return limit if isinstance(limit, ReadAllAvailable) else own
