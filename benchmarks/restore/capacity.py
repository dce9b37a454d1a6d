"""The sustained throughput of a system in records per second, with load and probe running, and its processor time."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.restore.run import SETTLED_S, Rig, Tell, Work
from benchmarks.restore.systems import System

MEASURED_S, STILL_GROWING, LIMIT_S = 20.0, 1.05, 240.0
"""The closed loop continues in spans of this many seconds, until one gives less than that factor more than the previous one."""

LEAST_WINDOW, WINDOW_S = 50_000, 3.0
LEAST_RATE, FASTER = 20_000.0, 1.5
"""The loop's window and pace: of what comes out now. At full speed it would write larger batches than an open one does."""

PER_TRIGGER = 1_000_000


@dataclass(frozen=True)
class Capacity:
    """Records per second, and microseconds of processor time for each record, by whose processes they are."""

    records_per_s: float
    processors_us: dict[str, float]

    def document(self, system: System, value_bytes: int) -> dict[str, Any]:
        """For JSON."""
        what = {"kind": "capacity", "system": system.name, "title": system.title, "value_bytes": value_bytes}
        return {**what, **asdict(self)}


def capacity(bootstrap: str, work: Work, directory: Path, tell: Tell) -> Capacity:
    """The load continues only as records come out, until no more come. Raises RuntimeError when that does not resolve."""
    rig = Rig(bootstrap, work, directory, PER_TRIGGER)
    with rig.running():
        tell("starts, for its capacity")
        rig.warm_up()
        tell("capacity")
        found, limit = Capacity(0.0, {}), time.monotonic() + LIMIT_S
        while True:
            before, found = found.records_per_s, _span(rig)
            if found.records_per_s < STILL_GROWING * before:
                break
            if time.monotonic() > limit:
                raise RuntimeError(f"its throughput still grows after {LIMIT_S:g} s: {found.records_per_s:.0f} records/s")
        assert rig.tree is not None
        rig.tree.kill()
        return found


def _span(rig: Rig) -> Capacity:
    """For MEASURED_S the load is somewhat faster than what comes out, and keeps outstanding what comes out in WINDOW_S."""
    before, started_at = _processors(rig), time.monotonic()
    while time.monotonic() < started_at + MEASURED_S:
        rate = rig.samples.rate(SETTLED_S)
        rig.controls.window.value = max(LEAST_WINDOW, WINDOW_S * rate)
        rig.controls.rate.value = max(LEAST_RATE, FASTER * rate)
        rig.wait(1.0)
    rate = rig.samples.rate(MEASURED_S)
    records = max(1.0, rate * (time.monotonic() - started_at))
    budget = {name: value - before[name] for name, value in _processors(rig).items()}
    return Capacity(rate, {name: round(1e6 * value / records, 3) for name, value in budget.items()})


def _processors(rig: Rig) -> dict[str, float]:
    """Seconds of processor time so far, by whose they are; the broker's with everything else that runs on the machine."""
    assert rig.tree is not None
    settings = {**rig.tree.cpu_seconds(), **rig.cpu_seconds()}
    all_of_it = psutil.cpu_times()
    return {**settings, "broker and others": all_of_it.user + all_of_it.nice + all_of_it.system - sum(settings.values())}
