"""What all sinks into a table share: what they are given, how they start, and the lists in the table's database."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields

import pyarrow as pa
from sqlalchemy.engine import Connection, Engine

from headrace.connectors.base.arguments import seconds, text
from headrace.connectors.base.sink import CommitList, Committer, HandleSerializer, RecordedEpoch, TwoPhaseSink
from headrace.connectors.sql.arrow import Field
from headrace.connectors.sql.commits import CommitStore
from headrace.connectors.sql.errors import translated
from headrace.connectors.sql.handles import SqlHandle, SqlHandleSerializer
from headrace.connectors.sql.rows import end_session
from headrace.connectors.sql.table import Table, check_durable, check_visible, fields_of, lock_table, read_table, split_name
from headrace.connectors.sql.url import driver_engine, file_of, product_of, shown, task_engine
from headrace.enumerator.errors import ProtocolViolationError


@dataclass(frozen=True, repr=False)
class TableSink(TwoPhaseSink[SqlHandle]):
    """Writes rows into a table, which exists. Picklable; its repr hides the password.

    url: as SQLAlchemy has it. table: `table` or `schema.table`. lock_timeout_s: how long to wait for a lock that another
    transaction holds, in seconds; 30 by default.

    Raises UsageError for an address or a table's name that cannot be used, without any I/O.
    """

    url: str
    table: str
    lock_timeout_s: float = field(default=30.0, kw_only=True)

    def __post_init__(self) -> None:
        split_name(text("table", self.table))
        product_of(text("url", self.url))
        seconds("lock_timeout_s", self.lock_timeout_s)

    def __repr__(self) -> str:
        """Without the password."""
        rest = (f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.name != "url")
        return f"{type(self).__name__}({shown(self.url)!r}, {', '.join(rest)})"

    @property
    def handles(self) -> HandleSerializer[SqlHandle]:
        """JSON objects of name and number of rows."""
        return SqlHandleSerializer()

    @property
    def locks(self) -> str | None:
        """The file, of SQLite."""
        return file_of(self.url)

    def recorded(self) -> Mapping[str, RecordedEpoch]:
        """Of all jobs that write to this table. Raises UsageError when there is none."""
        with closing(self._store()) as store:
            store.create()
            return store.recorded()

    def _store(self) -> CommitStore:
        """The lists for this table; connects when it is first used. Close it."""
        return CommitStore(driver_engine(self.url, self.lock_timeout_s), self.table, product_of(self.url))

    def check_rows(self, schema: pa.Schema) -> None:
        """Connect, and raise UsageError unless rows of this schema could be written; every task finds out for itself, too."""
        with self._session(f"looking at {shown(self.url)}") as (engine, connection):
            self._fields_of(self._read_table(connection), schema)
            end_session(engine, connection)

    @abstractmethod
    def _check_table(self, connection: Connection, table: Table) -> None:
        """Raise UsageError for a table, or a server, that this sink cannot write to."""

    def _fields_of(self, table: Table, schema: pa.Schema) -> tuple[Field, ...]:
        """The columns that are written of such rows. Raises UsageError for rows that do not fit the table, or this sink."""
        return fields_of(table, schema)

    def _locked_table(self, connection: Connection) -> Table:
        """The table, which is not altered until the transaction that is under way ends."""
        lock_table(connection, self.table, product_of(self.url))
        return self._read_table(connection)

    def _read_table(self, connection: Connection) -> Table:
        """The table. Raises UsageError for one that cannot be written to.

        Waits for no lock: an ALTER may wait for what the job has prepared, which its recovery ends.
        """
        table = read_table(connection, self.table, product_of(self.url))
        self._check_table(connection, table)
        check_durable(connection, table)
        check_visible(connection, table)
        return table

    @contextmanager
    def _session(self, doing: str) -> Iterator[tuple[Engine, Connection]]:
        """A session for one task, which stays open unless the context ends by an exception."""
        engine = task_engine(self.url, self.lock_timeout_s)
        with translated(engine, doing):
            connection = engine.connect()
            try:
                yield engine, connection
            except BaseException:
                end_session(engine, connection)
                raise


class StoredListCommitter(Committer[SqlHandle]):
    """Keeps the job's list for a table in `headrace_commits`. A subclass says what ending a transaction is."""

    def __init__(self, store: CommitStore, job: str) -> None:
        """Takes the store over; does no I/O."""
        self._store = store
        self._job = job
        self._driver: str | None = None

    def fence(self) -> CommitList[SqlHandle] | None:
        """Put this driver in the place of the previous one.

        Raises StateError for a list that cannot be read, UsageError when the table is not there any more.
        """
        self._store.create()
        driver = uuid.uuid4().hex
        commits = self._store.take_over(self._job, driver)
        self._driver = driver
        return commits

    def record(self, commits: CommitList[SqlHandle]) -> None:
        self._store.record(self._job, self._fenced_driver(), commits, self._prefix)

    def forget(self) -> None:
        """Drop from our tables what is kept of the job and this table."""
        self._store.create()
        self._store.forget(self._job, self._prefix)

    def close(self) -> None:
        self._store.close()

    @property
    def _prefix(self) -> str | None:
        """How the names of the job's transactions start; None where there are none."""
        return None

    def _fenced_driver(self) -> str:
        if self._driver is None:
            raise ProtocolViolationError(f"the committer of job {self._job!r} must fence before anything else")
        return self._driver
