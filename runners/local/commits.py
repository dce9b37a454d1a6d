"""Commits of a run, in the order that `headrace.connectors.commit` decides, with the run's checkpoints as the lists.

To `CommitCore` a checkpoint is an epoch: `record` stores positions and handles together. So what is committed is what a
stored checkpoint lists, and a restart finds there what to complete. Two things shut a stale coordinator out. The folder's lock,
for one on this machine. For a copy of the folder the sink's own fence: each coordinator takes the run over at the sink, and
before anything is committed the sink records the checkpoint's *epoch*, which it refuses for whom another has followed. An epoch
is the checkpoint's number and some random bits, so that two copies of a folder never have the same; a folder that does not know
the epoch that the sink has recorded last is behind, or of another branch, and is refused.

Each worker writes under a sink job of its own (`Roster.job`), so a sweep aborts a dead worker's transactions and nobody else's.
To a sink that commits by list (tables) all write under the run's job, each as a task of its own: the sink records the
checkpoint's epoch and commits all of it in one step, and sweeps by task.

A sink that commits by list says before a checkpoint is stored whether it would refuse it (`check`). If it refuses a stored one
(its table was altered in between), the next coordinator *takes it back*: nothing of it is committed, and nobody was told of it.
So the run goes on from the checkpoint before, which is kept until the next one is committed.

A worker is swept at once when it is dead: what it has prepared may hold locks, which those who read its splits now wait for,
and then no checkpoint would ever be complete.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Generic, TypeVar

from headrace.connectors.commit import StaleEpochError
from headrace.connectors.sink import Attempt, CommitList, Committer, HandleT, Outcome, PreparedGoneError, TwoPhaseSink
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import (
    AuthenticationError,
    DataLossError,
    DeadlineExceededError,
    HeadraceError,
    PeerError,
    RetriableError,
    StateError,
    UsageError,
    is_retriable,
)
from headrace.enumerator.split import SplitT
from headrace.runners.local.checkpoints import CheckpointStore, Roster, RunCheckpoint
from headrace.runners.local.core import WorkerHandle

__all__ = ["RunCommitter", "first_attempt"]

log = logging.getLogger(__name__)

EPOCH_BITS = 20

SETTLE_S = (1.0, 60.0)
"""A dead worker's transactions are looked for again so many seconds after they were first swept: a request that was under way
when its process died may come to the sink later."""

_Result = TypeVar("_Result")


def first_attempt(sink: TwoPhaseSink[HandleT], roster: Roster, number: int) -> Attempt:
    """A worker's first transaction; its epochs count on from it. No other worker of any life of the run has its name."""
    return Attempt(roster.run, 0, number, 0) if sink.commits_by_list else Attempt(roster.job(number), 0, 0, 0)


class _Ends(ABC, Generic[SplitT, HandleT]):
    """How what workers have prepared is ended."""

    @abstractmethod
    def possible(self, stored: RunCheckpoint[SplitT, HandleT]) -> Collection[int]:
        """What the sink may have recorded last, if this is the last checkpoint and the sink is the one that it is of."""

    @abstractmethod
    def tells(self, seen: int, stored: RunCheckpoint[SplitT, HandleT] | None) -> bool:
        """Whether this, looked up without waiting for anybody, is what the sink has recorded last."""

    @abstractmethod
    def has_ended(self, recorded: CommitList[HandleT]) -> bool:
        """Whether this says that all which the checkpoint of this epoch lists is committed."""

    @abstractmethod
    def listed(self, epoch: int, handles: Sequence[WorkerHandle[HandleT]]) -> CommitList[HandleT]:
        """What the sink records of a checkpoint."""

    @abstractmethod
    def check(self, handles: Sequence[WorkerHandle[HandleT]]) -> None:
        """Raise unless all are still prepared."""

    @abstractmethod
    def end_all(self, handles: Sequence[WorkerHandle[HandleT]]) -> Sequence[Outcome]:
        """The outcomes, in their order."""

    @abstractmethod
    def copy(self, handles: Sequence[HandleT]) -> HandleT:
        """As the coordinator's own."""

    @abstractmethod
    def sweep(self, number: int, keep: Collection[HandleT]) -> None:
        """Abort what this worker, which is dead, has left open, but these."""

    @abstractmethod
    def settled(self, number: int) -> None:
        """Nothing will be asked of this worker any more."""

    @abstractmethod
    def close(self) -> None:
        """Give connections back, but for the driver's."""

    @abstractmethod
    def taken_over(self, stored: RunCheckpoint[SplitT, HandleT] | None) -> None:
        """This coordinator is the sink's driver, and this is the last checkpoint, which is recorded. No worker writes yet."""

    @abstractmethod
    def completed(self, epoch: int) -> None:
        """The checkpoint of this epoch is stored as committed."""


