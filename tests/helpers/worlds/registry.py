"""Every simulated world, the bugs that are planted for it, and what must happen often in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tests.helpers import planted, planted_commits
from tests.helpers.worlds.commits import COMMITS
from tests.helpers.worlds.heart import HEART
from tests.helpers.worlds.search import Adversary

Planted = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Searched:
    """`histories`: how many the tests play, of the code as it is and of that with a planted bug.

    `often`: what must happen in them, and how often at least.
    """

    adversary: Adversary
    histories: int
    planted: Sequence[Planted]
    often: Mapping[str, int]


_KILLED = ("FENCING", "RECORDING", "ENDING", "COPYING", "SWEEPING", "CONFIRMING", "COMPLETING")

WORLDS = (
    Searched(
        HEART,
        1000,
        planted.IN_THE_HEART,
        {
            "restore": 2000,
            "rewind": 300,
            "completed": 4000,
            "aborted": 300,
            "aborted, yet durable": 30,
            "declined": 1000,
            "reader lost": 2000,
            "lost while persisting": 500,
            "crash in RUNNING": 1000,
            "crash in COLLECTING": 100,
            "crash in PERSISTING": 100,
            "ReportMissing": 300,
            "ReportDiscoveryFailure": 50,
        },
    ),
    Searched(
        COMMITS,
        1000,
        planted_commits.ALL,
        {
            "commit completed": 3000,
            "restart": 2000,
            "Copy": 100,
            "fenced": 100,
            "check failed": 200,
            "stale epoch refused": 50,
            "tasks refused": 40,
            "epoch skipped": 200,
            "again": 50,
            "expired PREPARED": 500,
            "expired OPEN": 100,
            "expired listed": 20,
            **{f"killed {phase}": 5 for phase in _KILLED},
        },
    ),
)
