"""A worker's side of its stream: one thread listens, one heartbeats, and the process ends when the stream does."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator

import grpc

from headrace.runners.local.wire import run_pb2 as pb
from headrace.runners.local.wire import run_pb2_grpc
from headrace.runners.local.wire.messages import hello
from headrace.runners.local.wire.server import OPTIONS

ORPHANED = 70
"""Exit status of a worker whose coordinator is gone, or has refused it."""


class WorkerStream:
    """Connects at once. The process ends by itself, whatever its other threads do, when the coordinator does.

    `received` and `send` are called by the worker's main thread.
    """

    def __init__(self, address: str, number: int, version: str, heartbeat_s: float) -> None:
        self._inbox: queue.SimpleQueue[pb.ToWorker] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[pb.FromWorker | None] = queue.SimpleQueue()
        self._wake_up: Callable[[], None] = lambda: None
        self._closing = threading.Event()
        self._closed = threading.Event()
        self._outbox.put(hello(number, version))
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        stub = run_pb2_grpc.CoordinationStub(self._channel)  # type: ignore[no-untyped-call]
        answers: Iterator[pb.ToWorker] = stub.Work(iter(self._outbox.get, None), wait_for_ready=True)
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()
        threading.Thread(target=self._heartbeat, args=(heartbeat_s,), daemon=True).start()

    def wakes(self, wake_up: Callable[[], None]) -> None:
        """From now on `wake_up` is called, by another thread, when something has come."""
        self._wake_up = wake_up

    def received(self) -> Iterator[pb.ToWorker]:
        """What has come since; does not wait."""
        while not self._inbox.empty():  # no other thread takes from it
            yield self._inbox.get()

    def send(self, message: pb.FromWorker) -> None:
        """In order with what was sent before."""
        self._outbox.put(message)

    def close(self, timeout_s: float) -> None:
        """Send what is left, and wait until the other side has taken note."""
        self._closing.set()
        self._outbox.put(None)
        self._closed.wait(timeout_s)
        self._channel.close()

    def _listen(self, answers: Iterator[pb.ToWorker]) -> None:
        try:
            for answer in answers:
                self._inbox.put(answer)
                self._wake_up()
        except grpc.RpcError:
            pass  # the coordinator is gone, or has refused us, which it has logged
        self._closed.set()
        if not self._closing.is_set():
            # At once: without a coordinator nothing that we write will ever be committed, and another may take our place.
            os._exit(ORPHANED)

    def _heartbeat(self, heartbeat_s: float) -> None:
        while not self._closing.wait(heartbeat_s):
            self._outbox.put(pb.FromWorker(heartbeat=pb.Heartbeat()))
