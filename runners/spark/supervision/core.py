"""The lifetime of a supervised job: when its driver is started, asked to end, killed, and started again. No process, no clock.

A *driver* is one attempt at the job, with all the processes that it has started. There is never more than one: the next is
started after the last process of the previous one is dead. What a failure leads to is decided twice: its `Ending` says whether
another try can help at all, and the restart strategy (`restarts.py`) when it comes.

Times are seconds of one monotonic clock, handed in with each event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto, unique
from types import MappingProxyType
from typing import assert_never

from headrace.enumerator.errors import AuthenticationError, UnclassifiedError, UsageError
from headrace.enumerator.transitions import Transitions, allowed_after
from headrace.runners.restarts import GiveUp, Restarts, RestartStrategy


@unique
class Ending(Enum):
    """How a driver, or the job, has ended, with the supervisor's exit status. Only 0 means that nothing is left to do."""

    COMPLETED = 0
    STOPPED = 143
    FAILED = 1
    WRONG_USE = 2
    DATA_LOSS = 65
    BAD_CHECKPOINT = 66
    FENCED = 67

    @property
    def is_final(self) -> bool:
        """Whether another try would end in the same way, or do harm."""
        return self is not Ending.FAILED


EXIT_STATUSES: Mapping[Ending, int] = MappingProxyType({ending: ending.value for ending in Ending})


@dataclass(frozen=True, slots=True)
class DriverEnd:
    """How a driver has ended, and why, in one line that starts with the error's class."""

    ending: Ending
    reason: str

    @property
    def is_unclassified(self) -> bool:
        """Whether another try may never help: an error that no table has, a right that was not granted."""
        return self.reason.startswith(tuple(f"{kind.__name__}: " for kind in (UnclassifiedError, AuthenticationError)))


@dataclass(frozen=True, slots=True)
class SupervisionLimits:
    """Raises UsageError for a time that makes no sense.

    `progress_s`: a driver is killed, and counts as failed, when for this many seconds none of its batches has ended while it
    was running. None: it may take any time. `stop_s`: how long the batch under way may take once the job is to stop.
    """

    progress_s: float | None = None
    stop_s: float = 60.0

    def __post_init__(self) -> None:
        if self.progress_s is not None and not self.progress_s > 0:
            raise UsageError(f"the time without progress must be more than 0 s, not {self.progress_s}")
        if not self.stop_s >= 0:
            raise UsageError(f"the time for the batch under way must be at least 0 s, not {self.stop_s}")


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timed:
    """An event, at `now_s`."""

    now_s: float


class SupervisionStarted(Timed):
    """The supervisor starts."""


class DriverProgressed(Timed):
    """A batch of the driver has ended, or it has nothing to do."""


@dataclass(frozen=True, slots=True)
class DriverEnded(Timed):
    """The last process of the driver is dead. `chance`: of [0, 1), for jitter."""

    end: DriverEnd
    chance: float


class JobStopRequested(Timed):
    """End the job after the batch under way; the second time at once."""


class TimePassed(Timed):
    """The time that was asked for has come, or another."""


@dataclass(frozen=True, slots=True)
class DriverSilent(Timed):
    """The driver has not been heard for too long, though it has to say that it is alive. `reason`: in one line."""

    reason: str


class StandbyReady(Timed):
    """A standby waits for the job: no delay is needed."""


SupervisionEvent = (
    SupervisionStarted | DriverProgressed | DriverEnded | JobStopRequested | TimePassed | DriverSilent | StandbyReady
)

# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartDriver:
    """Start a driver. `number`: 1 for the first of the job."""

    number: int


@dataclass(frozen=True, slots=True)
class StopDriver:
    """Have it end after the batch under way."""


@dataclass(frozen=True, slots=True)
class KillDriver:
    """Kill all its processes."""


@dataclass(frozen=True, slots=True)
class FinishJob:
    """The job is over. No driver is alive."""

    end: DriverEnd


SupervisionCommand = StartDriver | StopDriver | KillDriver | FinishJob


class SupervisionPhase(Enum):
    """What the job does now."""

    CREATED = auto()
    RUNNING = auto()
    RESTARTING = auto()
    STOPPING = auto()
    KILLING = auto()
    OVER = auto()


