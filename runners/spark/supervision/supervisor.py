"""The process that supervises a job: carries out what `SupervisionCore` decides, and tells it what happens. One thread."""

from __future__ import annotations

import logging
import os
import random
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from headrace.enumerator.errors import UsageError
from headrace.enumerator.restarts import ExponentialDelay, RestartStrategy
from headrace.enumerator.supervision import (
    EXIT_STATUSES,
    DriverEnd,
    DriverEnded,
    DriverProgressed,
    Ending,
    FinishJob,
    JobStopRequested,
    KillDriver,
    StartDriver,
    StopDriver,
    SupervisionCommand,
    SupervisionCore,
    SupervisionEvent,
    SupervisionLimits,
    SupervisionPhase,
    SupervisionStarted,
    TimePassed,
)
from headrace.runners.spark.session import GATEWAY
from headrace.runners.spark.supervision.driver import DriverOrder
from headrace.runners.spark.supervision.families import FAMILY_VARIABLE
from headrace.runners.spark.supervision.jobs import FunctionName
from headrace.runners.spark.supervision.processes import DriverProcess
from headrace.runners.spark.supervision.status import StatusFile, instant_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

__all__ = ["DEFAULT_RESTART", "run", "supervise"]

DEFAULT_RESTART = ExponentialDelay()
_STOPS = (signal.SIGTERM, signal.SIGINT)


def run(
    job: Callable[[SparkSession], object],
    *,
    restart: RestartStrategy = DEFAULT_RESTART,
    session: Callable[[], SparkSession] | None = None,
    conf: Mapping[str, str] | None = None,
    status: str | Path | None = None,
    progress_timeout_s: float | None = None,
    stop_timeout_s: float = 60.0,
) -> None:
    """Run a job of streaming queries in a process of its own, and start it again when it fails. Linux, in the main thread.

    `job`: a function at the top of a file, which is given a session and returns its streaming query, or several. Call `run`
    under `if __name__ == "__main__"`: the process imports the file. `session` makes the session (default: headrace's builders,
    with the settings of `conf`). `restart`: `headrace.run.ExponentialDelay` (default) and its like. `status`: a file of
    JSON that says what goes on. `progress_timeout_s`: the job is killed and started again when for so many seconds no batch
    has ended while one was under way; None (default) for any time. SIGTERM and SIGINT end the job after the batch under way,
    which may take `stop_timeout_s` seconds; a second one ends it at once.

    Returns when all queries have ended by themselves. Raises SystemExit with one of `EXIT_STATUSES` otherwise: 143 after a
    stop, 1 where the restart strategy has given up, and at once 2 for wrong options, 65 for lost records, 66 for a checkpoint
    that cannot be used, 67 where another driver has taken over. Raises UsageError for arguments that cannot be.
    """
    if session is not None and conf:
        raise UsageError("settings of a session are given to run(conf=...) or to the function that makes it, not to both")
    order = DriverOrder(FunctionName.of(job), None if session is None else FunctionName.of(session), dict(conf or {}))
    limits = SupervisionLimits(progress_timeout_s, stop_timeout_s)
    end = supervise(order, restart, limits, None if status is None else StatusFile(Path(status)))
    if end.ending is not Ending.COMPLETED:
        raise SystemExit(EXIT_STATUSES[end.ending])


def supervise(order: DriverOrder, restart: RestartStrategy, limits: SupervisionLimits, status: StatusFile | None) -> DriverEnd:
    """Run the job to its end, which is returned and logged. Raises UsageError where a supervisor cannot be."""
    _refuse_where_it_cannot_be()
    if status is not None:
        status.check()
    with _signals() as signals:
        end = _Supervisor(order, SupervisionCore(restart, limits), status, signals).run()
    log.log(logging.INFO if end.ending is Ending.COMPLETED else logging.WARNING, "%s: %s", end.ending.name, end.reason)
    return end


