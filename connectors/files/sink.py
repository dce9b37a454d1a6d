"""The file sink: whole files under names that readers ignore, published by a rename once the list of them is durable.

    <path>/part-<job>-<epoch>-<task>-<attempt>-<token>.parquet      what readers see
    <path>/_headrace/<job>/<epoch>.<task>.<attempt>.<token>.tmp     written or prepared
    <path>/_headrace/<job>/<the same>.cleaned up                         about to be removed
    <path>/_headrace/<job>.<number>.json                            the durable list; the highest number counts

Spark, Hive and pyarrow's datasets ignore names that start with `_`. A reader of the folder sees whole files of epochs whose
list is durable, at any time; while an epoch is being committed, it sees some of its files before the others.

**Fencing.** Lists are numbered, and each is created only if its number is free. A driver that takes over writes the current
list again under the next number; an older driver finds its own next number taken, and stops.

**Cleaning up in two steps.** A file is first renamed to `.cleaned up`, and removed only if no driver has taken over since. So a
driver that was replaced cannot remove what its successor has checked: `check` refuses a file that is already renamed, and `end`
finds one that is renamed later. Beginning an attempt again removes nothing, since every file has its own name.

**Tables of others.** A folder with `_delta_log` or `_spark_metadata` is refused: its readers go by the lists in there,
and would never see our files.

**No repair.** A file does not expire. If one that is on the durable list is gone, another process removed it: DataLossError.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any, Literal
from uuid import uuid4

import pyarrow as pa

from headrace.connectors.base.arguments import at_least_one, mapping, text
from headrace.connectors.base.capabilities import EpochRecord, WriterCommit
from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.guard import AllOrNothing, check_values
from headrace.connectors.base.jobs import check_job
from headrace.connectors.base.sink import Attempt, CommitList, Committer, Outcome, RecordedEpoch, Transaction, TwoPhaseSink
from headrace.connectors.files.formats import FileFormat, RowWriter, create_writer, has_codec
from headrace.connectors.files.handles import CLEANED_UP, OPEN, FileHandle, FileHandleSerializer, temporary_name
from headrace.connectors.files.store import TABLES, Store, given_path, is_local, open_store
from headrace.enumerator.errors import DataLossError, FencedError, PeerError, ProtocolViolationError, StateError, UsageError

log = logging.getLogger(__name__)

WORK = "_headrace"
ROW_GROUP_BYTES = 64 << 20
_LIST = re.compile(r"([A-Za-z0-9_-]{1,100})\.(\d{12})\.json")
_NO_LIST = b"null"  # a driver has fenced, and nothing was ever recorded
_LOOKS = 100  # every look that fails means that another driver has just written a list


@dataclass(frozen=True)
class FileSink(TwoPhaseSink[FileHandle], EpochRecord, WriterCommit):
    """Writes rows of any columns, exactly once, as files that appear in a folder when their epoch is committed.

    - `path`: the folder, a local path, `file://`, or a URL of any fsspec filesystem (extra `files`). A relative path means the
      folder of the process that makes the sink.
    - `format`: "parquet" (default), or "jsonl", one object in each line; also as a `FileFormat`.
    - `compression`: Parquet's; None (default) means snappy.
    - `row_group_bytes`: a Parquet row group ends after this many bytes of Arrow data (default 64 MiB), which is also what a
      task holds in memory.
    - `storage_options`: what is passed to fsspec for the filesystem, such as keys; never shown.

    A value that is checked when made, hashable and picklable; touches no file before a method is called. Raises UsageError for
    what cannot be honoured.
    """

    path: str
    format: FileFormat | Literal["parquet", "jsonl"] = FileFormat.PARQUET
    compression: str | None = None
    row_group_bytes: int = ROW_GROUP_BYTES
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        """Check, and make the path absolute."""
        object.__setattr__(self, "path", given_path(text("path", self.path)))
        mapping("storage_options", self.storage_options)
        if self.compression is not None:
            text("compression", self.compression)
        if self.format not in list(FileFormat):
            raise UsageError(f"format must be one of {', '.join(FileFormat)}, not {self.format!r}")
        object.__setattr__(self, "format", FileFormat(self.format))
        at_least_one("row_group_bytes", self.row_group_bytes)
        if self.compression is not None and self.format is not FileFormat.PARQUET:
            raise UsageError(f"compression {self.compression!r} is for Parquet; the format is {self.format}")
        if self.compression not in (None, "none") and not has_codec(self.compression):
            raise UsageError(f"this pyarrow has no compression {self.compression!r}")
        if self.storage_options and is_local(self.path):
            raise UsageError(f"{self.path}: a local folder has no storage options; got {sorted(self.storage_options)}")

    @property
    def handles(self) -> FileHandleSerializer:
        """JSON objects that name a file."""
        return FileHandleSerializer()

    @property
    def records_all_epochs(self) -> bool:
        """Each file has a handle."""
        return False

    def begin(self, attempt: Attempt) -> FileTransaction:
        """A new transaction; its first row makes its file. What an earlier attempt left is cleaned up at the commit."""
        check_job(attempt.job)
        return FileTransaction(self, attempt)

    def committer(self, job: str) -> FileCommitter:
        """The one that publishes this job's files."""
        return FileCommitter(open_store(self.path, self.storage_options), check_job(job), self.path)

    def committer_of_writer(self, writer: str, driver: Committer[FileHandle]) -> FileCommitter:
        """One that cleans up as long as no other driver has claimed the job of `driver`."""
        assert isinstance(driver, FileCommitter), f"{driver} is not a committer of this sink"
        return driver.of_writer(check_job(writer))

    def recorded(self) -> dict[str, RecordedEpoch]:
        """From the durable lists in this folder. Those that cannot be read are left out, with a warning.

        Raises UsageError for a table of others or a file in the place of the folder; PeerError without the right to list it.
        """
        store, epochs = open_store(self.path, self.storage_options), {}
        _refuse_tables(store, self.path)
        with _folder_at(self.path):
            jobs = _newest(store)
        for job in jobs:
            try:
                commits = _Lists(store, job, self.path).latest()[1]
            except (StateError, PeerError, OSError) as error:
                log.warning("%s: the list of job %r is left alone: %s", self.path, job, error)
                continue
            if commits is not None and commits.epoch is not None:
                epochs[job] = RecordedEpoch(commits.epoch, content=commits.content, claim=commits.claim)
        return epochs


