"""How an epoch is committed and recovered: events in, commands out, for every two-phase-commit sink and every runner.

    fence -> read the list -> complete it (commit; copy what was aborted after it was durable) -> sweep -> ready
    ready -> check -> record the list -> commit each -> sweep the losers -> record that it is completed -> ready
    ready -> (an epoch without rows, or a replay) record that it is completed -> sweep -> ready

Two rules carry it (I6). Nothing is committed that is not on the durable list; and what is on it is committed whatever happens,
so that a replayed epoch is completed and never written again. A transaction that was aborted after its list was durable (an
outage longer than its timeout) is copied into a new one, which takes its place on the list before it is committed.

`CommitCore` does no input or output; `JobCommitter` performs its commands with a `Committer`, and may be killed at any point.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Generic

from headrace.connectors.sink import CommitList, Committer, HandleT, Outcome
from headrace.enumerator.errors import ProtocolViolationError, StateError

__all__ = ["COMMIT_TRANSITIONS", "CommitCore", "CommitPhase", "JobCommitter", "StaleEpochError", "refuse_stale"]


class StaleEpochError(StateError):
    """An epoch below the last recorded one is to be written: the checkpoint is older than what the sink has committed."""


# --- events: what has happened ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecoveryRequested:
    """Complete what the durable list names, and abort everything else of the job."""


@dataclass(frozen=True, slots=True)
class CommitRequested(Generic[HandleT]):
    """The tasks of an epoch have prepared these."""

    epoch: int
    handles: tuple[HandleT, ...]


@dataclass(frozen=True, slots=True)
class Fenced(Generic[HandleT]):
    """Other drivers are shut out; this is the durable list."""

    commits: CommitList[HandleT] | None


@dataclass(frozen=True, slots=True)
class Checked:
    """All are prepared, with time left."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The list is durable."""


@dataclass(frozen=True, slots=True)
class Ended(Generic[HandleT]):
    """One transaction of the list has ended."""

    handle: HandleT
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Copied(Generic[HandleT]):
    """The aborted ones are prepared once more, in this one."""

    handle: HandleT


@dataclass(frozen=True, slots=True)
class Swept:
    """Nothing else of the job is open."""


# --- commands: what is to be done; each is answered by the event of its name ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Fence:
    """Shut out other drivers and read the durable list."""


@dataclass(frozen=True, slots=True)
class Check(Generic[HandleT]):
    """Are these prepared, with time left?"""

    handles: tuple[HandleT, ...]


@dataclass(frozen=True, slots=True)
class Record(Generic[HandleT]):
    """Make this the durable list."""

    commits: CommitList[HandleT]


@dataclass(frozen=True, slots=True)
class End(Generic[HandleT]):
    """Commit this, or find out what became of it."""

    handle: HandleT


@dataclass(frozen=True, slots=True)
class Copy(Generic[HandleT]):
    """Prepare the rows of these aborted transactions once more."""

    handles: tuple[HandleT, ...]


@dataclass(frozen=True, slots=True)
class Sweep(Generic[HandleT]):
    """Abort all open transactions of the job but these."""

    keep: tuple[HandleT, ...]


class CommitPhase(Enum):
    """What the core waits for."""

    CREATED = auto()
    FENCING = auto()
    READY = auto()
    CHECKING = auto()
    RECORDING = auto()
    ENDING = auto()
    COPYING = auto()
    SWEEPING = auto()
    COMPLETING = auto()
    CONFIRMING = auto()


def refuse_stale(job: str, epoch: int, recorded: int) -> None:
    """Raise StaleEpochError if `epoch` is below the recorded one: it may stand for other rows now, so none skips it."""
    if epoch < recorded:
        raise StaleEpochError(
            f"job {job!r} is to write epoch {epoch}, and the sink has committed up to epoch {recorded} of it: the checkpoint "
            "is an older copy, and its epochs need not hold the rows they held before. Go on from the newest checkpoint, or "
            "begin a new query with a new checkpoint"
        )


