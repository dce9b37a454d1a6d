"""The simulation of `headrace run`: the real core and committer; workers, disks and a sink that die, freeze, expire, fill up.

Every message comes late or never. The sink may be a table with a unique key: then a row that one transaction has, prepared or
open, locks out the worker that writes it in another. A coordinator may die between any two changes at the sink or on its disk;
its workers then continue as zombies for as long as they like. A second coordinator may start with a copy of the folder, or on
another machine with the same checkpoints in a store, while the first one continues.
"""

import copy
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, assert_never
from unittest.mock import patch

from headrace.connectors.base.commit import JobCommitter, StaleEpochError
from headrace.connectors.base.outputs import DEFAULT_OUTPUT, Outputs, Sinks
from headrace.connectors.base.sink import HandleSerializer, RecordedEpoch
from headrace.enumerator import events as e
from headrace.enumerator.checkpoint import CheckpointSerializer
from headrace.enumerator.enumerator import create_enumerator, restore_enumerator
from headrace.enumerator.errors import FencedError, PeerError
from headrace.enumerator.progress import ReaderProgress
from headrace.enumerator.source import DiscoveryResult, SplitBatch
from headrace.runners.local import events
from headrace.runners.local.balanced import BalancedEnumerator
from headrace.runners.local.checkpoints import CheckpointNotStoredError, RunCheckpoint, RunCheckpointSerializer, WorkerRegistry
from headrace.runners.local.commit import per_worker
from headrace.runners.local.commit.committer import CLEAN_UP_AGAIN_S, RunCommitter
from headrace.runners.local.commit.strategy import EPOCH_BITS
from headrace.runners.local.core import RunCore, RunSchedule
from headrace.runners.restarts import ExponentialDelay, Restarts
from headrace.testing.memory import MemorySplit, MemorySplitSerializer
from headrace.testing.memory_sink import MemoryHandle, MemorySink, MemoryTransactionLog, State
from tests.simulation.search import Adversary

ROUNDS = 60
"""Time without trouble, in rounds, in which everything must be done."""

_SPREAD = 0x9E3779B1  # the golden ratio's
_POSITIONS = CheckpointSerializer("memory", MemorySplitSerializer())
_SCHEDULE = RunSchedule(1.0, 0.0, 10.0, tolerable_failed_checkpoints=2, max_delay_s=0.1)


class BrokenPromiseError(AssertionError):
    """A row came twice, or not at all, or something stays open."""


class CoordinatorDiedError(BaseException):
    """Its process was killed, between two changes."""


class Log(MemoryTransactionLog):
    """The simulation may kill who makes a change. `shown`: the lists that a check shows in place of those of now."""

    def __init__(self, simulation: "RunSimulation") -> None:
        super().__init__()
        self.simulation = simulation
        self.changes = 0
        self.shown: dict[str, bytes] | None = None

    def changing(self) -> None:
        self.simulation.changing()
        self.changes += 1

    def expire(self, number: int) -> None:
        self.changes += 1
        super().expire(number)

    def generation(self, job: str) -> int:
        return self._generations.get(job, 0)


class LookedAtSink(MemorySink):
    """A check without waiting may lack what is decided and not marked yet, or ask a broker that leads no more."""

    def recorded_now(self) -> dict[str, RecordedEpoch]:
        assert isinstance(self.log, Log)
        with nullcontext() if self.log.shown is None else patch.object(self.log, "_lists", self.log.shown):
            return self.recorded()


class Disk:
    """What outlives processes: a folder of checkpoints. `full`: nothing can be written. `claims`: how many have opened it."""

    def __init__(self, outputs: tuple[str, ...]) -> None:
        self.files: dict[int, bytes] = {}
        self.registry = WorkerRegistry("run-x", outputs=outputs)
        self.full = False
        self.claims = 0


