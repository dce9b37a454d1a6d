"""`headrace warm-up`: make Spark sessions on this machine start faster."""

from __future__ import annotations

from headrace._extras import needs_extra
from headrace.cli.output import console, note


def warm_up_command() -> None:
    """Archive the classes that Spark's JVM loads: sessions on one machine then start in about half the time.

    Run it once per machine (or image), PySpark and Java. It takes half a minute and 160 MB in the user's cache folder.
    """
    with needs_extra("spark", "pyspark"):
        from headrace.runners.spark_processes.spark_archive import archive_of_spark

    with console().status("Running a sample job to archive its classes"):
        file = archive_of_spark().make()
    note(f"written to {file}")
