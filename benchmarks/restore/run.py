"""One run: a system under load, a kill, a restore, and what the probe and the oracle say of it."""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.restore.broker_bytes import BrokerBytes
from benchmarks.restore.load import NO_WINDOW, Controls, Load
from benchmarks.restore.oracle import OracleResult, Seen, first_seen, judge, read_logs
from benchmarks.restore.probe import Probe
from benchmarks.restore.process import ProcessTree
from benchmarks.restore.scenarios import Phase, Scenario
from benchmarks.restore.systems import Job, System, Victim
from benchmarks.restore.timeline import ECHO_S, Curve, Moments, lag_level, restore, series
from benchmarks.restore.watched import POLL_S, wait_for
from headrace.testing.servers.kafka import add_partitions, create_topic, delete_topic

PARTITIONS = 8
PHASE_POLL_S = 0.001
TRICKLE = 400.0
LOOK_EVERY_S = 0.5
SURE_S = 4.0
"""Watched longer than it takes: what is seen while it runs counts duplicates too, and so may be "caught up" too early."""

START_S = 180.0
PHASE_S = 30.0
LATEST_KILL_S = 3.0
RESTART_KILL_S = (2.0, 6.0)
WORKER_RESTART_KILL_S = (0.1, 0.5)
SETTLED_S, SETTLED = 4.0, 0.1
"""Steady is a load under which the highest lag of this many seconds differs by no more than that share from the previous
one.
"""

SETTLE_LIMIT_S = 90.0
QUIET_S = 30.0
QUIET_CAUGHT_UP_S = 3.0
LEAST_PER_TRIGGER = 10_000
TRIGGER_S = 2.0
"""A Spark batch takes at most the records of this many seconds, so that what piles up in an outage is not one batch. For
all.
"""

MOST_BEHIND_S = 1.5
MOST_STOLEN = 0.15
"""A virtual machine whose host gave more than this share of the processors' time to others was another machine."""

