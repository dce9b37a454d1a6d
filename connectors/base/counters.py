"""What only this process sees, counted for the one that shows it as metrics: records left out, waits, commits.

Connectors count where it happens, in whichever process that is; a runner takes the counts and brings them to where they are
shown. A runner that takes none loses only numbers.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Mapping
from enum import Enum


class Counted(Enum):
    """What is counted, by the names under which it travels."""

    COMMITS = "commits"
    COMMIT_SECONDS = "commit_seconds"
    COMMITTED_TRANSACTIONS = "committed_transactions"
    RECORDS_SKIPPED = "records_skipped"
    RECORDS_KEPT_BAD = "records_kept_bad"
    OFFSETS_LOST = "offsets_lost"
    THROTTLED_SECONDS = "throttled_seconds"


class ProcessCounters:
    """Sums since they were last taken. Thread-safe; a forked child starts at nothing."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = defaultdict(float)

    def add(self, what: Counted, amount: float = 1) -> None:
        if amount:
            with self._lock:
                self._sums[what.value] += amount

    def take(self) -> Mapping[str, float]:
        with self._lock:
            taken, self._sums = dict(self._sums), defaultdict(float)
        return taken


COUNTERS = ProcessCounters()
"""Those of this process."""
