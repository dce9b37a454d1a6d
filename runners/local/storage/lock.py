"""The lock of a run's folder: one coordinator on this machine at a time."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from headrace.enumerator.errors import FencedError

log = logging.getLogger(__name__)

LOCK = "lock"
"""The name of the file that a coordinator locks."""

LOOKED_AT_S = 10.0
"""Who looks whether a run is running has its lock for microseconds. One that is frozen just then is waited for so long."""


class FolderLock:
    """Held from its making until `close`, or until the process and all that it has started are gone."""

    def __init__(self, folder: Path, of: str) -> None:
        """`of`: what it is the lock of, for messages. Raises FencedError where another coordinator has it."""
        self._path = folder / LOCK
        self._keeping = threading.Lock()
        try:
            self._lock = locked(self._path, _lock_patiently)
        except BlockingIOError as error:
            raise FencedError(
                f"{of}: another run works with these checkpoints; end it first, or give this one its own folder"
            ) from error

    def close(self) -> None:
        os.close(self._lock)

    def keep(self) -> None:
        """If another process has removed the lock's file, take it again. Called by any thread.

        Raises FencedError where another run has made it again: then two are running, and this one must end.
        """
        with self._keeping:
            if _is_in_place(self._path, self._lock):
                return
            try:
                again = locked(self._path, _lock_patiently)
            except BlockingIOError as error:
                raise FencedError(
                    f"{self._path} was removed while this run was running, and another run has made it again. That one "
                    "continues, and this one must end"
                ) from error
            os.close(self._lock)
            self._lock = again
            log.warning(
                "%s was removed while this run is running, and is recreated. Leave it there: it keeps a second run out",
                self._path,
            )


def locked(path: Path, take: Callable[[int], object]) -> int:
    """The file, open and locked by `take`: the one that is there, also if another process removes one. Raises as `take`."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            take(lock)
        except BaseException:
            os.close(lock)
            raise
        if _is_in_place(path, lock):
            return lock
        os.close(lock)


def _is_in_place(path: Path, lock: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(lock))
    except FileNotFoundError:
        return False


def _lock_patiently(lock: int) -> None:
    """Raises BlockingIOError where another coordinator has it, at once; or while another process looks for too long."""
    attempts = Retrying(
        retry=retry_if_result(lambda is_locked: not is_locked), stop=stop_after_delay(LOOKED_AT_S), wait=wait_fixed(0.01)
    )
    try:
        attempts(_lock_unless_looked_at, lock)
    except RetryError as error:
        raise BlockingIOError from error


def _lock_unless_looked_at(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # Who looks whether a run is running shares the lock, for a moment: a coordinator does not.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(lock, fcntl.LOCK_UN)
        return False
    return True
