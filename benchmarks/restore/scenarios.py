"""What is done to a system: when it is killed, and what changes until it is back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """Before or after (`when`) a step of our sink: `owner` and `method` are names of our Kafka sink."""

    owner: str
    method: str
    when: str

    def __str__(self) -> str:
        """For people."""
        return f"{self.when} {self.method}"


@dataclass(frozen=True)
class Scenario:
    """One kill. `phase` None: by the clock, `delay` seconds (0 to 3, by the seed) after the steady time was measured.

    Systems that have no such phase are killed by the clock. `again`: killed again this many seconds into the restart.
    `added`: partitions that the input gets while it is down. `more`: by how much parallelism grows at the restart.
    """

    name: str
    phase: Phase | None = None
    again: bool = False
    added: int = 0
    more: int = 0

    @property
    def driver_only(self) -> bool:
        """Whether it needs a restart of the driver."""
        return self.more > 0


SCENARIOS = (
    Scenario("by the clock"),
    Scenario("before the snapshot", Phase("KafkaTransaction", "write", "after")),
    Scenario("prepared", Phase("KafkaTransaction", "prepare", "after")),
    Scenario("partitions added", added=2),
    Scenario("before the list", Phase("KafkaCommitter", "record", "before")),
    Scenario("list durable", Phase("KafkaCommitter", "record", "after")),
    Scenario("killed again in the restart", again=True),
    Scenario("commit in flight", Phase("KafkaCommitter", "end", "after")),
    Scenario("committed, not notified", Phase("KafkaCommitter", "clean_up", "after")),
    Scenario("more parallelism", more=1),
)
"""Run number n is scenario n, and again from the start after the last."""

GROW = Scenario("partitions added", added=2)


_BEFORE_THE_LIST = [one for one in SCENARIOS if one.name in ("before the snapshot", "prepared", "before the list")]


def before_the_list(number: int) -> Scenario:
    """Of runs whose restore must write the killed batch again: once its list is durable, what it reads makes no difference."""
    return _BEFORE_THE_LIST[number % len(_BEFORE_THE_LIST)]


def scenario(number: int) -> Scenario:
    """Of the n-th run of a system, from 0."""
    return SCENARIOS[number % len(SCENARIOS)]
