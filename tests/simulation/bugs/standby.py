"""Bugs of standbys and of the checkpoint's lock, for the search to find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from headrace.runners.spark.supervision import lock as locks
from headrace.runners.spark.supervision.core import SupervisionPhase
from headrace.runners.spark.supervision.lock import KillProcessTree, LooksAlive, ReadLast, WriteLast
from headrace.runners.spark.supervision.standby import StandbyCore
from tests.simulation.standby import ProcessTree, Simulation

_TAKING, _ANSWER = locks.taking, Simulation.answer


def _answered(answer: Callable[[Any], Any | None]) -> Callable[[str], Iterator[Any]]:
    """The steps of the lock, of which some are not taken: those that are answered here."""

    def taking(me: str) -> Iterator[Any]:
        steps = _TAKING(me)
        step: Any = next(steps)
        while True:
            answered = answer(step)
            try:
                step = steps.send((yield step) if answered is None else answered[0])
            except StopIteration:
                return

    return taking


@contextmanager
def a_free_lock_is_taken_beside_a_living_jvm() -> Iterator[None]:
    with patch.object(locks, "taking", _answered(lambda step: (None,) if isinstance(step, ReadLast) else None)):
        yield


@contextmanager
def who_has_the_lock_is_not_written_down() -> Iterator[None]:
    with patch.object(locks, "taking", _answered(lambda step: (None,) if isinstance(step, WriteLast) else None)):
        yield


@contextmanager
def nobody_kills_who_had_the_lock() -> Iterator[None]:
    with patch.object(locks, "taking", _answered(lambda step: (None,) if isinstance(step, KillProcessTree) else None)):
        yield


@contextmanager
def dead_supervisors_keep_their_lock() -> Iterator[None]:
    """Their drivers may be stopped, and would end by themselves otherwise."""
    with patch.object(locks, "taking", _answered(lambda step: (True,) if isinstance(step, LooksAlive) else None)):
        yield


@contextmanager
def the_lock_is_let_go() -> Iterator[None]:
    def let_go(self: Simulation, tree: ProcessTree, step: Any) -> Any:
        answer = _ANSWER(self, tree, step)
        if isinstance(step, WriteLast):
            self.flock = None
        return answer

    with patch.object(Simulation, "answer", let_go):
        yield


def calls_at_once(self: Any, number: int, now_s: float) -> Any:
    """In place of `StandbyCore._silenced`: another driver is called at once, and the silent one killed by the next look."""
    if number != self.called:
        return self._dismiss(number)
    self.called = None
    self.job.phase, self.job.wake_at_s = SupervisionPhase.RUNNING, None
    return self._call()


@contextmanager
def a_dry_run_is_on_the_checkpoint() -> Iterator[None]:
    with patch.object(Simulation, "dry_run", Simulation.begin):
        yield


@contextmanager
def silence_is_not_heard() -> Iterator[None]:
    with patch.object(StandbyCore, "_silenced", lambda self, number, now_s: []):
        yield


@contextmanager
def standbys_are_not_replaced() -> Iterator[None]:
    top_up = StandbyCore._top_up

    def once(self: Any, now_s: float) -> Any:
        return top_up(self, now_s) if self.drivers_started <= self._limits.standbys else []

    with patch.object(StandbyCore, "_top_up", once):
        yield


@contextmanager
def standbys_outlive_the_job() -> Iterator[None]:
    with patch.object(StandbyCore, "_dismiss_standbys", lambda self: []):
        yield


INJECTED: tuple[Callable[[], AbstractContextManager[None]], ...] = (
    a_free_lock_is_taken_beside_a_living_jvm,
    who_has_the_lock_is_not_written_down,
    nobody_kills_who_had_the_lock,
    dead_supervisors_keep_their_lock,
    the_lock_is_let_go,
    a_dry_run_is_on_the_checkpoint,
    silence_is_not_heard,
    standbys_are_not_replaced,
    standbys_outlive_the_job,
)
"""Each breaks a promise in some history."""
