"""The coordinator: events in, commands out. Registered readers and the checkpoint protocol around one enumerator.

Checkpoints. A checkpoint is collected from the readers (COLLECTING), then made durable by the runner (PERSISTING). It is put
together in one step when the last reader has answered, from the one ledger, so a split cannot be in two places of it
or in none (I1). While a checkpoint is PERSISTING nothing is assigned: should a reader be lost just then, where its splits
continue depends on whether the checkpoint becomes durable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, assert_never

from headrace.enumerator import events as ev
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.enumerator import SplitEnumerator
from headrace.enumerator.errors import ProtocolViolationError
from headrace.enumerator.events import Command, Event
from headrace.enumerator.ledger import Finished, FinishedBy, SplitState
from headrace.enumerator.split import SplitT
from headrace.enumerator.transitions import Transitions, allowed_after


class CheckpointPhase(Enum):
    """Where the coordinator is with its checkpoint."""

    CREATED = auto()  # not started
    RUNNING = auto()  # no checkpoint under way
    COLLECTING = auto()  # waiting for readers' snapshots
    PERSISTING = auto()  # waiting for CheckpointCompleted or CheckpointAborted


@dataclass(slots=True)
class _Pending(Generic[SplitT]):
    """The checkpoint under way."""

    checkpoint_id: int
    waiting_for: dict[int, frozenset[str]]
    """Reader -> what it held when the checkpoint was triggered, and so must report."""
    states: dict[str, SplitState[SplitT]] = field(default_factory=dict)


class Coordinator(Generic[SplitT]):
    """Owned by one thread of the runner's coordinator process. Every call to `handle` returns at once."""

    def __init__(self, enumerator: SplitEnumerator[SplitT]) -> None:
        """Around a fresh or a restored enumerator."""
        self.enumerator = enumerator
        self.phase: CheckpointPhase = CheckpointPhase.CREATED
        self._readers: dict[int, None] = {}
        self._notified_no_more: set[int] = set()
        self._notified_finished = False
        self._reporting: set[str] = set()
        self._pending: _Pending[SplitT] | None = None

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Readers whose snapshots the checkpoint under way lacks; empty without one."""
        return () if self._pending is None else tuple(sorted(self._pending.waiting_for))

    def handle(self, event: Event[SplitT]) -> list[Command[SplitT]]:
        """Take one event, return what is to be done, in this order.

        Raises ProtocolViolationError for an event that CHECKPOINT_TRANSITIONS does not allow now; nothing is changed then.
        """
        following = allowed_after(CHECKPOINT_TRANSITIONS, self.phase, event, "the coordinator")
        commands = self._apply(event) + self.enumerator.continued() + self._assign() + self._signals()
        assert self.phase in following, f"{event} has led to {self.phase.name}, which is not in the table"
        return commands

    def _apply(self, event: Event[SplitT]) -> list[Command[SplitT]]:
        match event:
            case ev.Started():
                return self._started()
            case ev.SplitsDiscovered():
                return self.enumerator.discovered(event.findings)
            case ev.DiscoveryFailed():
                return self.enumerator.discovery_failed(event.error)
            case ev.DiscoveryDue():
                return self.enumerator.discovery_due()
            case ev.SplitsGone():
                self.enumerator.ledger.mark_gone(event.split_ids)
                return []
            case ev.FinishedReported():
                return self._reported(event)
            case ev.ReaderRegistered():
                return self._registered(event)
            case ev.ReaderLost():
                return self._lost(event)
            case ev.SplitRequested(reader):
                self._expect_registered(reader)
                self.enumerator.split_requested(reader)
                self._notified_no_more.discard(reader)  # a new request, which NoMoreSplits may have to answer again
                return []
            case ev.SplitFinished(reader, split_id):
                self._expect_registered(reader)
                self.enumerator.ledger.finish(split_id, reader)
                return []
            case ev.CheckpointTriggered():
                return self._triggered(event)
            case ev.ReaderSnapshotted():
                return self._snapshotted(event)
            case ev.CheckpointCompleted():
                return self._completed(event)
            case ev.CheckpointAborted():
                return self._aborted(event)
            case _:
                assert_never(event)

    # --- readers ------------------------------------------------------------------------------------------------------

    def _started(self) -> list[Command[SplitT]]:
        self.phase = CheckpointPhase.RUNNING
        return self.enumerator.start() + self._report_finished()

    def _registered(self, event: ev.ReaderRegistered) -> list[Command[SplitT]]:
        if not 0 <= event.reader < self.enumerator.parallelism:
            raise ProtocolViolationError(f"reader {event.reader} is not a slot of 0..{self.enumerator.parallelism - 1}")
        commands = self._lost(ev.ReaderLost(event.reader)) if event.reader in self._readers else []
        self._readers[event.reader] = None
        self.enumerator.reader_registered(event.reader)
        return commands

    def _lost(self, event: ev.ReaderLost) -> list[Command[SplitT]]:
        if event.reader not in self._readers:
            return []
        del self._readers[event.reader]
        self._notified_no_more.discard(event.reader)
        self.enumerator.reader_lost(event.reader)
        self._notified_finished = False
        if self.phase is CheckpointPhase.COLLECTING:
            # Its answer will not come, or has come but what it delivered is lost: this checkpoint cannot be had.
            return self._give_up(f"reader {event.reader} was lost")
        return []

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _triggered(self, event: ev.CheckpointTriggered) -> list[Command[SplitT]]:
        if self._pending is not None:
            return [ev.DeclineCheckpoint(event.checkpoint_id, f"checkpoint {self._pending.checkpoint_id} is still under way")]
        if not self.enumerator.initialised:
            return [ev.DeclineCheckpoint(event.checkpoint_id, "the initial discovery has not answered yet")]
        ledger = self.enumerator.ledger
        self._pending = _Pending(event.checkpoint_id, {r: frozenset(ledger.held_by(r)) for r in self._readers})
        self.phase = CheckpointPhase.COLLECTING
        return [ev.SnapshotReader(reader, event.checkpoint_id) for reader in self._readers] + self._persist_if_complete()

    def _snapshotted(self, event: ev.ReaderSnapshotted[SplitT]) -> list[Command[SplitT]]:
        pending = self._pending
        if pending is None or event.checkpoint_id != pending.checkpoint_id or event.reader not in pending.waiting_for:
            return []  # late answer to a checkpoint that was given up
        self._check_snapshot(event, pending.waiting_for[event.reader])
        del pending.waiting_for[event.reader]
        pending.states.update({key: state for key, state in event.states.items() if key in self.enumerator.ledger})
        return self._persist_if_complete()

    def _persist_if_complete(self) -> list[Command[SplitT]]:
        pending = self._pending
        assert pending is not None
        if pending.waiting_for:
            return []
        self.phase = CheckpointPhase.PERSISTING
        enumerator = self.enumerator
        states = tuple(enumerator.ledger.snapshot(pending.states))
        place = enumerator.exhausted, enumerator.cursor, enumerator.stage
        return [ev.PersistCheckpoint(Checkpoint(pending.checkpoint_id, states, *place))]

    def _completed(self, event: ev.CheckpointCompleted) -> list[Command[SplitT]]:
        pending = self._expect_pending(event.checkpoint_id)
        self.enumerator.ledger.make_durable(pending.states)
        self._pending, self.phase = None, CheckpointPhase.RUNNING
        positions = tuple(entry.durable for entry in self.enumerator.ledger if not entry.gone)
        return [ev.PublishPositions(positions), *self._report_finished()]

    def _aborted(self, event: ev.CheckpointAborted) -> list[Command[SplitT]]:
        if self._pending is None or event.checkpoint_id < self._pending.checkpoint_id:
            return []  # of a checkpoint that was given up
        self._expect_pending(event.checkpoint_id)
        self._pending, self.phase = None, CheckpointPhase.RUNNING
        return []

    def _give_up(self, reason: str) -> list[Command[SplitT]]:
        assert self._pending is not None
        checkpoint_id = self._pending.checkpoint_id
        self._pending, self.phase = None, CheckpointPhase.RUNNING
        return [ev.DeclineCheckpoint(checkpoint_id, reason)]

    # --- splits that are read to their end ----------------------------------------------------------------------------

    def _report_finished(self) -> list[Command[SplitT]]:
        """They stay in the ledger, and so in every checkpoint, until the answer: so each is reported, whatever happens."""
        finished = [split for split in self.enumerator.ledger.unreported if split.split_id not in self._reporting]
        self._reporting.update(split.split_id for split in finished)
        return [ev.ReportFinished(tuple(finished))] if finished else []

    def _reported(self, event: ev.FinishedReported) -> list[Command[SplitT]]:
        """If it has failed, the next completed checkpoint is another try."""
        self._reporting -= event.split_ids
        if event.is_done:
            self.enumerator.finished_reported(event.split_ids)
        return []

    # --- what follows from the state ----------------------------------------------------------------------------------

    def _assign(self) -> list[Command[SplitT]]:
        if self.phase is CheckpointPhase.PERSISTING or not self.enumerator.initialised:
            return []
        assigns = self.enumerator.assignments(list(self._readers))
        self._notified_no_more.difference_update(assign.reader for assign in assigns)
        return list(assigns)

    def _signals(self) -> list[Command[SplitT]]:
        """End-of-input signals, from the state alone: so a restore brings them about again (I8, FLINK-31006)."""
        if not self.enumerator.exhausted or self.enumerator.ledger.unassigned:
            return []
        unnotified = [reader for reader in self._readers if reader not in self._notified_no_more]
        self._notified_no_more.update(unnotified)
        commands: list[Command[SplitT]] = [ev.NoMoreSplits(reader) for reader in unnotified]
        if self.enumerator.ledger.all_finished and not self._notified_finished:
            self._notified_finished = True
            commands.append(ev.SourceFinished())
        return commands

    # --- checks -------------------------------------------------------------------------------------------------------

    def _expect_registered(self, reader: int) -> None:
        if reader not in self._readers:
            raise ProtocolViolationError(f"reader {reader} is not registered")

    def _expect_pending(self, checkpoint_id: int) -> _Pending[SplitT]:
        pending = self._pending
        if pending is None or pending.checkpoint_id != checkpoint_id:
            raise ProtocolViolationError(f"checkpoint {checkpoint_id} is not the one under way ({pending})")
        return pending

    def _check_snapshot(self, event: ev.ReaderSnapshotted[SplitT], owed: frozenset[str]) -> None:
        """The reader must report what it held when the checkpoint was triggered, and nothing that it does not hold.

        It may hold more by now: so that it leaves out no more splits than it reports as unmoved is what can be known.
        """
        ledger = self.enumerator.ledger
        unreported = owed - event.states.keys()
        if len(unreported) > event.unmoved:
            raise ProtocolViolationError(f"reader {event.reader} does not report its splits {sorted(unreported)}")
        # A reader that missed the completion of a checkpoint reports what finished in it again: harmless.
        unheld = event.states.keys() - set(ledger.held_by(event.reader))
        foreign = {split_id for split_id in unheld if not self._is_finished(event.states[split_id])}
        if foreign:
            raise ProtocolViolationError(f"reader {event.reader} reports splits it does not hold: {sorted(foreign)}")
        for split_id, state in event.states.items():
            if split_id in ledger and state.finished != isinstance(ledger[split_id].place, (FinishedBy, Finished)):
                raise ProtocolViolationError(f"reader {event.reader} and its SplitFinished events disagree on {split_id}")

    def _is_finished(self, state: SplitState[SplitT]) -> bool:
        """Durably. It may be forgotten since."""
        split_id, ledger = state.split.split_id, self.enumerator.ledger
        if split_id in ledger:
            return isinstance(ledger[split_id].place, Finished)
        return state.finished and self.enumerator.forgets(state.split)


_STARTED = (CheckpointPhase.RUNNING, CheckpointPhase.COLLECTING, CheckpointPhase.PERSISTING)

CHECKPOINT_TRANSITIONS: Transitions[CheckpointPhase] = {
    (CheckpointPhase.CREATED, ev.Started): (CheckpointPhase.RUNNING,),
    **{
        (phase, event): (phase,)
        for phase in _STARTED
        for event in (
            *(ev.SplitsDiscovered, ev.DiscoveryFailed, ev.DiscoveryDue, ev.SplitsGone, ev.FinishedReported, ev.SplitRequested),
            *(
                ev.SplitFinished,
                ev.ReaderRegistered,
                ev.ReaderLost,
                ev.CheckpointTriggered,
                ev.ReaderSnapshotted,
                ev.CheckpointAborted,
            ),
        )
    },
    # RUNNING: declined, as there is nothing to store yet; PERSISTING: there is no reader to wait for
    (CheckpointPhase.RUNNING, ev.CheckpointTriggered): _STARTED,
    # RUNNING: a reader was lost, and so is the checkpoint
    (CheckpointPhase.COLLECTING, ev.ReaderRegistered): (CheckpointPhase.COLLECTING, CheckpointPhase.RUNNING),
    (CheckpointPhase.COLLECTING, ev.ReaderLost): (CheckpointPhase.COLLECTING, CheckpointPhase.RUNNING),
    (CheckpointPhase.COLLECTING, ev.ReaderSnapshotted): (CheckpointPhase.COLLECTING, CheckpointPhase.PERSISTING),
    # the same phase: of an earlier checkpoint, that was given up
    (CheckpointPhase.COLLECTING, ev.CheckpointAborted): (CheckpointPhase.COLLECTING, CheckpointPhase.RUNNING),
    (CheckpointPhase.PERSISTING, ev.CheckpointCompleted): (CheckpointPhase.RUNNING,),
    (CheckpointPhase.PERSISTING, ev.CheckpointAborted): (CheckpointPhase.PERSISTING, CheckpointPhase.RUNNING),
}
