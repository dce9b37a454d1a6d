"""The job's processes: a supervisor, the driver running, and a standby. Started, frozen, killed, finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from files import batch_under_way

JOB = Path(__file__).with_name("job.py")
LOG_LINES, LINE_LENGTH = 40, 400
STATE_S = 10.0
STOPPED = 128 + signal.SIGTERM  # the supervisor's status after SIGTERM


class DemoError(Exception):
    """The demo could not do what it is there to show."""


COMMAND_LINE = "from headrace.cli import main; main()"

CONF = {
    "spark.master": "local[2]",
    "spark.app.name": "flights",
    # A driver that exists for a minute gains nothing from the optimising compiler: without it, it starts with a third less
    # work.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}


class SupervisedJob:
    """`headrace supervise` with a standby: all its processes, JVMs and Python workers too. Leave the context to end them."""

    def __init__(self, settings: Mapping[str, str], directory: Path) -> None:
        """Started by `start`. `settings`: what job.py is reported. What it writes is appended to `job.log` in `directory`."""
        self._status = directory / "status.json"
        conf = [argument for name, value in CONF.items() for argument in ("--conf", f"{name}={value}")]
        supervise = ["supervise", f"{JOB}:job", "--standby", "1", "--status", str(self._status), *conf]
        self._command = [sys.executable, "-c", COMMAND_LINE, *supervise]
        self._environment = {**os.environ, "FLIGHTS_JOB": json.dumps(dict(settings))}
        self._log = directory / "job.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._is_finishing = False

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End whatever runs."""
        if self._process is not None:
            _end(self._tree())
            self._process.wait(STATE_S)

    def start(self) -> None:
        """Start the supervisor, in its own session: a Ctrl-C in the terminal is ours, not its."""
        self._status.unlink(missing_ok=True)
        with self._log.open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command,
                cwd=_home_of_headrace(),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether it was started and has neither been killed nor finished. Raises DemoError if it ended by itself."""
        if self._process is None:
            return False
        status = self._process.poll()
        if status == STOPPED and self._is_finishing:
            return False
        if status is not None:
            raise DemoError(f"the job ended by itself with status {status}. The end of its log:\n{self.log_tail()}")
        return True

    @property
    def has_standby(self) -> bool:
        """Whether a standby is armed."""
        return any(standby["state"] == "ARMED" for standby in self._told().get("standbys", ()))

    def kill_active_within_batch(self, checkpoint: Path, output: Path) -> int | None:
        """SIGKILL the driver running, its JVM and its workers, as `kill_all_within_batch` does with everything."""
        return self._kill_within_batch(checkpoint, output, self._active)

    def kill_all_within_batch(self, checkpoint: Path, output: Path) -> int | None:
        """SIGKILL every process if a batch, but not the first, is under way at this instant; else None.

        To be sure of the instant they are all frozen before the files are looked at. Gives the batch's number.
        """
        batch = self._kill_within_batch(checkpoint, output, self._tree)
        if batch is not None:
            assert self._process is not None
            status = self._process.wait(STATE_S)
            if status != -signal.SIGKILL:
                raise DemoError(f"the supervisor was to die by SIGKILL, but ended with status {status}")
            self._process = None
        return batch

    def finish(self) -> None:
        """Have the job end after the batches under way."""
        assert self._process is not None
        self._is_finishing = True
        self._process.terminate()

    def has_finished(self) -> bool:
        """Whether the job has ended as it was instructed."""
        return not self.is_running

    def log_tail(self) -> str:
        """The last lines the job wrote, less Java's stack traces."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line[:LINE_LENGTH] for line in lines if not line.startswith("\t")][-LOG_LINES:])

    def _told(self) -> dict[str, Any]:
        """The supervisor's status; nothing before it has written one."""
        try:
            return dict(json.loads(self._status.read_text()))
        except FileNotFoundError:
            return {}

    def _kill_within_batch(self, checkpoint: Path, output: Path, tree: Callable[[], set[psutil.Process]]) -> int | None:
        if not self.is_running or not batch_under_way(checkpoint, output):
            return None
        frozen = _frozen(tree)
        batch = batch_under_way(checkpoint, output)
        if not batch:
            for process in frozen:
                process.resume()
            return None
        if not any("java" in process.name() for process in frozen):
            raise DemoError("no JVM runs below the driver: there is nothing to kill")
        _end(frozen)
        return batch

    def _active(self) -> set[psutil.Process]:
        active = self._told().get("active")
        return set() if active is None else _descendants(active["pid"])

    def _tree(self) -> set[psutil.Process]:
        assert self._process is not None
        return _descendants(self._process.pid)


def _descendants(pid: int) -> set[psutil.Process]:
    """A process and those below it: Spark's Python daemons leave the process group, so a group is not enough."""
    try:
        root = psutil.Process(pid)
        return {root, *root.children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def _frozen(tree: Callable[[], set[psutil.Process]]) -> set[psutil.Process]:
    """SIGSTOP the whole process tree, parents first so that none has another child; wait until it holds."""
    seen: set[psutil.Process] = set()
    while new := tree() - seen:
        for process in new:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        _wait_for(new, {psutil.STATUS_STOPPED})
        seen |= new
    return {process for process in seen if process.is_running()}


def _end(tree: set[psutil.Process]) -> None:
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_for(tree, set())


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