class FileTransaction(Transaction[FileHandle]):
    """One attempt's file. Raises PeerError, naming the file, for what the filesystem refuses."""

    def __init__(self, sink: FileSink, attempt: Attempt) -> None:
        self._sink = sink
        self._store = open_store(sink.path, sink.storage_options)
        self._attempt = attempt
        self._token = uuid4().hex[:16]
        self._name = f"{WORK}/{attempt.job}/{temporary_name(attempt, self._token)}"
        self._file: IO[bytes] | None = None
        self._writer: RowWriter | None = None
        self._rows = 0
        self._whole = AllOrNothing(sink.path, self._name, self.abort)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises UsageError for a type that the format cannot hold, and for another schema than that of the first."""
        self._whole.check_rows(batch)
        if not batch.num_rows:
            return
        with self._whole.steps():
            check_values(batch, self._sink.path)
            if self._file is None:
                self._store.make_folder(f"{WORK}/{self._attempt.job}")
                self._file = self._store.open(self._name)
            if self._writer is None:
                sink = self._sink
                self._writer = create_writer(
                    FileFormat(sink.format),
                    self._file,
                    batch.schema,
                    row_group_bytes=sink.row_group_bytes,
                    compression=sink.compression or "snappy",
                )
            self._writer.write(batch)
        self._rows += batch.num_rows

    def prepare(self) -> FileHandle | None:
        """Close the file; on a local disk it now survives a loss of power. None when no row was written."""
        self._whole.check()
        if self._file is None or self._writer is None:
            return None
        with self._whole.steps():
            self._writer.close()
            self._writer = None
            size = self._store.finish(self._name, self._file)
        self._file = None
        self._whole.end()
        return FileHandle(self._attempt, self._token, FileFormat(self._sink.format), self._rows, size)

    def abort(self) -> None:
        """Remove the file, unless it is prepared; what fails is left to the next clean up."""
        if not self._whole.end():
            return
        file, writer, self._file, self._writer = self._file, self._writer, None, None
        if writer is not None:
            with suppress(OSError, ValueError, pa.ArrowException):
                writer.discard()
        if file is not None:
            with suppress(OSError, ValueError):
                file.close()
            with suppress(OSError):
                self._store.remove(self._name)


class FileCommitter(Committer[FileHandle]):
    """Publishes a job's files. Raises OSError for what the filesystem refuses; recovering later continues from there."""

    def __init__(self, store: Store, job: str, path: str) -> None:
        """`path` is for messages."""
        self._store, self._job, self._path = store, job, path
        self._folder = f"{WORK}/{job}"
        self._lists = _Lists(store, job, path)

    def of_writer(self, writer: str) -> FileCommitter:
        """For the files of a writer with its own job, on the lists of this one."""
        made = FileCommitter(self._store, writer, self._path)
        made._lists = self._lists
        return made

    def fence(self) -> CommitList[FileHandle] | None:
        """Write the list again under the next number.

        Raises UsageError naming a store where two could do so, or for a folder that is a table of others; StateError for a list
        that cannot be read.
        """
        _refuse_tables(self._store, self._path)
        self._store.make_folder(self._folder)
        self._store.check_exclusive(self._folder)
        return self._lists.take_over()

    def check(self, handles: Sequence[FileHandle]) -> None:
        """Raise PeerError naming the files that are not there, whole."""
        for handle in handles:
            size = self._store.size(f"{self._folder}/{handle.temporary}")
            if size != handle.size:
                found = "is not there any more" if size is None else f"has {size} bytes, not {handle.size}"
                raise PeerError(f"{self._path}: {self._folder}/{handle.temporary} {found}: write the epoch again")

    def record(self, commits: CommitList[FileHandle]) -> None:
        """Make this the job's list. Raises FencedError when another driver has claimed the job, StateError in an older copy."""
        self._lists.append(commits)

    def end(self, handle: FileHandle) -> Outcome:
        """Publish the file; ABORTED when there is none, under neither of its names."""
        for name in (handle.temporary, handle.cleaned_up):
            with suppress(FileNotFoundError):
                self._store.rename(f"{self._folder}/{name}", handle.published)
                return Outcome.COMMITTED
        return Outcome.ABORTED if self._store.size(handle.published) is None else Outcome.COMMITTED

    def copy(self, handles: Sequence[FileHandle]) -> FileHandle:
        """Raise DataLossError naming the files: they are nowhere."""
        names = ", ".join(f"{self._folder}/{handle.temporary} ({handle.rows} rows)" for handle in handles)
        raise DataLossError(
            f"{self._path}: these files of job {self._job!r} were to be published, and another process has removed them: "
            f"{names}. "
            f"To continue without their rows remove {WORK}/{self._job}.*.json and start a new query with a new checkpoint"
        )

    def clean_up(self, keep: Collection[FileHandle]) -> None:
        """Remove the job's other unpublished files. Raises FencedError when another driver has claimed the job."""
        self._lists.check_newest()
        kept = {name for handle in keep for name in (handle.temporary, handle.cleaned_up)}
        marked = []
        for name in self._store.names(self._folder):
            if name in kept or not name.endswith((OPEN, CLEANED_UP)):
                continue
            cleaned_up = name.removesuffix(OPEN) + CLEANED_UP if name.endswith(OPEN) else name
            if name != cleaned_up:
                with suppress(FileNotFoundError):
                    self._store.rename(f"{self._folder}/{name}", f"{self._folder}/{cleaned_up}")
            marked.append(cleaned_up)
        self._lists.check_newest()  # else a successor may have checked some of these before they were renamed
        for name in marked:
            self._store.remove(f"{self._folder}/{name}")

    def forget(self) -> None:
        for name in self._store.names(self._folder):
            self._store.remove(f"{self._folder}/{name}")
        self._store.remove_folder(self._folder)
        self._lists.remove()

    def close(self) -> None:
        """fsspec's connections belong to the process."""


