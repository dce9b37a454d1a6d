"""A process that has loaded what Spark's Python processes need, and forks one of them when asked (spark_daemon.py).

    python -m headrace.runners.spark_zygote SOCKET MODULE...

It listens at once, loads, then serves, until its standard input closes: then its driver is gone, and the directory of the
socket goes too. Threads and a fork do not go together: with one that is not known to bear it, it does not serve.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.runners.spark_daemon import FORKED, LENGTH_BYTES, run_as_main

HASH_SEED = "PYTHONHASHSEED"
SEED = "0"  # Spark's, unless its user sets another
STREAMS = 3
FORKABLE_THREADS = frozenset({"jemalloc_bg_thd"})  # Arrow's allocator has its own fork handlers, which start it anew


def main(address: Path, modules: list[str]) -> None:
    """Load and serve. Raises SystemExit when it cannot fork safely; whoever asks then starts without it."""
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address))
            listener.listen()
            for module in modules:
                importlib.import_module(module)
            if others := _other_threads() - FORKABLE_THREADS:
                raise SystemExit(f"not forking, since loading {', '.join(modules)} has started threads: {', '.join(others)}")
            gc.freeze()  # what is loaded is shared by all that are forked, as long as no collection writes to it
            os.register_at_fork(after_in_child=_draw_other_numbers)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            _serve_all(listener)
    finally:
        shutil.rmtree(address.parent, ignore_errors=True)


def _other_threads() -> set[str]:
    """The names of all threads but this one."""
    tasks = Path("/proc/self/task").iterdir()
    return {(task / "comm").read_text().strip() for task in tasks if task.name != str(os.getpid())}


def _serve_all(listener: socket.socket) -> None:
    while True:
        ready, _, _ = select.select([sys.stdin, listener], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        with connection:
            _serve(connection, listener)


def _serve(connection: socket.socket, listener: socket.socket) -> None:
    """Fork for one that asks; the connection ends with the fork. One that cannot be served is told by its end."""
    length, streams, _, _ = socket.recv_fds(connection, LENGTH_BYTES, STREAMS)
    try:
        with connection.makefile("rb") as told:
            wanted = json.loads(told.read(int.from_bytes(length)))
        # Hashes of strings have to be the same in all of Spark's workers, and are settled when an interpreter starts.
        if wanted["environ"].get(HASH_SEED, SEED) != SEED or len(streams) != STREAMS:
            return
        if os.fork() == 0:
            listener.close()
            _become(connection, wanted, streams)
    finally:
        for stream in streams:
            os.close(stream)


def _become(connection: socket.socket, wanted: Mapping[str, Any], streams: list[int]) -> None:
    """Take over what the process that asked had: streams, environment, arguments, path. Does not return."""
    status = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.environ.clear()
        os.environ.update(wanted["environ"])
        time.tzset()
        os.chdir(wanted["directory"])
        sys.argv, sys.path = wanted["argv"], wanted["path"]
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.sendall(FORKED)
        run_as_main(wanted["module"])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(status)


def _draw_other_numbers() -> None:
    """Python's own generator does so by itself; without this, numpy's would give the same numbers in every worker."""
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
