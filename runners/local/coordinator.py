"""The coordinator process of `headrace run`: carries out what `RunCore` decides. It runs no transform.

Its main thread owns the core, the timers and the workers' processes, and takes events from one queue. One thread stores and
commits, one asks the source for splits and publishes positions; gRPC's threads receive.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

from headrace._extras import needs_extra
from headrace.connectors.base.commit import JobCommitter
from headrace.enumerator import errors
from headrace.enumerator import events as ev
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.enumerator import create_enumerator, restore_enumerator
from headrace.enumerator.errors import HeadraceError, RetriableError, StateError, UsageError
from headrace.enumerator.resumed import resumed, selected
from headrace.enumerator.source_driver import SourceDriver, can_pass, is_refusal
from headrace.runners.job_file import PipelineFile
from headrace.runners.local import events as run
from headrace.runners.local.balanced import BalancedEnumerator, BalancedPieces
from headrace.runners.local.checkpoints import (
    CheckpointNotStoredError,
    CheckpointStore,
    RunCheckpoint,
    RunCheckpointSerializer,
    has_run,
)
from headrace.runners.local.commit.committer import RunCommitter
from headrace.runners.local.core import RunCore
from headrace.runners.local.monitoring.lag import LagWatch
from headrace.runners.local.monitoring.status import RunStatus, last_progress_s, remove_status
from headrace.runners.local.processes import WorkerProcesses, leave_signals_to_supervisor
from headrace.runners.local.replan import Replanning
from headrace.runners.local.rescale import RescaleRequest, Rescaling
from headrace.runners.local.savepoints import begin_with, given_savepoint, make_savepoint_folder, take_savepoint
from headrace.runners.local.settings import Retention, RunSettings
from headrace.runners.local.storage.files import NoPlaceError, UnusableError
from headrace.runners.local.storage.places import run_files, usable
from headrace.runners.local.worker_pool import WorkerPool
from headrace.runners.pipeline import PickledPipeline, PipelineSpec
from headrace.runners.restarts import Restarts

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often the coordinator looks for workers that it has not heard."""

PUBLISH_S = 30.0
"""The end of a run waits so long for the positions of its last checkpoint to be published."""

_FINAL = (
    errors.FencedError, StateError, UsageError, errors.DataLossError, errors.AuthenticationError, errors.BadRecordError,
    errors.RunFailedError,
)  # fmt: skip
"""What starting again does not fix."""


@dataclass(frozen=True)
class CoordinatorOrder:
    """What a coordinator's process is started with.

    `started_s`: when the command was started, in seconds of the epoch. `passed_over`: requests to rescale from before.
    `restarts`: the failures of coordinators and workers so far. After a worker's failure the supervisor is sent the new state.
    `run`: its name, as the first coordinator has reported it; None for that one. `restarted`: how many have failed before.
    `replanned`: what the last start is for, as `RunOutcome`. `command`: another name of each start, which all of its
    coordinators have.
    """

    pipeline: PickledPipeline | PipelineFile
    settings: RunSettings
    version: str
    started_s: float
    passed_over: tuple[RescaleRequest, ...]
    restarts: Restarts
    run: str | None = None
    restarted: int = 0
    replanned: str | None = None
    command: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True)
class RunBegan:
    """What a coordinator shows its supervisor as soon as it has the folder."""

    run: str


@dataclass(frozen=True)
class RunOutcome:
    """How a coordinator ended. `error` is None for a run that is finished or was stopped, and has written this `savepoint`.

    `workers`: the run is to continue with this many; None for one that is over. `replanned`: of its source it was said, or is
    to be seen at the next start, that this has changed (`DiscoveryResult.replan`).
    `kinds`: names of the error's classes, the narrowest first; `is_final`: starting again does not fix it.
    """

    finished: bool = False
    savepoint: Path | None = None
    error: str | None = None
    kinds: tuple[str, ...] = ()
    is_final: bool = False
    workers: int | None = None
    replanned: str | None = None


