"""Shards with one bug each, for the checker to find."""

from __future__ import annotations

from typing import Any

from headrace.connectors.base.commit import Copy, End, Ended, Sweep, Swept
from headrace.connectors.base.sink import Outcome
from headrace.runners.beam.shard import Shard, ShardCall, ShardPhase, Write
from tests.simulation.bugs.publications import Trusting


class PlantedCall(ShardCall[Any]):
    """A call with a bug: in what it is told, in what it commands, or in a step."""

    def handle(self, event: Any) -> list[Any]:
        commands = super().handle(self.told(event))
        return [planted for command in commands for planted in self.commanded(command)]

    def told(self, event: Any) -> Any:
        return event

    def commanded(self, command: Any) -> list[Any]:
        return [command]


class PlantedShard(Shard[Any]):
    call_type: type[PlantedCall]

    def call(self, state, now_s, *, has_rows):
        return self.call_type(self, state, now_s, has_rows=has_rows)


class NeverSweeps(PlantedShard):
    """Leaves what nobody names."""

    class call_type(PlantedCall):  # noqa: N801 - the attribute of PlantedShard
        def commanded(self, command):
            return self.handle(Swept()) if isinstance(command, Sweep) else [command]


class SweepsOnce(Shard[Any]):
    """After a restore only: what a dead attempt's worker begins afterwards stays open."""

    def call(self, state, now_s, *, has_rows):
        return super().call(state, 0.0, has_rows=has_rows)


class SweepsAll(PlantedShard):
    """Aborts what its state names, too."""

    class call_type(PlantedCall):  # noqa: N801
        def commanded(self, command):
            return [Sweep(()) if isinstance(command, Sweep) else command]


class TakesAbortedForCommitted(PlantedShard):
    """Never copies."""

    class call_type(PlantedCall):  # noqa: N801
        def told(self, event):
            return Ended(event.handle, Outcome.COMMITTED) if isinstance(event, Ended) else event


class ForgetsBeforeTheCommit(PlantedShard):
    """Drops handles from its state that it was to commit."""

    class call_type(PlantedCall):  # noqa: N801
        def commanded(self, command):
            return self.handle(Ended(command.handle, Outcome.COMMITTED)) if isinstance(command, End) else [command]


class HasOneSlot(PlantedShard):
    """Every transaction has the name of the one before, aborts it, and has to copy it."""

    class call_type(PlantedCall):  # noqa: N801
        def commanded(self, command):
            return [Write(0) if isinstance(command, Write) else command]


class CopiesWhatIsNotAborted(PlantedShard):
    """Takes what it does not commit yet for aborted."""

    class call_type(PlantedCall):  # noqa: N801
        def handle(self, event):
            return self._apply(event)  # the table does not lead there, and it is the checker that is to see it

        def _end(self):
            if len(self._state.entries) <= 2:
                return super()._end()
            self.phase, self._aborted = ShardPhase.COPYING, list(self._state.entries)
            return [Copy(self._state.handles)]


class TrustsFinalisation(PlantedShard):
    """Takes the finalisation of a bundle for a checkpoint that covers it, as Beam's documentation has it."""

    class call_type(PlantedCall):  # noqa: N801
        def _return(self):
            commands = super()._return()
            self._life.publication.__class__ = Trusting
            return commands


PLANTED = (
    NeverSweeps,
    SweepsOnce,
    SweepsAll,
    TakesAbortedForCommitted,
    ForgetsBeforeTheCommit,
    HasOneSlot,
    CopiesWhatIsNotAborted,
    TrustsFinalisation,
)
