"""One run: a system that copies a topic at two rates, one after the other, and is killed at the second one."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.delay.judge import Flaws, Seen, delays_ms, judge, percentiles
from benchmarks.delay.load import NS, Load
from benchmarks.delay.probe import Probe
from benchmarks.delay.systems import Subject
from benchmarks.restore.process import ProcessTree
from benchmarks.restore.systems import Job
from benchmarks.restore.watched import POLL_S, wait_for
from headrace.testing.servers.kafka import create_topic, delete_topic

BROKER_HEAP = ("-Xms1g", "-Xmx1g")
VALUE_BYTES = 100
PARTITIONS = 4
RATES = (1_000, 20_000)
TRICKLE = 200.0
PER_TRIGGER = 200_000
START_S = 180.0
RESTORE_S = 120.0
CAUGHT_UP_S = 3.0
"""The lag is small for so long: by then the delays of what was due in the outage are known."""

QUIET_S = 30.0
LATE_MS = 50.0
"""A load whose records are acknowledged later than this, by their 99th percentile, has not held its rate."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Timing:
    """Seconds, at each rate: before measuring, and measured."""

    warm_up_s: float
    steady_s: float


class Rig:
    """A system between its topics, with load and probe. Used by one thread."""

    def __init__(self, bootstrap: str, subject: Subject, directory: Path, running: Load, watching: Probe, job: Job) -> None:
        self._system, self._directory, self._job = subject.system, directory, job
        self.load, self.probe = running, watching
        self.tree = self._started()

    def wait_for_first(self) -> None:
        """Until a record is out. Raises RuntimeError if none is in time."""
        if not self.wait_for(lambda: self.probe.visible.value > 0, START_S):
            raise RuntimeError(f"no record came out within {START_S:g} s:\n{self.tree.log_tail()}")

    def _started(self) -> ProcessTree:
        environment = self._system.environment(None, self._directory, traced=False)
        return ProcessTree(self._system.command(self._job), environment, self._directory)

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Until it is so, at most so long; whether it is. Raises RuntimeError when a process has ended by itself."""
        return wait_for(condition, seconds, (self.tree, self.probe, self.load))

    def wait(self, seconds: float) -> None:
        """Let it run, and watch."""
        self.wait_for(lambda: False, seconds)

    def restart(self) -> None:
        """SIGKILL to all of it, and start it again."""
        self.tree.kill()
        self.tree = self._started()

    def shown(self) -> Callable[[], bool]:
        """Makes a condition: what is acknowledged until now, and a second's load more, is visible."""
        due = int(self.load.stamps()["records"].sum()) + int(self.load.rate.value)
        return lambda: int(self.probe.visible.value) >= due

    @property
    def lag(self) -> int:
        """Acknowledged and not visible yet; negative with duplicates."""
        return int(self.load.stamps()["records"].sum()) - int(self.probe.visible.value)


def run(bootstrap: str, subject: Subject, timing: Timing, directory: Path, tell: Tell) -> dict[str, Any]:
    """Gives the run's document. Raises RuntimeError when it could not be carried out."""
    facts = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "load_average": os.getloadavg()}
    with rig_of(bootstrap, subject, directory, TRICKLE) as rig:
        windows = _measure(rig, timing, tell)
        tell("drains")
        produced = _drain(rig)
    seen, stamps = rig.probe.seen(), rig.load.stamps()
    flaws = judge(produced, seen)
    return {**facts, **_document(subject, timing), **_figures(windows, seen, stamps, flaws)}


@contextmanager
def rig_of(bootstrap: str, subject: Subject, directory: Path, rate: float) -> Iterator[Rig]:
    """The system is started, and given this many records/s. Nothing of it is left but what the probe has noted."""
    name = f"delay-{uuid.uuid4().hex[:12]}"
    source, target = f"{name}-in", f"{name}-out"
    for topic in (source, target):
        create_topic(bootstrap, topic, PARTITIONS)
    (directory / "state").mkdir()
    job = Job(
        bootstrap, source, target, name, str(directory / "state"), str(directory / "marks.jsonl"),
        subject.system.parallelism, PER_TRIGGER,
    )  # fmt: skip
    with (
        Probe(bootstrap, target, directory / "probe.rows") as watching,
        Load(bootstrap, source, VALUE_BYTES, PARTITIONS, directory / "load.stamps", rate) as running,
    ):
        rig = Rig(bootstrap, subject, directory, running, watching, job)
        try:
            yield rig
        finally:
            rig.tree.end()
            for topic in (source, target):
                delete_topic(bootstrap, topic)


