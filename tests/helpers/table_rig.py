"""What the tests of table sinks share: writing an epoch, and a reader of Delta tables that knows the protocol alone."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.tables.handles import TableHandle
from headrace.connectors.tables.log import LoadedTable, OutdatedError, TableLog
from headrace.sinks import Attempt, TwoPhaseSink

JOB = "job"
VALUES = pa.schema([("value", pa.string())])


class KilledError(BaseException):
    """The process is gone."""


class Death:
    """Kills at the nth thing that is done: calls of a store that `step` is in, both sides of commits, and of `storing`."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KilledError

    def around(self, _: int, commit: Callable[[], None]) -> None:
        self.step()
        commit()
        self.step()

    def storing(self, write: Any) -> Any:
        def dying(store: Any, checkpoint: Any) -> None:
            self.step()
            write(store, checkpoint)
            self.step()

        return dying


def answer_lost(*, is_applied: bool) -> Callable[[int, Callable[[], None]], None]:
    """The second commit fails for a newer version of the table, before or after it is applied."""

    def around(number: int, commit: Callable[[], None]) -> None:
        if number != 2 or is_applied:
            commit()
        if number == 2:
            raise OutdatedError("injected")

    return around


def batch_of(values: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values)}, schema=VALUES)


def prepared(sink: TwoPhaseSink[Any], epoch: int, task: int, values: Sequence[str], job: str = JOB) -> TableHandle:
    with sink.begin(Attempt(job, epoch, task, 0)) as transaction:
        transaction.write(batch_of(values))
        handle = transaction.prepare()
    assert handle is not None
    return handle


def driver(sink: TwoPhaseSink[Any], job: str = JOB) -> JobCommitter[TableHandle]:
    return JobCommitter(job, sink.committer(job))


def open_marks(folder: str, job: str = JOB) -> set[str]:
    """The transactions that are marked as not committed."""
    return {path.name.removesuffix(".open") for path in (Path(folder) / "_headrace" / job).glob("*.open")}


# --- Delta, by its protocol alone --------------------------------------------------------------------------------------
def delta_actions(folder: str) -> list[dict[str, Any]]:
    """Every action of the log, in order; these tests write no checkpoints."""
    commits = sorted((Path(folder) / "_delta_log").glob("*.json"))
    return [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]


def delta_paths(folder: str) -> list[str]:
    """The files of the newest version. One that was added twice comes twice."""
    paths: list[str] = []
    for action in delta_actions(folder):
        if "add" in action:
            paths.append(action["add"]["path"])
        if "remove" in action:
            paths.remove(action["remove"]["path"])
    return paths


def delta_values(folder: str) -> list[str]:
    files = (pq.ParquetFile(Path(folder) / path).read() for path in delta_paths(folder))
    return sorted(value for table in files for value in table["value"].to_pylist())


def unadded_transactions(folder: str, job: str) -> set[str]:
    """Transactions of which there are files that no version has."""
    added = {unquote(action["add"]["path"]) for action in delta_actions(folder) if "add" in action}
    root = Path(folder)
    files = (path.relative_to(root) for path in (root / f"part-{job}").glob("*/**/*.parquet"))
    return {path.parts[1] for path in files if path.as_posix() not in added}


# --- faults ------------------------------------------------------------------------------------------------------------
def _of_inner(name: str) -> Any:
    return property(lambda self: getattr(self._inner, name))


class WatchedTable(LoadedTable):
    """Calls `around(commit)` in place of a commit."""

    def __init__(self, inner: LoadedTable, watched: "WatchedLog") -> None:
        self._inner, self._watched = inner, watched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    id, schema, files = map(_of_inner, ("id", "schema", "files"))
    version, partitioning, batches = map(_of_inner, ("version", "partitioning", "batches"))
    marker, drop_marker, refers_to = map(_of_inner, ("marker", "drop_marker", "refers_to"))
    check_writable, check_rewritable, files_with = map(_of_inner, ("check_writable", "check_rewritable", "files_with"))

    def widen(self, columns: Any) -> None:
        self._watched.commits += 1
        self._watched.around(self._watched.commits, lambda: self._inner.widen(columns))

    def commit(self, job: str, marker: Any, added: Any, removed: Any = None) -> None:
        self._watched.commits += 1
        self._watched.around(self._watched.commits, lambda: self._inner.commit(job, marker, added, removed))


class WatchedLog(TableLog):
    """A table's log: `around(number, commit)` represents each commit, from 1; `calling` comes before each call of the store."""

    def __init__(
        self, inner: TableLog, around: Callable[[int, Callable[[], None]], None], calling: Callable[[], None] = lambda: None
    ) -> None:
        self._inner, self.around, self._calling = inner, around, calling
        self.commits = 0

    def load(self) -> LoadedTable:
        return WatchedTable(self._inner.load(), self)

    def exists(self) -> bool:
        return self._inner.exists()

    def store(self) -> Any:
        return WatchedStore(self._inner.store(), self._calling)


class WatchedStore:
    def __init__(self, inner: Any, calling: Callable[[], None]) -> None:
        self._inner, self._calling = inner, calling

    def __getattr__(self, name: str) -> Any:
        self._calling()
        return getattr(self._inner, name)
