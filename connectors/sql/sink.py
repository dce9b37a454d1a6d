"""Exactly once into PostgreSQL, MariaDB and MySQL: the tasks' transactions are prepared, and committed by the driver.

A prepared transaction belongs to no session: it survives its writer and the server, unseen, with its locks, until another
process ends it by name. It has no timeout. So nothing on a durable list is ever lost, unless an administrator ends it by hand;
and what a dead job has prepared stays until the job runs again, or another process ends it (`pg_prepared_xacts`, `XA RECOVER`).

Two attempts at the same rows meet where the table has a unique key: the second waits for the first one's locks, for
`lock_timeout_s`, and then fails. Recovery ends the first: `SqlSink.end_left_over`, before a task starts.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence, Set
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlalchemy.engine import Connection, Engine
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from headrace.connectors.base.capabilities import EpochRecord, GroupedEnd, LeftoverCleanup, WriterCommit
from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.jobs import check_job, is_one_off
from headrace.connectors.base.sink import Attempt, CommitList, Committer, Outcome
from headrace.connectors.sql.arrow import Field
from headrace.connectors.sql.commits import TRANSACTIONS, CommitStore, create_tables, is_decided
from headrace.connectors.sql.database import EndAnswer, TwoPhaseDatabase, Writer
from headrace.connectors.sql.errors import translated
from headrace.connectors.sql.handles import SqlHandle, epoch_of, is_of_job, job_prefix, new_gid, place_digest, place_prefix
from headrace.connectors.sql.mysql import MySql
from headrace.connectors.sql.postgresql import PostgreSql
from headrace.connectors.sql.rows import RowTransaction
from headrace.connectors.sql.table import Table, destination_of
from headrace.connectors.sql.table_sink import StoredListCommitter, TableSink
from headrace.connectors.sql.url import Product, product_of, shown
from headrace.enumerator.errors import DataLossError, PeerError, RetriableError, StateError, UsageError

_DATABASES: dict[Product, TwoPhaseDatabase] = {Product.POSTGRESQL: PostgreSql(), Product.MYSQL: MySql()}
_POLL_S = 0.02
_NO_EPOCH = 2**63 - 1  # above all
_NAMED = 10  # more gids than this are counted in a message, not named


@dataclass(frozen=True, repr=False)
class SqlSink(TableSink, EpochRecord, WriterCommit, LeftoverCleanup):
    """Adds rows to a table, which exists. Picklable; its repr hides the password.

    url: as SQLAlchemy has it, `postgresql://user:password@host:5432/database`, `mysql://...` or `mariadb://...`.
    table: `table` or `schema.table`. Columns are matched by name; those that the rows do not have get their defaults.
    lock_timeout_s: how long to wait for a lock that another transaction holds, in seconds; 30 by default.

    The user needs the right to insert into the table, and to create tables or to read and write `headrace_commits` and
    `headrace_transactions`; on MySQL also XA_RECOVER_ADMIN. On PostgreSQL tasks and driver log in as the same user, or the
    driver as a superuser.

    Raises UsageError for an address or a table's name that cannot be used, without any I/O.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if product_of(self.url) not in _DATABASES:
            raise UsageError(f"{shown(self.url)} has no two-phase commit: use UpsertSink")

    def begin(self, attempt: Attempt) -> SqlTransaction:
        """Connect, and look at the table. Nothing is ended that is prepared: a list may name it.

        Raises UsageError without such a table, or where the server has no prepared transactions; AuthenticationError;
        RetriableError when it cannot be reached.
        """
        check_job(attempt.job)
        database = self._database
        with self._session(f"beginning to write to {shown(self.url)}") as (engine, connection):
            create_tables(connection)
            destination = destination_of(connection, self.table, product_of(self.url))
            gid = new_gid(place_digest(*database.place(connection), destination), attempt)
            connection.commit()
            database.start(connection, gid)
            table = self._locked_table(connection)
            return SqlTransaction(engine, connection, table, database.writer(connection, table, gid), attempt, gid)

    def committer(self, job: str) -> SqlCommitter:
        """The one that ends this job's transactions; connects when it is first used. Close it."""
        return SqlCommitter(self._store(), self._database, check_job(job), self.lock_timeout_s)

    def committer_of_writer(self, writer: str, driver: Committer[SqlHandle]) -> SqlCommitter:
        """One that cleans up under the lock of `driver`, as long as no other driver has claimed its job. Close it."""
        assert isinstance(driver, SqlCommitter), f"{driver} is not a committer of this sink"
        return _WriterCommitter(self._store(), self._database, check_job(writer), self.lock_timeout_s, driver)

    def left_over(self) -> frozenset[str]:
        """The names of the prepared transactions of all jobs that write to this table: their locks block writers."""
        database = self._database
        with (
            closing(self._store()) as store,
            translated(store.engine, f"looking for prepared transactions in {shown(self.url)}"),
            _autocommit(store.engine) as connection,
        ):
            place = place_digest(*database.place(connection), store.destination)
            return frozenset(database.prepared(connection, place_prefix(place)))

    def end_left_over(self, job: str, left_over: frozenset[str], driver_id: str | None = None) -> None:
        """Fence, complete the recorded epoch, roll back the rest of these. Does no I/O if none of them is the job's."""
        earlier = frozenset(gid for gid in left_over if is_of_job(gid, job))
        if earlier:
            with closing(_EarlierCommitter(self._store(), self._database, job, self.lock_timeout_s, earlier)) as committer:
                committer.recover(driver_id)

    @property
    def records_all_epochs(self) -> bool:
        """Each transaction with rows has a handle."""
        return False

    @property
    def _database(self) -> TwoPhaseDatabase:
        return _DATABASES[product_of(self.url)]

    def _check_table(self, connection: Connection, table: Table) -> None:
        self._database.check(connection, table)


