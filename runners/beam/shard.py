"""Exactly-once writing under a runner that takes checkpoints: which transactions may be committed, and when. No I/O.

Rows are written in shards, each with a small state that is part of the runner's checkpoints. One call for a shard:

    read the state -> clean up (a shard that was restored) -> commit what is durable -> copy what was aborted since
    -> write the rows in a transaction and prepare it -> put its handle into the state

A handle in the state is *durable* once a completed checkpoint covers it: then its rows are never written again, and it is
committed, whatever happens. Before, nothing of it is committed: a crash goes back to a state without the handle, the rows are
written again, and the clean-up aborts the transaction that no state names. Which handles are durable is `Publication`'s
knowledge; this process may lose it at any time, and then learns it again from the next checkpoints.

Each crash:

- between prepare and checkpoint: the state that is restored has no such handle. The clean-up aborts the transaction.
- between checkpoint and commit: the state has the handle, so it is committed later.
- after the commit, before a checkpoint without the handle: it is committed again, which a committer answers as before.
- a zombie worker continues for a moment: it can commit only what is durable; what it starts has its own name and is
  aborted by the next clean up; what its own late clean up aborts, or what timed out, is still in the log and is copied.

A restore from an older savepoint than the last checkpoint goes back behind what is committed: those rows come twice, as with
every two-phase-commit sink whose commits cannot be rolled back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Generic, assert_never

from headrace.connectors.base.commit import CleanedUp, CleanUp, Copied, Copy, End, Ended
from headrace.connectors.base.sink import HandleSerializer, HandleT, Outcome
from headrace.enumerator.envelope import Envelope, readable_version, stored_number, stored_text, stored_truth
from headrace.enumerator.transitions import Transitions, allowed_after
from headrace.runners.beam.publication import FinalizationToken, Publication

_STATE = Envelope("headrace-prepared", "state of a writer")
SPARE_SLOTS = 8
"""How many free slots a shard keeps back: a broker refuses a transaction under a name until its last commit has reached every
partition, and who asks earlier waits out `retry.backoff.ms`. A call may commit some and then write at once."""

CLEAN_UP_S = 30.0
"""How often a shard cleans up, in seconds: for transactions that no state names, of a zombie worker."""


@dataclass(frozen=True, slots=True)
class PreparedTransaction(Generic[HandleT]):
    """A prepared transaction of a shard, the `number`th since the job's first start. `copied`: of aborted ones' rows."""

    number: int
    handle: HandleT
    copied: bool = False


@dataclass(frozen=True, slots=True)
class ShardState(Generic[HandleT]):
    """A shard's state. `run` is part of its transactions' names for good; `count` is the number of the last one prepared."""

    run: str
    count: int = 0
    entries: tuple[PreparedTransaction[HandleT], ...] = ()

    @property
    def handles(self) -> tuple[HandleT, ...]:
        return tuple(entry.handle for entry in self.entries)

    @property
    def first(self) -> int:
        """The number of the first transaction, or of the next one."""
        return min((entry.number for entry in self.entries), default=self.count + 1)

    def adding(self, handle: HandleT, *, copied: bool = False) -> ShardState[HandleT]:
        number = self.count + 1
        return replace(self, count=number, entries=(*self.entries, PreparedTransaction(number, handle, copied)))

    def without(self, gone: tuple[PreparedTransaction[HandleT], ...]) -> ShardState[HandleT]:
        return replace(self, entries=tuple(entry for entry in self.entries if entry not in gone))


# --- events: what has happened to a call; Cleaned up, Ended and Copied are of `headrace.connectors.base.commit` ---------------


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The runner calls for the shard."""


@dataclass(frozen=True, slots=True)
class RowsWritten(Generic[HandleT]):
    """Answer to Write: the transaction is prepared; None when there was no row after all."""

    handle: HandleT | None


@dataclass(frozen=True, slots=True)
class CallFailed:
    """A command failed, or will never be carried out: the call is over, and its bundle has failed."""


@dataclass(frozen=True, slots=True)
class BundleFinalised:
    """The runner has finalised the bundle of a call that has returned."""


ShardEvent = CallStarted | CleanedUp | Ended[HandleT] | Copied[HandleT] | RowsWritten[HandleT] | CallFailed | BundleFinalised

# --- commands; Clean up, End and Copy are of `headrace.connectors.base.commit` ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """Write the call's rows in a transaction of this slot, and prepare it. Answered by RowsWritten.

    No two transactions of one process that have not ended are of one slot: what is started under a name aborts what it had.
    """

    slot: int


@dataclass(frozen=True, slots=True)
class Return(Generic[HandleT]):
    """The call is done, and this is the shard's state. `awaits_finalisation`: BundleFinalised is to be sent when it happens."""

    state: ShardState[HandleT]
    awaits_finalisation: bool


ShardCommand = CleanUp[HandleT] | End[HandleT] | Copy[HandleT] | Write | Return[HandleT]


