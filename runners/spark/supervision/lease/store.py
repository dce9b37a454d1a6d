"""A lease's board, asked in a thread of its own: a call may take seconds, and the supervisor has drivers to look after."""

from __future__ import annotations

import queue
import socket
import threading
import time

from headrace.connectors.base.lease import LeaseBoard
from headrace.enumerator.errors import DeadlineExceededError, is_retriable
from headrace.runners.spark.supervision.lease.core import (
    BeatWritten,
    BoardFailed,
    BoardRefused,
    LookAtBoard,
    Looked,
    WriteBeat,
)

__all__ = ["BoardThread"]

Answer = Looked | BeatWritten | BoardFailed | BoardRefused


class BoardThread:
    """Asks one question at a time. `ready` can be read when there is an answer. Used by the supervisor's thread."""

    def __init__(self, board: LeaseBoard) -> None:
        """Starts the thread, which ends with the process."""
        self._board = board
        self.ready, self._told = socket.socketpair()
        self._asked: queue.SimpleQueue[LookAtBoard | WriteBeat] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="lease").start()

    def ask(self, question: LookAtBoard | WriteBeat) -> None:
        """Returns at once."""
        self._asked.put(question)

    def answer(self) -> Answer:
        """After `ready` could be read."""
        self.ready.recv(1)
        return self._answers.get()

    def _serve(self) -> None:
        while True:
            self._answers.put(self._answered(self._asked.get()))
            self._told.send(b"x")

    def _answered(self, question: LookAtBoard | WriteBeat) -> Answer:
        """Whatever goes wrong is an answer: a thread that ended would be a leader that says nothing more."""
        try:
            if isinstance(question, LookAtBoard):
                found = self._board.look()
                return Looked(time.monotonic(), found)
            self._board.write(question.beat)
        except Exception as error:  # noqa: BLE001 - as above
            passes = is_retriable(error) or isinstance(error, DeadlineExceededError)
            reason = f"{self._board.where}: {error}"
            return (BoardFailed if passes else BoardRefused)(time.monotonic(), reason)
        return BeatWritten(time.monotonic())
