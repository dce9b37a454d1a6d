"""A run told to use another number of workers while it is at work: a file in its folder says how many.

The coordinator looks for it every second, takes a last checkpoint and ends; the supervisor starts one with so many workers.
That one goes on from the checkpoint, deals the splits out anew, and removes the file. Where one dies on the way the next finds
the file again. A file that was there before the run was started, whose start says anew how many workers there are, is removed.
Only who has the folder's lock removes what it has not written: a second start of the command by mistake changes nothing.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path

from headrace.enumerator.errors import StateError, UsageError
from headrace.runners.local.checkpoints import write_whole

__all__ = ["RescaleRequest", "is_requested", "read_request", "request_rescale", "withdraw_request"]

_REQUEST = "rescale.json"


@dataclass(frozen=True, slots=True)
class RescaleRequest:
    """How many workers a run is to have. `name`: no other request's."""

    workers: int
    name: str


def request_rescale(folder: Path, workers: int) -> None:
    """Tell the run that works with these checkpoints. Raises UsageError for no worker, OSError as the filesystem does."""
    if workers < 1:
        raise UsageError(f"a run needs at least 1 worker, not {workers}")
    write_whole(folder / _REQUEST, json.dumps({"workers": workers, "name": uuid.uuid4().hex}).encode())


def is_requested(folder: Path) -> bool:
    """Whether there is a request that no run has carried out yet."""
    return (folder / _REQUEST).exists()


def read_request(folder: Path) -> RescaleRequest | None:
    """The request; None where there is none. Raises StateError for a file that is none."""
    try:
        text = (folder / _REQUEST).read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
        workers, name = found["workers"], found["name"]
    except (ValueError, KeyError, TypeError, RecursionError):
        workers = name = None
    if type(workers) is not int or workers < 1 or type(name) is not str:
        raise StateError(f"{folder / _REQUEST} is no request to rescale")
    return RescaleRequest(workers, name)


def withdraw_request(folder: Path) -> None:
    """It is carried out, given up, or of an earlier life of the run. Called by who has made it, or by the run's coordinator."""
    (folder / _REQUEST).unlink(missing_ok=True)
