"""Injected bugs: each patches the real code with a mistake that a real system shipped, or that is easy to make.

A checker is worth what it catches: every injected bug must be caught by the simulation, and those that a connector's user
could meet by the conformance kit too. `reinitialise_on_restore` is the one this package exists to make impossible.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from zlib import crc32

from headrace.enumerator import EagerEnumerator, Ledger, SplitEnumerator, SplitState
from headrace.enumerator import coordinator as coordinator_module
from headrace.enumerator import events as e
from headrace.enumerator.coordinator import CHECKPOINT_TRANSITIONS, CheckpointPhase, Coordinator
from headrace.enumerator.enumerator import DISCOVERY_TRANSITIONS, Discovery, LazyEnumerator, Trigger
from headrace.enumerator.ledger import UNASSIGNED, Finished, FinishedBy
from headrace.enumerator.progress import ReaderProgress
from headrace.testing.memory import MemoryDiscovery, MemoryReader, MemorySplitSerializer
from tests.simulation.bugs.injecting import bug, bugs_of, instead_of


def _initial_discovery_again() -> Any:
    states = (Discovery.RESTORED, Discovery.EXHAUSTED)
    return patch.dict(DISCOVERY_TRANSITIONS, {(state, Trigger.START): Discovery.INITIALISING for state in states})  # type: ignore[arg-type]


@instead_of(SplitEnumerator, "discovered", _initial_discovery_again)
def reinitialise_on_restore(discovered: Any, self: Any, findings: Any) -> Any:
    """Beam #31313, #34890: a restored enumerator initialises again, and the answer takes the place of what was restored."""
    if self._discovery is Discovery.INITIALISING:
        self.ledger = Ledger()
    return discovered(self, findings)


@bug
def initial_discovery_on_restore() -> Iterator[None]:
    """Half of it: the ledger is kept, but what appeared meanwhile is given the initial position instead of the first record."""
    with _initial_discovery_again():
        yield


@instead_of(Ledger, "snapshot")
def finished_splits_forgotten(snapshot: Any, self: Any, reported: Any) -> Any:
    """A checkpoint holds only splits with work left, so discovery finds the finished ones as new."""
    return [state for state in snapshot(self, reported) if not state.finished]


@instead_of(Ledger, "release")
def splits_of_lost_reader_dropped(release: Any, self: Any, reader: int) -> Any:
    """FLINK-40710: what a lost reader held is not assigned again."""
    released = release(self, reader)
    for split_id in released:
        del self._unassigned[split_id]
    return released


@instead_of(Coordinator, "_registered")
def registration_again_ignored(registered: Any, self: Any, event: Any) -> Any:
    """FLINK-40710: a reader that registers again, empty, is taken for the one that was there."""
    return [] if event.reader in self._readers else registered(self, event)


@instead_of(Ledger, "snapshot")
def checkpoint_without_positions(_: Any, self: Any, reported: Any) -> Any:
    """FLINK-38453: what the readers report is not stored, only where the splits started."""
    return _snapshot(self, {})


@instead_of(Ledger, "snapshot")
def split_missing_from_checkpoint_while_recovering(_: Any, self: Any, reported: Any) -> Any:
    """FLINK-40469: splits that wait for a reader are left out of the checkpoint."""
    return [state for state in _snapshot(self, reported) if self[state.split.split_id].place != UNASSIGNED]


@instead_of(Ledger, "mark_missing")
def missing_split_forgotten(mark_missing: Any, self: Any, missing: Any) -> Any:
    """FLINK-39837: a split that metadata does not show for a moment is forgotten, and comes back as new."""
    newly = mark_missing(self, missing)
    for split in newly:
        entry = self._entries.pop(split.split_id)
        self._unassigned.pop(split.split_id, None)
        for held in self._held.values():
            held.pop(split.split_id, None)
        self._unfinished -= not isinstance(entry.place, (Finished, FinishedBy))
    return newly


@bug
def end_of_input_sent_once() -> Iterator[None]:
    """FLINK-31006: the end of input is a message sent when discovery finishes, so a restored job never ends."""
    signals, started = Coordinator._signals, Coordinator._started
    began_exhausted: set[int] = set()

    def injected_started(self: Any) -> Any:
        if self.enumerator.exhausted:
            began_exhausted.add(id(self.enumerator))
        return started(self)

    def injected_signals(self: Any) -> Any:
        return [] if id(self.enumerator) in began_exhausted else signals(self)

    def injected_exhausted(self: Any) -> bool:
        return self._discovery is Discovery.EXHAUSTED and id(self) not in began_exhausted

    exhausted = patch.object(SplitEnumerator, "exhausted", property(injected_exhausted))
    with exhausted, patch.multiple(Coordinator, _signals=injected_signals, _started=injected_started):
        yield


@instead_of(coordinator_module, "Checkpoint")
def _exhaustion_left_out(checkpoint_type: Any, number: int, splits: Any, _: bool, *rest: Any) -> Any:
    return checkpoint_type(number, splits, False, *rest)


@instead_of(SplitEnumerator, "start", _exhaustion_left_out)
def exhaustion_not_stored(start: Any, self: Any) -> Any:
    """The checkpoint does not say that discovery was done, and a restored enumerator does not look either."""
    if self._discovery is not Discovery.RESTORED:
        return start(self)
    self._discovery = Discovery.IDLE
    return []


@instead_of(Coordinator, "_assign")
def assigned_while_persisting(_: Any, self: Any) -> Any:
    """A lost reader's splits continue elsewhere before it is known whether the checkpoint under way counts."""
    return list(self.enumerator.assignments(list(self._readers))) if self.enumerator.initialised else []


