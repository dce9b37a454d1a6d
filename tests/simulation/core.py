"""Drives the real coordinator, enumerators, reader progress and checkpoint bytes through schedules that someone chooses.

Everything around them is simulated: a log that grows, splits that come and go, readers behind FIFO channels, checkpoints
that complete or not, losses and crashes at any step. The chooser is a search (`tests.simulation`).

The oracle is an output that is transactional per checkpoint. Whenever a checkpoint completes, what it commits must be, for
every split, exactly the records between the split's last committed position and its position in the checkpoint.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace import enumerator as enumeration
from headrace.enumerator import Checkpoint, CheckpointSerializer, Coordinator, DiscoveryResult, EagerEnumerator, SplitState
from headrace.enumerator import events as e
from headrace.enumerator.coordinator import CheckpointPhase
from headrace.enumerator.progress import ReaderProgress
from headrace.testing.memory import MemorySplit, MemorySplitSerializer
from tests.simulation.search import Adversary, taking

SLOTS_AT_MOST = 4
SPLITS_AT_MOST = 8
DRAIN_ROUNDS_AT_MOST = 60
KEPT = 4
"""This many completed checkpoints are kept, to go back to."""

ASSIGNMENTS = (EagerEnumerator, enumeration.LazyEnumerator)
Record = tuple[str, int]


class ExternalState:
    """The external system: splits of offsets, some of them gaps that hold no record (I3)."""

    most = SPLITS_AT_MOST

    def __init__(self, *, bounded: bool, latest: bool) -> None:
        self.bounded = bounded
        self.latest = latest  # where a fresh job starts
        self.closed = False  # no split will be created any more
        self.ends: dict[str, int] = {}
        self.hidden: set[str] = set()
        self.deleted: set[str] = set()

    def create(self, size: int) -> None:
        if len(self.ends) < self.most and not self.closed:
            self.ends[f"s{len(self.ends)}"] = size

    def is_record(self, split_id: str, offset: int) -> bool:
        return (offset + int(split_id[1:])) % 4 != 3

    def records(self, split_id: str, start: int, stop: int) -> list[Record]:
        return [(split_id, offset) for offset in range(start, stop) if self.is_record(split_id, offset)]

    def find(self, known: dict[str, MemorySplit] | None) -> DiscoveryResult[MemorySplit]:
        """What discovery answers; `known` is None for the initial one."""
        seen = [split_id for split_id in self.ends if split_id not in self.hidden | self.deleted]
        at_end = known is None and self.latest and not self.bounded
        added = [
            MemorySplit(split_id, self.ends[split_id] if at_end else 0, self.ends[split_id] if self.bounded else None)
            for split_id in seen
            if known is None or split_id not in known
        ]
        missing = frozenset(known or ()) - set(seen)
        return DiscoveryResult(added, missing, complete=self.bounded and self.closed and not self.hidden)


@dataclass(eq=False)
class DriverId:
    """One lifetime of a reader."""

    slot: int
    alive: bool = True
    inbox: deque[Any] = field(default_factory=deque)
    progress: ReaderProgress[MemorySplit] = field(default_factory=ReaderProgress)
    reading: dict[str, MemorySplit] = field(default_factory=dict)
    open: list[Record] = field(default_factory=list)
    """Delivered since the last snapshot."""
    prepared: list[tuple[int, list[Record]]] = field(default_factory=list)
    """Delivered before the snapshot of that checkpoint, and not committed yet."""
    reported: dict[int, dict[str, SplitState[MemorySplit]]] = field(default_factory=dict)


@dataclass(frozen=True)
class CompletionNotice:
    checkpoint_id: int


@dataclass
class Slot:
    """A place for one reader: its channel to the coordinator, who is alive there, and whom the coordinator talks to."""

    outbox: deque[tuple[DriverId, Any]] = field(default_factory=deque)
    living: DriverId | None = None
    addressed: DriverId | None = None


class Simulation:
    """One history. Every action is possible at any time; one that makes no sense just now does nothing."""

    source = ExternalState
    assignments: Sequence[Any] = ASSIGNMENTS

    def __init__(self, bounded: int, latest: int, first_splits: int) -> None:
        self.external_state = self.source(bounded=bounded % 2 == 1, latest=latest % 3 == 0)
        for number in range(first_splits % SPLITS_AT_MOST):
            self.external_state.create(number * 3)
        self.serializer = CheckpointSerializer("simulated", MemorySplitSerializer())
        self.durable: bytes | None = None
        self.done: dict[str, int] = {}
        """Split -> up to where its records are committed. Starts where discovery resolved the start (I2)."""
        self.last_checkpoint_id = 0
        self.lifetimes = 0
        self.happened: Counter[str] = Counter()
        self.kept: list[tuple[bytes, dict[str, int]]] = []
        self.start(parallelism=2, assignment=0)

    # --- a lifetime of the whole job --------------------------------------------------------------------------------------
    def start(self, *, parallelism: int, assignment: int) -> None:
        self.lifetimes += 1
        self.orphan: tuple[Any, bytes] | None = None
        self.slots = [Slot() for _ in range(parallelism)]
        self.discovery: list[DiscoveryResult[MemorySplit] | Exception | None] = []
        self.asked: list[Any] = []
        self.proofs: list[frozenset[str]] = []
        self.gone: set[str] = set()
        self.due = False
        self.finished = False
        self.persisting: Checkpoint[MemorySplit] | None = None
        self.persisting_bytes = b""
        self.answered: dict[int, dict[int, DriverId]] = {}
        kind = self.assignments[assignment % len(self.assignments)]
        if self.durable is None:
            self.done = {}
            enumerator = enumeration.create_enumerator(kind, parallelism=parallelism, discovery_interval_s=1.0)
        else:
            self.happened["restore"] += 1
            checkpoint = self.serializer.deserialize(self.durable)
            enumerator = enumeration.restore_enumerator(kind, checkpoint, parallelism=parallelism, discovery_interval_s=1.0)
        self.coordinator: Coordinator[MemorySplit] = Coordinator(enumerator)
        self.handle(e.Started())
        for slot in range(parallelism):
            self.begin_reader(slot)

    def crash(self, *, stored: bool, parallelism: int, assignment: int) -> None:
        """Everything dies. What was under way, or reported as aborted, may yet be durable (`stored`)."""
        self.happened[f"crash in {self.coordinator.phase.name}"] += 1
        if stored and self.persisting is None and self.orphan is not None:
            self.persisting, self.persisting_bytes = self.orphan
            self.happened["aborted, yet durable"] += 1
        if stored and self.persisting is not None:
            self.commit()
        self.happened["crash"] += 1
        self.start(parallelism=1 + parallelism % SLOTS_AT_MOST, assignment=assignment)

    # --- the coordinator ----------------------------------------------------------------------------------------------
    def handle(self, event: Any) -> None:
        for command in self.coordinator.handle(event):
            self.carry_out(command)

    def carry_out(self, command: Any) -> None:
        match command:
            case e.DiscoverInitial() | e.DiscoverLater():
                self.asked.append(command)
            case e.ScheduleDiscovery():
                self.due = True
            case e.Assign(reader, _) | e.NoMoreSplits(reader) | e.SnapshotReader(reader, _):
                addressed = self.slots[reader].addressed
                assert addressed is not None, f"{command} for a reader that never registered"
                addressed.inbox.append(command)
            case e.PersistCheckpoint(checkpoint):
                self.check_checkpoint(checkpoint)
                self.persisting, self.persisting_bytes = checkpoint, self.serializer.serialize(checkpoint)
            case e.SourceFinished():
                self.finished = True
            case e.Fail(error):
                raise error
            case e.DeclineCheckpoint():
                self.happened["declined"] += 1
            case e.PublishPositions(splits):
                behind = [s for s in splits if s.next_offset != self.done.get(s.split_id)]
                assert not behind, f"published positions are not the committed ones: {behind}"
            case e.ProveGone(splits):
                self.proofs.append(frozenset(split.split_id for split in splits) & self.external_state.deleted)
            case e.ReportMissing() | e.ReportDiscoveryFailure():
                self.happened[type(command).__name__] += 1

    # --- discovery ----------------------------------------------------------------------------------------------------
    def run_discovery(self) -> None:
        """The discovery looks at the simulation; its answer is on its way."""
        if not self.asked:
            return
        command = self.asked.pop()
        known = None if isinstance(command, e.DiscoverInitial) else dict(command.known)
        self.discovery.append(self.external_state.find(known))

    def fail_discovery(self) -> None:
        if self.asked and not isinstance(self.asked[-1], e.DiscoverInitial):
            self.asked.pop()
            self.discovery.append(TimeoutError("simulated"))

    def answer_discovery(self) -> None:
        if self.proofs and (gone := self.proofs.pop()):
            self.happened["SplitsGone"] += 1
            self.handle(e.SplitsGone(gone))
            self.gone |= gone
        if not self.discovery:
            return
        answer = self.discovery.pop()
        if isinstance(answer, Exception):
            self.handle(e.DiscoveryFailed(answer))
            return
        assert answer is not None
        for split in answer.added:
            # The committed positions start at the first answer that a job's state can hold; a later one changes nothing.
            self.done.setdefault(split.split_id, split.next_offset)
        self.handle(e.SplitsDiscovered(answer))

    def discovery_due(self) -> None:
        if self.due:
            self.due = False
            self.handle(e.DiscoveryDue())

    # --- readers ------------------------------------------------------------------------------------------------------
    def begin_reader(self, slot_number: int) -> None:
        """A reader starts in this slot. Should another live there, it dies unnoticed, and the new one registers again."""
        slot = self.slots[slot_number % len(self.slots)]
        if slot.living is not None:
            slot.living.alive = False
        reader = slot.living = DriverId(slot_number % len(self.slots))
        slot.outbox.append((reader, e.ReaderRegistered(reader.slot)))
        slot.outbox.append((reader, e.SplitRequested(reader.slot)))

    def lose_reader(self, slot_number: int, *, drop_messages: bool) -> None:
        """The reader dies; what it had sent arrives, or not, and then the news of its death."""
        slot = self.slots[slot_number % len(self.slots)]
        if slot.living is None:
            return
        self.happened["reader lost"] += 1
        slot.living.alive = False
        if drop_messages:
            slot.outbox.clear()
        slot.outbox.append((slot.living, e.ReaderLost(slot.living.slot)))
        slot.living = None

    def reader_sends(self, slot_number: int) -> None:
        """The coordinator receives the oldest message of this slot."""
        slot = self.slots[slot_number % len(self.slots)]
        if not slot.outbox:
            return
        reader, event = slot.outbox.popleft()
        match event:
            case e.ReaderRegistered():
                slot.addressed = reader
            case e.ReaderSnapshotted(_, checkpoint_id, _):
                self.answered.setdefault(checkpoint_id, {})[reader.slot] = reader
        self.handle(event)

    def reader_receives(self, slot_number: int) -> None:
        """The reader takes the oldest message for it."""
        slot = self.slots[slot_number % len(self.slots)]
        reader = slot.living
        if reader is None or not reader.inbox:
            return
        match reader.inbox.popleft():
            case e.Assign(_, splits):
                reader.progress.assigned(splits)
                reader.reading.update((split.split_id, split) for split in splits)
            case e.SnapshotReader(_, checkpoint_id):
                states = dict(reader.progress.snapshot())
                reader.reported[checkpoint_id] = states
                reader.prepared.append((checkpoint_id, reader.open))
                reader.open = []
                slot.outbox.append((reader, e.ReaderSnapshotted(reader.slot, checkpoint_id, states)))
            case CompletionNotice(checkpoint_id):
                reader.progress.checkpoint_completed(reader.reported.pop(checkpoint_id))
            case e.NoMoreSplits():
                pass

    def reader_polls(self, slot_number: int, which: int, size: int) -> None:
        """The reader delivers a batch of one of its splits."""
        slot = self.slots[slot_number % len(self.slots)]
        reader = slot.living
        if reader is None or not reader.reading:
            return
        split_id = list(reader.reading)[which % len(reader.reading)]
        split = reader.reading[split_id]
        end = self.external_state.ends[split_id] if split_id not in self.external_state.deleted else split.next_offset
        stop = min(end if split.stop_offset is None else split.stop_offset, split.next_offset + 1 + size % 4)
        finished = stop == split.stop_offset
        if stop == split.next_offset and not finished:
            slot.outbox.append((reader, e.SplitRequested(reader.slot)))  # it has nothing to read just now
            return
        moved = split.between(stop, split.stop_offset)
        reader.open += self.external_state.records(split_id, split.next_offset, stop)
        reader.progress.delivered(enumeration.SplitBatch(moved, None, finished))  # type: ignore[arg-type]
        reader.reading[split_id] = moved
        if finished:
            del reader.reading[split_id]
            slot.outbox.append((reader, e.SplitFinished(reader.slot, split_id)))
            slot.outbox.append((reader, e.SplitRequested(reader.slot)))

    # --- checkpoints and the oracle -----------------------------------------------------------------------------------
    def trigger(self) -> None:
        self.last_checkpoint_id += 1
        self.handle(e.CheckpointTriggered(self.last_checkpoint_id))

    def complete(self, *, notify: bool) -> None:
        """The checkpoint is durable. Readers hear of it, or do not (`notify`)."""
        checkpoint = self.persisting
        if checkpoint is None:
            return
        self.happened["completed"] += 1
        readers = self.commit()
        self.persisting = None
        for reader in readers:
            if notify:
                reader.inbox.append(CompletionNotice(checkpoint.checkpoint_id))
        self.handle(e.CheckpointCompleted(checkpoint.checkpoint_id))

    def abort(self) -> None:
        """The checkpoint under way, be it still being collected, is given up; or the news of an old one's end comes late."""
        if self.coordinator.phase in (CheckpointPhase.COLLECTING, CheckpointPhase.PERSISTING):
            self.happened["aborted"] += 1
        if self.persisting is not None:
            self.orphan = self.persisting, self.persisting_bytes
        self.persisting = None
        if self.last_checkpoint_id:
            self.handle(e.CheckpointAborted(self.pending_id()))

    def pending_id(self) -> int:
        pending = self.coordinator._pending
        return self.last_checkpoint_id if pending is None else pending.checkpoint_id

    def check_checkpoint(self, checkpoint: Checkpoint[MemorySplit]) -> None:
        """I1: every split ever discovered in this job's durable or running state is there once, until it is gone for good."""
        ids = [state.split.split_id for state in checkpoint.splits]
        assert len(set(ids)) == len(ids), f"I1: a split twice in {checkpoint}"
        known = {entry.durable.split_id for entry in self.coordinator.enumerator.ledger}
        stored = set() if self.durable is None else {s.split.split_id for s in self.serializer.deserialize(self.durable).splits}
        missing = (known | stored) - set(ids)
        assert missing <= self.external_state.deleted, f"I1: {missing} are in no place of {checkpoint}"
        assert not self.gone & set(ids), f"{self.gone & set(ids)} are gone, and still stored in {checkpoint}"

    def commit(self) -> list[DriverId]:
        """The checkpoint and the output that belongs to it become durable in one step."""
        checkpoint, self.orphan = self.persisting, None
        assert checkpoint is not None
        readers = list(self.answered.pop(checkpoint.checkpoint_id, {}).values())
        committed: dict[str, list[int]] = {}
        for reader in readers:
            for checkpoint_id, records in reader.prepared:
                if checkpoint_id <= checkpoint.checkpoint_id:
                    for split_id, offset in records:
                        committed.setdefault(split_id, []).append(offset)
            reader.prepared = [item for item in reader.prepared if item[0] > checkpoint.checkpoint_id]
        for state in checkpoint.splits:
            self.check_split(state, committed.pop(state.split.split_id, []))
        for split_id, offsets in committed.items():
            assert split_id in self.external_state.deleted, f"output of splits that are not in the checkpoint: {committed}"
            self.check_split(SplitState(MemorySplit(split_id, offsets[-1] + 1), finished=False), offsets)
        self.durable = self.persisting_bytes
        self.kept = [*self.kept, (self.durable, dict(self.done))][-KEPT:]
        return readers

    def check_split(self, state: SplitState[MemorySplit], offsets: list[int]) -> None:
        split = state.split
        done = self.done[split.split_id]
        expected = [offset for _, offset in self.external_state.records(split.split_id, done, split.next_offset)]
        assert split.next_offset >= done, f"I3: {split} goes back from {done}"
        assert offsets == expected, f"{split}: committed {offsets}, not {expected}"
        assert not state.finished or split.next_offset == split.stop_offset, f"{split} is finished before its stop"
        self.done[split.split_id] = split.next_offset

    def check(self) -> None:
        """Every completed checkpoint is checked when it completes (`check_split`)."""

    # --- several steps at once ----------------------------------------------------------------------------------------
    def rewind(self, back: int, parallelism: int) -> None:
        """The job is started from an older checkpoint, and its output goes back with it."""
        if self.kept:
            del self.kept[len(self.kept) - back % len(self.kept) :]
            self.durable, done = self.kept[-1]
            self.done = dict(done)
            self.persisting = None
            self.happened["rewind"] += 1
            self.crash(stored=False, parallelism=parallelism, assignment=back)

    def round(self) -> None:
        self.discovery_due()
        self.run_discovery()
        self.answer_discovery()
        self.exchange()

    def whole_checkpoint(self, notify: int) -> None:
        """A checkpoint from its trigger to its end; what a reader delivers next comes after it."""
        self.round()
        self.trigger()
        self.exchange()
        self.complete(notify=notify % 5 > 0)

    def lost_while_persisting(self, slot: int, outcome: int) -> None:
        """A reader dies and another takes over while a checkpoint is being stored; it may be lost or stored after all."""
        self.trigger()
        self.exchange()
        if self.coordinator.phase is not CheckpointPhase.PERSISTING:
            return
        self.reader_polls(slot, outcome, 3)
        self.lose_reader(slot, drop_messages=outcome % 2 == 1)
        begin_missing(self)
        self.exchange()
        self.happened["lost while persisting"] += 1
        if outcome % 3 == 0:
            self.abort()
        elif outcome % 3 == 1:
            self.complete(notify=True)

    def late_news(self) -> None:
        """The end of a checkpoint that was given up long ago is reported again."""
        if self.last_checkpoint_id > 1:
            pending = self.coordinator._pending
            number = self.last_checkpoint_id if pending is None else pending.checkpoint_id - 1
            self.handle(e.CheckpointAborted(number))

    # --- the end ------------------------------------------------------------------------------------------------------
    def drain(self) -> None:
        """Nothing bad happens any more, everything is delivered: all there was must come out, and a bounded run end (I8)."""
        self.external_state.closed = True
        self.external_state.hidden.clear()
        for _ in range(DRAIN_ROUNDS_AT_MOST):
            self.drain_round()
            if self.is_complete():
                return
        raise AssertionError(f"not complete after the drain: {self.unread()}, finished: {self.finished}")

    def drain_round(self) -> None:
        if self.persisting is not None:
            self.complete(notify=True)
        self.discovery_due()
        self.run_discovery()
        self.answer_discovery()
        begin_missing(self)
        for _ in range(3):
            self.exchange()
        self.trigger()
        self.exchange()
        self.complete(notify=True)

    def exchange(self) -> None:
        """Every message under way arrives, and every reader reads what it can."""
        for number, slot in enumerate(self.slots):
            while slot.outbox:
                self.reader_sends(number)
            while slot.living is not None and slot.living.inbox:
                self.reader_receives(number)
            for which in range(len(slot.living.reading) if slot.living is not None else 0):
                self.reader_polls(number, which, 3)
            while slot.outbox:
                self.reader_sends(number)

    def unread(self) -> dict[str, tuple[int | None, int]]:
        return {
            split_id: (self.done.get(split_id), end)
            for split_id, end in self.external_state.ends.items()
            if split_id not in self.external_state.deleted and self.done.get(split_id) != end
        }

    def is_complete(self) -> bool:
        if self.durable is None or self.unread():
            return False
        if not self.external_state.bounded:
            return True
        checkpoint = self.serializer.deserialize(self.durable)
        return self.finished and checkpoint.exhausted and all(state.finished for state in checkpoint.splits)


