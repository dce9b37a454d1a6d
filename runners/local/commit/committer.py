"""The committer of a run: its checkpoints are the lists, its sinks record and commit what they list."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic

from headrace.connectors.base import capabilities
from headrace.connectors.base.outputs import DEFAULT_OUTPUT, Sinks
from headrace.connectors.base.sink import CommitList, Committer, HandleT, Outcome
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import HeadraceError
from headrace.enumerator.source_driver import can_pass
from headrace.enumerator.split import SplitT
from headrace.runners.local.checkpoints import CheckpointStore, RunCheckpoint
from headrace.runners.local.commit.state import CommitState, RunOutput
from headrace.runners.local.commit.strategy import EPOCH_BITS
from headrace.runners.local.commit.takeover import RunTakeover
from headrace.runners.local.events import WorkerHandle

log = logging.getLogger(__name__)

CLEAN_UP_AGAIN_S = (1.0, 60.0)
"""A dead worker's transactions are looked for again this many seconds after they were first cleaned up: a request that was
under way when its process died may come to the sink later."""

_draw = partial(secrets.randbits, EPOCH_BITS)


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
        is_stored: Callable[[int], None],
        check_readable: Callable[[Sequence[SplitT]], None],
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], int] = _draw,
    ) -> None:
        """`stored`: what `CheckpointStore.latest` gave. `number`: the coordinator's own, for copies; it is on the worker
        registry.

        `check_readable`: the source's, asked before the run goes back to an earlier checkpoint. `is_stored` is given the number
        of each new checkpoint once it is durable. `clock` gives monotonic seconds, `draw` EPOCH_BITS random bits.
        """
        self._state = CommitState(store, sinks, stored, number)
        self._takeover = RunTakeover(self._state, check_readable)
        self._number = number
        self._clock, self._draw, self._is_stored = clock, draw, is_stored
        self._fenced = False
        self._proposed: Checkpoint[SplitT] | None = None
        self._staged = (0, 0)  # a checkpoint, and its epoch
        # Number of a dead worker -> when it is to be cleaned up again, None at once. What an earlier lifetime has left is dead,
        # too.
        self._due_s: dict[int, tuple[float, ...] | None] = {
            n: self._left_s(n) for n in store.registry.not_cleaned_up if n != number
        }

    def _left_s(self, number: int) -> tuple[float, ...] | None:
        """What a coordinator that ended before CLEAN_UP_AGAIN_S has left: fast restarts do not start over each time."""
        first_s = self._state.store.registry.cleaned_up_s.get(number)
        return None if first_s is None or first_s > self._clock() else _later(first_s)

    def retire(self, number: int) -> None:
        """The worker's process is dead: abort what it has left. What cannot be reached now is left to the next clean up.

        Called after the checkpoint that lists something of it was committed or given up. Nothing is cleaned up before the run
        was taken over: a run from another copy of the folder has the same names.
        """
        self._due_s[number] = None
        if not self._fenced:
            return
        try:
            self.clean_up(self._state.listed)
        except Exception as error:
            if not can_pass(error):
                raise
            log.warning("what worker %d has left is aborted later: %s", number, error)

    def stage(self, checkpoint_id: int) -> None:
        """Rows of this checkpoint are being prepared: meanwhile the sink that records it first is given its epoch."""
        if not self._fenced:
            return
        self._staged = (0, 0)
        self._staged = (checkpoint_id, self._epoch_of(checkpoint_id))
        try:
            self._state.outputs[0].strategy.stage(self._staged[1])
        except HeadraceError as error:
            log.debug("checkpoint %d is recorded without having been staged: %s", checkpoint_id, error)

    def propose(self, positions: Checkpoint[SplitT]) -> None:
        self._proposed = positions

    # --- taking over --------------------------------------------------------------------------------------------------

    def fence(self) -> CommitList[WorkerHandle[Any]] | None:
        """Take the run over at all sinks, once. Raises StaleEpochError for a folder that is behind what one of them has seen.

        Raises StateError for a sink that commits by list and is not the one that the folder is of, or is older.
        """
        if not self._fenced:
            self._takeover.run()
            self._fenced = True
        if self._state.stored is None:
            return None
        stored = self._state.stored
        return CommitList(stored.positions.checkpoint_id, stored.handles, stored.completed or not stored.handles)

    # --- committing ---------------------------------------------------------------------------------------------------

    def check(self, handles: Sequence[WorkerHandle[Any]]) -> None:
        """Raise RetriableError for one that is not prepared any more, or has little time left, and what refuses them all."""
        for output in self._state.outputs:
            if own := self._state.own(output, handles):
                output.strategy.check(own)

    def record(self, commits: CommitList[WorkerHandle[Any]]) -> None:
        """Store the checkpoint; before anything of it is committed, have the first sink refuse it if another has taken over.

        Then the other sinks for which it has rows record it, too.
        """
        assert commits.epoch is not None, "a run's lists are its checkpoints"
        positions, stored = self._proposed, self._state.stored
        if positions is not None and positions.checkpoint_id == commits.epoch:
            self._proposed = None
            following = self._next(positions, commits)
            self._record(following)
            self._is_stored(commits.epoch)
            if not following.completed and not following.handles:  # the sinks have recorded it, and there is nothing to end
                self._state.write(replace(following, completed=True))
            return
        assert stored is not None
        if commits.handles:
            self._record(self._with_copies(stored, commits.handles))
            return
        self._state.write(replace(stored, handles=(), completed=True))
        for output in self._recorded_last:
            output.strategy.completed(self._state.epochs(output).last)

    def _record(self, checkpoint: RunCheckpoint[SplitT, Any]) -> None:
        """A checkpoint that is completed already has nothing for a sink to record."""
        self._state.write(checkpoint)
        if not checkpoint.completed:
            for output in self._recorded_last:
                output.driver.record(output.strategy.listed(self._state.epoch, self._state.own(output, checkpoint.handles)))

    def _next(self, positions: Checkpoint[SplitT], commits: CommitList[WorkerHandle[Any]]) -> RunCheckpoint[SplitT, Any]:
        """The checkpoint to be stored. Its epoch is in the lower half of its number's: those of copies come behind it."""
        assert commits.epoch is not None, "a run's lists are its checkpoints"
        before = self._state.epoch
        stored = self._state.stored
        has_moved = stored is None or stored.positions.splits != positions.splits
        recording = {output.name for output in self._state.outputs if output.records_all_epochs and has_moved}
        is_reported = bool(commits.handles or recording)
        epoch = self._epoch_of(commits.epoch) if is_reported else before
        by_output = {}
        for place, output in enumerate(self._state.outputs):
            last = self._state.epochs(output).last
            has_rows = commits.handles and (place == 0 or self._state.own(output, commits.handles))
            is_notified = output.name in recording or has_rows
            by_output[output.name] = (last, epoch if is_notified else last)
        numbers = {each >> EPOCH_BITS for reported in by_output.values() for each in reported}
        by_output.pop(DEFAULT_OUTPUT, None)
        replaced = () if stored is None else stored.replaced
        still = tuple(each for each in replaced if each >> EPOCH_BITS in numbers)
        return RunCheckpoint(positions, commits.handles, not is_reported, epoch, before, by_output, still)

    def _epoch_of(self, checkpoint_id: int) -> int:
        """As it was staged, or a new one."""
        staged, epoch = self._staged
        if staged == checkpoint_id and epoch > self._state.epoch:
            return epoch
        return max((checkpoint_id << EPOCH_BITS) + self._draw() % (1 << EPOCH_BITS - 1), self._state.epoch + 1)

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
    def _recorded_last(self) -> list[RunOutput]:
        epoch = self._state.epoch
        return [output for output in self._state.outputs if epoch and self._state.epochs(output).last == epoch]

    def end(self, handle: WorkerHandle[Any]) -> Outcome:
        return self.end_all([handle])[0]

    def end_all(self, handles: Sequence[WorkerHandle[Any]]) -> Sequence[Outcome]:
        """Several at once where the sink does so, one output after the other."""
        ended = {
            output.name: iter(output.strategy.end_all(own))
            for output in self._state.outputs
            if (own := self._state.own(output, handles))
        }
        return [next(ended[self._state.sinks.output_of(listed.handle)]) for listed in handles]

    def copy(self, handles: Sequence[WorkerHandle[Any]]) -> WorkerHandle[Any]:
        return self.copy_all(handles)[0]

    def copy_all(self, handles: Sequence[WorkerHandle[Any]]) -> Sequence[WorkerHandle[Any]]:
        state = self._state
        return [
            WorkerHandle(self._number, state.sinks.tagged(output.name, output.strategy.copy([each.handle for each in own])))
            for output in state.outputs
            if (own := state.own(output, handles))
        ]

    def clean_up(self, keep: Collection[WorkerHandle[Any]]) -> None:
        """Abort what dead workers have left. Those that live write on: what they have open is the next checkpoint's."""
        now_s, first, done = self._clock(), [], []
        for number, due_s in list(self._due_s.items()):
            if due_s is not None and now_s < due_s[0]:
                continue
            kept = [listed for listed in keep if listed.number == number]
            for output in self._state.outputs:
                output.strategy.clean_up(number, [listed.handle for listed in self._state.own(output, kept)])
            if due_s is None:
                first.append(number)
            left_s = tuple(at_s for at_s in due_s or _later(now_s) if at_s > now_s)
            if left_s or kept:
                self._due_s[number] = left_s or (now_s,)
            else:
                done.append(number)
        if first:
            self._state.store.note_cleaned_up(first, now_s)
        if done:
            self._state.store.remove_workers(done)
            for number in done:
                del self._due_s[number]
                for output in self._state.outputs:
                    output.strategy.release(number)

    def forget(self) -> None:
        """The run is over, and what it has written is committed: remove its checkpoints, then what sinks have recorded of it.

        In this order: a checkpoint without its record would be refused. What cannot be removed from a sink stays there, with
        a warning: no other run has its name.
        """
        self._state.store.remove()
        for output in self._state.outputs:
            try:
                output.driver.forget()
            except HeadraceError as error:
                log.warning("what %s has recorded of %s stays there: %s", output.of, output.run, error)

    def close(self) -> None:
        for output in self._state.outputs:
            output.strategy.close()
            output.driver.close()


def _later(first_s: float) -> tuple[float, ...]:
    return tuple(first_s + later_s for later_s in CLEAN_UP_AGAIN_S)
