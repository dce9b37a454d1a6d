"""What the tests of the file sink share: writing an epoch, reading a folder as others do, stores that let something happen."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.sink import Attempt
from headrace.connectors.files import FileCommitter, FileFormat, FileHandle, FileSink
from headrace.connectors.files.store import Store, open_store

JOB = "job"
WORK = "_headrace"


class KilledError(Exception):
    """The process is gone."""


class WatchedStore:
    """A store that calls `before(number)` before each of its calls, counted from 0."""

    def __init__(self, store: Store, before: Callable[[int], None]) -> None:
        self._store = store
        self._before = before
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def watched(*arguments: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            self._before(number)
            return method(*arguments)

        return watched


def batch_of(values: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values)}, schema=pa.schema([("value", pa.string())]))


def prepared(sink: FileSink, epoch: int, task: int, values: Sequence[str], number: int = 0) -> FileHandle:
    with sink.begin(Attempt(JOB, epoch, task, number)) as transaction:
        transaction.write(batch_of(values))
        handle = transaction.prepare()
    assert handle is not None
    return handle


def committer_of(sink: FileSink, store: Any = None) -> FileCommitter:
    return FileCommitter(store or open_store(sink.path, sink.storage_options), JOB, sink.path)


def job_committer(sink: FileSink, store: Any = None) -> JobCommitter[FileHandle]:
    return JobCommitter(JOB, committer_of(sink, store))


def visible(sink: FileSink) -> list[str]:
    """The column `value` of what a reader of the folder sees, sorted."""
    filesystem, path = None, sink.path
    if path.startswith("memory://"):
        import fsspec

        filesystem, path = fsspec.filesystem("memory"), path.removeprefix("memory:/")
        if not filesystem.exists(path):
            return []
    kind = "parquet" if sink.format is FileFormat.PARQUET else "json"
    schema = pa.schema([("value", pa.string())])
    return sorted(ds.dataset(path, schema=schema, format=kind, filesystem=filesystem).to_table()["value"].to_pylist())


def left_over(sink: FileSink) -> list[str]:
    """What is in the job's folder; nothing, after a commit."""
    return sorted(open_store(sink.path, sink.storage_options).names(f"{WORK}/{JOB}"))


def published(sink: FileSink) -> list[str]:
    return sorted(name for name in open_store(sink.path, sink.storage_options).names("") if not name.startswith("_"))
