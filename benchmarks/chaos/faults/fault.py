"""The interface of all faults."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.chaos.databases import PRODUCTS
from benchmarks.chaos.losses import Losses
from benchmarks.chaos.subject import Subject
from benchmarks.chaos.testbed import Testbed


class NotHappenedError(Exception):
    """A fault was applied and left no trace: then a job that was it has shown nothing."""


class Fault(ABC):
    """One fault, once: `apply`, some seconds, `prove`, `heal`."""

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random) -> None:
        """Does nothing yet."""
        self.testbed, self.subject, self.random = testbed, subject, generator

    @abstractmethod
    def apply(self) -> str:
        """Start it; returns what was hit."""

    @abstractmethod
    def heal(self) -> None:
        """End it. Also called when `apply` failed."""

    @abstractmethod
    def prove(self) -> str:
        """What shows that it has happened. Raises NotHappenedError if nothing does."""

    def losses(self) -> Losses | None:
        """What of the input is gone for good, once it is healed. None: nothing may be."""
        return None

    def leader_of_a_partition(self) -> int:
        """Of any partition that the job reads or writes."""
        topic = self.random.choice(self.subject.names.topics)
        partition = self.random.choice(sorted(self.testbed.partitions(topic)))
        return self.testbed.leader(topic, partition)


@dataclass(frozen=True)
class Kind:
    """`shortest` and `longest`: seconds from apply to heal. `fits`: whether a system can have it. `real`: not on FakeKafka.

    `loses`: it is after acknowledged records of the input, so only for systems that are there to report their loss.
    """

    name: str
    tree: str
    make: Callable[[Testbed, Subject, random.Random], Fault]
    shortest: float
    longest: float
    fits: Callable[[str], bool] = lambda _system: True
    real: bool = True
    loses: bool = False


def is_embedded(system: str) -> bool:
    """The script, also with other timeouts, or with a bug: it has a group, and it is one process."""
    return system.startswith(("embedded", "planted-"))


def writes_table(system: str) -> bool:
    """Of a database."""
    return system in PRODUCTS


def writes_topic(system: str) -> bool:
    """As all others do."""
    return not writes_table(system)


def has_transactions(system: str) -> bool:
    """Of Kafka's: Spark's own connector has none."""
    return system != "jvm" and writes_topic(system)
