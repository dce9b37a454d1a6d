"""Which of a job's supervisors, on several hosts, leads: runs the job. The others follow, with a warm driver. No I/O, no clock.

Each supervisor reads the lease store (`headrace.connectors.base.lease`) twice a second. The leader writes a heartbeat after
each read, as long as its driver is alive. A follower that has seen nothing new in several polls in a row takes the leader for
dead, and leads in its place, with the next *term*. It may be wrong: the leader was paused, or isolated from the store. That is
harmless: the driver that it calls claims the job at the sink. What the other one does then is refused there, and by the
checkpoint's store. Here it matters that exactly one continues soon:

- A leader that reads a heartbeat of a higher rank stops leading: it writes a last heartbeat, its driver is killed, and it
  follows. From that heartbeat the new leader, whose driver it may have fenced, learns which supervisor did it.
- A leader that cannot reach the lease store continues, since perhaps no supervisor can reach it, and none has claimed the job.
  But once the leader may have been taken for dead, a driver that it calls could take the job from a driver that another host
  has called since, and that driver would not learn from whom. So the leader calls its next driver only when it has read the
  lease store again, and no other supervisor leads.
- A leader whose driver was fenced does not continue. If another supervisor leads now, it follows. If none does, it leads
  again. If it is fenced a third time, each within an hour of the previous one, and no other supervisor has written a heartbeat
  since it claimed, it ends: whatever has fenced it does not use the lease.

Time is counted in polls that were answered, not in seconds. A host that was paused has polled once, however long that was.
No poll is counted during an outage of the lease store: no follower claims then, and afterwards the leader has the whole time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import assert_never

from headrace.connectors.base.lease import LEAST_TIMEOUT_S, Heartbeat, HeartbeatState
from headrace.enumerator.errors import UsageError
from headrace.enumerator.transitions import Transitions, allowed_after
from headrace.runners.spark.supervision.core import DriverEnd, Ending, Timed

LOOK_S = 0.5  # seconds between two looks
_UNHEARD_LOOKS = 3
"""A driver says twice a second that it and its JVM live; after this many looks without it no heartbeat is sent."""

_FIRST_LOOKS = 60  # this many before it has said anything: Python has to start, and import Spark
_QUIET_LOOKS = 7_200
"""An hour: who has led for this many looks is fenced for the first time again. As long as restarts take to forget a failure."""

_MOST_FENCES = 2
"""A supervisor that is isolated from the lease store can fence another one this often: by the driver that it called before, and
by the batch that this driver has under way when it loses the job."""


class LeasePhase(Enum):
    """What a supervisor does now. LOOKING: it has not seen the lease store. CLAIMING: it has said that it leads, and looks
    whether it is the only one. DISPUTING: its driver was fenced, and it looks by whom. LEAVING: it says its last word.
    """

    CREATED = auto()
    LOOKING = auto()
    FOLLOWING = auto()
    CLAIMING = auto()
    LEADING = auto()
    DISPUTING = auto()
    LEAVING = auto()
    OVER = auto()


# --- events -----------------------------------------------------------------------------------------------------------


class LeaseStarted(Timed):
    """Start: read the lease store for the first time."""


class ReadDue(Timed):
    """The time of `LeaseCore.wake_at_s` has come."""


@dataclass(frozen=True, slots=True)
class LeaseStoreRead(Timed):
    """Answer to ReadLeaseStore: the last heartbeat; None where there never was one."""

    found: Heartbeat | None


class HeartbeatWritten(Timed):
    """Answer to WriteHeartbeat."""


@dataclass(frozen=True, slots=True)
class LeaseStoreFailed(Timed):
    """Answer to ReadLeaseStore or WriteHeartbeat: it has failed, and may succeed the next time."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaseStoreRefused(Timed):
    """Answer to ReadLeaseStore or WriteHeartbeat: it was refused, and will be until its configuration is changed."""

    reason: str


class DriverHeard(Timed):
    """The driver that runs the job has said that it is alive, and its JVM."""


class DriverLost(Timed):
    """The driver that ran the job has ended. If there is another one, `DriverHeard` follows."""


@dataclass(frozen=True, slots=True)
class CallWanted(Timed):
    """The job is to be run by this driver. Answered by `MayCall`, at once or later."""

    driver: int


