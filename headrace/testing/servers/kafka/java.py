"""Brokers as Java processes of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.runners.user_cache import find_java
from headrace.testing.servers.kafka.class_archive import archive_options
from headrace.testing.servers.kafka.jars import KAFKA, kafka_jars
from headrace.testing.servers.kafka.nodes import LOG_NAME, format_error
from headrace.testing.servers.processes import JAVA_OPTIONS, LOGGING_OPTIONS, ServerProcess, guarded

TOOL_OPTIONS = ("-XX:TieredStopAtLevel=1", "-Xmx128m")


class JavaLauncher:
    """Runs Kafka's classes in Java, in the process group of a guardian."""

    def __init__(self, jars: Path, options: Sequence[str], group: int) -> None:
        """`options` are those of a broker's JVM; `group` is the process group of the guardian."""
        java = find_java(KAFKA.name)
        self._java: list[str | Path] = [java, "-cp", f"{jars}/*", *JAVA_OPTIONS, *LOGGING_OPTIONS]
        self._java += archive_options(jars, options)
        self._options = options
        self._group = group

    def format(self, directory: Path, arguments: list[str]) -> None:
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
            raise format_error(directory.name, done.stdout)

    def node(self, directory: Path) -> ServerProcess:
        command: list[str | Path] = [*self._java, *self._options, "kafka.Kafka", directory / "server.properties"]
        return ServerProcess(command, directory / LOG_NAME, self._group)


@contextmanager
def java_launcher(directory: Path, options: Sequence[str]) -> Iterator[JavaLauncher]:
    """Give a launcher whose processes, and `directory`, go when the context or this process ends, however it ends.

    Raises UsageError without Java or PySpark, PeerError when Kafka cannot be downloaded.
    """
    jars = kafka_jars()
    with guarded(directory) as group:
        yield JavaLauncher(jars, options, group)
