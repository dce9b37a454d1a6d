"""Exactly-once writing under a runner that takes checkpoints: which transactions may be committed, and when. No I/O.

Rows are written in shards, each with a small state that is part of the runner's checkpoints. One call for a shard:

    read the state -> sweep (a shard that was restored) -> commit what is durable -> copy what was aborted since
    -> write the rows in a transaction and prepare it -> put its handle into the state

A handle in the state is *durable* once a completed checkpoint covers it: then its rows are never written again, and it is
committed, whatever happens. Before, nothing of it is committed: a crash goes back to a state without the handle, the rows come
again, and the sweep aborts what nobody names any more. Which handles are durable is `Publication`'s knowledge; this process
may lose it at any time, and then learns it anew from the next checkpoints.

Each crash:

- between prepare and checkpoint: the state that is restored has no such handle. The sweep aborts the transaction.
- between checkpoint and commit: the state has the handle, so it is committed later.
- after the commit, before a checkpoint without the handle: it is committed again, which a committer answers as before.
- a dead attempt's worker goes on for a moment: it can commit only what is durable; what it begins has a name of its own and is
  swept by the next look; what it aborts by a late sweep, or what timed out, is still in the log and is copied.

A restore from an older savepoint than the last checkpoint goes back behind what is committed: those rows come twice, as with
every two-phase-commit sink whose commits cannot be taken back.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic

from headrace.connectors.commit import Copy, End, Sweep
from headrace.connectors.sink import HandleSerializer, HandleT, Outcome
from headrace.enumerator.errors import StateError
from headrace.runners.beam.publication import Publication, Ticket

__all__ = ["SPARE_SLOTS", "PreparedTransaction", "Shard", "ShardState", "ShardStateSerializer", "Write"]

FORMAT = "headrace-prepared"
VERSION = 1
SPARE_SLOTS = 8
"""How many slots a shard leaves alone: a broker lets nobody begin under a name until its last commit is through to every
partition, and who asks earlier waits out `retry.backoff.ms`. A call may commit some and then write at once."""

SWEEP_SECONDS = 30.0
"""How often a shard looks for transactions that nobody names: those of a worker that did not know it was dead."""


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
        """Those that are not known to be committed."""
        return tuple(entry.handle for entry in self.entries)

    def adding(self, handle: HandleT, *, copied: bool = False) -> ShardState[HandleT]:
        """With one more."""
        number = self.count + 1
        return replace(self, count=number, entries=(*self.entries, PreparedTransaction(number, handle, copied)))

    def without(self, gone: tuple[PreparedTransaction[HandleT], ...]) -> ShardState[HandleT]:
        """With these less."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry not in gone))


@dataclass(frozen=True, slots=True)
class Write:
    """Write the call's rows in a transaction of this slot, and prepare it; answered by the handle, None for no rows.

    No two transactions of one process that have not ended are of one slot: what is begun under a name aborts what it had.
    """

    slot: int


