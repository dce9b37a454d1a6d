"""The coordinator's side of the streams to its workers: each message of a worker becomes an event in one queue."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic

import grpc

from headrace.connectors.base.sink import HandleT
from headrace.enumerator.errors import UsageError
from headrace.enumerator.split import SplitT
from headrace.runners.local.events import SplitDone, WorkerEvent, WorkerJoined, WorkerSilent, WorkerWrote
from headrace.runners.local.wire import run_pb2 as pb
from headrace.runners.local.wire import run_pb2_grpc
from headrace.runners.local.wire.messages import RunMessages, check_hello

log = logging.getLogger(__name__)

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
"""A snapshot of many splits is longer than gRPC's default of 4 MiB."""

_SPARE_THREADS = 4
_STOP_S = 5.0


class _Stream:
    """One worker's stream: what is to be sent to it, and when it was last heard."""

    def __init__(self) -> None:
        self.outbox: queue.SimpleQueue[pb.ToWorker | None] = queue.SimpleQueue()
        self.heard_s = time.monotonic()
        self.ended = threading.Event()
        self.answered = threading.Event()


_LONGEST_PATH = 107
"""Of a Unix socket on Linux, in bytes (`sun_path`, with its end)."""


class CoordinationServer(run_pb2_grpc.CoordinationServicer, Generic[SplitT, HandleT]):
    """Serves on a Unix socket. `send`, `heard_s` and `close` are called by the coordinator's main thread."""

    def __init__(
        self,
        socket: Path,
        messages: RunMessages[SplitT, HandleT],
        version: str,
        workers: int,
        emit: Callable[[WorkerEvent[SplitT, HandleT]], None],
        failed: Callable[[int, pb.Failed], None],
    ) -> None:
        """Serve at once. `emit` takes events, `failed` a worker's own error; both are called by any thread.

        `socket` is in a folder that is for this user alone, so a process that can connect is trusted. Raises UsageError for a
        path that is too long.
        """
        if len(os.fsencode(socket)) > _LONGEST_PATH:
            raise UsageError(
                f"the run cannot listen at {socket}: a socket's path has at most {_LONGEST_PATH} bytes. Set TMPDIR to a folder "
                "with a shorter name"
            )
        self._messages, self._version, self._emit, self._failed = messages, version, emit, failed
        self._streams: dict[int, _Stream] = {}
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(workers + _SPARE_THREADS), options=OPTIONS)
        run_pb2_grpc.add_CoordinationServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.address = f"unix:{socket}"
        self._server.add_insecure_port(self.address)
        self._server.start()

    def Work(self, requests: Iterator[pb.FromWorker], context: grpc.ServicerContext) -> Iterator[pb.ToWorker]:  # noqa: N802 - gRPC's name
        """One worker's stream, from its hello on. Called by gRPC, in its own thread."""
        try:
            number = check_hello(next(requests), self._version)
        except Exception as error:  # noqa: BLE001 - whatever a stranger sends
            log.error("a worker is refused: %s", error)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            return
        stream = _Stream()
        if not context.add_callback(stream.answered.set):
            return  # it has ended already
        with self._lock:
            if number in self._streams:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, f"worker {number} has been here before")
            self._streams[number] = stream
        threading.Thread(target=self._listen, args=(number, stream, requests), daemon=True).start()
        yield pb.ToWorker(welcome=pb.Welcome(version=self._version))
        while (message := stream.outbox.get()) is not None:
            yield message

    def send(self, number: int, message: pb.ToWorker) -> None:
        """To the worker of this number, in order with what was sent before. One whose stream has ended gets nothing."""
        with self._lock:
            stream = self._streams.get(number)
        if stream is not None:
            stream.outbox.put(message)

    def heard_s(self, number: int) -> float | None:
        """When the worker was last heard, by this process's monotonic clock; None before its hello."""
        with self._lock:
            stream = self._streams.get(number)
        return None if stream is None else stream.heard_s

    def forget(self, number: int, timeout_s: float) -> None:
        """The worker's process is dead: take what it has sent, for so long at most, and close its stream."""
        with self._lock:
            stream = self._streams.pop(number, None)
        if stream is not None:
            stream.ended.wait(timeout_s)
            stream.outbox.put(None)

    def close(self) -> None:
        deadline_s = time.monotonic() + _STOP_S
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.outbox.put(None)
        for stream in streams:
            stream.answered.wait(max(0.0, deadline_s - time.monotonic()))
        self._server.stop(None).wait()

    def _listen(self, number: int, stream: _Stream, requests: Iterator[pb.FromWorker]) -> None:
        self._emit(WorkerJoined(number))
        try:
            for message in requests:
                stream.heard_s = time.monotonic()
                self._take(number, message)
        except Exception as error:  # noqa: BLE001 - a stream that breaks, or a message that cannot be read: it is over
            log.debug("the stream of worker %d has ended: %s", number, error)
        stream.outbox.put(None)
        stream.ended.set()
        self._emit(WorkerSilent(number))

    def _take(self, number: int, message: pb.FromWorker) -> None:
        match message.WhichOneof("message"):
            case "heartbeat":
                pass
            case "split_finished":
                self._emit(SplitDone(number, message.split_finished.split_id))
            case "rows_written":
                self._emit(WorkerWrote(number))
            case "worker_snapshotted":
                self._emit(self._messages.reported(number, message.worker_snapshotted))
            case "failed":
                self._failed(number, message.failed)
            case other:
                raise ValueError(f"{other} is not a message of a worker running")
