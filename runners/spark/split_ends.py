"""Where tasks record how far they have read, so that a replay, a retry or a twin of a task reads exactly as far.

`<location>/<chain>/<sequence>-<reading>-<task>`: one small file for each task, created by the first of its attempts that has
read. It names the file with the rows where the source would not give them again (`Source.repeatable`). Called in Spark's
workers, and by the planner in the driver's process.

A task that is never computed records nothing, and its splits are read by a later batch. The mark of the reading,
`<location>/<chain>/<sequence>-<reading>`, is there from before the batch runs until it is closed, when each task has a record.
So a lost record of a closed batch is noticed, and of an open one where all are lost with the mark: while that is there, a task
without a record is one that was never computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic
from uuid import uuid4

import pyarrow as pa

from headrace.connectors.files.read.columns import conformed
from headrace.connectors.files.store import Store, normal_path, open_store
from headrace.enumerator.errors import StateError, UsageError
from headrace.enumerator.split import SplitT
from headrace.runners.spark.split_state import FOLDER, ROWS_FOLDER, ReadingFormat, SplitEnd, SplitReading, TaskEnds, file_prefix

KEPT_READINGS = 100
"""As many as Spark keeps of a query's batches by default: a copy of its checkpoint may go back as far."""
_OF_SPARK = "metadata"
"""What Spark writes into a checkpoint before the query plans anything."""

MARK = b"open"
"""What the mark of a reading has: copies may leave out empty files."""
_SWEEP_EVERY = 20
_READS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class TaskName:
    """One task of one reading."""

    chain: str
    sequence: int
    reading: str
    task: int

    @classmethod
    def of(cls, reading: SplitReading[SplitT], task: int) -> TaskName:
        return cls(reading.chain, reading.sequence, reading.reading, task)

    @property
    def file(self) -> str:
        return f"{file_prefix(self.chain, self.sequence, self.reading)}{self.task}"


