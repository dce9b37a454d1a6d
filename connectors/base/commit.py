"""How an epoch is committed and recovered: events in, commands out, for every two-phase-commit sink and every runner.

A *committable* is the handle of a prepared transaction. The committables of an epoch are recorded, durably, before any of them
is committed (`CommitList`).

    fence -> read the committables (-> record who owns the job)
          -> clean up all others -> end them (commit; copy what was aborted after they were recorded) -> clean up -> ready
    ready -> check -> record the committables -> commit each -> clean up the losers -> record that it is completed -> ready
    ready -> (an epoch without rows, or a replay) record that it is completed -> clean up -> ready

Two rules carry it (I6). Nothing is committed that is not a recorded committable. Every recorded committable is committed,
whatever happens, so that a replayed epoch is completed and never written again. A transaction that was aborted after it was
recorded (an outage longer than its timeout) is copied into a new one, which is recorded in its place before it is committed.

**Who owns the job.** A fence shuts out who came before, whichever that is: several processes of one driver commit alternately,
and fence each other. So two drivers would do so, too, for ever. A supervised driver has an *driver id*, which all of its
processes know, and claims the job when it starts: its claim is on the list, with a number one higher than the previous one. Who
has fenced, and reads that the job is another's, is done for (`SupersededError`): nothing is cleaned up, ended or recorded. Who
was fenced by that, and reads that the job is still its own, continues. A driver without a driver id takes no job that is
claimed.

`CommitCore` does no input or output; `JobCommitter` performs its commands with a `Committer`, and may be killed at any point.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Generic, assert_never

from headrace.connectors.base import capabilities
from headrace.connectors.base.sink import (
    ENDS_BEHIND,
    CommitList,
    Committer,
    HandleT,
    JobClaim,
    Outcome,
    content_number,
    numbered_content,
)
from headrace.enumerator.errors import FencedError, PeerError, StateError
from headrace.enumerator.transitions import Transitions, allowed_after


class SupersededError(FencedError):
    """The job is another driver's by what is recorded, and stays so: nothing was done, and to fence again would not help."""


class StaleEpochError(StateError):
    """The checkpoint is older than what is committed: its epoch is below the last recorded one, or has other input than it."""


# --- events: requests, and answers to commands ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecoveryRequested:
    """Complete the recorded epoch, and abort everything else of the job."""


@dataclass(frozen=True, slots=True)
class ClaimRequested:
    """A driver with a driver id starts: the job is its own from now on. Then as `RecoveryRequested`."""


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    """A driver with a driver id has ended in good order: as `RecoveryRequested`, then the job has no owner."""


