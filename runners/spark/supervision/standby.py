"""The drivers of a supervised job: the one that runs it, and standbys that wait to. No process, no clock.

Every driver starts as a standby does: it starts its session and dry-runs the job, until it is *called*. Called when it
waits, it takes over at once; called before it is warm, it is a cold start. At most one is called at a time: the next one after
the last process of the previous one is dead. When a job needs a driver, `SupervisionCore` (core.py) decides;
which one it gets, and when standbys are started and replaced, is decided here.

A driver states that it is alive at least twice in each look (`StandbyLimits.silence_s / LOOKS`). Silence is counted in looks,
not in seconds: a supervisor, or a machine, that was stopped itself has looked once, however long that was.

Times are seconds of one monotonic clock, handed in with each event.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import assert_never

from headrace.enumerator.errors import UsageError
from headrace.enumerator.transitions import Transitions, allowed_after
from headrace.runners.restarts import ExponentialDelay, Restart, Restarts, RestartStrategy
from headrace.runners.spark.supervision import core

LOOKS = 4  # this many looks in a row that hear nothing of a driver make it silent
FIRST_LOOKS = 15 * LOOKS  # this many before it has said anything: Python has to start, and import Spark


@dataclass(frozen=True, slots=True)
class StandbyLimits:
    """How many standbys a job has, and how long a driver may say nothing. Raises UsageError for what makes no sense.

    `silence_s`: a driver that is stopped or hangs as a whole, or whose JVM does, is killed after these seconds; None: never.
    `settle_s`: standbys are started so long after the first batch of a driver that was called, as it has to catch up; `idle_s`:
    or so long after it started, when it is seen with nothing to read.
    """

    standbys: int = 0
    silence_s: float | None = 30.0
    settle_s: float = 5.0
    idle_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.standbys <= 2:
            raise UsageError(f"a job has 0 to 2 standbys, not {self.standbys}")
        if self.silence_s is not None and not 4.0 <= self.silence_s < math.inf:
            raise UsageError(f"a driver may say nothing for at least 4 s, or for ever, not {self.silence_s}")


# --- one driver -------------------------------------------------------------------------------------------------------


class DriverPhase(Enum):
    """What a driver does now."""

    WARMING = auto()
    ARMED = auto()
    TAKING_OVER = auto()
    ACTIVE = auto()
    DYING = auto()
    DEAD = auto()


@dataclass(frozen=True, slots=True)
class Warmed:
    """It waits to be called."""


@dataclass(frozen=True, slots=True)
class Called:
    """It is to run the job."""


@dataclass(frozen=True, slots=True)
class Began:
    """Its queries run."""


@dataclass(frozen=True, slots=True)
class Heard:
    """It has said something."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A check has come, and nothing was heard since the last."""


@dataclass(frozen=True, slots=True)
class Dismissed:
    """It is to be killed."""


@dataclass(frozen=True, slots=True)
class Died:
    """The last of its processes is dead."""


LifetimeEvent = Warmed | Called | Began | Heard | Missed | Dismissed | Died


class DriverLifetime:
    """One driver. `is_silent`: more looks in a row have heard nothing of it than may be. Not thread-safe."""

    def __init__(self) -> None:
        self.phase: DriverPhase = DriverPhase.WARMING
        self._missed = 0
        self._may_miss = FIRST_LOOKS

    @property
    def is_silent(self) -> bool:
        return self._missed > self._may_miss

    def handle(self, event: LifetimeEvent) -> None:
        """Take one event. Raises ProtocolViolationError for one that DRIVER_TRANSITIONS does not allow now."""
        following = allowed_after(DRIVER_TRANSITIONS, self.phase, event, "the driver")
        self._apply(event)
        assert self.phase in following, f"{event} has led to {self.phase.name}, which is not in the table"

    def _apply(self, event: LifetimeEvent) -> None:
        match event:
            case Warmed():
                self.phase = DriverPhase.ARMED if self.phase is DriverPhase.WARMING else self.phase
            case Called():
                self.phase = DriverPhase.TAKING_OVER
            case Began():
                self.phase = DriverPhase.ACTIVE if self.phase is DriverPhase.TAKING_OVER else self.phase
            case Heard():
                self._missed, self._may_miss = 0, LOOKS
            case Missed():
                self._missed += 1
            case Dismissed():
                self.phase = DriverPhase.DYING
            case Died():
                self.phase = DriverPhase.DEAD
            case _:
                assert_never(event)


