"""The network: partitions, in both directions and in one, between clients and brokers and among brokers; slow links; resets."""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.chaos.faults.fault import Fault, Kind, NotHappenedError
from benchmarks.chaos.network import GOOD, HARNESS, HELD, JOB, Condition, Weather, Where
from benchmarks.chaos.subject import Subject
from benchmarks.chaos.testbed import Testbed

NOTHING, REQUESTS, ANSWERS = Weather(HELD, HELD), Weather(HELD, GOOD), Weather(GOOD, HELD)
SLOW = Weather(Condition(bytes_per_s=20_000), Condition(bytes_per_s=20_000))
FAR = Weather(Condition(delay_s=0.15), Condition(delay_s=0.15))

Place = Callable[[int], Where]
"""Given the broker that is hit, which connections are meant."""


def clients(hit: int) -> Where:
    """Between the job and the broker."""
    return lambda source, target: source == JOB and target == hit


def all_clients(_hit: int) -> Where:
    """Between the job and every broker."""
    return lambda source, _target: source == JOB


def peers(hit: int) -> Where:
    """Between the broker and the other brokers; clients reach all of them."""
    return lambda source, target: source not in (JOB, HARNESS) and source != str(target) and str(hit) in (source, str(target))


def everybody(hit: int) -> Where:
    """Between the broker and everyone else but the harness."""
    among = peers(hit)
    return lambda source, target: among(source, target) or (source == JOB and target == hit)


class Disturbed(Fault):
    """Connections of the place that the leader of a partition has."""

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random, place: Place, weather: Weather) -> None:
        """Nothing yet."""
        super().__init__(testbed, subject, generator)
        self._place, self._weather = place, weather
        self._before = (0, 0)

    def apply(self) -> str:
        """Until it is healed."""
        hit = self.leader_of_a_partition()
        counts = self.testbed.network.counts
        self._before = (counts.held, counts.slowed)
        self.testbed.network.disturb(self._place(hit), self._weather)
        return f"broker {hit}"

    def prove(self) -> str:
        """Bytes were held or slowed down meanwhile."""
        counts = self.testbed.network.counts
        held, slowed = counts.held - self._before[0], counts.slowed - self._before[1]
        if not held and not slowed:
            raise NotHappenedError("no byte was on its way there")
        return f"{held} bytes held, {slowed} slowed down"

    def heal(self) -> None:
        """What was held arrives."""
        self.testbed.network.calm()


class Reset(Fault):
    """Every connection of the job is reset, again and again."""

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random) -> None:
        """Nothing yet."""
        super().__init__(testbed, subject, generator)
        self._cut = 0

    def apply(self) -> str:
        """Now, and again when it is healed."""
        self._cut = self.testbed.network.cut(all_clients(0))
        return "all connections of the job"

    def prove(self) -> str:
        """There were some."""
        if not self._cut:
            raise NotHappenedError("the job had no connection")
        return f"{self._cut} connections"

    def heal(self) -> None:
        """It has connected again meanwhile."""
        self._cut += self.testbed.network.cut(all_clients(0))


def _kind(name: str, place: Place, weather: Weather, shortest: float, longest: float) -> Kind:
    def make(testbed: Testbed, subject: Subject, generator: random.Random) -> Fault:
        return Disturbed(testbed, subject, generator, place, weather)

    return Kind(name, "network", make, shortest, longest, real=place in (peers, everybody))


KINDS = (
    _kind("client partition", clients, NOTHING, 1, 8),
    _kind("requests lost", clients, REQUESTS, 1, 8),
    _kind("answers lost", clients, ANSWERS, 1, 8),
    _kind("client isolated", all_clients, NOTHING, 1, 8),
    _kind("broker isolated from brokers", peers, NOTHING, 3, 14),
    _kind("broker isolated", everybody, NOTHING, 3, 14),
    _kind("slow link", clients, SLOW, 3, 8),
    _kind("far link", all_clients, FAR, 3, 8),
    Kind("connections reset", "network", Reset, 0.2, 1, real=False),
)