class SqlTransaction(RowTransaction):
    """A task's transaction."""

    def __init__(
        self, engine: Engine, connection: Connection, table: Table, writer: Writer, attempt: Attempt, gid: str
    ) -> None:
        super().__init__(engine, connection, table)
        self._writer, self._attempt, self._gid = writer, attempt, gid

    def abort(self) -> None:
        """End the session; what it has prepared stays."""
        super().abort()
        with suppress(self._engine.dialect.loaded_dbapi.Error):
            self._writer.release()

    def _put(self, fields: Sequence[Field], columns: Sequence[pa.Array]) -> None:
        self._writer.put(fields, columns)

    def _pre_commit(self) -> SqlHandle:
        self._writer.end_rows()
        self._refuse_after_decision()
        self._writer.prepare(self._attempt.epoch, self._attempt.job)
        return SqlHandle(self._gid, self._rows)

    def _refuse_after_decision(self) -> None:
        """Raise StateError if this write, which is not repeated, is committed or aborted: nothing is cleaned up afterwards."""
        job = self._attempt.job
        if is_one_off(job) and is_decided(self._connection, job, self._table.destination):
            raise StateError(
                f"the write {job} is committed or aborted already: what this attempt at task {self._attempt.task} has written "
                "too late is rolled back"
            )


class SqlCommitter(StoredListCommitter):
    """Ends prepared transactions by their names. A lock of the database keeps drivers of the same job apart."""

    def __init__(self, store: CommitStore, database: TwoPhaseDatabase, job: str, lock_timeout_s: float) -> None:
        super().__init__(store, job)
        self._database = database
        self._lock_timeout_s = lock_timeout_s

    def fence(self) -> CommitList[SqlHandle] | None:
        """Put this driver in the place of the previous one. Waits while that one cleans up.

        Raises RetriableError when it does so for longer than the lock timeout, StateError for a list that cannot be read.
        """
        self._store.create()
        with self._connected("taking over") as connection, self._locked(connection):
            return super().fence()

    def check(self, handles: Sequence[SqlHandle]) -> None:
        """Raises PeerError naming what is not prepared any more."""
        with self._connected("looking for prepared transactions") as connection:
            there = self._database.prepared(connection, self._prefix)
        gone = [handle for handle in handles if handle.gid not in there]
        if gone:
            raise PeerError(
                f"{_names(gone)} of job {self._job!r} were rolled back before their epoch was recorded: nothing is lost, and "
                "the epoch must be written again"
            )

    def end(self, handle: SqlHandle) -> Outcome:
        """Commit; what is not prepared any more was committed if its row is in `headrace_transactions`, else aborted.

        Raises RetriableError when another session has it for longer than the lock timeout, FencedError when another driver
        has taken over, who may have dropped that row.
        """
        with self._connected("committing") as connection:
            ended = self._end_surely(connection, handle.gid, commit=True)
            if ended is EndAnswer.DONE or self._store.was_committed(handle.gid):
                return Outcome.COMMITTED
        self.verify()
        return Outcome.ABORTED

    def copy(self, handles: Sequence[SqlHandle]) -> SqlHandle:
        """Raises DataLossError: the rows of a transaction that was rolled back are nowhere."""
        raise DataLossError(
            f"{sum(handle.rows for handle in handles)} rows of job {self._job!r} are lost: {_names(handles)} were prepared and "
            "on the durable list, and another process rolled them back. To continue without these rows, or once they are "
            "written by "
            f"hand, insert each name into {TRANSACTIONS.name} with the job and its epoch: it is then taken as committed"
        )

    def clean_up(self, keep: Collection[SqlHandle]) -> None:
        """Roll back what is prepared under the job's names. Raises FencedError instead if another driver has claimed it."""
        kept = {handle.gid for handle in keep}
        with self._connected("aborting what was left") as connection, self._locked(connection):
            self.verify()
            for gid in sorted(self._cleanable(connection) - kept):
                self._end_surely(connection, gid, commit=False)

    def verify(self) -> None:
        """Raise FencedError when another driver has claimed the job."""
        self._store.verify(self._job, self._fenced_driver())

    @property
    def lock_name(self) -> str:
        """Of the lock that keeps drivers of this job apart."""
        return self._prefix.removesuffix(".")

    def _cleanable(self, connection: Connection) -> Set[str]:
        return self._database.prepared(connection, self._prefix)

    @functools.cached_property
    def _prefix(self) -> str:
        with self._connected("asking for the database's name") as connection:
            return job_prefix(place_digest(*self._database.place(connection), self._store.destination), self._job)

    @contextmanager
    def _connected(self, doing: str) -> Iterator[Connection]:
        with translated(self._store.engine, f"{doing}, job {self._job!r}"), _autocommit(self._store.engine) as connection:
            yield connection

    def _locked(self, connection: Connection) -> AbstractContextManager[Any]:
        """Holds the job's lock: an older driver, late in its clean-up, could else abort what a newer one is about to commit."""
        return self._database.lock(connection, self.lock_name, self._lock_timeout_s)

    def _end_surely(self, connection: Connection, gid: str, *, commit: bool) -> EndAnswer:
        """DONE or GONE: wait for a session that has the transaction now."""
        busy, timeout_s = retry_if_result(lambda ended: ended is EndAnswer.BUSY), self._lock_timeout_s
        attempts = Retrying(retry=busy, stop=stop_after_delay(timeout_s), wait=wait_fixed(_POLL_S))
        try:
            return attempts(self._database.end, connection, gid, commit=commit)
        except RetryError as error:
            raise RetriableError(f"another session has had transaction {gid} for {timeout_s:g} s: end that session") from error


