"""The process that supervises a job: carries out what `StandbyCore` decides, and shows it what happens. One thread.

With a lease several supervisors on as many hosts know of each other. `LeaseCore` decides which of them leads. Each time one
starts to follow it gets a new `StandbyCore`.
"""

from __future__ import annotations

import logging
import math
import os
import random
import selectors
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, assert_never

from headrace.connectors.base.lease import LeaseStore
from headrace.enumerator.errors import UsageError
from headrace.runners.spark.submitted import as_it_was_submitted
from headrace.runners.spark.supervision import core, standby
from headrace.runners.spark.supervision.driver import DriverOrder
from headrace.runners.spark.supervision.lease import core as leases
from headrace.runners.spark.supervision.lease.store import LeaseStoreThread
from headrace.runners.spark.supervision.process_tree import TREE_VARIABLE, reap_orphans
from headrace.runners.spark.supervision.processes import DriverProcess
from headrace.runners.spark.supervision.status import StatusFile, instant_in

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 86_400.0  # what the kernel is asked to wait at a time: it counts milliseconds in 32 bits
_STOPS = (signal.SIGTERM, signal.SIGINT)
_ONE_STOP_S = 2.0  # within so long a signal and the end of spark-submit are one stop: a terminal's Ctrl-C goes to both


def supervise(
    order: DriverOrder,
    new_core: Callable[[], standby.StandbyCore],
    status: StatusFile | None,
    lease_store: LeaseStore | None = None,
) -> core.DriverEnd:
    """Run the job to its end, which is returned and logged. `lease_store`: None for one host alone. Raises UsageError."""
    _refuse_where_it_cannot_be()
    if status is not None:
        status.check()
    with as_it_was_submitted() as submitter, _signals() as signals:
        end = _Supervisor(order, new_core, status, signals, submitter, lease_store).run()
    log.log(logging.INFO if end.ending is core.Ending.COMPLETED else logging.WARNING, "%s: %s", end.ending.name, end.reason)
    return end


