"""Commits of a run, in the order that `headrace.connectors.commit` decides, with the run's checkpoints as the lists.

To `CommitCore` a checkpoint is an epoch: `record` stores positions and handles together. So what is committed is what a
stored checkpoint lists, and a restart finds there what to complete. Two things shut a stale coordinator out. The folder's lock,
for one on this machine. For a copy of the folder the sink's own fence: each coordinator takes the run over at the sink, and
before anything is committed the sink records the checkpoint's *epoch*, which it refuses for whom another has followed. An epoch
is the checkpoint's number and some random bits, so that two copies of a folder never have the same; a folder that does not know
the epoch that the sink has recorded last is behind, or of another branch, and is refused.

Each worker writes under a sink job of its own (`Roster.job`), so a sweep aborts a dead worker's transactions and nobody else's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Generic

from headrace.connectors.commit import StaleEpochError
from headrace.connectors.sink import CommitList, Committer, HandleT, Outcome, TwoPhaseSink
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import DeadlineExceededError, RetriableError, StateError
from headrace.enumerator.split import SplitT
from headrace.runners.local.checkpoints import CheckpointStore, RunCheckpoint
from headrace.runners.local.core import WorkerHandle

__all__ = ["RunCommitter"]

log = logging.getLogger(__name__)

EPOCH_BITS = 20

SETTLE_S = 60.0
"""A dead worker's transactions are looked for once more so many seconds after they were first swept: a request that was under
way when its process died may come to the sink later."""


class RunCommitter(Committer[WorkerHandle[HandleT]], Generic[SplitT, HandleT]):
    """Ends the transactions of all workers of one run. Called by the coordinator's commit thread, but for `retire`."""

    def __init__(
        self,
        store: CheckpointStore[SplitT, HandleT],
        sink: TwoPhaseSink[HandleT],
        stored: RunCheckpoint[SplitT, HandleT] | None,
        number: int,
        clock: Callable[[], float],
        draw: Callable[[], int],
        is_stored: Callable[[int], None],
    ) -> None:
        """`stored`: what `CheckpointStore.latest` gave. `number`: the coordinator's own, for copies; it is on the roster.

        `is_stored` is told the number of each new checkpoint once it is durable. `clock` gives monotonic seconds, `draw`
        EPOCH_BITS random bits.
        """
        self._store, self._sink, self._stored, self._number = store, sink, stored, number
        self._clock, self._draw, self._is_stored = clock, draw, is_stored
        self._driver = sink.committer(store.roster.run)
        self._fenced = False
        self._proposed: Checkpoint[SplitT] | None = None
        self._lock = threading.Lock()
        # number of a dead worker -> when it was first swept; what an earlier life has left is dead, too
        self._retired: dict[int, float | None] = {n: None for n in store.roster.unswept if n != number}

    def retire(self, number: int) -> None:
        """The worker's process is dead: the next sweep aborts what it has left open. Called by any thread."""
        with self._lock:
            self._retired[number] = None

    def propose(self, positions: Checkpoint[SplitT]) -> None:
        """The positions that belong to the next new list."""
        self._proposed = positions

    def fence(self) -> CommitList[WorkerHandle[HandleT]] | None:
        """Take the run over at the sink, once. Raises StaleEpochError for a folder that is behind what the sink has seen."""
        if not self._fenced:
            seen = self._driver.fence()
            self._refuse_stale(0 if seen is None else seen.epoch)
            if self._epoch and (seen is None or seen.epoch != self._epoch):
                # The last coordinator died after it had stored its checkpoint, before the sink knew.
                self._driver.record(CommitList(self._epoch, (), completed=True))
            self._fenced = True
        if self._stored is None:
            return None
        return CommitList(self._stored.positions.checkpoint_id, self._stored.handles, self._stored.completed)

    def _refuse_stale(self, seen: int) -> None:
        known = {0, self._epoch, 0 if self._stored is None else self._stored.epoch_before}
        if seen not in known:
            last = 0 if self._stored is None else self._stored.positions.checkpoint_id
            raise StaleEpochError(
                f"{self._store.folder}: the last good checkpoint is {last}, and the sink has committed checkpoint "
                f"{seen >> EPOCH_BITS} of this run, which this folder has not: it is an older copy, or that checkpoint is "
                "damaged. Going on would write rows twice. Begin anew with another folder, from positions of your choice"
            )

    @property
    def _epoch(self) -> int:
        """What the sink is told, or is to be told, of the last checkpoint with handles."""
        return 0 if self._stored is None else self._stored.epoch

    def check(self, handles: Sequence[WorkerHandle[HandleT]]) -> None:
        """Raise RetriableError for a transaction that is not prepared any more, or has little time left."""
        for number, own in _by_number(handles).items():
            try:
                with closing(self._of(number)) as committer:
                    committer.check(own)
            except (StateError, DeadlineExceededError) as error:
                # Nothing of it is durable or visible, so what was read since the last checkpoint is read again.
                raise RetriableError(f"a transaction of worker {number} cannot be committed any more: {error}") from error

    def record(self, commits: CommitList[WorkerHandle[HandleT]]) -> None:
        """Store the checkpoint; before anything of it is committed, have the sink refuse it if another has taken over."""
        positions, stored = self._proposed, self._stored
        if positions is None or positions.checkpoint_id != commits.epoch:
            assert stored is not None
            self._write(replace(stored, handles=commits.handles, completed=commits.completed))
            return
        epoch = (commits.epoch << EPOCH_BITS) + self._draw() if commits.handles else self._epoch
        before, self._proposed = self._epoch, None
        self._write(RunCheckpoint(positions, commits.handles, commits.completed, epoch, before))
        if epoch != before:
            self._driver.record(CommitList(epoch, (), completed=True))
        self._is_stored(commits.epoch)

    def _write(self, checkpoint: RunCheckpoint[SplitT, HandleT]) -> None:
        self._store.write(checkpoint)
        self._stored = checkpoint

    def end(self, handle: WorkerHandle[HandleT]) -> Outcome:
        """By the committer of the worker that wrote it."""
        with closing(self._of(handle.number)) as committer:
            return committer.end(handle.handle)

    def end_all(self, handles: Sequence[WorkerHandle[HandleT]]) -> Sequence[Outcome]:
        """Worker by worker, several transactions of one at once where the sink does so."""
        outcomes: dict[int, Outcome] = {}
        for number in dict.fromkeys(handle.number for handle in handles):
            own = [(place, listed.handle) for place, listed in enumerate(handles) if listed.number == number]
            with closing(self._of(number)) as committer:
                ended = committer.end_all([handle for _, handle in own])
            outcomes |= {place: outcome for (place, _), outcome in zip(own, ended, strict=True)}
        return [outcomes[place] for place in range(len(handles))]

    def copy(self, handles: Sequence[WorkerHandle[HandleT]]) -> WorkerHandle[HandleT]:
        """As the coordinator's own."""
        with closing(self._of(self._number)) as committer:
            return WorkerHandle(self._number, committer.copy([handle.handle for handle in handles]))

    def sweep(self, keep: Collection[WorkerHandle[HandleT]]) -> None:
        """Abort what dead workers have left open. Those that live write on: what they have open is the next checkpoint's."""
        with self._lock:
            retired = dict(self._retired)
        now_s, settled = self._clock(), []
        for number, swept_s in retired.items():
            if swept_s is not None and now_s - swept_s < SETTLE_S:
                continue
            with closing(self._of(number)) as committer:
                committer.sweep([listed.handle for listed in keep if listed.number == number])
            if swept_s is None:
                with self._lock:
                    self._retired[number] = now_s
            elif not any(listed.number == number for listed in keep):
                settled.append(number)
        if settled:
            self._store.strike(settled)
            with self._lock:
                for number in settled:
                    del self._retired[number]

    def forget(self) -> None:
        """Remove what the sink has recorded of the run."""
        self._driver.forget()

    def close(self) -> None:
        """Give connections back."""
        self._driver.close()

    def _of(self, number: int) -> Committer[HandleT]:
        return self._sink.committer(self._store.roster.job(number))


def _by_number(handles: Sequence[WorkerHandle[HandleT]]) -> dict[int, list[HandleT]]:
    found: dict[int, list[HandleT]] = {}
    for listed in handles:
        found.setdefault(listed.number, []).append(listed.handle)
    return found
