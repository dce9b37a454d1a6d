"""The process that outlives the owner of servers for a moment, to end them and remove their directory.

Run as a script, `guardian.py OWNER DIRECTORY`, as the leader of a process group that every server joins. Signals such
as SIGKILL give the owner no chance to clean up; the guardian sees its standard input close, or its parent change.
PR_SET_PDEATHSIG would not do: it fires when the *thread* that started a server ends, exists on Linux only, and removes
no directory.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time

POLL_S = 1.0  # only for an owner whose forked children still hold our standard input open
REMOVE_ATTEMPTS = 100  # of 50 ms each: the kernel takes a moment to end a killed JVM, which may still make files


def main(owner: int, directory: str) -> None:
    """Wait until process `owner` is gone or closes our standard input, then leave nothing of its cluster behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == owner and not select.select([sys.stdin], [], [], POLL_S)[0]:
        pass
    group = os.getpgrp()
    if os.fork():
        signal.pause()  # our process id names the group: it stays ours, hence safe to kill, as long as we live
    os.setpgid(0, 0)
    os.killpg(group, signal.SIGKILL)
    for _ in range(REMOVE_ATTEMPTS):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        time.sleep(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