class Shard(Generic[HandleT]):
    """What one process knows of a shard, and a restore does not need. Thread-safe, but for calls of one shard at a time."""

    def __init__(self) -> None:
        """Nothing: the shard may have been restored, or be new."""
        self._lock = threading.Lock()
        self._life = _Life()
        self._count: int | None = None
        self._swept_s = 0.0
        self._made = 0
        self._free: deque[int] = deque()
        self._slots: dict[int, int] = {}

    def call(
        self, state: ShardState[HandleT], now_s: float, *, has_rows: bool
    ) -> Generator[Any, Any, tuple[ShardState[HandleT], Callable[[], None] | None]]:
        """One call: gives commands (Sweep, End, Copy, Write), is sent their answers, returns the new state and a callback.

        The callback, if any, is for the runner to call, in any thread, once it has finalised the bundle. `now_s` is of a
        monotonic clock. A call that is left in the middle has failed, and so has its bundle.
        """
        known, self._count = self._count, None
        if known != state.count:  # restored, or elsewhere meanwhile: what was known proves nothing now
            self._life = _Life()
        life = self._life
        if known != state.count or now_s - self._swept_s >= SWEEP_SECONDS:
            yield Sweep(state.handles)
            self._swept_s = now_s
        before = state.count
        state = yield from self._commit(state, life.durable)
        if has_rows:
            state = yield from self._write(state)
        self._count = state.count
        ticket = life.publication.register(before, state.count)
        return state, None if ticket is None else partial(life.finalised, ticket)

    def _commit(self, state: ShardState[HandleT], durable: int) -> Generator[Any, Any, ShardState[HandleT]]:
        aborted = []
        for entry in state.entries:
            if entry.number > durable:
                continue
            outcome = yield End(entry.handle)
            if outcome is Outcome.ABORTED:
                aborted.append(entry)
                continue
            state = state.without((entry,))
            self._release(entry.number)
        # Copies share a name: one that is not committed yet would be aborted by the next.
        if aborted and not any(entry.copied and entry.number > durable for entry in state.entries):
            copy = yield Copy(tuple(entry.handle for entry in aborted))
            state = state.without(tuple(aborted)).adding(copy, copied=True)
        return state

    def _write(self, state: ShardState[HandleT]) -> Generator[Any, Any, ShardState[HandleT]]:
        slot = self._take()
        handle = None
        try:
            handle = yield Write(slot)
        finally:
            if handle is None:
                self._free.append(slot)
        if handle is None:
            return state
        state = state.adding(handle)
        self._slots[state.count] = slot
        return state

    def _take(self) -> int:
        """The slot that has been free for the longest time."""
        with self._lock:  # a call of a failed attempt may still be under way
            if len(self._free) > SPARE_SLOTS:
                return self._free.popleft()
            self._made += 1
            return self._made - 1

    def _release(self, number: int) -> None:
        slot = self._slots.pop(number, None)
        if slot is not None:
            self._free.append(slot)


class _Life:
    """What is known to be durable since the shard was last restored."""

    def __init__(self) -> None:
        self.publication: Publication[int] = Publication()
        self._lock = threading.Lock()
        self._durable = 0

    @property
    def durable(self) -> int:
        """Every transaction up to this number."""
        with self._lock:
            return self._durable

    def finalised(self, ticket: Ticket[int]) -> None:
        number = self.publication.finalised(ticket)
        if number is not None:
            with self._lock:
                self._durable = max(self._durable, number)


class ShardStateSerializer(Generic[HandleT]):
    """A shard's state as JSON in UTF-8: the newest version written, every version ever written read, newer ones refused."""

    def __init__(self, handles: HandleSerializer[HandleT]) -> None:
        """For such handles."""
        self._handles = handles

    def serialize(self, state: ShardState[HandleT]) -> bytes:
        """The state in the newest version."""
        value = {
            "format": FORMAT,
            "version": VERSION,
            "handle_version": self._handles.version,
            "run": state.run,
            "count": state.count,
            "entries": [[entry.number, entry.copied, self._handles.serialize(entry.handle)] for entry in state.entries],
        }
        return json.dumps(value, separators=(",", ":")).encode()

    def deserialize(self, data: bytes, where: str) -> ShardState[HandleT]:
        """What `serialize` of this or an older version wrote. Raises StateError, naming `where`, for anything else."""
        try:
            value = json.loads(data)
            found = (value["format"], value["version"], value["handle_version"])
            if found[0] != FORMAT or not 1 <= found[1] <= VERSION or found[2] > self._handles.version:
                newest = (FORMAT, VERSION, self._handles.version)
                raise StateError(f"{where}: this headrace reads the state of a writer up to {newest}, and this is {found}")
            entries = tuple(
                PreparedTransaction(int(number), self._handles.deserialize(found[2], handle), bool(copied))
                for number, copied, handle in value["entries"]
            )
            return ShardState(str(value["run"]), int(value["count"]), entries)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise StateError(f"{where}: the state of a writer is damaged: {type(error).__name__}: {error}") from error
