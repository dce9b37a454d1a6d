"""The supervisor of `headrace run`, in the user's process: starts the coordinator, and again when it has failed."""

from __future__ import annotations

import logging
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from headrace._extras import needs_extra
from headrace.connectors.base.commit import StaleEpochError
from headrace.enumerator import errors
from headrace.enumerator.errors import HeadraceError, RunFailedError, StateError, UnclassifiedError, UsageError
from headrace.runners.job_file import PipelineFile
from headrace.runners.local.coordinator import CoordinatorOrder, RunBegan, RunOutcome, coordinate
from headrace.runners.local.monitoring.status import read_status, remove_status
from headrace.runners.local.monitoring.supervised import supervised
from headrace.runners.local.processes import CALLED_AGAIN, CALLED_AGAIN_ERROR, PROCESS_NAME, end_group, pipe, reap_group
from headrace.runners.local.rescale import RescaleRequest, read_requests
from headrace.runners.local.settings import RunSettings
from headrace.runners.local.storage.places import make_machine_folder
from headrace.runners.pipeline import PickledPipeline
from headrace.runners.restarts import GiveUp, Restarts

log = logging.getLogger(__name__)

Starting = Callable[[Iterable[str]], ForkContext | ForkServerContext]

_KINDS: Mapping[str, type[HeadraceError]] = {
    "StaleEpochError": StaleEpochError,
    **{name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, HeadraceError)},
}

LOOK_S = 1.0
START_S = 60.0
"""With a coordinator that continues after one that has ended well, as for a rescale: it has its checkpoints soon."""


def supervise(
    job: PickledPipeline | PipelineFile, settings: RunSettings, processes: Starting, watch: Callable[[], None] = lambda: None
) -> Path | None:
    """Run until the source is finished, a signal stops it, or it has failed for good. See `Pipeline.run`.

    `processes`: how the coordinator's is started, with these modules loaded (`forked`, `forked_apart`). `watch` is called about
    once a second meanwhile, by this thread; it returns at once.
    """
    with needs_extra("run", "grpc", "google"):
        from headrace.runners.local.wire import client, server
    # gRPC may be loaded before a fork, not used.
    context = processes((coordinate.__module__, client.__name__, server.__name__, *job.modules()))
    with suppress(OSError, UsageError):  # which the coordinator meets, too, and names
        make_machine_folder(settings.checkpoints)
    with supervised(settings.folder) as is_first:
        if is_first:
            remove_status(settings.folder)  # of a lifetime before, not to be taken for this one's
        try:
            return _supervise(job, settings, context, watch)
        finally:
            if is_first:  # else it may be of the other one, which continues
                remove_status(settings.folder)


def _supervise(
    job: PickledPipeline | PipelineFile,
    settings: RunSettings,
    context: ForkContext | ForkServerContext,
    watch: Callable[[], None],
) -> Path | None:
    restarts = Restarts(settings.restart)
    order = CoordinatorOrder(job, settings, version("headrace"), time.time(), _asked_before(settings.folder), restarts)
    coordinator = CoordinatorProcess(restarts, watch)
    with _stopped_by_signals(coordinator):
        while True:
            order = replace(order, restarts=coordinator.restarts, run=coordinator.run_name, restarted=coordinator.restarted)
            outcome = coordinator.run(order, context)
            coordinator.start_s = 0.0 if outcome.workers is None else START_S
            if outcome.workers is not None:
                settings = replace(order.settings, workers=outcome.workers)
                order = replace(order, settings=settings, replanned=outcome.replanned)
                continue
            if outcome.error is None:
                return outcome.savepoint
            error = _error_of(outcome)
            if outcome.is_final or coordinator.stopping.is_set():
                raise error
            restarts = coordinator.restarts
            failed = restarts.failed_unclassified if UnclassifiedError.__name__ in outcome.kinds else restarts.failed
            decision = failed(time.monotonic(), random.random())  # noqa: S311 - jitter
            if isinstance(decision, GiveUp):
                raise RunFailedError(f"{outcome.error}; not restarted: {decision.reason}") from error
            log.warning("the run has failed and starts again in %.1f s: %s", decision.delay_s, outcome.error)
            with page_between(settings):
                is_stopped = coordinator.is_stopped_within(decision.delay_s)
            if is_stopped:
                raise RunFailedError(f"stopped, without a last checkpoint, while it was to start again after: {outcome.error}")
            coordinator.restarted += 1


@contextmanager
def page_between(settings: RunSettings) -> Iterator[None]:
    """Serve metrics and /healthz here in the meantime, where the run serves them: no coordinator does."""

    def read() -> Mapping[str, Any]:
        with suppress(HeadraceError):
            return read_status(settings.folder) or {}
        return {}

    with ExitStack() as meanwhile:
        if settings.metrics_port is not None:
            with suppress(ImportError, UsageError):  # which a coordinator meets, too, and names
                from headrace.runners.local.monitoring.metrics_page import OneThreadServer, RunPage

                place, healthy_s = (settings.metrics_address, settings.metrics_port), settings.schedule.longest_gap_s
                meanwhile.callback(RunPage(read, *place, healthy_s, OneThreadServer).close)
        yield


def _asked_before(folder: Path) -> tuple[RescaleRequest, ...]:
    """Requests to rescale from before this start, which says itself how many workers there are."""
    try:
        return read_requests(folder)
    except (StateError, OSError):  # which the coordinator meets, too, and names
        return ()