class ShardPhase(Enum):
    """What a call waits for."""

    CREATED = auto()
    CLEANING_UP = auto()
    ENDING = auto()
    COPYING = auto()
    WRITING = auto()
    RETURNED = auto()  # for its bundle's finalisation
    FAILED = auto()


class _Slots:
    """Numbers for the names of a process's transactions."""

    def __init__(self) -> None:
        self._made = 0
        self.free: deque[int] = deque()
        self._occupied: dict[int, int] = {}

    def take(self) -> int:
        """The slot that has been free for the longest time."""
        if len(self.free) > SPARE_SLOTS:
            return self.free.popleft()
        self._made += 1
        return self._made - 1

    def occupy(self, slot: int, number: int) -> None:
        self._occupied[number] = slot

    def release(self, number: int) -> None:
        """The transaction of this number is committed; it may be one of another process."""
        slot = self._occupied.pop(number, None)
        if slot is not None:
            self.free.append(slot)


class ShardLifetime:
    """What is known to be durable since the shard was last restored. Another object after each restore."""

    def __init__(self, first: int = 0) -> None:
        """`first`: the first transaction that the restored state names, or may name."""
        self.publication: Publication[int] = Publication()
        self.durable = 0
        """Every transaction up to this number."""
        self._first = first
        self._returned: deque[tuple[int, int]] = deque()

    def finalised(self, token: FinalizationToken[int]) -> None:
        number = self.publication.finalised(token)
        if number is not None:
            self.durable = max(self.durable, number)

    def returned(self, count: int, first: int) -> None:
        """A call has returned a state with this count, whose first transaction is this."""
        if first != (self._returned[-1][1] if self._returned else self._first):
            self._returned.append((count, first))

    def first(self) -> int:
        """No state that may be restored names an earlier transaction: a later one than what was returned is durable."""
        while self._returned and self._returned[0][0] < self.durable:
            self._first = self._returned.popleft()[1]
        return self._first


class Shard(Generic[HandleT]):
    """What one process knows of a shard, and a restore does not need.

    Not thread-safe, and neither are its calls: at any time one thread may be in one of them. A call of a failed attempt may go
    on while there is a newer one.
    """

    def __init__(self) -> None:
        self.slots = _Slots()
        self.lifetime = ShardLifetime()
        self.count: int | None = None
        """`ShardState.count` as the last call returned it; None while a call is under way, and after one that failed."""
        self.cleaned_up_s = 0.0

    def call(self, state: ShardState[HandleT], now_s: float, *, has_rows: bool) -> ShardCall[HandleT]:
        """A new call for the shard, whose state is this; `now_s` is of a monotonic clock, in seconds. Send it CallStarted."""
        return ShardCall(self, state, now_s, has_rows=has_rows)