class _WriterCommitter(SqlCommitter, GroupedEnd[SqlHandle]):
    """Of a writer that has its own job, on the lists of another job: who is the driver of that one may end and clean up."""

    def __init__(
        self, store: CommitStore, database: TwoPhaseDatabase, writer: str, lock_timeout_s: float, driver: SqlCommitter
    ) -> None:
        """`driver` has fenced before anything is asked of this."""
        super().__init__(store, database, writer, lock_timeout_s)
        self._verified_by = driver

    def end_all(self, handles: Sequence[SqlHandle]) -> Sequence[Outcome]:
        """Drops what is kept of the epochs before these: they are on no list any more, and none is recorded for a writer."""
        outcomes = [self.end(handle) for handle in handles]
        self._drop_before(handles)
        return outcomes

    def clean_up(self, keep: Collection[SqlHandle]) -> None:
        """Roll back what the dead writer has prepared, and drop what is kept of it, but for these."""
        super().clean_up(keep)
        self._drop_before(keep)

    def verify(self) -> None:
        """Raise FencedError when another driver has claimed the job the job that the lists are of."""
        self._verified_by.verify()

    @property
    def lock_name(self) -> str:
        return self._verified_by.lock_name

    def _drop_before(self, listed: Collection[SqlHandle]) -> None:
        first = min((epoch_of(handle.gid) for handle in listed), default=_NO_EPOCH)
        self._store.drop(self._job, first, self._prefix)


class _EarlierCommitter(SqlCommitter):
    """A recovery in a task: it ends what was prepared before its epoch started, and nothing of its siblings.

    It fences before it cleans up, as every recovery does. So a driver that still runs can no longer record what is rolled back
    here; and what that one has recorded before is committed here.
    """

    def __init__(
        self, store: CommitStore, database: TwoPhaseDatabase, job: str, lock_timeout_s: float, earlier: frozenset[str]
    ) -> None:
        super().__init__(store, database, job, lock_timeout_s)
        self._earlier = earlier

    def recover(self, driver_id: str | None) -> None:
        """Once for all tasks: the others wait, and find nothing left. Raises SupersededError where it is another driver's."""
        with self._connected("waiting for another task's recovery") as connection:
            name = f"headrace.recovery.{place_digest(self._prefix)}"
            with self._database.lock(connection, name, self._lock_timeout_s):
                if self._cleanable(connection):
                    JobCommitter(self._job, self, driver_id).recover()

    def _cleanable(self, connection: Connection) -> Set[str]:
        return self._earlier.intersection(super()._cleanable(connection))


@contextmanager
def _autocommit(engine: Engine) -> Iterator[Connection]:
    """A connection in which each statement is a transaction; after an error it is closed, and so gives back its locks."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        try:
            yield connection
        except BaseException:
            connection.invalidate()
            raise


def _names(handles: Sequence[SqlHandle]) -> str:
    named = ", ".join(f"{handle.gid} ({handle.rows} rows)" for handle in handles[:_NAMED])
    more = f" and {len(handles) - _NAMED} more" if len(handles) > _NAMED else ""
    return f"the transactions {named}{more}"
