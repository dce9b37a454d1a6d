"""The transactional ids of exactly-once writes: how they are made, and what one says.

    <prefix>.<job>.<epoch mod 2>.<task>.<attempt>   a task's
    <prefix>.<job>.driver                           guards the job's list of committables
    <prefix>.<job>.repair                           copies what was aborted after it was on that list

So the coordinators keep few of them: an id is used again two epochs later, when its epoch is resolved. An attempt takes the
first that is free: two attempts never write under one at the same time, whatever numbers the engine gives them.

The command line and the engines' options import this module:
it imports nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "DEFAULT_COMMIT_TOPIC",
    "DEFAULT_PREFIX",
    "JobNames",
    "Role",
    "TransactionName",
    "parse_name",
    "prefix_of",
]

DEFAULT_PREFIX = "headrace"
"""What all transactional ids begin with."""

DEFAULT_COMMIT_TOPIC = "headrace-commits"
"""The compacted topic with the jobs' lists of committables."""

_SLOTS = 2  # epochs whose transactional ids are distinct
_NUMBERS = 3  # of a task's id: slot, task, attempt


class Role(StrEnum):
    """What a transactional id is for."""

    TASK = "task"
    DRIVER = "driver"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True)
class JobNames:
    """Makes the transactional ids of one job. Neither `prefix` nor `job` holds a dot (`check_job`)."""

    prefix: str
    job: str

    @property
    def beginning(self) -> str:
        """What all of them begin with, and no other job's: the last dot keeps job `q1` apart from `q10`."""
        return f"{self.prefix}.{self.job}."

    def task(self, epoch: int, task: int, attempt: int) -> str:
        """The id of one attempt at one task of an epoch."""
        return f"{self.beginning}{epoch % _SLOTS}.{task}.{attempt}"

    @property
    def driver(self) -> str:
        """The driver's own id, by which an older driver is fenced."""
        return self.beginning + Role.DRIVER

    @property
    def repair(self) -> str:
        """The id under which a driver copies."""
        return self.beginning + Role.REPAIR


@dataclass(frozen=True, slots=True)
class TransactionName:
    """What a transactional id says. `slot` (the epoch modulo 2), `task` and `attempt` are a task's, None for other roles."""

    prefix: str
    job: str
    role: Role
    slot: int | None = None
    task: int | None = None
    attempt: int | None = None


def parse_name(transactional_id: str) -> TransactionName | None:
    """What `JobNames` made; None for an id that it did not make."""
    prefix, *rest = transactional_id.split(".")
    if len(rest) == 2 and rest[1] in (Role.DRIVER, Role.REPAIR):
        return TransactionName(prefix, rest[0], Role(rest[1]))
    numbers = rest[1:]
    if len(numbers) != _NUMBERS or not all(number.isascii() and number.isdigit() for number in numbers):
        return None
    slot, task, attempt = map(int, numbers)
    return TransactionName(prefix, rest[0], Role.TASK, slot, task, attempt)


def prefix_of(transactional_id: str) -> str:
    """The prefix of an id that is on a list of committables."""
    return transactional_id.split(".", 1)[0]