@dataclass(frozen=True, slots=True)
class EndsLog(Generic[SplitT]):
    """The records of the query whose checkpoint is at `checkpoint`: a local path, or a URL that fsspec knows. Picklable."""

    format: ReadingFormat[SplitT]
    checkpoint: str

    def prepare(self, chain: str) -> None:
        """Make the folder of a query's records. Raises UsageError for a store in which two attempts could both create one.

        Also where Spark's own checkpoint is not at this place. A path without a scheme is one of Hadoop's default file system:
        records that were kept on a local disk instead would not be found by a driver on another host.
        """
        if self._store("").size(_OF_SPARK) is None:
            raise UsageError(
                f"there is no checkpoint of a query at {self.checkpoint}, where tasks are to record how far they have read. "
                "Give read_stream the same checkpointLocation as writeStream; where the default file system is not the local "
                "one, with its scheme, such as s3a: or file:"
            )
        store = self._store()
        store.make_folder(chain)
        store.check_exclusive(chain)
        if not self.format.source.repeatable:
            self._store(ROWS_FOLDER).make_folder(chain)

    def open(self, reading: SplitReading[SplitT]) -> SplitReading[SplitT]:
        """The reading as it is to be stored, whose tasks may record from now on. Driver's process."""
        with _translated(self.checkpoint):
            self._store().create(_mark(reading), MARK, f"{reading.chain}/.{uuid4().hex}.tmp")
        return replace(reading, marked=True)

    def find(self, task: TaskName) -> TaskEnds[SplitT] | None:
        """What an attempt has recorded; None where none has. Raises StateError for a damaged record."""
        try:
            data = self._store().read(task.file)
        except FileNotFoundError:
            return None
        return self.format.ends_from_json(data, f"{self.checkpoint}/{FOLDER}/{task.file}")

    def record(self, task: TaskName, ends: TaskEnds[SplitT]) -> bool:
        """Record it, durably. False where another attempt has recorded its own.

        Raises UsageError where the folder that the planner has made is not there: the checkpoint is another machine's.
        """
        try:
            with _translated(self.checkpoint):
                self._store().create(task.file, self.format.ends_to_json(ends), f"{task.chain}/.{uuid4().hex}.tmp")
        except FileExistsError:
            return False
        return True

    def keep(self, task: TaskName, rows: Sequence[pa.RecordBatch]) -> str:
        """Keep what an attempt has read, durably, under a name of its own, which is returned."""
        store, name = self._store(ROWS_FOLDER), f"{task.file}-{uuid4().hex}.arrow"
        with _translated(self.checkpoint):
            file = store.open(name)
        with pa.ipc.new_stream(file, self.format.source.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            for batch in rows:
                writer.write_batch(batch)
        store.finish(name, file)
        return name

    def kept(self, name: str) -> Iterator[pa.RecordBatch]:
        """The rows that are kept under this name, with the columns that the source has now: those that were added are null.

        Raises StateError where the rows are gone, or have columns that may have been renamed or are of another type.
        """
        try:
            file = self._store(ROWS_FOLDER).open_to_read(name)
        except FileNotFoundError as error:
            raise StateError(
                f"{self.checkpoint}/{ROWS_FOLDER}/{name} is gone: it is removed when its batch is committed, and this batch "
                "is run again. Start the query with a new checkpoint"
            ) from error
        wanted = pa.struct(list(self.format.source.schema))
        with file, pa.ipc.open_stream(file) as reader:
            if _is_renamed(pa.struct(list(reader.schema)), wanted):
                raise self._other_columns(name)
            for batch in reader:
                try:
                    yield pa.RecordBatch.from_struct_array(conformed(batch.to_struct_array(), wanted))
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                    raise self._other_columns(name) from error

    def remove_kept(self, name: str) -> None:
        """Remove the rows of an attempt that comes too late."""
        self._store(ROWS_FOLDER).remove(name)

    def remove_rows(self, reading: SplitReading[SplitT]) -> None:
        """Remove all rows that are kept of the reading, whose batch is committed. Driver's process."""
        store = self._store(ROWS_FOLDER)
        for name in store.names(reading.chain):
            sequence = name.partition("-")[0]
            if sequence.isdecimal() and int(sequence) <= reading.sequence:
                store.remove(f"{reading.chain}/{name}")

    def closed(self, reading: SplitReading[SplitT]) -> Sequence[TaskEnds[SplitT]]:
        """Where the tasks of a reading have stopped, whose batch is committed. Driver's process.

        A task without a record has given no row to anything that counts. A record is made for it, that it has read nothing, so
        that an attempt which is still under way somewhere can make none. Raises StateError for a record that was there.
        """

        def close(number: int) -> TaskEnds[SplitT]:
            return self._closed(reading, number)

        numbers = range(len(reading.tasks))
        if len(numbers) < _READS_AT_ONCE:
            ends = list(map(close, numbers))
        else:
            with ThreadPoolExecutor(_READS_AT_ONCE) as pool:  # of a store far away each takes tens of milliseconds
                ends = list(pool.map(close, numbers))
        if reading.marked:
            self._store().remove(_mark(reading))
        return ends

    def remove_old(self, reading: SplitReading[SplitT]) -> None:
        """Remove the query's records that no replay can ask for any more. What cannot be removed now is the next call's."""
        if reading.sequence % _SWEEP_EVERY:
            return
        store = self._store()
        for name in store.names(reading.chain):
            sequence = name.partition("-")[0]
            if sequence.isdecimal() and int(sequence) < reading.sequence - KEPT_READINGS:
                store.remove(f"{reading.chain}/{name}")

    def _closed(self, reading: SplitReading[SplitT], number: int) -> TaskEnds[SplitT]:
        task = TaskName.of(reading, number)
        found = self.find(task)
        if found is None and reading.marked and self._store().size(_mark(reading)) is None:
            found = self.find(task)  # a driver that was replaced may have closed the reading just now
            if found is None:
                raise StateError(
                    f"{self.checkpoint}/{FOLDER}/{task.file} is gone, which says how far a batch has read: it would be read "
                    "twice. Put the folder back as it was when the query stopped, or start with a new checkpoint"
                )
        if found is not None:
            return found
        splits = reading.tasks[number]
        nothing = TaskEnds({split.split_id: SplitEnd(split, 0, finished=False) for split in splits}, is_limited=False)
        if self.record(task, nothing):
            return replace(nothing, is_read=False)
        return self._closed(reading, number)

    def _other_columns(self, name: str) -> StateError:
        return StateError(
            f"{self.checkpoint}/{ROWS_FOLDER}/{name} has rows with other columns than the source has now. A renamed one cannot "
            "be found: undo that until this batch is committed, or start the query with a new checkpoint"
        )

    def _store(self, folder: str = FOLDER) -> Store:
        options: dict[str, Any] = {}
        return open_store(f"{normal_path(self.checkpoint)}/{folder}", options)


def _mark(reading: SplitReading[SplitT]) -> str:
    return file_prefix(reading.chain, reading.sequence, reading.reading).rstrip("-")


def _is_renamed(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether columns are gone where others have come, also within a struct."""
    if not (pa.types.is_struct(found) and pa.types.is_struct(wanted)):
        return False
    old, new = ({field.name: field.type for field in kind} for kind in (found, wanted))
    return bool(old.keys() - new.keys() and new.keys() - old.keys()) or any(
        _is_renamed(old[name], new[name]) for name in old.keys() & new.keys()
    )


@contextmanager
def _translated(checkpoint: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise UsageError(
            f"the checkpoint at {checkpoint} is not what the driver sees there. Tasks record in it how far they have "
            "read: put it where driver and executors see the same folder"
        ) from error
