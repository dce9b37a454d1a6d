"""What a JVM loads at its start, kept in a file that later ones map: they start with about half the work.

It is Java's class data sharing with a dynamic archive (JEP 310, JEP 350). A file is made by a sample run, once for each
installation of a program and version of Java on a machine. A JVM that does not fit the file starts as ever, and says nothing.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.enumerator.errors import PeerError
from headrace.runners.user_cache import beside, cache_directory, find_java, locked

QUIET = "-Xlog:cds=off,cds+dynamic=off"


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
        """Where this machine's is, or would be: another one once jars were installed again. Raises UsageError without Java."""
        # As Java does: to it a jar of another size or time is not the one that the file was made of, whatever is in it.
        jars = [(jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in sorted(self.jars.glob("*.jar"))]
        return cache_directory() / f"{self._place()}-{_digest(repr(jars))}.jsa"

    def make(self) -> Path:
        """Run the sample and keep what its JVM has loaded. Replaces the file at once, or not at all.

        Files that were made of the jars which lay there before are removed.
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
                timeout=300.0,
                check=False,
            )
            if done.returncode or not made.is_file():
                raise PeerError(
                    f"the classes of {self.name} could not be kept; the end of what was printed:\n{done.stdout[-2000:]}"
                )
            made.rename(file)
        for outdated in file.parent.glob(f"{self._place()}-*.jsa"):
            if outdated != file:
                outdated.unlink(missing_ok=True)  # of jars that are there no more: 200 MB each
        return file

    def at_hand(self) -> Path:
        """The file, made if there is none: by one process, while others wait for it. Raises as `make`."""
        file = self.file
        if not file.is_file():
            with locked(beside(file, "lock")):
                if not file.is_file():
                    self.make()
        return file

    def _place(self) -> str:
        java = find_java(self.name).resolve()
        return f"{self.name}-classes-{_digest(f'{java} {java.stat().st_mtime_ns} {self.jars}')}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
