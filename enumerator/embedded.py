"""Runs a source in the caller's own thread: the smallest runner, for scripts, notebooks and tests.

It does what every runner does (move events, carry out commands) with calls instead of sockets. Time comes from outside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Self

from headrace.enumerator import events as ev
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.coordinator import Coordinator
from headrace.enumerator.enumerator import Assignment, EagerEnumerator, SharingEnumerator, create_enumerator, restore_enumerator
from headrace.enumerator.errors import HeadraceError, StateError, UsageError
from headrace.enumerator.events import Command, Event
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.progress import ReaderProgress
from headrace.enumerator.resumed import selected
from headrace.enumerator.source import Source, SourceReader, SplitBatch
from headrace.enumerator.source_driver import SourceDriver
from headrace.enumerator.split import SplitT


def default_assignment(source: Source[SplitT]) -> Assignment[SplitT]:
    """SharingEnumerator where splits are pieces of work, else EagerEnumerator."""
    return SharingEnumerator if source.in_pieces else EagerEnumerator


class _Slot(Generic[SplitT]):
    """One reader and its bookkeeping. `is_behind`: it failed, or lost a batch, and another one has to take its place."""

    def __init__(self, reader: SourceReader[SplitT]) -> None:
        self.reader = reader
        self.is_behind = False
        self.progress: ReaderProgress[SplitT] = ReaderProgress()
        self.reported: Mapping[str, SplitState[SplitT]] = {}


@dataclass(frozen=True, slots=True)
class _ReportCompleted(Generic[SplitT]):
    """Call `checkpoint_completed` of the reader with these."""

    reader: int
    splits: tuple[SplitT, ...]


class EmbeddedRun(Generic[SplitT]):
    """One run of a source, fresh or restored from a checkpoint. Not thread-safe. A context manager.

    `poll` delivers; what it has returned counts as delivered, and is what the next `checkpoint` stores.

    A call may raise what a reader raises, or be interrupted anywhere, as by Ctrl-C or a MemoryError. What `poll` had taken
    then is not delivered: a later call starts a new reader at what was delivered, and repeats what the source was asked when
    it was interrupted. Where the bookkeeping itself was interrupted, which takes microseconds, each call that follows raises
    StateError.
    """

    def __init__(
        self,
        source: Source[SplitT],
        *,
        clock: Callable[[], float],
        checkpoint: bytes | None = None,
        parallelism: int = 1,
        assignment: Assignment[SplitT] | None = None,
        discovery_interval_s: float | None = None,
    ) -> None:
        """Discover the splits, or continue from `checkpoint` (what `checkpoint()` returned); start `parallelism` readers.

        `clock` gives monotonic seconds. `assignment`: by default as `default_assignment` gives.
        Raises StateError for a checkpoint that cannot be read, and what discovery raises.
        """
        self.source = source
        self._clock = clock
        self._serializer = CheckpointSerializer(source.name, source.split_serializer)
        self._slots: dict[int, _Slot[SplitT]] = {}
        self._due_at: float | None = None
        self._persisting: Checkpoint[SplitT] | None = None
        self._is_given = False
        self._last_id = 0
        self._closed = self._released = False
        self._commands: deque[Command[SplitT] | _ReportCompleted[SplitT]] = deque()
        self._handed: tuple[int, SplitBatch[SplitT]] | None = None
        self._polling: _Slot[SplitT] | None = None
        self._is_deciding = False
        assignment = assignment or default_assignment(source)
        if checkpoint is None:
            enumerator = create_enumerator(assignment, parallelism=parallelism, discovery_interval_s=discovery_interval_s)
        else:
            restored = selected(source, self._serializer.deserialize(checkpoint))
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
        self._note_delivered()
        return self.coordinator.enumerator.exhausted and self.coordinator.enumerator.ledger.all_finished

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def poll(self, timeout: float) -> SplitBatch[SplitT] | None:
        """The next batch of any reader; None when nothing came in about `timeout` seconds or the source has `finished`."""
        if self._closed:
            return None
        self._note_delivered()
        self._keep_ends()
        self._carry_out_commands()
        try:
            self._handed = self._polled(timeout)
            return None if self._handed is None else self._handed[1]
        except BaseException:
            self._handed = None
            raise

    @property
    def handed(self) -> SplitBatch[SplitT] | None:
        """What the last `poll` returned, until the call that follows counts it as delivered."""
        return None if self._handed is None else self._handed[1]

    def take_back(self, before: SplitBatch[SplitT] | None) -> None:
        """What `poll` has returned has reached no caller, unless it is the batch `before`: it will be returned again."""
        if self._handed is not None and self._handed[1] is not before:
            self._handed = None

    def _polled(self, timeout: float) -> tuple[int, SplitBatch[SplitT]] | None:
        if self._polling is not None:  # its reader failed, or what it gave is not delivered
            self._polling.is_behind = True
            self._polling = None
        if self._due_at is not None and self._clock() >= self._due_at:
            self._is_deciding, self._due_at = True, None
            self._send(ev.DiscoveryDue())
        ledger = self.coordinator.enumerator.ledger
        waiting = [number for number in self._slots if ledger.load(number)] or list(self._slots)
        for number in list(self._slots):
            # the reader polled last goes to the end, so that one busy reader does not starve the others
            slot = self._slots[number]
            self._slots = {**{other: each for other, each in self._slots.items() if other != number}, number: slot}
            self._polling = slot
            if slot.is_behind:
                self._renew(slot)
            batch = slot.reader.poll(timeout / len(waiting) if number in waiting else 0.0)
            if batch is not None:
                return number, batch
            self._polling = None
            # or a lazy enumerator would leave splits waiting behind one that has no end
            self._send(ev.SplitRequested(number))
        return None

    def checkpoint(self) -> bytes:
        """The state as of what `poll` has returned. Store it, then call `checkpoint_completed` (or `checkpoint_aborted`).

        One that was interrupted, and gave nothing, is aborted by the next. Raises StateError while one that was given has not
        been completed or aborted: which of the two were stored would not be known.
        """
        self._note_delivered()
        if self._persisting is not None:
            if self._is_given:
                raise StateError(
                    f"no checkpoint is available now: checkpoint {self._persisting.checkpoint_id} is still under way: call "
                    "checkpoint_completed() once it is stored, or checkpoint_aborted()"
                )
            self._decide(ev.CheckpointAborted(self._end_checkpoint()))
        self._last_id += 1
        self._decide(ev.CheckpointTriggered(self._last_id))
        assert self._persisting is not None, "splits are found when a run is made, and its readers answer at once"
        state = self._serializer.serialize(self._persisting)
        self._is_given = True
        return state

    def checkpoint_completed(self) -> None:
        """The bytes of the last `checkpoint` are durable: positions are published (group offsets are committed).

        Positions that cannot be published for now are a warning: the next checkpoint publishes later ones. Raises what refuses
        them for good; the checkpoint is completed all the same.
        """
        self._check_state()
        completed = self._end_checkpoint()
        for reader, slot in self._slots.items():
            slot.progress.checkpoint_completed(slot.reported)
            self._commands.append(_ReportCompleted(reader, tuple(state.split for state in slot.reported.values())))
        self._send(ev.CheckpointCompleted(completed))

    def checkpoint_aborted(self) -> None:
        """The bytes of the last `checkpoint` were not stored."""
        self._check_state()
        self._send(ev.CheckpointAborted(self._end_checkpoint()))

    def _end_checkpoint(self) -> int:
        """The id of the one under way, of which the coordinator is to hear next."""
        if self._persisting is None:
            raise UsageError("no checkpoint is under way: call checkpoint() first")
        checkpoint_id = self._persisting.checkpoint_id
        self._is_deciding, self._is_given, self._persisting = True, False, None
        return checkpoint_id

    def lose_reader(self, reader: int) -> None:
        """Close one reader; its splits continue elsewhere from the last completed checkpoint."""
        self._note_delivered()
        self._end(reader)
        self._send(ev.ReaderLost(reader))

    def start_reader(self, reader: int) -> None:
        """Start the reader of a slot. A reader that the slot has already is closed, and lost."""
        self._note_delivered()
        if reader in self._slots:
            self._end(reader)
        self._slots[reader] = _Slot(self.source.create_reader())
        self._send(ev.ReaderRegistered(reader))
        self._send(ev.SplitRequested(reader))

    def _end(self, reader: int) -> None:
        self._slots.pop(reader).reader.close()
        of_readers = ev.Assign, _ReportCompleted
        self._commands = deque(each for each in self._commands if not (isinstance(each, of_readers) and each.reader == reader))

    def close(self) -> None:
        """Close readers and discovery. May be called more than once; a checkpoint can still be taken afterwards."""
        if self._released:
            return
        self._closed = True
        for slot in self._slots.values():
            slot.reader.close()
        self._released = True  # last: who is interrupted closes again
        self._driver.close()

    def __reduce__(self) -> str:
        """Its threads and connections are of this process."""
        raise TypeError("a run belongs to the process that opened it: pickle the source, or what checkpoint() gives")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note_delivered(self) -> None:
        """The caller is back, so it has what the last `poll` returned. Does no I/O."""
        self._check_state()
        if self._handed is None:
            return
        self._polling = None
        number, batch = self._handed
        if batch.finished:  # what reader and coordinator know of its end belongs together
            self._is_deciding, self._handed = True, None
        self._slots[number].progress.delivered(batch)
        if batch.finished:
            self._decide(ev.SplitFinished(number, batch.split.split_id))
            self._decide(ev.SplitRequested(number))
        self._handed = None

    def _check_state(self) -> None:
        """At the start of each call: an event that was decided half makes the state unusable for ever."""
        if self._is_deciding:
            raise StateError(
                "this run was interrupted while it changed its own state: continue with a new one, from its last checkpoint"
            )

    def _keep_ends(self) -> None:
        """What the next stage is made from needs no checkpoint here: a reader is never lost apart from this run."""
        enumerator = self.coordinator.enumerator
        if self._persisting is None and enumerator.waits_for_ends:
            for slot in self._slots.values():
                states = slot.progress.snapshot()
                enumerator.ledger.make_durable(states)
                slot.progress.checkpoint_completed(states)

    def _renew(self, slot: _Slot[SplitT]) -> None:
        """Start a new reader at what was delivered."""
        slot.reader.close()
        slot.reader = self.source.create_reader()
        slot.reader.add_splits([state.split for state in slot.progress.snapshot().values() if not state.finished])
        slot.is_behind = False

    def _send(self, event: Event[SplitT]) -> None:
        self._decide(event)
        self._carry_out_commands()

    def _decide(self, event: Event[SplitT]) -> None:
        """Hand an event to the coordinator, which does no I/O. Commands that do wait in the queue."""
        self._is_deciding = True
        try:
            events: deque[Event[SplitT]] = deque([event])
            while events:
                for command in self.coordinator.handle(events.popleft()):
                    answer = self._note(command)
                    if answer is not None:
                        events.append(answer)
        except HeadraceError:
            self._is_deciding = False
            raise
        self._is_deciding = False

    def _note(self, command: Command[SplitT]) -> Event[SplitT] | None:
        match command:
            case ev.ScheduleDiscovery(delay_s):
                self._due_at = self._clock() + delay_s
            case ev.SnapshotReader(reader, checkpoint_id):
                slot = self._slots[reader]
                slot.reported = slot.progress.snapshot()
                return ev.ReaderSnapshotted(reader, checkpoint_id, slot.reported)
            case ev.Assign(reader, splits):
                self._slots[reader].progress.assigned(splits)
                self._commands.append(command)
            case ev.PersistCheckpoint(checkpoint):
                self._persisting = checkpoint
            case ev.NoMoreSplits() | ev.SourceFinished():
                pass  # readers here are polled until the whole source has `finished`, which is read off the ledger
            case _:
                self._commands.append(command)
        return None

    def _carry_out_commands(self) -> None:
        while self._commands:
            try:
                answer = self._carry_out(self._commands[0])
                self._is_deciding = True
            except BaseException as error:
                if isinstance(self._commands[0], ev.Assign):
                    self._slots[self._commands[0].reader].is_behind = True
                if isinstance(error, Exception) and not isinstance(error, MemoryError):
                    self._commands.popleft()  # the caller may go on with those behind it
                raise
            self._commands.popleft()
            if answer is not None:
                self._decide(answer)
            self._is_deciding = False

    def _carry_out(self, command: Command[SplitT] | _ReportCompleted[SplitT]) -> Event[SplitT] | None:
        """May be interrupted, and is then repeated."""
        match command:
            case ev.Assign(reader, splits):
                slot = self._slots[reader]
                if not slot.is_behind and not self._closed:  # else a new reader starts with them
                    slot.reader.add_splits(splits)
                return None
            case _ReportCompleted(reader, splits):
                self._slots[reader].reader.checkpoint_completed(splits)
                return None
            case ev.Fail(error):
                raise error
            case _:
                return self._driver.perform(command)  # type: ignore[arg-type]  # those that `_note` leaves
