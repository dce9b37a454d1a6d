"""What Spark's JVM loads at its start, kept in a file that later ones map: a session starts in about half the time.

`headrace warm-up` makes the file (class_archives.py), once for each PySpark and Java of a machine, by
a job that does what ours do; sessions on one machine use it. A JVM that does not fit the file starts as ever.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark

from headrace.runners.spark_processes.class_archives import QUIET, ClassArchive, Sample

SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
"""What Spark reads options of the driver's JVM from, alongside the configuration, which is the user's own."""

SAMPLE = "headrace.spark.archive_sample"


def archive_of_spark() -> ClassArchive:
    """That of this machine's PySpark. To make it takes half a minute, and 160 MB."""
    return ClassArchive(f"spark-{pyspark.__version__}", Path(pyspark.__file__).parent / "jars", _sample)


def use_archive() -> None:
    """Have the JVM that this process starts use the file, if there is one."""
    file = archive_of_spark().file
    given = os.environ.get(SUBMIT_OPTIONS, "")
    if file.is_file() and str(file) not in given:
        os.environ[SUBMIT_OPTIONS] = f"{given} -XX:SharedArchiveFile={file} {QUIET}".strip()


def _sample(made: Path) -> Sample:
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_DRIVER_PYTHON"}
    options = {SUBMIT_OPTIONS: f"-XX:ArchiveClassesAtExit={made} {QUIET}", "PYSPARK_PYTHON": sys.executable}
    return Sample([sys.executable, "-m", SAMPLE, str(made.parent)], {**environment, **options})
