"""The systems whose delay is measured: those of the restore benchmark, with an interval between commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.restore.systems import BY_NAME as COPIES
from benchmarks.restore.systems import System

DELAY_INTERVALS_MS = (1000, 200, 50)


@dataclass(frozen=True)
class Subject:
    """A system that copies a topic, and what is compared of it. `interval_ms`: between commits; None: as soon as it can."""

    system: System
    interval_ms: int | None

    @property
    def name(self) -> str:
        """Of its file."""
        return self.system.name


def _every(name: str, interval_ms: int, **more: Any) -> Subject:  # noqa: ANN401 - of the job's JSON
    copied = COPIES[name]

    def given() -> Mapping[str, Any]:
        return {**copied.more(), "interval_ms": interval_ms, **more}

    label = f"{interval_ms / 1000:g} s" if interval_ms >= 1000 else f"{interval_ms} ms"
    changed = replace(copied, name=f"{name}-{interval_ms}", title=f"{copied.title}, {label}", more=given)
    return Subject(changed, interval_ms)


SUBJECTS = (
    *(_every("headrace-run", interval_ms) for interval_ms in DELAY_INTERVALS_MS),
    *(_every("flink", interval_ms) for interval_ms in DELAY_INTERVALS_MS),
    _every("confluent-txn", 100),
    Subject(COPIES["headrace"], None),
    Subject(COPIES["jvm"], None),
    _every("headrace-beam", 200, read_s=0.05),
)

BY_NAME = {subject.name: subject for subject in SUBJECTS}
