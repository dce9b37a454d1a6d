"""What the coordinator process of `headrace run` decides: which workers there are, where a checkpoint is, what to commit.

Events in, commands out, like every core here: no socket, process, thread or clock. It owns the core's `Coordinator` (splits
and positions) and adds what a run has alongside it: workers as processes, handles, timers, and the end of the job.

A checkpoint holds positions and handles together, so it is the list of committables:

    TakeSnapshot to every worker -> each prepares its transaction, and answers with handle and positions
    -> CommitCheckpoint: check the handles, store the checkpoint, end the transactions -> CheckpointCommitted

Workers write on in their next transactions as soon as they have answered. Who was started is known by a *number* that no other
worker of the job ever has, in this lifetime of the coordinator or another; a *slot* is its place among the workers of today.

- A handle waits until a checkpoint with its worker's later positions is stored: one that was given up leaves its handles to the
  next. They are forgotten only with their worker, whose positions go back to the last stored checkpoint, too.
- A checkpoint that would say the same as the last one, without a handle, is not stored (`NoteUnchanged`). Now and then it is,
  so that the age of the last one shows that the run is well.
- A worker is lost when its process is dead, never before: what does not answer is killed first. Messages of a number that is
  not in a slot now are dropped.
- Transactions of a lost worker are aborted by its number (`RetireWorker`), after the checkpoint that is being stored or
  committed then, which may list some of them; those of the others continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Generic, assert_never

from headrace.connectors.base.sink import HandleT
from headrace.enumerator import events as ev
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.coordinator import Coordinator
from headrace.enumerator.errors import HeadraceError, RunFailedError
from headrace.enumerator.split import SplitT
from headrace.enumerator.transitions import Transitions, allowed_after
from headrace.runners.local import events as run
from headrace.runners.local.balanced import BalancedPieces
from headrace.runners.restarts import GiveUp, Restart, Restarts

UNCHANGED_S = 5.0
"""At least so often a checkpoint is stored, in seconds: so a run finds out that another one has taken over, and cleans up."""

DECLINED_S = 0.1
"""After a checkpoint that failed the next is tried this many seconds later, or, unless the run is to stop, after the minimum
pause if that is longer."""


LINGER_SHARE, LONGEST_LINGER_S = 0.05, 0.05
"""Rows may wait for others for this share of the time that they wait for a checkpoint, and at most this long, in seconds."""


class CheckpointFailedError(HeadraceError):
    """More checkpoints in a row have failed than are tolerated: the run starts again from the last one."""


@dataclass(frozen=True, slots=True)
class RunSchedule:
    """When checkpoints are taken, in seconds, by Flink's names and defaults (`execution.checkpointing.*`).

    `tolerable_failed_checkpoints`: this many in a row may fail; one more fails the run.
    `max_delay_s`: after the first rows since a checkpoint the next is taken this many seconds later, if it is not due before;
    None: only by the interval. It is not Flink's.
    """

    interval_s: float
    min_pause_s: float = 0.0
    timeout_s: float = 600.0
    tolerable_failed_checkpoints: int = 0
    max_delay_s: float | None = None

    @property
    def longest_wait_s(self) -> float:
        """From the end of a checkpoint to the start of the next one, at most."""
        return max(self.interval_s, self.min_pause_s)

    @property
    def linger_s(self) -> float:
        """How long records may wait for others to be read together."""
        waits_s = self.interval_s if self.max_delay_s is None else self.max_delay_s
        return min(LONGEST_LINGER_S, LINGER_SHARE * waits_s)

    @property
    def most_unchanged(self) -> int:
        """This many checkpoints in a row may be left out as unchanged: no more than UNCHANGED_S passes meanwhile."""
        return int(min(self.timeout_s / 2, UNCHANGED_S) / self.longest_wait_s)

    @property
    def longest_gap_s(self) -> float:
        """Without a failure no more than this lies between the ends of two checkpoints, but for their commits."""
        return self.longest_wait_s + self.timeout_s


class RunPhase(Enum):
    """Where the run is."""

    CREATED = auto()
    RECOVERING = auto()  # the last checkpoint is being completed
    RUNNING = auto()  # no checkpoint is under way
    COLLECTING = auto()  # workers prepare
    STORING = auto()  # the checkpoint may or may not be durable
    COMMITTING = auto()  # it is durable, its transactions are being ended
    ENDED = auto()


@dataclass(slots=True)
class _Slot:
    """A place for a worker: the number of the one in it, None while there is none, and whether that has joined."""

    number: int | None = None
    joined: bool = False


class RunCore(Generic[SplitT, HandleT]):
    """Owned by the coordinator's main thread. Every call of `handle` returns at once."""

    def __init__(
        self,
        enumerator: BalancedPieces[SplitT],
        schedule: RunSchedule,
        restarts: Restarts,
        *,
        next_number: int,
        last_checkpoint_id: int,
        uncommitted: int = 0,
    ) -> None:
        """Around a fresh or a restored enumerator.

        `restarts`: the failures of the run so far, to which those of workers are added. `next_number`: above that of every
        worker the job ever had. `last_checkpoint_id`: the highest of any checkpoint. `uncommitted`: how many handles of the
        last one may not be committed yet, which recovery does.
        """
        self.phase = RunPhase.CREATED
        self.coordinator: Coordinator[SplitT] = Coordinator(enumerator)
        self._enumerator = enumerator
        self._schedule = schedule
        self._restarts = restarts
        self._slots = [_Slot() for _ in range(enumerator.parallelism)]
        self._next_number = next_number
        self._checkpoint_id = last_checkpoint_id
        self._gathering = True
        self._wanted = False
        self._awaited = 0  # the checkpoint after which the first rows are waited with
        self._written = False  # rows, since the snapshots of their workers
        self._staged = 0
        self._paused = False
        self._stopping = False
        self._uncommitted = uncommitted
        self._failures = 0
        self._prepared: list[run.WorkerHandle[HandleT]] = []
        self._committing: tuple[run.WorkerHandle[HandleT], ...] = ()
        self._after_commit: list[run.RunCommand[SplitT, HandleT]] = []
        self._storing: Checkpoint[SplitT] | None = None
        self._stored_last: Checkpoint[SplitT] | None = None
        self._unchanged = 0

    @property
    def workers(self) -> Mapping[int, int]:
        """Numbers of the workers that are started now -> their slots."""
        return {slot.number: place for place, slot in enumerate(self._slots) if slot.number is not None}

    @property
    def held(self) -> Mapping[int, int]:
        """Numbers of the workers that are started now -> how many splits each holds."""
        return {number: self._enumerator.ledger.load(place) for number, place in self.workers.items()}

    def handle(self, event: run.RunEvent[SplitT, HandleT]) -> list[run.RunCommand[SplitT, HandleT]]:
        """Take one event, return what is to be done, in this order.

        Raises ProtocolViolationError for an event that RUN_TRANSITIONS does not allow now; nothing is changed then.
        """
        following = allowed_after(RUN_TRANSITIONS, self.phase, event, "the run")
        if self.phase is RunPhase.ENDED:
            return []
        commands = self._apply(event) + self._trigger_if_due()
        assert self.phase in following, f"{event} has led to {self.phase.name}, which is not in the table"
        return commands

    def _apply(self, event: run.RunEvent[SplitT, HandleT]) -> list[run.RunCommand[SplitT, HandleT]]:
        match event:
            case run.RunStarted():
                self.phase = RunPhase.RECOVERING
                return [*(self._start(place) for place in range(len(self._slots))), run.Recover()]
            case run.RunRecovered():
                return self._recovered()
            case run.WorkerJoined() | run.WorkerSilent() | run.WorkerDied() | run.SplitDone():
                return self._of_worker(event)
            case run.WorkerWrote() | run.WorkerSnapshotted():
                return self._of_worker(event)
            case run.CheckpointStored():
                return self._stored(event)
            case run.CheckpointIsNotStored():
                return self._core(ev.CheckpointAborted(event.checkpoint_id)) + self._failed(event.checkpoint_id, event.reason)
            case run.CheckpointCommitted():
                return self._committed()
            case run.CheckpointDue():
                self._wanted = True
                return [run.SetTimer(self._schedule.interval_s, event)]
            case run.RowsDue(checkpoint_id):
                self._wanted = self._wanted or checkpoint_id == self._checkpoint_id
                return []
            case run.PauseOver():
                self._paused = False
                return []
            case run.CheckpointTimedOut():
                return self._timed_out(event)
            case run.RestartDue(slot):
                return [self._start(slot)] if self._slots[slot].number is None else []
            case run.JoinTimeout():
                return self._assemble()
            case run.StopRequested():
                return self._stop()
            case ev.SplitsDiscovered() | ev.SplitsGone() | ev.FinishedReported() | ev.DiscoveryFailed() | ev.DiscoveryDue():
                return self._core(event)
            case _:
                assert_never(event)

    def _stop(self) -> list[run.RunCommand[SplitT, HandleT]]:
        self._stopping = True
        if self.phase is RunPhase.RECOVERING and not self._uncommitted:
            return self._end(finished=False)  # no row is read yet, and recovery may wait for a server for a minute
        return self._force()

    # --- workers ------------------------------------------------------------------------------------------------------

    def _start(self, place: int) -> run.StartWorker:
        number, self._next_number = self._next_number, self._next_number + 1
        self._slots[place] = _Slot(number)
        return run.StartWorker(place, number)

    def _of_worker(self, event: run.WorkerEvent[SplitT, HandleT]) -> list[run.RunCommand[SplitT, HandleT]]:
        place = self.workers.get(event.number)
        if place is None:
            return []  # of one that is dead
        match event:
            case run.WorkerSilent():
                return [run.KillWorker(event.number)]
            case run.WorkerDied():
                return self._died(place, event)
            case run.WorkerJoined():
                self._slots[place].joined = True
                return self._gather() if self._gathering else self._core(ev.ReaderRegistered(place))
            case run.SplitDone():
                return self._core(ev.SplitFinished(place, event.split_id))
            case run.WorkerWrote():
                return self._wrote(place)
            case run.WorkerSnapshotted():
                self._prepared += [run.WorkerHandle(event.number, handle) for handle in event.handles]
                return self._core(ev.ReaderSnapshotted(place, event.checkpoint_id, event.states, event.unmoved))
            case _:
                assert_never(event)

    def _wrote(self, place: int) -> list[run.RunCommand[SplitT, HandleT]]:
        if place in self.coordinator.waiting_for:
            return self._stage()  # the checkpoint under way has them
        self._written = True
        return self._await_next()

    def _await_next(self) -> list[run.RunCommand[SplitT, HandleT]]:
        """There are rows that the next checkpoint is to have soon."""
        if self._schedule.max_delay_s is None or self._awaited == self._checkpoint_id + 1:
            return []
        self._awaited = self._checkpoint_id + 1
        return [run.SetTimer(self._schedule.max_delay_s, run.RowsDue(self._checkpoint_id))]

    def _died(self, place: int, event: run.WorkerDied) -> list[run.RunCommand[SplitT, HandleT]]:
        self._slots[place] = _Slot()
        self._prepared = [prepared for prepared in self._prepared if prepared.number != event.number]
        commands: list[run.RunCommand[SplitT, HandleT]] = [run.RetireWorker(event.number)]
        if event.is_final:
            return [*commands, *self._fail(RunFailedError(event.reason))]
        failed = self._restarts.failed_unclassified if event.is_unclassified else self._restarts.failed
        match failed(event.now_s, event.chance):
            case GiveUp(reason):
                return [*commands, *self._fail(RunFailedError(f"{event.reason}; not restarted: {reason}"))]
            case Restart(delay_s):
                commands.append(run.ReportWorkerLost(event.number, event.reason, delay_s))
                commands.append(run.SetTimer(delay_s, run.RestartDue(place)))
        # While the first workers gather none of them is registered.
        return commands + (self._gather() if self._gathering else self._core(ev.ReaderLost(place)))

    def _recovered(self) -> list[run.RunCommand[SplitT, HandleT]]:
        self.phase = RunPhase.RUNNING
        return [
            run.SetTimer(10.0, run.JoinTimeout()),  # the first assignment waits so long for workers that have not joined yet
            run.SetTimer(self._schedule.interval_s, run.CheckpointDue()),
            *self._core(ev.Started()),
            *self._gather(),
        ]

    def _gather(self) -> list[run.RunCommand[SplitT, HandleT]]:
        """The first workers get their splits when all of them are there, or they would not be shared evenly."""
        if self.phase is RunPhase.RECOVERING or any(slot.number is not None and not slot.joined for slot in self._slots):
            return []
        return self._assemble()

    def _assemble(self) -> list[run.RunCommand[SplitT, HandleT]]:
        if not self._gathering:
            return []
        self._gathering = False
        joined = [place for place, slot in enumerate(self._slots) if slot.joined]
        commands = [command for place in joined[:-1] for command in self._core(ev.ReaderRegistered(place))]
        self._enumerator.release()
        return commands + [command for place in joined[-1:] for command in self._core(ev.ReaderRegistered(place))]

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _trigger_if_due(self) -> list[run.RunCommand[SplitT, HandleT]]:
        if not self._wanted or self._paused or self.phase is not RunPhase.RUNNING:
            return []
        if not self._enumerator.initialised:
            # There is nothing to store; who stops now starts over the next time.
            return self._end(finished=False) if self._stopping else []
        self._wanted = False
        self._checkpoint_id += 1
        self.phase = RunPhase.COLLECTING
        has_rows, self._written = self._written or bool(self._prepared), False
        return [
            run.SetTimer(self._schedule.timeout_s, run.CheckpointTimedOut(self._checkpoint_id)),
            *(self._stage() if has_rows else ()),
            *self._core(ev.CheckpointTriggered(self._checkpoint_id)),
        ]

    def _stage(self) -> list[run.RunCommand[SplitT, HandleT]]:
        if self._staged == self._checkpoint_id:
            return []
        self._staged = self._checkpoint_id
        return [run.StageCheckpoint(self._checkpoint_id)]

    def _stored(self, event: run.CheckpointStored) -> list[run.RunCommand[SplitT, HandleT]]:
        self.phase = RunPhase.COMMITTING
        stored = set(map(id, self._committing))
        self._prepared = [prepared for prepared in self._prepared if id(prepared) not in stored]
        self._committing = ()
        self._failures = 0
        joined = [slot.number for slot in self._slots if slot.joined and slot.number is not None]
        notified = (run.NotifyCheckpointStored(number, event.checkpoint_id) for number in joined)
        return [*notified, *self._core(ev.CheckpointCompleted(event.checkpoint_id))]

    def _committed(self) -> list[run.RunCommand[SplitT, HandleT]]:
        self.phase = RunPhase.RUNNING
        self._stored_last = self._storing
        publish, self._after_commit = self._after_commit, []
        finished = self._finished()
        if finished or self._stopping:
            return publish + self._end(finished=finished)
        return publish + self._pause(self._schedule.min_pause_s)

    def _finished(self) -> bool:
        """Every split is read to its end, and the stored checkpoint says so."""
        enumerator = self._enumerator
        held = any(enumerator.ledger.load(place) for place in range(len(self._slots)))
        return enumerator.exhausted and enumerator.ledger.all_finished and not held

    def _pause(self, delay_s: float) -> list[run.RunCommand[SplitT, HandleT]]:
        if delay_s <= 0:
            return []
        self._paused = True
        return [run.SetTimer(delay_s, run.PauseOver())]

    def _force(self) -> list[run.RunCommand[SplitT, HandleT]]:
        """A last checkpoint does not wait for the minimum pause (as Flink's forced checkpoints)."""
        self._wanted, self._paused = True, False
        return []

    def _pause_after_failure(self) -> list[run.RunCommand[SplitT, HandleT]]:
        return self._pause(DECLINED_S if self._stopping else max(DECLINED_S, self._schedule.min_pause_s))

    def _declined(self, event: ev.DeclineCheckpoint) -> list[run.RunCommand[SplitT, HandleT]]:
        """A worker was lost meanwhile: no fault of the checkpoint."""
        self.phase = RunPhase.RUNNING
        self._wanted = True
        return [run.ReportCheckpointFailure(event.checkpoint_id, event.reason), *self._pause_after_failure()]

    def _failed(self, checkpoint_id: int, reason: str) -> list[run.RunCommand[SplitT, HandleT]]:
        self.phase = RunPhase.RUNNING
        self._committing = ()
        self._failures += 1
        most = self._schedule.tolerable_failed_checkpoints
        if self._failures > most:
            return self._fail(
                CheckpointFailedError(f"checkpoint {checkpoint_id} has failed: {reason}; tolerable failed checkpoints: {most}")
            )
        self._wanted = self._wanted or self._stopping
        failure = run.ReportCheckpointFailure(checkpoint_id, reason)
        return [failure, *self._pause_after_failure(), *self._await_next()]  # which has the rows of this one, too

    def _timed_out(self, event: run.CheckpointTimedOut) -> list[run.RunCommand[SplitT, HandleT]]:
        if event.checkpoint_id != self._checkpoint_id:
            return []
        reason = f"it was not complete after {self._schedule.timeout_s:g} s"
        if self.phase is RunPhase.COLLECTING:
            late = ", ".join(f"worker {self._number(reader)}" for reader in self.coordinator.waiting_for)
            reason += f"; {late} did not prepare for it in that time: the transform, a read or a write takes longer, or hangs"
            return self._core(ev.CheckpointAborted(event.checkpoint_id)) + self._failed(event.checkpoint_id, reason)
        if self.phase is RunPhase.STORING:
            # It may be stored or not: only the process that reads the store again can tell.
            unknown = (
                f"checkpoint {event.checkpoint_id}: {reason}, and whether it is stored is not known. What the sink does "
                "before, such as a merge of changes into a table, counts: raise the timeout if that takes longer"
            )
            return self._fail(CheckpointFailedError(unknown))
        return []

    # --- the core ----------------------------------------------------------------------------------------------------

    def _core(self, event: ev.Event[SplitT]) -> list[run.RunCommand[SplitT, HandleT]]:
        return [done for command in self.coordinator.handle(event) for done in self._translated(command)]

    def _translated(self, command: ev.Command[SplitT]) -> list[run.RunCommand[SplitT, HandleT]]:
        match command:
            case ev.Assign(reader, splits):
                return [run.AssignSplits(self._number(reader), splits)]
            case ev.SnapshotReader(reader, checkpoint_id):
                return [run.TakeSnapshot(self._number(reader), checkpoint_id)]
            case ev.PersistCheckpoint(checkpoint):
                return self._persist(checkpoint)
            case ev.DeclineCheckpoint():
                return self._declined(command)
            case ev.ScheduleDiscovery(delay_s):
                return [run.SetTimer(delay_s, ev.DiscoveryDue())]
            case ev.Fail(error):
                return self._fail(error)
            case ev.SourceFinished():
                return self._force()  # its end becomes durable, and the run ends
            case ev.NoMoreSplits():
                return []  # workers stay until the whole source is finished: others' splits may come to them
            case ev.PublishPositions() | ev.ReportFinished() if self.phase is RunPhase.COMMITTING:
                # With the rows, not before them: the checkpoint may be rolled back until then, and be read again. And no
                # refused position ends a run while its rows are being committed.
                self._after_commit.append(command)
                return []
            case _:
                return [command]  # to the source

    def _persist(self, checkpoint: Checkpoint[SplitT]) -> list[run.RunCommand[SplitT, HandleT]]:
        if self._is_unchanged(checkpoint):
            self._unchanged, self._failures = self._unchanged + 1, 0
            self.phase = RunPhase.RUNNING
            done = self._core(ev.CheckpointCompleted(checkpoint.checkpoint_id))
            kept = [command for command in done if not isinstance(command, ev.PublishPositions)]
            return [run.NoteUnchanged(checkpoint.checkpoint_id), *kept, *self._pause(self._schedule.min_pause_s)]
        self._storing, self._unchanged = checkpoint, 0
        self.phase = RunPhase.STORING
        self._committing = tuple(self._prepared)
        return [run.CommitCheckpoint(checkpoint, self._committing)]

    def _is_unchanged(self, checkpoint: Checkpoint[SplitT]) -> bool:
        """Whether it is to be left out. What a run ends with is stored in any case."""
        is_last = self._stopping or (self._enumerator.exhausted and self._enumerator.ledger.all_finished)
        if self._stored_last is None or self._prepared or is_last or self._unchanged >= self._schedule.most_unchanged:
            return False
        return checkpoint == replace(self._stored_last, checkpoint_id=checkpoint.checkpoint_id)

    def _number(self, reader: int) -> int:
        number = self._slots[reader].number
        assert number is not None
        return number

    # --- the end ------------------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> list[run.RunCommand[SplitT, HandleT]]:
        self.phase = RunPhase.ENDED
        return [run.FailRun(error)]

    def _end(self, *, finished: bool) -> list[run.RunCommand[SplitT, HandleT]]:
        self.phase = RunPhase.ENDED
        return [*(run.StopWorker(number) for number in self.workers), run.EndRun(finished)]


