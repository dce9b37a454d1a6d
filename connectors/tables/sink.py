"""What the sinks of all table formats share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.connectors.base.arguments import arrow_schema, at_least_one, names, text, truth
from headrace.connectors.base.capabilities import SingleCommit
from headrace.connectors.base.jobs import check_job
from headrace.connectors.base.script import loads_script
from headrace.connectors.base.sink import Attempt, RecordedEpoch, TwoPhaseSink, numbered_content
from headrace.connectors.tables.changes import Changes
from headrace.connectors.tables.column_types import table_schema
from headrace.connectors.tables.committer import TableCommitter
from headrace.connectors.tables.handles import TableHandle, TableHandleSerializer
from headrace.connectors.tables.log import JobMarker, TableLog
from headrace.connectors.tables.rows import check_no_twins, fitting_schema, new_columns
from headrace.connectors.tables.writing import TARGET_FILE_BYTES, Layout, TableTransaction, written_columns
from headrace.enumerator.errors import UsageError


@dataclass(frozen=True)
class OpenTableSink(TwoPhaseSink[TableHandle], SingleCommit):
    """A table as a sink. Subclasses say where it is, and add `compression`, whose default differs."""

    target_file_bytes: int = field(default=TARGET_FILE_BYTES, kw_only=True)
    compression: str = field(default="snappy", kw_only=True)
    merge_schema: bool = field(default=False, kw_only=True)
    changes: Changes | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        at_least_one("target_file_bytes", self.target_file_bytes)
        text("compression", self.compression)
        truth("merge_schema", self.merge_schema)
        changes: object = self.changes  # by a caller without a type checker
        if not isinstance(changes, Changes | None):
            raise UsageError(f"changes must be headrace's Changes(keys=...), not {changes!r}")

    @property
    @abstractmethod
    def where(self) -> str:
        """The table, in messages."""

    @abstractmethod
    def log(self) -> TableLog:
        """The table's log, and the store of its files."""

    @abstractmethod
    def _make(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """An empty table, unless there is one."""

    @abstractmethod
    def _own_type(self, kind: pa.DataType) -> pa.DataType | None:
        """See `OwnType`."""

    @abstractmethod
    def _markers(self) -> Mapping[str, JobMarker | None]:
        """Of the jobs that the table may know."""

    def recorded(self) -> dict[str, RecordedEpoch]:
        """What the table reports about each job, with the numbers of what each epoch was made from and of who owns the job."""
        return {
            job: RecordedEpoch(marker.following - 1, content=numbered_content(marker.content), claim=marker.claimed)
            for job, marker in self._markers().items()
            if marker is not None and marker.following
        }

    @property
    def refuses_epochs_by_their_rows(self) -> bool:
        """True with `changes`: a key that comes twice without a sequence."""
        return self.changes is not None

    @property
    def row_key(self) -> tuple[str, ...]:
        """That of `changes`."""
        return () if self.changes is None else self.changes.keys

    @property
    def handles(self) -> TableHandleSerializer:
        """JSON objects that name files, with their statistics."""
        return TableHandleSerializer()

    def create_table(self, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        """Make an empty table for rows with these columns, unless there is a table already.

        That is left as it is, but gets the columns that it does not have, all nullable, with `merge_schema`. With `changes` the
        column of the change type is none of the table's. Raises UsageError for what the format has no type or partitions for.
        Does nothing where multiprocessing loads a script again, as for `Pipeline.run`: the script has called it before.
        """
        arrow_schema("schema", schema)
        columns = names("partition_by", partition_by)
        if loads_script():  # a library that has threads by then is of no use to what is forked from this process
            return
        rows = schema if self.changes is None else self.changes.new_table(schema)
        wanted = table_schema(rows, self._own_type, self.where)
        self._make(wanted, columns)
        if self.merge_schema:
            self.committer("schema").widen(lambda table: self._missing(wanted, table))

    def _missing(self, wanted: pa.Schema, table: pa.Schema) -> pa.Schema:
        fitting_schema(pa.schema([field for field in wanted if field.name in table.names]), table, (), self.where)
        added = new_columns(wanted, table)
        check_no_twins(added, table.names, self.where)
        return added

    def check_rows(self, schema: pa.Schema) -> None:
        """Load the table, and raise UsageError unless rows of this schema could be written; every task finds out, too."""
        loaded = self.log().load()
        loaded.check_writable()
        written_columns(self.changes, schema, loaded, self.where)

    def begin(self, attempt: Attempt) -> TableTransaction:
        """A new transaction; nothing is written before a row. What an earlier attempt left is cleaned up at the commit."""
        check_job(attempt.job)
        return TableTransaction(self.log(), self._layout, attempt, self.where, self.changes)

    def committer(self, job: str) -> TableCommitter:
        return TableCommitter(self.log(), check_job(job), self.where, self._layout)

    @property
    def _layout(self) -> Layout:
        return Layout(self.target_file_bytes, self.compression)
