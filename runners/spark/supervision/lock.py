"""The lock of a job's checkpoint on one host: of all drivers, one family holds it, also after its supervisor is gone.

A file for each checkpoint, in the user's cache folder, locked by the driver's own process (`fcntl`: the kernel tells who).
The lock alone would not do: the kernel gives it up with that process, and JVM and workers may live on for a moment. So whoever
takes it writes its family's name into it, and kills what is left of the family that was written there. Where it is held, the
holder's supervisor decides: one that lives runs the job, and the second is refused; of one that is dead the drivers are
orphans, and are killed. (They end by themselves, but for one that is stopped.)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from time import sleep
from typing import assert_never

from headrace.enumerator.errors import FencedError, UsageError
from headrace.harness.jars import cache_directory
from headrace.runners.spark.supervision.families import Process, family_of, kill_family, supervisor_of

__all__ = ["CheckpointLock", "taking"]

_ASK_AGAIN_S = 0.05
_LONGEST_NAME = 256
_FLOCK = "hhqqi"
"""`struct flock` of 64-bit Linux: type, whence, start, length, pid."""

# --- what is done, in which order -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TryLock:
    """Take the lock if nobody holds it. The answer: whether it is ours now."""


@dataclass(frozen=True, slots=True)
class WhoHolds:
    """The answer: the family of the process that holds it; None where nobody does by now."""


@dataclass(frozen=True, slots=True)
class LooksAlive:
    """The answer: whether this supervisor lives."""

    supervisor: Process


@dataclass(frozen=True, slots=True)
class KillFamily:
    """Kill the processes of this family. The answer comes when they are dead."""

    family: str


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Wait for a moment."""


@dataclass(frozen=True, slots=True)
class ReadLast:
    """The answer: the family that has written its name last; None where none has."""


@dataclass(frozen=True, slots=True)
class WriteLast:
    """Write this family's name."""

    family: str


LockStep = TryLock | WhoHolds | LooksAlive | KillFamily | AskAgain | ReadLast | WriteLast
Taking = Generator[LockStep, "bool | str | None", None]


def taking(me: str) -> Taking:
    """The steps by which a family takes the lock. Raises FencedError where another supervisor lives and has the job."""
    while not (yield TryLock()):
        holder = yield WhoHolds()
        if isinstance(holder, str):
            supervisor = supervisor_of(holder)
            if supervisor != supervisor_of(me) and (yield LooksAlive(supervisor)):
                raise FencedError(f"another supervisor, process {supervisor.pid}, runs this job: its driver has the checkpoint")
            yield KillFamily(holder)
        yield AskAgain()
    before = yield ReadLast()
    if isinstance(before, str) and before != me:
        yield KillFamily(before)  # its driver is dead, and its JVM may outlive that
    yield WriteLast(me)


# --- on this host -----------------------------------------------------------------------------------------------------


class CheckpointLock:
    """The lock of one checkpoint, for as long as this process lives. Called by the driver's main thread."""

    def __init__(self, location: str) -> None:
        """`location`: the checkpoint's path or URI, one name for one place. Nothing is taken. Raises UsageError."""
        name = hashlib.sha256(location.encode()).hexdigest()[:32]
        self.path = cache_directory() / "locks" / f"{name}.lock"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # it stays open, and is opened once in a process: closing any descriptor of the file would give the lock up
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"the lock of the checkpoint {location} cannot be kept at {self.path}: {error}") from error

    def take(self, me: str) -> None:
        """Returns when it is taken, and no process of who had it before lives. Raises FencedError as `taking`."""
        steps = taking(me)
        with suppress(StopIteration):
            step = next(steps)
            while True:
                step = steps.send(self._perform(step))

    def _perform(self, step: LockStep) -> bool | str | None:
        match step:
            case TryLock():
                return self._try()
            case WhoHolds():
                return self._holder()
            case LooksAlive(supervisor):
                return supervisor.is_alive
            case KillFamily(family):
                kill_family(family)
            case AskAgain():
                sleep(_ASK_AGAIN_S)
            case ReadLast():
                return os.pread(self._file, _LONGEST_NAME, 0).decode().strip() or None
            case WriteLast(family):
                os.pwrite(self._file, family.encode().ljust(_LONGEST_NAME), 0)
            case _:
                assert_never(step)
        return None

    def _try(self) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _holder(self) -> str | None:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(self._file, fcntl.F_GETLK, asked))
        if kind == fcntl.F_UNLCK:
            return None
        family = family_of(pid) if pid > 0 else None
        if family is None and (pid <= 0 or Process.lives(pid)):
            raise FencedError(
                f"a process that is no driver of this host (pid {pid}) holds the lock of the checkpoint, {self.path}"
            )
        return family
