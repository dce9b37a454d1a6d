"""The user's cache folder, its locks, and the Java of this machine."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.enumerator.errors import UsageError


def find_java(what: str) -> Path:
    """The `java` of JAVA_HOME, else of the PATH. Raises UsageError, saying for `what`, where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        raise UsageError(f"no Java found for {what}: install Java 17 or newer, or set JAVA_HOME")
    return Path(found)


def cache_directory() -> Path:
    """Where the jars are kept: $XDG_CACHE_HOME/headrace, by default ~/.cache/headrace."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def beside(path: Path, suffix: str) -> Path:
    """The path with a suffix: what belongs to it, in the same folder."""
    return path.with_name(f"{path.name}.{suffix}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold this file's lock, and wait for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the kernel releases it when we die, so no stale lock can remain
        yield
