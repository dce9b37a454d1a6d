"""The stages of a Spark driver's restore, from what its processes have noted. Pure; seconds are since the kill."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

Mark = Mapping[str, Any]

_MARKS = ("python", "imported", "session", "query")
STAGES = (
    "the dead are gone, Python starts",
    "imports of the driver",
    "JVM and session",
    "the query starts",
    "first batch, to the first new record",
)


def stages(marks: Sequence[Mark], outage_s: float) -> dict[str, float]:
    """How long each stage took; together they are the outage. Raises ValueError when a mark is missing."""
    first = {mark["name"]: float(mark["at"]) for mark in reversed(marks) if mark["name"] in _MARKS}
    if missing := [name for name in _MARKS if name not in first]:
        raise ValueError(f"the restored job did not note: {', '.join(missing)}")
    edges = [0.0, *(first[name] for name in _MARKS), outage_s]
    return {stage: round(end - begin, 3) for stage, (begin, end) in zip(STAGES, itertools.pairwise(edges), strict=True)}


def processes(marks: Sequence[Mark], outage_s: float) -> list[dict[str, Any]]:
    """Each Python process that Spark started until the first new record: what it ran, since when, and its noted steps."""
    started_at: dict[int, dict[str, Any]] = {}
    for mark in marks:
        if mark["at"] > outage_s or "took" not in mark:
            continue
        process = started_at.setdefault(
            mark["pid"], {"pid": mark["pid"], "module": mark["module"], "at": mark["at"], "steps": []}
        )
        process["steps"].append({"name": mark["name"], "at": mark["at"], "took": mark["took"]})
    return sorted(started_at.values(), key=lambda process: process["at"])
