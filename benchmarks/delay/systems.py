"""The systems whose delay is measured: those of the restore benchmark, with an interval between commits."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.jars import STREAMS
from benchmarks.restore.systems import BY_NAME as COPIES
from benchmarks.restore.systems import EXACTLY, System
from headrace.runners.user_cache import find_java
from headrace.testing.servers.jars import installed

INTERVALS_MS = (1000, 200, 50)
SOON_MS = 20
"""`max-delay`, for those that have it: rows do not wait for the interval."""


@dataclass(frozen=True)
class Subject:
    """A system that copies a topic, and what is compared of it. `interval_ms`: between commits; None: as soon as it can."""

    system: System
    interval_ms: int | None

    @property
    def name(self) -> str:
        """Of its file."""
        return self.system.name


def _every(name: str, interval_ms: int, title: str = "", **more: Any) -> Subject:  # noqa: ANN401 - of the job's JSON
    copied = COPIES[name]

    def given() -> Mapping[str, Any]:
        return {**copied.more(), "interval_ms": interval_ms, **more}

    changed = replace(
        copied,
        name=f"{name}-{interval_ms}{title and '-soon'}",
        title=f"{copied.title}, {_label(interval_ms)}{title}",
        more=given,
    )
    return Subject(changed, interval_ms)


def _label(interval_ms: int) -> str:
    return f"{interval_ms / 1000:g} s" if interval_ms >= 1000 else f"{interval_ms} ms"


@cache
def _streams() -> Mapping[str, Any]:
    """What `java_copy.py` is given: the program compiled, once in a process."""
    java, jars = find_java(STREAMS.name), installed(STREAMS)
    classes = tempfile.mkdtemp(prefix="headrace-streams-")
    source = Path(__file__).with_name("StreamsCopy.java")
    subprocess.run([java.with_name("javac"), "-cp", f"{jars}/*", "-d", classes, source], check=True)  # noqa: S603 - our own
    return {"java": str(java), "jars": str(jars), "classes": classes, "main": "StreamsCopy", "interval_ms": STREAMS_MS}


STREAMS_MS = 100

BUNDLE_MS = 100
"""Of Beam on Flink, in place of a second: a call of a reader is part of a bundle, and the next one waits for its end."""

SUBJECTS = (
    *(_every("headrace-run", interval_ms) for interval_ms in INTERVALS_MS),
    *(_every("headrace-run", interval_ms, f", max-delay {SOON_MS} ms", max_delay_ms=SOON_MS) for interval_ms in INTERVALS_MS),
    *(_every("flink", interval_ms) for interval_ms in INTERVALS_MS),
    Subject(System("streams-100", f"Kafka Streams, {_label(STREAMS_MS)}", EXACTLY, "java_copy.py", more=_streams), STREAMS_MS),
    _every("confluent-txn", 100),
    Subject(COPIES["headrace"], None),
    Subject(COPIES["jvm"], None),
    _every("headrace-beam", 200, read_s=0.1, flags=[f"--max_bundle_time_mills={BUNDLE_MS}"]),
)
"""In the order of the report."""

BY_NAME = {subject.name: subject for subject in SUBJECTS}
