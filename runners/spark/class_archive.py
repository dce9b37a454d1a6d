"""What Spark's JVM loads at its start, kept in a file that later ones map: a session starts in about half the time.

It is Java's class data sharing with a dynamic archive (JEP 310, JEP 350). `headrace warm-up` makes the file, once for each
PySpark and Java of a machine, by a job that does what ours do; `warm_session_builder()` uses it. A JVM that does not fit the
file starts as ever.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from headrace.enumerator.errors import PeerError
from headrace.harness.jars import beside, cache_directory, find_java, locked

SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
"""What Spark reads options of the driver's JVM from, beside the configuration, which is the user's own."""

SAMPLE = "headrace.runners.spark.class_sample"
SAMPLE_S = 300.0
TAIL_CHARACTERS = 2000
_QUIET = "-Xlog:cds=off,cds+dynamic=off"


def archive_file() -> Path:
    """Where this machine's is, or would be. Raises UsageError without Java."""
    java = find_java("Spark").resolve()
    identity = f"{java} {java.stat().st_mtime_ns} {Path(pyspark.__file__).parent}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return cache_directory() / f"spark-{pyspark.__version__}-classes-{digest}.jsa"


def make_archive() -> Path:
    """Run the job and keep what its JVM has loaded: half a minute, 160 MB. Replaces the file at once, or not at all.

    Raises PeerError, with the end of what was printed, when no file came of it; UsageError without Java.
    """
    file = archive_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix="spark-classes-") as directory:
        made = Path(directory, file.name)
        options = {SUBMIT_OPTIONS: f"-XX:ArchiveClassesAtExit={made} {_QUIET}", "PYSPARK_PYTHON": sys.executable}
        environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_DRIVER_PYTHON"}
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", SAMPLE, directory],
            env={**environment, **options},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SAMPLE_S,
            check=False,
        )
        if done.returncode or not made.is_file():
            raise PeerError(
                f"Spark's classes could not be kept; the end of what was printed:\n{done.stdout[-TAIL_CHARACTERS:]}"
            )
        made.rename(file)
    return file


def archive_at_hand() -> Path:
    """The file, made if there is none: by one process, while others wait for it. Raises as `make_archive`."""
    file = archive_file()
    if not file.is_file():
        with locked(beside(file, "lock")):
            if not file.is_file():
                make_archive()
    return file


def use_archive() -> None:
    """Have the JVM that this process starts use the file, if there is one."""
    file = archive_file()
    given = os.environ.get(SUBMIT_OPTIONS, "")
    if file.is_file() and str(file) not in given:
        os.environ[SUBMIT_OPTIONS] = f"{given} -XX:SharedArchiveFile={file} {_QUIET}".strip()
