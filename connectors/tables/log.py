"""What a sink asks of a table format: its files' store, and a table as it was loaded, into which something can be committed.

The commit of a table is atomic, and one that is made from an outdated version is refused: all that is decided rests on this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from headrace.connectors.base.sink import JobClaim, content_number, numbered_content
from headrace.connectors.tables.handles import DataFile
from headrace.connectors.tables.statistics import Measures
from headrace.enumerator.errors import RetriableError


class OutdatedError(RetriableError):
    """Another process has committed since the table was loaded, or may have: load it again, and look what it says now."""


@dataclass(frozen=True, slots=True)
class JobMarker:
    """What a table reports about a job, in its own metadata. All count from 0; expiry and compaction leave it alone.

    `driver`: the number of the driver that fenced last. `following`: the epoch after the last one recorded, 0 if none is.
    `recorded_by`: the driver that recorded it. `content`: the `content_number` of that epoch, 0 if that is not known.
    `claim`: the number of the claim that counts, 0 if there was none. `owner`: the `content_number` of the
    driver id whose it is, 0 if it was given back.
    """

    driver: int
    following: int = 0
    recorded_by: int = 0
    content: int = 0
    claim: int = 0
    owner: int = 0

    @classmethod
    def stored(cls, numbers: Collection[int | None]) -> JobMarker | None:
        """Of its numbers as a table has them, in order; None for a job of which it has none. All are written at once."""
        found = [number for number in numbers if number is not None]
        return cls(*found) if len(found) == len(numbers) else None

    @staticmethod
    def names(job: str) -> tuple[str, ...]:
        """What its numbers are called in a table, in their order. A job's name has no dot."""
        return tuple(f"headrace.{job}{part}" for part in (".driver", "", ".recorded-by", ".content", ".claim", ".owner"))

    @property
    def claimed(self) -> JobClaim | None:
        return JobClaim(self.claim, numbered_content(self.owner)) if self.claim else None

    def with_claim(self, claim: JobClaim | None) -> JobMarker:
        return self if claim is None else replace(self, claim=claim.number, owner=content_number(claim.driver_id))


class FileLayout:
    """What a table format wants in its files and reports about them. As it is here: no partitions, all columns, no reports."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns that partitions are made of."""
        return ()

    def keys(self, rows: pa.RecordBatch) -> Sequence[pa.Array]:
        """What each row's partition is, in as many columns as partitions are made of."""
        return ()

    def columns(self, schema: pa.Schema) -> pa.Schema:
        """The columns that are in the files, of those that the rows have."""
        return schema

    def partition(self, values: tuple[object, ...]) -> tuple[tuple[str, str | None], ...]:
        """One row of `keys` as the log has it. Raises UsageError for a value that it cannot tell from another."""
        return ()

    def folder(self, partition: Sequence[tuple[str, str | None]]) -> str:
        """Where the files of such a partition are among a transaction's, with a slash behind it."""
        return ""

    def row_group_bounds(self, schema: pa.Schema) -> list[str] | bool:
        """Of which of Parquet's columns row groups have bounds; True means of all."""
        return True

    def measures(self, rows: pa.Table) -> Measures:
        """What `statistics` is to know of the rows of a row group."""
        return {}

    def statistics(self, footer: pq.FileMetaData, measured: Sequence[Measures]) -> str:
        """What the log reports about a file, by the measures of its row groups."""
        return ""


class TableFile(ABC):
    """A data file of a version of a table."""

    @abstractmethod
    def read(self) -> pa.Table:
        """Its rows, with the table's columns as the table has them."""

    def check_removable(self) -> None:  # noqa: B027 - not where every file can be
        """Raise UsageError for a file that a commit cannot remove."""


class LoadedTable(ABC):
    """A table at one of its versions."""

    @property
    @abstractmethod
    def version(self) -> object:
        """Which version it is. Another commit than the first that was made from it is refused."""

    @property
    @abstractmethod
    def id(self) -> str:
        """What distinguishes it from a table that takes its place later."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns, with their types and whether they may be null."""

    @property
    @abstractmethod
    def partitioning(self) -> tuple[str, ...]:
        """What it is partitioned by: a column's name where partitions are its values, else `transform(column)`."""

    @property
    @abstractmethod
    def files(self) -> FileLayout:
        """How its files are written."""

    @abstractmethod
    def check_writable(self) -> None:
        """Raise UsageError naming what this table asks of its writers and this sink does not do."""

    @abstractmethod
    def check_rewritable(self) -> None:
        """Raise UsageError naming why rows of this table cannot be replaced or removed by this sink."""

    @abstractmethod
    def marker(self, job: str) -> JobMarker | None:
        """What it reports about the job; None for a job that never came here."""

    @abstractmethod
    def commit(
        self, job: str, marker: JobMarker, added: Sequence[DataFile], removed: Sequence[TableFile] | None = None
    ) -> None:
        """Add and remove these files and set the job's marker, in one commit on top of this version. Once for each object.

        `removed` are of `files_with` of this version, or of the same one loaded before; None where it was not read.

        Raises OutdatedError if there is a newer version, or if the answer was lost; another PeerError if it was refused.
        """

    @abstractmethod
    def drop_marker(self, job: str) -> None:
        """Remove the marker of a name never used again, where the format can: tables must not grow with every write."""

    @abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of this version, of these columns. Raises UsageError for a column that it has not."""

    @abstractmethod
    def files_with(self, keys: pa.Table) -> Iterator[TableFile]:
        """The files that may have rows with any of these keys."""

    @abstractmethod
    def widen(self, columns: pa.Schema) -> None:
        """Add these columns to the table, which may be null, in its own commit. Raises OutdatedError as `commit` does."""

    @abstractmethod
    def refers_to(self, paths: Collection[str]) -> bool:
        """Whether a reader of this version reads any of these files."""


class TableLog(ABC):
    """A table's log, and the store of its files."""

    @abstractmethod
    def load(self) -> LoadedTable:
        """The newest version. Raises UsageError without a table, PeerError for what the store refuses."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a table, without loading it. Raises PeerError as `load`."""

    @abstractmethod
    def store(self) -> fs.FileSystem:
        """Where the table's files are; paths in it are relative to the table."""