class _EndsByWorker(_Ends[SplitT, HandleT]):
    """Each worker has a job of its own, and a committer."""

    def __init__(
        self, sink: TwoPhaseSink[HandleT], roster: Callable[[], Roster], number: int, driver: Committer[HandleT]
    ) -> None:
        """`number` and `driver`: the coordinator's own, and its committer of the run's job."""
        self._sink, self._roster, self._number, self._driver = sink, roster, number, driver
        self._writers: dict[int, Committer[HandleT]] = {}

    def possible(self, stored: RunCheckpoint[SplitT, HandleT]) -> Collection[int]:
        """0, too: the lists may be gone (Kafka's topic of them), or there are none; then the transactions themselves tell."""
        return {0, stored.epoch, stored.epoch_before}

    def tells(self, seen: int, stored: RunCheckpoint[SplitT, HandleT] | None) -> bool:
        """What is decided and not marked yet is left out of it, so something older than the checkpoint says nothing."""
        before = 0 if stored is None else stored.epoch_before
        return seen > 0 and seen >> EPOCH_BITS >= before >> EPOCH_BITS

    def has_ended(self, recorded: CommitList[HandleT]) -> bool:
        """Each transaction tells by itself."""
        return False

    def listed(self, epoch: int, handles: Sequence[WorkerHandle[HandleT]]) -> CommitList[HandleT]:
        """The epoch alone: it shuts older coordinators out."""
        return CommitList(epoch, (), completed=True)

    def check(self, handles: Sequence[WorkerHandle[HandleT]]) -> None:
        try:
            self._by_worker(handles, lambda committer, own: committer.check(own))
        except (StateError, DeadlineExceededError) as error:
            # Nothing of it is durable or visible, so what was read since the last checkpoint is read again.
            raise RetriableError(f"a worker's transaction cannot be committed any more: {error}") from error

    def end_all(self, handles: Sequence[WorkerHandle[HandleT]]) -> Sequence[Outcome]:
        """Those of all workers at once: what readers see of a part of the checkpoint, they see for milliseconds."""
        ended = self._by_worker(handles, lambda committer, own: iter(committer.end_all(own)))
        return [next(ended[handle.number]) for handle in handles]

    def copy(self, handles: Sequence[HandleT]) -> HandleT:
        return self._of(self._number).copy(handles)

    def sweep(self, number: int, keep: Collection[HandleT]) -> None:
        self._of(number).sweep(keep)

    def settled(self, number: int) -> None:
        self._writers.pop(number).close()

    def close(self) -> None:
        for committer in self._writers.values():
            committer.close()

    def taken_over(self, stored: RunCheckpoint[SplitT, HandleT] | None) -> None:
        """Nothing is left under the coordinator's own job."""

    def completed(self, epoch: int) -> None:
        """The epoch was recorded as completed."""

    def _of(self, number: int) -> Committer[HandleT]:
        """One for each worker, so that several threads can use several."""
        if number not in self._writers:
            self._writers[number] = self._sink.committer_of_writer(self._roster().job(number), self._driver)
        return self._writers[number]

    def _by_worker(
        self, handles: Sequence[WorkerHandle[HandleT]], act: Callable[[Committer[HandleT], list[HandleT]], _Result]
    ) -> dict[int, _Result]:
        """What `act` gives for each worker's handles, in their order; of all workers at once."""
        own: dict[int, list[HandleT]] = {}
        for listed in handles:
            own.setdefault(listed.number, []).append(listed.handle)
        return dict(zip(own, at_once(act, [self._of(number) for number in own], list(own.values())), strict=True))


