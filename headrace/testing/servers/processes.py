"""Servers as processes of this machine, none of which outlives the process that owns them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.testing.servers import guardian as guardian_module

STOP_S = 30.0  # a polite stop that takes longer becomes a kill

# The collector with the least memory and threads, and IPv4 because the ports are reserved there.
JAVA_OPTIONS = ("-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true", "-Djava.awt.headless=true")
LOGGING_OPTIONS = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    # At level info, the orderly shutdown after a failure fills the end of the log, and hides the failure.
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class ServerProcess:
    """A server that can be started, ended, frozen and started again. Not thread-safe.

    `kill`, `stop`, `pause` and `resume` do nothing when it does not run, and return once their effect has happened.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        group: int,
        environment: Mapping[str, str] | None = None,
        *,
        stop_signal: signal.Signals = signal.SIGTERM,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`group` is a guardian's process group; `environment` is all of the process's, by default ours.

        `stop_signal` is what `stop` asks with; `options` are further arguments of Popen.
        """
        self._command = command
        self._log = log
        self._group = group
        self._environment = environment
        self._stop_signal = stop_signal
        self._options = options or {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, without waiting until it serves; its output is appended to the log."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=self._group,
                **{"env": self._environment, **self._options},
            )

    @property
    def pid(self) -> int | None:
        """The id of the process that was started last; None before the first."""
        return None if self._process is None else self._process.pid

    @property
    def status(self) -> int | None:
        """What the process that was started last has ended with, as Popen has it; None while it runs, and before the first."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """SIGKILL, which reaches a paused process too."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """The stop signal (SIGTERM, if it was given no other), and SIGKILL after 30 s."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(self._stop_signal)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def pause(self) -> None:
        """SIGSTOP: its connections stay open, nothing answers. Returns once all of its threads are stopped."""
        self._signal(signal.SIGSTOP)
        if self._process is not None and self._process.poll() is None:
            # The kernel notifies a parent of the stop when the last thread has stopped. The message is left (WNOWAIT) to Popen.
            with suppress(ChildProcessError):  # it has ended, and another thread has seen that
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def is_running(self) -> bool:
        """Whether the process has been started and not ended; also True while it is paused."""
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines: int) -> str:
        return tail(self._log, lines)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


def tail(path: Path, lines: int) -> str:
    """The last lines of a log file, or nothing when there is no file."""
    if not path.is_file():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def guarded(directory: Path) -> Iterator[int]:
    """Give a process group whose processes, and `directory`, go when the context or this process ends, however it ends."""
    command = [sys.executable, "-I", "-S", guardian_module.__file__, str(os.getpid()), str(directory)]
    guardian = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)  # noqa: S603 - our own command
    try:
        yield guardian.pid
    finally:
        assert guardian.stdin is not None
        guardian.stdin.close()
        guardian.wait()
