"""Apache Kafka's jars: resolved once per user by the Ivy inside PySpark, then taken from a cache directory."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from headrace.enumerator.errors import PeerError, UsageError

KAFKA_VERSION = "4.3.1"
# Kafka's own dependencies hold no logging back end; without one a broker that fails would not say why.
LOGGER_VERSION = "1.7.36"

IVY_FILE = f"""\
<ivy-module version="2.0">
  <info organisation="headrace" module="broker"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}" conf="default->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="{LOGGER_VERSION}" conf="default->default"/>
  </dependencies>
</ivy-module>
"""


def find_java() -> Path:
    """The `java` of JAVA_HOME, else of the PATH. Raises UsageError where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        raise UsageError("no Java found for a local Kafka broker: install Java 17 or newer, or set JAVA_HOME")
    return Path(found)


def find_ivy() -> Path:
    """The Ivy jar inside PySpark, which is located and not imported. Raises UsageError without PySpark."""
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise UsageError(
        "no way to start a Kafka broker: no Docker engine answers (with the package testcontainers installed) and "
        "PySpark, whose Ivy downloads Apache Kafka, is not installed. Install one of them "
        "(pip install 'headrace[spark]'), or set HEADRACE_BOOTSTRAP to a broker that runs already"
    )


def cache_directory() -> Path:
    """Where the jars are kept: $XDG_CACHE_HOME/headrace, by default ~/.cache/headrace."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def kafka_jars() -> Path:
    """The directory holding Apache Kafka's jars; downloads them (44 MB) when this user has none yet.

    Safe with concurrent processes: one downloads, the others wait for it. The directory appears complete or not at all.
    Raises UsageError without Java or PySpark, PeerError when the download fails.
    """
    jars = cache_directory() / f"kafka-{KAFKA_VERSION}"
    if not jars.is_dir():
        java, ivy = find_java(), find_ivy()
        with _lock(_beside(jars, "lock")):
            if not jars.is_dir():
                _download(java, ivy, jars)
    return jars


def _download(java: Path, ivy: Path, jars: Path) -> None:
    # The name is fixed, and Ivy's cache inside it: an interrupted download is continued, not begun again.
    partial = _beside(jars, "partial")
    partial.mkdir(exist_ok=True)
    ivy_file = partial / "ivy.xml"
    ivy_file.write_text(IVY_FILE)
    shutil.rmtree(partial / "jars", ignore_errors=True)
    pattern = f"{partial}/jars/[artifact]-[revision].[ext]"
    arguments: list[str | Path] = ["-cache", partial / "ivy", "-ivy", ivy_file, "-retrieve", pattern]
    command: list[str | Path] = [java, "-cp", ivy, "org.apache.ivy.Main", *arguments]
    with Console(stderr=True).status(f"Downloading Apache Kafka {KAFKA_VERSION} (44 MB, once) ..."):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)  # noqa: S603 - our own command
    if done.returncode or not (partial / "jars" / f"kafka_2.13-{KAFKA_VERSION}.jar").is_file():
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise PeerError(f"downloading Apache Kafka {KAFKA_VERSION} failed (Ivy ended with {done.returncode}):\n{tail}")
    (partial / "jars").rename(jars)
    shutil.rmtree(partial)


def _beside(jars: Path, suffix: str) -> Path:
    return jars.with_name(f"{jars.name}.{suffix}")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the kernel releases it when we die, so no stale lock can remain
        yield