def at_once(
    act: Callable[[Committer[HandleT], list[HandleT]], _Result],
    committers: list[Committer[HandleT]],
    owned: list[list[HandleT]],
) -> list[_Result]:
    """What `act` gives for each committer and its handles, each in a thread of its own."""
    if len(committers) <= 1:
        return list(map(act, committers, owned))
    with ThreadPoolExecutor(len(committers)) as threads:
        return list(threads.map(act, committers, owned))


class _EndsByList(_Ends[SplitT, HandleT]):
    """All workers have the run's job: what the sink records is committed."""

    def __init__(self, driver: Committer[HandleT]) -> None:
        self._driver = driver

    def possible(self, stored: RunCheckpoint[SplitT, HandleT]) -> Collection[int]:
        """A checkpoint is completed after the table has recorded it: a table that does not know it is not the one."""
        return {stored.epoch} if stored.completed else {stored.epoch, stored.epoch_before}

    def tells(self, seen: int, stored: RunCheckpoint[SplitT, HandleT] | None) -> bool:
        """A table's record is one commit."""
        return True

    def has_ended(self, recorded: CommitList[HandleT]) -> bool:
        """An operator may have ended the table's list (`headrace transactions commit`)."""
        return recorded.completed

    def listed(self, epoch: int, handles: Sequence[WorkerHandle[HandleT]]) -> CommitList[HandleT]:
        return CommitList(epoch, tuple(listed.handle for listed in handles), completed=not handles)

    def check(self, handles: Sequence[WorkerHandle[HandleT]]) -> None:
        self._driver.check([listed.handle for listed in handles])

    def end_all(self, handles: Sequence[WorkerHandle[HandleT]]) -> Sequence[Outcome]:
        return self._driver.end_all([listed.handle for listed in handles])

    def copy(self, handles: Sequence[HandleT]) -> HandleT:
        return self._driver.copy(handles)

    def sweep(self, number: int, keep: Collection[HandleT]) -> None:
        self._driver.sweep_tasks((number,), keep)

    def settled(self, number: int) -> None:
        """Its name has no state."""

    def close(self) -> None:
        """There is the driver alone."""

    def taken_over(self, stored: RunCheckpoint[SplitT, HandleT] | None) -> None:
        """Lists of coordinators that have died while they committed are removed, and so is what nobody has listed."""
        if stored is not None and stored.completed and stored.epoch:
            self.completed(stored.epoch)
        self._driver.sweep(() if stored is None else [listed.handle for listed in stored.handles])

    def completed(self, epoch: int) -> None:
        """The sink's own list is of no more use."""
        self._driver.record(CommitList(epoch, (), completed=True))


