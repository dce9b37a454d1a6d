"""A supervisor that spark-submit has started, in client mode: each driver is submitted as the supervisor was.

spark-submit starts a JVM, and then the program. A driver that is started again needs its own JVM, so that one is only
asked what it was submitted with. It stays for as long as the supervisor.

The settings, secrets among them, are kept in the supervisor's memory. JVMs read them there, as a file that no one can remove.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headrace.enumerator.errors import UsageError
from headrace.runners.spark.private import submitted_settings
from headrace.runners.spark.session import GATEWAY, environment_kept

SECRET = "PYSPARK_GATEWAY_SECRET"  # noqa: S105 - the name of a variable
ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


@contextmanager
def as_it_was_submitted() -> Iterator[int | None]:
    """Have drivers started within it run with the settings of the submission. Nothing changes without spark-submit.

    Yields a descriptor that can be read once spark-submit is gone, at which the job is to stop; None without spark-submit. In
    the main thread. Raises UsageError in cluster mode.
    """
    if GATEWAY not in os.environ:
        yield None
        return
    parent = os.getppid()
    submitter = os.pidfd_open(parent)
    file = os.memfd_create("headrace-submitted")  # as a file among others, it could be cleaned away while the job runs
    try:
        settings = submitted_settings()
        settings.pop("spark.app.submitTime", None)  # of that JVM
        if settings.get("spark.submit.deployMode") == "cluster":
            raise UsageError(
                "a supervisor cannot be in spark-submit's cluster mode, where the driver's JVM is there before it: submit in "
                "client mode, and have the scheduler run that where the job is to be"
            )
        with open(file, "w", encoding="utf-8", closefd=False) as text:
            text.write(properties_text(settings))  # on a command line, others would see the secrets among them
        with environment_kept(GATEWAY, SECRET, ARGUMENTS):  # drivers start their own JVM, with this file
            os.environ.pop(GATEWAY)
            os.environ.pop(SECRET, None)
            os.environ[ARGUMENTS] = shlex.join(["--properties-file", f"/proc/{os.getpid()}/fd/{file}", "pyspark-shell"])
            yield submitter
    finally:
        os.close(file)
        os.close(submitter)


def properties_text(settings: Mapping[str, str]) -> str:
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    for special in " :=#!":
        text = text.replace(special, f"\\{special}")
    return text