class SupervisionCore:
    """One job. Not thread-safe. `wake_at_s`: when to send TimePassed, as of the last event; None when nothing is awaited."""

    def __init__(self, strategy: RestartStrategy, limits: SupervisionLimits) -> None:
        self.phase: SupervisionPhase = SupervisionPhase.CREATED
        self.wake_at_s: float | None = None
        self.drivers_started: int = 0
        self.last_failure: str | None = None
        self._restarts = Restarts(strategy)
        self._limits = limits
        self._is_to_stop = False
        self._killed_for: str | None = None

    def handle(self, event: SupervisionEvent) -> list[SupervisionCommand]:
        """Take one event, give what is to be done, in order. Raises ProtocolViolationError where the transitions forbid it."""
        following = allowed_after(SUPERVISION_TRANSITIONS, self.phase, event, "the supervised job")
        commands = self._apply(event)
        assert self.phase in following, f"{event} has led to {self.phase.name}, which is not in the table"
        return commands

    def _apply(self, event: SupervisionEvent) -> list[SupervisionCommand]:
        match event:
            case SupervisionStarted(now_s) | StandbyReady(now_s):
                return self._start(now_s)
            case DriverProgressed(now_s):
                self._progressed(now_s)
                return []
            case DriverEnded(now_s, end, chance):
                return self._ended(now_s, end, chance)
            case JobStopRequested(now_s):
                return self._stop(now_s)
            case TimePassed(now_s):
                return self._time_passed(now_s)
            case DriverSilent(reason=reason):
                return [] if self.phase is SupervisionPhase.KILLING else self._kill(reason)
            case _:
                assert_never(event)

    def _start(self, now_s: float) -> list[SupervisionCommand]:
        self.phase = SupervisionPhase.RUNNING
        self.drivers_started += 1
        self._killed_for = None
        self._progressed(now_s)
        return [StartDriver(self.drivers_started)]

    def _progressed(self, now_s: float) -> None:
        if self.phase is SupervisionPhase.RUNNING:
            self.wake_at_s = None if self._limits.progress_s is None else now_s + self._limits.progress_s

    def _stop(self, now_s: float) -> list[SupervisionCommand]:
        is_first, self._is_to_stop = not self._is_to_stop, True
        if self.phase is SupervisionPhase.RESTARTING:
            return self._finish(DriverEnd(Ending.STOPPED, "it was stopped while it waited for its restart"))
        if self.phase is SupervisionPhase.KILLING:
            return []
        if not is_first:
            return self._kill("it was asked twice to stop")
        self.phase = SupervisionPhase.STOPPING
        self.wake_at_s = now_s + self._limits.stop_s
        return [StopDriver()]

    def _time_passed(self, now_s: float) -> list[SupervisionCommand]:
        if self.wake_at_s is None or now_s < self.wake_at_s:
            return []
        if self.phase is SupervisionPhase.RESTARTING:
            return self._start(now_s)
        if self.phase is SupervisionPhase.STOPPING:
            return self._kill(f"the batch under way did not end within {self._limits.stop_s:g} s of the stop")
        return self._kill(f"no batch has ended for {self._limits.progress_s:g} s")

    def _kill(self, reason: str) -> list[SupervisionCommand]:
        self.phase = SupervisionPhase.KILLING
        self.wake_at_s = None
        self._killed_for = reason
        return [KillDriver()]

    def _ended(self, now_s: float, end: DriverEnd, chance: float) -> list[SupervisionCommand]:
        if end.ending is Ending.STOPPED and not self._is_to_stop:
            end = DriverEnd(Ending.FAILED, "its driver was stopped by another process")
        if end.ending is Ending.FAILED and self._killed_for is not None:
            end = DriverEnd(Ending.FAILED, self._killed_for)
        if end.ending not in (Ending.COMPLETED, Ending.STOPPED):
            self.last_failure = end.reason
        if end.ending.is_final or self._is_to_stop:
            return self._finish(end)
        failed = self._restarts.failed_unclassified if end.is_unclassified else self._restarts.failed
        decision = failed(now_s, chance)
        if isinstance(decision, GiveUp):
            return self._finish(DriverEnd(Ending.FAILED, f"{end.reason} (not restarted: {decision.reason})"))
        self.phase = SupervisionPhase.RESTARTING
        self.wake_at_s = now_s + decision.delay_s
        return []

    def _finish(self, end: DriverEnd) -> list[SupervisionCommand]:
        self.phase = SupervisionPhase.OVER
        self.wake_at_s = None
        return [FinishJob(end)]


_P = SupervisionPhase

SUPERVISION_TRANSITIONS: Transitions[SupervisionPhase] = MappingProxyType(
    {
        (_P.CREATED, SupervisionStarted): (_P.RUNNING,),
        (_P.RUNNING, DriverProgressed): (_P.RUNNING,),
        (_P.RUNNING, TimePassed): (_P.RUNNING, _P.KILLING),
        (_P.RUNNING, JobStopRequested): (_P.STOPPING,),
        (_P.RUNNING, DriverSilent): (_P.KILLING,),
        (_P.RUNNING, DriverEnded): (_P.RESTARTING, _P.OVER),
        (_P.RESTARTING, TimePassed): (_P.RESTARTING, _P.RUNNING),
        (_P.RESTARTING, StandbyReady): (_P.RUNNING,),
        (_P.RESTARTING, JobStopRequested): (_P.OVER,),
        (_P.STOPPING, DriverProgressed): (_P.STOPPING,),
        (_P.STOPPING, TimePassed): (_P.STOPPING, _P.KILLING),
        (_P.STOPPING, JobStopRequested): (_P.KILLING,),
        (_P.STOPPING, DriverSilent): (_P.KILLING,),
        (_P.STOPPING, DriverEnded): (_P.OVER,),
        (_P.KILLING, DriverProgressed): (_P.KILLING,),
        (_P.KILLING, TimePassed): (_P.KILLING,),
        (_P.KILLING, JobStopRequested): (_P.KILLING,),
        (_P.KILLING, DriverSilent): (_P.KILLING,),
        (_P.KILLING, DriverEnded): (_P.RESTARTING, _P.OVER),
    }
)
"""What is legal. No arrow leads from OVER, and none from RESTARTING to a driver still alive: DriverEnded comes first."""