_P = DriverPhase
_ALIVE = (_P.WARMING, _P.ARMED, _P.TAKING_OVER, _P.ACTIVE)

DRIVER_TRANSITIONS: Transitions[DriverPhase] = MappingProxyType(
    {
        **{(phase, event): (phase,) for phase in _ALIVE for event in (Heard, Missed)},
        **{(phase, Dismissed): (_P.DYING,) for phase in (*_ALIVE, _P.DYING)},
        **{(phase, Died): (_P.DEAD,) for phase in (*_ALIVE, _P.DYING)},
        **{(_P.DYING, event): (_P.DYING,) for event in (Heard, Missed, Warmed, Began)},
        (_P.WARMING, Warmed): (_P.ARMED,),
        (_P.WARMING, Called): (_P.TAKING_OVER,),
        (_P.ARMED, Called): (_P.TAKING_OVER,),
        (_P.TAKING_OVER, Warmed): (_P.TAKING_OVER,),
        (_P.TAKING_OVER, Began): (_P.ACTIVE,),
    }
)
"""What is legal. No arrow leads from ACTIVE or DYING back to a standby, and to ACTIVE only that of a driver that was called."""

# --- all of them ------------------------------------------------------------------------------------------------------


class DriverReport(Enum):
    """`PROGRESSED`: each query has ended a batch, or was seen with nothing to do; `BATCHES`: and some batch has ended."""

    ALIVE = auto()
    ARMED = auto()
    BEGAN = auto()
    PROGRESSED = auto()
    BATCHES = auto()


@dataclass(frozen=True, slots=True)
class DriverReported:
    """A driver has said something."""

    number: int
    now_s: float
    report: DriverReport


@dataclass(frozen=True, slots=True)
class DriverDied:
    """The last process of a driver is dead. `chance`: of [0, 1), for jitter."""

    number: int
    now_s: float
    end: core.DriverEnd
    chance: float


class WarmUp(core.Timed):
    """Before `SupervisionStarted`, which may come at any time or never: keep one driver warm."""


StandbyEvent = WarmUp | core.SupervisionStarted | core.JobStopRequested | core.TimePassed | DriverReported | DriverDied


@dataclass(frozen=True, slots=True)
class DriverCommand:
    """To the driver of this number."""

    number: int


class Launch(DriverCommand):
    """Start it. Numbers are from 1. It dry-runs the job until it is called."""


class CallDriver(DriverCommand):
    """Have it run the job. No process of the one that was called before is alive."""


class Stop(DriverCommand):
    """Have it end after the batch under way."""


class Kill(DriverCommand):
    """Kill all its processes."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over. No driver is alive."""

    end: core.DriverEnd


StandbyCommand = Launch | CallDriver | Stop | Kill | Finish


