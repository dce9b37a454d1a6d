"""What we keep in the database that is written to: every job's durable lists, and which transactions were committed.

`headrace_commits` has a row for each job and each table that it writes to, under the key `<job>.<digest of the table>`: its
driver, its list, the epoch of that. Who writes there states which driver it is; a newer driver has put itself in its place, so
an older one finds no row of its own.

`headrace_transactions` has a row for each committed transaction of a job's last epoch. The row is part of the transaction, so
it is seen when, and only when, that was committed: prepared transactions leave no other trace once they have ended.

The row of a write without a name (`is_one_off`) stays for an hour after the write is done, so that an attempt that comes late
sees it: nothing would ever roll back what it prepared then.

Both are made on first use, by whichever process needs them first, in the schema where the user's tables are made.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.jobs import is_one_off
from headrace.connectors.base.sink import CommitList, RecordedEpoch
from headrace.connectors.sql.errors import translated
from headrace.connectors.sql.handles import SqlHandle, SqlHandleSerializer, job_of_key, list_key
from headrace.connectors.sql.table import destination_of
from headrace.connectors.sql.url import Product
from headrace.enumerator.errors import FencedError, StateError

log = logging.getLogger(__name__)

_METADATA = sa.MetaData()
_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}


def _name(length: int) -> sa.types.TypeEngine[str]:
    """Text that is compared letter by letter: MariaDB takes `q` and `Q` for the same unless reported otherwise."""
    return sa.String(length).with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql")


_FORGOTTEN = "forgotten"
"""The driver in the row of a write without a name that is done: an attempt that comes late has to see that it was there. Such a
row has the time, in seconds, for its generation, and goes with a later one."""
_KEPT_S = 3600

_LONGEST_KEY = 120

COMMITS = sa.Table(
    "headrace_commits",
    _METADATA,
    sa.Column("job", _name(_LONGEST_KEY), primary_key=True),  # and the table: `list_key`
    sa.Column("generation", sa.BigInteger, nullable=False),  # how many drivers there were: for people who look
    sa.Column("driver", _name(32), nullable=False),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("commit_list", sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql")),
    **_OPTIONS,
)
TRANSACTIONS = sa.Table(
    "headrace_transactions",
    _METADATA,
    sa.Column("gid", _name(150), primary_key=True),
    sa.Column("job", _name(100), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    **_OPTIONS,
)


def create_tables(connection: Connection) -> None:
    """Make those of our tables that are not there. Ends the connection's transaction."""
    for table in _METADATA.sorted_tables:
        if sa.inspect(connection).has_table(table.name):
            continue
        connection.commit()
        try:
            table.create(connection)
            connection.commit()
        except DBAPIError:
            connection.rollback()
            if not sa.inspect(connection).has_table(table.name):  # or another process made it at the same moment
                raise
    connection.commit()


def is_decided(connection: Connection, job: str, destination: str) -> bool:
    """Whether a driver of this write has come: it is committed or aborted, then or soon."""
    asked = sa.select(COMMITS.c.job).where(COMMITS.c.job == list_key(job, destination))
    return connection.execute(asked).first() is not None