class DiskStore:
    """As `CheckpointStore`, over a `Disk`."""

    location = "folder"

    def __init__(self, disk: Disk, handles: HandleSerializer[Any], changing: Callable[[], None]) -> None:
        self.disk = disk
        self.changing = changing
        self.claim = disk.claims = disk.claims + 1
        self.serializer: RunCheckpointSerializer[MemorySplit, Any] = RunCheckpointSerializer(_POSITIONS, handles)

    @property
    def registry(self) -> WorkerRegistry:
        return self.disk.registry

    @property
    def last_id(self) -> int:
        return max(self.disk.files, default=0)

    def latest(self) -> RunCheckpoint[MemorySplit, Any] | None:
        if not self.disk.files:
            return None
        return self.serializer.deserialize(self.registry.run, self.disk.files[self.last_id], "disk")

    def keep_claim(self) -> None:
        """As `ObjectLog`: the process that has claimed it last writes."""
        if self.disk.claims != self.claim:
            raise FencedError("another coordinator has the checkpoints")

    def write(self, checkpoint: RunCheckpoint[MemorySplit, Any]) -> None:
        self.changing()
        self.keep_claim()
        if self.disk.full:
            raise CheckpointNotStoredError("no space left")
        self.disk.files = {checkpoint.positions.checkpoint_id: self.serializer.serialize(self.registry.run, checkpoint)}
        self.changing()

    def add_worker(self, number: int) -> None:
        self.keep_claim()
        not_cleaned_up = (*self.registry.not_cleaned_up, number)
        self.disk.registry = replace(self.registry, next_number=number + 1, not_cleaned_up=not_cleaned_up)

    def note_cleaned_up(self, numbers: list[int], at_s: float) -> None:
        self.keep_claim()
        self.disk.registry = replace(self.registry, cleaned_up_s={**self.registry.cleaned_up_s, **dict.fromkeys(numbers, at_s)})

    def remove_workers(self, numbers: list[int]) -> None:
        self.keep_claim()
        left = tuple(number for number in self.registry.not_cleaned_up if number not in numbers)
        cleaned_up_s = {number: at_s for number, at_s in self.registry.cleaned_up_s.items() if number in left}
        self.disk.registry = replace(self.registry, not_cleaned_up=left, cleaned_up_s=cleaned_up_s)


class Worker:
    """A worker's process. what it is given and says waits in `inbox` and `outbox`."""

    def __init__(self, simulation: "RunSimulation", number: int, registry: WorkerRegistry) -> None:
        self.simulation, self.number = simulation, number
        self.jobs = {name: registry.job(number, name) for name in simulation.outputs.sinks}
        self.inbox: deque[Any] = deque()
        self.outbox: deque[Any] = deque([events.WorkerJoined(number)])
        self.progress: ReaderProgress[MemorySplit] = ReaderProgress()
        self.reported: dict[int, Any] = {}
        self.at: dict[str, MemorySplit] = {}
        self.open: dict[str, int] = {}
        self.started = 0
        self.alive = True
        self.waits_for: tuple[str, int] | None = None

    def is_locked_out(self) -> bool:
        """It waits for a lock, in its one thread."""
        if self.waits_for is not None and not self.simulation.is_locked(self.waits_for, self):
            self.waits_for = None
        return self.waits_for is not None

    def receive(self) -> None:
        if self.is_locked_out():
            return
        message = self.inbox.popleft()
        match message:
            case events.AssignSplits(_, splits):
                self.progress.assigned(splits)
                self.at |= {split.split_id: split for split in splits}
            case events.TakeSnapshot(_, checkpoint_id):
                self.snapshot(checkpoint_id)
            case events.NotifyCheckpointStored(_, checkpoint_id):
                self.progress.checkpoint_completed(self.reported.pop(checkpoint_id, {}))
            case events.StopWorker():
                self.die()
            case _:
                raise AssertionError(message)

    def read(self, which: int, rows: int) -> None:
        if self.is_locked_out():
            return
        waiting = [split for split in self.at.values() if split.next_offset < self.simulation.ends[split.split_id]]
        if not waiting:
            return
        split = waiting[which % len(waiting)]
        stop = min(self.simulation.ends[split.split_id], split.next_offset + 1 + rows % 4)
        if self.simulation.is_locked((split.split_id, split.next_offset), self):
            self.simulation.happened["waits for a lock"] += 1
            self.waits_for = (split.split_id, split.next_offset)
            return
        if not self.open:
            self.outbox.append(events.WorkerWrote(self.number))
        for offset in range(split.next_offset, stop):
            name = self.simulation.output_of(split.split_id, offset)
            if name not in self.open:
                self.open[name] = self.simulation.log.begin(self.jobs[name], f"{self.started}.0.0")
                self.started += 1
            self.simulation.log.append(self.open[name], [(split.split_id, offset)])
        moved = MemorySplit(split.split_id, stop, None)
        self.at[split.split_id] = moved
        self.progress.delivered(SplitBatch(moved, None))  # type: ignore[arg-type]

    def snapshot(self, checkpoint_id: int) -> None:
        handles: tuple[Any, ...] = ()
        for name, transaction in [*self.open.items()]:
            self.simulation.log.prepare(transaction)
            handles += (self.simulation.outputs.tagged(name, MemoryHandle(transaction)),)
            del self.open[name]
        states = self.progress.snapshot()
        self.reported = {checkpoint_id: states}
        moved = self.progress.moved()
        unmoved = len(states) - len(moved)
        self.outbox.append(events.WorkerSnapshotted(self.number, checkpoint_id, moved, handles, {}, unmoved))

    def die(self) -> None:
        self.alive = False