BEFORE_S = 10.0
"""How much of the time before the kill is kept for the plot."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Timing:
    """How long a run waits for what, in seconds: before measuring, while steady, and at most for the restore."""

    warm_up_s: float
    steady_s: float
    restore_s: float


FULL = Timing(8.0, 8.0, 180.0)
QUICK = Timing(5.0, 5.0, 180.0)


@dataclass(frozen=True)
class Work:
    """What a run is to do. `number` chooses the scenario and seeds its moments: the same for every system."""

    system: System
    value_bytes: int
    rate: float
    number: int
    timing: Timing
    traced: bool = False

    @property
    def scenario(self) -> Scenario:
        """What happens to the system."""
        return self.system.scenario(self.number)


@dataclass
class Killed:
    """What was done, and when: monotonic seconds of the first kill, and when none of its victims was left.

    `visible`: how many records the probe had been given a moment later.
    """

    at: float
    dead: float
    phase: Phase | None
    kills: int = 1
    visible: int = 0


class Samples:
    """The counters as they were read while the run continued, good enough to steer it; what is reported comes from the
    files.
    """

    def __init__(self, controls: Controls) -> None:
        """Nothing read yet."""
        self._controls = controls
        self._rows: list[tuple[float, int, int]] = []

    def take(self) -> None:
        """Read them now."""
        self._rows.append((time.monotonic(), self._controls.produced.value, self._controls.visible.value))

    def curves(self) -> tuple[Curve, Curve]:
        """Produced and visible."""
        at, produced, visible = (np.array(column) for column in zip(*self._rows, strict=True))
        return Curve(at, produced), Curve(at, visible)

    def rate(self, seconds: float) -> float:
        """Visible per second, of late: by least squares, as one batch more or less would count too much between two ends."""
        _, visible = self.curves()
        recent = visible.at >= visible.at[-1] - seconds
        return float(np.polyfit(visible.at[recent] - visible.at[-1], visible.total[recent], 1)[0])


class Rig:
    """A system between its topics, with load and probe: what a run drives. Used by one thread."""

    def __init__(self, bootstrap: str, work: Work, directory: Path, per_trigger: int) -> None:
        """Makes the topics, starts nothing."""
        self.bootstrap, self.work, self.directory = bootstrap, work, directory
        name = f"restore-{uuid.uuid4().hex[:12]}"
        self.source, self.target = f"{name}-in", f"{name}-out"
        for topic in (self.source, self.target):
            create_topic(bootstrap, topic, PARTITIONS)
        self.controls = Controls()
        self.controls.partitions.value = PARTITIONS
        self.samples = Samples(self.controls)
        (directory / "state").mkdir()
        self._marks = directory / "marks.jsonl"
        self._job = Job(
            bootstrap, self.source, self.target, name, str(directory / "state"), str(self._marks),
            work.system.parallelism, per_trigger,
        )  # fmt: skip
        self.tree: ProcessTree | None = None
        self._load: Load | None = None
        self._probe: Probe | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """With load and probe, and whatever `start` starts; nothing is left of them, nor of the topics."""
        size = self.work.value_bytes
        with (
            Probe(self.bootstrap, self.target, self.directory / "probe.stamps", self.controls) as self._probe,
            Load(self.bootstrap, self.source, size, self.directory / "load.stamps", self.controls) as self._load,
        ):
            try:
                yield
            finally:
                if self.tree is not None:
                    self.tree.end()
                for topic in (self.source, self.target):
                    delete_topic(self.bootstrap, topic)

    def start(self, phase: Phase | None, more_parallelism: int = 0) -> None:
        """Start the system; `phase` is where it will stop once it is armed."""
        job = replace(self._job, parallelism=self._job.parallelism + more_parallelism)
        environment = self.work.system.environment(phase, self.directory, traced=self.work.traced)
        self.tree = ProcessTree(self.work.system.command(job), environment, self.directory)

    def wait(self, seconds: float) -> None:
        """Let it run, and watch."""
        self.wait_for(lambda: False, seconds)

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Until it is so, at most so long; whether it is. Raises RuntimeError when a process has ended by itself."""
        assert self.tree is not None
        assert self._probe is not None
        assert self._load is not None
        return wait_for(condition, seconds, (self.tree, self._probe, self._load), self.samples.take)

    def warm_up(self) -> None:
        """Start it, and wait for its first record. Raises RuntimeError when none comes."""
        self.controls.rate.value = TRICKLE
        self.start(self.work.scenario.phase)
        assert self.tree is not None
        if not self.wait_for(lambda: self.controls.visible.value > 0, START_S):
            raise RuntimeError(f"no record came out within {START_S:g} s:\n{self.tree.log_tail()}")
        if self.work.system.victim is Victim.ACTIVE and not self.wait_for(self.tree.has_standby, START_S):
            raise RuntimeError(f"no standby waits after {START_S:g} s:\n{self.tree.log_tail()}")

    def strike(self, stopped: int | None) -> tuple[float, float]:
        """Kill what is to be killed; `stopped` is a process that has stopped in a phase. When, and when all was dead."""
        assert self.tree is not None
        match self.work.system.victim:
            case Victim.ALL:
                return self.tree.kill()
            case Victim.ACTIVE:
                return self.tree.kill_active()
            case Victim.WORKERS | Victim.WORKER:
                return self.tree.kill_workers(stopped, self.work.system.most)

    def settle(self) -> None:
        """Wait until the lag neither grows nor shrinks. Raises RuntimeError when it does for too long."""

        def settled() -> bool:
            now = time.monotonic()
            produced, visible = self.samples.curves()
            before = lag_level(produced, visible, now - 2 * SETTLED_S, now - SETTLED_S).peak
            later = lag_level(produced, visible, now - SETTLED_S, now).peak
            return abs(later - before) <= before * SETTLED + self.work.rate * POLL_S

        self.wait(2 * SETTLED_S)
        if not self.wait_for(settled, SETTLE_LIMIT_S):
            raise RuntimeError(f"the lag does not resolve under {self.work.rate:.0f} records/s: it is {self.controls.lag}")

    def drain(self, since_kill: int) -> list[int]:
        """End the load, and wait until all is out, or nothing more comes; how many records each input partition got.

        `since_kill`: how many were visible at the kill. A system that has shown nothing new since may still be starting.
        """
        assert self._load is not None
        counts = self._load.stop()
        last, since = -1, time.monotonic()
        assert self.tree is not None
        while True:
            self.tree.check()
            now, seen = time.monotonic(), self.controls.visible.value
            if seen != last:
                last, since = seen, now
            still_starting = START_S if seen <= since_kill else QUIET_S
            if now - since > (QUIET_CAUGHT_UP_S if seen >= sum(counts) else still_starting):
                return counts
            time.sleep(POLL_S)

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time that load and probe have taken so far."""
        assert self._load is not None
        assert self._probe is not None
        budget = {name: psutil.Process(of.pid).cpu_times() for name, of in (("load", self._load), ("probe", self._probe))}
        return {name: times.user + times.system for name, times in budget.items()}

    def live_curves(self) -> tuple[Curve, Curve]:
        """Produced and visible until now; duplicates count as visible."""
        assert self._load is not None
        assert self._probe is not None
        seen = self._probe.seen()
        return self._load.curve(), Curve(seen.at, np.cumsum(seen.rows))

    def stamps(self) -> tuple[Curve, Seen]:
        """When records were acknowledged, and when the probe was given them."""
        assert self._load is not None
        assert self._probe is not None
        self._probe.kill()
        return self._load.curve(), self._probe.seen()

    def marks(self, zero: float) -> list[dict[str, Any]]:
        """What the jobs have noted, with seconds since `zero`."""
        lines = self._marks.read_text().splitlines() if self._marks.exists() else []
        found = [json.loads(line) for line in lines]
        return [{**mark, "at": round(mark["at"] - zero, 4)} for mark in sorted(found, key=lambda mark: mark["at"])]


# --- a run -------------------------------------------------------------------------------------------------------------


def run(bootstrap: str, counters: BrokerBytes, work: Work, directory: Path, tell: Tell) -> dict[str, Any]:
    """One kill; gives the run's document. Raises RuntimeError when it could not be carried out."""
    started_at = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "load_average": os.getloadavg()}
    psutil.cpu_times_percent()  # the next call says what was between
    per_trigger = max(LEAST_PER_TRIGGER, int(TRIGGER_S * work.rate))
    rig = Rig(bootstrap, work, directory, per_trigger)
    generator = random.Random(work.number)  # noqa: S311 - the same moments for every system
    with rig.running():
        steady_since, killed, watched_until = _kill_and_watch(rig, generator, tell)
        tell("drains")
        produced = rig.drain(killed.visible)
        amplification = counters.amplification(rig.source)
        assert rig.tree is not None
        rig.tree.kill()
        curve, seen = rig.stamps()
        tell("is judged")
        outcome, visible = _judge(bootstrap, rig.target, work.value_bytes, produced, seen)
    moments = Moments(steady_since, killed.at, killed.dead, watched_until)
    result = restore(curve, visible, moments)
    stolen = getattr(psutil.cpu_times_percent(), "steal", 0.0) / 100  # what a virtual machine's host kept, where that is known
    wrong = _invalid(work, rig.controls, outcome, stolen)
    return {
        "system": work.system.name,
        "title": work.system.title,
        "guarantee": work.system.guarantee,
        "ablation": work.system.ablation,
        "victim": work.system.victim.value,
        "number": work.number,
        "value_bytes": work.value_bytes,
        "rate": round(work.rate),
        **started_at,
        "stolen": stolen,
        "valid": not wrong,
        "wrong": wrong,
        "scenario": {
            "name": work.scenario.name,
            "phase": None if killed.phase is None else str(killed.phase),
            "kills": killed.kills,
            "partitions_added": work.scenario.added,
            "parallelism": [work.system.parallelism, work.system.parallelism + work.scenario.more],
        },
        "dfrt": result.throughput if outcome.clean else 0.0,
        "restore": asdict(result),
        "verdict": {**outcome.counts(), "clean": outcome.clean},
        "read_amplification": amplification,
        "marks": rig.marks(killed.at),
        "series": series(curve, visible, killed.at - BEFORE_S, watched_until, killed.at),
    }


