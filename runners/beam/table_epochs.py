"""Exactly-once writing into a table under a runner that takes checkpoints: the committer's state, and what it proves. No I/O.

Writers prepare files when their bundle ends, and hand what names them (a handle) to one committer. It numbers the handles as
they come, and keeps them in its state, which is part of the runner's checkpoints. Those that a completed checkpoint covers are
*durable* (`Publication` knows which): every state that can be restored from then on has them under the same numbers, or has
them no more because they are committed. Only durable ones are committed, all there are in one commit of the table, and the
epoch of that commit is the number of the last one. So the table's marker, which is set in the same commit, says for every state
which of its handles are in the table: those up to that number.

Two histories may have one number: an older savepoint, or two jobs that continue from one savepoint. So each handle has a digest
of itself and of all before it, the marker has that of its epoch's last handle, and a state that has another one there is
refused.

Each crash:

- before the handle is in a completed checkpoint: its rows are written again, by another transaction. No process commits the
  first.
- between checkpoint and commit: the state has the handle, so it is committed later.
- after the commit, or in it, before a checkpoint without the handle: the marker reports which handles are to be dropped.
- a worker that was replaced and continues: the committer of each lifetime is a new driver of the table, and older ones are
  refused.

**A job that is submitted again** writes under its own name, and its restored state is of the job before. Its first call
commits what that left and closes its history, by an epoch of a number that no state of it has, and a digest that names the
successor. So a second job that continues from the same savepoint is refused, and so is the first one if it is still running.

**Cleaning up.** Which transactions will never be handed over? A bundle ends before the barrier of a checkpoint passes, and what
it hands over is before that barrier too. So what is open, was so before the barrier of a completed checkpoint was sent out, and
is not in the state of that checkpoint, is of a writer that has died. That holds while no barrier overtakes rows: unaligned
checkpoints are refused.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Generic

from headrace.connectors.base.sink import CommitList, HandleSerializer, HandleT, content_number, numbered_content
from headrace.enumerator.envelope import Envelope, readable_version, stored_number, stored_text
from headrace.enumerator.errors import StateError
from headrace.runners.beam.publication import FinalizationToken, Publication

_STATE = Envelope("headrace-epochs", "state of a committer")
_PREPARED = Envelope("headrace-handle", "name of prepared files")


@dataclass(frozen=True, slots=True)
class ReceivedHandle(Generic[HandleT]):
    """A handle, and the digest of the history that ends with it."""

    handle: HandleT
    digest: str


@dataclass(frozen=True, slots=True)
class CommitterState(Generic[HandleT]):
    """A committer's state. `run` names the submission whose writers it commits for, and the job in the table's marker.

    `committed`: all handles up to this number are in the table, and forgotten; `digest`: of the history up to it. `received`:
    those that follow, which may be in the table.
    """

    run: str
    committed: int = 0
    digest: str = ""
    received: tuple[ReceivedHandle[HandleT], ...] = ()

    @property
    def count(self) -> int:
        return self.committed + len(self.received)

    @property
    def handles(self) -> tuple[HandleT, ...]:
        return self.handles_to(self.count)

    def handles_to(self, number: int) -> tuple[HandleT, ...]:
        return tuple(entry.handle for entry in self.received[: number - self.committed])

    def digest_of(self, number: int) -> str:
        """Of the history up to this number, which is neither before `committed` nor after `count`."""
        return self.digest if number == self.committed else self.received[number - self.committed - 1].digest

    def adding(self, handle: HandleT, stored: object) -> CommitterState[HandleT]:
        text = json.dumps(stored, separators=(",", ":"), sort_keys=True)
        return replace(self, received=(*self.received, ReceivedHandle(handle, _digest(self.digest_of(self.count), text))))

    def without(self, number: int) -> CommitterState[HandleT]:
        left = self.received[number - self.committed :]
        return replace(self, committed=number, digest=self.digest_of(number), received=left)

    def epoch(self, number: int) -> CommitList[HandleT]:
        return CommitList(number, self.handles_to(number), content=self.digest_of(number))

    def closing(self, successor: str) -> CommitList[HandleT]:
        """The last commit of this history: of all that is left, by the job that continues from it."""
        content = _digest(self.digest_of(self.count), f"followed by {successor}")
        return CommitList(self.count + 1, self.handles, completed=not self.received, content=content)


def _digest(before: str, text: str) -> str:
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def is_of(recorded: CommitList[HandleT], content: str) -> bool:
    """Whether the recorded epoch was made from this, as far as a table keeps it."""
    return recorded.content in (content, numbered_content(content_number(content)))


def refuse_other_history(job: str, state: CommitterState[HandleT], recorded: CommitList[HandleT] | None) -> int:
    """The number up to which the table has the handles of this state. Raises StateError for a table with another history."""
    number = 0 if recorded is None or recorded.epoch is None else recorded.epoch
    if number < state.committed:
        raise StateError(
            f"job {job!r} has committed {state.committed} transactions, and the table says {number or 'nothing'}: it was "
            "recreated, put back to an older version from a copy, or is another one. Write to the table that the job is of, or "
            "start a new job"
        )
    if number > state.count or (recorded is not None and not is_of(recorded, state.digest_of(number))):
        raise StateError(
            f"the table has transaction {number} of job {job!r}, and the restored checkpoint has {state.count}, or others: the "
            "checkpoint or savepoint is older than what was committed, or another job has continued from it. Its rows would "
            "twice. Continue from the newest checkpoint"
        )
    return number


@dataclass(frozen=True, slots=True)
class _Position:
    """How far a call came: the handles received, and the looks at what is open."""

    count: int
    looks: int


class CommitterLifetime(Generic[HandleT]):
    """What one process knows of the committer since it was restored, and a restore does not need. Not thread-safe."""

    def __init__(self, state: CommitterState[HandleT]) -> None:
        self._publication: Publication[_Position] = Publication()
        self.position = _Position(state.count, 0)
        """For `returned`, as the call starts."""
        self._durable = _Position(0, 0)
        self._suspects: frozenset[int] | None = None
        self._looked_s: float | None = None

    @property
    def durable(self) -> int:
        """Handles up to this number are part of every state that can be restored, or committed."""
        return self._durable.count

    def wants_look(self, now_s: float, every_s: float) -> bool:
        return self._suspects is None and (self._looked_s is None or now_s - self._looked_s >= every_s)

    def looked(self, open_tasks: frozenset[int], now_s: float) -> None:
        """What is open now. `now_s` is of a monotonic clock, in seconds."""
        self._looked_s = now_s
        if open_tasks:
            self._suspects = open_tasks
            self.position = replace(self.position, looks=self.position.looks + 1)

    def orphans(self) -> frozenset[int]:
        """Tasks whose transactions no writer will hand over, but for those in the state; given once."""
        if self._suspects is None or self._durable.looks < self.position.looks:
            return frozenset()
        suspects, self._suspects = self._suspects, None
        return suspects

    def returned(self, before: _Position, state: CommitterState[HandleT]) -> FinalizationToken[_Position] | None:
        """A call that started at `before` ends with this state. The token for `finalised`; None when nothing is owed."""
        self.position = replace(self.position, count=state.count)
        return self._publication.register(before, self.position)

    def finalised(self, token: FinalizationToken[_Position]) -> None:
        position = self._publication.finalised(token)
        if position is not None:
            self._durable = position


class CommitterStateSerializer(Generic[HandleT]):
    """A committer's state, and handles on their way to it, as bytes (`headrace.enumerator.envelope`), version 1."""

    def __init__(self, handles: HandleSerializer[HandleT]) -> None:
        self._handles = handles

    def serialize(self, state: CommitterState[HandleT]) -> bytes:
        return _STATE.seal(
            {
                "handle_version": self._handles.version,
                "run": state.run,
                "committed": state.committed,
                "digest": state.digest,
                "received": [[entry.digest, self._handles.serialize(entry.handle)] for entry in state.received],
            }
        )

    def deserialize(self, data: bytes, where: str) -> CommitterState[HandleT]:
        """What `serialize` wrote. Raises StateError, naming `where`, for anything else."""
        value = _STATE.open(data, where)
        with _STATE.reading(where):
            version = readable_version(value["handle_version"], self._handles.version)
            received = tuple(
                ReceivedHandle(self._handles.deserialize(version, handle), stored_text(digest))
                for digest, handle in value["received"]
            )
            run, digest = stored_text(value["run"]), stored_text(value["digest"])
            return CommitterState(run, stored_number(value["committed"]), digest, received)

    def pack(self, run: str, handle: HandleT) -> bytes:
        return _PREPARED.seal({"run": run, "handle_version": self._handles.version, "handle": self._handles.serialize(handle)})

    def unpack(self, data: bytes) -> tuple[str, HandleT, object]:
        """The run, the handle, and its stored form. Raises StateError for what `pack` has not made."""
        where = "what a writer has handed over"
        value = _PREPARED.open(data, where)
        with _PREPARED.reading(where):
            version, stored = readable_version(value["handle_version"], self._handles.version), value["handle"]
            return stored_text(value["run"]), self._handles.deserialize(version, stored), stored
