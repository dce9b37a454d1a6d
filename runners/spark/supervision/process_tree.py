"""All the processes that a driver has started: JVM, Python daemons, the process that those are forked from.

Some make sessions and process their own groups (`pyspark.daemon`, the zygote), so a group alone is not all of them. What
they share is the environment that the driver was started with, and in it a name that no other driver has, and that states which
supervisor has started it. Linux: it is read from `/proc`.

A process can lose its environment there (`setproctitle` writes over it), or start another one without. So the leader of a
session in which one of the process tree is, as a driver is one, counts as well, and whatever any of them has started.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

TREE_VARIABLE = "HEADRACE_TREE"

_WAIT_S = 1.0
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_ENDED = ("Z", "X")


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this host. `started`: clock ticks after boot, which tell it from a later one of the same pid."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this pid now. Raises OSError where there is none, or it has ended and was not waited for."""
        return _Seen.of(pid).process

    @classmethod
    def lifetimes(cls, pid: int) -> bool:
        try:
            cls.of(pid)
        except OSError:
            return False
        return True

    @property
    def is_alive(self) -> bool:
        try:
            return Process.of(self.pid) == self
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class _Seen:
    """What `/proc` reports about a process. `session`: the pid of the session's leader."""

    process: Process
    parent: int
    session: int

    @classmethod
    def of(cls, pid: int) -> _Seen:
        after_name = _after_name(f"/proc/{pid}/stat")
        if after_name[0] in _ENDED and int(after_name[17]) <= 1:  # the main thread's state, and how many threads there are
            raise ProcessLookupError(f"process {pid} has ended")
        return cls(Process(pid, int(after_name[19])), int(after_name[1]), int(after_name[3]))


@dataclass(frozen=True, slots=True)
class Supervisor:
    """Who has started a process tree. `namespace`: of all their pids, by the kernel's number; another container has another."""

    process: Process
    namespace: int


def new_tree() -> str:
    """A name for the process tree of a driver that this process starts, as `supervisor_of` reads it."""
    me, namespace = Process.of(os.getpid()), os.stat("/proc/self/ns/pid").st_ino
    return f"{me.pid}-{me.started}-{namespace}-{uuid.uuid4().hex}"


def supervisor_of(tree: str) -> Supervisor:
    pid, started, namespace, _ = tree.split("-")
    return Supervisor(Process(int(pid), int(started)), int(namespace))


def tree_of(pid: int) -> str | None:
    """The tree that this process is in; None where it has ended, or is in none. A session's leader may have its children's."""
    own = _named_in(_environment(pid))
    if own is not None:
        return own
    children = [seen.process.pid for seen in _all() if seen.parent == seen.session == pid]
    return next((found for child in children if (found := _named_in(_environment(child))) is not None), None)


def is_ending(pid: int) -> bool:
    """Whether its main thread has given its memory back, and so its environment. It may have its files, and locks, still."""
    try:
        return _after_name(f"/proc/{pid}/stat")[20] == "0"
    except OSError as error:
        _refuse_unseen(error)
        return True


def _named_in(environment: bytes) -> str | None:
    name = f"{TREE_VARIABLE}=".encode()
    return next((line[len(name) :].decode() for line in environment.split(b"\0") if line.startswith(name)), "") or None


def members(tree: str) -> list[int]:
    """The pids of the living processes of this process tree. One that has ended and was not waited for is none."""
    return [process.pid for process in _living(tree)]


def _living(tree: str, *known: Process) -> list[Process]:
    wanted = f"{TREE_VARIABLE}={tree}".encode()
    named = {pid for pid in _pids() if wanted in _environment(pid).split(b"\0")}
    if not named and not known:
        return []
    seen, others = list(_all()), (0, 1, os.getsid(0))  # 0: of another namespace
    named = {pid for pid in named if wanted in _environment(pid).split(b"\0")}  # still: now it is known since when it is alive
    named |= {process.pid for process in known if process.is_alive}
    found = named | {one.session for one in seen if one.process.pid in named and one.session not in others}
    while more := {one.process.pid for one in seen if one.parent in found} - found:
        found |= more
    return [one.process for one in seen if one.process.pid in found]


