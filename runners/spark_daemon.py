"""In place of a Python process of Spark's: one that is forked from a process that has everything loaded, where there is one.

    python -m headrace.runners.spark_daemon MODULE ARGUMENT...

Spark starts a daemon for each kind of work (planning, writing, tasks, ...) and a planner for each query, one after the other,
and each imports the same modules anew. This one asks the zygote (spark_zygote.py) that HEADRACE_ZYGOTE names to fork one for
it, hands over its standard streams, and waits for its end. Without a zygote, or one that fits, it runs the module itself.
Imports nothing that takes time.
"""

from __future__ import annotations

import builtins
import importlib.util
import json
import os
import socket
import sys
from importlib.abc import InspectLoader

ZYGOTE_VARIABLE = "HEADRACE_ZYGOTE"
FORKED = b"1"
LENGTH_BYTES = 8


def main() -> None:
    """Run the module, or have it run by a fork and end with that."""
    module = sys.argv.pop(1)
    address = os.environ.get(ZYGOTE_VARIABLE)
    if address is None or not _hand_over(address, module):
        run_as_main(module)


def run_as_main(module: str) -> None:
    """As `python -m module` would; `runpy` would complain where it is loaded already."""
    spec = importlib.util.find_spec(module)
    code = spec.loader.get_code(module) if spec is not None and isinstance(spec.loader, InspectLoader) else None
    if code is None:
        raise SystemExit(f"there is no module {module} to run")
    exec(code, {"__name__": "__main__", "__builtins__": builtins})  # noqa: S102 - Spark's own module


def _hand_over(address: str, module: str) -> bool:
    """Whether a zygote forked a process for it; then that has ended."""
    given = {"module": module, "argv": sys.argv, "environ": dict(os.environ), "path": sys.path, "directory": os.getcwd()}
    told = json.dumps(given).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address)
            socket.send_fds(connection, [len(told).to_bytes(LENGTH_BYTES)], [0, 1, 2])
            connection.sendall(told)
            forked = connection.recv(1) == FORKED
        except OSError:
            return False
        if forked:
            _let_go_of_streams()  # Spark tells a daemon to end by closing its standard input
            connection.recv(1)  # ends with the fork
        return forked


def _let_go_of_streams() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)


if __name__ == "__main__":
    main()
