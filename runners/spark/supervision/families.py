"""All the processes that a driver has started: JVM, Python daemons, the process that those are forked from.

Some make sessions and process groups of their own (`pyspark.daemon`, the zygote), so a group alone is not all of them. What
they share is the environment that the driver was started with, and in it a name that no other driver has, and that says which
supervisor has started it. Linux: it is read from `/proc`.
"""

from __future__ import annotations

import os
import select
import signal
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FAMILY_VARIABLE", "Process", "family_of", "kill_family", "members", "new_family", "supervisor_of"]

FAMILY_VARIABLE = "HEADRACE_FAMILY"

_WAIT_S = 1.0
_LOOKS_IN_VAIN = 2


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this host. `started`: clock ticks after boot, which tell it from a later one of the same pid."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this pid now. Raises OSError where there is none, or it has ended and was not waited for."""
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if after_name[0] in ("Z", "X"):
            raise ProcessLookupError(f"process {pid} has ended")
        return cls(pid, int(after_name[19]))

    @classmethod
    def lives(cls, pid: int) -> bool:
        """Whether any process has this pid, and has not ended."""
        try:
            cls.of(pid)
        except OSError:
            return False
        return True

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        try:
            return Process.of(self.pid) == self
        except OSError:
            return False


def new_family() -> str:
    """A name for the family of a driver that this process starts."""
    me = Process.of(os.getpid())
    return f"{me.pid}-{me.started}-{uuid.uuid4().hex}"


def supervisor_of(family: str) -> Process:
    """The process that has started this family."""
    pid, started, _ = family.split("-")
    return Process(int(pid), int(started))


def family_of(pid: int) -> str | None:
    """The family of this process; None where it has none, or has ended."""
    name = f"{FAMILY_VARIABLE}=".encode()
    return next((line[len(name) :].decode() for line in _environment(pid).split(b"\0") if line.startswith(name)), "") or None


def members(family: str) -> list[int]:
    """The pids of the living processes of this family. One that has ended and was not waited for is none."""
    wanted = f"{FAMILY_VARIABLE}={family}".encode()
    return [pid for pid in _pids() if wanted in _environment(pid).split(b"\0")]


def kill_family(family: str) -> int:
    """Kill them all, and wait until the last is dead; how many there were. The caller, if it is one of them, is left out.

    One that is killed may have started another just before; and one that is just being replaced by another program (`exec`) has
    no environment for a moment. So they are looked for until there is none twice in a row.
    """
    killed = looks_in_vain = 0
    while looks_in_vain < _LOOKS_IN_VAIN:
        others = [pid for pid in members(family) if pid != os.getpid()]
        looks_in_vain = 0 if others else looks_in_vain + 1
        for pid in others:
            killed += _kill(pid)
    return killed


def _kill(pid: int) -> bool:
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)  # before the kill: the number cannot be another's by then
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], _WAIT_S)  # readable once it has ended; a longer one is found again
        finally:
            os.close(process)
        return True
    return False


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone, or another user's
        return b""
