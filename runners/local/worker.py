"""A worker process of `headrace run`: reads its splits, transforms, writes in one transaction after the other.

All of it in one thread. A transaction starts with the first row after a snapshot, and is prepared for the next one; its handle
and the positions go to the coordinator together. What is not reported then belongs to the next transaction, so the flow does
not wait for commits.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from headrace.connectors.base import capabilities
from headrace.connectors.base.outputs import WrongOutputError
from headrace.connectors.base.sink import Attempt, Transaction
from headrace.enumerator.errors import AuthenticationError, BadRecordError, DataLossError, UnclassifiedError, UsageError
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.progress import ReaderProgress
from headrace.enumerator.source import SplitBatch
from headrace.runners.job_file import PipelineFile
from headrace.runners.local.processes import children_heed_signals, end_as_raised, leave_signals_to_supervisor
from headrace.runners.pipeline import PickledPipeline, PipelineSpec

log = logging.getLogger(__name__)

POLL_S = 0.05
"""How long a message of the coordinator may wait for a reader that has nothing."""

PUSH_S = 0.05
"""Rows are sent at most this long after the previous ones, the first rows of a transaction at once."""

CLOSE_S = 5.0


@dataclass(frozen=True)
class WorkerOrder:
    """What a worker's process is started with.

    `address`: of the coordinator's server. `first`: its first transaction of each output; the next ones are of the next epochs.
    `linger_s`: how long records may wait for others (`RunSchedule`).
    """

    pipeline: PickledPipeline | PipelineFile
    address: str
    number: int
    first: Mapping[str, Attempt]
    version: str
    heartbeat_s: float
    linger_s: float


def work(order: WorkerOrder) -> None:
    """The main function of a worker's process, which is in its coordinator's group: that is what ends it, frozen or not."""
    from headrace.runners.local.wire.client import WorkerStream

    leave_signals_to_supervisor()
    children_heed_signals()
    stream = WorkerStream(order.address, order.number, order.version, order.heartbeat_s)
    try:
        _Worker(order, stream).run()
    except BaseException as error:  # noqa: BLE001 - also what a user's function raises; the coordinator decides
        from headrace.runners.local.wire import run_pb2 as pb

        cause = error.__cause__ if isinstance(error, _TransformError) else None
        is_final = isinstance(error, FINAL) or isinstance(cause, UsageError)
        is_unclassified = isinstance(error, UnclassifiedError)
        failed = pb.Failed(error=described(error), final=is_final, unclassified=is_unclassified)
        stream.send(pb.FromWorker(failed=failed))
        stream.close(CLOSE_S)
        sys.exit(1)
    stream.close(CLOSE_S)


FINAL = (UsageError, DataLossError, AuthenticationError, BadRecordError)
"""What no other worker would do better. Of what a transform raises it is a UsageError alone, which functions of ours raise."""


class _TransformError(Exception):
    """The user's function has raised; the message says on which rows. `file`: the function's, where it is known."""

    def __init__(self, message: str, file: str | None) -> None:
        super().__init__(message)
        self.file = file


def transform_error(pipeline: PipelineSpec, rows: int, before: object, after: object) -> Exception:
    """To be raised from what the transform has raised on this many rows, between these two states of a split."""
    code = getattr(inspect.unwrap(pipeline.transform), "__code__", None) if pipeline.transform is not None else None
    first, end = (getattr(split, "next_offset", None) for split in (before, after))  # sources of logs have it
    where = f"{getattr(after, 'split_id', after)}" if first is None else f"{after}, offsets {first} up to {end}"
    message = f"the transform failed on a batch of {rows} rows of {where}"
    return _TransformError(message, None if code is None else code.co_filename)


def described(error: BaseException) -> str:
    """The error and where it came from: for the user's function the line of its own file, though a library has raised."""
    cause = error.__cause__ if isinstance(error, _TransformError) and error.__cause__ is not None else error
    if isinstance(cause, RuntimeError) and isinstance(cause.__cause__, StopIteration):
        cause = cause.__cause__  # of a bare `next`: Python makes another error of it in whatever generator it passes (PEP 479)
    frames = traceback.extract_tb(cause.__traceback__)
    if isinstance(error, _TransformError):
        frames = traceback.StackSummary.from_list([frame for frame in frames if frame.filename == error.file] or frames)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    what = f"{type(cause).__name__}: {_text(cause)}{place}"
    text = f"{error}: {what}" if cause is not error else what
    return text.encode(errors="backslashreplace").decode()  # a message takes no lone surrogates, and file names may have them


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - of a user's class, whose text fails
        return "an error without a text"