class _Supervisor:
    """See the module. `signals` can be read when the job is to stop, `submitter` when spark-submit is gone."""

    def __init__(
        self,
        order: DriverOrder,
        new_core: Callable[[], standby.StandbyCore],
        status: StatusFile | None,
        signals: socket.socket,
        submitter: int | None,
        lease_store: LeaseStore | None,
    ) -> None:
        self._order, self._new_core, self._status = order, new_core, status
        self._core = new_core()
        self._drivers: dict[int, DriverProcess] = {}
        self._unstarted: dict[int, OSError] = {}
        self._shown: dict[int, dict[str, Any]] = {}
        self._written: dict[str, Any] = {}
        self._end: core.DriverEnd | None = None
        self._ended: core.DriverEnd | None = None
        self._ready = selectors.DefaultSelector()
        self._ready.register(signals, selectors.EVENT_READ, self._take_signals)
        self._signals = signals
        self._stops = 0
        self._is_to_stop = False
        self._abandoned_at_s = -math.inf
        self._lease: leases.LeaseCore | None = None
        if lease_store is not None:
            self._lease = leases.LeaseCore(uuid.uuid4().hex, socket.gethostname(), lease_store.timeout_s)
            self._lease_store = LeaseStoreThread(lease_store)
            answer = self._lease_store.answer
            self._ready.register(self._lease_store.ready, selectors.EVENT_READ, lambda: self._tell_lease(answer()))
        self._trouble: str | None = None
        self._cold: str | None = None
        self._is_suspect = False
        self._waiting: int | None = None  # the driver of which was said last that it may not be called yet
        if submitter is not None:
            self._ready.register(submitter, selectors.EVENT_READ, partial(self._take_end_of_submitter, submitter))

    def run(self) -> core.DriverEnd:
        """Until the job is over. Whatever this raises, no driver is left."""
        try:
            if self._lease is None:
                self._tell(core.SupervisionStarted(time.monotonic()))
            else:
                self._tell_lease(leases.LeaseStarted(time.monotonic()))
            while self._end is None:
                stint = self._core
                for key, _ in self._ready.select(self._time_left_s()):
                    if self._end is None and self._core is stint:  # else it may be of a driver that is no more
                        key.data()
                if self._end is None and _until(self._core.wake_at_s) == 0:
                    self._tell(core.TimePassed(time.monotonic()))
                if self._end is None and self._lease is not None and _until(self._lease.wake_at_s) == 0:
                    self._tell_lease(leases.ReadDue(time.monotonic()))
            return self._end
        finally:
            for driver in self._drivers.values():
                driver.kill()
            self._ready.close()

    def _time_left_s(self) -> float | None:
        due = (self._core.wake_at_s, None if self._lease is None else self._lease.wake_at_s)
        left_s = [left for left in map(_until, due) if left is not None]
        return min(LONGEST_WAIT_S, *left_s) if left_s else None

    def _tell(self, event: standby.StandbyEvent) -> None:
        for command in self._core.handle(event):
            self._perform(command)
        self._show()
        while self._unstarted:
            number, error = self._unstarted.popitem()
            self._tell_end(number, core.DriverEnd(core.Ending.FAILED, f"the driver could not be started: {error}"))
        if self._ended is not None:
            ended, self._ended = self._ended, None
            self._tell_lease(leases.JobEnded(time.monotonic(), ended, self._is_to_stop))

    # --- the lease ----------------------------------------------------------------------------------------------------

    def _tell_lease(self, event: leases.LeaseEvent) -> None:
        assert self._lease is not None
        for command in self._lease.handle(event):
            self._perform_for_lease(command)
        if self._lease.trouble not in (None, self._trouble):
            log.warning(
                "%s; meanwhile this supervisor does not take over, and one that leads continues with the driver that it has",
                self._lease.trouble,
            )
        self._trouble = self._lease.trouble
        if self._lease.is_suspect and not self._is_suspect:
            log.warning(
                "this supervisor leads, and may be taken for dead, as no process has heard of it; it continues until it is "
                "fenced, and calls no other driver before it has seen that no other process leads"
            )
        self._is_suspect = self._lease.is_suspect
        self._show()

    def _perform_for_lease(self, command: leases.LeaseCommand) -> None:
        match command:
            case leases.ReadLeaseStore() | leases.WriteHeartbeat():
                self._lease_store.ask(command)
            case leases.Follow(reason):
                log.warning("it follows, and keeps a driver warm: %s", reason)
                self._start_over()
                if self._is_to_stop:
                    self._tell_lease(leases.LeaveRequested(time.monotonic()))
                else:
                    self._tell(standby.WarmUp(time.monotonic()))
            case leases.Lead():
                log.warning("it leads, and runs the job")
                self._tell(core.SupervisionStarted(time.monotonic()))
            case leases.MayCall(number):
                if number == self._waiting:
                    log.warning("driver %d is called: the lease store was seen, and no other process leads", number)
                    self._waiting = None
                self._call(number)
            case leases.EndLease(end):
                if self._core.drivers:
                    self._start_over()
                self._end = end
            case _:
                assert_never(command)

    def _want_to_call(self, number: int) -> None:
        assert self._lease is not None
        self._tell_lease(leases.CallWanted(time.monotonic(), number))
        if self._lease.waiting == number:
            self._waiting = number
            log.warning("driver %d waits until this supervisor has seen that no other process leads", number)

    def _tell_of_driver(self, number: int, event: leases.DriverHeard | leases.DriverLost) -> None:
        if self._lease is not None and number == self._core.called and self._lease.phase is leases.LeasePhase.LEADING:
            self._tell_lease(event)

    def _start_over(self) -> None:
        """Kill all drivers, and forget them, and all that was decided about them. Their end is not reported."""
        for driver in self._drivers.values():
            with suppress(KeyError):
                self._ready.unregister(driver.reports)
            self._ready.unregister(driver.process)
            driver.kill()
            driver.end()
        self._drivers.clear()
        reap_orphans()
        self._unstarted.clear()
        self._shown.clear()
        self._waiting = None
        self._core = self._new_core()

    # --- drivers ------------------------------------------------------------------------------------------------------

    def _perform(self, command: standby.StandbyCommand) -> None:
        match command:
            case standby.Launch(number):
                self._launch(number)
            case standby.CallDriver(number) if self._lease is not None:
                self._want_to_call(number)
            case standby.CallDriver(number):
                self._call(number)
            case standby.Stop(number) if number in self._drivers:
                self._drivers[number].stop()
            case standby.Kill(number) if number in self._drivers:
                self._drivers[number].kill()
            case standby.Stop() | standby.Kill():
                pass  # it could not be started
            case standby.Finish(end) if self._lease is not None:
                self._ended = end
            case standby.Finish(end):
                self._end = end
            case _:
                assert_never(command)

    def _launch(self, number: int) -> None:
        try:
            driver = self._drivers[number] = DriverProcess(self._order)
        except OSError as error:  # no more processes, descriptors or memory: that passes
            self._unstarted[number], self._shown[number] = error, {"pid": None, "number": number, "since": instant_in(0)}
            return
        self._shown[number] = {"pid": driver.pid, "number": number, "since": instant_in(0)}
        self._ready.register(driver.reports, selectors.EVENT_READ, partial(self._take_news, number))
        self._ready.register(driver.process, selectors.EVENT_READ, partial(self._take_end, number))

    def _call(self, number: int) -> None:
        if number in self._drivers:  # else it could not be started
            self._drivers[number].call()

    def _take_signals(self) -> None:
        for number in self._signals.recv(64):
            if number in _STOPS:
                self._stops += 1
                if self._stops > 1 or time.monotonic() - self._abandoned_at_s >= _ONE_STOP_S:
                    self._stop()

    def _take_end_of_submitter(self, submitter: int) -> None:
        """Taken for a first SIGTERM. Ctrl-C ends spark-submit and comes here, too, in any order: that is one stop, not two."""
        self._ready.unregister(submitter)
        if not self._stops:
            self._stop()
        self._abandoned_at_s = time.monotonic()  # after that, which may have killed a driver and waited for its end

    def _stop(self) -> None:
        if self._end is not None:
            return
        self._is_to_stop = True
        if self._lease is None or self._lease.phase is leases.LeasePhase.LEADING:
            self._tell(core.JobStopRequested(time.monotonic()))
        elif self._lease.phase is not leases.LeasePhase.LEAVING or self._stops > 1:
            self._tell_lease(leases.LeaveRequested(time.monotonic()))

    def _take_news(self, number: int) -> None:
        driver = self._drivers.get(number)
        if driver is None:
            return  # its end was ready, too, and came first
        for said in driver.news():
            report = _report(said)
            if self._lease is not None and number == self._lease.waiting and report is standby.DriverReport.ALIVE:
                report = standby.DriverReport.PROGRESSED  # it has nothing to do: no progress is not a fault of its own
            if (cold := said.get("cold")) not in (None, self._cold):
                log.warning(
                    "the session is not a warm one, so that a takeover or restart also waits for Spark's Python processes: %s",
                    cold,
                )
                self._cold = cold
            self._shown[number] |= {name: what for name, what in said.items() if name != "armed"}
            self._tell(standby.DriverReported(number, time.monotonic(), report))
            self._tell_of_driver(number, leases.DriverHeard(time.monotonic()))
        if driver.is_silent:
            self._ready.unregister(driver.reports)

    def _take_end(self, number: int) -> None:
        driver = self._drivers[number]
        with suppress(KeyError):
            self._ready.unregister(driver.reports)
        self._ready.unregister(driver.process)
        end = driver.end()
        del self._drivers[number]
        reap_orphans(*(other.pid for other in self._drivers.values()))
        self._tell_end(number, end)

    def _tell_end(self, number: int, end: core.DriverEnd) -> None:
        was_called = number == self._core.called
        self._tell_of_driver(number, leases.DriverLost(time.monotonic()))
        del self._shown[number]
        self._tell(standby.DriverDied(number, time.monotonic(), end, random.random()))  # noqa: S311 - jitter
        job, called = self._core.job, self._core.called
        if not was_called:
            if self._end is None:
                log.warning("a standby has ended: %s", end.reason)
        elif job.phase is core.SupervisionPhase.RESTARTING:
            log.warning("the driver is started again in %.1f s: %s", _until(job.wake_at_s), job.last_failure)
        elif called is not None:
            waits = self._lease is not None and self._lease.waiting == called
            does = "is to take over" if waits else "takes over"
            log.warning("driver %d %s: %s", called, does, job.last_failure)

    def _show(self) -> None:
        if self._status is None:
            return
        known, end = self._core, self._end
        restarts = known.job.phase is core.SupervisionPhase.RESTARTING
        shown = {
            "job": str(self._order.job),
            "state": known.job.phase.name,
            "supervisor": {"pid": os.getpid()},
            "active": None if known.called is None else self._shown_driver(known.called),
            "standbys": [self._shown_driver(number) for number in known.standbys],
            "drivers_started": known.drivers_started,
            "takeovers": known.takeovers,
            "last_failure": known.job.last_failure,
            "standby_failure": known.standby_failure,
            "lease": None if self._lease is None else _shown_lease(self._lease),
            "restart_at": instant_in(_until(known.job.wake_at_s) or 0) if restarts else None,
            "ended": end and {"ending": end.ending.name, "exit_status": core.EXIT_STATUSES[end.ending], "reason": end.reason},
        }
        # Drivers say twice a second that they live: so what was not written is tried again.
        if shown != self._written and self._status.write(shown):
            self._written = shown

    def _shown_driver(self, number: int) -> dict[str, Any]:
        shown = {**self._shown[number], "state": self._core.drivers[number].phase.name}
        return {"queries": [], "batches": {}, **shown} if number == self._core.called else shown