@dataclass(frozen=True, slots=True)
class CommitRequested(Generic[HandleT]):
    """The tasks of an epoch have prepared these. `content`: as in `CommitList`.

    `skipped`: some tasks have written nothing, as they had read that the epoch is recorded.
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
    """Answer to Copy: the rows are prepared again, in these transactions: one for each sink that the job writes to."""

    handles: tuple[HandleT, ...]


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """Answer to Clean up: no other transaction of the job is open."""


CommitEvent = (
    ClaimRequested
    | ReleaseRequested
    | RecoveryRequested
    | CommitRequested[HandleT]
    | Fenced[HandleT]
    | Checked
    | Recorded
    | Ended[HandleT]
    | Copied[HandleT]
    | CleanedUp
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
    """Record these committables durably, in place of the previous ones."""

    commits: CommitList[HandleT]


@dataclass(frozen=True, slots=True)
class End(Generic[HandleT]):
    """Commit this, or find out its outcome."""

    handle: HandleT


@dataclass(frozen=True, slots=True)
class Copy(Generic[HandleT]):
    """Prepare the rows of these aborted transactions again."""

    handles: tuple[HandleT, ...]


@dataclass(frozen=True, slots=True)
class CleanUp(Generic[HandleT]):
    """Abort all open transactions of the job but these."""

    keep: tuple[HandleT, ...]


CommitCommand = Fence | Check[HandleT] | Record[HandleT] | End[HandleT] | Copy[HandleT] | CleanUp[HandleT]


class CommitPhase(Enum):
    """What the core waits for."""

    CREATED = auto()
    FENCING = auto()
    CLAIMING = auto()
    CLEARING = auto()
    READY = auto()
    CHECKING = auto()
    RECORDING = auto()
    ENDING = auto()
    COPYING = auto()
    CLEANING_UP = auto()
    COMPLETING = auto()
    CONFIRMING = auto()
    RELEASING = auto()


def refuse_another(job: str, driver_id: str | None, claim: JobClaim | None) -> None:
    """Raise SupersededError if the job was claimed, and is none of this driver id's.

    Without one (None) only a job will do that was never claimed, or was given back.
    """
    if claim is None or claim.driver_id == driver_id or (driver_id is not None and claim.is_of(driver_id)):
        return
    if driver_id is not None:
        raise SupersededError(
            f"job {job!r} is another driver's, {claim.driver_id or 'which has ended since'} (claim {claim.number}): this one "
            "has stopped, and has changed nothing"
        )
    raise SupersededError(
        f"job {job!r} is that of a supervised driver, {claim.driver_id} (claim {claim.number}), and this query is not "
        "supervised: which of the two is the younger cannot be determined, so it has stopped, and has changed nothing. If "
        "that one does not run any more, start the job under supervision once and stop it there, which gives it back"
    )


def refuse_stale(job: str, epoch: int, recorded: int) -> None:
    """Raise StaleEpochError if `epoch` is below the recorded one: it may stand for other rows now, so none skips it."""
    if epoch < recorded:
        raise StaleEpochError(
            f"job {job!r} is to write epoch {epoch}, and the sink has committed up to epoch {recorded} of it: the checkpoint "
            "is an older copy, and its epochs need not hold the rows they held before. Continue from the newest checkpoint, or "
            "start a new query with a new checkpoint"
        )


def refuse_other_content(job: str, epoch: int, content: str | None, recorded: str | None) -> None:
    """Raise StaleEpochError if the epoch is recorded, made from other input: to skip this one would lose or repeat rows.

    `content` and `recorded` are as in `CommitList`; where one is not known, nothing is refused.
    """
    if content is None or recorded is None:
        return
    plan = content.partition(ENDS_BEHIND)[0]  # recorded where the ends were not complete yet
    if recorded not in (content, plan, *(numbered_content(content_number(known)) for known in (content, plan))):
        raise StaleEpochError(
            f"job {job!r} is to write epoch {epoch}, which the sink has committed already, from another plan of it: "
            "the checkpoint is an older copy, or its last offsets were removed, and the epoch was planned again. To skip it "
            "would lose or repeat rows. Continue from the newest checkpoint, or start a new query with a new checkpoint"
        )


def _refuse_skipped(job: str, asked: CommitRequested[HandleT], recorded: int) -> None:
    """Raise PeerError for an epoch that tasks have skipped, and that is not recorded: its rows would be lost."""
    if asked.skipped and asked.epoch > recorded:
        raise PeerError(
            f"tasks of epoch {asked.epoch} of job {job!r} have written nothing, as they found it recorded in the sink, and the "
            "driver finds that it is not: what is recorded was forgotten, or its place was recreated, in between. Nothing was "
            "committed; the next try writes the epoch"
        )


class CommitCore(Generic[HandleT]):
    """One job's driver. Not thread-safe. After an exception from the performer it is of no further use: make a new one."""

    def __init__(self, job: str, driver_id: str | None = None) -> None:
        """Knows nothing yet; the first request fences and recovers. `driver_id`: that of a supervised driver's processes."""
        self.job = job
        self.driver_id = driver_id
        self.phase = CommitPhase.CREATED
        self.commits: CommitList[HandleT] | None = None
        self._asked: CommitRequested[HandleT] | None = None
        self._driver: ClaimRequested | ReleaseRequested | None = None
        self._waiting: list[HandleT] = []
        self._aborted: list[HandleT] = []

    def handle(self, event: CommitEvent[HandleT]) -> list[CommitCommand[HandleT]]:
        """Take one event, return what is to be done, in this order.

        Raises ProtocolViolationError for an event that COMMIT_TRANSITIONS does not allow now, StaleEpochError for an epoch
        below the recorded one, or for the recorded one with another content, PeerError for one that was skipped and is not
        recorded, SupersededError where the job is another driver's.
        """
        following = allowed_after(COMMIT_TRANSITIONS, self.phase, event, f"the commit of job {self.job!r}")
        commands = self._apply(event)
        assert self.phase in following, f"{event} has led to {self.phase.name}, which is not in the table"
        return commands

    def _apply(self, event: CommitEvent[HandleT]) -> list[CommitCommand[HandleT]]:
        match event:
            case ClaimRequested() | ReleaseRequested():
                self._driver = event
                return self._fence()
            case RecoveryRequested():
                return self._fence() if self.phase is CommitPhase.CREATED else self._clean_up()
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
            case CleanedUp():
                return self._cleaned_up()
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
        # Nothing of it will be committed, so no clean up follows a commit, and what its tasks have prepared is aborted now.
        # First the epoch is recorded, though it may be already: a driver that was replaced is fenced there, and cleans up
        # nothing.
        if event.epoch > self._recorded_epoch:
            self.commits = CommitList(event.epoch, (), completed=True, content=event.content, claim=self._claim)
        return self._record(CommitPhase.CONFIRMING)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _fenced(self, event: Fenced[HandleT]) -> list[CommitCommand[HandleT]]:
        self.commits = event.commits
        if not self._begins:
            refuse_another(self.job, self.driver_id, self._claim)
            return self._recover()
        assert self.driver_id is not None, "a driver without a driver id claims nothing"
        if self._claim is not None and self._claim.is_of(self.driver_id):
            return self._recover()
        claim = JobClaim(1 if self._claim is None else self._claim.number + 1, self.driver_id)
        self.commits = replace(self.commits or CommitList(None, (), completed=True), claim=claim)
        return self._record(CommitPhase.CLAIMING)

    def _checked(self) -> list[CommitCommand[HandleT]]:
        assert self._asked is not None
        self.commits = CommitList(self._asked.epoch, self._asked.handles, content=self._asked.content, claim=self._claim)
        return self._record(CommitPhase.RECORDING)

    def _recorded(self) -> list[CommitCommand[HandleT]]:
        match self.phase:
            case CommitPhase.CLAIMING:
                return self._recover()
            case CommitPhase.RECORDING:
                return self._end_all()
            case CommitPhase.CONFIRMING:
                return self._clean_up()
            case CommitPhase.RELEASING:
                return self._be_ready()
            case _:
                return self._take_up()

    def _ended(self, event: Ended[HandleT]) -> list[CommitCommand[HandleT]]:
        self._waiting.remove(event.handle)
        if event.outcome is Outcome.ABORTED:
            self._aborted.append(event.handle)
        if self._waiting:
            return []
        if not self._aborted:
            return self._clean_up()
        self.phase = CommitPhase.COPYING
        return [Copy(tuple(self._aborted))]

    def _copied(self, event: Copied[HandleT]) -> list[CommitCommand[HandleT]]:
        assert self.commits is not None
        self.commits = replace(self.commits, handles=event.handles)  # the others are committed
        return self._record(CommitPhase.RECORDING)

    def _cleaned_up(self) -> list[CommitCommand[HandleT]]:
        if self.phase is CommitPhase.CLEARING:
            return self._end_all()
        if self.commits is None or self.commits.completed:
            return self._take_up()
        self.commits = CommitList(self.commits.epoch, (), completed=True, content=self.commits.content, claim=self._claim)
        return self._record(CommitPhase.COMPLETING)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _recover(self) -> list[CommitCommand[HandleT]]:
        if self.commits is None or self.commits.completed:
            return self._clean_up()
        # First, since in a log one that is open hides what comes after it, also from a lookup of that transaction's outcome.
        self.phase = CommitPhase.CLEARING
        return [CleanUp((*self.commits.handles, *self._wanted))]

    def _take_up(self) -> list[CommitCommand[HandleT]]:
        asked = self._asked
        if asked is not None:
            _refuse_skipped(self.job, asked, self._recorded_epoch)
            refuse_stale(self.job, asked.epoch, self._recorded_epoch)
        if asked is None:
            return self._release() if isinstance(self._driver, ReleaseRequested) else self._be_ready()
        if self.commits is not None and asked.epoch == self.commits.epoch:
            refuse_other_content(self.job, asked.epoch, asked.content, self.commits.content)
            return self._be_ready()
        if asked.handles:
            self.phase = CommitPhase.CHECKING
            return [Check(asked.handles)]
        self.commits = CommitList(asked.epoch, (), completed=True, content=asked.content, claim=self._claim)
        return self._record(CommitPhase.COMPLETING)

    def _release(self) -> list[CommitCommand[HandleT]]:
        if self.commits is None or self._claim is None:
            return self._be_ready()
        self.commits = replace(self.commits, claim=replace(self._claim, driver_id=None))
        return self._record(CommitPhase.RELEASING)

    def _be_ready(self) -> list[CommitCommand[HandleT]]:
        self._asked = self._driver = None
        self.phase = CommitPhase.READY
        return []

    def _record(self, phase: CommitPhase) -> list[CommitCommand[HandleT]]:
        assert self.commits is not None
        self.phase = phase
        return [Record(self.commits)]

    def _end_all(self) -> list[CommitCommand[HandleT]]:
        assert self.commits is not None
        self.phase = CommitPhase.ENDING
        self._waiting, self._aborted = list(self.commits.handles), []
        return [End(handle) for handle in self._waiting]

    def _clean_up(self) -> list[CommitCommand[HandleT]]:
        self.phase = CommitPhase.CLEANING_UP
        return [CleanUp(self._wanted)]

    @property
    def _wanted(self) -> tuple[HandleT, ...]:
        """What no clean up aborts: what the request is for, unless its epoch is recorded with other committables."""
        asked = self._asked
        return asked.handles if asked is not None and asked.epoch > self._recorded_epoch else ()

    @property
    def _recorded_epoch(self) -> int:
        """The last epoch whose committables are recorded; -1 if there is none."""
        return -1 if self.commits is None or self.commits.epoch is None else self.commits.epoch

    @property
    def _claim(self) -> JobClaim | None:
        """Who owns the job, by the list; it continues to every list that is recorded."""
        return None if self.commits is None else self.commits.claim

    @property
    def _begins(self) -> bool:
        """Whether this driver is to claim the job: it was asked to, or no driver ever has, as at a query's first start."""
        return isinstance(self._driver, ClaimRequested) or (self.driver_id is not None and self._claim is None)


