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

log = logging.getLogger(__name__)

_SUPERVISOR = "supervisor"


@contextmanager
def supervised(folder: Path) -> Iterator[bool]:
    """While the body runs, `is_supervised` is true for the folder, which is there. Ends with this process at latest.

    Yields whether it is: False where another supervisor is there first, or the file cannot be locked. Called by the supervisor.
    """
    path = folder / _SUPERVISOR
    file = _held(path)
    if file is None:
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


def _held(path: Path) -> io.FileIO | None:
    while True:
        try:
            file = io.FileIO(path, "a")
        except OSError as error:  # which the coordinator meets, too, and names
            log.debug("%s cannot be made: %s", path, error)
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                return file
        except FileNotFoundError:
            pass  # the previous one has removed it meanwhile
        except OSError as error:
            file.close()
            log.debug("%s cannot be locked: %s", path, error)
            return None
        file.close()