class CommitStore:
    """Reads and writes our tables for one table that is written to, on the driver.

    Every method is its own transaction. Used by one thread.
    """

    def __init__(self, engine: Engine, table: str, product: Product) -> None:
        """Takes the engine over; does no I/O. `table` as it is given to a sink."""
        self.engine = engine
        self._table, self._product = table, product
        self._lists = CommitListSerializer(SqlHandleSerializer())
        self._destination: str | None = None
        self._epoch: int | None = None  # that this driver has found or recorded last

    @property
    def destination(self) -> str:
        """The full name of the table that the lists are bound to. Raises UsageError when there is none."""
        if self._destination is None:
            with translated(self.engine, f"looking for table {self._table!r}"), self.engine.connect() as connection:
                self._destination = destination_of(connection, self._table, self._product)
        return self._destination

    def create(self) -> None:
        with translated(self.engine, "creating the tables of headrace"), self.engine.connect() as connection:
            create_tables(connection)

    def take_over(self, job: str, driver: str) -> CommitList[SqlHandle] | None:
        """Make this the job's driver, and read its list. Raises StateError for a list that cannot be read."""
        with translated(self.engine, f"taking over job {job!r}"):
            data = self._take_over(job, driver)
            # Another driver may have made the first row at the same moment: then there is one to take over.
            data = self._take_over(job, driver) if data is _RACED else data
        self._epoch = None
        if not isinstance(data, str):
            return None
        where = f"{COMMITS.name}, job {self._key(job)!r}"
        commits = self._lists.deserialize(data.encode(), where)
        if commits.destination != self.destination:
            raise StateError(f"{where}: this is a list for {commits.destination}, not for {self.destination}")
        self._epoch = commits.epoch
        return replace(commits, destination=None)  # `record` binds it again

    def _take_over(self, job: str, driver: str) -> object:
        # An update first: it locks the row, so the list read after it is the last one of the driver before.
        key = self._key(job)
        ours = {"driver": driver, "generation": COMMITS.c.generation + 1}
        try:
            with self.engine.begin() as connection:
                if not connection.execute(sa.update(COMMITS).where(COMMITS.c.job == key).values(ours)).rowcount:
                    connection.execute(sa.insert(COMMITS).values(job=key, driver=driver, generation=1))
                return connection.execute(sa.select(COMMITS.c.commit_list).where(COMMITS.c.job == key)).scalar_one()
        except IntegrityError:
            return _RACED

    def record(self, job: str, driver: str, commits: CommitList[SqlHandle], prefix: str | None) -> None:
        """Make this the job's list, and drop what is kept of its transactions (None: it has none) of epochs before it.

        Raises FencedError if there is a newer driver, or an older epoch: then the rows between are not there, either.
        """
        text = self._lists.serialize(replace(commits, destination=self.destination)).decode()
        mine = sa.update(COMMITS).where(COMMITS.c.job == self._key(job), COMMITS.c.driver == driver)
        mine = mine if self._epoch is None else mine.where(COMMITS.c.epoch >= self._epoch)
        what = "whose it is" if commits.epoch is None else f"epoch {commits.epoch}"
        with translated(self.engine, f"recording {what}, job {job!r}"), self.engine.begin() as connection:
            if not connection.execute(mine.values(epoch=commits.epoch, commit_list=text)).rowcount:
                raise _fenced(job)
            if commits.epoch is not None:
                self._drop(connection, job, prefix, commits.epoch)
        self._epoch = commits.epoch

    def drop(self, job: str, epoch: int, prefix: str) -> None:
        """Drop what is kept of the job's transactions of epochs before this one: their outcome is not asked for any more."""
        with translated(self.engine, f"dropping what is kept of job {job!r}"), self.engine.begin() as connection:
            self._drop(connection, job, prefix, epoch)

    def verify(self, job: str, driver: str) -> None:
        """Raise FencedError if this is not the job's driver any more."""
        mine = sa.select(COMMITS.c.job).where(COMMITS.c.job == self._key(job), COMMITS.c.driver == driver)
        with translated(self.engine, f"looking who drives job {job!r}"), self.engine.begin() as connection:
            if connection.execute(mine).first() is None:
                raise _fenced(job)

    def was_committed(self, gid: str) -> bool:
        asked = sa.select(TRANSACTIONS.c.gid).where(TRANSACTIONS.c.gid == gid)
        with translated(self.engine, f"looking what became of {gid}"), self.engine.begin() as connection:
            return connection.execute(asked).first() is not None

    def recorded(self) -> Mapping[str, RecordedEpoch]:
        """Job to the last epoch on its list. Of a list that cannot be read the epoch alone is known."""
        key = COMMITS.c.job
        is_own = key.endswith(list_key("", self.destination), autoescape=True)
        asked = sa.select(key, COMMITS.c.epoch, COMMITS.c.commit_list).where(COMMITS.c.epoch.is_not(None), is_own)
        with translated(self.engine, "reading which epochs are recorded"), self.engine.begin() as connection:
            rows = connection.execute(asked).all()
        return {job_of_key(row.job): self._recorded(row.job, row.epoch, row.commit_list) for row in rows}

    def _recorded(self, key: str, epoch: int, text: str) -> RecordedEpoch:
        try:
            commits = self._lists.deserialize(text.encode(), f"{COMMITS.name}, job {key!r}")
        except StateError:  # raised again for the driver that claims the job
            return RecordedEpoch(epoch)
        return RecordedEpoch(epoch, content=commits.content, claim=commits.claim)

    def forget(self, job: str, prefix: str | None) -> None:
        """Drop the job's list for this table, and what is kept of its transactions."""
        of_table = COMMITS.c.job == self._key(job)
        now = int(time.time())
        with translated(self.engine, f"forgetting job {job!r}"), self.engine.begin() as connection:
            if is_one_off(job):
                gone = {"driver": _FORGOTTEN, "generation": now, "epoch": None, "commit_list": None}
                connection.execute(sa.update(COMMITS).where(of_table).values(gone))
                late = sa.and_(COMMITS.c.driver == _FORGOTTEN, COMMITS.c.generation < now - _KEPT_S)
                connection.execute(sa.delete(COMMITS).where(late))
            else:
                connection.execute(sa.delete(COMMITS).where(of_table))
            self._drop(connection, job, prefix)

    def close(self) -> None:
        self.engine.dispose()

    def _key(self, job: str) -> str:
        return list_key(job, self.destination)

    def _drop(self, connection: Connection, job: str, prefix: str | None, before: int | None = None) -> None:
        """Delete these rows one by one: MariaDB would lock each row that one statement looks at, and wait for prepared ones."""
        if prefix is None:
            return
        asked = sa.select(TRANSACTIONS.c.gid).where(TRANSACTIONS.c.job == job)
        found = connection.execute(asked if before is None else asked.where(TRANSACTIONS.c.epoch < before)).scalars().all()
        ours = [{"ended": gid} for gid in found if gid.startswith(prefix)]
        if ours:
            connection.execute(sa.delete(TRANSACTIONS).where(TRANSACTIONS.c.gid == sa.bindparam("ended")), ours)


_RACED = object()


def _fenced(job: str) -> FencedError:
    return FencedError(
        f"another driver has claimed job {job!r}, or it was forgotten, or the database was restored from an older backup: this "
        "one must stop"
    )
