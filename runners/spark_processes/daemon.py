"""In place of a Python process of Spark's: one that is forked from a process that has everything loaded, where there is one.

    python -m headrace.runners.spark_processes.daemon MODULE ARGUMENT...

Spark starts a daemon for each kind of work (planning, writing, tasks, ...) and a planner for each query, one after the other,
and each imports the same modules again. This one asks the zygote (zygote.py) that HEADRACE_ZYGOTE names to fork one for
it, hands over its standard streams, and waits for its end. Without a zygote, or one that fits, it runs the module itself.
Imports nothing that takes time.

What goes over the connection: the length of the request with the three streams, the request as JSON; back come FORKED, once the
fork has taken over, and then ENDED with the status of the fork. The fork is sent SIGTERM when this end of it closes, so it
does not outlive the process that Spark knows and ends.
"""

from __future__ import annotations

import builtins
import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import InspectLoader

ZYGOTE_VARIABLE = "HEADRACE_ZYGOTE"
FORKED, ENDED = b"F", b"E"
LENGTH_BYTES = 8
STATUS_BYTES = 4


def main() -> None:
    module = sys.argv.pop(1)
    address = os.environ.get(ZYGOTE_VARIABLE)
    status = None if address is None else _run_by_fork(Path(address), module)
    if status is None:
        run_as_main(module)
    else:
        _end_as(status)


def run_as_main(module: str) -> None:
    """As `python -m module` would; `runpy` would complain where it is loaded already."""
    spec = importlib.util.find_spec(module)
    # no isinstance: Spark's own modules may be in pyspark.zip, and Python's loader of those is not a registered InspectLoader
    loader = None if spec is None else cast("InspectLoader | None", spec.loader)
    code = loader.get_code(module) if loader is not None else None
    if code is None:
        raise SystemExit(f"there is no module {module} to run")
    exec(code, {"__name__": "__main__", "__builtins__": builtins})  # noqa: S102 - Spark's own module


@contextmanager
def reachable(address: Path) -> Iterator[str]:
    """The address of a socket in a form that is short enough for one (108 bytes), however long the path is."""
    directory = os.open(address.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{address.name}"
    finally:
        os.close(directory)


def _run_by_fork(address: Path, module: str) -> int | None:
    """The status of the fork, as `os.waitpid` gives it, or None when no zygote forked one."""
    given = {"module": module, "argv": sys.argv, "environ": dict(os.environ), "path": sys.path, "directory": os.getcwd()}
    reported = json.dumps(given).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with reachable(address) as name:
                connection.connect(name)
            socket.send_fds(connection, [len(reported).to_bytes(LENGTH_BYTES)], [0, 1, 2])
            connection.sendall(reported)
            if connection.recv(1) != FORKED:
                return None
        except OSError:
            return None
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):  # Spark shows a daemon to end by closing its standard input
            os.dup2(nothing, stream)
        with connection.makefile("rb") as told_back:
            ended = told_back.read(1 + STATUS_BYTES)
    if not ended.startswith(ENDED):
        raise SystemExit("the process that this one was forked from is gone")
    return int.from_bytes(ended[1:])


def _end_as(status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
