"""Shards with one bug each, for the checker to find."""

from typing import Any

from headrace.connectors.base.commit import CleanedUp, CleanUp, Copy, End, Ended
from headrace.connectors.base.sink import Outcome
from headrace.runners.beam.shard import Shard, ShardCall, ShardPhase, Write
from tests.simulation.bugs.publications import Trusting


class InjectedCall(ShardCall[Any]):
    """A call with a bug: in what it is given, in what it commands, or in a step."""

    def handle(self, event: Any) -> list[Any]:
        commands = super().handle(self.settings(event))
        return [injected for command in commands for injected in self.commanded(command)]

    def settings(self, event: Any) -> Any:
        return event

    def commanded(self, command: Any) -> list[Any]:
        return [command]


class InjectedShard(Shard[Any]):
    call_type: type[InjectedCall]

    def call(self, state, now_s, *, has_rows):
        return self.call_type(self, state, now_s, has_rows=has_rows)


def _in_calls(call_type: type[InjectedCall]) -> Any:
    return type(call_type.__name__, (InjectedShard,), {"call_type": call_type, "__doc__": call_type.__doc__})


@_in_calls
class NeverCleansUp(InjectedCall):
    """Leaves what no process names."""

    def commanded(self, command):
        return self.handle(CleanedUp()) if isinstance(command, CleanUp) else [command]


class CleansUpOnce(Shard[Any]):
    """After a restore only: what a dead attempt's worker starts afterwards stays open."""

    def call(self, state, now_s, *, has_rows):
        return super().call(state, 0.0, has_rows=has_rows)


@_in_calls
class CleansUpAll(InjectedCall):
    """Aborts what its state names, too."""

    def commanded(self, command):
        return [CleanUp(()) if isinstance(command, CleanUp) else command]


@_in_calls
class TakesAbortedForCommitted(InjectedCall):
    """Never copies."""

    def settings(self, event):
        return Ended(event.handle, Outcome.COMMITTED) if isinstance(event, Ended) else event


@_in_calls
class ForgetsBeforeTheCommit(InjectedCall):
    """Drops handles from its state that it was to commit."""

    def commanded(self, command):
        return self.handle(Ended(command.handle, Outcome.COMMITTED)) if isinstance(command, End) else [command]


@_in_calls
class HasOneSlot(InjectedCall):
    """Every transaction has the name of the previous one, aborts it, and has to copy it."""

    def commanded(self, command):
        return [Write(0) if isinstance(command, Write) else command]


@_in_calls
class CopiesWhatIsNotAborted(InjectedCall):
    """Takes what it does not commit yet for aborted."""

    def handle(self, event):
        return self._apply(event)  # the table does not lead there, and it is the checker that is to see it

    def _end(self):
        if len(self._state.entries) <= 2:
            return super()._end()
        self.phase, self._aborted = ShardPhase.COPYING, list(self._state.entries)
        return [Copy(self._state.handles)]


@_in_calls
class TrustsFinalisation(InjectedCall):
    """Takes the finalisation of a bundle for a checkpoint that covers it, as Beam's documentation has it."""

    def _return(self):
        commands = super()._return()
        self.lifetime.publication.__class__ = Trusting
        return commands


INJECTED = (
    NeverCleansUp, CleansUpOnce, CleansUpAll, TakesAbortedForCommitted, ForgetsBeforeTheCommit, HasOneSlot,
    CopiesWhatIsNotAborted, TrustsFinalisation,
)  # fmt: skip
