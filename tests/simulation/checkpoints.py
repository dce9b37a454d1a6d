"""A runner with checkpoints, in one thread and at random: what it may do to a writing shard, and what must be true then.

As Flink's runner it finalises all bundles that have ended when a task hears of a completed checkpoint, those after its barrier
too. Any attempt may die between two commands of a call, and its call may continue later all the same; transactions time out at
any moment. What the options of the job let it do is an `Engine`.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa

from headrace.connectors.base.commit import CleanedUp, CleanUp, Copied, Copy, End, Ended
from headrace.connectors.base.sink import Attempt
from headrace.enumerator.errors import PeerError
from headrace.runners.beam import shard as beam_shard
from headrace.runners.beam.shard import CLEAN_UP_S, BundleFinalised, CallFailed, CallStarted, Return, Shard, ShardState, Write
from headrace.testing.memory_sink import MemorySink, State
from tests.simulation.bugs import shards
from tests.simulation.bugs.injecting import Injected, bug
from tests.simulation.commit import FusedLog
from tests.simulation.search import Adversary, by_chance

RUN = "run"
JOB = "run-0"
CALM_ROUNDS = 12


class BrokenPromiseError(AssertionError):
    """What must never be true is true."""


@dataclass(frozen=True)
class Engine:
    """What the options of a job let Flink do; as it is, what `headrace.runners.beam.flink_options` accepts.

    concurrent: this many checkpoints may be under way. pause: a task hears of a completed checkpoint before the next one's
    barrier comes. savepoints: another process takes them while the job runs; they ask neither for the others' end nor for a
    pause, no task hears of their completion, and a failed job does not go back to them (Flink since 1.15). aligned: a task
    takes no rows from behind the barrier before its own snapshot. sticky: all calls of a shard are made in one process.
    """

    concurrent: int = 1
    pause: bool = True
    savepoints: bool = True
    aligned: bool = True
    sticky: bool = True


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint: where the source was, and the shard's state."""

    position: int
    state: ShardState[Any]
    is_savepoint: bool = False


@dataclass
class Process:
    """A worker process: what it knows of the shard, and the number that is part of its transactions' names."""

    shard: Shard[Any]
    nonce: int


@dataclass
class Call:
    """A call under way: its rows, the commands that are to be performed next, and whose it is."""

    process: Process
    rows: list[int]
    core: beam_shard.ShardCall[Any]
    commands: deque[Any]

    def tell(self, event: Any) -> None:
        self.commands.extend(self.core.handle(event))

    @property
    def has_returned(self) -> bool:
        return isinstance(self.commands[0], Return)


