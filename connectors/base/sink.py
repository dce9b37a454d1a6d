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
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

import pyarrow as pa

from headrace.enumerator.errors import PeerError, StateError

__all__ = [
    "Attempt",
    "CommitList",
    "Committer",
    "HandleSerializer",
    "JobClaim",
    "Outcome",
    "PreparedGoneError",
    "RecordedEpoch",
    "Transaction",
    "TwoPhaseSink",
    "another_write",
    "content_number",
    "numbered_content",
]

HandleT = TypeVar("HandleT")

_NUMBERED = "number:"


class Outcome(Enum):
    """How a transaction has ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"  # by its timeout, or by somebody; nothing of it will ever be visible


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

    `driver id` is None once that driver has ended and given the job back. Where only a number can be kept, it is the
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
    sink may keep its `content_number` alone, as `numbered_content` has it.
    `claim`: whose the job is; None for one that no supervised driver has claimed. It goes from list to list.
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
    """A job's last recorded epoch, its targets, its content, and whose the job is, as in `CommitList`."""

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

    @abstractmethod
    def prepare(self) -> HandleT | None:
        """Pre-commit: after it the rows survive this process, unseen, until the handle is ended.

        Returns only when everything is acknowledged; None when no row was written. Raises if any row was not, and the
        transaction is then aborted.
        """

    @abstractmethod
    def abort(self) -> None:
        """Give up, as far as it can be done now; recovery does the rest. Never raises for an unreachable peer."""

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

        A sink that commits by list raises here for all that `record` would refuse: a runner whose checkpoint is the list stores
        it in between. PreparedGoneError where that will not change: the run is informed that these rows are lost, if it has no
        way back.
        """

    @abstractmethod
    def record(self, commits: CommitList[HandleT]) -> None:
        """Record these durably, in place of what was recorded. Raises FencedError when another driver has taken over."""

    @abstractmethod
    def end(self, handle: HandleT) -> Outcome:
        """Commit a recorded committable and return its outcome, however often it is called and whoever committed it before.

        Raises DataLossError when it can no longer be known.
        """

    def end_all(self, handles: Sequence[HandleT]) -> Sequence[Outcome]:
        """`end` for each of these, in any order or at once; their outcomes in theirs. By default one after the other.

        Readers see a part of the epoch until it returns. Raises what `end` raises for one of them; the others may have ended.
        """
        return [self.end(handle) for handle in handles]

    @abstractmethod
    def copy(self, handles: Sequence[HandleT]) -> HandleT:
        """Prepare the rows of these recorded committables, which were aborted, again in one new transaction.

        Raises DataLossError naming what is gone.
        """

    def copy_all(self, handles: Sequence[HandleT]) -> Sequence[HandleT]:
        """`copy`, for a committer of several sinks in one transaction for each of them. By default in one."""
        return (self.copy(handles),)

    @abstractmethod
    def clean_up(self, keep: Collection[HandleT]) -> None:
        """Abort every open transaction of this job but these."""

    def clean_up_tasks(self, tasks: Collection[int], keep: Collection[HandleT]) -> None:
        """Abort every open transaction of these tasks of this job, in any epoch, but these. The others' writers may be running.

        Only of sinks that commit by list: see `TwoPhaseSink.commits_by_list`.
        """
        raise NotImplementedError

    def open_tasks(self) -> frozenset[int]:
        """The tasks of this job with transactions that are open now, or prepared and not committed. For `clean_up_tasks`."""
        raise NotImplementedError

    def confirm(self, handles: Sequence[HandleT]) -> None:
        """After a commit: raise StateError if these are of another write than the one that is recorded as this epoch.

        They were aborted then, as those of a replay are, and must not be so silently.
        """

    @abstractmethod
    def forget(self) -> None:
        """Remove what is recorded of the job: it will not run again."""

    @abstractmethod
    def close(self) -> None:
        """Give connections back."""


class TwoPhaseSink(ABC, Generic[HandleT]):
    """Where a job writes. Picklable, since it travels to tasks; contacts nobody before a method is called."""

    commits_by_list: ClassVar[bool] = False
    """True where `Committer.record` of an epoch's list is the commit (tables), and not the end of each transaction.

    A runner whose workers start transactions at any time has them write under one job then, each as its own task: such a
    sink's `Committer` has `clean_up_tasks` and `open_tasks`, and `end` leaves nothing of a committed transaction to be cleaned
    up.
    """

    @property
    def refuses_epochs_by_their_rows(self) -> bool:
        """Whether `Committer.check` may refuse an epoch for what its rows say together, as a merge does.

        A runner whose checkpoint is stored before it can ask refuses such a sink.
        """
        return False

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

    def committer_of_writer(self, writer: str, driver: Committer[HandleT]) -> Committer[HandleT]:
        """The one for the transactions of the job `writer`, which are on the lists of another job, whose committer is `driver`.

        It checks, ends, copies and cleans up, and neither fences nor records: `driver` has fenced, and another driver that
        takes that job over shuts this one out, too. It cleans up when the writer is dead. By default `committer(writer)`, for a
        sink whose committers clean up without having fenced. Called on the driver.
        """
        return self.committer(writer)

    def shards_of(self, rows: pa.RecordBatch, shards: int) -> pa.Int32Array:
        """Which of `shards` concurrent transactions has to take each row, so that rows keep their order.

        Null for a row that any of them may take: by default, every row. Called in tasks.
        """
        return pa.nulls(rows.num_rows, pa.int32())

    @abstractmethod
    def recorded_epochs(self) -> Mapping[str, int]:
        """Job to its last recorded epoch at this destination, of all jobs that share the place of the lists."""

    def recorded(self) -> Mapping[str, RecordedEpoch]:
        """`recorded_epochs`, with what each was written to where rows name it themselves, and what it was made from and whose
        the job is where that is kept.

        A job whose list cannot be read is left out, since it may be another's: `Committer.fence` of its own driver raises.
        """
        return {job: RecordedEpoch(epoch) for job, epoch in self.recorded_epochs().items()}

    def recorded_now(self) -> Mapping[str, RecordedEpoch]:
        """`recorded`, as far as it is decided at this moment: nobody's write that is under way is waited for.

        Its driver may have died, and then only its timeout decides it, or who fences it. So what is not here may be recorded
        later, until the next `Committer.fence`. By default `recorded`, for sinks whose lists are written in one step.
        """
        return self.recorded()

    @property
    def rows_name_targets(self) -> bool:
        """Whether rows say themselves where they are written to, so that `targets_of` may find something. By default not."""
        return False

    def targets_of(self, rows: pa.RecordBatch) -> frozenset[str]:
        """What these rows are to be written to, where they name it themselves. Called in tasks of a recorded epoch.

        A row that names what the recorded epoch was not written to is of another write: it must not be skipped silently.
        """
        return frozenset()

    def bounded(self) -> TwoPhaseSink[HandleT]:
        """This sink for what is not to wait long, such as to abort what has failed, or an operator's command.

        By default the sink itself: one whose calls ride out outages gives one whose calls fail after a minute or so.
        """
        return self

    def reached(self) -> None:
        """Called in a process of a run that has reached the destination, as this is given, from another one.

        By default nothing: a sink that tells a wrong address from an outage by its first contact goes by this.
        """

    def warm(self) -> None:
        """Called in a process that may have to write rows here soon, as those of a standby: connect, and change nothing.

        By default nothing. Soon over, also where the destination is away, for which it raises what other calls do.
        """

    def warm_driver(self) -> None:
        """As `warm`, in a process that may have to plan or commit: look up what is recorded, too."""

    def left_over(self) -> frozenset[str]:
        """Names of what is prepared now, of all jobs here, if it may stand in the way of writers: none by default.

        Called before an epoch's tasks start, and shipped to them.
        """
        return frozenset()

    def end_left_over(self, job: str, left_over: frozenset[str], driver_id: str | None = None) -> None:
        """Before a task starts, end what is left of these and is the job's, as a new driver would: complete what is recorded,
        and abort the rest. What was prepared since is left alone. Called in tasks, of which several may come at the same time.

        `driver id`: of the task's driver, None for one without supervision. Raises FencedError when a driver takes over
        meanwhile, or another one owns the job, RetriableError when another recovery takes too long.
        """


def content_number(content: str | None) -> int:
    """What stands for a content where only a number can be kept: 63 bits of its SHA-256; 0 for one that is not known.

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


def another_write(job: str, recorded: RecordedEpoch, others: Collection[str]) -> StateError:
    """The error for rows that name what the recorded epoch was not written to: to skip them would lose them."""
    known = ", ".join(recorded.targets or ()) or "nothing"
    return StateError(
        f"epoch {recorded.epoch} of job {job!r} is recorded as written to {known}, and there are rows for "
        f"{', '.join(sorted(others))}: two writes have one name. Give each its own name, or one topic for all of its rows"
    )


