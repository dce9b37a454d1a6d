"""Commits of a run, in the order that `headrace.connectors.base.commit` decides, with the run's checkpoints as the lists.

To `CommitCore` a checkpoint is an epoch: `record` stores positions and handles together. So what is committed is what a
stored checkpoint lists, and a restart finds there what to complete. Two things shut a stale coordinator out. The folder's lock,
for one on this machine. For a copy of the folder the sink's own fence: each coordinator takes the run over at the sink, and
before anything is committed the sink records the checkpoint's *epoch*, which it refuses for whom another has followed. An epoch
is the checkpoint's number and some random bits, so that two copies of a folder never have the same; a folder that does not know
the epoch that the sink has recorded last is behind, or of another branch, and is refused. Rows that are copied, as what was
prepared is aborted, have a new epoch: two folders may have stored one checkpoint, and one of them alone may copy it.

Each worker writes under its own sink job (`WorkerRegistry.job`), so a clean-up aborts a dead worker's transactions and no
process else's.
To a sink that commits by list (tables) all write under the run's job, each as its own task: the sink records the
checkpoint's epoch and commits all of it in one step, and cleans up by task.

A sink that commits by list says before a checkpoint is stored whether it would refuse it (`check`). If it refuses a stored one
(its table was altered in between), the next coordinator *takes it back*: nothing of it is committed, and no process was
notified of it.
So the run continues from the checkpoint before, which is kept until the next one is committed.

Of several outputs the one decision is that of the first (`Outputs.in_order`): its sink is notified of every checkpoint that has
rows in any output, before any other sink is, and all are fenced before anything is ended. So what it has recorded is what the
others are to record, too, by this coordinator or the next one. It is never rolled back then: one of them that refuses it after
all has to be fixed.

A worker is cleaned up at once when it is dead: what it has prepared may hold locks, which those who read its splits now wait
for, and then no checkpoint would ever be complete.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from headrace.connectors.base import capabilities
from headrace.connectors.base.commit import StaleEpochError
from headrace.connectors.base.outputs import DEFAULT_OUTPUT, Outputs, Sinks
from headrace.connectors.base.sink import Attempt, CommitList, Committer, HandleT, Outcome, PreparedGoneError, TwoPhaseSink
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
from headrace.runners.local.checkpoints import CheckpointStore, RunCheckpoint, WorkerRegistry
from headrace.runners.local.events import WorkerHandle

__all__ = ["RunCommitter", "first_attempt"]

log = logging.getLogger(__name__)

EPOCH_BITS = 20

SETTLE_S = (1.0, 60.0)
"""A dead worker's transactions are looked for again this many seconds after they were first cleaned up: a request that was
under way when its process died may come to the sink later."""

_Result = TypeVar("_Result")


def first_attempt(sink: TwoPhaseSink[Any], registry: WorkerRegistry, number: int, output: str = DEFAULT_OUTPUT) -> Attempt:
    """A worker's first transaction of an output; its epochs count on from it. No other worker of any lifetime of the run has
    its name.
    """
    if isinstance(sink, capabilities.SingleCommit):
        return Attempt(registry.run_at(output), 0, number, 0)
    return Attempt(registry.job(number, output), 0, 0, 0)


@dataclass(frozen=True, slots=True)
class SinkEpochs:
    """What the last checkpoint reports about a sink: its epochs, as in `RunCheckpoint`, and whether all is committed."""

    before: int = 0
    last: int = 0
    completed: bool = True
    replaced: Collection[int] = ()

    @property
    def possible(self) -> Collection[int]:
        """What the sink may have recorded last, where not all is committed."""
        return {self.before, self.last, *(epoch for epoch in self.replaced if epoch > self.before)}


class CommitStrategy(ABC, Generic[HandleT]):
    """How what workers have prepared for one sink is ended."""

    @abstractmethod
    def possible(self, reported: SinkEpochs) -> Collection[int]:
        """What the sink may have recorded last, if it is the one that the last checkpoint is of."""

    @abstractmethod
    def tells(self, seen: int, reported: SinkEpochs) -> bool:
        """Whether this, looked up without waiting for any process, is what the sink has recorded last."""

    @abstractmethod
    def has_ended(self, recorded: CommitList[HandleT]) -> bool:
        """Whether this states that all which the checkpoint of this epoch lists is committed."""

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
    def clean_up(self, number: int, keep: Collection[HandleT]) -> None:
        """Abort what this worker, which is dead, has left, but these."""

    @abstractmethod
    def settled(self, number: int) -> None:
        """Nothing will be asked of this worker any more."""

    @abstractmethod
    def close(self) -> None:
        """Give connections back, but for the driver's."""

    @abstractmethod
    def taken_over(self, reported: SinkEpochs, listed: Sequence[HandleT]) -> None:
        """This coordinator is the sink's driver, and the last checkpoint, which lists these, is recorded. No worker writes."""

    @abstractmethod
    def completed(self, epoch: int) -> None:
        """The checkpoint of this epoch is stored as committed."""