@dataclass(frozen=True)
class Window:
    """Records that were due in this time, in monotonic nanoseconds. `cpu_s`: what the system took of the processors.

    `lag`: at its end, in records; large where a system does not keep up, or has not caught up after the kill.
    """

    name: str
    rate: int
    since_ns: int
    until_ns: int
    cpu_s: Mapping[str, float]
    lag: int


def _measure(rig: Rig, timing: Timing, tell: Tell) -> list[Window]:
    tell("starts")
    rig.wait_for_first()
    windows = []
    for rate in RATES:
        rig.load.rate.value = float(rate)
        tell(f"{rate:,} records/s: warms up")
        rig.wait(timing.warm_up_s)
        tell(f"{rate:,} records/s: is measured")
        since_ns, before = time.monotonic_ns(), rig.tree.cpu_seconds()
        rig.wait(timing.steady_s)
        used = {kind: round(after - before[kind], 2) for kind, after in rig.tree.cpu_seconds().items()}
        windows.append(Window("steady", rate, since_ns, time.monotonic_ns(), used, rig.lag))
    rig.wait_for(rig.shown(), QUIET_S)  # or the kill would be in the delays of the window before it
    tell("is killed")
    since_ns = time.monotonic_ns()
    rig.restart()
    _catch_up(rig)
    return [*windows, Window("kill", RATES[-1], since_ns, time.monotonic_ns(), {}, rig.lag)]


def _catch_up(rig: Rig) -> None:
    small_since: list[float] = []

    def caught_up() -> bool:
        if rig.lag > RATES[-1] * CAUGHT_UP_S:
            small_since.clear()
        elif not small_since:
            small_since.append(time.monotonic())
        return bool(small_since) and time.monotonic() - small_since[0] > CAUGHT_UP_S

    rig.wait(CAUGHT_UP_S)
    rig.wait_for(caught_up, RESTORE_S)


def _drain(rig: Rig) -> list[int]:
    """End the load, and wait until all is out, or nothing more comes; how many records each input partition got."""
    counts = rig.load.stop()
    last, since = -1, time.monotonic()
    while True:
        now, visible = time.monotonic(), rig.probe.visible.value
        if visible != last:
            last, since = visible, now
        if now - since > (CAUGHT_UP_S if visible >= sum(counts) else QUIET_S):
            return counts
        time.sleep(POLL_S)


def _document(subject: Subject, timing: Timing) -> dict[str, Any]:
    return {
        "system": subject.name,
        "title": subject.system.title,
        "guarantee": subject.system.guarantee,
        "interval_ms": subject.interval_ms,
        "value_bytes": VALUE_BYTES,
        "steady_s": timing.steady_s,
        "stolen": getattr(psutil.cpu_times_percent(), "steal", 0.0) / 100,
    }


def _figures(windows: list[Window], seen: Seen, stamps: np.ndarray, flaws: Flaws) -> dict[str, Any]:
    found, wrong = [], []
    for window in windows:
        produced = stamps[(stamps["due_ns"] >= window.since_ns) & (stamps["due_ns"] < window.until_ns)]
        lateness = percentiles((produced["acknowledged_ns"] - produced["due_ns"]) / 1e6)
        seconds, records = (window.until_ns - window.since_ns) / NS, int(produced["records"].sum())
        if window.name == "steady" and (lateness["p99"] > LATE_MS or abs(records / seconds / window.rate - 1) > 0.02):
            wrong.append(
                f"{window.rate} records/s: the load wrote {records / seconds:.0f}, {lateness['p99']:.0f} ms late (p99)"
            )
        found.append(
            {
                "name": window.name,
                "rate": window.rate,
                "seconds": round(seconds, 1),
                "records": records,
                "delay_ms": delays_ms(seen, window.since_ns, window.until_ns),
                "load_ms": lateness,
                "cpu_s": dict(window.cpu_s),
                "lag": window.lag,
            }
        )
    return {"windows": found, "flaws": flaws.counts(), "clean": flaws.clean, "wrong": wrong, "valid": not wrong}
