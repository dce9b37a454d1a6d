"""What some sinks can do beyond the contract (`headrace.connectors.base.sink`): a protocol for each, and its default.

A sink, or a committer, inherits the protocols that it implements. Runners ask `isinstance(sink, SingleCommit)`, or call the
function of a method's name here. That function calls the method, or does what is right for a sink that has none.

Wrappers: a class that passes calls on to another sink or committer has the capabilities that it declares, not those of the
wrapped one. So it declares them too, and its methods call the functions here. Nothing else than what the wrapped one does
happens then. `SingleCommit` and `EpochRecord` are the exceptions: a runner asks for the protocol itself, since a sink without
it is driven in another way. A wrapper that can be around either kind needs two classes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from headrace.connectors.base.sink import CommitList, Committer, HandleT, Outcome, RecordedEpoch, TwoPhaseSink
from headrace.enumerator.errors import StateError, UsageError

_ReadHandleT = TypeVar("_ReadHandleT", contravariant=True)


# --- of sinks -----------------------------------------------------------------------------------------------------------


@runtime_checkable
class SingleCommit(Protocol):
    """`Committer.record` of an epoch's list is the commit (tables), and not the end of each transaction.

    A runner whose workers start transactions at any time has them write under one job then, each as its own task: the sink's
    committers have `TaskCleanup`, and `Committer.end` leaves nothing of a committed transaction to be cleaned up.

    Without it: each transaction is committed when it is ended.
    """

    @property
    @abstractmethod
    def refuses_epochs_by_their_rows(self) -> bool:
        """Whether `Committer.check` may refuse an epoch for what its rows say together, as a merge does.

        A runner whose checkpoint is stored before it can ask refuses such a sink.
        """


@runtime_checkable
class EpochRecord(Protocol):
    """The lists are in the same place as the rows: one that was restored from a backup shows it by an older epoch.

    Without it: the lists may be lost while the rows are there.
    """

    @property
    @abstractmethod
    def records_all_epochs(self) -> bool:
        """Whether transactions have no handles: a runner whose checkpoint is the list records epochs without them, too."""


@runtime_checkable
class RowRouting(Protocol):
    """Rows may say themselves where they are written to. Without it: none does."""

    @property
    @abstractmethod
    def rows_name_targets(self) -> bool:
        """Whether they do, so that `targets_of` may find something."""

    @abstractmethod
    def targets_of(self, rows: pa.RecordBatch) -> frozenset[str]:
        """What these rows are to be written to, where they name it themselves. Called in tasks of a recorded epoch.

        A row that names what the recorded epoch was not written to is of another write: it must not be skipped silently.
        """


@runtime_checkable
class RowSharding(Protocol):
    """Rows have an order that concurrent transactions have to keep. Without it: any transaction may take any row."""

    @abstractmethod
    def shards_of(self, rows: pa.RecordBatch, shards: int) -> pa.Int32Array:
        """Which of `shards` concurrent transactions has to take each row, so that rows keep their order.

        Null for a row that any of them may take. Called in tasks.
        """


@runtime_checkable
class PromptLookup(Protocol):
    """`TwoPhaseSink.recorded` may have to wait for a write that is open. Without it: it never does."""

    @abstractmethod
    def recorded_now(self) -> Mapping[str, RecordedEpoch]:
        """`TwoPhaseSink.recorded`, as far as it is decided at this moment: no write that is under way is waited for.

        Its driver may have died, and then only its timeout decides it, or the next fence. So what is not here may be recorded
        later, until the next `Committer.fence`.
        """


@runtime_checkable
class OutageRetry(Protocol):
    """Calls are retried for as long as an outage of the destination lasts. Without it: they fail soon."""

    @abstractmethod
    def bounded(self) -> TwoPhaseSink[Any]:
        """This sink with calls that fail after a minute or so: to abort what has failed, or for an operator's command."""

    @abstractmethod
    def reached(self) -> None:
        """Called in a process of a run that has reached the destination, as this is given, from another one.

        A sink that distinguishes a wrong address from an outage by its first contact goes by this.
        """


@runtime_checkable
class ExpiringTransactions(Protocol):
    """The destination aborts what is not committed in time. Without it: transactions wait for as long as it takes."""

    @property
    @abstractmethod
    def transaction_timeout_s(self) -> float:
        """How long after a transaction's start, in seconds. A runner that commits later than that refuses the sink."""


