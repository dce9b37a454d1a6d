"""A runner with checkpoints, in one thread and at random: what it may do to a writing shard, and what must be true then.

As Flink's runner it finalises all bundles that have ended when a checkpoint completes, those after its barrier too. Any attempt
may die between two commands of a call, and its call may go on later all the same; transactions time out at any moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa

from headrace.connectors.commit import Copy, End, Sweep
from headrace.connectors.sink import Attempt
from headrace.enumerator.errors import PeerError
from headrace.runners.beam.shard import SWEEP_SECONDS, Shard, ShardState, Write
from headrace.testing.memory_sink import MemorySink, MemoryTransactionLog, State

RUN = "run"
JOB = "run-0"
CALM_ROUNDS = 12


class BrokenPromiseError(AssertionError):
    """What must never be true is true."""


@dataclass
class Process:
    """A worker process: what it knows of the shard, and the number that is part of its transactions' names."""

    shard: Shard[Any]
    nonce: int


@dataclass
class Call:
    """A call under way: its rows, the command that is to be performed next, and whose it is."""

    process: Process
    rows: list[int]
    steps: Generator[Any, Any, Any]
    command: Any


@dataclass
class World:
    """One history."""

    random: random.Random
    make_shard: Callable[[], Shard[Any]] = Shard
    log: MemoryTransactionLog = field(default_factory=MemoryTransactionLog)
    now_s: float = 1000.0
    position: int = 0
    state: ShardState[Any] = field(default_factory=lambda: ShardState(RUN))
    completed: tuple[int, ShardState[Any]] = field(default_factory=lambda: (0, ShardState(RUN)))
    under_way: tuple[int, ShardState[Any]] | None = None
    notify: bool = False
    outstanding: list[Callable[[], None]] = field(default_factory=list)
    zombies: list[Call] = field(default_factory=list)
    happened: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nonces = count()
        self.sink = MemorySink(self.log)
        self.process = Process(self.make_shard(), next(self.nonces))

    # --- what may happen ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One random thing."""
        actions = 3 * [self.write, self.beat, self.barrier, self.complete, self.notification]
        actions += [self.crash, self.zombie, self.zombie, self.expire, self.time]
        self.random.choice(actions)()
        self.check()

    def write(self) -> None:
        rows = list(range(self.position, self.position + self.random.randint(1, 3)))
        self.run(rows, may_die=True)

    def beat(self) -> None:
        self.run([], may_die=True)

    def barrier(self) -> None:
        if self.under_way is None and not self.notify:
            self.under_way = (self.position, self.state)

    def complete(self) -> None:
        if self.under_way is not None:
            self.completed, self.under_way, self.notify = self.under_way, None, True
            self.count("checkpoint")

    def notification(self) -> None:
        if self.notify:
            self.notify = False
            callbacks, self.outstanding = self.outstanding, []
            for callback in callbacks:
                callback()

    def crash(self) -> None:
        if self.random.random() < 0.3:
            self.restore()

    def zombie(self) -> None:
        """A call of a dead attempt goes on."""
        if self.zombies:
            call = self.random.choice(self.zombies)
            if not self.advance(call):
                self.zombies.remove(call)
            self.count("zombie")

    def expire(self) -> None:
        unended = self.log.unended(JOB)
        if unended and self.random.random() < 0.3:
            entry = self.random.choice(unended)
            self.count("expired prepared" if entry.state is State.PREPARED else "expired open")
            self.log.expire(entry.number)

    def time(self) -> None:
        self.now_s += self.random.choice([1.0, SWEEP_SECONDS])

    # --- how ----------------------------------------------------------------------------------------------------------

    def run(self, rows: list[int], *, may_die: bool) -> None:
        """One call of the live attempt, which may die in the middle of it."""
        steps = self.process.shard.call(self.state, self.now_s, has_rows=bool(rows))
        call = Call(self.process, rows, steps, None)
        while True:
            try:
                going_on = self.advance(call)
            except PeerError:  # its transaction was aborted while it wrote: the bundle has failed
                self.count("failed bundle")
                steps.close()
                self.restore()
                return
            if not going_on:
                break
            if may_die and self.random.random() < 0.1:
                self.die(call)
                return
        self.state, callback = call.command
        self.position += len(rows)
        if callback is not None:
            self.outstanding.append(callback)

    def die(self, call: Call) -> None:
        """Before the call's next command, to go on with it later perhaps; or in the middle of writing."""
        if isinstance(call.command, Write) and self.random.random() < 0.5:
            transaction = self.sink.begin(Attempt(JOB, 0, call.command.slot, call.process.nonce))
            transaction.write(_batch(call.rows))
            self.count("died in Write")
        else:
            self.zombies.append(call)
            self.count(f"died before {type(call.command).__name__}")
        self.restore()

    def advance(self, call: Call) -> bool:
        """Perform the command that waits, and learn the next; False when the call has ended, with its result for a command."""
        try:
            answer = None if call.command is None else self.perform(call)
            call.command = call.steps.send(answer)
        except StopIteration as ended:
            call.command = ended.value
            return False
        except PeerError:
            if call in self.zombies:
                return False
            raise
        return True

    def perform(self, call: Call) -> Any:
        committer = self.sink.committer(JOB)
        match call.command:
            case Sweep(keep):
                return committer.sweep(keep)
            case End(handle):
                return committer.end(handle)
            case Copy(handles):
                self.count("copy")
                if not {"expired prepared", "zombie"} & self.happened.keys():
                    raise BrokenPromiseError("copied, and nothing but the writer itself can have aborted it")
                return committer.copy(handles)
            case Write(slot):
                with self.sink.begin(Attempt(JOB, 0, slot, call.process.nonce)) as transaction:
                    transaction.write(_batch(call.rows))
                    return transaction.prepare()
        raise AssertionError(call.command)

    def restore(self) -> None:
        """The attempt is over; the next one begins from the last checkpoint, in this process or in another."""
        self.position, self.state = self.completed
        self.under_way, self.notify, self.outstanding = None, False, []
        if self.random.random() < 0.7:
            self.process = Process(self.make_shard(), next(self.nonces))
        self.count("restore")

    def count(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    # --- what must be true --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Nothing is seen twice, and nothing that a restore would write again."""
        rows = [row["row"] for row in self.log.rows()]
        if len(rows) != len(set(rows)):
            raise BrokenPromiseError(f"seen twice: {sorted(row for row in set(rows) if rows.count(row) > 1)}")
        if early := [row for row in rows if row >= self.completed[0]]:
            raise BrokenPromiseError(f"seen before a checkpoint covers them: {early}")

    def finish(self) -> None:
        """Time without trouble; then every row is seen, once, and nothing is left open."""
        while self.zombies:
            self.zombie()
        for _ in range(CALM_ROUNDS):
            self.now_s += SWEEP_SECONDS
            self.run([], may_die=False)
            self.barrier()
            self.complete()
            self.notification()
            self.check()
        self.run([], may_die=False)
        rows = sorted(row["row"] for row in self.log.rows())
        if rows != list(range(self.position)):
            raise BrokenPromiseError(f"of the rows up to {self.position}, {set(range(self.position)) - set(rows)} are lost")
        if left := self.log.unended(JOB):
            raise BrokenPromiseError(f"left open: {left}")


def _batch(rows: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"row": row} for row in rows])


def history(seed: int, make_shard: Callable[[], Shard[Any]] = Shard, steps: int = 60) -> dict[str, int]:
    """Play one; what happened, by how often. Raises BrokenPromiseError."""
    world = World(random.Random(seed), make_shard)
    for _ in range(steps):
        world.step()
    world.finish()
    return world.happened
