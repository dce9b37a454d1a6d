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
from headrace.runners.spark.session import GATEWAY

__all__ = ["as_it_was_submitted", "properties_text"]

SECRET = "PYSPARK_GATEWAY_SECRET"  # noqa: S105 - the name of a variable
ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_MODE = "spark.submit.deployMode"
_OF_THAT_JVM = "spark.app.submitTime"


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
        settings = _settings()
        if settings.get(_MODE) == "cluster":
            raise UsageError(
                "a supervisor cannot be in spark-submit's cluster mode, where the driver's JVM is there before it: submit in "
                "client mode, and have the scheduler run that where the job is to be"
            )
        with open(file, "w", encoding="utf-8", closefd=False) as text:
            text.write(properties_text(settings))  # on a command line, others would see the secrets among them
        with _environment(f"/proc/{os.getpid()}/fd/{file}"):
            yield submitter
    finally:
        os.close(file)
        os.close(submitter)


@contextmanager
def _environment(properties: str) -> Iterator[None]:
    """As drivers need it to start their own JVM with this file."""
    before = {name: os.environ[name] for name in (GATEWAY, SECRET, ARGUMENTS) if name in os.environ}
    for name in before:
        del os.environ[name]
    os.environ[ARGUMENTS] = shlex.join(["--properties-file", properties, "pyspark-shell"])
    try:
        yield
    finally:
        del os.environ[ARGUMENTS]
        os.environ.update(before)


def properties_text(settings: Mapping[str, str]) -> str:
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    for special in " :=#!":
        text = text.replace(special, f"\\{special}")
    return text


def _settings() -> dict[str, str]:
    return {name: value for name, value in submitted_settings().items() if name != _OF_THAT_JVM}
