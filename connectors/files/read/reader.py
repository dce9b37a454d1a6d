"""Reads pieces of files, one after the other."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.connectors.base.counters import COUNTERS, Counted
from headrace.connectors.files.read.columns import BadRow, FileColumns, FileRows, bad_record
from headrace.connectors.files.read.discovery import changed
from headrace.connectors.files.read.plan import FilePlan
from headrace.connectors.files.read.split import FileSplit, shown
from headrace.connectors.formats.value_format import unquoted
from headrace.enumerator.errors import CorruptDataError, DataLossError, HeadraceError, PeerError, RetriableError, StateError
from headrace.enumerator.source import SourceReader, SplitBatch

log = logging.getLogger(__name__)

_PIECES_AT_ONCE = 3  # two that are read in threads, and one that is handed on
_AHEAD_BYTES = 8 << 20
_AHEAD_BATCHES = 16


class FileReader(SourceReader[FileSplit]):
    """Reads a batch ahead, several if they are small, and as much of the next two pieces: in two threads, next to pyarrow's."""

    def __init__(self, plan: FilePlan) -> None:
        self._plan = plan
        self._threads = ThreadPoolExecutor(2, "headrace-files")
        self._waiting: deque[FileSplit] = deque()
        self._open: deque[_OpenPiece] = deque()
        self._failure: HeadraceError | None = None

    def add_splits(self, splits: Sequence[FileSplit]) -> None:
        self._waiting.extend(splits)

    def poll(self, timeout: float) -> SplitBatch[FileSplit] | None:
        """Up to `batch_rows` rows of a piece; None when none is left. Waits for the filesystem however long it takes.

        Raises RetriableError for a store that is away, after which the next call tries again; CorruptDataError for what cannot
        be read where that fails, DataLossError for a file that is gone or has changed, StateError for one that was found with
        another schema: these then for ever.
        """
        if self._failure is not None:
            raise self._failure
        while len(self._open) < _PIECES_AT_ONCE and self._waiting:
            self._open.append(_OpenPiece(self._plan, self._waiting[0], self._threads))
            self._waiting.popleft()  # now: a filesystem that connects when it is made may be away
        if not self._open:
            return None
        piece = self._open[0]
        try:
            batch = piece.read()
        except RetriableError:
            while self._open:  # opened again by the next call
                self._waiting.appendleft(self._open.pop().close())
            raise
        except HeadraceError as error:
            self._failure = error
            raise
        if batch.finished:
            self._open.popleft().close()
        return batch

    def close(self) -> None:
        self._waiting.clear()
        self._threads.shutdown(cancel_futures=True)
        while self._open:
            self._open.pop().close()


