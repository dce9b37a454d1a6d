"""The lock of a job's checkpoint: of all drivers, one process tree holds it, also after its supervisor is gone.

A file for each checkpoint, locked by the driver's own process (`fcntl`: the kernel shows who). It lies in the checkpoint where
that is a local folder, so a process that sees the checkpoint sees the lock: other users, and containers that share the
volume. That of a checkpoint elsewhere is in the user's cache folder, and keeps drivers of one user on one host apart.

It is two locks of one byte each. One is bound to the process, and the kernel reports which. It is given up when the process
closes the file wherever it has opened it, as a job does that copies its checkpoint. The other one is bound to the file as it
was opened (OFD), and stays; then the name in the file shows whose it is.

The lock alone would not do: the kernel gives it up with that process, and JVM and workers may live on for a moment. So the
process that takes it writes its process tree's name into it, and kills what is left of the process tree that was written there.
Where it is held, the holder's supervisor decides: one that is alive runs the job, and the second is refused; of one that is
dead the drivers are orphans, and are killed. (They end by themselves, but for one that is stopped.)

Another process who cleans up may remove the file under the driver that has the lock. So that one looks again and again whether
the file is still its own, and makes it again; where another driver was faster, it ends.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import struct
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import assert_never

from headrace.enumerator.errors import FencedError, RetriableError, UsageError
from headrace.runners.spark.offset_log import LOCK_NAME
from headrace.runners.spark.supervision.process_tree import Process, is_ending, kill_tree, members, supervisor_of, tree_of
from headrace.runners.user_cache import cache_directory

log = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.05
_TRIES_IN_SILENCE = 100  # of this many, 5 s, the last one says who is waited for
_LONGEST_NAME = 256
_FLOCK = "hhqqi"  # `struct flock` of 64-bit Linux: type, whence, start, length, pid
_NO_LOCKS = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""What a file system states that has no locks. All other errors may pass."""

_NO_PLACE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG}
)
"""What is said of a place at which no file can be, now or later. All other errors may pass."""

_OF_THE_FILE, _OF_THE_PROCESS = 0, 1  # the bytes that are locked

# --- what is done, in which order -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TryLock:
    """Take the lock if no process holds it. The answer: whether it is ours now."""


@dataclass(frozen=True, slots=True)
class WhoHolds:
    """The answer: the process tree that holds it, or did just now; None where that is not known yet."""


@dataclass(frozen=True, slots=True)
class LooksAlive:
    """The answer: whether this supervisor is alive."""

    supervisor: Process


@dataclass(frozen=True, slots=True)
class KillProcessTree:
    """Kill the processes of this process tree. The answer comes when they are dead."""

    tree: str


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Wait for a moment."""


@dataclass(frozen=True, slots=True)
class ReadLast:
    """The answer: the process tree that has written its name last; None where none has."""


@dataclass(frozen=True, slots=True)
class WriteLast:
    """Write this process tree's name."""

    tree: str


@dataclass(frozen=True, slots=True)
class SayUnseen:
    """Say that this process tree was of another container, so that it is not known here whether all of it is dead."""

    tree: str


LockStep = TryLock | WhoHolds | LooksAlive | KillProcessTree | AskAgain | ReadLast | WriteLast | SayUnseen
Taking = Generator[LockStep, "bool | str | None", None]


def taking(me: str) -> Taking:
    """The steps by which a process tree takes the lock. Raises FencedError where another living supervisor has the job."""
    while not (yield TryLock()):
        holder = yield WhoHolds()
        if isinstance(holder, str) and holder != me:  # else it would kill its own JVM
            supervisor, mine = supervisor_of(holder), supervisor_of(me)
            if supervisor.namespace != mine.namespace:
                raise FencedError(
                    "a supervisor of another container (another namespace of pids) runs this job: its driver has the checkpoint"
                )
            if supervisor != mine and (yield LooksAlive(supervisor.process)):
                raise FencedError(
                    f"another supervisor, process {supervisor.process.pid}, runs this job: its driver has the checkpoint"
                )
            yield KillProcessTree(holder)
        yield AskAgain()
    before = yield ReadLast()
    if isinstance(before, str) and before != me:
        # Its driver is dead, and its JVM may outlive that.
        yield SayUnseen(before) if _is_elsewhere(before, me) else KillProcessTree(before)
    yield WriteLast(me)


def _is_elsewhere(tree: str, me: str) -> bool:
    """Whether it was of another container. A name of another form is of none."""
    with suppress(ValueError):
        return supervisor_of(tree).namespace != supervisor_of(me).namespace
    return False