@runtime_checkable
class Warmable(Protocol):
    """Connections can be made ahead of time, as in a standby. Without it: nothing is."""

    @abstractmethod
    def warm(self) -> None:
        """Called in a process that may have to write rows here soon: connect, and change nothing.

        Soon over, also where the destination is away, for which it raises what other calls do.
        """

    @abstractmethod
    def warm_driver(self) -> None:
        """As `warm`, in a process that may have to plan or commit: look up what is recorded, too."""


@runtime_checkable
class LeftoverCleanup(Protocol):
    """A prepared transaction may stand in the way of writers, as by a row lock. Without it: none does."""

    @abstractmethod
    def left_over(self) -> frozenset[str]:
        """Names of what is prepared now, of all jobs here. Called before an epoch's tasks start, and shipped to them."""

    @abstractmethod
    def end_left_over(self, job: str, left_over: frozenset[str], driver_id: str | None = None) -> None:
        """Before a task starts, end what is left of these and is the job's, as a new driver would: complete what is recorded,
        and abort the rest. What was prepared since is left alone. Called in tasks, of which several may come at the same time.

        `driver_id`: of the task's driver, None for one without supervision. Raises FencedError when a driver takes over
        meanwhile, or another one owns the job, RetriableError when another recovery takes too long.
        """


@runtime_checkable
class WriterCommit(Protocol):
    """Committers clean up only after they have fenced. Without it: `TwoPhaseSink.committer` serves a writer's job, too."""

    @abstractmethod
    def committer_of_writer(self, writer: str, driver: Committer[Any]) -> Committer[Any]:
        """The one for the transactions of the job `writer`, which are on the lists of another job, whose committer is `driver`.

        It checks, ends, copies and cleans up, and neither fences nor records: `driver` has fenced, and another driver that
        takes that job over shuts this one out, too. It cleans up when the writer is dead. Called on the driver.
        """


# --- of committers ------------------------------------------------------------------------------------------------------


@runtime_checkable
class GroupedEnd(Protocol[_ReadHandleT]):
    """Several transactions can be ended at once. Without it: one after the other."""

    @abstractmethod
    def end_all(self, handles: Sequence[_ReadHandleT]) -> Sequence[Outcome]:
        """`Committer.end` for each of these, in any order or at once; their outcomes in the order of the handles.

        Readers see a part of the epoch until it returns. Raises what `end` raises for one of them; the others may have ended.
        """


@runtime_checkable
class StagedRecord(Protocol[HandleT]):
    """The slow part of a record can be done ahead of time. Without it: all of it is done by `Committer.record`."""

    @abstractmethod
    def stage(self, commits: CommitList[HandleT]) -> None:
        """Write this list, so that a `Committer.record` of the same one has only to decide it. Until then it is not recorded:
        another one may be staged or recorded instead, and the next driver finds nothing of it. After an error `record`
        does all of it again. Called after `Committer.fence`.
        """


@runtime_checkable
class CopyPerSink(Protocol[HandleT]):
    """A committer of several sinks copies in one transaction for each of them. Without it: in one."""

    @abstractmethod
    def copy_all(self, handles: Sequence[HandleT]) -> Sequence[HandleT]:
        """As `Committer.copy`."""


@runtime_checkable
class Confirmation(Protocol[_ReadHandleT]):
    """It is known what the recorded epoch was written to. Without it: every replay is taken for one of the same write."""

    @abstractmethod
    def confirm(self, handles: Sequence[_ReadHandleT]) -> None:
        """After a commit: raise StateError if these are of another write than the one that is recorded as this epoch.

        They were aborted then, as those of a replay are, and must not be so silently.
        """


@runtime_checkable
class PreparedAbort(Protocol[_ReadHandleT]):
    """Prepared transactions stand in the way of readers. Without it: they are left to the next start."""

    @abstractmethod
    def abort_prepared(self, handles: Sequence[_ReadHandleT]) -> None:
        """Abort these. Called instead of `Committer.fence` where that was refused for good, by the driver whose tasks have
        prepared them, and which has recorded none of them.
        """


@runtime_checkable
class TaskCleanup(Protocol[_ReadHandleT]):
    """Some tasks of a job can be cleaned up while the others write. Committers of a `SingleCommit` sink have it."""

    @abstractmethod
    def clean_up_tasks(self, tasks: Collection[int], keep: Collection[_ReadHandleT]) -> None:
        """Abort every open transaction of these tasks of this job, in any epoch, but these."""

    @abstractmethod
    def open_tasks(self) -> frozenset[int]:
        """The tasks of this job with transactions that are open now, or prepared and not committed."""


