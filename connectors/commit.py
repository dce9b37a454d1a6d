"""How an epoch is committed and recovered: events in, commands out, for every two-phase-commit sink and every runner.

A *committable* is the handle of a prepared transaction. The committables of an epoch are recorded, durably, before any of them
is committed (`CommitList`).

    fence -> read the committables -> sweep all others -> end them (commit; copy what was aborted after they were recorded)
          -> sweep -> ready
    ready -> check -> record the committables -> commit each -> sweep the losers -> record that it is completed -> ready
    ready -> (an epoch without rows, or a replay) record that it is completed -> sweep -> ready

Two rules carry it (I6). Nothing is committed that is not a recorded committable. Every recorded committable is committed,
whatever happens, so that a replayed epoch is completed and never written again. A transaction that was aborted after it was
recorded (an outage longer than its timeout) is copied into a new one, which is recorded in its place before it is committed.

`CommitCore` does no input or output; `JobCommitter` performs its commands with a `Committer`, and may be killed at any point.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Generic, assert_never

from headrace.connectors.sink import CommitList, Committer, HandleT, Outcome, content_number, numbered_content
from headrace.enumerator.errors import PeerError, StateError
from headrace.enumerator.transitions import Transitions, allowed_after

__all__ = ["COMMIT_TRANSITIONS", "CommitCore", "CommitPhase", "JobCommitter", "StaleEpochError", "refuse_stale"]


class StaleEpochError(StateError):
    """The checkpoint is older than what the sink has committed: an epoch below the last recorded one is to be written, or the
    same one, made from other input.
    """


# --- events: requests, and answers to commands ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecoveryRequested:
    """Complete the recorded epoch, and abort everything else of the job."""


@dataclass(frozen=True, slots=True)
class CommitRequested(Generic[HandleT]):
    """The tasks of an epoch have prepared these. `content`: as in `CommitList`.

    `skipped`: some of them have written nothing, as they were told that the epoch is recorded.
    """

    epoch: int
    handles: tuple[HandleT, ...]
    content: str | None = None
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Fenced(Generic[HandleT]):
    """Answer to Fence: other drivers are shut out, and this is recorded; None when nothing is."""

    commits: CommitList[HandleT] | None


@dataclass(frozen=True, slots=True)
class Checked:
    """Answer to Check: all are prepared, with time left."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Answer to Record: it is durable."""


@dataclass(frozen=True, slots=True)
class Ended(Generic[HandleT]):
    """Answer to End."""

    handle: HandleT
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Copied(Generic[HandleT]):
    """Answer to Copy: the rows are prepared once more, in these transactions: one for each sink that the job writes to."""

    handles: tuple[HandleT, ...]


@dataclass(frozen=True, slots=True)
class Swept:
    """Answer to Sweep: no other transaction of the job is open."""


CommitEvent = (
    RecoveryRequested
    | CommitRequested[HandleT]
    | Fenced[HandleT]
    | Checked
    | Recorded
    | Ended[HandleT]
    | Copied[HandleT]
    | Swept
)

# --- commands: each is answered by the event of its name --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fence:
    """Shut out other drivers and read what is recorded."""


@dataclass(frozen=True, slots=True)
class Check(Generic[HandleT]):
    """Fail unless these are prepared, with time left."""

    handles: tuple[HandleT, ...]


@dataclass(frozen=True, slots=True)
class Record(Generic[HandleT]):
    """Record these committables durably, in place of those before."""

    commits: CommitList[HandleT]


@dataclass(frozen=True, slots=True)
class End(Generic[HandleT]):
    """Commit this, or find out its outcome."""

    handle: HandleT


@dataclass(frozen=True, slots=True)
class Copy(Generic[HandleT]):
    """Prepare the rows of these aborted transactions once more."""

    handles: tuple[HandleT, ...]


@dataclass(frozen=True, slots=True)
class Sweep(Generic[HandleT]):
    """Abort all open transactions of the job but these."""

    keep: tuple[HandleT, ...]


CommitCommand = Fence | Check[HandleT] | Record[HandleT] | End[HandleT] | Copy[HandleT] | Sweep[HandleT]