class _Supervisor:
    """See the module. `signals` can be read when the job is to stop."""

    def __init__(self, order: DriverOrder, core: SupervisionCore, status: StatusFile | None, signals: socket.socket) -> None:
        self._order = order
        self._core = core
        self._status = status
        self._driver: DriverProcess | None = None
        self._shown: dict[str, Any] = {}
        self._end: DriverEnd | None = None
        self._ready = selectors.DefaultSelector()
        self._ready.register(signals, selectors.EVENT_READ, self._take_signals)
        self._signals = signals

    def run(self) -> DriverEnd:
        """Until the job is over. Whatever this raises, no driver is left."""
        try:
            self._tell(SupervisionStarted(time.monotonic()))
            while self._end is None:
                for key, _ in self._ready.select(self._time_left_s()):
                    key.data()
                if self._time_left_s() == 0:
                    self._tell(TimePassed(time.monotonic()))
            return self._end
        finally:
            if self._driver is not None:
                self._driver.kill()
            self._ready.close()

    def _time_left_s(self) -> float | None:
        """Until the core is to be told that time has passed; None when it awaits nothing."""
        wake_at_s = self._core.wake_at_s
        return None if wake_at_s is None else max(0.0, wake_at_s - time.monotonic())

    def _tell(self, event: SupervisionEvent) -> None:
        for command in self._core.handle(event):
            self._perform(command)
        self._show()

    def _perform(self, command: SupervisionCommand) -> None:
        match command:
            case StartDriver(number):
                self._start(number)
            case StopDriver():
                self._living.stop()
            case KillDriver():
                self._living.kill()
            case FinishJob(end):
                self._end = end
            case _:
                assert_never(command)

    @property
    def _living(self) -> DriverProcess:
        assert self._driver is not None, "the core speaks of a driver, and there is none"
        return self._driver

    def _start(self, number: int) -> None:
        self._driver = DriverProcess(self._order)
        self._shown = {"pid": self._driver.pid, "number": number, "since": instant_in(0), "queries": [], "batches": {}}
        self._ready.register(self._driver.reports, selectors.EVENT_READ, self._take_news)
        self._ready.register(self._driver.process, selectors.EVENT_READ, self._take_end)

    def _take_signals(self) -> None:
        for number in self._signals.recv(64):
            if number in _STOPS and self._end is None:
                self._tell(JobStopRequested(time.monotonic()))

    def _take_news(self) -> None:
        if self._driver is None:
            return  # its end was ready, too, and came first
        for report in self._driver.news():
            self._shown |= report
            self._tell(DriverProgressed(time.monotonic()))
        if self._driver.is_silent:
            self._ready.unregister(self._driver.reports)

    def _take_end(self) -> None:
        driver = self._living
        with suppress(KeyError):
            self._ready.unregister(driver.reports)
        self._ready.unregister(driver.process)
        end = driver.end()
        self._driver = None
        self._tell(DriverEnded(time.monotonic(), end, random.random()))  # noqa: S311 - jitter
        if self._core.phase is SupervisionPhase.RESTARTING:
            log.warning("the driver is started again in %.1f s: %s", self._time_left_s(), self._core.last_failure)

    def _show(self) -> None:
        if self._status is None:
            return
        delay_s = self._time_left_s() if self._core.phase is SupervisionPhase.RESTARTING else None
        self._status.write(
            {
                "job": str(self._order.job),
                "state": self._core.phase.name,
                "supervisor": {"pid": os.getpid()},
                "active": None if self._driver is None else self._shown,
                "standbys": [],
                "drivers_started": self._core.drivers_started,
                "last_failure": self._core.last_failure,
                "restart_at": None if delay_s is None else instant_in(delay_s),
                "ended": None if self._end is None else _shown_end(self._end),
            }
        )


def _shown_end(end: DriverEnd) -> dict[str, object]:
    return {"ending": end.ending.name, "exit_status": EXIT_STATUSES[end.ending], "reason": end.reason}


def _refuse_where_it_cannot_be() -> None:
    if sys.platform != "linux":
        raise UsageError("supervision needs Linux: a driver's processes are found in /proc")
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("supervision takes SIGTERM, which only the main thread can: call it there")
    if FAMILY_VARIABLE in os.environ:
        raise UsageError(
            'this is a supervised driver already: call run() under `if __name__ == "__main__"`, as a driver imports the file'
        )
    if GATEWAY in os.environ:
        raise UsageError(
            "spark-submit has started the JVM of this process, and a driver that is started again needs a new one. Start it "
            "with python, or `headrace supervise`: each driver runs spark-submit itself, with the settings of conf"
        )


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket on which the numbers of signals arrive that tell the job to stop; what was before comes back afterwards."""
    ours, pythons = socket.socketpair()
    with ours, pythons:
        pythons.setblocking(False)  # noqa: FBT003 - as it is defined
        wakeup_before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, lambda *_: None) for number in _STOPS}
        try:
            yield ours
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup_before)