def _check_directory() -> None:
    """Raise UsageError where the working directory is gone: no process could be started, however often it is tried."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UsageError("the working directory of this process was removed: start again in one that is there") from error


class CoordinatorProcess:
    """The coordinator of now, if there is one. `stop` may be called by a signal handler.

    `restarts`: all failures so far, of coordinators and of their workers. `run_name`: None until a coordinator has reported it.
    `restarted`: how many coordinators have failed. `start_s`: how long the next one is waited for, once it is to stop, before
    it has its checkpoints.
    """

    def __init__(self, restarts: Restarts, watch: Callable[[], None]) -> None:
        """`watch` is called about once a second while `run` or `is_stopped_within` waits."""
        self.restarts = restarts
        self._watch = watch
        self.run_name: str | None = None
        self.restarted = 0
        self.start_s = 0.0
        self.stopping = threading.Event()
        self._coordinator: Connection | None = None

    def stop(self) -> None:
        self.stopping.set()
        coordinator = self._coordinator
        if coordinator is not None:
            with suppress(OSError):  # it has ended meanwhile
                coordinator.send("stop")

    def is_stopped_within(self, delay_s: float) -> bool:
        """Wait that long, or until `stop` is called."""
        end_s = time.monotonic() + delay_s
        while (left_s := end_s - time.monotonic()) > 0 and not self.stopping.wait(min(left_s, LOOK_S)):
            self._watch()
        return self.stopping.is_set()

    def run(self, order: CoordinatorOrder, context: ForkContext | ForkServerContext) -> RunOutcome:
        """One coordinator, from its start until it and all of its workers are gone."""
        _check_directory()
        with ExitStack() as until_then:
            try:
                process, ours, lifeline = _started(order, context, until_then)
            except OSError as error:  # no space, memory or number for it: as much a failure as a coordinator that dies
                return RunOutcome(error=f"no coordinator could be started: {error}", kinds=(RunFailedError.__name__,))
            self._coordinator = ours
            if self.stopping.is_set():
                self.stop()
            try:
                return self._outcome(ours, process, order)
            finally:
                self._coordinator = None
                assert process.pid is not None
                process.kill()
                process.join()
                if not end_group(process.pid, lifeline, timeout_s=30.0):  # they are stuck in the kernel
                    raise RunFailedError(f"processes of group {process.pid} cannot be killed: a successor may not start")
                reap_group(process.pid)

    def _outcome(
        self,
        coordinator: Connection,
        process: Any,  # noqa: ANN401 - of multiprocessing's context
        order: CoordinatorOrder,
    ) -> RunOutcome:
        """What the coordinator says last. Before it states which run it is of, and each failure of its workers.

        One that is to stop before it has its checkpoints is not waited for after `start_s`: it may wait for their
        store, and has done nothing.
        """
        has_checkpoints, until_s = False, time.monotonic() + self.start_s
        with suppress(EOFError, OSError):  # it died before it could tell
            while (ready := wait([coordinator, process.sentinel], LOOK_S)) != [process.sentinel] or coordinator.poll():
                self._watch()
                if not ready:
                    if self.stopping.is_set() and not has_checkpoints and time.monotonic() > until_s:
                        return _stopped_at_start(order)
                    continue
                match coordinator.recv():
                    case RunOutcome() as outcome:
                        return outcome
                    case RunBegan(run):
                        self.run_name, has_checkpoints = run, True
                    case Restarts() as restarts:
                        self.restarts = restarts
        process.join()
        if process.exitcode == CALLED_AGAIN:
            return RunOutcome(error=CALLED_AGAIN_ERROR, kinds=(UsageError.__name__,), is_final=True)
        return RunOutcome(error=f"the coordinator's process ended with status {process.exitcode}")


def _stopped_at_start(order: CoordinatorOrder) -> RunOutcome:
    """Where the run has read nothing yet, and a savepoint is not asked for, it is stopped as any other."""
    if order.run is None and order.settings.savepoints is None:
        return RunOutcome()
    missing = "a last checkpoint" if order.settings.savepoints is None else "a savepoint"
    return RunOutcome(
        error=f"stopped, without {missing}, before {order.settings.checkpoints} was read", kinds=(RunFailedError.__name__,)
    )


def _started(
    order: CoordinatorOrder, context: ForkContext | ForkServerContext, until_then: ExitStack
) -> tuple[BaseProcess, Connection, Connection]:
    """A coordinator's process, the connection to it, and its lifeline. `until_then` closes what it needs. Raises OSError."""
    (ours, its), (lifeline, held) = pipe(), pipe()
    until_then.enter_context(ours)
    until_then.enter_context(lifeline)
    with its, held:
        folder = until_then.enter_context(tempfile.TemporaryDirectory(prefix="headrace-"))  # which is for this user alone
        process = context.Process(
            target=coordinate, args=(order, Path(folder) / "coordinator", its, held), name=f"{PROCESS_NAME}coordinator"
        )
        process.start()
    return process, ours, lifeline


def _error_of(outcome: RunOutcome) -> HeadraceError:
    """The error as it was in the coordinator, by the narrowest of its classes that all connectors have."""
    text = outcome.error or ""
    kinds = [_KINDS[name] for name in outcome.kinds if name in _KINDS]
    if not kinds or kinds[0] is HeadraceError:
        return RunFailedError(": ".join((*outcome.kinds[:1], text)))
    return kinds[0](text)


@contextmanager
def _stopped_by_signals(coordinator: CoordinatorProcess) -> Iterator[None]:
    """SIGTERM and Ctrl-C stop with a last checkpoint; the second one ends at once. Only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: object) -> None:
        if coordinator.stopping.is_set():
            raise KeyboardInterrupt
        log.warning("%s: stopping with a last checkpoint", signal.Signals(number).name)
        coordinator.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