def _kill_and_watch(rig: Rig, generator: random.Random, tell: Tell) -> tuple[float, Killed, float]:
    """When the steady time started, the kill, and when the watching ended."""
    work = rig.work
    tell("starts")
    rig.warm_up()
    rig.controls.window.value = NO_WINDOW
    rig.controls.rate.value = work.rate
    tell(f"warms up at {work.rate:,.0f} records/s")
    rig.wait(work.timing.warm_up_s)
    rig.settle()
    steady_since = time.monotonic()
    tell("is steady")
    rig.wait(work.timing.steady_s)
    tell(f"is killed: {work.scenario.name}")
    killed = _kill(rig, generator)
    tell("restores")
    rig.wait(SURE_S + LOOK_EVERY_S)
    while not _is_caught_up(rig, steady_since, killed) and time.monotonic() < killed.at + work.timing.restore_s:
        rig.wait(LOOK_EVERY_S)
    return steady_since, killed, time.monotonic()


def _is_caught_up(rig: Rig, steady_since: float, killed: Killed) -> bool:
    """By what the report will use, but for duplicates: hence SURE_S, in which the lag must not have risen again."""
    produced, visible = rig.live_curves()
    now = time.monotonic()
    moments = [Moments(steady_since, killed.at, killed.dead, until) for until in (now - SURE_S, now)]
    return all(restore(produced, visible, moment).recovery_s is not None for moment in moments)


