"""`headrace warm-up`: Spark sessions of this machine start sooner."""

from __future__ import annotations

from headrace.cli.output import console, note


def warm_up_command() -> None:
    """Keep what Spark's JVM loads in a file, so that sessions of `warm_session_builder()` start in about half the time.

    To be run once for each PySpark and Java on a machine, or in an image. Half a minute, 160 MB in the user's cache folder.
    """
    from headrace.runners.spark.class_archive import make_archive

    with console().status("A sample job runs; its classes are kept"):
        file = make_archive()
    note(f"kept in {file}")