@dataclass(frozen=True, slots=True)
class JobEnded(Timed):
    """The job of the supervisor that leads is over, as far as its drivers are concerned. None of them is alive.

    `was_to_stop`: the supervisor was to end. So its driver may have failed by that, or was killed as it did not end in time.
    """

    end: DriverEnd
    was_to_stop: bool = False


class LeaveRequested(Timed):
    """End, though the job does not: of a supervisor that does not lead (one that does has its job stopped: `JobEnded`)."""


LeaseAnswer = LeaseStoreRead | HeartbeatWritten | LeaseStoreFailed | LeaseStoreRefused
LeaseEvent = LeaseStarted | ReadDue | LeaseAnswer | DriverHeard | DriverLost | CallWanted | JobEnded | LeaveRequested

# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadLeaseStore:
    """Ask the lease store. One question at a time; answered by `LeaseStoreRead` or a failure."""


@dataclass(frozen=True, slots=True)
class WriteHeartbeat:
    """Write this heartbeat. Answered by `HeartbeatWritten` or a failure."""

    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class Follow:
    """Kill all drivers there are, and keep one warm that is not called. `reason`: why, in one line."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lead:
    """Have the job run."""


@dataclass(frozen=True, slots=True)
class MayCall:
    """Call this driver."""

    driver: int


@dataclass(frozen=True, slots=True)
class EndLease:
    """Kill all drivers there are, and end so."""

    end: DriverEnd


LeaseCommand = ReadLeaseStore | WriteHeartbeat | Follow | Lead | MayCall | EndLease


class LeaseCore:
    """One supervisor. Not thread-safe. `wake_at_s`: when to send ReadDue, as of the last event; None for not now.

    `leader`: the last heartbeat that was seen of another one; `term`: of its own last one, 0 if it has never led. `trouble`:
    what was wrong with the lease store the last time; None if nothing was. `is_suspect`: it leads, and has written nothing for
    the whole timeout, so that it may have been taken for dead. That is by its own clock, whatever became of its looks.
    `waiting`: the driver that is to run the job, and may not be called yet.
    """

    def __init__(self, supervisor: str, host: str, timeout_s: float) -> None:
        """Raises UsageError for a time that makes no sense."""
        if not LEAST_TIMEOUT_S <= timeout_s < math.inf:
            raise UsageError(f"a leader may say nothing for at least {LEAST_TIMEOUT_S:g} s, not {timeout_s}")
        self.phase: LeasePhase = LeasePhase.CREATED
        self.wake_at_s: float | None = None
        self.leader: Heartbeat | None = None
        self.trouble: str | None = None
        self._own = Heartbeat(0, supervisor, 0, HeartbeatState.LEADING, host)
        self._timeout_s = timeout_s
        self._most = math.ceil(timeout_s / LOOK_S)
        self._now_s = self._written_at_s = -math.inf
        self._missed = 0
        self._unheard = 0
        self._led = 0
        self._awaits = False
        self._asked_at_s = -math.inf
        self._waiting: int | None = None
        self._fenced_by_nobody = 0
        self._has_rival = False  # another one has written that it leads, since this one has
        self._highest = (0, "")  # rank that was seen of another one
        self._end: DriverEnd | None = None
        self._leave_by_s = math.inf
        self._has_said_its_last = False

    @property
    def term(self) -> int:
        return self._own.term

    @property
    def is_suspect(self) -> bool:
        return self.phase is LeasePhase.LEADING and self._now_s - self._written_at_s >= self._timeout_s

    @property
    def waiting(self) -> int | None:
        return self._waiting if self.phase is LeasePhase.LEADING else None

    def handle(self, event: LeaseEvent) -> list[LeaseCommand]:
        """Take one event, give what is to be done, in order. Raises ProtocolViolationError where the transitions forbid it."""
        following = allowed_after(LEASE_TRANSITIONS, self.phase, event, "the lease")
        self._now_s = max(self._now_s, event.now_s)  # an answer has its own time, and may have waited for this thread
        if isinstance(event, LeaseAnswer):
            self._take_answer(event)
        commands = self._apply(event)
        assert self.phase in following, f"{event} has led to {self.phase.name}, which is not in the table"
        if any(isinstance(command, ReadLeaseStore | WriteHeartbeat) for command in commands):
            self._awaits, self._asked_at_s = True, self._now_s
        if self._awaits or self.phase is LeasePhase.OVER:
            self.wake_at_s = None
        elif self.wake_at_s is None:
            self.wake_at_s = event.now_s + LOOK_S
        return commands

    def _take_answer(self, event: LeaseAnswer) -> None:
        self._awaits = False
        self.trouble = event.reason if isinstance(event, LeaseStoreFailed | LeaseStoreRefused) else None
        if isinstance(event, HeartbeatWritten):
            self._written_at_s = self._asked_at_s  # when it took effect no one knows: not before
        if isinstance(event, LeaseStoreRead) and event.found is not None and event.found.supervisor != self._own.supervisor:
            self._see(event.found)

    def _see(self, found: Heartbeat) -> None:
        if found != self.leader:
            self._missed = -1  # it is counted below
            leads = self.phase in (LeasePhase.CLAIMING, LeasePhase.LEADING)
            self._has_rival |= leads and found.state is HeartbeatState.LEADING
        self.leader = found
        self._highest = max(self._highest, found.rank)

    def _apply(self, event: LeaseEvent) -> list[LeaseCommand]:
        match event:
            case LeaseStarted():
                self.phase = LeasePhase.LOOKING
                return [Follow("it has just started"), ReadLeaseStore()]
            case ReadDue():
                self.wake_at_s = None
                return [] if self._awaits else [ReadLeaseStore()]
            case DriverHeard():
                self._unheard = 0
            case DriverLost():
                self._unheard, self._waiting = _UNHEARD_LOOKS + 1, None
            case CallWanted():
                self._waiting = event.driver
                return [] if self.is_suspect else self._call()
            case JobEnded():
                return self._job_ended(event)
            case LeaveRequested():
                return self._leave(event)
            case LeaseStoreRead() | HeartbeatWritten() | LeaseStoreFailed() | LeaseStoreRefused():
                return self._answered(event)
            case _:
                assert_never(event)
        return []

    # --- answers ------------------------------------------------------------------------------------------------------

    def _answered(self, event: LeaseAnswer) -> list[LeaseCommand]:
        takers = {
            LeasePhase.LOOKING: self._first_look,
            LeasePhase.FOLLOWING: self._follower_looked,
            LeasePhase.CLAIMING: self._claimed,
            LeasePhase.LEADING: self._leader_looked,
            LeasePhase.DISPUTING: self._disputer_looked,
            LeasePhase.LEAVING: self._leaver_answered,
        }
        return takers[self.phase](event) if self.phase in takers else []  # it is over, and an answer comes late

    def _first_look(self, event: LeaseAnswer) -> list[LeaseCommand]:
        if isinstance(event, LeaseStoreRefused):
            self._end = DriverEnd(Ending.WRONG_USE, event.reason)
            return self._finish()
        if not isinstance(event, LeaseStoreRead):
            return []
        if event.found is None or event.found.state is not HeartbeatState.LEADING:
            return self._claim()
        self.phase, self._missed = LeasePhase.FOLLOWING, 0
        return []

    def _follower_looked(self, event: LeaseAnswer) -> list[LeaseCommand]:
        if not isinstance(event, LeaseStoreRead):
            self._missed = 0  # in a row: who cannot see the lease store knows nothing
            return []
        if self._missed < 0 and event.found is not None:
            return self._follow(event.found)
        self._missed += 1
        return self._claim() if self._missed >= self._most else []

    def _follow(self, found: Heartbeat) -> list[LeaseCommand]:
        """Follow the supervisor that has written this new heartbeat. After its last one there is no supervisor to follow."""
        is_late = found.rank < self._highest  # of one that was paused: another supervisor has led since, and may still
        self.phase, self._missed, self._fenced_by_nobody = LeasePhase.FOLLOWING, 0, 0
        if is_late or found.state is HeartbeatState.LEADING:
            return []
        return self._over_elsewhere(found) if found.state is HeartbeatState.OVER else self._claim()

    def _over_elsewhere(self, found: Heartbeat) -> list[LeaseCommand]:
        ending = Ending[found.ending] if found.ending in Ending.__members__ else Ending.FAILED
        self._end = DriverEnd(ending, f"the job has ended on {found.host}: {found.reason}")
        return self._finish()

    def _claimed(self, event: LeaseAnswer) -> list[LeaseCommand]:
        match event:
            case HeartbeatWritten():
                return [ReadLeaseStore()]
            case LeaseStoreRead(_, found) if found == self._own:
                self.phase, self._unheard, self._led, self._waiting = LeasePhase.LEADING, -_FIRST_LOOKS, 0, None
                return [Lead()]
            case LeaseStoreRead(_, Heartbeat() as found) if not self._is_above(found) or self._is_over(found):
                return self._follow(found)
            case LeaseStoreRead():
                return self._heartbeat()  # another one has claimed it as well, and will see this
            case LeaseStoreRefused(_, reason) if self.leader is None:  # from the beginning
                self._end = DriverEnd(Ending.WRONG_USE, reason)
                return self._finish()
            case _:
                self.phase, self._missed = LeasePhase.FOLLOWING, 0
                return []

    def _leader_looked(self, event: LeaseAnswer) -> list[LeaseCommand]:
        if isinstance(event, HeartbeatWritten):
            return []
        self._unheard += 1
        self._led += 1
        if not isinstance(event, LeaseStoreRead):
            return []
        if event.found is None or self._is_above(event.found):
            if self._now_s - self._asked_at_s >= self._timeout_s:  # its host was paused, and so long ago it was true
                return [ReadLeaseStore()]
            return [*self._call(), *(self._heartbeat() if self._unheard <= _UNHEARD_LOOKS else [])]
        stands_down = Follow(f"{event.found.host} leads, in term {event.found.term}")
        ended_or_claimed = self._follow(event.found)
        if self.phase is LeasePhase.OVER:
            return ended_or_claimed
        if ended_or_claimed:
            return [stands_down, *ended_or_claimed]
        # At once: while its drivers are killed the other one may end, and a later heartbeat would hide its last word.
        return [*self._heartbeat(), stands_down]

    def _disputer_looked(self, event: LeaseAnswer) -> list[LeaseCommand]:
        if not isinstance(event, LeaseStoreRead):
            self._missed = 0
            return []
        is_news = self._missed < 0  # whatever its term: the lease store may have forgotten the higher one
        if event.found is not None and (is_news or not self._is_above(event.found)):
            return self._follow(event.found)  # with the driver that it has kept warm since
        self._missed = max(0, self._missed) + 1
        if self._missed < self._most:
            return []
        return self._finish() if self._fenced_by_nobody > _MOST_FENCES else self._claim()

    def _leaver_answered(self, event: LeaseAnswer) -> list[LeaseCommand]:
        """The last word is said until it is, or does not matter: another one leads, or soon will, as its time is over.

        A check after it was written shows: a heartbeat of one that is down may have been on its way.
        """
        is_late = self._has_said_its_last and event.now_s >= self._leave_by_s
        match event:
            case LeaseStoreRead(_, Heartbeat() as found) if found == self._own or not self._is_above(found):
                return self._finish()
            case HeartbeatWritten() | LeaseStoreFailed() if self._has_said_its_last and not is_late:
                return []
            case LeaseStoreRefused() if self._has_said_its_last:
                return self._finish()
            case _ if is_late:
                return self._finish()
            case _:
                return self._say_the_last()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _is_above(self, found: Heartbeat) -> bool:
        return found.rank <= self._own.rank

    def _is_over(self, found: Heartbeat) -> bool:
        """Whether that is news from the last one that led, and the job's end."""
        return self._missed < 0 and found.state is HeartbeatState.OVER and found.rank == self._highest

    def _claim(self) -> list[LeaseCommand]:
        """The term is above all that were seen, so that who led before is down when it sees this."""
        self.phase, self._missed, self._has_rival = LeasePhase.CLAIMING, 0, False
        self._own = replace(self._own, term=max(self._highest[0], self._own.term) + 1, number=0)
        return [WriteHeartbeat(self._own)]

    def _call(self) -> list[LeaseCommand]:
        driver, self._waiting = self._waiting, None
        return [] if driver is None else [MayCall(driver)]

    def _heartbeat(self) -> list[LeaseCommand]:
        self._own = replace(self._own, number=self._own.number + 1)
        return [WriteHeartbeat(self._own)]

    def _job_ended(self, event: JobEnded) -> list[LeaseCommand]:
        self._end = end = event.end
        if end.ending is Ending.FENCED:
            self.phase, self._missed = LeasePhase.DISPUTING, 0
            before = 0 if self._led >= _QUIET_LOOKS else self._fenced_by_nobody
            self._fenced_by_nobody = 0 if self._has_rival else before + 1
            return [Follow("its driver was fenced")]
        state = HeartbeatState.LEFT if _may_go_on_elsewhere(event) else HeartbeatState.OVER
        self._own = replace(self._own, ending=end.ending.name, reason=end.reason)
        return self._start_to_leave(event.now_s, state)

    def _leave(self, event: LeaveRequested) -> list[LeaseCommand]:
        if self.phase is LeasePhase.LEAVING:
            return self._finish()
        self._end = DriverEnd(Ending.STOPPED, "it was stopped")
        if self.phase is not LeasePhase.CLAIMING:
            return self._finish()
        return self._start_to_leave(event.now_s, HeartbeatState.LEFT)  # it may have said that it leads

    def _start_to_leave(self, now_s: float, state: HeartbeatState) -> list[LeaseCommand]:
        self.phase, self._leave_by_s = LeasePhase.LEAVING, now_s + self._timeout_s
        self._own = replace(self._own, state=state)
        return [] if self._awaits else self._say_the_last()

    def _say_the_last(self) -> list[LeaseCommand]:
        self._has_said_its_last = True
        return self._heartbeat()

    def _finish(self) -> list[LeaseCommand]:
        assert self._end is not None
        self.phase = LeasePhase.OVER
        return [EndLease(self._end)]


