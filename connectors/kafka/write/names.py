"""The transactional ids of exactly-once writes: how they are made, and what one says.

    <prefix>.<job>.<destination>.<epoch mod 2>.<task>.<attempt>   a task's
    <prefix>.<job>.<destination>.driver                           guards the list of committables
    <prefix>.<job>.<destination>.repair                           copies what was aborted after it was on that list

`<destination>` is a digest of it, 8 hexadecimal digits; the key of the list in the commit topic is what the ids start with.

So the coordinators keep few of them: an id is used again two epochs later, when its epoch is resolved. An attempt takes the
first under which nothing is open, whatever numbers the engine gives them; the driver's check refuses what was prepared under
one that another attempt took over in between.

The command line and the engines' options import this module:
it imports nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

DEFAULT_PREFIX = "headrace"
"""What all transactional ids start with."""

DEFAULT_COMMIT_TOPIC = "headrace-commits"
"""The compacted topic with the jobs' lists of committables."""

EACH_ROWS_TOPIC = "each row's topic"
"""The destination of a sink without its own topic; every other destination is the name of a topic."""

_SLOTS = 2  # epochs whose transactional ids are distinct
_DIGEST_BYTES = 4


class Role(StrEnum):
    """What a transactional id is for."""

    TASK = "task"
    DRIVER = "driver"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True)
class JobNames:
    """Makes the transactional ids of one job at one destination. Neither `prefix` nor `job` holds a dot (`check_job`)."""

    prefix: str
    job: str
    destination: str

    @property
    def key(self) -> str:
        return f"{self.of_job}{digest_of(self.destination)}"

    @property
    def of_job(self) -> str:
        """What the ids of the job start with, at every destination, and no other job's: the last dot keeps `q1` from `q10`."""
        return f"{self.prefix}.{self.job}."

    @property
    def beginning(self) -> str:
        return f"{self.key}."

    def task(self, epoch: int, task: int, attempt: int) -> str:
        return f"{self.beginning}{epoch % _SLOTS}.{task}.{attempt}"

    @property
    def driver(self) -> str:
        return self.beginning + Role.DRIVER

    @property
    def repair(self) -> str:
        return self.beginning + Role.REPAIR


@dataclass(frozen=True, slots=True)
class TransactionName:
    """What a transactional id says. `digest` is its destination's.

    `slot` (the epoch modulo 2), `task` and `attempt` are a task's, None for other roles.
    """

    prefix: str
    job: str
    role: Role
    digest: str
    slot: int | None = None
    task: int | None = None
    attempt: int | None = None


def parse_name(transactional_id: str) -> TransactionName | None:
    """What `JobNames` made; None for an id that it did not make."""
    found = _NAME.fullmatch(transactional_id)
    if found is None:
        return None
    if found["role"] is not None:
        return TransactionName(found["prefix"], found["job"], Role(found["role"]), found["digest"])
    slot, task, attempt = int(found["slot"]), int(found["task"]), int(found["attempt"])
    return TransactionName(found["prefix"], found["job"], Role.TASK, found["digest"], slot, task, attempt)


_JOB = "[A-Za-z0-9_-]{1,100}"  # as `check_job` has it
_NUMBER = "0|[1-9][0-9]{0,18}"  # up to 63 bits, as `Attempt` has it
_NAME = re.compile(
    rf"(?P<prefix>{_JOB})\.(?P<job>{_JOB})\.(?P<digest>[0-9a-f]{{{2 * _DIGEST_BYTES}}})"
    rf"\.(?:(?P<role>{Role.DRIVER}|{Role.REPAIR})|(?P<slot>[0-{_SLOTS - 1}])\.(?P<task>{_NUMBER})\.(?P<attempt>{_NUMBER}))"
)


def digest_of(destination: str) -> str:
    """What represents a destination in names: they are short, and it may be anything."""
    return hashlib.blake2b(destination.encode(), digest_size=_DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class ListKey:
    """What the key of a list says. `prefix` and `digest` are None for a key that is none of headrace; `job` is all of it
    then.
    """

    job: str
    prefix: str | None = None
    digest: str | None = None


def other_prefixes(names: JobNames, keys: Iterable[str]) -> list[str]:
    """Those under which there are lists of a job of this name at the same destination."""
    found = [parse_key(key) for key in keys]
    own = (names.job, digest_of(names.destination))
    return sorted(each.prefix for each in found if each.prefix not in (None, names.prefix) and (each.job, each.digest) == own)


def parse_key(key: str) -> ListKey:
    match key.split("."):
        case [prefix, job, digest]:
            return ListKey(job, prefix, digest)
        case _:
            return ListKey(key)
