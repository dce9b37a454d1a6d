"""Processes of a run: forked from one that has everything loaded, has one thread, and runs nothing else."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.context import ForkServerContext

__all__ = ["context", "end_group", "preload"]

_LOOK_S = 0.01
# gRPC may be loaded before a fork, not used.
_LOADED = ("coordinator", "worker", "wire.client", "wire.server", "wire.messages")


def context() -> ForkServerContext:
    """Where processes come from. A fork of this process would not be safe: gRPC and the connectors have threads."""
    return multiprocessing.get_context("forkserver")


def preload(*parts: object) -> None:
    """Have the modules of these loaded in the process that this one's are forked from. Of no effect after the first.

    A process that was forked itself forks from a server of its own, in its process group: call it there, too.
    """
    modules = {type(part).__module__ for part in parts} - {"__main__"}
    context().set_forkserver_preload(["__main__", *(f"headrace.runners.local.{name}" for name in _LOADED), *modules])


def end_group(group: int, timeout_s: float) -> bool:
    """Kill all processes of a group, also frozen ones, and wait until they are gone. False if some are still there."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return True
        if time.monotonic() > deadline_s:
            return False
        threading.Event().wait(_LOOK_S)