class CommitCore(Generic[HandleT]):
    """One job's driver. Not thread-safe. After an exception from the performer it is of no further use: make a new one."""

    def __init__(self, job: str) -> None:
        """Knows nothing yet; the first request fences and recovers."""
        self.job = job
        self.phase = CommitPhase.CREATED
        self.commits: CommitList[HandleT] | None = None
        self._asked: CommitRequested[HandleT] | None = None
        self._waiting: list[HandleT] = []
        self._aborted: list[HandleT] = []

    def handle(self, event: Any) -> list[Any]:  # noqa: ANN401 - one of the events above; the table says which
        """Take one event, return what is to be done, in this order.

        Raises ProtocolViolationError for an event that COMMIT_TRANSITIONS does not allow now, StaleEpochError for an epoch
        below the recorded one.
        """
        handler = COMMIT_TRANSITIONS.get((self.phase, type(event)))
        if handler is None:
            raise ProtocolViolationError(f"the commit of job {self.job!r} is {self.phase.name}: {event} is not possible now")
        commands: list[Any] = handler(self, event)
        return commands

    # --- requests -----------------------------------------------------------------------------------------------------

    def _recover(self, _: RecoveryRequested) -> list[Any]:
        self.phase = CommitPhase.FENCING
        return [Fence()]

    def _commit_first(self, event: CommitRequested[HandleT]) -> list[Any]:
        self._asked = event
        self.phase = CommitPhase.FENCING
        return [Fence()]

    def _recover_again(self, _: RecoveryRequested) -> list[Any]:
        return self._sweep()

    def _commit(self, event: CommitRequested[HandleT]) -> list[Any]:
        self._asked = event
        if event.handles and event.epoch > self._recorded_epoch:
            return self._take_up()
        # Nothing of it will be committed, so no commit is followed by a sweep, and what its tasks have prepared goes now. First
        # the list is written, though it may be the same: a driver that was replaced is fenced there, and sweeps nothing.
        if self.commits is None or event.epoch > self.commits.epoch:
            self.commits = CommitList(event.epoch, (), completed=True)
        self.phase = CommitPhase.CONFIRMING
        return [Record(self.commits)]

    # --- answers ------------------------------------------------------------------------------------------------------

    def _fenced(self, event: Fenced[HandleT]) -> list[Any]:
        self.commits = event.commits
        return self._sweep() if event.commits is None or event.commits.completed else self._end_all()

    def _checked(self, _: Checked) -> list[Any]:
        assert self._asked is not None
        self.commits = CommitList(self._asked.epoch, self._asked.handles)
        return self._record()

    def _recorded(self, _: Recorded) -> list[Any]:
        return self._end_all()

    def _ended(self, event: Ended[HandleT]) -> list[Any]:
        self._waiting.remove(event.handle)
        if event.outcome is Outcome.ABORTED:
            self._aborted.append(event.handle)
        if self._waiting:
            return []
        if not self._aborted:
            return self._sweep()
        self.phase = CommitPhase.COPYING
        return [Copy(tuple(self._aborted))]

    def _copied(self, event: Copied[HandleT]) -> list[Any]:
        assert self.commits is not None
        self.commits = replace(self.commits, handles=(event.handle,))  # the others are committed
        return self._record()

    def _swept(self, _: Swept) -> list[Any]:
        if self.commits is None or self.commits.completed:
            return self._take_up()
        self.phase = CommitPhase.COMPLETING
        self.commits = CommitList(self.commits.epoch, (), completed=True)
        return [Record(self.commits)]

    def _confirmed(self, _: Recorded) -> list[Any]:
        return self._sweep()

    def _completed(self, _: Recorded) -> list[Any]:
        return self._take_up()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _take_up(self) -> list[Any]:
        """Go on with what was asked, or be ready."""
        asked = self._asked
        if asked is not None and self.commits is not None:
            refuse_stale(self.job, asked.epoch, self.commits.epoch)
        if asked is None or (self.commits is not None and asked.epoch == self.commits.epoch):
            self._asked = None
            self.phase = CommitPhase.READY
            return []
        if asked.handles:
            self.phase = CommitPhase.CHECKING
            return [Check(asked.handles)]
        self.phase = CommitPhase.COMPLETING
        self.commits = CommitList(asked.epoch, (), completed=True)
        return [Record(self.commits)]

    def _record(self) -> list[Any]:
        assert self.commits is not None
        self.phase = CommitPhase.RECORDING
        return [Record(self.commits)]

    def _end_all(self) -> list[Any]:
        assert self.commits is not None
        self.phase = CommitPhase.ENDING
        self._waiting, self._aborted = list(self.commits.handles), []
        return [End(handle) for handle in self._waiting]

    def _sweep(self) -> list[Any]:
        """Abort what nobody names. What was asked for is kept, unless its epoch is recorded, and so is made up of others."""
        self.phase = CommitPhase.SWEEPING
        asked = self._asked
        return [Sweep(asked.handles if asked is not None and asked.epoch > self._recorded_epoch else ())]

    @property
    def _recorded_epoch(self) -> int:
        """The last epoch on a durable list; -1 if there is none."""
        return -1 if self.commits is None else self.commits.epoch


