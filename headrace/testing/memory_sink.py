"""A transactional system in memory and a two-phase-commit sink into it: for tests of runners, and of commit and recovery.

    log = MemoryTransactionLog()
    committer = JobCommitter("job", MemorySink(log).committer("job"))
    with MemorySink(log).begin(Attempt("job", epoch=0, task=0, number=0)) as transaction:
        transaction.write(batch)
        handle = transaction.prepare()
    committer.commit(0, (handle,))
    log.rows()

It is as unkind as a real one may be: a transaction can expire at any moment (`MemoryTransactionLog.expire`), also a
prepared one; beginning again under a name aborts what had it; cleaning up is not fenced, so a driver that was replaced can
abort its successor's transactions; and copies have one name, so two drivers that copy disturb each other. The log exists in
this process; a pickled sink finds it again in this process only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa

from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.jobs import check_job
from headrace.connectors.base.sink import (
    Attempt,
    CommitList,
    Committer,
    HandleSerializer,
    Outcome,
    RecordedEpoch,
    Transaction,
    TwoPhaseSink,
)
from headrace.enumerator.errors import DataLossError, FencedError, PeerError, UsageError

_numbers = count()
_logs: WeakValueDictionary[int, MemoryTransactionLog] = WeakValueDictionary()


class State(Enum):
    """Where a transaction is."""

    OPEN = auto()
    PREPARED = auto()
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(slots=True)
class LoggedTransaction:
    """One transaction, as the log keeps it. `name`: what may have one unended transaction at a time."""

    number: int
    job: str
    name: str
    state: State = State.OPEN
    rows: list[Any] = field(default_factory=list)

    @property
    def unended(self) -> bool:
        return self.state in (State.OPEN, State.PREPARED)


def _find_log(number: int) -> MemoryTransactionLog:
    log = _logs.get(number)
    if log is None:
        raise UsageError("this MemoryTransactionLog exists in another process, or no longer")
    return log


class MemoryTransactionLog:
    """Transactions with their rows, and each job's durable list with its fencing generation. Not thread-safe."""

    def __init__(self) -> None:
        self._number = next(_numbers)
        self.entries: list[LoggedTransaction] = []
        self._unended: list[LoggedTransaction] = []  # and some that have ended since it was asked for
        self._lists: dict[str, bytes] = {}
        self._generations: dict[str, int] = {}
        _logs[self._number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by reference: two sinks into one log stay in one log."""
        return _find_log, (self._number,)

    def changing(self) -> None:
        """Called before every single change: a test that overrides it can raise here, as if the caller's process died, or have
        another process change something first.
        """

    def begin(self, job: str, name: str) -> int:
        """The number of a new transaction; aborts what has this name and is not ended."""
        for entry in self.unended(job):
            if entry.name == name:
                self.abort(entry.number)
        self.changing()
        for late in self.unended(job):
            if late.name == name:
                late.state = State.ABORTED
        entry = LoggedTransaction(len(self.entries), job, name)
        self.entries.append(entry)
        self._unended.append(entry)
        return entry.number

    def append(self, number: int, rows: Sequence[Any]) -> None:
        """Add rows to an open transaction. Raises PeerError for one that is not open (any more)."""
        self.changing()
        self._expect(number, State.OPEN).rows.extend(rows)

    def prepare(self, number: int) -> None:
        """From here on it can only be ended. Raises PeerError for one that is not open (any more)."""
        self.changing()
        self._expect(number, State.OPEN).state = State.PREPARED

    def commit(self, number: int) -> Outcome:
        """Show its rows if it is prepared; what became of it. Raises DataLossError for one never prepared here."""
        entry = self.entries[number] if 0 <= number < len(self.entries) else None
        if entry is None or entry.state is State.OPEN:
            raise DataLossError(f"transaction {number} was never prepared in this log: what became of it cannot be known")
        if entry.state is State.PREPARED:
            self.changing()
        if entry.state is State.PREPARED:  # still
            entry.state = State.COMMITTED
        return Outcome.COMMITTED if entry.state is State.COMMITTED else Outcome.ABORTED

    def abort(self, number: int) -> None:
        """End it without its rows, unless it has ended."""
        entry = self.entries[number]
        if entry.unended:
            self.changing()
        if entry.unended:  # still
            entry.state = State.ABORTED

    def expire(self, number: int) -> None:
        """Its timeout has passed: aborted, unless it has ended."""
        entry = self.entries[number]
        if entry.unended:
            entry.state = State.ABORTED

    def unended(self, job: str) -> list[LoggedTransaction]:
        """The job's open and prepared transactions, oldest first."""
        self._unended = [entry for entry in self._unended if entry.unended]
        return [entry for entry in self._unended if entry.job == job]

    def rows(self) -> list[Any]:
        """What a reader sees: the rows of committed transactions, as dictionaries."""
        return [row for entry in self.entries if entry.state is State.COMMITTED for row in entry.rows]

    def fence(self, job: str) -> int:
        """The job's next generation: `store` of every older one fails from here on."""
        self.changing()
        self._generations[job] = self._generations.get(job, 0) + 1
        return self._generations[job]

    def store(self, job: str, generation: int, data: bytes) -> None:
        """Replace the job's durable list. Raises FencedError for an older generation."""
        self.changing()
        if generation != self._generations.get(job):
            raise FencedError(f"job {job!r}: another driver claimed it (generation {self._generations.get(job)})")
        self._lists[job] = data

    def stored(self) -> Mapping[str, bytes]:
        """Each job's durable list."""
        return self._lists

    def remove(self, job: str) -> None:
        """Forget the job's durable list."""
        self.changing()
        self._lists.pop(job, None)

    def _expect(self, number: int, state: State) -> LoggedTransaction:
        entry = self.entries[number]
        if entry.state is not state:
            raise PeerError(f"transaction {number} ({entry.name}) is {entry.state.name}, not {state.name}")
        return entry


@dataclass(frozen=True, slots=True)
class MemoryHandle:
    """A prepared transaction of a MemoryTransactionLog."""

    number: int


class MemoryHandleSerializer(HandleSerializer[MemoryHandle]):
    """Version 1: {"number": 3}."""

    version = 1

    def serialize(self, handle: MemoryHandle) -> dict[str, int]:
        return {"number": handle.number}

    def deserialize(self, version: int, value: Any) -> MemoryHandle:  # noqa: ANN401 - any JSON value
        if version != 1:
            raise ValueError(f"no MemoryHandle was ever written in version {version}")
        return MemoryHandle(int(value["number"]))


_LISTS = CommitListSerializer(MemoryHandleSerializer())


@lru_cache(maxsize=256)
def _list_in(data: bytes, job: str) -> CommitList[MemoryHandle]:
    """A durable list, which is looked at many times until the next."""
    return _LISTS.deserialize(data, f"the list of job {job!r}")


class MemoryTransaction(Transaction[MemoryHandle]):
    """One attempt's rows. Started in the log at once, also when no row comes."""

    def __init__(self, log: MemoryTransactionLog, attempt: Attempt) -> None:
        """Aborts what an earlier attempt of the same name still open."""
        self._log = log
        self._rows = 0
        self._number = log.begin(attempt.job, f"{attempt.epoch}.{attempt.task}.{attempt.number}")

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises PeerError when the transaction has expired."""
        self._log.append(self._number, batch.to_pylist())
        self._rows += batch.num_rows

    def prepare(self) -> MemoryHandle | None:
        """The handle; None, and the transaction aborted, when no row was written. Raises PeerError when it has expired."""
        if not self._rows:
            self._log.abort(self._number)
            return None
        self._log.prepare(self._number)
        return MemoryHandle(self._number)

    def abort(self) -> None:
        if self._log.entries[self._number].state is State.OPEN:
            self._log.abort(self._number)


class MemoryCommitter(Committer[MemoryHandle]):
    """Ends a job's transactions."""

    def __init__(self, log: MemoryTransactionLog, job: str) -> None:
        self._log = log
        self._job = job
        self._generation = 0

    def fence(self) -> CommitList[MemoryHandle] | None:
        self._generation = self._log.fence(self._job)
        data = self._log.stored().get(self._job)
        return None if data is None else _list_in(data, self._job)

    def check(self, handles: Sequence[MemoryHandle]) -> None:
        """Raise PeerError naming what is not prepared."""
        gone = [handle.number for handle in handles if self._log.entries[handle.number].state is not State.PREPARED]
        if gone:
            raise PeerError(f"the transactions {gone} of job {self._job!r} are not prepared any more; write the epoch again")

    def record(self, commits: CommitList[MemoryHandle]) -> None:
        """Replace the list. Raises FencedError when there is a newer generation."""
        self._log.store(self._job, self._generation, _LISTS.serialize(commits))

    def end(self, handle: MemoryHandle) -> Outcome:
        return self._log.commit(handle.number)

    def copy(self, handles: Sequence[MemoryHandle]) -> MemoryHandle:
        """Their rows in a new prepared transaction, which has the name of every copy of this job."""
        number = self._log.begin(self._job, "copy")
        for handle in handles:
            self._log.append(number, self._log.entries[handle.number].rows)
        self._log.prepare(number)
        return MemoryHandle(number)

    def clean_up(self, keep: Collection[MemoryHandle]) -> None:
        kept = {handle.number for handle in keep}
        for entry in self._log.unended(self._job):
            if entry.number not in kept:
                self._log.abort(entry.number)

    def forget(self) -> None:
        self._log.remove(self._job)

    def close(self) -> None:
        """There is no connection."""


@dataclass(frozen=True)
class MemorySink(TwoPhaseSink[MemoryHandle]):
    """A two-phase-commit sink into a MemoryTransactionLog."""

    log: MemoryTransactionLog

    @property
    def handles(self) -> MemoryHandleSerializer:
        """JSON objects with a number."""
        return MemoryHandleSerializer()

    def begin(self, attempt: Attempt) -> MemoryTransaction:
        """A new transaction; what an earlier attempt of the same name still open is aborted."""
        check_job(attempt.job)
        return MemoryTransaction(self.log, attempt)

    def committer(self, job: str) -> MemoryCommitter:
        """The one that ends this job's transactions."""
        return MemoryCommitter(self.log, check_job(job))

    def recorded(self) -> dict[str, RecordedEpoch]:
        """From the durable lists, with what each epoch was made from, and who owns the job."""
        found = {job: _list_in(data, job) for job, data in self.log.stored().items()}
        return {
            job: RecordedEpoch(commits.epoch, content=commits.content, claim=commits.claim)
            for job, commits in found.items()
            if commits.epoch is not None
        }