@dataclass
class Simulation:
    random: random.Random
    make_shard: Callable[[], Shard[Any]] = Shard
    engine: Engine = Engine()
    log: FusedLog = field(default_factory=FusedLog)
    checked: tuple[int, ...] = ()
    now_s: float = 1000.0
    position: int = 0
    state: ShardState[Any] = field(default_factory=lambda: ShardState(RUN))
    completed: Snapshot = field(default_factory=lambda: Snapshot(0, ShardState(RUN)))
    under_way: list[Snapshot] = field(default_factory=list)
    to_be_told: int = 0
    source_barrier: int | None = None
    outstanding: list[Callable[[], object]] = field(default_factory=list)
    zombies: list[Call] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.nonces = count()
        self.sink = MemorySink(self.log)
        self.processes = self.started()

    def started(self) -> list[Process]:
        return [Process(self.make_shard(), next(self.nonces)) for _ in range(1 if self.engine.sticky else 2)]

    # --- what may happen ----------------------------------------------------------------------------------------------
    def step(self) -> None:
        actions = 3 * [self.write, self.heartbeat, self.barrier, self.complete, self.notification]
        actions += [self.savepoint, self.abort, self.crash, self.zombie, self.zombie, self.expire, self.time]
        self.random.choice(actions)()
        self.check()

    def write(self) -> None:
        rows = list(range(self.position, self.position + self.random.randint(1, 3)))
        self.run(rows, may_die=True)

    def heartbeat(self) -> None:
        self.run([], may_die=True)

    def barrier(self) -> None:
        if sum(not snapshot.is_savepoint for snapshot in self.under_way) >= self.engine.concurrent:
            return
        if self.engine.pause and self.to_be_told:
            return
        if self.engine.aligned:
            self.under_way.append(Snapshot(self.position, self.state))
        elif self.source_barrier is None:
            self.source_barrier = self.position
        else:
            self.under_way.append(Snapshot(self.source_barrier, self.state))
            self.source_barrier = None

    def savepoint(self) -> None:
        """Another process asks for one, while no other process does."""
        if self.engine.savepoints and not any(snapshot.is_savepoint for snapshot in self.under_way):
            self.under_way.append(Snapshot(self.position, self.state, is_savepoint=True))

    def complete(self) -> None:
        """One of them is complete; one that is not a savepoint takes the place of the previous ones."""
        if not self.under_way:
            return
        done = self.random.choice(self.under_way)
        before = self.under_way[: self.under_way.index(done)]
        self.under_way.remove(done)
        if done.is_savepoint:
            self.count("savepoint")
            return
        self.completed = done
        self.to_be_told += 1
        self.under_way = [snapshot for snapshot in self.under_way if snapshot.is_savepoint or snapshot not in before]
        self.count("checkpoint")

    def abort(self) -> None:
        if self.under_way and self.random.random() < 0.3:
            self.under_way.remove(self.random.choice(self.under_way))
            self.count("aborted checkpoint")

    def notification(self) -> None:
        if self.to_be_told:
            self.to_be_told -= 1
            callbacks, self.outstanding = self.outstanding, []
            for callback in callbacks:
                callback()

    def crash(self) -> None:
        if self.random.random() < 0.3:
            self.restore()

    def zombie(self) -> None:
        """A call of a dead attempt continues."""
        if self.zombies:
            call = self.random.choice(self.zombies)
            try:
                self.perform(call)
            except PeerError:
                call.tell(CallFailed())
                self.zombies.remove(call)
            else:
                if call.has_returned:
                    self.zombies.remove(call)
            self.count("zombie")

    def expire(self) -> None:
        unended = self.log.unended(JOB)
        if unended and self.random.random() < 0.3:
            entry = self.random.choice(unended)
            self.count("expired prepared" if entry.state is State.PREPARED else "expired open")
            self.log.expire(entry.number)

    def time(self) -> None:
        self.now_s += self.random.choice([1.0, CLEAN_UP_S])

    # --- how ----------------------------------------------------------------------------------------------------------
    def run(self, rows: list[int], *, may_die: bool) -> None:
        """One call of the live attempt, which may die in the middle of it."""
        process = self.random.choice(self.processes)
        core = process.shard.call(self.state, self.now_s, has_rows=bool(rows))
        call = Call(process, rows, core, deque())
        call.tell(CallStarted())
        while not call.has_returned:
            if may_die and self.random.random() < 0.1:
                self.die(call)
                return
            try:
                self.perform(call)
            except PeerError:  # its transaction was aborted while it wrote: the bundle has failed
                self.count("failed bundle")
                call.tell(CallFailed())
                self.restore()
                return
        returned = call.commands.popleft()
        self.state = returned.state
        self.position += len(rows)
        if returned.awaits_finalisation:
            self.outstanding.append(partial(core.handle, BundleFinalised()))

    def die(self, call: Call) -> None:
        """Before the call's next command, to continue with it later perhaps; or while writing; or as the command fails."""
        command = call.commands[0]
        if isinstance(command, Write) and self.random.random() < 0.5:
            transaction = self.sink.begin(Attempt(JOB, 0, command.slot, call.process.nonce))
            transaction.write(_batch(call.rows))
            call.tell(CallFailed())
            self.count("died in Write")
        elif self.random.random() < 0.2:  # the sink has raised
            call.tell(CallFailed())
            self.count(f"failed {type(command).__name__}")
        else:
            self.zombies.append(call)
            self.count(f"died before {type(command).__name__}")
        self.restore()

    def perform(self, call: Call) -> None:
        call.tell(self.answer(call, call.commands.popleft()))

    def answer(self, call: Call, command: Any) -> Any:
        committer = self.sink.committer(JOB)
        match command:
            case CleanUp(keep):
                committer.clean_up(keep)
                return CleanedUp()
            case End(handle):
                return Ended(handle, committer.end(handle))
            case Copy(handles):
                self.count("copy")
                if not {"expired prepared", "zombie"} & self.happened.keys():
                    raise BrokenPromiseError("copied, and nothing but the writer itself can have aborted it")
                return Copied((committer.copy(handles),))
            case Write(slot):
                with self.sink.begin(Attempt(JOB, 0, slot, call.process.nonce)) as transaction:
                    transaction.write(_batch(call.rows))
                    return beam_shard.RowsWritten(transaction.prepare())
        raise AssertionError(command)

    def restore(self) -> None:
        """The attempt is over; the next one starts from the last checkpoint, in this process or in another."""
        self.position, self.state = self.completed.position, self.completed.state
        self.under_way, self.to_be_told, self.outstanding, self.source_barrier = [], 0, [], None
        if self.random.random() < 0.7:
            self.processes = self.started()
        self.count("restore")

    def count(self, what: str) -> None:
        self.happened[what] += 1

    # --- what must be true --------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Nothing is seen twice, and nothing that a restore would write again. It still is so where nothing has changed."""
        now = (self.log.changes, self.completed.position)
        if now == self.checked:
            return
        self.checked = now
        rows = [row["row"] for row in self.log.rows()]
        if len(rows) != len(set(rows)):
            raise BrokenPromiseError(f"seen twice: {sorted(row for row in set(rows) if rows.count(row) > 1)}")
        if early := [row for row in rows if row >= self.completed.position]:
            raise BrokenPromiseError(f"seen before a checkpoint covers them: {early}")

    def drain(self) -> None:
        """Time without trouble; then every row is seen, once, and nothing is still open."""
        while self.zombies:
            self.zombie()
        for _ in range(CALM_ROUNDS):
            self.now_s += CLEAN_UP_S
            self.run([], may_die=False)
            for _ in range(2):  # one that is not aligned comes in two steps
                self.barrier()
            while self.under_way:
                self.complete()
            while self.to_be_told:
                self.notification()
            self.check()
        self.run([], may_die=False)
        rows = sorted(row["row"] for row in self.log.rows())
        if rows != list(range(self.position)):
            raise BrokenPromiseError(f"of the rows up to {self.position}, {set(range(self.position)) - set(rows)} are lost")
        if left := self.log.unended(JOB):
            raise BrokenPromiseError(f"still open: {left}")


