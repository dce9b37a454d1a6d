"""What a supervised job does next, for every order of events: the core alone, on a clock that the tests move."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from headrace.enumerator.errors import ProtocolViolationError, UsageError
from headrace.runners.restarts import (
    RESTART_STRATEGIES,
    UNCLASSIFIED_ATTEMPTS,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    restart_strategy,
)
from headrace.runners.spark.supervision.core import (
    EXIT_STATUSES,
    SUPERVISION_TRANSITIONS,
    DriverEnd,
    DriverEnded,
    DriverProgressed,
    DriverSilent,
    Ending,
    FinishJob,
    JobStopRequested,
    KillDriver,
    StandbyReady,
    StartDriver,
    StopDriver,
    SupervisionCore,
    SupervisionLimits,
    SupervisionPhase,
    SupervisionStarted,
    TimePassed,
)
from tests.helpers.tables import arrows, arrows_followed

EVEN = 0.5
FAILED = DriverEnd(Ending.FAILED, "the driver was killed by SIGKILL")
STOPPED = DriverEnd(Ending.STOPPED, "it was stopped")
COMPLETED = DriverEnd(Ending.COMPLETED, "all its queries have ended")
LIMITS = SupervisionLimits(progress_s=30.0, stop_s=10.0)


def started(strategy=None, limits=LIMITS):
    core = SupervisionCore(strategy or FixedDelay(attempts=2, delay_s=5.0), limits)
    assert core.handle(SupervisionStarted(0.0)) == [StartDriver(1)]
    return core


@pytest.fixture
def core():
    return started()


def finished(commands):
    (command,) = commands
    assert isinstance(command, FinishJob)
    return command.end


def test_a_driver_that_fails_is_started_again_after_the_delay_and_not_before(core):
    assert core.handle(DriverEnded(100.0, FAILED, EVEN)) == []
    assert core.wake_at_s == 105.0
    assert core.handle(TimePassed(104.9)) == []
    assert core.handle(TimePassed(105.0)) == [StartDriver(2)]


def test_the_job_fails_when_the_strategy_gives_up_and_says_both_reasons():
    end = finished(started(NoRestart()).handle(DriverEnded(1.0, FAILED, EVEN)))
    assert end.ending is Ending.FAILED
    assert end.reason == f"{FAILED.reason} (not restarted: the restart strategy is none)"


@pytest.mark.parametrize("kind", ["UnclassifiedError", "AuthenticationError"])
def test_an_error_that_may_never_pass_is_given_up_by_the_default_strategy(kind):
    core = started(ExponentialDelay())
    end = DriverEnd(Ending.FAILED, f"{kind}: writing to table 'orders': odd")
    for attempt in range(UNCLASSIFIED_ATTEMPTS):
        assert core.handle(DriverEnded(100.0 * attempt, end, EVEN)) == []
        (started_again,) = core.handle(TimePassed(100.0 * attempt + 99.0))
        assert isinstance(started_again, StartDriver)
    found = finished(core.handle(DriverEnded(100.0 * UNCLASSIFIED_ATTEMPTS, end, EVEN)))
    assert found.ending is Ending.FAILED
    assert end.reason in found.reason


STRATEGIES = {
    "none": ({}, [0.0], "the restart strategy is none"),
    "fixed-delay": ({"attempts": "2", "delay": "5 s"}, [0.0, 15.0, 30.0], "it was restarted 2 times"),
    "failure-rate": (
        {"max-failures-per-interval": "2", "failure-rate-interval": "40 s", "delay": "5 s"},
        [0.0, 15.0, 30.0],
        "3 failures in 40 s",
    ),
    "exponential-delay": (
        {"initial-backoff": "1 s", "backoff-multiplier": "2", "max-backoff": "4 s", "attempts-before-reset-backoff": "3"},
        [0.0, 11.0, 23.0, 37.0],
        "it was restarted 3 times without a quiet time",
    ),
}


def test_there_is_no_strategy_but_these():
    assert STRATEGIES.keys() == RESTART_STRATEGIES.keys()


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_job_whose_drivers_fail_after_10_s_is_started_when_the_strategy_of_this_name_says(name):
    settings, starts, reason = STRATEGIES[name]
    named = {f"restart-strategy.{name}.{setting}": value for setting, value in settings.items()}
    core = SupervisionCore(restart_strategy({"restart-strategy.type": name, **named}), SupervisionLimits())
    seen, now_s = [0.0], 0.0
    core.handle(SupervisionStarted(now_s))
    while not (done := core.handle(DriverEnded(now_s := now_s + 10.0, FAILED, EVEN))):
        assert core.handle(TimePassed(core.wake_at_s - 0.001)) == []
        now_s = core.wake_at_s
        assert core.handle(TimePassed(now_s)) == [StartDriver(len(seen) + 1)]
        seen.append(now_s)
    assert seen == starts
    assert reason in finished(done).reason


@pytest.mark.parametrize("strategy", [NoRestart(), FixedDelay(9, 1.0), FailureRate(9, 60.0, 1.0), ExponentialDelay()])
@pytest.mark.parametrize("ending", [ending for ending in Ending if ending not in (Ending.FAILED, Ending.STOPPED)])
def test_what_another_try_cannot_mend_ends_the_job_at_once_under_every_strategy(strategy, ending):
    end = DriverEnd(ending, "why")
    assert finished(started(strategy).handle(DriverEnded(1.0, end, EVEN))) == end


def test_a_stop_is_passed_on_and_waited_for(core):
    assert core.handle(JobStopRequested(1.0)) == [StopDriver()]
    assert core.handle(DriverProgressed(5.0)) == []
    assert core.wake_at_s == 11.0  # progress gives no more time
    assert finished(core.handle(DriverEnded(6.0, STOPPED, EVEN))) == STOPPED


def test_a_batch_that_does_not_end_after_the_stop_is_killed_and_the_job_has_failed(core):
    core.handle(JobStopRequested(1.0))
    assert core.handle(TimePassed(10.9)) == []
    assert core.handle(TimePassed(11.0)) == [KillDriver()]
    end = finished(core.handle(DriverEnded(11.1, FAILED, EVEN)))
    assert (end.ending, end.reason) == (Ending.FAILED, "the batch under way did not end within 10 s of the stop")


def test_a_second_stop_kills_and_a_third_does_nothing(core):
    core.handle(JobStopRequested(1.0))
    assert core.handle(JobStopRequested(2.0)) == [KillDriver()]
    assert core.handle(JobStopRequested(2.5)) == []
    assert finished(core.handle(DriverEnded(3.0, FAILED, EVEN))).reason == "it was asked twice to stop"


def test_a_stop_between_two_drivers_ends_the_job_there(core):
    core.handle(DriverEnded(1.0, FAILED, EVEN))
    assert finished(core.handle(JobStopRequested(2.0))).ending is Ending.STOPPED


def test_a_driver_that_fails_while_it_is_stopped_is_not_started_again_and_no_success(core):
    core.handle(JobStopRequested(1.0))
    assert finished(core.handle(DriverEnded(2.0, FAILED, EVEN))) == FAILED


def test_a_driver_that_another_process_else_has_stopped_is_started_again(core):
    assert core.handle(DriverEnded(1.0, STOPPED, EVEN)) == []
    assert core.last_failure == "its driver was stopped by another process"


def test_a_driver_without_progress_is_killed_and_started_again(core):
    core.handle(DriverProgressed(20.0))
    assert core.handle(TimePassed(49.9)) == []
    assert core.handle(TimePassed(50.0)) == [KillDriver()]
    core.handle(DriverProgressed(50.1))  # too late
    assert core.handle(DriverEnded(50.2, FAILED, EVEN)) == []
    assert core.last_failure == "no batch has ended for 30 s"
    assert core.handle(TimePassed(55.2)) == [StartDriver(2)]
    assert core.wake_at_s == 85.2  # its own time, from its start


def test_a_driver_that_says_why_it_ends_while_it_is_killed_is_believed(core):
    core.handle(TimePassed(30.0))
    end = DriverEnd(Ending.DATA_LOSS, "offsets 3 to 7 are gone")
    assert finished(core.handle(DriverEnded(30.1, end, EVEN))) == end


def test_a_stop_while_a_driver_is_killed_for_no_progress_ends_the_job(core):
    core.handle(TimePassed(30.0))
    assert core.handle(JobStopRequested(30.1)) == []
    assert finished(core.handle(DriverEnded(30.2, FAILED, EVEN))).reason == "no batch has ended for 30 s"


def test_a_silent_driver_is_killed_once_and_the_reason_is_kept(core):
    assert core.handle(DriverSilent(5.0, "it says nothing")) == [KillDriver()]
    assert core.handle(DriverSilent(6.0, "it says nothing")) == []
    core.handle(DriverEnded(7.0, FAILED, EVEN))
    assert core.last_failure == "it says nothing"


def test_a_standby_that_waits_makes_the_delay_needless(core):
    core.handle(DriverEnded(100.0, FAILED, EVEN))
    assert core.handle(StandbyReady(100.0)) == [StartDriver(2)]
    assert core.wake_at_s == 130.0  # of progress, not of the restart


def test_without_a_limit_a_batch_may_take_any_time():
    core = started(limits=SupervisionLimits())
    assert core.wake_at_s is None
    assert core.handle(TimePassed(1e9)) == []


def test_only_a_job_that_has_nothing_left_to_do_ends_with_status_0():
    assert {ending for ending, status in EXIT_STATUSES.items() if status == 0} == {Ending.COMPLETED}
    assert set(EXIT_STATUSES) == set(Ending)
    assert len(set(EXIT_STATUSES.values())) == len(Ending)


@pytest.mark.parametrize("limits", [{"progress_s": 0.0}, {"progress_s": float("nan")}, {"stop_s": -1.0}])
def test_limits_that_cannot_be_are_refused(limits):
    with pytest.raises(UsageError):
        SupervisionLimits(**limits)


def test_nothing_happens_after_the_end(core):
    core.handle(DriverEnded(1.0, COMPLETED, EVEN))
    with pytest.raises(ProtocolViolationError):
        core.handle(SupervisionStarted(2.0))


# --- simulation -------------------------------------------------------------------------------------------------------


@dataclass
class Simulation:
    """Drivers that live, are slow to die, fail, hang or end; a clock; another process who stops the job now and then."""

    chances: random.Random
    core: SupervisionCore
    now_s: float = 0.0
    living: int = 0
    most_living: int = 0
    starts: list[float] = field(default_factory=list)
    ends: list[DriverEnd] = field(default_factory=list)
    is_dying: bool = False
    stops: int = 0
    end: DriverEnd | None = None

    def tell(self, event):
        for command in self.core.handle(event):
            match command:
                case StartDriver():
                    self.living += 1
                    self.most_living = max(self.most_living, self.living)
                    self.starts.append(self.now_s)
                    self.is_dying = False
                case KillDriver() | StopDriver():
                    assert self.living == 1
                    self.is_dying = True
                case FinishJob(end):
                    assert self.living == 0
                    assert self.end is None
                    self.end = end

    def step(self):
        self.now_s += self.chances.random() * 8
        action = self.chances.choice(["time", "time", "progress", "fail", "die", "stop", "silence", "standby"])
        if action == "stop" and self.chances.random() < 0.1:
            self.stops += 1
            self.tell(JobStopRequested(self.now_s))
        elif action == "silence" and self.living and self.chances.random() < 0.1:
            self.tell(DriverSilent(self.now_s, "it says nothing"))
        elif action == "standby" and not self.living:
            self.tell(StandbyReady(self.now_s))
        elif action == "progress" and self.living:
            self.tell(DriverProgressed(self.now_s))
        elif self.living and ((action == "fail" and self.chances.random() < 0.3) or (action == "die" and self.is_dying)):
            self.living -= 1
            endings = [STOPPED, FAILED] if self.is_dying else [FAILED, FAILED, FAILED, *(DriverEnd(e, "x") for e in Ending)]
            self.ends.append(self.chances.choice(endings))
            self.tell(DriverEnded(self.now_s, self.ends[-1], self.chances.random()))
        elif self.chances.random() < 0.1 or (self.core.wake_at_s is not None and self.now_s >= self.core.wake_at_s):
            self.tell(TimePassed(self.now_s))  # also when none is due


def simulate(seed):
    chances = random.Random(seed)
    strategy = chances.choice([NoRestart(), FixedDelay(3, 2.0), FailureRate(3, 60.0, 2.0), ExponentialDelay()])
    simulation = Simulation(chances, SupervisionCore(strategy, LIMITS))
    simulation.tell(SupervisionStarted(0.0))
    for _ in range(2000):
        if simulation.end is not None or simulation.most_living > 1:
            break
        assert simulation.living or simulation.core.wake_at_s is not None, "nothing is alive, and nothing is awaited"
        simulation.step()
    return simulation


def test_in_a_thousand_histories_there_are_never_two_drivers_and_a_failure_is_never_a_success():
    with arrows_followed(SupervisionCore) as followed:
        simulations = [simulate(seed) for seed in range(1000)]
    assert all(simulation.most_living == 1 for simulation in simulations)
    for simulation in simulations:
        assert simulation.end is not None
        assert (simulation.end.ending is Ending.COMPLETED) == (
            bool(simulation.ends) and simulation.ends[-1].ending is Ending.COMPLETED
        )
        assert (simulation.end.ending is Ending.STOPPED) <= (simulation.stops > 0)
        assert len(simulation.starts) == len(simulation.ends)
    assert followed == arrows(SUPERVISION_TRANSITIONS)


def test_the_simulation_sees_a_driver_that_is_started_alongside_one_that_lives(monkeypatch):
    anything = dict.fromkeys(SUPERVISION_TRANSITIONS, tuple(SupervisionPhase))
    monkeypatch.setattr("headrace.runners.spark.supervision.core.SUPERVISION_TRANSITIONS", anything)
    monkeypatch.setattr(SupervisionCore, "_time_passed", lambda core, now_s: core._start(now_s))  # too early
    assert any(seen(seed) for seed in range(20))


def seen(seed):
    try:
        return simulate(seed).most_living > 1
    except AssertionError:
        return True