# --- what runners call --------------------------------------------------------------------------------------------------


def rows_name_targets(sink: TwoPhaseSink[Any]) -> bool:
    return isinstance(sink, RowRouting) and sink.rows_name_targets


def records_all_epochs(sink: TwoPhaseSink[Any]) -> bool:
    return isinstance(sink, EpochRecord) and sink.records_all_epochs


def targets_of(sink: TwoPhaseSink[Any], rows: pa.RecordBatch) -> frozenset[str]:
    return sink.targets_of(rows) if isinstance(sink, RowRouting) else frozenset()


def shards_of(sink: TwoPhaseSink[Any], rows: pa.RecordBatch, shards: int) -> pa.Int32Array:
    return sink.shards_of(rows, shards) if isinstance(sink, RowSharding) else pa.nulls(rows.num_rows, pa.int32())


def recorded_now(sink: TwoPhaseSink[Any]) -> Mapping[str, RecordedEpoch]:
    return sink.recorded_now() if isinstance(sink, PromptLookup) else sink.recorded()


def bounded(sink: TwoPhaseSink[HandleT]) -> TwoPhaseSink[HandleT]:
    return sink.bounded() if isinstance(sink, OutageRetry) else sink


def reached(sink: TwoPhaseSink[Any]) -> None:
    if isinstance(sink, OutageRetry):
        sink.reached()


def transaction_timeout_s(sink: TwoPhaseSink[Any]) -> float:
    return sink.transaction_timeout_s if isinstance(sink, ExpiringTransactions) else math.inf


def warm(sink: TwoPhaseSink[Any]) -> None:
    if isinstance(sink, Warmable):
        sink.warm()


def warm_driver(sink: TwoPhaseSink[Any]) -> None:
    if isinstance(sink, Warmable):
        sink.warm_driver()


def left_over(sink: TwoPhaseSink[Any]) -> frozenset[str]:
    return sink.left_over() if isinstance(sink, LeftoverCleanup) else frozenset()


def end_left_over(sink: TwoPhaseSink[Any], job: str, left: frozenset[str], driver_id: str | None = None) -> None:
    if isinstance(sink, LeftoverCleanup):
        sink.end_left_over(job, left, driver_id)


def committer_of_writer(sink: TwoPhaseSink[HandleT], writer: str, driver: Committer[HandleT]) -> Committer[HandleT]:
    return sink.committer_of_writer(writer, driver) if isinstance(sink, WriterCommit) else sink.committer(writer)


def end_all(committer: Committer[HandleT], handles: Sequence[HandleT]) -> Sequence[Outcome]:
    if isinstance(committer, GroupedEnd):
        return committer.end_all(handles)
    return [committer.end(handle) for handle in handles]


def stage(committer: Committer[HandleT], commits: CommitList[HandleT]) -> None:
    if isinstance(committer, StagedRecord):
        committer.stage(commits)


def copy_all(committer: Committer[HandleT], handles: Sequence[HandleT]) -> Sequence[HandleT]:
    return committer.copy_all(handles) if isinstance(committer, CopyPerSink) else (committer.copy(handles),)


def confirm(committer: Committer[HandleT], handles: Sequence[HandleT]) -> None:
    if isinstance(committer, Confirmation):
        committer.confirm(handles)


def abort_prepared(committer: Committer[HandleT], handles: Sequence[HandleT]) -> None:
    if isinstance(committer, PreparedAbort):
        committer.abort_prepared(handles)


def task_cleanup(committer: Committer[HandleT]) -> TaskCleanup[HandleT]:
    """The committer of a `SingleCommit` sink, which has it. Raises UsageError for one that has not."""
    if not isinstance(committer, TaskCleanup):
        raise UsageError(
            f"{type(committer).__name__} commits an epoch in one step, and has no clean_up_tasks and open_tasks: a sink with "
            "SingleCommit needs committers with TaskCleanup"
        )
    return committer


def another_write(job: str, recorded: RecordedEpoch, others: Collection[str]) -> StateError:
    """The error for rows that name what the recorded epoch was not written to: to skip them would lose them."""
    known = ", ".join(recorded.targets or ()) or "nothing"
    return StateError(
        f"epoch {recorded.epoch} of job {job!r} is recorded as written to {known}, and there are rows for "
        f"{', '.join(sorted(others))}: two writes have one name. Give each its own name, or one topic for all of its rows"
    )
