"""In place of Spark's Python daemon: one that is forked from a process that has everything loaded, where there is one.

Spark starts a daemon for each kind of work (planning, writing, tasks, ...), one after the other, and each imports the same
modules anew. This one asks the zygote (spark_zygote.py) that HEADRACE_ZYGOTE names to fork one for it, hands over its standard
streams, and waits for its end. Without a zygote, or one that fits, it is Spark's own daemon. Imports nothing that takes time.
"""

from __future__ import annotations

import json
import os
import socket
import sys

ZYGOTE_VARIABLE = "HEADRACE_ZYGOTE"
FORKED = b"1"
LENGTH_BYTES = 8


def main() -> None:
    """Become the daemon, or have one forked and end with it."""
    address = os.environ.get(ZYGOTE_VARIABLE)
    if address is not None and _hand_over(address):
        return
    from pyspark.daemon import manager

    manager()


def _hand_over(address: str) -> bool:
    """Whether a zygote forked the daemon; then that has ended."""
    told = json.dumps({"argv": sys.argv, "environ": dict(os.environ), "path": sys.path, "directory": os.getcwd()}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address)
            socket.send_fds(connection, [len(told).to_bytes(LENGTH_BYTES)], [0, 1, 2])
            connection.sendall(told)
            forked = connection.recv(1) == FORKED
        except OSError:
            return False
        if forked:
            _let_go_of_streams()  # Spark tells the daemon to end by closing its standard input
            connection.recv(1)  # ends with the daemon
        return forked


def _let_go_of_streams() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)


if __name__ == "__main__":
    main()