def _batch(rows: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"row": row} for row in rows])


def schedule(
    seed: int, make_shard: Callable[[], Shard[Any]] = Shard, steps: int = 60, engine: Engine | None = None
) -> dict[str, int]:
    """Play one; what happened, by how often. Raises BrokenPromiseError."""
    simulation = Simulation(random.Random(seed), make_shard, engine or Engine())
    for _ in range(steps):
        simulation.step()
    simulation.drain()
    return simulation.happened


_shard: list[type[Shard[Any]]] = [Shard]


def _shard_simulation() -> Simulation:
    """Under the options of Flink that are accepted; its chances are taken from an action's numbers."""
    return Simulation(random.Random(0), _shard[0], Engine())


_OFTEN = dict.fromkeys(("write", "heartbeat", "barrier", "complete", "notification"), 3)
_SELDOM = dict.fromkeys(("savepoint", "abort", "crash", "expire", "time"), 1)

SHARDS = Adversary(
    "shards", _shard_simulation, 0,
    ({**_OFTEN, **_SELDOM, "zombie": 2}, {**_OFTEN, **_SELDOM, "write": 6, "crash": 3, "zombie": 4, "expire": 2}), longest=90,
    actions=by_chance(Simulation, (*_OFTEN, *_SELDOM, "zombie"), "random"),
)  # fmt: skip


def _injected(shard: type[Shard[Any]]) -> Injected:
    def injected() -> Iterator[None]:
        _shard[0] = shard
        try:
            yield
        finally:
            _shard[0] = Shard

    injected.__name__, injected.__doc__ = shard.__name__, shard.__doc__
    return bug(injected)


INJECTED = tuple(_injected(shard) for shard in shards.INJECTED)
"""Those of `bugs.shards`."""