@instead_of(Ledger, "snapshot")
def positions_durable_too_early(snapshot: Any, self: Any, reported: Any) -> Any:
    """What readers report counts as durable before the checkpoint has completed: an abort then loses records."""
    states = snapshot(self, reported)
    for split_id, state in reported.items():
        self._entries[split_id] = replace(self._entries[split_id], durable=state.split)
    return states


def _leading_anywhere() -> Any:
    """The table lets the loss of a reader lead to any phase: it is for the checker to see what comes of it."""
    lost = {key: tuple(CheckpointPhase) for key in CHECKPOINT_TRANSITIONS if key[1] in (e.ReaderLost, e.ReaderRegistered)}
    return patch.dict(CHECKPOINT_TRANSITIONS, lost)  # type: ignore[arg-type]


@instead_of(Coordinator, "_give_up", _leading_anywhere)
def checkpoint_survives_lost_reader(_: Any, self: Any, why: str) -> Any:
    """A reader lost while a checkpoint is collected: the checkpoint is completed without its answer."""
    self._pending.waiting_for = {reader: owed for reader, owed in self._pending.waiting_for.items() if reader in self._readers}
    return self._persist_if_complete()


@instead_of(ReaderProgress, "delivered")
def _finished_splits_leave_their_reader(delivered: Any, self: Any, batch: Any) -> None:
    delivered(self, batch)
    if batch.finished:
        del self._states[batch.split.split_id]


@instead_of(Coordinator, "_check_snapshot", _finished_splits_leave_their_reader)
def _any_snapshot_is_accepted(*_: Any) -> None:
    return None


@instead_of(Ledger, "snapshot", _any_snapshot_is_accepted)
def finished_split_dropped_by_reader(_: Any, self: Any, reported: Any) -> Any:
    """FLINK-37416: a reader forgets a split as it finishes, before a checkpoint says so, and so does the enumerator."""
    places = {split_id: entry.place for split_id, entry in self._entries.items()}
    return [state for state in _snapshot(self, reported) if not isinstance(places[state.split.split_id], FinishedBy)]


@instead_of(ReaderProgress, "snapshot")
def last_read_offset_stored(snapshot: Any, self: Any) -> Any:
    """arroyo #910, risingwave #5192: the offset last read is stored, and not the next one (I3)."""

    def one_behind(state: Any) -> Any:
        split = state.split
        return SplitState(replace(split, next_offset=max(0, split.next_offset - 1)), state.finished)

    return {split_id: one_behind(state) for split_id, state in snapshot(self).items()}


@instead_of(EagerEnumerator, "_plan")
def extra_slots_planned(_: Any, self: Any) -> None:
    """Beam #25975: splits are planned for slots of an earlier, higher parallelism, and some are never dispatched."""
    planned = {split_id for slot in self._planned for split_id in slot}
    for split_id in self.ledger.unassigned:
        slot = crc32(split_id.encode()) % (self.parallelism + 1)
        if split_id not in planned and slot < self.parallelism:
            self._planned[slot][split_id] = None


@instead_of(LazyEnumerator, "assignments")
def request_forgotten(assignments: Any, self: Any, readers: Any) -> Any:
    """seatunnel #11677, FLINK-40362: a request that cannot be met at once is dropped, and a cached reader never woken."""
    assigns = assignments(self, readers)
    self._asking.clear()
    return assigns


@instead_of(Ledger, "snapshot")
def missing_taken_for_gone(snapshot: Any, self: Any, reported: Any) -> Any:
    """What one look for splits does not see is left out of the checkpoint."""
    missing = {split.split_id for split in self.missing()}
    return [state for state in snapshot(self, reported) if state.split.split_id not in missing]


@instead_of(Ledger, "mark_gone")
def gone_stays_for_ever(*_: Any) -> None:
    """What is proven to be gone is stored in every checkpoint all the same."""


IN_THE_CORE = bugs_of(globals())
"""Those that the simulation must catch. The rest only a real source can show, and so the conformance kit must catch."""


@instead_of(MemoryDiscovery, "later")
def later_splits_at_latest(later: Any, self: Any, known: Any) -> Any:
    """KAFKA-12478: a split found later starts at its end, and what was written before the discovery is lost (I2)."""
    findings = later(self, known)
    return replace(findings, added=[replace(s, next_offset=self._source.log.end(s.split_id)) for s in findings.added])


@instead_of(MemoryDiscovery, "later")
def removed_splits_not_reported(later: Any, self: Any, known: Any) -> Any:
    """FLINK-39514: no process hears that a split is gone."""
    return replace(later(self, known), missing=frozenset())


@instead_of(MemoryReader, "_read")
def stop_offset_ignored(read: Any, self: Any, split: Any) -> Any:
    """FLINK-28475, FLINK-34470: a bounded split is read as if it had no end."""
    return read(self, replace(split, stop_offset=None))


@instead_of(MemorySplitSerializer, "deserialize")
def split_version_ignored(deserialize: Any, self: Any, _: int, data: bytes) -> Any:
    """Splits of a newer version are read as if they were of this one."""
    return deserialize(self, 1, data)


def _snapshot(ledger: Any, reported: Mapping[str, Any]) -> list[Any]:
    """What `Ledger.snapshot` does, for the bugs that replace it."""
    return [
        reported.get(split_id) or SplitState(entry.durable, isinstance(entry.place, Finished))
        for split_id, entry in ledger._entries.items()
    ]
