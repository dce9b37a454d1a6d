"""Injected bugs: each patches the real code with a mistake that a real system shipped, or that is easy to make.

A checker is worth what it catches: every injected bug must be caught by the simulation, and those that a connector's user
could meet by the conformance kit too. `reinitialise_on_restore` is the one this package exists to make impossible.

    with injected.reinitialise_on_restore():
        ...  # must fail
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from zlib import crc32

from headrace.enumerator import EagerEnumerator, Ledger, SplitEnumerator, SplitState
from headrace.enumerator import coordinator as coordinator_module
from headrace.enumerator import enumerator as enumerator_module
from headrace.enumerator import events as e
from headrace.enumerator.coordinator import CHECKPOINT_TRANSITIONS, CheckpointPhase, Coordinator
from headrace.enumerator.enumerator import DISCOVERY_TRANSITIONS, Discovery, Trigger
from headrace.enumerator.ledger import UNASSIGNED, Finished, FinishedBy
from headrace.enumerator.progress import ReaderProgress
from headrace.testing.memory import MemoryDiscovery, MemoryReader, MemorySplitSerializer

Injected = Callable[[], AbstractContextManager[None]]


@contextmanager
def reinitialise_on_restore() -> Iterator[None]:
    """Beam #31313, #34890: a restored enumerator initialises again, and the answer takes the place of what was restored."""
    discovered = SplitEnumerator.discovered

    def injected(self: Any, findings: Any) -> Any:
        if self._discovery is Discovery.INITIALISING:
            self.ledger = Ledger()
        return discovered(self, findings)

    with initial_discovery_on_restore(), patch.object(SplitEnumerator, "discovered", injected):
        yield


@contextmanager
def initial_discovery_on_restore() -> Iterator[None]:
    """Half of it: the ledger is kept, but what appeared meanwhile is given the initial position instead of the first record."""
    again = {
        (Discovery.RESTORED, Trigger.START): Discovery.INITIALISING,
        (Discovery.EXHAUSTED, Trigger.START): Discovery.INITIALISING,
    }
    with patch.dict(DISCOVERY_TRANSITIONS, again):  # type: ignore[arg-type]
        yield


@contextmanager
def finished_splits_forgotten() -> Iterator[None]:
    """A checkpoint holds only splits with work left, so discovery finds the finished ones as new."""
    snapshot = Ledger.snapshot

    def injected(self: Any, reported: Any) -> Any:
        return [state for state in snapshot(self, reported) if not state.finished]

    with patch.object(Ledger, "snapshot", injected):
        yield


@contextmanager
def splits_of_lost_reader_dropped() -> Iterator[None]:
    """FLINK-40710: what a lost reader held is not assigned again."""
    release = Ledger.release

    def injected(self: Any, reader: int) -> Any:
        released = release(self, reader)
        for split_id in released:
            del self._unassigned[split_id]
        return released

    with patch.object(Ledger, "release", injected):
        yield


@contextmanager
def registration_again_ignored() -> Iterator[None]:
    """FLINK-40710: a reader that registers again, empty, is taken for the one that was there."""
    registered = Coordinator._registered

    def injected(self: Any, event: Any) -> Any:
        return [] if event.reader in self._readers else registered(self, event)

    with patch.object(Coordinator, "_registered", injected):
        yield


@contextmanager
def checkpoint_without_positions() -> Iterator[None]:
    """FLINK-38453: what the readers report is not stored, only where the splits started."""
    with patch.object(Ledger, "snapshot", lambda self, reported: _snapshot(self, {})):
        yield


@contextmanager
def split_missing_from_checkpoint_while_recovering() -> Iterator[None]:
    """FLINK-40469: splits that wait for a reader are left out of the checkpoint."""

    def injected(self: Any, reported: Any) -> Any:
        return [state for state in _snapshot(self, reported) if self[state.split.split_id].place != UNASSIGNED]

    with patch.object(Ledger, "snapshot", injected):
        yield


@contextmanager
def missing_split_forgotten() -> Iterator[None]:
    """FLINK-39837: a split that metadata does not show for a moment is forgotten, and comes back as new."""
    mark_missing = Ledger.mark_missing

    def injected(self: Any, missing: Any) -> Any:
        newly = mark_missing(self, missing)
        for split in newly:
            entry = self._entries.pop(split.split_id)
            self._unassigned.pop(split.split_id, None)
            for held in self._held.values():
                held.pop(split.split_id, None)
            self._unfinished -= not isinstance(entry.place, (Finished, FinishedBy))
        return newly

    with patch.object(Ledger, "mark_missing", injected):
        yield