class StandbyCore:
    """All drivers of one job. Not thread-safe. `wake_at_s`: when to send TimePassed, as of the last event; None for never.

    `drivers`: those that live, by number, the oldest first; `called`: the number of the one that runs the job, or is to.
    `takeovers`: how often one that waited was called, and has started.
    """

    def __init__(self, strategy: RestartStrategy, job: core.SupervisionLimits, standby: StandbyLimits) -> None:
        """The strategy is the job's; standbys are replaced after growing delays, any number of times."""
        self.job: core.SupervisionCore = core.SupervisionCore(strategy, job)
        self.drivers: dict[int, DriverLifetime] = {}
        self.called: int | None = None
        self.wake_at_s: float | None = None
        self.drivers_started: int = 0
        self.takeovers: int = 0
        self.standby_failure: str | None = None
        self._limits = standby
        self._replacements = Restarts(ExponentialDelay())
        self._replace_at_s: float | None = None
        self._look_at_s: float | None = None
        self._end: core.DriverEnd | None = None
        self._is_ending = False
        self._is_warming_up = False
        self._has_settled = False
        self._has_waited = False  # the one that is called, before it was
        self._began_at_s: float | None = None

    @property
    def standbys(self) -> Mapping[int, DriverLifetime]:
        return {number: driver for number, driver in self.drivers.items() if number != self.called}

    def handle(self, event: StandbyEvent) -> list[StandbyCommand]:
        """Take one event, return what is to be done, in this order. What a driver reports that is dead is skipped."""
        commands = self._apply(event)
        if self._end is None and not self._is_ending:
            commands += self._top_up(event.now_s)
        self._set_times(event.now_s)
        return commands

    def _apply(self, event: StandbyEvent) -> list[StandbyCommand]:
        match event:
            case WarmUp():
                self._is_warming_up = True
                return []  # it is topped up
            case core.SupervisionStarted():
                self._is_warming_up = False
                return self._tell(event)
            case core.JobStopRequested():
                self._is_ending = True
                if self._end is not None:
                    return []  # it is over, and the last standbys die
                return [*self._dismiss_standbys(), *self._tell(event)]
            case core.TimePassed(now_s):
                looked, due = self._look(now_s), self.job.wake_at_s
                return [*looked, *(self._tell(event) if due is not None and now_s >= due else [])]
            case DriverReported(number, now_s, report):
                return self._reported(number, now_s, report) if number in self.drivers else []
            case DriverDied():
                return self._died(event)
            case _:
                assert_never(event)

    def _reported(self, number: int, now_s: float, report: DriverReport) -> list[StandbyCommand]:
        driver = self.drivers[number]
        driver.handle(Heard())
        match report:
            case DriverReport.ALIVE:
                return []
            case DriverReport.ARMED:
                driver.handle(Warmed())
                return self._hand_over(now_s)
            case DriverReport.BEGAN:
                driver.handle(Began())
                if number == self.called:
                    self._began_at_s = now_s
                    self.takeovers += self._has_waited
                    self._has_waited = False
            case DriverReport.BATCHES if number == self.called and not self._has_settled:
                self._has_settled = True
                self._replace_at_s = now_s + self._limits.settle_s
            case DriverReport.PROGRESSED if number == self.called and self._is_idle(now_s):
                self._has_settled = True
            case DriverReport.PROGRESSED | DriverReport.BATCHES:
                pass
            case _:
                assert_never(report)
        return self._tell(core.DriverProgressed(now_s)) if number == self.called else []

    def _is_idle(self, now_s: float) -> bool:
        """Whether a driver that is seen with nothing to read has run the job for so long that this may be believed."""
        return self._began_at_s is not None and now_s - self._began_at_s >= self._limits.idle_s

    def _died(self, event: DriverDied) -> list[StandbyCommand]:
        self.drivers.pop(event.number).handle(Died())
        if event.number == self.called:
            self.called, self._has_settled, self._began_at_s = None, False, None
            ended = self._tell(core.DriverEnded(event.now_s, event.end, event.chance))
            return [*ended, *self._hand_over(event.now_s)]
        if self._end is not None:
            return self._finish_if_alone()
        self.standby_failure = event.end.reason
        decision = self._replacements.failed(event.now_s, event.chance)
        assert isinstance(decision, Restart), "standbys are replaced any number of times"
        self._replace_at_s = event.now_s + decision.delay_s
        return []

    def _hand_over(self, now_s: float) -> list[StandbyCommand]:
        """Who waits need not wait for the delay of a restart: it costs nothing that a delay would save."""
        if self.job.phase is not core.SupervisionPhase.RESTARTING or not self._of(DriverPhase.ARMED):
            return []
        return self._tell(core.StandbyReady(now_s))

    def _look(self, now_s: float) -> list[StandbyCommand]:
        if self._look_at_s is None or now_s < self._look_at_s:
            return []
        self._look_at_s = None
        commands: list[StandbyCommand] = []
        for number, driver in list(self.drivers.items()):
            driver.handle(Missed())
            if driver.is_silent and driver.phase is not DriverPhase.DYING:
                commands += self._silenced(number, now_s)
        return commands

    def _silenced(self, number: int, now_s: float) -> list[StandbyCommand]:
        reason = f"the driver has said nothing for {self._limits.silence_s:g} s"
        return self._tell(core.DriverSilent(now_s, reason)) if number == self.called else self._dismiss(number)

    # --- the job's commands -------------------------------------------------------------------------------------------

    def _tell(self, event: core.SupervisionEvent) -> list[StandbyCommand]:
        return [done for command in self.job.handle(event) for done in self._carried_out(command)]

    def _carried_out(self, command: core.SupervisionCommand) -> list[StandbyCommand]:
        match command:
            case core.StartDriver():
                return self._call()
            case core.StopDriver():
                return [] if self.called is None else [Stop(self.called)]
            case core.KillDriver():
                return [] if self.called is None else self._dismiss(self.called)
            case core.FinishJob(end):
                self._end = end
                return [*self._dismiss_standbys(), *self._finish_if_alone()]
            case _:
                assert_never(command)

    def _call(self) -> list[StandbyCommand]:
        assert self.called is None, "a driver is called while another one is"
        armed = self._of(DriverPhase.ARMED)
        self._has_waited = bool(armed)
        found = armed or self._of(DriverPhase.WARMING)
        launched = [] if found else [self._launch()]
        self.called = found[0] if found else self.drivers_started
        self.drivers[self.called].handle(Called())
        return [*launched, CallDriver(self.called)]

    def _launch(self) -> Launch:
        self.drivers_started += 1
        self.drivers[self.drivers_started] = DriverLifetime()
        return Launch(self.drivers_started)

    def _top_up(self, now_s: float) -> list[StandbyCommand]:
        """Standbys are started once the job has got on for a while: before, they would only slow it down."""
        if not (self._has_settled or self._is_warming_up):
            return []
        if self._replace_at_s is not None and now_s < self._replace_at_s:
            return []
        self._replace_at_s = None
        wanted = 1 if self._is_warming_up else self._limits.standbys
        return [self._launch() for _ in range(wanted - len(self.standbys))]

    def _dismiss_standbys(self) -> list[StandbyCommand]:
        return [command for number in self.standbys for command in self._dismiss(number)]

    def _dismiss(self, number: int) -> list[StandbyCommand]:
        self.drivers[number].handle(Dismissed())
        return [Kill(number)]

    def _finish_if_alone(self) -> list[StandbyCommand]:
        return [] if self._end is None or self.drivers else [Finish(self._end)]

    def _of(self, phase: DriverPhase) -> list[int]:
        return [number for number, driver in self.drivers.items() if driver.phase is phase]

    def _set_times(self, now_s: float) -> None:
        if self._look_at_s is None and self.drivers and self._limits.silence_s is not None:
            self._look_at_s = now_s + self._limits.silence_s / LOOKS
        is_replaced = self.called is not None or self._is_warming_up
        replace_at_s = self._replace_at_s if is_replaced and not self._is_ending else None
        looked_at = self._look_at_s if self.drivers else None
        due = [at for at in (self.job.wake_at_s, looked_at, replace_at_s) if at is not None]
        self.wake_at_s = min(due, default=None)
