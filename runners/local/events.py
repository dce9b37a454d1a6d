"""Events and commands of `RunCore`: what happens in a run, and what is to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic

from headrace.connectors.base.sink import HandleT
from headrace.enumerator import events as ev
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.split import SplitT


@dataclass(frozen=True, slots=True)
class WorkerHandle(Generic[HandleT]):
    """A prepared transaction, and the number of the worker that wrote it: its sink job is named by it."""

    number: int
    handle: HandleT


# --- events; those about the source are of `headrace.enumerator.events` ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The store is open and ours."""


@dataclass(frozen=True, slots=True)
class RunRecovered:
    """Answer to Recover."""


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """The worker of this number has said hello, and its version is ours."""

    number: int


@dataclass(frozen=True, slots=True)
class WorkerSilent:
    """Nothing was heard of the worker for longer than the heartbeat timeout, or its stream has ended."""

    number: int


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """The worker's process has ended: that is certain. `now_s`: monotonic; `chance` of [0, 1) varies the delay of a restart.

    `is_final`: it has said itself that no other worker would do better (an option that cannot be honoured, a lost record).
    `is_unclassified`: that another one may never do better (`UnclassifiedError`).
    """

    number: int
    reason: str
    now_s: float
    chance: float
    is_final: bool = False
    is_unclassified: bool = False


@dataclass(frozen=True, slots=True)
class SplitDone:
    """The worker has delivered a split to its end."""

    number: int
    split_id: str


@dataclass(frozen=True, slots=True)
class WorkerWrote:
    """The worker has written rows, the first since its last snapshot."""

    number: int


@dataclass(frozen=True, slots=True)
class WorkerSnapshotted(Generic[SplitT, HandleT]):
    """Answer to TakeSnapshot: all that the worker has written is prepared, in `handles`, up to the positions in `states`.

    `unmoved`: it holds this many splits more, which are where the last stored checkpoint has them.
    `counts`: what it has counted since its last answer, by the names of the status. The core does not look at them.
    """

    number: int
    checkpoint_id: int
    states: Mapping[str, SplitState[SplitT]]
    handles: tuple[HandleT, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    unmoved: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """The checkpoint of CommitCheckpoint is durable; its transactions are being ended."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CheckpointIsNotStored:
    """The checkpoint of CommitCheckpoint is certain not to be there: nothing of it will ever be read."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """Answer to CommitCheckpoint: its transactions are committed."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """It is time for a checkpoint."""


@dataclass(frozen=True, slots=True)
class RowsDue:
    """The first rows since this checkpoint have waited for the longest delay, unless another was triggered since."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class PauseOver:
    """The minimum pause after the checkpoint before is over."""


@dataclass(frozen=True, slots=True)
class CheckpointTimedOut:
    """The checkpoint's time is over, if it is still under way."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class RestartDue:
    """The delay before this slot's next worker is over."""

    slot: int


@dataclass(frozen=True, slots=True)
class JoinTimeout:
    """The process that has not joined by now is not waited for."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Stop with a savepoint: take a last checkpoint, commit it, end."""


RunTimer = CheckpointDue | RowsDue | PauseOver | CheckpointTimedOut | RestartDue | JoinTimeout | ev.DiscoveryDue

WorkerEvent = WorkerJoined | WorkerSilent | WorkerDied | SplitDone | WorkerWrote | WorkerSnapshotted[SplitT, HandleT]

RunEvent = (
    RunStarted
    | RunRecovered
    | WorkerEvent[SplitT, HandleT]
    | CheckpointStored
    | CheckpointIsNotStored
    | CheckpointCommitted
    | RunTimer
    | StopRequested
    | ev.SourceAnswer[SplitT]
)

# --- commands; those to the source are of `headrace.enumerator.events` ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recover:
    """Complete the last checkpoint: commit what it lists, abort everything else of the job. Answered by RunRecovered."""


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a process as the worker of this number."""

    slot: int
    number: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End its process. WorkerDied follows."""

    number: int


@dataclass(frozen=True, slots=True)
class RetireWorker:
    """The process is dead: abort what it has left, once every CommitCheckpoint from before is done."""

    number: int


@dataclass(frozen=True, slots=True)
class AssignSplits(Generic[SplitT]):
    """To a worker: read these."""

    number: int
    splits: tuple[SplitT, ...]


@dataclass(frozen=True, slots=True)
class StageCheckpoint:
    """Workers prepare rows for this checkpoint now. Meanwhile the part of its commit that does not depend on them is done."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """To a worker: prepare what was written, and report. Answered by WorkerSnapshotted."""

    number: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class NotifyCheckpointStored:
    """To a worker: this checkpoint is durable."""

    number: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class StopWorker:
    """To a worker: abort what is open, and end."""

    number: int


@dataclass(frozen=True, slots=True)
class CommitCheckpoint(Generic[SplitT, HandleT]):
    """Store the checkpoint with these handles, then commit them.

    CheckpointStored or CheckpointIsNotStored reports the first, CheckpointCommitted of the second.
    """

    checkpoint: Checkpoint[SplitT]
    handles: tuple[WorkerHandle[HandleT], ...]


@dataclass(frozen=True, slots=True)
class NoteUnchanged:
    """This checkpoint has no handle and the positions of the last one, which therefore stays: the run is where it was."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send this event in this many seconds."""

    delay_s: float
    timer: RunTimer


@dataclass(frozen=True, slots=True)
class ReportCheckpointFailure:
    """Warn: this checkpoint has failed, and the run continues."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReportWorkerLost:
    """Warn: a worker has died, and its slot gets another one in this many seconds."""

    number: int
    reason: str
    restart_in_s: float


@dataclass(frozen=True, slots=True)
class FailRun:
    """End all workers; the run has failed with this."""

    error: Exception


@dataclass(frozen=True, slots=True)
class EndRun:
    """StopWorker was sent to all workers; the run is over. `finished`: the source is read to its end."""

    finished: bool


RunCommand = (
    Recover
    | StartWorker
    | KillWorker
    | RetireWorker
    | AssignSplits[SplitT]
    | StageCheckpoint
    | TakeSnapshot
    | NotifyCheckpointStored
    | StopWorker
    | CommitCheckpoint[SplitT, HandleT]
    | NoteUnchanged
    | SetTimer
    | ReportCheckpointFailure
    | ReportWorkerLost
    | FailRun
    | EndRun
    | ev.SourceCommand[SplitT]
)
