"""A coordinator takes its run over at all sinks, and completes what the previous one has recorded in part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic

from headrace.connectors.base import capabilities
from headrace.connectors.base.commit import StaleEpochError
from headrace.connectors.base.sink import CommitList, HandleT, PreparedGoneError
from headrace.enumerator import errors
from headrace.enumerator.split import SplitT
from headrace.runners.local.checkpoints import RunCheckpoint
from headrace.runners.local.commit.state import CommitState, RunOutput
from headrace.runners.local.commit.strategy import EPOCH_BITS


class RunTakeover(Generic[SplitT, HandleT]):
    """Called by the coordinator's commit thread, once."""

    def __init__(self, state: CommitState[SplitT, HandleT], check_readable: Callable[[Sequence[SplitT]], None]) -> None:
        """`check_readable`: the source's, asked before the run goes back to an earlier checkpoint."""
        self._state, self._check_readable = state, check_readable
        self._location = state.store.location

    def run(self) -> None:
        """Be the driver of all sinks. Raises as `RunCommitter.fence`."""
        # First without taking anything over: who starts with an older copy by mistake must not end the run that continues.
        # Without waiting, as a dead coordinator's write may stay open for long; what becomes of it is decided by the fence.
        for output in self._state.outputs:
            found = capabilities.recorded_now(output.sink).get(output.run)
            now = 0 if found is None else found.epoch
            if output.strategy.is_last(now, self._state.epochs(output)):
                self._refuse_stale(output, now)
        self._catch_up({output.name: self._take_over(output) for output in self._state.outputs})
        for output in self._state.outputs:
            output.strategy.taken_over(
                self._state.epochs(output), [listed.handle for listed in self._state.own(output, self._state.listed)]
            )

    def _take_over(self, output: RunOutput) -> CommitList[Any] | None:
        seen = output.driver.fence()
        self._refuse_stale(output, 0 if seen is None or seen.epoch is None else seen.epoch)
        return seen

    def _catch_up(self, seen: Mapping[str, CommitList[Any] | None]) -> None:
        """Record at the sinks what the last coordinator had only stored in the folder when it died."""
        stored = self._state.stored
        if stored is None or not stored.epoch:
            return
        epochs = {name: 0 if found is None else found.epoch for name, found in seen.items()}
        decided = [output for output in self._state.outputs if epochs[output.name] == stored.epoch]
        ended = {output.name for output in decided if (found := seen[output.name]) and output.strategy.has_ended(found)}
        for output in self._state.outputs:
            _, last = stored.reported(output.name)
            if last and epochs[output.name] != last:
                self._record_stored(output, last, decided)
                decided.append(output)
        left = tuple(listed for listed in stored.handles if self._state.sinks.output_of(listed.handle) not in ended)
        if len(left) < len(stored.handles) or (not left and not stored.completed):
            self._state.write(replace(stored, handles=left, completed=not left))

    def _record_stored(self, output: RunOutput, epoch: int, decided: Sequence[RunOutput]) -> None:
        """What is recorded by list is committed by it: so the sink may refuse it for good, as one whose files are gone.

        `decided`: the outputs that have recorded the last checkpoint.
        """
        assert self._state.stored is not None
        listed = output.strategy.listed(epoch, self._state.own(output, self._state.stored.handles))
        try:
            if listed.handles:
                output.driver.check(listed.handles)
            output.driver.record(listed)
        except (errors.RetriableError, errors.DeadlineExceededError, errors.AuthenticationError):
            raise
        except (errors.PeerError, errors.UsageError) as error:
            if not listed.handles:
                raise
            self._take_back(output, decided, error)

    def _take_back(self, output: RunOutput, decided: Sequence[RunOutput], refusal: Exception) -> None:
        """Always raises: the enumerator of this lifetime was restored from the checkpoint that is rolled back."""
        stored = self._state.stored
        assert stored is not None
        seen = self._take_over(output)  # again: nothing that was asked for before it can still come to pass
        if seen is not None and seen.epoch == stored.epoch:
            raise refusal
        if decided:
            others = " and ".join(other.of for other in decided)
            raise self._stuck(stored, refusal, f"It cannot be rolled back, as {others} has recorded it") from refusal
        checkpoint_id = stored.positions.checkpoint_id
        before = self._state.store.before(stored)
        if before is None:
            raise self._stuck(stored, refusal, "There is no earlier one to go back to") from refusal
        try:
            self._check_readable([state.split for state in before.positions.splits if not state.finished])
        except errors.DataLossError as lost:
            raise self._stuck(
                stored,
                refusal,
                f"The previous one, checkpoint {before.positions.checkpoint_id}, cannot be used, as what comes after it cannot "
                f"be read again ({lost}), so this one is kept, with the rows that it has prepared",
            ) from refusal
        self._state.store.take_back(checkpoint_id)
        raise errors.RetriableError(
            f"{self._location}: checkpoint {checkpoint_id} cannot be committed: {refusal}. Nothing of it is, and it is "
            f"rolled back: the next start continues from checkpoint {before.positions.checkpoint_id}"
        ) from refusal

    def _stuck(self, stored: RunCheckpoint[SplitT, HandleT], refusal: Exception, why: str) -> errors.HeadraceError:
        """Another try finds the checkpoint as it is, and maybe a sink that takes it; not where its rows are gone, nor where the
        caller has to change something.
        """
        kind = errors.DataLossError if isinstance(refusal, errors.UsageError | PreparedGoneError) else errors.RetriableError
        return kind(
            f"{self._location}: checkpoint {stored.positions.checkpoint_id} is stored and not committed, and cannot be "
            f"committed as it is: {refusal}. {why}: fix what the sink refuses and start again, or start over with another "
            "folder, from positions of your choice"
        )

    def _refuse_stale(self, output: RunOutput, seen: int) -> None:
        """`seen`: what the output's sink has recorded last, 0 if nothing."""
        reported = self._state.epochs(output)
        is_possible = seen == 0 if self._state.stored is None else output.strategy.is_possible(seen, reported)
        if is_possible:
            return
        last = 0 if self._state.stored is None else self._state.stored.positions.checkpoint_id
        if seen in (0, reported.before) or seen >> EPOCH_BITS < reported.last >> EPOCH_BITS:
            known = f"checkpoint {seen >> EPOCH_BITS}" if seen else "none of its checkpoints"
            raise errors.StateError(
                f"{self._location}: the last good checkpoint is {last}, and {output.of} knows {known}: it is another "
                "table, or an older state of it, or its record of this run was removed. Continuing would leave out what was "
                "committed. Name the run's table, or start over with another folder, from positions of your choice"
            )
        raise StaleEpochError(
            f"{self._location}: the last good checkpoint is {last}, and {output.of} has committed checkpoint "
            f"{seen >> EPOCH_BITS} of this run, which this folder has not: it is an older copy, or that checkpoint is "
            "damaged. Continuing would write rows twice. Start over with another folder, from positions of your choice"
        )
