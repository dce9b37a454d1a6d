"""Flink alongside the others: PyFlink in its own virtual environment, kept in the user's cache, with Flink's Kafka connector.

PyFlink's requirements do not fit into an environment with ours, so its part (flink_sql.py) is run by that environment's Python.
"""

from __future__ import annotations

import fcntl
import functools
import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from headrace.runners.user_cache import cache_directory
from headrace.testing.servers.jars import Bundle, installed

FLINK_VERSION = "2.2.1"
CONNECTOR_VERSION = "5.0.0-2.2"
CONNECTOR = Bundle(
    f"Flink's Kafka connector {CONNECTOR_VERSION}",
    f"flink-sql-connector-kafka-{CONNECTOR_VERSION}",
    (f"org.apache.flink:flink-sql-connector-kafka:{CONNECTOR_VERSION}",),
    1,
    "10 MB",
)


def flink_python() -> Path:
    """The Python of PyFlink's environment, made on first use (0.8 GB). Raises CalledProcessError when it cannot be."""
    directory = cache_directory() / f"pyflink-{FLINK_VERSION}"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").is_file():
            shutil.rmtree(directory, ignore_errors=True)
            venv.create(directory, with_pip=True)
            command: list[str | Path] = [directory / "bin" / "pip", "install", "--quiet", f"apache-flink=={FLINK_VERSION}"]
            subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603 - our own command
            (directory / "complete").touch()
    return directory / "bin" / "python"


def flink_home() -> Path:
    """Flink's own folder inside PyFlink's environment, with `lib`. Raises as `flink_python` does."""
    return next(flink_python().parents[1].glob("lib/python*/site-packages/pyflink"))


class Flink:
    """A Flink in its own process, which copies topics when instructed to."""

    def __init__(self) -> None:
        """Start it; the first copy waits for it."""
        jar = installed(CONNECTOR) / CONNECTOR.main_jar
        command = [flink_python(), Path(__file__).with_name("flink_sql.py"), jar]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own

    def copy(self, bootstrap: str, source: str, sink: str) -> float:
        """Copy a topic exactly once; gives the seconds from the statement to the end of its job. RuntimeError when it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"bootstrap": bootstrap, "source": source, "sink": sink}), file=self._process.stdin, flush=True)
        answer: dict[str, Any] | None = None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                break
        if answer is None:
            raise RuntimeError(f"Flink ended with status {self._process.wait()}")
        return float(answer["seconds"])


@functools.cache
def flink() -> Flink:
    """The process's Flink."""
    return Flink()
