"""The supervisor's own loop, with drivers that are played: what it makes of signals, spark-submit's end, and a full host."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from headrace.enumerator.restarts import FixedDelay
from headrace.enumerator.supervision import DriverEnd, Ending, SupervisionLimits
from headrace.runners.spark import submitted
from headrace.runners.spark.supervision import supervisor
from headrace.runners.spark.supervision.driver import DriverOrder
from headrace.runners.spark.supervision.jobs import FunctionName
from headrace.runners.spark.supervision.standby import StandbyCore, StandbyLimits
from headrace.runners.spark.supervision.status import StatusFile
from headrace.runners.spark.supervision.supervisor import supervise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="supervision is for Linux")

STOPPED = DriverEnd(Ending.STOPPED, "it was stopped")
KILLED = DriverEnd(Ending.FAILED, "it was killed")


class PlayedDriver:
    """No process: it runs from its call on, and ends when it is told to. `when_it_runs` is called as soon as it does."""

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

    def run(when_it_runs, *, refused=range(0), standbys=0, job=None, silence_s=30.0):
        monkeypatch.setattr(PlayedDriver, "when_it_runs", staticmethod(when_it_runs))
        monkeypatch.setattr(PlayedDriver, "refused", refused)
        limits = StandbyLimits(standbys, silence_s=silence_s, settle_s=0.0)
        core = StandbyCore(FixedDelay(attempts=5, delay_s=0.001), job or SupervisionLimits(), limits)
        end = supervise(DriverOrder(FunctionName("a", "b")), core, StatusFile(tmp_path / "status"))
        return end, json.loads((tmp_path / "status").read_text())

    return run


def stop(_driver):
    signal.raise_signal(signal.SIGTERM)


def test_a_job_is_stopped_after_its_batch(play):
    assert play(stop)[0] == STOPPED


def test_a_second_signal_ends_the_job_at_once(play):
    end, _ = play(lambda driver: (stop(driver), stop(driver)))
    assert end == DriverEnd(Ending.FAILED, "it was told twice to stop")


# --- a host that is full -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [range(1, 2), range(1, 4)])
def test_seen_here_a_driver_that_cannot_be_forked_is_a_failure_that_is_tried_again(play, refused):
    end, shown = play(stop, refused=refused)
    assert end == STOPPED
    assert shown["last_failure"] == "the driver could not be started: [Errno 11] Resource temporarily unavailable"
    assert shown["drivers_started"] == PlayedDriver.made == len(refused) + 1


def test_a_driver_that_can_never_be_forked_ends_the_job_by_its_strategy(play):
    end, _ = play(stop, refused=range(1, 100))
    assert end.ending is Ending.FAILED
    assert "could not be started" in end.reason
    assert PlayedDriver.made == 6


def test_seen_here_a_standby_that_cannot_be_forked_leaves_the_healthy_driver_alone(play, monkeypatch):
    failed = supervisor._Supervisor._tell_end
    monkeypatch.setattr(
        supervisor._Supervisor, "_tell_end", lambda self, number, end: (failed(self, number, end), number == 2 and stop(None))
    )
    end, shown = play(lambda driver: None, refused=range(2, 3), standbys=1)
    assert end == STOPPED
    assert shown["last_failure"] is None
    assert "the driver could not be started" in shown["standby_failure"]


# --- spark-submit --------------------------------------------------------------------------------------------------------


@pytest.fixture
def jvm(monkeypatch):
    """Of spark-submit, in whose client mode this process is."""
    with subprocess.Popen(["sleep", "600"]) as process:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
        monkeypatch.setattr(os, "getppid", lambda: process.pid)
        monkeypatch.setattr(submitted, "_settings", dict)
        yield process
        process.kill()


def end_of(jvm, _driver=None):
    jvm.kill()
    os.waitid(os.P_PID, jvm.pid, os.WEXITED | os.WNOWAIT)


def test_the_end_of_spark_submit_is_taken_for_sigterm(play, jvm):
    assert play(partial(end_of, jvm))[0] == STOPPED


@pytest.mark.parametrize("is_jvm_first", [True, False])
def test_seen_here_ctrl_c_that_ends_spark_submit_too_is_one_stop_and_the_batch_ends(play, jvm, is_jvm_first):
    """The terminal sends it to both."""

    def arrives(driver):
        both = [end_of, lambda _: signal.raise_signal(signal.SIGINT)]
        for one in both if is_jvm_first else reversed(both):
            one(jvm)

    assert play(arrives)[0] == STOPPED


def test_ctrl_c_twice_ends_the_job_at_once_though_spark_submit_has_ended_with_the_first(play, jvm):
    end, _ = play(lambda driver: (end_of(jvm), stop(driver), stop(driver)))
    assert end == DriverEnd(Ending.FAILED, "it was told twice to stop")


def test_seen_here_a_signal_long_after_the_end_of_spark_submit_is_a_second_one(play, jvm, monkeypatch):
    monkeypatch.setattr(supervisor, "_ONE_STOP_S", 0.0)
    monkeypatch.setattr(PlayedDriver, "stop", stop)  # it hangs in its batch, and somebody gets impatient
    end, _ = play(partial(end_of, jvm), job=SupervisionLimits(None, 10.0))
    assert end == DriverEnd(Ending.FAILED, "it was told twice to stop")


# --- long times ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("silence_s", [4e9, None])
def test_seen_here_a_limit_of_a_century_or_none_is_waited_for_in_parts(play, silence_s):
    """The kernel counts milliseconds in 32 bits."""
    assert play(stop, job=SupervisionLimits(4e9), silence_s=silence_s)[0] == STOPPED
