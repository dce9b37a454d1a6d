"""The folder `_headrace` in a table: which transactions are open, which are about to be removed, and the lists of committables.

    part-<job>/<epoch>-<task>-<number>-<token>/<n>.parquet     data files, where the commit leaves them; of a Delta table with
                                                               partitions in folders <column>=<value>
    _headrace/<job>.job                                        the table has a marker of this job
    _headrace/<job>/<epoch>-<task>-<number>-<token>.open       files of this transaction may be there, and are not committed
    _headrace/<job>/<the same>.cleaned up                           its files are about to be removed
    _headrace/<job>/<epoch>.<driver>.json                      what this driver committed as this epoch, until all is cleaned up

The commit does not move a file: on object stores that would be a copy. So a file's name does not tell whether it is committed.
The mark shows it: it is there before the first file, and is removed after the table's commit.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.sink import CommitList
from headrace.connectors.tables.handles import DataFile, TableHandle, TableHandleSerializer, task_of
from headrace.enumerator.errors import PeerError, RetriableError

WORK = "_headrace"
_OPEN, _CLEANED_UP, _JOB = ".open", ".swept", ".job"
_LIST = re.compile(r"(\d+)\.(\d+)\.json")


@dataclass(frozen=True, slots=True)
class LeftOver:
    """What is in a job's folder: transactions that are open, and that are about to be removed; (epoch, driver) of each list.

    `since`: when each transaction's mark was made, in seconds since 1970 by the store's clock, where the store says it.
    """

    opened: frozenset[str]
    cleaned_up: frozenset[str]
    lists: frozenset[tuple[int, int]]
    since: Mapping[str, float]

    def of_tasks(self, tasks: Collection[int]) -> LeftOver:
        both = (self.opened, self.cleaned_up)
        opened, cleaned_up = (frozenset(place for place in places if task_of(place) in tasks) for places in both)
        return LeftOver(opened, cleaned_up, frozenset(), self.since)


class WorkFolder:
    """One job's folder. Raises OSError for what the store refuses."""

    def __init__(self, store: fs.FileSystem, job: str) -> None:
        self._store = store
        self._folder = f"{WORK}/{job}"
        self._data = f"part-{job}"
        self._lists = CommitListSerializer(TableHandleSerializer())

    def data_path(self, place: str, name: str) -> str:
        return f"{self._data}/{place}/{name}.parquet"

    def open_data(self, path: str) -> pa.NativeFile:
        return self._store.open_input_file(path)

    def has_nulls(self, file: DataFile, column: str) -> bool:
        """By the rows: statistics are not of every column. What is not in the file is a partition's value."""
        with self.open_data(file.path) as stored, pq.ParquetFile(stored) as rows:
            if column not in rows.schema_arrow.names:
                return dict(file.partition).get(column) is None
            return any(batch.column(column).null_count for batch in rows.iter_batches(columns=[column]))

    def enter(self) -> None:
        self._write(f"{self._folder}{_JOB}", b"")

    def leave(self) -> None:
        for info in _files(self._store, self._folder):
            self._remove(info.path)
        self._remove(f"{self._folder}{_JOB}")

    def open(self, place: str) -> None:
        self._write(f"{self._folder}/{place}{_OPEN}", b"")

    def mark_cleaned_up(self, place: str) -> None:
        self._write(f"{self._folder}/{place}{_CLEANED_UP}", b"")

    def close(self, place: str) -> None:
        self._remove(f"{self._folder}/{place}{_OPEN}")
        self._remove(f"{self._folder}/{place}{_CLEANED_UP}")

    def is_open(self, place: str) -> bool:
        paths = [f"{self._folder}/{place}{ending}" for ending in (_OPEN, _CLEANED_UP)]
        opened, cleaned_up = (info.type is fs.FileType.File for info in self._store.get_file_info(paths))
        return opened and not cleaned_up

    def data_files(self, place: str) -> dict[str, int]:
        return {info.path: info.size for info in _files(self._store, f"{self._data}/{place}")}

    def remove_data(self, place: str) -> None:
        for path in self.data_files(place):
            self._remove(path)
        with suppress(OSError):  # stores without folders, or a file that came meanwhile
            self._store.delete_dir(f"{self._data}/{place}")

    def look(self) -> LeftOver:
        found = _files(self._store, self._folder)
        names = [info.base_name for info in found]
        return LeftOver(
            frozenset(name.removesuffix(_OPEN) for name in names if name.endswith(_OPEN)),
            frozenset(name.removesuffix(_CLEANED_UP) for name in names if name.endswith(_CLEANED_UP)),
            frozenset((int(match[1]), int(match[2])) for name in names if (match := _LIST.fullmatch(name))),
            {info.base_name.removesuffix(_OPEN): info.mtime.timestamp() for info in found if info.mtime is not None},
        )

    def write_list(self, driver: int, commits: CommitList[TableHandle]) -> None:
        assert commits.epoch is not None, "a list of no epoch commits nothing"
        self._write(self._list(commits.epoch, driver), self._lists.serialize(commits))

    def read_list(self, epoch: int, driver: int) -> CommitList[TableHandle] | None:
        """None if there is none (any more). Raises StateError for one that cannot be read."""
        path = self._list(epoch, driver)
        try:
            with self._store.open_input_file(path) as file:
                return self._lists.deserialize(file.read(), path)
        except FileNotFoundError:
            return None

    def remove_list(self, epoch: int, driver: int) -> None:
        self._remove(self._list(epoch, driver))

    def _list(self, epoch: int, driver: int) -> str:
        return f"{self._folder}/{epoch}.{driver}.json"

    def _write(self, path: str, data: bytes) -> None:
        with self.create(path) as file:
            file.write(data)

    def create(self, path: str) -> pa.NativeFile:
        """A new file; stores that have folders want them to be there."""
        try:
            return self._store.open_output_stream(path)
        except FileNotFoundError:
            self._store.create_dir(path.rpartition("/")[0], recursive=True)
            return self._store.open_output_stream(path)

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._store.delete_file(path)


def jobs_in(store: fs.FileSystem) -> list[str]:
    names = (info.base_name for info in store.get_file_info(fs.FileSelector(WORK, allow_not_found=True)))
    return sorted(name.removesuffix(_JOB) for name in names if name.endswith(_JOB))


def jobs_with_marks(store: fs.FileSystem) -> list[str]:
    """The jobs that have something open, sorted; also those that never had a driver here, and so have no marker."""
    depth = WORK.count("/") + 2
    paths = (info.path.strip("/").split("/") for info in _files(store, WORK))
    return sorted({parts[-2] for parts in paths if len(parts) >= depth and parts[-1].endswith((_OPEN, _CLEANED_UP))})


def _files(store: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    found = store.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True))
    return [info for info in found if info.type is fs.FileType.File]


_LASTING = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_LASTING_NUMBERS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG})


def is_lasting(error: OSError) -> bool:
    """Whether trying again does not help."""
    return isinstance(error, _LASTING) or error.errno in _LASTING_NUMBERS


@contextmanager
def refused_by_store(where: str) -> Iterator[None]:
    """What the store refuses, as a PeerError that names the table; a RetriableError for what may pass, as a lost connection."""
    try:
        yield
    except OSError as error:
        raise (PeerError if is_lasting(error) else RetriableError)(f"{where}: {error}") from error
    except pa.ArrowException as error:
        raise PeerError(f"{where}: {error}") from error