class RunCommitter(Committer[WorkerHandle[HandleT]], Generic[SplitT, HandleT]):
    """Ends the transactions of all workers of one run. Called by the coordinator's commit thread."""

    def __init__(
        self,
        store: CheckpointStore[SplitT, HandleT],
        sink: TwoPhaseSink[HandleT],
        stored: RunCheckpoint[SplitT, HandleT] | None,
        number: int,
        clock: Callable[[], float],
        draw: Callable[[], int],
        is_stored: Callable[[int], None],
        check_readable: Callable[[Sequence[SplitT]], None],
    ) -> None:
        """`stored`: what `CheckpointStore.latest` gave. `number`: the coordinator's own, for copies; it is on the roster.

        `check_readable`: the source's, asked before the run goes back to an earlier checkpoint. `is_stored` is told the number
        of each new checkpoint once it is durable. `clock` gives monotonic seconds, `draw` EPOCH_BITS random bits.
        """
        self._store, self._sink, self._stored, self._number = store, sink, stored, number
        self._clock, self._draw, self._is_stored = clock, draw, is_stored
        self._check_readable = check_readable
        self._driver = sink.committer(store.roster.run)
        self._ends: _Ends[SplitT, HandleT] = (
            _EndsByList(self._driver)
            if sink.commits_by_list
            else _EndsByWorker(sink, lambda: store.roster, number, self._driver)
        )
        self._fenced = False
        self._proposed: Checkpoint[SplitT] | None = None
        # Number of a dead worker -> when it is to be swept again, None at once. What an earlier life has left is dead, too.
        self._due_s: dict[int, tuple[float, ...] | None] = {n: None for n in store.roster.unswept if n != number}

    def retire(self, number: int) -> None:
        """The worker's process is dead: abort what it has left open. What cannot be reached now is left to the next sweep.

        Called after the checkpoint that lists something of it was committed or given up. Nothing is swept before the run was
        taken over: the names are those of whoever runs from another copy of the folder, too.
        """
        self._due_s[number] = None
        if not self._fenced:
            return
        try:
            self.sweep(() if self._stored is None else self._stored.handles)
        except Exception as error:
            if not (is_retriable(error) or isinstance(error, DeadlineExceededError)):
                raise
            log.warning("what worker %d has left open is aborted later: %s", number, error)

    def propose(self, positions: Checkpoint[SplitT]) -> None:
        """The positions that belong to the next new list."""
        self._proposed = positions

    def fence(self) -> CommitList[WorkerHandle[HandleT]] | None:
        """Take the run over at the sink, once. Raises StaleEpochError for a folder that is behind what the sink has seen.

        Raises StateError for a sink that commits by list and is not the one that the folder is of, or is older.
        """
        if not self._fenced:
            # First without taking anything over: who begins with an older copy by mistake must not end the run that goes on.
            # Without waiting, as a dead coordinator's write may stay open for long; what becomes of it is decided by the fence.
            found = self._sink.recorded_now().get(self._store.roster.run)
            now = 0 if found is None else found.epoch
            if self._ends.tells(now, self._stored):
                self._refuse_stale(now)
            seen = self._driver.fence()
            self._refuse_stale(0 if seen is None else seen.epoch)
            self._catch_up(seen)
            self._ends.taken_over(self._stored)
            self._fenced = True
        if self._stored is None:
            return None
        return CommitList(self._stored.positions.checkpoint_id, self._stored.handles, self._stored.completed)

    def _catch_up(self, seen: CommitList[HandleT] | None) -> None:
        """The last coordinator died between what it told the folder and what it told the sink."""
        stored = self._stored
        if stored is None or not stored.epoch:
            return
        if seen is None or seen.epoch != stored.epoch:
            self._record_stored(stored)
        elif not stored.completed and self._ends.has_ended(seen):
            self._write(replace(stored, handles=(), completed=True))

    def _record_stored(self, stored: RunCheckpoint[SplitT, HandleT]) -> None:
        """What is recorded by list is committed by it: so the sink may refuse it for good, as one whose files are gone."""
        listed = self._ends.listed(stored.epoch, stored.handles)
        try:
            if listed.handles:
                self._driver.check(listed.handles)
            self._driver.record(listed)
        except (RetriableError, DeadlineExceededError, AuthenticationError):
            raise
        except (PeerError, UsageError) as error:
            if not listed.handles:
                raise
            self._take_back(stored, error)

    def _take_back(self, stored: RunCheckpoint[SplitT, HandleT], refusal: Exception) -> None:
        """Always raises: the enumerator of this life was restored from the checkpoint that is taken back."""
        seen = self._driver.fence()  # once more: nothing that was asked for before it can still come to pass
        self._refuse_stale(0 if seen is None else seen.epoch)
        if seen is not None and seen.epoch == stored.epoch:
            raise refusal
        checkpoint_id = stored.positions.checkpoint_id
        before = self._store.before(stored)
        if before is None:
            raise self._stuck(stored, refusal, "There is no earlier one to go back to") from refusal
        try:
            self._check_readable([state.split for state in before.positions.splits if not state.finished])
        except DataLossError as lost:
            raise self._stuck(
                stored,
                refusal,
                f"The one before, checkpoint {before.positions.checkpoint_id}, is no way back, as what comes after it cannot "
                f"be read again ({lost}), so this one is kept, with the rows that it has prepared",
            ) from refusal
        self._store.take_back(checkpoint_id)
        raise RetriableError(
            f"{self._store.folder}: checkpoint {checkpoint_id} cannot be committed: {refusal}. Nothing of it is, and it is "
            f"taken back: the next start goes on from checkpoint {before.positions.checkpoint_id}"
        ) from refusal

    def _stuck(self, stored: RunCheckpoint[SplitT, HandleT], refusal: Exception, why: str) -> HeadraceError:
        """Another try finds the checkpoint as it is, and maybe a sink that takes it; not where its rows are gone, nor where the
        caller has to change something.
        """
        kind = DataLossError if isinstance(refusal, UsageError | PreparedGoneError) else RetriableError
        return kind(
            f"{self._store.folder}: checkpoint {stored.positions.checkpoint_id} is stored and not committed, and cannot be "
            f"committed as it is: {refusal}. {why}: mend what the sink refuses and start again, or begin anew with another "
            "folder, from positions of your choice"
        )

    def _refuse_stale(self, seen: int) -> None:
        """`seen`: what the sink has recorded last, 0 if nothing."""
        stored = self._stored
        possible = {0} if stored is None else self._ends.possible(stored)
        if seen in possible:
            return
        last = 0 if stored is None else stored.positions.checkpoint_id
        if seen == 0 or (stored is not None and seen == stored.epoch_before):
            known = f"checkpoint {seen >> EPOCH_BITS}" if seen else "none of its checkpoints"
            raise StateError(
                f"{self._store.folder}: the last good checkpoint is {last}, and the sink knows {known}: it is another table, "
                "or an older state of it, or its record of this run was removed. Going on would leave out what was committed. "
                "Name the run's table, or begin anew with another folder, from positions of your choice"
            )
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
        """Raise RetriableError for a transaction that is not prepared any more, or has little time left, and what the sink
        raises where it would refuse them all.
        """
        self._ends.check(handles)

    def record(self, commits: CommitList[WorkerHandle[HandleT]]) -> None:
        """Store the checkpoint; before anything of it is committed, have the sink refuse it if another has taken over."""
        positions, stored = self._proposed, self._stored
        if positions is None or positions.checkpoint_id != commits.epoch:
            assert stored is not None
            self._write(replace(stored, handles=commits.handles, completed=commits.completed))
            if commits.completed and self._epoch:
                self._ends.completed(self._epoch)
            return
        epoch = (commits.epoch << EPOCH_BITS) + self._draw() if commits.handles else self._epoch
        before, self._proposed = self._epoch, None
        self._write(RunCheckpoint(positions, commits.handles, commits.completed, epoch, before))
        if epoch != before:
            self._driver.record(self._ends.listed(epoch, commits.handles))
        self._is_stored(commits.epoch)

    def _write(self, checkpoint: RunCheckpoint[SplitT, HandleT]) -> None:
        self._store.write(checkpoint)
        self._stored = checkpoint

    def end(self, handle: WorkerHandle[HandleT]) -> Outcome:
        """As `end_all` does."""
        return self._ends.end_all([handle])[0]

    def end_all(self, handles: Sequence[WorkerHandle[HandleT]]) -> Sequence[Outcome]:
        """Several at once where the sink does so."""
        return self._ends.end_all(handles)

    def copy(self, handles: Sequence[WorkerHandle[HandleT]]) -> WorkerHandle[HandleT]:
        """As the coordinator's own."""
        return WorkerHandle(self._number, self._ends.copy([handle.handle for handle in handles]))

    def sweep(self, keep: Collection[WorkerHandle[HandleT]]) -> None:
        """Abort what dead workers have left open. Those that live write on: what they have open is the next checkpoint's."""
        now_s, settled = self._clock(), []
        for number, due_s in list(self._due_s.items()):
            if due_s is not None and now_s < due_s[0]:
                continue
            kept = [listed.handle for listed in keep if listed.number == number]
            self._ends.sweep(number, kept)
            left_s = (
                tuple(now_s + later_s for later_s in SETTLE_S) if due_s is None else tuple(at for at in due_s if at > now_s)
            )
            if left_s or kept:
                self._due_s[number] = left_s or (now_s,)
            else:
                settled.append(number)
        if settled:
            self._store.strike(settled)
            for number in settled:
                del self._due_s[number]
                self._ends.settled(number)

    def forget(self) -> None:
        """The run is over, and what it has written is committed: remove its checkpoints, then what the sink has recorded of it.

        In this order: a checkpoint without its record would be refused. What cannot be removed from the sink stays there, with
        a warning: no other run has its name.
        """
        self._store.remove()
        try:
            self._driver.forget()
        except HeadraceError as error:
            log.warning("what the sink has recorded of %s stays there: %s", self._store.roster.run, error)

    def close(self) -> None:
        """Give connections back."""
        self._ends.close()
        self._driver.close()
