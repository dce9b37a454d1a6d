"""The contract of a two-phase-commit sink: what a connector implements, and what a runner calls where.

One *job* (a streaming query, one batch write) writes *epochs*, numbered, each in any number of tasks and attempts:

- In a task: `TwoPhaseSink.begin` gives a `Transaction`; its `write` takes Arrow batches, its `prepare` (the pre-commit) returns
  a *handle* once everything is acknowledged. A task without rows starts nothing and has no handle.
- On the driver: a `Committer` ends what the handles name. First an epoch's handles are recorded durably, as its *committables*
  (`Committer.record`), only then is any of them committed. Those that a restart finds recorded are committed, or copied if
  they were aborted; every other transaction is aborted. `headrace.connectors.base.commit` decides the order, for all sinks.

Handles outlive the process that wrote them: they are serialized with a version, and any process may end them. Every method
of `Committer` may be called again after a crash in the middle of it. Modelled on Flink's two-phase-commit sinks (FLIP-143,
FLIP-191), where the framework's checkpoint records the committables.

What only some sinks can do, such as to commit an epoch in one step, is in `headrace.connectors.base.capabilities`. A sink
without a second phase is an `ImmediateSink` (`headrace.connectors.base.immediate`). The contract of sources is
`headrace.enumerator.source`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from headrace.enumerator.errors import PeerError

HandleT = TypeVar("HandleT")

_NUMBERED = "number:"


class Outcome(Enum):
    """How a transaction has ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"  # by its timeout, or by another process; nothing of it will ever be visible


class PreparedGoneError(PeerError):
    """What a transaction has prepared is there no more: only writing its rows again helps."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Who writes: one attempt at one task of one epoch of a job. No two running attempts are equal.

    `job` is made of letters, digits, `-` and `_`, at most 100. The numbers are from 0 and below 2 ** 63: engines count in 64
    bits, or draw one. `retry` is for sinks whose names for transactions are to stay few: two running attempts may have the
    same (engines count from 0 again when they repeat a stage), so such a sink takes none that is in use.
    """

    job: str
    epoch: int
    task: int
    number: int
    retry: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class JobClaim:
    """Whose a job is: a driver's driver id, a name that no other driver has. `number`: one more than the claim's before.

    `driver_id` is None once that driver has ended and given the job back. Where only a number can be kept, it is the
    `numbered_content` of the name.
    """

    number: int
    driver_id: str | None

    def is_of(self, driver_id: str) -> bool:
        """Whether this driver has made it."""
        return self.driver_id in (driver_id, numbered_content(content_number(driver_id)))


@dataclass(frozen=True, slots=True)
class CommitList(Generic[HandleT]):
    """An epoch's committables. `completed`: all of them are committed, and `handles` names them no more.

    `epoch` is None on the list of a job that was claimed, and has recorded no epoch yet: it is completed then.
    `destination`: what the list is bound to, where lists of several destinations lie in one place; else None.
    `targets`: what the epoch was written to where rows name it themselves (Kafka: topics), sorted; None if that is not known.
    `content`: what the epoch was made from (a digest of its plan), the same in every replay; None if that
    is not known. An epoch of the same number with another content is of an older copy of the checkpoint. Of a completed epoch a
    sink may keep its `content_number` alone, as `numbered_content` has it. Behind `ENDS_BEHIND` is how far the epoch has read,
    if all of that was known when it was recorded.
    `claim`: who owns the job; None for one that no supervised driver has claimed. It goes from list to list.
    """

    epoch: int | None
    handles: tuple[HandleT, ...]
    completed: bool = False
    destination: str | None = None
    targets: tuple[str, ...] | None = None
    content: str | None = None
    claim: JobClaim | None = None


@dataclass(frozen=True, slots=True)
class RecordedEpoch:
    """A job's last recorded epoch, its targets, its content, and who owns the job, as in `CommitList`."""

    epoch: int
    targets: tuple[str, ...] | None = None
    content: str | None = None
    claim: JobClaim | None = None


class HandleSerializer(ABC, Generic[HandleT]):
    """A handle's versioned form. `version` is the newest; every released version stays readable."""

    version: int

    @abstractmethod
    def serialize(self, handle: HandleT) -> Any:  # noqa: ANN401 - any JSON value
        """A value that JSON can hold."""

    @abstractmethod
    def deserialize(self, version: int, value: Any) -> HandleT:  # noqa: ANN401 - any JSON value
        """What `serialize` of `version` (at most the newest) was given. Raises KeyError, TypeError or ValueError otherwise."""