COMMIT_TRANSITIONS: Transitions[CommitPhase] = {
    (CommitPhase.CREATED, ClaimRequested): (CommitPhase.FENCING,),
    (CommitPhase.CREATED, ReleaseRequested): (CommitPhase.FENCING,),
    (CommitPhase.CREATED, RecoveryRequested): (CommitPhase.FENCING,),
    (CommitPhase.CREATED, CommitRequested): (CommitPhase.FENCING,),
    (CommitPhase.READY, RecoveryRequested): (CommitPhase.CLEANING_UP,),
    # CONFIRMING: the epoch has no rows, or is a replay
    (CommitPhase.READY, CommitRequested): (CommitPhase.CHECKING, CommitPhase.CONFIRMING),
    (CommitPhase.FENCING, Fenced): (CommitPhase.CLAIMING, CommitPhase.CLEARING, CommitPhase.CLEANING_UP),
    (CommitPhase.CLAIMING, Recorded): (CommitPhase.CLEARING, CommitPhase.CLEANING_UP),
    (CommitPhase.CLEARING, CleanedUp): (CommitPhase.ENDING,),
    (CommitPhase.CHECKING, Checked): (CommitPhase.RECORDING,),
    (CommitPhase.RECORDING, Recorded): (CommitPhase.ENDING,),
    (CommitPhase.ENDING, Ended): (CommitPhase.ENDING, CommitPhase.COPYING, CommitPhase.CLEANING_UP),
    (CommitPhase.COPYING, Copied): (CommitPhase.RECORDING,),
    # COMPLETING: the committables are committed, or the epoch that was asked for has none; CHECKING: it has some
    (CommitPhase.CLEANING_UP, CleanedUp): (
        CommitPhase.COMPLETING,
        CommitPhase.CHECKING,
        CommitPhase.RELEASING,
        CommitPhase.READY,
    ),
    # COMPLETING again, or CHECKING: recovery has completed an earlier epoch than the one that was asked for
    (CommitPhase.COMPLETING, Recorded): (
        CommitPhase.READY,
        CommitPhase.CHECKING,
        CommitPhase.COMPLETING,
        CommitPhase.RELEASING,
    ),
    (CommitPhase.CONFIRMING, Recorded): (CommitPhase.CLEANING_UP,),
    (CommitPhase.RELEASING, Recorded): (CommitPhase.READY,),
}