def _kill(rig: Rig, generator: random.Random) -> Killed:
    """Kill it as the scenario says, and start it again, if it has to be."""
    scenario = rig.work.scenario
    delay, restart_share = generator.uniform(0, LATEST_KILL_S), generator.random()
    stopped = None
    if scenario.phase is None:
        rig.wait(delay)
    else:
        stopped = _reach_phase(rig)
    at, dead = rig.strike(stopped)
    killed = Killed(at, dead, scenario.phase)
    (rig.directory / "armed").unlink(missing_ok=True)
    if scenario.added:
        total = PARTITIONS + scenario.added
        add_partitions(rig.bootstrap, rig.source, total)
        rig.controls.partitions.value = total
    if rig.work.system.victim is Victim.ALL:
        rig.start(None, scenario.more)
    rig.wait(ECHO_S)  # what they had committed reaches the probe
    killed.visible = rig.controls.visible.value
    if scenario.again:
        _kill_again(rig, killed, restart_share)
    return killed


def _kill_again(rig: Rig, killed: Killed, share: float) -> None:
    """In the restart, which is then made again."""
    starts_anew = rig.work.system.victim is Victim.ALL
    earliest, latest = WORKER_RESTART_KILL_S if not starts_anew else RESTART_KILL_S
    rig.wait(earliest + share * (latest - earliest))
    _, killed.dead = rig.strike(None)
    if starts_anew:
        rig.start(None, rig.work.scenario.more)
    killed.kills += 1


def _reach_phase(rig: Rig) -> int:
    """Have a process stop in the phase; its id. Raises RuntimeError when none comes there: then there is nothing to measure."""
    reached = rig.directory / "reached"
    (rig.directory / "armed").touch()
    deadline = time.monotonic() + PHASE_S
    while not reached.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"phase {rig.work.scenario.phase} was not reached within {PHASE_S:g} s")
        time.sleep(PHASE_POLL_S)
    return int(reached.read_text())


def _judge(bootstrap: str, topic: str, value_bytes: int, produced: list[int], seen: Seen) -> tuple[OracleResult, Curve]:
    logs = read_logs(bootstrap, topic, "read_committed", value_bytes)
    outcome = judge(produced, logs, lambda: read_logs(bootstrap, topic, "read_uncommitted", value_bytes), seen)
    return outcome, Curve.of_events(first_seen(produced, logs, seen))


def _invalid(work: Work, controls: Controls, outcome: OracleResult, stolen: float) -> list[str]:
    """What makes the run's figures worthless; anomalies of the system's do not."""
    found = []
    if work.system.ablation and outcome.clean:
        found.append("the injected bug was not seen")
    if stolen > MOST_STOLEN:
        found.append(f"the machine's host took {stolen:.0%} of its processors' time")
    if controls.behind.value > MOST_BEHIND_S * work.rate:
        found.append(f"the load generator was {controls.behind.value} records late")
    if outcome.unseen:
        found.append(f"the probe was not given {outcome.unseen} committed records")
    return found