class Lifetime:
    """One coordinator, on one disk."""

    def __init__(self, simulation: "RunSimulation", disk: Disk) -> None:
        self.simulation = simulation
        self.store = DiskStore(disk, simulation.outputs.handles, simulation.changing)
        number = disk.registry.next_number
        self.store.add_worker(number)
        restored = self.store.latest()
        shape: dict[str, Any] = {"parallelism": simulation.parallelism}
        made = [BalancedEnumerator] if restored is None else [BalancedEnumerator, restored.positions]
        enumerator: Any = (create_enumerator if restored is None else restore_enumerator)(*made, **shape)
        self.core: RunCore[MemorySplit, MemoryHandle] = RunCore(
            enumerator, _SCHEDULE, Restarts(ExponentialDelay()), next_number=number + 1, last_checkpoint_id=self.store.last_id
        )
        self.committer: RunCommitter[MemorySplit, MemoryHandle] = RunCommitter(
            self.store,  # type: ignore[arg-type]
            simulation.sink,
            restored,
            number,
            self.is_stored,
            lambda splits: None,  # nothing of a log is ever removed here
            lambda: simulation.now_s,
            simulation.draw,
        )
        self.job: JobCommitter[Any] = JobCommitter(self.store.registry.run, self.committer)
        self.workers: dict[int, Worker] = {}
        self.events: deque[Any] = deque()
        self.timers: list[Any] = []
        self.commits: deque[
            events.Recover | events.StageCheckpoint | events.CommitCheckpoint[Any, Any] | events.RetireWorker
        ] = deque()
        self.stored_id = 0
        self.retired: set[str] = set()
        self.ended: Exception | str = ""
        self.handle(events.RunStarted())

    def handle(self, event: Any) -> None:
        if not self.ended:
            try:
                for command in self.core.handle(event):
                    self.perform(command)
            except FencedError as error:
                self.ended = error

    def perform(self, command: Any) -> None:
        match command:
            case events.Recover() | events.CommitCheckpoint():
                assert all(isinstance(work, events.RetireWorker | events.StageCheckpoint) for work in self.commits)
                self.commits.append(command)
            case events.RetireWorker() | events.StageCheckpoint():
                self.commits.append(command)
            case events.SetTimer(_, timer):
                self.timers.append(timer)
            case events.StartWorker(_, number):
                self.store.add_worker(number)
                self.workers[number] = Worker(self.simulation, number, self.store.registry)
            case events.KillWorker(number):
                self.lose(number)
            case events.AssignSplits() | events.TakeSnapshot() | events.NotifyCheckpointStored() | events.StopWorker():
                if command.number in self.workers:
                    self.workers[command.number].inbox.append(command)
            case e.DiscoverInitial() | e.DiscoverLater():
                self.events.append(e.SplitsDiscovered(DiscoveryResult([MemorySplit(name, 0) for name in self.simulation.ends])))
            case (
                e.PublishPositions()
                | e.DiscoverAfter()
                | e.ReportFinished()
                | e.ReportMissing()
                | e.ProveGone()
                | e.ReportDiscoveryFailure()
                | events.ReportWorkerLost()
            ):
                pass
            case events.ReportCheckpointFailure():
                self.simulation.happened["checkpoint failed"] += 1
            case events.NoteUnchanged():
                self.simulation.happened["checkpoint unchanged"] += 1
            case events.FailRun(error):
                self.ended = error
            case events.EndRun():
                self.ended = "stopped"
            case _:
                assert_never(command)

    def lose(self, number: int) -> None:
        """The process is dead, and that is certain."""
        worker = self.workers.pop(number, None)
        if worker is not None:
            worker.die()
            self.events.append(events.WorkerDied(number, "killed", self.simulation.now_s, 0.5))

    def run_commit(self) -> None:
        """What the commit thread does, from its start to its end; the simulation may kill the coordinator meanwhile."""
        if not self.commits:
            return
        work, drivers = self.commits.popleft(), self.simulation.drivers()
        try:
            match work:
                case events.RetireWorker(number):
                    self.committer.retire(number)
                    self.retired.update(self.store.registry.job(number, name) for name in self.simulation.outputs.sinks)
                case events.StageCheckpoint(checkpoint_id):
                    self.committer.stage(checkpoint_id)
                case events.Recover():
                    self.job.recover()
                    self.events.append(events.RunRecovered())
                case events.CommitCheckpoint(checkpoint, handles):
                    self.committer.propose(checkpoint)
                    self.job.commit(checkpoint.checkpoint_id, handles)
                    self.events.append(events.CheckpointCommitted(checkpoint.checkpoint_id))
        except CheckpointNotStoredError as error:
            if not isinstance(work, events.CommitCheckpoint) or self.stored_id == work.checkpoint.checkpoint_id:
                self.ended = error
                return
            self.simulation.happened["not stored"] += 1
            self.job = JobCommitter(self.store.registry.run, self.committer)
            self.events.append(events.CheckpointIsNotStored(work.checkpoint.checkpoint_id, "no space left"))
        except PeerError as error:
            self.simulation.expect_aborted(error)
            self.ended = error
        except StaleEpochError as error:
            if self.simulation.drivers() != drivers and self.simulation.log.shown is None:
                raise BrokenPromiseError("an older copy of the folder has fenced the run that continues") from error
            self.ended = error
        except FencedError as error:
            self.ended = error

    def is_stored(self, checkpoint_id: int) -> None:
        self.stored_id = checkpoint_id
        self.events.append(events.CheckpointStored(checkpoint_id))