@contextmanager
def end_of_input_sent_once() -> Iterator[None]:
    """FLINK-31006: the end of input is a message sent when discovery finishes, so a restored job never ends."""
    signals = Coordinator._signals
    began_exhausted: set[int] = set()
    started = Coordinator._started

    def injected_started(self: Any) -> Any:
        if self.enumerator.exhausted:
            began_exhausted.add(id(self.enumerator))
        return started(self)

    def injected_signals(self: Any) -> Any:
        return [] if id(self.enumerator) in began_exhausted else signals(self)

    def injected_exhausted(self: Any) -> bool:
        return self._discovery is Discovery.EXHAUSTED and id(self) not in began_exhausted

    with (
        patch.object(Coordinator, "_signals", injected_signals),
        patch.object(SplitEnumerator, "exhausted", property(injected_exhausted)),
        patch.object(Coordinator, "_started", injected_started),
    ):
        yield


@contextmanager
def exhaustion_not_stored() -> Iterator[None]:
    """The checkpoint does not say that discovery was done, and a restored enumerator does not look either."""

    def injected(self: Any) -> Any:
        self._discovery = Discovery.IDLE
        return []

    checkpoint_type = coordinator_module.Checkpoint
    start = SplitEnumerator.start

    def restored_does_not_look(self: Any) -> Any:
        return injected(self) if self._discovery is Discovery.RESTORED else start(self)

    with (
        patch.object(coordinator_module, "Checkpoint", lambda number, splits, _: checkpoint_type(number, splits, False)),
        patch.object(SplitEnumerator, "start", restored_does_not_look),
    ):
        yield


@contextmanager
def assigned_while_persisting() -> Iterator[None]:
    """A lost reader's splits continue elsewhere before it is known whether the checkpoint under way counts."""

    def injected(self: Any) -> Any:
        return list(self.enumerator.assignments(list(self._readers))) if self.enumerator.initialised else []

    with patch.object(Coordinator, "_assign", injected):
        yield


@contextmanager
def positions_durable_too_early() -> Iterator[None]:
    """What readers report counts as durable before the checkpoint has completed: an abort then loses records."""
    snapshot = Ledger.snapshot

    def injected(self: Any, reported: Any) -> Any:
        states = snapshot(self, reported)
        for split_id, state in reported.items():
            self._entries[split_id] = replace(self._entries[split_id], durable=state.split)
        return states

    with patch.object(Ledger, "snapshot", injected):
        yield


@contextmanager
def checkpoint_survives_lost_reader() -> Iterator[None]:
    """A reader lost while a checkpoint is collected: the checkpoint is completed without its answer."""

    def injected(self: Any, _: str) -> Any:
        self._pending.waiting_for = {
            reader: owed for reader, owed in self._pending.waiting_for.items() if reader in self._readers
        }
        return self._persist_if_complete()

    with patch.object(Coordinator, "_give_up", injected), _leading_anywhere(e.ReaderLost, e.ReaderRegistered):
        yield


@contextmanager
def finished_split_dropped_by_reader() -> Iterator[None]:
    """FLINK-37416: a reader forgets a split as it finishes, before a checkpoint says so, and so does the enumerator."""
    delivered = ReaderProgress.delivered

    def injected_delivered(self: Any, batch: Any) -> None:
        delivered(self, batch)
        if batch.finished:
            del self._states[batch.split.split_id]

    def injected_snapshot(self: Any, reported: Any) -> Any:
        places = {split_id: entry.place for split_id, entry in self._entries.items()}
        return [state for state in _snapshot(self, reported) if not isinstance(places[state.split.split_id], FinishedBy)]

    with (
        patch.object(ReaderProgress, "delivered", injected_delivered),
        patch.object(Coordinator, "_check_snapshot", lambda *_: None),
        patch.object(Ledger, "snapshot", injected_snapshot),
    ):
        yield


@contextmanager
def last_read_offset_stored() -> Iterator[None]:
    """arroyo #910, risingwave #5192: the offset last read is stored, and not the next one (I3)."""
    snapshot = ReaderProgress.snapshot

    def one_behind(state: Any) -> Any:
        split = state.split
        return SplitState(replace(split, next_offset=max(0, split.next_offset - 1)), state.finished)

    def injected(self: Any) -> Mapping[str, Any]:
        return {split_id: one_behind(state) for split_id, state in snapshot(self).items()}

    with patch.object(ReaderProgress, "snapshot", injected):
        yield


