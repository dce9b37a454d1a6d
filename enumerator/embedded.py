"""Runs a source in the caller's own thread: the smallest runner, for scripts, notebooks and tests.

It does what every runner does (move events, carry out commands) with calls instead of sockets. Time comes from outside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, Self, assert_never

from headrace.enumerator import events as ev
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.coordinator import Coordinator
from headrace.enumerator.enumerator import Assignment, EagerEnumerator, create_enumerator, restore_enumerator
from headrace.enumerator.errors import StateError, UsageError
from headrace.enumerator.events import Command, Event
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.progress import ReaderProgress
from headrace.enumerator.source import Source, SourceReader, SplitBatch
from headrace.enumerator.source_driver import SourceDriver
from headrace.enumerator.split import SplitT


class _Slot(Generic[SplitT]):
    """One reader and its bookkeeping."""

    def __init__(self, reader: SourceReader[SplitT]) -> None:
        self.reader = reader
        self.progress: ReaderProgress[SplitT] = ReaderProgress()
        self.reported: Mapping[str, SplitState[SplitT]] = {}


class EmbeddedRun(Generic[SplitT]):
    """One run of a source, fresh or restored from a checkpoint. Not thread-safe. A context manager.

    `poll` delivers; what it has returned counts as delivered, and is what the next `checkpoint` stores.
    """

    def __init__(
        self,
        source: Source[SplitT],
        *,
        clock: Callable[[], float],
        checkpoint: bytes | None = None,
        parallelism: int = 1,
        assignment: Assignment[SplitT] = EagerEnumerator,
        discovery_interval_s: float | None = None,
    ) -> None:
        """Discover the splits, or continue from `checkpoint` (what `checkpoint()` returned); start `parallelism` readers.

        `clock` gives monotonic seconds. Raises StateError for a checkpoint that cannot be read, and what discovery raises.
        """
        self.source = source
        self._clock = clock
        self._serializer = CheckpointSerializer(source.name, source.split_serializer)
        self._slots: dict[int, _Slot[SplitT]] = {}
        self._due_at: float | None = None
        self._persisting: Checkpoint[SplitT] | None = None
        self._declined = ""
        self._last_id = 0
        self._closed = False
        if checkpoint is None:
            enumerator = create_enumerator(assignment, parallelism=parallelism, discovery_interval_s=discovery_interval_s)
        else:
            restored = self._serializer.deserialize(checkpoint)
            self._last_id = restored.checkpoint_id
            enumerator = restore_enumerator(
                assignment, restored, parallelism=parallelism, discovery_interval_s=discovery_interval_s
            )
        self.coordinator: Coordinator[SplitT] = Coordinator(enumerator)
        self._driver = SourceDriver(source, source.create_discovery())
        try:
            self._send(ev.Started())
            for reader in range(parallelism):
                self.start_reader(reader)
        except BaseException:
            self.close()
            raise

    @property
    def finished(self) -> bool:
        """True when every split is read to its end and none will be added. Losing a reader may take it back."""
        return self.coordinator.enumerator.exhausted and self.coordinator.enumerator.ledger.all_finished

    def poll(self, timeout: float) -> SplitBatch[SplitT] | None:
        """The next batch of any reader; None when nothing came in about `timeout` seconds or the source has `finished`."""
        if self._closed:
            return None
        if self._due_at is not None and self._clock() >= self._due_at:
            self._due_at = None
            self._send(ev.DiscoveryDue())
        ledger = self.coordinator.enumerator.ledger
        waiting = [number for number in self._slots if ledger.load(number)] or list(self._slots)
        for number in list(self._slots):
            # the reader polled last goes to the end, so that one busy reader does not starve the others
            slot = self._slots.pop(number)
            self._slots[number] = slot
            batch = slot.reader.poll(timeout / len(waiting) if number in waiting else 0.0)
            if batch is not None:
                self._delivered(number, slot, batch)
                return batch
            # or a lazy enumerator would leave splits waiting behind one that has no end
            self._send(ev.SplitRequested(number))
        return None

    def checkpoint(self) -> bytes:
        """The state as of what `poll` has returned. Store it, then call `checkpoint_completed` (or `checkpoint_aborted`).

        Raises StateError when no checkpoint is available now.
        """
        self._last_id += 1
        self._declined = ""
        self._send(ev.CheckpointTriggered(self._last_id))
        if self._persisting is None or self._declined:
            raise StateError(f"no checkpoint is available now: {self._declined}")
        return self._serializer.serialize(self._persisting)

    def checkpoint_completed(self) -> None:
        """The bytes of the last `checkpoint` are durable: positions are published (group offsets are committed).

        Positions that cannot be published for now are a warning: the next checkpoint publishes later ones. Raises what refuses
        them for good; the checkpoint is completed all the same.
        """
        if self._persisting is None:
            raise UsageError("no checkpoint is under way: call checkpoint() first")
        completed, self._persisting = self._persisting, None
        for slot in self._slots.values():
            slot.progress.checkpoint_completed(slot.reported)
        self._send(ev.CheckpointCompleted(completed.checkpoint_id))

    def checkpoint_aborted(self) -> None:
        """The bytes of the last `checkpoint` were not stored."""
        if self._persisting is None:
            raise UsageError("no checkpoint is under way: call checkpoint() first")
        self._send(ev.CheckpointAborted(self._persisting.checkpoint_id))
        self._persisting = None

    def lose_reader(self, reader: int) -> None:
        """Close one reader; its splits continue elsewhere from the last completed checkpoint."""
        self._slots.pop(reader).reader.close()
        self._send(ev.ReaderLost(reader))

    def start_reader(self, reader: int) -> None:
        """Start the reader of a slot. A reader that the slot has already is closed, and lost."""
        if reader in self._slots:
            self._slots.pop(reader).reader.close()
        self._slots[reader] = _Slot(self.source.create_reader())
        self._send(ev.ReaderRegistered(reader))
        self._send(ev.SplitRequested(reader))

    def close(self) -> None:
        """Close readers and discovery. May be called more than once; a checkpoint can still be taken afterwards."""
        if self._closed:
            return
        self._closed = True
        for slot in self._slots.values():
            slot.reader.close()
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _delivered(self, number: int, slot: _Slot[SplitT], batch: SplitBatch[SplitT]) -> None:
        slot.progress.delivered(batch)
        if batch.finished:
            self._send(ev.SplitFinished(number, batch.split.split_id))
            self._send(ev.SplitRequested(number))

    def _send(self, event: Event[SplitT]) -> None:
        events: deque[Event[SplitT]] = deque([event])
        while events:
            for command in self.coordinator.handle(events.popleft()):
                answer = self._carry_out(command)
                if answer is not None:
                    events.append(answer)

    def _carry_out(self, command: Command[SplitT]) -> Event[SplitT] | None:
        match command:
            case ev.DiscoverInitial() | ev.DiscoverLater() | ev.ReportDiscoveryFailure():
                return self._driver.perform(command)
            case ev.ReportMissing() | ev.ProveGone() | ev.PublishPositions():
                return self._driver.perform(command)
            case ev.ScheduleDiscovery(delay_s):
                self._due_at = self._clock() + delay_s
            case ev.Assign(reader, splits):
                self._slots[reader].progress.assigned(splits)
                self._slots[reader].reader.add_splits(splits)
            case ev.SnapshotReader(reader, checkpoint_id):
                slot = self._slots[reader]
                slot.reported = slot.progress.snapshot()
                return ev.ReaderSnapshotted(reader, checkpoint_id, slot.reported)
            case ev.PersistCheckpoint(checkpoint):
                self._persisting = checkpoint
            case ev.DeclineCheckpoint(_, reason):
                self._declined = reason
            case ev.Fail(error):
                raise error
            case ev.NoMoreSplits() | ev.SourceFinished():
                pass  # readers here are polled until the whole source has `finished`, which is read off the ledger
            case _:
                assert_never(command)
        return None