class RunSimulation:
    """One job, its input and output. Actions take any numbers, and do nothing where they do not apply."""

    names: tuple[str, ...] = ()

    def __init__(self, parallelism: int) -> None:
        self.happened: Counter[str] = Counter()
        self.parallelism = 1 + parallelism % 3
        self.now_s = 0.0
        self.drawn = 0
        self.ends = {"a": 2, "b": 3, "c": 1}
        self.dies_in: int | None = None
        self.log = Log(self)
        self.sink: Sinks = {name: LookedAtSink(self.log) for name in self.names} if self.names else LookedAtSink(self.log)
        self.outputs = Outputs(self.sink)
        self.checked = 0
        self.disk = Disk(self.names)
        self.kept: list[Disk] = []
        self.zombies: list[Worker] = []
        self.others: list[Lifetime] = []
        self.disks = [self.disk]
        self.locks = False
        self.lifetime = Lifetime(self, self.disk)

    def draw(self) -> int:
        """Bits that are the same each time, and spread as chance spreads them."""
        self.drawn += 1
        return self.drawn * _SPREAD % (1 << EPOCH_BITS)

    def output_of(self, split_id: str, offset: int) -> str:
        """Where the transform sends this row."""
        return DEFAULT_OUTPUT

    def drivers(self) -> int:
        """How many have taken the run over at its sinks."""
        return sum(self.log.generation(self.disk.registry.run_at(name)) for name in self.outputs.sinks)

    def changing(self) -> None:
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in < 0:
                self.dies_in = None
                raise CoordinatorDiedError

    # --- actions ------------------------------------------------------------------------------------------------------
    def grow(self, which: int, rows: int) -> None:
        self.ends["abc"[which % 3]] += 1 + rows % 5

    def event(self) -> None:
        if self.lifetime.events:
            self.lifetime.handle(self.lifetime.events.popleft())
        self.look()

    def timer(self, which: int) -> None:
        timers = self.lifetime.timers
        if timers:
            timer = timers.pop(which % len(timers))
            self.happened[f"timer {type(timer).__name__}"] += 1
            self.lifetime.handle(timer)
        self.look()

    def interval(self) -> None:
        """The timers of an ordinary checkpoint."""
        due = events.CheckpointDue | events.RowsDue | events.PauseOver
        for timer in [timer for timer in self.lifetime.timers if isinstance(timer, due)]:
            self.lifetime.timers.remove(timer)
            self.lifetime.handle(timer)
        self.look()

    def deliver(self, which: int) -> None:
        speaking = [worker for worker in self.lifetime.workers.values() if worker.outbox]
        if speaking:
            message = speaking[which % len(speaking)].outbox.popleft()
            assert not isinstance(message, events.SplitDone)
            self.lifetime.handle(message)
        self.look()

    def receive(self, which: int) -> None:
        self.of_worker(which, lambda worker: worker.receive() if worker.inbox else None)

    def read(self, which: int, split: int, rows: int) -> None:
        self.of_worker(which, lambda worker: worker.read(split, rows))

    def of_worker(self, which: int, act: Callable[[Worker], None]) -> None:
        workers = [*self.lifetime.workers.values()]
        if workers:
            worker = workers[which % len(workers)]
            try:
                act(worker)
            except PeerError:
                self.gone(worker)

    def gone(self, worker: Worker) -> None:
        """A living worker's transaction was aborted; it cannot continue."""
        self.happened["transaction gone"] += 1
        self.expect_aborted(f"the transaction of worker {worker.number}, which is alive, was aborted")
        self.lifetime.lose(worker.number)

    def expect_aborted(self, what: object) -> None:
        """Something was aborted that is used still: not by this run itself."""
        if not any(self.happened[why] for why in ("expired OPEN", "expired PREPARED", "foreign coordinator")):
            raise BrokenPromiseError(str(what))

    def lock_rows(self) -> None:
        """From now on the sink is a table with a unique key, whose transactions have no timeout: so zombies end in time."""
        self.locks = not self.happened["zombie"]

    def is_locked(self, row: tuple[str, int], asking: Worker) -> bool:
        """Whether another transaction has written this row. Of a dead session only what is prepared is left."""
        return self.locks and bool(self.holders(row, asking))

    def holders(self, row: tuple[str, int], asking: Worker) -> set[str]:
        """The jobs whose transactions have written this row."""
        workers = [worker for worker in (*self.lifetime.workers.values(), *self.zombies) if worker.alive]
        living = {entry for worker in workers for entry in worker.open.values()}
        others = living - {*asking.open.values()}
        held = (entry for entry in self.log.entries if entry.state is State.PREPARED or entry.number in others)
        return {entry.job for entry in held if entry.unended and row in entry.rows}

    def commit(self, dies: int, after: int) -> None:
        """The commit thread's work; in one of four cases the coordinator dies within it."""
        if not self.lifetime.commits:
            return
        self.dies_in = after % 12 if dies % 4 == 0 else None
        try:
            self.lifetime.run_commit()
        except CoordinatorDiedError:
            self.happened["killed in commit"] += 1
            self.crash(dies)
        self.dies_in = None
        self.look()

    def kill(self, which: int) -> None:
        numbers = [*self.lifetime.workers]
        if numbers:
            self.happened["worker killed"] += 1
            self.lifetime.lose(numbers[which % len(numbers)])

    def silence(self, which: int) -> None:
        numbers = [*self.lifetime.workers]
        if numbers:
            self.happened["worker silent"] += 1
            self.lifetime.handle(events.WorkerSilent(numbers[which % len(numbers)]))
        self.look()

    def crash(self, zombies: int) -> None:
        """The coordinator is gone; its workers, too, or frozen for now."""
        self.happened["coordinator killed"] += 1
        if zombies % 2:
            self.zombies += self.lifetime.workers.values()
        self.begin()

    def zombie(self, which: int, split: int, rows: int) -> None:
        """A worker of an earlier coordinator, that does not know it yet, continues."""
        if self.zombies:
            worker = self.zombies[which % len(self.zombies)]
            if self.locks and worker.number not in self.disk.registry.not_cleaned_up:
                self.zombies.remove(worker)
                return
            self.happened["zombie"] += 1
            try:
                if rows % 3 == 0 and worker.inbox:
                    worker.receive()
                elif rows % 3 == 1:
                    worker.snapshot(10**9)
                else:
                    worker.read(split, rows)
            except PeerError:
                self.zombies.remove(worker)

    def expire(self, which: int) -> None:
        unended = [entry for entry in self.log.entries if entry.unended]
        if unended:
            entry = unended[which % len(unended)]
            self.happened[f"expired {entry.state.name}"] += 1
            self.log.expire(entry.number)

    def disk_full(self) -> None:
        self.disk.full = not self.disk.full

    def looks_lag(self) -> None:
        """From now on looks show what is recorded now; the next time all that is recorded then."""
        self.happened["looks lag"] += 1
        self.log.shown = dict(self.log.stored()) if self.log.shown is None else None

    def time(self) -> None:
        self.now_s += CLEAN_UP_AGAIN_S[-1]

    def keep(self) -> None:
        """Another process copies the folder."""
        self.kept = [*self.kept[-2:], copy.deepcopy(self.disk)]

    def foreign(self, which: int) -> None:
        """A second coordinator starts with a copy; the first does not know, and continues when it likes (`other`)."""
        if self.kept:
            self.happened["foreign coordinator"] += 1
            self.others.append(self.lifetime)
            self.disk = copy.deepcopy(self.kept[which % len(self.kept)])
            self.disk.full = False
            self.disks.append(self.disk)
            self.begin()

    def second_machine(self) -> None:
        """A coordinator starts with the same checkpoints on another machine, where no lock keeps it out."""
        self.happened["foreign coordinator"] += 1
        self.happened["second machine"] += 1
        self.others.append(self.lifetime)
        self.begin()

    def same_folder_copied(self) -> None:
        self.keep()
        self.foreign(len(self.kept) - 1)

    def other(self, which: int, what: int) -> None:
        """A step of a coordinator that another has replaced."""
        if not self.others:
            return
        lifetime = self.others[which % len(self.others)]
        self.happened["other"] += 1
        if what % 4 == 0:
            lifetime.run_commit()
        elif what % 4 == 1 and lifetime.events:
            lifetime.handle(lifetime.events.popleft())
        elif what % 4 == 2:
            for worker in [*lifetime.workers.values()]:
                try:
                    while worker.inbox and not worker.is_locked_out():
                        worker.receive()
                    worker.read(what, what)
                except PeerError:
                    lifetime.lose(worker.number)
        else:
            for worker in lifetime.workers.values():
                while worker.outbox:
                    lifetime.handle(worker.outbox.popleft())
            if events.CheckpointDue() in lifetime.timers:
                lifetime.timers.remove(events.CheckpointDue())
                lifetime.handle(events.CheckpointDue())
        if isinstance(lifetime.ended, FencedError):
            self.happened["fenced"] += 1
        if lifetime.ended:
            self.others.remove(lifetime)

    def stop(self) -> None:
        self.happened["stop"] += 1
        self.lifetime.handle(events.StopRequested())
        self.look()

    # --- promises -----------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        self.lifetime = Lifetime(self, self.disk)

    def look(self) -> None:
        """A lifetime that has ended is followed by the next."""
        ended = self.lifetime.ended
        if not ended:
            return
        for number in [*self.lifetime.workers]:
            self.lifetime.lose(number)
        if isinstance(ended, StaleEpochError):
            self.happened["stale folder refused"] += 1
            self.disks.remove(self.disk)
            if not self.disks:
                raise BrokenPromiseError("the newest folder was refused")
            self.disk = self.disks[-1]
            self.others = [lifetime for lifetime in self.others if lifetime.store.disk is not self.disk]
        self.begin()

    def check(self) -> None:
        """Nothing was committed twice; nor is it where nothing has changed."""
        if self.log.changes == self.checked:
            return
        self.checked = self.log.changes
        rows = Counter(row for entry in self.log.entries if entry.state is State.COMMITTED for row in entry.rows)
        if twice := [row for row, times in rows.items() if times > 1]:
            raise BrokenPromiseError(f"{twice} were committed twice")

    def drain(self) -> None:
        self.disk.full, self.log.shown = False, None
        self.dies_in = None
        self.zombies.clear()
        wanted = {(name, offset) for name, end in self.ends.items() for offset in range(end)}
        for _ in range(ROUNDS):
            self.round()
            self.check()
            done = {row for entry in self.log.entries if entry.state is State.COMMITTED for row in entry.rows}
            if done == wanted and not self.left_open():
                return
        raise BrokenPromiseError(f"{sorted(wanted - done)} are missing, or a dead worker's transaction is open")

    def left_open(self) -> bool:
        """A dead worker's transaction is open that the folder knows of. Any other is left to the sink's timeout."""
        if self.happened["foreign coordinator"]:
            return False
        registry = self.disk.registry
        known = {registry.job(number, name) for number in registry.not_cleaned_up for name in self.outputs.sinks}
        living = {job for worker in self.lifetime.workers.values() for job in worker.jobs.values()}
        return any(entry.unended for entry in self.log.entries if entry.job in known - living)

    def round(self) -> None:
        """Everything that waits happens, and a checkpoint."""
        self.now_s += CLEAN_UP_AGAIN_S[-1]
        self.disk.full = False
        for _ in range(4):
            while self.lifetime.commits or self.lifetime.events:
                self.commit(1, 0)
                self.event()
            for worker in [*self.lifetime.workers.values()]:
                self.settle(worker)
        for timer in [timer for timer in self.lifetime.timers if not isinstance(timer, events.CheckpointTimedOut)]:
            if timer in self.lifetime.timers:
                self.lifetime.timers.remove(timer)
                self.lifetime.handle(timer)
                self.look()

    def settle(self, worker: Worker) -> None:
        try:
            while worker.inbox and not worker.is_locked_out():
                worker.receive()
            for split in range(3):
                worker.read(split, 3)
        except PeerError:
            self.gone(worker)
            return
        if worker.is_locked_out() and worker.waits_for is not None:
            self.happened["lock timeout"] += 1
            if of_the_dead := self.holders(worker.waits_for, worker) & self.lifetime.retired:
                raise BrokenPromiseError(f"{sorted(of_the_dead)}, which are dead, keep worker {worker.number} waiting")
            self.lifetime.lose(worker.number)
            return
        while worker.outbox and worker.number in self.lifetime.workers:
            self.lifetime.handle(worker.outbox.popleft())
            self.look()


