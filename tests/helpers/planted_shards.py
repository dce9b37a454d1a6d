"""Shards with one bug each, for the checker to find."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from headrace.connectors.commit import Copy, End, Sweep
from headrace.connectors.sink import Outcome
from headrace.runners.beam.shard import Shard, ShardState, Write
from tests.helpers.planted_publications import Trusting


def _played(steps: Generator[Any, Any, Any], change: Any) -> Generator[Any, Any, Any]:
    """The call, with commands answered by `change` itself where it gives an answer for one, wrapped in a tuple."""
    answer = None
    while True:
        try:
            command = steps.send(answer)
        except StopIteration as ended:
            return ended.value
        own = change(command)
        answer = own[0] if isinstance(own, tuple) else (yield own)


class NeverSweeps(Shard[Any]):
    """Leaves what nobody names."""

    def call(self, state, now_s, *, has_rows):
        steps = super().call(state, now_s, has_rows=has_rows)
        return (yield from _played(steps, lambda command: (None,) if isinstance(command, Sweep) else command))


class SweepsOnce(Shard[Any]):
    """After a restore only: what a dead attempt's worker begins afterwards stays open."""

    def call(self, state, now_s, *, has_rows):
        return (yield from super().call(state, 0.0, has_rows=has_rows))


class SweepsAll(Shard[Any]):
    """Aborts what its state names, too."""

    def call(self, state, now_s, *, has_rows):
        steps = super().call(state, now_s, has_rows=has_rows)
        return (yield from _played(steps, lambda command: Sweep(()) if isinstance(command, Sweep) else command))


class TakesAbortedForCommitted(Shard[Any]):
    """Never copies."""

    def call(self, state, now_s, *, has_rows):
        steps = super().call(state, now_s, has_rows=has_rows)
        answer = None
        while True:
            try:
                command = steps.send(answer)
            except StopIteration as ended:
                return ended.value
            answer = yield command
            if isinstance(command, End):
                answer = Outcome.COMMITTED


class ForgetsBeforeTheCommit(Shard[Any]):
    """Drops handles from its state that it was to commit."""

    def call(self, state, now_s, *, has_rows):
        steps = super().call(state, now_s, has_rows=has_rows)
        return (yield from _played(steps, lambda command: (Outcome.COMMITTED,) if isinstance(command, End) else command))


class HasOneSlot(Shard[Any]):
    """Every transaction has the name of the one before, aborts it, and has to copy it."""

    def call(self, state, now_s, *, has_rows):
        steps = super().call(state, now_s, has_rows=has_rows)
        return (yield from _played(steps, lambda command: Write(0) if isinstance(command, Write) else command))


class CopiesWhatIsNotAborted(Shard[Any]):
    """Takes what it does not commit yet for aborted."""

    def _commit(self, state: ShardState[Any], durable: int) -> Generator[Any, Any, ShardState[Any]]:
        if len(state.entries) > 2:
            copy = yield Copy(state.handles)
            return state.without(state.entries).adding(copy, copied=True)
        return (yield from super()._commit(state, durable))


class TrustsFinalisation(Shard[Any]):
    """Takes the finalisation of a bundle for a checkpoint that covers it, as Beam's documentation has it."""

    def call(self, state, now_s, *, has_rows):
        result = yield from super().call(state, now_s, has_rows=has_rows)
        self._life.publication.__class__ = Trusting
        return result


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