def coordinate(order: CoordinatorOrder, socket: Path, supervisor: Connection, lifeline: Connection) -> None:
    """The main function of a coordinator's process. `supervisor` says "stop"; it is sent the Restarts after each failure of a
    worker, and in the end a RunOutcome.

    `socket`, for its workers, is in a folder for this user alone. `lifeline` is open as long as this
    process is alive, or one that it has started.
    """
    os.setpgid(0, 0)  # the group that its workers join, and that ends with it
    leave_signals_to_supervisor()
    util.register_after_fork(supervisor, Connection.close)  # its end is to be this process's end
    worker_processes = WorkerProcesses()  # first: what the user's file does may make a fork unsafe
    try:
        outcome = _opened(order, socket, supervisor, worker_processes)
    except Exception as error:
        log.debug("the coordinator has failed", exc_info=True)
        outcome = _failure(error)
    finally:
        worker_processes.close(0.0)
    supervisor.send(outcome)
    lifeline.close()


def _failure(error: Exception) -> RunOutcome:
    """A mistake in a program, as a library's that was given a wrong argument, may pass or never: it is tried some times."""
    kinds = tuple(kind.__name__ for kind in type(error).__mro__)
    if isinstance(error, TypeError | AttributeError | NameError):
        kinds = (*kinds, errors.UnclassifiedError.__name__)
    return RunOutcome(error=str(error) or kinds[0], kinds=kinds, is_final=isinstance(error, _FINAL))


def _opened(order: CoordinatorOrder, socket: Path, supervisor: Connection, worker_processes: WorkerProcesses) -> RunOutcome:
    pipeline = order.pipeline.load()
    pipeline.outputs.check_locks()
    log.debug("the pipeline is loaded")
    positions = CheckpointSerializer(pipeline.source.name, pipeline.source.split_serializer)
    serializer = RunCheckpointSerializer(positions, pipeline.outputs.handles)
    checkpoints = order.settings.checkpoints
    with _good_before(order, errors.AuthenticationError, errors.UnclassifiedError, NoPlaceError), usable(checkpoints):
        files = run_files(checkpoints)
        if order.run is not None and not has_run(files):
            raise _gone(checkpoints, order.run)
        savepoint = given_savepoint(order.settings.savepoint_file, files)  # first: nothing is made for one that is not there
        if (folder := order.settings.savepoint_folder) is not None:
            make_savepoint_folder(folder)
        after = None if order.run is None else order.command  # nothing of it is claimed yet
        store: CheckpointStore[Any, Any] = CheckpointStore(
            checkpoints, serializer, order.settings.retained, order.command, after
        )
    try:
        if order.run not in (None, store.registry.run):
            raise _gone(checkpoints, order.run)
        supervisor.send(RunBegan(store.registry.run))
        remove_status(order.settings.folder)  # of a lifetime before
        with _good_before(order):
            begin_with(savepoint, store, positions, partial(resumed, pipeline.source))
            coordination = _Coordination(order, socket, pipeline, store, worker_processes, supervisor.send)
        threading.Thread(target=coordination.listen, args=(supervisor,), daemon=True).start()
        return coordination.run()
    finally:
        store.close()


def _gone(checkpoints: str, run: str | None) -> StateError:
    """The error for a folder without what the run has stored there: to start over would be to write all of it again."""
    return StateError(
        f"{checkpoints}: the checkpoints of this run, {run}, were removed while it was running, and to start over would write "
        "all of it again. Put them back, and start it again; if they are lost, start in a new folder, with a savepoint if any"
    )


@contextmanager
def _good_before(order: CoordinatorOrder, *mistakes: type[HeadraceError]) -> Iterator[None]:
    """An address that cannot be bound, or a store that refuses, is a mistake of who starts the run. A later coordinator may
    find its port taken, or the store refusing, for a while: that is a failure like others, so RetriableError. So may a
    folder, in which it stays more often.
    """
    try:
        yield
    except UnusableError as error:
        if order.run is None:
            raise
        raise _in_use(error) from error
    except mistakes as error:
        if order.run is None:
            raise
        raise RetriableError(str(error)) from error


def _in_use(error: Exception) -> Exception:
    """Of a folder that a run has worked in: tried again, and a bounded number of times, as it may never be usable again."""
    return errors.UnclassifiedError(str(error)) if isinstance(error, UnusableError) else error


@dataclass(frozen=True)
class _ProcessEnded:
    """A worker's process is gone, or never was: `how` says it."""

    number: int
    how: str


