"""What the tests of SQL sinks need: their own table, its rows as the database has them, and what is still prepared."""

import itertools
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.sink import Attempt, Committer
from headrace.connectors.sql.handles import SqlHandle
from headrace.connectors.sql.sink import SqlSink
from headrace.connectors.sql.url import driver_engine

_numbers = itertools.count()


class SqlRig:
    """One test's table and jobs in a database that others use too. Asks by connections of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.table = f"t{next(_numbers)}_{uuid.uuid4().hex[:6]}"
        # The address as the sinks take it, and nothing else of theirs that matters here.
        self._engine = sa.create_engine(driver_engine(url, 5).url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        self.is_postgresql = self._engine.dialect.name == "postgresql"
        self.is_sqlite = self._engine.dialect.name == "sqlite"

    def job(self) -> str:
        return f"q{next(_numbers)}-{uuid.uuid4().hex[:6]}"

    def sink(self, **options: Any) -> SqlSink:
        return SqlSink(self.url, self.table, **{"lock_timeout_s": 10.0, **options})

    def create(self, columns: str = "id BIGINT, name VARCHAR(100)", suffix: str = "") -> None:
        self.execute(f"CREATE TABLE {self.table} ({columns}) {suffix}")

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with self._engine.connect() as connection:
            result = connection.exec_driver_sql(statement)
            return [tuple(row) for row in result] if result.returns_rows else []

    def rows(self, columns: str = "*", order: str = "1") -> list[tuple[Any, ...]]:
        return self.execute(f"SELECT {columns} FROM {self.table} ORDER BY {order}")

    def ids(self) -> list[int]:
        return [row[0] for row in self.rows("id")]

    def prepared(self) -> set[str]:
        """The names of all prepared transactions of the server."""
        if self.is_postgresql:
            return {name for (name,) in self.execute("SELECT gid FROM pg_prepared_xacts")}
        found = self.execute("XA RECOVER")  # those of other applications too, whose names are any bytes
        ours = [(length, data.decode(errors="replace")) for _, length, _, data in found if data.startswith(b"headrace")]
        return {f"{data[:length]}.{data[length:]}" for length, data in ours}

    def roll_back(self, gid: str) -> None:
        if self.is_postgresql:
            self.execute(f"ROLLBACK PREPARED '{gid}'")
        else:
            job, *attempt = gid.rsplit(".", 4)
            self.execute(f"XA ROLLBACK '{job}','{'.'.join(attempt)}'")

    def drop(self) -> None:
        for gid in self.prepared():
            self.roll_back(gid)
        self.execute(f"DROP TABLE IF EXISTS {self.table}")


def batch(ids: Sequence[int], name: str = "n") -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "name": pa.array([f"{name}{number}" for number in ids])})


def prepare(sink: Any, attempt: Attempt, ids: Sequence[int]) -> SqlHandle:
    with sink.begin(attempt) as transaction:
        transaction.write(batch(ids))
        handle = transaction.prepare()
    assert handle is not None
    return handle


def write_epoch(sink: SqlSink, job: str, epoch: int, tasks: Sequence[Sequence[int]]) -> tuple[SqlHandle, ...]:
    return tuple(prepare(sink, Attempt(job, epoch, task, 0), ids) for task, ids in enumerate(tasks))


class Crash(Exception):  # noqa: N818 - not an error: the test kills the driver
    """The driver dies here."""


def _counted(method: str) -> Any:
    def call(self: "CrashingCommitter", *arguments: Any) -> Any:
        self.calls.append(method)
        dies = self._left == 0
        self._left -= 1
        if dies and self._when == "before":
            raise Crash
        result = getattr(self._committer, method)(*arguments)
        if dies:
            raise Crash
        return result

    return call


class CrashingCommitter(Committer[SqlHandle]):
    """Dies at the n-th call, before or after it has been carried out."""

    def __init__(self, committer: Committer[SqlHandle], number: int, *, when: str) -> None:
        self._committer = committer
        self._left = number
        self._when = when
        self.calls: list[str] = []

    fence, check, record, end = map(_counted, ("fence", "check", "record", "end"))
    copy, clean_up, forget = map(_counted, ("copy", "clean_up", "forget"))

    def close(self) -> None:
        self._committer.close()


def run_epoch(sink: SqlSink, job: str, epoch: int, tasks: Sequence[Sequence[int]]) -> None:
    """What a driver that starts again does: recover, and write the epoch unless it is recorded."""
    driver = JobCommitter(job, sink.committer(job))
    try:
        driver.recover()
        is_recorded = sink.recorded_epochs().get(job, -1) >= epoch
        driver.commit(epoch, () if is_recorded else write_epoch(sink, job, epoch, tasks))
    finally:
        driver.close()
