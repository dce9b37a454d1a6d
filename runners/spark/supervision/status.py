"""What a supervisor shows of its job, as a file of JSON for probes and people: always a whole one, never half of one.

    {"job": "job.py:job", "state": "RUNNING", "supervisor": {"pid": 7},
     "active": {"pid": 12, "number": 3, "since": "2026-11-22T10:00:00Z", "state": "ACTIVE", "queries": ["<id>"],
                "batches": {"<id>": 41}},
     "standbys": [{"pid": 15, "number": 4, "since": "2026-11-22T10:00:09Z", "state": "ARMED", "unrehearsed": null}],
     "drivers_started": 4, "takeovers": 1, "last_failure": "...", "standby_failure": null,
     "lease": {"state": "LEADING", "leader": "host-a", "term": 2, "suspect": false, "waiting": false, "trouble": null},
     "restart_at": null, "ended": null, "updated": "2026-11-22T10:04:00Z"}

`state` is a phase of `SUPERVISION_TRANSITIONS`, a driver's one of `DRIVER_TRANSITIONS`; `active` is null while none is called.
`lease`: null without one; else `state` is a phase of `LEASE_TRANSITIONS`, `leader` the host that was last seen to lead, `term`
this one's while it leads, `suspect` whether it may be taken for dead, as it could not write, `waiting` whether its next
driver waits for that reason, and `trouble` what was wrong with the lease store at the last look. `no_dry_run`: why the job
could not be dry-run; null where it was. `ended`, once the job is over: `{"ending": "DATA_LOSS", "exit_status": 65, "reason":
"..."}`.
Times are of this machine's clock, for people.
"""

from __future__ import annotations

import json
import logging
import os
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from headrace.enumerator.errors import UsageError
from headrace.runners.local.storage.lock import locked

log = logging.getLogger(__name__)


class StatusFile:
    """Written by the supervisor's thread, in place of what was there; left alone while another supervisor writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_locked, self._said = False, ""

    def check(self) -> None:
        """Raise UsageError where it cannot be written, which is to be known before a driver starts."""
        if not os.access(self.path.parent, os.W_OK) or self.path.is_dir():
            raise UsageError(f"the status cannot be written to {self.path}: its folder has to be there, and writable")

    def write(self, status: Mapping[str, object]) -> bool:
        """Whether it is written. A reader sees the previous status or this one.

        A full disk is not a reason to end the job: it is logged once, until one is written.
        """
        if not self._is_own():
            return False
        made = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            made.write_text(json.dumps({**status, "updated": instant_in(0)}) + "\n")
            made.replace(self.path)
        except OSError as error:
            self._warn(f"the status could not be written to {self.path}: {error}")
            return False
        self._said = ""
        return True

    def _is_own(self) -> bool:
        """Whether no other living process has locked the status's lock file, which this one has from now on."""
        if self._is_locked:
            return True
        try:
            lock = locked(self.path.with_name(f".{self.path.name}.lock"), lambda file: flock(file, LOCK_EX | LOCK_NB))
        except BlockingIOError:
            self._warn(f"another supervisor writes its status to {self.path}: that of this one is not shown")
            return False
        except OSError as error:  # a disk without locks, or one on which the status cannot be written either
            log.debug("the status in %s cannot be locked: %s", self.path, error)
            return True
        weakref.finalize(self, os.close, lock)
        self._is_locked = True
        return True

    def _warn(self, text: str) -> None:
        """Drivers say twice a second that they live: the same is logged once."""
        if text != self._said:
            log.warning("%s", text)
        self._said = text


def instant_in(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
