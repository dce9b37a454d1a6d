"""What we keep in the database that is written to: every job's durable list, and which transactions were committed.

`headrace_commits` has a row for each job: its driver, its list, the epoch of that. Who writes there says which driver it is; a
newer driver has put itself in its place, so an older one finds no row of its own.

`headrace_transactions` has a row for each committed transaction of a job's last epoch. The row is part of the transaction, so
it is seen when, and only when, that was committed: prepared transactions leave no other trace once they have ended.

Both are made on first use, by whoever comes first, in the schema where the user's tables are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from headrace.connectors.sink import CommitList, CommitListSerializer
from headrace.connectors.sql.errors import translated
from headrace.connectors.sql.handles import SqlHandle, SqlHandleSerializer
from headrace.enumerator.errors import FencedError

__all__ = ["COMMITS", "TRANSACTIONS", "CommitStore", "create_tables"]

_METADATA = sa.MetaData()
_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}


def _name(length: int) -> sa.types.TypeEngine[str]:
    """Text that is compared letter by letter: MariaDB takes `q` and `Q` for the same unless told otherwise."""
    return sa.String(length).with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql")


COMMITS = sa.Table(
    "headrace_commits",
    _METADATA,
    sa.Column("job", _name(100), primary_key=True),
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


class CommitStore:
    """Reads and writes our tables, on the driver. Every method is a transaction of its own. Used by one thread."""

    def __init__(self, engine: Engine) -> None:
        """Takes the engine over; contacts nobody yet."""
        self._engine = engine
        self._lists = CommitListSerializer(SqlHandleSerializer())

    def create(self) -> None:
        """Make our tables, where they are not there."""
        with translated(self._engine, "creating the tables of headrace"), self._engine.connect() as connection:
            create_tables(connection)

    def take_over(self, job: str, driver: str) -> CommitList[SqlHandle] | None:
        """Make this the job's driver, and read its list."""
        with translated(self._engine, f"taking over job {job!r}"):
            data = self._take_over(job, driver)
            # Another driver may have made the first row at the same moment: then there is one to take over.
            data = self._take_over(job, driver) if data is _RACED else data
        if not isinstance(data, str):
            return None
        return self._lists.deserialize(data.encode(), f"{COMMITS.name}, job {job!r}")

    def _take_over(self, job: str, driver: str) -> object:
        # An update first: it locks the row, so the list read after it is the last one of the driver before.
        mine = sa.update(COMMITS).where(COMMITS.c.job == job)
        try:
            with self._engine.begin() as connection:
                if not connection.execute(mine.values(driver=driver, generation=COMMITS.c.generation + 1)).rowcount:
                    connection.execute(sa.insert(COMMITS).values(job=job, driver=driver, generation=1))
                return connection.execute(sa.select(COMMITS.c.commit_list).where(COMMITS.c.job == job)).scalar_one()
        except IntegrityError:
            return _RACED

    def record(self, job: str, driver: str, commits: CommitList[SqlHandle]) -> None:
        """Make this the job's list, and drop what is kept of epochs before it.

        Raises FencedError if there is a newer driver.
        """
        text = self._lists.serialize(commits).decode()
        mine = sa.update(COMMITS).where(COMMITS.c.job == job, COMMITS.c.driver == driver)
        older = sa.select(TRANSACTIONS.c.gid).where(TRANSACTIONS.c.job == job, TRANSACTIONS.c.epoch < commits.epoch)
        with translated(self._engine, f"recording epoch {commits.epoch} of job {job!r}"), self._engine.begin() as connection:
            if not connection.execute(mine.values(epoch=commits.epoch, commit_list=text)).rowcount:
                raise _fenced(job)
            _delete(connection, older)

    def verify(self, job: str, driver: str) -> None:
        """Raise FencedError if this is not the job's driver any more."""
        mine = sa.select(COMMITS.c.job).where(COMMITS.c.job == job, COMMITS.c.driver == driver)
        with translated(self._engine, f"looking who drives job {job!r}"), self._engine.begin() as connection:
            if connection.execute(mine).first() is None:
                raise _fenced(job)

    def was_committed(self, gid: str) -> bool:
        """Whether a transaction that has ended was committed."""
        asked = sa.select(TRANSACTIONS.c.gid).where(TRANSACTIONS.c.gid == gid)
        with translated(self._engine, f"looking what became of {gid}"), self._engine.begin() as connection:
            return connection.execute(asked).first() is not None

    def epochs(self) -> Mapping[str, int]:
        """Job to the last epoch on its list."""
        asked = sa.select(COMMITS.c.job, COMMITS.c.epoch).where(COMMITS.c.epoch.is_not(None))
        with translated(self._engine, "reading which epochs are recorded"), self._engine.begin() as connection:
            return {row.job: row.epoch for row in connection.execute(asked)}

    def forget(self, job: str) -> None:
        """Drop everything kept of the job."""
        of_job = sa.select(TRANSACTIONS.c.gid).where(TRANSACTIONS.c.job == job)
        with translated(self._engine, f"forgetting job {job!r}"), self._engine.begin() as connection:
            connection.execute(sa.delete(COMMITS).where(COMMITS.c.job == job))
            _delete(connection, of_job)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()


_RACED = object()


def _delete(connection: Connection, gids: sa.Select[tuple[str]]) -> None:
    """Delete these rows one by one: MariaDB would lock each row that one statement looks at, and wait for prepared ones."""
    found = [{"ended": gid} for (gid,) in connection.execute(gids)]
    if found:
        connection.execute(sa.delete(TRANSACTIONS).where(TRANSACTIONS.c.gid == sa.bindparam("ended")), found)


def _fenced(job: str) -> FencedError:
    return FencedError(f"another driver has taken over job {job!r}, or it was forgotten: this one must stop")