class _Coordination:
    """One lifetime of a coordinator."""

    def __init__(
        self,
        order: CoordinatorOrder,
        socket: Path,
        pipeline: PipelineSpec,
        store: CheckpointStore[Any, Any],
        worker_processes: WorkerProcesses,
        tell: Callable[[Restarts], None],
    ) -> None:
        """`tell`: to the supervisor. Called by the main thread."""
        self._order, self._pipeline, self._store = order, pipeline, store
        self._worker_processes, self._tell_supervisor = worker_processes, tell
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Any]] = []
        self._sequence = itertools.count()
        self._outcome: RunOutcome | None = None
        settings = order.settings
        self._rescaling = Rescaling(settings.folder, settings.workers, order.passed_over)
        self._replanning = Replanning(order.replanned)
        self._asked_s = time.monotonic()
        self._driver = SourceDriver(pipeline.source, pipeline.source.create_discovery(), tolerates=is_refusal)
        self._commits = ThreadPoolExecutor(1, "commits")
        self._asking = ThreadPoolExecutor(1, "discovery")
        number = store.registry.next_number
        store.add_worker(number)
        restored: RunCheckpoint[Any, Any] | None = store.latest()
        self._core = self._core_from(restored, number + 1)
        self._committer = RunCommitter(store, pipeline.sink, restored, number, self._is_stored, pipeline.source.check_readable)
        self._job: JobCommitter[Any] = JobCommitter(store.registry.run, self._committer)
        self._has_recovered = False
        self._stored_id = 0
        self._measuring = ThreadPoolExecutor(1, "lag")
        positions, wait_s = None if restored is None else restored.positions, settings.schedule.longest_wait_s
        self._lag = LagWatch(pipeline.source, positions, wait_s, lambda ask: self._in(self._measuring, ask))
        self._pool = WorkerPool(order.pipeline, pipeline, settings, order.version, socket, worker_processes, self._events.put)
        progress_s = last_progress_s(order.started_s, store.last_written_s, time.time())
        self._status = RunStatus(store.registry.run, settings.folder, progress_s, store.size, restarted=order.restarted)

    def _core_from(self, restored: RunCheckpoint[Any, Any] | None, next_number: int) -> RunCore[Any, Any]:
        settings = self._order.settings
        source = self._pipeline.source
        common = {"parallelism": settings.workers, "discovery_interval_s": source.discovery_interval_s}
        assignment = BalancedPieces if source.in_pieces else BalancedEnumerator
        if restored is None:
            enumerator: Any = create_enumerator(assignment, **common)  # type: ignore[arg-type]
        else:
            positions = selected(source, restored.positions)
            if positions.exhausted and all(state.finished for state in positions.splits):
                log.warning("the run has ended with checkpoint %d, so that nothing is read", restored.positions.checkpoint_id)
            enumerator = restore_enumerator(assignment, positions, **common)  # type: ignore[arg-type]
        assert isinstance(enumerator, BalancedPieces)
        return RunCore(
            enumerator,
            settings.schedule,
            self._order.restarts,
            next_number=next_number,
            last_checkpoint_id=self._store.last_id,
            uncommitted=0 if restored is None or restored.completed else len(restored.handles),
        )

    def run(self) -> RunOutcome:
        """Until the run ends, and what is to be left of it is there. Every worker's process has ended, too, when it returns."""
        outcome = self._ran()
        if outcome.error is not None:
            return outcome
        settings = self._order.settings
        if self._is_to_continue(outcome):
            workers = self._rescaling.next_workers() if self._rescaling.is_under_way else settings.workers
            return replace(outcome, workers=workers, replanned=self._replanning.change)
        folder = settings.savepoint_folder
        with usable(f"the folder for savepoints {folder}"):
            path = None if folder is None else take_savepoint(self._store.files, folder)
        if not outcome.finished and settings.retention is Retention.DELETE_ON_CANCELLATION:
            if self._has_recovered:
                self._committer.forget()
            else:
                log.warning("the checkpoints stay, as the run was stopped before it had reached its sink")
        return replace(outcome, savepoint=path)

    def _ran(self) -> RunOutcome:
        self._worker_processes.watch(lambda number, how: self._events.put(_ProcessEnded(number, how)), self._events.put)
        try:
            self._serve_metrics()
            self._handle(run.RunStarted())
            while self._outcome is None:
                self._take(self._next())
            return self._outcome
        except Exception as error:  # noqa: BLE001 - the supervisor decides; its workers end first
            self._outcome = _failure(_in_use(error))
            return self._outcome
        finally:
            # A worker that was sent StopWorker has 10 s; after a failure none has a reason to continue.
            self._pool.close(0.0 if self._outcome is None or self._outcome.error is not None else 10.0)
            if self._is_over(self._outcome):  # else who looks is to see that it starts again
                self._publish_last()
                remove_status(self._order.settings.folder)
            with suppress(Exception):  # the outcome is, whatever its cleaning up says
                self._driver.close()

    def _publish_last(self) -> None:
        """Wait some time for the last positions of a run that has ended well: no later ones are another try."""
        if self._outcome is None or self._outcome.error is not None or not self._stored_id:
            return  # without a checkpoint there are none, and the first discovery may keep its thread for a minute
        deadline_s, publisher = time.monotonic() + PUBLISH_S, self._driver.publisher
        reason = f"not within {PUBLISH_S:g} s"

        def publish() -> None:
            while not publisher.publish_again() and time.monotonic() < deadline_s:
                if publisher.failure is not None and not can_pass(publisher.failure):
                    raise publisher.failure
                time.sleep(0.5)

        try:
            self._asking.submit(publish).result(PUBLISH_S)
        except TimeoutError:
            pass  # it ends with this process
        except Exception as error:  # noqa: BLE001 - the run has ended well: its positions are in its checkpoint
            reason = str(error)
        if publisher.has_unpublished:
            log.warning(
                "the positions of the last checkpoint are not published (%s): a group shows earlier ones until the run is "
                "started again; the checkpoint itself is complete",
                reason,
            )

    def _is_over(self, outcome: RunOutcome | None) -> bool:
        if outcome is None or outcome.error is not None:
            return outcome is not None and outcome.is_final
        return not self._is_to_continue(outcome)

    def _is_to_continue(self, outcome: RunOutcome) -> bool:
        """Whether a run that has ended well is to start again, from its last checkpoint."""
        return not outcome.finished and (self._rescaling.is_under_way or self._replanning.is_under_way)

    def listen(self, supervisor: Connection) -> None:
        """In its own thread: what the supervisor says. Without one, the whole group ends."""
        try:
            while supervisor.recv() == "stop":
                self._events.put(run.StopRequested())
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)

    # --- events -------------------------------------------------------------------------------------------------------

    def _next(self) -> Any:  # noqa: ANN401 - an event of the core, or one of headrace; None if nothing has come
        now_s = time.monotonic()
        if self._timers and self._timers[0][0] <= now_s:
            return heapq.heappop(self._timers)[2]
        wait_s = min(LOOK_S, self._timers[0][0] - now_s) if self._timers else LOOK_S
        try:
            return self._events.get(timeout=wait_s)
        except queue.Empty:
            return None

    def _take(self, event: Any) -> None:  # noqa: ANN401 - as `_next` gives
        match event:
            case None:
                pass
            case _ProcessEnded(number, how):
                self._handle(self._pool.ended(number, how))
                with suppress(OSError):  # it is gone, and so is this process soon
                    self._tell_supervisor(self._order.restarts)
            case Exception():  # a thread of the coordinator has met what it cannot answer
                raise event
            case ev.SplitsDiscovered(findings):
                self._handle(event)
                if self._replanning.is_to_stop(findings.replan):
                    self._handle(run.StopRequested())
            case _:
                self._handle(event)
        for number in self._pool.silent(self._core.workers):
            self._handle(run.WorkerSilent(number))
        if time.monotonic() - self._asked_s >= LOOK_S:
            self._asked_s = time.monotonic()
            self._store.keep_lock()
            self._lag.look()
            self._status.show(self._core.phase.name, self._core.held, self._lag.lag, self._lag.measures)
            if self._rescaling.is_to_stop():
                self._handle(run.StopRequested())

    def _serve_metrics(self) -> None:
        settings = self._order.settings
        if settings.metrics_port is None:
            return
        with needs_extra("metrics", "prometheus_client"):
            from headrace.runners.local.monitoring.metrics_page import RunPage
        healthy_s = settings.schedule.longest_gap_s
        with _good_before(self._order, UsageError):
            RunPage(lambda: self._status.shown, settings.metrics_address, settings.metrics_port, healthy_s)

    # --- commands -----------------------------------------------------------------------------------------------------

    def _handle(self, event: Any) -> None:  # noqa: ANN401 - an event of the core
        self._status.record_event(event)
        log.debug("%s: %s", self._core.phase.name, type(event).__name__)
        for command in self._core.handle(event):
            self._status.record_command(command)
            self._perform(command)

    def _perform(self, command: Any) -> None:  # noqa: ANN401 - a RunCommand, whose types are the pipeline's
        match command:
            case run.Recover():
                self._in(self._commits, self._recover)
            case run.CommitCheckpoint(checkpoint, handles):
                self._lag.moved(checkpoint)
                self._in(self._commits, lambda: self._commit(checkpoint, handles))
            case run.NoteUnchanged():
                self._in(self._asking, self._publish_again)
            case run.SetTimer(delay_s, timer):
                heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._sequence), timer))
            case run.StartWorker(_, number):
                self._store.add_worker(number)
                self._pool.start(number, self._store.registry)
            case run.KillWorker(number):
                self._worker_processes.kill(number)
            case run.RetireWorker(number):
                self._in(self._commits, lambda: self._committer.retire(number))
            case run.StageCheckpoint(checkpoint_id):
                self._in(self._commits, lambda: self._committer.stage(checkpoint_id))
            case run.AssignSplits() | run.TakeSnapshot() | run.NotifyCheckpointStored() | run.StopWorker():
                self._pool.send(command)
            case ev.ReportMissing() | ev.ReportDiscoveryFailure():
                self._driver.perform(command)
            case ev.DiscoverInitial() | ev.DiscoverLater() | ev.DiscoverAfter() | ev.SwitchStage() | ev.ProveGone():
                self._in(self._asking, lambda: self._ask(command))
            case ev.PublishPositions() | ev.ReportFinished():
                self._in(self._asking, lambda: self._ask(command))
            case run.ReportCheckpointFailure(checkpoint_id, reason):
                log.warning("checkpoint %d has failed: %s; the run continues", checkpoint_id, reason)
            case run.ReportWorkerLost(_, reason, delay_s):
                log.warning("%s; its splits go to the others, and another one is started in %.1f s", reason, delay_s)
            case run.FailRun(error):
                self._outcome = _failure(error)
            case run.EndRun(finished):
                self._outcome = RunOutcome(finished=finished)
            case _:
                raise AssertionError(f"{command} is not a command of the core")

    # --- storing and committing: in the commit thread -----------------------------------------------------------------

    def _in(self, threads: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - raised again in the main thread
                self._events.put(error)

        threads.submit(guarded)

    def _recover(self) -> None:
        self._job.recover()
        self._has_recovered = True
        self._events.put(run.RunRecovered())

    def _commit(self, checkpoint: Checkpoint[Any], handles: tuple[Any, ...]) -> None:
        checkpoint_id = checkpoint.checkpoint_id
        self._committer.propose(checkpoint)
        try:
            self._job.commit(checkpoint_id, handles)
        except CheckpointNotStoredError as error:
            if self._stored_id == checkpoint_id:
                raise  # it is stored, and could not be marked as completed
            self._job = JobCommitter(self._store.registry.run, self._committer)
            self._events.put(run.CheckpointIsNotStored(checkpoint_id, str(error)))
            return
        self._events.put(run.CheckpointCommitted(checkpoint_id))

    def _is_stored(self, checkpoint_id: int) -> None:
        self._stored_id = checkpoint_id
        self._events.put(run.CheckpointStored(checkpoint_id))

    # --- the source: in its own thread ---------------------------------------------------------------------------

    def _publish_again(self) -> None:
        """Positions that could not be published are tried again, though none have moved since."""
        self._driver.publisher.publish_again()

    def _ask(self, command: ev.SourceCommand[Any]) -> None:
        if (event := self._driver.perform(command)) is not None:
            self._events.put(event)
