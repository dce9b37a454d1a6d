"""A process that has loaded what Spark's Python processes need, and forks one of them when asked (daemon.py).

    python -m headrace.runners.spark_processes.zygote SOCKET MODULE[:FUNCTION]...

It listens at once, imports the modules and calls the functions, then serves, until its standard input closes: then its driver
is gone. It forks as soon as another process connects, and the fork reads what is wanted of it: a process that stops in the
middle, or sends nonsense, holds up a fork and no other process. Threads and a fork do not go together: with one that is not
known to bear it, it does not serve.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.runners.spark_processes.daemon import ENDED, FORKED, LENGTH_BYTES, STATUS_BYTES, reachable, run_as_main

HASH_SEED = "PYTHONHASHSEED"
SEED = "0"  # Spark's, unless its user sets another
STREAMS = 3
FORKABLE_THREADS = frozenset({"jemalloc_bg_thd"})  # Arrow's allocator has its own fork handlers, which start it again


@dataclass(frozen=True, slots=True)
class Fork:
    """A process that was forked for the one at the other end of the connection."""

    pid: int
    connection: socket.socket


def main(address: Path, names: list[str]) -> None:
    """Load and serve. Raises SystemExit when it cannot fork safely; the process that asks then starts without it."""
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            with reachable(address) as name:
                listener.bind(name)
            listener.listen()
            for name in names:
                module, _, function = name.partition(":")
                loaded = importlib.import_module(module)
                if function:
                    getattr(loaded, function)()
            if others := _other_threads() - FORKABLE_THREADS:
                raise SystemExit(f"not forking, since loading {', '.join(names)} has started threads: {', '.join(others)}")
            gc.freeze()  # what is loaded is shared by all that are forked, as long as no collection writes to it
            os.register_at_fork(after_in_child=_draw_other_numbers)
            asking = _serve(listener)
    finally:
        if os.getpid() == _STARTED:
            address.unlink(missing_ok=True)
            with suppress(OSError):
                address.parent.rmdir()  # made for the socket, unless something else is in it
    if asking is not None:
        _become(asking)


_STARTED = os.getpid()


def _other_threads() -> set[str]:
    tasks = Path("/proc/self/task").iterdir()
    return {(task / "comm").read_text().strip() for task in tasks if task.name != str(os.getpid())}


def _serve(listener: socket.socket) -> socket.socket | None:
    """Fork for each that connects. Returns None when the driver is gone; in a fork, the connection of who asked for it."""
    with selectors.DefaultSelector() as ready:
        ready.register(sys.stdin, selectors.EVENT_READ)
        ready.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is sys.stdin:
                    return None
                if key.fileobj is not listener:
                    ready.unregister(key.fileobj)
                    _report_end(key.fd, key.data)
                elif (asking := _fork(listener, ready)) is not None:
                    for other in ready.get_map().values():
                        if isinstance(other.data, Fork):
                            os.close(other.fd)
                            other.data.connection.close()
                    return asking


def _fork(listener: socket.socket, ready: selectors.BaseSelector) -> socket.socket | None:
    """None, but in the fork the connection."""
    try:
        connection, _ = listener.accept()
    except OSError:  # its client has gone again
        return None
    pid = os.fork()
    if pid == 0:
        return connection
    ready.register(os.pidfd_open(pid), selectors.EVENT_READ, Fork(pid, connection))
    return None


def _report_end(descriptor: int, fork: Fork) -> None:
    os.close(descriptor)
    _, status = os.waitpid(fork.pid, 0)
    with fork.connection, suppress(OSError):  # its client may be gone
        fork.connection.sendall(ENDED + status.to_bytes(STATUS_BYTES))


def _become(connection: socket.socket) -> None:
    """Take over what the process that asked has (streams, environment, arguments, path), and run what it would."""
    length, streams, _, _ = socket.recv_fds(connection, LENGTH_BYTES, STREAMS)
    with connection.makefile("rb") as reported:
        request = reported.read(int.from_bytes(length))
    if len(streams) != STREAMS:
        return  # it has gone again
    wanted: Mapping[str, Any] = json.loads(request)
    # Hashes of strings have to be the same in all of Spark's workers, and are resolved when an interpreter starts.
    if wanted["environ"].get(HASH_SEED, SEED) != SEED:
        return
    os.chdir(wanted["directory"])
    os.environ.clear()
    os.environ.update(wanted["environ"])
    time.tzset()
    sys.argv, sys.path = wanted["argv"], wanted["path"]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    _end_with(connection)
    connection.sendall(FORKED)
    run_as_main(wanted["module"])


def _end_with(connection: socket.socket) -> None:
    """Have the kernel send this process SIGTERM when the other end closes; what it forks in its turn is not a part of that."""
    os.register_at_fork(after_in_child=connection.close)
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)


def _draw_other_numbers() -> None:
    """Python's own generator does so by itself; without this, numpy's would give the same numbers in every worker."""
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