class ShardCall(Generic[HandleT]):
    """One call for a shard, and its bundle's finalisation: events in, commands out."""

    def __init__(self, shard: Shard[HandleT], state: ShardState[HandleT], now_s: float, *, has_rows: bool) -> None:
        self.phase = ShardPhase.CREATED
        self._shard = shard
        self._state = state
        self._now_s = now_s
        self._has_rows = has_rows
        self._before = state.count
        self.lifetime = shard.lifetime
        self._durable = 0
        self._waiting: list[PreparedTransaction[HandleT]] = []
        self._aborted: list[PreparedTransaction[HandleT]] = []
        self._slot: int | None = None
        self._token: FinalizationToken[int] | None = None

    @property
    def next(self) -> int:
        """The number of the next transaction."""
        return self._state.count + 1

    def handle(self, event: ShardEvent[HandleT]) -> list[ShardCommand[HandleT]]:
        """Take one event, return what is to be done, in this order; the last command of a call is Return.

        Raises ProtocolViolationError for an event that SHARD_TRANSITIONS does not allow now; nothing is changed then.
        """
        following = allowed_after(SHARD_TRANSITIONS, self.phase, event, "the call for a shard")
        commands = self._apply(event)
        assert self.phase in following, f"{event} has led to {self.phase.name}, which is not in the table"
        return commands

    def _apply(self, event: ShardEvent[HandleT]) -> list[ShardCommand[HandleT]]:
        match event:
            case CallStarted():
                return self._start()
            case CleanedUp():
                self._shard.cleaned_up_s = self._now_s
                return self._end()
            case Ended():
                return self._ended(event)
            case Copied():
                return self._copied(event)
            case RowsWritten():
                return self._written(event)
            case CallFailed():
                if self._slot is not None:
                    self._shard.slots.free.append(self._slot)
                self.phase = ShardPhase.FAILED
                return []
            case BundleFinalised():
                if self._token is not None:
                    self.lifetime.finalised(self._token)
                return []
            case _:
                assert_never(event)

    # --- events -------------------------------------------------------------------------------------------------------

    def _start(self) -> list[ShardCommand[HandleT]]:
        shard = self._shard
        known, shard.count = shard.count, None
        if known != self._state.count:  # restored, or called in another process meanwhile: what was known proves nothing now
            shard.lifetime = ShardLifetime(self._state.first)
        self.lifetime = shard.lifetime
        if known == self._state.count and self._now_s - shard.cleaned_up_s < CLEAN_UP_S:
            return self._end()
        self.phase = ShardPhase.CLEANING_UP
        return [CleanUp(self._state.handles)]

    def _ended(self, event: Ended[HandleT]) -> list[ShardCommand[HandleT]]:
        entry = next(entry for entry in self._waiting if entry.handle == event.handle)
        self._waiting.remove(entry)
        if event.outcome is Outcome.ABORTED:
            self._aborted.append(entry)
        else:
            self._state = self._state.without((entry,))
            self._shard.slots.release(entry.number)
        return [] if self._waiting else self._copy()

    def _copied(self, event: Copied[HandleT]) -> list[ShardCommand[HandleT]]:
        (copy,) = event.handles  # of the shard's one sink
        self._state = self._state.without(tuple(self._aborted)).adding(copy, copied=True)
        return self._write()

    def _written(self, event: RowsWritten[HandleT]) -> list[ShardCommand[HandleT]]:
        assert self._slot is not None
        if event.handle is None:
            self._shard.slots.free.append(self._slot)
        else:
            self._state = self._state.adding(event.handle)
            self._shard.slots.occupy(self._slot, self._state.count)
        return self._return()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _end(self) -> list[ShardCommand[HandleT]]:
        self._durable = self.lifetime.durable
        self._waiting = [entry for entry in self._state.entries if entry.number <= self._durable]
        if not self._waiting:
            return self._write()
        self.phase = ShardPhase.ENDING
        return [End(entry.handle) for entry in self._waiting]

    def _copy(self) -> list[ShardCommand[HandleT]]:
        # Copies share a name: one that is not committed yet would be aborted by the next.
        if not self._aborted or any(entry.copied and entry.number > self._durable for entry in self._state.entries):
            return self._write()
        self.phase = ShardPhase.COPYING
        return [Copy(tuple(entry.handle for entry in self._aborted))]

    def _write(self) -> list[ShardCommand[HandleT]]:
        if not self._has_rows:
            return self._return()
        self._slot = self._shard.slots.take()
        self.phase = ShardPhase.WRITING
        return [Write(self._slot)]

    def _return(self) -> list[ShardCommand[HandleT]]:
        self._shard.count = self._state.count
        self.lifetime.returned(self._state.count, self._state.first)
        self._token = self.lifetime.publication.register(self._before, self._state.count)
        self.phase = ShardPhase.RETURNED
        return [Return(self._state, awaits_finalisation=self._token is not None)]


SHARD_TRANSITIONS: Transitions[ShardPhase] = {
    (ShardPhase.CREATED, CallStarted): (ShardPhase.CLEANING_UP, ShardPhase.ENDING, ShardPhase.WRITING, ShardPhase.RETURNED),
    (ShardPhase.CLEANING_UP, CleanedUp): (ShardPhase.ENDING, ShardPhase.WRITING, ShardPhase.RETURNED),
    (ShardPhase.ENDING, Ended): (ShardPhase.ENDING, ShardPhase.COPYING, ShardPhase.WRITING, ShardPhase.RETURNED),
    (ShardPhase.COPYING, Copied): (ShardPhase.WRITING, ShardPhase.RETURNED),
    (ShardPhase.WRITING, RowsWritten): (ShardPhase.RETURNED,),
    **{
        (phase, CallFailed): (ShardPhase.FAILED,)
        for phase in (ShardPhase.CLEANING_UP, ShardPhase.ENDING, ShardPhase.COPYING, ShardPhase.WRITING)
    },
    (ShardPhase.RETURNED, BundleFinalised): (ShardPhase.RETURNED,),
}


class ShardStateSerializer(Generic[HandleT]):
    """A shard's state as bytes (`headrace.enumerator.envelope`), version 1."""

    def __init__(self, handles: HandleSerializer[HandleT]) -> None:
        self._handles = handles

    def serialize(self, state: ShardState[HandleT]) -> bytes:
        return _STATE.seal(
            {
                "handle_version": self._handles.version,
                "run": state.run,
                "count": state.count,
                "entries": [[entry.number, entry.copied, self._handles.serialize(entry.handle)] for entry in state.entries],
            }
        )

    def deserialize(self, data: bytes, where: str) -> ShardState[HandleT]:
        """What `serialize` wrote. Raises StateError, naming `where`, for anything else."""
        value = _STATE.open(data, where)
        with _STATE.reading(where):
            version = readable_version(value["handle_version"], self._handles.version)
            entries = tuple(
                PreparedTransaction(stored_number(number), self._handles.deserialize(version, handle), stored_truth(copied))
                for number, copied, handle in value["entries"]
            )
            return ShardState(stored_text(value["run"]), stored_number(value["count"]), entries)