def grow(simulation: Simulation, which: int, by: int) -> None:
    """A split gets more records. Bounded ones have all of theirs when they appear."""
    external_state = simulation.external_state
    names = [name for name in external_state.ends if name not in external_state.deleted]
    if names and not external_state.bounded:
        external_state.ends[names[which % len(names)]] += by


def hide(simulation: Simulation, which: int) -> None:
    """Metadata flaps: discovery does not see the split for a while."""
    names = list(simulation.external_state.ends)
    if names:
        simulation.external_state.hidden.add(names[which % len(names)])


def delete(simulation: Simulation, which: int, chance: int) -> None:
    """A split is gone for good. Not from a bounded simulation, which could not end then."""
    names = list(simulation.external_state.ends)
    if names and chance == 0 and not simulation.external_state.bounded:
        simulation.external_state.deleted.add(names[which % len(names)])


def close(simulation: Simulation, chance: int) -> None:
    if chance == 0 and simulation.external_state.bounded:
        simulation.external_state.closed = True


def begin_missing(simulation: Simulation) -> None:
    for number, slot in enumerate(simulation.slots):
        if slot.living is None:
            simulation.begin_reader(number)


CORE = Adversary(
    "core",
    Simulation,
    3,
    (
        {  # whole exchanges and checkpoints: gets far in a few steps, and restores often
            "grow": 4, "create": 3, "hide": 2, "show": 2, "delete": 4, "close": 2, "round": 8, "discovery_due": 2,
            "run_discovery": 2, "answer_discovery": 2, "polls": 6, "sends": 3, "receives": 3, "lose": 3, "begin": 2,
            "begin_missing": 3, "whole_checkpoint": 8, "trigger": 2, "complete": 2, "abort": 1, "late_news": 1, "crash": 4,
            "rewind": 1, "lost_while_persisting": 3, "fail_discovery": 1,
        },
        {  # message by message: every interleaving, more seldom far
            "grow": 4, "create": 2, "hide": 2, "show": 2, "delete": 4, "close": 1, "run_discovery": 6, "fail_discovery": 1,
            "answer_discovery": 6, "discovery_due": 3, "sends": 24, "receives": 20, "polls": 20, "lose": 3, "begin": 1,
            "begin_missing": 3, "trigger": 8, "complete": 10, "abort": 2, "late_news": 1, "crash": 2, "rewind": 1,
        },
        {  # both: whole checkpoints, and trouble in the middle of them
            "grow": 4, "create": 2, "hide": 2, "show": 2, "close": 1, "round": 3, "run_discovery": 3, "answer_discovery": 3,
            "discovery_due": 2, "sends": 12, "receives": 10, "polls": 10, "lose": 5, "begin": 2, "begin_missing": 3,
            "trigger": 6, "complete": 6, "abort": 2, "whole_checkpoint": 4, "crash": 5, "rewind": 1, "lost_while_persisting": 2,
        },
    ),
    actions={
        "grow": (lambda w, which, by: grow(w, which, 1 + by % 5), 2),
        "create": (lambda w, size: w.external_state.create(size % 8), 1),
        "show": (lambda w: w.external_state.hidden.clear(), 0),
        "delete": (lambda w, which, chance: delete(w, which, chance % 8), 2),
        "close": (lambda w, chance: close(w, chance % 4), 1),
        "sends": (Simulation.reader_sends, 1),
        "receives": (Simulation.reader_receives, 1),
        "polls": (Simulation.reader_polls, 3),
        "lose": (lambda w, slot, drop: w.lose_reader(slot, drop_messages=drop % 2 == 1), 2),
        "begin": (Simulation.begin_reader, 1),
        "complete": (lambda w, notify: w.complete(notify=notify % 5 > 0), 1),
        "crash": (lambda w, s, p, a: w.crash(stored=s % 2 == 1, parallelism=p, assignment=a), 3),
        **taking(hide, begin_missing),
    },
)  # fmt: skip
