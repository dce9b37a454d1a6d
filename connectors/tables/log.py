"""What a sink asks of a table format: its files' store, and a table as it was loaded, into which something can be committed.

The commit of a table is atomic, and one that is made from an outdated version is refused: all that is decided rests on this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from headrace.connectors.tables.handles import TableHandle
from headrace.enumerator.errors import RetriableError

__all__ = ["FileLayout", "JobMarker", "LoadedTable", "OutdatedError", "TableLog"]


class OutdatedError(RetriableError):
    """Somebody else has committed since the table was loaded, or may have: load it again, and look what it says now."""


@dataclass(frozen=True, slots=True)
class JobMarker:
    """What a table says of a job, in its own metadata. All count from 0; expiry and compaction leave it alone.

    `driver`: the number of the driver that fenced last. `following`: the epoch after the last one recorded, 0 if none is.
    `recorded_by`: the driver that recorded it. `content`: the `content_number` of that epoch, 0 if that is not known, as in
    markers of before.
    """

    driver: int
    following: int = 0
    recorded_by: int = 0
    content: int = 0


class FileLayout(ABC):
    """What a table format wants in its files and says of them."""

    @abstractmethod
    def columns(self, schema: pa.Schema, partitioning: tuple[str, ...]) -> pa.Schema:
        """The columns that are in the files, of those that the rows have."""

    @abstractmethod
    def partition(self, partitioning: tuple[str, ...], values: tuple[object, ...]) -> tuple[tuple[str, str | None], ...]:
        """The columns' values as the log has them. Raises UsageError for one that it cannot tell from another."""

    @abstractmethod
    def statistics(self, footer: pq.FileMetaData, schema: pa.Schema, with_nan: frozenset[str]) -> str:
        """What the log says of a file. `with_nan`: columns with a NaN, of which Parquet's statistics say nothing."""


class LoadedTable(ABC):
    """A table at one of its versions."""

    @property
    @abstractmethod
    def id(self) -> str:
        """What tells it from a table that takes its place later."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns, with their types and whether they may be null."""

    @property
    @abstractmethod
    def partitioning(self) -> tuple[str, ...]:
        """The columns that it is partitioned by."""

    @property
    @abstractmethod
    def files(self) -> FileLayout:
        """How its files are written."""

    @abstractmethod
    def check_writable(self) -> None:
        """Raise UsageError naming what this table asks of its writers and this sink does not do."""

    @abstractmethod
    def marker(self, job: str) -> JobMarker | None:
        """What it says of the job; None for a job that never came here."""

    @abstractmethod
    def commit(self, job: str, marker: JobMarker, handles: Sequence[TableHandle]) -> None:
        """Add these files and set the job's marker, in one commit on top of this version. Once for each object.

        Raises OutdatedError if there is a newer version, or if the answer was lost; another PeerError if it was refused.
        """

    @abstractmethod
    def drop_marker(self, job: str) -> None:
        """Remove the marker of a name that nobody uses again, where the format can: tables must not grow with every write."""

    @abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of this version, of these columns. Raises UsageError for a column that it has not."""

    @abstractmethod
    def refers_to(self, paths: Collection[str]) -> bool:
        """Whether a reader of this version reads any of these files."""


class TableLog(ABC):
    """A table's log, and the store of its files."""

    @abstractmethod
    def load(self) -> LoadedTable:
        """The newest version. Raises UsageError without a table, PeerError for what the store refuses."""

    @abstractmethod
    def store(self) -> fs.FileSystem:
        """Where the table's files are; paths in it are relative to the table."""