def _is_at_work(tree: str, me: str) -> bool:
    """Whether this process tree, which is of this container, is running for a supervisor that is alive."""
    with suppress(ValueError):
        supervisor = supervisor_of(tree)
        is_here = supervisor.namespace == supervisor_of(me).namespace
        return is_here and supervisor.process.is_alive and bool(members(tree))
    return False


# --- on this host -----------------------------------------------------------------------------------------------------


class CheckpointLock:
    """The lock of one checkpoint, for as long as this process is alive. Called by the driver's main thread."""

    def __init__(self, location: str) -> None:
        """`location`: the checkpoint's path or URI, one name for one place. Raises UsageError and RetriableError as `take`."""
        self._location = location
        self.path = lock_file(location)
        self._me = ""
        self._tries = 0
        self._file = self._opened()

    def take(self, me: str) -> None:
        """Returns when it is taken, and no process of the previous holder is alive. Raises FencedError as `taking`.

        UsageError where this process has it already, where the file system has no locks, and where no file can be;
        RetriableError where another try may have it. What it has raised for is given back, and another one is to be made.
        """
        if self._identity() in _taken:  # this file stays open: with it the kernel would give up the process's lock
            raise UsageError(
                f"this job has the checkpoint {self._location} already, by another name of it: each query needs its own"
            )
        self._me = me
        steps = taking(me)
        try:
            with suppress(StopIteration):
                step = next(steps)
                while True:
                    step = steps.send(self._perform(step))
        except BaseException:
            _close(self._file)  # with what it holds: it would keep out the next try of this process
            raise
        _taken.add(self._identity())

    def keep(self) -> None:
        """Once it is taken, from time to time, in one thread: if another process has removed the file, take the new one.

        Raises FencedError where another driver has that: then two are running, and this one must end. Others as `take`.
        """
        if self._identity() in _taken:
            if self._is_in_place():
                return
            _taken.discard(self._identity())
        # The first try finds that the file is another, and opens that; the second one has it, or another driver does.
        if not any(self._try() for _ in range(3)):
            raise FencedError(
                f"the lock of the checkpoint {self._location}, {self.path}, was removed while this driver was running, and "
                "another one has taken it since. That one continues, and this one must end"
            )
        self._write_name(self._me)
        _taken.add(self._identity())
        log.warning(
            "the lock of the checkpoint %s, %s, was removed while this driver is running, and is recreated. Leave it there: "
            "without it a second driver could start",
            self._location,
            self.path,
        )

    def _opened(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            kind = UsageError if error.errno in _NO_PLACE else RetriableError
            raise kind(f"the lock of the checkpoint {self._location} cannot be kept at {self.path}: {error}") from error
        _files.add(file)
        return file

    def _perform(self, step: LockStep) -> bool | str | None:
        match step:
            case TryLock():
                return self._try()
            case WhoHolds():
                return self._holder()
            case LooksAlive(supervisor):
                return supervisor.is_alive
            case KillProcessTree(tree):
                kill_tree(tree)
            case AskAgain():
                self._tries += 1
                if self._tries % _TRIES_IN_SILENCE == 0:
                    self._say_who_is_waited_for()
                sleep(_ASK_AGAIN_S)
            case ReadLast():
                self._refuse_copy_of_one_at_work()
                return self._last()
            case WriteLast(tree):
                self._write_name(tree)
            case SayUnseen(tree):
                log.warning(
                    "the last driver of the checkpoint %s (%s) was of another container, and has ended; whether its JVM and "
                    "workers have cannot be seen from here. See that its container is gone",
                    self._location,
                    tree,
                )
            case _:
                assert_never(step)
        return None

    def _write_name(self, tree: str) -> None:
        os.pwrite(self._file, f"{tree} {self._identity()}".encode().ljust(_LONGEST_NAME), 0)

    def _try(self) -> bool:
        """Of a file that was removed since it was opened the lock would be worth nothing: then the one that is there now."""
        try:
            fcntl.fcntl(self._file, fcntl.F_SETLK, _asked(_OF_THE_PROCESS))  # first: one that is stopped here is known by it
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _asked(_OF_THE_FILE))
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise self._no_locks(error) from error
        if self._is_in_place():
            return True
        removed, self._file = self._file, self._opened()
        _close(removed)
        return False

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file))
        except FileNotFoundError:
            return False

    def _process(self) -> int | None:
        """The id of the process that has the process's lock; 0 or less if it is not visible from here, None if none has it."""
        try:
            answer = fcntl.fcntl(self._file, fcntl.F_GETLK, _asked(_OF_THE_PROCESS))
        except OSError as error:
            raise self._no_locks(error) from error
        kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
        return None if kind == fcntl.F_UNLCK else pid

    def _holder(self) -> str | None:
        pid = self._process()
        if pid is None:
            return self._last()
        if pid <= 0:
            raise FencedError(
                f"a process of another container, or of another host, holds the lock of the checkpoint, {self.path}"
            )
        tree = tree_of(pid)
        if tree is None and Process.lifetimes(pid) and not is_ending(pid):
            raise FencedError(
                f"a process that is not a driver of this host (pid {pid}) holds the lock of the checkpoint, {self.path}"
            )
        return tree

    def _say_who_is_waited_for(self) -> None:
        """Raises RetriableError where that is not a driver: it would be waited for without end."""
        pid, tree = self._process(), self._last()
        waited_s = self._tries * _ASK_AGAIN_S
        what = f"the lock of the checkpoint {self._location}, {self.path}, is waited for, {waited_s:.0f} s so far"
        if pid is not None:
            log.warning("%s: process %d holds it", what, pid)
        elif tree is not None and tree != self._me and (living := members(tree)):
            log.warning("%s: processes %s of a driver may hold it", what, living)
        else:
            raise RetriableError(
                f"{what}. No other driver that had it is alive (the last one was {tree or 'of no name'}), so a process holds "
                f"it that has inherited the open file: `fuser {self.path}` reports which. End that"
            )

    def _last(self) -> str | None:
        """Not what came here with a copy of the checkpoint: that process tree is running with the other one."""
        tree, identity = self._written()
        return tree if identity == self._identity() else None

    def _written(self) -> tuple[str, str]:
        """The last holder's name, and the file it holds: both empty if there was none."""
        tree, _, identity = os.pread(self._file, _LONGEST_NAME, 0).decode(errors="replace").strip().partition(" ")
        return tree, identity

    def _refuse_copy_of_one_at_work(self) -> None:
        """The copy is of the same query, so it would fence the one running. A checkpoint that was moved has none running."""
        tree, identity = self._written()
        if identity and identity != self._identity() and tree != self._me and _is_at_work(tree, self._me):
            raise FencedError(
                f"the checkpoint {self._location} is a copy of another one, with which a driver of supervisor "
                f"{supervisor_of(tree).process.pid} is running: both would write as the same query. End that one first; or, "
                f"if this one writes to another place, remove {self.path}, which came with the copy"
            )

    def _identity(self) -> str:
        found = os.fstat(self._file)
        return f"{found.st_dev}:{found.st_ino}"

    def _no_locks(self, error: OSError) -> UsageError | RetriableError:
        what = f"no lock is available of the checkpoint {self._location}, at {self.path}: {error}"
        if error.errno == errno.ENOLCK:  # also what NFS says while its lock service is away
            return RetriableError(f"{what}. On NFS its lock service (rpc.statd, lockd) has to run")
        if error.errno not in _NO_LOCKS:
            return RetriableError(what)
        return UsageError(
            f"{what}. Its file system has no locks, by which drivers are kept apart: move the checkpoint to one that has"
        )


_taken: set[str] = set()  # what this process has locked, by `_identity`
_files: set[int] = set()  # descriptors of all files of locks that this process has open


def _close(file: int) -> None:
    _files.discard(file)
    os.close(file)


def _leave_to_parent() -> None:
    """In a forked child. A lock that is bound to a file as it was opened is held until all who have inherited that close it."""
    for file in tuple(_files):
        with suppress(OSError):  # the job has closed it
            _close(file)
    _taken.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def lock_file(location: str) -> Path:
    """In a checkpoint that is a local folder; of one that is elsewhere in the user's cache, by a digest of its URI."""
    if location.startswith("/"):
        return Path(location, LOCK_NAME)
    return cache_directory() / "locks" / f"{hashlib.sha256(location.encode()).hexdigest()[:32]}.lock"


def is_held(location: str) -> bool:
    """Whether any process has the lock of this local checkpoint, by the one bound to the file. Takes none. Raises OSError."""
    try:
        file = os.open(lock_file(location), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_OFD_GETLK, _asked(_OF_THE_FILE)))
    finally:
        os.close(file)
    return bool(kind != fcntl.F_UNLCK)


def _asked(byte: int) -> bytes:
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
