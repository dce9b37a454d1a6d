"""Bugs of standbys and of the checkpoint's lock, for the search to find."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from headrace.runners.spark.supervision import lock as locks
from headrace.runners.spark.supervision.core import SupervisionPhase
from headrace.runners.spark.supervision.lock import KillProcessTree, LooksAlive, ReadLast, WriteLast
from headrace.runners.spark.supervision.standby import StandbyCore
from tests.simulation.bugs.injecting import bug, bugs_of, by_name, instead_of
from tests.simulation.standby import Simulation


def _answered(taking: Callable[[str], Iterator[Any]], me: str, kind: type, answer: Any) -> Iterator[Any]:
    """The steps of the lock, of which those of this kind are not taken, and answered so."""
    steps = taking(me)
    step: Any = next(steps)
    while True:
        try:
            step = steps.send(answer if isinstance(step, kind) else (yield step))
        except StopIteration:
            return


@instead_of(Simulation, "answer")
def the_lock_is_let_go(answer: Any, self: Any, tree: Any, step: Any) -> Any:
    answered = answer(self, tree, step)
    if isinstance(step, WriteLast):
        self.flock = None
    return answered


def calls_at_once(self: Any, number: int, now_s: float) -> Any:
    """In place of `StandbyCore._silenced`: another driver is called at once, and the silent one killed by the next look."""
    if number != self.called:
        return self._dismiss(number)
    self.called = None
    self.job.phase, self.job.wake_at_s = SupervisionPhase.RUNNING, None
    return self._call()


@bug
def a_dry_run_is_on_the_checkpoint() -> Iterator[None]:
    with patch.object(Simulation, "dry_run", Simulation.begin):
        yield


@instead_of(StandbyCore, "_top_up")
def standbys_are_not_replaced(top_up: Any, self: Any, now_s: float) -> Any:
    return top_up(self, now_s) if self.drivers_started <= self._limits.standbys else []


INJECTED = bugs_of(globals()) + by_name(
    a_free_lock_is_taken_beside_a_living_jvm=(locks, "taking", lambda taking, me: _answered(taking, me, ReadLast, None)),
    who_has_the_lock_is_not_written_down=(locks, "taking", lambda taking, me: _answered(taking, me, WriteLast, None)),
    nobody_kills_who_had_the_lock=(locks, "taking", lambda taking, me: _answered(taking, me, KillProcessTree, None)),
    # Their drivers may be stopped, and would end by themselves otherwise.
    dead_supervisors_keep_their_lock=(locks, "taking", lambda taking, me: _answered(taking, me, LooksAlive, True)),
    silence_is_not_heard=(StandbyCore, "_silenced", lambda *_: []),
    standbys_outlive_the_job=(StandbyCore, "_dismiss_standbys", lambda *_: []),
)
"""Each breaks a promise in some history."""