def _report(said: Mapping[str, Any]) -> standby.DriverReport:
    match said:
        case {"armed": True}:
            return standby.DriverReport.ARMED
        case {"queries": _}:
            return standby.DriverReport.BEGAN
        case {"batches": batches}:
            return standby.DriverReport.BATCHES if batches else standby.DriverReport.PROGRESSED
        case _:
            return standby.DriverReport.ALIVE


def _until(at_s: float | None) -> float | None:
    return None if at_s is None else max(0.0, at_s - time.monotonic())


def _shown_lease(lease: leases.LeaseCore) -> dict[str, object]:
    leads = lease.phase is leases.LeasePhase.LEADING
    leader = socket.gethostname() if leads else None if lease.leader is None else lease.leader.host
    return {
        "state": lease.phase.name,
        "leader": leader,
        "term": lease.term if leads else None,
        "suspect": lease.is_suspect,
        "waiting": lease.waiting is not None,
        "trouble": lease.trouble,
    }


def _refuse_where_it_cannot_be() -> None:
    if sys.platform != "linux":
        raise UsageError("supervision needs Linux: a driver's processes are found in /proc")
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("supervision takes SIGTERM, which only the main thread can: call it there")
    if TREE_VARIABLE in os.environ:
        raise UsageError(
            'this is a supervised driver already: call run() under `if __name__ == "__main__"`, as a driver imports the file'
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