class JobCommitter(Generic[HandleT]):
    """What a runner's driver calls: commits epochs of one job, recovering first. Not thread-safe."""

    def __init__(self, job: str, committer: Committer[HandleT], driver_id: str | None = None) -> None:
        """`driver_id`: the name of a supervised driver, which has claimed the job, or is to."""
        self._core: CommitCore[HandleT] = CommitCore(job, driver_id)
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

    def claim(self) -> None:
        """When a driver with a driver id starts: make the job its own, then `recover`. Who had it is superseded."""
        self._run(ClaimRequested())

    def release(self) -> None:
        """When that driver has ended in good order: `recover`, then release the job, for any driver to claim."""
        self._run(ReleaseRequested())

    def recover(self) -> None:
        """Shut out other drivers of this job, complete its recorded epoch, abort every other transaction of it.

        Raises SupersededError, before anything is changed, where the job is another driver's; so do the others.
        """
        self._run(RecoveryRequested())

    def commit(self, epoch: int, handles: tuple[HandleT, ...], content: str | None = None) -> None:
        """Make these the epoch, for good. An epoch that is recorded already is completed instead, and these are aborted.

        `content`: what the epoch was made from, as in `CommitList`; None when that is not known.

        Raises StaleEpochError for an epoch below the recorded one, and for the recorded one where that was made from something
        else, FencedError when another driver has claimed the job, DataLossError when rows are gone, StateError for handles of
        another write than the recorded one, and what the sink raises. After any of them use a new JobCommitter, which recovers.
        """
        self.commit_requested(CommitRequested(epoch, handles, content))

    def commit_requested(self, asked: CommitRequested[HandleT]) -> None:
        """`commit`, also of what was skipped: raises PeerError for an epoch that was, and is not recorded."""
        self._run(asked)
        capabilities.confirm(self._committer, asked.handles)

    def forget(self) -> None:
        """The job is over for good: drop what is recorded of it."""
        self._committer.forget()

    def close(self) -> None:
        """Give connections back."""
        self._committer.close()

    def _run(self, request: ClaimRequested | ReleaseRequested | RecoveryRequested | CommitRequested[HandleT]) -> None:
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
        return [
            Ended(handle, outcome)
            for handle, outcome in zip(handles, capabilities.end_all(self._committer, handles), strict=True)
        ]

    def _perform(
        self, command: Fence | Check[HandleT] | Record[HandleT] | Copy[HandleT] | CleanUp[HandleT]
    ) -> CommitEvent[HandleT]:
        match command:
            case Fence():
                commits = self._committer.fence()
                self._is_first = commits is None or commits.epoch is None
                return Fenced(commits)
            case Check(handles):
                self._committer.check(handles)
                return Checked()
            case Record(commits):
                self._committer.record(commits)
                return Recorded()
            case Copy(handles):
                return Copied(tuple(capabilities.copy_all(self._committer, handles)))
            case CleanUp(keep):
                self._committer.clean_up(keep)
                return CleanedUp()
            case _:
                assert_never(command)
