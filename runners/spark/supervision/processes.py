"""A driver as a child process: started, instructed to end, killed with all that it has started, and asked how it has ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from typing import Any

from headrace.runners.spark.supervision.core import DriverEnd, Ending
from headrace.runners.spark.supervision.driver import CALL, DriverOrder
from headrace.runners.spark.supervision.dry_run import dry_run_folder
from headrace.runners.spark.supervision.process_tree import TREE_VARIABLE, Process, kill_tree, new_tree


class DriverProcess:
    """One driver, in a session and process group of its own. Used by the supervisor's thread.

    `reports` and `process` are descriptors that can be read when it has said something, and when it has ended. `is_silent`:
    it has closed the first, and will say no more.
    """

    def __init__(self, order: DriverOrder) -> None:
        """Start it. Raises OSError, and leaves nothing open or alive then."""
        self._tree = new_tree()
        with ExitStack() as undo:
            orders, self._orders = _pipe(undo)
            self.reports, reports = _pipe(undo)
            os.set_blocking(self.reports, False)
            self._child = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "headrace.runners.spark.supervision.driver", str(orders), str(reports)],
                env=_environment(order, self._tree),
                pass_fds=(orders, reports),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            undo.callback(self._child.wait)
            undo.callback(self._child.kill)
            self.process = os.pidfd_open(self._child.pid)
            undo.pop_all()
        os.close(orders)
        os.close(reports)
        self.is_silent = False
        self._unread = b""
        self._said: DriverEnd | None = None
        with suppress(BrokenPipeError):  # it has ended already
            os.write(self._orders, order.to_line())

    @property
    def pid(self) -> int:
        return self._child.pid

    def call(self) -> None:
        with suppress(BrokenPipeError):
            os.write(self._orders, CALL)

    def stop(self) -> None:
        self._child.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all its processes. Returns when they are dead; `process` can be read then."""
        known = []
        with suppress(ProcessLookupError):  # it has ended, and was not waited for
            known.append(Process.of(self.pid))
        kill_tree(self._tree, *known)

    def news(self) -> list[dict[str, Any]]:
        """What it has reported since the last call, but its end: `{}` that it is alive, `{"armed": true}` that it waits to be
        called, once `{"queries": [...]}`, `{"batches": {...}}` as it gets on."""
        with suppress(BlockingIOError):
            while read := os.read(self.reports, 1 << 16):
                self._unread += read
            self.is_silent = True
        *lines, self._unread = self._unread.split(b"\n")
        said = [json.loads(line) for line in lines]
        for end in (report for report in said if "end" in report):
            self._said = DriverEnd(Ending[end["end"]], end["reason"])
        return [report for report in said if "end" not in report]

    def end(self) -> DriverEnd:
        """After `process` could be read: kill what is left of it, give everything back, and tell how it has ended."""
        self.kill()
        status = self._child.wait()
        self.news()
        shutil.rmtree(dry_run_folder(self._tree), ignore_errors=True)
        for descriptor in (self._orders, self.reports, self.process):
            os.close(descriptor)
        return self._said if self._said is not None else _unsaid(status)


def _pipe(undo: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        undo.callback(os.close, end)
    return ends


def _unsaid(status: int) -> DriverEnd:
    if status == -signal.SIGTERM:  # before it could take note of it
        return DriverEnd(Ending.STOPPED, "it was stopped before its job had started")
    if status < 0:
        return DriverEnd(Ending.FAILED, f"the driver was killed by {_name_of(-status)}")
    return DriverEnd(Ending.FAILED, f"the driver has ended with status {status} and has not said why")


def _environment(order: DriverOrder, tree: str) -> dict[str, str]:
    folders = [order.job.folder, None if order.session is None else order.session.folder, os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(dict.fromkeys(filter(None, folders)))
    return {**os.environ, TREE_VARIABLE: tree} | ({"PYTHONPATH": path} if path else {})


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals have none
        return f"signal {number}"
