"""What a job's supervisor reports about it in its status file (`supervision/status.py`), as far as metrics show it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["JobFacts", "JobStatus"]


@dataclass(frozen=True, slots=True)
class JobFacts:
    """`standbys`: how many there are in each state. `takeovers`: None where the supervisor does not count them.

    `lease_term` and `is_suspect`: of a supervisor that leads others on other hosts; None of any other.
    """

    drivers_started: int
    takeovers: int | None
    standbys: Mapping[str, int]
    lease_term: int | None = None
    is_suspect: bool | None = None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The file. Read again for each look."""

    path: Path

    def read(self) -> JobFacts | None:
        """What it says now; None where there is no such file, or it is none of a supervisor's."""
        try:
            said = json.loads(self.path.read_text())
            standbys = Counter(str(standby["state"]).lower() for standby in said.get("standbys", ()))
            takeovers = said.get("takeovers")
            lease = said.get("lease") or {}
            term, suspect = lease.get("term"), lease.get("suspect")
            leads = (None, None) if term is None or suspect is None else (int(term), bool(suspect))
            return JobFacts(int(said["drivers_started"]), None if takeovers is None else int(takeovers), standbys, *leads)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
