"""The job's processes: started, frozen, killed, finished."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from files import batch_under_way

JOB = Path(__file__).with_name("job.py")
LOG_LINES, LINE_LENGTH = 40, 400
STATE_S = 10.0


class DemoError(Exception):
    """The demo could not do what it is there to show."""


class Driver:
    """Spark's driver with all its children, JVM and Python workers. Leave the context to end them."""

    def __init__(self, arguments: Sequence[str], directory: Path) -> None:
        """Started by `start`; what it writes is appended to `job.log` in `directory`."""
        self._command = [sys.executable, str(JOB), *arguments]
        self._log = directory / "job.log"
        self._process: subprocess.Popen[str] | None = None
        self._is_finishing = False

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End whatever runs."""
        if self._process is not None:
            self._end(self._family())

    def start(self) -> None:
        """Start the job, in a session of its own: a Ctrl-C in the terminal is ours, not its."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command,
                cwd=_home_of_headrace(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether it was started and has neither been killed nor finished. Raises DemoError if it ended by itself."""
        if self._process is None:
            return False
        status = self._process.poll()
        if status == 0 and self._is_finishing:
            return False
        if status is not None:
            raise DemoError(f"the driver ended by itself with status {status}. The end of its log:\n{self.log_tail()}")
        return True

    def kill_within_batch(self, checkpoint: Path, output: Path) -> int | None:
        """SIGKILL every process of the driver if a batch, but not the first, is under way at this instant; else None.

        To be sure of the instant they are all frozen before the files are looked at. Gives the batch's number.
        """
        if not self.is_running or not batch_under_way(checkpoint, output):
            return None
        frozen = self._freeze()
        batch = batch_under_way(checkpoint, output)
        if not batch:
            for process in frozen:
                process.resume()
            return None
        if not any("java" in process.name() for process in frozen):
            raise DemoError("no JVM runs below the driver: there is nothing to kill")
        status = self._end(frozen)
        if status != -signal.SIGKILL:
            raise DemoError(f"the driver was to die by SIGKILL, but ended with status {status}")
        return batch

    def tell_to_finish(self) -> None:
        """Have the job process what is in the topic by now, and end."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._is_finishing = True
        self._process.stdin.write("finish\n")
        self._process.stdin.flush()

    def has_finished(self) -> bool:
        """Whether the job has ended as it was told."""
        return not self.is_running

    def log_tail(self) -> str:
        """The last lines the job wrote, less Java's stack traces."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line[:LINE_LENGTH] for line in lines if not line.startswith("\t")][-LOG_LINES:])

    def _freeze(self) -> set[psutil.Process]:
        """SIGSTOP the whole family, parents first so that none has another child; wait until it holds."""
        seen: set[psutil.Process] = set()
        while new := self._family() - seen:
            for process in new:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            _wait_for(new, {psutil.STATUS_STOPPED})
            seen |= new
        return {process for process in seen if process.is_running()}

    def _family(self) -> set[psutil.Process]:
        """The driver and its descendants: Spark's Python daemons leave the process group, so a group is not enough."""
        assert self._process is not None
        try:
            root = psutil.Process(self._process.pid)
            return {root, *root.children(recursive=True)}
        except psutil.NoSuchProcess:
            return set()

    def _end(self, family: set[psutil.Process]) -> int:
        assert self._process is not None
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        status = self._process.wait(STATE_S)
        _wait_for(family, set())
        self._process = None
        return status


def _home_of_headrace() -> Path:
    """Where `pyspark_headrace` lies: Spark searches its working directory, but not where an editable install leads."""
    spec = find_spec("pyspark_headrace")
    if spec is None or spec.origin is None:
        raise DemoError("headrace is not installed: pip install --editable '.[spark,demo]'")
    return Path(spec.origin).parents[1]


def _wait_for(processes: set[psutil.Process], statuses: set[str]) -> None:
    """Wait until each process has one of these statuses, or is gone."""
    deadline = time.monotonic() + STATE_S
    reached = {*statuses, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            while process.is_running() and process.status() not in reached:
                if time.monotonic() > deadline:
                    raise DemoError(f"{process} did not become {statuses or 'dead'} within {STATE_S:.0f} s")
                time.sleep(0.001)