class _OpenPiece:
    """A piece that is being read, ahead of what was handed on. `split`: as it is behind that."""

    def __init__(self, plan: FilePlan, split: FileSplit, threads: ThreadPoolExecutor) -> None:
        self.split = split
        self._plan = plan
        self._folder = plan.folder()
        self._file: pa.NativeFile | None = None
        self._columns: FileColumns | None = None
        self._rows: Iterator[FileRows] | None = None
        self._threads = threads
        self._read = _Ahead(deque())
        self._ahead = threads.submit(self._advance)

    def read(self) -> SplitBatch[FileSplit]:
        """The next rows; after the last, none."""
        if not self._read.rows and not self._read.is_last:
            self._read = self._ahead.result()
            if not self._read.is_last:
                self._ahead = self._threads.submit(self._advance)
        is_last = not self._read.rows
        found = self._after(self._read.error) if is_last else self._read.rows.popleft()
        if found is None:
            return SplitBatch(self.split, _no_rows(self._plan.columns.schema), finished=True)
        try:
            batch = self._batch(found)
        except MemoryError:  # Arrow's, too
            raise
        except pa.ArrowException as error:  # times that the type lacks; what it does not cast
            rest, is_last = self._bad_file(error), True
            batch = _no_rows(self._plan.columns.schema) if rest is None else self._batch(rest)
        return SplitBatch(self.split, batch, is_last)

    def close(self) -> FileSplit:
        """Let go of the file, once it is not being read. Returns the piece as it is behind what was handed on."""
        if not self._ahead.cancel():
            wait([self._ahead])
        self._rows = None
        if self._file is not None:
            self._file.close()
        return self.split

    def _advance(self) -> _Ahead:
        """In a thread: some batches, as a small one takes less time than a thread's turn. Those ahead of an error are kept."""
        rows: deque[FileRows] = deque()
        left = _AHEAD_BYTES
        try:
            if self._rows is None:
                self._rows = self._opened()
            while left > 0 and len(rows) < _AHEAD_BATCHES:
                found = next(self._rows, None)
                if found is None:
                    self._check_same()
                    return _Ahead(rows, is_last=True)
                rows.append(found)
                left -= sum(column.nbytes for column in found.columns.values())
        except Exception as error:  # noqa: BLE001 - what is not known is raised again, behind these rows
            return _Ahead(rows, is_last=True, error=error)
        return _Ahead(rows)

    def _opened(self) -> Iterator[FileRows]:
        split, plan = self.split, self._plan
        if split.schema and split.schema != plan.schema_digest and plan.schema_digest:
            raise StateError(
                f"{shown(split.path)} was found with another inferred schema than this process has: {plan.schema_text}. Give "
                "the schema, so that it is the same everywhere"
            )
        plan.format.check_position(split)
        self._check_same()
        self._columns = plan.columns.of_file(split.path, plan.format.time_zone)
        self._file = self._folder.open(split.path)
        return plan.format.read(self._file, split, self._columns, plan.batch_rows)

    def _check_same(self) -> None:
        """Raise where the file is not the version that was found."""
        split = self.split
        now = self._folder.find(split.path)
        if (now.size, now.modified_ns) == (split.size, split.modified_ns) or self._plan.on_changed_file == "ignore":
            return
        raise _ChangedFileError if self._plan.on_changed_file == "reread" else changed(split.path)

    def _batch(self, found: FileRows) -> pa.RecordBatch:
        columns = self._columns or FileColumns(self._plan.columns, pa.schema([]), {})
        batch = columns.batch(found, self.split)
        self.split = replace(self.split, delivered=self.split.delivered + found.records, counted=self._plan.format.counted)
        skips = self._plan.on_bad_record == "skip"
        COUNTERS.add(Counted.RECORDS_SKIPPED if skips else Counted.RECORDS_KEPT_BAD, len(found.bad))
        return batch

    def _after(self, error: Exception | None) -> FileRows | None:
        """What is left of a file that this was raised of, unless it is to be raised. None: the file ends."""
        name = shown(self.split.path)
        match error:
            case None:
                return None
            case FileNotFoundError() if self._plan.fail_on_data_loss:
                raise DataLossError(
                    f"{name} is gone since it was found: put it back, or read without it: fail_on_data_loss=False (as an "
                    "option: failOnDataLoss)"
                ) from error
            case FileNotFoundError():
                log.warning("%s is gone since it was found: its rows, or the rest of them, are not read", name)
                return None
            case _ChangedFileError():
                log.warning("%s has changed since it was found: the rest of what it was is not read", name)
                return None
            case CorruptDataError():
                return self._bad_file(error)
            case HeadraceError() | MemoryError():
                raise error
            case OSError() if error.errno is not None:
                raise PeerError(f"{name} cannot be read: {error}") from error
            case pa.ArrowException() | ValueError() | EOFError() | OSError():  # Arrow's own have no number
                return self._bad_file(error)
        raise error

    def _bad_file(self, error: Exception) -> FileRows | None:
        """What is left of a file that cannot be read: as one bad record, or nothing."""
        why = error if isinstance(error, CorruptDataError) else unquoted(error)
        row = BadRow(0, f"the file cannot be read here: {why}")
        on_bad = self._plan.on_bad_record
        if on_bad == "fail":
            raise bad_record(self.split, row) from error
        log.warning("%s, after %d records: %s", shown(self.split.path), self.split.delivered, row.reason)
        if on_bad == "keep":
            return FileRows({}, 1, 1, [row])
        COUNTERS.add(Counted.RECORDS_SKIPPED, 1)
        return None


@dataclass(frozen=True)
class _Ahead:
    """What was read of a piece and not handed on. `is_last`: the piece ends behind it, or by this error."""

    rows: deque[FileRows]
    is_last: bool = False
    error: Exception | None = None


class _ChangedFileError(Exception):
    """The file is another version, which will be found as such."""


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(0, each.type) for each in schema], schema=schema)