class Transaction(ABC, Generic[HandleT]):
    """One attempt's transaction, in the task's process. Used by one thread: writes, then `prepare` or `abort`, once."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, without waiting for acknowledgements. Raises UsageError for what cannot be written; never drops (I7)."""

    def push(self) -> None:
        """Send the rows so far, without waiting for acknowledgements: `prepare` has less to do then. Default: does nothing.

        Called by `headrace run` now and then. Raises as `write`.
        """

    @abstractmethod
    def prepare(self) -> HandleT | None:
        """Pre-commit: after it the rows survive this process, unseen, until the handle is ended.

        Returns only when everything is acknowledged; None when no row was written. Raises if any row was not, and the
        transaction is then aborted.
        """

    @abstractmethod
    def abort(self) -> None:
        """Give up, as far as it can be done now; recovery does the rest. Never raises for an unreachable peer."""

    def __reduce__(self) -> str:
        """No process can continue what another one has started."""
        raise TypeError(f"a {type(self).__name__} belongs to the process that started it: pickle the sink")

    def __enter__(self) -> Self:
        """Leaving aborts what was not prepared."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Abort, unless `prepare` has returned."""
        self.abort()


class Committer(ABC, Generic[HandleT]):
    """Ends the transactions of one job, in the driver's process. Called by one thread, by `headrace.connectors.base.commit`."""

    @abstractmethod
    def fence(self) -> CommitList[HandleT] | None:
        """Shut out any other driver of this job, then read its recorded committables; None without any. Called first, once.

        From here on `record` of an older driver raises FencedError there.
        """

    @abstractmethod
    def check(self, handles: Sequence[HandleT]) -> None:
        """Raise unless every one of these is still prepared, with time left to commit it. Nothing is durable yet.

        A sink with `SingleCommit` raises here for all that `record` would refuse: a runner whose checkpoint is the list stores
        it in between. PreparedGoneError where that will not change: these rows are lost, unless the run can go back.
        """

    @abstractmethod
    def record(self, commits: CommitList[HandleT]) -> None:
        """Record these durably, in place of what was recorded. Raises FencedError when another driver has claimed the job."""

    @abstractmethod
    def end(self, handle: HandleT) -> Outcome:
        """Commit a recorded committable and return its outcome, however often it is called, by whatever process.

        Raises DataLossError when it can no longer be known.
        """

    @abstractmethod
    def copy(self, handles: Sequence[HandleT]) -> HandleT:
        """Prepare the rows of these recorded committables, which were aborted, again in one new transaction.

        Raises DataLossError naming what is gone.
        """

    @abstractmethod
    def clean_up(self, keep: Collection[HandleT]) -> None:
        """Abort every open transaction of this job but these."""

    @abstractmethod
    def forget(self) -> None:
        """Remove what is recorded of the job: it will not run again."""

    @abstractmethod
    def close(self) -> None:
        """Give connections back."""


class TwoPhaseSink(ABC, Generic[HandleT]):
    """Where a job writes. Picklable, since it travels to tasks; does no I/O before a method is called."""

    @property
    @abstractmethod
    def handles(self) -> HandleSerializer[HandleT]:
        """How handles travel and are stored."""

    @abstractmethod
    def begin(self, attempt: Attempt) -> Transaction[HandleT]:
        """A new transaction. Nothing is aborted that a list may name: that is for a `Committer`. Called in a task."""

    @abstractmethod
    def committer(self, job: str) -> Committer[HandleT]:
        """The one that ends this job's transactions. Called on the driver."""

    @abstractmethod
    def recorded(self) -> Mapping[str, RecordedEpoch]:
        """Job to its last recorded epoch at this destination, of all jobs that share the place of the lists: with what it was
        written to where rows name it themselves, and what it was made from and whose the job is where that is kept.

        A job that has recorded no epoch is left out, and so is one whose list cannot be read, since it may be another's:
        `Committer.fence` of its own driver raises.
        """

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns by which a row takes the place of an earlier one. Default: none, as all rows are kept."""
        return ()

    @property
    def locks(self) -> str | None:
        """What a transaction locks as a whole from its first row on, by one name: outputs of a pipeline do not share it.

        Default: None, as several can write at a time.
        """
        return None

    def recorded_epochs(self) -> Mapping[str, int]:
        """The numbers of the epochs in `recorded`."""
        return {job: found.epoch for job, found in self.recorded().items()}


ENDS_BEHIND = "+"


def content_number(content: str | None) -> int:
    """What represents a content where only a number can be kept: 63 bits of its SHA-256; 0 for one that is not known.

    Of what `numbered_content` has made, that number again.
    """
    if content is None:
        return 0
    if content.startswith(_NUMBERED):
        return int(content.removeprefix(_NUMBERED))
    return max(1, int.from_bytes(hashlib.sha256(content.encode()).digest()[:8]) >> 1)


def numbered_content(number: int) -> str | None:
    """The content of which only this `content_number` is known. None for 0."""
    return f"{_NUMBERED}{number}" if number else None