@contextmanager
def one_by_one() -> Iterator[None]:
    """Transactions of several workers are ended one after the other, so that a schedule is the same each time."""
    with patch.object(per_worker, "at_once", lambda act, committers, owned: list(map(act, committers, owned))):
        yield


RUN = Adversary(
    "run", RunSimulation, 1,
    (
        {
            "grow": 4, "event": 14, "timer": 3, "interval": 5, "deliver": 14, "receive": 14, "read": 14, "commit": 10,
            "kill": 2, "silence": 1, "crash": 1, "zombie": 3, "expire": 1, "disk_full": 1, "time": 1, "stop": 1, "round": 2,
            "lock_rows": 3,
        },
        {
            "grow": 3, "event": 12, "interval": 5, "deliver": 12, "receive": 12, "read": 10, "commit": 10, "kill": 1,
            "crash": 1, "keep": 2, "foreign": 1, "same_folder_copied": 2, "second_machine": 1, "other": 14, "round": 3,
            "time": 1,
        },
    ),
    longest=150, around=one_by_one,
)  # fmt: skip


class TwoOutputsSimulation(RunSimulation):
    """The same with two sinks: the transform sends rows to one or the other, and all rows of a split to the second."""

    names = ("bad", "good")

    def output_of(self, split_id: str, offset: int) -> str:
        return "good" if split_id == "b" or (split_id == "c" and offset % 2) else "bad"

    def outage(self, after: int) -> None:
        """The coordinator dies in a commit, and stays away for longer than what it has listed is alive."""
        self.commit(0, after)
        for entry in self.log.entries:
            if entry.state is State.PREPARED:
                self.happened["expired PREPARED"] += 1
                self.log.expire(entry.number)

    def late_outage(self, after: int) -> None:
        """The brokers were away, too: looks lag."""
        self.outage(2 + after % 4)
        self.happened["looks lag"] += 1
        self.log.shown = dict(self.log.stored())


OUTPUTS = replace(
    RUN, name="outputs", begin=TwoOutputsSimulation,
    mixes=(
        {**RUN.mixes[0], "outage": 4}, {**RUN.mixes[1], "outage": 8},
        {**RUN.mixes[0], "late_outage": 8, "crash": 6, "round": 6}, {**RUN.mixes[1], "looks_lag": 2},
    ),
)  # fmt: skip
