"""The supervisor's own loop, with drivers that are played: what it makes of signals, spark-submit's end, and a full host."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest

from headrace.connectors.base.lease import Heartbeat, HeartbeatState, LeaseStore
from headrace.enumerator.errors import DeadlineExceededError, PeerError
from headrace.runners.restarts import FixedDelay
from headrace.runners.spark import submitted
from headrace.runners.spark.supervision import supervisor
from headrace.runners.spark.supervision.core import DriverEnd, Ending, SupervisionLimits
from headrace.runners.spark.supervision.driver import DriverOrder
from headrace.runners.spark.supervision.jobs import FunctionName
from headrace.runners.spark.supervision.lease import core
from headrace.runners.spark.supervision.standby import StandbyCore, StandbyLimits
from headrace.runners.spark.supervision.status import StatusFile
from headrace.runners.spark.supervision.supervisor import supervise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="supervision is for Linux")

STOPPED = DriverEnd(Ending.STOPPED, "it was stopped")
DONE = DriverEnd(Ending.COMPLETED, "all its queries have ended")
KILLED = DriverEnd(Ending.FAILED, "it was killed")


class PlayedDriver:
    """No process: it runs from its call on, and ends when it is instructed to. `when_it_runs` is called as soon as it does."""

    made = 0
    refused = range(0)
    when_it_runs = staticmethod(lambda driver: None)

    def __init__(self, order):
        PlayedDriver.made += 1
        if PlayedDriver.made in self.refused:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        self.pid, self.is_silent = os.getpid(), False
        self.reports, self._say = os.pipe()
        self.process, self._live = os.pipe()
        self._said, self._end = [], None

    def tell(self, **what):
        self._said.append(what)
        os.write(self._say, b".")

    def call(self):
        self.tell(queries=["q"])
        self.tell(batches={"q": 1})
        self.when_it_runs(self)

    def over(self, end):
        if self._end is None:
            self._end = end
            os.close(self._live)

    def stop(self):
        """After the batch under way, which ends when the supervisor has come round to listen."""
        self.tell(batches={"q": 2})

    def kill(self):
        self.over(KILLED)

    def news(self):
        os.read(self.reports, 1 << 10)
        said, self._said = self._said, []
        if {"batches": {"q": 2}} in said:
            self.over(STOPPED)
        return said

    def end(self):
        for descriptor in (self.reports, self._say, self.process):
            os.close(descriptor)
        return self._end


@pytest.fixture
def play(monkeypatch, tmp_path):
    """Run a job of such drivers: with `when_it_runs`, and where those of these numbers cannot be started."""
    monkeypatch.setattr(supervisor, "DriverProcess", PlayedDriver)
    monkeypatch.setattr(PlayedDriver, "made", 0)

    def run(when_it_runs, *, refused=range(0), standbys=0, job=None, silence_s=30.0, lease_store=None):
        PlayedDriver.made = 0
        monkeypatch.setattr(PlayedDriver, "when_it_runs", staticmethod(when_it_runs))
        monkeypatch.setattr(PlayedDriver, "refused", refused)
        limits = StandbyLimits(standbys, silence_s=silence_s, settle_s=0.0)
        core = partial(StandbyCore, FixedDelay(attempts=5, delay_s=0.001), job or SupervisionLimits(), limits)
        end = supervise(
            DriverOrder(FunctionName("a", "b"), FunctionName("c", "d")), core, StatusFile(tmp_path / "status"), lease_store
        )
        return end, json.loads((tmp_path / "status").read_text())

    return run


def stop(_driver):
    signal.raise_signal(signal.SIGTERM)


def test_a_job_is_stopped_after_its_batch(play):
    assert play(stop)[0] == STOPPED


def test_a_second_signal_ends_the_job_at_once(play):
    end, _ = play(lambda driver: (stop(driver), stop(driver)))
    assert end == DriverEnd(Ending.FAILED, "it was asked twice to stop")


# --- a host that is full -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [range(1, 2), range(1, 4)])
def test_a_driver_that_cannot_be_forked_is_a_failure_that_is_tried_again(play, refused):
    end, shown = play(stop, refused=refused)
    assert end == STOPPED
    assert shown["last_failure"] == "the driver could not be started: [Errno 11] Resource temporarily unavailable"
    assert shown["drivers_started"] == PlayedDriver.made == len(refused) + 1


def test_a_driver_that_can_never_be_forked_ends_the_job_by_its_strategy(play):
    end, _ = play(stop, refused=range(1, 100))
    assert end.ending is Ending.FAILED
    assert "could not be started" in end.reason
    assert PlayedDriver.made == 6


def test_a_standby_that_cannot_be_forked_leaves_the_healthy_driver_alone(play, monkeypatch):
    failed = supervisor._Supervisor._tell_end
    monkeypatch.setattr(
        supervisor._Supervisor, "_tell_end", lambda self, number, end: (failed(self, number, end), number == 2 and stop(None))
    )
    end, shown = play(lambda driver: None, refused=range(2, 3), standbys=1)
    assert end == STOPPED
    assert shown["last_failure"] is None
    assert "the driver could not be started" in shown["standby_failure"]


# --- a lease -------------------------------------------------------------------------------------------------------------


class PlayedLeaseStore(LeaseStore):
    """What is written there, and what another supervisor has: `others` gives its heartbeat for each look, or None."""

    timeout_s = 1.5
    where = "the lease store"

    def __init__(self, others=()):
        self.others = iter(others)
        self.last = None
        self.written = []

    def read(self):
        found = next(self.others, None)
        if isinstance(found, Exception):
            raise found
        if callable(found):
            found()
        elif found is not None:
            self.last = found
        return self.last

    def write(self, heartbeat):
        self.written.append(heartbeat)
        self.last = heartbeat


def away(then=lambda: None):
    then()
    raise DeadlineExceededError("no broker")


@pytest.fixture
def lease_store():
    return PlayedLeaseStore()


def others(first, term=1, count=1, state=HeartbeatState.LEADING, **how):
    return [Heartbeat(term, "other", number, state, "host-b", **how) for number in range(first, first + count)]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(core, "LOOK_S", 0.01)


def test_the_first_supervisor_leads_and_says_that_it_has_left_when_it_is_stopped(play, lease_store):
    end, shown = play(stop, lease_store=lease_store)
    assert end == STOPPED
    assert lease_store.written[0].state is HeartbeatState.LEADING
    assert lease_store.written[-1].state is HeartbeatState.LEFT
    assert shown["lease"]["trouble"] is None


def test_a_follower_keeps_one_driver_warm_calls_none_and_leaves_the_leader_alone_when_it_is_stopped(play):
    lease_store = PlayedLeaseStore([*others(0, count=50), lambda: stop(None)])
    end, shown = play(lambda driver: pytest.fail("it was called"), lease_store=lease_store)
    assert (end, lease_store.written) == (STOPPED, [])
    assert PlayedDriver.made == 1
    quiet = {"suspect": False, "waiting": False, "trouble": None}
    assert shown["lease"] == {"state": "OVER", "leader": "host-b", "term": None, **quiet}


def test_a_follower_takes_over_when_nothing_new_comes_from_the_leader(play):
    lease_store = PlayedLeaseStore(others(0, count=5))
    assert play(stop, lease_store=lease_store)[0] == STOPPED
    assert {heartbeat.term for heartbeat in lease_store.written} == {2}
    assert PlayedDriver.made == 1  # the warm one


def test_a_leader_that_was_taken_for_dead_kills_its_driver_and_follows(play, lease_store):
    killed = []

    def overtaken(driver):
        lease_store.others = iter([*others(0, term=2, count=20), lambda: (killed.append(driver._end), stop(None))])

    end, shown = play(overtaken, lease_store=lease_store)
    assert (end, killed) == (STOPPED, [KILLED])
    assert PlayedDriver.made == 2
    assert lease_store.written[-1].term == 1
    assert shown["lease"]["leader"] == "host-b"


def test_a_leader_whose_driver_was_fenced_follows_who_has_done_it(play, lease_store):
    def fenced(driver):
        lease_store.others = iter([None, *others(0, term=2, count=20), lambda: stop(None)])
        driver.over(DriverEnd(Ending.FENCED, "another driver's"))

    assert play(fenced, lease_store=lease_store)[0] == STOPPED
    assert PlayedDriver.made == 2


def test_a_leader_that_is_fenced_three_times_by_no_process_that_leads_ends(play, lease_store):
    fenced = DriverEnd(Ending.FENCED, "another driver's")
    assert play(lambda driver: driver.over(fenced), lease_store=lease_store)[0] == fenced
    assert {heartbeat.term for heartbeat in lease_store.written} == {1, 2, 3}
    assert {heartbeat.state for heartbeat in lease_store.written} == {HeartbeatState.LEADING}


def test_all_supervisors_end_with_the_job(play, lease_store):
    assert play(lambda driver: driver.over(DONE), lease_store=lease_store)[0] == DONE
    follower = PlayedLeaseStore([*others(0, count=3), replace(lease_store.written[-1], supervisor="other", number=99)])
    end, _ = play(lambda driver: pytest.fail("it was called"), lease_store=follower)
    assert end.ending is Ending.COMPLETED
    assert "all its queries have ended" in end.reason


def test_a_leader_whose_driver_is_killed_in_a_stop_hands_over_and_does_not_end_the_job_for_all(play, lease_store, monkeypatch):
    """A batch that takes longer than a stop may, or a second SIGTERM: each follower ended with status 1, too."""
    monkeypatch.setattr(PlayedDriver, "stop", lambda driver: driver.over(KILLED))
    end, _ = play(stop, lease_store=lease_store)
    assert end.ending is Ending.FAILED
    assert (lease_store.written[-1].state, lease_store.written[-1].ending) == (HeartbeatState.LEFT, "FAILED")


@pytest.mark.parametrize(
    "refused",
    [
        DriverEnd(Ending.WRONG_USE, "UsageError: the job's file cannot be loaded: ModuleNotFoundError"),
        DriverEnd(Ending.BAD_CHECKPOINT, "StateError: a newer headrace wrote this"),
    ],
    ids=lambda end: end.ending.name,
)
def test_a_job_that_cannot_run_on_one_host_continues_on_another(play, lease_store, refused):
    """A module that is missing there, after a takeover: the end was instructed to all, and a third host ended, too."""
    assert play(lambda driver: driver.over(refused), lease_store=lease_store)[0] == refused
    third = PlayedLeaseStore([*others(0, count=3), replace(lease_store.written[-1], supervisor="other", number=99)])
    assert play(stop, lease_store=third)[0] == STOPPED
    assert {heartbeat.term for heartbeat in third.written} == {2}


class DeafToTheLastWord(PlayedLeaseStore):
    """`times`: so often a last word is not written. `then`: is called each time."""

    def __init__(self, times, then=lambda: None):
        super().__init__()
        self.times, self.failed, self.then = times, 0, then

    def write(self, heartbeat):
        if heartbeat.state is not HeartbeatState.LEADING and self.failed < self.times:
            self.failed += 1
            self.then()
            raise DeadlineExceededError("no broker")
        super().write(heartbeat)


def test_a_last_word_whose_write_has_failed_is_said_again(play):
    """It was said once: the others took a job that is done for one whose leader is dead, and started it again."""
    lease_store = DeafToTheLastWord(3)
    assert play(lambda driver: driver.over(DONE), lease_store=lease_store)[0] == DONE
    assert (lease_store.failed, lease_store.written[-1].state) == (3, HeartbeatState.OVER)


def test_a_second_signal_ends_a_supervisor_that_cannot_say_its_last_word(play, monkeypatch):
    monkeypatch.setattr(PlayedLeaseStore, "timeout_s", 3600.0)
    lease_store = DeafToTheLastWord(1000, then=lambda: stop(None))
    assert play(stop, lease_store=lease_store)[0] == STOPPED
    assert 1 <= lease_store.failed < 1000


def test_while_the_lease_store_is_away_no_process_takes_over_and_the_job_continues(play, lease_store, caplog):
    follower = PlayedLeaseStore([*others(0, count=3), *[away] * 200, *others(3, count=3), lambda: stop(None)])
    assert play(lambda driver: pytest.fail("it was called"), lease_store=follower)[0] == STOPPED
    assert "the lease store: no broker; meanwhile this supervisor does not take over" in caplog.text
    assert "may be taken for dead" not in caplog.text

    def cut_off(driver):
        lease_store.others = iter([*[away] * 200, lambda: stop(driver)])

    assert play(cut_off, lease_store=lease_store)[0] == STOPPED
    assert len(lease_store.written) <= 3 + 1
    assert "may be taken for dead, as no process has heard of it; it continues until it is fenced" in caplog.text


def test_a_leader_that_is_truncated_calls_its_next_driver_when_it_has_seen_the_lease_store_again(
    play, lease_store, monkeypatch
):
    """That driver waits meanwhile, which is not a driver that gets on with nothing."""
    monkeypatch.setattr(core, "LEAST_TIMEOUT_S", 0.0)
    monkeypatch.setattr(PlayedLeaseStore, "timeout_s", 0.05)
    drivers, called, before = [], [], []
    made = PlayedDriver.__init__
    monkeypatch.setattr(PlayedDriver, "__init__", lambda driver, order: (made(driver, order), drivers.append(driver))[0])

    def cut_off(driver):
        called.append(driver)
        if len(called) > 1:
            stop(driver)
            return
        killed, lifetimes = partial(away, lambda: driver.over(KILLED)), partial(away, lambda: drivers[-1].tell(no_dry_run=None))
        lease_store.others = iter([*[away] * 20, killed, *[lifetimes] * 100, lambda: before.extend(called)])

    end, shown = play(cut_off, lease_store=lease_store, job=SupervisionLimits(progress_s=0.5))
    assert (end, before, called) == (STOPPED, drivers[:1], drivers)
    assert len(drivers) == 2
    assert shown["last_failure"] == KILLED.reason


def test_no_takeover_is_reported_while_the_driver_waits(play, lease_store, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(core, "LEAST_TIMEOUT_S", 0.0)
    monkeypatch.setattr(PlayedLeaseStore, "timeout_s", 0.05)
    called, shown, settings = [], [], []
    made = PlayedDriver.__init__

    def armed(driver, order):
        made(driver, order)
        if called:
            driver.tell(armed=True)

    monkeypatch.setattr(PlayedDriver, "__init__", armed)

    def look_at_it():
        shown.append(json.loads((tmp_path / "status").read_text()))
        settings.append(caplog.text)

    def cut_off(driver):
        called.append(driver)
        if len(called) > 1:
            stop(driver)
            return
        killed = partial(away, lambda: driver.over(KILLED))
        lease_store.others = iter([*[away] * 80, killed, *[away] * 40, partial(away, look_at_it)])

    end, last = play(cut_off, lease_store=lease_store, standbys=1)
    assert (end, len(called)) == (STOPPED, 2)
    (waiting,) = shown
    assert (waiting["active"]["state"], waiting["lease"]["waiting"], waiting["takeovers"]) == ("TAKING_OVER", True, 0)
    assert "waits until this supervisor has seen" in settings[0]
    assert "is to take over" in settings[0]
    assert "takes over" not in settings[0]
    assert "is called: the lease store was seen" in caplog.text
    assert last["takeovers"] == 1


def test_a_lease_store_that_may_not_be_seen_is_an_error_at_once(play):
    end, _ = play(stop, lease_store=PlayedLeaseStore([PeerError("not authorized")]))
    assert end == DriverEnd(Ending.WRONG_USE, "the lease store: not authorized")


def test_a_leader_that_is_overtaken_while_it_stops_ends_all_the_same(play, lease_store, monkeypatch):
    monkeypatch.setattr(PlayedDriver, "stop", lambda driver: None)  # its batch takes long

    def stopped(driver):
        lease_store.others = iter([lambda: stop(driver), None, *others(0, term=2, count=9)])

    assert play(stopped, lease_store=lease_store)[0] == STOPPED


# --- spark-submit --------------------------------------------------------------------------------------------------------


@pytest.fixture
def jvm(monkeypatch):
    """Of spark-submit, in whose client mode this process is."""
    with subprocess.Popen(["sleep", "600"]) as process:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
        monkeypatch.setattr(os, "getppid", lambda: process.pid)
        monkeypatch.setattr(submitted, "submitted_settings", dict)
        yield process
        process.kill()


def end_of(jvm, _driver=None):
    jvm.kill()
    os.waitid(os.P_PID, jvm.pid, os.WEXITED | os.WNOWAIT)


def test_the_end_of_spark_submit_is_taken_for_sigterm(play, jvm):
    assert play(partial(end_of, jvm))[0] == STOPPED


@pytest.mark.parametrize("is_jvm_first", [True, False])
def test_ctrl_c_that_ends_spark_submit_too_is_one_stop_and_the_batch_ends(play, jvm, is_jvm_first):
    """The terminal sends it to both."""

    def arrives(driver):
        both = [end_of, lambda _: signal.raise_signal(signal.SIGINT)]
        for one in both if is_jvm_first else reversed(both):
            one(jvm)

    assert play(arrives)[0] == STOPPED


def test_ctrl_c_twice_ends_the_job_at_once_though_spark_submit_has_ended_with_the_first(play, jvm):
    end, _ = play(lambda driver: (end_of(jvm), stop(driver), stop(driver)))
    assert end == DriverEnd(Ending.FAILED, "it was asked twice to stop")


def test_a_signal_long_after_the_end_of_spark_submit_is_a_second_one(play, jvm, monkeypatch):
    monkeypatch.setattr(supervisor, "_ONE_STOP_S", 0.0)
    monkeypatch.setattr(PlayedDriver, "stop", stop)  # it hangs in its batch, and another process gets impatient
    end, _ = play(partial(end_of, jvm), job=SupervisionLimits(None, 10.0))
    assert end == DriverEnd(Ending.FAILED, "it was asked twice to stop")


# --- long times ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("silence_s", [4e9, None])
def test_a_limit_of_a_century_or_none_is_waited_for_in_parts(play, silence_s):
    """The kernel counts milliseconds in 32 bits."""
    assert play(stop, job=SupervisionLimits(4e9), silence_s=silence_s)[0] == STOPPED