class PerWorkerCommit(CommitStrategy[HandleT]):
    """Each worker has its own job, and a committer."""

    def __init__(self, sink: TwoPhaseSink[HandleT], job: Callable[[int], str], number: int, driver: Committer[HandleT]) -> None:
        """`job`: of a worker's number. `number` and `driver`: the coordinator's own, and its committer of the run's job."""
        self._sink, self._job, self._number, self._driver = sink, job, number, driver
        self._writers: dict[int, Committer[HandleT]] = {}

    def possible(self, reported: SinkEpochs) -> Collection[int]:
        """0, too: the lists may be gone (Kafka's topic of them), or there are none; then the transactions themselves tell."""
        return {0, *reported.possible}

    def tells(self, seen: int, reported: SinkEpochs) -> bool:
        """What is decided and not marked yet is left out of it, so something older than the checkpoint says nothing."""
        return seen > 0 and seen >> EPOCH_BITS >= reported.before >> EPOCH_BITS and seen not in reported.replaced

    def has_ended(self, recorded: CommitList[HandleT]) -> bool:
        """Each transaction shows by itself."""
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
        ended = self._by_worker(handles, lambda committer, own: iter(capabilities.end_all(committer, own)))
        return [next(ended[handle.number]) for handle in handles]

    def copy(self, handles: Sequence[HandleT]) -> HandleT:
        return self._of(self._number).copy(handles)

    def clean_up(self, number: int, keep: Collection[HandleT]) -> None:
        self._of(number).clean_up(keep)

    def settled(self, number: int) -> None:
        self._writers.pop(number).close()

    def close(self) -> None:
        for committer in self._writers.values():
            committer.close()

    def taken_over(self, reported: SinkEpochs, listed: Sequence[HandleT]) -> None:
        """Nothing is left under the coordinator's own job."""

    def completed(self, epoch: int) -> None:
        """The epoch was recorded as completed."""

    def _of(self, number: int) -> Committer[HandleT]:
        """One for each worker, so that several threads can use several."""
        if number not in self._writers:
            self._writers[number] = capabilities.committer_of_writer(self._sink, self._job(number), self._driver)
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
    """What `act` gives for each committer and its handles, each in its own thread."""
    if len(committers) <= 1:
        return list(map(act, committers, owned))
    with ThreadPoolExecutor(len(committers)) as threads:
        return list(threads.map(act, committers, owned))


class PerRunCommit(CommitStrategy[HandleT]):
    """All workers have the run's job: what the sink records is committed."""

    def __init__(self, driver: Committer[HandleT]) -> None:
        self._driver = driver

    def possible(self, reported: SinkEpochs) -> Collection[int]:
        """A checkpoint is completed after the table has recorded it: a table that does not know it is not the one."""
        return {reported.last} if reported.completed else reported.possible

    def tells(self, seen: int, reported: SinkEpochs) -> bool:
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
        return capabilities.end_all(self._driver, [listed.handle for listed in handles])

    def copy(self, handles: Sequence[HandleT]) -> HandleT:
        return self._driver.copy(handles)

    def clean_up(self, number: int, keep: Collection[HandleT]) -> None:
        capabilities.task_cleanup(self._driver).clean_up_tasks((number,), keep)

    def settled(self, number: int) -> None:
        """Its name has no state."""

    def close(self) -> None:
        """There is the driver alone."""

    def taken_over(self, reported: SinkEpochs, listed: Sequence[HandleT]) -> None:
        """Lists of coordinators that have died while they committed are removed, and so is what no process has listed."""
        if reported.completed and reported.last:
            self.completed(reported.last)
        self._driver.clean_up(listed)

    def completed(self, epoch: int) -> None:
        """The sink's own list is of no more use."""
        self._driver.record(CommitList(epoch, (), completed=True))