def kill_tree(tree: str, *known: Process) -> int:
    """Kill them all, and wait until the last is dead; how many there were. The caller, if it is one of them, is left out.

    `known`: some of them, which are found whatever has become of their environment. One that this user may not kill (it runs as
    another one, as a program of root's does) is left alone, and that is logged.

    One that is killed may have started another just before; and one that is just being replaced by another program (`exec`) has
    no environment for a moment. So they are looked for until there is none twice in a row. One that waits for a disk or for a
    server of files is dead when that has answered: that it is waited for is logged.
    """
    killed: Counter[Process] = Counter()
    not_ours: set[Process] = set()
    looks_in_vain = 0
    while looks_in_vain < 2:
        living = _living(tree, *known, *killed)  # what is killed may have lost its environment, and not have ended
        others = [process for process in living if process.pid != os.getpid() and process not in not_ours]
        looks_in_vain = 0 if others else looks_in_vain + 1
        for process in others:
            try:
                _kill(process)
            except PermissionError as error:
                log.warning(
                    "process %d of a driver runs as another user and is left alone, as it cannot be killed: %s. End it if it "
                    "writes anything",
                    process.pid,
                    error,
                )
                not_ours.add(process)
                continue
            killed[process] += 1
            if killed[process] > 1 and killed[process].bit_count() == 1:  # after 2 s, 4, 8, ...
                log.warning(
                    "process %d of a driver was killed and has not ended (state %s; D is one that waits for a disk or a server "
                    "of files). No other driver may continue before it has; waiting, for %.0f s so far",
                    process.pid,
                    _states(process),
                    killed[process] * _WAIT_S,
                )
    return len(killed)


def reap_orphans(*children: int) -> None:
    """Let go of the dead processes that were left to this one when their parent ended. Called by the supervisor.

    The kernel leaves them to the first process of a container, which a supervisor may be. Each has its number until it is
    waited for. `children`: pids of its own whose end is still to be asked for. Others of its own are in its session, in which
    none of a driver's processes is.
    """
    session = os.getsid(0)
    for pid in _pids():
        with suppress(OSError):  # it is gone, or not a child of this process
            fields = _after_name(f"/proc/{pid}/stat")
            is_left_to_us = (fields[0], int(fields[1])) == ("Z", os.getpid()) and int(fields[3]) != session
            if is_left_to_us and pid not in children:
                os.waitpid(pid, os.WNOHANG)


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if process.is_alive:  # looked at after it was opened: its number may have become another's before
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                select.select([descriptor], [], [], _WAIT_S)  # readable once it has ended; a longer one is found again
        finally:
            os.close(descriptor)


def _states(process: Process) -> str:
    """Of its threads, each once, D first: that of the main thread says nothing of the others."""
    states = set()
    for thread in _threads(process.pid):
        with suppress(OSError):
            states.add(_after_name(f"/proc/{process.pid}/task/{thread}/stat")[0])
    return ", ".join(sorted(states.difference(_ENDED))) or "ended"


def _after_name(stat: str) -> list[str]:
    """The fields of such a file from the state on: a name may have spaces and brackets."""
    return Path(stat).read_text().rpartition(")")[2].split()


def _all() -> Iterator[_Seen]:
    for pid in _pids():
        try:
            yield _Seen.of(pid)
        except OSError as error:
            _refuse_unseen(error)


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _environment(pid: int) -> bytes:
    """Where the main thread has ended, and has none any more, that of another thread."""
    own = _environment_in(f"/proc/{pid}")
    if own:
        return own
    of_threads = (_environment_in(f"/proc/{pid}/task/{thread}") for thread in _threads(pid) if thread != str(pid))
    return next(filter(None, of_threads), b"")


def _environment_in(folder: str) -> bytes:
    try:
        return Path(folder, "environ").read_bytes()
    except OSError as error:
        _refuse_unseen(error)
        return b""


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError as error:
        _refuse_unseen(error)
        return []


def _refuse_unseen(error: OSError) -> None:
    """Any other error is that of a process that is gone, or another user's; this one says nothing about the process."""
    if error.errno in _OUT_OF_DESCRIPTORS:
        raise error
