"""A run told to use another number of workers while it is at work: a file in its folder says how many.

The coordinator looks for it every second, takes a last checkpoint and ends; the supervisor starts one with so many workers.
That one goes on from the checkpoint, deals the splits out anew, and removes the file. Where one dies on the way the next finds
the file again.
"""

from __future__ import annotations

import json
from pathlib import Path

from headrace.enumerator.errors import StateError, UsageError
from headrace.runners.local.checkpoints import write_whole

__all__ = ["is_requested", "request_rescale", "requested_workers", "withdraw_request"]

_REQUEST = "rescale.json"


def request_rescale(folder: Path, workers: int) -> None:
    """Tell the run that works with these checkpoints. Raises UsageError for no worker, OSError as the filesystem does."""
    if workers < 1:
        raise UsageError(f"a run needs at least 1 worker, not {workers}")
    write_whole(folder / _REQUEST, json.dumps({"workers": workers}).encode())


def is_requested(folder: Path) -> bool:
    """Whether there is a request that no run has carried out yet."""
    return (folder / _REQUEST).exists()


def requested_workers(folder: Path) -> int | None:
    """How many workers the run is to have; None where nobody has said so. Raises StateError for a file that does not say it."""
    try:
        text = (folder / _REQUEST).read_bytes()
    except FileNotFoundError:
        return None
    try:
        workers = json.loads(text)["workers"]
    except (ValueError, KeyError, TypeError, RecursionError):
        workers = None
    if type(workers) is not int or workers < 1:
        raise StateError(f"{folder / _REQUEST} names no number of workers")
    return workers


def withdraw_request(folder: Path) -> None:
    """It is carried out, given up, or of an earlier life of the run."""
    (folder / _REQUEST).unlink(missing_ok=True)