class _Worker:
    """Owned by the process's main thread."""

    def __init__(self, order: WorkerOrder, stream: Any) -> None:  # noqa: ANN401 - gRPC is imported in the process only
        from headrace.runners.local.wire.messages import RunMessages

        self._process = os.getpid()
        self._pipeline = order.pipeline.load()
        self._outputs = self._pipeline.outputs
        self._order = order
        self._stream = stream
        self._messages: RunMessages[Any, Any] = RunMessages(self._pipeline.source.split_serializer, self._outputs.handles)
        self._reader = self._pipeline.source.create_reader()
        self._reader.linger(order.linger_s)
        self._stream.wakes(self._reader.wake_up)
        self._progress: ReaderProgress[Any] = ReaderProgress()
        self._reported: dict[int, Mapping[str, SplitState[Any]]] = {}
        self._transactions: dict[str, Transaction[Any]] = {}
        self._begun: Counter[str] = Counter()
        self._pushed_s = 0.0
        self._stopping = False
        self._counts: Counter[str] = Counter()

    def run(self) -> None:
        try:
            while not self._stopping:
                for message in self._stream.received():
                    self._obey(message)
                batch = self._reader.poll(POLL_S)
                if batch is not None:
                    self._deliver(batch)
        except BaseException as error:
            if os.getpid() != self._process:  # forked by the user's function: what is open here is the worker's
                end_as_raised(error.__cause__ if isinstance(error, _TransformError) and error.__cause__ else error)
            raise
        finally:
            for transaction in self._transactions.values():
                transaction.abort()
            with suppress(Exception):
                self._reader.close()

    def _obey(self, message: Any) -> None:  # noqa: ANN401 - a message of run.proto
        from headrace.runners.local.wire.messages import check_welcome

        match message.WhichOneof("message"):
            case "welcome":
                check_welcome(message.welcome, self._order.version)
            case "assign_splits":
                splits = self._messages.assigned(message.assign_splits)
                log.debug("worker %d: reads %d more splits", self._order.number, len(splits))
                self._progress.assigned(splits)
                self._reader.add_splits(splits)
            case "take_snapshot":
                self._snapshot(message.take_snapshot.checkpoint_id)
            case "checkpoint_stored":
                stored = self._reported.pop(message.checkpoint_stored.checkpoint_id, {})
                self._progress.checkpoint_completed(stored)
                self._reader.checkpoint_completed([state.split for state in stored.values()])
            case "stop_worker":
                self._stopping = True
            case other:
                raise ValueError(f"{other} is not a message to a worker running")

    def _deliver(self, batch: SplitBatch[Any]) -> None:
        from headrace.runners.local.wire import run_pb2 as pb

        try:
            made = list(self._pipeline.routed(batch.records)) if batch.records.num_rows else []
        except WrongOutputError:
            raise
        except BaseException as error:  # the user's function does not decide that the process ends, nor does asyncio
            before = self._progress.snapshot()[batch.split.split_id].split
            raise transform_error(self._pipeline, batch.records.num_rows, before, batch.split) from error
        self._counts["records_in"] += batch.records.num_rows
        for name, rows in made:
            if rows.num_rows:
                self._written(name).write(rows)
                self._counts["records_out"] += rows.num_rows
        if (now_s := time.monotonic()) - self._pushed_s > PUSH_S:
            self._pushed_s = now_s
            for transaction in self._transactions.values():
                transaction.push()
        self._progress.delivered(batch)
        if batch.finished:
            self._stream.send(pb.FromWorker(split_finished=pb.SplitFinished(split_id=batch.split.split_id)))

    def _written(self, name: str) -> Transaction[Any]:
        from headrace.runners.local.wire import run_pb2 as pb

        if not self._transactions:
            self._stream.send(pb.FromWorker(rows_written=pb.RowsWritten()))
        if name not in self._transactions:
            sink = self._outputs.sinks[name]
            capabilities.reached(sink)  # by the coordinator, which has recovered before there was a split to read
            # No other worker has its job and task, so its epochs count its transactions.
            log.debug("worker %d: starts transaction %d %s", self._order.number, self._begun[name], name)
            self._transactions[name] = sink.begin(replace(self._order.first[name], epoch=self._begun[name]))
            self._begun[name] += 1
        return self._transactions[name]

    def _snapshot(self, checkpoint_id: int) -> None:
        from headrace.runners.local.events import WorkerSnapshotted

        handles: tuple[Any, ...] = ()
        for name, transaction in [*self._transactions.items()]:
            handle = transaction.prepare()
            del self._transactions[name]
            handles += () if handle is None else (self._outputs.tagged(name, handle),)
        self._pushed_s = 0.0
        states = self._progress.snapshot()
        # Those of checkpoints that were given up are never asked for.
        self._reported = {checkpoint_id: states}
        counts, self._counts = self._counts, Counter()
        moved = self._progress.moved()
        unmoved = len(states) - len(moved)
        report = WorkerSnapshotted(self._order.number, checkpoint_id, moved, handles, counts, unmoved)
        self._stream.send(self._messages.worker_snapshotted(report))
        log.debug("worker %d: has prepared for checkpoint %d", self._order.number, checkpoint_id)