@contextmanager
def extra_slots_planned() -> Iterator[None]:
    """Beam #25975: splits are planned for slots of an earlier, higher parallelism, and some are never dispatched."""

    def injected(self: Any) -> None:
        planned = {split_id for slot in self._planned for split_id in slot}
        for split_id in self.ledger.unassigned:
            slot = crc32(split_id.encode()) % (self.parallelism + 1)
            if split_id not in planned and slot < self.parallelism:
                self._planned[slot][split_id] = None

    with patch.object(EagerEnumerator, "_plan", injected):
        yield


@contextmanager
def request_forgotten() -> Iterator[None]:
    """seatunnel #11677, FLINK-40362: a request that cannot be met at once is dropped, and a cached reader never woken."""
    assignments = enumerator_module.LazyEnumerator.assignments

    def injected(self: Any, readers: Any) -> Any:
        assigns = assignments(self, readers)
        self._asking.clear()
        return assigns

    with patch.object(enumerator_module.LazyEnumerator, "assignments", injected):
        yield


@contextmanager
def later_splits_at_latest() -> Iterator[None]:
    """KAFKA-12478: a split found later starts at its end, and what was written before the discovery is lost (I2)."""
    later = MemoryDiscovery.later

    def injected(self: Any, known: Any) -> Any:
        findings = later(self, known)
        return replace(findings, added=[replace(s, next_offset=self._source.log.end(s.split_id)) for s in findings.added])

    with patch.object(MemoryDiscovery, "later", injected):
        yield


@contextmanager
def removed_splits_not_reported() -> Iterator[None]:
    """FLINK-39514: no process hears that a split is gone."""
    later = MemoryDiscovery.later
    with patch.object(MemoryDiscovery, "later", lambda self, known: replace(later(self, known), missing=frozenset())):
        yield


@contextmanager
def stop_offset_ignored() -> Iterator[None]:
    """FLINK-28475, FLINK-34470: a bounded split is read as if it had no end."""
    read = MemoryReader._read
    with patch.object(MemoryReader, "_read", lambda self, split: read(self, replace(split, stop_offset=None))):
        yield


@contextmanager
def split_version_ignored() -> Iterator[None]:
    """Splits of a newer version are read as if they were of this one."""
    deserialize = MemorySplitSerializer.deserialize
    with patch.object(MemorySplitSerializer, "deserialize", lambda self, _, data: deserialize(self, 1, data)):
        yield


def _snapshot(ledger: Any, reported: Mapping[str, Any]) -> list[Any]:
    """What `Ledger.snapshot` does, for the bugs that replace it."""
    return [
        reported.get(split_id) or SplitState(entry.durable, isinstance(entry.place, Finished))
        for split_id, entry in ledger._entries.items()
    ]


@contextmanager
def missing_taken_for_gone() -> Iterator[None]:
    """What one look for splits does not see is left out of the checkpoint."""
    snapshot = Ledger.snapshot

    def injected(self: Any, reported: Any) -> Any:
        missing = {split.split_id for split in self.missing()}
        return [state for state in snapshot(self, reported) if state.split.split_id not in missing]

    with patch.object(Ledger, "snapshot", injected):
        yield


@contextmanager
def gone_stays_for_ever() -> Iterator[None]:
    """What is proven to be gone is stored in every checkpoint all the same."""
    with patch.object(Ledger, "mark_gone", lambda self, split_ids: None):
        yield


@contextmanager
def _leading_anywhere(*events: type) -> Iterator[None]:
    """The table lets these events lead to any phase: it is for the checker to see what comes of it."""
    table = {key: tuple(CheckpointPhase) for key in CHECKPOINT_TRANSITIONS if key[1] in events}
    with patch.dict(CHECKPOINT_TRANSITIONS, table):  # type: ignore[arg-type]
        yield


IN_THE_CORE: tuple[Injected, ...] = (
    reinitialise_on_restore,
    initial_discovery_on_restore,
    finished_splits_forgotten,
    splits_of_lost_reader_dropped,
    registration_again_ignored,
    checkpoint_without_positions,
    split_missing_from_checkpoint_while_recovering,
    missing_split_forgotten,
    end_of_input_sent_once,
    exhaustion_not_stored,
    assigned_while_persisting,
    positions_durable_too_early,
    checkpoint_survives_lost_reader,
    finished_split_dropped_by_reader,
    last_read_offset_stored,
    extra_slots_planned,
    request_forgotten,
    missing_taken_for_gone,
    gone_stays_for_ever,
)
"""Those that the simulation must catch."""

IN_A_CONNECTOR: tuple[Injected, ...] = (
    later_splits_at_latest,
    removed_splits_not_reported,
    stop_offset_ignored,
    split_version_ignored,
)
"""Those that only a real source can show, and so the conformance kit must catch."""
