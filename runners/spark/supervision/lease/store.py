"""A lease's lease store, asked in its own thread: a call may take seconds, and the supervisor has drivers to look after."""

from __future__ import annotations

import queue
import socket
import threading
import time

from headrace.connectors.base.lease import LeaseStore
from headrace.enumerator.errors import DeadlineExceededError, is_retriable
from headrace.runners.spark.supervision.lease import core


class LeaseStoreThread:
    """Asks one question at a time. `ready` can be read when there is an answer. Used by the supervisor's thread."""

    def __init__(self, lease_store: LeaseStore) -> None:
        self._lease_store = lease_store
        self.ready, self._told = socket.socketpair()
        self._asked: queue.SimpleQueue[core.ReadLeaseStore | core.WriteHeartbeat] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[core.LeaseAnswer] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="lease").start()

    def ask(self, question: core.ReadLeaseStore | core.WriteHeartbeat) -> None:
        self._asked.put(question)

    def answer(self) -> core.LeaseAnswer:
        """After `ready` could be read."""
        self.ready.recv(1)
        return self._answers.get()

    def _serve(self) -> None:
        while True:
            self._answers.put(self._answered(self._asked.get()))
            self._told.send(b"x")

    def _answered(self, question: core.ReadLeaseStore | core.WriteHeartbeat) -> core.LeaseAnswer:
        """Whatever goes wrong is an answer: a thread that ended would be a leader that says nothing more."""
        try:
            if isinstance(question, core.ReadLeaseStore):
                found = self._lease_store.read()
                return core.LeaseStoreRead(time.monotonic(), found)
            self._lease_store.write(question.heartbeat)
        except Exception as error:  # noqa: BLE001 - as above
            passes = is_retriable(error) or isinstance(error, DeadlineExceededError)
            reason = f"{self._lease_store.where}: {error}"
            return (core.LeaseStoreFailed if passes else core.LeaseStoreRefused)(time.monotonic(), reason)
        return core.HeartbeatWritten(time.monotonic())