class _Lists:
    """A job's numbered lists, and the number that is ours."""

    def __init__(self, store: Store, job: str, path: str) -> None:
        self._store, self._job, self._path = store, job, path
        self._serializer = CommitListSerializer(FileHandleSerializer())
        self._number = 0  # none is ours

    def latest(self) -> tuple[int, CommitList[FileHandle] | None]:
        """The highest number, 0 if there is none, and its list."""
        for _ in range(_LOOKS):
            number = _newest(self._store).get(self._job, 0)
            if not number:
                return 0, None
            with suppress(FileNotFoundError):  # then there is a higher number by now
                data = self._store.read(self._name(number))
                where = f"{self._path}/{self._name(number)}"
                return number, None if data == _NO_LIST else self._serializer.deserialize(data, where)
        raise PeerError(f"{self._path}: the lists of job {self._job!r} change faster than they can be read")

    def take_over(self) -> CommitList[FileHandle] | None:
        """Make the next number ours, with the list as it is. Another driver's next number is then taken."""
        for _ in range(_LOOKS):
            number, commits = self.latest()
            with suppress(FileExistsError, FencedError):
                self._write(number + 1, commits)
                return commits
        raise PeerError(f"{self._path}: too many drivers of job {self._job!r} take over from each other")

    def append(self, commits: CommitList[FileHandle]) -> None:
        """Make this list the newest. Raises what `check_newest` raises."""
        if not self._number:
            raise ProtocolViolationError(f"job {self._job!r} records a list, and has not fenced")
        self.check_newest()
        try:
            self._write(self._number + 1, commits)
        except FileExistsError as error:
            raise self._fenced() from error

    def check_newest(self) -> None:
        """Raise FencedError if the newest list is another driver's, StateError if ours is not there any more."""
        newest = _newest(self._store).get(self._job, 0)
        if newest < self._number:
            raise StateError(
                f"{self._path}: the last list of job {self._job!r} is gone: an older copy of the folder has taken its place, "
                "or the list was removed. Put the newer one back, or start a new query with a new checkpoint"
            )
        if newest != self._number:
            raise self._fenced()

    def remove(self) -> None:
        """Remove all of them, the newest last."""
        for number in _numbers(self._store, self._job):
            self._store.remove(self._name(number))

    def _write(self, number: int, commits: CommitList[FileHandle] | None) -> None:
        data = _NO_LIST if commits is None else self._serializer.serialize(commits)
        self._store.create(self._name(number), data, f"{WORK}/{self._job}/list.{uuid4().hex}{OPEN}")
        # A number can be free again: who has continued from it has removed it. Then there is a higher one.
        *older, newest = _numbers(self._store, self._job) or [0]
        if newest != number:
            raise self._fenced()
        self._number = number
        for each in older:
            self._store.remove(self._name(each))

    def _name(self, number: int) -> str:
        return f"{WORK}/{self._job}.{number:012d}.json"

    def _fenced(self) -> FencedError:
        return FencedError(f"{self._path}: another driver of job {self._job!r} claimed it; this one must stop")


@contextmanager
def _folder_at(path: str) -> Iterator[None]:
    try:
        yield
    except NotADirectoryError as error:
        raise UsageError(f"{path}: this is a file, or there is one in the place of a folder: correct the path") from error
    except PermissionError as error:
        raise PeerError(f"{path}: {error.strerror or error}: let this process list the folder, or correct the path") from error


def _refuse_tables(store: Store, path: str) -> None:
    for folder, whose in TABLES.items():
        with _folder_at(path):
            names = store.names(folder)
        if names:
            raise UsageError(
                f"{path}: this folder is a table of {whose}: its readers see the files that {folder} lists, and would never "
                "see what is written here. Write to another folder"
            )


def _lists(store: Store) -> list[tuple[str, int]]:
    """Job and number of every list, sorted."""
    found = (_LIST.fullmatch(name) for name in store.names(WORK))
    return sorted((match[1], int(match[2])) for match in found if match is not None)


def _numbers(store: Store, job: str) -> list[int]:
    return [number for each, number in _lists(store) if each == job]


def _newest(store: Store) -> dict[str, int]:
    """Each job's highest number."""
    return dict(_lists(store))