COMMIT_TRANSITIONS: dict[tuple[CommitPhase, type[Any]], Callable[[CommitCore[Any], Any], list[Any]]] = {
    (CommitPhase.CREATED, RecoveryRequested): CommitCore._recover,
    (CommitPhase.CREATED, CommitRequested): CommitCore._commit_first,
    (CommitPhase.READY, RecoveryRequested): CommitCore._recover_again,
    (CommitPhase.READY, CommitRequested): CommitCore._commit,
    (CommitPhase.FENCING, Fenced): CommitCore._fenced,
    (CommitPhase.CHECKING, Checked): CommitCore._checked,
    (CommitPhase.RECORDING, Recorded): CommitCore._recorded,
    (CommitPhase.ENDING, Ended): CommitCore._ended,
    (CommitPhase.COPYING, Copied): CommitCore._copied,
    (CommitPhase.SWEEPING, Swept): CommitCore._swept,
    (CommitPhase.COMPLETING, Recorded): CommitCore._completed,
    (CommitPhase.CONFIRMING, Recorded): CommitCore._confirmed,
}


class JobCommitter(Generic[HandleT]):
    """What a runner's driver calls: commits epochs of one job, recovering first. Not thread-safe."""

    def __init__(self, job: str, committer: Committer[HandleT]) -> None:
        """Contacts nobody yet."""
        self._core: CommitCore[HandleT] = CommitCore(job)
        self._committer = committer

    def recover(self) -> None:
        """Shut out other drivers of this job, complete what its durable list names, abort everything else of it."""
        self._run(RecoveryRequested())

    def commit(self, epoch: int, handles: tuple[HandleT, ...]) -> None:
        """Make these the epoch, for good. An epoch that is recorded already is completed instead, and these are aborted.

        Raises StaleEpochError for an epoch below the recorded one, FencedError when another driver has taken over,
        DataLossError when rows are gone, and what the sink raises. After any of them use a new JobCommitter, which recovers.
        """
        self._run(CommitRequested(epoch, handles))

    def forget(self) -> None:
        """The job is over for good: drop its durable list."""
        self._committer.forget()

    def close(self) -> None:
        """Give connections back."""
        self._committer.close()

    def _run(self, event: Any) -> None:  # noqa: ANN401 - a request
        commands = deque(self._core.handle(event))
        while commands:
            commands.extend(self._core.handle(self._perform(commands.popleft())))

    def _perform(self, command: Any) -> Any:  # noqa: ANN401 - a command; the event that answers it
        match command:
            case Fence():
                return Fenced(self._committer.fence())
            case Check(handles):
                self._committer.check(handles)
                return Checked()
            case Record(commits):
                self._committer.record(commits)
                return Recorded()
            case End(handle):
                return Ended(handle, self._committer.end(handle))
            case Copy(handles):
                return Copied(self._committer.copy(handles))
            case Sweep(keep):
                self._committer.sweep(keep)
                return Swept()
            case _:
                raise ProtocolViolationError(f"no such command: {command}")