class _Output:
    """One of the run's sinks."""

    def __init__(self, name: str, sink: TwoPhaseSink[Any], registry: Callable[[], WorkerRegistry], number: int) -> None:
        """`number`: the coordinator's own."""
        self.name, self.sink = name, sink
        self.run = registry().run_at(name)
        self.driver = sink.committer(self.run)
        self.ends: CommitStrategy[Any] = (
            PerRunCommit(self.driver)
            if isinstance(sink, capabilities.SingleCommit)
            else PerWorkerCommit(sink, lambda writer: registry().job(writer, name), number, self.driver)
        )

    @property
    def of(self) -> str:
        """In messages."""
        return "the sink" if self.name == DEFAULT_OUTPUT else f"the sink of the output {self.name!r}"


class RunCommitter(
    Committer[WorkerHandle[Any]],
    capabilities.GroupedEnd[WorkerHandle[Any]],
    capabilities.CopyPerSink[WorkerHandle[Any]],
    Generic[SplitT, HandleT],
):
    """Ends the transactions of all workers of one run, at all of its sinks. Called by the coordinator's commit thread."""

    def __init__(
        self,
        store: CheckpointStore[SplitT, HandleT],
        sinks: Sinks,
        stored: RunCheckpoint[SplitT, HandleT] | None,
        number: int,
        clock: Callable[[], float],
        draw: Callable[[], int],
        is_stored: Callable[[int], None],
        check_readable: Callable[[Sequence[SplitT]], None],
    ) -> None:
        """`stored`: what `CheckpointStore.latest` gave. `number`: the coordinator's own, for copies; it is on the worker
        registry.

        `check_readable`: the source's, asked before the run goes back to an earlier checkpoint. `is_stored` is given the number
        of each new checkpoint once it is durable. `clock` gives monotonic seconds, `draw` EPOCH_BITS random bits.
        """
        self._store, self._stored, self._number = store, stored, number
        self._clock, self._draw, self._is_stored = clock, draw, is_stored
        self._check_readable = check_readable
        self._sinks = Outputs(sinks)
        self._outputs = [
            _Output(name, self._sinks.sinks[name], lambda: store.registry, number) for name in self._sinks.in_order
        ]
        self._fenced = False
        self._proposed: Checkpoint[SplitT] | None = None
        # Number of a dead worker -> when it is to be cleaned up again, None at once. What an earlier lifetime has left is dead,
        # too.
        self._due_s: dict[int, tuple[float, ...] | None] = {
            n: self._left_s(n) for n in store.registry.not_cleaned_up if n != number
        }

    def _left_s(self, number: int) -> tuple[float, ...] | None:
        """A lifetime shorter than SETTLE_S continues where the previous one was, so that a loop of such is alive does not pile
        them up.
        """
        first_s = self._store.registry.cleaned_up_s.get(number)
        return None if first_s is None or first_s > self._clock() else _settling(first_s)

    def retire(self, number: int) -> None:
        """The worker's process is dead: abort what it has left. What cannot be reached now is left to the next clean up.

        Called after the checkpoint that lists something of it was committed or given up. Nothing is cleaned up before the run
        was taken over: the names are those of the process that runs from another copy of the folder, too.
        """
        self._due_s[number] = None
        if not self._fenced:
            return
        try:
            self.clean_up(self._listed)
        except Exception as error:
            if not (is_retriable(error) or isinstance(error, DeadlineExceededError)):
                raise
            log.warning("what worker %d has left is aborted later: %s", number, error)

    def propose(self, positions: Checkpoint[SplitT]) -> None:
        """The positions that belong to the next new list."""
        self._proposed = positions

    # --- taking over --------------------------------------------------------------------------------------------------

    def fence(self) -> CommitList[WorkerHandle[Any]] | None:
        """Take the run over at all sinks, once. Raises StaleEpochError for a folder that is behind what one of them has seen.

        Raises StateError for a sink that commits by list and is not the one that the folder is of, or is older.
        """
        if not self._fenced:
            # First without taking anything over: who starts with an older copy by mistake must not end the run that continues.
            # Without waiting, as a dead coordinator's write may stay open for long; what becomes of it is decided by the fence.
            for output in self._outputs:
                found = capabilities.recorded_now(output.sink).get(output.run)
                now = 0 if found is None else found.epoch
                if output.ends.tells(now, self._told(output)):
                    self._refuse_stale(output, now)
            self._catch_up({output.name: self._take_over(output) for output in self._outputs})
            for output in self._outputs:
                output.ends.taken_over(self._told(output), [listed.handle for listed in self._own(output, self._listed)])
            self._fenced = True
        if self._stored is None:
            return None
        return CommitList(self._stored.positions.checkpoint_id, self._stored.handles, self._stored.completed)

    def _take_over(self, output: _Output) -> CommitList[Any] | None:
        seen = output.driver.fence()
        self._refuse_stale(output, 0 if seen is None or seen.epoch is None else seen.epoch)
        return seen

    def _catch_up(self, seen: Mapping[str, CommitList[Any] | None]) -> None:
        """The last coordinator died between what it reported the folder and what it reported the sinks."""
        stored = self._stored
        if stored is None or not stored.epoch:
            return
        epochs = {name: 0 if found is None else found.epoch for name, found in seen.items()}
        decided = [output for output in self._outputs if epochs[output.name] == stored.epoch]
        ended = {output.name for output in decided if _has_ended(output, seen[output.name])}
        for output in self._outputs:
            _, last = stored.reported(output.name)
            if last and epochs[output.name] != last:
                self._record_stored(output, last, decided)
                decided.append(output)
        left = tuple(listed for listed in stored.handles if self._sinks.output_of(listed.handle) not in ended)
        if len(left) < len(stored.handles):
            self._write(replace(stored, handles=left, completed=not left))

    def _record_stored(self, output: _Output, epoch: int, decided: Sequence[_Output]) -> None:
        """What is recorded by list is committed by it: so the sink may refuse it for good, as one whose files are gone.

        `decided`: the outputs that have recorded the last checkpoint.
        """
        assert self._stored is not None
        listed = output.ends.listed(epoch, self._own(output, self._stored.handles))
        try:
            if listed.handles:
                output.driver.check(listed.handles)
            output.driver.record(listed)
        except (RetriableError, DeadlineExceededError, AuthenticationError):
            raise
        except (PeerError, UsageError) as error:
            if not listed.handles:
                raise
            self._take_back(output, decided, error)

    def _take_back(self, output: _Output, decided: Sequence[_Output], refusal: Exception) -> None:
        """Always raises: the enumerator of this lifetime was restored from the checkpoint that is rolled back."""
        stored = self._stored
        assert stored is not None
        seen = self._take_over(output)  # again: nothing that was asked for before it can still come to pass
        if seen is not None and seen.epoch == stored.epoch:
            raise refusal
        if decided:
            others = " and ".join(other.of for other in decided)
            raise self._stuck(stored, refusal, f"It cannot be rolled back, as {others} has recorded it") from refusal
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
                f"The previous one, checkpoint {before.positions.checkpoint_id}, cannot be used, as what comes after it cannot "
                f"be read again ({lost}), so this one is kept, with the rows that it has prepared",
            ) from refusal
        self._store.take_back(checkpoint_id)
        raise RetriableError(
            f"{self._store.location}: checkpoint {checkpoint_id} cannot be committed: {refusal}. Nothing of it is, and it is "
            f"rolled back: the next start continues from checkpoint {before.positions.checkpoint_id}"
        ) from refusal

    def _stuck(self, stored: RunCheckpoint[SplitT, HandleT], refusal: Exception, why: str) -> HeadraceError:
        """Another try finds the checkpoint as it is, and maybe a sink that takes it; not where its rows are gone, nor where the
        caller has to change something.
        """
        kind = DataLossError if isinstance(refusal, UsageError | PreparedGoneError) else RetriableError
        return kind(
            f"{self._store.location}: checkpoint {stored.positions.checkpoint_id} is stored and not committed, and cannot be "
            f"committed as it is: {refusal}. {why}: fix what the sink refuses and start again, or start over with another "
            "folder, from positions of your choice"
        )

    def _refuse_stale(self, output: _Output, seen: int) -> None:
        """`seen`: what the output's sink has recorded last, 0 if nothing."""
        reported = self._told(output)
        possible = {0} if self._stored is None else output.ends.possible(reported)
        if seen in possible:
            return
        last = 0 if self._stored is None else self._stored.positions.checkpoint_id
        if seen in (0, reported.before):
            known = f"checkpoint {seen >> EPOCH_BITS}" if seen else "none of its checkpoints"
            raise StateError(
                f"{self._store.location}: the last good checkpoint is {last}, and {output.of} knows {known}: it is another "
                "table, or an older state of it, or its record of this run was removed. Continuing would leave out what was "
                "committed. Name the run's table, or start over with another folder, from positions of your choice"
            )
        raise StaleEpochError(
            f"{self._store.location}: the last good checkpoint is {last}, and {output.of} has committed checkpoint "
            f"{seen >> EPOCH_BITS} of this run, which this folder has not: it is an older copy, or that checkpoint is "
            "damaged. Continuing would write rows twice. Start over with another folder, from positions of your choice"
        )

    # --- committing ---------------------------------------------------------------------------------------------------

    def check(self, handles: Sequence[WorkerHandle[Any]]) -> None:
        """Raise RetriableError for a transaction that is not prepared any more, or has little time left, and what a sink
        raises where it would refuse them all.
        """
        for output in self._outputs:
            if own := self._own(output, handles):
                output.ends.check(own)

    def record(self, commits: CommitList[WorkerHandle[Any]]) -> None:
        """Store the checkpoint; before anything of it is committed, have the first sink refuse it if another has taken over.

        Then the other sinks that it has rows for are reported, too.
        """
        assert commits.epoch is not None, "a run's lists are its checkpoints"
        positions, stored = self._proposed, self._stored
        if positions is not None and positions.checkpoint_id == commits.epoch:
            self._proposed = None
            self._record(self._next(positions, commits), commits)
            self._is_stored(commits.epoch)
            return
        assert stored is not None
        if commits.handles:
            self._record(self._with_copies(stored, commits.handles), commits)
            return
        self._write(replace(stored, handles=(), completed=True))
        for output in self._told_last:
            output.ends.completed(self._told(output).last)

    def _record(self, checkpoint: RunCheckpoint[SplitT, Any], commits: CommitList[WorkerHandle[Any]]) -> None:
        """Without handles no sink is notified of it."""
        self._write(checkpoint)
        if commits.handles:
            for output in self._told_last:
                output.driver.record(output.ends.listed(self._epoch, self._own(output, commits.handles)))

    def _next(self, positions: Checkpoint[SplitT], commits: CommitList[WorkerHandle[Any]]) -> RunCheckpoint[SplitT, Any]:
        """The checkpoint to be stored. Its epoch is in the lower half of its number's: those of copies come behind it."""
        assert commits.epoch is not None, "a run's lists are its checkpoints"
        before = self._epoch
        first = commits.epoch << EPOCH_BITS
        epoch = max(first + self._draw() % (1 << EPOCH_BITS - 1), before + 1) if commits.handles else before
        by_output = {}
        for place, output in enumerate(self._outputs):
            last, is_told = self._told(output).last, commits.handles and (place == 0 or self._own(output, commits.handles))
            by_output[output.name] = (last, epoch if is_told else last)
        numbers = {each >> EPOCH_BITS for reported in by_output.values() for each in reported}
        by_output.pop(DEFAULT_OUTPUT, None)
        replaced = () if self._stored is None else self._stored.replaced
        still = tuple(each for each in replaced if each >> EPOCH_BITS in numbers)
        return RunCheckpoint(positions, commits.handles, commits.completed, epoch, before, by_output, still)

    def _with_copies(
        self, stored: RunCheckpoint[SplitT, HandleT], copies: Sequence[WorkerHandle[Any]]
    ) -> RunCheckpoint[SplitT, Any]:
        """Under another epoch, as another copy of the folder may have this checkpoint, too: it is refused from here on, and
        makes no copies of its own. A later one, as a table takes a lower one for something that it has recorded.
        """
        following = stored.epoch + 1
        headroom = max((stored.positions.checkpoint_id + 1 << EPOCH_BITS) - following, 0)
        epoch = following + (self._draw() * headroom >> EPOCH_BITS)
        by_output = {
            name: (before, epoch if last == stored.epoch else last) for name, (before, last) in stored.by_output.items()
        }
        replaced = (*stored.replaced, stored.epoch)
        return replace(stored, handles=tuple(copies), epoch=epoch, by_output=by_output, replaced=replaced)

    @property
    def _epoch(self) -> int:
        """What sinks are reported, or are to be reported, of the last checkpoint with handles."""
        return 0 if self._stored is None else self._stored.epoch

    @property
    def _told_last(self) -> list[_Output]:
        """Those that are notified of the last checkpoint with handles."""
        return [output for output in self._outputs if self._epoch and self._told(output).last == self._epoch]

    @property
    def _listed(self) -> Sequence[WorkerHandle[Any]]:
        return () if self._stored is None else self._stored.handles

    def _told(self, output: _Output) -> SinkEpochs:
        stored = self._stored
        return SinkEpochs() if stored is None else SinkEpochs(*stored.reported(output.name), stored.completed, stored.replaced)

    def _own(self, output: _Output, handles: Collection[WorkerHandle[Any]]) -> list[WorkerHandle[Any]]:
        """Those of this output, as its sink has given them."""
        own = (listed for listed in handles if self._sinks.output_of(listed.handle) == output.name)
        return [WorkerHandle(listed.number, self._sinks.plain(listed.handle)) for listed in own]

    def _write(self, checkpoint: RunCheckpoint[SplitT, HandleT]) -> None:
        self._store.write(checkpoint)
        self._stored = checkpoint

    def end(self, handle: WorkerHandle[Any]) -> Outcome:
        """As `end_all` does."""
        return self.end_all([handle])[0]

    def end_all(self, handles: Sequence[WorkerHandle[Any]]) -> Sequence[Outcome]:
        """Several at once where the sink does so, one output after the other."""
        ended = {output.name: iter(output.ends.end_all(own)) for output in self._outputs if (own := self._own(output, handles))}
        return [next(ended[self._sinks.output_of(listed.handle)]) for listed in handles]

    def copy(self, handles: Sequence[WorkerHandle[Any]]) -> WorkerHandle[Any]:
        """Of one output."""
        (copied,) = self.copy_all(handles)
        return copied

    def copy_all(self, handles: Sequence[WorkerHandle[Any]]) -> Sequence[WorkerHandle[Any]]:
        """As the coordinator's own, one for each output."""
        return [
            WorkerHandle(self._number, self._sinks.tagged(output.name, output.ends.copy([each.handle for each in own])))
            for output in self._outputs
            if (own := self._own(output, handles))
        ]

    def clean_up(self, keep: Collection[WorkerHandle[Any]]) -> None:
        """Abort what dead workers have left. Those that live write on: what they have open is the next checkpoint's."""
        now_s, first, settled = self._clock(), [], []
        for number, due_s in list(self._due_s.items()):
            if due_s is not None and now_s < due_s[0]:
                continue
            kept = [listed for listed in keep if listed.number == number]
            for output in self._outputs:
                output.ends.clean_up(number, [listed.handle for listed in self._own(output, kept)])
            if due_s is None:
                first.append(number)
            left_s = tuple(at_s for at_s in due_s or _settling(now_s) if at_s > now_s)
            if left_s or kept:
                self._due_s[number] = left_s or (now_s,)
            else:
                settled.append(number)
        if first:
            self._store.note_cleaned_up(first, now_s)
        if settled:
            self._store.remove_workers(settled)
            for number in settled:
                del self._due_s[number]
                for output in self._outputs:
                    output.ends.settled(number)

    def forget(self) -> None:
        """The run is over, and what it has written is committed: remove its checkpoints, then what sinks have recorded of it.

        In this order: a checkpoint without its record would be refused. What cannot be removed from a sink stays there, with
        a warning: no other run has its name.
        """
        self._store.remove()
        for output in self._outputs:
            try:
                output.driver.forget()
            except HeadraceError as error:
                log.warning("what %s has recorded of %s stays there: %s", output.of, output.run, error)

    def close(self) -> None:
        """Give connections back."""
        for output in self._outputs:
            output.ends.close()
            output.driver.close()


def _has_ended(output: _Output, recorded: CommitList[Any] | None) -> bool:
    return recorded is not None and output.ends.has_ended(recorded)


def _settling(first_s: float) -> tuple[float, ...]:
    return tuple(first_s + later_s for later_s in SETTLE_S)