_OPEN = (RunPhase.RUNNING, RunPhase.COLLECTING, RunPhase.STORING, RunPhase.COMMITTING)
_CHECKPOINT_TIMERS = (run.CheckpointDue, run.RowsDue, run.PauseOver, run.CheckpointTimedOut)
_TRIGGERED = (RunPhase.COLLECTING, RunPhase.STORING)  # STORING: there is no worker to wait for

RUN_TRANSITIONS: Transitions[RunPhase] = {
    (RunPhase.CREATED, run.RunStarted): (RunPhase.RECOVERING,),
    # STORING: a source that was finished is so at once
    (RunPhase.RECOVERING, run.RunRecovered): (RunPhase.RUNNING, *_TRIGGERED, RunPhase.ENDED),
    **{
        (phase, event): (phase,)
        for phase in (RunPhase.RECOVERING, *_OPEN)
        for event in (run.WorkerJoined, run.WorkerSilent, run.RestartDue, run.StopRequested)
    },
    # ENDED: nothing is read yet, and nothing of an earlier lifetime is to be committed
    (RunPhase.RECOVERING, run.StopRequested): (RunPhase.RECOVERING, RunPhase.ENDED),
    **{
        (phase, event): (phase,)
        for phase in _OPEN
        for event in (
            *(run.SplitDone, run.WorkerWrote, run.WorkerSnapshotted),
            *(ev.SplitsDiscovered, ev.SplitsGone, ev.FinishedReported),
            *(ev.DiscoveryDue, *_CHECKPOINT_TIMERS, run.JoinTimeout),
        )
    },
    # ENDED: the restart strategy gives up, or there is no first discovery
    **{(phase, run.WorkerDied): (phase, RunPhase.ENDED) for phase in (RunPhase.RECOVERING, *_OPEN)},
    **{(phase, ev.DiscoveryFailed): (phase, RunPhase.ENDED) for phase in _OPEN},
    # what lets a checkpoint start
    **{
        (RunPhase.RUNNING, event): (RunPhase.RUNNING, *_TRIGGERED)
        for event in (run.CheckpointDue, run.RowsDue, run.PauseOver, ev.SplitsDiscovered, run.SplitDone)
    },
    # ENDED: before the first discovery there is nothing to store
    (RunPhase.RUNNING, run.StopRequested): (RunPhase.RUNNING, *_TRIGGERED, RunPhase.ENDED),
    (RunPhase.RUNNING, run.WorkerDied): (RunPhase.RUNNING, *_TRIGGERED, RunPhase.ENDED),
    # RUNNING: nothing has changed
    (RunPhase.COLLECTING, run.WorkerSnapshotted): (RunPhase.COLLECTING, RunPhase.RUNNING, RunPhase.STORING),
    (RunPhase.COLLECTING, run.WorkerDied): (RunPhase.COLLECTING, RunPhase.RUNNING, RunPhase.ENDED),
    (RunPhase.COLLECTING, run.CheckpointTimedOut): (RunPhase.COLLECTING, RunPhase.RUNNING, RunPhase.ENDED),
    (RunPhase.STORING, run.CheckpointTimedOut): (RunPhase.STORING, RunPhase.ENDED),
    (RunPhase.STORING, run.CheckpointStored): (RunPhase.COMMITTING,),
    (RunPhase.STORING, run.CheckpointIsNotStored): (RunPhase.RUNNING, RunPhase.ENDED),
    (RunPhase.COMMITTING, run.CheckpointCommitted): (RunPhase.RUNNING, *_TRIGGERED, RunPhase.ENDED),
    **{
        (RunPhase.ENDED, event): (RunPhase.ENDED,)
        for event in (
            *(run.WorkerJoined, run.WorkerSilent, run.WorkerDied, run.SplitDone, run.WorkerWrote, run.WorkerSnapshotted),
            run.StopRequested,
            *(run.RunRecovered, run.CheckpointStored, run.CheckpointIsNotStored, run.CheckpointCommitted),
            *(ev.SplitsDiscovered, ev.SplitsGone, ev.FinishedReported, ev.DiscoveryFailed, ev.DiscoveryDue),
            *(*_CHECKPOINT_TIMERS, run.RestartDue, run.JoinTimeout),
        )
    },
}
