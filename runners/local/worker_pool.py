"""The workers of one coordinator: their processes, the streams to them, and which of them are silent."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.runners.job_file import PipelineFile
from headrace.runners.local.checkpoints import WorkerRegistry
from headrace.runners.local.commit.state import first_attempt
from headrace.runners.local.events import AssignSplits, NotifyCheckpointStored, StopWorker, TakeSnapshot, WorkerDied
from headrace.runners.local.processes import WorkerProcesses
from headrace.runners.local.settings import RunSettings
from headrace.runners.local.worker import WorkerOrder, work
from headrace.runners.pipeline import PickledPipeline, PipelineSpec

log = logging.getLogger(__name__)

START_S = 300.0
"""So long a worker's process may take to load and to say hello (Flink's `taskmanager.registration.timeout`)."""

MessageTo = AssignSplits[Any] | TakeSnapshot | NotifyCheckpointStored | StopWorker
"""Commands that are messages to a worker."""


@dataclass(frozen=True)
class ExitReport:
    """Why a worker ends, and whether no other would do better, or may never do (`WorkerDied`)."""

    reason: str
    is_final: bool = False
    is_unclassified: bool = False


class WorkerPool:
    """Called by the coordinator's main thread."""

    def __init__(
        self,
        job: PickledPipeline | PipelineFile,
        pipeline: PipelineSpec,
        settings: RunSettings,
        version: str,
        socket: Path,
        processes: WorkerProcesses,
        emit: Callable[[object], None],
    ) -> None:
        """Serve at `socket` now. `job`: what workers load; `pipeline`: the same, loaded. `emit`: called by any thread.

        Raises UsageError for a path of a socket that is too long.
        """
        from headrace.runners.local.wire.messages import RunMessages
        from headrace.runners.local.wire.server import CoordinationServer

        self._job, self._sinks, self._settings, self._version = job, pipeline.outputs.sinks, settings, version
        self._processes = processes
        self._started_s: dict[int, float] = {}
        self._reports: dict[int, ExitReport] = {}
        self._looked_s = self._awake_s = time.monotonic()
        self._messages: RunMessages[Any, Any] = RunMessages(pipeline.source.split_serializer, pipeline.outputs.handles)
        self._server: CoordinationServer[Any, Any] = CoordinationServer(
            socket, self._messages, version, settings.workers, emit, self._note_failure
        )

    def start(self, number: int, registry: WorkerRegistry) -> None:
        first = {name: first_attempt(sink, registry, number, name) for name, sink in self._sinks.items()}
        heartbeat_s, linger_s = self._settings.heartbeat_interval_s, self._settings.schedule.linger_s
        order = WorkerOrder(self._job, self._server.address, number, first, self._version, heartbeat_s, linger_s)
        self._started_s[number] = time.monotonic()
        self._processes.start(number, work, order)

    def send(self, command: MessageTo) -> None:
        from headrace.runners.local.wire import run_pb2 as pb

        match command:
            case AssignSplits(number, splits):
                message = self._messages.assign_splits(splits)
            case TakeSnapshot(number, checkpoint_id):
                message = pb.ToWorker(take_snapshot=pb.TakeSnapshot(checkpoint_id=checkpoint_id))
            case NotifyCheckpointStored(number, checkpoint_id):
                message = pb.ToWorker(checkpoint_stored=pb.CheckpointStored(checkpoint_id=checkpoint_id))
            case StopWorker(number):
                message = pb.ToWorker(stop_worker=pb.StopWorker())
        self._server.send(number, message)

    def silent(self, numbers: Iterable[int]) -> Iterator[int]:
        """Those of these workers that have sent nothing for longer than the heartbeat timeout, each once."""
        now_s, timeout_s = time.monotonic(), self._settings.heartbeat_timeout_s
        if now_s - self._looked_s > timeout_s - self._settings.heartbeat_interval_s:
            # This process was still, or the machine: heartbeats that came meanwhile are not taken note of yet.
            log.warning("the coordinator was still for %.1f s; its workers are given their time again", now_s - self._looked_s)
            self._awake_s = now_s
        self._looked_s = now_s
        for number in numbers:
            heard_s, limit_s = self._server.heard_s(number), timeout_s
            if heard_s is None:
                heard_s, limit_s = self._started_s[number], START_S
            if now_s - max(heard_s, self._awake_s) > limit_s and number not in self._reports:
                self._reports[number] = ExitReport(f"nothing was heard of it for {limit_s:g} s")
                yield number

    def ended(self, number: int, how: str) -> WorkerDied:
        """The worker's process is gone: what it has sent last comes first."""
        self._server.forget(number, timeout_s=2.0)
        last = self._reports.pop(number, ExitReport(how))
        chance = random.random()  # noqa: S311 - jitter
        reason, now_s = f"worker {number}: {last.reason}", time.monotonic()
        return WorkerDied(number, reason, now_s, chance, last.is_final, last.is_unclassified)

    def close(self, timeout_s: float) -> None:
        """Give the workers so long to end. One that has not said hello was sent nothing, has nothing to end, and is killed."""
        with suppress(OSError):  # the process that forks is gone
            for number in self._started_s:
                if self._server.heard_s(number) is None:
                    self._processes.kill(number)
        self._processes.close(timeout_s)
        self._server.close()

    def _note_failure(self, number: int, failed: Any) -> None:  # noqa: ANN401 - a message of run.proto
        self._reports[number] = ExitReport(failed.error, is_final=failed.final, is_unclassified=failed.unclassified)
