"""What a JVM loads at its start, kept in a file that later ones map: they start with about half the work.

It is Java's class data sharing with a dynamic archive (JEP 310, JEP 350). A file is made by a sample run, once for each
version of a program and of Java on a machine. A JVM that does not fit the file starts as ever.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.enumerator.errors import PeerError
from headrace.harness.jars import beside, cache_directory, find_java, locked

QUIET = "-Xlog:cds=off,cds+dynamic=off"
SAMPLE_S = 300.0
TAIL_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Sample:
    """A run whose classes are kept. environment: all of it."""

    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The file of one program, `name` with its version, whose jars are in the folder `jars`.

    sample: gives the run that writes the file it is handed; what else is in that file's folder goes with it.
    """

    name: str
    jars: Path
    sample: Callable[[Path], Sample]

    @property
    def file(self) -> Path:
        """Where this machine's is, or would be. Raises UsageError without Java."""
        java = find_java(self.name).resolve()
        digest = hashlib.sha256(f"{java} {java.stat().st_mtime_ns} {self.jars}".encode()).hexdigest()[:12]
        return cache_directory() / f"{self.name}-classes-{digest}.jsa"

    def make(self) -> Path:
        """Run the sample and keep what its JVM has loaded. Replaces the file at once, or not at all.

        Raises PeerError, with the end of what was printed, when no file came of it; UsageError without Java.
        """
        file = self.file
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f"{self.name}-classes-") as directory:
            made = Path(directory, file.name)
            sample = self.sample(made)
            done = subprocess.run(  # noqa: S603 - our own command
                sample.command,
                env=dict(sample.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SAMPLE_S,
                check=False,
            )
            if done.returncode or not made.is_file():
                raise PeerError(
                    f"the classes of {self.name} could not be kept; the end of what was printed:\n"
                    f"{done.stdout[-TAIL_CHARACTERS:]}"
                )
            made.rename(file)
        return file

    def at_hand(self) -> Path:
        """The file, made if there is none: by one process, while others wait for it. Raises as `make`."""
        file = self.file
        if not file.is_file():
            with locked(beside(file, "lock")):
                if not file.is_file():
                    self.make()
        return file
