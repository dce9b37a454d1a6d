"""Brokers as Java processes of this machine, none of which outlives the process that owns the cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.connectors.kafka.broker import guardian as guardian_module
from headrace.connectors.kafka.broker.jars import find_java, kafka_jars
from headrace.connectors.kafka.broker.nodes import LOG_NAME, STOP_SECONDS, tail
from headrace.enumerator.errors import PeerError

# The collector with the least memory and threads, and IPv4 because the ports are reserved there.
COMMON_OPTIONS = ("-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true", "-Djava.awt.headless=true")
LOGGING_OPTIONS = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    # At level info, the orderly shutdown after a failure fills the end of the log, and hides the failure.
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
TOOL_OPTIONS = ("-XX:TieredStopAtLevel=1", "-Xmx128m")


class JavaNode:
    """A broker in a Java process. Not thread-safe."""

    def __init__(self, command: Sequence[str | Path], directory: Path, group: int) -> None:
        """`group` is the process group of the guardian."""
        self._command = command
        self._directory = directory
        self._group = group
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; its output is appended to the node's log."""
        with (self._directory / LOG_NAME).open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=self._group
            )

    def kill(self) -> None:
        """SIGKILL, which reaches a paused process too."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after 30 s."""
        if self._process is None:
            return
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def pause(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def is_running(self) -> bool:
        """Whether the process has been started and not ended."""
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines: int) -> str:
        """The last lines of what the broker wrote."""
        return tail(self._directory / LOG_NAME, lines)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


class JavaLauncher:
    """Runs Kafka's classes in Java, in the process group of a guardian."""

    def __init__(self, jars: Path, options: Sequence[str], group: int) -> None:
        """`options` are those of a broker's JVM; `group` is the process group of the guardian."""
        self._java: list[str | Path] = [find_java(), "-cp", f"{jars}/*", *COMMON_OPTIONS, *LOGGING_OPTIONS]
        self._options = options
        self._group = group

    def format(self, directory: Path, arguments: list[str]) -> None:
        """Run the StorageTool."""
        command: list[str | Path] = [*self._java, *TOOL_OPTIONS, "kafka.tools.StorageTool", *arguments]
        done = subprocess.run(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            process_group=self._group,
        )
        if done.returncode:
            raise PeerError(f"Kafka's StorageTool failed for {directory.name}:\n{done.stdout}")

    def node(self, directory: Path) -> JavaNode:
        """A broker that reads the directory's `server.properties`."""
        command: list[str | Path] = [*self._java, *self._options, "kafka.Kafka", directory / "server.properties"]
        return JavaNode(command, directory, self._group)


@contextmanager
def java_launcher(directory: Path, options: Sequence[str]) -> Iterator[JavaLauncher]:
    """Give a launcher whose processes, and `directory`, go when the context or this process ends, however it ends.

    Raises UsageError without Java or PySpark, PeerError when Kafka cannot be downloaded.
    """
    jars = kafka_jars()
    command = [sys.executable, "-I", "-S", guardian_module.__file__, str(os.getpid()), str(directory)]
    guardian = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)  # noqa: S603 - our own command
    try:
        yield JavaLauncher(jars, options, guardian.pid)
    finally:
        assert guardian.stdin is not None
        guardian.stdin.close()
        guardian.wait()
