"""Whether a run's supervisor is alive, for who looks while no coordinator of it does.

    supervisor                locked by the supervisor as long as the run lasts, and removed with it

Nothing but what is shown depends on it: a supervisor that cannot lock the file, since the folder is not writable or another
process looks just then, continues without.
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import util
from pathlib import Path

from headrace.runners.local.storage.lock import locked

log = logging.getLogger(__name__)

_SUPERVISOR = "supervisor"


@contextmanager
def supervised(folder: Path) -> Iterator[bool]:
    """While the body runs, `is_supervised` is true for the folder, which is there. Ends with this process at latest.

    Yields whether it is: False where another supervisor is there first, or the file cannot be locked. Called by the supervisor.
    """
    path = folder / _SUPERVISOR
    try:
        file = io.FileIO(locked(path, lambda lock: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)))
    except OSError as error:  # which the coordinator meets, too, and names
        log.debug("%s cannot be made and locked: %s", path, error)
        yield False
        return
    util.register_after_fork(file, io.FileIO.close)  # a fork would hold the lock, too, and may outlive this process
    try:
        yield True
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        file.close()


def is_supervised(folder: Path) -> bool:
    """Whether a supervisor is alive that will start a coordinator, or has. Called by any process. Raises OSError."""
    return is_held(folder / _SUPERVISOR)


def is_held(path: Path) -> bool:
    """Whether a living process has this file locked; it is shared for a moment to see. Raises OSError, but for no file."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