class CommitPhase(Enum):
    """What the core waits for."""

    CREATED = auto()
    FENCING = auto()
    CLEARING = auto()
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


def refuse_other_content(job: str, epoch: int, content: str | None, recorded: str | None) -> None:
    """Raise StaleEpochError if the epoch is recorded, made from other input: to skip this one would lose or repeat rows.

    `content` and `recorded` are as in `CommitList`; where one is not known, nothing is refused.
    """
    if content is None or recorded is None:
        return
    if recorded not in (content, numbered_content(content_number(content))):
        raise StaleEpochError(
            f"job {job!r} is to write epoch {epoch}, which the sink has committed already, from another plan of it: "
            "the checkpoint is an older copy, or its last offsets were removed, and the epoch was planned anew. To skip it "
            "would lose or repeat rows. Go on from the newest checkpoint, or begin a new query with a new checkpoint"
        )


def _refuse_skipped(job: str, asked: CommitRequested[HandleT], recorded: int) -> None:
    """Raise PeerError for an epoch that tasks have skipped, and that is not recorded: its rows would be lost."""
    if asked.skipped and asked.epoch > recorded:
        raise PeerError(
            f"tasks of epoch {asked.epoch} of job {job!r} have written nothing, as they found it recorded in the sink, and the "
            "driver finds that it is not: what is recorded was forgotten, or its place was made anew, in between. Nothing was "
            "committed; the next try writes the epoch"
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

    def handle(self, event: CommitEvent[HandleT]) -> list[CommitCommand[HandleT]]:
        """Take one event, return what is to be done, in this order.

        Raises ProtocolViolationError for an event that COMMIT_TRANSITIONS does not allow now, StaleEpochError for an epoch
        below the recorded one, or for the recorded one with another content, PeerError for one that was skipped and is not
        recorded.
        """
        following = allowed_after(COMMIT_TRANSITIONS, self.phase, event, f"the commit of job {self.job!r}")
        commands = self._apply(event)
        assert self.phase in following, f"{event} has led to {self.phase.name}, which is not in the table"
        return commands

    def _apply(self, event: CommitEvent[HandleT]) -> list[CommitCommand[HandleT]]:
        match event:
            case RecoveryRequested():
                return self._fence() if self.phase is CommitPhase.CREATED else self._sweep()
            case CommitRequested():
                self._asked = event
                return self._fence() if self.phase is CommitPhase.CREATED else self._commit(event)
            case Fenced():
                return self._fenced(event)
            case Checked():
                return self._checked()
            case Recorded():
                return self._recorded()
            case Ended():
                return self._ended(event)
            case Copied():
                return self._copied(event)
            case Swept():
                return self._swept()
            case _:
                assert_never(event)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _fence(self) -> list[CommitCommand[HandleT]]:
        self.phase = CommitPhase.FENCING
        return [Fence()]

    def _commit(self, event: CommitRequested[HandleT]) -> list[CommitCommand[HandleT]]:
        _refuse_skipped(self.job, event, self._recorded_epoch)
        if event.handles and event.epoch > self._recorded_epoch:
            return self._take_up()
        # Nothing of it will be committed, so no sweep follows a commit, and what its tasks have prepared is aborted now. First
        # the epoch is recorded, though it may be already: a driver that was replaced is fenced there, and sweeps nothing.
        if self.commits is None or event.epoch > self.commits.epoch:
            self.commits = CommitList(event.epoch, (), completed=True, content=event.content)
        self.phase = CommitPhase.CONFIRMING
        return [Record(self.commits)]

    # --- answers ------------------------------------------------------------------------------------------------------

    def _fenced(self, event: Fenced[HandleT]) -> list[CommitCommand[HandleT]]:
        self.commits = event.commits
        if event.commits is None or event.commits.completed:
            return self._sweep()
        # First, since in a log one that is open hides what comes after it, also from whoever asks what became of that.
        self.phase = CommitPhase.CLEARING
        return [Sweep((*event.commits.handles, *self._wanted))]

    def _checked(self) -> list[CommitCommand[HandleT]]:
        assert self._asked is not None
        self.commits = CommitList(self._asked.epoch, self._asked.handles, content=self._asked.content)
        return self._record()

    def _recorded(self) -> list[CommitCommand[HandleT]]:
        if self.phase is CommitPhase.RECORDING:
            return self._end_all()
        return self._sweep() if self.phase is CommitPhase.CONFIRMING else self._take_up()

    def _ended(self, event: Ended[HandleT]) -> list[CommitCommand[HandleT]]:
        self._waiting.remove(event.handle)
        if event.outcome is Outcome.ABORTED:
            self._aborted.append(event.handle)
        if self._waiting:
            return []
        if not self._aborted:
            return self._sweep()
        self.phase = CommitPhase.COPYING
        return [Copy(tuple(self._aborted))]

    def _copied(self, event: Copied[HandleT]) -> list[CommitCommand[HandleT]]:
        assert self.commits is not None
        self.commits = replace(self.commits, handles=event.handles)  # the others are committed
        return self._record()

    def _swept(self) -> list[CommitCommand[HandleT]]:
        if self.phase is CommitPhase.CLEARING:
            return self._end_all()
        if self.commits is None or self.commits.completed:
            return self._take_up()
        self.phase = CommitPhase.COMPLETING
        self.commits = CommitList(self.commits.epoch, (), completed=True, content=self.commits.content)
        return [Record(self.commits)]

    # --- steps --------------------------------------------------------------------------------------------------------

    def _take_up(self) -> list[CommitCommand[HandleT]]:
        """Go on with the request, or be ready."""
        asked = self._asked
        if asked is not None:
            _refuse_skipped(self.job, asked, self._recorded_epoch)
        if asked is not None and self.commits is not None:
            refuse_stale(self.job, asked.epoch, self.commits.epoch)
        if asked is None or (self.commits is not None and asked.epoch == self.commits.epoch):
            if asked is not None and self.commits is not None:
                refuse_other_content(self.job, asked.epoch, asked.content, self.commits.content)
            self._asked = None
            self.phase = CommitPhase.READY
            return []
        if asked.handles:
            self.phase = CommitPhase.CHECKING
            return [Check(asked.handles)]
        self.phase = CommitPhase.COMPLETING
        self.commits = CommitList(asked.epoch, (), completed=True, content=asked.content)
        return [Record(self.commits)]

    def _record(self) -> list[CommitCommand[HandleT]]:
        assert self.commits is not None
        self.phase = CommitPhase.RECORDING
        return [Record(self.commits)]

    def _end_all(self) -> list[CommitCommand[HandleT]]:
        assert self.commits is not None
        self.phase = CommitPhase.ENDING
        self._waiting, self._aborted = list(self.commits.handles), []
        return [End(handle) for handle in self._waiting]

    def _sweep(self) -> list[CommitCommand[HandleT]]:
        self.phase = CommitPhase.SWEEPING
        return [Sweep(self._wanted)]

    @property
    def _wanted(self) -> tuple[HandleT, ...]:
        """What no sweep aborts: what the request is for, unless its epoch is recorded with other committables."""
        asked = self._asked
        return asked.handles if asked is not None and asked.epoch > self._recorded_epoch else ()

    @property
    def _recorded_epoch(self) -> int:
        """The last epoch whose committables are recorded; -1 if there is none."""
        return -1 if self.commits is None else self.commits.epoch


COMMIT_TRANSITIONS: Transitions[CommitPhase] = {
    (CommitPhase.CREATED, RecoveryRequested): (CommitPhase.FENCING,),
    (CommitPhase.CREATED, CommitRequested): (CommitPhase.FENCING,),
    (CommitPhase.READY, RecoveryRequested): (CommitPhase.SWEEPING,),
    # CONFIRMING: the epoch has no rows, or is a replay
    (CommitPhase.READY, CommitRequested): (CommitPhase.CHECKING, CommitPhase.CONFIRMING),
    (CommitPhase.FENCING, Fenced): (CommitPhase.CLEARING, CommitPhase.SWEEPING),
    (CommitPhase.CLEARING, Swept): (CommitPhase.ENDING,),
    (CommitPhase.CHECKING, Checked): (CommitPhase.RECORDING,),
    (CommitPhase.RECORDING, Recorded): (CommitPhase.ENDING,),
    (CommitPhase.ENDING, Ended): (CommitPhase.ENDING, CommitPhase.COPYING, CommitPhase.SWEEPING),
    (CommitPhase.COPYING, Copied): (CommitPhase.RECORDING,),
    # COMPLETING: the committables are committed, or the epoch that was asked for has none; CHECKING: it has some
    (CommitPhase.SWEEPING, Swept): (CommitPhase.COMPLETING, CommitPhase.CHECKING, CommitPhase.READY),
    # COMPLETING again, or CHECKING: recovery has completed an earlier epoch than the one that was asked for
    (CommitPhase.COMPLETING, Recorded): (CommitPhase.READY, CommitPhase.CHECKING, CommitPhase.COMPLETING),
    (CommitPhase.CONFIRMING, Recorded): (CommitPhase.SWEEPING,),
}


class JobCommitter(Generic[HandleT]):
    """What a runner's driver calls: commits epochs of one job, recovering first. Not thread-safe."""

    def __init__(self, job: str, committer: Committer[HandleT]) -> None:
        """Contacts nobody yet."""
        self._core: CommitCore[HandleT] = CommitCore(job)
        self._committer = committer
        self._is_first = False

    @property
    def is_first(self) -> bool:
        """Whether nothing was recorded of the job when this driver came. False before any call."""
        return self._is_first

    @property
    def recorded_epoch(self) -> int | None:
        """The job's last recorded epoch, as this driver has found or recorded it; None without one, and before any call."""
        return None if self._core.commits is None else self._core.commits.epoch

    def recover(self) -> None:
        """Shut out other drivers of this job, complete its recorded epoch, abort every other transaction of it."""
        self._run(RecoveryRequested())

    def commit(self, epoch: int, handles: tuple[HandleT, ...], content: str | None = None) -> None:
        """Make these the epoch, for good. An epoch that is recorded already is completed instead, and these are aborted.

        `content`: what the epoch was made from, as in `CommitList`; None when that is not known.

        Raises StaleEpochError for an epoch below the recorded one, and for the recorded one where that was made from something
        else, FencedError when another driver has taken over, DataLossError when rows are gone, StateError for handles of
        another write than the recorded one, and what the sink raises. After any of them use a new JobCommitter, which recovers.
        """
        self.commit_requested(CommitRequested(epoch, handles, content))

    def commit_requested(self, asked: CommitRequested[HandleT]) -> None:
        """`commit`, also of what was skipped: raises PeerError for an epoch that was, and is not recorded."""
        self._run(asked)
        self._committer.confirm(asked.handles)

    def forget(self) -> None:
        """The job is over for good: drop what is recorded of it."""
        self._committer.forget()

    def close(self) -> None:
        """Give connections back."""
        self._committer.close()

    def _run(self, request: RecoveryRequested | CommitRequested[HandleT]) -> None:
        commands = deque(self._core.handle(request))
        while commands:
            for event in self._perform_next(commands):
                commands.extend(self._core.handle(event))

    def _perform_next(self, commands: deque[CommitCommand[HandleT]]) -> list[CommitEvent[HandleT]]:
        """Take the next command, or all that end a transaction, and give the answers."""
        command = commands.popleft()
        if not isinstance(command, End):
            return [self._perform(command)]
        handles = [command.handle]
        while commands and isinstance(commands[0], End):
            handles.append(commands[0].handle)
            commands.popleft()
        return [Ended(handle, outcome) for handle, outcome in zip(handles, self._committer.end_all(handles), strict=True)]

    def _perform(
        self, command: Fence | Check[HandleT] | Record[HandleT] | Copy[HandleT] | Sweep[HandleT]
    ) -> CommitEvent[HandleT]:
        match command:
            case Fence():
                commits = self._committer.fence()
                self._is_first = commits is None
                return Fenced(commits)
            case Check(handles):
                self._committer.check(handles)
                return Checked()
            case Record(commits):
                self._committer.record(commits)
                return Recorded()
            case Copy(handles):
                return Copied(tuple(self._committer.copy_all(handles)))
            case Sweep(keep):
                self._committer.sweep(keep)
                return Swept()
            case _:
                assert_never(command)