def _may_go_on_elsewhere(event: JobEnded) -> bool:
    """What is refused before anything is done may be so on this host alone (a module is missing, headrace is an older one).

    Others find out by themselves. Not so where records are lost: the next driver need not see that they were ever there.
    """
    if event.end.ending is Ending.FAILED:
        return event.was_to_stop
    return event.end.ending in (Ending.STOPPED, Ending.WRONG_USE, Ending.BAD_CHECKPOINT)


_ANSWERS = (LeaseStoreRead, HeartbeatWritten, LeaseStoreFailed, LeaseStoreRefused)
_DRIVERS = (DriverHeard, DriverLost, CallWanted)
_P = LeasePhase
_AT_WORK = (_P.LOOKING, _P.FOLLOWING, _P.CLAIMING, _P.LEADING, _P.DISPUTING, _P.LEAVING)

LEASE_TRANSITIONS: Transitions[LeasePhase] = MappingProxyType(
    {
        (_P.CREATED, LeaseStarted): (_P.LOOKING,),
        **{(phase, ReadDue): (phase,) for phase in _AT_WORK},
        (_P.LOOKING, LeaseStoreRead): (_P.FOLLOWING, _P.CLAIMING),
        (_P.LOOKING, LeaseStoreFailed): (_P.LOOKING,),
        (_P.LOOKING, LeaseStoreRefused): (_P.OVER,),
        (_P.FOLLOWING, LeaseStoreRead): (_P.FOLLOWING, _P.CLAIMING, _P.OVER),
        **{(_P.FOLLOWING, event): (_P.FOLLOWING,) for event in _ANSWERS[1:]},
        (_P.CLAIMING, LeaseStoreRead): (_P.LEADING, _P.CLAIMING, _P.FOLLOWING, _P.OVER),
        (_P.CLAIMING, HeartbeatWritten): (_P.CLAIMING,),
        (_P.CLAIMING, LeaseStoreFailed): (_P.FOLLOWING,),
        (_P.CLAIMING, LeaseStoreRefused): (_P.FOLLOWING, _P.OVER),
        (_P.LEADING, LeaseStoreRead): (_P.LEADING, _P.FOLLOWING, _P.CLAIMING, _P.OVER),
        **{(_P.LEADING, event): (_P.LEADING,) for event in (*_ANSWERS[1:], *_DRIVERS)},
        (_P.LEADING, JobEnded): (_P.DISPUTING, _P.LEAVING),
        (_P.DISPUTING, LeaseStoreRead): (_P.DISPUTING, _P.FOLLOWING, _P.CLAIMING, _P.OVER),
        **{(_P.DISPUTING, event): (_P.DISPUTING,) for event in _ANSWERS[1:]},
        **{(_P.LEAVING, event): (_P.LEAVING, _P.OVER) for event in _ANSWERS},
        **{(_P.OVER, event): (_P.OVER,) for event in _ANSWERS},
        **{(phase, LeaveRequested): (_P.OVER,) for phase in (_P.LOOKING, _P.FOLLOWING, _P.DISPUTING, _P.LEAVING)},
        (_P.CLAIMING, LeaveRequested): (_P.LEAVING,),
    }
)
"""What is legal. To LEADING leads only the arrow of one that has seen its own claim, written, in the lease store."""
